// Products of matrices, in squares of TILE × TILE elements: a group has one, an item SIDE × SIDE elements of it. DEPTH
// columns of the left factor and rows of the right one are in local memory at a time. The kernels that follow exist for
// several sizes of squares. Every element's sum has the same order in all of them.

#define DEPTH 16

// The sums of an item, whose first row and column are the last two arguments: over d from `first` to below `end`,
// A(m, d)·B(d, n), where m is below `rows` and n below `columns`. A factor whose elements lie along d is read along d.
#define SUMS(sums, rows, columns, first, end, top, left, along_a, along_b, A, B, row, column)                        \
    SHARED real as[DEPTH * TILE];                                                                                     \
    SHARED real bs[DEPTH * TILE];                                                                                     \
    uint row = ITEM / (TILE / SIDE) * SIDE, column = ITEM % (TILE / SIDE) * SIDE;                                     \
    real sums[SIDE * SIDE];                                                                                           \
    for (uint i = 0; i < SIDE * SIDE; ++i) sums[i] = R(0.0);                                                          \
    for (uint start = first; start < end; start += DEPTH) {                                                           \
        BARRIER;                                                                                                      \
        for (uint i = ITEM; i < DEPTH * TILE; i += ITEMS) {                                                           \
            uint da = along_a ? i % DEPTH : i / TILE, m = along_a ? i / DEPTH : i % TILE;                             \
            uint db = along_b ? i % DEPTH : i / TILE, n = along_b ? i / DEPTH : i % TILE;                             \
            as[da * TILE + m] = top + m < rows && start + da < end ? A(top + m, start + da) : R(0.0);                 \
            bs[db * TILE + n] = left + n < columns && start + db < end ? B(start + db, left + n) : R(0.0);            \
        }                                                                                                             \
        BARRIER;                                                                                                      \
        for (uint d = 0; d < DEPTH; ++d) {                                                                            \
            for (uint i = 0; i < SIDE; ++i) {                                                                         \
                for (uint j = 0; j < SIDE; ++j)                                                                       \
                    sums[i * SIDE + j] = fma(as[d * TILE + row + i], bs[d * TILE + column + j], sums[i * SIDE + j]);  \
            }                                                                                                         \
        }                                                                                                             \
    }                                                                                                                 \
    row += top;                                                                                                       \
    column += left;

// What a group works on: its square's first row and column, and which of the products it is of.
typedef struct {
    uint top;
    uint left;
    uint product;
} Square;

FUNCTION Square square_of(uint tile, uint group, uint rows, uint columns) {
    uint across = (columns + tile - 1) / tile, down = (rows + tile - 1) / tile;
    Square s;
    s.left = group % across * tile;
    s.top = group / across % down * tile;
    s.product = group / across / down;
    return s;
}

// Steps from row to row and from column to column, in elements.
typedef struct {
    uint rows;
    uint columns;
    uint depth;
    uint a_row;
    uint a_column;
    uint b_row;
    uint b_column;
} Product;

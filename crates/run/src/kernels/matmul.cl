// Products of matrices, in squares of TILE × TILE elements: a group has one, an item SIDE × SIDE elements of it. DEPTH
// columns of the left factor and rows of the right one are in local memory at a time.

#define TILE 64
#define DEPTH 16
#define SIDE 4

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

FUNCTION Square square_of(uint group, uint rows, uint columns) {
    uint across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
    Square s;
    s.left = group % across * TILE;
    s.top = group / across % down * TILE;
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

// a, b[, addend] -> c: `added` is 0 without an addend, 1 for a number per column, 2 for one per element
KERNEL matmul(MEMORY, ulong a, ulong b, ulong addend, ulong c, uint added, FIXED Product p, FIXED Walk batch_a, FIXED Walk batch_b) {
    Square s = square_of(GROUP, p.rows, p.columns);
    uint from_a = walk(&batch_a, s.product), from_b = walk(&batch_b, s.product);
#define A(m, d) REALS(a)[from_a + (m) * p.a_row + (d) * p.a_column]
#define B(d, n) REALS(b)[from_b + (d) * p.b_row + (n) * p.b_column]
    SUMS(sums, p.rows, p.columns, 0, p.depth, s.top, s.left, p.a_column == 1, p.b_row == 1, A, B, row, column)
#undef A
#undef B
    for (uint i = 0; i < SIDE * SIDE; ++i) {
        uint m = row + i / SIDE, n = column + i % SIDE;
        if (m < p.rows && n < p.columns) {
            uint at = (s.product * p.rows + m) * p.columns + n;
            REALS(c)[at] = added ? sums[i] + REALS(addend)[added == 1 ? n : at] : sums[i];
        }
    }
}

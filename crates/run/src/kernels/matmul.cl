// Products of matrices, for one size of squares.

// a, b[, addend] -> c: `added` is 0 without an addend, 1 for a number per column, 2 for one per element
KERNEL SIZED(matmul)(MEMORY, ulong a, ulong b, ulong addend, ulong c, uint added, FIXED Product p, FIXED Walk batch_a, FIXED Walk batch_b) {
    Square s = square_of(TILE, GROUP, p.rows, p.columns);
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

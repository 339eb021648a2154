// Convolutions as products of matrices, for one size of squares.

// x, w[, b] -> y
KERNEL SIZED(conv_product)(MEMORY, ulong x, ulong weight, ulong bias, ulong y, uint samples, uint biased, FIXED Convolution c) {
    uint depth = c.inputs * c.w.kernel_size[0] * c.w.kernel_size[1], windows = c.w.out[0] * c.w.out[1];
    uint columns = samples * windows;
    Square s = square_of(TILE, GROUP, c.outputs, columns);
    uint first = s.product * c.outputs;
#define A(m, d) REALS(weight)[(first + (m)) * depth + (d)]
#define B(d, n) read_input(memory, x, c, s.product, d, n)
    SUMS(sums, c.outputs, columns, 0, depth, s.top, s.left, true, false, A, B, row, column)
#undef A
#undef B
    for (uint i = 0; i < SIDE * SIDE; ++i) {
        uint m = row + i / SIDE, n = column + i % SIDE;
        if (m >= c.outputs || n >= columns) continue;
        uint o = first + m, channel = n / windows * c.groups * c.outputs + o;
        REALS(y)[channel * windows + n % windows] = biased ? sums[i] + REALS(bias)[o] : sums[i];
    }
}

// dy, w -> dx at the positions of a phase
KERNEL SIZED(conv_input_grad_product)(MEMORY, ulong dy, ulong weight, ulong dx, uint samples, FIXED Convolution c, FIXED Phase p) {
    uint all = c.w.kernel_size[0] * c.w.kernel_size[1], taps = p.taps[0] * p.taps[1], depth = c.outputs * taps;
    uint size = p.count[0] * p.count[1], columns = samples * size;
    Square s = square_of(TILE, GROUP, c.inputs, columns);
    uint first = s.product * c.outputs;
#define TAP(t) (tap_of(p, 0, (t) / p.taps[1]) * c.w.kernel_size[1] + tap_of(p, 1, (t) % p.taps[1]))
#define A(m, d) REALS(weight)[((first + (d) / taps) * c.inputs + (m)) * all + TAP((d) % taps)]
#define B(d, n) read_gradient(memory, dy, c, p, s.product, d, n)
    SUMS(sums, c.inputs, columns, 0, depth, s.top, s.left, false, false, A, B, row, column)
#undef A
#undef B
#undef TAP
    for (uint i = 0; i < SIDE * SIDE; ++i) {
        uint m = row + i / SIDE, n = column + i % SIDE;
        if (m >= c.inputs || n >= columns) continue;
        uint channel = (n / size * c.groups + s.product) * c.inputs + m, at = n % size;
        uint h = position_of(p, c, 0, at / p.count[1]), v = position_of(p, c, 1, at % p.count[1]);
        REALS(dx)[(channel * c.w.in[0] + h) * c.w.in[1] + v] = sums[i];
    }
}

// x, dy -> parts[parts, dw]: each part sums over `span` windows.
KERNEL SIZED(conv_weight_grad_product)(MEMORY, ulong x, ulong dy, ulong parts, uint samples, uint span, FIXED Convolution c) {
    uint columns = c.inputs * c.w.kernel_size[0] * c.w.kernel_size[1], windows = c.w.out[0] * c.w.out[1];
    uint depth = samples * windows;
    Square s = square_of(TILE, GROUP, c.outputs, columns);
    uint group = s.product % c.groups, part = s.product / c.groups;
    uint start_of_part = part * span, end = start_of_part + span < depth ? start_of_part + span : depth;
#define A(m, d) REALS(dy)[(((d) / windows * c.groups + group) * c.outputs + (m)) * windows + (d) % windows]
#define B(d, n) read_input(memory, x, c, group, n, d)
    SUMS(sums, c.outputs, columns, start_of_part, end, s.top, s.left, true, true, A, B, row, column)
#undef A
#undef B
    for (uint i = 0; i < SIDE * SIDE; ++i) {
        uint m = row + i / SIDE, n = column + i % SIDE;
        if (m < c.outputs && n < columns)
            REALS(parts)[((part * c.groups + group) * c.outputs + m) * columns + n] = sums[i];
    }
}

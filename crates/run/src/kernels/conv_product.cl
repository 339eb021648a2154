// Convolutions as products of matrices, one for each group of channels. The matrix of what windows read is never
// there: its elements are found when a square needs them.

// What weight d of a filter, (input, tap), is multiplied with in window n of all samples.
FUNCTION real read_input(MEMORY, ulong x, Convolution c, uint group, uint d, uint n) {
    uint taps = c.w.kernel_size[0] * c.w.kernel_size[1], windows = c.w.out[0] * c.w.out[1];
    uint input = d / taps, tap = d % taps, window = n % windows;
    uint h = reads(c.w, 0, window / c.w.out[1], tap / c.w.kernel_size[1]);
    uint v = reads(c.w, 1, window % c.w.out[1], tap % c.w.kernel_size[1]);
    uint channel = (n / windows * c.groups + group) * c.inputs + input;
    return h < c.w.in[0] && v < c.w.in[1] ? REALS(x)[(channel * c.w.in[0] + h) * c.w.in[1] + v] : R(0.0);
}

// What weight d of an input, (output, tap), is multiplied with at position n of all samples.
FUNCTION real read_gradient(MEMORY, ulong dy, Convolution c, uint group, uint d, uint n) {
    uint taps = c.w.kernel_size[0] * c.w.kernel_size[1], size = c.w.in[0] * c.w.in[1];
    uint tap = d % taps, at = n % size;
    uint oh = read_by(c.w, 0, at / c.w.in[1], tap / c.w.kernel_size[1]);
    uint ow = read_by(c.w, 1, at % c.w.in[1], tap % c.w.kernel_size[1]);
    uint channel = (n / size * c.groups + group) * c.outputs + d / taps;
    return oh < c.w.out[0] && ow < c.w.out[1] ? REALS(dy)[(channel * c.w.out[0] + oh) * c.w.out[1] + ow] : R(0.0);
}

// x, w[, b] -> y
KERNEL conv_product(MEMORY, ulong x, ulong weight, ulong bias, ulong y, uint samples, uint biased, Convolution c) {
    uint depth = c.inputs * c.w.kernel_size[0] * c.w.kernel_size[1], windows = c.w.out[0] * c.w.out[1];
    uint columns = samples * windows;
    Square s = square_of(GROUP, c.outputs, columns);
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

// dy, w -> dx
KERNEL conv_input_grad_product(MEMORY, ulong dy, ulong weight, ulong dx, uint samples, Convolution c) {
    uint taps = c.w.kernel_size[0] * c.w.kernel_size[1], depth = c.outputs * taps, size = c.w.in[0] * c.w.in[1];
    uint columns = samples * size;
    Square s = square_of(GROUP, c.inputs, columns);
    uint first = s.product * c.outputs;
#define A(m, d) REALS(weight)[((first + (d) / taps) * c.inputs + (m)) * taps + (d) % taps]
#define B(d, n) read_gradient(memory, dy, c, s.product, d, n)
    SUMS(sums, c.inputs, columns, 0, depth, s.top, s.left, false, false, A, B, row, column)
#undef A
#undef B
    for (uint i = 0; i < SIDE * SIDE; ++i) {
        uint m = row + i / SIDE, n = column + i % SIDE;
        if (m >= c.inputs || n >= columns) continue;
        uint channel = (n / size * c.groups + s.product) * c.inputs + m;
        REALS(dx)[channel * size + n % size] = sums[i];
    }
}

// x, dy -> parts[parts, dw]: each part sums over `span` windows.
KERNEL conv_weight_grad_product(MEMORY, ulong x, ulong dy, ulong parts, uint samples, uint span, Convolution c) {
    uint columns = c.inputs * c.w.kernel_size[0] * c.w.kernel_size[1], windows = c.w.out[0] * c.w.out[1];
    uint depth = samples * windows;
    Square s = square_of(GROUP, c.outputs, columns);
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

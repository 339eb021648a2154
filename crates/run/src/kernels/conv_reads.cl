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

// The positions of an input that have the same distance to a stride before them, and the taps that read them: others
// read none of them. Position (i, j) of these is first + (i, j)·stride, tap (i, j) is tap + (i, j)·tap_step.
typedef struct {
    uint first[2];
    uint count[2];
    uint tap[2];
    uint taps[2];
    uint tap_step[2];
} Phase;

FUNCTION uint position_of(Phase p, Convolution c, uint axis, uint i) { return p.first[axis] + i * c.w.stride[axis]; }

FUNCTION uint tap_of(Phase p, uint axis, uint i) { return p.tap[axis] + i * p.tap_step[axis]; }

// What weight d of an input, (output, tap), is multiplied with at position n of all samples.
FUNCTION real read_gradient(MEMORY, ulong dy, Convolution c, Phase p, uint group, uint d, uint n) {
    uint taps = p.taps[0] * p.taps[1], size = p.count[0] * p.count[1], tap = d % taps, at = n % size;
    uint oh = read_by(c.w, 0, position_of(p, c, 0, at / p.count[1]), tap_of(p, 0, tap / p.taps[1]));
    uint ow = read_by(c.w, 1, position_of(p, c, 1, at % p.count[1]), tap_of(p, 1, tap % p.taps[1]));
    uint channel = (n / size * c.groups + group) * c.outputs + d / taps;
    return oh < c.w.out[0] && ow < c.w.out[1] ? REALS(dy)[(channel * c.w.out[0] + oh) * c.w.out[1] + ow] : R(0.0);
}

// Convolutions, one sum of products for each item or team: what is left to them has one or two channels per group.

// `inputs` and `outputs` are channels per group; x has all inputs of a sample side by side, y all outputs.
typedef struct {
    Windows w;
    uint groups;
    uint inputs;
    uint outputs;
} Convolution;

// x, w[, b] -> y
KERNEL conv(MEMORY, ulong x, ulong weight, ulong bias, ulong y, uint count, uint biased, FIXED Convolution c) {
    uint i = INDEX;
    if (i >= count) return;
    uint ow = i % c.w.out[1], oh = i / c.w.out[1] % c.w.out[0], channel = i / (c.w.out[0] * c.w.out[1]);
    uint o = channel % (c.groups * c.outputs), sample = channel / (c.groups * c.outputs);
    uint first = (sample * c.groups + o / c.outputs) * c.inputs, size = c.w.in[0] * c.w.in[1];
    uint taps = c.w.kernel_size[0] * c.w.kernel_size[1];
    real sum = R(0.0);
    for (uint input = 0; input < c.inputs; ++input) {
        for (uint tap = 0; tap < taps; ++tap) {
            uint h = reads(c.w, 0, oh, tap / c.w.kernel_size[1]), v = reads(c.w, 1, ow, tap % c.w.kernel_size[1]);
            if (h < c.w.in[0] && v < c.w.in[1])
                sum = fma(REALS(x)[(first + input) * size + h * c.w.in[1] + v],
                          REALS(weight)[(o * c.inputs + input) * taps + tap], sum);
        }
    }
    REALS(y)[i] = biased ? sum + REALS(bias)[o] : sum;
}

// dy, w -> dx
KERNEL conv_input_grad(MEMORY, ulong dy, ulong weight, ulong dx, uint count, FIXED Convolution c) {
    uint i = INDEX;
    if (i >= count) return;
    uint v = i % c.w.in[1], h = i / c.w.in[1] % c.w.in[0], channel = i / (c.w.in[0] * c.w.in[1]);
    uint input = channel % c.inputs, group = channel / c.inputs % c.groups;
    // The first of the group's outputs among those of all samples, and among the weights.
    uint first = channel / c.inputs * c.outputs, windows = c.w.out[0] * c.w.out[1];
    uint taps = c.w.kernel_size[0] * c.w.kernel_size[1];
    real sum = R(0.0);
    for (uint o = 0; o < c.outputs; ++o) {
        for (uint tap = 0; tap < taps; ++tap) {
            uint oh = read_by(c.w, 0, h, tap / c.w.kernel_size[1]), ow = read_by(c.w, 1, v, tap % c.w.kernel_size[1]);
            if (oh < c.w.out[0] && ow < c.w.out[1])
                sum = fma(REALS(dy)[(first + o) * windows + oh * c.w.out[1] + ow],
                          REALS(weight)[((group * c.outputs + o) * c.inputs + input) * taps + tap], sum);
        }
    }
    REALS(dx)[i] = sum;
}

// x, dy -> dw: a team has a weight, and sums over samples and windows.
KERNEL conv_weight_grad(MEMORY, ulong x, ulong dy, ulong dw, uint count, uint samples, uint team, FIXED Convolution c) {
    SHARED real shared[ITEMS];
    uint i = INDEX / team, lane = INDEX % team;
    uint taps = c.w.kernel_size[0] * c.w.kernel_size[1];
    uint tap = i % taps, input = i / taps % c.inputs, o = i / taps / c.inputs;
    uint windows = c.w.out[0] * c.w.out[1], size = c.w.in[0] * c.w.in[1];
    uint end = i < count ? samples * windows : 0;
    Sum sum = sum_of(R(0.0));
    for (uint j = lane; j < end; j += team) {
        uint sample = j / windows, window = j % windows;
        uint h = reads(c.w, 0, window / c.w.out[1], tap / c.w.kernel_size[1]);
        uint v = reads(c.w, 1, window % c.w.out[1], tap % c.w.kernel_size[1]);
        if (h >= c.w.in[0] || v >= c.w.in[1]) continue;
        uint from = (sample * c.groups + o / c.outputs) * c.inputs + input;
        uint of = sample * c.groups * c.outputs + o;
        add(&sum, REALS(x)[from * size + h * c.w.in[1] + v] * REALS(dy)[of * windows + window]);
    }
    real total = team_sum(shared, team, sum.sum);
    if (i < count && lane == 0) REALS(dw)[i] = total;
}

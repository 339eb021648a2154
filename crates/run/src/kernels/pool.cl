// Poolings.

// The place in the plane of the first largest element of a window; the plane's size if it has none.
FUNCTION uint largest(MEMORY, ulong x, Windows w, uint plane, uint oh, uint ow) {
    uint best = w.in[0] * w.in[1];
    real top = -INFINITY;
    for (uint i = 0; i < w.kernel_size[0]; ++i) {
        uint h = reads(w, 0, oh, i);
        for (uint j = 0; j < w.kernel_size[1] && h < w.in[0]; ++j) {
            uint v = reads(w, 1, ow, j);
            if (v >= w.in[1]) continue;
            uint at = h * w.in[1] + v;
            real other = REALS(x)[plane + at];
            if (best == w.in[0] * w.in[1] || other > top || other != other) {
                best = at;
                top = other;
            }
        }
    }
    return best;
}

// x -> y
KERNEL max_pool(MEMORY, ulong x, ulong y, uint count, FIXED Windows w) {
    uint i = INDEX;
    if (i >= count) return;
    uint windows = w.out[0] * w.out[1], size = w.in[0] * w.in[1];
    uint plane = i / windows * size, o = i % windows;
    uint at = largest(memory, x, w, plane, o / w.out[1], o % w.out[1]);
    REALS(y)[i] = at < size ? REALS(x)[plane + at] : -INFINITY;
}

// x -> the place of the largest element of each window
KERNEL max_pool_places(MEMORY, ulong x, ulong places, uint count, FIXED Windows w) {
    uint i = INDEX;
    if (i >= count) return;
    uint windows = w.out[0] * w.out[1], o = i % windows;
    uint plane = i / windows * w.in[0] * w.in[1];
    ((GLOBAL uint *)(memory + places))[i] = largest(memory, x, w, plane, o / w.out[1], o % w.out[1]);
}

// places, dy -> dx: an item has an element, and asks each of its windows.
KERNEL max_pool_grad(MEMORY, ulong places, ulong dy, ulong dx, uint count, FIXED Windows w) {
    uint i = INDEX;
    if (i >= count) return;
    uint size = w.in[0] * w.in[1], at = i % size;
    uint first = i / size * w.out[0] * w.out[1];
    real sum = R(0.0);
    for (uint a = w.kernel_size[0]; a-- > 0;) {
        uint oh = read_by(w, 0, at / w.in[1], a);
        for (uint b = w.kernel_size[1]; b-- > 0 && oh < w.out[0];) {
            uint ow = read_by(w, 1, at % w.in[1], b);
            uint window = first + oh * w.out[1] + ow;
            if (ow < w.out[1] && ((GLOBAL uint *)(memory + places))[window] == at) sum += REALS(dy)[window];
        }
    }
    REALS(dx)[i] = sum;
}

// The same where windows tile the plane, in x's own memory too: an item has a tile, of `tiles` per plane, some of which
// are behind the last window.
KERNEL max_pool_grad_tiles(MEMORY, ulong x, ulong dy, ulong dx, uint count, uint down, uint right, FIXED Windows w) {
    uint i = INDEX;
    if (i >= count) return;
    uint size = w.in[0] * w.in[1], tile = i % (down * right), number = i / (down * right);
    uint oh = tile / right, ow = tile % right, plane = number * size;
    bool window = oh < w.out[0] && ow < w.out[1];
    uint best = window ? largest(memory, x, w, plane, oh, ow) : size;
    real gradient = window ? REALS(dy)[(number * w.out[0] + oh) * w.out[1] + ow] : R(0.0);
    for (uint a = 0; a < w.kernel_size[0]; ++a) {
        uint h = reads(w, 0, oh, a);
        for (uint b = 0; b < w.kernel_size[1] && h < w.in[0]; ++b) {
            uint v = reads(w, 1, ow, b);
            if (v < w.in[1]) REALS(dx)[plane + h * w.in[1] + v] = h * w.in[1] + v == best ? gradient : R(0.0);
        }
    }
}

// How many elements of a window along an axis an average divides by.
FUNCTION uint divisor(Windows w, uint axis, uint o, uint count_pad) {
    uint n = 0;
    for (uint k = 0; k < w.kernel_size[axis]; ++k) {
        uint at = o * w.stride[axis] + k * w.dilation[axis];
        n += count_pad ? at < w.in[axis] + w.begin[axis] + w.end[axis] : at - w.begin[axis] < w.in[axis];
    }
    return n;
}

// x -> y
KERNEL average_pool(MEMORY, ulong x, ulong y, uint count, uint count_pad, FIXED Windows w) {
    uint i = INDEX;
    if (i >= count) return;
    uint windows = w.out[0] * w.out[1];
    uint plane = i / windows * w.in[0] * w.in[1], oh = i % windows / w.out[1], ow = i % w.out[1];
    real sum = R(0.0);
    for (uint a = 0; a < w.kernel_size[0]; ++a) {
        uint h = reads(w, 0, oh, a);
        for (uint b = 0; b < w.kernel_size[1] && h < w.in[0]; ++b) {
            uint v = reads(w, 1, ow, b);
            if (v < w.in[1]) sum += REALS(x)[plane + h * w.in[1] + v];
        }
    }
    REALS(y)[i] = sum / (real)(divisor(w, 0, oh, count_pad) * divisor(w, 1, ow, count_pad));
}

// dy -> dx
KERNEL average_pool_grad(MEMORY, ulong dy, ulong dx, uint count, uint count_pad, FIXED Windows w) {
    uint i = INDEX;
    if (i >= count) return;
    uint size = w.in[0] * w.in[1], at = i % size;
    uint windows = i / size * w.out[0] * w.out[1];
    real sum = R(0.0);
    for (uint a = 0; a < w.kernel_size[0]; ++a) {
        uint oh = read_by(w, 0, at / w.in[1], a);
        for (uint b = 0; b < w.kernel_size[1] && oh < w.out[0]; ++b) {
            uint ow = read_by(w, 1, at % w.in[1], b);
            if (ow < w.out[1])
                sum += REALS(dy)[windows + oh * w.out[1] + ow]
                       / (real)(divisor(w, 0, oh, count_pad) * divisor(w, 1, ow, count_pad));
        }
    }
    REALS(dx)[i] = sum;
}

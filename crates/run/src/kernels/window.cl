// Windows over planes: poolings and plain convolutions.

// Axis 0 is down, axis 1 is right. `in` is the size of the plane that windows move over, `out` the number of windows.
typedef struct {
    uint in[2];
    uint out[2];
    uint kernel_size[2];
    uint stride[2];
    uint dilation[2];
    uint begin[2];
    uint end[2];
} Windows;

// The position that element k of window o reads, if it isn't padding: otherwise the plane's size or more.
FUNCTION uint reads(Windows w, uint axis, uint o, uint k) {
    return o * w.stride[axis] + k * w.dilation[axis] - w.begin[axis];
}

// The window whose element k reads position i; otherwise the number of windows or more.
FUNCTION uint read_by(Windows w, uint axis, uint i, uint k) {
    uint first = k * w.dilation[axis], at = i + w.begin[axis];
    return at < first || (at - first) % w.stride[axis] != 0 ? w.out[axis] : (at - first) / w.stride[axis];
}

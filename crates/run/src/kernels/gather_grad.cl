// The gradient of gather.

// Adds dy[outer, n, inner] to ddata[outer, length, inner] where it was gathered, in the order of the indices. An item
// has a column, so that no two add to the same element.
KERNEL gather_grad(MEMORY, ulong indices, ulong dy, ulong ddata, uint columns, uint n, uint length, uint inner) {
    uint i = INDEX;
    if (i >= columns) return;
    uint outer = i / inner, column = i % inner;
    for (uint k = 0; k < n; ++k) {
        uint to = position(LONGS(indices)[k], length);
        if (to < length)
            REALS(ddata)[(outer * length + to) * inner + column] += REALS(dy)[(outer * n + k) * inner + column];
    }
}

// Gather, for elements of any type, and the check of indices and labels.

// The position that an index means; negative indices count from the end. It is `length` or more for those that `check`
// complains of, and nothing may be read or written there.
FUNCTION uint position(long index, uint length) {
    long at = index < 0 ? index + (long)length : index;
    return at >= 0 && at < (long)length ? (uint)at : length;
}

// complaint[0] = 1 and complaint[1] = the first index outside of least..length, or complaint[0] = 0. One group.
KERNEL check(MEMORY, ulong indices, ulong complaint, uint count, long least, uint length) {
    SHARED uint first[ITEMS];
    first[ITEM] = count;
    for (uint i = ITEM; i < count; i += ITEMS) {
        long index = LONGS(indices)[i];
        if ((index < least || index >= (long)length) && first[ITEM] == count) first[ITEM] = i;
    }
    for (uint step = ITEMS / 2; step > 0; step /= 2) {
        BARRIER;
        if (ITEM < step && first[ITEM + step] < first[ITEM]) first[ITEM] = first[ITEM + step];
    }
    if (ITEM == 0) {
        LONGS(complaint)[0] = first[0] < count;
        if (first[0] < count) LONGS(complaint)[1] = LONGS(indices)[first[0]];
    }
}

// data[outer, length, inner], indices[n] -> y[outer, n, inner]
KERNEL gather(MEMORY, ulong data, ulong indices, ulong y, uint count, uint n, uint length, uint inner) {
    uint i = INDEX;
    if (i >= count) return;
    uint column = i % inner, row = i / inner;
    uint at = position(LONGS(indices)[row % n], length);
    if (at < length) REALS(y)[i] = REALS(data)[(row / n * length + at) * inner + column];
}

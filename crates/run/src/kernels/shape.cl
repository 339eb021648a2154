// Moving elements of any type, as words of their size.

// y[i] = x[walk(i)]
KERNEL take(MEMORY, ulong x, ulong y, uint count, FIXED Walk from) {
    uint i = INDEX;
    if (i < count) REALS(y)[i] = REALS(x)[walk(&from, i)];
}

// y[walk(i)] = x[i]
KERNEL place(MEMORY, ulong x, ulong y, uint count, FIXED Walk to) {
    uint i = INDEX;
    if (i < count) REALS(y)[walk(&to, i)] = REALS(x)[i];
}

// y[i] = value
KERNEL fill(MEMORY, ulong y, uint count, real value) {
    uint i = INDEX;
    if (i < count) REALS(y)[i] = value;
}

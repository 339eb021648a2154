// What all kernels share. Every kernel takes the memory of its device and, for each argument, the byte at which it
// starts. A group has ITEMS items. Indices are 32-bit.

#define ITEMS 256
#define MEMORY GLOBAL uchar *memory
#define REALS(at) ((GLOBAL real *)(memory + (at)))
#define LONGS(at) ((GLOBAL long *)(memory + (at)))

// A walk through a tensor: lengths of the axes that are walked, and the tensor's steps along them.
typedef struct {
    uint base;
    uint rank;
    uint lengths[8];
    uint steps[8];
} Walk;

// The tensor's element at this place of the walk, in row-major order.
FUNCTION uint walk(const Walk *w, uint index) {
    uint at = w->base;
    for (uint axis = w->rank; axis-- > 1;) {
        at += index % w->lengths[axis] * w->steps[axis];
        index /= w->lengths[axis];
    }
    return at + index * w->steps[0];
}

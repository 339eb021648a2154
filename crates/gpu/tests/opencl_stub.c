/* A driver that does nothing, and what it does wrong: with TOO_OLD it is OpenCL 1.1, with WITHOUT_FILL it lacks a
 * function, with BUILD_FAILS, FULL and LOST those calls fail. */
#include <stdint.h>
#include <string.h>

typedef void *handle;
static int object;

static int32_t answer(const void *value, size_t length, size_t room, void *to, size_t *needed) {
    if (needed) *needed = length;
    if (to) memcpy(to, value, length < room ? length : room);
    return 0;
}
static int32_t text(const char *value, size_t room, void *to, size_t *needed) {
    return answer(value, strlen(value) + 1, room, to, needed);
}
static handle made(int32_t status, int32_t *to) {
    *to = status;
    return status ? 0 : &object;
}

int32_t clGetPlatformIDs(uint32_t n, handle *ids, uint32_t *count) {
#ifdef NO_DRIVER
    return -1001;
#endif
    if (ids) ids[0] = &object;
    if (count) *count = 1;
    return 0;
}
int32_t clGetPlatformInfo(handle p, uint32_t what, size_t room, void *to, size_t *needed) {
    return text(what == 0x0902 ? "stub" : "OpenCL 1.2 stub", room, to, needed);
}
int32_t clGetDeviceIDs(handle p, uint64_t kind, uint32_t n, handle *ids, uint32_t *count) {
    return clGetPlatformIDs(n, ids, count);
}
int32_t clGetDeviceInfo(handle d, uint32_t what, size_t room, void *to, size_t *needed) {
    uint64_t number = 1024;
    switch (what) {
    case 0x102b: return text("stub device", room, to, needed);
#ifdef TOO_OLD
    case 0x102f: return text("OpenCL 1.1 stub", room, to, needed);
#else
    case 0x102f: return text("OpenCL 1.2 stub", room, to, needed);
#endif
    case 0x102c: case 0x102d: return text("1", room, to, needed);
    default: return answer(&number, room, room, to, needed);
    }
}
handle clCreateContext(void *p, uint32_t n, handle *d, void *f, void *u, int32_t *s) { return made(0, s); }
handle clCreateCommandQueue(handle c, handle d, uint64_t p, int32_t *s) { return made(0, s); }
handle clCreateBuffer(handle c, uint64_t flags, size_t bytes, void *host, int32_t *s) {
#ifdef FULL
    return made(-4, s);
#endif
    return made(0, s);
}
handle clCreateProgramWithSource(handle c, uint32_t n, char **t, size_t *l, int32_t *s) { return made(0, s); }
handle clCreateProgramWithBinary(handle c, uint32_t n, handle *d, size_t *l, uint8_t **b, int32_t *a, int32_t *s) {
    return made(-42, s);
}
int32_t clBuildProgram(handle p, uint32_t n, handle *d, char *o, void *f, void *u) {
#ifdef BUILD_FAILS
    return -11;
#endif
    return 0;
}
int32_t clGetProgramBuildInfo(handle p, handle d, uint32_t what, size_t room, void *to, size_t *needed) {
    return text("line 7: no such thing", room, to, needed);
}
int32_t clGetProgramInfo(handle p, uint32_t what, size_t room, void *to, size_t *needed) { return -1; }
handle clCreateKernel(handle p, char *name, int32_t *s) { return made(0, s); }
int32_t clSetKernelArg(handle k, uint32_t i, size_t bytes, void *value) { return 0; }
int32_t clEnqueueNDRangeKernel(handle q, handle k, uint32_t d, size_t *o, size_t *g, size_t *l, uint32_t n, handle *w,
                               handle *event) {
    *event = &object;
    return 0;
}
int32_t clEnqueueReadBuffer(handle q, handle b, uint32_t block, size_t at, size_t bytes, void *to, uint32_t n, handle *w,
                            handle *event) {
    memset(to, 7, bytes);
    *event = &object;
    return 0;
}
int32_t clEnqueueWriteBuffer(handle q, handle b, uint32_t block, size_t at, size_t bytes, void *from, uint32_t n,
                             handle *w, handle *event) {
    *event = &object;
    return 0;
}
#ifndef WITHOUT_FILL
int32_t clEnqueueFillBuffer(handle q, handle b, void *v, size_t vb, size_t at, size_t bytes, uint32_t n, handle *w,
                            handle *event) {
    *event = &object;
    return 0;
}
#endif
int32_t clFlush(handle q) { return 0; }
int32_t clFinish(handle q) {
#ifdef LOST
    return -5;
#endif
    return 0;
}
int32_t clWaitForEvents(uint32_t n, handle *events) { return clFinish(0); }
int32_t clGetEventProfilingInfo(handle e, uint32_t what, size_t room, void *to, size_t *needed) {
    uint64_t time = what;
    return answer(&time, sizeof time, room, to, needed);
}
int32_t clReleaseContext(handle o) { return 0; }
int32_t clReleaseCommandQueue(handle o) { return 0; }
int32_t clReleaseMemObject(handle o) { return 0; }
int32_t clReleaseProgram(handle o) { return 0; }
int32_t clReleaseKernel(handle o) { return 0; }
int32_t clReleaseEvent(handle o) { return 0; }

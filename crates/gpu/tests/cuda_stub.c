// A device that isn't one: the functions of CUDA's driver, NVRTC, cuBLASLt and cuDNN that are used, on main memory and
// all at once. Its kernels are two simple ones. A macro says what goes wrong.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int S;
typedef void *H;
static int checked(int right, const char *what) {
    if (!right) fprintf(stderr, "the stub was used wrongly: %s\n", what);
    return right;
}
#define CHECK(right) do { if (!checked(right, #right)) abort(); } while (0)

// The driver.
static int current, contexts, lost;
static float now;
S cuInit(unsigned flags) {
#ifdef NO_DEVICE
    return 100;
#endif
    return flags;
}
S cuDriverGetVersion(int *v) {
#ifdef TOO_OLD
    *v = 11040;
#else
    *v = 13000;
#endif
    return 0;
}
S cuDeviceGetCount(int *n) {
#ifdef NO_DEVICE
    return 3;
#endif
    return *n = 1, 0;
}
S cuDeviceGet(int *d, int i) { return *d = 7 + i, 0; }
S cuDeviceGetName(char *s, int n, int d) { return snprintf(s, n, "Stub %d", d), 0; }
S cuDeviceTotalMem_v2(size_t *n, int d) { return *n = 1 << 30, 0; }
S cuDeviceGetAttribute(int *x, int what, int d) { return *x = what == 75 ? 9 : what == 76 ? 0 : 128, 0; }
S cuDevicePrimaryCtxRetain(H *c, int d) { return contexts++, *c = &contexts, 0; }
S cuDevicePrimaryCtxRelease_v2(int d) { return contexts--, 0; }
S cuCtxSetCurrent(H c) { CHECK(c == &contexts && contexts > 0); return current = 1, 0; }
S cuMemAlloc_v2(uint64_t *a, size_t n) {
    CHECK(current);
#ifdef FULL
    return 2;
#endif
    return *a = (uint64_t)malloc(n), 0;
}
S cuMemFree_v2(uint64_t a) { return free((void *)a), 0; }
S cuMemHostAlloc(void **p, size_t n, unsigned flags) { return *p = malloc(n), 0; }
S cuMemFreeHost(void *p) { return free(p), 0; }
S cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
#ifdef UNLOCKED
    return 712;
#endif
    return 0;
}
S cuMemHostUnregister(void *p) { return 0; }
S cuStreamCreate(H *s, unsigned flags) { return *s = malloc(1), 0; }
S cuStreamDestroy_v2(H s) { return free(s), 0; }
#ifndef WITHOUT_FINISH
S cuStreamSynchronize(H s) { return lost; }
#endif
S cuStreamWaitEvent(H s, H e, unsigned flags) { return 0; }
S cuEventCreate(H *e, unsigned flags) { return *e = calloc(1, sizeof(float)), 0; }
S cuEventDestroy_v2(H e) { return free(e), 0; }
S cuEventRecord(H e, H s) { return *(float *)e = now += 1, 0; }
S cuEventQuery(H e) { return lost; }
S cuEventSynchronize(H e) { return lost; }
S cuEventElapsedTime(float *ms, H a, H b) { return *ms = *(float *)b - *(float *)a, 0; }
S cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, H s) { return memcpy((void *)to, from, n), 0; }
S cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, H s) { return memcpy(to, (void *)from, n), 0; }
S cuMemsetD8Async(uint64_t to, unsigned char x, size_t n, H s) { return memset((void *)to, x, n), 0; }
S cuModuleLoadData(H *m, const void *code) { return *m = malloc(1), strcmp(code, "code") ? 200 : 0; }
S cuModuleUnload(H m) { return free(m), 0; }
static int add, take;
S cuModuleGetFunction(H *f, H m, const char *name) {
    *f = strcmp(name, "take") ? &add : &take;
    return strcmp(name, "take") && strcmp(name, "add") ? 500 : 0;
}
S cuLaunchKernel(H f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, H s,
                 void **arguments, void **extra) {
    CHECK(y * z * by * bz == 1 && shared == 0);
    char *memory = *(char **)arguments[0];
    float *from = (float *)(memory + *(uint64_t *)arguments[1]), *to = (float *)(memory + *(uint64_t *)arguments[2]);
    // One takes so many elements as they lie, the other adds a number to all.
    unsigned n = f == &take ? *(unsigned *)arguments[3] : x * bx;
    for (unsigned i = 0; i < n; ++i) to[i] = from[i] + (f == &take ? 0 : *(float *)arguments[3]);
#ifdef LOST
    lost = 700;
#endif
    return 0;
}

// NVRTC.
S nvrtcGetNumSupportedArchs(int *n) { return *n = 2, 0; }
S nvrtcGetSupportedArchs(int *a) { return a[0] = 80, a[1] = 90, 0; }
S nvrtcCreateProgram(H *p, const char *source, const char *name, int n, const char **h, const char **i) {
    return *p = malloc(1), 0;
}
S nvrtcDestroyProgram(H *p) { return free(*p), 0; }
S nvrtcCompileProgram(H p, int n, const char **options) {
    CHECK(n == 2 && !strcmp(options[0], "--gpu-architecture=sm_90") && !strcmp(options[1], "--fmad=false"));
#ifdef BUILD_FAILS
    return 6;
#endif
    return 0;
}
S nvrtcGetProgramLogSize(H p, size_t *n) { return *n = 22, 0; }
S nvrtcGetProgramLog(H p, char *s) { return strcpy(s, "line 7: no such thing"), 0; }
S nvrtcGetCUBINSize(H p, size_t *n) { return *n = 4, 0; }
S nvrtcGetCUBIN(H p, char *s) { return memcpy(s, "code", 4), 0; }
S nvrtcGetPTXSize(H p, size_t *n) { return 1; }
S nvrtcGetPTX(H p, char *s) { return 1; }

// cuBLASLt. Matrices are stored by columns.
typedef struct { int transpose[2]; unsigned epilogue; const float *bias; } Desc;
typedef struct { uint64_t rows, columns; int64_t step, batch_step; int batches; } Layout;
typedef struct { uint64_t workspace; uint32_t alignment[4]; } Preference;
typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Found;
size_t cublasLtGetVersion(void) { return 130100; }
S cublasLtCreate(H *h) { CHECK(current); return *h = malloc(1), 0; }
S cublasLtDestroy(H h) { return free(h), 0; }
S cublasLtMatmulDescCreate(H *h, int compute, int scale) {
    CHECK(compute == 68 && scale == 0);
    Desc *d = calloc(1, sizeof *d);
    return d->epilogue = 1, *h = d, 0;
}
S cublasLtMatmulDescSetAttribute(H h, int what, const void *x, size_t n) {
    Desc *d = h;
    if (what == 3 || what == 4) { CHECK(n == 4); d->transpose[what - 3] = *(int *)x; }
    else if (what == 7) { CHECK(n == 4); d->epilogue = *(unsigned *)x; }
    else { CHECK(what == 8 && n == 8); d->bias = *(const float **)x; }
    return 0;
}
S cublasLtMatmulDescDestroy(H h) { return free(h), 0; }
S cublasLtMatrixLayoutCreate(H *h, int type, uint64_t rows, uint64_t columns, int64_t step) {
    CHECK(type == 0 && (uint64_t)step >= rows);
    Layout *l = calloc(1, sizeof *l);
    return *l = (Layout){rows, columns, step, 0, 1}, *h = l, 0;
}
S cublasLtMatrixLayoutSetAttribute(H h, int what, const void *x, size_t n) {
    Layout *l = h;
    if (what == 5) { CHECK(n == 4); l->batches = *(int *)x; }
    else { CHECK(what == 6 && n == 8); l->batch_step = *(int64_t *)x; }
    return 0;
}
S cublasLtMatrixLayoutDestroy(H h) { return free(h), 0; }
S cublasLtMatmulPreferenceCreate(H *h) { return *h = calloc(1, sizeof(Preference)), 0; }
S cublasLtMatmulPreferenceSetAttribute(H h, int what, const void *x, size_t n) {
    Preference *p = h;
    if (what == 1) { CHECK(n == 8); p->workspace = *(uint64_t *)x; }
    else { CHECK(what >= 5 && what <= 8 && n == 4); p->alignment[what - 5] = *(uint32_t *)x; }
    return 0;
}
S cublasLtMatmulPreferenceDestroy(H h) { return free(h), 0; }
S cublasLtMatmulAlgoGetHeuristic(H h, H d, H a, H b, H c, H e, H p, int n, Found *found, int *count) {
    Preference *preference = p;
    for (int i = 0; i < 4; ++i) CHECK(preference->alignment[i] == 64);
    CHECK(n == 1);
    Layout *first = a;
    // It has nothing for a single column.
    if (first->rows == 1 || first->columns == 1) return 15;
    *found = (Found){{42}, preference->workspace < 32 ? 0 : 32, 0};
    return *count = 1, 0;
}
static float at(const float *m, const Layout *l, int transpose, int batch, uint64_t i, uint64_t j) {
    uint64_t row = transpose ? j : i, column = transpose ? i : j;
    CHECK(row < l->rows && column < l->columns);
    return m[batch * l->batch_step + column * l->step + row];
}
S cublasLtMatmul(H h, H what, const float *alpha, const float *A, H a, const float *B, H b, const float *beta, const float *C,
                 H c, float *D, H d, const uint64_t *algorithm, char *workspace, size_t bytes, H stream) {
    const Desc *desc = what;
    const Layout *first = a, *second = b, *to = d;
    CHECK(algorithm[0] == 42 && (bytes == 0 || bytes == 32));
    if ((uintptr_t)workspace % 256 != 0) return 7;
    memset(workspace, 0xff, bytes);
    uint64_t depth = desc->transpose[0] ? first->rows : first->columns;
    CHECK(depth == (desc->transpose[1] ? second->columns : second->rows));
    CHECK(first->batches == to->batches && second->batches == to->batches);
    for (int batch = 0; batch < to->batches; ++batch)
        for (uint64_t j = 0; j < to->columns; ++j)
            for (uint64_t i = 0; i < to->rows; ++i) {
                float sum = 0;
                for (uint64_t k = 0; k < depth; ++k)
                    sum += at(A, first, desc->transpose[0], batch, i, k) * at(B, second, desc->transpose[1], batch, k, j);
                uint64_t place = batch * to->batch_step + j * to->step + i;
                sum = *alpha * sum + (*beta ? *beta * C[place] : 0);
                D[place] = desc->epilogue == 4 ? sum + desc->bias[i] : sum;
            }
    return 0;
}

// cuDNN.
typedef struct { int n, c, h, w; } Shape;
typedef struct { int pad[2], stride[2], dilation[2], groups, math; } Conv;
typedef struct { int algorithm, status; float time; size_t memory; int deterministic, math, reserved[3]; } Performance;
size_t cudnnGetVersion(void) { return 91400; }
S cudnnCreate(H *h) { CHECK(current); return *h = malloc(1), 0; }
S cudnnDestroy(H h) { return free(h), 0; }
S cudnnSetStream(H h, H s) { return 0; }
S cudnnCreateTensorDescriptor(H *h) { return *h = calloc(1, sizeof(Shape)), 0; }
S cudnnSetTensor4dDescriptor(H h, int format, int type, int n, int c, int y, int x) {
    CHECK(format == 0 && type == 0);
    return *(Shape *)h = (Shape){n, c, y, x}, 0;
}
S cudnnDestroyTensorDescriptor(H h) { return free(h), 0; }
S cudnnCreateFilterDescriptor(H *h) { return cudnnCreateTensorDescriptor(h); }
S cudnnSetFilter4dDescriptor(H h, int type, int format, int n, int c, int y, int x) {
    return cudnnSetTensor4dDescriptor(h, format, type, n, c, y, x);
}
S cudnnDestroyFilterDescriptor(H h) { return free(h), 0; }
S cudnnCreateConvolutionDescriptor(H *h) { return *h = calloc(1, sizeof(Conv)), 0; }
S cudnnSetConvolution2dDescriptor(H h, int p, int q, int u, int v, int a, int b, int mode, int type) {
    CHECK(mode == 1 && type == 0);
    return *(Conv *)h = (Conv){{p, q}, {u, v}, {a, b}, 1, 0}, 0;
}
S cudnnSetConvolutionGroupCount(H h, int groups) { return ((Conv *)h)->groups = groups, 0; }
S cudnnSetConvolutionMathType(H h, int math) { return ((Conv *)h)->math = math, 0; }
S cudnnDestroyConvolutionDescriptor(H h) { return free(h), 0; }
// A transform of Fourier's, sums in any order, one that needs much workspace, and one that is right.
static S list(int fourier, const Conv *c, int n, int *count, Performance *found) {
    CHECK(n >= 4 && c->math == 3);
    found[0] = (Performance){fourier, 0, 1, 0, 1, 3};
    found[1] = (Performance){0, 0, 2, 0, 0, 3};
    found[2] = (Performance){5 + (fourier == 4), 0, 3, 1 << 30, 1, 3};
    found[3] = (Performance){1, 0, 4, 8, 1, 3};
    return *count = 4, 0;
}
S cudnnGetConvolutionForwardAlgorithm_v7(H h, H x, H w, H c, H y, int n, int *k, Performance *f) { return list(4, c, n, k, f); }
S cudnnGetConvolutionBackwardDataAlgorithm_v7(H h, H w, H y, H c, H x, int n, int *k, Performance *f) { return list(2, c, n, k, f); }
S cudnnGetConvolutionBackwardFilterAlgorithm_v7(H h, H x, H y, H c, H w, int n, int *k, Performance *f) { return list(2, c, n, k, f); }
// Adds to one of x, w and y what each of its elements has from the other two.
static void convolve(const Conv *c, const Shape *X, const Shape *W, const Shape *Y, float *x, float *w, float *y, float *to) {
    CHECK(Y->n == X->n && Y->c == W->n && X->c == W->c * c->groups);
    int per_group = Y->c / c->groups;
    for (int n = 0; n < Y->n; ++n) for (int o = 0; o < Y->c; ++o) for (int i = 0; i < W->c; ++i)
    for (int oy = 0; oy < Y->h; ++oy) for (int ox = 0; ox < Y->w; ++ox)
    for (int ky = 0; ky < W->h; ++ky) for (int kx = 0; kx < W->w; ++kx) {
        int iy = oy * c->stride[0] + ky * c->dilation[0] - c->pad[0], ix = ox * c->stride[1] + kx * c->dilation[1] - c->pad[1];
        if (iy < 0 || ix < 0 || iy >= X->h || ix >= X->w) continue;
        float *a = x + ((n * X->c + o / per_group * W->c + i) * X->h + iy) * X->w + ix;
        float *b = w + ((o * W->c + i) * W->h + ky) * W->w + kx, *d = y + ((n * Y->c + o) * Y->h + oy) * Y->w + ox;
        if (to == y) *d += *a * *b;
        if (to == x) *a += *d * *b;
        if (to == w) *b += *a * *d;
    }
}
static void begin(const Shape *s, float *to, const float *beta, int algorithm, char *workspace, size_t bytes) {
    CHECK(algorithm == 1 && bytes == 8 && (*beta == 0 || *beta == 1));
    memset(workspace, 0xff, bytes);
    if (*beta == 0) memset(to, 0, sizeof(float) * s->n * s->c * s->h * s->w);
}
S cudnnConvolutionForward(H h, const float *alpha, H X, float *x, H W, float *w, H c, int algorithm, char *s, size_t bytes,
                          const float *beta, H Y, float *y) {
    return begin(Y, y, beta, algorithm, s, bytes), convolve(c, X, W, Y, x, w, y, y), 0;
}
S cudnnConvolutionBackwardData(H h, const float *alpha, H W, float *w, H Y, float *y, H c, int algorithm, char *s, size_t bytes,
                               const float *beta, H X, float *x) {
    return begin(X, x, beta, algorithm, s, bytes), convolve(c, X, W, Y, x, w, y, x), 0;
}
S cudnnConvolutionBackwardFilter(H h, const float *alpha, H X, float *x, H Y, float *y, H c, int algorithm, char *s, size_t bytes,
                                 const float *beta, H W, float *w) {
    return begin(W, w, beta, algorithm, s, bytes), convolve(c, X, W, Y, x, w, y, w), 0;
}
S cudnnAddTensor(H h, const float *alpha, H A, const float *a, const float *beta, H C, float *c) {
    const Shape *of = A, *to = C;
    CHECK(of->c == to->c && of->n * of->h * of->w == 1 && *alpha == 1 && *beta == 1);
    for (int i = 0; i < to->n * to->c * to->h * to->w; ++i) c[i] += a[i / (to->h * to->w) % to->c];
    return 0;
}

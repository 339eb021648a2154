// Elementwise functions. All can overwrite an input.

#define GELU_ROOT R(0.7978845608028654)
#define GELU_CUBIC R(0.044715)
#define HALF_ROOT R(0.7071067811865476)
#define NORMAL_PEAK R(0.3989422804014327)
#define ERF_PEAK R(1.1283791670955126)

enum { RELU, LEAKY_RELU, CLIP, GELU, GELU_TANH, SIGMOID, TANH, EXP, LOG, SQRT, ERF, ABS, SQUARE, POW, SILU, AFFINE };

FUNCTION real sigmoid(real x) {
    return R(1.0) / (R(1.0) + exp(-x));
}

FUNCTION real value_of(uint f, real x, real a, real b) {
    switch (f) {
    case RELU: return x < R(0.0) ? R(0.0) : x;
    case LEAKY_RELU: return x < R(0.0) ? a * x : x;
    case CLIP: {
        real low = x < a ? a : x;
        return low > b ? b : low;
    }
    case GELU: return R(0.5) * x * (R(1.0) + erf(x * HALF_ROOT));
    case GELU_TANH: return R(0.5) * x * (R(1.0) + tanh(GELU_ROOT * (x + GELU_CUBIC * x * x * x)));
    case SIGMOID: return sigmoid(x);
    case TANH: return tanh(x);
    case EXP: return exp(x);
    case LOG: return log(x);
    case SQRT: return sqrt(x);
    case ERF: return erf(x);
    case ABS: return fabs(x);
    case SQUARE: return x * x;
    case POW: return pow(x, a);
    case SILU: return x * sigmoid(x);
    case AFFINE: return a * x + b;
    default: return x;
    }
}

// dx from dy and s, which is f(x) for the first ones and x for the others.
FUNCTION real gradient_of(uint f, real s, real dy, real a, real b) {
    switch (f) {
    case RELU: return s > R(0.0) ? dy : R(0.0);
    case LEAKY_RELU: return s > R(0.0) ? dy : a * dy;
    case CLIP: return s > a && s < b ? dy : R(0.0);
    case SIGMOID: return dy * s * (R(1.0) - s);
    case TANH: return dy * (R(1.0) - s * s);
    case EXP: return dy * s;
    case SQRT: return R(0.5) * dy / s;
    case GELU: {
        real distribution = R(0.5) * (R(1.0) + erf(s * HALF_ROOT));
        return dy * (distribution + s * (NORMAL_PEAK * exp(-R(0.5) * s * s)));
    }
    case GELU_TANH: {
        real t = tanh(GELU_ROOT * (s + GELU_CUBIC * s * s * s));
        real slope = GELU_ROOT * (R(1.0) + R(3.0) * GELU_CUBIC * s * s);
        return dy * R(0.5) * (R(1.0) + t + s * (R(1.0) - t * t) * slope);
    }
    case LOG: return dy / s;
    case ERF: return dy * ERF_PEAK * exp(-(s * s));
    case ABS: return s > R(0.0) ? dy : s < R(0.0) ? -dy : R(0.0);
    case SQUARE: return R(2.0) * s * dy;
    case POW: return dy * a * pow(s, a - R(1.0));
    case SILU: {
        real y = sigmoid(s);
        return dy * y * (R(1.0) + s * (R(1.0) - y));
    }
    default: return dy;
    }
}

// x -> y
KERNEL unary(MEMORY, ulong x, ulong y, uint count, uint f, real a, real b) {
    uint i = INDEX;
    if (i < count) REALS(y)[i] = value_of(f, REALS(x)[i], a, b);
}

// saved, dy -> dx
KERNEL unary_grad(MEMORY, ulong saved, ulong dy, ulong dx, uint count, uint f, real a, real b) {
    uint i = INDEX;
    if (i < count) REALS(dx)[i] = gradient_of(f, REALS(saved)[i], REALS(dy)[i], a, b);
}

// a, b -> c, both broadcast
KERNEL binary(MEMORY, ulong a, ulong b, ulong c, uint count, uint f, FIXED Walk from_a, FIXED Walk from_b) {
    uint i = INDEX;
    if (i >= count) return;
    real x = REALS(a)[walk(&from_a, i)], y = REALS(b)[walk(&from_b, i)];
    REALS(c)[i] = f == 0 ? x + y : f == 1 ? x - y : f == 2 ? x * y : x / y;
}

// x -> y, broadcast and scaled
KERNEL expand(MEMORY, ulong x, ulong y, uint count, real scale, FIXED Walk from) {
    uint i = INDEX;
    if (i < count) REALS(y)[i] = REALS(x)[walk(&from, i)] * scale;
}

// y[walk(i)] += x[i]
KERNEL add_to(MEMORY, ulong x, ulong y, uint count, FIXED Walk to) {
    uint i = INDEX;
    if (i < count) REALS(y)[walk(&to, i)] += REALS(x)[i];
}

FUNCTION ulong mix(ulong z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
    return z ^ (z >> 31);
}

// x, seed -> y: x·scale, or 0 if the draw for the element's index, in the tensor of which x is a part, is below the
// threshold
KERNEL dropout(MEMORY, ulong x, ulong seed, ulong y, uint count, ulong stream, ulong threshold, real scale, FIXED Walk whole) {
    uint i = INDEX;
    if (i >= count) return;
    ulong key = mix(mix((ulong)LONGS(seed)[0]) + stream);
    ulong draw = mix(key + (ulong)walk(&whole, i) * 0x9e3779b97f4a7c15UL) >> 32;
    REALS(y)[i] = draw < threshold ? R(0.0) : REALS(x)[i] * scale;
}

// Normalization. Statistics k and parameter p of an element are walks over its index.

// x -> stats[2, lines]: means, then biased variances about them.
KERNEL norm_stats(MEMORY, ulong x, ulong stats, uint lines, uint length, uint team, FIXED Walk kept, FIXED Walk summed) {
    SHARED real shared[ITEMS];
    uint line = INDEX / team, lane = INDEX % team;
    uint at = line < lines ? walk(&kept, line) : 0;
    uint end = line < lines ? length : 0;
    Sum sum = sum_of(R(0.0));
    for (uint i = lane; i < end; i += team) add(&sum, REALS(x)[at + walk(&summed, i)]);
    real mean = team_sum(shared, team, sum.sum) / (real)length;
    Sum squares = sum_of(R(0.0));
    for (uint i = lane; i < end; i += team) {
        real d = REALS(x)[at + walk(&summed, i)] - mean;
        add(&squares, d * d);
    }
    real variance = team_sum(shared, team, squares.sum) / (real)length;
    if (line < lines && lane == 0) {
        REALS(stats)[line] = mean;
        REALS(stats)[lines + line] = variance;
    }
}

FUNCTION real inverse_of(real variance, real epsilon) {
    return R(1.0) / sqrt(variance + epsilon);
}

// x, stats, scale, shift -> y
KERNEL norm_apply(MEMORY, ulong x, ulong stats, ulong scale, ulong shift, ulong y, uint count, uint lines, real epsilon,
                  uint f, real a, real b, FIXED Walk to_line, FIXED Walk to_parameter) {
    uint i = INDEX;
    if (i >= count) return;
    uint k = walk(&to_line, i), p = walk(&to_parameter, i);
    real normal = (REALS(x)[i] - REALS(stats)[k]) * inverse_of(REALS(stats)[lines + k], epsilon);
    REALS(y)[i] = value_of(f, normal * REALS(scale)[p] + REALS(shift)[p], a, b);
}

// The normalized x, and the gradient before the activation.
typedef struct {
    real normal;
    real dz;
} Before;

// scale and shift are read with an activation only.
FUNCTION Before before(MEMORY, ulong x, ulong stats, ulong scale, ulong shift, ulong dy, uint lines, real epsilon, uint f,
                       real a, real b, uint i, uint k, uint p) {
    Before it;
    it.normal = (REALS(x)[i] - REALS(stats)[k]) * inverse_of(REALS(stats)[lines + k], epsilon);
    it.dz = REALS(dy)[i];
    if (f <= CLIP) {
        real y = value_of(f, it.normal * REALS(scale)[p] + REALS(shift)[p], a, b);
        it.dz = gradient_of(f, y, it.dz, a, b);
    }
    return it;
}

// For each line, Σ dz·normal and Σ dz, both times scale if `scaled`: the first at `first`, the second at `second`.
KERNEL norm_sums(MEMORY, ulong x, ulong stats, ulong scale, ulong shift, ulong dy, ulong first, ulong second, uint lines,
                 uint all_statistics, uint length, uint team, uint scaled, real epsilon, uint f, real a, real b,
                 FIXED Walk to_line, FIXED Walk to_parameter, FIXED Walk kept, FIXED Walk summed) {
    SHARED real shared[ITEMS];
    uint line = INDEX / team, lane = INDEX % team;
    uint at = line < lines ? walk(&kept, line) : 0;
    uint end = line < lines ? length : 0;
    Sum product = sum_of(R(0.0)), sum = sum_of(R(0.0));
    for (uint j = lane; j < end; j += team) {
        uint i = at + walk(&summed, j);
        uint k = walk(&to_line, i), p = walk(&to_parameter, i);
        Before it = before(memory, x, stats, scale, shift, dy, all_statistics, epsilon, f, a, b, i, k, p);
        real dz = scaled ? it.dz * REALS(scale)[p] : it.dz;
        add(&product, dz * it.normal);
        add(&sum, dz);
    }
    real products = team_sum(shared, team, product.sum), total = team_sum(shared, team, sum.sum);
    if (line < lines && lane == 0) {
        REALS(first)[line] = products;
        REALS(second)[line] = total;
    }
}

// dx from the sums of each statistic's elements, of which there are `length`. It may overwrite x or dy.
KERNEL norm_dx(MEMORY, ulong x, ulong stats, ulong scale, ulong shift, ulong dy, ulong first, ulong second, ulong dx,
               uint count, uint lines, uint length, real epsilon, uint f, real a, real b, FIXED Walk to_line,
               FIXED Walk to_parameter) {
    uint i = INDEX;
    if (i >= count) return;
    uint k = walk(&to_line, i), p = walk(&to_parameter, i);
    Before it = before(memory, x, stats, scale, shift, dy, lines, epsilon, f, a, b, i, k, p);
    real means = (REALS(second)[k] + it.normal * REALS(first)[k]) / (real)length;
    REALS(dx)[i] = (it.dz * REALS(scale)[p] - means) * inverse_of(REALS(stats)[lines + k], epsilon);
}

// stats, running -> running'
KERNEL running_stats(MEMORY, ulong stats, ulong running, ulong updated, uint count, real momentum, real unbiased) {
    uint i = INDEX;
    if (i >= count) return;
    real stat = i < count / 2 ? REALS(stats)[i] : REALS(stats)[i] * unbiased;
    REALS(updated)[i] = (R(1.0) - momentum) * REALS(running)[i] + momentum * stat;
}

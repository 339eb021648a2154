// Softmax and its logarithm along an axis. A team has a line, whose elements are `inner` apart.

FUNCTION uint line_start(uint line, uint length, uint inner) {
    return line / inner * length * inner + line % inner;
}

// x -> y, or its logarithm
KERNEL softmax(MEMORY, ulong x, ulong y, uint lines, uint length, uint inner, uint team, uint logarithm) {
    SHARED real shared[ITEMS];
    uint line = INDEX / team, lane = INDEX % team;
    uint at = line_start(line, length, inner), end = line < lines ? length : 0;
    real top = -INFINITY;
    for (uint i = lane; i < end; i += team) {
        real other = REALS(x)[at + i * inner];
        if (other > top || other != other) top = other;
    }
    top = team_max(shared, team, top);
    Sum sum = sum_of(R(0.0));
    for (uint i = lane; i < end; i += team) add(&sum, exp(REALS(x)[at + i * inner] - top));
    real total = team_sum(shared, team, sum.sum);
    real less = log(total);
    for (uint i = lane; i < end; i += team) {
        real z = REALS(x)[at + i * inner] - top;
        REALS(y)[at + i * inner] = logarithm ? z - less : exp(z) / total;
    }
}

// y, dy -> dx
KERNEL softmax_grad(MEMORY, ulong y, ulong dy, ulong dx, uint lines, uint length, uint inner, uint team, uint logarithm) {
    SHARED real shared[ITEMS];
    uint line = INDEX / team, lane = INDEX % team;
    uint at = line_start(line, length, inner), end = line < lines ? length : 0;
    Sum sum = sum_of(R(0.0));
    for (uint i = lane; i < end; i += team) {
        uint j = at + i * inner;
        add(&sum, logarithm ? REALS(dy)[j] : REALS(y)[j] * REALS(dy)[j]);
    }
    real total = team_sum(shared, team, sum.sum);
    for (uint i = lane; i < end; i += team) {
        uint j = at + i * inner;
        REALS(dx)[j] = logarithm ? REALS(dy)[j] - exp(REALS(y)[j]) * total : REALS(y)[j] * (REALS(dy)[j] - total);
    }
}

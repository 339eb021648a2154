// Sums. Teams of items, a power of two up to ITEMS, each sum one line: every item adds every team-th element with a
// carry for what rounding drops, and the items' sums are added by halves. So the order depends on shapes alone.

typedef struct {
    real sum;
    real carry;
} Sum;

FUNCTION Sum sum_of(real first) {
    Sum s;
    s.sum = first;
    s.carry = R(0.0);
    return s;
}

FUNCTION void add(Sum *s, real x) {
    real corrected = x - s->carry;
    real sum = s->sum + corrected;
    s->carry = (sum - s->sum) - corrected;
    s->sum = sum;
}

// The sum over a team, for all of its items. All items of the group come here.
FUNCTION real team_sum(LOCAL real *shared, uint team, real mine) {
    uint lane = ITEM % team;
    BARRIER;
    shared[ITEM] = mine;
    for (uint step = team / 2; step > 0; step /= 2) {
        BARRIER;
        if (lane < step) shared[ITEM] += shared[ITEM + step];
    }
    BARRIER;
    return shared[ITEM - lane];
}

// The largest of a team's values; NaN if one is.
FUNCTION real team_max(LOCAL real *shared, uint team, real mine) {
    uint lane = ITEM % team;
    BARRIER;
    shared[ITEM] = mine;
    for (uint step = team / 2; step > 0; step /= 2) {
        BARRIER;
        if (lane < step) {
            real other = shared[ITEM + step];
            if (other > shared[ITEM] || other != other) shared[ITEM] = other;
        }
    }
    BARRIER;
    return shared[ITEM - lane];
}

// y[line] = scale·Σ x[walk(line) + walk(element)]
KERNEL reduce(MEMORY, ulong x, ulong y, uint lines, uint length, uint team, real scale, FIXED Walk kept, FIXED Walk summed) {
    SHARED real shared[ITEMS];
    uint line = INDEX / team, lane = INDEX % team;
    Sum sum = sum_of(R(0.0));
    if (line < lines) {
        uint at = walk(&kept, line);
        for (uint i = lane; i < length; i += team) add(&sum, REALS(x)[at + walk(&summed, i)]);
    }
    real total = team_sum(shared, team, sum.sum);
    if (line < lines && lane == 0) REALS(y)[line] = total * scale;
}

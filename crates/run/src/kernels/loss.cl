// Losses and their gradients.

// logits, labels -> each line's −log softmax at its label
KERNEL line_losses(MEMORY, ulong logits, ulong labels, ulong losses, uint lines, uint length, uint inner, uint team) {
    SHARED real shared[ITEMS];
    uint line = INDEX / team, lane = INDEX % team;
    uint at = line_start(line, length, inner), end = line < lines ? length : 0;
    real top = -INFINITY;
    for (uint i = lane; i < end; i += team) {
        real other = REALS(logits)[at + i * inner];
        if (other > top || other != other) top = other;
    }
    top = team_max(shared, team, top);
    Sum sum = sum_of(R(0.0));
    for (uint i = lane; i < end; i += team) add(&sum, exp(REALS(logits)[at + i * inner] - top));
    real total = team_sum(shared, team, sum.sum);
    if (line < lines && lane == 0) {
        long label = LONGS(labels)[line];
        // A wrong label is complained of elsewhere.
        real at_label = label >= 0 && label < (long)length ? REALS(logits)[at + (uint)label * inner] : top;
        REALS(losses)[line] = log(total) + (top - at_label);
    }
}

// probabilities, labels, dloss -> (probabilities − one-hot)·dloss/lines
KERNEL cross_entropy_grad(MEMORY, ulong labels, ulong dloss, ulong y, uint count, uint lines, uint length, uint inner) {
    uint i = INDEX;
    if (i >= count) return;
    uint column = i % inner, row = i / inner;
    uint line = row / length * inner + column;
    real hot = LONGS(labels)[line] == (long)(row % length) ? R(1.0) : R(0.0);
    REALS(y)[i] = (REALS(y)[i] - hot) * (REALS(dloss)[0] / (real)lines);
}

// x, target -> mean of (x − target)². One group.
KERNEL squared_error(MEMORY, ulong x, ulong target, ulong loss, uint count) {
    SHARED real shared[ITEMS];
    Sum sum = sum_of(R(0.0));
    for (uint i = ITEM; i < count; i += ITEMS) {
        real d = REALS(x)[i] - REALS(target)[i];
        add(&sum, d * d);
    }
    real total = team_sum(shared, ITEMS, sum.sum);
    if (ITEM == 0) REALS(loss)[0] = total / (real)count;
}

// x, target, dloss -> dx
KERNEL squared_error_grad(MEMORY, ulong x, ulong target, ulong dloss, ulong dx, uint count) {
    uint i = INDEX;
    if (i < count) {
        real scale = R(2.0) * REALS(dloss)[0] / (real)count;
        REALS(dx)[i] = (REALS(x)[i] - REALS(target)[i]) * scale;
    }
}

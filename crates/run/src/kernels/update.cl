// Optimizers. `hyper` is [learning rate, step number from 1].

// param, grad, hyper[, velocity] -> param'[, velocity']
KERNEL sgd(MEMORY, ulong param, ulong grad, ulong hyper, ulong velocity, ulong to_param, ulong to_velocity, uint count,
           real momentum, real decay) {
    uint i = INDEX;
    if (i >= count) return;
    real old = REALS(param)[i];
    real v = REALS(grad)[i] + decay * old;
    if (momentum != R(0.0)) {
        v = momentum * REALS(velocity)[i] + v;
        REALS(to_velocity)[i] = v;
    }
    REALS(to_param)[i] = old - REALS(hyper)[0] * v;
}

// param, grad, hyper, m, v -> param', m', v'. The logarithms are those of the betas: 1 − βᵗ is −expm1(t·ln β).
KERNEL adam(MEMORY, ulong param, ulong grad, ulong hyper, ulong m, ulong v, ulong to_param, ulong to_m, ulong to_v,
            uint count, real keep1, real take1, real keep2, real take2, real log1, real log2, real epsilon, real decay) {
    uint i = INDEX;
    if (i >= count) return;
    real rate = REALS(hyper)[0] / -expm1(REALS(hyper)[1] * log1);
    real root = R(1.0) / sqrt(-expm1(REALS(hyper)[1] * log2));
    real old = REALS(param)[i];
    real g = REALS(grad)[i] + decay * old;
    real first = keep1 * REALS(m)[i] + take1 * g;
    real second = keep2 * REALS(v)[i] + take2 * g * g;
    REALS(to_m)[i] = first;
    REALS(to_v)[i] = second;
    REALS(to_param)[i] = old - rate * first / (sqrt(second) * root + epsilon);
}

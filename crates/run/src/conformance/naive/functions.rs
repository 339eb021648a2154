//! Functions of one element, and updates.

use scrimp_graph::{Optimizer, Unary};

pub(super) fn update(optimizer: Optimizer, x: &[&[f64]]) -> Vec<Vec<f64>> {
    let (rate, step) = (x[2][0], x[2][1]);
    let mut out = vec![Vec::new(); x.len() - 2];
    for (i, &param) in x[0].iter().enumerate() {
        match optimizer {
            Optimizer::Sgd {
                momentum,
                weight_decay,
            } => {
                let mut v = x[1][i] + weight_decay * param;
                if momentum != 0.0 {
                    v += momentum * x[3][i];
                    out[1].push(v);
                }
                out[0].push(param - rate * v);
            }
            Optimizer::Adam {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } => {
                let g = x[1][i] + weight_decay * param;
                let m = beta1 * x[3][i] + (1.0 - beta1) * g;
                let v = beta2 * x[4][i] + (1.0 - beta2) * g * g;
                let (m_hat, v_hat) = (m / (1.0 - beta1.powf(step)), v / (1.0 - beta2.powf(step)));
                out[0].push(param - rate * m_hat / (v_hat.sqrt() + epsilon));
                out[1].push(m);
                out[2].push(v);
            }
        }
    }
    out
}

const ROOT: f64 = 0.797_884_560_802_865_4;

pub(super) fn unary(f: Unary, x: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match f {
        Unary::Relu => x.max(0.0),
        Unary::LeakyRelu { slope } => {
            if x < 0.0 {
                slope * x
            } else {
                x
            }
        }
        Unary::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
        Unary::GeluTanh => 0.5 * x * (1.0 + (ROOT * (x + 0.044715 * x.powi(3))).tanh()),
        Unary::Sigmoid => sigmoid,
        Unary::Tanh => x.tanh(),
        Unary::Clip { lo, hi } => x.clamp(lo, hi),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Erf => libm::erf(x),
        Unary::Abs => x.abs(),
        Unary::Pow { exponent } => x.powf(exponent),
        Unary::Silu => x * sigmoid,
        Unary::Affine { scale, shift } => scale * x + shift,
    }
}

/// f'(x), given f(x) or x as `saves` says: a closed form if the output is saved, otherwise a difference
/// quotient of high order.
pub(super) fn derivative(f: Unary, s: f64) -> f64 {
    match f {
        Unary::Relu => f64::from(s > 0.0),
        Unary::LeakyRelu { slope } => {
            if s > 0.0 {
                1.0
            } else {
                slope
            }
        }
        Unary::Sigmoid => s - s * s,
        Unary::Tanh => 1.0 - s * s,
        Unary::Clip { lo, hi } => f64::from(s > lo && s < hi),
        Unary::Exp => s,
        Unary::Sqrt => 0.5 / s,
        Unary::Affine { scale, .. } => scale,
        _ => {
            let h = 2e-3 * s.abs().clamp(0.05, 1.0);
            let d = |k: f64| unary(f, s + k * h) - unary(f, s - k * h);
            (d(1.0) * 672.0 - d(2.0) * 168.0 + d(3.0) * 32.0 - d(4.0) * 3.0) / (840.0 * h)
        }
    }
}

//! Optimizer updates and running statistics. They overwrite what they update. If an output isn't in its
//! input's buffer, the input is copied first, so the bits are the same either way.

use scrimp_graph::Optimizer;

use crate::args::Args;
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;

const PIECE: usize = 16 * 1024;

/// See [`Optimizer`].
pub fn update<T: Real>(slots: usize, optimizer: Optimizer, args: Args<'_>) -> Result<(), RunError> {
    let hyper = args.inputs.get::<T>(2)?;
    let (rate, step) = (hyper[0], hyper[1].f64());
    let grad = args.inputs.get::<T>(1)?;
    match optimizer {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        } => {
            let (momentum, decay) = (T::of(momentum), T::of(weight_decay));
            if momentum == T::ZERO {
                let [param] = args.outputs.take::<T, _>()?;
                args.inputs.copy_to(0, 0, param)?;
                par::pieces(slots, param, PIECE, |start, param| {
                    let grad = &grad[start..start + param.len()];
                    wide(|| {
                        for (param, &grad) in param.iter_mut().zip(grad) {
                            *param = *param - rate * (grad + decay * *param);
                        }
                    });
                });
                return Ok(());
            }
            let [param, velocity] = args.outputs.take::<T, _>()?;
            args.inputs.copy_to(0, 0, param)?;
            args.inputs.copy_to(3, 1, velocity)?;
            chunks([param, velocity], slots, |start, [param, velocity]| {
                let grad = &grad[start..start + param.len()];
                wide(|| {
                    for ((param, v), &grad) in param.iter_mut().zip(velocity).zip(grad) {
                        *v = momentum * *v + (grad + decay * *param);
                        *param = *param - rate * *v;
                    }
                });
            });
        }
        Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => {
            let rate = T::of(rate.f64() / (1.0 - beta1.powf(step)));
            let root = T::of(1.0 / (1.0 - beta2.powf(step)).sqrt());
            let (keep1, keep2, decay) = (T::of(beta1), T::of(beta2), T::of(weight_decay));
            let (take1, take2) = (T::of(1.0 - beta1), T::of(1.0 - beta2));
            let epsilon = T::of(epsilon);
            let [param, first, second] = args.outputs.take::<T, _>()?;
            args.inputs.copy_to(0, 0, param)?;
            args.inputs.copy_to(3, 1, first)?;
            args.inputs.copy_to(4, 2, second)?;
            chunks(
                [param, first, second],
                slots,
                |start, [param, first, second]| {
                    let grad = &grad[start..start + param.len()];
                    wide(|| {
                        for (((param, m), v), &grad) in
                            param.iter_mut().zip(first).zip(second).zip(grad)
                        {
                            let g = grad + decay * *param;
                            *m = keep1 * *m + take1 * g;
                            *v = keep2 * *v + take2 * g * g;
                            *param = *param - rate * *m / (v.sqrt() * root + epsilon);
                        }
                    });
                },
            );
        }
    }
    Ok(())
}

/// Calls `f(start, pieces)` for matching pieces of slices of the same length, in parallel.
fn chunks<T: Real, const N: usize>(
    slices: [&mut [T]; N],
    slots: usize,
    f: impl Fn(usize, [&mut [T]; N]) + Sync,
) {
    let length = slices[0].len();
    let slots = if length < par::SMALL { 1 } else { slots };
    let shared = slices.map(Shared::new);
    par::tasks(slots, length.div_ceil(PIECE), &|_, task| {
        let start = task * PIECE;
        let width = PIECE.min(length - start);
        // SAFETY: each task has its own range of each slice.
        #[allow(unsafe_code, reason = "disjoint pieces of slices")]
        let pieces = std::array::from_fn(|n| unsafe { shared[n].piece(start, width) });
        f(start, pieces);
    });
}

/// `stats[2,C], running[2,C] -> running'`, with the unbiased variance.
pub fn running_stats<T: Real>(momentum: f64, count: usize, args: Args<'_>) -> Result<(), RunError> {
    let stats = args.inputs.get::<T>(0)?;
    let [running] = args.outputs.take::<T, _>()?;
    args.inputs.copy_to(1, 0, running)?;
    let channels = running.len() / 2;
    let unbiased = count as f64 / (count.max(2) - 1) as f64;
    for (i, (running, stat)) in running.iter_mut().zip(stats).enumerate() {
        let scale = if i < channels { 1.0 } else { unbiased };
        *running = T::of((1.0 - momentum) * running.f64() + momentum * stat.f64() * scale);
    }
    Ok(())
}

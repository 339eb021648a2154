//! Losses and their gradients. Sums are made per sample or per piece in the workspace and then added in
//! order.

use super::reduce;
use super::scratch::Scratch;
use crate::args::{Args, Source};
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::{Isa, wide, wide_for};

/// Elements per partial sum of the squared error.
const PIECE: usize = 16 * 1024;

/// Lines of logits per partial sum of the cross-entropy.
const LINES: usize = 16;

/// Number of 64-bit partial sums that the cross-entropy of logits [N,C,..] needs.
pub fn cross_entropy_sums(shape: &[usize]) -> usize {
    (shape.iter().product::<usize>() / shape[1]).div_ceil(LINES)
}

/// Number of 64-bit partial sums that the squared error needs.
pub fn squared_error_sums(elements: usize) -> usize {
    elements.div_ceil(PIECE)
}

fn check_labels(op: &'static str, labels: &[i64], classes: usize) -> Result<(), RunError> {
    match labels
        .iter()
        .find(|&&label| label < 0 || label >= classes as i64)
    {
        None => Ok(()),
        Some(&index) => Err(RunError::IndexOutOfRange {
            op,
            index,
            length: classes,
        }),
    }
}

/// The logarithm of the sum of exponentials of a line of logits along axis 1, which begins at `at` and
/// whose elements are `inner` apart.
#[inline(always)]
fn log_sum_exp<T: Real>(
    isa: Isa,
    logits: &[T],
    at: usize,
    classes: usize,
    inner: usize,
) -> (T, f64) {
    if inner == 1 {
        let line = &logits[at..at + classes];
        let top = reduce::largest(line);
        return (
            top,
            reduce::fold(
                line,
                line,
                #[inline(always)]
                |x, _| (x - top).exp(isa),
            ),
        );
    }
    let line = || logits[at..].iter().step_by(inner).take(classes);
    let (mut top, mut total) = (T::NEG_INFINITY, 0.0);
    for &x in line() {
        top = x.or_more(top);
    }
    for &x in line() {
        total += (x - top).exp(isa).f64();
    }
    (top, total)
}

/// `logits[N,C,..], labels -> loss`: the mean of −log softmax at the labels.
pub fn cross_entropy<T: Real>(slots: usize, args: Args<'_>) -> Result<(), RunError> {
    let (logits, labels) = (args.inputs.get::<T>(0)?, args.inputs.get::<i64>(1)?);
    let [loss] = args.outputs.take::<T, _>()?;
    let shape = args.inputs.shape(0);
    let (classes, inner) = (shape[1], shape[2..].iter().product::<usize>());
    check_labels("CrossEntropy", labels, classes)?;
    let sums = Scratch::new(args.workspace).take::<f64>(cross_entropy_sums(shape))?;
    let slots = if logits.len() < par::SMALL { 1 } else { slots };
    let shared = Shared::new(&mut *sums);
    par::tasks(slots, labels.len().div_ceil(LINES), &|_, task| {
        let lines = task * LINES..((task + 1) * LINES).min(labels.len());
        let sum = wide_for(
            #[inline(always)]
            |isa| {
                let mut sum = 0.0;
                for line in lines {
                    let at = line / inner * classes * inner + line % inner;
                    let (top, total) = log_sum_exp(isa, logits, at, classes, inner);
                    let label = logits[at + labels[line] as usize * inner];
                    sum += total.ln() + (top - label).f64();
                }
                sum
            },
        );
        // SAFETY: each task has its own sum.
        #[allow(unsafe_code, reason = "disjoint elements of one slice")]
        let part = unsafe { shared.piece(task, 1) };
        part[0] = sum;
    });
    loss[0] = T::of(sums.iter().sum::<f64>() / labels.len() as f64);
    Ok(())
}

/// `logits, labels, dloss -> dlogits`: (softmax − one-hot)·dloss/count.
pub fn cross_entropy_grad<T: Real>(slots: usize, args: Args<'_>) -> Result<(), RunError> {
    let (logits, labels) = (args.inputs.source::<T>(0)?, args.inputs.get::<i64>(1)?);
    let scale = args.inputs.get::<T>(2)?[0].f64() / labels.len() as f64;
    let [dlogits] = args.outputs.take::<T, _>()?;
    let shape = args.inputs.shape(0);
    let (classes, inner) = (shape[1], shape[2..].iter().product::<usize>());
    check_labels("CrossEntropyGrad", labels, classes)?;
    if let Source::From(logits) = logits {
        par::pieces(slots, dlogits, PIECE, |at, d| {
            d.copy_from_slice(&logits[at..at + d.len()])
        });
    }
    let sample = classes * inner;
    par::rows(slots, dlogits, sample, 4 * sample, |n, d| {
        wide_for(
            #[inline(always)]
            |isa| {
                for i in 0..inner {
                    let (top, total) = log_sum_exp(isa, d, i, classes, inner);
                    let factor = T::of(scale / total);
                    if inner == 1 {
                        for d in d.iter_mut() {
                            *d = (*d - top).exp(isa) * factor;
                        }
                    } else {
                        for d in d[i..].iter_mut().step_by(inner) {
                            *d = (*d - top).exp(isa) * factor;
                        }
                    }
                    let at = labels[n * inner + i] as usize * inner + i;
                    d[at] = d[at] - T::of(scale);
                }
            },
        );
    });
    Ok(())
}

/// `prediction, target -> loss`: the mean of (prediction − target)².
pub fn squared_error<T: Real>(slots: usize, args: Args<'_>) -> Result<(), RunError> {
    let (x, target) = (args.inputs.get::<T>(0)?, args.inputs.get::<T>(1)?);
    let [loss] = args.outputs.take::<T, _>()?;
    let sums = Scratch::new(args.workspace).take::<f64>(squared_error_sums(x.len()))?;
    let slots = if x.len() < par::SMALL { 1 } else { slots };
    let shared = Shared::new(&mut *sums);
    par::tasks(slots, squared_error_sums(x.len()), &|_, task| {
        let range = task * PIECE..((task + 1) * PIECE).min(x.len());
        let (x, target) = (&x[range.clone()], &target[range]);
        let sum = wide(|| reduce::fold(x, target, |x, y| (x - y) * (x - y)));
        // SAFETY: each task has its own sum.
        #[allow(unsafe_code, reason = "disjoint elements of one slice")]
        let part = unsafe { shared.piece(task, 1) };
        part[0] = sum;
    });
    loss[0] = T::of(sums.iter().sum::<f64>() / x.len() as f64);
    Ok(())
}

/// `prediction, target, dloss -> dprediction`
pub fn squared_error_grad<T: Real>(slots: usize, args: Args<'_>) -> Result<(), RunError> {
    let (x, target) = (args.inputs.source::<T>(0)?, args.inputs.get::<T>(1)?);
    let [dx] = args.outputs.take::<T, _>()?;
    let scale = T::of(2.0 * args.inputs.get::<T>(2)?[0].f64() / dx.len() as f64);
    par::pieces(slots, dx, PIECE, |start, dx| {
        let range = start..start + dx.len();
        let target = &target[range.clone()];
        if let Source::From(x) = x {
            dx.copy_from_slice(&x[range]);
        }
        for (dx, &target) in dx.iter_mut().zip(target) {
            *dx = (*dx - target) * scale;
        }
    });
    Ok(())
}

//! The operators by their definitions, one element at a time, in 64 bits.

mod functions;
mod windows;

use scrimp_graph::{Binary, DType, Norm, Op, Reduction, Saves, Unary, infer};

use super::Input;
use functions::{derivative, unary, update};
use windows::{counts, taps, terms};

/// Every position of a shape, in row-major order.
fn positions(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..shape.iter().product::<usize>()).map(|mut index| {
        let mut at = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            at[axis] = index % shape[axis];
            index /= shape[axis];
        }
        at
    })
}

fn offset(shape: &[usize], at: &[usize]) -> usize {
    shape
        .iter()
        .zip(at)
        .fold(0, |offset, (length, i)| offset * length + i)
}

/// The index at which a broadcast operand is read for a position of the output.
fn broadcast(shape: &[usize], at: &[usize]) -> usize {
    let at = &at[at.len() - shape.len()..];
    shape.iter().zip(at).fold(0, |offset, (&length, &i)| {
        offset * length + if length == 1 { 0 } else { i }
    })
}

pub fn run(op: &Op, inputs: &[Input]) -> Vec<Vec<f64>> {
    let signatures: Vec<_> = inputs
        .iter()
        .map(|input| {
            (
                &input.shape[..],
                if input.ints.is_some() {
                    DType::I64
                } else {
                    DType::F64
                },
            )
        })
        .collect();
    let outputs = infer(op, &signatures).expect("the case has valid shapes");
    let to = &outputs[0].0;
    let x: Vec<&[f64]> = inputs.iter().map(|input| &input.floats[..]).collect();
    let shape: Vec<&[usize]> = inputs.iter().map(|input| &input.shape[..]).collect();
    let ints = |i: usize| inputs[i].ints.as_deref().expect("an integer input");
    let each =
        |f: &dyn Fn(&[usize]) -> f64| vec![positions(to).map(|at| f(&at)).collect::<Vec<f64>>()];
    match op {
        Op::Conv { window, groups } => {
            let bias = x.get(2);
            let mut y: Vec<f64> = positions(to)
                .map(|at| bias.map_or(0.0, |bias| bias[at[1]]))
                .collect();
            terms(window, *groups, shape[0], to, |ix, iw, iy| {
                y[iy] += x[0][ix] * x[1][iw]
            });
            vec![y]
        }
        Op::ConvInputGrad { window, groups, .. } => {
            let mut dx = vec![0.0; to.iter().product()];
            terms(window, *groups, to, shape[0], |ix, iw, iy| {
                dx[ix] += x[0][iy] * x[1][iw]
            });
            vec![dx]
        }
        Op::ConvWeightGrad { window, groups } => {
            let mut dw = x
                .get(2)
                .map_or(vec![0.0; to.iter().product()], |sum| sum.to_vec());
            terms(window, *groups, shape[0], shape[1], |ix, iw, iy| {
                dw[iw] += x[0][ix] * x[1][iy]
            });
            vec![dw]
        }
        Op::MatMul { trans_a, trans_b } => {
            let rank = to.len();
            let depth = shape[0][shape[0].len() - if *trans_a { 2 } else { 1 }];
            each(&|at| {
                let (i, j) = (at[rank - 2], at[rank - 1]);
                let pick = |n: usize, row: usize, column: usize, swap: bool| {
                    let mut at = at.to_vec();
                    (at[rank - 2], at[rank - 1]) = if swap { (column, row) } else { (row, column) };
                    let s = shape[n];
                    let mut offset = 0;
                    for (axis, &length) in s.iter().enumerate() {
                        let i = at[rank - s.len() + axis];
                        let matrix = axis + 2 >= s.len();
                        offset = offset * length + if length == 1 && !matrix { 0 } else { i };
                    }
                    x[n][offset]
                };
                let sum: f64 = (0..depth)
                    .map(|k| pick(0, i, k, *trans_a) * pick(1, k, j, *trans_b))
                    .sum();
                let addend = x
                    .get(2)
                    .map_or(0.0, |addend| addend[broadcast(shape[2], at)]);
                sum + addend
            })
        }
        Op::Unary(f) => vec![x[0].iter().map(|&x| unary(*f, x)).collect()],
        Op::UnaryGrad(f) if f.saves() == Saves::Nothing => {
            vec![x[0].iter().map(|&dy| dy * derivative(*f, 0.0)).collect()]
        }
        Op::UnaryGrad(f) => {
            let pairs = x[0].iter().zip(x[1]);
            vec![
                pairs
                    .map(|(&saved, &dy)| dy * derivative(*f, saved))
                    .collect(),
            ]
        }
        Op::Binary(f) => each(&|at| {
            let (a, b) = (x[0][broadcast(shape[0], at)], x[1][broadcast(shape[1], at)]);
            match f {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                Binary::Mul => a * b,
                Binary::Div => a / b,
            }
        }),
        Op::Reduce {
            kind,
            axes,
            keep_dims,
        } => {
            let mut y = vec![0.0; to.iter().product()];
            for (at, x) in positions(shape[0]).zip(x[0]) {
                let kept: Vec<usize> = at
                    .iter()
                    .enumerate()
                    .filter_map(|(axis, &i)| match (axes.contains(&axis), keep_dims) {
                        (false, _) => Some(i),
                        (true, true) => Some(0),
                        (true, false) => None,
                    })
                    .collect();
                y[offset(to, &kept)] += x;
            }
            let count = (x[0].len() / y.len()) as f64;
            let scale = if *kind == Reduction::Mean {
                1.0 / count
            } else {
                1.0
            };
            vec![y.iter().map(|y| y * scale).collect()]
        }
        Op::SumTo { .. } => {
            let mut y = vec![0.0; to.iter().product()];
            for (at, x) in positions(shape[0]).zip(x[0]) {
                y[broadcast(to, &at)] += x;
            }
            vec![y]
        }
        Op::Expand { scale, .. } => each(&|at| scale * x[0][broadcast(shape[0], at)]),
        Op::Fill { value, .. } => each(&|_| *value),
        Op::MaxPool { window } => {
            let mut y = vec![f64::NEG_INFINITY; to.iter().product()];
            taps(window, shape[0], to, |ix, iy| y[iy] = y[iy].max(x[0][ix]));
            vec![y]
        }
        Op::MaxPoolGrad { window } => {
            let mut best = vec![None; x[1].len()];
            taps(window, to, shape[1], |ix, iy| {
                if best[iy].is_none_or(|(best, _)| x[0][ix] > best) {
                    best[iy] = Some((x[0][ix], ix));
                }
            });
            let mut dx = vec![0.0; to.iter().product()];
            for (best, dy) in best.iter().zip(x[1]) {
                dx[best.expect("a window with elements").1] += dy;
            }
            vec![dx]
        }
        Op::AvgPool { window, count_pad } => {
            let counts = counts(window, *count_pad, shape[0], to);
            let mut y = vec![0.0; counts.len()];
            taps(window, shape[0], to, |ix, iy| {
                y[iy] += x[0][ix] / counts[iy]
            });
            vec![y]
        }
        Op::AvgPoolGrad {
            window, count_pad, ..
        } => {
            let counts = counts(window, *count_pad, to, shape[0]);
            let mut dx = vec![0.0; to.iter().product()];
            taps(window, to, shape[0], |ix, iy| {
                dx[ix] += x[0][iy] / counts[iy]
            });
            vec![dx]
        }
        Op::NormStats { norm } => {
            let mut groups: Vec<Vec<f64>> = vec![Vec::new(); to[1]];
            for (at, &x) in positions(shape[0]).zip(x[0]) {
                groups[statistic(*norm, shape[0], &at).0].push(x);
            }
            let means: Vec<f64> = groups
                .iter()
                .map(|x| x.iter().sum::<f64>() / x.len() as f64)
                .collect();
            let variances = groups.iter().zip(&means).map(|(x, mean)| {
                x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64
            });
            vec![means.iter().copied().chain(variances).collect()]
        }
        Op::NormApply {
            norm,
            epsilon,
            activation,
        } => each(&|at| {
            let (k, p) = statistic(*norm, to, at);
            let (mean, inverse) = (x[1][k], 1.0 / (x[1][shape[1][1] + k] + epsilon).sqrt());
            let z = (x[0][offset(to, at)] - mean) * inverse * x[2][p] + x[3][p];
            activation.map_or(z, |f| unary(f, z))
        }),
        Op::NormGrad {
            norm,
            epsilon,
            activation,
        } => {
            let affine = [Some(x[2]), x.get(4).copied()];
            let tensors = [x[0], x[1], x[3]];
            norm_gradients(*norm, *epsilon, *activation, tensors, affine, shape[0])
        }
        Op::NormParamGrad {
            norm,
            epsilon,
            activation,
        } => {
            let affine = [x.get(3).copied(), x.get(4).copied()];
            let tensors = [x[0], x[1], x[2]];
            norm_gradients(*norm, *epsilon, *activation, tensors, affine, shape[0]).split_off(1)
        }
        Op::RunningStats { momentum, count } => {
            let channels = shape[0][1];
            let unbiased = *count as f64 / (*count as f64 - 1.0);
            let y = x[0].iter().zip(x[1]).enumerate().map(|(i, (stat, old))| {
                (1.0 - momentum) * old + momentum * stat * if i < channels { 1.0 } else { unbiased }
            });
            vec![y.collect()]
        }
        Op::Softmax { axis } | Op::LogSoftmax { axis } => {
            let log = matches!(op, Op::LogSoftmax { .. });
            let total = along(to, *axis, |at| x[0][at].exp());
            let y = x[0]
                .iter()
                .zip(total)
                .map(|(x, total)| if log { x - total.ln() } else { x.exp() / total });
            vec![y.collect()]
        }
        Op::SoftmaxGrad { axis } => {
            let total = along(to, *axis, |at| x[0][at] * x[1][at]);
            vec![
                x[0].iter()
                    .zip(x[1])
                    .zip(total)
                    .map(|((y, dy), total)| y * (dy - total))
                    .collect(),
            ]
        }
        Op::LogSoftmaxGrad { axis } => {
            let total = along(to, *axis, |at| x[1][at]);
            vec![
                x[0].iter()
                    .zip(x[1])
                    .zip(total)
                    .map(|((y, dy), total)| dy - y.exp() * total)
                    .collect(),
            ]
        }
        Op::Concat { axis } => each(&|at| {
            let mut at = at.to_vec();
            for (x, shape) in x.iter().zip(&shape) {
                if at[*axis] < shape[*axis] {
                    return x[offset(shape, &at)];
                }
                at[*axis] -= shape[*axis];
            }
            f64::NAN
        }),
        Op::Slice { start, step, .. } => each(&|at| {
            let from: Vec<usize> = (0..at.len())
                .map(|axis| start[axis] + at[axis] * step[axis])
                .collect();
            x[0][offset(shape[0], &from)]
        }),
        Op::SliceGrad { start, step, .. } => {
            let mut dx = x
                .get(1)
                .map_or(vec![0.0; to.iter().product()], |sum| sum.to_vec());
            for (at, dy) in positions(shape[0]).zip(x[0]) {
                let from: Vec<usize> = (0..at.len())
                    .map(|axis| start[axis] + at[axis] * step[axis])
                    .collect();
                dx[offset(to, &from)] += *dy;
            }
            vec![dx]
        }
        Op::Pad { begin, value, .. } => {
            let mut y = vec![*value; to.iter().product()];
            for (at, x) in positions(shape[0]).zip(x[0]) {
                let place: Vec<usize> = at.iter().zip(begin).map(|(i, begin)| i + begin).collect();
                y[offset(to, &place)] = *x;
            }
            vec![y]
        }
        Op::Reshape { .. } => vec![x[0].to_vec()],
        Op::Transpose { perm } => each(&|at| {
            let mut from = vec![0; at.len()];
            perm.iter()
                .enumerate()
                .for_each(|(axis, &p)| from[p] = at[axis]);
            x[0][offset(shape[0], &from)]
        }),
        Op::ResizeNearest { factor } => each(&|at| {
            x[0][offset(
                shape[0],
                &[at[0], at[1], at[2] / factor[0], at[3] / factor[1]],
            )]
        }),
        Op::ResizeNearestGrad { factor } => {
            let mut dx = vec![0.0; to.iter().product()];
            for (at, dy) in positions(shape[0]).zip(x[0]) {
                dx[offset(to, &[at[0], at[1], at[2] / factor[0], at[3] / factor[1]])] += dy;
            }
            vec![dx]
        }
        Op::Gather { axis } => {
            let rank = shape[1].len();
            each(&|at| {
                let index = ints(1)[offset(shape[1], &at[*axis..axis + rank])] as usize;
                let from = [&at[..*axis], &[index], &at[axis + rank..]].concat();
                x[0][offset(shape[0], &from)]
            })
        }
        Op::GatherGrad { axis, .. } => {
            let rank = shape[0].len();
            let mut sum = x
                .get(2)
                .map_or(vec![0.0; to.iter().product()], |sum| sum.to_vec());
            for (at, dy) in positions(shape[1]).zip(x[1]) {
                let index = ints(0)[offset(shape[0], &at[*axis..axis + rank])] as usize;
                sum[offset(to, &[&at[..*axis], &[index], &at[axis + rank..]].concat())] += dy;
            }
            vec![sum]
        }
        Op::CrossEntropy => {
            let total = along(shape[0], 1, |at| x[0][at].exp());
            let mut loss = 0.0;
            for (at, label) in positions(shape[1]).zip(ints(1)) {
                let i = offset(shape[0], &[&at[..1], &[*label as usize], &at[1..]].concat());
                loss += (total[i].ln() - x[0][i]) / ints(1).len() as f64;
            }
            vec![vec![loss]]
        }
        Op::CrossEntropyGrad => {
            let total = along(shape[0], 1, |at| x[0][at].exp());
            let scale = x[2][0] / ints(1).len() as f64;
            let mut grad: Vec<f64> = x[0]
                .iter()
                .zip(total)
                .map(|(x, total)| x.exp() / total * scale)
                .collect();
            for (at, label) in positions(shape[1]).zip(ints(1)) {
                grad[offset(shape[0], &[&at[..1], &[*label as usize], &at[1..]].concat())] -= scale;
            }
            vec![grad]
        }
        Op::MeanSquaredError => {
            let count = x[0].len() as f64;
            vec![vec![
                x[0].iter()
                    .zip(x[1])
                    .map(|(x, y)| (x - y) * (x - y) / count)
                    .sum(),
            ]]
        }
        Op::MeanSquaredErrorGrad => {
            let scale = 2.0 * x[2][0] / x[0].len() as f64;
            vec![
                x[0].iter()
                    .zip(x[1])
                    .map(|(x, y)| (x - y) * scale)
                    .collect(),
            ]
        }
        Op::Update(optimizer) => update(*optimizer, &x),
        Op::BatchNorm { .. } | Op::Dropout { .. } | Op::Read { .. } => {
            panic!("{op:?} has tests of its own")
        }
    }
}

/// For each position, the sum of `f` over the position's line along the axis.
fn along(shape: &[usize], axis: usize, f: impl Fn(usize) -> f64) -> Vec<f64> {
    positions(shape)
        .map(|mut at| {
            (0..shape[axis])
                .map(|i| {
                    at[axis] = i;
                    f(offset(shape, &at))
                })
                .sum()
        })
        .collect()
}

/// Indices of the statistics and of the scale that belong to a position.
fn statistic(norm: Norm, shape: &[usize], at: &[usize]) -> (usize, usize) {
    match norm {
        Norm::Batch => (at[1], at[1]),
        Norm::Instance => (at[0] * shape[1] + at[1], at[1]),
        Norm::Group { groups } => (at[0] * groups + at[1] / (shape[1] / groups), at[1]),
        Norm::Layer { axis } => (
            offset(&shape[..axis], &at[..axis]),
            offset(&shape[axis..], &at[axis..]),
        ),
    }
}

/// dx, dscale and dshift by the chain rule through the activation, mean and variance.
fn norm_gradients(
    norm: Norm,
    epsilon: f64,
    activation: Option<Unary>,
    [x, stats, dy]: [&[f64]; 3],
    [scale, shift]: [Option<&[f64]>; 2],
    shape: &[usize],
) -> Vec<Vec<f64>> {
    let statistics = stats.len() / 2;
    let (mut sum, mut product, mut count) = (
        vec![0.0; statistics],
        vec![0.0; statistics],
        vec![0.0; statistics],
    );
    let params = match norm {
        Norm::Layer { axis } => shape[axis..].iter().product(),
        _ => shape[1],
    };
    let (mut dscale, mut dshift) = (vec![0.0; params], vec![0.0; params]);
    let inverse = |k: usize| 1.0 / (stats[statistics + k] + epsilon).sqrt();
    let normalized = |i: usize, k: usize| (x[i] - stats[k]) * inverse(k);
    let scale = |p: usize| scale.map_or(1.0, |scale| scale[p]);
    let before = |i: usize, k: usize, p: usize| match (activation, shift) {
        (Some(f), Some(shift)) => {
            let y = unary(f, normalized(i, k) * scale(p) + shift[p]);
            dy[i] * derivative(f, y)
        }
        _ => dy[i],
    };
    for (i, at) in positions(shape).enumerate() {
        let (k, p) = statistic(norm, shape, &at);
        let dz = before(i, k, p);
        dshift[p] += dz;
        dscale[p] += dz * normalized(i, k);
        sum[k] += dz * scale(p);
        product[k] += dz * scale(p) * normalized(i, k);
        count[k] += 1.0;
    }
    let dx = positions(shape).enumerate().map(|(i, at)| {
        let (k, p) = statistic(norm, shape, &at);
        let means = sum[k] / count[k] + normalized(i, k) * product[k] / count[k];
        (before(i, k, p) * scale(p) - means) * inverse(k)
    });
    vec![dx.collect(), dscale, dshift]
}

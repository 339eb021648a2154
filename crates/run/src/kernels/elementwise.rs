//! Elementwise kernels: unary functions and their gradients, binary operators with broadcasting, dropout,
//! constants. All of them can overwrite an input.

use scrimp_graph::{Binary, Place, Unary};

use super::activation::{Activation, Clip, LeakyRelu, Relu};
use super::strides::Broadcast;
use crate::args::{Args, Source};
use crate::error::RunError;
use crate::par;
use crate::random::{GOLDEN, mix};
use crate::real::Real;
use crate::simd::{Isa, wide, wide_for};

/// Elements per task, so that the pieces of inputs and output fit the second-level cache.
const PIECE: usize = 16 * 1024;

/// y ← f(isa, x), where `isa` is the instruction set that the loop is compiled for. Functions of more than a
/// few operations must be inlined into the loops; otherwise they would be compiled for the portable
/// instruction set.
fn map<T: Real>(
    slots: usize,
    y: &mut [T],
    x: Source<'_, T>,
    f: impl Fn(Isa, T) -> T + Sync + Copy,
) {
    par::pieces(slots, y, PIECE, |start, y| {
        // The closure gets a copy of f, so that the compiler knows that what f captured isn't y.
        wide_for(
            #[inline(always)]
            move |isa| match x {
                Source::InPlace => {
                    for y in y {
                        *y = f(isa, *y);
                    }
                }
                Source::From(x) => {
                    for (y, &x) in y.iter_mut().zip(&x[start..]) {
                        *y = f(isa, x);
                    }
                }
            },
        );
    });
}

/// y ← f(isa, a, b), where at most one of a and b is y itself; otherwise like [`map`].
fn zip<T: Real>(
    slots: usize,
    y: &mut [T],
    a: Source<'_, T>,
    b: Source<'_, T>,
    f: impl Fn(Isa, T, T) -> T + Sync + Copy,
) {
    par::pieces(slots, y, PIECE, |start, y| {
        // The closure gets a copy of f, so that the compiler knows that what f captured isn't y.
        wide_for(
            #[inline(always)]
            move |isa| match (a, b) {
                (Source::From(a), Source::From(b)) => {
                    for ((y, &a), &b) in y.iter_mut().zip(&a[start..]).zip(&b[start..]) {
                        *y = f(isa, a, b);
                    }
                }
                (Source::InPlace, Source::From(b)) => {
                    for (y, &b) in y.iter_mut().zip(&b[start..]) {
                        *y = f(isa, *y, b);
                    }
                }
                (Source::From(a), Source::InPlace) => {
                    for (y, &a) in y.iter_mut().zip(&a[start..]) {
                        *y = f(isa, a, *y);
                    }
                }
                (Source::InPlace, Source::InPlace) => {
                    for y in y {
                        *y = f(isa, *y, *y);
                    }
                }
            },
        );
    });
}

#[inline(always)]
fn sigmoid<T: Real>(x: T, isa: Isa) -> T {
    T::ONE / (T::ONE + (-x).exp(isa))
}

/// √(2/π) and the cubic coefficient of the tanh approximation of gelu.
const GELU_TANH: (f64, f64) = (0.797_884_560_802_865_4, 0.044_715);

/// 1/√(2π)
const NORMAL_PEAK: f64 = 0.398_942_280_401_432_7;

/// `x -> f(x)`
pub fn unary<T: Real>(slots: usize, f: Unary, args: Args<'_>) -> Result<(), RunError> {
    let (x, [y]) = (args.inputs.source::<T>(0)?, args.outputs.take::<T, _>()?);
    let of = T::of;
    let half = of(0.5);
    macro_rules! each {
        (|$isa:pat_param, $x:ident| $f:expr) => {
            map(
                slots,
                y,
                x,
                #[inline(always)]
                move |$isa, $x| $f,
            )
        };
    }
    match f {
        Unary::Relu => each!(|_, x| Relu.value(x)),
        Unary::LeakyRelu { slope } => {
            let leaky = LeakyRelu(of(slope));
            each!(|_, x| leaky.value(x));
        }
        Unary::Gelu => {
            let root = of(std::f64::consts::FRAC_1_SQRT_2);
            each!(|isa, x| half * x * (T::ONE + (x * root).erf(isa)));
        }
        Unary::GeluTanh => {
            let (root, cubic) = (of(GELU_TANH.0), of(GELU_TANH.1));
            each!(|isa, x| half * x * (T::ONE + (root * (x + cubic * x * x * x)).tanh(isa)));
        }
        Unary::Sigmoid => each!(|isa, x| sigmoid(x, isa)),
        Unary::Tanh => each!(|isa, x| x.tanh(isa)),
        Unary::Clip { lo, hi } => {
            let (lo, hi) = (of(lo), of(hi));
            each!(|_, x| Clip { lo, hi }.value(x));
        }
        Unary::Exp => each!(|isa, x| x.exp(isa)),
        Unary::Log => each!(|_, x| x.ln()),
        Unary::Sqrt => each!(|_, x| x.sqrt()),
        Unary::Erf => each!(|isa, x| x.erf(isa)),
        Unary::Abs => each!(|_, x| x.abs()),
        Unary::Pow { exponent: 2.0 } => each!(|_, x| x * x),
        Unary::Pow { exponent } => {
            let exponent = of(exponent);
            each!(|_, x| x.powf(exponent));
        }
        Unary::Silu => each!(|isa, x| x * sigmoid(x, isa)),
        Unary::Affine { scale, shift } => {
            let (scale, shift) = (of(scale), of(shift));
            each!(|_, x| scale * x + shift);
        }
    }
    Ok(())
}

/// `saved, dy -> dx`, where `saved` is f(x) or x as [`Unary::saves`] says.
pub fn unary_grad<T: Real>(slots: usize, f: Unary, args: Args<'_>) -> Result<(), RunError> {
    let [dx] = args.outputs.take::<T, _>()?;
    let of = T::of;
    if let Unary::Affine { scale, .. } = f {
        let scale = of(scale);
        map(slots, dx, args.inputs.source(0)?, move |_, dy| scale * dy);
        return Ok(());
    }
    let (s, dy) = (args.inputs.source::<T>(0)?, args.inputs.source::<T>(1)?);
    let half = of(0.5);
    macro_rules! each {
        (|$isa:pat_param, $s:ident, $dy:ident| $f:expr) => {
            zip(
                slots,
                dx,
                s,
                dy,
                #[inline(always)]
                move |$isa, $s, $dy| $f,
            )
        };
    }
    match f {
        Unary::Relu => each!(|_, y, dy| Relu.gradient(y, dy)),
        Unary::LeakyRelu { slope } => {
            let leaky = LeakyRelu(of(slope));
            each!(|_, y, dy| leaky.gradient(y, dy));
        }
        Unary::Sigmoid => each!(|_, y, dy| dy * y * (T::ONE - y)),
        Unary::Tanh => each!(|_, y, dy| dy * (T::ONE - y * y)),
        Unary::Clip { lo, hi } => {
            let (lo, hi) = (of(lo), of(hi));
            each!(|_, y, dy| Clip { lo, hi }.gradient(y, dy));
        }
        Unary::Exp => each!(|_, y, dy| dy * y),
        Unary::Sqrt => each!(|_, y, dy| half * dy / y),
        Unary::Gelu => {
            let (root, peak) = (of(std::f64::consts::FRAC_1_SQRT_2), of(NORMAL_PEAK));
            each!(|isa, x, dy| {
                let distribution = half * (T::ONE + (x * root).erf(isa));
                let density = peak * (-half * x * x).exp(isa);
                dy * (distribution + x * density)
            });
        }
        Unary::GeluTanh => {
            let (root, cubic, three) = (of(GELU_TANH.0), of(GELU_TANH.1), of(3.0));
            each!(|isa, x, dy| {
                let t = (root * (x + cubic * x * x * x)).tanh(isa);
                let slope = root * (T::ONE + three * cubic * x * x);
                dy * half * (T::ONE + t + x * (T::ONE - t * t) * slope)
            });
        }
        Unary::Log => each!(|_, x, dy| dy / x),
        Unary::Erf => {
            let factor = of(std::f64::consts::FRAC_2_SQRT_PI);
            each!(|isa, x, dy| dy * factor * (-(x * x)).exp(isa));
        }
        Unary::Abs => each!(|_, x, dy| if x > T::ZERO {
            dy
        } else if x < T::ZERO {
            -dy
        } else {
            T::ZERO
        }),
        Unary::Pow { exponent: 2.0 } => {
            let two = of(2.0);
            each!(|_, x, dy| two * x * dy);
        }
        Unary::Pow { exponent } => {
            let (factor, less) = (of(exponent), of(exponent - 1.0));
            each!(|_, x, dy| dy * factor * x.powf(less));
        }
        Unary::Silu => each!(|isa, x, dy| {
            let y = sigmoid(x, isa);
            dy * y * (T::ONE + x * (T::ONE - y))
        }),
        Unary::Affine { .. } => {}
    }
    Ok(())
}

/// `a, b -> c`
pub fn binary<T: Real>(slots: usize, f: Binary, args: Args<'_>) -> Result<(), RunError> {
    match f {
        Binary::Add => zip_broadcast(slots, args, |a: T, b| a + b),
        Binary::Sub => zip_broadcast(slots, args, |a: T, b| a - b),
        Binary::Mul => zip_broadcast(slots, args, |a: T, b| a * b),
        Binary::Div => zip_broadcast(slots, args, |a: T, b| a / b),
    }
}

fn zip_broadcast<T: Real>(
    slots: usize,
    args: Args<'_>,
    f: impl Fn(T, T) -> T + Sync + Copy,
) -> Result<(), RunError> {
    let (a, b) = (args.inputs.source::<T>(0)?, args.inputs.source::<T>(1)?);
    let shapes = [args.inputs.shape(0), args.inputs.shape(1)];
    let shape = args.outputs.shape(0);
    let [c] = args.outputs.take::<T, _>()?;
    if shapes[0] == shapes[1] {
        zip(slots, c, a, b, |_, a, b| f(a, b));
        return Ok(());
    }
    let axes = Broadcast::new(shape, shapes);
    let row = axes.row();
    let inner = axes.inner();
    par::rows(slots, c, row, row, |index, c| {
        let [at_a, at_b] = axes.offsets(index);
        let (a, b) = (operand(&a, at_a, inner[0]), operand(&b, at_b, inner[1]));
        wide(
            #[inline(always)]
            || zip_row(c, a, b, f),
        );
    });
    Ok(())
}

/// A row of an operand and its step; `None` if the operand is in place, in the output's row.
fn operand<'a, T>(source: &Source<'a, T>, at: usize, step: usize) -> Option<(&'a [T], usize)> {
    match source {
        Source::InPlace => None,
        Source::From(x) => Some((&x[at..], step)),
    }
}

/// Computes one row. An operand is its elements and step 0 or 1, or `None` if it is in the output's memory.
#[inline(always)]
fn zip_row<T: Real>(
    c: &mut [T],
    a: Option<(&[T], usize)>,
    b: Option<(&[T], usize)>,
    f: impl Fn(T, T) -> T,
) {
    match (a, b) {
        (Some((a, 0)), Some((b, 0))) => c.fill(f(a[0], b[0])),
        (Some((a, 0)), Some((b, _))) => {
            let a = a[0];
            for (c, &b) in c.iter_mut().zip(b) {
                *c = f(a, b);
            }
        }
        (Some((a, _)), Some((b, 0))) => {
            let b = b[0];
            for (c, &a) in c.iter_mut().zip(a) {
                *c = f(a, b);
            }
        }
        (Some((a, _)), Some((b, _))) => {
            for ((c, &a), &b) in c.iter_mut().zip(a).zip(b) {
                *c = f(a, b);
            }
        }
        (None, Some((b, 0))) => {
            let b = b[0];
            for c in c {
                *c = f(*c, b);
            }
        }
        (None, Some((b, _))) => {
            for (c, &b) in c.iter_mut().zip(b) {
                *c = f(*c, b);
            }
        }
        (Some((a, 0)), None) => {
            let a = a[0];
            for c in c {
                *c = f(a, *c);
            }
        }
        (Some((a, _)), None) => {
            for (c, &a) in c.iter_mut().zip(a) {
                *c = f(a, *c);
            }
        }
        (None, None) => {
            for c in c {
                *c = f(*c, *c);
            }
        }
    }
}

/// `x -> y`: x broadcast to y's shape, times `scale`.
pub fn expand<T: Real>(slots: usize, scale: f64, args: Args<'_>) -> Result<(), RunError> {
    let axes = Broadcast::new(args.outputs.shape(0), [args.inputs.shape(0)]);
    let (x, [y]) = (args.inputs.get::<T>(0)?, args.outputs.take::<T, _>()?);
    let scale = T::of(scale);
    let [step] = axes.inner();
    par::rows(slots, y, axes.row(), axes.row(), |index, y| {
        let [at] = axes.offsets(index);
        if step == 0 {
            y.fill(x[at] * scale);
        } else {
            for (y, &x) in y.iter_mut().zip(&x[at..]) {
                *y = x * scale;
            }
        }
    });
    Ok(())
}

/// `-> y`
pub fn fill<T: Real>(slots: usize, value: f64, args: Args<'_>) -> Result<(), RunError> {
    let value = T::of(value);
    let [y] = args.outputs.take::<T, _>()?;
    par::pieces(slots, y, PIECE, |_, y| y.fill(value));
    Ok(())
}

/// The elements of a tensor from the one of this index on that follow each other in the larger tensor, too: the
/// index of the first there, and how many they are.
fn run(place: Option<&Place>, shape: &[usize], mut index: usize) -> (usize, usize) {
    let Some(place) = place else {
        return (index, usize::MAX);
    };
    let (mut at, mut stride, mut count) = (0, 1, 1);
    for axis in (0..shape.len()).rev() {
        let position = index % shape[axis];
        index /= shape[axis];
        if axis + 1 == shape.len() {
            count = shape[axis] - position;
        }
        at += (place.start[axis] + position) * stride;
        stride *= place.shape[axis];
    }
    (at, count)
}

/// `x, seed -> y`: x/(1−p), or 0 if the draw for the element's index says so.
pub fn dropout<T: Real>(
    slots: usize,
    p: f64,
    stream: u64,
    place: Option<&Place>,
    args: Args<'_>,
) -> Result<(), RunError> {
    let shape = args.inputs.shape(0);
    let (x, [y]) = (args.inputs.source::<T>(0)?, args.outputs.take::<T, _>()?);
    let seed = args.inputs.get::<i64>(1)?[0] as u64;
    let key = mix(mix(seed).wrapping_add(stream));
    // The draw is a 32-bit number; it is below the threshold with probability p.
    let threshold = (p * 4_294_967_296.0) as u64;
    let scale = T::of(1.0 / (1.0 - p));
    let draw = move |index: usize, x: T| {
        let random = mix(key.wrapping_add((index as u64).wrapping_mul(GOLDEN))) >> 32;
        if random < threshold {
            T::ZERO
        } else {
            x * scale
        }
    };
    par::pieces(slots, y, PIECE, |start, mut y| {
        let mut at = start;
        while !y.is_empty() {
            let (first, count) = run(place, shape, at);
            let (now, rest) = y.split_at_mut(count.min(y.len()));
            match &x {
                Source::InPlace => wide(
                    #[inline(always)]
                    || {
                        for (i, y) in now.iter_mut().enumerate() {
                            *y = draw(first + i, *y);
                        }
                    },
                ),
                Source::From(x) => {
                    let x = &x[at..at + now.len()];
                    wide(
                        #[inline(always)]
                        || {
                            for (i, (y, &x)) in now.iter_mut().zip(x).enumerate() {
                                *y = draw(first + i, x);
                            }
                        },
                    );
                }
            }
            at += now.len();
            y = rest;
        }
    });
    Ok(())
}

//! Normalization: statistics, application with an activation, and gradients. The gradients compute the
//! activation again from the input by the same expression as the application, so both see the same bits.
//!
//! * `planes`: batch, instance and group normalization of tensors in rows.
//! * `layer`: layer normalization.
//! * `columns`: batch and instance normalization of images with channels last.
//! * `passes`: loops over elements and sums over them, which all of these are made of.
//!
//! One task makes all three gradients, so that x and dy are read from memory only once if the elements that
//! share statistics fit a cache. Let x̂ be the normalized input, dz the gradient before the activation, and
//! let means be over the elements that share statistics. Then
//!
//! ```text
//! dscale = Σ dz·x̂    dshift = Σ dz
//! dx = (dz·scale − mean(dz·scale) − x̂·mean(dz·scale·x̂))/√(variance + ε)
//! ```

mod columns;
mod layer;
mod passes;
mod planes;

use scrimp_graph::{Norm, Unary};

use super::activation::{Activation, Clip, Identity, LeakyRelu, Relu};
use crate::args::{Args, Source};
use crate::error::RunError;
use crate::real::Real;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Rows,
    /// A tensor [N,H,W,C] of batch or instance normalization.
    ChannelsLast,
}

/// Evaluates an expression in which this name stands for an activation's function.
macro_rules! with {
    ($activation:expr, $name:ident => $body:expr) => {
        match $activation {
            Some(Unary::Relu) => {
                let $name = Relu;
                $body
            }
            Some(Unary::LeakyRelu { slope }) => {
                let $name = LeakyRelu(T::of(slope));
                $body
            }
            Some(Unary::Clip { lo, hi }) => {
                let (lo, hi) = (T::of(lo), T::of(hi));
                let $name = Clip { lo, hi };
                $body
            }
            Some(other) => Err(RunError::Unsupported {
                op: "a normalization".into(),
                reason: format!("{other:?} can't follow it in the same pass"),
            }),
            None => {
                let $name = Identity;
                $body
            }
        }
    };
}

/// Means, variances, and the ε that is added to variances.
#[derive(Clone, Copy)]
struct Statistics<'a, T> {
    means: &'a [T],
    variances: &'a [T],
    epsilon: f64,
}

impl<'a, T: Real> Statistics<'a, T> {
    fn new(stats: &'a [T], epsilon: f64) -> Statistics<'a, T> {
        let (means, variances) = stats.split_at(stats.len() / 2);
        Statistics {
            means,
            variances,
            epsilon,
        }
    }

    /// 1/√(variance + ε) of statistics k.
    #[inline(always)]
    fn inverse(&self, k: usize) -> f64 {
        1.0 / (self.variances[k].f64() + self.epsilon).sqrt()
    }
}

/// What a normalization does to an element: z = x·factor + offset.
#[derive(Clone, Copy)]
struct Line<T> {
    mean: T,
    scale: T,
    /// scale/√(variance + ε)
    factor: T,
    offset: T,
}

impl<T: Real> Line<T> {
    #[inline(always)]
    fn new(statistics: Statistics<'_, T>, k: usize, scale: T, shift: T) -> Line<T> {
        let mean = statistics.means[k];
        let factor = scale * T::of(statistics.inverse(k));
        Line {
            mean,
            scale,
            factor,
            offset: shift - mean * factor,
        }
    }
}

struct Apply<'a, T> {
    norm: Norm,
    shape: &'a [usize],
    x: Source<'a, T>,
    statistics: Statistics<'a, T>,
    scale: &'a [T],
    shift: &'a [T],
    y: &'a mut [T],
    workspace: &'a mut [u8],
}

struct Gradients<'a, T> {
    norm: Norm,
    shape: &'a [usize],
    x: Source<'a, T>,
    dy: Source<'a, T>,
    statistics: Statistics<'a, T>,
    /// `None` where neither dx nor an activation needs it.
    scale: Option<&'a [T]>,
    /// `None` without an activation.
    shift: Option<&'a [T]>,
    /// `None` where dx isn't wanted.
    dx: Option<&'a mut [T]>,
    dscale: &'a mut [T],
    dshift: &'a mut [T],
    workspace: &'a mut [u8],
}

impl<T: Real> Gradients<'_, T> {
    /// The line for statistics k and a channel. A scale or shift that isn't given counts as 1 or 0.
    #[inline(always)]
    fn line(
        statistics: Statistics<'_, T>,
        [scale, shift]: [Option<&[T]>; 2],
        k: usize,
        channel: usize,
    ) -> Line<T> {
        let scale = scale.map_or(T::ONE, |scale| scale[channel]);
        let shift = shift.map_or(T::ZERO, |shift| shift[channel]);
        Line::new(statistics, k, scale, shift)
    }
}

/// Memory of an input; `None` if it is the output's memory.
fn elsewhere<'a, T>(source: &Source<'a, T>) -> Option<&'a [T]> {
    match source {
        Source::From(x) => Some(x),
        Source::InPlace => None,
    }
}

/// An application's ε and the activation that follows it.
type Formula = (f64, Option<Unary>);

pub fn stats_workspace(layout: Layout, norm: Norm, shape: &[usize]) -> usize {
    match layout {
        Layout::Rows => 0,
        Layout::ChannelsLast => columns::stats_workspace(norm, shape),
    }
}

/// `x -> stats[2,K]`
pub fn stats<T: Real>(
    slots: usize,
    layout: Layout,
    norm: Norm,
    args: Args<'_>,
) -> Result<(), RunError> {
    let shape = args.inputs.shape(0);
    let (x, [stats]) = (args.inputs.get::<T>(0)?, args.outputs.take::<T, _>()?);
    match layout {
        Layout::Rows => planes::stats(slots, norm, shape, x, stats),
        Layout::ChannelsLast => {
            columns::stats(slots, norm, shape, x, stats, args.workspace)?;
        }
    }
    Ok(())
}

pub fn apply_workspace<T: Real>(layout: Layout, norm: Norm, shape: &[usize]) -> usize {
    match layout {
        Layout::Rows => 0,
        Layout::ChannelsLast => columns::apply_workspace::<T>(norm, shape),
    }
}

/// `x, stats, scale, shift -> y`
pub fn apply<T: Real>(
    slots: usize,
    layout: Layout,
    norm: Norm,
    (epsilon, activation): Formula,
    args: Args<'_>,
) -> Result<(), RunError> {
    let inputs = args.inputs;
    let [y] = args.outputs.take()?;
    let apply = Apply {
        norm,
        shape: inputs.shape(0),
        x: inputs.source::<T>(0)?,
        statistics: Statistics::new(inputs.get(1)?, epsilon),
        scale: inputs.get(2)?,
        shift: inputs.get(3)?,
        y,
        workspace: args.workspace,
    };
    with!(activation, f => match (layout, norm) {
        (Layout::ChannelsLast, _) => columns::apply(slots, apply, f),
        (Layout::Rows, Norm::Layer { axis }) => layer::apply(slots, axis, apply, f),
        (Layout::Rows, Norm::Batch | Norm::Instance | Norm::Group { .. }) => {
            planes::apply(slots, apply, f)
        }
    })
}

/// Bytes of scratch for [`gradients`], or without dx for [`param_gradients`], on tensors of this physical
/// shape.
pub fn gradients_workspace<T: Real>(
    layout: Layout,
    norm: Norm,
    shape: &[usize],
    dx: bool,
) -> usize {
    match (layout, norm) {
        (Layout::ChannelsLast, _) => columns::gradients_workspace::<T>(norm, shape, dx),
        (Layout::Rows, Norm::Layer { axis }) => layer::gradients_workspace::<T>(axis, shape),
        (Layout::Rows, Norm::Batch | Norm::Instance | Norm::Group { .. }) => {
            planes::gradients_workspace(norm, shape)
        }
    }
}

/// `x, stats, scale, dy[, shift] -> dx, dscale, dshift`
pub fn gradients<T: Real>(
    slots: usize,
    layout: Layout,
    norm: Norm,
    (epsilon, activation): Formula,
    args: Args<'_>,
) -> Result<(), RunError> {
    let inputs = args.inputs;
    let [dx, dscale, dshift] = args.outputs.take()?;
    let gradients = Gradients {
        norm,
        shape: inputs.shape(0),
        x: inputs.source::<T>(0)?,
        dy: inputs.source(3)?,
        statistics: Statistics::new(inputs.get(1)?, epsilon),
        scale: Some(inputs.get(2)?),
        shift: activation.map(|_| inputs.get(4)).transpose()?,
        dx: Some(dx),
        dscale,
        dshift,
        workspace: args.workspace,
    };
    with!(activation, f => run_gradients(slots, layout, gradients, f))
}

/// `x, stats, dy[, scale, shift] -> dscale, dshift`
pub fn param_gradients<T: Real>(
    slots: usize,
    layout: Layout,
    norm: Norm,
    (epsilon, activation): Formula,
    args: Args<'_>,
) -> Result<(), RunError> {
    let inputs = args.inputs;
    let affine = |slot| activation.map(|_| inputs.get(slot)).transpose();
    let [dscale, dshift] = args.outputs.take()?;
    let gradients = Gradients {
        norm,
        shape: inputs.shape(0),
        x: Source::From(inputs.get::<T>(0)?),
        dy: Source::From(inputs.get(2)?),
        statistics: Statistics::new(inputs.get(1)?, epsilon),
        scale: affine(3)?,
        shift: affine(4)?,
        dx: None,
        dscale,
        dshift,
        workspace: args.workspace,
    };
    with!(activation, f => run_gradients(slots, layout, gradients, f))
}

fn run_gradients<T: Real>(
    slots: usize,
    layout: Layout,
    gradients: Gradients<'_, T>,
    f: impl Activation<T>,
) -> Result<(), RunError> {
    match (layout, gradients.norm) {
        (Layout::ChannelsLast, _) => columns::gradients(slots, gradients, f),
        (Layout::Rows, Norm::Layer { axis }) => layer::gradients(slots, axis, gradients, f),
        (Layout::Rows, Norm::Batch | Norm::Instance | Norm::Group { .. }) => {
            planes::gradients(slots, gradients, f)
        }
    }
}

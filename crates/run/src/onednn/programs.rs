//! The programs of an engine: which operators have one. Each program is made once for each shape.

use scrimp_graph::{DType, Norm, Op};
use scrimp_onednn::{Direction, Engine, OneDnnError, Pooling};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::convolution::{Blocked, Conv};
use super::matmul::{Addend, MatMul};
use super::normalization::LayerNormGrad;
use super::pointwise::Pointwise;
use super::pool::{Pool, Way};
use super::program::Program;
use crate::blocks::Blocks;
use crate::format::{Format, Operand};

/// The program that runs an operator; `None` if ours is better.
type Choice = Result<Option<Arc<Program>>, OneDnnError>;

#[derive(Debug)]
pub struct OneDnn {
    engine: Arc<Engine>,
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    /// One for each operator on each shape.
    programs: HashMap<Wanted, Choice>,
    blocks: Blocked,
}

impl OneDnn {
    pub fn new(engine: Arc<Engine>) -> OneDnn {
        OneDnn {
            engine,
            made: Mutex::default(),
        }
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The program of an operator on these arguments, which shape inference has accepted; `None` if ours is
    /// better.
    ///
    /// # Errors
    /// The library failed to make it.
    pub fn program(&self, op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Choice {
        let Some(wanted) = wanted(op, inputs, outputs) else {
            return Ok(None);
        };
        let Made { programs, blocks } = &mut *self.made();
        let choice = programs
            .entry(wanted)
            .or_insert_with_key(|wanted| Ok(wanted.program(&self.engine, blocks)?.map(Arc::new)));
        choice.clone()
    }

    /// The format in which a program's convolution has its weights; `None` if that is rows, or is more than
    /// an order of the elements.
    pub(super) fn weights(&self, program: &Program) -> Option<Format> {
        let desc = program.weights()?;
        let blocks = Blocks::new(&desc.layout().ok()??)?;
        if let Entry::Vacant(entry) = self.made().blocks.entry(blocks) {
            entry.insert(desc.duplicate().ok()?);
        }
        Some(Format::Blocks(blocks))
    }
}

/// An operator on shapes that the library has kernels for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    Conv(Conv),
    MatMul(MatMul),
    Pointwise(Pointwise),
    Pool(Pool),
    LayerNormGrad(LayerNormGrad),
}

impl Wanted {
    fn program(
        &self,
        engine: &Arc<Engine>,
        blocks: &Blocked,
    ) -> Result<Option<Program>, OneDnnError> {
        match self {
            Wanted::Conv(conv) => conv.program(engine, blocks),
            Wanted::MatMul(product) => product.program(engine),
            Wanted::Pointwise(function) => function.program(engine),
            Wanted::Pool(pool) => pool.program(engine),
            Wanted::LayerNormGrad(norm) => norm.program(engine),
        }
    }
}

/// Implements the table in this folder's documentation.
fn wanted(op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Option<Wanted> {
    let mut all = inputs.iter().chain(outputs);
    if all.any(|one| one.dtype != DType::F32 || one.shape.contains(&0)) {
        return None;
    }
    let output = outputs[0];
    let weights = match op {
        Op::Conv { .. } | Op::ConvInputGrad { .. } => Some(inputs[1]),
        Op::ConvWeightGrad { .. } => Some(output),
        _ => None,
    };
    let blocks = |one: &Operand<'_>| matches!(one.format, Format::Blocks(_));
    let in_blocks = inputs
        .iter()
        .take(2)
        .chain(outputs)
        .filter(|one| blocks(one));
    if in_blocks.count() > usize::from(weights.as_ref().is_some_and(blocks)) {
        return None;
    }
    // A bias is in rows, a sum of gradients is stored as they are.
    let more = match (op, inputs.get(2)) {
        (Op::ConvWeightGrad { .. }, Some(sum)) if sum.format != output.format => return None,
        (_, more) => more.is_some(),
    };
    let rows = |one: &Operand<'_>| one.format == Format::Rows;
    match op {
        Op::Conv { window, groups } => {
            let images = [inputs[0], output];
            let way = Direction::Forward;
            Conv::new(way, window, *groups, images, weights?, more).map(Wanted::Conv)
        }
        Op::ConvInputGrad { window, groups, .. } => {
            let images = [output, inputs[0]];
            let way = Direction::Data;
            Conv::new(way, window, *groups, images, weights?, false).map(Wanted::Conv)
        }
        Op::ConvWeightGrad { window, groups } => {
            let images = [inputs[0], inputs[1]];
            let way = Direction::Weights;
            Conv::new(way, window, *groups, images, weights?, more).map(Wanted::Conv)
        }
        Op::MatMul { trans_a, trans_b } => {
            let shapes = [inputs[0].shape, inputs[1].shape, output.shape];
            let elements = |shape: &[usize]| shape.iter().product::<usize>();
            let addend = match inputs.get(2) {
                None => Addend::None,
                Some(sum) if elements(sum.shape) == elements(output.shape) => Addend::Sum,
                Some(_) => Addend::Bias,
            };
            (inputs.iter().all(rows) && rows(&output))
                .then(|| Wanted::MatMul(MatMul::new([*trans_a, *trans_b], shapes, addend)))
        }
        Op::MaxPool { window } => {
            let way = Way::Forward;
            Pool::new(Pooling::Max, way, window, [inputs[0], output]).map(Wanted::Pool)
        }
        Op::MaxPoolGrad { window } => {
            let images = [inputs[0], inputs[1], output];
            Pool::of_max_gradient(window, images).map(Wanted::Pool)
        }
        Op::AvgPool { window, count_pad } => {
            let kind = average(*count_pad);
            Pool::new(kind, Way::Forward, window, [inputs[0], output]).map(Wanted::Pool)
        }
        Op::AvgPoolGrad {
            window, count_pad, ..
        } => {
            let kind = average(*count_pad);
            Pool::new(kind, Way::Backward, window, [output, inputs[0]]).map(Wanted::Pool)
        }
        Op::NormGrad {
            norm: Norm::Layer { axis },
            epsilon,
            activation: None,
        } => {
            let in_rows = inputs.iter().chain(outputs).all(rows);
            let norm = LayerNormGrad::new(*axis, *epsilon, output.shape);
            norm.filter(|_| in_rows).map(Wanted::LayerNormGrad)
        }
        _ => {
            let same = inputs.iter().all(|one| one.format == output.format);
            let function = Pointwise::new(op, output.shape, rows(&output));
            function.filter(|_| same).map(Wanted::Pointwise)
        }
    }
}

fn average(count_pad: bool) -> Pooling {
    match count_pad {
        true => Pooling::AverageOfWindow,
        false => Pooling::AverageOfInside,
    }
}

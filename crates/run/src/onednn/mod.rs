//! oneDNN's kernels for the operators that it does better than ours: which those are, and how each is
//! put together from the library's primitives.
//!
//! | operator | oneDNN | ours |
//! |---|---|---|
//! | convolution, its gradients (also transposed convolution) | 32-bit floats | 64-bit floats, which check gradients |
//! | product of matrices | 32-bit floats | 64-bit floats |
//! | poolings, their gradients | 32-bit floats | 64-bit floats |
//! | gradients of layer norm | 32-bit floats, without an activation, rows of at most 4096 elements | 64-bit floats, the others |
//! | gelu, silu, sigmoid, tanh, exp, softmax, their gradients | 32-bit floats | 64-bit floats, mixed formats |
//! | everything else | | always |
//!
//! Of the rest, measured beside ours on one thread: applying a layer norm takes as long (2048 rows of 384, with
//! its statistics: 0.40 ms against 0.39). Batch norm with channels last takes 0.74 ms forward and 0.87 for the gradients in the library's one
//! primitive, 0.72 and 0.96 in ours (64 channels of 56×56, batch 8), 0.35 and 0.46 against 0.43 and 0.53 with 512 of 14×14,
//! each without an activation; in rows the library is 3 to 5 times as slow as ours. It can't compute an activation
//! again for the gradients (`kernels/norm`), whose mask it would keep. Its
//! reductions have only a reference implementation (30 ms where ours takes 1).
//!
//! Images have their channels last (`format.rs`), which is how the library's convolutions are fastest, and
//! weights of convolutions are in blocks (`weights.rs`). Where an argument is in another format than the
//! kernel wants, it is changed in the workspace, by operations that are part of the operator, its time
//! and its workspace.

mod convolution;
mod matmul;
mod normalization;
mod pointwise;
mod pool;
mod program;
mod weights;

use scrimp_graph::{DType, Graph, Norm, Op};
use scrimp_onednn::{Desc, Direction, Engine, OneDnnError, Pooling};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::blocks::Blocks;
use crate::format::{Format, Formats, Operand};
use convolution::Conv;
use matmul::MatMul;
use normalization::LayerNormGrad;
use pointwise::Pointwise;
use pool::{Pool, Way};
pub use program::Program;

/// What runs an operator.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// Ours.
    Native,
    /// Ours for normalizations of images with channels last.
    Columns,
    /// oneDNN's.
    OneDnn(Arc<Program>),
    /// oneDNN's, which failed to be made: running it is that error.
    Failed(OneDnnError),
}

impl Kernel {
    fn made(program: Result<Option<Program>, OneDnnError>) -> Kernel {
        match program {
            Ok(Some(program)) => Kernel::OneDnn(Arc::new(program)),
            Ok(None) => Kernel::Native,
            Err(error) => Kernel::Failed(error),
        }
    }
}

/// An engine, and what it made.
#[derive(Debug)]
pub struct OneDnn {
    engine: Arc<Engine>,
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    /// One for each operator on each shape.
    programs: HashMap<Wanted, Kernel>,
    /// The library's descriptors of blocks.
    blocks: Blocked,
}

/// Descriptors by what they describe.
type Blocked = HashMap<Blocks, Desc>;

impl OneDnn {
    /// Programs of this engine.
    pub fn new(engine: Arc<Engine>) -> OneDnn {
        OneDnn {
            engine,
            made: Mutex::default(),
        }
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// What runs an operator on these arguments, which shape inference accepted.
    pub fn kernel(&self, op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Kernel {
        let Some(wanted) = wanted(op, inputs, outputs) else {
            return Kernel::Native;
        };
        let Made { programs, blocks } = &mut *self.made();
        let made = programs
            .entry(wanted)
            .or_insert_with_key(|wanted| Kernel::made(wanted.program(&self.engine, blocks)));
        made.clone()
    }

    /// The formats of a graph's tensors: of images, then of weights.
    pub fn formats(&self, graph: &Graph) -> Formats {
        let mut formats = Formats::images(graph);
        weights::choose(self, graph, &mut formats);
        formats
    }

    /// The format that a program's convolution has its weights in; `None` if that is rows, or more than
    /// an order of the elements.
    fn weights(&self, program: &Program) -> Option<Format> {
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

/// The table of the module's documentation.
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
    let in_blocks = inputs.iter().chain(outputs).filter(|one| blocks(one));
    if in_blocks.count() > usize::from(weights.as_ref().is_some_and(blocks)) {
        return None;
    }
    let bias = inputs.len() > 2;
    let rows = |one: &Operand<'_>| one.format == Format::Rows;
    match op {
        Op::Conv { window, groups } => {
            let images = [inputs[0], output];
            let way = Direction::Forward;
            Conv::new(way, window, *groups, images, weights?, bias).map(Wanted::Conv)
        }
        Op::ConvInputGrad { window, groups, .. } => {
            let images = [output, inputs[0]];
            let way = Direction::Data;
            Conv::new(way, window, *groups, images, weights?, false).map(Wanted::Conv)
        }
        Op::ConvWeightGrad { window, groups } => {
            let images = [inputs[0], inputs[1]];
            let way = Direction::Weights;
            Conv::new(way, window, *groups, images, weights?, false).map(Wanted::Conv)
        }
        Op::MatMul { trans_a, trans_b } => {
            let shapes = [inputs[0].shape, inputs[1].shape, output.shape];
            (inputs.iter().all(rows) && rows(&output))
                .then(|| Wanted::MatMul(MatMul::new([*trans_a, *trans_b], shapes, bias)))
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

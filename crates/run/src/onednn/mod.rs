//! oneDNN's kernels for the operators that it does better than ours: which those are, and how each is
//! put together from the library's primitives.
//!
//! | operator | oneDNN | ours |
//! |---|---|---|
//! | convolution, its gradients (also transposed convolution) | 32-bit floats | 64-bit floats, which check gradients |
//! | product of matrices | 32-bit floats | 64-bit floats |
//! | poolings, their gradients | 32-bit floats | 64-bit floats |
//! | gelu, silu, sigmoid, tanh, exp, softmax, their gradients | 32-bit floats | 64-bit floats, mixed formats |
//! | everything else | | always |
//!
//! Of the rest: the library's batch normalization computes in one primitive what is four tasks here, so
//! that a plan can repeat each alone; ours is as fast where channels are last (`kernels/columns.rs`). Its
//! reductions have only a reference implementation (30 ms where ours takes 1).
//!
//! Images have their channels last (`format.rs`), which is how the library's convolutions are fastest.
//! Where an argument is in another format than the kernel wants, it is changed in the workspace, by
//! operations that are part of the operator, its time and its workspace. So are the changes of weights,
//! which stay in rows, into the blocks that a convolution wants.

mod convolution;
mod matmul;
mod pointwise;
mod pool;
mod program;

use scrimp_graph::{DType, Op};
use scrimp_onednn::{Direction, Engine, OneDnnError, Pooling};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::format::{Format, Operand};
use convolution::Conv;
use matmul::MatMul;
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

/// An engine, and the programs it made: one for each operator on each shape.
#[derive(Debug)]
pub struct OneDnn {
    engine: Arc<Engine>,
    programs: Mutex<HashMap<Wanted, Kernel>>,
}

impl OneDnn {
    /// Programs of this engine.
    pub fn new(engine: Arc<Engine>) -> OneDnn {
        OneDnn {
            engine,
            programs: Mutex::default(),
        }
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
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let made = programs
            .entry(wanted)
            .or_insert_with_key(|wanted| Kernel::made(wanted.program(&self.engine)));
        made.clone()
    }
}

/// An operator on shapes that the library has kernels for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    Conv(Conv),
    MatMul(MatMul),
    Pointwise(Pointwise),
    Pool(Pool),
}

impl Wanted {
    fn program(&self, engine: &Arc<Engine>) -> Result<Option<Program>, OneDnnError> {
        match self {
            Wanted::Conv(conv) => conv.program(engine),
            Wanted::MatMul(product) => product.program(engine),
            Wanted::Pointwise(function) => function.program(engine),
            Wanted::Pool(pool) => pool.program(engine),
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
    let bias = inputs.len() > 2;
    let rows = |one: &Operand<'_>| one.format == Format::Rows;
    match op {
        Op::Conv { window, groups } if rows(&inputs[1]) => {
            let images = [inputs[0], output];
            let weights = inputs[1].shape;
            Conv::new(Direction::Forward, window, *groups, images, weights, bias).map(Wanted::Conv)
        }
        Op::ConvInputGrad { window, groups, .. } if rows(&inputs[1]) => {
            let (images, weights) = ([output, inputs[0]], inputs[1].shape);
            Conv::new(Direction::Data, window, *groups, images, weights, false).map(Wanted::Conv)
        }
        Op::ConvWeightGrad { window, groups } if rows(&output) => {
            let (images, weights) = ([inputs[0], inputs[1]], output.shape);
            Conv::new(Direction::Weights, window, *groups, images, weights, false).map(Wanted::Conv)
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

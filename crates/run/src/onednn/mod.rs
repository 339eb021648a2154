//! oneDNN's kernels for the operators that it does better than ours: which those are, and how each is
//! put together from the library's primitives.
//!
//! | operator | oneDNN | ours |
//! |---|---|---|
//! | convolution, its gradients | 32-bit floats | 64-bit floats, which check gradients |
//! | product of matrices | 32-bit floats | 64-bit floats |
//! | everything else | | always: no slower on tensors whose axes lie in order N, C, H, W |
//!
//! Tensors keep their order of axes. Most of the library's convolutions want channels in blocks: then
//! the input is put into that order in the workspace, and the result back, by operations that are part
//! of the operator, its time and its workspace. Convolutions with 1×1 kernels are products of matrices,
//! for which the order of axes is right as it is.

mod convolution;
mod matmul;
mod program;

use scrimp_graph::{DType, Op};
use scrimp_onednn::{Direction, Engine, OneDnnError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::kernels::Signature;
use convolution::Conv;
use matmul::MatMul;
pub use program::Program;

/// What runs an operator.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// Ours.
    Native,
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

    /// What runs an operator on arguments of these shapes, which shape inference accepted.
    pub fn kernel(&self, op: &Op, inputs: &[Signature<'_>], outputs: &[Signature<'_>]) -> Kernel {
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
}

impl Wanted {
    fn program(&self, engine: &Arc<Engine>) -> Result<Option<Program>, OneDnnError> {
        match self {
            Wanted::Conv(conv) => conv.program(engine),
            Wanted::MatMul(product) => product.program(engine),
        }
    }
}

/// The table of the module's documentation.
fn wanted(op: &Op, inputs: &[Signature<'_>], outputs: &[Signature<'_>]) -> Option<Wanted> {
    let mut all = inputs.iter().chain(outputs);
    if all.any(|(shape, dtype)| *dtype != DType::F32 || shape.contains(&0)) {
        return None;
    }
    let output = outputs[0].0;
    let bias = inputs.len() > 2;
    match op {
        Op::Conv { window, groups } => {
            let shapes = [inputs[0].0, inputs[1].0, output];
            Conv::new(Direction::Forward, window, *groups, shapes, bias).map(Wanted::Conv)
        }
        Op::ConvInputGrad { window, groups, .. } => {
            let shapes = [output, inputs[1].0, inputs[0].0];
            Conv::new(Direction::Data, window, *groups, shapes, false).map(Wanted::Conv)
        }
        Op::ConvWeightGrad { window, groups } => {
            let shapes = [inputs[0].0, output, inputs[1].0];
            Conv::new(Direction::Weights, window, *groups, shapes, false).map(Wanted::Conv)
        }
        Op::MatMul { trans_a, trans_b } => {
            let shapes = [inputs[0].0, inputs[1].0, output];
            let product = MatMul::new([*trans_a, *trans_b], shapes, bias);
            Some(Wanted::MatMul(product))
        }
        _ => None,
    }
}

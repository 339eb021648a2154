//! Activations, softmax and their gradients.

use scrimp_graph::{Op, Unary};
use scrimp_onednn::{Activation, Arg, Engine, OneDnnError, Primitive};
use std::sync::Arc;

use super::program::{Builder, Program, Slot};

/// A function of elements or of lines of elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Function {
    Activation(Activation),
    Softmax { log: bool, axis: usize },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointwise {
    function: Function,
    gradient: bool,
    /// For an activation, one axis with all elements, whatever their order.
    shape: Vec<usize>,
}

impl Pointwise {
    /// The function of an operator whose tensors all have this shape; `None` if ours is as good.
    pub fn new(op: &Op, shape: &[usize], rows: bool) -> Option<Pointwise> {
        let (function, gradient) = match *op {
            Op::Unary(f) => (Function::Activation(activation(f)?), false),
            Op::UnaryGrad(f) => (Function::Activation(activation(f)?), true),
            Op::Softmax { axis } => (Function::Softmax { log: false, axis }, false),
            Op::SoftmaxGrad { axis } => (Function::Softmax { log: false, axis }, true),
            Op::LogSoftmax { axis } => (Function::Softmax { log: true, axis }, false),
            Op::LogSoftmaxGrad { axis } => (Function::Softmax { log: true, axis }, true),
            _ => return None,
        };
        let shape = match function {
            Function::Activation(_) => vec![shape.iter().product()],
            Function::Softmax { .. } if rows => shape.to_vec(),
            Function::Softmax { .. } => return None,
        };
        Some(Pointwise {
            function,
            gradient,
            shape,
        })
    }

    fn primitive(&self, engine: &Arc<Engine>) -> Result<Option<Primitive>, OneDnnError> {
        let tensor = engine.dense(&self.shape)?;
        match (&self.function, self.gradient) {
            (Function::Activation(f), false) => engine.activation(*f, &tensor),
            (Function::Activation(f), true) => engine.activation_gradient(*f, &tensor),
            (&Function::Softmax { log, axis }, false) => engine.softmax(log, axis, &tensor),
            (&Function::Softmax { log, axis }, true) => engine.softmax_gradient(log, axis, &tensor),
        }
    }

    pub fn program(&self, engine: &Arc<Engine>) -> Result<Option<Program>, OneDnnError> {
        let Some(primitive) = self.primitive(engine)? else {
            return Ok(None);
        };
        let tensor = engine.dense(&self.shape)?;
        let saved = match self.function {
            Function::Activation(f) => f.saved(),
            Function::Softmax { .. } => Arg::Result,
        };
        let arguments = match self.gradient {
            false => vec![
                (Arg::Source, Slot::Input(0), &tensor),
                (Arg::Destination, Slot::Output(0), &tensor),
            ],
            true => vec![
                (saved, Slot::Input(0), &tensor),
                (Arg::DestinationGrad, Slot::Input(1), &tensor),
                (Arg::SourceGrad, Slot::Output(0), &tensor),
            ],
        };
        let mut builder = Builder::new(engine);
        builder.add(primitive, &arguments)?;
        Ok(builder.finish())
    }
}

/// The functions that the library computes faster: those with exponentials. Memory limits the others.
fn activation(f: Unary) -> Option<Activation> {
    Some(match f {
        Unary::Gelu => Activation::Gelu,
        Unary::GeluTanh => Activation::GeluTanh,
        Unary::Sigmoid => Activation::Sigmoid,
        Unary::Tanh => Activation::Tanh,
        Unary::Silu => Activation::Silu,
        Unary::Exp => Activation::Exp,
        _ => return None,
    })
}

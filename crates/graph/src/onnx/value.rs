//! What the names in a file stand for.

use super::literal::{Literal, element_count};
use crate::graph::{Init, TensorId};

/// What a name of the file stands for.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Computed when the graph runs.
    Tensor(TensorId),
    /// Known at import.
    Known(Literal),
    /// A float tensor that is trained if an operator uses it as data.
    Weight(Weight),
    /// A condition of this shape that never holds.
    Never(Vec<usize>),
    /// Random numbers.
    Random(Random),
    /// Whole numbers, computed as floats when the graph runs.
    Whole(Whole),
    /// Several tensors, to be picked by numbers known at import.
    Sequence(Vec<TensorId>),
    /// Written by a node that isn't supported.
    Missing,
}

impl Value {
    /// The contents, if they are known at import.
    pub(super) fn literal(&self) -> Option<Literal> {
        match self {
            Value::Known(literal) => Some(literal.clone()),
            Value::Weight(weight) => weight.literal(),
            _ => None,
        }
    }
}

/// Random numbers as exporters write dropout: drawn, then compared with a number.
#[derive(Clone, Debug)]
pub(super) struct Random {
    pub(super) shape: Vec<usize>,
    /// The probability that a condition holds; none for numbers between 0 and 1.
    pub(super) chance: Option<f64>,
}

/// See [`Value::Whole`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) x: TensorId,
    pub(super) least: i64,
    pub(super) most: i64,
}

/// See [`Value::Weight`].
#[derive(Clone, Debug)]
pub(super) struct Weight {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) init: Init,
}

impl Weight {
    /// The contents, if they are worth writing out and can be read: `None` for more than 2²⁰ equal elements.
    pub(super) fn literal(&self) -> Option<Literal> {
        match &self.init {
            Init::Floats(values) => Some(Literal::floats(self.shape.clone(), values.clone())),
            Init::Stored(stored) => {
                let mut values = vec![0.0; stored.len()];
                stored.read(0, &mut values).ok()?;
                Some(Literal::floats(self.shape.clone(), values))
            }
            Init::Constant(value) => {
                let count = element_count(&self.shape).filter(|&n| n <= 1 << 20)?;
                Some(Literal::floats(
                    self.shape.clone(),
                    vec![*value as f32; count],
                ))
            }
            _ => None,
        }
    }
}

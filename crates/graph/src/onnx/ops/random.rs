//! Random numbers, as exporters write dropout and its relatives: numbers from 0 to 1, of which those below a
//! known one count as kept. They become the graph's dropout, of ones; inference takes the mean.

use super::one;
use crate::dtype::DType;
use crate::onnx::context::{Node, Random, Value};
use crate::onnx::error::{Outcome, unsupported};
use crate::op::Op;

pub(super) fn uniform(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["dtype", "seed"]);
    let (low, high) = (
        node.attributes.float("low", 0.0)?,
        node.attributes.float("high", 1.0)?,
    );
    if (low, high) != (0.0, 1.0) {
        return unsupported!("from {low} to {high}");
    }
    let mut shape = node.shape(0)?;
    // Exporters may write the batch size into the file.
    if let (Some((old, new)), Some(batch)) = (node.state.rebatch, shape.first_mut())
        && *batch == old
    {
        *batch = new;
    }
    Ok(vec![Value::Random(Random {
        shape,
        chance: None,
    })])
}

/// Random numbers below a known one.
pub(super) fn less(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    match node.value(0)? {
        Value::Random(random) if random.chance.is_none() => {
            let shape = random.shape.clone();
            let chance = Some(node.scalar(1, "a probability")?);
            Ok(vec![Value::Random(Random { shape, chance })])
        }
        _ => unsupported!("of values that are not known at import"),
    }
}

/// 1 where the condition holds, 0 elsewhere.
pub(super) fn mask(node: &mut Node<'_, '_>, random: &Random) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["to"]);
    let Some(chance) = random.chance.filter(|&p| p > 0.0) else {
        return unsupported!("of random numbers");
    };
    let op = Op::Fill {
        shape: random.shape.clone(),
        value: chance.min(1.0),
        dtype: DType::F32,
    };
    if chance >= 1.0 {
        return one(node.last(op, &[])?);
    }
    // What is kept is divided by the chance of being kept.
    let mean = node.step("mean", op, &[])?;
    let name = node.name.clone();
    one(node.state.b.dropout(&name, mean, 1.0 - chance)?)
}

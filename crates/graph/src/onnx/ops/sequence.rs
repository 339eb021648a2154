//! Sequences, as exporters write `split` and `chunk`: cut along an axis, then picked one by one.

use super::movement::cut;
use super::one;
use crate::onnx::context::{Node, Value, axis, count};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::shapes::checked_indices;

/// A file can't ask for more parts.
const MAX_PARTS: usize = 1 << 16;

pub(super) fn split(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let shape = node.dims(x);
    let axis = axis(node.attributes.int("axis", 0)?, shape.len())?;
    let keep = node.attributes.flag("keepdims", true)?;
    let length = shape[axis];
    let given = match node.has(1) {
        true => Some(node.literal(1, "a split")?),
        false => None,
    };
    let sizes: Vec<usize> = match given
        .as_ref()
        .map(|split| (split.as_ints(), &split.shape[..]))
    {
        None => vec![1; length.min(MAX_PARTS + 1)],
        // One number is the length of all parts but the last.
        Some((Some(&[each]), [])) if each > 0 => {
            let each = count(each, "a part's length")?.min(length);
            let rest = length % each;
            let whole = (length / each).min(MAX_PARTS + 1);
            let last = (rest > 0).then_some(rest);
            std::iter::repeat_n(each, whole).chain(last).collect()
        }
        Some((Some(list), [_])) => {
            let part = |&n: &i64| count(n, "a part's length");
            list.iter().map(part).collect::<Outcome<_>>()?
        }
        Some((_, shape)) => return invalid!("its split, of shape {shape:?}, is no length"),
    };
    if sizes.len() > MAX_PARTS {
        return unsupported!("into more than {MAX_PARTS} parts");
    }
    let mut parts = cut(node, x, axis, &sizes)?;
    if given.is_none() && !keep {
        let mut single = shape;
        single.remove(axis);
        for (i, part) in parts.iter_mut().enumerate() {
            *part = node.view(&format!("{i}.squeeze"), *part, &single)?;
        }
    }
    Ok(vec![Value::Sequence(parts)])
}

pub(super) fn at(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let Value::Sequence(parts) = node.value(0)?.clone() else {
        return unsupported!("of what is not split by SplitToSequence");
    };
    let place = node.ints(1, "a place")?;
    match checked_indices(&place, parts.len())?[..] {
        [place] => one(parts[place as usize]),
        _ => invalid!("it names {} places", place.len()),
    }
}

//! Attention, as its parts: products, a cap, a bias, a softmax. Like this it is differentiated and planned as any
//! other operators are.

use super::mask::{AttentionShape, Fixed, Mask, fixed_bias, mask};
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::op::{Binary, Op, Unary};

/// Added to the score of each key that an input of the model masks. It isn't −∞, because all keys of a row
/// may be masked. It is far below every score, so that in any other row a masked key gets no weight.
const HIDDEN: f64 = 1e30;

pub(super) fn attention(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["softmax_precision"]);
    let flat = node.shape(0)?.len() == 3;
    let query = by_head(node, 0, "q_num_heads", "query")?;
    let key = by_head(node, 1, "kv_num_heads", "key")?;
    let value = by_head(node, 2, "kv_num_heads", "value")?;
    let (key, past) = with_past(node, 4, "present_key", key)?;
    let (value, past_values) = with_past(node, 5, "present_value", value)?;
    if past != past_values {
        return invalid!("it has {past} keys and {past_values} values of the past");
    }
    let shape = shape(node, query, key, value, past)?;
    let raw = scores(node, shape, query, key)?;
    let capped = softcap(node, raw)?;
    let weights = probabilities(node, shape, capped)?;
    let exposed = exposed(node, raw, weights)?;
    let y = weighted(node, shape, weights, value, flat)?;
    Ok([y, key, value, exposed].map(Value::Tensor).to_vec())
}

/// Input `i` as `[batch, heads, rows, width]`. With three axes, heads are parts of the last, as many as the
/// attribute says.
fn by_head(
    node: &mut Node<'_, '_>,
    i: usize,
    count: &'static str,
    part: &str,
) -> Outcome<TensorId> {
    let stated = match node.attributes.has(count) {
        true => Some(node.attributes.required_int(count)?),
        false => None,
    };
    let x = node.x(i)?;
    match (&node.dims(x)[..], stated) {
        (&[batch, rows, width], Some(heads)) if (1..=width as i64).contains(&heads) => {
            let heads = heads as usize;
            if width % heads != 0 {
                return invalid!(
                    "its {part} has width {width}, which is no multiple of {count} = {heads}"
                );
            }
            split_heads(node, part, x, [batch, rows, heads, width / heads])
        }
        (&[_, _, _], None) => invalid!("its {part} has three axes; attribute {count} is missing"),
        (&[_, heads, ..], Some(stated)) if stated != heads as i64 => {
            invalid!(
                "attribute {count} is {stated}, but its {part} has shape {:?}",
                node.dims(x)
            )
        }
        (&[_, _, _, _], _) => Ok(x),
        (shape, _) => invalid!("its {part} has shape {shape:?}; three or four axes are needed"),
    }
}

/// `[batch, rows, heads · width]` as `[batch, heads, rows, width]`.
pub(super) fn split_heads(
    node: &mut Node<'_, '_>,
    part: &str,
    x: TensorId,
    shape: [usize; 4],
) -> Outcome<TensorId> {
    let x = node.view(&format!("{part}.split"), x, &shape)?;
    let perm = vec![0, 2, 1, 3];
    node.step(&format!("{part}.heads"), Op::Transpose { perm }, &[x])
}

/// The inverse of [`split_heads`].
pub(super) fn join_heads(node: &mut Node<'_, '_>, part: &str, x: TensorId) -> Outcome<TensorId> {
    let perm = vec![0, 2, 1, 3];
    let x = node.step(&format!("{part}.rows"), Op::Transpose { perm }, &[x])?;
    let shape = node.dims(x);
    node.view(
        &format!("{part}.join"),
        x,
        &[shape[0], shape[1], shape[2] * shape[3]],
    )
}

/// Prepends the past that input `i` holds to the new keys or values. Returns both and the length of the past.
fn with_past(
    node: &mut Node<'_, '_>,
    i: usize,
    part: &str,
    new: TensorId,
) -> Outcome<(TensorId, usize)> {
    if !node.has(i) {
        return Ok((new, 0));
    }
    let (past, shape) = (node.shape(i)?, node.dims(new));
    match past[..] {
        [batch, heads, length, width]
            if [batch, heads, width] == [shape[0], shape[1], shape[3]] =>
        {
            if length == 0 {
                return Ok((new, 0));
            }
            let past = node.x(i)?;
            let joined = node.step(part, Op::Concat { axis: 2 }, &[past, new])?;
            Ok((joined, length))
        }
        _ => invalid!(
            "its input {i}, of the past, has shape {past:?}; what is added to it has {shape:?}"
        ),
    }
}

fn shape(
    node: &Node<'_, '_>,
    query: TensorId,
    key: TensorId,
    value: TensorId,
    past: usize,
) -> Outcome<AttentionShape> {
    let [query, key, value] = [query, key, value].map(|x| node.dims(x));
    let shape = AttentionShape {
        batch: query[0],
        heads: query[1],
        groups: key[1],
        rows: query[2],
        width: query[3],
        keys: key[2],
        past,
    };
    let alike = key[..3] == value[..3] && key[0] == query[0] && key[3] == query[3];
    match alike && shape.heads.is_multiple_of(shape.groups) {
        true => Ok(shape),
        false => invalid!("its query, key and value have shapes {query:?}, {key:?} and {value:?}"),
    }
}

/// Heads that share a key are rows of one product: `[batch, groups, heads / groups · rows, ..]` has the same
/// elements in the same order.
fn grouped(
    node: &mut Node<'_, '_>,
    part: &str,
    shape: AttentionShape,
    x: TensorId,
) -> Outcome<TensorId> {
    let last = node.dims(x)[3];
    let rows = shape.heads / shape.groups * shape.rows;
    node.view(part, x, &[shape.batch, shape.groups, rows, last])
}

/// Scaled products of queries and keys, `[batch, heads, rows, keys]`.
fn scores(
    node: &mut Node<'_, '_>,
    shape: AttentionShape,
    query: TensorId,
    key: TensorId,
) -> Outcome<TensorId> {
    let scale = match node.attributes.has("scale") {
        true => node.attributes.float("scale", 1.0)?,
        false => 1.0 / (shape.width as f64).sqrt(),
    };
    if !scale.is_finite() {
        return invalid!("attribute scale is {scale}");
    }
    let scaled = node.map("scale", Unary::Affine { scale, shift: 0.0 }, query)?;
    let scaled = grouped(node, "query.group", shape, scaled)?;
    let product = node.step("scores", matmul(true), &[scaled, key])?;
    node.view(
        "scores.heads",
        product,
        &[shape.batch, shape.heads, shape.rows, shape.keys],
    )
}

fn matmul(trans_b: bool) -> Op {
    let trans_a = false;
    Op::MatMul { trans_a, trans_b }
}

/// Products of probabilities and values, in the layout of the inputs.
fn weighted(
    node: &mut Node<'_, '_>,
    shape: AttentionShape,
    weights: TensorId,
    value: TensorId,
    flat: bool,
) -> Outcome<TensorId> {
    let weights = grouped(node, "weights.group", shape, weights)?;
    let y = node.last(matmul(false), &[weights, value])?;
    let width = node.dims(y)[3];
    let y = node.view(
        "result.heads",
        y,
        &[shape.batch, shape.heads, shape.rows, width],
    )?;
    match flat {
        true => join_heads(node, "result", y),
        false => Ok(y),
    }
}

/// cap · tanh(x / cap)
fn softcap(node: &mut Node<'_, '_>, scores: TensorId) -> Outcome<TensorId> {
    let cap = node.attributes.float("softcap", 0.0)?;
    if !(0.0..f64::INFINITY).contains(&cap) {
        return invalid!("attribute softcap is {cap}");
    }
    if cap == 0.0 {
        return Ok(scores);
    }
    let times = |scale| Unary::Affine { scale, shift: 0.0 };
    let small = node.map("softcap.divide", times(1.0 / cap), scores)?;
    let bent = node.map("softcap.tanh", Unary::Tanh, small)?;
    node.map("softcap", times(cap), bent)
}

/// The fourth output: the products or the probabilities. What the two modes between mean has changed in ONNX without
/// a new version of the operator.
fn exposed(node: &Node<'_, '_>, raw: TensorId, weights: TensorId) -> Outcome<TensorId> {
    match node.attributes.int("qk_matmul_output_mode", 0)? {
        0 => Ok(raw),
        3 => Ok(weights),
        mode @ (1 | 2) if node.unused_outputs(3).is_err() => unsupported!(
            "attribute qk_matmul_output_mode = {mode}, which releases of ONNX read differently; 0 and 3 are"
        ),
        1 | 2 => Ok(raw),
        mode => invalid!("attribute qk_matmul_output_mode is {mode}"),
    }
}

/// The softmax over keys of scores and biases. A row with nothing but masked keys is 0.
fn probabilities(
    node: &mut Node<'_, '_>,
    shape: AttentionShape,
    scores: TensorId,
) -> Outcome<TensorId> {
    let mask = match mask(node, shape)? {
        Mask::Known(mask) => (Some(mask), None),
        Mask::Bias(bias) => (None, Some((bias, None))),
        Mask::Kept(kept) => {
            let (scale, shift) = (HIDDEN, -HIDDEN);
            let bias = node.map("mask.bias", Unary::Affine { scale, shift }, kept)?;
            (None, Some((bias, Some(kept))))
        }
        Mask::None => (None, None),
    };
    let (known, given) = mask;
    let fixed = fixed_bias(node, shape, known.as_ref())?;
    let mut x = scores;
    let mut kept = Vec::new();
    if let Some((bias, seen)) = given {
        x = node.zip("masked", Binary::Add, x, bias)?;
        kept.extend(seen);
    }
    if let Some(Fixed { shape, bias, seen }) = fixed {
        let bias = node.constant("bias", &shape, bias)?;
        x = node.zip("biased", Binary::Add, x, bias)?;
        if seen.contains(&0.0) {
            kept.push(node.constant("seen", &[shape[0], shape[1], shape[2], 1], seen)?);
        }
    }
    let mut y = node.step("weights", Op::Softmax { axis: 3 }, &[x])?;
    for (i, kept) in kept.into_iter().enumerate() {
        y = node.zip(&format!("kept{i}"), Binary::Mul, y, kept)?;
    }
    Ok(y)
}

//! Which keys the queries of an attention see: its mask, and what follows from the lengths of its axes.

use super::condition::numbers;
use crate::dtype::DType;
use crate::graph::TensorId;
use crate::onnx::context::{Node, check_table};
use crate::onnx::error::{Outcome, invalid};
use crate::onnx::literal::{Data, Literal};
use crate::op::Op;
use crate::shape::broadcast;

/// Lengths of the axes: queries have the shape `[batch, heads, rows, width]`, keys `[batch, groups, keys, width]`.
#[derive(Clone, Copy)]
pub(super) struct AttentionShape {
    pub(super) batch: usize,
    pub(super) heads: usize,
    /// Heads of keys and values; each serves `heads / groups` neighbouring heads of queries.
    pub(super) groups: usize,
    pub(super) rows: usize,
    pub(super) width: usize,
    /// With those of the past.
    pub(super) keys: usize,
    /// Keys of the past.
    pub(super) past: usize,
}

/// The input `attn_mask`.
pub(super) enum Mask {
    None,
    /// Known at import: what is added to the scores, with four axes.
    Known(Literal),
    /// What is added to the scores.
    Bias(TensorId),
    /// 1 where a key counts, 0 where it doesn't.
    Kept(TensorId),
}

pub(super) fn mask(node: &mut Node<'_, '_>, shape: AttentionShape) -> Outcome<Mask> {
    if !node.has(3) {
        return Ok(Mask::None);
    }
    let mut from = node.shape(3)?;
    let whole = [shape.batch, shape.heads, shape.rows, shape.keys];
    // Until opset 23, masks are broadcast along the keys, later they may be shorter.
    let missing = match from.last() {
        Some(&length) if node.opset() > 23 => shape.keys.saturating_sub(length),
        _ => 0,
    };
    if let Some(length) = from.last_mut() {
        *length += missing;
    }
    if from.len() > 4 || broadcast(&from, &whole).ok().as_deref() != Some(&whole[..]) {
        return invalid!(
            "its mask has shape {:?}, its scores have {whole:?}",
            node.shape(3)?
        );
    }
    if let Some(literal) = node.untrained(3) {
        return Ok(Mask::Known(known_mask(literal, missing)));
    }
    let bool = node.dtype(3)? == DType::I64 || node.is_bool(3);
    let x = match bool {
        true => numbers(node, 3)?,
        false => node.x(3)?,
    };
    let x = match missing {
        0 => x,
        _ => {
            let begin = vec![0; from.len()];
            let mut end = begin.clone();
            if let Some(last) = end.last_mut() {
                *last = missing;
            }
            let value = if bool { 0.0 } else { f64::NEG_INFINITY };
            node.step("mask.pad", Op::Pad { begin, end, value }, &[x])?
        }
    };
    Ok(if bool { Mask::Kept(x) } else { Mask::Bias(x) })
}

/// With four axes, as what is added to the scores.
fn known_mask(mask: Literal, missing: usize) -> Literal {
    let hidden = f32::NEG_INFINITY;
    let values = match &mask.data {
        Data::Floats(values) => values.to_vec(),
        Data::Ints(values) => {
            let bias = |&kept: &i64| if kept != 0 { 0.0 } else { hidden };
            values.iter().map(bias).collect()
        }
    };
    let mut shape = vec![1; 4 - mask.shape.len()];
    shape.extend(&mask.shape);
    let row = shape[3].max(1);
    shape[3] += missing;
    let padded = values.chunks(row).flat_map(|row| {
        let rest = std::iter::repeat_n(hidden, missing);
        row.iter().copied().chain(rest)
    });
    Literal::floats(shape, padded.collect::<Vec<f32>>())
}

/// A bias that is known at import.
pub(super) struct Fixed {
    /// Broadcasts to the scores'.
    pub(super) shape: [usize; 4],
    pub(super) bias: Vec<f32>,
    /// For each row 0 if all its keys are masked, and its bias then isn't −∞; else 1.
    pub(super) seen: Vec<f32>,
}

/// Which keys a row sees, given its position and how many keys its sample has.
struct Visibility {
    /// At most this many places after its own.
    after: Option<i64>,
    /// At most this many places before its own.
    before: Option<i64>,
    /// Keys of each sample.
    lengths: Option<Vec<i64>>,
    /// The place of a sample's first row.
    first: Vec<i64>,
}

impl Visibility {
    fn sees(&self, sample: usize, row: usize, key: usize) -> bool {
        let (place, key) = (self.first[sample] + row as i64, key as i64);
        self.after.is_none_or(|after| key - place <= after)
            && self.before.is_none_or(|before| place - key <= before)
            && self
                .lengths
                .as_ref()
                .is_none_or(|lengths| key < lengths[sample])
    }
}

/// The sum of all masks that are known at import; `None` if they mask nothing.
pub(super) fn fixed_bias(
    node: &Node<'_, '_>,
    shape: AttentionShape,
    mask: Option<&Literal>,
) -> Outcome<Option<Fixed>> {
    let visible = visible(node, shape)?;
    let zero = Literal::floats(vec![1; 4], vec![0.0]);
    let mask = mask.unwrap_or(&zero);
    let Some(values) = mask.as_floats() else {
        return invalid!("its mask holds integers");
    };
    let placed = visible.after.is_some() || visible.before.is_some();
    let by_sample = visible.lengths.is_some();
    let from = &mask.shape;
    let full = [
        if by_sample { shape.batch } else { from[0] },
        from[1],
        if placed { shape.rows } else { from[2] },
        if placed || by_sample {
            shape.keys
        } else {
            from[3]
        },
    ];
    check_table(&full)?;
    let at = |axis: usize, i: usize| if from[axis] == 1 { 0 } else { i };
    let (mut bias, mut seen) = (Vec::new(), Vec::new());
    for position in 0..full[..3].iter().product() {
        let (sample, head, row) = (
            position / full[2] / full[1],
            position / full[2] % full[1],
            position % full[2],
        );
        let first = (at(0, sample) * from[1] + at(1, head)) * from[2] + at(2, row);
        let element = |key: usize| match visible.sees(sample, row, key) {
            true => values[first * from[3] + at(3, key)],
            false => f32::NEG_INFINITY,
        };
        let keys: Vec<f32> = (0..full[3]).map(element).collect();
        let wholly = keys.iter().all(|&x| x == f32::NEG_INFINITY);
        seen.push(if wholly { 0.0 } else { 1.0 });
        bias.extend(keys.into_iter().map(|x| if wholly { 0.0 } else { x }));
    }
    let nothing = bias.iter().all(|&x| x == 0.0) && !seen.contains(&0.0);
    let shape = full;
    Ok((!nothing).then_some(Fixed { shape, bias, seen }))
}

fn visible(node: &Node<'_, '_>, shape: AttentionShape) -> Outcome<Visibility> {
    let bound = |name: &'static str| match node.attributes.int(name, -1)? {
        -1 => Ok(None),
        n @ 0.. => Ok(Some(n)),
        n => invalid!("attribute {name} is {n}"),
    };
    let (before, mut after) = (bound("left_window_size")?, bound("right_window_size")?);
    if node.attributes.flag("is_causal", false)? {
        after = Some(0);
    }
    let lengths = match node.has(6) {
        true => Some(lengths(node, shape)?),
        false => None,
    };
    let place = |length: &i64| length - shape.rows as i64;
    let first = match &lengths {
        Some(lengths) => lengths.iter().map(place).collect(),
        None => vec![shape.past as i64; shape.batch],
    };
    Ok(Visibility {
        after,
        before,
        lengths,
        first,
    })
}

/// How many keys of each sample aren't padding.
fn lengths(node: &Node<'_, '_>, shape: AttentionShape) -> Outcome<Vec<i64>> {
    let lengths = node.ints(6, "nonpad_kv_seqlen")?;
    let within = |n: &i64| (0..=shape.keys as i64).contains(n);
    if node.has(4) || node.has(5) {
        return invalid!("it has both a past and nonpad_kv_seqlen");
    }
    match lengths.len() == shape.batch && lengths.iter().all(within) {
        true => Ok(lengths),
        false => invalid!(
            "nonpad_kv_seqlen is {lengths:?} for {} samples of {} keys",
            shape.batch,
            shape.keys
        ),
    }
}

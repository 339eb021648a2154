//! Sums of products in Einstein's notation: products of matrices, one operand after another.

use super::one;
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value};
use crate::onnx::error::{Outcome, invalid};
use crate::op::{Binary, Op, Reduction};
use crate::shape::elements;

/// An axis: a letter, or one that dots stand for, counted from the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Dots(usize),
    Letter(char),
}

/// A tensor whose axes have these labels.
#[derive(Clone, Debug)]
struct Term {
    x: TensorId,
    labels: Vec<Label>,
}

impl Term {
    fn has(&self, label: Label) -> bool {
        self.labels.contains(&label)
    }
}

pub(super) fn einsum(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let equation: String = node.attributes.text("equation", "")?.split(' ').collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != node.variadic()? {
        return invalid!("its equation {equation:?} has {} operands", parts.len());
    }
    let (mut terms, mut most) = (Vec::with_capacity(parts.len()), 0);
    for (i, part) in parts.into_iter().enumerate() {
        let (rank, x) = (node.shape(i)?.len(), node.weight(i)?);
        let dots = rank.saturating_sub(letters(part));
        let labels = labels(part, dots)?;
        if labels.len() != rank {
            return invalid!("{part:?} in its equation doesn't name {rank} axes");
        }
        most = most.max(dots);
        terms.push(Term { x, labels });
    }
    let wanted = match right {
        Some(right) => labels(right, most)?,
        None => implied(&terms),
    };
    let known = |label: &Label| terms.iter().any(|term| term.has(*label));
    if !wanted.iter().all(known) {
        return invalid!("no operand of its equation {equation:?} has an axis of the result");
    }
    let mut rest = terms.into_iter();
    let Some(mut all) = rest.next() else {
        return invalid!("it has no inputs");
    };
    let mut k = 0;
    while let Some(next) = rest.next() {
        let later = rest.as_slice();
        let needed = |label| wanted.contains(&label) || later.iter().any(|term| term.has(label));
        all = product(node, k, all, next, &needed)?;
        k += 1;
    }
    let all = summed(node, "sum", all, &|label| wanted.contains(&label))?;
    one(arranged(node, "order", &all, &wanted)?)
}

fn letters(part: &str) -> usize {
    part.chars().filter(char::is_ascii_alphabetic).count()
}

/// The labels of an operand whose dots stand for so many axes.
fn labels(part: &str, dots: usize) -> Outcome<Vec<Label>> {
    let mut labels = Vec::new();
    let mut rest = part;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            labels.extend((0..dots).rev().map(Label::Dots));
            rest = after;
        } else if c.is_ascii_alphabetic() {
            labels.push(Label::Letter(c));
            rest = &rest[1..];
        } else {
            return invalid!("{part:?} is no part of an equation");
        }
    }
    match (1..labels.len()).any(|i| labels[..i].contains(&labels[i])) {
        true => {
            invalid!("{part:?} in its equation names an axis twice: diagonals aren't supported")
        }
        false => Ok(labels),
    }
}

/// Without an arrow: what dots stand for, then the letters that are there once, in order.
fn implied(terms: &[Term]) -> Vec<Label> {
    let all = || terms.iter().flat_map(|term| term.labels.iter().copied());
    let once = |label: &Label| {
        matches!(label, Label::Dots(_)) || all().filter(|l| l == label).count() == 1
    };
    let mut wanted: Vec<Label> = all().filter(once).collect();
    // Of the axes that dots stand for, the last has number 0.
    wanted.sort_by_key(|&label| match label {
        Label::Dots(k) => (0, usize::MAX - k, 'a'),
        Label::Letter(c) => (1, 0, c),
    });
    wanted.dedup();
    wanted
}

/// The sum over the axes that aren't needed.
fn summed(
    node: &mut Node<'_, '_>,
    part: &str,
    term: Term,
    needed: &dyn Fn(Label) -> bool,
) -> Outcome<Term> {
    let axes: Vec<usize> = (0..term.labels.len())
        .filter(|&i| !needed(term.labels[i]))
        .collect();
    if axes.is_empty() {
        return Ok(term);
    }
    let op = Op::Reduce {
        kind: Reduction::Sum,
        axes,
        keep_dims: false,
    };
    let x = node.step(part, op, &[term.x])?;
    let labels = term
        .labels
        .into_iter()
        .filter(|&label| needed(label))
        .collect();
    Ok(Term { x, labels })
}

/// The tensor with its axes in this order.
fn arranged(
    node: &mut Node<'_, '_>,
    part: &str,
    term: &Term,
    order: &[Label],
) -> Outcome<TensorId> {
    let place = |label: &Label| term.labels.iter().position(|l| l == label);
    let perm: Vec<usize> = order.iter().filter_map(place).collect();
    match perm.iter().copied().eq(0..perm.len()) {
        true => Ok(term.x),
        false => node.step(part, Op::Transpose { perm }, &[term.x]),
    }
}

/// The lengths of these axes; 1 for those that the tensor doesn't have.
fn lengths(node: &Node<'_, '_>, term: &Term, of: &[Label]) -> Vec<usize> {
    let dims = node.dims(term.x);
    let place = |label: &Label| term.labels.iter().position(|l| l == label);
    of.iter()
        .map(|label| place(label).map_or(1, |at| dims[at]))
        .collect()
}

/// The tensor with axes of length 1 repeated where these are longer.
fn widened(
    node: &mut Node<'_, '_>,
    part: &str,
    term: Term,
    axes: &[Label],
    to: &[usize],
) -> Outcome<Term> {
    let mut shape = node.dims(term.x);
    for (length, label) in shape.iter_mut().zip(&term.labels) {
        if let Some(at) = axes.iter().position(|axis| axis == label) {
            *length = to[at];
        }
    }
    if shape == node.dims(term.x) {
        return Ok(term);
    }
    let x = node.step(part, Op::Expand { shape, scale: 1.0 }, &[term.x])?;
    Ok(Term { x, ..term })
}

/// A stack of matrices whose rows are the first axes and whose columns are the last ones, and whether they are stored the
/// other way round: as they lie, if they lie either way.
fn matrix(
    node: &mut Node<'_, '_>,
    part: &str,
    term: &Term,
    batch: &[Label],
    [first, last]: [&[Label]; 2],
) -> Outcome<(TensorId, bool)> {
    let swapped = [batch, last, first].concat();
    let transposed = term.labels == swapped && !first.is_empty() && !last.is_empty();
    let order = if transposed {
        swapped
    } else {
        [batch, first, last].concat()
    };
    let x = arranged(node, &format!("{part}.order"), term, &order)?;
    let count = |of: &[Label]| elements(&lengths(node, term, of));
    let mut shape = vec![count(first), count(last)];
    if transposed {
        shape.swap(0, 1);
    }
    if !batch.is_empty() {
        shape.insert(0, count(batch));
    }
    Ok((node.view(&format!("{part}.matrix"), x, &shape)?, transposed))
}

/// The sum of products of two tensors over the axes that both have and that aren't needed.
fn product(
    node: &mut Node<'_, '_>,
    k: usize,
    a: Term,
    b: Term,
    needed: &dyn Fn(Label) -> bool,
) -> Outcome<Term> {
    let name = |part: &str| format!("{k}.{part}");
    let a = summed(node, &name("a.sum"), a, &|label| {
        needed(label) || b.has(label)
    })?;
    let b = summed(node, &name("b.sum"), b, &|label| {
        needed(label) || a.has(label)
    })?;
    let labels = |of: &Term, wanted: &dyn Fn(Label) -> bool| -> Vec<Label> {
        of.labels
            .iter()
            .copied()
            .filter(|&label| wanted(label))
            .collect()
    };
    let batch = labels(&a, &|label| b.has(label) && needed(label));
    let inner = labels(&a, &|label| b.has(label) && !needed(label));
    let (rows, columns) = (
        labels(&a, &|label| !b.has(label)),
        labels(&b, &|label| !a.has(label)),
    );
    let all = [&batch[..], &rows, &columns].concat();
    if inner.is_empty() {
        // Nothing is summed: elements are multiplied.
        let mut factors = Vec::with_capacity(2);
        for (term, part) in [(&a, "a"), (&b, "b")] {
            let x = arranged(node, &name(&format!("{part}.order")), term, &all)?;
            let shape = lengths(node, term, &all);
            factors.push(node.view(&name(&format!("{part}.shape")), x, &shape)?);
        }
        let x = node.step(&name("product"), Op::Binary(Binary::Mul), &factors)?;
        return Ok(Term { x, labels: all });
    }
    let shared = [&batch[..], &inner].concat();
    let both = lengths(node, &a, &shared)
        .into_iter()
        .zip(lengths(node, &b, &shared));
    let longer: Vec<usize> = both.map(|(a, b)| a.max(b)).collect();
    let a = widened(node, &name("a.wide"), a, &shared, &longer)?;
    let b = widened(node, &name("b.wide"), b, &shared, &longer)?;
    let (left, trans_a) = matrix(node, &name("a"), &a, &batch, [&rows, &inner])?;
    let (right, trans_b) = matrix(node, &name("b"), &b, &batch, [&inner, &columns])?;
    let y = node.step(
        &name("product"),
        Op::MatMul { trans_a, trans_b },
        &[left, right],
    )?;
    let mut shape = longer[..batch.len()].to_vec();
    shape.extend(lengths(node, &a, &rows));
    shape.extend(lengths(node, &b, &columns));
    let x = node.view(&name("result"), y, &shape)?;
    Ok(Term { x, labels: all })
}

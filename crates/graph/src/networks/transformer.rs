//! A GPT-2-shaped language model. With 12 layers, width 768, 12 heads, 1024 tokens and a vocabulary
//! of 50257 it is GPT-2 small, parameter for parameter; the defaults are about a tenth of it, a few
//! seconds a step at batch 8 on two cores.

use std::sync::Arc;

use super::net::{Built, named};
use super::options::{Choices, NetworkError, value_error};
use crate::builder::GraphBuilder;
use crate::dtype::DType;
use crate::error::GraphError;
use crate::graph::{Graph, Init, TensorId};
use crate::op::{Binary, Op, Unary};

/// The standard deviation of all first weights.
const STD: f64 = 0.02;

/// Added to scores of later tokens: after the softmax's exponential they are exactly 0.
const MASKED: f32 = -1e9;

struct Sizes {
    batch: usize,
    layers: usize,
    width: usize,
    heads: usize,
    sequence: usize,
    vocabulary: usize,
    dropout: f64,
}

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    let sizes = Sizes {
        batch: choices.batch,
        layers: choices.layers.unwrap_or(1),
        width: choices.width.unwrap_or(1),
        heads: choices.heads.unwrap_or(1),
        sequence: choices.sequence.unwrap_or(1),
        vocabulary: choices.vocabulary.unwrap_or(1),
        dropout: choices.dropout.unwrap_or(0.0),
    };
    if !sizes.width.is_multiple_of(sizes.heads) {
        let requirement = format!("it must divide the width, {}", sizes.width);
        return Err(value_error(name, "heads", sizes.heads, requirement));
    }
    if sizes.sequence > 1 << 14 {
        // The causal mask is stored as a matrix.
        return Err(value_error(
            name,
            "sequence",
            sizes.sequence,
            "it must be at most 16384",
        ));
    }
    named(name, graph(name, &sizes))
}

fn graph(name: &str, sizes: &Sizes) -> Result<Graph, GraphError> {
    let Sizes {
        batch,
        width,
        sequence,
        ..
    } = *sizes;
    let mut b = GraphBuilder::new(name);
    let tokens = b.input("tokens", &[batch, sequence], DType::I64)?;
    let (x, table) = b.embedding("wte", tokens, sizes.vocabulary, width, STD)?;
    let positions = b.parameter("wpe.weight", &[sequence, width], Init::Normal { std: STD })?;
    let x = b.binary("embed", Binary::Add, x, positions)?;
    let mut x = drop(&mut b, "drop", x, sizes)?;
    let later = (0..sequence * sequence).map(|i| i % sequence > i / sequence);
    let mask: Arc<[f32]> = later
        .map(|later| if later { MASKED } else { 0.0 })
        .collect();
    let mask = b.constant("mask", &[sequence, sequence], Init::Floats(mask))?;
    for layer in 0..sizes.layers {
        x = block(&mut b, &format!("h.{layer}"), x, mask, sizes)?;
    }
    let x = b.layer_norm("ln_f", x)?;
    let x = b.reshape("rows", x, &[batch * sequence, width])?;
    let op = Op::MatMul {
        trans_a: false,
        trans_b: true,
    };
    let logits = b.add1("logits", op, &[x, table])?;
    b.output(logits);
    b.finish()
}

/// x + attention(norm(x)), then x + mlp(norm(x)).
fn block(b: &mut GraphBuilder, name: &str, x: TensorId, mask: TensorId, sizes: &Sizes) -> Built {
    let y = b.layer_norm(&format!("{name}.ln_1"), x)?;
    let y = attention(b, &format!("{name}.attn"), y, mask, sizes)?;
    let x = b.binary(&format!("{name}.add_1"), Binary::Add, x, y)?;
    let y = b.layer_norm(&format!("{name}.ln_2"), x)?;
    let y = dense(b, &format!("{name}.mlp.c_fc"), y, 4 * sizes.width, STD)?;
    let y = b.unary(&format!("{name}.mlp.gelu"), Unary::GeluTanh, y)?;
    let y = dense(
        b,
        &format!("{name}.mlp.c_proj"),
        y,
        sizes.width,
        projection_std(sizes),
    )?;
    let y = drop(b, &format!("{name}.mlp.drop"), y, sizes)?;
    b.binary(&format!("{name}.add_2"), Binary::Add, x, y)
}

fn attention(b: &mut GraphBuilder, name: &str, x: TensorId, mask: TensorId, s: &Sizes) -> Built {
    let qkv = dense(b, &format!("{name}.c_attn"), x, 3 * s.width, STD)?;
    let q = heads(b, &format!("{name}.q"), qkv, 0, s)?;
    let k = heads(b, &format!("{name}.k"), qkv, 1, s)?;
    let v = heads(b, &format!("{name}.v"), qkv, 2, s)?;
    // Scaling the queries is the same as scaling the scores, which are larger.
    let scale = 1.0 / ((s.width / s.heads) as f64).sqrt();
    let q = b.unary(
        &format!("{name}.scale"),
        Unary::Affine { scale, shift: 0.0 },
        q,
    )?;
    let product = |trans_b| Op::MatMul {
        trans_a: false,
        trans_b,
    };
    let scores = b.add1(&format!("{name}.scores"), product(true), &[q, k])?;
    let scores = b.binary(&format!("{name}.mask"), Binary::Add, scores, mask)?;
    let weights = b.add1(
        &format!("{name}.softmax"),
        Op::Softmax { axis: 3 },
        &[scores],
    )?;
    let weights = drop(b, &format!("{name}.attn_drop"), weights, s)?;
    let y = b.add1(&format!("{name}.values"), product(false), &[weights, v])?;
    let y = b.transpose(&format!("{name}.tokens"), y, &[0, 2, 1, 3])?;
    let y = b.reshape(&format!("{name}.merge"), y, &[s.batch, s.sequence, s.width])?;
    let y = dense(b, &format!("{name}.c_proj"), y, s.width, projection_std(s))?;
    drop(b, &format!("{name}.resid_drop"), y, s)
}

/// Third `part` of the joint projection as [batch, heads, sequence, width per head].
fn heads(b: &mut GraphBuilder, name: &str, qkv: TensorId, part: usize, s: &Sizes) -> Built {
    let op = Op::Slice {
        start: vec![0, 0, part * s.width],
        end: vec![s.batch, s.sequence, (part + 1) * s.width],
        step: vec![1; 3],
    };
    let x = b.add1(&format!("{name}.slice"), op, &[qkv])?;
    let split = [s.batch, s.sequence, s.heads, s.width / s.heads];
    let x = b.reshape(&format!("{name}.split"), x, &split)?;
    b.transpose(name, x, &[0, 2, 1, 3])
}

/// GPT-2's layer with the weight as [in, out] and a bias of 0.
fn dense(b: &mut GraphBuilder, name: &str, x: TensorId, out: usize, std: f64) -> Built {
    let features = b.shape(x)[2];
    let weight = b.parameter(
        &format!("{name}.weight"),
        &[features, out],
        Init::Normal { std },
    )?;
    let bias = b.parameter(&format!("{name}.bias"), &[out], Init::Constant(0.0))?;
    let op = Op::MatMul {
        trans_a: false,
        trans_b: false,
    };
    b.add1(name, op, &[x, weight, bias])
}

/// Weights of the projections onto the residual stream shrink with its number of summands.
fn projection_std(sizes: &Sizes) -> f64 {
    STD / (2.0 * sizes.layers as f64).sqrt()
}

fn drop(b: &mut GraphBuilder, name: &str, x: TensorId, sizes: &Sizes) -> Built {
    match sizes.dropout {
        0.0 => Ok(x),
        p => b.dropout(name, x, p),
    }
}

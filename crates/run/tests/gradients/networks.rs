//! Small whole networks.

use scrimp_graph::{
    Binary, DType, Graph, GraphBuilder, GraphError, Init, Loss, Op, TensorId, Unary, Window,
};

use super::check_loss;

/// Convolution, batch normalization, relu, pooling, a residual block with a projection, dropout, a
/// linear layer.
fn residual() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("residual");
    let x = b.input("x", &[3, 2, 8, 8], DType::F32)?;
    let x = b.conv("conv1", x, 4, Window::square(3).pad(1), 1, false)?;
    let x = b.batch_norm("bn1", x)?;
    let x = b.relu("relu1", x)?;
    let x = b.max_pool("pool", x, Window::square(3).stride(2).pad(1))?;
    let y = b.conv("conv2", x, 6, Window::square(3).pad(1).stride(2), 2, false)?;
    let y = b.batch_norm("bn2", y)?;
    let y = b.unary("relu2", Unary::LeakyRelu { slope: 0.1 }, y)?;
    let y = b.conv("conv3", y, 6, Window::square(3).pad(1), 6, true)?;
    let x = b.conv("project", x, 6, Window::square(1).stride(2), 1, true)?;
    let y = b.binary("add", Binary::Add, x, y)?;
    let y = b.relu("relu3", y)?;
    let y = b.global_avg_pool("mean", y)?;
    let y = b.flatten("flatten", y)?;
    let y = b.dropout("dropout", y, 0.3)?;
    let y = b.linear("fc", y, 4, true)?;
    b.output(y);
    b.finish()
}

#[test]
fn residual_network() {
    check_loss(
        residual(),
        Loss::CrossEntropy,
        &[("labels", &[0, 3, 1]), ("seed", &[5])],
    );
    check_loss(residual(), Loss::MeanSquaredError, &[("seed", &[6])]);
}

/// Encoder, decoder and the skip between them, as in a U-Net; the loss is per pixel.
fn unet() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("unet");
    let x = b.input("x", &[2, 1, 6, 6], DType::F32)?;
    let down = b.conv("down", x, 3, Window::square(3).pad(1), 1, true)?;
    let down = b.relu("relu1", down)?;
    let deep = b.avg_pool("pool", down, Window::square(2).stride(2))?;
    let deep = b.conv("deep", deep, 4, Window::square(3).pad(1), 1, true)?;
    let deep = b.unary("silu", Unary::Silu, deep)?;
    let up = b.conv_transpose("up", deep, 3, Window::square(2).stride(2), [0, 0], true)?;
    let resized = b.add1("resize", Op::ResizeNearest { factor: [2, 2] }, &[deep])?;
    let joined = b.concat("skip", 1, &[up, down, resized])?;
    let y = b.conv("head", joined, 3, Window::square(1), 1, true)?;
    b.output(y);
    b.finish()
}

#[test]
fn encoder_and_decoder() {
    let labels: Vec<i64> = (0..72).map(|i| i * 7 % 3).collect();
    check_loss(unet(), Loss::CrossEntropy, &[("labels", &labels)]);
}

const TOKENS: usize = 5;
const WIDTH: usize = 6;
const HEADS: usize = 2;

/// One head-split third of a [1, tokens, 3·width] projection: [1, heads, tokens, width/heads].
fn heads(b: &mut GraphBuilder, qkv: TensorId, third: usize) -> Result<TensorId, GraphError> {
    let slice = Op::Slice {
        start: vec![0, 0, third * WIDTH],
        end: vec![1, TOKENS, (third + 1) * WIDTH],
        step: vec![1; 3],
    };
    let x = b.add1("split", slice, &[qkv])?;
    let x = b.reshape("heads", x, &[1, TOKENS, HEADS, WIDTH / HEADS])?;
    b.transpose("heads.t", x, &[0, 2, 1, 3])
}

/// A transformer block with causal attention and an embedding that is also the output layer.
fn transformer() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("transformer");
    let tokens = b.input("tokens", &[1, TOKENS], DType::I64)?;
    let (x, table) = b.embedding("wte", tokens, 7, WIDTH, 0.5)?;
    let places = b.parameter("wpe", &[TOKENS, WIDTH], Init::Normal { std: 0.5 })?;
    let x = b.binary("embed", Binary::Add, x, places)?;
    let y = b.layer_norm("ln1", x)?;
    let qkv = b.linear("qkv", y, 3 * WIDTH, true)?;
    let (q, k, v) = (
        heads(&mut b, qkv, 0)?,
        heads(&mut b, qkv, 1)?,
        heads(&mut b, qkv, 2)?,
    );
    let scores = b.add1(
        "scores",
        Op::MatMul {
            trans_a: false,
            trans_b: true,
        },
        &[q, k],
    )?;
    let scale = 1.0 / ((WIDTH / HEADS) as f64).sqrt();
    let scores = b.unary("scale", Unary::Affine { scale, shift: 0.0 }, scores)?;
    let mask = (0..TOKENS * TOKENS).map(|i| if i % TOKENS > i / TOKENS { -1e9 } else { 0.0 });
    let mask = b.constant("mask", &[TOKENS, TOKENS], Init::Floats(mask.collect()))?;
    let scores = b.binary("masked", Binary::Add, scores, mask)?;
    let weights = b.add1("softmax", Op::Softmax { axis: 3 }, &[scores])?;
    let weights = b.dropout("dropout", weights, 0.2)?;
    let y = b.add1(
        "attend",
        Op::MatMul {
            trans_a: false,
            trans_b: false,
        },
        &[weights, v],
    )?;
    let y = b.transpose("join.t", y, &[0, 2, 1, 3])?;
    let y = b.reshape("join", y, &[1, TOKENS, WIDTH])?;
    let y = b.linear("proj", y, WIDTH, true)?;
    let x = b.binary("residual1", Binary::Add, x, y)?;
    let y = b.layer_norm("ln2", x)?;
    let y = b.linear("fc1", y, 2 * WIDTH, true)?;
    let y = b.unary("gelu", Unary::GeluTanh, y)?;
    let y = b.linear("fc2", y, WIDTH, true)?;
    let x = b.binary("residual2", Binary::Add, x, y)?;
    let x = b.layer_norm("ln3", x)?;
    let logits = b.add1(
        "logits",
        Op::MatMul {
            trans_a: false,
            trans_b: true,
        },
        &[x, table],
    )?;
    let logits = b.reshape("rows", logits, &[TOKENS, 7])?;
    b.output(logits);
    b.finish()
}

#[test]
fn transformer_block_with_tied_embedding() {
    let inputs: [(&str, &[i64]); 3] = [
        ("tokens", &[3, 0, 6, 3, 2]),
        ("labels", &[0, 6, 3, 2, 5]),
        ("seed", &[9]),
    ];
    check_loss(transformer(), Loss::CrossEntropy, &inputs);
}

//! Networks run by tiles against the same networks as they are, in 64 bits: losses and gradients agree to 1e-12.

#![allow(clippy::unwrap_used, reason = "tests")]

use scrimp_graph::networks::{NetworkOptions, build};
use scrimp_graph::{
    Binary, DType, Graph, GraphBuilder, GraphError, Init, Loss, Norm, Op, Role, Tiles,
    TrainingGraph, Unary, Window, train, train_tiled,
};
use scrimp_run::{Compiled, Cpu, Data, Processor, interpret};
use std::collections::BTreeMap;

/// The loss, and by name the gradients of parameters and the new running statistics.
fn step(training: &TrainingGraph) -> (f64, BTreeMap<String, Vec<f64>>) {
    let cpu = Cpu::new(1).unwrap();
    let graph = &training.graph;
    let compiled = Compiled::new(graph, Processor::Cpu(&cpu));
    let most = graph.given().map(|(_, tensor)| tensor.elements()).max();
    let waves: Vec<f64> = (0..most.unwrap_or(0))
        .map(|i| (0.7 * i as f64).sin())
        .collect();
    let data = graph.given().filter_map(|(id, tensor)| match tensor.role {
        Role::Seed => Some((id, Data::I64(&[7]))),
        Role::Input if tensor.dtype == DType::F64 => {
            Some((id, Data::F64(&waves[..tensor.elements()])))
        }
        _ => None,
    });
    let tensors = interpret(&compiled, &data.collect::<Vec<_>>(), 3).unwrap();
    let results = training.gradients.iter().chain(&training.updates);
    let results = results.map(|&(parameter, result)| {
        let name = graph.tensor(parameter).name.clone();
        (name, tensors.floats(graph, result))
    });
    (tensors.floats(graph, training.loss)[0], results.collect())
}

/// Compares and returns the tiled training graph.
#[track_caller]
fn same(graph: &Graph, loss: Loss, tiles: usize) -> TrainingGraph {
    same_by(graph, loss, Tiles::Count(tiles))
}

#[track_caller]
fn same_by(graph: &Graph, loss: Loss, tiles: Tiles) -> TrainingGraph {
    let graph = graph.clone().with_float(DType::F64);
    let whole = step(&train(&graph, loss, None).unwrap());
    let tiled = train_tiled(&graph, loss, None, tiles).unwrap();
    let parts = step(&tiled);
    let near = |a: f64, b: f64, size: f64| (a - b).abs() <= 1e-12 * size.max(1.0);
    assert!(
        near(whole.0, parts.0, whole.0.abs()),
        "{} and {}",
        whole.0,
        parts.0
    );
    for (name, gradient) in &whole.1 {
        let size = gradient.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        assert!(size > 0.0, "the gradient of {name} is zero");
        for (a, b) in gradient.iter().zip(&parts.1[name]) {
            assert!(near(*a, *b, size), "{name}: {a} and {b}");
        }
    }
    tiled
}

/// A graph whose image is random, so that something flows.
fn image(
    size: [usize; 2],
    layers: impl FnOnce(
        &mut GraphBuilder,
        scrimp_graph::TensorId,
    ) -> Result<scrimp_graph::TensorId, GraphError>,
) -> Graph {
    let mut b = GraphBuilder::new("image");
    let init = Init::Normal { std: 1.0 };
    let x = b.parameter("x", &[2, 3, size[0], size[1]], init).unwrap();
    let y = layers(&mut b, x).unwrap();
    b.output(y);
    b.finish().unwrap()
}

#[test]
fn windows_of_all_kinds() {
    for (k, s, d, p) in [
        (3, 1, 1, 1),
        (5, 2, 1, 2),
        (3, 2, 2, 2),
        (2, 3, 1, 0),
        (7, 1, 1, 3),
        (1, 2, 1, 0),
    ] {
        let graph = image([13, 17], |b, x| {
            let window = Window::square(k).stride(s).dilation(d).pad(p);
            let x = b.conv("conv", x, 4, window, 1, true)?;
            let x = b.unary("gelu", Unary::Gelu, x)?;
            b.conv("last", x, 2, Window::square(3).pad(1), 1, true)
        });
        for tiles in [3, 64] {
            same(&graph, Loss::MeanSquaredError, tiles);
        }
    }
}

#[test]
fn pooling_branches_and_upsampling() {
    let graph = image([24, 48], |b, x| {
        let x = b.conv("a", x, 4, Window::square(3).pad(1), 1, true)?;
        let skip = b.unary("act", Unary::Silu, x)?;
        let y = b.max_pool("max", skip, Window::square(3).stride(2).pad(1))?;
        let y = b.conv("b", y, 4, Window::square(3).pad(2).dilation(2), 2, false)?;
        let avg = b.avg_pool("avg", y, Window::square(2).stride(2))?;
        let up = b.add1("up", Op::ResizeNearest { factor: [2, 2] }, &[avg])?;
        let y = b.binary("join", Binary::Add, y, up)?;
        let y = b.conv_transpose(
            "transposed",
            y,
            4,
            Window::square(3).stride(2).pad(1),
            [1, 1],
            true,
        )?;
        let y = b.concat("cat", 1, &[y, skip])?;
        b.conv("c", y, 2, Window::rect(1, 5).pad_hw(0, 2), 1, true)
    });
    for tiles in [2, 5, 11] {
        let tiled = same(&graph, Loss::MeanSquaredError, tiles);
        assert_eq!(tiled.tiled.len(), 1);
    }
}

#[test]
fn tokens_with_their_loss() {
    let mut b = GraphBuilder::new("tokens");
    let x = b
        .parameter("x", &[1, 13, 6], Init::Normal { std: 1.0 })
        .unwrap();
    let y = b.layer_norm("norm", x).unwrap();
    let y = b.linear("up", y, 12, true).unwrap();
    let y = b.unary("gelu", Unary::Gelu, y).unwrap();
    let y = b.linear("down", y, 6, true).unwrap();
    let x = b.binary("residual", Binary::Add, x, y).unwrap();
    let x = b
        .normalize("norm_f", x, Norm::Layer { axis: 2 }, 1e-5)
        .unwrap();
    let x = b.reshape("rows", x, &[13, 6]).unwrap();
    let logits = b.linear("logits", x, 40, false).unwrap();
    b.output(logits);
    let graph = b.finish().unwrap();
    for tiles in [2, 5, 13, 99] {
        let tiled = same(&graph, Loss::CrossEntropy, tiles);
        assert_eq!(tiled.predictions, None);
        let whole = tiled
            .graph
            .tensors()
            .values()
            .filter(|tensor| tensor.elements() >= 13 * 40);
        assert_eq!(whole.count(), 0, "the logits are never whole");
    }
}

fn transformer(batch: usize) -> Graph {
    let options = NetworkOptions {
        batch,
        layers: Some(2),
        width: Some(8),
        heads: Some(2),
        sequence: Some(11),
        vocabulary: Some(50),
        dropout: Some(0.0),
        ..NetworkOptions::default()
    };
    build("transformer", &options).unwrap()
}

#[test]
fn a_transformer() {
    for tiles in [2, 3, 11] {
        let tiled = same(&transformer(1), Loss::CrossEntropy, tiles);
        assert_eq!(tiled.predictions, None, "the logits are never whole");
    }
}

/// The tokens of all samples are rows of one matrix: there may be more tiles of them than samples.
#[test]
fn tokens_of_several_samples() {
    let tiled = same(&transformer(2), Loss::CrossEntropy, 8);
    let graph = &tiled.graph;
    let rows = graph
        .tensors()
        .values()
        .filter(|tensor| tensor.shape.last() == Some(&50));
    assert_eq!(
        rows.map(|tensor| tensor.shape[0]).max(),
        Some(3),
        "of 22 rows"
    );
}

/// A tile's logits are computed once, and their gradient takes their place before the next tile begins. The gradient
/// of the weight is one buffer.
#[test]
fn gradients_follow_the_tile_of_a_loss() {
    let tiled = same(&transformer(1), Loss::CrossEntropy, 4);
    let graph = &tiled.graph;
    let vocabulary = |id: &scrimp_graph::TensorId| graph.tensor(*id).shape.last() == Some(&50);
    let kinds: Vec<&str> = graph
        .nodes()
        .values()
        .filter(|node| node.inputs.iter().chain(&node.outputs).any(vocabulary))
        .map(|node| node.op.kind())
        .collect();
    let [made, read] = ["MatMul", "CrossEntropyGrad"];
    let tile = [made, "CrossEntropy", read, made, made];
    assert_eq!(kinds, tile.repeat(4));
    let adds = graph.nodes().values().filter(|node| {
        node.op == Op::Binary(Binary::Add) && graph.tensor(node.outputs[0]).shape == [50, 8]
    });
    assert_eq!(adds.count(), 0);
}

/// Statistics are of the whole, not of a tile: they are sums of tiles, complete before anything is normalized.
#[test]
fn normalizations() {
    for norm in [Norm::Instance, Norm::Group { groups: 2 }, Norm::Batch] {
        let graph = image([13, 9], |b, x| {
            let x = b.conv("a", x, 4, Window::square(3).pad(1), 1, true)?;
            let x = match norm {
                Norm::Batch => b.batch_norm("norm", x)?,
                _ => b.normalize("norm", x, norm, 1e-5)?,
            };
            let x = b.relu("relu", x)?;
            let x = b.conv("b", x, 4, Window::square(3).pad(1).stride(2), 1, true)?;
            let x = b.batch_norm("last", x)?;
            b.unary("gelu", Unary::Gelu, x)
        });
        for tiles in [2, 3, 64] {
            let tiled = same(&graph, Loss::MeanSquaredError, tiles);
            assert_eq!(tiled.tiled.len(), 1, "the norms don't end the segment");
        }
    }
}

#[test]
fn networks_with_normalizations_and_skips() {
    let unet = NetworkOptions {
        batch: 2,
        image: Some([16, 24]),
        width: Some(2),
        ..NetworkOptions::default()
    };
    same(&build("unet", &unet).unwrap(), Loss::CrossEntropy, 2);
    let plain = NetworkOptions {
        batch: 2,
        image: Some([9, 11]),
        ..NetworkOptions::default()
    };
    same(&build("plain20", &plain).unwrap(), Loss::CrossEntropy, 3);
}

/// Dropout draws by the position in the whole tensor.
#[test]
fn dropout() {
    let graph = image([9, 14], |b, x| {
        let x = b.conv("a", x, 4, Window::square(3).pad(1), 1, true)?;
        let x = b.dropout("drop", x, 0.4)?;
        b.conv("b", x, 2, Window::square(3).pad(1), 1, true)
    });
    for tiles in [2, 5] {
        assert_eq!(same(&graph, Loss::MeanSquaredError, tiles).tiled.len(), 1);
    }
}

/// A trunk that fits is not tiled; one that doesn't is, and the results are the same.
#[test]
fn segments_within_bytes() {
    let options = NetworkOptions {
        batch: 1,
        image: Some([64, 96]),
        ..NetworkOptions::default()
    };
    let graph = build("vgg16-trunk", &options).unwrap();
    let graph = graph.with_float(DType::F64);
    let tiled = |bytes| train_tiled(&graph, Loss::Output, None, Tiles::Within(bytes)).unwrap();
    assert_eq!(tiled(u64::MAX / 4).tiled, []);
    let segments = tiled(5 << 20).tiled;
    assert!(segments.len() > 1, "{segments:?}");
    assert!(
        segments.iter().all(|segment| segment.tile_bytes < 5 << 20),
        "{segments:?}"
    );
    same_by(&graph, Loss::Output, Tiles::Within(5 << 20));
}

/// Central differences of the loss of a tiled network.
#[test]
fn finite_differences() {
    let graph = image([7, 6], |b, x| {
        let x = b.conv("a", x, 3, Window::square(3).pad(1), 1, true)?;
        let x = b.batch_norm("norm", x)?;
        let x = b.unary("silu", Unary::Silu, x)?;
        b.conv("b", x, 2, Window::square(3).pad(1), 1, true)
    });
    let graph = graph.with_float(DType::F64);
    let training = train_tiled(&graph, Loss::MeanSquaredError, None, Tiles::Count(3)).unwrap();
    let graph = &training.graph;
    let cpu = Cpu::new(1).unwrap();
    let compiled = Compiled::new(graph, Processor::Cpu(&cpu));
    let tensors = interpret(&compiled, &[], 3).unwrap();
    for &(parameter, gradient) in &training.gradients {
        let gradient = tensors.floats(graph, gradient);
        let at = gradient.len() / 2;
        let loss = |by: f64| {
            let mut moved = tensors.floats(graph, parameter);
            moved[at] += by;
            let moved = interpret(&compiled, &[(parameter, Data::F64(&moved))], 3).unwrap();
            moved.floats(graph, training.loss)[0]
        };
        let step = 1e-5;
        let slope = (loss(step) - loss(-step)) / (2.0 * step);
        let name = &graph.tensor(parameter).name;
        assert!(
            (slope - gradient[at]).abs() < 1e-8,
            "{name}: {slope} and {}",
            gradient[at]
        );
    }
}

/// The features of one sample: each layer needs all of them.
#[test]
fn nothing_to_tile() {
    let mut b = GraphBuilder::new("sample");
    let x = b.input("x", &[1, 8], DType::F32).unwrap();
    let x = b.linear("up", x, 16, true).unwrap();
    let x = b.unary("gelu", Unary::Gelu, x).unwrap();
    let x = b.linear("down", x, 4, true).unwrap();
    b.output(x);
    let graph = b.finish().unwrap();
    let tiled = train_tiled(&graph, Loss::CrossEntropy, None, Tiles::Count(3));
    let sentence = tiled.err().map(|error| error.to_string());
    let expected = "nothing of graph 'sample' can be run by tiles: node 'down' (MatMul) needs all of \
                    what is before it; train it without tiles";
    assert_eq!(sentence.as_deref(), Some(expected));
}

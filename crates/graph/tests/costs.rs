//! Static costs: known counts of operations, the roofline, and what a network's numbers are.

use scrimp_graph::costs::{bytes_moved, flops};
use scrimp_graph::networks::{self, NetworkOptions};
use scrimp_graph::{
    DType, Graph, GraphBuilder, GraphError, Loss, Op, Roofline, Window, estimate, inference, train,
};

fn layer() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("layer");
    let x = b.input("x", &[2, 8, 10, 10], DType::F32)?;
    let y = b.conv("conv", x, 16, Window::square(3).pad(1), 4, false)?;
    let y = b.flatten("view", y)?;
    let y = b.relu("relu", y)?;
    b.output(y);
    b.finish()
}

#[test]
fn the_slower_of_compute_and_memory_decides() {
    let graph = layer().unwrap();
    let roofline = Roofline {
        flops_per_second: 1e9,
        bytes_per_second: 1e9,
        overhead: 1.0,
    };
    let costs = estimate(&graph, &roofline, &|_| 7);
    let node = |name: &str| {
        let (id, node) = graph
            .nodes()
            .iter()
            .find(|(_, node)| node.name == name)
            .unwrap();
        (
            costs.nodes[id],
            flops(&graph, node),
            bytes_moved(&graph, node),
        )
    };
    let (conv, operations, bytes) = node("conv");
    assert_eq!(operations, 2.0 * (2 * 16 * 100) as f64 * (2 * 9) as f64);
    assert_eq!(
        bytes,
        4.0 * (2 * 8 * 100 + 16 * 2 * 9 + 2 * 16 * 100) as f64
    );
    assert_eq!((conv.seconds, conv.workspace), (1.0 + operations / 1e9, 7));
    let (relu, operations, bytes) = node("relu");
    assert_eq!((operations, bytes), (3200.0, 25600.0));
    assert_eq!(relu.seconds, 1.0 + bytes / 1e9);
    assert_eq!(node("view").0.seconds, 0.0);
}

/// The three convolutions of a training step cost the same.
#[test]
fn gradients_of_a_convolution_cost_what_it_costs() {
    let mut b = GraphBuilder::new("two");
    let x = b.input("x", &[2, 3, 9, 9], DType::F32).unwrap();
    let y = b.conv("first", x, 4, Window::square(3), 1, false).unwrap();
    let y = b
        .conv("second", y, 6, Window::square(3).stride(2).pad(1), 2, false)
        .unwrap();
    b.output(y);
    let training = train(&b.finish().unwrap(), Loss::CrossEntropy, None).unwrap();
    let of = |kind: fn(&Op) -> bool| {
        let node = training
            .graph
            .nodes()
            .values()
            .filter(|node| kind(&node.op));
        node.map(|node| flops(&training.graph, node))
            .fold(0.0, f64::max)
    };
    let second = 2.0 * (2 * 6 * 16) as f64 * (2 * 9) as f64;
    assert_eq!(of(|op| matches!(op, Op::ConvInputGrad { .. })), second);
    let first = 2.0 * (2 * 4 * 49) as f64 * 27.0;
    assert_eq!(
        of(|op| matches!(op, Op::ConvWeightGrad { .. })),
        first.max(second)
    );
}

/// Multiply-adds per image as the papers and model libraries give them, times two.
#[test]
fn networks_have_their_published_operation_counts() {
    for (name, giga) in [("resnet50", 8.18), ("vgg16", 30.96), ("resnet18", 3.63)] {
        let options = NetworkOptions {
            batch: 1,
            ..NetworkOptions::default()
        };
        let graph = inference(&networks::build(name, &options).unwrap()).unwrap();
        let operators = graph.summary().operators;
        let dense = ["Conv", "MatMul"]
            .map(|kind| operators[kind].flops)
            .iter()
            .sum::<f64>();
        assert!((dense / 1e9 / giga - 1.0).abs() < 0.01, "{name}: {dense}");
    }
}

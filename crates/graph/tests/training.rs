//! Training graphs: what is built, in what order, and what can't be.

use scrimp_graph::{Binary, DType, Graph, GraphBuilder, Loss, Optimizer, Window, train};

const SGD: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 0.0,
};

/// conv → bn → relu → pool → conv with a shortcut → linear.
fn residual() -> Graph {
    let mut b = GraphBuilder::new("residual");
    let x = b.input("x", &[2, 3, 8, 8], DType::F32).unwrap();
    let x = b
        .conv("conv1", x, 4, Window::square(3).pad(1), 1, false)
        .unwrap();
    let x = b.batch_norm("bn1", x).unwrap();
    let x = b.relu("relu1", x).unwrap();
    let x = b.max_pool("pool", x, Window::square(2).stride(2)).unwrap();
    let y = b
        .conv("conv2", x, 4, Window::square(3).pad(1), 1, true)
        .unwrap();
    let y = b.binary("add", Binary::Add, y, x).unwrap();
    let y = b.relu("relu2", y).unwrap();
    let y = b.global_avg_pool("mean", y).unwrap();
    let y = b.flatten("flatten", y).unwrap();
    let y = b.linear("fc", y, 5, true).unwrap();
    b.output(y);
    b.finish().unwrap()
}

#[test]
fn residual_network() {
    let graph = train(&residual(), Loss::CrossEntropy, Some(SGD)).unwrap();
    assert_eq!(graph.gradients.len(), 7);
    // Parameters, velocities, running statistics.
    assert_eq!(graph.updates.len(), 7 + 7 + 1);
}

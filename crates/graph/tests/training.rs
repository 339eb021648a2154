//! Training graphs: what is built, in what order, and what can't be.

use scrimp_graph::{
    Binary, DType, Graph, GraphBuilder, GraphError, Init, Loss, NodeId, Norm, Op, Optimizer,
    Reduction, TensorId, TrainingGraph, Unary, Window, inference, train,
};
use scrimp_plan::Phase;

const SGD: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 0.0,
};
const ADAM: Optimizer = Optimizer::Adam {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
};

/// conv → bn → relu → pool → conv with a shortcut → linear.
fn residual() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("residual");
    let x = b.input("x", &[2, 3, 8, 8], DType::F32)?;
    let x = b.conv("conv1", x, 4, Window::square(3).pad(1), 1, false)?;
    let x = b.batch_norm("bn1", x)?;
    let x = b.relu("relu1", x)?;
    let x = b.max_pool("pool", x, Window::square(2).stride(2))?;
    let y = b.conv("conv2", x, 4, Window::square(3).pad(1), 1, true)?;
    let y = b.binary("add", Binary::Add, y, x)?;
    let y = b.relu("relu2", y)?;
    let y = b.global_avg_pool("mean", y)?;
    let y = b.flatten("flatten", y)?;
    let y = b.linear("fc", y, 5, true)?;
    b.output(y);
    b.finish()
}

/// An embedding whose table is also the output layer, behind a view, and a split in two.
fn tied() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("tied");
    let tokens = b.input("tokens", &[2, 3], DType::I64)?;
    let (x, table) = b.embedding("wte", tokens, 7, 4, 0.02)?;
    let x = b.layer_norm("ln", x)?;
    let slice = |start, end| Op::Slice {
        start: vec![0, 0, start],
        end: vec![2, 3, end],
        step: vec![1; 3],
    };
    let left = b.add1("left", slice(0, 2), &[x])?;
    let right = b.add1("right", slice(2, 4), &[x])?;
    let x = b.concat("swap", 2, &[right, left])?;
    let table = b.reshape("head", table, &[1, 7, 4])?;
    let logits = b.add1(
        "logits",
        Op::MatMul {
            trans_a: false,
            trans_b: true,
        },
        &[x, table],
    )?;
    let logits = b.reshape("rows", logits, &[6, 7])?;
    b.output(logits);
    b.finish()
}

fn position(training: &TrainingGraph, name: &str) -> usize {
    let node = training
        .graph
        .nodes()
        .values()
        .position(|node| node.name == name);
    node.unwrap_or_else(|| panic!("no node '{name}' in\n{}", training.graph))
}

#[test]
fn residual_network() {
    let training = train(&residual().unwrap(), Loss::CrossEntropy, Some(SGD)).unwrap();
    assert_eq!(training.gradients.len(), 7);
    // Parameters, velocities, running statistics.
    assert_eq!(training.updates.len(), 7 + 7 + 1);
    insta::assert_snapshot!(training.graph.to_string());
}

#[test]
fn tied_embedding_adds_up_before_its_update() {
    let training = train(&tied().unwrap(), Loss::CrossEntropy, Some(ADAM)).unwrap();
    insta::assert_snapshot!(training.graph.to_string());
    assert_eq!(training.gradients.len(), 3);
    assert_eq!(training.updates.len(), 3 * 3);
}

#[test]
fn updates_follow_the_last_reader_and_the_gradient() {
    let training = train(&residual().unwrap(), Loss::CrossEntropy, Some(SGD)).unwrap();
    let at = |name| position(&training, name);
    assert_eq!(at("bn1.running'"), at("bn1.stats") + 1);
    assert!(at("grad(conv2.weight)") < at("grad(pool)"));
    assert_eq!(at("update(conv2.weight)"), at("grad(pool)") + 1);
    assert_eq!(at("update(conv2.bias)"), at("grad(conv2.bias)") + 1);
    assert_eq!(at("update(conv1.weight)"), at("grad(conv1.weight)") + 1);
    let updates = |phase| {
        training
            .graph
            .nodes()
            .keys()
            .filter(move |&id| training_phase(&training, id) == phase)
            .count()
    };
    assert_eq!(updates(Phase::Update), 7 + 1);
}

fn training_phase(training: &TrainingGraph, node: NodeId) -> Phase {
    training.phases[node]
}

#[test]
fn without_an_optimizer_gradients_are_outputs() {
    let training = train(&residual().unwrap(), Loss::CrossEntropy, None).unwrap();
    let gradients: Vec<TensorId> = training.gradients.iter().map(|&(_, grad)| grad).collect();
    assert_eq!(training.graph.outputs()[0], training.loss);
    assert_eq!(training.graph.outputs()[1..], gradients);
    assert_eq!(training.updates.len(), 1);
    assert!(
        !training
            .graph
            .nodes()
            .values()
            .any(|node| matches!(node.op, Op::Update(_)))
    );
}

#[test]
fn nothing_is_built_towards_inputs_and_constants() {
    let training = train(&residual().unwrap(), Loss::CrossEntropy, None).unwrap();
    assert!(training.graph.find("grad(x)").is_none());
    let mut b = GraphBuilder::new("frozen");
    let x = b.input("x", &[2, 3], DType::F32).unwrap();
    let frozen = b.constant("frozen", &[3, 3], Init::Constant(0.5)).unwrap();
    let x = b
        .add1(
            "first",
            Op::MatMul {
                trans_a: false,
                trans_b: false,
            },
            &[x, frozen],
        )
        .unwrap();
    let y = b.linear("second", x, 2, false).unwrap();
    b.output(y);
    let graph = b.finish().unwrap();
    let training = train(&graph, Loss::MeanSquaredError, Some(SGD)).unwrap();
    assert!(training.graph.find("grad(first)").is_none());
    assert!(training.graph.find("grad(frozen)").is_none());
    assert!(training.graph.find("target").is_some());
    assert_eq!(training.gradients.len(), 1);
}

#[test]
fn the_loss_of_a_softmax_is_that_of_its_input() {
    let mut b = GraphBuilder::new("softmax");
    let x = b.input("x", &[2, 3], DType::F32).unwrap();
    let y = b.linear("fc", x, 4, true).unwrap();
    let y = b.add1("softmax", Op::Softmax { axis: 1 }, &[y]).unwrap();
    b.output(y);
    let training = train(&b.finish().unwrap(), Loss::CrossEntropy, Some(SGD)).unwrap();
    assert_eq!(
        training.graph.tensor(training.predictions.unwrap()).name,
        "fc"
    );
    assert!(training.graph.find("softmax").is_none());
}

#[test]
fn shared_batch_norm_updates_its_statistics_twice() {
    let mut b = GraphBuilder::new("siamese");
    let x = b.input("x", &[4, 3], DType::F32).unwrap();
    let y = b.linear("fc", x, 3, true).unwrap();
    let once = b.batch_norm("bn", y).unwrap();
    let (parameters, op) = {
        let node = b.producer(once).unwrap();
        (node.inputs[1..].to_vec(), node.op.clone())
    };
    let inputs = [&[once], &parameters[..]].concat();
    let twice = b.add1("again", op, &inputs).unwrap();
    b.output(twice);
    let training = train(&b.finish().unwrap(), Loss::MeanSquaredError, None).unwrap();
    let [(old, new)] = training.updates[..] else {
        panic!("{:?}", training.updates)
    };
    assert_eq!(training.graph.tensor(old).name, "bn.running");
    assert_eq!(training.graph.tensor(new).name, "again.running'");
}

#[test]
fn the_last_output_can_be_the_loss() {
    let mut b = GraphBuilder::new("own");
    let x = b.input("x", &[4, 3], DType::F32).unwrap();
    let y = b.linear("fc", x, 3, true).unwrap();
    let square = b.unary("square", Unary::Pow { exponent: 2.0 }, y).unwrap();
    let sum = Op::Reduce {
        kind: Reduction::Sum,
        axes: vec![0, 1],
        keep_dims: true,
    };
    let loss = b.add1("sum", sum, &[square]).unwrap();
    b.output(y);
    b.output(loss);
    let training = train(&b.finish().unwrap(), Loss::Output, Some(SGD)).unwrap();
    let name = |id| &*training.graph.tensor(id).name;
    assert_eq!(
        (name(training.predictions.unwrap()), name(training.loss)),
        ("fc", "sum")
    );
}

#[track_caller]
fn reject(graph: Result<Graph, GraphError>, loss: Loss, message: &str) {
    match graph.and_then(|graph| train(&graph, loss, Some(SGD))) {
        Ok(training) => panic!("accepted, expected '{message}':\n{}", training.graph),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(message), "got '{text}', not '{message}'");
        }
    }
}

fn one_node(op: Op, shape: &[usize], extra: &[&[usize]]) -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("one");
    let mut inputs = vec![b.parameter("p", shape, Init::Constant(1.0))?];
    for shape in extra {
        inputs.push(b.input("extra", shape, DType::F32)?);
    }
    let outputs = b.add("node", op, &inputs)?;
    b.output(outputs[0]);
    b.finish()
}

#[test]
fn what_cannot_be_trained_is_said() {
    let grad = one_node(Op::UnaryGrad(Unary::Tanh), &[2, 3], &[&[2, 3]]);
    reject(
        grad,
        Loss::MeanSquaredError,
        "node 'node' (TanhGrad) can't be differentiated",
    );
    let stats = one_node(Op::NormStats { norm: Norm::Batch }, &[2, 3], &[]);
    reject(
        stats,
        Loss::MeanSquaredError,
        "node 'node' (NormStats) can't be differentiated",
    );
    let fixed = residual().and_then(|graph| inference(&graph));
    reject(
        fixed,
        Loss::CrossEntropy,
        "node 'bn1' (NormApply) can't be differentiated: its statistics",
    );
    reject(
        residual(),
        Loss::Output,
        "the last output 'fc' is to be the loss but is f32 of shape [2, 5]",
    );
    let mut b = GraphBuilder::new("inputs only");
    let x = b.input("x", &[2, 3], DType::F32).unwrap();
    let y = b.relu("relu", x).unwrap();
    b.output(y);
    reject(
        b.finish(),
        Loss::CrossEntropy,
        "the loss 'loss' depends on no parameter",
    );
    let flat = one_node(Op::Unary(Unary::Relu), &[5], &[]);
    reject(
        flat,
        Loss::CrossEntropy,
        "node 'loss' (CrossEntropy): input 0 has shape [5]",
    );
    let bad = Optimizer::Sgd {
        momentum: 2.0,
        weight_decay: 0.0,
    };
    let error = train(&residual().unwrap(), Loss::CrossEntropy, Some(bad)).map(|_| ());
    assert!(error.unwrap_err().to_string().contains("momentum is 2"));
}

#[test]
fn integer_outputs_are_no_loss() {
    let mut b = GraphBuilder::new("int");
    let x = b.input("x", &[1], DType::I64).unwrap();
    b.output(x);
    reject(b.finish(), Loss::Output, "is i64 of shape [1]");
}

#[test]
fn training_is_deterministic() {
    let text = || {
        train(&tied().unwrap(), Loss::CrossEntropy, Some(SGD))
            .unwrap()
            .graph
            .to_string()
    };
    assert_eq!(text(), text());
}

/// A convolution that reads joined channels: of learned ones and data, with a weight of this size.
fn joined(kernel: usize) -> Result<TrainingGraph, GraphError> {
    let mut b = GraphBuilder::new("joined");
    let x = b.input("x", &[2, 4, 6, 6], DType::F32)?;
    let y = b.conv("first", x, 3, Window::square(3).pad(1), 1, false)?;
    let cat = b.concat("cat", 1, &[x, y])?;
    let out = b.conv("last", cat, 8, Window::square(kernel).same(), 1, false)?;
    b.output(out);
    train(&b.finish()?, Loss::CrossEntropy, Some(SGD))
}

/// The gradient of each part is built by itself, with its part of the weight, and none for data;
/// the weight is updated as soon as its last part is copied.
#[test]
fn gradients_of_joined_channels_are_built_apart() {
    let training = joined(1).unwrap();
    let graph = &training.graph;
    assert!(graph.find("grad(cat)").is_none());
    assert!(graph.find("grad(x)").is_none());
    let weight = graph.find("grad(first).weight").unwrap();
    assert_eq!(graph.tensor(weight).shape, [8, 3, 1, 1]);
    let at = |name| position(&training, name);
    assert_eq!(at("update(last.weight)"), at("grad(first).weight") + 1);
    assert_eq!(at("grad(first)"), at("update(last.weight)") + 1);
    // A weight that is larger than what it reads isn't copied.
    let large = joined(5).unwrap();
    assert!(large.graph.find("grad(cat)").is_some());
    assert!(large.graph.find("grad(first).weight").is_none());
}

/// conv → bn → what `after` makes of it → linear.
/// A batch of one is a stack of one: the gradient of the matrix and of the bias are no stacks to be summed.
#[test]
fn a_batch_of_one_is_not_summed() {
    let build = |batch| -> Result<TrainingGraph, GraphError> {
        let mut b = GraphBuilder::new("linear");
        let x = b.input("x", &[batch, 3, 4], DType::F32)?;
        let w = b.parameter("w", &[4, 5], Init::Normal { std: 1.0 })?;
        let bias = b.parameter("bias", &[1, 3, 5], Init::Normal { std: 1.0 })?;
        let product = Op::MatMul {
            trans_a: false,
            trans_b: false,
        };
        let y = b.add1("y", product, &[x, w])?;
        let y = b.binary("z", Binary::Add, y, bias)?;
        b.output(y);
        train(&b.finish()?, Loss::MeanSquaredError, Some(SGD))
    };
    for batch in [1, 2] {
        let training = build(batch).unwrap();
        let nodes = training.graph.nodes().values();
        let sums = nodes
            .filter(|node| matches!(node.op, Op::SumTo { .. }))
            .count();
        assert_eq!(sums, batch - 1, "that of the bias");
    }
}

fn after_norm(
    after: impl FnOnce(&mut GraphBuilder, TensorId) -> Result<TensorId, GraphError>,
) -> Graph {
    let build = || {
        let mut b = GraphBuilder::new("after a norm");
        let x = b.input("x", &[2, 3, 4, 4], DType::F32)?;
        let x = b.conv("conv", x, 4, Window::square(1), 1, false)?;
        let x = b.batch_norm("bn", x)?;
        let x = after(&mut b, x)?;
        let x = b.flatten("flatten", x)?;
        let x = b.linear("fc", x, 5, true)?;
        b.output(x);
        b.finish()
    };
    build().expect("valid")
}

fn activations(graph: &Graph) -> Vec<Unary> {
    let ops = graph.nodes().values().map(|node| &node.op);
    let activation = |op: &Op| match op {
        Op::NormApply { activation, .. } => *activation,
        _ => None,
    };
    ops.filter_map(activation).collect()
}

#[test]
fn an_activation_joins_the_normalization_that_only_it_reads() {
    for f in [
        Unary::Relu,
        Unary::LeakyRelu { slope: 0.1 },
        Unary::Clip { lo: 0.0, hi: 6.0 },
    ] {
        let graph = after_norm(|b, x| b.unary("f", f, x));
        assert_eq!(activations(&inference(&graph).unwrap()), [f]);
        let training = train(&graph, Loss::CrossEntropy, Some(SGD)).unwrap();
        assert_eq!(activations(&training.graph), [f]);
        // Neither the activation nor its gradient is a node of its own, and no gradient reads its output
        // but that of the layer after it.
        let y = training.graph.tensors().iter().find(|(_, t)| t.name == "f");
        let y = y.unwrap().0;
        let storages = scrimp_graph::Storages::new(&training.graph);
        for (id, node) in training.graph.nodes() {
            assert!(!matches!(node.op, Op::Unary(_) | Op::UnaryGrad(_)));
            let reads = node.inputs.iter().any(|&x| storages.root(x) == y);
            if reads && training.phases[id] == Phase::Backward && !node.op.is_view() {
                assert!(matches!(node.op, Op::MatMul { .. }), "{}", node.name);
            }
        }
    }
}

#[test]
fn an_activation_stays_apart_where_the_normalization_has_other_readers() {
    let twice = after_norm(|b, x| {
        let y = b.relu("relu", x)?;
        b.binary("add", Binary::Add, x, y)
    });
    let wanted = after_norm(|b, x| {
        b.output(x);
        b.relu("relu", x)
    });
    // Its gradient reads its input, the normalization's output.
    let gelu = after_norm(|b, x| b.unary("gelu", Unary::Gelu, x));
    for graph in [twice, wanted, gelu] {
        assert_eq!(activations(&inference(&graph).unwrap()), []);
        let training = train(&graph, Loss::CrossEntropy, Some(SGD)).unwrap();
        assert_eq!(activations(&training.graph), []);
    }
}

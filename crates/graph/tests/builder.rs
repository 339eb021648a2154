//! The builder: names, pruning, limits, errors; inference graphs; text and summaries.

use scrimp_graph::{
    Binary, DType, Graph, GraphBuilder, GraphError, Init, Op, Role, Window, inference, repeated,
};

fn small() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("small");
    let x = b.input("x", &[2, 3, 4, 4], DType::F32)?;
    let unused = b.conv("unused", x, 7, Window::square(3), 1, true)?;
    b.relu("unused", unused)?;
    let y = b.conv("conv", x, 4, Window::square(3).pad(1), 1, false)?;
    let y = b.batch_norm("bn", y)?;
    let y = b.relu("relu", y)?;
    let y = b.dropout("drop", y, 0.25)?;
    let y = b.flatten("flatten", y)?;
    let y = b.linear("fc", y, 2, true)?;
    b.output(y);
    b.finish()
}

#[test]
fn text_leaves_out_what_no_output_needs() {
    insta::assert_snapshot!(small().unwrap().to_string());
}

#[test]
fn inference_applies_running_statistics_and_drops_nothing() {
    insta::assert_snapshot!(inference(&small().unwrap()).unwrap().to_string());
}

#[test]
fn several_batches_share_weights() {
    let one = inference(&small().unwrap()).unwrap();
    let many = repeated(&one, 3).unwrap();
    many.graph.validate().unwrap();
    assert_eq!(many.graph.nodes().len(), 3 * one.nodes().len());
    assert_eq!(many.graph.outputs().len(), 3);
    for (id, tensor) in one.tensors().iter() {
        let places: Vec<_> = many
            .tensors
            .iter()
            .map(|at| at[id].expand().unwrap())
            .collect();
        let own = matches!(tensor.role, Role::Input | Role::Activation);
        assert_eq!(
            places[0] != places[1] && places[1] != places[2],
            own,
            "{}",
            tensor.name
        );
        assert_eq!(many.graph.tensor(places[2]).shape, tensor.shape);
        assert_eq!(many.graph.tensor(places[0]), tensor);
    }
    let alone = repeated(&one, 1).unwrap();
    assert_eq!(alone.graph.to_string(), one.to_string());
}

#[test]
fn summary_counts() {
    let summary = small().unwrap().summary();
    assert_eq!(summary.nodes, 6);
    assert_eq!(summary.parameter_tensors, 5);
    assert_eq!(summary.parameters, 4 * 27 + 4 + 4 + 2 * 64 + 2);
    assert_eq!(summary.state_bytes, 2 * 4 * 4);
    assert_eq!(summary.input_bytes, 2 * 3 * 16 * 4);
    // Four maps of 2·4·16 floats and the result; the flattened one is a view.
    assert_eq!(summary.activation_bytes, 4 * (4 * 128 + 4));
    assert_eq!(summary.operators["Conv"].flops, 2.0 * 128.0 * 27.0);
    assert_eq!(summary.operators["MatMul"].flops, 2.0 * 4.0 * 64.0 + 4.0);
    assert_eq!(summary.operators["Reshape"].bytes_moved, 0.0);
    assert_eq!(summary.inputs, ["x: f32[2,3,4,4]"]);
    assert_eq!(summary.outputs, ["fc: f32[2,2]"]);
}

#[test]
fn names_are_made_unique() {
    let mut b = GraphBuilder::new("names");
    let x = b.input("x", &[2], DType::F32).unwrap();
    let taken = b.input("x_1", &[2], DType::F32).unwrap();
    let again = b.binary("x", Binary::Add, x, taken).unwrap();
    assert_eq!(b.get(again).name, "x_2");
    b.rename(again, "sum");
    b.output(again);
    let graph = b.finish().unwrap();
    assert_eq!(
        graph.find("sum").map(|id| graph.tensor(id).shape.clone()),
        Some(vec![2])
    );
    assert_eq!(graph.validate(), Ok(()));
}

#[test]
fn one_seed_and_producers_and_consumers() {
    let mut b = GraphBuilder::new("seed");
    let x = b.input("x", &[2], DType::F32).unwrap();
    let y = b.dropout("a", x, 0.5).unwrap();
    let z = b.dropout("b", y, 0.5).unwrap();
    b.output(z);
    let graph = b.finish().unwrap();
    let seeds: Vec<_> = graph
        .given()
        .filter(|(_, t)| t.role == Role::Seed)
        .collect();
    assert_eq!(seeds.len(), 1);
    assert_eq!(graph.consumers(seeds[0].0).len(), 2);
    let y = graph.find("a").unwrap();
    assert_eq!(graph.producer(y), graph.nodes().keys().next());
    assert_eq!(graph.producer(seeds[0].0), None);
    let streams: Vec<&Op> = graph.nodes().values().map(|node| &node.op).collect();
    assert_ne!(streams[0], streams[1]);
}

#[track_caller]
fn reject<T>(result: Result<T, GraphError>, message: &str) {
    match result {
        Ok(_) => panic!("accepted, expected '{message}'"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(message), "got '{text}', not '{message}'");
        }
    }
}

#[test]
fn errors_name_the_node_or_tensor() {
    let mut b = GraphBuilder::new("errors");
    reject(
        b.input("big", &[1 << 40, 1 << 40], DType::F32),
        "tensor 'big': a tensor of shape",
    );
    reject(b.input("none", &[3, 0], DType::F32), "tensor 'none'");
    reject(
        b.constant("c", &[3], Init::Floats([1.0, 2.0].into())),
        "tensor 'c' of shape [3] can't be initialized: it needs 3 elements but 2 are given",
    );
    reject(
        b.parameter("p", &[3], Init::Normal { std: f64::NAN }),
        "std is NaN",
    );
    reject(
        b.parameter("p", &[1], Init::Ints([1].into())),
        "only constants can be integers",
    );
    let x = b.input("x", &[2, 3], DType::F32).unwrap();
    reject(
        b.flatten("f", x)
            .and_then(|x| b.conv("c1", x, 1, Window::square(1), 1, false)),
        "node 'c1' (Conv)",
    );
    reject(
        b.conv("c2", x, 1, Window::square(1), 0, false),
        "node 'c2' (Conv)",
    );
    reject(
        b.transpose("t", x, &[0]),
        "node 't' (Transpose): its attribute perm is [0]",
    );
    reject(b.clone().finish(), "graph 'errors' has no outputs");
    let mut other = GraphBuilder::new("other");
    reject(other.relu("r", x), "isn't in this graph");
    other.output(x);
    reject(other.finish(), "outputs");
}

#[test]
fn the_whole_graph_has_a_size_limit() {
    let mut b = GraphBuilder::new("huge");
    let mut x = b.input("x", &[1 << 41], DType::F32).unwrap();
    let failed = (0..100).find_map(|i| match b.relu(&format!("relu{i}"), x) {
        Ok(y) => {
            x = y;
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(
        failed,
        Some(GraphError::GraphTooLarge {
            what: "more bytes",
            ..
        })
    ));
}

#[test]
fn with_float_changes_every_float_and_nothing_else() {
    let graph = small().unwrap().with_float(DType::F64);
    assert!(
        graph
            .tensors()
            .values()
            .all(|t| (t.dtype == DType::I64) == (t.role == Role::Seed))
    );
    assert_eq!(graph.validate(), Ok(()));
}

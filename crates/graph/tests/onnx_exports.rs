//! What exporters make of PyTorch's models: random numbers for dropout, guards of softmax, normalizations
//! folded into convolutions.

mod models;

use models::*;
use scrimp_graph::onnx::proto::{NodeProto, TensorProto, ValueInfoProto, data_type};
use scrimp_graph::{Init, Op, Role, inference};

fn named(mut node: NodeProto, name: &str) -> NodeProto {
    node.name = name.into();
    node
}

fn rows() -> ValueInfoProto {
    value("x", &[Open("N"), Fixed(3)])
}

/// Stochastic depth: a number for each sample, 0 or 1 / 0.75.
#[test]
fn random_numbers_below_a_known_one_are_a_dropout() {
    let nodes = vec![
        named(
            node("RandomUniformLike", &["like"], &["r"])
                .float("low", 0.0)
                .float("high", 1.0),
            "noise",
        ),
        node("Less", &["r", "p"], &["kept"]),
        node("Cast", &["kept"], &["mask"]).int("to", 1),
        node("Div", &["mask", "p"], &["scaled"]),
        node("Mul", &["x", "scaled"], &["y"]),
    ];
    let stored = vec![floats("like", &[1, 1], &[0.0]), floats("p", &[], &[0.75])];
    let file = model(nodes, stored, vec![rows()], &["y"]);
    let graph = good(&file);
    assert_eq!(kinds(&graph), ["Fill", "Dropout", "Affine", "Mul"]);
    let drops = |op: &Op| matches!(op, Op::Dropout { p, .. } if (p - 0.25).abs() < 1e-9);
    assert!(graph.nodes().values().any(|node| drops(&node.op)));
    // Inference has the mean, which the division makes 1.
    let graph = inference(&graph).expect("valid");
    assert_eq!(kinds(&graph), ["Fill", "Affine", "Mul"]);
    let mut file = file;
    let nodes = &mut file.graph.as_mut().expect("a graph").node;
    nodes[2] = node("Mul", &["r", "x"], &["mask"]);
    assert!(bad(&file).contains("random numbers"), "{}", bad(&file));
}

fn guarded(mask: &[f32], given: bool) -> scrimp_graph::onnx::proto::ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "keys"], &["scores"]),
        node("Add", &["scores", "mask"], &["s"]),
        node("Softmax", &["s"], &["p"]).int("axis", -1),
        node("IsNaN", &["p"], &["nan"]),
        node("Where", &["nan", "zero", "p"], &["y"]),
    ];
    let keys = floats("keys", &[3, 3], &[1.0; 9]);
    let mut stored = vec![keys, floats("zero", &[], &[0.0])];
    let mut inputs = vec![rows()];
    match given {
        true => inputs.push(value("mask", &[Open("N"), Fixed(3)])),
        false => stored.push(floats("mask", &[2, 3], mask)),
    }
    model(nodes, stored, inputs, &["y"])
}

#[test]
fn a_softmax_without_wholly_masked_rows_is_never_nan() {
    let inf = f32::NEG_INFINITY;
    let graph = good(&guarded(&[0.0, inf, inf, 0.0, 0.0, inf], false));
    assert_eq!(kinds(&graph), ["MatMul", "Add", "Softmax"]);
    // Initializers of more than one element stand for weights, but these look like a mask.
    assert!(matches!(role(&graph, "mask"), Role::Constant(_)));
    let wholly = bad(&guarded(&[0.0, inf, inf, inf, inf, inf], false));
    assert!(wholly.contains("masked wholly"), "{wholly}");
    // Of a mask that is an input nothing is known: what is −∞ counts as 0, whatever the softmax of such a row is.
    let graph = good(&guarded(&[], true));
    let parts = ["MatMul", "Add", "Clip", "Softmax", "Affine", "Clip", "Mul"];
    assert_eq!(kinds(&graph), parts);
}

#[test]
fn folded_normalizations_are_told() {
    let conv = |weight: &str, output: &str| {
        let nodes = vec![
            node("Conv", &["x", weight], &[output]).ints("kernel_shape", &[1, 1]),
            node("Relu", &[output], &["y"]),
        ];
        let stored = vec![floats(weight, &[1, 2, 1, 1], &[1.0, 2.0])];
        good(&model(nodes, stored, vec![image()], &["y"])).remarks
    };
    assert_eq!(conv("conv1.weight", "conv2d"), [] as [String; 0]);
    assert_eq!(conv("onnx::Convolve", "getitems"), [] as [String; 0]);
    for remarks in [
        conv("onnx::Conv_12", "c"),
        conv("conv1.weight", "getitem_3"),
    ] {
        assert!(
            remarks.len() == 1 && remarks[0].contains("into 1 convolutions"),
            "{remarks:?}"
        );
    }
}

/// Normalized weights: the statistics are computed beside the normalization.
#[test]
fn statistics_of_the_input_are_the_normalizations_own() {
    let nodes = vec![
        node("ReduceMean", &["x"], &["mean"])
            .ints("axes", &[0, 2, 3])
            .int("keepdims", 0),
        node("ReduceMean", &["x"], &["kept"]).ints("axes", &[0, 2, 3]),
        node("Sub", &["x", "kept"], &["centred"]),
        node("Mul", &["centred", "centred"], &["square"]),
        node("ReduceMean", &["square"], &["variance"])
            .ints("axes", &[0, 2, 3])
            .int("keepdims", 0),
        node(
            "BatchNormalization",
            &["x", "g", "b", "mean", "variance"],
            &["y"],
        ),
    ];
    let stored = || {
        vec![
            floats("g", &[2], &[1.0, 2.0]),
            floats("b", &[2], &[0.0, 0.0]),
        ]
    };
    let graph = good(&model(nodes.clone(), stored(), vec![image()], &["y"]));
    assert_eq!(kinds(&graph), ["NormStats", "NormApply"]);
    let mut other = nodes;
    other[0].input[0] = "centred".into();
    other.swap(0, 2);
    other.swap(0, 1);
    let graph = good(&model(other, stored(), vec![image()], &["y"]));
    assert!(kinds(&graph).contains(&"Concat"), "{:?}", kinds(&graph));
}

/// A bias that the exporter makes up for a convolution without one.
#[test]
fn computed_zeros_are_no_bias() {
    let nodes = vec![
        node("CastLike", &["nothing", "x"], &["zero"]),
        node("Expand", &["zero", "channels"], &["bias"]),
        node("Conv", &["x", "w", "bias"], &["y"]).ints("kernel_shape", &[1, 1]),
    ];
    let stored = vec![
        ints("nothing", &[0]),
        ints("channels", &[1]),
        floats("w", &[1, 2, 1, 1], &[1.0, 2.0]),
    ];
    let graph = good(&model(nodes, stored, vec![image()], &["y"]));
    assert_eq!(
        graph.nodes().values().next().expect("a node").inputs.len(),
        2
    );
}

/// A mask that masks nothing, under a name that the exporter made up; a bias that starts as zeros has the
/// parameter's.
#[test]
fn made_up_tensors_of_one_number_are_no_weights() {
    let add = |name: &str| {
        let stored = vec![floats(name, &[1, 3], &[0.0; 3])];
        let nodes = vec![node("Add", &["x", name], &["y"])];
        good(&model(nodes, stored, vec![rows()], &["y"]))
    };
    assert!(matches!(role(&add("val_74"), "val_74"), Role::Constant(_)));
    assert!(matches!(role(&add("val.74"), "val.74"), Role::Parameter(_)));
}

/// Sums along an axis are known, as masks of packed sequences need them; they choose rows here.
#[test]
fn known_sums_along_an_axis() {
    let picked = |exclusive: i64, reverse: i64| {
        let nodes = vec![
            node("CumSum", &["ones", "axis"], &["sums"])
                .int("exclusive", exclusive)
                .int("reverse", reverse),
            node("Gather", &["x", "sums"], &["y"]).int("axis", 1),
        ];
        let stored = vec![ints("ones", &[1, 0, 1]), ints("axis", &[0])];
        let graph = good(&model(nodes, stored, vec![rows()], &["y"]));
        let table = graph.given().find_map(|(_, tensor)| match &tensor.role {
            Role::Constant(Init::Ints(values)) => Some(values.to_vec()),
            _ => None,
        });
        table.expect("a table of indices")
    };
    assert_eq!(picked(0, 0), [1, 1, 2]);
    assert_eq!(picked(1, 0), [0, 1, 1]);
    assert_eq!(picked(0, 1), [2, 1, 1]);
    assert_eq!(picked(1, 1), [1, 1, 0]);
}

/// Rotary positions as exporters compute them: sines of products of positions and frequencies, which are no weights.
#[test]
fn angles_are_known_and_not_trained() {
    let nodes = vec![
        node("MatMul", &["positions", "frequencies"], &["angles"]),
        node("Cos", &["angles"], &["cos"]),
        node("Mul", &["x", "cos"], &["y"]),
    ];
    let stored = vec![
        floats("positions", &[2, 1], &[0.0, 1.0]),
        floats("frequencies", &[1, 3], &[1.0, 0.5, 0.25]),
    ];
    let graph = good(&model(nodes.clone(), stored.clone(), vec![rows()], &["y"]));
    assert_eq!(kinds(&graph), ["Mul"]);
    let expected = [1.0, 1.0, 1.0, 1.0f32.cos(), 0.5f32.cos(), 0.25f32.cos()];
    assert_eq!(
        role(&graph, "cos"),
        &Role::Constant(Init::Floats(expected.into()))
    );
    // The product of an input is not known.
    let mut nodes = nodes;
    nodes[0].input[0] = "x".into();
    let stored = vec![floats("frequencies", &[3, 3], &[1.0; 9])];
    let error = bad(&model(nodes, stored, vec![rows()], &["y"]));
    assert!(
        error.contains("Cos of values that are not known"),
        "{error}"
    );
}

#[test]
fn products_of_known_tensors_that_are_not_in_order() {
    let with = |a: &[i64], b: &[i64]| {
        let ones = |name: &str, dims: &[i64]| {
            let count = dims.iter().product::<i64>() as usize;
            node("Constant", &[], &[name]).tensor("value", floats("", dims, &vec![1.0; count]))
        };
        let product = node("MatMul", &["a", "b"], &["p"]);
        let sum = node("Add", &["x", "p"], &["y"]);
        read(&model(
            vec![ones("a", a), ones("b", b), product, sum],
            vec![],
            vec![rows()],
            &["y"],
        ))
    };
    let told = |a: &[i64], b: &[i64]| with(a, b).expect_err("an error").to_string();
    assert!(told(&[], &[3, 3]).contains("a scalar has no matrix product"));
    assert!(told(&[2, 3], &[2, 3]).contains("have no product"));
    assert!(told(&[2, 1, 2], &[3, 2, 3]).contains("have no product"));
    assert!(told(&[4096, 300], &[300, 4096]).contains("of known matrices of shapes"));
    assert!(with(&[2, 5], &[5, 3]).is_ok() && with(&[5], &[5, 3]).is_ok());
    assert!(
        with(&[2, 5], &[5]).is_err(),
        "[2] does not broadcast to [2, 3]"
    );
    assert!(with(&[5], &[5]).is_ok());
}

/// As `chunk` is exported.
#[test]
fn parts_of_a_sequence() {
    let with = |split: NodeProto, place: i64| {
        let at = node("SequenceAt", &["parts", "place"], &["y"]);
        let stored = vec![
            ints("sizes", &[1, 2]),
            ints("place", &[place]),
            scalar("two", 2),
            scalar("none", 0),
        ];
        read(&model(vec![split, at], stored, vec![rows()], &["y"]))
    };
    let split = |inputs: &[&str]| node("SplitToSequence", inputs, &["parts"]).int("axis", 1);
    let shape = |split: NodeProto, place: i64| {
        let graph = with(split, place).unwrap_or_else(|error| panic!("{error}"));
        graph.tensor(graph.outputs()[0]).shape.clone()
    };
    assert_eq!(shape(split(&["x", "sizes"]), -1), [2, 2]);
    assert_eq!(shape(split(&["x", "two"]), 0), [2, 2]);
    assert_eq!(shape(split(&["x", "two"]), 1), [2, 1]);
    assert_eq!(shape(split(&["x"]), 2), [2, 1]);
    assert_eq!(shape(split(&["x"]).int("keepdims", 0), 2), [2]);
    let told = |split: NodeProto, place: i64| with(split, place).expect_err("an error").to_string();
    assert!(told(split(&["x", "sizes"]), 2).contains("index 2 of 2"));
    assert!(told(split(&["x", "none"]), 0).contains("is no length"));
    let whole = node("SplitToSequence", &["x", "sizes"], &["parts"]).int("axis", 0);
    assert!(told(whole, 0).contains("splits 2 elements into [1, 2]"));
    assert!(told(node("Relu", &["x"], &["parts"]), 0).contains("not split by SplitToSequence"));
    let shown = vec![split(&["x"]), node("Relu", &["parts"], &["y"])];
    assert!(bad(&model(shown, vec![], vec![rows()], &["y"])).contains("a sequence as a tensor"));
}

/// Of two rows.
fn matrix(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        dims: vec![2, values.len() as i64 / 2],
        ..ints(name, values)
    }
}

fn scalar(name: &str, value: i64) -> TensorProto {
    TensorProto {
        dims: vec![],
        ..ints(name, &[value])
    }
}

#[test]
fn elements_and_rows_by_known_indices() {
    let with = |node: NodeProto, indices: &[i64]| {
        let stored = vec![matrix("i", indices), floats("new", &[2], &[0.5; 2])];
        read(&model(vec![node], stored, vec![rows()], &["y"]))
    };
    let gather = || node("GatherElements", &["x", "i"], &["y"]).int("axis", 1);
    let scatter = || node("ScatterND", &["x", "i", "new"], &["y"]);
    let good = |node: NodeProto, indices: &[i64]| {
        let graph = with(node, indices).unwrap_or_else(|error| panic!("{error}"));
        (
            kinds(&graph),
            graph.tensor(graph.outputs()[0]).shape.clone(),
        )
    };
    assert_eq!(
        good(gather(), &[0, 2, -1, 1]),
        (vec!["Reshape", "Gather"], vec![2, 2])
    );
    let scattered = vec!["Reshape", "Reshape", "Concat", "Gather", "Reshape"];
    assert_eq!(good(scatter(), &[0, 0, 1, 2]), (scattered, vec![2, 3]));
    let told =
        |node: NodeProto, indices: &[i64]| with(node, indices).expect_err("error").to_string();
    assert!(told(gather(), &[0, 3, 0, 0]).contains("index 3 of 3"));
    assert!(
        told(
            node("GatherElements", &["x", "i"], &["y"]).int("axis", 2),
            &[0, 0]
        )
        .contains("axis 2")
    );
    assert!(told(scatter(), &[0, 3, 1, 2]).contains("index 3 of 3"));
    assert!(told(scatter(), &[0, 1]).contains("its updates have shape [2], not [2, 3]"));
    assert!(told(scatter().text("reduction", "add"), &[0, 0, 1, 2]).contains("reduction \"add\""));
    let open = node("GatherElements", &["x", "x"], &["y"]);
    assert!(told(open, &[0, 0]).contains("indices that is not known at import"));
}

/// Words that are padding, as an input of the model.
#[test]
fn masks_that_are_inputs() {
    let with = |nodes: Vec<NodeProto>| {
        let mask = |kind| {
            let mut mask = value("mask", &[Open("N"), Fixed(3)]);
            let tensor = mask.r#type.as_mut().and_then(|t| t.tensor_type.as_mut());
            tensor.expect("a tensor").elem_type = kind;
            mask
        };
        let integer = data_type::INT64;
        let stored = vec![
            floats("hidden", &[], &[f32::NEG_INFINITY]),
            floats("shown", &[], &[0.5]),
            floats("zero", &[1], &[0.0]),
            floats("infinite", &[2], &[f32::INFINITY; 2]),
            matrix("all", &[1; 6]),
            matrix("some", &[1, 0, 1, 1, 1, 1]),
        ];
        let cast = node("Cast", &["mask"], &["m"]).int("to", 9);
        let nodes = [vec![cast], nodes].concat();
        read(&model(nodes, stored, vec![rows(), mask(integer)], &["y"]))
    };
    let chosen = |condition: &[&str], op: &str, values: [&str; 2]| {
        let [a, b] = values;
        let nodes = vec![
            node(op, condition, &["c"]),
            node("Where", &["c", a, b], &["y"]),
        ];
        let graph = with(nodes).unwrap_or_else(|error| panic!("{error}"));
        kinds(&graph)
    };
    // What always holds is left out; −∞ is a logarithm.
    let plain = ["Gather", "Affine", "Log", "Add"];
    assert_eq!(chosen(&["m", "all"], "And", ["shown", "hidden"]), plain);
    assert_eq!(
        chosen(&["m", "all"], "And", ["zero", "hidden"]),
        ["Gather", "Log"]
    );
    let some = ["Gather", "Mul", "Affine", "Mul", "Affine", "Add"];
    assert_eq!(chosen(&["some", "m"], "And", ["x", "shown"]), some);
    let either = ["Gather", "Add", "Clip", "Affine", "Affine", "Mul", "Add"];
    assert_eq!(chosen(&["some", "m"], "Or", ["shown", "x"]), either);
    assert_eq!(chosen(&["m"], "Not", ["shown", "hidden"])[1], "Affine");
    let told = |nodes: Vec<NodeProto>| with(nodes).expect_err("an error").to_string();
    let number = vec![
        node("Not", &["x"], &["c"]),
        node("Where", &["c", "x", "x"], &["y"]),
    ];
    assert!(told(number).contains("of a number as a condition"));
    let infinite = vec![node("Where", &["m", "x", "infinite"], &["y"])];
    assert!(told(infinite).contains("not all finite"));
    let floating = vec![node("Cast", &["mask"], &["y"]).int("to", 1)];
    assert!(told(floating).contains("between integers and floats"));
    let unlike = vec![
        node("And", &["m", "shown"], &["c"]),
        node("Where", &["c", "x", "x"], &["y"]),
    ];
    assert!(told(unlike).contains("input 1 is not a bool"));
}

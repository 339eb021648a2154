//! Attention, rotary positions and interpolation: what they become, and how wrong ones are refused. That their values
//! are right is for ONNX's own tests, that their gradients are for those of `scrimp-run`.

mod models;

use models::*;
use prost::Message;
use scrimp_graph::onnx::proto::{ModelProto, NodeProto, TensorProto};
use scrimp_graph::{Graph, Role, Unary};

/// Queries of four heads, keys and values of two; tables and masks.
fn with(node: NodeProto) -> ModelProto {
    let stored = vec![
        floats("k", &[2, 2, 3, 6], &[0.5; 72]),
        floats("v", &[2, 2, 3, 5], &[0.5; 60]),
        floats("flat", &[2, 3, 12], &[0.5; 72]),
        floats("cos", &[9, 3], &[0.5; 27]),
        floats("sin", &[9, 3], &[0.5; 27]),
        floats("wide", &[9, 4], &[0.5; 36]),
        floats("mask", &[3, 3], &[0.5; 9]),
        TensorProto {
            dims: vec![2, 3],
            ..ints("places", &[0, 1, 2, 0, 1, 2])
        },
        ints("two", &[2, 3]),
        ints("five", &[2, 5]),
        floats("scales", &[3], &[1.0, 2.0, 2.0]),
        floats("region", &[2], &[0.0, 1.0]),
    ];
    let x = value("x", &[Open("N"), Fixed(4), Fixed(3), Fixed(6)]);
    let mut file = model(vec![node], stored, vec![x], &["y"]);
    file.opset_import[0].version = 24;
    file
}

fn attention(inputs: &[&str]) -> NodeProto {
    node("Attention", &[&["x", "k", "v"], inputs].concat(), &["y"])
}

fn constants(graph: &Graph) -> usize {
    let all = graph.given();
    all.filter(|(_, tensor)| matches!(tensor.role, Role::Constant(_)))
        .count()
}

#[test]
fn attention_is_made_of_its_parts() {
    let graph = good(&with(
        attention(&[]).int("is_causal", 1).float("softcap", 2.0),
    ));
    let parts = [
        "Affine", "Reshape", "MatMul", "Reshape", "Affine", "Tanh", "Affine", "Add", "Softmax",
        "Reshape", "MatMul", "Reshape",
    ];
    assert_eq!(kinds(&graph), parts);
    assert_eq!(graph.tensor(graph.outputs()[0]).shape, [2, 4, 3, 5]);
    // A mask of more than one row that isn't all 0 or −∞ is a bias, which is trained.
    let graph = good(&with(attention(&["mask"])));
    assert!(matches!(role(&graph, "mask"), Role::Parameter(_)));
    assert_eq!(constants(&graph), 0);
    // All keys count: nothing is left of the mask.
    let graph = good(&with(
        attention(&["", "", "", "two"]).int("right_window_size", 2),
    ));
    assert_eq!(constants(&graph), 1);
    let all = with(attention(&[]).int("right_window_size", 2));
    assert_eq!(constants(&good(&all)), 0);
}

/// A sample of which no key counts.
#[test]
fn rows_that_are_masked_wholly_are_multiplied_by_zero() {
    let mut file = with(attention(&["", "", "", "two"]));
    let stored = &mut file.graph.as_mut().expect("a graph").initializer;
    let two = stored.iter_mut().find(|t| t.name == "two").expect("stored");
    *two = ints("two", &[0, 3]);
    let graph = good(&file);
    assert_eq!(kinds(&graph)[4..7], ["Add", "Softmax", "Mul"]);
    assert_eq!(constants(&graph), 2);
}

#[test]
fn tables_of_angles_are_not_trained() {
    let rotary = node("RotaryEmbedding", &["x", "cos", "sin", "places"], &["y"]);
    let graph = good(&with(rotary));
    for name in ["cos", "sin"] {
        assert!(matches!(role(&graph, name), Role::Constant(_)), "{name}");
    }
}

#[test]
fn skipped_outputs_keep_their_places() {
    let file = with(NodeProto {
        output: ["", "", "", "y"].map(str::to_owned).to_vec(),
        ..attention(&[]).int("qk_matmul_output_mode", 3)
    });
    let graph = good(&file);
    let softmax = graph.nodes().values().last().expect("an operator");
    assert_eq!(softmax.op.kind(), "Softmax");
    assert_eq!(graph.tensor(graph.outputs()[0]).shape, [2, 4, 3, 3]);
}

#[test]
fn attention_that_is_not_in_order() {
    let heads = |q: i64, kv: i64| {
        node("Attention", &["flat", "flat", "flat"], &["y"])
            .int("q_num_heads", q)
            .int("kv_num_heads", kv)
    };
    let cases = [
        (node("Attention", &["x", "k"], &["y"]), "input 2 is missing"),
        (
            node("Attention", &["flat", "flat", "flat"], &["y"]),
            "attribute q_num_heads is missing",
        ),
        (heads(5, 3), "no multiple of q_num_heads = 5"),
        (heads(0, 3), "its query has shape [2, 3, 12]"),
        (heads(-1, 3), "its query has shape [2, 3, 12]"),
        (heads(i64::MAX, 3), "its query has shape [2, 3, 12]"),
        (heads(4, 3), "have shapes"),
        (
            attention(&[]).int("q_num_heads", 3),
            "q_num_heads is 3, but its query",
        ),
        (
            node("Attention", &["two", "k", "v"], &["y"]),
            "three or four axes",
        ),
        (node("Attention", &["x", "v", "k"], &["y"]), "have shapes"),
        (attention(&["cos"]), "its mask has shape [9, 3]"),
        (
            attention(&["", "k"]),
            "it has 3 keys and 0 values of the past",
        ),
        (
            attention(&["", "k", "k"]),
            "of the past, has shape [2, 2, 3, 6]",
        ),
        (
            attention(&["", "flat", "flat"]),
            "of the past, has shape [2, 3, 12]",
        ),
        (
            attention(&["", "", "", "five"]),
            "nonpad_kv_seqlen is [2, 5] for 2 samples of 3 keys",
        ),
        (attention(&["", "", "", "mask"]), "must be integers"),
        (
            attention(&["", "k", "v", "two"]),
            "both a past and nonpad_kv_seqlen",
        ),
        (
            attention(&[]).int("left_window_size", -2),
            "left_window_size is -2",
        ),
        (attention(&[]).float("softcap", -1.0), "softcap is -1"),
        (attention(&[]).float("softcap", f32::NAN), "not a number"),
        (attention(&[]).float("scale", f32::INFINITY), "scale is inf"),
        (
            attention(&[]).int("qk_matmul_output_mode", 4),
            "qk_matmul_output_mode is 4",
        ),
    ];
    for (node, expected) in cases {
        let error = bad(&with(node));
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains("Attention"), "{error}");
    }
    let shown = with(NodeProto {
        output: ["", "", "", "y"].map(str::to_owned).to_vec(),
        ..attention(&[]).int("qk_matmul_output_mode", 1)
    });
    assert!(bad(&shown).contains("releases of ONNX read differently"));
}

#[test]
fn rotations_that_are_not_in_order() {
    let rotary = |inputs: &[&str]| node("RotaryEmbedding", inputs, &["y"]);
    let whole = || rotary(&["x", "cos", "sin", "places"]);
    let cases = [
        (rotary(&["x", "cos", "", "places"]), "input 2 is missing"),
        (rotary(&["two", "cos", "sin"]), "three or four axes"),
        (rotary(&["flat", "cos", "sin", "places"]), "num_heads is 0"),
        (
            rotary(&["flat", "cos", "sin"]).int("num_heads", 5),
            "num_heads is 5",
        ),
        (whole().int("num_heads", -1), "num_heads is -1"),
        (whole().int("rotary_embedding_dim", 5), "5 of 6 features"),
        (whole().int("rotary_embedding_dim", 8), "8 of 6 features"),
        (
            whole().int("rotary_embedding_dim", i64::MIN),
            "rotary_embedding_dim is",
        ),
        (
            rotary(&["x", "wide", "sin", "places"]),
            "its angles have shape [2, 3, 4]",
        ),
        (rotary(&["x", "cos", "sin"]), "its angles have shape [9, 3]"),
        (rotary(&["x", "flat", "sin", "places"]), "not two axes"),
    ];
    for (node, expected) in cases {
        let error = bad(&with(node));
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn resizes_that_are_not_in_order() {
    let linear = |inputs: &[&str]| node("Resize", inputs, &["y"]).text("mode", "linear");
    let crop = |inputs: &[&str]| {
        linear(inputs).text("coordinate_transformation_mode", "tf_crop_and_resize")
    };
    let cases = [
        (linear(&["x", "", "scales"]), "3 scales for 4 axes"),
        (linear(&["x"]), "input 3 is missing"),
        (
            crop(&["x", "", "scales"]).ints("axes", &[1, 2, 3]),
            "input 1 is missing",
        ),
        (
            crop(&["x", "region", "scales"]).ints("axes", &[1, 2, 3]),
            "for each of 3 axes",
        ),
        (
            linear(&["x", "", "scales"]).ints("axes", &[1, 2, 7]),
            "axis 7",
        ),
        (
            linear(&["x", "", "", "two"])
                .ints("axes", &[2, 3])
                .text("keep_aspect_ratio_policy", "?"),
            "keep_aspect_ratio_policy",
        ),
        (
            linear(&["x", "", "scales"])
                .ints("axes", &[1, 2, 3])
                .text("coordinate_transformation_mode", "?"),
            "coordinate_transformation_mode",
        ),
    ];
    for (node, expected) in cases {
        let error = bad(&with(node));
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// The body of the fuzz target `onnx` for these operators, for about a second.
#[test]
fn mutated_files_do_not_panic() {
    let files = [
        attention(&["mask", "", "", "two"]).int("is_causal", 1),
        node("Attention", &["flat", "flat", "flat", "", "k", "k"], &["y"])
            .int("q_num_heads", 2)
            .int("kv_num_heads", 2),
        node("RotaryEmbedding", &["x", "cos", "sin", "places"], &["y"]).int("interleaved", 1),
        node("Resize", &["x", "", "scales"], &["y"])
            .ints("axes", &[1, 2, 3])
            .int("antialias", 1)
            .text("mode", "cubic"),
    ];
    let mut state = 7u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for file in files {
        let bytes = with(file).encode_to_vec();
        for _ in 0..1500 {
            let mut mutated = bytes.clone();
            for _ in 0..1 + random() % 3 {
                // The node stands before the initializers.
                let at = random() % mutated.len().min(200);
                match random() % 2 {
                    0 => mutated[at] = random() as u8,
                    _ => mutated[at] ^= 1 << (random() % 8),
                }
            }
            let _ = scrimp_graph::onnx::import_bytes(mutated, "test", &options(2));
        }
    }
}

/// What is left of a scale of one.
#[test]
fn scales_are_part_of_the_queries() {
    let graph = good(&with(attention(&[]).float("scale", 0.25)));
    let scaled = graph.nodes().values().any(|node| {
        matches!(node.op, scrimp_graph::Op::Unary(Unary::Affine { scale, .. }) if scale == 0.25)
    });
    assert!(scaled);
}

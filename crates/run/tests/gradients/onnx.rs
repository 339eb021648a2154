//! Operators of ONNX that are imported as several of the graph's.

#[path = "../../../graph/tests/models/mod.rs"]
mod models;

use super::check_loss;
use models::*;
use scrimp_graph::onnx::import_bytes;
use scrimp_graph::onnx::proto::{NodeProto, TensorProto, ValueInfoProto, data_type};
use scrimp_graph::{Graph, Loss};
use scrimp_run::{Compiled, Cpu, Data, Processor, interpret};
use std::collections::BTreeMap;

use prost::Message;

/// A parameter of numbers between −1 and 1.
fn weights(name: &str, shape: &[i64]) -> TensorProto {
    let count = shape.iter().product::<i64>();
    let number = |i: i64| ((i * 37 + name.len() as i64 * 11) % 41) as f32 / 20.0 - 1.0;
    let values: Vec<f32> = (0..count).map(number).collect();
    floats(name, shape, &values)
}

/// Gradients of the weighted sum of what the node puts out, "y", of this shape.
#[track_caller]
fn check(
    node_: NodeProto,
    shape: &[i64],
    stored: Vec<TensorProto>,
    given: Vec<ValueInfoProto>,
    ints: &[(&str, &[i64])],
) {
    check_all(vec![node_], shape, stored, given, ints);
}

/// The same of several nodes.
#[track_caller]
fn check_all(
    mut nodes: Vec<NodeProto>,
    shape: &[i64],
    mut stored: Vec<TensorProto>,
    given: Vec<ValueInfoProto>,
    ints: &[(&str, &[i64])],
) {
    stored.push(weights("each", shape));
    nodes.extend([
        node("Mul", &["y", "each"], &["z"]),
        node("ReduceSum", &["z"], &["loss"]).int("keepdims", 0),
    ]);
    let bytes = model(nodes, stored, given, &["loss"]).encode_to_vec();
    let graph = import_bytes(bytes, "test", &options(2)).expect("a graph");
    check_loss(Ok(graph), Loss::Output, ints);
}

/// What a graph's first output is for these words.
fn computed(graph: &Graph, words: &[(&str, &[i64])]) -> Vec<f64> {
    let cpu = Cpu::new(1).expect("threads start");
    let compiled = Compiled::new(graph, Processor::Cpu(&cpu));
    let given = words.iter().map(|&(name, words)| {
        let input = graph.find(name).expect("an input");
        (input, Data::I64(words))
    });
    let tensors = interpret(&compiled, &given.collect::<Vec<_>>(), 0).expect("it computes");
    tensors.floats(graph, graph.outputs()[0])
}

fn bools(name: &str, dims: &[Dim]) -> ValueInfoProto {
    value_of(name, dims, data_type::BOOL)
}

fn value_of(name: &str, dims: &[Dim], elements: i32) -> ValueInfoProto {
    let mut value = value(name, dims);
    let tensor = value.r#type.as_mut().and_then(|t| t.tensor_type.as_mut());
    tensor.expect("a tensor").elem_type = elements;
    value
}

#[test]
fn attention_of_grouped_queries() {
    let stored = vec![
        weights("q", &[2, 3, 8]),
        weights("k", &[2, 5, 4]),
        weights("v", &[2, 5, 6]),
        weights("past.k", &[2, 2, 2, 2]),
        weights("past.v", &[2, 2, 2, 3]),
    ];
    let attention = node(
        "Attention",
        &["q", "k", "v", "", "past.k", "past.v"],
        &["y"],
    )
    .int("q_num_heads", 4)
    .int("kv_num_heads", 2)
    .int("is_causal", 1)
    .float("softcap", 1.5);
    check(attention, &[2, 3, 12], stored, vec![], &[]);
}

/// A bias is trained; a mask that is an input may leave nothing of a row, which then is 0 and has no gradient.
#[test]
fn attention_under_masks() {
    let stored = || {
        vec![
            weights("q", &[2, 2, 3, 4]),
            weights("k", &[2, 2, 3, 4]),
            weights("v", &[2, 2, 3, 5]),
        ]
    };
    let attention = || node("Attention", &["q", "k", "v", "mask"], &["y"]).float("scale", 0.7);
    let mut biased = stored();
    biased.push(weights("mask", &[2, 3, 3]));
    check(attention(), &[2, 2, 3, 5], biased, vec![], &[]);
    let mask = bools("mask", &[Fixed(2), Fixed(1), Fixed(3), Fixed(3)]);
    let seen = [(
        "mask",
        &[1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0][..],
    )];
    check(attention(), &[2, 2, 3, 5], stored(), vec![mask], &seen);
}

#[test]
fn rotated_positions() {
    for neighbours in [0, 1] {
        let stored = vec![
            weights("x", &[2, 3, 12]),
            weights("cos", &[7, 2]),
            weights("sin", &[7, 2]),
            TensorProto {
                dims: vec![2, 3],
                ..ints("places", &[0, 1, 2, 4, 5, 6])
            },
        ];
        let rotary = node("RotaryEmbedding", &["x", "cos", "sin", "places"], &["y"])
            .int("num_heads", 2)
            .int("rotary_embedding_dim", 4)
            .int("interleaved", neighbours);
        check(rotary, &[2, 3, 12], stored, vec![], &[]);
    }
}

/// Interpolation along every axis, not only the last two, and of a part of the image.
#[test]
fn resized_images() {
    let stored = |more: [TensorProto; 2]| {
        let mut stored = vec![weights("x", &[2, 3, 6, 5])];
        stored.extend(more);
        stored
    };
    let with = |mode: &str, node_: NodeProto| node_.text("mode", mode);
    let scales = [
        floats("none", &[0], &[]),
        floats("scales", &[4], &[1.0, 1.4, 0.5, 0.7]),
    ];
    let resize = || node("Resize", &["x", "none", "scales"], &["y"]);
    let cubic = with("cubic", resize().int("antialias", 1));
    check(cubic, &[2, 4, 3, 3], stored(scales.clone()), vec![], &[]);
    check(
        with("linear", resize()),
        &[2, 4, 3, 3],
        stored(scales),
        vec![],
        &[],
    );
    let region = [0.0, 0.0, 0.25, -0.5, 1.0, 1.0, 0.75, 1.5];
    let region = [
        floats("region", &[8], &region),
        ints("sizes", &[2, 3, 4, 4]),
    ];
    let crop = node("Resize", &["x", "region", "", "sizes"], &["y"])
        .float("extrapolation_value", 3.0)
        .text("coordinate_transformation_mode", "tf_crop_and_resize");
    check(
        with("linear", crop),
        &[2, 3, 4, 4],
        stored(region),
        vec![],
        &[],
    );
}

#[test]
fn elements_and_rows_by_known_indices() {
    let indices = |dims: &[i64], values: &[i64]| TensorProto {
        dims: dims.into(),
        ..ints("i", values)
    };
    let stored = vec![
        weights("x", &[3, 4]),
        indices(&[2, 3], &[3, 0, 0, -1, 2, 3]),
    ];
    let gather = node("GatherElements", &["x", "i"], &["y"]).int("axis", 1);
    check(gather, &[2, 3], stored, vec![], &[]);
    // The last of two updates of a place counts.
    let stored = vec![
        weights("x", &[3, 2, 2]),
        indices(&[3, 2], &[2, 1, 0, 0, 2, 1]),
        weights("new", &[3, 2]),
    ];
    let scatter = node("ScatterND", &["x", "i", "new"], &["y"]);
    check(scatter, &[3, 2, 2], stored, vec![], &[]);
}

/// A row of zeros has no slope, and must not spoil what it comes from.
#[test]
fn lengths_of_rows() {
    let rows = [1.0, -0.5, 0.0, 0.0, 0.0, 0.0, 2.0, 1.0, 0.5];
    let stored = vec![floats("x", &[3, 3], &rows)];
    let length = node("ReduceL2", &["x"], &["y"]).ints("axes", &[1]);
    check(length, &[3, 1], stored, vec![], &[]);
}

/// Scores under a mask that is an input; the last row of it leaves nothing.
#[test]
fn guarded_softmax() {
    let nodes = vec![
        node("Where", &["mask", "zero", "hidden"], &["bias"]),
        node("Add", &["x", "bias"], &["s"]),
        node("Softmax", &["s"], &["p"]).int("axis", -1),
        node("IsNaN", &["p"], &["nan"]),
        node("Where", &["nan", "zero", "p"], &["y"]),
    ];
    let stored = vec![
        weights("x", &[2, 2, 3]),
        floats("zero", &[], &[0.0]),
        floats("hidden", &[], &[f32::NEG_INFINITY]),
    ];
    let mask = bools("mask", &[Fixed(2), Fixed(1), Fixed(3)]);
    let seen = [("mask", &[1, 0, 1, 0, 0, 0][..])];
    check_all(nodes, &[2, 2, 3], stored, vec![mask], &seen);
}

/// A softplus that PyTorch's exporter writes with the threshold from which it is a line.
#[test]
fn softplus_with_a_threshold() {
    let nodes = |threshold: &str, result: &str| {
        vec![
            node("Mul", &["x", "wide"], &["w"]),
            node("Greater", &["w", threshold], &["above"]),
            node("Softplus", &["w"], &["soft"]),
            node("Where", &["above", "w", "soft"], &[result]),
        ]
    };
    let stored = || {
        vec![
            weights("x", &[2, 5]),
            floats("wide", &[], &[30.0]),
            floats("twenty", &[], &[20.0]),
            floats("two", &[], &[2.0]),
        ]
    };
    check_all(nodes("twenty", "y"), &[2, 5], stored(), vec![], &[]);
    let bytes = |threshold| model(nodes(threshold, "y"), stored(), vec![], &["y"]).encode_to_vec();
    let graph = import_bytes(bytes("twenty"), "test", &options(2)).expect("a graph");
    let cpu = Cpu::new(1).expect("threads start");
    let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
    let tensors = interpret(&compiled, &[], 0).expect("it computes");
    let found = tensors.floats(&graph, graph.outputs()[0]);
    let mut above = 0;
    for (found, x) in found.iter().zip(&stored()[0].float_data) {
        let x = 30.0 * f64::from(*x);
        let wanted = if x > 20.0 { x } else { x.exp().ln_1p() };
        assert!((found - wanted).abs() < 1e-5, "{found}, {wanted}");
        above += usize::from(x > 20.0);
    }
    assert!(above > 0 && above < 10, "{above}");
    // Between 2 and 17 a softplus isn't yet the line.
    let error = import_bytes(bytes("two"), "test", &options(2)).expect_err("a step");
    assert!(error.to_string().contains("Greater"), "{error}");
}

/// An equation, the shapes of its operands and that of its result.
type Equation = (&'static str, &'static [&'static [i64]], &'static [i64]);

const EINSUMS: [Equation; 12] = [
    ("ij,jk->ik", &[&[3, 4], &[4, 5]], &[3, 5]),
    ("ij, kj", &[&[3, 4], &[5, 4]], &[3, 5]),
    (
        "bhwc,hkc->bhwk",
        &[&[2, 3, 4, 5], &[3, 6, 5]],
        &[2, 3, 4, 6],
    ),
    (
        "bnqd,bnkd->bnqk",
        &[&[2, 3, 4, 5], &[2, 3, 6, 5]],
        &[2, 3, 4, 6],
    ),
    (
        "bqnd,bknd->bnqk",
        &[&[2, 4, 3, 5], &[2, 6, 3, 5]],
        &[2, 3, 4, 6],
    ),
    (
        "...ij,...jk->...ik",
        &[&[2, 3, 4, 5], &[1, 5, 6]],
        &[2, 3, 4, 6],
    ),
    ("i,j->ij", &[&[3], &[4]], &[3, 4]),
    ("i,i", &[&[5], &[5]], &[]),
    ("bi,bi->b", &[&[3, 4], &[3, 4]], &[3]),
    ("ijk->ki", &[&[2, 3, 4]], &[4, 2]),
    ("ba,cb,dc->ad", &[&[3, 2], &[4, 3], &[5, 4]], &[2, 5]),
    ("aij,bk->kb", &[&[2, 3, 4], &[5, 6]], &[6, 5]),
];

#[test]
fn sums_in_einsteins_notation() {
    for (equation, shapes, result) in EINSUMS {
        let names: Vec<String> = (0..shapes.len()).map(|i| "abc"[..=i].into()).collect();
        let stored: Vec<TensorProto> = names
            .iter()
            .zip(shapes)
            .map(|(name, shape)| weights(name, shape))
            .collect();
        let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
        let einsum = || node("Einsum", &inputs, &["y"]).text("equation", equation);
        let bytes = model(vec![einsum()], stored.clone(), vec![], &["y"]).encode_to_vec();
        let graph = import_bytes(bytes, "test", &options(2)).expect("a graph");
        let y = graph.outputs()[0];
        let dims: Vec<i64> = graph.tensor(y).shape.iter().map(|&n| n as i64).collect();
        assert_eq!(dims, result, "{equation}");
        let (found, wanted) = (computed(&graph, &[]), summed(equation, &stored, result));
        assert_eq!(found.len(), wanted.len(), "{equation}");
        for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let off = (found - f64::from(wanted)).abs();
            assert!(off < 1e-5, "{equation}, {i}: {found}, {wanted}");
        }
        check(einsum(), result, stored, vec![], &[]);
    }
}

/// The numbers of the result of an equation, by a loop over all axes of all operands.
fn summed(equation: &str, operands: &[TensorProto], result: &[i64]) -> Vec<f32> {
    // Dots stand for the last axes of `UVW`.
    let spelled = |part: &str, rank: usize| -> Vec<char> {
        let letters = part.chars().filter(|&c| c != '.').count();
        let dots = "UVW"
            .chars()
            .skip(3 - rank.saturating_sub(letters).min(3))
            .collect::<String>();
        part.replace("...", &dots).chars().collect()
    };
    let equation = equation.replace(' ', "");
    let (left, right) = equation.split_once("->").unwrap_or((
        &equation,
        match equation.as_str() {
            "ij,kj" => "ik",
            _ => "",
        },
    ));
    let axes: Vec<Vec<char>> = left
        .split(',')
        .zip(operands)
        .map(|(part, operand)| spelled(part, operand.dims.len()))
        .collect();
    let to = spelled(right, result.len());
    let mut lengths: BTreeMap<char, i64> = BTreeMap::new();
    for (axes, operand) in axes.iter().zip(operands) {
        for (&axis, &length) in axes.iter().zip(&operand.dims) {
            let known = lengths.entry(axis).or_insert(1);
            *known = length.max(*known);
        }
    }
    let at = |axes: &[char], dims: &[i64], places: &BTreeMap<char, i64>| {
        let each = axes.iter().zip(dims);
        each.fold(0, |at, (axis, &length)| {
            at * length + places[axis].min(length - 1)
        }) as usize
    };
    let mut sums = vec![0.0; result.iter().product::<i64>() as usize];
    for mut cell in 0..lengths.values().product::<i64>() {
        let places: BTreeMap<char, i64> = lengths
            .iter()
            .map(|(&axis, &length)| {
                let place = cell % length;
                cell /= length;
                (axis, place)
            })
            .collect();
        let factors = axes.iter().zip(operands);
        let factors =
            factors.map(|(axes, operand)| operand.float_data[at(axes, &operand.dims, &places)]);
        sums[at(&to, result, &places)] += factors.product::<f32>();
    }
    sums
}

#[test]
fn what_einstein_would_not_write_is_refused() {
    for (equation, why) in [
        ("ii->i", "twice"),
        ("i->i", "2 axes"),
        ("ij,jk->ik", "2 operands"),
        ("ij->k", "no operand"),
        ("i1->i", "no part"),
    ] {
        let einsum = node("Einsum", &["a"], &["y"]).text("equation", equation);
        let stored = vec![weights("a", &[3, 3])];
        let bytes = model(vec![einsum], stored, vec![], &["y"]).encode_to_vec();
        let error = import_bytes(bytes, "test", &options(2))
            .expect_err(equation)
            .to_string();
        assert!(error.contains(why), "{equation}: {error}");
    }
}

/// Positions that skip padding, as RoBERTa counts them: words are an input, and the table of positions is trained.
#[test]
fn positions_that_skip_padding() {
    let nodes = |result: &str| {
        vec![
            node("Equal", &["words", "padding"], &["is.padding"]),
            node("Not", &["is.padding"], &["is.word"]),
            node("Cast", &["is.word"], &["counts"]).int("to", i64::from(data_type::INT32)),
            node("CumSum", &["counts", "axis"], &["so.far"]),
            node("Mul", &["so.far", "counts"], &["places"]),
            node("Cast", &["places"], &["long"]).int("to", i64::from(data_type::INT64)),
            node("Add", &["long", "padding"], &["positions"]),
            node("GatherElements", &["kinds", "positions"], &["kind"]).int("axis", 1),
            node("Gather", &["by.kind", "kind"], &["k"]),
            node("Gather", &["by.word", "words"], &["w"]),
            node("Gather", &["by.position", "positions"], &["p"]),
            node("Add", &["w", "p"], &["both"]),
            node("Add", &["both", "k"], &[result]),
        ]
    };
    let stored = |positions: i64| {
        vec![
            ints("padding", &[1]),
            ints("axis", &[1]),
            TensorProto {
                dims: vec![1, 6],
                ..ints("kinds", &[0; 6])
            },
            weights("by.kind", &[2, 3]),
            weights("by.word", &[7, 3]),
            weights("by.position", &[positions, 3]),
        ]
    };
    let words = || value_of("words", &[Fixed(1), Fixed(4)], data_type::INT64);
    let given = [5, 1, 3, 1];
    let bytes = model(nodes("y"), stored(6), vec![words()], &["y"]).encode_to_vec();
    let graph = import_bytes(bytes, "test", &options(1)).expect("a graph");
    let found = computed(&graph, &[("words", &given)]);
    let tables = stored(6);
    let row = |table: usize, row: usize| &tables[table].float_data[3 * row..3 * row + 3];
    let mut wanted = Vec::new();
    for (word, position) in given.into_iter().zip([2, 1, 3, 1]) {
        let (w, p, k) = (row(4, word as usize), row(5, position), row(3, 0));
        wanted.extend((0..3).map(|i| f64::from(w[i] + p[i] + k[i])));
    }
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!((found - wanted).abs() < 1e-6, "{found}, {wanted}");
    }
    assert_eq!(found.len(), wanted.len());
    let two = [given, [1, 1, 6, 0]].concat();
    let seen = [("words", &two[..])];
    check_all(nodes("y"), &[2, 4, 3], stored(6), vec![words()], &seen);
    // Four words may be at position 5.
    let bytes = model(nodes("y"), stored(5), vec![words()], &["y"]).encode_to_vec();
    let error = import_bytes(bytes, "test", &options(1)).expect_err("too few rows");
    assert!(
        error.to_string().contains("from 1 to 5, of 5 rows"),
        "{error}"
    );
}

/// Words that a decoder reads: those of an encoder, shifted by one place, as BART makes them. None of them is a label's padding.
#[test]
fn words_shifted_by_one_place() {
    let shift = vec![
        node("Slice", &["words", "zero", "last", "axis"], &["sooner"]),
        node("Concat", &["any", "sooner"], &["later"]).int("axis", 1),
        node(
            "ScatterElements",
            &["later", "first", "start"],
            &["shifted"],
        )
        .int("axis", 1),
        node("Equal", &["shifted", "label"], &["is.label"]),
        node("Where", &["is.label", "axis", "shifted"], &["known"]),
        node("Gather", &["by.shifted", "known"], &["s"]),
    ];
    let both = vec![
        node("Gather", &["by.word", "words"], &["w"]),
        node("Add", &["w", "s"], &["y"]),
    ];
    let one = |name, word| TensorProto {
        dims: vec![1, 1],
        ..ints(name, &[word])
    };
    let stored = || {
        vec![
            ints("zero", &[0]),
            ints("last", &[-1]),
            ints("axis", &[1]),
            ints("label", &[-100]),
            one("any", 0),
            one("first", 0),
            one("start", 2),
            weights("by.word", &[7, 3]),
            weights("by.shifted", &[7, 3]),
        ]
    };
    let words = || value_of("words", &[Fixed(1), Fixed(4)], data_type::INT64);
    let imported = |nodes: Vec<NodeProto>, y: &str, batch| {
        let bytes = model(nodes, stored(), vec![words()], &[y]).encode_to_vec();
        import_bytes(bytes, "test", &options(batch))
    };
    let whole = [shift.clone(), both].concat();
    let graph = imported(whole, "y", 1).expect("a graph");
    let given = [5, 1, 3, 1];
    let found = computed(&graph, &[("words", &given)]);
    let tables = stored();
    let row = |table: usize, row: usize| &tables[table].float_data[3 * row..3 * row + 3];
    let pairs = given.into_iter().zip([2, 5, 1, 3]);
    let wanted = pairs.flat_map(|(word, before)| {
        let (w, s) = (row(7, word as usize), row(8, before));
        [0, 1, 2].map(|i| f64::from(w[i] + s[i]))
    });
    let wanted: Vec<f64> = wanted.collect();
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!((found - wanted).abs() < 1e-6, "{found}, {wanted}");
    }
    let never = vec![
        node("Equal", &["words", "label"], &["is.label"]),
        node("Not", &["is.label"], &["is.word"]),
        node("Cast", &["is.word"], &["counts"]).int("to", i64::from(data_type::FLOAT)),
        node("Gather", &["by.word", "words"], &["w"]),
        node("ReduceSum", &["w"], &["all"]).int("keepdims", 0),
        node("Mul", &["counts", "all"], &["y"]),
    ];
    let graph = imported(never, "y", 1).expect("a graph");
    let all: f32 = given.iter().flat_map(|&word| row(7, word as usize)).sum();
    for found in computed(&graph, &[("words", &given)]) {
        assert!((found - f64::from(all)).abs() < 1e-5, "{found}, {all}");
    }
    // Without a table of which the words are indices, they may be anything.
    let error = imported(shift, "s", 1).expect_err("any words").to_string();
    assert!(error.contains("no indices of a table"), "{error}");
    let first = vec![
        node(
            "ScatterElements",
            &["words", "first", "start"],
            &["shifted"],
        )
        .int("axis", 1),
        node("Gather", &["by.shifted", "shifted"], &["s"]),
    ];
    let error = imported(first, "s", 2).expect_err("two").to_string();
    assert!(error.contains("another batch size"), "{error}");
}

#[test]
fn elements_replaced_at_known_places() {
    let places = TensorProto {
        dims: vec![2, 2],
        ..ints("i", &[0, 3, 1, -4])
    };
    let stored = || vec![weights("a", &[3, 4]), places.clone(), weights("b", &[2, 2])];
    let scatter = || node("ScatterElements", &["a", "i", "b"], &["y"]).int("axis", 1);
    let bytes = model(vec![scatter()], stored(), vec![], &["y"]).encode_to_vec();
    let graph = import_bytes(bytes, "test", &options(2)).expect("a graph");
    let mut wanted = stored()[0].float_data.clone();
    for (place, new) in [0, 3, 5, 4].into_iter().zip(&stored()[2].float_data) {
        wanted[place] = *new;
    }
    let wanted: Vec<f64> = wanted.into_iter().map(f64::from).collect();
    assert_eq!(computed(&graph, &[]), wanted);
    check(scatter(), &[3, 4], stored(), vec![], &[]);
}

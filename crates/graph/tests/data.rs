//! Samples are read, checked against the graph and put into batches in a reproducible order.

use scrimp_graph::data::{Array, Arrays, Contents, DataError, Feed, Rows};
use scrimp_graph::networks::{NetworkOptions, build};
use scrimp_graph::{Binary, DType, Graph, GraphBuilder, Init, Loss, train};
use std::path::{Path, PathBuf};

fn digits_file() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../testdata/digits.npz")
}

fn training(name: &str, options: NetworkOptions) -> Graph {
    let graph = build(name, &options).expect("a built-in network");
    train(&graph, Loss::CrossEntropy, None)
        .expect("it has a gradient")
        .graph
}

fn digits(batch: usize) -> Graph {
    training(
        "digits",
        NetworkOptions {
            batch,
            ..Default::default()
        },
    )
}

fn array(shape: &[usize], contents: Contents) -> Array {
    Array {
        shape: shape.to_vec(),
        contents,
    }
}

fn arrays(arrays: Vec<(&str, Array)>) -> Arrays {
    let named = arrays.into_iter().map(|(name, array)| (name.into(), array));
    Arrays(named.collect())
}

/// Samples that carry their own number.
fn numbered(count: usize) -> Arrays {
    let x = Contents::Floats((0..count * 64).map(|i| (i / 64) as f32).collect());
    let y = Contents::Ints((0..count).map(|i| (i % 10) as i64).collect());
    arrays(vec![
        ("x", array(&[count, 1, 8, 8], x)),
        ("y", array(&[count], y)),
    ])
}

fn shuffled(batch: usize, count: usize, seed: u64) -> Feed {
    let rows = Rows::new(&digits(batch), numbered(count), 0).expect("they fit");
    Feed::shuffled(rows, seed)
}

fn rows(feed: &Feed, step: u64) -> Vec<usize> {
    let filled = feed.step(step);
    let Contents::Floats(x) = &filled[0].1 else {
        panic!("x is not float");
    };
    x.iter().step_by(64).map(|&v| v as usize).collect()
}

#[test]
fn the_digits() {
    let all = Arrays::read(&digits_file(), u64::MAX).expect("the project's own data");
    let (train, test) = all.split();
    let test = test.expect("a test set");
    let named = |arrays: &Arrays, wanted| {
        let mut arrays = arrays.0.iter();
        arrays
            .find(|(name, _)| name == wanted)
            .map(|(_, array)| array.clone())
    };
    let (x, y) = (named(&train, "x").unwrap(), named(&train, "y").unwrap());
    assert_eq!((x.shape, y.shape), (vec![1437, 1, 8, 8], vec![1437]));
    assert_eq!(named(&test, "x").unwrap().shape, [360, 1, 8, 8]);
    assert_eq!((train.0.len(), test.0.len()), (2, 2));
    let (Contents::Ints(x), Contents::Ints(y)) = (x.contents, y.contents) else {
        panic!("stored as integers");
    };
    assert!(x.iter().all(|v| (0..=16).contains(v)));
    assert!((0..10).all(|digit| y.iter().filter(|&&v| v == digit).count() > 120));
}

#[test]
fn only_a_second_array_is_for_testing() {
    let one = |name| (name, array(&[1], Contents::Ints(vec![1])));
    let (train, test) = arrays(vec![one("a"), one("a_test"), one("b_test")]).split();
    assert_eq!(train, arrays(vec![one("a"), one("b_test")]));
    assert_eq!(test, Some(arrays(vec![one("a")])));
    assert_eq!(train.split().1, None);
}

#[test]
fn every_epoch_has_every_sample_once() {
    let feed = shuffled(4, 10, 3);
    let all: Vec<usize> = (0..5).flat_map(|step| rows(&feed, step)).collect();
    let epochs: Vec<Vec<usize>> = all.chunks(10).map(<[usize]>::to_vec).collect();
    for epoch in &epochs {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
    }
    assert_ne!(epochs[0], epochs[1]);
    let again = shuffled(4, 10, 3);
    assert_eq!(
        again.step(4),
        feed.step(4),
        "a step depends on the seed and its number only"
    );
    let other = shuffled(4, 10, 4);
    assert_ne!(other.step(0), feed.step(0));
}

#[test]
fn labels_follow_their_samples() {
    let feed = shuffled(4, 10, 3);
    for step in 0..5 {
        let expected = rows(&feed, step)
            .iter()
            .map(|&row| row as i64 % 10)
            .collect();
        assert_eq!(feed.step(step)[1].1, Contents::Ints(expected));
    }
}

#[test]
fn batches_larger_than_the_data_and_test_batches() {
    let feed = shuffled(8, 3, 0);
    assert_eq!(rows(&feed, 0).len(), 8);
    let test = Rows::new(&digits(4), numbered(10), 0).unwrap();
    let valid: Vec<usize> = (0..12)
        .step_by(4)
        .map_while(|i| Some(test.from(i)?.1))
        .collect();
    assert_eq!(valid, [4, 4, 2]);
    assert!(test.from(10).is_none());
}

#[test]
fn data_that_do_not_fit() {
    let graph = digits(4);
    let refused = |which: &str, new: Array| {
        let mut arrays = numbered(10);
        let mut found = arrays.0.iter_mut();
        found.find(|(name, _)| name == which).unwrap().1 = new;
        Rows::new(&graph, arrays, 0).unwrap_err()
    };
    let wide = array(&[10, 64], Contents::Ints(vec![0; 640]));
    assert!(matches!(refused("x", wide), DataError::Rows { array, .. } if array == "x"));
    let label = array(&[10], Contents::Ints(vec![10; 10]));
    assert!(matches!(
        refused("y", label),
        DataError::Range {
            array,
            found: 10,
            last: 9,
            ..
        } if array == "y"
    ));
    let floats = array(&[10], Contents::Floats(vec![1.0; 10]));
    assert!(matches!(
        refused("y", floats),
        DataError::Type { array, .. } if array == "y"
    ));
    let more = array(&[12], Contents::Ints(vec![1; 12]));
    assert!(matches!(refused("y", more), DataError::Counts { .. }));
    // As many as a batch has, while there are other numbers of labels.
    let batch = array(&[4, 1, 8, 8], Contents::Ints(vec![1; 256]));
    assert!(matches!(refused("x", batch), DataError::Counts { .. }));
    let mut unlabelled = numbered(10);
    unlabelled.0.retain(|(name, _)| name == "x");
    let told = Rows::new(&graph, unlabelled, 0).unwrap_err().to_string();
    assert!(
        told.contains("labels like an input of the graph or y; the arrays are x"),
        "{told}"
    );
}

/// Two inputs and a classifier's labels.
#[test]
fn several_inputs_to_train_with() {
    let mut b = GraphBuilder::new("two inputs");
    let left = b.input("left", &[2, 3], DType::F32).unwrap();
    let right = b.input("right", &[2, 3], DType::F32).unwrap();
    let weight = b.parameter("weight", &[2, 3], Init::Constant(1.0)).unwrap();
    let product = b.binary("product", Binary::Mul, left, right).unwrap();
    let y = b.binary("scores", Binary::Mul, product, weight).unwrap();
    b.output(y);
    let graph = b.finish().unwrap();
    let graph = train(&graph, Loss::CrossEntropy, None).unwrap().graph;
    let ints = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        array(
            shape,
            Contents::Ints((0..count as i64).map(|i| i % 3).collect()),
        )
    };
    let whole = |name| {
        vec![
            ("left", ints(&[5, 3])),
            ("right", ints(&[5, 3])),
            (name, ints(&[5])),
        ]
    };
    for name in ["labels", "y"] {
        let feed = Feed::shuffled(Rows::new(&graph, arrays(whole(name)), 0).unwrap(), 1);
        assert_eq!((feed.batch(), feed.step(0).len()), (2, 3));
    }
    let told = Rows::new(&graph, arrays(whole("x")), 0)
        .unwrap_err()
        .to_string();
    assert!(told.contains("named labels"), "{told}");
    let x = arrays(vec![("x", ints(&[5, 3])), ("y", ints(&[5]))]);
    let told = Rows::new(&graph, x, 0).unwrap_err().to_string();
    assert!(told.contains("no array is named left"), "{told}");
}

#[test]
fn rows_stream_through_batches() {
    let mut b = GraphBuilder::new("two inputs");
    let x = b.input("x", &[2, 3], DType::F32).unwrap();
    let scale = b.input("scale", &[2, 3], DType::F32).unwrap();
    let y = b.binary("y", Binary::Mul, x, scale).unwrap();
    b.output(y);
    let graph = b.finish().unwrap();
    let counting = |shape: &[usize]| {
        let count = shape.iter().product::<usize>() as i64;
        array(shape, Contents::Ints((0..count).collect()))
    };
    let rows = |named: &[(&'static str, &[usize])]| {
        let named = named.iter().map(|(name, shape)| (*name, counting(shape)));
        Rows::new(&graph, arrays(named.collect()), 0)
    };
    // Five samples; the scale is the same in every batch.
    let five = rows(&[("x", &[5, 3]), ("scale", &[2, 3])]).unwrap();
    assert_eq!((five.count(), five.batch()), (5, 2));
    let (last, count) = five.from(4).unwrap();
    assert_eq!(count, 1);
    let filled = Contents::Floats(vec![12.0, 13.0, 14.0, 12.0, 13.0, 14.0]);
    let whole = Contents::Floats((0u8..6).map(f32::from).collect());
    assert_eq!(last, [(x, filled), (scale, whole)]);
    assert!(five.from(5).is_none());
    for (arrays, told) in [
        (
            &[("x", &[5, 3][..]), ("scale", &[4, 3])][..],
            "has 4 samples",
        ),
        (&[("x", &[5, 4]), ("scale", &[2, 3])], "counts samples"),
        (&[("x", &[5, 3]), ("y", &[5, 3])], "no array is named scale"),
        (
            &[("x", &[5, 3]), ("scale", &[5, 3]), ("y", &[5, 3])],
            "array y",
        ),
        (&[("x", &[0, 3]), ("scale", &[0, 3])], "no samples"),
    ] {
        let error = rows(arrays).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn tokens_and_their_labels() {
    let options = NetworkOptions {
        batch: 2,
        layers: Some(1),
        width: Some(8),
        heads: Some(2),
        sequence: Some(4),
        vocabulary: Some(11),
        ..Default::default()
    };
    let graph = training("transformer", options);
    let ints = |first: i64| Contents::Ints((first..first + 12).map(|i| i % 11).collect());
    let samples = arrays(vec![
        ("x", array(&[3, 4], ints(0))),
        ("y", array(&[3, 4], ints(1))),
    ]);
    let feed = Feed::shuffled(Rows::new(&graph, samples, 0).unwrap(), 0);
    let filled = feed.step(0);
    let (Contents::Ints(x), Contents::Ints(y)) = (&filled[0].1, &filled[1].1) else {
        panic!("tokens are integers");
    };
    assert!(x.iter().zip(y).all(|(x, y)| (x + 1) % 11 == *y));
    assert_eq!((x.len(), y.len()), (8, 8));
}

#[test]
fn synthetic_data_fill_every_input_in_range() {
    let options = NetworkOptions {
        batch: 2,
        layers: Some(1),
        width: Some(8),
        heads: Some(2),
        sequence: Some(4),
        vocabulary: Some(11),
        ..Default::default()
    };
    for graph in [training("transformer", options), digits(4)] {
        let feed = Feed::synthetic(&graph, 5);
        assert!(feed.is_synthetic());
        let filled = feed.step(9);
        assert_eq!(filled, Feed::synthetic(&graph, 5).step(9));
        assert_ne!(filled, feed.step(8));
        assert_eq!(filled.len(), 2);
        for (tensor, contents) in filled {
            let elements = graph.tensor(tensor).elements();
            match contents {
                Contents::Floats(v) => {
                    assert_eq!(v.len(), elements);
                    let mean = v.iter().sum::<f32>() / v.len() as f32;
                    assert!(mean.abs() < 0.3, "{mean}");
                }
                Contents::Stored(_) => panic!("all is synthetic"),
                Contents::Ints(v) => {
                    assert_eq!(v.len(), elements);
                    assert!(v.iter().all(|n| (0..11).contains(n)));
                }
            }
        }
    }
}

#[test]
fn truncated_and_mutated_files_are_refused_or_read() {
    let bytes = std::fs::read(digits_file()).unwrap();
    for length in (0..bytes.len()).step_by(997) {
        assert!(Arrays::from_reader(std::io::Cursor::new(&bytes[..length]), u64::MAX).is_err());
    }
    // The ends of a zip archive hold its structure.
    let ends = (0..200).chain(bytes.len() - 300..bytes.len());
    for at in ends {
        let mut mutated = bytes.clone();
        mutated[at] ^= 1 << (at % 8);
        // Either is right; it must not panic.
        let _ = Arrays::from_reader(std::io::Cursor::new(&mutated), 1 << 30);
    }
}

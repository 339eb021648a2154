//! Samples are read, checked against the graph and put into batches in a reproducible order.

use scrimp_graph::data::{Array, Arrays, Contents, DataError, Dataset, Feed, Rows, Samples};
use scrimp_graph::networks::{NetworkOptions, build};
use scrimp_graph::{Binary, DType, Graph, GraphBuilder, Loss, train};
use std::path::Path;

fn digits_file() -> Dataset {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../testdata/digits.npz");
    Dataset::read(&path, u64::MAX).expect("the project's own data")
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

/// Samples that carry their own number.
fn numbered(count: usize) -> Samples {
    Samples {
        count,
        x_shape: vec![1, 8, 8],
        y_shape: vec![],
        x: Contents::Floats((0..count * 64).map(|i| (i / 64) as f32).collect()),
        y: Contents::Ints((0..count).map(|i| (i % 10) as i64).collect()),
    }
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
    let data = digits_file();
    let test = data.test.expect("a test set");
    assert_eq!((data.train.count, test.count), (1437, 360));
    assert_eq!(data.train.x_shape, [1, 8, 8]);
    assert!(data.train.y_shape.is_empty());
    let (Contents::Ints(x), Contents::Ints(y)) = (&data.train.x, &data.train.y) else {
        panic!("stored as integers");
    };
    assert!(x.iter().all(|v| (0..=16).contains(v)));
    assert!((0..10).all(|digit| y.iter().filter(|&&v| v == digit).count() > 120));
}

#[test]
fn every_epoch_has_every_sample_once() {
    let feed = Feed::from_samples(&digits(4), numbered(10), 3).unwrap();
    let all: Vec<usize> = (0..5).flat_map(|step| rows(&feed, step)).collect();
    let epochs: Vec<Vec<usize>> = all.chunks(10).map(<[usize]>::to_vec).collect();
    for epoch in &epochs {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
    }
    assert_ne!(epochs[0], epochs[1]);
    let again = Feed::from_samples(&digits(4), numbered(10), 3).unwrap();
    assert_eq!(
        again.step(4),
        feed.step(4),
        "a step depends on the seed and its number only"
    );
    let other = Feed::from_samples(&digits(4), numbered(10), 4).unwrap();
    assert_ne!(other.step(0), feed.step(0));
}

#[test]
fn labels_follow_their_samples() {
    let feed = Feed::from_samples(&digits(4), numbered(10), 3).unwrap();
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
    let feed = Feed::from_samples(&digits(8), numbered(3), 0).unwrap();
    assert_eq!(rows(&feed, 0).len(), 8);
    let feed = Feed::from_samples(&digits(4), numbered(10), 0).unwrap();
    let valid: Vec<usize> = (0..12)
        .step_by(4)
        .map_while(|i| Some(feed.test(i)?.1))
        .collect();
    assert_eq!(valid, [4, 4, 2]);
    assert!(feed.test(10).is_none());
}

#[test]
fn data_that_do_not_fit() {
    let graph = digits(4);
    let refused = |samples| Feed::from_samples(&graph, samples, 0).unwrap_err();
    let wide = Samples {
        x_shape: vec![64],
        ..numbered(10)
    };
    assert!(matches!(refused(wide), DataError::Shape { array: "x", .. }));
    let label = Samples {
        y: Contents::Ints(vec![10; 10]),
        ..numbered(10)
    };
    assert!(matches!(
        refused(label),
        DataError::Range {
            array,
            found: 10,
            last: 9,
            ..
        } if array == "y"
    ));
    let floats = Samples {
        y: Contents::Floats(vec![1.0; 10]),
        ..numbered(10)
    };
    assert!(matches!(
        refused(floats),
        DataError::Type { array, .. } if array == "y"
    ));
}

#[test]
fn rows_stream_through_batches() {
    let mut b = GraphBuilder::new("two inputs");
    let x = b.input("x", &[2, 3], DType::F32).unwrap();
    let scale = b.input("scale", &[2, 3], DType::F32).unwrap();
    let y = b.binary("y", Binary::Mul, x, scale).unwrap();
    b.output(y);
    let graph = b.finish().unwrap();
    let array = |shape: &[usize]| Array {
        shape: shape.to_vec(),
        contents: Contents::Ints((0..shape.iter().product::<usize>() as i64).collect()),
    };
    let rows = |arrays: &[(&str, &[usize])]| {
        let arrays = arrays
            .iter()
            .map(|(name, shape)| ((*name).into(), array(shape)));
        Rows::new(&graph, Arrays(arrays.collect()), 0)
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
        (
            &[("x", &[5, 3]), ("y", &[5, 3])],
            "no array is named like input scale",
        ),
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
    let samples = Samples {
        count: 3,
        x_shape: vec![4],
        y_shape: vec![4],
        x: Contents::Ints((0..12).map(|i| i % 11).collect()),
        y: Contents::Ints((1..13).map(|i| i % 11).collect()),
    };
    let feed = Feed::from_samples(&graph, samples, 0).unwrap();
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
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../testdata/digits.npz");
    let bytes = std::fs::read(path).unwrap();
    for length in (0..bytes.len()).step_by(997) {
        assert!(Dataset::from_reader(std::io::Cursor::new(&bytes[..length]), u64::MAX).is_err());
    }
    // The ends of a zip archive hold its structure.
    let ends = (0..200).chain(bytes.len() - 300..bytes.len());
    for at in ends {
        let mut mutated = bytes.clone();
        mutated[at] ^= 1 << (at % 8);
        // Either is right; it must not panic.
        let _ = Dataset::from_reader(std::io::Cursor::new(&mutated), 1 << 30);
    }
}

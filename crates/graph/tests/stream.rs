//! Arrays that stay in their file: batches of them, and graphs that read parts of them.

use scrimp_graph::data::{Arrays, Contents, Rows, streamed};
use scrimp_graph::{DType, Graph, GraphBuilder, Op};
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};

const SHAPE: [usize; 4] = [3, 2, 5, 7];

/// An npy file whose elements are their own numbers.
fn npy(folder: &TempDir, descr: &str, element: impl Fn(u8) -> Vec<u8>) -> PathBuf {
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (3, 2, 5, 7), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    (0..210).for_each(|number| bytes.extend(element(number)));
    let path = folder.path().join("x.npy");
    std::fs::write(&path, bytes).expect("a folder of its own");
    path
}

fn floats(folder: &TempDir) -> PathBuf {
    npy(folder, "<f4", |number| {
        f32::from(number).to_le_bytes().into()
    })
}

/// Two parts of an input of batch 2.
fn graph(whole: bool) -> Graph {
    let mut b = GraphBuilder::new("parts");
    let x = b.input("x", &[2, 2, 5, 7], DType::F32).expect("a new name");
    for (name, start, end) in [
        ("a", [0, 0, 0, 0], [2, 2, 3, 7]),
        ("b", [0, 1, 2, 3], [2, 2, 5, 6]),
    ] {
        let (start, end) = (start.to_vec(), end.to_vec());
        let op = Op::Slice {
            start,
            end,
            step: vec![1; 4],
        };
        let part = b.add1(name, op, &[x]).expect("inside of the input");
        b.output(part);
    }
    if whole {
        let y = b
            .add1("copy", Op::Reshape { shape: vec![140] }, &[x])
            .expect("as many elements");
        b.output(y);
    }
    b.finish().expect("a graph")
}

fn rows_of(path: &Path, graph: &Graph) -> Rows {
    let arrays = Arrays::open(path, 1 << 20).expect("a good file");
    Rows::new(graph, arrays, 1 << 20).expect("it fits the input")
}

/// What the node of this name reads now.
fn read(graph: &Graph, name: &str) -> Vec<f64> {
    let node = graph.nodes().values().find(|node| node.name == name);
    let Some(Op::Read {
        from, start, shape, ..
    }) = node.map(|node| &node.op)
    else {
        panic!("{name} reads no file");
    };
    let mut y = vec![0.0; shape.iter().product()];
    from.read(start, shape, &mut y, f64::from)
        .expect("the file is whole");
    y
}

/// The same of the rows that are the batch, by hand.
fn expected(batch: [usize; 2], start: [usize; 3], end: [usize; 3]) -> Vec<f64> {
    let mut y = Vec::new();
    for row in batch {
        for (c, h, w) in (start[0]..end[0]).flat_map(|c| {
            (start[1]..end[1]).flat_map(move |h| (start[2]..end[2]).map(move |w| (c, h, w)))
        }) {
            y.push((((row * SHAPE[1] + c) * SHAPE[2] + h) * SHAPE[3] + w) as f64);
        }
    }
    y
}

#[test]
fn parts_of_every_batch() {
    let folder = tempdir().expect("a folder");
    let graph = graph(false);
    type Element = fn(u8) -> Vec<u8>;
    let types: [(&str, Element); 6] = [
        ("<f4", |n| f32::from(n).to_le_bytes().into()),
        ("<f8", |n| f64::from(n).to_le_bytes().into()),
        ("|u1", |n| vec![n]),
        ("<i2", |n| i16::from(n).to_le_bytes().into()),
        ("<u4", |n| u32::from(n).to_le_bytes().into()),
        ("<i8", |n| i64::from(n).to_le_bytes().into()),
    ];
    for (descr, element) in types {
        let rows = rows_of(&npy(&folder, descr, element), &graph);
        let parts = streamed(&graph, &rows.streams()).expect("no larger");
        parts.validate().expect("a valid graph");
        assert_eq!(parts.given().count(), 0, "{descr}");
        let rows = rows.moved(&parts);
        // The last sample fills the last batch.
        for (start, batch) in [(0, [0, 1]), (2, [2, 2]), (1, [1, 2])] {
            let (inputs, count) = rows.from(start).expect("there are three");
            assert!(inputs.is_empty());
            assert_eq!(count, 2.min(3 - start));
            assert_eq!(
                read(&parts, "a"),
                expected(batch, [0, 0, 0], [2, 3, 7]),
                "{descr}"
            );
            assert_eq!(
                read(&parts, "b"),
                expected(batch, [1, 2, 3], [2, 5, 6]),
                "{descr}"
            );
        }
        assert!(rows.from(3).is_none());
    }
}

/// An input that a node takes as a whole is there as a whole.
#[test]
fn whole_inputs_stay() {
    let folder = tempdir().expect("a folder");
    let graph = graph(true);
    let rows = rows_of(&floats(&folder), &graph);
    let same = streamed(&graph, &rows.streams()).expect("no larger");
    let rows = rows.moved(&same);
    let (inputs, _) = rows.from(1).expect("there are three");
    let [(tensor, Contents::Stored(stream))] = &inputs[..] else {
        panic!("{inputs:?}");
    };
    assert_eq!(same.tensor(*tensor).name, "x");
    let mut all = vec![0.0; 140];
    // Pieces needn't end where rows do.
    let (first, second) = all.split_at_mut(77);
    stream.read_from(0, first).expect("the file is whole");
    stream.read_from(77, second).expect("the file is whole");
    assert!(all.iter().enumerate().all(|(i, &x)| x == (70 + i) as f32));
}

#[test]
fn files_that_are_too_short() {
    let folder = tempdir().expect("a folder");
    let graph = graph(false);
    let path = floats(&folder);
    let rows = rows_of(&path, &graph);
    let parts = streamed(&graph, &rows.streams()).expect("no larger");
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    file.and_then(|file| file.set_len(300))
        .expect("our own file");
    let Op::Read {
        from, start, shape, ..
    } = &parts.nodes().values().next().expect("two").op
    else {
        panic!("the first node reads no file");
    };
    let mut y = vec![0.0; shape.iter().product()];
    let told = from
        .read(start, shape, &mut y, |x| x)
        .expect_err("there is no more")
        .to_string();
    assert!(told.contains("x.npy"), "{told}");
    let told = Arrays::open(&path, 1 << 20).expect_err("cut").to_string();
    assert!(
        told.contains("its shape needs 840 bytes, but it has"),
        "{told}"
    );
}

/// Pixels of a picture with three channels, as TIFF stores them: in strips of three rows, or in one.
fn tiff(path: &Path, rows: u32) {
    use tiff::encoder::{TiffEncoder, colortype::RGB16};
    let pixels: Vec<u16> = (0..3 * 13 * 7).collect();
    let file = std::fs::File::create(path).expect("a folder of its own");
    let mut encoder = TiffEncoder::new(file).expect("a new file");
    let mut image = encoder.new_image::<RGB16>(7, 13).expect("a small image");
    image.rows_per_strip(rows).expect("before any data");
    image.write_data(&pixels).expect("as many as it has");
}

#[test]
fn pictures() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("x.tiff");
    let shape = [1, 3, 13, 7];
    let pixel = |c: usize, y: usize, x: usize| ((y * 7 + x) * 3 + c) as f64;
    let mut b = GraphBuilder::new("parts");
    let x = b.input("x", &shape, DType::F32).expect("a new name");
    let slice = Op::Slice {
        start: vec![0, 1, 2, 3],
        end: vec![1, 3, 11, 6],
        step: vec![1; 4],
    };
    let part = b.add1("part", slice, &[x]).expect("inside of the input");
    b.output(part);
    let graph = b.finish().expect("a graph");
    for rows in [1, 3, 13] {
        tiff(&path, rows);
        let rows = rows_of(&path, &graph);
        let Contents::Stored(whole) = &rows.from(0).expect("one").0[0].1 else {
            panic!("it isn't in the file");
        };
        let mut all = vec![0.0; 273];
        let (first, second) = all.split_at_mut(100);
        whole.read_from(0, first).expect("the file is whole");
        whole.read_from(100, second).expect("the file is whole");
        let places = (0..3).flat_map(|c| (0..13).flat_map(move |y| (0..7).map(move |x| (c, y, x))));
        assert!(
            places
                .zip(&all)
                .all(|((c, y, x), &found)| f64::from(found) == pixel(c, y, x))
        );
        let parts = streamed(&graph, &rows.streams()).expect("no larger");
        let mut expected = Vec::new();
        for (c, y) in (1..3).flat_map(|c| (2..11).map(move |y| (c, y))) {
            expected.extend((3..6).map(|x| pixel(c, y, x)));
        }
        assert_eq!(read(&parts, "part"), expected);
    }
    // What is behind the first strips is gone.
    tiff(&path, 1);
    let rows = rows_of(&path, &graph);
    let parts = streamed(&graph, &rows.streams()).expect("no larger");
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    file.and_then(|file| file.set_len(200))
        .expect("our own file");
    let node = parts.nodes().values().next().expect("one");
    let Op::Read {
        from, start, shape, ..
    } = &node.op
    else {
        panic!("it reads no file");
    };
    let mut y = vec![0.0; shape.iter().product()];
    let told = from
        .read(start, shape, &mut y, |x| x)
        .expect_err("it is cut")
        .to_string();
    assert!(
        told.contains("x.tiff") && told.contains("can't be decoded"),
        "{told}"
    );
    std::fs::write(&path, b"II*\0\xff\xff\xff\x7f").expect("our own file");
    let told = Arrays::open(&path, 1 << 20)
        .expect_err("damaged")
        .to_string();
    assert!(told.contains("can't be decoded"), "{told}");
}

/// Several batches may be in flight.
#[test]
fn batches_side_by_side() {
    let folder = tempdir().expect("a folder");
    let rows = rows_of(&floats(&folder), &graph(true));
    let batches = [0, 1].map(|first| rows.from(first).expect("there are three").0);
    for (first, batch) in batches.iter().enumerate() {
        let Contents::Stored(stream) = &batch[0].1 else {
            panic!("it isn't in the file");
        };
        let mut x = [0.0];
        stream.read_from(0, &mut x).expect("the file is whole");
        assert_eq!(x, [70.0 * first as f32]);
    }
}

/// Before there is a batch, as when operators are timed, and though a batch may be larger than the file.
#[test]
fn batches_of_few_rows() {
    let folder = tempdir().expect("a folder");
    let mut b = GraphBuilder::new("many");
    let x = b.input("x", &[5, 2, 5, 7], DType::F32).expect("a new name");
    let slice = Op::Slice {
        start: vec![0; 4],
        end: vec![5, 1, 1, 1],
        step: vec![1; 4],
    };
    let part = b.add1("part", slice, &[x]).expect("inside of the input");
    b.output(part);
    let graph = b.finish().expect("a graph");
    let rows = rows_of(&floats(&folder), &graph);
    let parts = streamed(&graph, &rows.streams()).expect("no larger");
    assert_eq!(read(&parts, "part"), [0.0, 70.0, 140.0, 140.0, 140.0]);
    // A header may claim rows without elements.
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 0), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    let path = folder.path().join("rows.npy");
    std::fs::write(&path, bytes).expect("a folder of its own");
    assert!(Arrays::open(&path, 1 << 20).is_ok());
}

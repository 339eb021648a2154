//! Tilings of the trunks against numbers that were computed by hand from the list of layers.

use super::{Segment, Tiling};
use crate::costs::flops;
use crate::graph::Graph;
use crate::networks::{NetworkOptions, build};
use crate::op::Op;

fn trunk(name: &str, side: usize) -> Graph {
    let options = NetworkOptions {
        batch: 1,
        image: Some([side, side]),
        ..NetworkOptions::default()
    };
    build(name, &options).unwrap()
}

fn tiling(graph: &Graph, tiles: usize) -> Tiling {
    let mut segments = Segment::longest(graph);
    assert_eq!(segments.len(), 1, "one segment for all of the trunk");
    Tiling {
        segment: segments.remove(0),
        tiles: vec![tiles; 2],
    }
}

const GIB: f64 = (1u64 << 30) as f64;

/// Bytes of what comes in and of every convolution and pooling; multiply-adds of the convolutions.
fn totals(graph: &Graph) -> (f64, f64) {
    let mut bytes: u64 = graph
        .given()
        .filter(|(_, tensor)| tensor.name == "input")
        .map(|(_, tensor)| tensor.bytes())
        .sum();
    let mut macs = 0.0;
    for node in graph.nodes().values() {
        if matches!(node.op, Op::Conv { .. } | Op::MaxPool { .. }) {
            bytes += graph.tensor(node.outputs[0]).bytes();
        }
        if matches!(node.op, Op::Conv { .. }) {
            macs += flops(graph, node) / 2.0;
        }
    }
    (bytes as f64, macs)
}

fn rounded(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}

#[test]
fn what_trunks_keep_and_compute() {
    for (name, side, kept, macs, digits) in [
        ("vgg16-trunk", 2048, 4.74, 1.283, 3),
        ("vgg16-trunk", 4096, 18.97, 5.131, 3),
        ("vgg16-trunk", 8192, 75.88, 20.53, 2),
        ("vgg16-trunk", 10_240, 118.55, 32.07, 2),
        ("vgg16-trunk", 20_480, 474.2, 128.3, 1),
        ("darknet19-trunk", 10_240, 42.76, 5.83, 2),
        ("darknet19-trunk", 20_480, 171.1, 23.33, 2),
    ] {
        let (bytes, multiplied) = totals(&trunk(name, side));
        let kept_digits = if kept < 100.0 || side == 10_240 { 2 } else { 1 };
        assert_eq!(rounded(bytes / GIB, kept_digits), kept, "{name} {side}");
        assert_eq!(rounded(multiplied / 1e12, digits), macs, "{name} {side}");
    }
}

#[test]
fn halos_and_tiles_of_trunks() {
    for (name, side, tiles, halo, gib) in [
        ("vgg16-trunk", 2048, 2, 13.5, 1.381),
        ("vgg16-trunk", 2048, 4, 43.4, 0.515),
        ("vgg16-trunk", 4096, 2, 6.7, 5.125),
        ("vgg16-trunk", 4096, 4, 20.7, 1.591),
        ("vgg16-trunk", 4096, 8, 51.5, 0.515),
        ("vgg16-trunk", 8192, 4, 10.1, 5.523),
        ("vgg16-trunk", 10_240, 8, 19.2, 2.352),
        ("vgg16-trunk", 10_240, 16, 43.4, 0.728),
        ("darknet19-trunk", 10_240, 8, 32.8, 1.033),
        ("darknet19-trunk", 10_240, 16, 77.3, 0.370),
        ("darknet19-trunk", 20_480, 16, 35.4, 1.033),
    ] {
        let graph = trunk(name, side);
        let tiled = tiling(&graph, tiles).measure(&graph).unwrap();
        assert_eq!(
            rounded(100.0 * tiled.halo, 1),
            halo,
            "{name} {side} {tiles}"
        );
        assert_eq!(
            rounded(tiled.tile_bytes as f64 / GIB, 3),
            gib,
            "{name} {side} {tiles}"
        );
    }
}

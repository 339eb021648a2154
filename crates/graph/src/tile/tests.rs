//! Tilings of the trunks against numbers that were computed by hand from the list of layers.

use cranelift_entity::EntityRef;

use super::{Segment, Tiles, Tiling, published_sizes, tiled};
use crate::builder::GraphBuilder;
use crate::costs::flops;
use crate::dtype::DType;
use crate::graph::{Graph, NodeId};
use crate::networks::{NetworkOptions, build};
use crate::op::{Op, Window};

fn trunk(name: &str, side: usize) -> Graph {
    let options = NetworkOptions {
        batch: 1,
        image: Some([side, side]),
        ..NetworkOptions::default()
    };
    build(name, &options).unwrap()
}

fn tiling(graph: &Graph, tiles: usize) -> Tiling {
    let mut segments = Segment::longest(graph, tiles);
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

/// Listing 3's segments end at the first output that is smaller than the memory.
#[test]
fn published_segments() {
    let graph = trunk("vgg16-trunk", 1024);
    let tiles = |capacity| {
        let tiles = Tiles::Published { capacity, count: 4 };
        tiles.of(&graph).unwrap()
    };
    // Pooled, the maps of the first blocks take 64, 32 and 16 MiB, before that four times as much, those of the
    // third 64; the fourth block's take 32.
    let found = tiles(48 << 20);
    let ends: Vec<&str> = found
        .iter()
        .map(|tiling| {
            let last = NodeId::new(tiling.segment.nodes.end - 1);
            graph.node(last).name.as_str()
        })
        .collect();
    assert_eq!(ends, ["features.pool2", "features.pool3"]);
    assert_eq!(found[0].tiles, [4, 4]);
    assert!(tiles(1 << 30).is_empty());
}

/// Figure 7's forward pass: two convolutions of 3 × 3 and two poolings by 2 on 1024 × 1024 pixels, 4 tiles in each
/// dimension. Of the output a tile has 64 rows, of the input 256 and the halos. The figure has 66 in place
/// of 64, since SFT makes the gradients of disjoint input tiles and so reads a halo of the output's; here,
/// the halos of input gradients are added up instead.
#[test]
fn extents_of_figure_7() {
    let mut b = GraphBuilder::new("figure 7");
    let mut x = b.input("in", &[1, 1, 1024, 1024], DType::F32).unwrap();
    for number in [1, 2] {
        let window = Window::square(3).pad(1);
        x = b
            .conv(&format!("conv{number}"), x, 1, window, 1, false)
            .unwrap();
        let window = Window::square(2).stride(2);
        x = b.max_pool(&format!("pool{number}"), x, window).unwrap();
    }
    b.output(x);
    let graph = b.finish().unwrap();
    // As published, a tile is as large as the gradients of disjoint tiles of the input need it.
    let tiling = tiling(&graph, 4);
    let sizes = published_sizes(&graph, &tiling);
    let published = |tensor: &str| {
        let size = &sizes[&graph.find(tensor).unwrap()];
        assert_eq!(size.forward[0], size.forward[1]);
        (size.forward[0], size.gradient[0])
    };
    let found = ["in", "conv1", "pool1", "conv2", "pool2"].map(published);
    let expected = [(270, 256), (268, 258), (134, 129), (132, 131), (66, 66)];
    assert_eq!(found, expected);
    let rewritten = tiled(&graph, Tiles::Count(4)).unwrap().0;
    let rows = |tensor: &str| {
        // The tile in row 1 and column 1.
        let id = rewritten.find(&format!("{tensor}@5")).unwrap();
        rewritten.tensor(id).shape[2]
    };
    let found = ["in", "conv1", "pool1", "conv2", "pool2"].map(rows);
    assert_eq!(found, [262, 260, 130, 128, 64]);
}

//! The three segmentation networks that Checkmate takes from keras-segmentation, all on VGG-16:
//! U-Net, FCN-8 and SegNet. U-Net and SegNet label every second pixel; FCN-8's output is 8 pixels
//! larger than the image on each axis.

use super::net::{Built, Net, Scheme, named, whole_multiple};
use super::options::{Choices, NetworkError};
use super::vgg;
use crate::error::GraphError;
use crate::graph::{Graph, TensorId};
use crate::op::{Binary, Op, Unary, Window};

/// Keras's default epsilon of batch normalization.
const EPSILON: f64 = 1e-3;

fn encoder(
    name: &str,
    choices: &Choices,
    blocks: usize,
) -> Result<(Net, Vec<TensorId>), GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 3, Scheme::Glorot)?;
    net.epsilon = EPSILON;
    let maps = vgg::features(&mut net, x, &vgg::D[..blocks], true)?;
    Ok((net, maps))
}

pub(super) fn unet_vgg(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    whole_multiple(name, choices, 16)?;
    named(name, unet_graph(name, choices))
}

fn unet_graph(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, maps) = encoder(name, choices, 4)?;
    let mut x = conv_norm(&mut net, "decoder1", maps[3], 512)?;
    for (number, (skip, channels)) in (2..).zip([(maps[2], 256), (maps[1], 128), (maps[0], 64)]) {
        let name = format!("decoder{number}");
        x = double(&mut net, &name, x)?;
        x = net.b.concat(&format!("{name}.cat"), 1, &[x, skip])?;
        x = conv_norm(&mut net, &name, x, channels)?;
    }
    classify(net, x, choices)
}

pub(super) fn segnet(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    whole_multiple(name, choices, 16)?;
    named(name, segnet_graph(name, choices))
}

fn segnet_graph(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, maps) = encoder(name, choices, 4)?;
    let mut x = conv_norm(&mut net, "decoder1", maps[3], 512)?;
    for (number, channels) in (2..).zip([256, 128, 64]) {
        let name = format!("decoder{number}");
        x = double(&mut net, &name, x)?;
        x = conv_norm(&mut net, &name, x, channels)?;
    }
    classify(net, x, choices)
}

pub(super) fn fcn8(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    whole_multiple(name, choices, 32)?;
    named(name, fcn8_graph(name, choices))
}

fn fcn8_graph(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, maps) = encoder(name, choices, 5)?;
    let classes = choices.classes.unwrap_or(19);
    let mut x = maps[4];
    for (number, kernel) in [(1, 7), (2, 1)] {
        let window = Window::square(kernel).same();
        x = net.conv(&format!("fc{number}"), x, 4096, window, 1, true)?;
        x = net.unary(&format!("fc{number}.relu"), Unary::Relu, x)?;
        x = net.dropout(&format!("fc{number}.dropout"), x, choices)?;
    }
    net.scheme = Scheme::FanIn { gain2: 2.0 };
    x = net.conv("score5", x, classes, Window::square(1), 1, true)?;
    net.scheme = Scheme::Glorot;
    for (level, skip) in [(4, maps[3]), (3, maps[2])] {
        let window = Window::square(4).stride(2);
        x = net.conv_transpose(&format!("up{level}"), x, classes, window)?;
        x = crop(&mut net, &format!("crop{level}"), x, skip)?;
        net.scheme = Scheme::FanIn { gain2: 2.0 };
        let score = net.conv(
            &format!("score{level}"),
            skip,
            classes,
            Window::square(1),
            1,
            true,
        )?;
        net.scheme = Scheme::Glorot;
        x = net
            .b
            .binary(&format!("fuse{level}"), Binary::Add, x, score)?;
    }
    let logits = net.conv_transpose("up", x, classes, Window::square(16).stride(8))?;
    net.finish(logits)
}

/// The top left of x, as high and wide as `like`.
fn crop(net: &mut Net, name: &str, x: TensorId, like: TensorId) -> Built {
    let [samples, channels, ..] = net.four(x);
    let [.., height, width] = net.four(like);
    let op = Op::Slice {
        start: vec![0; 4],
        end: vec![samples, channels, height, width],
        step: vec![1; 4],
    };
    net.b.add1(name, op, &[x])
}

fn conv_norm(net: &mut Net, name: &str, x: TensorId, channels: usize) -> Built {
    let x = net.conv(
        &format!("{name}.conv"),
        x,
        channels,
        Window::square(3).pad(1),
        1,
        true,
    )?;
    net.batch_norm(&format!("{name}.bn"), x)
}

fn double(net: &mut Net, name: &str, x: TensorId) -> Built {
    net.b.add1(
        &format!("{name}.up"),
        Op::ResizeNearest { factor: [2, 2] },
        &[x],
    )
}

fn classify(mut net: Net, x: TensorId, choices: &Choices) -> Result<Graph, GraphError> {
    let classes = choices.classes.unwrap_or(19);
    let logits = net.conv("classify", x, classes, Window::square(3).pad(1), 1, true)?;
    net.finish(logits)
}

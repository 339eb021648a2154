//! MobileNet v1 at width 1, as in Keras: strided convolutions pad below and to the right only.

use super::net::{Built, Net, Scheme, named};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::{Graph, TensorId};
use crate::op::{Unary, Window};

/// Output channels and stride of the depthwise separable blocks.
const BLOCKS: [(usize, usize); 13] = [
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (1024, 2),
    (1024, 1),
];

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    named(name, mobilenet(name, choices))
}

fn mobilenet(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 3, Scheme::FanOut)?;
    net.epsilon = 1e-3;
    let stride = if choices.small { 1 } else { 2 };
    let mut x = unit(&mut net, "conv1", x, 32, three(stride), 1)?;
    for (number, (channels, stride)) in (1..).zip(BLOCKS) {
        let groups = net.b.shape(x)[1];
        x = unit(
            &mut net,
            &format!("conv_dw_{number}"),
            x,
            groups,
            three(stride),
            groups,
        )?;
        x = unit(
            &mut net,
            &format!("conv_pw_{number}"),
            x,
            channels,
            Window::square(1),
            1,
        )?;
    }
    let x = net.b.global_avg_pool("avgpool", x)?;
    let x = net.dropout("dropout", x, choices)?;
    let classes = choices.classes.unwrap_or(1000);
    let x = net.conv("conv_preds", x, classes, Window::square(1), 1, true)?;
    let logits = net.b.flatten("flatten", x)?;
    net.finish(logits)
}

fn three(stride: usize) -> Window {
    let window = Window::square(3).pad(1).stride(stride);
    match stride {
        1 => window,
        _ => Window {
            pad_begin: [0, 0],
            ..window
        },
    }
}

/// Convolution, batch normalization, relu capped at 6.
fn unit(
    net: &mut Net,
    name: &str,
    x: TensorId,
    channels: usize,
    window: Window,
    groups: usize,
) -> Built {
    let x = net.conv(name, x, channels, window, groups, false)?;
    let x = net.batch_norm(&format!("{name}_bn"), x)?;
    net.unary(&format!("{name}_relu"), Unary::Clip { lo: 0.0, hi: 6.0 }, x)
}

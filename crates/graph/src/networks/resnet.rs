//! ResNet-18, -34 and -50 as in torchvision.

use super::net::{Built, Net, Scheme, named};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::{Graph, Init, TensorId};
use crate::op::{Binary, Unary, Window};

/// The kind of residual block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// Two 3×3 convolutions.
    Basic,
    /// 1×1, 3×3, 1×1 with four times the channels at the end.
    Bottleneck,
}

pub(super) fn resnet(
    name: &str,
    choices: &Choices,
    block: BlockKind,
    blocks: [usize; 4],
) -> Result<Graph, NetworkError> {
    named(name, build(name, choices, block, blocks))
}

fn build(
    name: &str,
    choices: &Choices,
    block: BlockKind,
    blocks: [usize; 4],
) -> Result<Graph, GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 3, Scheme::FanOut)?;
    let first = match choices.small {
        true => Window::square(3).pad(1),
        false => Window::square(7).stride(2).pad(3),
    };
    let x = net.conv("conv1", x, 64, first, 1, false)?;
    let x = net.batch_norm("bn1", x)?;
    let mut x = net.unary("relu", Unary::Relu, x)?;
    if !choices.small {
        let window = Window::square(3).stride(2).pad(1);
        x = net.b.max_pool("maxpool", x, window)?;
    }
    for (stage, (count, width)) in blocks.into_iter().zip([64, 128, 256, 512]).enumerate() {
        for index in 0..count {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            let name = format!("layer{}.{index}", stage + 1);
            x = residual(&mut net, &name, x, block, width, stride)?;
        }
    }
    let x = net.pool_features("avgpool", x)?;
    // PyTorch's default for a linear layer.
    let bound = 1.0 / (net.b.shape(x)[1] as f64).sqrt();
    let logits = net.linear(
        "fc",
        x,
        choices.classes.unwrap_or(1000),
        Init::Uniform { bound },
    )?;
    net.finish(logits)
}

/// relu(block(x) + shortcut(x))
pub(super) fn residual(
    net: &mut Net,
    name: &str,
    x: TensorId,
    block: BlockKind,
    width: usize,
    stride: usize,
) -> Built {
    let three = Window::square(3).pad(1);
    let (layers, out) = match block {
        BlockKind::Basic => (vec![(width, three.stride(stride)), (width, three)], width),
        BlockKind::Bottleneck => {
            let out = 4 * width;
            let one = Window::square(1);
            (
                vec![(width, one), (width, three.stride(stride)), (out, one)],
                out,
            )
        }
    };
    let mut y = x;
    let last = layers.len();
    for (number, (channels, window)) in (1..).zip(layers) {
        y = net.conv(
            &format!("{name}.conv{number}"),
            y,
            channels,
            window,
            1,
            false,
        )?;
        y = net.batch_norm(&format!("{name}.bn{number}"), y)?;
        if number < last {
            y = net.unary(&format!("{name}.relu{number}"), Unary::Relu, y)?;
        }
    }
    let mut shortcut = x;
    if stride != 1 || net.b.shape(x)[1] != out {
        let window = Window::square(1).stride(stride);
        shortcut = net.conv(&format!("{name}.downsample.0"), x, out, window, 1, false)?;
        shortcut = net.batch_norm(&format!("{name}.downsample.1"), shortcut)?;
    }
    let sum = net
        .b
        .binary(&format!("{name}.add"), Binary::Add, y, shortcut)?;
    net.unary(&format!("{name}.relu"), Unary::Relu, sum)
}

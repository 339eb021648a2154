//! Darknet-19: 3×3 and 1×1 convolutions with batch normalization and leaky relu.

use super::net::{Net, Scheme, named, whole_multiple};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::Graph;
use crate::op::{Unary, Window};

/// Channels of the convolutions of each stage; a max pooling stands between stages. Kernels
/// alternate between 3×3 and 1×1, starting with 3×3.
const STAGES: [&[usize]; 6] = [
    &[32],
    &[64],
    &[128, 64, 128],
    &[256, 128, 256],
    &[512, 256, 512, 256, 512],
    &[1024, 512, 1024, 512, 1024],
];

const SLOPE: f64 = 0.1;

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    whole_multiple(name, choices, 32)?;
    named(name, darknet(name, choices))
}

fn darknet(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let gain2 = 2.0 / (1.0 + SLOPE * SLOPE);
    let (mut net, mut x) = Net::with_image(name, choices, 3, Scheme::FanIn { gain2 })?;
    let mut number = 1;
    for (stage, channels) in STAGES.iter().enumerate() {
        if stage > 0 {
            x = net.halve(&format!("pool{stage}"), x)?;
        }
        for (i, &channels) in channels.iter().enumerate() {
            let window = if i % 2 == 0 {
                Window::square(3).pad(1)
            } else {
                Window::square(1)
            };
            x = net.conv(&format!("conv{number}"), x, channels, window, 1, false)?;
            x = net.batch_norm(&format!("bn{number}"), x)?;
            x = net.unary(
                &format!("leaky{number}"),
                Unary::LeakyRelu { slope: SLOPE },
                x,
            )?;
            number += 1;
        }
    }
    let classes = choices.classes.unwrap_or(1000);
    let x = net.conv(
        &format!("conv{number}"),
        x,
        classes,
        Window::square(1),
        1,
        true,
    )?;
    let logits = net.pool_features("avgpool", x)?;
    net.finish(logits)
}

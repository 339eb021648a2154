//! Darknet-19: 3×3 and 1×1 convolutions with batch normalization and leaky relu.

use super::net::{Net, Scheme, named, whole_multiple};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::{Graph, TensorId};
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

/// For a leaky relu of this slope.
const GAIN2: f64 = 2.0 / (1.0 + SLOPE * SLOPE);

/// Convolutions, leaky relu and pooling alone, without biases; the output is the mean of the squares of the last feature
/// map, which makes a loss.
pub(super) fn trunk(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    let build = || {
        let (mut net, x) = stages(name, choices, false)?;
        let loss = net.mean_square("loss", x)?;
        net.finish(loss)
    };
    named(name, build())
}

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    whole_multiple(name, choices, 32)?;
    named(name, darknet(name, choices))
}

fn darknet(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, x) = stages(name, choices, true)?;
    let logits = net.pool_features("avgpool", x)?;
    net.finish(logits)
}

/// The 19 convolutions, with batch normalization and a bias of the last one if asked.
fn stages(name: &str, choices: &Choices, complete: bool) -> Result<(Net, TensorId), GraphError> {
    let (mut net, mut x) = Net::with_image(name, choices, 3, Scheme::FanIn { gain2: GAIN2 })?;
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
            if complete {
                x = net.batch_norm(&format!("bn{number}"), x)?;
            }
            let leaky = Unary::LeakyRelu { slope: SLOPE };
            x = net.unary(&format!("leaky{number}"), leaky, x)?;
            number += 1;
        }
    }
    let (last, classes) = (format!("conv{number}"), choices.classes.unwrap_or(1000));
    let x = net.conv(&last, x, classes, Window::square(1), 1, complete)?;
    Ok((net, x))
}

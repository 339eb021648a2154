//! Plain-20: the CIFAR network of the ResNet paper's section 4.2 with n = 3, without shortcuts.

use super::net::{Net, Scheme, named};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::{Graph, Init};
use crate::op::{Unary, Window};

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    named(name, plain(name, choices))
}

fn plain(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let scheme = Scheme::FanIn { gain2: 2.0 };
    let (mut net, mut x) = Net::with_image(name, choices, 3, scheme)?;
    let first = [(16, 1)];
    let stages = [(16, 1), (32, 2), (64, 2)];
    let rest = stages
        .into_iter()
        .flat_map(|(width, stride)| (0..6).map(move |i| (width, if i == 0 { stride } else { 1 })));
    for (number, (width, stride)) in (1..).zip(first.into_iter().chain(rest)) {
        let window = Window::square(3).pad(1).stride(stride);
        x = net.conv(&format!("conv{number}"), x, width, window, 1, false)?;
        x = net.batch_norm(&format!("bn{number}"), x)?;
        x = net.unary(&format!("relu{number}"), Unary::Relu, x)?;
    }
    let x = net.pool_features("avgpool", x)?;
    let init = Init::Normal {
        std: (2.0f64 / 64.0).sqrt(),
    };
    let logits = net.linear("fc", x, choices.classes.unwrap_or(10), init)?;
    net.finish(logits)
}

//! A residual network of about 170,000 parameters for the 8×8 images of the digits example.

use super::net::{Net, Scheme, named};
use super::options::{Choices, NetworkError};
use super::resnet::{BlockKind, residual};
use crate::error::GraphError;
use crate::graph::{Graph, Init};
use crate::op::{Unary, Window};

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    named(name, digits(name, choices))
}

fn digits(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 1, Scheme::FanOut)?;
    let x = net.conv("conv1", x, 32, Window::square(3).pad(1), 1, false)?;
    let x = net.batch_norm("bn1", x)?;
    let mut x = net.unary("relu", Unary::Relu, x)?;
    for (stage, (width, stride)) in [(32, 1), (32, 1), (64, 2), (64, 1)].into_iter().enumerate() {
        x = residual(
            &mut net,
            &format!("block{}", stage + 1),
            x,
            BlockKind::Basic,
            width,
            stride,
        )?;
    }
    let x = net.pool_features("avgpool", x)?;
    let bound = 1.0 / 8.0;
    let logits = net.linear(
        "fc",
        x,
        choices.classes.unwrap_or(10),
        Init::Uniform { bound },
    )?;
    net.finish(logits)
}

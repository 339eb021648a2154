//! DenseNet-121 as in torchvision; each layer joins its new channels to all earlier ones.

use super::net::{Built, Net, Scheme, named};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::{Graph, Init, TensorId};
use crate::op::{Unary, Window};

const GROWTH: usize = 32;
const LAYERS: [usize; 4] = [6, 12, 24, 16];

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    named(name, densenet(name, choices))
}

fn densenet(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 3, Scheme::FanIn { gain2: 2.0 })?;
    let x = net.conv(
        "features.conv0",
        x,
        64,
        Window::square(7).stride(2).pad(3),
        1,
        false,
    )?;
    let x = norm_relu(&mut net, "features.norm0", x)?;
    let mut x = net
        .b
        .max_pool("features.pool0", x, Window::square(3).stride(2).pad(1))?;
    for (block, &count) in (1..).zip(&LAYERS) {
        for layer in 1..=count {
            let name = format!("features.denseblock{block}.denselayer{layer}");
            let new = dense_layer(&mut net, &name, x, choices)?;
            x = net.b.concat(&format!("{name}.cat"), 1, &[x, new])?;
        }
        if block < LAYERS.len() {
            let name = format!("features.transition{block}");
            let half = net.b.shape(x)[1] / 2;
            x = norm_relu(&mut net, &format!("{name}.norm"), x)?;
            x = net.conv(
                &format!("{name}.conv"),
                x,
                half,
                Window::square(1),
                1,
                false,
            )?;
            x = net
                .b
                .avg_pool(&format!("{name}.pool"), x, Window::square(2).stride(2))?;
        }
    }
    let x = norm_relu(&mut net, "features.norm5", x)?;
    let x = net.pool_features("avgpool", x)?;
    let bound = 1.0 / (net.b.shape(x)[1] as f64).sqrt();
    let classes = choices.classes.unwrap_or(1000);
    let logits = net.linear("classifier", x, classes, Init::Uniform { bound })?;
    net.finish(logits)
}

/// Normalization, relu, 1×1 to four times the growth, normalization, relu, 3×3 to the growth.
fn dense_layer(net: &mut Net, name: &str, x: TensorId, choices: &Choices) -> Built {
    let x = norm_relu(net, &format!("{name}.norm1"), x)?;
    let x = net.conv(
        &format!("{name}.conv1"),
        x,
        4 * GROWTH,
        Window::square(1),
        1,
        false,
    )?;
    let x = norm_relu(net, &format!("{name}.norm2"), x)?;
    let x = net.conv(
        &format!("{name}.conv2"),
        x,
        GROWTH,
        Window::square(3).pad(1),
        1,
        false,
    )?;
    net.dropout(&format!("{name}.dropout"), x, choices)
}

fn norm_relu(net: &mut Net, name: &str, x: TensorId) -> Built {
    let x = net.batch_norm(name, x)?;
    net.unary(&format!("{name}.relu"), Unary::Relu, x)
}

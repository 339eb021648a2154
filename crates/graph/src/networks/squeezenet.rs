//! SqueezeNet 1.1 as in torchvision.

use super::net::{Built, Net, Scheme, named};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::{Graph, TensorId};
use crate::op::{Unary, Window};

/// Index in torchvision's Sequential, squeezed channels, expanded channels of each branch; a pooling
/// stands where the index skips one.
const FIRES: [(usize, usize, usize); 8] = [
    (3, 16, 64),
    (4, 16, 64),
    (6, 32, 128),
    (7, 32, 128),
    (9, 48, 192),
    (10, 48, 192),
    (11, 64, 256),
    (12, 64, 256),
];

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    named(name, squeezenet(name, choices))
}

fn squeezenet(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 3, Scheme::FanInUniform)?;
    let pool = Window::square(3).stride(2);
    let first = if choices.small {
        Window::square(3).pad(1)
    } else {
        pool
    };
    let x = net.conv("features.0", x, 64, first, 1, true)?;
    let mut x = net.unary("features.1", Unary::Relu, x)?;
    let mut next = 2;
    for (index, squeezed, expanded) in FIRES {
        if index != next {
            x = net.max_pool_ceil(&format!("features.{next}"), x, pool)?;
        }
        x = fire(
            &mut net,
            &format!("features.{index}"),
            x,
            squeezed,
            expanded,
        )?;
        next = index + 1;
    }
    x = net.dropout("classifier.0", x, choices)?;
    net.scheme = Scheme::Normal(0.01);
    let classes = choices.classes.unwrap_or(1000);
    x = net.conv("classifier.1", x, classes, Window::square(1), 1, true)?;
    x = net.unary("classifier.2", Unary::Relu, x)?;
    let logits = net.pool_features("classifier.3", x)?;
    net.finish(logits)
}

/// A 1×1 convolution to few channels, then 1×1 and 3×3 side by side, joined.
fn fire(net: &mut Net, name: &str, x: TensorId, squeezed: usize, expanded: usize) -> Built {
    let one = Window::square(1);
    let part = |net: &mut Net, part: &str, x, channels, window| {
        let name = format!("{name}.{part}");
        let y = net.conv(&name, x, channels, window, 1, true)?;
        net.unary(&format!("{name}_relu"), Unary::Relu, y)
    };
    let x = part(net, "squeeze", x, squeezed, one)?;
    let a = part(net, "expand1x1", x, expanded, one)?;
    let b = part(net, "expand3x3", x, expanded, Window::square(3).pad(1))?;
    net.b.concat(&format!("{name}.cat"), 1, &[a, b])
}

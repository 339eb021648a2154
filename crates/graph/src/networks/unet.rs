//! XEngine's U-Net. The paper's figure 5 gives the structure: encoder blocks 0 and 1, the bottom
//! block 2, decoder blocks 3 and 4 and a final convolution 5, with skip connections 1→3, 0→4 and
//! input→5; a block is convolution, instance normalization and leaky relu, twice; blocks 2, 3 and 4
//! end in a transposed convolution.
//!
//! The paper trains the deep part of a larger U-Net, fed with a feature map of 480 channels. Here the
//! same blocks form a network of its own: an image of 3 channels goes in, channels double where the
//! map is halved (480 at the bottom by default) and halve where it is doubled, and a mask per class
//! comes out.

use super::net::{Built, Net, Scheme, named, whole_multiple};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::{Graph, TensorId};
use crate::op::{Norm, Unary, Window};

const SLOPE: f64 = 0.01;

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    whole_multiple(name, choices, 8)?;
    named(name, unet(name, choices))
}

fn unet(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let width = choices.width.unwrap_or(120);
    let gain2 = 2.0 / (1.0 + SLOPE * SLOPE);
    let (mut net, input) = Net::with_image(name, choices, 3, Scheme::FanIn { gain2 })?;
    let skip0 = block(&mut net, "block0", input, width, 2)?;
    let skip1 = block(&mut net, "block1", skip0, 2 * width, 2)?;
    let bottom = block(&mut net, "block2", skip1, 4 * width, 2)?;
    let mut x = up(&mut net, "block2", bottom, 2 * width)?;
    for (name, skip, width) in [("block3", skip1, 2 * width), ("block4", skip0, width)] {
        x = net.b.concat(&format!("{name}.cat"), 1, &[x, skip])?;
        x = block(&mut net, name, x, width, 1)?;
        x = up(&mut net, name, x, width.div_ceil(2))?;
    }
    let x = net.b.concat("block5.cat", 1, &[x, input])?;
    let classes = choices.classes.unwrap_or(2);
    let mask = net.conv("block5.conv", x, classes, Window::square(3).pad(1), 1, true)?;
    net.finish(mask)
}

/// The first convolution of an encoder block halves the map.
fn block(net: &mut Net, name: &str, mut x: TensorId, width: usize, stride: usize) -> Built {
    for (number, stride) in [(1, stride), (2, 1)] {
        let window = Window::square(3).pad(1).stride(stride);
        x = net.conv(&format!("{name}.conv{number}"), x, width, window, 1, true)?;
        x = net
            .b
            .normalize(&format!("{name}.norm{number}"), x, Norm::Instance, 1e-5)?;
        x = net.unary(
            &format!("{name}.relu{number}"),
            Unary::LeakyRelu { slope: SLOPE },
            x,
        )?;
    }
    Ok(x)
}

fn up(net: &mut Net, name: &str, x: TensorId, width: usize) -> Built {
    net.conv_transpose(&format!("{name}.up"), x, width, Window::square(2).stride(2))
}

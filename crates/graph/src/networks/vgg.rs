//! VGG-16 and VGG-19 as in torchvision, and the convolutional part that other networks build on.

use super::net::{Built, Net, Scheme, named, whole_multiple};
use super::options::{Choices, NetworkError};
use crate::error::GraphError;
use crate::graph::{Graph, Init, TensorId};
use crate::op::{Op, Unary, Window};

/// Convolutions per block of configuration D: VGG-16.
pub(super) const D: [usize; 5] = [2, 2, 3, 3, 3];
/// Convolutions per block of configuration E: VGG-19.
pub(super) const E: [usize; 5] = [2, 2, 4, 4, 4];

const CHANNELS: [usize; 5] = [64, 128, 256, 512, 512];

/// A classifier with two hidden layers of 4096 features on a 7×7 feature map.
pub(super) fn classifier(
    name: &str,
    choices: &Choices,
    blocks: &[usize; 5],
) -> Result<Graph, NetworkError> {
    whole_multiple(name, choices, 32)?;
    named(name, build(name, choices, blocks))
}

fn build(name: &str, choices: &Choices, blocks: &[usize; 5]) -> Result<Graph, GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 3, Scheme::FanOut)?;
    let mut x = *features(&mut net, x, blocks, true)?
        .last()
        .expect("there are five blocks");
    x = adaptive_pool(&mut net, x, 7)?;
    x = net.b.flatten("flatten", x)?;
    // torchvision numbers the layers of its Sequential; relu and dropout count.
    for (layer, index) in [(1, 0), (2, 3)] {
        let init = Init::Normal { std: 0.01 };
        x = net.linear(&format!("classifier.{index}"), x, 4096, init)?;
        x = net.unary(&format!("classifier.relu{layer}"), Unary::Relu, x)?;
        x = net.dropout(&format!("classifier.dropout{layer}"), x, choices)?;
    }
    let classes = choices.classes.unwrap_or(1000);
    let logits = net.linear("classifier.6", x, classes, Init::Normal { std: 0.01 })?;
    net.finish(logits)
}

/// Convolutions, relu and pooling alone, without biases; the output is the mean of the squares of the last feature
/// map, which makes a loss.
pub(super) fn trunk(
    name: &str,
    choices: &Choices,
    blocks: &[usize; 5],
) -> Result<Graph, NetworkError> {
    named(name, build_trunk(name, choices, blocks))
}

fn build_trunk(name: &str, choices: &Choices, blocks: &[usize; 5]) -> Result<Graph, GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 3, Scheme::FanOut)?;
    let maps = features(&mut net, x, blocks, false)?;
    let loss = net.mean_square("loss", *maps.last().expect("there are five blocks"))?;
    net.finish(loss)
}

/// For images of 32×32: batch normalization after each convolution, and one linear layer.
pub(super) fn small(
    name: &str,
    choices: &Choices,
    blocks: &[usize; 5],
) -> Result<Graph, NetworkError> {
    whole_multiple(name, choices, 32)?;
    named(name, build_small(name, choices, blocks))
}

fn build_small(name: &str, choices: &Choices, blocks: &[usize; 5]) -> Result<Graph, GraphError> {
    let (mut net, mut x) = Net::with_image(name, choices, 3, Scheme::FanOut)?;
    for (block, (&count, channels)) in (1..).zip(blocks.iter().zip(CHANNELS)) {
        for layer in 1..=count {
            let name = format!("block{block}.{layer}");
            let window = Window::square(3).pad(1);
            x = net.conv(&format!("{name}.conv"), x, channels, window, 1, false)?;
            x = net.batch_norm(&format!("{name}.bn"), x)?;
            x = net.unary(&format!("{name}.relu"), Unary::Relu, x)?;
        }
        x = net.halve(&format!("block{block}.pool"), x)?;
    }
    let x = net.pool_features("avgpool", x)?;
    let init = Init::Normal { std: 0.01 };
    let logits = net.linear("classifier", x, choices.classes.unwrap_or(10), init)?;
    net.finish(logits)
}

/// The convolutional part: the feature map after each block's pooling, at 1/2, 1/4, … of the image.
pub(super) fn features(
    net: &mut Net,
    mut x: TensorId,
    blocks: &[usize],
    bias: bool,
) -> Result<Vec<TensorId>, GraphError> {
    let mut index = 0;
    let mut maps = Vec::new();
    for (block, (&count, channels)) in blocks.iter().zip(CHANNELS).enumerate() {
        for _ in 0..count {
            let name = format!("features.{index}");
            x = net.conv(&name, x, channels, Window::square(3).pad(1), 1, bias)?;
            x = net.unary(&format!("{name}.relu"), Unary::Relu, x)?;
            index += 2;
        }
        x = net.halve(&format!("features.pool{}", block + 1), x)?;
        maps.push(x);
        index += 1;
    }
    Ok(maps)
}

/// Average pooling to `size`×`size` whatever the input: output i averages the inputs from
/// ⌊i·n/size⌋ to ⌈(i+1)·n/size⌉. Where windows are uneven, by products with averaging matrices.
fn adaptive_pool(net: &mut Net, x: TensorId, size: usize) -> Built {
    let [_, _, height, width] = net.four(x);
    if [height, width] == [size, size] {
        return Ok(x);
    }
    if height.is_multiple_of(size) && width.is_multiple_of(size) {
        let mut window = Window::rect(height / size, width / size);
        window.stride = window.kernel;
        return net.b.avg_pool("avgpool", x, window);
    }
    let rows = averages(net, "avgpool.rows", size, height)?;
    let columns = averages(net, "avgpool.columns", size, width)?;
    let product = |trans_b| Op::MatMul {
        trans_a: false,
        trans_b,
    };
    let x = net.b.add1("avgpool.height", product(false), &[rows, x])?;
    net.b.add1("avgpool", product(true), &[x, columns])
}

/// The matrix [size, length] that averages as [`adaptive_pool`] says.
fn averages(net: &mut Net, name: &str, size: usize, length: usize) -> Built {
    let mut matrix = vec![0.0; size * length];
    for (i, row) in matrix.chunks_mut(length).enumerate() {
        let (start, end) = (i * length / size, ((i + 1) * length).div_ceil(size));
        row[start..end].fill(1.0 / (end - start) as f32);
    }
    net.b
        .constant(name, &[size, length], Init::Floats(matrix.into()))
}

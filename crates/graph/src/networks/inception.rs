//! Inception v3 as in torchvision, without the auxiliary classifier and the input transform.

use super::net::{Built, Net, Scheme, named};
use super::options::{Choices, NetworkError, value_error};
use crate::error::GraphError;
use crate::graph::{Graph, Init, TensorId};
use crate::op::{Unary, Window};

pub(super) fn build(name: &str, choices: &Choices) -> Result<Graph, NetworkError> {
    let [height, width] = choices.image.unwrap_or([299, 299]);
    let least = if choices.small { 17 } else { 75 };
    if height < least || width < least {
        let requirement = format!("height and width must be at least {least}");
        return Err(value_error(
            name,
            "image",
            format!("{height}x{width}"),
            requirement,
        ));
    }
    named(name, inception(name, choices))
}

/// A convolution of a branch: name, channels, kernel, whether it halves the image.
type Layer = (&'static str, usize, [usize; 2], bool);

/// 1×1 with this many channels.
const fn one(name: &'static str, channels: usize) -> Layer {
    (name, channels, [1, 1], false)
}

fn inception(name: &str, choices: &Choices) -> Result<Graph, GraphError> {
    let (mut net, x) = Net::with_image(name, choices, 3, Scheme::Normal(0.1))?;
    net.epsilon = 1e-3;
    let (shrink, same) = (Window::square(3).stride(2), Window::square(3).pad(1));
    let (first, second) = match choices.small {
        true => (same, same),
        false => (shrink, Window::square(3)),
    };
    let x = unit(&mut net, "Conv2d_1a_3x3", x, 32, first)?;
    let x = unit(&mut net, "Conv2d_2a_3x3", x, 32, second)?;
    let mut x = unit(&mut net, "Conv2d_2b_3x3", x, 64, same)?;
    if !choices.small {
        x = net.b.max_pool("maxpool1", x, shrink)?;
    }
    x = unit(&mut net, "Conv2d_3b_1x1", x, 80, Window::square(1))?;
    x = unit(&mut net, "Conv2d_4a_3x3", x, 192, Window::square(3))?;
    if !choices.small {
        x = net.b.max_pool("maxpool2", x, shrink)?;
    }
    for (name, pooled) in [("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)] {
        x = module_a(&mut net, name, x, pooled)?;
    }
    x = module_b(&mut net, "Mixed_6a", x)?;
    for (name, c7) in [
        ("Mixed_6b", 128),
        ("Mixed_6c", 160),
        ("Mixed_6d", 160),
        ("Mixed_6e", 192),
    ] {
        x = module_c(&mut net, name, x, c7)?;
    }
    x = module_d(&mut net, "Mixed_7a", x)?;
    for name in ["Mixed_7b", "Mixed_7c"] {
        x = module_e(&mut net, name, x)?;
    }
    let x = net.pool_features("avgpool", x)?;
    let x = net.dropout("dropout", x, choices)?;
    let init = Init::Normal { std: 0.1 };
    let logits = net.linear("fc", x, choices.classes.unwrap_or(1000), init)?;
    net.finish(logits)
}

/// 35×35: 1×1, 5×5, double 3×3 and a pooled branch.
fn module_a(net: &mut Net, name: &str, x: TensorId, pooled: usize) -> Built {
    let a = branch(net, name, x, &[one("branch1x1", 64)])?;
    let b = branch(
        net,
        name,
        x,
        &[one("branch5x5_1", 48), ("branch5x5_2", 64, [5, 5], false)],
    )?;
    let c = branch(
        net,
        name,
        x,
        &[
            one("branch3x3dbl_1", 64),
            ("branch3x3dbl_2", 96, [3, 3], false),
            ("branch3x3dbl_3", 96, [3, 3], false),
        ],
    )?;
    let d = pooled_branch(net, name, x, pooled)?;
    join(net, name, &[a, b, c, d])
}

/// From 35×35 to 17×17.
fn module_b(net: &mut Net, name: &str, x: TensorId) -> Built {
    let a = branch(net, name, x, &[("branch3x3", 384, [3, 3], true)])?;
    let b = branch(
        net,
        name,
        x,
        &[
            one("branch3x3dbl_1", 64),
            ("branch3x3dbl_2", 96, [3, 3], false),
            ("branch3x3dbl_3", 96, [3, 3], true),
        ],
    )?;
    let c = net
        .b
        .max_pool(&format!("{name}.maxpool"), x, Window::square(3).stride(2))?;
    join(net, name, &[a, b, c])
}

/// 17×17, with 7×7 convolutions in two steps.
fn module_c(net: &mut Net, name: &str, x: TensorId, c7: usize) -> Built {
    let a = branch(net, name, x, &[one("branch1x1", 192)])?;
    let b = branch(
        net,
        name,
        x,
        &[
            one("branch7x7_1", c7),
            ("branch7x7_2", c7, [1, 7], false),
            ("branch7x7_3", 192, [7, 1], false),
        ],
    )?;
    let c = branch(
        net,
        name,
        x,
        &[
            one("branch7x7dbl_1", c7),
            ("branch7x7dbl_2", c7, [7, 1], false),
            ("branch7x7dbl_3", c7, [1, 7], false),
            ("branch7x7dbl_4", c7, [7, 1], false),
            ("branch7x7dbl_5", 192, [1, 7], false),
        ],
    )?;
    let d = pooled_branch(net, name, x, 192)?;
    join(net, name, &[a, b, c, d])
}

/// From 17×17 to 8×8.
fn module_d(net: &mut Net, name: &str, x: TensorId) -> Built {
    let a = branch(
        net,
        name,
        x,
        &[one("branch3x3_1", 192), ("branch3x3_2", 320, [3, 3], true)],
    )?;
    let b = branch(
        net,
        name,
        x,
        &[
            one("branch7x7x3_1", 192),
            ("branch7x7x3_2", 192, [1, 7], false),
            ("branch7x7x3_3", 192, [7, 1], false),
            ("branch7x7x3_4", 192, [3, 3], true),
        ],
    )?;
    let c = net
        .b
        .max_pool(&format!("{name}.maxpool"), x, Window::square(3).stride(2))?;
    join(net, name, &[a, b, c])
}

/// 8×8, with branches that fork into 1×3 and 3×1.
fn module_e(net: &mut Net, name: &str, x: TensorId) -> Built {
    let a = branch(net, name, x, &[one("branch1x1", 320)])?;
    let b = branch(net, name, x, &[one("branch3x3_1", 384)])?;
    let b1 = branch(net, name, b, &[("branch3x3_2a", 384, [1, 3], false)])?;
    let b2 = branch(net, name, b, &[("branch3x3_2b", 384, [3, 1], false)])?;
    let c = branch(
        net,
        name,
        x,
        &[
            one("branch3x3dbl_1", 448),
            ("branch3x3dbl_2", 384, [3, 3], false),
        ],
    )?;
    let c1 = branch(net, name, c, &[("branch3x3dbl_3a", 384, [1, 3], false)])?;
    let c2 = branch(net, name, c, &[("branch3x3dbl_3b", 384, [3, 1], false)])?;
    let d = pooled_branch(net, name, x, 192)?;
    join(net, name, &[a, b1, b2, c1, c2, d])
}

fn branch(net: &mut Net, module: &str, mut x: TensorId, layers: &[Layer]) -> Built {
    for &(name, channels, [height, width], halves) in layers {
        let window = Window::rect(height, width);
        // Convolutions that halve the image don't pad.
        let window = if halves {
            window.stride(2)
        } else {
            window.same()
        };
        x = unit(net, &format!("{module}.{name}"), x, channels, window)?;
    }
    Ok(x)
}

fn pooled_branch(net: &mut Net, module: &str, x: TensorId, channels: usize) -> Built {
    let pooled = net
        .b
        .avg_pool(&format!("{module}.avgpool"), x, Window::square(3).pad(1))?;
    unit(
        net,
        &format!("{module}.branch_pool"),
        pooled,
        channels,
        Window::square(1),
    )
}

fn join(net: &mut Net, module: &str, branches: &[TensorId]) -> Built {
    net.b.concat(&format!("{module}.cat"), 1, branches)
}

/// Convolution without bias, batch normalization, relu.
fn unit(net: &mut Net, name: &str, x: TensorId, channels: usize, window: Window) -> Built {
    let x = net.conv(&format!("{name}.conv"), x, channels, window, 1, false)?;
    let x = net.batch_norm(&format!("{name}.bn"), x)?;
    net.unary(&format!("{name}.relu"), Unary::Relu, x)
}

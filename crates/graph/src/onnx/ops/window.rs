//! Convolutions and poolings. Signals with one spatial axis are images of height 1.

use super::one;
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value, check_table, count};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::op::{Binary, Op, Reduction, Unary, Window};

/// Sizes, strides and paddings are not larger; far above any model, far below any overflow.
const MAX_EXTENT: usize = 1 << 30;

/// How an operator's windows are described.
struct Geometry {
    window: Window,
    /// How padding is found.
    auto: Auto,
    /// One spatial axis instead of two.
    flat: bool,
}

/// The attribute `auto_pad`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Auto {
    /// As given.
    Explicit,
    /// Output length ⌈input / stride⌉; an odd element of padding goes to the end.
    Upper,
    /// The same, except that the odd element goes to the beginning.
    Lower,
}

/// Two numbers from an attribute with one per spatial axis.
fn pair(
    node: &Node<'_, '_>,
    name: &'static str,
    default: usize,
    flat: bool,
) -> Outcome<[usize; 2]> {
    let Some(list) = node.attributes.ints(name)? else {
        return Ok([default, default]);
    };
    let list = bounded(list, name)?;
    match (list[..].try_into(), flat) {
        (Ok(pair), false) => Ok(pair),
        (Err(_), true) if list.len() == 1 => Ok([default, list[0]]),
        _ => invalid!("{name} has {} numbers", list.len()),
    }
}

fn bounded(list: &[i64], name: &str) -> Outcome<Vec<usize>> {
    if name == "pads" && list.iter().any(|&p| p < 0) {
        return unsupported!("negative padding");
    }
    let list: Vec<usize> = list
        .iter()
        .map(|&n| count(n, name))
        .collect::<Outcome<_>>()?;
    match list.iter().find(|&&n| n > MAX_EXTENT) {
        Some(n) => invalid!("{name} has {n}, which is too large"),
        None => Ok(list),
    }
}

fn geometry(node: &Node<'_, '_>, kernel: Option<&[usize]>) -> Outcome<Geometry> {
    let flat = match node.shape(0)?.len() {
        3 => true,
        4 => false,
        rank => return unsupported!("of a tensor with {rank} axes (3 or 4 are)"),
    };
    let kernel = match (kernel, flat) {
        (Some(&[width]), true) => [1, width],
        (Some(&[height, width]), false) => [height, width],
        (Some(kernel), _) => return invalid!("its kernel has shape {kernel:?}"),
        (None, _) => {
            if !node.attributes.has("kernel_shape") {
                return invalid!("attribute kernel_shape is missing");
            }
            pair(node, "kernel_shape", 1, flat)?
        }
    };
    let mut window = Window {
        stride: pair(node, "strides", 1, flat)?,
        dilation: pair(node, "dilations", 1, flat)?,
        ..Window::rect(kernel[0], kernel[1])
    };
    if window.stride.contains(&0) || window.dilation.contains(&0) || kernel.contains(&0) {
        return invalid!("a kernel, stride or dilation is 0");
    }
    let auto = match node.attributes.text("auto_pad", "NOTSET")? {
        "NOTSET" | "" => Auto::Explicit,
        "VALID" => Auto::Explicit,
        "SAME_UPPER" => Auto::Upper,
        "SAME_LOWER" => Auto::Lower,
        other => return invalid!("auto_pad is {other:?}"),
    };
    if let Some(pads) = node.attributes.ints("pads")? {
        match (bounded(pads, "pads")?[..].as_ref(), flat) {
            (&[before, after], true) => {
                (window.pad_begin[1], window.pad_end[1]) = (before, after);
            }
            (&[top, left, bottom, right], false) => {
                (window.pad_begin, window.pad_end) = ([top, left], [bottom, right]);
            }
            (pads, _) => return invalid!("pads has {} numbers", pads.len()),
        }
    }
    Ok(Geometry { window, auto, flat })
}

/// Elements from the first to one past the last that a window touches.
fn extent(window: &Window, axis: usize) -> usize {
    (window.kernel[axis] - 1)
        .saturating_mul(window.dilation[axis])
        .saturating_add(1)
}

/// Split padding into both ends.
fn distribute(window: &mut Window, axis: usize, total: usize, auto: Auto) {
    let (small, large) = (total / 2, total - total / 2);
    (window.pad_begin[axis], window.pad_end[axis]) = match auto {
        Auto::Lower => (large, small),
        _ => (small, large),
    };
}

/// Padding for `auto_pad` of a convolution or pooling of an input this high and wide.
fn pad_same(geometry: &mut Geometry, size: [usize; 2]) {
    if geometry.auto == Auto::Explicit {
        return;
    }
    let window = &mut geometry.window;
    for (axis, length) in size.into_iter().enumerate() {
        let outputs = length.div_ceil(window.stride[axis]);
        let reach = (outputs - 1).saturating_mul(window.stride[axis]);
        let total = reach
            .saturating_add(extent(window, axis))
            .saturating_sub(length);
        distribute(window, axis, total, geometry.auto);
    }
}

/// [N,C,L] as [N,C,1,L].
fn image(node: &mut Node<'_, '_>, part: &str, x: TensorId, flat: bool) -> Outcome<TensorId> {
    let mut shape = node.dims(x);
    if flat {
        shape.insert(2, 1);
    }
    node.view(part, x, &shape)
}

/// Back from [N,C,1,L].
fn signal(node: &mut Node<'_, '_>, y: TensorId, flat: bool) -> Outcome<Vec<Value>> {
    let mut shape = node.dims(y);
    if flat {
        shape.remove(2);
    }
    one(node.view("signal", y, &shape)?)
}

fn size(node: &Node<'_, '_>, x: TensorId) -> [usize; 2] {
    let shape = node.dims(x);
    [shape[2], shape[3]]
}

/// The kernel's height and width, which the attribute may repeat.
fn weight_kernel(node: &Node<'_, '_>) -> Outcome<Vec<usize>> {
    let shape = node.shape(1)?;
    if shape.len() < 3 {
        return invalid!("its weight has shape {shape:?}");
    }
    let kernel = shape[2..].to_vec();
    let stated = node.attributes.ints("kernel_shape")?;
    let differs = |k: &[i64]| !k.iter().copied().eq(kernel.iter().map(|&n| n as i64));
    match stated.filter(|k| differs(k)) {
        Some(stated) => invalid!("kernel_shape is {stated:?}, but its weight has shape {shape:?}"),
        None => Ok(kernel),
    }
}

pub(super) fn conv(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let kernel = weight_kernel(node)?;
    let mut geometry = geometry(node, Some(&kernel))?;
    let groups = count(node.attributes.int("group", 1)?, "group")?;
    let (x, w) = (node.x(0)?, node.weight(1)?);
    let x = image(node, "image", x, geometry.flat)?;
    let w = image(node, "kernel", w, geometry.flat)?;
    pad_same(&mut geometry, size(node, x));
    let mut inputs = vec![x, w];
    inputs.extend(node.bias(2)?);
    let window = geometry.window;
    let y = node.last(Op::Conv { window, groups }, &inputs)?;
    signal(node, y, geometry.flat)
}

/// The input gradient of the convolution with this window, whose input is as large as the output is
/// to be.
pub(super) fn conv_transpose(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let kernel = weight_kernel(node)?;
    let mut geometry = geometry(node, Some(&kernel))?;
    let groups = count(node.attributes.int("group", 1)?, "group")?;
    let flat = geometry.flat;
    let extra = pair(node, "output_padding", 0, flat)?;
    let stated = match node.attributes.ints("output_shape")? {
        None => None,
        // Some exporters state all axes.
        Some(list) => {
            let spatial = if flat { 1 } else { 2 };
            let list = bounded(&list[list.len().saturating_sub(spatial)..], "output_shape")?;
            match (list[..].as_ref(), flat) {
                (&[width], true) => Some([1, width]),
                (&[height, width], false) => Some([height, width]),
                _ => return invalid!("output_shape has {} numbers", list.len()),
            }
        }
    };
    let (x, w) = (node.x(0)?, node.weight(1)?);
    let x = image(node, "image", x, flat)?;
    let w = image(node, "kernel", w, flat)?;
    let input_hw = transposed_size(&mut geometry, size(node, x), extra, stated)?;
    let op = Op::ConvInputGrad {
        window: geometry.window,
        groups,
        input_hw,
    };
    let mut y = node.step("product", op, &[x, w])?;
    if let Some(bias) = node.bias(2)? {
        let channels = node.dims(bias).iter().product();
        let bias = node.view("bias", bias, &[channels, 1, 1])?;
        y = node.last(Op::Binary(Binary::Add), &[y, bias])?;
    }
    signal(node, y, flat)
}

fn transposed_size(
    geometry: &mut Geometry,
    size: [usize; 2],
    extra: [usize; 2],
    stated: Option<[usize; 2]>,
) -> Outcome<[usize; 2]> {
    let (auto, mut window) = (geometry.auto, geometry.window);
    let mut output = [0; 2];
    for axis in 0..2 {
        let full = (size[axis] - 1)
            .saturating_mul(window.stride[axis])
            .saturating_add(extent(&window, axis))
            .saturating_add(extra[axis]);
        let wanted = match (stated, auto) {
            (Some(stated), _) => Some(stated[axis]),
            (None, Auto::Explicit) => None,
            (None, _) => Some(size[axis].saturating_mul(window.stride[axis])),
        };
        output[axis] = match wanted {
            None => full.saturating_sub(window.pad_begin[axis] + window.pad_end[axis]),
            Some(wanted) => {
                // Where the output is larger than all products, the rest stays 0.
                let total = full.saturating_sub(wanted);
                // The odd element goes to the beginning unless SAME_UPPER.
                let ends = if auto == Auto::Upper {
                    Auto::Upper
                } else {
                    Auto::Lower
                };
                distribute(&mut window, axis, total, ends);
                wanted
            }
        };
        if output[axis] == 0 || output[axis] > MAX_EXTENT {
            return invalid!("its output would have length {}", output[axis]);
        }
    }
    geometry.window = window;
    Ok(output)
}

/// Lets the last window hang over the end where `ceil_mode` asks for it. Returns by how much, per axis.
fn round_up(node: &Node<'_, '_>, window: &mut Window, size: [usize; 2]) -> Outcome<[usize; 2]> {
    let mut hanging = [0; 2];
    if !node.attributes.flag("ceil_mode", false)? {
        return Ok(hanging);
    }
    for axis in 0..2 {
        let (stride, begin) = (window.stride[axis], window.pad_begin[axis]);
        let padded = size[axis] + begin + window.pad_end[axis];
        let Some(free) = padded.checked_sub(extent(window, axis)) else {
            return invalid!("its window is larger than its padded input");
        };
        let mut outputs = free.div_ceil(stride) + 1;
        // A window that would start in the padding at the end is left out.
        if (outputs - 1) * stride >= size[axis] + begin {
            outputs -= 1;
        }
        let reach = (outputs - 1) * stride + extent(window, axis);
        hanging[axis] = reach.saturating_sub(padded);
        window.pad_end[axis] += hanging[axis];
    }
    Ok(hanging)
}

pub(super) fn max_pool(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["storage_order"]);
    node.unused_outputs(1)?;
    let mut geometry = geometry(node, None)?;
    let x = node.x(0)?;
    let x = image(node, "image", x, geometry.flat)?;
    pad_same(&mut geometry, size(node, x));
    let mut window = geometry.window;
    round_up(node, &mut window, size(node, x))?;
    let y = node.last(Op::MaxPool { window }, &[x])?;
    signal(node, y, geometry.flat)
}

pub(super) fn average_pool(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let mut geometry = geometry(node, None)?;
    let count_pad = node.attributes.flag("count_include_pad", false)?;
    let x = node.x(0)?;
    let x = image(node, "image", x, geometry.flat)?;
    let size = size(node, x);
    pad_same(&mut geometry, size);
    let mut window = geometry.window;
    let hanging = round_up(node, &mut window, size)?;
    let mut y = node.last(Op::AvgPool { window, count_pad }, &[x])?;
    if count_pad && hanging != [0, 0] {
        y = uncount(node, y, &window, size, hanging)?;
    }
    signal(node, y, geometry.flat)
}

/// Padding counts in the mean, but not what a window hangs over the padded end: multiply by what
/// was divided by and divide by what counts.
fn uncount(
    node: &mut Node<'_, '_>,
    y: TensorId,
    window: &Window,
    size: [usize; 2],
    hanging: [usize; 2],
) -> Outcome<TensorId> {
    let shape = node.dims(y);
    let factors = |axis: usize| -> Vec<f64> {
        let end = size[axis] + window.pad_begin[axis] + window.pad_end[axis] - hanging[axis];
        let counts = (0..shape[2 + axis]).map(|i| {
            let start = i * window.stride[axis];
            let element = |k: usize| start + k * window.dilation[axis];
            (0..window.kernel[axis])
                .filter(|&k| element(k) < end)
                .count()
        });
        counts
            .map(|n| window.kernel[axis] as f64 / n.max(1) as f64)
            .collect()
    };
    check_table(&shape[2..])?;
    let (rows, columns) = (factors(0), factors(1));
    let values = rows
        .iter()
        .flat_map(|r| columns.iter().map(move |c| (r * c) as f32))
        .collect();
    let factor = node.constant("counted", &[shape[2], shape[3]], values)?;
    node.zip("recounted", Binary::Mul, y, factor)
}

pub(super) fn global_average_pool(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let rank = node.dims(x).len();
    let op = Op::Reduce {
        kind: Reduction::Mean,
        axes: (2..rank).collect(),
        keep_dims: true,
    };
    one(node.last(op, &[x])?)
}

/// A pooling whose window is the whole map.
pub(super) fn global_max_pool(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let mut shape = node.dims(x);
    if shape.len() < 3 {
        return invalid!("it needs at least three axes");
    }
    let length = shape[2..].iter().product();
    let flat = node.view("flat", x, &[shape[0], shape[1], 1, length])?;
    let window = Window::rect(1, length);
    let y = node.last(Op::MaxPool { window }, &[flat])?;
    shape[2..].fill(1);
    one(node.view("shape", y, &shape)?)
}

/// x / (bias + alpha · mean of x² over neighbouring channels)^beta: the mean is an average pooling
/// over the channels of an image whose height they are.
pub(super) fn local_response(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let alpha = node.attributes.float("alpha", 1e-4)?;
    let beta = node.attributes.float("beta", 0.75)?;
    let bias = node.attributes.float("bias", 1.0)?;
    let width = count(node.attributes.required_int("size")?, "size")?;
    if !(1..=MAX_EXTENT).contains(&width) {
        return invalid!("size is {width}");
    }
    let x = node.x(0)?;
    let shape = node.dims(x);
    if shape.len() < 3 {
        return invalid!("it needs at least three axes");
    }
    let inner = shape[2..].iter().product();
    let square = node.zip("square", Binary::Mul, x, x)?;
    let columns = node.view("columns", square, &[shape[0], 1, shape[1], inner])?;
    let mut window = Window::rect(width, 1);
    (window.pad_begin[0], window.pad_end[0]) = ((width - 1) / 2, width / 2);
    let op = Op::AvgPool {
        window,
        count_pad: true,
    };
    let mean = node.step("mean", op, &[columns])?;
    let mean = node.view("channels", mean, &shape)?;
    let line = Unary::Affine {
        scale: alpha,
        shift: bias,
    };
    let base = node.map("base", line, mean)?;
    let factor = node.map("factor", Unary::Pow { exponent: -beta }, base)?;
    one(node.last(Op::Binary(Binary::Mul), &[x, factor])?)
}

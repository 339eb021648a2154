//! Resize and Upsample, axis by axis: where each output position is made of one input position, a gather (by whole
//! factors a nearest-neighbour resize), where of several a product with a constant matrix.

use super::interpolate::{Axis, Interpolation, ResizeMode, Taps, taps};
use super::one;
use crate::dtype::DType;
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value, axis, check_size, check_table, count};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::op::{Binary, Op};

pub(super) fn upsample(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let shape = node.shape(0)?;
    let scales = match node.attributes.floats("scales")? {
        Some(scales) => scales.to_vec(),
        None => node.literal(1, "scales")?.to_floats(),
    };
    let mode = ResizeMode {
        coordinates: "asymmetric".into(),
        rounding: "floor".into(),
        interpolation: match node.attributes.text("mode", "nearest")? {
            "nearest" => Interpolation::Nearest,
            "linear" | "bilinear" => Interpolation::Linear,
            other => return unsupported!("mode {other:?}"),
        },
        exclude_outside: false,
        antialias: false,
    };
    let named: Vec<usize> = (0..shape.len()).collect();
    let axes = by_scales(&shape, &named, &scales)?;
    apply(node, &axes, &mode, 0.0)
}

pub(super) fn resize(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let shape = node.shape(0)?;
    let mode = mode(node)?;
    let named: Vec<usize> = match node.attributes.ints("axes")? {
        Some(list) => list
            .iter()
            .map(|&a| axis(a, shape.len()))
            .collect::<Outcome<_>>()?,
        None => (0..shape.len()).collect(),
    };
    let first = if node.opset() < 11 { 1 } else { 2 };
    let scales = match node.has(first) {
        true => node.literal(first, "scales")?.to_floats(),
        false => Vec::new(),
    };
    let mut axes = if !scales.is_empty() {
        by_scales(&shape, &named, &scales)?
    } else {
        let sizes = node.ints(3, "sizes")?;
        let policy = node
            .attributes
            .text("keep_aspect_ratio_policy", "stretch")?;
        by_sizes(&shape, &named, &sizes, policy)?
    };
    node.attributes.ignore(&["keep_aspect_ratio_policy"]);
    let outside = node.attributes.float("extrapolation_value", 0.0)?;
    if mode.coordinates == "tf_crop_and_resize" {
        crop(node, &named, &mut axes)?;
    }
    apply(node, &axes, &mode, outside)
}

fn mode(node: &Node<'_, '_>) -> Outcome<ResizeMode> {
    let a = &node.attributes;
    let old = node.opset() < 11;
    let interpolation = match a.text("mode", "nearest")? {
        "nearest" => Interpolation::Nearest,
        "linear" => Interpolation::Linear,
        "cubic" => Interpolation::Cubic {
            a: a.float("cubic_coeff_a", -0.75)?,
        },
        other => return unsupported!("mode {other:?}"),
    };
    let coordinates = if old { "asymmetric" } else { "half_pixel" };
    let rounding = if old { "floor" } else { "round_prefer_floor" };
    a.ignore(&["cubic_coeff_a"]);
    Ok(ResizeMode {
        coordinates: a
            .text("coordinate_transformation_mode", coordinates)?
            .to_owned(),
        rounding: a.text("nearest_mode", rounding)?.to_owned(),
        interpolation,
        exclude_outside: a.flag("exclude_outside", false)?,
        antialias: a.flag("antialias", false)?,
    })
}

/// Which part of each named axis is resized: input 1 has all beginnings, then all ends.
fn crop(node: &Node<'_, '_>, named: &[usize], axes: &mut [Axis]) -> Outcome<()> {
    let region = node.literal(1, "a region")?.to_floats();
    if region.len() != 2 * named.len() || region.iter().any(|x| !x.is_finite()) {
        return invalid!(
            "its region {region:?} has not two numbers for each of {} axes",
            named.len()
        );
    }
    for (i, &axis) in named.iter().enumerate() {
        axes[axis].crop = [region[i], region[named.len() + i]].map(f64::from);
    }
    Ok(())
}

fn unchanged(shape: &[usize]) -> Vec<Axis> {
    shape
        .iter()
        .map(|&length| Axis::unchanged(length))
        .collect()
}

fn by_scales(shape: &[usize], named: &[usize], scales: &[f32]) -> Outcome<Vec<Axis>> {
    if scales.len() != named.len() {
        return invalid!("{} scales for {} axes", scales.len(), named.len());
    }
    let mut axes = unchanged(shape);
    for (&i, &scale) in named.iter().zip(scales) {
        let scale = f64::from(scale);
        let output = (shape[i] as f64 * scale).floor();
        if !(scale > 0.0 && (1.0..1e9).contains(&output)) {
            return invalid!("scale {scale} of {} elements", shape[i]);
        }
        (axes[i].output, axes[i].scale) = (output as usize, scale);
    }
    Ok(axes)
}

/// Scales are those that reach the sizes, or with a policy one scale for all axes: the largest that
/// doesn't exceed them, or the smallest that reaches them.
fn by_sizes(shape: &[usize], named: &[usize], sizes: &[i64], policy: &str) -> Outcome<Vec<Axis>> {
    if sizes.len() != named.len() {
        return invalid!("{} sizes for {} axes", sizes.len(), named.len());
    }
    let mut axes = unchanged(shape);
    for (&i, &size) in named.iter().zip(sizes) {
        let output = count(size, "a size")?;
        (axes[i].output, axes[i].scale) = (output, output as f64 / shape[i] as f64);
    }
    let scales = named.iter().map(|&i| axes[i].scale);
    let common = match policy {
        "stretch" => None,
        "not_larger" => scales.reduce(f64::min),
        "not_smaller" => scales.reduce(f64::max),
        other => return unsupported!("keep_aspect_ratio_policy {other:?}"),
    };
    for &i in named {
        if let Some(scale) = common {
            axes[i].output = (scale * shape[i] as f64).round() as usize;
            axes[i].scale = scale;
        }
        if !(1..1 << 30).contains(&axes[i].output) {
            return invalid!("a size is {}", axes[i].output);
        }
    }
    Ok(axes)
}

/// Positions outside of a crop take the value `outside`.
fn apply(
    node: &mut Node<'_, '_>,
    axes: &[Axis],
    mode: &ResizeMode,
    outside: f64,
) -> Outcome<Vec<Value>> {
    let output: Vec<usize> = axes.iter().map(|a| a.output).collect();
    check_size(&output, DType::F32)?;
    for axis in axes {
        check_table(&[axis.output])?;
    }
    let mut x = node.x(0)?;
    let taps: Vec<Taps> = axes
        .iter()
        .map(|&axis| taps(axis, mode))
        .collect::<Outcome<_>>()?;
    if let Some(factor) = whole_factors(&taps, axes) {
        return one(node.last(Op::ResizeNearest { factor }, &[x])?);
    }
    for (i, (axis, taps)) in axes.iter().zip(&taps).enumerate() {
        x = resample(node, x, i, *axis, taps)?;
    }
    if outside != 0.0 && taps.iter().flatten().any(Vec::is_empty) {
        x = fill(node, x, &taps, outside)?;
    }
    one(x)
}

/// Adds a value where any axis has no input position, which is 0 so far.
fn fill(node: &mut Node<'_, '_>, x: TensorId, taps: &[Taps], value: f64) -> Outcome<TensorId> {
    // Axes that are inside everywhere have one entry.
    let inside = |axis: &Taps| match axis.iter().any(Vec::is_empty) {
        true => axis.iter().map(|taps| !taps.is_empty()).collect(),
        false => vec![true],
    };
    let inside: Vec<Vec<bool>> = taps.iter().map(inside).collect();
    let shape: Vec<usize> = inside.iter().map(Vec::len).collect();
    check_table(&shape)?;
    let mut all = vec![true];
    for axis in &inside {
        all = all
            .iter()
            .flat_map(|&a| axis.iter().map(move |&b| a && b))
            .collect();
    }
    let values = all
        .into_iter()
        .map(|inside| if inside { 0.0 } else { value as f32 });
    let values = node.constant("outside", &shape, values.collect())?;
    node.last(Op::Binary(Binary::Add), &[x, values])
}

/// Height and width factors of a nearest-neighbour resize of an image by repeating elements.
fn whole_factors(taps: &[Taps], axes: &[Axis]) -> Option<[usize; 2]> {
    let repeats = |i: usize| {
        let factor = axes[i].output / axes[i].input;
        let repeated = |(o, w): (usize, &Vec<(usize, f64)>)| w[..] == [(o / factor, 1.0)];
        let whole = factor > 0 && axes[i].output == factor * axes[i].input;
        (whole && taps[i].iter().enumerate().all(repeated)).then_some(factor)
    };
    match axes.len() {
        4 if repeats(0)? == 1 && repeats(1)? == 1 => Some([repeats(2)?, repeats(3)?]),
        _ => None,
    }
}

fn resample(
    node: &mut Node<'_, '_>,
    x: TensorId,
    i: usize,
    axis: Axis,
    taps: &Taps,
) -> Outcome<TensorId> {
    let part = format!("axis{i}");
    if taps.iter().all(|w| w.len() == 1 && w[0].1 == 1.0) {
        let indices = taps.iter().map(|w| w[0].0 as i64).collect();
        return node.take(&part, x, i, indices);
    }
    let shape = [axis.output, axis.input];
    check_table(&shape)?;
    let mut matrix = vec![0.0f64; axis.output * axis.input];
    for (row, taps) in matrix.chunks_mut(axis.input).zip(taps) {
        taps.iter().for_each(|&(i, w)| row[i] += w);
    }
    let matrix = matrix.into_iter().map(|w| w as f32).collect();
    let matrix = node.constant(&format!("{part}.weights"), &shape, matrix)?;
    let product = |trans_b| Op::MatMul {
        trans_a: false,
        trans_b,
    };
    let mut shape = node.dims(x);
    match shape.len() - i {
        1 if i > 0 => return node.step(&part, product(true), &[x, matrix]),
        2 => return node.step(&part, product(false), &[matrix, x]),
        _ => {}
    }
    let [outer, inner] = [&shape[..i], &shape[i + 1..]].map(|part| part.iter().product());
    shape[i] = axis.output;
    let columns = node.view(&format!("{part}.columns"), x, &[outer, axis.input, inner])?;
    let y = node.step(&part, product(false), &[matrix, columns])?;
    node.view(&format!("{part}.shape"), y, &shape)
}

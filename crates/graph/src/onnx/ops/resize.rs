//! Resize and Upsample. Every mode is a list, per output position, of input positions and weights:
//! one position each is a gather (by whole factors a nearest-neighbour resize), several are a
//! product with a constant matrix.

use super::one;
use crate::graph::{DType, TensorId};
use crate::onnx::context::{Node, Value, axis, check_size, check_table, count};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::op::Op;

/// For each output position, input positions and their weights.
type Weights = Vec<Vec<(usize, f64)>>;

/// How positions and values are found.
struct Mode {
    coordinates: String,
    rounding: String,
    interpolation: Interpolation,
    exclude_outside: bool,
}

#[derive(Clone, Copy)]
enum Interpolation {
    Nearest,
    Linear,
    Cubic {
        /// Keys's coefficient a.
        a: f64,
    },
}

/// One axis: lengths before and after, and the scale that coordinates use.
#[derive(Clone, Copy)]
struct Axis {
    input: usize,
    output: usize,
    scale: f64,
}

pub(super) fn upsample(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let shape = node.shape(0)?;
    let scales = match node.attributes.floats("scales")? {
        Some(scales) => scales.to_vec(),
        None => node.literal(1, "scales")?.to_floats(),
    };
    let mode = Mode {
        coordinates: "asymmetric".into(),
        rounding: "floor".into(),
        interpolation: match node.attributes.text("mode", "nearest")? {
            "nearest" => Interpolation::Nearest,
            "linear" | "bilinear" => Interpolation::Linear,
            other => return unsupported!("mode {other:?}"),
        },
        exclude_outside: false,
    };
    let named: Vec<usize> = (0..shape.len()).collect();
    let axes = by_scales(&shape, &named, &scales)?;
    apply(node, &axes, &mode)
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
    let axes = if !scales.is_empty() {
        by_scales(&shape, &named, &scales)?
    } else {
        let sizes = node.ints(3, "sizes")?;
        let policy = node
            .attributes
            .text("keep_aspect_ratio_policy", "stretch")?;
        by_sizes(&shape, &named, &sizes, policy)?
    };
    node.attributes.ignore(&["keep_aspect_ratio_policy"]);
    apply(node, &axes, &mode)
}

fn mode(node: &Node<'_, '_>) -> Outcome<Mode> {
    let a = &node.attributes;
    a.ignore(&["extrapolation_value"]);
    let old = node.opset() < 11;
    let interpolation = match a.text("mode", "nearest")? {
        "nearest" => Interpolation::Nearest,
        "linear" => Interpolation::Linear,
        "cubic" => Interpolation::Cubic {
            a: a.float("cubic_coeff_a", -0.75)?,
        },
        other => return unsupported!("mode {other:?}"),
    };
    if a.flag("antialias", false)? && !matches!(interpolation, Interpolation::Nearest) {
        return unsupported!("attribute antialias");
    }
    let coordinates = if old { "asymmetric" } else { "half_pixel" };
    let rounding = if old { "floor" } else { "round_prefer_floor" };
    a.ignore(&["cubic_coeff_a"]);
    Ok(Mode {
        coordinates: a
            .text("coordinate_transformation_mode", coordinates)?
            .to_owned(),
        rounding: a.text("nearest_mode", rounding)?.to_owned(),
        interpolation,
        exclude_outside: a.flag("exclude_outside", false)?,
    })
}

fn unchanged(shape: &[usize]) -> Vec<Axis> {
    let keep = |&n: &usize| Axis {
        input: n,
        output: n,
        scale: 1.0,
    };
    shape.iter().map(keep).collect()
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

fn apply(node: &mut Node<'_, '_>, axes: &[Axis], mode: &Mode) -> Outcome<Vec<Value>> {
    let output: Vec<usize> = axes.iter().map(|a| a.output).collect();
    check_size(&output, DType::F32)?;
    for axis in axes {
        check_table(&[axis.output])?;
    }
    let mut x = node.x(0)?;
    let weights: Vec<Weights> = axes
        .iter()
        .map(|&axis| weights(axis, mode))
        .collect::<Outcome<_>>()?;
    if let Some(factor) = whole_factors(&weights, axes) {
        return one(node.last(Op::ResizeNearest { factor }, &[x])?);
    }
    for (i, (axis, weights)) in axes.iter().zip(&weights).enumerate() {
        x = resample(node, x, i, *axis, weights)?;
    }
    one(x)
}

/// Height and width factors of a nearest-neighbour resize of an image by repeating elements.
fn whole_factors(weights: &[Weights], axes: &[Axis]) -> Option<[usize; 2]> {
    let repeats = |i: usize| {
        let factor = axes[i].output / axes[i].input;
        let repeated = |(o, w): (usize, &Vec<(usize, f64)>)| w[..] == [(o / factor, 1.0)];
        let whole = factor > 0 && axes[i].output == factor * axes[i].input;
        (whole && weights[i].iter().enumerate().all(repeated)).then_some(factor)
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
    weights: &Weights,
) -> Outcome<TensorId> {
    let part = format!("axis{i}");
    if weights.iter().all(|w| w.len() == 1 && w[0].1 == 1.0) {
        let indices = weights.iter().map(|w| w[0].0 as i64).collect();
        return node.take(&part, x, i, indices);
    }
    let shape = [axis.output, axis.input];
    check_table(&shape)?;
    let mut matrix = vec![0.0f64; axis.output * axis.input];
    for (row, weights) in matrix.chunks_mut(axis.input).zip(weights) {
        weights.iter().for_each(|&(i, w)| row[i] += w);
    }
    let matrix = matrix.into_iter().map(|w| w as f32).collect();
    let matrix = node.constant(&format!("{part}.weights"), &shape, matrix)?;
    let rank = node.dims(x).len();
    let product = |trans_b| Op::MatMul {
        trans_a: false,
        trans_b,
    };
    match rank - i {
        1 if rank > 1 => node.step(&part, product(true), &[x, matrix]),
        2 => node.step(&part, product(false), &[matrix, x]),
        _ => unsupported!("by interpolation along axis {i} of {rank} (only the last two are)"),
    }
}

fn weights(axis: Axis, mode: &Mode) -> Outcome<Weights> {
    if axis.input == axis.output && axis.scale == 1.0 {
        return Ok((0..axis.input).map(|i| vec![(i, 1.0)]).collect());
    }
    let mut rows = Vec::with_capacity(axis.output);
    for i in 0..axis.output {
        let at = coordinate(i, axis, &mode.coordinates)?;
        let taps = match mode.interpolation {
            Interpolation::Nearest => vec![(round(at, &mode.rounding)?, 1.0)],
            Interpolation::Linear => {
                // Outside the input, linear interpolation repeats the border.
                let at = at.clamp(0.0, axis.input as f64 - 1.0);
                let low = at.floor();
                vec![(low, 1.0 - (at - low)), (low + 1.0, at - low)]
            }
            Interpolation::Cubic { a } => cubic(at, a),
        };
        rows.push(within(taps, axis.input, mode.exclude_outside)?);
    }
    Ok(rows)
}

/// The input coordinate of output position `i`.
fn coordinate(i: usize, axis: Axis, mode: &str) -> Outcome<f64> {
    let (input, output) = (axis.input as f64, axis.output as f64);
    let half = (i as f64 + 0.5) / axis.scale;
    Ok(match mode {
        "half_pixel" => half - 0.5,
        "pytorch_half_pixel" if axis.output == 1 => 0.0,
        "pytorch_half_pixel" => half - 0.5,
        "half_pixel_symmetric" => {
            let adjustment = output / (axis.scale * input);
            input / 2.0 * (1.0 - adjustment) + half - 0.5
        }
        "tf_half_pixel_for_nn" => half,
        // The length that is asked for, not rounded.
        "align_corners" if axis.scale * input == 1.0 => 0.0,
        "align_corners" => i as f64 * (input - 1.0) / (axis.scale * input - 1.0),
        "asymmetric" => i as f64 / axis.scale,
        other => return unsupported!("coordinate_transformation_mode {other:?}"),
    })
}

fn round(at: f64, mode: &str) -> Outcome<f64> {
    Ok(match mode {
        "round_prefer_floor" => (at - 0.5).ceil(),
        "round_prefer_ceil" => (at + 0.5).floor(),
        "floor" => at.floor(),
        "ceil" => at.ceil(),
        other => return unsupported!("nearest_mode {other:?}"),
    })
}

/// Keys's kernel at the four positions around `at`.
fn cubic(at: f64, a: f64) -> Vec<(f64, f64)> {
    let low = at.floor();
    let t = at - low;
    let near = |d: f64| ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0;
    let far = |d: f64| ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
    vec![
        (low - 1.0, far(1.0 + t)),
        (low, near(t)),
        (low + 1.0, near(1.0 - t)),
        (low + 2.0, far(2.0 - t)),
    ]
}

/// Positions outside the input count as the border, or not at all.
fn within(taps: Vec<(f64, f64)>, length: usize, exclude: bool) -> Outcome<Vec<(usize, f64)>> {
    let last = length as f64 - 1.0;
    let kept = taps
        .into_iter()
        .filter(|&(at, w)| w != 0.0 && (!exclude || (0.0..=last).contains(&at)));
    let kept: Vec<(usize, f64)> = kept
        .map(|(at, w)| (at.clamp(0.0, last) as usize, w))
        .collect();
    let total: f64 = kept.iter().map(|tap| tap.1).sum();
    if kept.is_empty() || total == 0.0 {
        return invalid!("its weights add up to nothing");
    }
    let scale = if exclude { 1.0 / total } else { 1.0 };
    Ok(kept.into_iter().map(|(i, w)| (i, w * scale)).collect())
}

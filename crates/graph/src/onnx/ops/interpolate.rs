//! Interpolation along one axis: for each output position, the input positions that it is made of and their
//! weights (taps).

use crate::onnx::context::check_table;
use crate::onnx::error::{Outcome, invalid, unsupported};

/// For each output position, input positions and their weights; no position where it is outside of a crop.
pub(super) type Taps = Vec<Vec<(usize, f64)>>;

/// How positions and values are found.
pub(super) struct ResizeMode {
    pub(super) coordinates: String,
    pub(super) rounding: String,
    pub(super) interpolation: Interpolation,
    /// Positions outside the input don't count; else they are the border.
    pub(super) exclude_outside: bool,
    /// Where there are fewer output than input positions, each is made of as many of these as it stands for.
    pub(super) antialias: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Interpolation {
    Nearest,
    Linear,
    Cubic {
        /// Keys's coefficient a.
        a: f64,
    },
}

/// One axis: lengths before and after, and the scale that coordinates use.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) scale: f64,
    /// First and last position of a crop, as parts of the length.
    pub(super) crop: [f64; 2],
}

impl Axis {
    /// An axis that stays as it is.
    pub(super) fn unchanged(length: usize) -> Axis {
        Axis {
            input: length,
            output: length,
            scale: 1.0,
            crop: [0.0, 1.0],
        }
    }

    fn is_unchanged(&self) -> bool {
        self.input == self.output && self.scale == 1.0 && self.crop == [0.0, 1.0]
    }
}

pub(super) fn taps(axis: Axis, mode: &ResizeMode) -> Outcome<Taps> {
    if axis.is_unchanged() {
        return Ok((0..axis.input).map(|i| vec![(i, 1.0)]).collect());
    }
    check_table(&[axis.input])?;
    let last = axis.input as f64 - 1.0;
    let crops = mode.coordinates == "tf_crop_and_resize";
    let mut rows = Vec::with_capacity(axis.output);
    for i in 0..axis.output {
        let at = coordinate(i, axis, &mode.coordinates)?;
        if crops && !(0.0..=last).contains(&at) {
            rows.push(Vec::new());
            continue;
        }
        let narrow = mode.antialias && axis.scale < 1.0;
        let taps = match mode.interpolation {
            Interpolation::Nearest => vec![(round(at, &mode.rounding)?, 1.0)],
            Interpolation::Linear if narrow => widened(at, axis.scale, 1.0, triangle),
            Interpolation::Cubic { a } if narrow => {
                widened(at, axis.scale, 2.0, |distance| keys(distance, a))
            }
            Interpolation::Linear => {
                // Outside the input, linear interpolation repeats the border.
                let at = at.clamp(0.0, last);
                let low = at.floor();
                vec![(low, 1.0 - (at - low)), (low + 1.0, at - low)]
            }
            Interpolation::Cubic { a } => widened(at, 1.0, 2.0, |distance| keys(distance, a)),
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
        "tf_crop_and_resize" => {
            let [begin, end] = axis.crop;
            let length = axis.scale * input;
            // Of one position, the middle.
            let part = match length == 1.0 {
                true => 0.5,
                false => i as f64 / (length - 1.0),
            };
            (begin + part * (end - begin)) * (input - 1.0)
        }
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

/// The positions around `at` that a kernel which reaches this far touches, stretched by 1 / scale. Their taps
/// add up to 1.
fn widened(at: f64, scale: f64, reach: f64, kernel: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let reach = reach / scale;
    let (first, last) = (
        (at - reach).floor() as i64 + 1,
        (at + reach).ceil() as i64 - 1,
    );
    let weight = |i: i64| (i as f64, kernel((i as f64 - at).abs() * scale));
    let mut taps: Vec<(f64, f64)> = (first..=last).map(weight).collect();
    let total: f64 = taps.iter().map(|tap| tap.1).sum();
    taps.iter_mut().for_each(|tap| tap.1 /= total);
    taps
}

fn triangle(distance: f64) -> f64 {
    (1.0 - distance).max(0.0)
}

/// Keys's cubic kernel with coefficient a, for distances up to 2.
fn keys(distance: f64, a: f64) -> f64 {
    let d = distance;
    match d <= 1.0 {
        true => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
        false => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
    }
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

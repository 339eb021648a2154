//! What the pictures share: scales and their ticks, escaping, names of phases.

use scrimp_plan::{Phase, Units};

/// Appends formatted text to a `String`, which can't fail.
macro_rules! put {
    ($out:expr, $($format:tt)*) => {{
        use std::fmt::Write as _;
        let _ = write!($out, $($format)*);
    }};
}
pub(super) use put;

/// Width of the pictures that share a time axis.
pub(super) const WIDTH: f64 = 1120.0;
/// Left and right end of the plots in these pictures; lanes have their names to the left.
pub(super) const LEFT: f64 = 104.0;
pub(super) const RIGHT: f64 = WIDTH - 16.0;

/// Text as part of HTML or SVG, inside or outside of attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' => escaped.push(' '),
            // XML doesn't allow these characters, or they would change the direction of the text around them.
            c if c.is_control()
                || ('\u{202a}'..='\u{202e}').contains(&c)
                || ('\u{2066}'..='\u{2069}').contains(&c) =>
            {
                escaped.push('\u{fffd}');
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// A linear map from numbers to pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    max: f64,
    from: f64,
    to: f64,
}

impl Scale {
    pub(super) fn new(max: f64, from: f64, to: f64) -> Scale {
        Scale {
            max: if max > 0.0 { max } else { 1.0 },
            from,
            to,
        }
    }

    pub(super) fn at(&self, number: f64) -> f64 {
        self.from + number / self.max * (self.to - self.from)
    }

    pub(super) fn max(&self) -> f64 {
        self.max
    }
}

/// Positions of about `count` round ticks up to `max`.
pub(super) fn ticks(max: f64, count: f64) -> Vec<f64> {
    if !(max > 0.0 && max.is_finite()) {
        return vec![0.0];
    }
    let rough = max / count;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|&step| step >= rough);
    let step = step.unwrap_or(rough);
    (0..)
        .map(|i| f64::from(i) * step)
        .take_while(|&tick| tick <= max * 1.000_001)
        .collect()
}

/// A number without needless zeros.
pub(super) fn plain(number: f64) -> String {
    if number >= 10_000.0 && number.fract() == 0.0 {
        return grouped(number as u64);
    }
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A whole number with its thousands separated.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// An amount of memory; its thousands are separated if its unit isn't bytes.
pub(super) fn memory(units: &Units, amount: u64) -> String {
    match units.bytes_per_unit() {
        Some(_) => units.format_memory(amount),
        None => format!("{} {}", grouped(amount), units.memory),
    }
}

/// An amount of cost, to three or more significant digits.
pub(super) fn cost(units: &Units, amount: f64) -> String {
    match units.seconds_per_unit() {
        Some(_) => units.format_cost(amount),
        None if amount >= 100.0 => format!("{} {}", grouped(amount.round() as u64), units.cost),
        None => format!(
            "{} {}",
            plain((amount * 1000.0).round() / 1000.0),
            units.cost
        ),
    }
}

/// Ticks of memory from zero with their labels.
pub(super) fn memory_ticks(units: &Units, max: f64) -> Vec<(f64, String)> {
    memory_ticks_between(units, 0.0, max)
}

pub(super) fn memory_ticks_between(units: &Units, low: f64, max: f64) -> Vec<(f64, String)> {
    let count = 5.0 * max / (max - low).max(max / 100.0);
    let Some(unit) = units.bytes_per_unit() else {
        return ticks(max, count)
            .into_iter()
            .filter(|&tick| tick >= low)
            .map(|tick| (tick, plain(tick)))
            .collect();
    };
    let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let bytes = max * unit as f64;
    let power = (0..6)
        .rev()
        .find(|&p| bytes >= 1024f64.powi(p))
        .unwrap_or(0);
    let scale = 1024f64.powi(power) / unit as f64;
    let label = |tick: f64| {
        if tick == 0.0 {
            "0".into()
        } else {
            format!("{} {}", plain(tick), names[power as usize])
        }
    };
    ticks(max / scale, count)
        .into_iter()
        .filter(|&tick| tick * scale >= low)
        .map(|tick| (tick * scale, label(tick)))
        .collect()
}

pub(super) fn cost_ticks(units: &Units, max: f64) -> Vec<(f64, String)> {
    let (scale, name) = match units.seconds_per_unit() {
        None => (1.0, ""),
        Some(unit) => match max * unit {
            seconds if seconds >= 1.0 => (1.0 / unit, " s"),
            seconds if seconds >= 1e-3 => (1e-3 / unit, " ms"),
            _ => (1e-6 / unit, " µs"),
        },
    };
    let label = |tick: f64| {
        if tick == 0.0 {
            "0".into()
        } else {
            format!("{}{name}", plain(tick))
        }
    };
    ticks(max / scale, 8.0)
        .into_iter()
        .map(|tick| (tick * scale, label(tick)))
        .collect()
}

pub(super) fn phase(phase: Phase) -> (&'static str, &'static str) {
    match phase {
        Phase::Forward => ("fwd", "forward"),
        Phase::Backward => ("bwd", "backward"),
        Phase::Update => ("upd", "update"),
    }
}

pub(super) fn time_axis(
    out: &mut String,
    units: &Units,
    x: Scale,
    top: f64,
    bottom: f64,
    labels: bool,
) {
    for (tick, label) in cost_ticks(units, x.max()) {
        let at = x.at(tick);
        put!(
            out,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{top}" y2="{bottom}"/>"#
        );
        if labels {
            // A label that is centred at the right border would be cut off.
            let (anchor, at) = if at > RIGHT - 28.0 {
                ("end", RIGHT)
            } else {
                ("mid", at)
            };
            put!(
                out,
                r#"<text class="tick {anchor}" x="{at:.1}" y="{:.1}">{label}</text>"#,
                bottom + 15.0
            );
        }
    }
}

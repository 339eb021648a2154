//! What the search had found and proven by when.

use scrimp_plan::format_seconds;

use super::draw::{LEFT, RIGHT, Scale, WIDTH, plain, put, ticks};
use crate::history::Moment;

const HEIGHT: f64 = 220.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = HEIGHT - 24.0;
/// Pixels that a label of a time takes.
const LABEL: f64 = 60.0;

/// The picture, with time on a logarithmic axis; `None` if the search told of nothing on its way.
pub(super) fn picture(moments: &[Moment]) -> Option<String> {
    let found = moments
        .iter()
        .position(|moment| moment.overhead_percent.is_some())?;
    let (start, end) = (moments[0].seconds.max(1e-6), moments.last()?.seconds);
    if found + 1 == moments.len() || end <= start {
        return None;
    }
    let highest = moments.iter().filter_map(|moment| moment.overhead_percent);
    let y = Scale::new(highest.fold(0.0, f64::max) * 1.05, BOTTOM, TOP);
    let x = Scale::new((end / start).ln(), LEFT, RIGHT);
    let at = |seconds: f64| x.at((seconds.max(start) / start).ln());
    let mut out = String::new();
    put!(
        out,
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Added time found and proven while planning">"#
    );
    for tick in ticks(y.max(), 4.0) {
        let up = y.at(tick);
        put!(
            out,
            r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{up:.1}" y2="{up:.1}"/><text class="tick end" x="{:.1}" y="{:.1}">{} %</text>"#,
            LEFT - 8.0,
            up + 4.0,
            plain(tick)
        );
    }
    let first = start.log10().ceil() as i32;
    let decades = (first..=end.log10().floor() as i32).map(|power| 10f64.powi(power));
    for tick in decades.filter(|&tick| at(tick) < RIGHT - LABEL) {
        let at = at(tick);
        put!(
            out,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{BOTTOM}"/><text class="tick mid" x="{at:.1}" y="{:.1}">{}</text>"#,
            BOTTOM + 15.0,
            format_seconds(tick)
        );
    }
    put!(
        out,
        r#"<text class="tick end" x="{RIGHT}" y="{:.1}">{}</text>"#,
        BOTTOM + 15.0,
        format_seconds(end)
    );
    let proven = moments.iter().map(|m| (m.seconds, m.lower_bound_percent));
    let plans = moments[found..]
        .iter()
        .filter_map(|m| Some((m.seconds, m.overhead_percent?)));
    put!(
        out,
        r#"<path class="line bound" d="{}"/>"#,
        steps(proven, &at, y)
    );
    put!(
        out,
        r#"<path class="line plan" d="{}"/></svg>"#,
        steps(plans, &at, y)
    );
    Some(out)
}

/// Steps from point to point: a number holds until the next.
fn steps(points: impl Iterator<Item = (f64, f64)>, at: &dyn Fn(f64) -> f64, y: Scale) -> String {
    let mut path = String::new();
    for (k, (seconds, percent)) in points.enumerate() {
        let (x, y) = (at(seconds), y.at(percent.max(0.0)));
        match k {
            0 => put!(path, "M{x:.1},{y:.1}"),
            _ => put!(path, "H{x:.1}V{y:.1}"),
        }
    }
    path
}

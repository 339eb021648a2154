//! Training losses, with and without the plan.

use super::Losses;
use super::draw::{LEFT, RIGHT, Scale, WIDTH, put};

const HEIGHT: f64 = 220.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = HEIGHT - 24.0;

/// The picture, or `None` if no loss is finite.
pub(super) fn picture(losses: Losses<'_>) -> Option<String> {
    let finite = || {
        losses
            .planned
            .iter()
            .chain(losses.base)
            .copied()
            .filter(|loss| loss.is_finite())
    };
    let (low, high) = (
        finite().fold(f64::INFINITY, f64::min).min(0.0),
        finite().fold(f64::NEG_INFINITY, f64::max),
    );
    if high == f64::NEG_INFINITY {
        return None;
    }
    let steps = losses.planned.len().max(losses.base.len());
    let x = Scale::new(steps.saturating_sub(1) as f64, LEFT, RIGHT);
    let y = Scale::new((high - low) * 1.05, BOTTOM, TOP);
    let mut out = String::new();
    put!(
        out,
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Loss per training step">"#
    );
    for i in 0..=4 {
        let loss = low + (high - low) * f64::from(i) / 4.0;
        let at = y.at(loss - low);
        put!(
            out,
            r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1}" y2="{at:.1}"/>"#
        );
        put!(
            out,
            r#"<text class="tick end" x="{:.1}" y="{:.1}">{loss:.3}</text>"#,
            LEFT - 8.0,
            at + 4.0
        );
    }
    put!(
        out,
        r#"<text class="tick" x="{LEFT}" y="{:.1}">step 1</text>"#,
        BOTTOM + 15.0
    );
    put!(
        out,
        r#"<text class="tick end" x="{RIGHT}" y="{:.1}">step {steps}</text>"#,
        BOTTOM + 15.0
    );
    // The base is drawn wide and below, so that it stays visible under an equal curve.
    for (series, class) in [(losses.base, "base wide"), (losses.planned, "plan")] {
        put!(out, r#"<path class="line {class}" d=""#);
        let mut pen = 'M';
        for (step, loss) in series.iter().enumerate() {
            if loss.is_finite() {
                put!(out, "{pen}{:.1},{:.1}", x.at(step as f64), y.at(loss - low));
            }
            pen = if loss.is_finite() { 'L' } else { 'M' };
        }
        out.push_str("\"/>");
    }
    out.push_str("</svg>");
    Some(out)
}

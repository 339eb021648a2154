//! The trade-off between time and energy: one curve per budget.

use super::draw::{LEFT, RIGHT, Scale, WIDTH, cost, escape, memory, plain, put, ticks};
use super::frame::{document, heading, legend, section, tile};
use super::tradeoff::{class, signed};
use crate::summary::percent_over;
use scrimp_plan::CheckedPlan;

const HEIGHT: f64 = 480.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 44.0;

/// The plans under one budget, by ascending joules.
#[derive(Clone, Debug, PartialEq)]
pub struct EnergyCurve {
    /// The budget.
    pub name: String,
    /// One per plan.
    pub points: Vec<EnergyPoint>,
    /// Why there are none, in a sentence.
    pub note: Option<String>,
}

/// A plan's numbers; seconds are in the problem's unit of cost.
#[derive(Clone, Debug, PartialEq)]
pub struct EnergyPoint {
    /// Energy of all runs and copies.
    pub joules: f64,
    /// Time of the plan.
    pub seconds: f64,
    /// Proven: no plan of as much energy takes less.
    pub proven: f64,
    /// Runs beyond each task's first.
    pub recomputed: usize,
    /// Bytes of all copies.
    pub copied: u64,
}

/// The curves as one HTML page that needs no other files; `base` runs every task once.
#[must_use]
pub fn energy(base: &CheckedPlan, curves: &[EnergyCurve]) -> String {
    let problem = base.problem();
    let units = problem.units();
    document(problem.name(), |out| {
        let line = format!("{} tasks; time over energy", problem.tasks().len());
        heading(out, problem.name(), &line);
        out.push_str("<div class=\"tiles\">");
        let once = "every task runs once";
        tile(out, "time without a plan", &cost(units, base.cost()), once);
        tile(
            out,
            "energy without a plan",
            &joules(base.total_joules()),
            once,
        );
        out.push_str("</div>");
        section(
            out,
            "Time over energy",
            "Each dot is a plan that was checked: none found is both faster and more frugal. Dashed: proven, no plan of \
             as much energy takes less time.",
        );
        let classes: Vec<String> = (0..curves.len()).map(class).collect();
        let pairs = classes.iter().zip(curves);
        let mut keys: Vec<(&str, &str)> = pairs
            .map(|(class, curve)| (class.as_str(), curve.name.as_str()))
            .collect();
        keys.push(("keepall", "without a plan"));
        keys.push(("boundline", "proven"));
        legend(out, &keys);
        picture(out, base, curves);
        for (name, note) in curves
            .iter()
            .filter_map(|c| Some((&c.name, c.note.as_ref()?)))
        {
            put!(out, "<p><b>{}</b>: {}</p>", escape(name), escape(note));
        }
        out.push_str("</section>");
        table(out, base, curves);
    })
}

/// Joules to about four significant digits.
fn joules(amount: f64) -> String {
    let places = (3.0 - amount.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0);
    format!("{amount:.*} J", places as usize)
}

fn picture(out: &mut String, base: &CheckedPlan, curves: &[EnergyCurve]) {
    let units = base.problem().units();
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let start = (base.total_joules(), base.cost());
    let span = |numbers: &mut dyn Iterator<Item = f64>, first: f64| {
        let (low, high) = numbers.fold((first, first), |(low, high), x| (low.min(x), high.max(x)));
        let margin = (high - low).max(high.abs() * 1e-6) * 0.06;
        (low - margin, high + margin)
    };
    let energies = span(&mut points().map(|point| point.joules), start.0);
    let times = span(&mut points().flat_map(|p| [p.seconds, p.proven]), start.1);
    let scale = |(low, high): (f64, f64), from: f64, to: f64| {
        let scale = Scale::new(high - low, from, to);
        move |number: f64| scale.at(number - low)
    };
    let (x, y) = (scale(energies, LEFT, RIGHT), scale(times, BOTTOM, TOP));
    put!(
        out,
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Time over energy">"#
    );
    for tick in between(times) {
        let at = y(tick);
        // Neighbouring ticks may differ in the fifth digit.
        let label = match units.seconds_per_unit() {
            Some(unit) => format!("{} s", plain(tick * unit)),
            None => plain(tick),
        };
        let (text, below) = (escape(&label), at + 4.0);
        put!(
            out,
            r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1}" y2="{at:.1}"/><text class="tick end" x="{:.1}" y="{below:.1}">{text}</text>"#,
            LEFT - 8.0
        );
    }
    for tick in between(energies) {
        let (at, below) = (x(tick), BOTTOM + 16.0);
        put!(
            out,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{BOTTOM}"/><text class="tick mid" x="{at:.1}" y="{below:.1}">{} J</text>"#,
            plain(tick)
        );
    }
    put!(out, r#"<text class="tick" x="6" y="14">time</text>"#);
    for (k, curve) in curves.iter().enumerate() {
        let path = |number: &dyn Fn(&EnergyPoint) -> f64| {
            let steps = curve.points.iter().enumerate().map(|(k, point)| {
                let pen = if k == 0 { 'M' } else { 'L' };
                format!("{pen}{:.1},{:.1}", x(point.joules), y(number(point)))
            });
            steps.collect::<String>()
        };
        let (class, line, bound) = (class(k), path(&|p| p.seconds), path(&|p| p.proven));
        put!(
            out,
            r#"<path class="line bound" d="{bound}"/><path class="line curve {class}" d="{line}"/>"#
        );
        for point in &curve.points {
            put!(
                out,
                r#"<circle class="dot {class}" cx="{:.1}" cy="{:.1}" r="4" data-tip="{}"/>"#,
                x(point.joules),
                y(point.seconds),
                [
                    curve.name.clone(),
                    format!("{}, {}", joules(point.joules), cost(units, point.seconds)),
                    format!(
                        "{} runs again, {} copied",
                        point.recomputed,
                        memory(units, point.copied)
                    ),
                ]
                .map(|line| escape(&line))
                .join("\n")
            );
        }
    }
    put!(
        out,
        r#"<circle class="keepallpoint" cx="{:.1}" cy="{:.1}" r="5.5"/></svg>"#,
        x(start.0),
        y(start.1)
    );
}

/// Round numbers between two ends.
fn between((low, high): (f64, f64)) -> Vec<f64> {
    let count = 5.0 * high / (high - low);
    let all = ticks(high, count.min(1e4)).into_iter();
    all.filter(|&tick| tick >= low).collect()
}

fn table(out: &mut String, base: &CheckedPlan, curves: &[EnergyCurve]) {
    let units = base.problem().units();
    let over = |seconds: f64| signed(percent_over(seconds, base.cost()));
    section(out, "Numbers", "");
    out.push_str("<div class=\"scroll\"><table class=\"sortable\"><thead><tr><th>budget</th>");
    for name in [
        "energy",
        "time",
        "added time",
        "proven",
        "runs again",
        "copied",
    ] {
        put!(out, "<th class=\"n\">{name}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for curve in curves {
        for point in &curve.points {
            put!(out, "<tr><td>{}</td>", escape(&curve.name));
            for (value, text) in [
                (point.joules, joules(point.joules)),
                (point.seconds, cost(units, point.seconds)),
                (point.seconds, over(point.seconds)),
                (point.proven, over(point.proven)),
                (point.recomputed as f64, point.recomputed.to_string()),
                (point.copied as f64, memory(units, point.copied)),
            ] {
                put!(
                    out,
                    r#"<td class="n" data-v="{value}">{}</td>"#,
                    escape(&text)
                );
            }
            out.push_str("</tr>");
        }
    }
    out.push_str("</tbody></table></div></section>");
}

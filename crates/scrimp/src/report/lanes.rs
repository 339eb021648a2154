//! The activity of each device and each link over time, one lane each, and a lane of the plan without
//! recomputation to compare with.

use super::devices::link_name;
use super::draw::{LEFT, RIGHT, Scale, WIDTH, cost, escape, memory, phase, put, time_axis};
use scrimp_plan::{CheckedPlan, Lane, Problem, Step, Timeline};
use std::collections::BTreeSet;

const LANE: f64 = 22.0;
const GAP: f64 = 10.0;

struct Bar {
    start: f64,
    end: f64,
    class: &'static str,
    tip: String,
    steps: usize,
}

/// The picture of all lanes of both plans, up to `end`.
pub(super) fn picture(
    base: (&CheckedPlan, &Timeline),
    planned: (&CheckedPlan, &Timeline),
    end: f64,
) -> String {
    let problem = planned.0.problem();
    let x = Scale::new(end, LEFT, RIGHT);
    let mut rows = Vec::new();
    for (which, name) in [(base, "without a plan"), (planned, "planned")] {
        for lane in lanes(which.1) {
            rows.push((row_name(problem, lane, name), which, lane));
        }
    }
    let bottom = rows.len() as f64 * (LANE + GAP);
    let mut out = String::new();
    let height = bottom + 24.0;
    put!(
        out,
        r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Compute and copies over time">"#
    );
    time_axis(&mut out, problem.units(), x, 0.0, bottom, true);
    for (i, (name, (plan, timeline), lane)) in rows.iter().enumerate() {
        let y = i as f64 * (LANE + GAP) + GAP / 2.0;
        let short: String = name.chars().take(17).collect();
        put!(
            out,
            r#"<text class="lane end" x="{:.1}" y="{:.1}"><title>{}</title>{}</text>"#,
            LEFT - 8.0,
            y + 15.0,
            escape(name),
            escape(&short)
        );
        put!(
            out,
            r#"<rect class="track" x="{LEFT}" y="{y:.1}" width="{:.1}" height="{LANE}"/>"#,
            RIGHT - LEFT
        );
        draw(&mut out, &merged(bars(plan, timeline, *lane), x), x, y);
    }
    out.push_str("</svg>");
    out
}

fn lanes(timeline: &Timeline) -> BTreeSet<Lane> {
    timeline
        .spans()
        .iter()
        .filter(|span| span.end > span.start)
        .map(|span| span.lane)
        .collect()
}

fn row_name(problem: &Problem, lane: Lane, plan: &str) -> String {
    let devices = problem.devices();
    match lane {
        Lane::Device(device) if devices.values().filter(|device| device.computes).count() > 1 => {
            format!("{} {plan}", devices[device].name)
        }
        Lane::Device(_) => plan.to_owned(),
        Lane::Link(link) => link_name(problem, link),
    }
}

fn bars(plan: &CheckedPlan, timeline: &Timeline, lane: Lane) -> Vec<Bar> {
    let problem = plan.problem();
    let units = problem.units();
    let mut seen = BTreeSet::new();
    let mut bars = Vec::new();
    for (&step, span) in plan.steps().iter().zip(timeline.spans()) {
        let (class, what, detail) = match step {
            Step::Run { task, .. } => {
                let first = seen.insert(task);
                let (class, name) = phase(problem.task(task).phase);
                let class = if first { class } else { "again" };
                (
                    class,
                    problem.task(task).name.as_str(),
                    if first { name } else { "runs again" }.to_owned(),
                )
            }
            Step::Copy { value, .. } => {
                let value = problem.value(value);
                ("copy", value.name.as_str(), memory(units, value.bytes))
            }
            Step::Free { .. } => continue,
        };
        if span.lane == lane {
            let tip = format!("{what}\n{detail}, {}", cost(units, span.end - span.start));
            bars.push(Bar {
                start: span.start,
                end: span.end,
                class,
                tip,
                steps: 1,
            });
        }
    }
    bars
}

/// Joins neighbours of one colour that are too narrow to tell apart.
fn merged(bars: Vec<Bar>, x: Scale) -> Vec<Bar> {
    let mut joined: Vec<Bar> = Vec::new();
    for bar in bars {
        let narrow = x.at(bar.end) - x.at(bar.start) < 0.7;
        match joined.last_mut() {
            Some(last)
                if narrow
                    && last.class == bar.class
                    && x.at(bar.start) - x.at(last.end) < 0.3
                    && x.at(last.end) - x.at(last.start) < 2.0 =>
            {
                last.end = bar.end;
                last.steps += 1;
            }
            _ => joined.push(bar),
        }
    }
    joined
}

fn draw(out: &mut String, bars: &[Bar], x: Scale, y: f64) {
    // Repeated runs are drawn last, at least a pixel wide and with a mark above, so that they are visible.
    let (again, first): (Vec<&Bar>, Vec<&Bar>) = bars.iter().partition(|bar| bar.class == "again");
    for bar in first.into_iter().chain(again) {
        let (start, end) = (x.at(bar.start), x.at(bar.end));
        let least = if bar.class == "again" { 1.2 } else { 0.3 };
        let width = (end - start - if end - start > 3.0 { 0.5 } else { 0.0 }).max(least);
        let more = if bar.steps > 1 {
            format!(" and {} more", bar.steps - 1)
        } else {
            String::new()
        };
        if bar.class == "again" {
            let mark = (start + width / 2.0 - 1.5).max(start);
            put!(
                out,
                r#"<path class="again" d="M{mark:.2},{:.1}h3l-1.5,4z"/>"#,
                y - 4.5
            );
        }
        put!(
            out,
            r#"<rect class="{}" x="{start:.2}" y="{y:.1}" width="{width:.2}" height="{LANE}" data-tip="{}{more}"/>"#,
            bar.class,
            tip(&bar.tip)
        );
    }
}

/// Escapes a tip line by line, so that its line breaks stay.
pub(super) fn tip(text: &str) -> String {
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

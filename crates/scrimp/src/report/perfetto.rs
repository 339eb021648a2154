//! A trace in the format that <https://ui.perfetto.dev> opens: one process per device with its runs
//! and its bytes in use, one per link with its copies.

use scrimp_plan::{CheckedPlan, Lane, Problem, Step, simulate};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

/// The plan's simulated timeline as Chrome trace events. Times are in microseconds; where the
/// problem's costs aren't times, one unit of cost is one microsecond.
#[must_use]
pub fn perfetto(plan: &CheckedPlan) -> String {
    let problem = plan.problem();
    let timeline = simulate(plan);
    let scale = 1e6 * problem.units().seconds_per_unit().unwrap_or(1e-6);
    let mut events: Vec<Json> = names(problem);
    let mut seen = BTreeSet::new();
    for (k, (&step, span)) in plan.steps().iter().zip(timeline.spans()).enumerate() {
        let (start, duration) = (span.start * scale, (span.end - span.start) * scale);
        let event = |name: &str, category: &str, bytes: u64| {
            json!({"ph": "X", "name": name, "cat": category, "pid": process(problem, span.lane), "tid": 0,
                   "ts": start, "dur": duration, "args": {"step": k, "bytes": bytes}})
        };
        match step {
            Step::Run { task, device } => {
                let what = problem.task(task);
                let category = if seen.insert(task) {
                    "first run"
                } else {
                    "runs again"
                };
                let bytes = what
                    .outputs
                    .iter()
                    .map(|&output| problem.value(output).bytes)
                    .sum();
                events.push(event(&what.name, category, bytes));
                events.push(counter(
                    problem,
                    Lane::Device(device),
                    start,
                    plan.profile(device)[k],
                ));
            }
            Step::Copy { value, to, .. } => {
                let what = problem.value(value);
                events.push(event(&what.name, "copy", what.bytes));
                events.push(counter(
                    problem,
                    Lane::Device(to),
                    start,
                    plan.profile(to)[k],
                ));
            }
            Step::Free { .. } => {}
        }
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
}

fn process(problem: &Problem, lane: Lane) -> usize {
    match lane {
        Lane::Device(device) => device.as_u32() as usize,
        Lane::Link(link) => problem.devices().len() + link.as_u32() as usize,
    }
}

fn counter(problem: &Problem, lane: Lane, time: f64, bytes: u64) -> Json {
    json!({"ph": "C", "name": "bytes in use", "pid": process(problem, lane), "tid": 0, "ts": time, "args": {"bytes": bytes}})
}

fn names(problem: &Problem) -> Vec<Json> {
    let devices = problem.devices();
    let name = |lane: Lane, name: String| json!({"ph": "M", "name": "process_name", "pid": process(problem, lane), "tid": 0, "args": {"name": name}});
    let mut names: Vec<Json> = devices
        .iter()
        .map(|(id, device)| name(Lane::Device(id), device.name.clone()))
        .collect();
    for (id, link) in problem.links().iter() {
        let ends = format!("{} → {}", devices[link.from].name, devices[link.to].name);
        names.push(name(Lane::Link(id), ends));
    }
    names
}

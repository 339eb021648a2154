//! A trace in the format that <https://ui.perfetto.dev> opens. Each device is a process with its runs and its
//! bytes in use, each link a process with its copies.

use super::devices::link_name;
use scrimp_plan::{CheckedPlan, Lane, Problem, Step, simulate};
use scrimp_run::StepTrace;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

/// The plan's simulated timeline as Chrome trace events. Times are in microseconds; if the problem's costs
/// aren't times, one unit of cost counts as one microsecond.
#[must_use]
pub fn perfetto(plan: &CheckedPlan) -> String {
    let timeline = simulate(plan);
    let scale = 1e6 * plan.problem().units().seconds_per_unit().unwrap_or(1e-6);
    let steps = plan.steps().iter().zip(timeline.spans()).enumerate();
    let spans = steps.map(|(k, (&step, span))| {
        let bytes = match step {
            Step::Run { device, .. } => plan.profile(device)[k],
            Step::Copy { to, .. } => plan.profile(to)[k],
            Step::Free { .. } => 0,
        };
        TraceSlice {
            step: k,
            what: step,
            lane: span.lane,
            start: span.start * scale,
            duration: (span.end - span.start) * scale,
            bytes,
        }
    });
    trace(plan, spans, "simulated")
}

/// A step that was executed under the plan, with its measured times, as Chrome trace events.
#[must_use]
pub fn perfetto_measured(plan: &CheckedPlan, measured: &StepTrace) -> String {
    let slice = |step: usize, start: f64, seconds: f64| {
        let what = *plan.steps().get(step)?;
        let (lane, device) = match what {
            Step::Run { device, .. } => (Lane::Device(device), device),
            Step::Copy { from, to, .. } => (Lane::Link(plan.problem().link_between(from, to)?), to),
            Step::Free { .. } => return None,
        };
        Some(TraceSlice {
            step,
            what,
            lane,
            start: start * 1e6,
            duration: seconds * 1e6,
            bytes: plan.profile(device)[step],
        })
    };
    let runs = measured.runs.iter();
    let runs = runs.filter_map(|run| slice(run.step, run.start, run.seconds));
    let copies = measured.copies.iter();
    let copies = copies.filter_map(|copy| slice(copy.step, copy.start, copy.seconds));
    trace(plan, runs.chain(copies), "measured")
}

/// One step of a plan in time, in microseconds.
struct TraceSlice {
    step: usize,
    what: Step,
    lane: Lane,
    start: f64,
    duration: f64,
    /// Bytes in use on the device whose memory the step fills.
    bytes: u64,
}

fn trace(plan: &CheckedPlan, slices: impl Iterator<Item = TraceSlice>, times: &str) -> String {
    let problem = plan.problem();
    let mut events: Vec<Json> = names(problem, times);
    let mut seen = BTreeSet::new();
    for slice in slices {
        let event = |name: &str, category: &str, bytes: u64, joules: f64| {
            json!({"ph": "X", "name": name, "cat": category, "pid": process(problem, slice.lane), "tid": 0,
                   "ts": slice.start, "dur": slice.duration,
                   "args": {"step": slice.step, "bytes": bytes, "joules": joules}})
        };
        let device = match slice.what {
            Step::Run { task, device } => {
                let what = problem.task(task);
                let category = if seen.insert(task) {
                    "first run"
                } else {
                    "runs again"
                };
                let outputs = what.outputs.iter();
                let bytes = outputs.map(|&output| problem.value(output).bytes).sum();
                let joules = what.mode(device).map_or(0.0, |mode| mode.joules);
                events.push(event(&what.name, category, bytes, joules));
                device
            }
            Step::Copy { value, to, .. } => {
                let what = problem.value(value);
                let joules = match slice.lane {
                    Lane::Link(link) => problem.copy_joules(link, value),
                    Lane::Device(_) => 0.0,
                };
                events.push(event(&what.name, "copy", what.bytes, joules));
                to
            }
            Step::Free { .. } => continue,
        };
        events.push(counter(
            problem,
            Lane::Device(device),
            slice.start,
            slice.bytes,
        ));
    }
    let about = json!({ "times": times });
    json!({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}).to_string()
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

fn names(problem: &Problem, times: &str) -> Vec<Json> {
    let devices = problem.devices();
    let name = |lane: Lane, name: String| json!({"ph": "M", "name": "process_name", "pid": process(problem, lane), "tid": 0, "args": {"name": name}});
    let mut names: Vec<Json> = devices
        .iter()
        .map(|(id, device)| name(Lane::Device(id), format!("{} ({times})", device.name)))
        .collect();
    for id in problem.links().keys() {
        names.push(name(Lane::Link(id), link_name(problem, id)));
    }
    names
}

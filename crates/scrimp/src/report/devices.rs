//! Several devices: what each of them and each link does, which task runs where, and why there.

use super::draw::{cost, escape, grouped, memory, plain, put};
use scrimp_plan::{
    Capacities, CheckedPlan, DeviceId, Lane, LinkId, Problem, Step, TaskId, Timeline, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of the table of tasks.
const ROWS: usize = 400;

fn names(heads: &[(&str, &str)]) -> String {
    let cells = heads
        .iter()
        .map(|(class, name)| format!("<th{class}>{name}</th>"));
    format!(
        "<table class=\"sortable\"><thead><tr>{}</tr></thead><tbody>",
        cells.collect::<String>()
    )
}

const N: &str = " class=\"n\"";

fn number(out: &mut String, value: f64, text: &str) {
    put!(
        out,
        r#"<td class="n" data-v="{value}">{}</td>"#,
        escape(text)
    );
}

/// One row per device and link.
pub(super) fn work(plan: &CheckedPlan, timeline: &Timeline, capacities: &Capacities) -> String {
    let problem = plan.problem();
    let units = problem.units();
    let whole = timeline.makespan().max(f64::MIN_POSITIVE);
    let share = |seconds: f64| format!("{:.1} %", seconds / whole * 100.0);
    let mut out = names(&[
        ("", "device or link"),
        (N, "steps"),
        (N, "busy"),
        (N, "of the time"),
        (N, "waits"),
        (N, "energy"),
        (N, "peak, or copied"),
        (N, "budget"),
    ]);
    let mut row = |name: &str, lane: Lane, joules: f64, bytes: u64, most: Option<u64>| {
        let (busy, waits) = (timeline.busy(lane), timeline.waiting(lane));
        let spans = timeline.spans().iter().zip(plan.steps());
        let steps =
            spans.filter(|(span, step)| span.lane == lane && !matches!(step, Step::Free { .. }));
        let steps = steps.count();
        put!(out, "<tr><td>{}</td>", escape(name));
        number(&mut out, steps as f64, &grouped(steps as u64));
        number(&mut out, busy, &cost(units, busy));
        number(&mut out, busy, &share(busy));
        number(&mut out, waits, &cost(units, waits));
        number(
            &mut out,
            joules,
            &format!("{} J", plain((joules * 1e6).round() / 1e6)),
        );
        number(&mut out, bytes as f64, &memory(units, bytes));
        let most = most.map(|most| (most as f64, memory(units, most)));
        let (value, text) = most.unwrap_or((f64::MAX, "–".into()));
        number(&mut out, value, &text);
        out.push_str("</tr>");
    };
    for (id, device) in problem.devices().iter() {
        let (peak, most) = (plan.peak(id), capacities.bytes(id));
        row(&device.name, Lane::Device(id), plan.joules(id), peak, most);
    }
    for id in problem.links().keys() {
        let copied = plan.copied(id);
        row(
            &link_name(problem, id),
            Lane::Link(id),
            copied.joules,
            copied.bytes,
            None,
        );
    }
    out.push_str("</tbody></table>");
    out
}

/// A link by its ends.
pub(super) fn link_name(problem: &Problem, link: LinkId) -> String {
    let link = &problem.links()[link];
    let [from, to] = [link.from, link.to].map(|end| &problem.devices()[end].name);
    format!("{from} → {to}")
}

/// One row per run, in the order in which runs begin.
pub(super) fn runs(plan: &CheckedPlan, timeline: &Timeline) -> String {
    let problem = plan.problem();
    let units = problem.units();
    let walk = Walk::new(plan, timeline);
    let mut out = names(&[
        ("", "task"),
        ("", "runs on"),
        (N, "begins"),
        (N, "takes"),
        ("", "elsewhere"),
        ("", "why there"),
    ]);
    let mut rows = walk.all();
    rows.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.task.cmp(&b.task)));
    for run in rows.iter().take(ROWS) {
        let what = problem.task(run.task);
        let name = |device: DeviceId| problem.devices()[device].name.as_str();
        put!(
            out,
            "<tr><td>{}</td><td>{}</td>",
            escape(&what.name),
            escape(name(run.device))
        );
        number(&mut out, run.start, &cost(units, run.start));
        number(&mut out, run.seconds, &cost(units, run.seconds));
        let others = what.modes.iter().filter(|mode| mode.device != run.device);
        let others =
            others.map(|mode| format!("{} {}", name(mode.device), cost(units, mode.seconds)));
        let others = others.collect::<Vec<_>>().join(", ");
        put!(
            out,
            "<td>{}</td><td>{}</td></tr>",
            escape(if others.is_empty() { "–" } else { &others }),
            escape(&run.why)
        );
    }
    out.push_str("</tbody></table>");
    if rows.len() > ROWS {
        put!(
            out,
            r#"<p class="quiet">and {} more</p>"#,
            rows.len() - ROWS
        );
    }
    out
}

struct Run {
    task: TaskId,
    device: DeviceId,
    start: f64,
    seconds: f64,
    why: String,
}

/// One pass over the steps.
struct Walk<'a> {
    plan: &'a CheckedPlan,
    timeline: &'a Timeline,
    /// Where each value is.
    present: BTreeMap<ValueId, BTreeSet<DeviceId>>,
}

impl<'a> Walk<'a> {
    fn new(plan: &'a CheckedPlan, timeline: &'a Timeline) -> Walk<'a> {
        let mut present: BTreeMap<ValueId, BTreeSet<DeviceId>> = BTreeMap::new();
        for (value, what) in plan.problem().values().iter() {
            if let scrimp_plan::Origin::Given(device) = what.origin {
                present.entry(value).or_default().insert(device);
            }
        }
        Walk {
            plan,
            timeline,
            present,
        }
    }

    fn all(mut self) -> Vec<Run> {
        let mut runs = Vec::new();
        for (&step, span) in self.plan.steps().iter().zip(self.timeline.spans()) {
            match step {
                Step::Run { task, device } => {
                    runs.push(Run {
                        task,
                        device,
                        start: span.start,
                        seconds: span.end - span.start,
                        why: self.why(task, device, span.start),
                    });
                    let what = self.plan.problem().task(task);
                    for pair in &what.overwrites {
                        self.gone(pair.input, device);
                    }
                    for &output in &what.outputs {
                        self.present.entry(output).or_default().insert(device);
                    }
                }
                Step::Copy { value, to, .. } => {
                    self.present.entry(value).or_default().insert(to);
                }
                Step::Free { value, device } => self.gone(value, device),
            }
        }
        runs
    }

    fn gone(&mut self, value: ValueId, device: DeviceId) {
        if let Some(devices) = self.present.get_mut(&value) {
            devices.remove(&device);
        }
    }

    /// What speaks for this device, compared with the one on which the task takes the least time.
    fn why(&self, task: TaskId, device: DeviceId, start: f64) -> String {
        let problem = self.plan.problem();
        let units = problem.units();
        let what = problem.task(task);
        let Some(own) = what.mode(device) else {
            return String::new();
        };
        let others = what.modes.iter().filter(|mode| mode.device != device);
        let Some(best) = others.min_by(|a, b| a.seconds.total_cmp(&b.seconds)) else {
            return "no other device can run it".into();
        };
        let name = &problem.devices()[best.device].name;
        if own.seconds <= best.seconds {
            return "no other device is faster".into();
        }
        let lost = own.seconds - best.seconds;
        let away: f64 = what
            .inputs
            .iter()
            .filter(|value| !self.is_at(**value, best.device))
            .map(|&value| self.copy_seconds(value, best.device))
            .sum();
        if away >= lost {
            let away = cost(units, away);
            return format!("its inputs are here: copying them to {name} would take {away}");
        }
        match self.busy_until(best.device, start) {
            Some(end) => {
                let end = cost(units, end);
                format!("{name}, which is faster, is busy until {end}")
            }
            None => format!(
                "{} slower than on {name}, but others need its room, or what follows is here",
                cost(units, lost)
            ),
        }
    }

    fn is_at(&self, value: ValueId, device: DeviceId) -> bool {
        let devices = self.present.get(&value);
        devices.is_some_and(|devices| devices.contains(&device))
    }

    /// Seconds of the quickest copy of a value to a device.
    fn copy_seconds(&self, value: ValueId, to: DeviceId) -> f64 {
        let problem = self.plan.problem();
        let from = self.present.get(&value).into_iter().flatten();
        let links = from.filter_map(|&from| problem.link_between(from, to));
        let seconds = links.map(|link| problem.copy_seconds(link, value));
        seconds.min_by(f64::total_cmp).unwrap_or(f64::INFINITY)
    }

    /// The end of the run that a device is in the middle of.
    fn busy_until(&self, device: DeviceId, moment: f64) -> Option<f64> {
        let lane = Lane::Device(device);
        let spans = self.timeline.spans().iter();
        let mut spans = spans.filter(|span| span.lane == lane && span.end > span.start);
        let at = spans.find(|span| span.start <= moment && moment < span.end);
        at.map(|span| span.end)
    }
}

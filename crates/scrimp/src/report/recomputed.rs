//! The tasks that run again: how often, for which readers, at what cost, and how many bytes that frees where
//! memory is scarcest.

use super::draw::{cost, escape, memory, phase, put};
use scrimp_plan::{CheckedPlan, DeviceId, Origin, Problem, Step, TaskId, ValueId};
use std::collections::{BTreeMap, BTreeSet};

const ROWS: usize = 200;
const REASONS: usize = 3;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Again {
    /// Number of runs beyond the first.
    pub(super) times: usize,
    pub(super) seconds: f64,
    /// Bytes of its outputs that are in memory at the base's peak, but not when the plan comes to the same
    /// task.
    pub(super) freed: u64,
    /// Tasks that read the recomputed outputs.
    pub(super) readers: BTreeSet<TaskId>,
}

/// All tasks that run again, by id.
pub(super) fn find(
    base: &CheckedPlan,
    planned: &CheckedPlan,
    device: DeviceId,
) -> BTreeMap<TaskId, Again> {
    let problem = planned.problem();
    let mut found: BTreeMap<TaskId, Again> = BTreeMap::new();
    let mut runs: BTreeMap<TaskId, usize> = BTreeMap::new();
    for &step in planned.steps() {
        let Step::Run { task, device } = step else {
            continue;
        };
        for producer in problem
            .task(task)
            .inputs
            .iter()
            .filter_map(|&input| problem.producer(input))
        {
            if let Some(again) = found.get_mut(&producer) {
                again.readers.insert(task);
            }
        }
        let times = runs.entry(task).or_default();
        *times += 1;
        if *times > 1 {
            let again = found.entry(task).or_default();
            again.times += 1;
            again.seconds += problem
                .task(task)
                .mode(device)
                .map_or(0.0, |mode| mode.seconds);
        }
    }
    if let Some(peak) = peak_task(base, device) {
        let (then, now) = (
            held_while(base, peak, device),
            held_while(planned, peak, device),
        );
        for &value in then.difference(&now) {
            let producer = problem.producer(value);
            if let Some(again) = producer.and_then(|producer| found.get_mut(&producer)) {
                again.freed += problem.value(value).bytes;
            }
        }
    }
    found
}

/// The task that runs when a plan first uses the most bytes.
pub(super) fn peak_task(plan: &CheckedPlan, device: DeviceId) -> Option<TaskId> {
    let peak = plan.peak(device);
    let at_peak = plan
        .steps()
        .iter()
        .zip(plan.profile(device))
        .filter(|&(_, &bytes)| bytes == peak);
    at_peak.into_iter().find_map(|(step, _)| match *step {
        Step::Run { task, .. } => Some(task),
        _ => None,
    })
}

/// The values on a device while a task runs for the first time.
fn held_while(plan: &CheckedPlan, wanted: TaskId, device: DeviceId) -> BTreeSet<ValueId> {
    let problem = plan.problem();
    let given = problem
        .values()
        .iter()
        .filter(|(_, value)| value.origin == Origin::Given(device));
    let mut held: BTreeSet<ValueId> = given.map(|(id, _)| id).collect();
    for &step in plan.steps() {
        match step {
            Step::Run { task, .. } if task == wanted => break,
            Step::Run { task, device: at } if at == device => {
                let what = problem.task(task);
                held.extend(&what.outputs);
                for pair in &what.overwrites {
                    held.remove(&pair.input);
                }
            }
            Step::Free { value, device: at } if at == device => drop(held.remove(&value)),
            Step::Copy { value, to, .. } if to == device => drop(held.insert(value)),
            _ => {}
        }
    }
    held
}

/// The table. The tasks that free the most bytes come first.
pub(super) fn table(problem: &Problem, found: &BTreeMap<TaskId, Again>) -> String {
    let mut rows: Vec<(&TaskId, &Again)> = found.iter().collect();
    rows.sort_by(|a, b| {
        b.1.freed
            .cmp(&a.1.freed)
            .then(b.1.seconds.total_cmp(&a.1.seconds))
            .then(a.0.cmp(b.0))
    });
    let units = problem.units();
    let mut out = String::new();
    out.push_str(r#"<table class="sortable"><thead><tr><th>task</th><th>phase</th><th class="n">extra runs</th><th class="n">added cost</th><th class="n">frees at the peak</th><th>made again for</th></tr></thead><tbody>"#);
    for &(&task, again) in rows.iter().take(ROWS) {
        let what = problem.task(task);
        let (class, name) = phase(what.phase);
        put!(
            out,
            r#"<tr><td>{}</td><td><i class="key {class}"></i>{name}</td>"#,
            escape(&what.name)
        );
        put!(out, r#"<td class="n" data-v="{0}">{0}</td>"#, again.times);
        put!(
            out,
            r#"<td class="n" data-v="{}">{}</td>"#,
            again.seconds,
            escape(&cost(units, again.seconds))
        );
        let freed = if again.freed == 0 {
            "–".into()
        } else {
            escape(&memory(units, again.freed))
        };
        put!(
            out,
            r#"<td class="n" data-v="{}">{freed}</td>"#,
            again.freed
        );
        put!(out, "<td>{}</td></tr>", reasons(problem, found, again));
    }
    out.push_str("</tbody></table>");
    if rows.len() > ROWS {
        put!(
            out,
            r#"<p class="quiet">and {} more tasks</p>"#,
            rows.len() - ROWS
        );
    }
    out
}

/// Names of the readers; those that run again themselves are marked.
fn reasons(problem: &Problem, found: &BTreeMap<TaskId, Again>, again: &Again) -> String {
    let name = |task: &TaskId| {
        let mark = if found.contains_key(task) {
            r#"<i class="key again"></i>"#
        } else {
            ""
        };
        format!("{mark}{}", escape(&problem.task(*task).name))
    };
    let mut names: Vec<String> = again.readers.iter().take(REASONS).map(name).collect();
    if again.readers.len() > REASONS {
        names.push(format!("{} more", again.readers.len() - REASONS));
    }
    if names.is_empty() {
        "nothing: its result is never read".into()
    } else {
        names.join(", ")
    }
}

//! The numbers of a plan, as programs read them. `docs/cli.md` documents the keys.

use std::collections::BTreeMap;

use scrimp_plan::{Lane, simulate};
use scrimp_solve::floor_bytes;
use serde::Serialize;

use crate::history::History;
use crate::pipeline::Planned;

/// Whether a plan is known to be the cheapest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimality {
    /// Proven: no plan within the budget costs less.
    Optimal,
    /// The plan fits the budget and is checked; a cheaper one may exist.
    Feasible,
}

/// What a plan costs and needs. Bytes and seconds, or the units of an instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanSummary {
    /// The problem's name.
    pub name: String,
    /// Unit of `*_bytes`: `B`, or an instance's.
    pub memory_unit: String,
    /// Unit of `*cost` and `lower_bound`: `s`, or an instance's.
    pub cost_unit: String,
    /// The planner, or `given` for a plan from a file.
    pub method: &'static str,
    /// How good the plan is known to be.
    pub status: Optimality,
    /// The most that may be in use at any time, everything counted; none if a file of several devices leaves this one
    /// without a limit.
    pub budget_bytes: Option<u64>,
    /// The most in use at any time under the plan; of several devices that compute, on the one that alone is the
    /// fastest, as for all bytes up to `base_peak_bytes`.
    pub peak_bytes: u64,
    /// Extent of the layout. Together with the device's resident bytes it is at most `budget_bytes`.
    pub arena_bytes: u64,
    /// What is in use at all times and no plan can change: weights, optimizer state.
    pub fixed_bytes: u64,
    /// Proven: no plan needs less.
    pub floor_bytes: u64,
    /// The most in use at any time when every task runs once in the given order.
    pub base_peak_bytes: u64,
    /// Time of running every task once, on the device that alone is the fastest.
    pub base_cost: f64,
    /// Seconds of all runs of the plan.
    pub cost: f64,
    /// Time from the first step to the last, with devices and links working in parallel. On one device
    /// without copies it equals the cost.
    pub makespan: f64,
    /// (makespan / base_cost − 1) · 100.
    pub overhead_percent: f64,
    /// Of several devices that compute, what the best plan costs that was found for one of them alone.
    pub alone_cost: Option<f64>,
    /// Seconds per joule.
    pub alpha: f64,
    /// What the planner minimized: the makespan plus `alpha` times the joules of all runs and copies.
    pub objective: f64,
    /// Proven: no plan within the budget has a smaller objective.
    pub lower_bound: f64,
    /// By how much the bound exceeds the objective of running every task once, in percent.
    pub lower_bound_percent: f64,
    /// By how much `objective` exceeds the objective of running every task once, in percent, less
    /// `lower_bound_percent`.
    pub gap_percent: f64,
    /// Whether the cost is proven to be the least.
    pub optimal: bool,
    /// Whether tasks had to run first in the given order: `fixed` or `free`. The bound is for that order.
    /// `None` for a given plan.
    pub order: Option<&'static str>,
    /// The planner's remark; for a given plan, a note if it was made for another device.
    pub note: Option<String>,
    /// How the search went; empty for a given plan.
    pub history: History,
    /// The points of `overhead_percent` that twice the time would likely take off at most; `None` if the
    /// search's history doesn't tell.
    pub expected_gain_percent: Option<f64>,
    /// What more time would likely bring, in words, if `gap_percent` is large.
    pub outlook: Option<String>,
    /// Seconds that planning took; 0 for a given plan.
    pub solve_seconds: f64,
    /// How often the planner was asked; more than once if a layout didn't fit.
    pub attempts: usize,
    /// Runs of tasks beyond each task's first.
    pub recomputed: usize,
    /// Bytes of all copies to other memories and back.
    pub swapped_bytes: u64,
    /// Whether first runs are in the given order.
    pub keeps_order: bool,
    /// Tasks of the problem.
    pub tasks: usize,
    /// Values of the problem.
    pub values: usize,
    /// Steps of the plan.
    pub plan_steps: usize,
    /// Devices by name.
    pub devices: BTreeMap<String, DeviceSummary>,
    /// Links by the names of both devices, joined by a `-`.
    pub links: BTreeMap<String, LinkSummary>,
}

/// What a plan does on one device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeviceSummary {
    /// The most in use at any time.
    pub peak_bytes: u64,
    /// The most that may be in use; `None` if there is no limit.
    pub capacity_bytes: Option<u64>,
    /// Time that it runs.
    pub busy_seconds: f64,
    /// Time that it waits for copies between runs.
    pub waiting_seconds: f64,
    /// Energy of its runs.
    pub joules: f64,
    /// How many times as long its tasks take while all other devices compute; `None` if that wasn't measured.
    pub slowed: Option<f64>,
}

/// What a plan copies over one link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkSummary {
    /// Time that it copies.
    pub busy_seconds: f64,
    /// Bytes of all copies.
    pub bytes: u64,
    /// Energy of its copies.
    pub joules: f64,
}

/// (cost / base − 1) · 100; 0 where nothing costs anything, and for what sums of the same numbers in another
/// order differ by.
pub fn percent_over(cost: f64, base: f64) -> f64 {
    let percent = (cost / base - 1.0) * 100.0;
    if base > 0.0 && percent.abs() > 1e-9 {
        percent
    } else {
        0.0
    }
}

impl PlanSummary {
    /// The numbers of a plan.
    pub fn new(planned: &Planned) -> PlanSummary {
        let Planned {
            budgeted,
            budget_bytes,
            provenance,
            remark,
            ..
        } = planned;
        let (problem, plan) = (&budgeted.problem, planned.plan());
        let base_cost = simulate(&budgeted.base).makespan();
        let cost = plan.cost();
        let alpha = provenance
            .as_ref()
            .map_or(0.0, |provenance| provenance.alpha);
        let timeline = simulate(plan);
        let objective = timeline.makespan() + alpha * plan.total_joules();
        let base = budgeted.base.objective(alpha);
        // Every plan runs every task, whichever planner made it.
        let lower_bound = provenance
            .as_ref()
            .map_or(base, |provenance| provenance.lower_bound)
            .min(objective);
        let optimal = provenance
            .as_ref()
            .map_or(objective <= base, |provenance| provenance.optimal);
        let history = provenance.as_ref().map(|provenance| &provenance.history);
        let capacities = budgeted.within(*budget_bytes);
        let limit = |bytes: u64| (bytes < u64::MAX).then_some(bytes);
        let devices = problem.devices().iter().map(|(id, device)| {
            let lane = Lane::Device(id);
            let summary = DeviceSummary {
                peak_bytes: plan.peak(id),
                capacity_bytes: capacities.bytes(id).and_then(limit),
                busy_seconds: timeline.busy(lane),
                waiting_seconds: timeline.waiting(lane),
                joules: plan.joules(id),
                slowed: budgeted.slowed.of(budgeted.base.problem(), id),
            };
            (device.name.clone(), summary)
        });
        let links = problem.links().iter().map(|(id, link)| {
            let [from, to] = [link.from, link.to].map(|end| &problem.devices()[end].name);
            let copied = plan.copied(id);
            let summary = LinkSummary {
                busy_seconds: timeline.busy(Lane::Link(id)),
                bytes: copied.bytes,
                joules: copied.joules,
            };
            (format!("{from}-{to}"), summary)
        });
        PlanSummary {
            name: problem.name().into(),
            memory_unit: problem.units().memory.clone(),
            cost_unit: problem.units().cost.clone(),
            method: provenance
                .as_ref()
                .map_or("given", |provenance| provenance.method.name()),
            status: if optimal {
                Optimality::Optimal
            } else {
                Optimality::Feasible
            },
            budget_bytes: limit(*budget_bytes),
            peak_bytes: plan.peak(budgeted.device),
            arena_bytes: planned.arena_bytes(),
            fixed_bytes: budgeted.fixed_bytes,
            floor_bytes: floor_bytes(problem).unwrap_or(budgeted.fixed_bytes),
            base_peak_bytes: budgeted.base_peak(),
            base_cost,
            cost,
            makespan: timeline.makespan(),
            overhead_percent: percent_over(timeline.makespan(), base_cost),
            alone_cost: provenance
                .as_ref()
                .and_then(|provenance| Some(provenance.alone?.1)),
            alpha,
            objective,
            lower_bound,
            lower_bound_percent: percent_over(lower_bound, base),
            gap_percent: percent_over(objective, base) - percent_over(lower_bound, base),
            optimal,
            order: provenance
                .as_ref()
                .map(|provenance| provenance.order.name()),
            note: provenance
                .as_ref()
                .map_or(remark.clone(), |provenance| provenance.note.clone()),
            history: history.cloned().unwrap_or_default(),
            expected_gain_percent: history.and_then(History::expected_gain),
            outlook: history.and_then(History::outlook),
            solve_seconds: provenance
                .as_ref()
                .map_or(0.0, |provenance| provenance.elapsed.as_secs_f64()),
            attempts: provenance
                .as_ref()
                .map_or(0, |provenance| provenance.attempts),
            recomputed: plan.recomputed(),
            swapped_bytes: problem
                .links()
                .keys()
                .map(|link| plan.copied(link).bytes)
                .sum(),
            keeps_order: plan.keeps_order(),
            tasks: problem.tasks().len(),
            values: problem.values().len(),
            plan_steps: plan.steps().len(),
            devices: devices.collect(),
            links: links.collect(),
        }
    }
}

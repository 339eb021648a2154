//! Relax, then restrict: checkmate's program with only the recomputations that can be part of a
//! better plan.
//!
//! A search gives a plan, the gap program a bound and, by its reduced costs, for each task by how much
//! the bound grows if the task runs again. A task for which it grows to the cost of the known plan
//! can't run again in a cheaper one, so the program that lets only the others run again proves the
//! optimum of checkmate's whole program, and is a fraction of its size. Before that, the same with
//! only the values that the gap program evicts improves the plan, which leaves fewer others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use scrimp_plan::{CheckedPlan, Problem, Step};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Start, Status};

use super::checkmate::{cheaper, decode, fits_in_memory, outcome};
use super::formulation::{Formulation, Goal, Program};
use super::gaps;
use super::graph::Graph;
use super::stages::Stages;
use super::{Outcome, PublishedError, PublishedOptions};
use crate::options::{Method, Order};

/// How long the search for a first plan may take: so much for each task, at most so many seconds, and
/// at most this share of the time.
const SEARCH_PER_TASK: f64 = 0.015;
const SEARCH_SECONDS: f64 = 5.0;
const SEARCH_SHARE: f64 = 0.2;

pub(super) fn plan(
    problem: &Problem,
    options: &PublishedOptions,
) -> Result<Outcome, PublishedError> {
    let began = Instant::now();
    let graph = Graph::new(problem, "exact")?;
    let highs = Highs::load(options.highs.as_deref())?;
    let left = || options.time_limit.saturating_sub(began.elapsed());
    let mut best = first_plan(&graph, options)?;
    let infeasible = PublishedError::Infeasible {
        method: graph.method,
        budget: graph.budget(),
    };
    let Some(gaps) = gaps::solve(&graph, highs, options, left() / 4)? else {
        return Err(infeasible);
    };
    let mut bound = gaps.bound;
    let met = |best: &Option<CheckedPlan>| {
        best.as_ref()
            .is_some_and(|plan| plan.cost() <= bound * (1.0 + options.gap))
    };
    if !met(&best) {
        let round = Restricted {
            graph: &graph,
            highs,
            options,
            allowed: &gaps.evicted,
        };
        best = round.solve(best, left() / 3)?.plan;
    }
    let mut note = None;
    if !met(&best) && !options.stopped() {
        let cost = best.as_ref().map_or(f64::INFINITY, CheckedPlan::cost);
        let allowed = gaps.worth_rerunning(cost);
        let count = allowed.iter().filter(|&&may| may).count();
        note = Some(format!(
            "{count} of {} tasks can be worth running again",
            allowed.len()
        ));
        let round = Restricted {
            graph: &graph,
            highs,
            options,
            allowed: &allowed,
        };
        let answer = round.solve(best, left())?;
        bound = bound.max(answer.bound);
        best = answer.plan;
        if best.is_none() && answer.infeasible {
            return Err(infeasible);
        }
    }
    let plan = best.ok_or(PublishedError::NotFound {
        method: graph.method,
        budget: graph.budget(),
        least: None,
    })?;
    // No plan that is cheaper than the known one means that the known one is the bound.
    let bound = bound.min(plan.cost());
    Ok(Outcome {
        note,
        ..outcome(plan, bound, options.gap, began)
    })
}

/// The plan of the default search in the given order, or the caller's.
fn first_plan(
    graph: &Graph<'_>,
    options: &PublishedOptions,
) -> Result<Option<CheckedPlan>, PublishedError> {
    let mut best = None;
    if let Some(runs) = &options.start {
        let runs: Vec<usize> = runs.iter().map(|task| task.index()).collect();
        best = graph.check(&runs)?.ok().filter(CheckedPlan::keeps_order);
    }
    let share = options.time_limit.as_secs_f64() * SEARCH_SHARE;
    let seconds = (SEARCH_PER_TASK * graph.tasks.len() as f64)
        .min(SEARCH_SECONDS)
        .min(share);
    let search = crate::Options {
        method: Method::Search,
        order: Order::Fixed,
        time_limit: Duration::from_secs_f64(seconds),
        seed: options.seed,
        threads: options.threads,
        stop: options.stop.clone(),
        ..crate::Options::default()
    };
    if let Ok(solved) = crate::solve(graph.problem, &search, &mut |_| {}) {
        best = cheaper(best, solved.plan);
    }
    Ok(best)
}

/// One run of checkmate's program in which only some tasks may run again.
struct Restricted<'a> {
    graph: &'a Graph<'a>,
    highs: Highs,
    options: &'a PublishedOptions,
    allowed: &'a [bool],
}

/// What a restricted program found.
struct Answer {
    plan: Option<CheckedPlan>,
    /// Of the restricted program.
    bound: f64,
    infeasible: bool,
}

impl Restricted<'_> {
    fn solve(
        &self,
        known: Option<CheckedPlan>,
        time_limit: Duration,
    ) -> Result<Answer, PublishedError> {
        let mut graph = Graph::new(self.graph.problem, self.graph.method)?;
        graph.restrict(self.allowed);
        fits_in_memory(&graph)?;
        let goal = Goal::Cost {
            budget: graph.capacity,
        };
        let program = Program::new(&graph, Formulation::Disaggregated, goal);
        let mut start = Start::default();
        if let Some(stages) = known.as_ref().and_then(|plan| stages(&graph, plan)) {
            start.values = program.start(&stages);
        }
        let solver = self.options.highs(time_limit);
        let model = Arc::new(program.model.clone());
        let solution = self
            .highs
            .solve(&model, &solver, start, &mut |_| !self.options.stopped())?;
        let plan = match decode(&graph, &program, &solution)? {
            Some(Ok(plan)) => cheaper(known, plan),
            _ => known,
        };
        let infeasible = solution.status == Status::Infeasible;
        let bound = solution.bound.min(1e300) * program.cost_unit * (1.0 - 1e-9);
        Ok(Answer {
            plan,
            bound,
            infeasible,
        })
    }
}

/// A plan's stages, if it has some and reruns only what may.
fn stages(graph: &Graph<'_>, plan: &CheckedPlan) -> Option<Stages> {
    let steps = plan.steps().iter();
    let runs = steps.filter_map(|step| match step {
        Step::Run { task, .. } => Some(task.index()),
        _ => None,
    });
    let runs: Vec<usize> = runs.collect();
    let mut count = vec![0; graph.tasks.len()];
    for &task in &runs {
        count[task] += 1;
    }
    let allowed = graph
        .tasks
        .iter()
        .zip(&count)
        .all(|(task, &count)| count <= 1 || task.rerunnable);
    allowed
        .then(|| Stages::from_sequence(graph, &runs))
        .flatten()
}

//! Relax, then restrict: checkmate's program with only the recomputations that can be part of a
//! better plan.
//!
//! The search gives a plan, the stay program ([`crate::bound`]) a bound and, by the growth of its
//! Lagrangian, for each task and time by how much the bound grows if the task runs again then. Where it
//! grows to the cost of the known plan, that run is in no cheaper one; so the program without these
//! runs proves the optimum of checkmate's whole program, and is a fraction of its size. Before that, the
//! same with only the tasks that the known plan or the bound run again improves the plan, which leaves fewer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, CheckedPlan, Problem, Step, TaskId};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Progress, Start, Status};

use super::checkmate::{cheaper, decode, fits_in_memory, outcome};
use super::formulation::{Formulation, Goal, Program};
use super::graph::Graph;
use super::stages::Stages;
use super::{Outcome, PublishedError, PublishedOptions};
use crate::bound::{self, Ascent};
use crate::model::Model;
use crate::options::{Method, Order};

/// How long the search for a first plan may take: so much for each task, at most so many seconds, and
/// at most this share of the time.
const SEARCH_PER_TASK: f64 = 0.015;
const SEARCH_SECONDS: f64 = 5.0;
const SEARCH_SHARE: f64 = 0.2;

pub(super) fn plan(
    problem: &Problem,
    capacities: &Capacities,
    options: &PublishedOptions,
) -> Result<Outcome, PublishedError> {
    let began = Instant::now();
    let graph = Graph::new(problem, capacities, "exact")?;
    let highs = Highs::load(options.highs.as_deref())?;
    let left = || options.time_limit.saturating_sub(began.elapsed());
    let mut best = first_plan(&graph, options)?;
    let infeasible = PublishedError::Infeasible {
        method: graph.method,
        budget: graph.budget(),
    };
    let model = Model::new(problem).map_err(|error| PublishedError::Unsupported {
        method: graph.method,
        what: error.to_string(),
    })?;
    let budget = graph.capacity as f64 - model.0.resident;
    let cost = |best: &Option<CheckedPlan>| best.as_ref().map_or(f64::INFINITY, CheckedPlan::cost);
    let base = graph.base_cost();
    let known = if best.is_some() {
        cost(&best) - base
    } else {
        base
    };
    let mut ascent = bound::seconds(&model.0, budget, Order::Fixed, known);
    let deadline = Instant::now() + left() / 4;
    ascent.advance(u64::MAX, known, &|| {
        options.stopped() || Instant::now() >= deadline
    });
    let mut bound = ascent.proven();
    let met = |best: &Option<CheckedPlan>, bound: f64| cost(best) <= bound * (1.0 + options.gap);
    let round = |allowed: Vec<Vec<bool>>, bound: f64| Restricted {
        graph: &graph,
        highs,
        options,
        allowed,
        bound,
    };
    if !met(&best, bound) {
        let few = promising(&graph, best.as_ref(), &ascent);
        best = round(few, bound).solve(best, left() / 3)?.plan;
    }
    let mut note = None;
    if !met(&best, bound) && !options.stopped() {
        let worthwhile = ascent.worthwhile(cost(&best));
        let n = graph.tasks.len();
        let stages = |task: usize| {
            (0..n)
                .map(|s| worthwhile.before(TaskId::new(task), TaskId::new(s)))
                .collect()
        };
        let allowed: Vec<Vec<bool>> = (0..n).map(stages).collect();
        let runs = |task: usize| (task + 1..n).filter(|&s| allowed[task][s]).count();
        let (count, of) = ((0..n).map(runs).sum::<usize>(), n * (n - 1) / 2);
        let tasks = (0..n).filter(|&task| runs(task) > 0).count();
        note = Some(format!(
            "{tasks} of {n} tasks can be worth running again, in {count} of {of} places"
        ));
        let answer = round(allowed, bound).solve(best, left())?;
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

/// The tasks that the known plan or the bound's relaxation runs again, in all stages.
fn promising(
    graph: &Graph<'_>,
    known: Option<&CheckedPlan>,
    ascent: &Ascent<'_>,
) -> Vec<Vec<bool>> {
    let n = graph.tasks.len();
    let mut again = ascent.reruns();
    if let Some(plan) = known {
        let mut seen = vec![false; n];
        for task in runs(plan) {
            again[TaskId::new(task)] |= seen[task];
            seen[task] = true;
        }
    }
    again.values().take(n).map(|&may| vec![may; n]).collect()
}

/// The tasks of a plan's runs.
pub(super) fn runs(plan: &CheckedPlan) -> Vec<usize> {
    let steps = plan.steps().iter();
    let runs = steps.filter_map(|step| match step {
        Step::Run { task, .. } => Some(task.index()),
        _ => None,
    });
    runs.collect()
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
    if let Ok(solved) = crate::solve(graph.problem, graph.capacities, &search, &mut |_| {}) {
        best = cheaper(best, solved.plan);
    }
    Ok(best)
}

/// One run of checkmate's program in which only some tasks may run again.
struct Restricted<'a> {
    graph: &'a Graph<'a>,
    highs: Highs,
    options: &'a PublishedOptions,
    /// By task and stage.
    allowed: Vec<Vec<bool>>,
    /// No plan in this order takes fewer seconds.
    bound: f64,
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
        self,
        known: Option<CheckedPlan>,
        time_limit: Duration,
    ) -> Result<Answer, PublishedError> {
        let mut graph = Graph::new(self.graph.problem, self.graph.capacities, self.graph.method)?;
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
        let enough = self.bound * (1.0 + self.options.gap) / program.cost_unit;
        let go_on = &mut |news: &Progress<'_>| !self.options.stopped() && news.objective > enough;
        let solution = self.highs.solve(&model, &solver, start, go_on)?;
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

/// A plan's stages, if it has some and reruns only what may, where it may.
fn stages(graph: &Graph<'_>, plan: &CheckedPlan) -> Option<Stages> {
    let stages = Stages::from_sequence(graph, &runs(plan))?;
    let rows = stages.runs.iter().enumerate();
    let mut again = rows.flat_map(|(stage, row)| {
        (0..stage)
            .filter(|&task| row[task])
            .map(move |task| (task, stage))
    });
    again
        .all(|(task, stage)| graph.may_rerun(task, stage))
        .then_some(stages)
}

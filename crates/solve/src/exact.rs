//! Relax, then restrict: solves checkmate's program with only those recomputations that can be part of a
//! better plan.
//!
//! The search gives a plan, and the stay program ([`crate::bound`]) a lower bound. The growth of the stay
//! program's Lagrangian also says, for each task and time, by how much the bound grows if the task runs again
//! then. If the bound then reaches the cost of the known plan, no cheaper plan contains that run. So the
//! program without these runs proves the optimum of checkmate's whole program at a fraction of its size.
//!
//! Before that, the stay program in whole numbers, which has a few rows instead of one per task, raises the
//! bound, often to the optimum. A first restricted program has only those runs that the known plan or that
//! solution contains. It improves the plan, so that fewer runs remain, or the bound is met. A better plan
//! begins both again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, CheckedPlan, Problem, TaskId};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Progress, Start, Status};

use crate::bound::{self, Worthwhile};
use crate::error::SolveError;
use crate::method::{Formulation, Method, Order};
use crate::options::{Options, Solved};
use crate::published::checkmate::{cheaper, decode, outcome, solver_options};
use crate::published::formulation::{Goal, Program, fits_in_memory};
use crate::published::graph::{Graph, Reruns};
use crate::published::stages::Stages;
use crate::search::driver;

/// The limit on the search for a first plan: this time per task, at most this many seconds, and at most this
/// share of the whole time.
const SEARCH_PER_TASK: f64 = 0.015;
const SEARCH_SECONDS: f64 = 5.0;
const SEARCH_SHARE: f64 = 0.2;

pub(crate) fn plan(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
) -> Result<Solved, SolveError> {
    let began = Instant::now();
    let cutoff = options.cutoff(began, options.time_limit);
    let graph = Graph::new(problem, capacities, Method::Exact)?;
    let highs = Highs::load(options.highs.as_deref())?;
    let mut best = first_plan(&graph, options, began)?;
    let budget = graph.capacity as f64 - graph.model.resident;
    let cost = |best: &Option<CheckedPlan>| best.as_ref().map_or(f64::INFINITY, CheckedPlan::cost);
    let base = graph.base_cost();
    let known = if best.is_some() {
        cost(&best) - base
    } else {
        base
    };
    let quarter = cutoff.by(Instant::now().checked_add(cutoff.left() / 4));
    let mut ascent = bound::seconds(&graph.model, budget, Order::Fixed, known, quarter);
    ascent.advance(u64::MAX, known, &|| quarter.reached());
    let mut bound = ascent.proven();
    let met = |best: &Option<CheckedPlan>, bound: f64| cost(best) <= bound * (1.0 + options.gap);
    let round = |reruns: Reruns, bound: f64| Restricted {
        graph: &graph,
        highs,
        options,
        reruns,
        bound,
    };
    let mut better = true;
    while better && !met(&best, bound) && !options.stopped() {
        let before = cost(&best);
        let worthwhile = ascent.worthwhile(cost(&best));
        let program = ascent.integer(&worthwhile);
        let enough = cost(&best) / program.unit;
        let go_on = &mut |news: &Progress<'_>| !options.stopped() && news.bound < enough;
        let solver = solver_options(options, cutoff.left() / 3);
        let start = Start::default();
        let solution = highs.solve(&program.milp, &solver, start, go_on)?;
        if solution.status == Status::Infeasible {
            // No plan is cheaper than the known one.
            bound = best.as_ref().ok_or(graph.infeasible())?.cost();
        } else {
            bound = bound.max(solution.bound * program.unit * (1.0 - 1e-9));
        }
        if !met(&best, bound) {
            let mut places = program.reruns(&solution.values);
            places.extend(best.iter().flat_map(|plan| reruns(plan, &worthwhile)));
            let few = Reruns::Where(worthwhile.only(places));
            best = round(few, bound).solve(best, cutoff.left() * 3 / 4)?.plan;
        }
        better = cost(&best) < before;
    }
    let mut note = None;
    if !met(&best, bound) && !options.stopped() {
        let worthwhile = ascent.worthwhile(cost(&best));
        let n = graph.tasks.len();
        let reruns = Reruns::Where(worthwhile);
        let runs = |task: usize| (task + 1..n).filter(|&s| reruns.allow(task, s)).count();
        let (count, of) = ((0..n).map(runs).sum::<usize>(), n * (n - 1) / 2);
        let tasks = (0..n).filter(|&task| runs(task) > 0).count();
        note = Some(format!(
            "{tasks} of {n} tasks can be worth running again, in {count} of {of} places"
        ));
        let answer = round(reruns, bound).solve(best, cutoff.left())?;
        bound = bound.max(answer.bound);
        best = answer.plan;
        if best.is_none() && answer.infeasible {
            return Err(graph.infeasible());
        }
    }
    let plan = best.ok_or(graph.not_found(None))?;
    // If no plan is cheaper than the known one, the known plan's cost is the bound.
    let bound = bound.min(plan.cost());
    Ok(Solved {
        note,
        ..outcome(&graph, plan, bound, options.gap, began)
    })
}

/// The tasks that a plan runs again, and in which blocks.
fn reruns(plan: &CheckedPlan, blocks: &Worthwhile) -> Vec<(TaskId, usize)> {
    let (mut again, mut stage) = (Vec::new(), 0);
    for task in plan.runs() {
        if task.index() < stage {
            again.push((task, blocks.block(TaskId::new(stage))));
        } else {
            stage += 1;
        }
    }
    again
}

/// The caller's plan, or the plan of the default search in the given order.
fn first_plan(
    graph: &Graph<'_>,
    options: &Options,
    began: Instant,
) -> Result<Option<CheckedPlan>, SolveError> {
    let by_index = |tasks: &mut dyn Iterator<Item = TaskId>| -> Vec<usize> {
        tasks.map(|task| task.index()).collect()
    };
    let mut best = None;
    if let Some(start) = &options.start {
        let runs = by_index(&mut start.runs());
        best = graph.check(&runs)?.ok().filter(CheckedPlan::keeps_order);
    }
    let share = options.time_limit.as_secs_f64() * SEARCH_SHARE;
    let seconds = (SEARCH_PER_TASK * graph.tasks.len() as f64)
        .min(SEARCH_SECONDS)
        .min(share);
    let search = Options {
        order: Order::Fixed,
        time_limit: Duration::from_secs_f64(seconds),
        enough: None,
        start: options.start.clone().filter(|_| best.is_some()),
        ..options.clone()
    };
    let budget = graph.capacity as f64 - graph.model.resident;
    let found = driver::run(&graph.model, budget, &search, began, &mut |_| {});
    if let Ok(plan) = graph.check(&by_index(&mut found.runs.into_iter()))? {
        best = cheaper(best, plan);
    }
    Ok(best)
}

/// One run of checkmate's program in which only some tasks may run again.
struct Restricted<'a> {
    graph: &'a Graph<'a>,
    highs: Highs,
    options: &'a Options,
    reruns: Reruns,
    /// No plan in this order takes fewer seconds.
    bound: f64,
}

/// The result of a restricted program.
struct Answer {
    plan: Option<CheckedPlan>,
    /// The restricted program's bound.
    bound: f64,
    infeasible: bool,
}

impl Restricted<'_> {
    fn solve(self, known: Option<CheckedPlan>, time_limit: Duration) -> Result<Answer, SolveError> {
        let graph = self.graph.restricted(self.reruns)?;
        fits_in_memory(&graph)?;
        let goal = Goal::Cost {
            budget: graph.capacity,
        };
        let program = Program::new(&graph, Formulation::Disaggregated, goal);
        let mut start = Start::default();
        if let Some(stages) = known.as_ref().and_then(|plan| stages(&graph, plan)) {
            start.values = program.start(&stages);
        }
        let solver = solver_options(self.options, time_limit);
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

/// A plan's stages, if it has stages and all its reruns are allowed ones.
fn stages(graph: &Graph<'_>, plan: &CheckedPlan) -> Option<Stages> {
    let of_plan: Vec<usize> = plan.runs().map(|task| task.index()).collect();
    let stages = Stages::from_sequence(graph, &of_plan)?;
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

//! Moccasin in two phases (2.4): first finds a solution that fits the memory, then starts from it to find a
//! cheap one.

use std::time::Instant;

use cranelift_entity::EntityRef;
use scrimp_plan::CheckedPlan;
use scrimp_solvers::CpSat;
use scrimp_solvers::cpsat::{self, Model, Solution, Status};

use super::checkmate::{cheaper, outcome};
use super::graph::Graph;
use super::program::{Goal, Program};
use crate::cutoff::Cutoff;
use crate::error::SolveError;
use crate::options::{Options, Solved};

/// Bytes that the program takes here and in the solver, for each possible use of a value and for each place
/// of a run.
const BYTES_PER_USE: u64 = 10_000;
const BYTES_PER_PLACE: u64 = 40;
/// The largest program that CP-SAT presolves within hours.
const MOST_BYTES: u64 = 200_000 * BYTES_PER_USE;

pub(super) fn plan(
    graph: &Graph<'_>,
    options: &Options,
    staged: bool,
) -> Result<Solved, SolveError> {
    let began = Instant::now();
    supported(graph, options, staged)?;
    let solver = CpSat::load(options.ortools.as_deref())?;
    let mut two = TwoPhases {
        graph,
        options,
        staged,
        solver,
        cutoff: options.cutoff(began, options.time_limit),
        bound: graph.base_cost(),
    };
    let mut best = None;
    let first = match two.known()? {
        Some((runs, plan)) => {
            best = Some(plan);
            runs
        }
        None => two.first_phase()?,
    };
    let program = two.program(&Goal::Cost);
    let best = two.second_phase(&program, &first, best)?;
    let plan = best.ok_or(graph.not_found(None))?;
    let runs: Vec<usize> = plan.runs().map(|task| task.index()).collect();
    let full = program.exhausted(&runs);
    let note = (full > 0).then(|| {
        let limit = options.runs_per_task;
        format!("C_v = {limit} binds for {full} tasks; a larger one may give a cheaper plan")
    });
    Ok(Solved {
        note,
        ..outcome(graph, plan, two.bound, options.gap, began)
    })
}

/// Refuses a problem that the program can't express or that would make it too large, before the program is
/// built.
fn supported(graph: &Graph<'_>, options: &Options, staged: bool) -> Result<(), SolveError> {
    if let Some(task) = graph
        .tasks
        .iter()
        .position(|task| !task.overwrites.is_empty())
    {
        let id = scrimp_plan::TaskId::new(task);
        let name = &graph.problem.task(id).name;
        let what =
            format!("{id} ({name}) overwrites an input, which retention intervals don't express");
        return Err(SolveError::unsupported(graph.method.name(), &what));
    }
    let runs = options.runs_per_task.max(1) as u64;
    let inputs: usize = graph.tasks.iter().map(|task| task.inputs.len()).sum();
    let uses = runs.saturating_mul(inputs as u64);
    // In stages, each run but the first has a domain: the stages in which it may take place.
    let reach = if staged { graph.reach() } else { Vec::new() };
    let places = reach.iter().enumerate().map(|(task, last)| last - task);
    let places = (runs - 1).saturating_mul(places.sum::<usize>() as u64);
    let bytes =
        (uses.saturating_mul(BYTES_PER_USE)).saturating_add(places.saturating_mul(BYTES_PER_PLACE));
    if bytes > MOST_BYTES {
        return Err(SolveError::TooLarge {
            method: graph.method.name(),
            bytes,
            most: MOST_BYTES,
        });
    }
    Ok(())
}

struct TwoPhases<'g, 'p> {
    graph: &'g Graph<'p>,
    options: &'g Options,
    staged: bool,
    solver: CpSat,
    cutoff: Cutoff<'g>,
    bound: f64,
}

impl TwoPhases<'_, '_> {
    fn program(&self, goal: &Goal) -> Program {
        let (limit, precedence) = (self.options.runs_per_task, self.options.precedence);
        Program::new(self.graph, self.staged, limit, precedence, goal)
    }

    /// Running everything once, or the caller's known plan, if it fits.
    fn known(&self) -> Result<Option<(Vec<usize>, CheckedPlan)>, SolveError> {
        let once: Vec<usize> = (0..self.graph.tasks.len()).collect();
        let given = self.options.start.as_ref();
        let given = given.map(|runs| runs.runs().map(|task| task.index()).collect());
        for runs in [Some(once), given].into_iter().flatten() {
            if let Ok(Ok(plan)) = self.graph.check(&runs) {
                return Ok(Some((runs, plan)));
            }
        }
        Ok(None)
    }

    fn solve(&self, model: &Model) -> Result<Solution, SolveError> {
        let options = cpsat::Options {
            time_limit: self.cutoff.left(),
            threads: self.options.threads,
            seed: self.options.seed as u32,
            relative_gap: self.options.gap,
        };
        Ok(self
            .solver
            .solve(model, &options, &mut |_| !self.options.stopped())?)
    }

    /// Finds a sequence that fits the memory.
    fn first_phase(&self) -> Result<Vec<usize>, SolveError> {
        let mut program = self.program(&Goal::Memory);
        let once: Vec<usize> = (0..self.graph.tasks.len()).collect();
        if let Some(hint) = program.hint(self.graph, &once) {
            program.model.hint(&hint);
        }
        let solution = self.solve(&program.model)?;
        if solution.values.is_empty() {
            return Err(self.graph.not_found(None));
        }
        let runs = program.sequence(&solution);
        match (self.graph.check(&runs)?, solution.status) {
            (Ok(_), _) => Ok(runs),
            (Err(_), Status::Optimal) => Err(self.graph.infeasible()),
            (Err(peak), _) => Err(self.graph.not_found(Some(peak))),
        }
    }

    /// Finds a cheap plan, starting from a first one.
    fn second_phase(
        &mut self,
        program: &Program,
        first: &[usize],
        mut best: Option<CheckedPlan>,
    ) -> Result<Option<CheckedPlan>, SolveError> {
        if best.is_none() {
            best = self.graph.check(first)?.ok();
        }
        let mut model = program.model.clone();
        if let Some(hint) = program.hint(self.graph, first) {
            model.hint(&hint);
        }
        let solution = self.solve(&model)?;
        if solution.status == Status::Infeasible && best.is_none() {
            return Err(self.graph.infeasible());
        }
        if solution.bound.is_finite() {
            let bound = solution.bound * program.cost_unit - program.cost_slack;
            self.bound = self.bound.max(bound);
        }
        if !solution.values.is_empty()
            && let Ok(plan) = self.graph.check(&program.sequence(&solution))?
        {
            best = cheaper(best, plan);
        }
        Ok(best)
    }
}

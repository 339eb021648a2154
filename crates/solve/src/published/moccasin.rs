//! Moccasin in two phases (2.4): first a solution that fits the memory, then, from it, a cheap one.

use std::time::Instant;

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, CheckedPlan, Problem};
use scrimp_solvers::CpSat;
use scrimp_solvers::cpsat::{Model, Options, Solution, Status};

use super::checkmate::{cheaper, outcome};
use super::graph::Graph;
use super::program::{Goal, Program};
use super::{Outcome, Published, PublishedError, PublishedOptions};

/// How the program says that inputs are in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precedence {
    /// A reservoir for each input of each run (10), as the paper does.
    #[default]
    Reservoir,
    /// A literal for each interval that may serve an input of a run: (5) as it stands.
    Choice,
}

/// More variables than this take CP-SAT hours to presolve.
const MAX_USES: usize = 200_000;

pub(super) fn plan(
    problem: &Problem,
    capacities: &Capacities,
    options: &PublishedOptions,
    staged: bool,
) -> Result<Outcome, PublishedError> {
    let began = Instant::now();
    let method = if staged {
        Published::MoccasinStaged
    } else {
        Published::MoccasinUnstaged
    };
    let graph = Graph::new(problem, capacities, method.name())?;
    supported(&graph, options)?;
    let solver = CpSat::load(options.ortools.as_deref())?;
    let mut two = TwoPhases {
        graph: &graph,
        options,
        staged,
        solver,
        began,
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
    let plan = best.ok_or(PublishedError::NotFound {
        method: graph.method,
        budget: graph.budget(),
        least: None,
    })?;
    let runs = runs_of(&plan);
    let full = program.exhausted(&runs);
    let note = (full > 0).then(|| {
        let limit = options.runs_per_task;
        format!("C_v = {limit} binds for {full} tasks; a larger one may give a cheaper plan")
    });
    Ok(Outcome {
        note,
        ..outcome(plan, two.bound, options.gap, began)
    })
}

fn runs_of(plan: &CheckedPlan) -> Vec<usize> {
    let steps = plan.steps().iter();
    let runs = steps.filter_map(|step| match step {
        scrimp_plan::Step::Run { task, .. } => Some(task.index()),
        _ => None,
    });
    runs.collect()
}

fn supported(graph: &Graph<'_>, options: &PublishedOptions) -> Result<(), PublishedError> {
    let unsupported = |what| PublishedError::Unsupported {
        method: graph.method,
        what,
    };
    if let Some(task) = graph
        .tasks
        .iter()
        .position(|task| !task.overwrites.is_empty())
    {
        let id = scrimp_plan::TaskId::new(task);
        let name = &graph.problem.task(id).name;
        return Err(unsupported(format!(
            "{id} ({name}) overwrites an input, which retention intervals don't express"
        )));
    }
    let inputs: usize = graph.tasks.iter().map(|task| task.inputs.len()).sum();
    let uses = inputs.saturating_mul(options.runs_per_task);
    if uses > MAX_USES {
        return Err(unsupported(format!(
            "it has {uses} possible uses, more than {MAX_USES}"
        )));
    }
    Ok(())
}

struct TwoPhases<'g, 'p> {
    graph: &'g Graph<'p>,
    options: &'g PublishedOptions,
    staged: bool,
    solver: CpSat,
    began: Instant,
    bound: f64,
}

impl TwoPhases<'_, '_> {
    fn program(&self, goal: &Goal) -> Program {
        let (limit, precedence) = (self.options.runs_per_task, self.options.precedence);
        Program::new(self.graph, self.staged, limit, precedence, goal)
    }

    /// Running everything once, or the plan the caller knows, where it fits.
    fn known(&self) -> Result<Option<(Vec<usize>, CheckedPlan)>, PublishedError> {
        let once: Vec<usize> = (0..self.graph.tasks.len()).collect();
        let given = self.options.start.as_ref();
        let given = given.map(|runs| runs.iter().map(|task| task.index()).collect());
        for runs in [Some(once), given].into_iter().flatten() {
            if let Ok(Ok(plan)) = self.graph.check(&runs) {
                return Ok(Some((runs, plan)));
            }
        }
        Ok(None)
    }

    fn solve(&self, model: &Model) -> Result<Solution, PublishedError> {
        let options = Options {
            time_limit: self.options.time_limit.saturating_sub(self.began.elapsed()),
            threads: self.options.threads,
            seed: self.options.seed as u32,
            relative_gap: self.options.gap,
        };
        Ok(self
            .solver
            .solve(model, &options, &mut |_| !self.options.stopped())?)
    }

    /// A sequence that fits the memory.
    fn first_phase(&self) -> Result<Vec<usize>, PublishedError> {
        let (method, budget) = (self.graph.method, self.graph.budget());
        let mut program = self.program(&Goal::Memory);
        let once: Vec<usize> = (0..self.graph.tasks.len()).collect();
        if let Some(hint) = program.hint(self.graph, &once) {
            program.model.hint(&hint);
        }
        let solution = self.solve(&program.model)?;
        if solution.values.is_empty() {
            return Err(PublishedError::NotFound {
                method,
                budget,
                least: None,
            });
        }
        let runs = program.sequence(&solution);
        match (self.graph.check(&runs)?, solution.status) {
            (Ok(_), _) => Ok(runs),
            (Err(_), Status::Optimal) => Err(PublishedError::Infeasible { method, budget }),
            (Err(peak), _) => Err(PublishedError::NotFound {
                method,
                budget,
                least: Some(peak),
            }),
        }
    }

    /// The cheapest plan found from a first one.
    fn second_phase(
        &mut self,
        program: &Program,
        first: &[usize],
        mut best: Option<CheckedPlan>,
    ) -> Result<Option<CheckedPlan>, PublishedError> {
        if best.is_none() {
            best = self.graph.check(first)?.ok();
        }
        let mut model = program.model.clone();
        if let Some(hint) = program.hint(self.graph, first) {
            model.hint(&hint);
        }
        let solution = self.solve(&model)?;
        if solution.status == Status::Infeasible && best.is_none() {
            let (method, budget) = (self.graph.method, self.graph.budget());
            return Err(PublishedError::Infeasible { method, budget });
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

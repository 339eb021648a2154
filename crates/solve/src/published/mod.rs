//! The published planners, each faithful to its paper and usable by name: checkmate's integer program
//! and its rounding, moccasin's constraint program, and the checkpointing heuristics that checkmate
//! generalizes.
//!
//! All of them keep the given order of first runs, but for moccasin's unstaged program. The exact
//! ones prove their optimum *in their model*: a stage ends with the first run of its task, and before
//! that runs others at most once each, in index order. A plan outside the model (a stage that runs a
//! task twice, or others out of index order) can be cheaper than that optimum.

mod accounting;
mod chain;
mod checkmate;
mod chen;
mod exact;
mod formulation;
mod graph;
mod griewank;
mod max_batch;
mod moccasin;
mod program;
mod rounding;
mod stages;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scrimp_plan::{Capacities, CheckedPlan, Problem, TaskId};
use scrimp_solvers::{Library, SolverError};
use thiserror::Error;

pub use chain::{Accounted, Candidates, Selection, checkmate_accounting, checkpoints};
pub use formulation::Formulation;
pub use max_batch::{MaxBatch, MaxBatchOptions, max_batch};
pub use moccasin::Precedence;
pub use rounding::Rounding;

/// A published planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// Checkmate's mixed-integer program, equations 1–9.
    Checkmate(Formulation),
    /// Checkmate's program with only the recomputations that can be part of a better plan than the
    /// search's. The same optimum; our own.
    Exact,
    /// Its linear relaxation, rounded in two phases (algorithm 2), with a search over ε.
    CheckmateRounding(Rounding),
    /// Moccasin's constraint program, in stages (domain 11).
    MoccasinStaged,
    /// Moccasin's constraint program in any order (domain 9).
    MoccasinUnstaged,
    /// Chen et al. 2016 with √n segments.
    ChenSqrtN(Candidates),
    /// Chen et al. 2016 by size of segments, with its parameter searched.
    ChenGreedy(Candidates),
    /// Griewank & Walther 2000: binomial checkpointing, with the number of checkpoints searched.
    Griewank(Candidates),
}

impl Published {
    /// Every planner.
    pub const ALL: [Published; 13] = [
        Published::Checkmate(Formulation::Published),
        Published::Checkmate(Formulation::Disaggregated),
        Published::Exact,
        Published::CheckmateRounding(Rounding::Deterministic),
        Published::CheckmateRounding(Rounding::Randomized),
        Published::MoccasinStaged,
        Published::MoccasinUnstaged,
        Published::ChenSqrtN(Candidates::Articulation),
        Published::ChenSqrtN(Candidates::Linearized),
        Published::ChenGreedy(Candidates::Articulation),
        Published::ChenGreedy(Candidates::Linearized),
        Published::Griewank(Candidates::Articulation),
        Published::Griewank(Candidates::Linearized),
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        use Candidates::{Articulation, Linearized};
        match self {
            Published::Checkmate(Formulation::Published) => "checkmate",
            Published::Checkmate(Formulation::Disaggregated) => "checkmate-disaggregated",
            Published::Exact => "exact",
            Published::CheckmateRounding(Rounding::Deterministic) => "checkmate-rounding",
            Published::CheckmateRounding(Rounding::Randomized) => "checkmate-rounding-randomized",
            Published::MoccasinStaged => "moccasin",
            Published::MoccasinUnstaged => "moccasin-unstaged",
            Published::ChenSqrtN(Articulation) => "ap-sqrt-n",
            Published::ChenSqrtN(Linearized) => "linearized-sqrt-n",
            Published::ChenGreedy(Articulation) => "ap-greedy",
            Published::ChenGreedy(Linearized) => "linearized-greedy",
            Published::Griewank(Articulation) => "ap-griewank",
            Published::Griewank(Linearized) => "linearized-griewank",
        }
    }

    /// The solver library that it needs.
    #[must_use]
    pub fn library(self) -> Option<Library> {
        match self {
            Published::Checkmate(_) | Published::Exact | Published::CheckmateRounding(_) => {
                Some(Library::Highs)
            }
            Published::MoccasinStaged | Published::MoccasinUnstaged => Some(Library::OrTools),
            Published::ChenSqrtN(_) | Published::ChenGreedy(_) | Published::Griewank(_) => None,
        }
    }

    /// Whether it may change the order of first runs.
    #[must_use]
    pub fn reorders(self) -> bool {
        self == Published::MoccasinUnstaged
    }

    /// Plans the problem within the capacity of the device that computes.
    ///
    /// # Errors
    /// If the problem is outside the method's model, a solver library is missing or fails, or no plan
    /// within the capacity was found.
    pub fn plan(
        self,
        problem: &Problem,
        capacities: &Capacities,
        options: &PublishedOptions,
    ) -> Result<Outcome, PublishedError> {
        match self {
            Published::Checkmate(formulation) => {
                checkmate::plan(problem, capacities, options, formulation)
            }
            Published::Exact => exact::plan(problem, capacities, options),
            Published::CheckmateRounding(rounding) => {
                rounding::plan(problem, capacities, options, rounding)
            }
            Published::MoccasinStaged => moccasin::plan(problem, capacities, options, true),
            Published::MoccasinUnstaged => moccasin::plan(problem, capacities, options, false),
            Published::ChenSqrtN(candidates) => chen::sqrt_n(problem, capacities, candidates),
            Published::ChenGreedy(candidates) => chen::greedy(problem, capacities, candidates),
            Published::Griewank(candidates) => griewank::plan(problem, capacities, candidates),
        }
    }
}

/// What the published planners can be told.
#[derive(Clone, Debug)]
pub struct PublishedOptions {
    /// Wall time of everything together; a solver may overrun it by about two seconds.
    pub time_limit: Duration,
    /// Threads of the solver.
    pub threads: usize,
    /// Of the solver's random choices and of randomized rounding.
    pub seed: u64,
    /// Stop when the cost is within this fraction of the bound.
    pub gap: f64,
    /// How the programs behind rounding and the largest batch state when memory is freed.
    pub formulation: Formulation,
    /// Moccasin's C_v: how often a task may run, its first run included.
    pub runs_per_task: usize,
    /// How moccasin's program states that inputs are there.
    pub precedence: Precedence,
    /// A known plan, as its sequence of runs, to start the exact methods from. Ignored where it is
    /// outside the method's model.
    pub start: Option<Vec<TaskId>>,
    /// Where HiGHS is, if it shouldn't be looked for.
    pub highs: Option<PathBuf>,
    /// Where OR-tools is, if it shouldn't be looked for.
    pub ortools: Option<PathBuf>,
    /// Set it to stop early with the best plan so far.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for PublishedOptions {
    fn default() -> Self {
        PublishedOptions {
            time_limit: Duration::from_secs(3600),
            threads: 2,
            seed: 0,
            gap: 1e-6,
            formulation: Formulation::default(),
            runs_per_task: 2,
            precedence: Precedence::default(),
            start: None,
            highs: None,
            ortools: None,
            stop: None,
        }
    }
}

impl PublishedOptions {
    /// For HiGHS, with what is left of the time.
    fn highs(&self, time_limit: Duration) -> scrimp_solvers::highs::Options {
        scrimp_solvers::highs::Options {
            time_limit,
            threads: self.threads,
            seed: self.seed as u32,
            relative_gap: self.gap,
            ..scrimp_solvers::highs::Options::default()
        }
    }

    fn stopped(&self) -> bool {
        self.stop
            .as_ref()
            .is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

/// A plan within the capacity and what is known about it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The plan.
    pub plan: CheckedPlan,
    /// No plan of the method's model takes fewer seconds. The heuristics prove nothing beyond the
    /// cost of running every task once.
    pub lower_bound: f64,
    /// The cost is within the gap of the bound.
    pub proven_optimal: bool,
    /// Wall time.
    pub elapsed: Duration,
    /// What a reader of the result should know: the parameter that was chosen, a limit that binds.
    pub note: Option<String>,
}

/// Why a published planner has no plan.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PublishedError {
    /// The problem has something that the method's model doesn't.
    #[error("{method} can't plan this problem: {what}; use `--method search`")]
    Unsupported {
        /// The method's name.
        method: &'static str,
        /// What it has, and where.
        what: String,
    },
    /// The solver is missing or failed.
    #[error(transparent)]
    Solver(#[from] SolverError),
    /// Proven: the method's model has no plan within the budget.
    #[error("{method} proved that its model has no plan within {budget} bytes; raise the budget")]
    Infeasible {
        /// The method's name.
        method: &'static str,
        /// What was asked for.
        budget: u64,
    },
    /// None was found, which proves nothing.
    #[error(
        "{method} found no plan within {budget} bytes{}; raise the budget, or give it more time if it is an exact method",
        least.map(|least| format!(" (its leanest needs {least})")).unwrap_or_default()
    )]
    NotFound {
        /// The method's name.
        method: &'static str,
        /// What was asked for.
        budget: u64,
        /// Peak of its leanest plan, if it has one.
        least: Option<u64>,
    },
    /// A planner made a sequence that isn't a plan. A defect of this crate.
    #[error("internal error, please report: {method} made an invalid plan: {what}")]
    Defect {
        /// The method's name.
        method: &'static str,
        /// What the checker says.
        what: String,
    },
}

#[cfg(test)]
mod tests;

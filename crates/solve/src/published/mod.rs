//! The published planners, each faithful to its paper and available by name: checkmate's integer program and
//! its rounding, moccasin's constraint program, the checkpointing heuristics that checkmate generalizes, and the
//! planners that swap to a second memory.
//!
//! All of them except moccasin's unstaged program keep the given order of first runs. The exact ones prove
//! their optimum *in their model*: a stage ends with the first run of its task, and before that runs other
//! tasks at most once each, in index order. A plan outside the model (a stage that runs a task twice, or
//! other tasks out of index order) can be cheaper than that optimum.

mod accounting;
mod chain;
pub(crate) mod checkmate;
mod chen;
mod devices;
pub(crate) mod formulation;
pub(crate) mod graph;
mod griewank;
mod max_batch;
mod moccasin;
mod policy;
mod program;
mod rounding;
pub(crate) mod stages;
mod swap;
#[cfg(test)]
mod tests;

use scrimp_plan::{Capacities, Problem};

use crate::error::SolveError;
use crate::method::{Method, Published};
use crate::options::{Options, Solved};
use swap::Rule;

pub(crate) use devices::least_cut;

pub use chain::{Accounted, Selection, checkmate_accounting, checkpoints};
pub use max_batch::{MaxBatch, MaxBatchOptions, max_batch};
pub use swap::Layer;

/// Plans a problem by a published method, within the capacity of the device that computes.
///
/// # Errors
/// If the problem is outside the method's model, a solver library is missing or fails, or no plan
/// within the capacity was found.
pub(crate) fn plan(
    problem: &Problem,
    capacities: &Capacities,
    method: Published,
    options: &Options,
) -> Result<Solved, SolveError> {
    if let Published::Devices(placing) = method {
        return devices::plan(problem, capacities, placing, options);
    }
    let graph = graph::Graph::new(problem, capacities, Method::Published(method))?;
    match method {
        Published::Checkmate(formulation) => checkmate::plan(&graph, options, formulation),
        Published::CheckmateRounding(rounding) => rounding::plan(&graph, options, rounding),
        Published::MoccasinStaged => moccasin::plan(&graph, options, true),
        Published::MoccasinUnstaged => moccasin::plan(&graph, options, false),
        Published::ChenSqrtN(candidates) => chen::sqrt_n(&graph, options, candidates),
        Published::ChenGreedy(candidates) => chen::greedy(&graph, options, candidates),
        Published::Griewank(candidates) => griewank::plan(&graph, options, candidates),
        Published::Vdnn(offload) => swap::plan(&graph, options, Rule::Vdnn(offload)),
        Published::SuperNeurons => swap::plan(&graph, options, Rule::SuperNeurons),
        Published::Capuchin => swap::plan(&graph, options, Rule::Capuchin),
        Published::Poet => swap::poet::plan(&graph, options),
        Published::Home(reading) => swap::plan(&graph, options, Rule::Home(reading)),
        Published::Devices(placing) => devices::plan(problem, capacities, placing, options),
    }
}

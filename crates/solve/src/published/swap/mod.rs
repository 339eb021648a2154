//! The published planners that use a second memory: vDNN, SuperNeurons, Capuchin and HOME, which give each
//! feature map an action, and POET's program.
//!
//! | file | what |
//! |---|---|
//! | `maps` | feature maps, and the links to the other memory |
//! | `layers` | what kind of layer a task is |
//! | `unfold` | what a policy runs and copies, and the bytes that this takes |
//! | `evaluate` | how long it takes, and its plan |
//! | `vdnn`, `superneurons`, `capuchin`, `home` | how each method chooses a policy |
//! | `poet` | POET's program, which has stages instead of policies |
//!
//! All keep the given order of first runs. Their lower bound is the time of running every task once.

mod capuchin;
mod evaluate;
mod home;
mod layers;
mod maps;
pub(super) mod poet;
mod superneurons;
mod unfold;
mod vdnn;

#[cfg(test)]
mod tests;

use std::time::Instant;

use scrimp_plan::{CheckedPlan, check, simulate};

use super::graph::Graph;
use crate::error::SolveError;
use crate::method::{Offload, Reading};
use crate::options::{Options, Others, Solved};
use evaluate::{Evaluator, Policy};
use layers::Layers;
use maps::Maps;

pub use layers::Layer;

/// A method that gives each feature map an action.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Vdnn(Offload),
    SuperNeurons,
    Capuchin,
    Home(Reading),
}

/// Plans by such a method.
pub(super) fn plan(graph: &Graph<'_>, options: &Options, rule: Rule) -> Result<Solved, SolveError> {
    let began = Instant::now();
    let cutoff = options.cutoff(began, options.time_limit);
    let maps = Maps::new(graph)?;
    let layers = Layers::new(&maps, options.layers.as_deref());
    let (policy, note) = match rule {
        Rule::Vdnn(offload) => (vdnn::policy(&maps, &layers, offload)?, None),
        Rule::SuperNeurons => (superneurons::policy(&maps, &layers)?, None),
        Rule::Capuchin => (capuchin::policy(&maps, cutoff).0, None),
        Rule::Home(reading) => {
            let found = home::search(&maps, &layers, options, reading, cutoff);
            let start = match found.seeded {
                true => "from other methods' policies, because no random one fits",
                false => "from random policies",
            };
            let note = format!("{} iterations {start}", found.iterations);
            (found.policy, Some(note))
        }
    };
    finish(&maps, &policy, note, began)
}

/// The checked plan of a policy.
fn finish(
    maps: &Maps<'_, '_>,
    policy: &Policy,
    note: Option<String>,
    began: Instant,
) -> Result<Solved, SolveError> {
    let graph = maps.graph;
    let mut evaluator = Evaluator::new(maps);
    let Some(plan) = evaluator.plan(policy) else {
        // Zero operations mean that the policy is impossible at any capacity.
        let least = evaluator.peak(policy).filter(|&peak| peak > graph.capacity);
        return Err(graph.not_found(least));
    };
    let defect = |what: String| SolveError::Defect {
        method: graph.method.name(),
        what,
    };
    let plan = check(graph.problem, plan).map_err(|all| {
        let told: Vec<String> = all.iter().take(3).map(ToString::to_string).collect();
        defect(told.join("; "))
    })?;
    plan.within(graph.capacities)
        .map_err(|excess| defect(format!("{excess:?}")))?;
    Ok(solved(graph, plan, note, began))
}

/// The outcome of a method that proves nothing: every task runs at least once.
fn solved(graph: &Graph<'_>, plan: CheckedPlan, note: Option<String>, began: Instant) -> Solved {
    let cost = simulate(&plan).makespan();
    Solved {
        others: Others::default(),
        optimal: cost <= graph.base_cost() * (1.0 + 1e-9),
        lower_bound: graph.base_cost().min(cost),
        cost,
        plan,
        method: graph.method,
        elapsed: began.elapsed(),
        note,
    }
}

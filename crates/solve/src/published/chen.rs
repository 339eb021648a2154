//! Chen et al. 2016, generalized by checkmate (appendix B): checkpoints among candidates, held to the
//! end, then the fewest runs for them.

use std::collections::BTreeSet;
use std::time::Instant;

use scrimp_plan::{Capacities, CheckedPlan, Problem};

use super::accounting::stage_peak;
use super::chain::{Candidates, Chain, Selection};
use super::graph::Graph;
use super::stages::Stages;
use super::{Outcome, Published, PublishedError};

/// The steps of the search for greedy's parameter, and how many of them make the peak of √n.
const STEPS: usize = 300;
const STEPS_PER_PEAK: f64 = 100.0;

pub(super) fn sqrt_n(
    problem: &Problem,
    capacities: &Capacities,
    candidates: Candidates,
) -> Result<Outcome, PublishedError> {
    let began = Instant::now();
    let graph = Graph::new(problem, capacities, Published::ChenSqrtN(candidates).name())?;
    let chain = Chain::new(&graph);
    let chosen = chain.select(&chain.candidates(candidates), Selection::SqrtN);
    let mut search = Search::new(&graph);
    search.offer(chain.policy(&chosen, false), || {
        format!("{} checkpoints", chosen.len())
    })?;
    search.outcome(began)
}

/// The stages of greedy's whole sweep: with every size of segments from nothing to three times the
/// peak of √n.
pub(super) fn greedy_sweep(
    graph: &Graph<'_>,
    candidates: Candidates,
    visit: &mut dyn FnMut(Vec<Vec<bool>>, f64) -> Result<(), PublishedError>,
) -> Result<(), PublishedError> {
    let chain = Chain::new(graph);
    let all = chain.candidates(Candidates::Linearized);
    let policy = chain.policy(&chain.select(&all, Selection::SqrtN), false);
    let sqrt = Stages::complete(graph, policy).map_err(|lost| graph.lost(lost))?;
    let peak = stage_peak(graph, &sqrt) as f64;
    let allowed = chain.candidates(candidates);
    let mut seen = BTreeSet::new();
    for step in 0..STEPS {
        let bytes = peak * step as f64 / STEPS_PER_PEAK;
        let chosen = chain.select(&allowed, Selection::Greedy { bytes });
        if seen.insert(chosen.clone()) {
            visit(chain.policy(&chosen, false), bytes)?;
        }
    }
    Ok(())
}

/// Searches over the size of segments.
pub(super) fn greedy(
    problem: &Problem,
    capacities: &Capacities,
    candidates: Candidates,
) -> Result<Outcome, PublishedError> {
    let began = Instant::now();
    let graph = Graph::new(
        problem,
        capacities,
        Published::ChenGreedy(candidates).name(),
    )?;
    let mut search = Search::new(&graph);
    greedy_sweep(&graph, candidates, &mut |held, bytes| {
        search.offer(held, || format!("segments of {bytes:.0} bytes"))
    })?;
    search.outcome(began)
}

/// The cheapest plan that fits among those offered.
pub(super) struct Search<'g, 'p> {
    graph: &'g Graph<'p>,
    best: Option<(CheckedPlan, String)>,
    least: Option<u64>,
}

impl<'g, 'p> Search<'g, 'p> {
    pub(super) fn new(graph: &'g Graph<'p>) -> Self {
        Search {
            graph,
            best: None,
            least: None,
        }
    }

    /// Completes checkpoints to a plan and keeps it if it fits and is cheapest.
    pub(super) fn offer(
        &mut self,
        held: Vec<Vec<bool>>,
        note: impl FnOnce() -> String,
    ) -> Result<(), PublishedError> {
        let graph = self.graph;
        let stages = Stages::complete(graph, held).map_err(|lost| graph.lost(lost))?;
        let runs = stages.sequence();
        let seconds: f64 = runs.iter().map(|&task| graph.tasks[task].seconds).sum();
        // Checking takes longer than all else.
        if self
            .best
            .as_ref()
            .is_some_and(|(best, _)| seconds >= best.cost())
        {
            return Ok(());
        }
        match graph.check(&runs)? {
            Err(peak) => self.least = Some(self.least.map_or(peak, |least| least.min(peak))),
            Ok(plan) => self.best = Some((plan, note())),
        }
        Ok(())
    }

    pub(super) fn outcome(self, began: Instant) -> Result<Outcome, PublishedError> {
        let (method, budget) = (self.graph.method, self.graph.budget());
        let missing = PublishedError::NotFound {
            method,
            budget,
            least: self.least,
        };
        let (plan, note) = self.best.ok_or(missing)?;
        let lower_bound = self.graph.base_cost().min(plan.cost());
        Ok(Outcome {
            proven_optimal: plan.recomputed() == 0,
            lower_bound,
            plan,
            elapsed: began.elapsed(),
            note: Some(note),
        })
    }
}

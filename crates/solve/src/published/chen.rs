//! Chen et al. 2016, generalized by checkmate (appendix B): selects checkpoints among candidates, holds them
//! to the end, and completes them with the fewest runs.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::time::Instant;

use scrimp_plan::CheckedPlan;

use super::accounting::Accounting;
use super::chain::{Chain, Selection};
use super::graph::Graph;
use super::policy::Policy;
use super::stages;
use crate::cutoff::Cutoff;
use crate::error::SolveError;
use crate::method::Candidates;
use crate::options::{Options, Others, Solved};

/// The steps of the search for the parameter of greedy, and the number of them that reach the peak of √n.
const STEPS: usize = 300;
const STEPS_PER_PEAK: f64 = 100.0;
/// Sequences with more runs per task than this, plus a constant, are given up: looking at them takes too much
/// memory.
const RUNS_PER_TASK: usize = 32;
const MORE_RUNS: usize = 1_000_000;

pub(super) fn sqrt_n(
    graph: &Graph<'_>,
    options: &Options,
    candidates: Candidates,
) -> Result<Solved, SolveError> {
    let mut search = Search::new(graph, options);
    let chain = Chain::new(graph);
    let chosen = chain.select(&chain.candidates(candidates), Selection::SqrtN);
    search.offer(chain.policy(&chosen, false), || {
        format!("{} checkpoints", chosen.len())
    })?;
    search.outcome()
}

/// The policies of the whole sweep of greedy, with every size of segments from zero to three times the peak
/// of √n.
pub(super) fn greedy_sweep(
    graph: &Graph<'_>,
    candidates: Candidates,
    cutoff: Cutoff<'_>,
    visit: &mut dyn FnMut(Policy, f64) -> Result<(), SolveError>,
) -> Result<(), SolveError> {
    let chain = Chain::new(graph);
    let all = chain.candidates(Candidates::Linearized);
    let policy = chain.policy(&chain.select(&all, Selection::SqrtN), false);
    let mut accounting = Accounting::new(graph);
    let mut rows = policy.rows(graph.values.len());
    let ended = stages::complete(graph, &mut rows, &mut |stage| {
        accounting.add(&stage);
        go_on(!cutoff.reached())
    });
    if !ended.map_err(|lost| graph.lost(lost))? {
        return Ok(());
    }
    let peak = accounting.peak as f64;
    let allowed = chain.candidates(candidates);
    // Policies are compared by their hashes, because there may be hundreds of thousands of checkpoints.
    let mut seen = HashSet::new();
    for step in 0..STEPS {
        if cutoff.reached() {
            break;
        }
        let bytes = peak * step as f64 / STEPS_PER_PEAK;
        let chosen = chain.select(&allowed, Selection::Greedy { bytes });
        let mut hasher = DefaultHasher::new();
        chosen.hash(&mut hasher);
        if seen.insert(hasher.finish()) {
            visit(chain.policy(&chosen, false), bytes)?;
        }
    }
    Ok(())
}

/// Searches over the size of segments.
pub(super) fn greedy(
    graph: &Graph<'_>,
    options: &Options,
    candidates: Candidates,
) -> Result<Solved, SolveError> {
    let mut search = Search::new(graph, options);
    greedy_sweep(graph, candidates, search.cutoff, &mut |policy, bytes| {
        search.offer(policy, || format!("segments of {bytes:.0} bytes"))
    })?;
    search.outcome()
}

fn go_on(yes: bool) -> ControlFlow<()> {
    match yes {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}

/// The runs of a policy's schedule; `None` if it is cut off or has too many runs.
pub(super) fn runs(
    graph: &Graph<'_>,
    policy: Policy,
    cutoff: Cutoff<'_>,
) -> Result<Option<Vec<usize>>, SolveError> {
    let most = RUNS_PER_TASK * graph.tasks.len() + MORE_RUNS;
    let mut runs = Vec::new();
    let mut rows = policy.rows(graph.values.len());
    let ended = stages::complete(graph, &mut rows, &mut |stage| {
        runs.extend((0..=stage.number).filter(|&task| stage.runs[task]));
        go_on(runs.len() <= most && !cutoff.reached())
    });
    let ended = ended.map_err(|lost| graph.lost(lost))?;
    Ok(ended.then_some(runs))
}

/// The search for the cheapest plan that fits among those offered.
pub(super) struct Search<'g, 'p> {
    graph: &'g Graph<'p>,
    began: Instant,
    pub(super) cutoff: Cutoff<'g>,
    best: Option<(CheckedPlan, String)>,
    least: Option<u64>,
}

impl<'g, 'p> Search<'g, 'p> {
    pub(super) fn new(graph: &'g Graph<'p>, options: &'g Options) -> Self {
        let began = Instant::now();
        Search {
            graph,
            began,
            cutoff: options.cutoff(began, options.time_limit),
            best: None,
            least: None,
        }
    }

    /// Completes checkpoints to a plan, and keeps the plan if it fits and is the cheapest so far.
    pub(super) fn offer(
        &mut self,
        policy: Policy,
        note: impl FnOnce() -> String,
    ) -> Result<(), SolveError> {
        let graph = self.graph;
        let Some(runs) = runs(graph, policy, self.cutoff)? else {
            return Ok(());
        };
        let seconds: f64 = runs.iter().map(|&task| graph.tasks[task].seconds).sum();
        // Checking takes longer than everything else.
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

    pub(super) fn outcome(self) -> Result<Solved, SolveError> {
        let missing = self.graph.not_found(self.least);
        let (plan, note) = self.best.ok_or(missing)?;
        let cost = plan.cost();
        Ok(Solved {
            others: Others::default(),
            optimal: plan.recomputed() == 0,
            lower_bound: self.graph.base_cost().min(cost),
            cost,
            plan,
            method: self.graph.method,
            elapsed: self.began.elapsed(),
            note: Some(note),
        })
    }
}

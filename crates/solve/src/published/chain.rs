//! The forward graph as a chain of candidates for checkpoints, and the values that a checkpoint policy holds
//! in each stage (checkmate, appendix B).
//!
//! A training graph in checkmate's form has `2f + 1` tasks: `f` forward tasks, the loss, and the backward
//! tasks in reverse, so that task `i` and task `2f - i` belong together. In any other graph, the forward
//! tasks are those before the first task of another phase; a later stage belongs to the last forward task
//! whose outputs its task reads.

use std::ops::{ControlFlow, Range};

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, Problem, TaskId};

use super::accounting::Accounting;
use super::graph::Graph;
use super::policy::Policy;
use super::stages::{self, Lost};
use crate::error::SolveError;
use crate::method::{Candidates, Method, Published};

/// How checkpoints are chosen among the candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection {
    /// Every candidate.
    All,
    /// Every ⌊√candidates⌋-th candidate.
    SqrtN,
    /// The next candidate once more than this many bytes have been produced since the last checkpoint.
    Greedy {
        /// The size of a segment.
        bytes: f64,
    },
}

/// What checkmate's code would report for a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accounted {
    /// Seconds of all runs.
    pub cost: f64,
    /// The most bytes of values in memory, freed as that code frees them, without fixed memory.
    pub activation_peak: u64,
}

/// The forward part of a graph.
pub(super) struct Chain<'g, 'p> {
    graph: &'g Graph<'p>,
    /// Forward tasks are `0..forward`. In checkmate's form the loss isn't one of them.
    pub(super) forward: usize,
    /// Whether task `i` and task `n - 1 - i` belong together.
    mirrored: bool,
    /// For each stage, the forward task to which it belongs.
    place: Vec<usize>,
}

impl<'g, 'p> Chain<'g, 'p> {
    pub(super) fn new(graph: &'g Graph<'p>) -> Self {
        let n = graph.tasks.len();
        let leading = graph.tasks.iter().take_while(|task| task.forward).count();
        let half = n / 2;
        let backward = graph.tasks[half + 1..].iter().all(|task| !task.forward);
        let mirrored =
            n % 2 == 1 && backward && (leading == half || leading == half + 1) && half > 0;
        let forward = if mirrored { half } else { leading };
        let mut place: Vec<usize> = (0..n).collect();
        for stage in forward..n {
            place[stage] = if mirrored {
                n - 1 - stage
            } else {
                let producers = graph.tasks[stage].inputs.iter();
                let read = producers.filter_map(|&value| graph.values[value].producer);
                let last = read.filter(|&task| task < forward).max();
                last.unwrap_or(if stage == 0 { 0 } else { place[stage - 1] })
            };
        }
        Chain {
            graph,
            forward,
            mirrored,
            place,
        }
    }

    /// The candidates, ascending.
    pub(super) fn candidates(&self, candidates: Candidates) -> Vec<usize> {
        match candidates {
            Candidates::Linearized => (0..self.forward).collect(),
            Candidates::Articulation => articulation_points(&self.neighbours()),
        }
    }

    /// The undirected forward graph.
    fn neighbours(&self) -> Vec<Vec<usize>> {
        let mut neighbours = vec![Vec::new(); self.forward];
        for task in 0..self.forward {
            for &value in &self.graph.tasks[task].inputs {
                if let Some(producer) = self.graph.values[value].producer {
                    neighbours[producer].push(task);
                    neighbours[task].push(producer);
                }
            }
        }
        neighbours
    }

    pub(super) fn select(&self, candidates: &[usize], selection: Selection) -> Vec<usize> {
        match selection {
            Selection::All => candidates.to_vec(),
            Selection::SqrtN => {
                let every = candidates.len().isqrt().max(1);
                candidates
                    .iter()
                    .copied()
                    .skip(every - 1)
                    .step_by(every)
                    .collect()
            }
            Selection::Greedy { bytes } => {
                let mut since = 0.0;
                let mut chosen = Vec::new();
                for task in 0..self.forward {
                    since += self.bytes(task) as f64;
                    if since > bytes && candidates.binary_search(&task).is_ok() {
                        since = 0.0;
                        chosen.push(task);
                    }
                }
                chosen
            }
        }
    }

    /// Bytes of a task's outputs.
    pub(super) fn bytes(&self, task: usize) -> u64 {
        self.graph.tasks[task]
            .outputs
            .iter()
            .map(|&value| self.graph.values[value].bytes)
            .sum()
    }

    /// What is held whatever the checkpoints: backward values until their last backward reader, and kept
    /// values to the end.
    fn gradients(&self) -> Policy {
        let n = self.graph.tasks.len();
        let mut policy = Policy::default();
        for (value, what) in self.graph.values.iter().enumerate() {
            let first = what.producer.map_or(0, |task| task + 1);
            let backward = what.producer.is_some_and(|task| task >= self.forward);
            let last = match (what.kept, what.consumers.last()) {
                (true, _) => n,
                (false, Some(&reader)) if backward => reader,
                _ => 0,
            };
            policy.hold(value, first..last + 1);
        }
        policy
    }

    /// What [`Chain::gradients`] holds, and forward values until their last forward reader. So the forward
    /// pass recomputes nothing, and the backward pass starts from what checkpoints hold.
    pub(super) fn one_forward_pass(&self) -> Policy {
        let mut policy = self.gradients();
        for (value, what) in self.graph.values.iter().enumerate() {
            let readers = what.consumers.iter().rev();
            let last = readers
                .copied()
                .find(|&reader| reader <= self.forward)
                .unwrap_or(0);
            let first = what.producer.map_or(0, |task| task + 1);
            policy.hold(value, first..last + 1);
        }
        policy
    }

    /// Holds the outputs of `tasks` at the start of each of these stages, from the first stage after the
    /// task's own run.
    pub(super) fn hold(
        &self,
        policy: &mut Policy,
        stages: Range<usize>,
        tasks: impl IntoIterator<Item = usize>,
    ) {
        for task in tasks {
            for &value in &self.graph.tasks[task].outputs {
                policy.hold(value, stages.start.max(task + 1)..stages.end);
            }
        }
    }

    /// The segments between checkpoints: half-open ranges of tasks that begin at 0 or at a checkpoint. The
    /// last range ends after the loss.
    fn segments(&self, checkpoints: &[usize]) -> Vec<Range<usize>> {
        let end = (self.forward + 1).min(self.graph.tasks.len());
        let starts = std::iter::once(0).chain(checkpoints.iter().copied());
        let ends = checkpoints.iter().copied().chain([end]);
        starts.zip(ends).map(|(start, end)| start..end).collect()
    }

    /// Holds a whole segment while a stage works on it, forward or backward.
    fn hold_segments(&self, policy: &mut Policy, checkpoints: &[usize]) {
        let n = self.graph.tasks.len();
        let segments = self.segments(checkpoints);
        for segment in &segments {
            let until = (segment.end + 1).min(self.forward + 2).min(n);
            self.hold(policy, segment.start..until, segment.clone());
        }
        let segment_of = |stage: usize| {
            let place = self.place[stage];
            let at = segments.partition_point(|segment| segment.end <= place);
            segments.get(at).filter(|segment| segment.contains(&place))
        };
        for stages in stretches(self.forward..n, |stage| segment_of(stage).map(|s| s.start)) {
            if let Some(segment) = segment_of(stages.start) {
                self.hold(policy, stages, segment.clone());
            }
        }
    }

    /// Chen's policy: checkpoints are held from their first run on, and segments while stages work on them.
    /// With `whole_blocks`, the gradients of a segment are held too, as in the code behind checkmate's
    /// published numbers; that takes memory and saves nothing.
    pub(super) fn policy(&self, checkpoints: &[usize], whole_blocks: bool) -> Policy {
        let n = self.graph.tasks.len();
        let mut policy = self.gradients();
        // Each task's inputs are held when its stage begins.
        for (value, what) in self.graph.values.iter().enumerate() {
            for &reader in &what.consumers {
                policy.hold(value, reader..reader + 1);
            }
        }
        self.hold(&mut policy, 1..n, checkpoints.iter().copied());
        self.hold_segments(&mut policy, checkpoints);
        if whole_blocks && self.mirrored {
            for segment in self.segments(checkpoints) {
                let stages = n - (segment.end + 1).min(n)..n - segment.start;
                let gradients = segment.map(|task| n - 1 - task);
                self.hold(&mut policy, stages, gradients);
            }
        }
        policy
    }

    /// The forward task to which a stage belongs.
    pub(super) fn place(&self, stage: usize) -> usize {
        self.place[stage]
    }
}

/// The stretches of stages in which a property stays the same.
pub(super) fn stretches<T: PartialEq>(
    stages: Range<usize>,
    what: impl Fn(usize) -> T,
) -> Vec<Range<usize>> {
    let mut stretches: Vec<Range<usize>> = Vec::new();
    for stage in stages {
        match stretches.last_mut() {
            Some(last) if what(last.start) == what(stage) => last.end = stage + 1,
            _ => stretches.push(stage..stage + 1),
        }
    }
    stretches
}

impl Graph<'_> {
    /// The error for checkpoints that can't be completed to a plan.
    pub(super) fn lost(&self, lost: Lost) -> SolveError {
        let value = scrimp_plan::ValueId::new(lost.value);
        let name = &self.problem.value(value).name;
        let what = format!(
            "{value} ({name}) is needed again in stage {} but can't be made again by then",
            lost.stage
        );
        SolveError::unsupported(self.method.name(), &what)
    }
}

/// The checkpoints that a selection takes from the candidates.
///
/// # Errors
/// If the problem has several devices that compute, or values on other devices.
pub fn checkpoints(
    problem: &Problem,
    candidates: Candidates,
    selection: Selection,
) -> Result<Vec<TaskId>, SolveError> {
    let unlimited = Capacities::unlimited();
    let method = Method::Published(Published::ChenSqrtN(candidates));
    let graph = Graph::new(problem, &unlimited, method)?;
    let chain = Chain::new(&graph);
    let chosen = chain.select(&chain.candidates(candidates), selection);
    Ok(chosen.into_iter().map(TaskId::new).collect())
}

/// Cost and peak of a checkpoint policy as checkmate's published code accounts for them: whole blocks of
/// gradients are held, checkpoints are held to the very end whether or not they are used again, and fixed
/// memory isn't counted. A plan of ours for the same runs frees after the last use and needs less.
///
/// # Errors
/// The errors of [`checkpoints`], and an error if a needed value can't be made again.
pub fn checkmate_accounting(
    problem: &Problem,
    checkpoints: &[TaskId],
) -> Result<Accounted, SolveError> {
    let unlimited = Capacities::unlimited();
    let method = Method::Published(Published::ChenSqrtN(Candidates::Linearized));
    let graph = Graph::new(problem, &unlimited, method)?;
    let mut chosen: Vec<usize> = checkpoints.iter().map(|task| task.index()).collect();
    chosen.sort_unstable();
    let policy = Chain::new(&graph).policy(&chosen, true);
    let mut accounting = Accounting::new(&graph);
    let mut rows = policy.rows(graph.values.len());
    stages::complete(&graph, &mut rows, &mut |stage| {
        accounting.add(&stage);
        ControlFlow::Continue(())
    })
    .map_err(|lost| graph.lost(lost))
    .map(|_| Accounted {
        cost: accounting.seconds,
        activation_peak: accounting.peak,
    })
}

/// The vertices whose removal disconnects the graph, in O(V + E). The first vertex is also connected to a
/// source and the last to a sink, so both can be articulation points themselves.
fn articulation_points(neighbours: &[Vec<usize>]) -> Vec<usize> {
    let n = neighbours.len();
    let mut found = vec![false; n];
    let (mut depth, mut low) = (vec![usize::MAX; n], vec![usize::MAX; n]);
    for ends in [0, n.wrapping_sub(1)] {
        if let Some(end) = found.get_mut(ends) {
            *end = n > 1;
        }
    }
    for root in 0..n {
        if depth[root] != usize::MAX {
            continue;
        }
        (depth[root], low[root]) = (0, 0);
        let mut branches = 0;
        // The path's vertices, each with its parent and its next neighbour to visit.
        let mut path = vec![(root, usize::MAX, 0)];
        while let Some(top) = path.last_mut() {
            let (vertex, parent, next) = *top;
            top.2 += 1;
            match neighbours[vertex].get(next) {
                Some(&other) if depth[other] == usize::MAX => {
                    depth[other] = depth[vertex] + 1;
                    low[other] = depth[other];
                    path.push((other, vertex, 0));
                }
                Some(&other) if other != parent => low[vertex] = low[vertex].min(depth[other]),
                Some(_) => {}
                None => {
                    path.pop();
                    if parent == usize::MAX {
                        continue;
                    }
                    low[parent] = low[parent].min(low[vertex]);
                    branches += usize::from(parent == root);
                    if parent != root && low[vertex] >= depth[parent] {
                        found[parent] = true;
                    }
                }
            }
        }
        found[root] |= branches > 1;
    }
    (0..n).filter(|&vertex| found[vertex]).collect()
}

#[cfg(test)]
mod tests {
    use super::articulation_points;

    /// By definition: counts the components that remain without each vertex.
    fn by_removal(neighbours: &[Vec<usize>]) -> Vec<usize> {
        let n = neighbours.len();
        let components = |without: usize| {
            let mut seen = vec![false; n + 2];
            let around = |v: usize| -> Vec<usize> {
                let mut around = neighbours.get(v).cloned().unwrap_or_default();
                around.extend((v == 0).then_some(n));
                around.extend((v == n).then_some(0));
                around.extend((v == n - 1).then_some(n + 1));
                around.extend((v == n + 1).then_some(n - 1));
                around
            };
            let mut count = 0;
            for root in 0..n + 2 {
                if seen[root] || root == without {
                    continue;
                }
                count += 1;
                let mut stack = vec![root];
                seen[root] = true;
                while let Some(v) = stack.pop() {
                    for u in around(v) {
                        if u != without && !seen[u] {
                            seen[u] = true;
                            stack.push(u);
                        }
                    }
                }
            }
            count
        };
        let whole = components(usize::MAX);
        (0..n).filter(|&v| components(v) > whole).collect()
    }

    #[test]
    fn articulation_points_are_those_whose_removal_disconnects() {
        let mut random = crate::random::Random::new(7, 0);
        for case in 0..300 {
            let n = 2 + random.below(9);
            let mut neighbours = vec![Vec::new(); n];
            for v in 1..n {
                // The graph is connected and has a few more edges.
                for _ in 0..1 + random.below(2) {
                    let u = random.below(v);
                    neighbours[u].push(v);
                    neighbours[v].push(u);
                }
            }
            assert_eq!(
                articulation_points(&neighbours),
                by_removal(&neighbours),
                "case {case}"
            );
        }
    }
}

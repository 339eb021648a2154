//! A plan cut into stages, as in the checkmate paper: stage `t` ends with the first execution of the `t`-th
//! task, where tasks are counted in the order of their first executions.

use scrimp_plan::{CheckedPlan, Keep, Problem, Step, TaskId};
use std::collections::BTreeMap;

/// For each task, stages `[from, to)` in ascending order.
pub(super) type Ranges = BTreeMap<usize, Vec<(usize, usize)>>;

/// The tasks that run and the values that are held in each stage. Tasks are counted in the order of their
/// first executions.
pub(super) struct Stages {
    /// The tasks in that order.
    pub(super) order: Vec<TaskId>,
    /// `(stage, task)` of each run that isn't the task's first.
    pub(super) again: Vec<(usize, usize)>,
    /// The stages at whose beginning an output of the task is in memory.
    pub(super) kept: Ranges,
    /// The stages at whose beginning no output is in memory, though one was before and is still needed.
    pub(super) dropped: Ranges,
}

impl Stages {
    pub(super) fn new(plan: &CheckedPlan) -> Stages {
        let mut order = Vec::new();
        let mut ranks = BTreeMap::new();
        for step in plan.steps() {
            if let Step::Run { task, .. } = *step {
                ranks.entry(task).or_insert_with(|| {
                    order.push(task);
                    order.len() - 1
                });
            }
        }
        let mut residency = Residency {
            problem: plan.problem(),
            ranks: &ranks,
            held: BTreeMap::new(),
            kept: Ranges::new(),
        };
        let again = residency.all(plan.steps());
        let kept = residency.kept;
        let dropped = dropped(plan.problem(), &ranks, &kept);
        Stages {
            order,
            again,
            kept,
            dropped,
        }
    }
}

struct Residency<'a> {
    problem: &'a Problem,
    ranks: &'a BTreeMap<TaskId, usize>,
    /// For each task, how many copies of its outputs are on devices, and since the beginning of which stage.
    held: BTreeMap<usize, (usize, usize)>,
    kept: Ranges,
}

impl Residency<'_> {
    /// Fills `kept` and returns the repeated runs.
    fn all(&mut self, steps: &[Step]) -> Vec<(usize, usize)> {
        let mut again = Vec::new();
        let (mut stage, mut done) = (0, 0);
        for &step in steps {
            // A buffer that is freed right after a first run still belongs to the stage that this run ends.
            if !matches!(step, Step::Free { .. }) {
                stage = done.min(self.ranks.len() - 1);
            }
            match step {
                Step::Run { task, .. } => {
                    let what = self.problem.task(task);
                    for pair in &what.overwrites {
                        self.less(self.problem.producer(pair.input), stage);
                    }
                    self.more(Some(task), what.outputs.len(), stage);
                    if self.ranks[&task] == done {
                        done += 1;
                    } else {
                        again.push((stage, self.ranks[&task]));
                    }
                }
                Step::Free { value, .. } => self.less(self.problem.producer(value), stage),
                Step::Copy { value, .. } => self.more(self.problem.producer(value), 1, stage),
            }
        }
        let end = self.ranks.len();
        for (task, (_, from)) in std::mem::take(&mut self.held) {
            self.keep(task, from, end);
        }
        again
    }

    fn more(&mut self, producer: Option<TaskId>, count: usize, stage: usize) {
        if let Some(task) = producer.filter(|_| count > 0) {
            self.held
                .entry(self.ranks[&task])
                .or_insert((0, stage + 1))
                .0 += count;
        }
    }

    fn less(&mut self, producer: Option<TaskId>, stage: usize) {
        let Some(task) = producer.map(|task| self.ranks[&task]) else {
            return;
        };
        if let Some((count, from)) = self.held.get_mut(&task) {
            *count -= 1;
            if *count == 0 {
                let from = *from;
                self.held.remove(&task);
                self.keep(task, from, stage + 1);
            }
        }
    }

    fn keep(&mut self, task: usize, from: usize, to: usize) {
        if from < to {
            self.kept.entry(task).or_default().push((from, to));
        }
    }
}

/// The stages from the one after a task's first run to the one of the last first run that reads it, except
/// those in which it is in memory.
fn dropped(problem: &Problem, ranks: &BTreeMap<TaskId, usize>, kept: &Ranges) -> Ranges {
    let mut dropped = Ranges::new();
    for (task, &rank) in ranks {
        let needed_until =
            problem
                .task(*task)
                .outputs
                .iter()
                .map(|&output| match problem.value(output).keep {
                    Keep::No => problem
                        .consumers(output)
                        .iter()
                        .map(|reader| ranks[reader] + 1)
                        .max()
                        .unwrap_or(0),
                    _ => ranks.len(),
                });
        let to = needed_until.max().unwrap_or(0);
        let rest = without((rank + 1, to), kept.get(&rank).map_or(&[], Vec::as_slice));
        if !rest.is_empty() {
            dropped.insert(rank, rest);
        }
    }
    dropped
}

/// The parts of a range outside of some ascending ranges.
fn without((mut from, to): (usize, usize), holes: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut rest = Vec::new();
    for &(start, end) in holes {
        if from < start.min(to) {
            rest.push((from, start.min(to)));
        }
        from = from.max(end);
    }
    if from < to {
        rest.push((from, to));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use scrimp_plan::{Plan, check, read_instance};

    #[test]
    fn a_dropped_value_is_missing_between_its_stages() {
        // The graph is 0 → 1 → 2 → 3, and 1 → 3. Task 1 is dropped after 2 and made again, from 0, for 3.
        let text = r#"{"nodes":[{"cost":1,"memory":1},{"cost":1,"memory":1},{"cost":1,"memory":1},
            {"cost":1,"memory":1}],"edges":[[0,1],[1,2],[2,3],[1,3]]}"#;
        let problem = read_instance(text).unwrap().problem;
        let device = problem.sole_device().unwrap();
        let runs = [0, 1, 2, 0, 1, 3].map(TaskId::from_u32);
        let plan = Plan::from_runs(&problem, device, &runs).unwrap();
        let stages = Stages::new(&check(&problem, plan).unwrap());
        assert_eq!(stages.order, [0, 1, 2, 3].map(TaskId::from_u32));
        assert_eq!(stages.again, [(3, 0), (3, 1)]);
        let kept = [(0, vec![(1, 2)]), (1, vec![(2, 3)]), (2, vec![(3, 4)])];
        assert_eq!(stages.kept, BTreeMap::from(kept));
        assert_eq!(stages.dropped, BTreeMap::from([(1, vec![(3, 4)])]));
    }
}

//! Elite plans, and path relinking: a walk takes from another good plan some of the reruns in which the two differ.
//! So it joins what different walks, or starts in different basins, have found in different places.

use cranelift_entity::EntityRef;
use scrimp_plan::TaskId;

use std::collections::HashSet;

use crate::ids::{Position, Run};
use crate::model::Model;
use crate::search::anneal::Walk;
use crate::search::repair::{Eviction, Taste};

/// The most elite plans of a walk.
const MOST_PLANS: usize = 8;
/// The most differences of a step.
pub(super) const MOST_STEP: usize = 60;
/// Units of work of taking over one rerun.
const TAKE: u64 = 50;

/// A few good plans with their seconds. No two run the same tasks equally often, because such plans have little to give each
/// other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Elite {
    plans: Vec<(f64, Vec<TaskId>)>,
}

impl Elite {
    /// Adds a plan. Of two with the same runs the cheaper one stays. If there are too many then, the dearest one leaves.
    pub fn add(&mut self, plan: &(f64, Vec<TaskId>)) {
        let same = self
            .plans
            .iter()
            .position(|known| same_runs(&known.1, &plan.1));
        match same {
            Some(known) if self.plans[known].0 <= plan.0 => return,
            Some(known) => drop(self.plans.remove(known)),
            None => {}
        }
        self.plans.push(plan.clone());
        if self.plans.len() > MOST_PLANS {
            let seconds = |&k: &usize| self.plans[k].0;
            let all = 0..self.plans.len();
            let dearest = all.max_by(|a, b| seconds(a).total_cmp(&seconds(b)));
            self.plans.remove(dearest.unwrap_or(0));
        }
    }

    /// The plans in the order in which they were added.
    pub fn plans(&self) -> &[(f64, Vec<TaskId>)] {
        &self.plans
    }
}

/// Whether two sequences run every task equally often.
fn same_runs(one: &[TaskId], other: &[TaskId]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let tasks = one.iter().chain(other).map(|t| t.index() + 1).max();
    let mut more = vec![0_i32; tasks.unwrap_or(0)];
    one.iter().for_each(|t| more[t.index()] += 1);
    other.iter().for_each(|t| more[t.index()] -= 1);
    more.iter().all(|&more| more == 0)
}

/// A run that isn't its task's first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rerun {
    task: TaskId,
    /// The task whose first run comes next.
    before: TaskId,
}

/// The reruns of a sequence.
fn reruns(model: &Model, order: &[TaskId]) -> Vec<Rerun> {
    let mut seen = vec![false; model.tasks as usize];
    let first: Vec<bool> = order
        .iter()
        .map(|t| !std::mem::replace(&mut seen[t.index()], true))
        .collect();
    let mut before = model.end();
    let mut found = Vec::new();
    for (&task, first) in order.iter().zip(first).rev() {
        if first {
            before = task;
        } else {
            found.push(Rerun { task, before });
        }
    }
    found.reverse();
    found
}

/// A difference between two plans.
#[derive(Clone, Copy, Debug)]
enum Differs {
    /// The other plan has a rerun.
    Take(Rerun),
    /// The present sequence has one.
    Leave(Run),
}

impl Walk<'_> {
    /// The differences to another plan, by position.
    fn differences(&self, other: &[TaskId]) -> Vec<Differs> {
        let place = |before: TaskId| self.state.pos(self.state.runs(before)[0]);
        let theirs = reruns(self.model, other);
        let wanted: HashSet<Rerun> = theirs.iter().copied().collect();
        let mut have = HashSet::new();
        let mut found: Vec<(Position, Differs)> = Vec::new();
        let mut before = self.model.end();
        for p in (Position::FIRST + 1).until(self.state.last()).rev() {
            let run = self.state.run_at(p);
            let task = self.state.task_of(run);
            if self.state.runs(task)[0] == run {
                before = task;
                continue;
            }
            let rerun = Rerun { task, before };
            have.insert(rerun);
            if !wanted.contains(&rerun) {
                found.push((place(before), Differs::Leave(run)));
            }
        }
        found.reverse();
        let missing = theirs.into_iter().filter(|rerun| !have.contains(rerun));
        found.extend(missing.map(|rerun| (place(rerun.before), Differs::Take(rerun))));
        found.sort_by_key(|differs| differs.0);
        found.into_iter().map(|differs| differs.1).collect()
    }

    /// Takes over up to `most` neighbouring differences from an elite plan: makes its reruns, with what they need, and then
    /// drops those that it doesn't have. Returns false if there is no other plan.
    pub(super) fn relink(&mut self, most: usize) -> bool {
        let others = self.elite.plans.len();
        if others == 0 || !self.model.copies.none() {
            return false;
        }
        let other = self.rng.below(others);
        let differences = self.differences(&self.elite.plans[other].1);
        self.repairer.work += 2 * self.state.len() as u64;
        if differences.is_empty() {
            return false;
        }
        let most = differences.len().min(most) as f64;
        let count = (most.powf(self.rng.unit()) as usize).max(1);
        let from = self.rng.below(differences.len());
        let some = &differences[from..differences.len().min(from + count)];
        for differs in some {
            if let Differs::Take(Rerun { task, before }) = *differs {
                let before = self.state.pos(self.state.runs(before)[0]);
                self.repairer.work += TAKE;
                let eviction = Eviction::Rerun { task, before };
                self.repairer.force(&mut self.state, eviction);
            }
        }
        for differs in some.iter().rev() {
            if let Differs::Leave(run) = *differs
                && self.state.has(run)
            {
                self.drop_run(run);
            }
        }
        true
    }

    /// Makes a plan from two elite plans: from one of them, with differences to another one taken over. If that fails, the
    /// present sequence is the first of the two. Returns false if there are too few.
    pub(super) fn cross(&mut self) -> bool {
        if self.elite.plans.len() < 2 || !self.model.copies.none() {
            return false;
        }
        let one = self.rng.below(self.elite.plans.len());
        let order = self.elite.plans[one].1.clone();
        self.follow();
        self.state.reset(&order);
        self.relink(usize::MAX);
        let taste = Taste {
            tries: 1 + self.rng.below(8),
            noise: self.rng.unit(),
        };
        self.settle(taste);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound;
    use crate::cutoff::Cutoff;
    use crate::random::Random;
    use crate::testing::{Shape, base_peak, problem};

    #[test]
    fn the_cheapest_plans_stay() {
        let plan = |seconds: u32| (f64::from(seconds), vec![TaskId::from_u32(seconds)]);
        let mut elite = Elite::default();
        for seconds in [5, 1, 9, 2, 8, 3, 7, 4, 6, 1] {
            elite.add(&plan(seconds));
        }
        let seconds: Vec<f64> = elite.plans().iter().map(|plan| plan.0).collect();
        assert_eq!(seconds, [5.0, 1.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0]);
    }

    #[test]
    fn of_plans_with_the_same_runs_the_cheaper_one_stays() {
        let plan = |seconds: f64, runs: &[u32]| {
            (seconds, runs.iter().map(|&t| TaskId::from_u32(t)).collect())
        };
        let mut elite = Elite::default();
        elite.add(&plan(2.0, &[0, 1, 2, 1]));
        elite.add(&plan(3.0, &[1, 0, 2, 1]));
        elite.add(&plan(2.0, &[0, 1, 2, 2]));
        elite.add(&plan(2.0, &[0, 1, 2]));
        assert_eq!(elite.plans().len(), 3);
        elite.add(&plan(1.0, &[1, 1, 0, 2]));
        let seconds: Vec<f64> = elite.plans().iter().map(|plan| plan.0).collect();
        assert_eq!(seconds, [2.0, 2.0, 1.0]);
    }

    #[test]
    fn relinking_brings_a_sequence_nearer_to_another_plan() {
        let mut rng = Random::new(4, 0);
        let (mut before, mut after) = (0, 0);
        for round in 0..100 {
            let shape = Shape {
                tasks: 12 + round % 20,
                rich: false,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let floor = bound::floor(&model);
            let budget = (floor + (base_peak(&p) as f64 - floor) * 0.3) - model.resident;
            let given = model.given_order();
            let plan = |number| {
                let random = Random::new(round as u64, number);
                let mut walk = Walk::new(&model, &given, budget, false, Cutoff::NEVER, random);
                walk.make_plan(1_000_000).then_some(walk)
            };
            let (Some(mut walk), Some(other)) = (plan(0), plan(1)) else {
                continue;
            };
            let other = other.state.order();
            let differ = walk.differences(&other).len();
            walk.elite.add(&(0.0, other.clone()));
            assert_eq!(walk.relink(usize::MAX), differ > 0);
            for _ in 0..30 {
                walk.relink(usize::MAX);
                assert!(walk.state.is_sound());
            }
            before += differ;
            after += walk.differences(&other).len();
            walk.state.restore();
            assert_eq!(walk.differences(&other).len(), differ, "steps are undone");
        }
        assert!(
            before > 100 && 2 * after < before,
            "{after} of {before} are left"
        );
    }
}

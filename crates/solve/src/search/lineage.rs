//! A lineage: annealing from one plan, in epochs of growing length on several walks.

use scrimp_plan::TaskId;

use crate::options::Others;
use crate::search::anneal::Walk;
use crate::search::lean::Lean;
use crate::search::state::State;
use crate::search::stretch::anneals;
use crate::search::ties::SAME;
use crate::search::walks::{WALKS, each};

/// The epochs without a better plan after which the search has converged.
const PATIENCE: u32 = 8;
/// With more tasks than this, or with copies, changing the order takes most of the work and doesn't always pay. So of
/// this many epochs of a lineage in a free order, the first few are a trial: one walk keeps the order that it has, and the
/// other may change it. In the rest, both do what took more seconds off.
const MANY: u32 = 500;
const PERIOD: u64 = 6;
const TRIED: u64 = 2;

/// Annealing from one plan, in epochs of growing length on several walks. After each epoch all walks go on
/// from the best plan.
pub(super) struct Lineage<'m> {
    pub best: (f64, Vec<TaskId>),
    pub walks: Vec<Walk<'m>>,
    /// Epochs since the last better plan, and in all.
    idle: u32,
    pub epochs: u64,
    /// The next epoch's units of work, those so far, and those when the last better plan was found.
    length: u64,
    pub spent: u64,
    better_at: u64,
    /// Whether trials decide if walks change the order.
    pub tries: bool,
    /// Whether one walk always keeps the order that it has, while the other may change it.
    halves: bool,
    /// Units of work after which trials begin; before, walks keep the order. And the epochs since then.
    pub keeps_until: u64,
    turns: u64,
    /// Seconds that the walk which kept the order, and the one which could change it, took off in the last trial.
    gains: [f64; WALKS],
}

impl<'m> Lineage<'m> {
    /// A lineage that starts from a plan, and units of work of its first epoch.
    pub fn new(
        best: (f64, Vec<TaskId>),
        mut walks: Vec<Walk<'m>>,
        free: bool,
        length: u64,
    ) -> Lineage<'m> {
        let model = walks[0].state.model;
        let tries = free && (model.tasks > MANY || !model.copies.none());
        for walk in walks.iter_mut().filter(|walk| walk.origins.is_empty()) {
            walk.origins.push(best.1.clone());
        }
        Lineage {
            best,
            walks,
            idle: 0,
            epochs: 0,
            length,
            spent: 0,
            better_at: 0,
            tries,
            halves: false,
            keeps_until: 0,
            turns: 0,
            gains: [0.0; WALKS],
        }
    }

    /// From now on one walk keeps the order that it has, if the order is free and no trials decide.
    pub fn split(&mut self) {
        self.halves = !self.tries && self.walks.iter().all(|walk| walk.repairer.free);
    }

    /// Leaves the plan for another one that doesn't depend on it, found with about this much work per walk. Returns whether
    /// one was found; if not, walks go back to first plans.
    pub fn start_over(&mut self, most: u64) -> bool {
        let mut made = false;
        for walk in &mut self.walks {
            // Plans of small problems that are cheap at first are often alike, so not the cheapest one counts, but the first.
            if made && anneals(walk.state.model) {
                break;
            }
            made |= walk.start_over(most);
            walk.record();
        }
        if let Some(other) = best_of(&self.walks) {
            self.best = other;
        }
        made
    }

    /// Whether many epochs, and at least this much work, have brought nothing.
    pub fn has_converged(&self, work: u64) -> bool {
        self.idle >= PATIENCE && self.spent - self.better_at >= work
    }

    /// One epoch of at most `most` units of work, which are taken off `left`.
    pub fn epoch(&mut self, threads: usize, most: u64, left: &mut u64) {
        let length = self.length.min(most);
        self.choose_moves();
        let trial = self.is_trial();
        let (from, epoch) = (&self.best.1, self.epochs);
        each(threads, &mut self.walks, &|k, walk| {
            walk.epoch(from, length, epoch, k);
        });
        self.turns += u64::from(!self.keeps());
        *left -= length;
        self.spent += length;
        self.length = self.length * 3 / 2;
        self.epochs += 1;
        self.idle += 1;
        for (gain, walk) in self.gains.iter_mut().zip(&self.walks) {
            if let Some((seconds, _)) = walk.best.as_ref().filter(|_| trial) {
                *gain += (self.best.0 - seconds).max(0.0);
            }
        }
        self.share();
        if let Some(better) = best_of(&self.walks) {
            self.adopt(better);
        }
    }

    /// Makes the plans that each walk has found known to all.
    fn share(&mut self) {
        let known = |walk: &Walk<'m>| {
            [
                walk.best.clone().into_iter().collect(),
                walk.elite.plans().to_vec(),
            ]
        };
        let found: Vec<_> = self.walks.iter().flat_map(known).flatten().collect();
        self.meet(&found);
    }

    /// Makes plans elite ones of all walks.
    pub fn meet(&mut self, plans: &[(f64, Vec<TaskId>)]) {
        for walk in &mut self.walks {
            plans.iter().for_each(|plan| walk.elite.add(plan));
        }
    }

    /// Goes on from a plan found elsewhere if that is the best one.
    pub fn take(&mut self, plan: (f64, Vec<TaskId>)) {
        self.meet(std::slice::from_ref(&plan));
        self.adopt(plan);
    }

    fn adopt(&mut self, plan: (f64, Vec<TaskId>)) {
        if plan.0 < self.best.0 * (1.0 - 1e-12) {
            self.best = plan;
            self.idle = 0;
            self.better_at = self.spent;
        }
    }

    /// The plans to which walks go back.
    pub fn origins(&self) -> impl Iterator<Item = &Vec<TaskId>> {
        self.walks.iter().flat_map(|walk| &walk.origins)
    }

    /// Good plans other than the best: ties of it, and plans that are leaner than all cheaper ones.
    pub fn others(&self) -> Others<Vec<TaskId>> {
        let same = self.best.0 * (1.0 + SAME);
        let plans = |walk: &Walk<'m>| {
            let lean = walk.lean.as_ref().map_or_else(Vec::new, Lean::plans);
            [walk.ties.plans(), walk.elite.plans().to_vec(), lean].concat()
        };
        let all = self.walks.iter().flat_map(plans);
        let (ties, mut dearer): (Vec<_>, Vec<_>) = all.partition(|plan| plan.0 <= same);
        dearer.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut leanest = f64::INFINITY;
        dearer.retain(|(_, plan)| {
            let peak = State::new(self.walks[0].model, plan).peak();
            let leaner = peak < leanest;
            leanest = leanest.min(peak);
            leaner
        });
        let runs = |plans: Vec<(f64, Vec<TaskId>)>| plans.into_iter().map(|plan| plan.1).collect();
        Others {
            ties: runs(ties),
            dearer: runs(dearer),
        }
    }

    /// Whether the next epoch tells whether to change the order.
    fn is_trial(&self) -> bool {
        self.tries && !self.keeps() && self.turns % PERIOD < TRIED
    }

    /// Whether walks keep the order without a trial.
    fn keeps(&self) -> bool {
        self.spent < self.keeps_until
    }

    /// Decides which walks may change the order in the next epoch.
    fn choose_moves(&mut self) {
        if self.halves {
            for (k, walk) in self.walks.iter_mut().enumerate() {
                walk.repairer.free = k > 0;
            }
            return;
        }
        if !self.tries {
            return;
        }
        if self.turns.is_multiple_of(PERIOD) {
            self.gains = [0.0; WALKS];
        }
        let trial = self.is_trial();
        let [keeping, changing] = self.gains;
        let free = !self.keeps() && changing >= keeping;
        for (k, walk) in self.walks.iter_mut().enumerate() {
            walk.repairer.free = match trial {
                true => k > 0,
                false => free,
            };
        }
    }
}

fn best_of(walks: &[Walk<'_>]) -> Option<(f64, Vec<TaskId>)> {
    walks
        .iter()
        .filter_map(|w| w.best.as_ref())
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cutoff::Cutoff;
    use crate::model::Model;
    use crate::random::Random;
    use crate::testing::{Shape, problem};

    #[test]
    fn walks_do_what_took_more_off_in_the_trial() {
        let shape = Shape {
            tasks: 12,
            rich: false,
        };
        let p = problem(shape, &mut Random::new(1, 0));
        let model = Model::new(&p).unwrap().0;
        let given = model.given_order();
        let walk = |k| {
            let random = Random::new(0, k);
            Walk::new(&model, &given, f64::INFINITY, true, Cutoff::NEVER, random)
        };
        let chosen = |tries: bool, turns: u64, gains: [f64; WALKS]| {
            let walks = (0..WALKS as u64).map(walk).collect();
            let mut lineage = Lineage::new((0.0, given.clone()), walks, true, 1);
            (lineage.tries, lineage.turns, lineage.gains) = (tries, turns, gains);
            lineage.choose_moves();
            lineage
                .walks
                .iter()
                .map(|w| w.repairer.free)
                .collect::<Vec<_>>()
        };
        for gains in [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]] {
            assert_eq!(chosen(true, PERIOD + 1, gains), [false, true], "a trial");
            assert_eq!(
                chosen(false, PERIOD + TRIED, gains),
                [true; WALKS],
                "few tasks"
            );
        }
        for (tries, free) in [(false, true), (true, true), (false, false)] {
            let mut walks: Vec<_> = (0..WALKS as u64).map(walk).collect();
            walks.iter_mut().for_each(|walk| walk.repairer.free = free);
            let mut lineage = Lineage::new((0.0, given.clone()), walks, free, 1);
            lineage.tries = tries;
            lineage.split();
            lineage.choose_moves();
            let changing = lineage.walks.iter().filter(|w| w.repairer.free).count();
            assert_eq!(changing, usize::from(free), "tries: {tries}");
        }
        let walks = (0..WALKS as u64).map(walk).collect();
        let mut lineage = Lineage::new((0.0, given.clone()), walks, true, 1);
        (lineage.tries, lineage.keeps_until) = (true, 3);
        for spent in 0..5 {
            lineage.choose_moves();
            let free: Vec<bool> = lineage.walks.iter().map(|w| w.repairer.free).collect();
            assert_eq!(free, [false, spent >= 3], "after {spent} units of work");
            lineage.epoch(1, 1, &mut 1);
        }
        assert_eq!(chosen(true, TRIED, [1.0, 0.0]), [false; WALKS]);
        assert_eq!(chosen(true, TRIED, [0.0, 1.0]), [true; WALKS]);
        assert_eq!(chosen(true, TRIED, [0.0, 0.0]), [true; WALKS]);
    }
}

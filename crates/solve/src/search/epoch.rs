//! One epoch of a walk: annealing from a given plan, or from other starts that are thinned out by halves.

use scrimp_plan::TaskId;

use crate::search::anneal::Walk;

/// Temperatures at the start of an epoch, in mean seconds of a recomputation, by walk and epoch.
const HEATS: [[f64; 3]; 2] = [[0.2, 0.6, 0.1], [1.0, 3.0, 0.4]];
/// Starting over takes at most one part in this many of an epoch.
const START_SHARE: u64 = 4;
/// The numbers of starts that one epoch compares, and those of them that cross elite plans.
const LANES: [usize; 2] = [4, 2];
const CROSSED: usize = 1;
/// The least units of work per task for each.
const LANE: u64 = 12_000;

/// The work of comparing this many fresh starts, as a multiple of the first anneal of each.
fn parts(lanes: usize) -> u64 {
    lanes as u64 * (1 + u64::from(lanes.ilog2()))
}

impl Walk<'_> {
    /// One epoch of annealing, `length` units of work long: from a sequence that fits, or, every other epoch,
    /// from fresh starts and crossed elite plans.
    pub fn epoch(&mut self, from: &[TaskId], length: u64, epoch: u64, walk: usize) {
        let heat = HEATS[walk % 2][epoch as usize % HEATS[0].len()];
        if !(epoch + walk as u64).is_multiple_of(2) {
            self.state.reset(from);
            self.anneal(length, heat);
            return;
        }
        let lanes = LANES
            .into_iter()
            .find(|&lanes| length / parts(lanes) >= LANE * u64::from(self.state.model.tasks));
        match lanes {
            Some(lanes) => self.explore(lanes, length / parts(lanes)),
            None => {
                let before = self.repairer.work;
                let known = self.best.take();
                self.state.reset(from);
                if self.start_work * START_SHARE <= length {
                    if !self.make_plan(length / START_SHARE) {
                        self.state.reset(from);
                    }
                    self.start_work = self.repairer.work - before;
                }
                let spent = self.repairer.work - before;
                self.anneal(length.saturating_sub(spent), heat);
                let found = self.best.take();
                self.keep(known, found);
            }
        }
    }

    /// Makes found plans elite ones, and the cheapest of them the best if it is cheaper than what was known.
    fn keep(
        &mut self,
        known: Option<(f64, Vec<TaskId>)>,
        found: impl IntoIterator<Item = (f64, Vec<TaskId>)>,
    ) {
        self.best = known;
        for plan in found {
            self.elite.add(&plan);
            if self.best.as_ref().is_none_or(|best| plan.0 < best.0) {
                self.best = Some(plan);
            }
        }
    }

    /// Anneals from several starts, each `length` units of work long, and goes on with the better half,
    /// twice as long, until one is left.
    fn explore(&mut self, lanes: usize, length: u64) {
        let known = self.best.take();
        let mut pool: Vec<(f64, Vec<TaskId>)> = Vec::new();
        for lane in 0..lanes {
            // Starts that take long have a share of work of their own.
            let before = self.repairer.work - self.dear_work;
            if lane >= CROSSED || !self.cross() {
                self.start_over(length);
            }
            self.record();
            let spent = self.repairer.work - self.dear_work - before;
            self.anneal(
                length.saturating_sub(spent),
                HEATS[1][lane % HEATS[1].len()],
            );
            pool.extend(self.best.take());
        }
        let mut length = length;
        while pool.len() > 1 {
            pool.sort_by(|a, b| a.0.total_cmp(&b.0));
            pool.truncate(pool.len().div_ceil(2));
            length *= 2;
            for (lane, plan) in pool.iter_mut().enumerate() {
                self.best = Some(plan.clone());
                self.state.reset(&plan.1);
                self.anneal(length, HEATS[0][lane % HEATS[0].len()]);
                if let Some(better) = &self.best {
                    plan.clone_from(better);
                }
            }
        }
        self.keep(known, pool);
    }
}

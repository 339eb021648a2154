//! How good tiles are: a plan in little time for each, and which tiles to try.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use scrimp_graph::{GraphError, Tiled, Tiles};
use scrimp_plan::{Budget, Mode, PerDevice};
use scrimp_solve::{Options, SolveError};

use super::TrialPlan;
use super::search::{Pricing, TileSearch, TiledStep, Work};
use crate::error::{Error, Result};
use crate::pipeline::{Budgeted, Fit, Planned, find_plan, homes};

/// Each number of bytes for which tiles are chosen is this part of the one before, this often at most.
const PART: f64 = 0.8;
const CHOICES: i32 = 20;

/// First every so many numbers of bytes are tried, then those between the best and its neighbours.
const STRIDE: usize = 4;

/// Numbers of tiles in each dimension, and how many of them are tried first.
const COUNTS: [usize; 11] = [2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32];
const FEW: usize = 3;

/// A kind of tiles ends after so many in a row that miss a budget by no less than larger ones.
const WORSE: u32 = 2;

/// A plan that is only compared has this part of the time limit.
pub(super) const TRIAL: u32 = 10;

/// The search for tiles ends after this part of the time limit; while no plan within the budget is known, it goes on.
const SHARE: f64 = 0.5;

/// A step without tiles is expected to have a plan within so many times its floor.
const EXPECTED: f64 = 1.25;

/// A plan of more tasks than these per second of a trial isn't found in it, unless nothing need run again.
const QUICK_TASKS: f64 = 10_000.0;

/// A step of more tasks isn't planned, for one device and for several, where quick plans take much longer.
const MOST_TASKS: usize = 200_000;
const MOST_TASKS_OF_SEVERAL: usize = 5_000;

/// What tiles with so many times the tasks of others that miss the budgets count as missing more, as a share of a budget: with more time,
/// a search gains more where there are fewer tasks, and larger tiles make less again.
const MANY_TIMES: usize = 2;
const FEWER_GAIN: f64 = 0.02;

/// So many of the tiles that the static model says are fastest are compared by other costs.
const FINALISTS: usize = 3;

/// What is known of some tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judged {
    /// There is a plan within the budgets.
    Fits {
        /// What it costs or, where the least budgets are asked, the bytes that it needs.
        cost: f64,
        /// How many runs are beyond the first of their tasks.
        again: usize,
    },
    /// No such plan was found; the one that came closest takes so many times a device's budget.
    Missed(f64),
    /// None exists, but one that takes so many times a device's budget is expected to.
    Expected(f64),
    /// None exists, nor any that takes less than so many times a device's budget.
    Floor(f64),
    /// There is nothing to cut, or it isn't worth a plan.
    Nothing,
    /// There are too many tasks to plan in time.
    TooMany,
}

impl Judged {
    pub(super) fn cost(self) -> Option<f64> {
        match self {
            Judged::Fits { cost, .. } => Some(cost),
            _ => None,
        }
    }

    /// How many times a budget is needed, as far as is known.
    fn share(self) -> f64 {
        match self {
            Judged::Fits { .. } => 1.0,
            Judged::Missed(share) | Judged::Expected(share) | Judged::Floor(share) => share,
            Judged::Nothing | Judged::TooMany => f64::INFINITY,
        }
    }

    /// The fastest come first, then those that miss the budgets by the least, then those that must miss them.
    pub(super) fn by_use(self, other: Judged) -> Ordering {
        let key = |judged| match judged {
            Judged::Fits { cost, .. } => (0, cost),
            Judged::Missed(share) | Judged::Expected(share) => (1, share),
            Judged::Floor(share) => (2, share),
            Judged::Nothing | Judged::TooMany => (3, 0.0),
        };
        let (a, b) = (key(self), key(other));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    }
}

/// How a kind of tiles, numbers or bytes, has done from larger to smaller ones.
#[derive(Clone, Copy)]
struct Kind {
    ended: bool,
    /// The least that a budget was missed by, and how many in a row have missed by no less since.
    least: f64,
    worse: u32,
}

impl Default for Kind {
    fn default() -> Kind {
        Kind {
            ended: false,
            least: f64::INFINITY,
            worse: 0,
        }
    }
}

impl Kind {
    /// Whether what is known of some tiles is one too many that is no less than the least.
    fn is_worse(&mut self, judged: Judged, counted: bool) -> bool {
        let share = judged.share();
        // Every number of tiles cuts whatever can be cut, so a floor that stays is that of a task which none makes smaller.
        let stays = counted && matches!(judged, Judged::Floor(_)) && share == self.least;
        match share < self.least {
            true => (self.least, self.worse) = (share, 0),
            false => self.worse += 1,
        }
        stays || self.worse >= WORSE
    }
}

pub(super) struct Judge<'a> {
    search: &'a TileSearch<'a>,
    /// The budgets in bytes.
    budget: PerDevice<Budget>,
    began: Instant,
    /// The time for the search while no plan within the budget is known, without that for what is left to find out if there is none.
    pub(super) left: Duration,
    /// The least time for a tiled step, zero before the first one, and the fewest seconds per node for one and its problem, infinite
    /// before it.
    quickest: Duration,
    pace: f64,
    /// The bytes and the nodes of the last step that was cut by bytes, none before it.
    cut: (u64, usize),
    /// The fewest nodes of a step that missed the budgets.
    fewest: usize,
    /// The best so far.
    best: Judged,
    /// Its plan, if it is known: one whose layout fits or the leanest that was found.
    start: Option<TrialPlan>,
    /// Bytes for different numbers of tiles may lead to the same tiles.
    seen: Vec<(Vec<Tiled>, Judged)>,
}

impl<'a> Judge<'a> {
    /// Begins a search within budgets in bytes.
    pub(super) fn new(search: &'a TileSearch<'a>, budget: PerDevice<Budget>) -> Judge<'a> {
        Judge {
            search,
            budget,
            began: Instant::now(),
            left: Duration::ZERO,
            quickest: Duration::ZERO,
            pace: f64::INFINITY,
            cut: (0, 0),
            fewest: usize::MAX / MANY_TIMES,
            best: Judged::Nothing,
            start: None,
            seen: Vec::new(),
        }
    }

    /// The budgets in bytes, and the best plan that was found, if it belongs to what was chosen.
    pub(super) fn end(self, chosen: Judged) -> (PerDevice<Budget>, Option<TrialPlan>) {
        (self.budget, self.start.filter(|_| self.best == chosen))
    }

    /// Judges numbers of tiles, from the root of how many times the budget the step needs without a plan, and tiles for numbers
    /// of bytes from the budget down: first a few, then what lies around the best. Where bytes, which are estimated, lead to no
    /// plan, all numbers of tiles come before that: bytes are estimated badly where statistics take several passes over the
    /// tiles.
    pub(super) fn explore(
        &mut self,
        untiled: &Budgeted,
        known: &mut Vec<(Tiles, Judged)>,
    ) -> Result<()> {
        let most = most_bytes(untiled) as f64;
        let share = untiled.base_peak() as f64 / most.max(1.0);
        let enough = |&count: &usize| count as f64 >= share.sqrt();
        let first = COUNTS.iter().position(enough).unwrap_or(COUNTS.len() - 1);
        let counts = COUNTS.map(Tiles::Count).to_vec();
        let within = |power| Tiles::Within((most * PART.powi(power)) as u64);
        let bytes: Vec<Tiles> = (0..CHOICES).map(within).collect();
        let few = match untiled.problem.sole_device() {
            Some(_) if !self.seeks_least() => FEW,
            _ => 0,
        };
        let numbers = counts.iter().skip(first).take(few);
        let mut begun: Vec<Tiles> = bytes.iter().step_by(STRIDE).copied().collect();
        begun.splice(1..1, numbers.copied());
        self.round(&begun, known)?;
        if self.best.cost().is_none() {
            let closest = known.iter().skip(1).min_by(|a, b| a.1.by_use(b.1));
            if few > 0 && closest.is_some_and(|closest| is_hopeless(known[0].1, closest.1)) {
                return Ok(());
            }
            self.round(&counts, known)?;
        }
        let mut stride = STRIDE;
        loop {
            let best = known.iter().min_by(|a, b| a.1.by_use(b.1));
            let best = best.map_or(Tiles::Off, |&(tiles, _)| tiles);
            stride = (stride / 2).max(1);
            let around = [beside(&counts, best, 1), beside(&bytes, best, stride)].concat();
            let before = known.len();
            self.round(&around, known)?;
            if known.len() == before {
                return Ok(());
            }
        }
    }

    /// Judges those tiles that aren't known yet, one after another, until smaller ones are no better.
    fn round(&mut self, tiles: &[Tiles], known: &mut Vec<(Tiles, Judged)>) -> Result<()> {
        // Smaller tiles have larger halos, and their graphs take time and memory.
        let mut kinds = [Kind::default(); 2];
        for &tiles in tiles {
            let counted = matches!(tiles, Tiles::Count(_));
            let kind = &mut kinds[usize::from(counted)];
            if kind.ended || known.iter().any(|&(other, _)| other == tiles) {
                continue;
            }
            let judged = self.judge(tiles, None)?;
            kind.ended = match judged {
                Judged::Fits { cost, .. } => counted || self.best.cost() < Some(cost),
                Judged::Nothing => self.best.cost().is_some(),
                Judged::TooMany => true,
                _ => kind.is_worse(judged, counted),
            };
            known.push((tiles, judged));
        }
        Ok(())
    }

    /// Leaves the best few, and judges those anew by other costs if several fit.
    pub(super) fn compare(
        &mut self,
        known: &mut Vec<(Tiles, Judged)>,
        pricing: Pricing<'_>,
    ) -> Result<()> {
        known.truncate(FINALISTS);
        let fitting = known.iter().filter(|(_, judged)| judged.cost().is_some());
        if fitting.count() > 1 && !self.search.stopped() {
            (self.best, self.start) = (Judged::Nothing, None);
            (self.seen, self.began) = (Vec::new(), Instant::now());
            for (tiles, judged) in known.iter_mut() {
                *judged = self.judge(*tiles, Some(&mut *pricing))?;
            }
            known.sort_by(|a, b| a.1.by_use(b.1));
        }
        Ok(())
    }

    fn judge(&mut self, tiles: Tiles, pricing: Option<Pricing<'_>>) -> Result<Judged> {
        let search = self.search;
        let limit = search.options.time_limit;
        let patience = match self.best.cost() {
            Some(_) if search.stopped() => return Ok(Judged::Nothing),
            Some(_) => limit.mul_f64(SHARE),
            None => self.left,
        };
        let before = self.began.elapsed();
        if before + self.quickest > patience {
            return Ok(Judged::Nothing);
        }
        // A step for half of the bytes has at least twice as many tiles.
        let (bytes, nodes) = self.cut;
        if let Tiles::Within(fewer) = tiles
            && fewer < bytes
            && self.is_too_large(nodes as f64 * bytes as f64 / fewer.max(1) as f64)
        {
            return Ok(Judged::TooMany);
        }
        let step = match search.work.tiled(search.graph, tiles) {
            Err(Error::Graph(
                GraphError::NothingToTile { .. } | GraphError::NotTileable { .. },
            )) if tiles != Tiles::Off => return Ok(Judged::Nothing),
            step => step?,
        };
        let built = self.began.elapsed().saturating_sub(before);
        self.quickest = match self.quickest {
            Duration::ZERO => built,
            quickest => quickest.min(built),
        };
        let tiled = &step.tiled;
        if let Some((_, judged)) = self.seen.iter().find(|(other, _)| other == tiled) {
            return Ok(*judged);
        }
        let most = match search.devices.iter().count() {
            1 => MOST_TASKS,
            _ => MOST_TASKS_OF_SEVERAL,
        };
        let nodes = step.graph.nodes().len();
        let seconds = self.pace * nodes as f64;
        let expected = before.as_secs_f64() + (limit / TRIAL).as_secs_f64() + seconds;
        let known = self.pace.is_finite();
        if let Tiles::Within(bytes) = tiles {
            self.cut = (bytes, nodes);
        }
        let too_large = nodes > most || self.is_too_large(nodes as f64);
        if too_large || known && expected > patience.max(self.left).as_secs_f64() {
            return Ok(Judged::TooMany);
        }
        let budgeted = search.budgeted(&step, &self.budget, pricing)?;
        let took = self.began.elapsed().saturating_sub(before);
        let pace = took.as_secs_f64() / nodes.max(1) as f64;
        self.pace = self.pace.min(pace);
        let (judged, start) = self.plan(&budgeted)?;
        let judged = self.beside_fewer(judged, nodes);
        self.keep(step, judged, start);
        Ok(judged)
    }

    /// The same, but as if it missed the budgets by more if other tiles with far fewer tasks miss them, too.
    fn beside_fewer(&mut self, judged: Judged, nodes: usize) -> Judged {
        match judged {
            Judged::Missed(share) if nodes > MANY_TIMES * self.fewest => {
                Judged::Missed(share + FEWER_GAIN)
            }
            Judged::Missed(_) => {
                self.fewest = self.fewest.min(nodes);
                judged
            }
            judged => judged,
        }
    }

    /// Whether a training step of so many nodes, nearly all of which are tasks, is too large for a trial. One that only runs forward may
    /// fit with nothing run again.
    fn is_too_large(&self, nodes: f64) -> bool {
        matches!(self.search.work, Work::Train(_)) && nodes > self.quick_tasks()
    }

    /// The most tasks of a step whose plan is found in a trial, if any need run again.
    fn quick_tasks(&self) -> f64 {
        let trial = self.search.options.time_limit / TRIAL;
        QUICK_TASKS * trial.as_secs_f64()
    }

    pub(super) fn keep(&mut self, step: TiledStep, judged: Judged, start: Option<TrialPlan>) {
        if judged.by_use(self.best).is_lt() {
            (self.best, self.start) = (judged, start);
        }
        self.seen.push((step.tiled, judged));
    }

    /// Whether the least budgets are asked.
    pub(super) fn seeks_least(&self) -> bool {
        self.search.budgets().any(|budget| *budget == Budget::Min)
    }

    /// Whether a plan without tiles is as good as any with them.
    pub(super) fn is_best(&self, untiled: &Budgeted, judged: Judged) -> bool {
        match judged {
            Judged::Fits { .. } if self.seeks_least() => false,
            // Where a budget makes such a plan slower than without one isn't known.
            Judged::Fits { again, .. } if untiled.problem.sole_device().is_none() => again == 0,
            Judged::Fits { cost, .. } => cost <= self.least_cost(untiled),
            _ => false,
        }
    }

    /// No plan of a step costs less.
    fn least_cost(&self, budgeted: &Budgeted) -> f64 {
        let problem = &budgeted.problem;
        match (problem.sole_device(), self.seeks_least()) {
            (Some(_), true) => homes::floor_bytes(budgeted).map_or(0.0, |bytes| bytes as f64),
            (None, true) => 0.0,
            (Some(_), false) => budgeted.base.objective(self.search.options.alpha),
            (None, false) => {
                let least = |modes: &[Mode]| {
                    let seconds = modes.iter().map(|mode| mode.seconds);
                    seconds.fold(f64::INFINITY, f64::min)
                };
                let tasks = problem.tasks().values();
                let devices = problem.devices().values().filter(|device| device.computes);
                tasks.map(|task| least(&task.modes)).sum::<f64>() / devices.count() as f64
            }
        }
    }

    /// What a plan in little time achieves, unless it can't be better than what is known; and that plan, if it has a layout
    /// within the budget.
    pub(super) fn plan(&self, budgeted: &Budgeted) -> Result<(Judged, Option<TrialPlan>)> {
        let needed = homes::share_needed(budgeted)?;
        if needed > 1.0 {
            return Ok((Judged::Floor(needed), None));
        }
        match self.best.cost() {
            Some(best) if self.least_cost(budgeted) >= best => Ok((Judged::Nothing, None)),
            _ => self.trial(budgeted),
        }
    }

    fn trial(&self, budgeted: &Budgeted) -> Result<(Judged, Option<TrialPlan>)> {
        let limit = self.search.options.time_limit / TRIAL;
        let tasks = budgeted.problem.tasks().len() as f64;
        let fits = budgeted.budget_bytes >= Some(budgeted.base_peak());
        if tasks > self.quick_tasks() && !fits {
            return Ok((Judged::TooMany, None));
        }
        let options = Options {
            time_limit: limit,
            deadline: Instant::now().checked_add(limit),
            ..self.search.options.clone()
        };
        match find_plan(budgeted, Fit::Layout, &options, &mut |_| {}) {
            Ok(planned) => {
                let fits = Judged::Fits {
                    cost: match self.seeks_least() {
                        true => needed_bytes(&planned) as f64,
                        false => planned.plan().objective(options.alpha),
                    },
                    again: planned.plan().recomputed(),
                };
                Ok((fits, Some(TrialPlan::of(budgeted, planned.plan()))))
            }
            // After so little time, a search with more of it had better begin anew than go on from its leanest plan.
            Err(error) => Ok((missed(budgeted, error)?.0, None)),
        }
    }

    /// Finds out by how much tiles miss the budgets of which only a floor is known, as far as that is below the least that
    /// was found. A step without tiles, which is known first, has the time for it in any case, or needn't be tried.
    pub(super) fn find_leasts(&self, known: &mut [(Tiles, Judged)]) -> Result<()> {
        let found = known.iter().filter_map(|(_, judged)| match judged {
            Judged::Missed(share) => Some(*share),
            _ => None,
        });
        let mut least = found.fold(f64::INFINITY, f64::min);
        for (place, (tiles, judged)) in known.iter_mut().enumerate() {
            let in_time = place == 0 || self.began.elapsed() <= self.left;
            match *judged {
                Judged::Floor(floor) if place == 0 && floor * EXPECTED < least => {
                    *judged = Judged::Expected(floor * EXPECTED);
                    // Tiles are worth a trial only if their floor is so much lower that their plans may be, too.
                    least = floor / EXPECTED;
                    continue;
                }
                Judged::Floor(floor) if floor < least && in_time && !self.search.stopped() => {}
                _ => continue,
            }
            let step = self.search.work.tiled(self.search.graph, *tiles)?;
            let budgeted = self.search.budgeted(&step, &self.budget, None)?;
            (*judged, _) = self.trial(&budgeted)?;
            if let Judged::Missed(share) = *judged {
                least = least.min(share);
            }
        }
        Ok(())
    }
}

/// Whether tiles like the closest of the first ones won't help a step that misses the budgets without them. Where that one is far
/// from what the step is expected to need without tiles, others are, too; and where the step's floor is far above the budget and that
/// of the closest tiles hardly lower, so are their plans.
fn is_hopeless(untiled: Judged, closest: Judged) -> bool {
    let most = match (untiled, closest) {
        (Judged::Floor(floor), Judged::Floor(_)) if floor >= EXPECTED => floor / EXPECTED,
        _ => untiled.share() * EXPECTED,
    };
    closest.share().is_finite() && most <= closest.share()
}

/// What lies so far before and behind a choice of tiles in a list.
fn beside(list: &[Tiles], tiles: Tiles, distance: usize) -> Vec<Tiles> {
    let at = list.iter().position(|&other| other == tiles);
    let near = at.map_or([None, None], |at| {
        [at.checked_sub(distance), Some(at + distance)]
    });
    let near = near.into_iter().flatten();
    near.filter_map(|at| list.get(at).copied()).collect()
}

/// The most bytes that a device may take, or that a step takes without a plan where the least budget is asked.
fn most_bytes(untiled: &Budgeted) -> u64 {
    let computing = untiled
        .problem
        .devices()
        .iter()
        .filter(|(_, what)| what.computes);
    let capacities = untiled.capacities();
    let bytes = computing.filter_map(|(device, _)| capacities.bytes(device));
    bytes.max().unwrap_or_else(|| untiled.base_peak())
}

/// The bytes that a plan needs on all devices that compute.
fn needed_bytes(planned: &Planned) -> u64 {
    let computing = planned.plan().problem().devices().iter();
    let computing = computing.filter(|(_, what)| what.computes);
    computing
        .map(|(device, _)| planned.layout.needed_bytes(device))
        .sum()
}

/// By how much the plan that comes closest misses a budget, and that plan if it is known; or the error, if it is about
/// something else.
pub(super) fn missed(budgeted: &Budgeted, error: Error) -> Result<(Judged, Option<TrialPlan>)> {
    let share = |least: u64, budget: u64| least as f64 / budget.max(1) as f64;
    let (share, leanest) = match error {
        Error::NoLayout { budget, needed, .. } => (share(needed, budget), None),
        Error::Solve(SolveError::Infeasible {
            budget,
            least_found,
            leanest,
            ..
        }) => (share(least_found, budget), leanest),
        Error::Solve(SolveError::NoRoom { budget, least, .. }) => (share(least, budget), None),
        Error::Solve(SolveError::Short(short)) => {
            let shares = short
                .iter()
                .map(|short| share(short.least_found, short.capacity));
            (shares.fold(1.0, f64::max), None)
        }
        error => return Err(error),
    };
    // With several memories, the plan may be one for other homes.
    let one = budgeted.problem.devices().len() == 1;
    let start = leanest.filter(|_| one).map(|sequence| TrialPlan {
        sequence,
        homes: Vec::new(),
    });
    Ok((Judged::Missed(share), start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_tiles_end_with_two_no_better_or_a_floor_that_no_number_changes() {
        let tried = |counted: bool, shares: &[Judged]| {
            let mut kind = Kind::default();
            shares
                .iter()
                .position(|&share| kind.is_worse(share, counted))
        };
        let (floor, missed) = (Judged::Floor, Judged::Missed);
        let stays = [floor(1.3), floor(1.3), floor(1.3)];
        assert_eq!(tried(true, &stays), Some(1));
        assert_eq!(tried(false, &stays), Some(2));
        for counted in [false, true] {
            let ends = |shares: &[Judged]| tried(counted, shares);
            assert_eq!(ends(&[floor(1.3), floor(1.4), floor(1.5)]), Some(2));
            assert_eq!(ends(&[missed(1.3), missed(1.3), missed(1.3)]), Some(2));
            assert_eq!(ends(&[missed(1.3), floor(1.4), missed(1.2)]), None);
        }
    }

    #[test]
    fn tiles_are_hopeless_far_above_the_step_without_them_or_with_hardly_a_lower_floor() {
        let (floor, missed) = (Judged::Floor, Judged::Missed);
        assert!(is_hopeless(floor(1.4), missed(1.8)));
        assert!(!is_hopeless(floor(1.4), missed(1.7)));
        assert!(is_hopeless(floor(1.4), floor(1.3)));
        assert!(!is_hopeless(floor(1.4), floor(1.1)));
        assert!(!is_hopeless(floor(1.02), floor(1.02)));
        assert!(!is_hopeless(missed(1.4), floor(1.3)));
        assert!(!is_hopeless(floor(1.4), Judged::TooMany));
    }
}

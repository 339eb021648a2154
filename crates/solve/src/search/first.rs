//! The first plan within a budget, at whatever cost, and the least budget for which a plan is found.

use scrimp_plan::TaskId;

use std::time::Duration;

use crate::cutoff::Cutoff;
use crate::model::Model;
use crate::random::Random;
use crate::search::anneal::{BEAM_TASKS, Walk};
use crate::search::beam::{self, Breadth};
use crate::search::front;
use crate::search::order;
use crate::search::state::State;
use crate::search::walks::{WALKS, each};

/// How often the search for a first plan starts over, with other random choices each time.
const ROUNDS: u64 = 16;
/// The same number if beams have failed.
const ROUNDS_AFTER_BEAMS: u64 = 6;
/// The widths of the beams, in the order in which they are tried; the last is only for few tasks.
const WIDTHS: [usize; 3] = [1, 8, 64];
const FEW: u32 = 400;
/// With more tasks, plans are built from the front, because repair takes too long.
const MANY: u32 = 1000;
/// In that case, the powers of the bytes over the budget that are tried as first prices.
const POWERS: [f64; 2] = [1.0, 0.0];
/// The number of widths that are quick.
const QUICK_WIDTHS: usize = 2;
/// How much a lean order for them prefers tasks close to the last one.
const INERTIA: f64 = 5.0;
/// The least budget is found to this share of the distance between the floor and the keep-all peak.
const PRECISION: f64 = 1e-4;
/// If no plan was found in time, the search for the least budget takes at least this long.
const LEAST_TIME: Duration = Duration::from_millis(500);

/// The search for a sequence that fits, at whatever cost.
#[derive(Clone, Copy)]
pub(super) struct FirstPlan<'a> {
    pub model: &'a Model,
    pub budget: f64,
    /// A proven floor: no plan takes fewer bytes.
    pub floor: f64,
    pub free: bool,
    /// When the search ends, and when the search for the least budget ends.
    pub cutoff: Cutoff<'a>,
    pub late: Cutoff<'a>,
    /// Whether the search for the least budget may overrun the limit.
    pub patient: bool,
    pub seed: u64,
    pub threads: usize,
}

impl FirstPlan<'_> {
    /// A sequence that fits, or else the least budget for which one was found, with that sequence.
    pub fn search(&self) -> Result<Vec<TaskId>, (f64, Vec<TaskId>)> {
        let mut leanest: Option<(f64, Vec<TaskId>)> = None;
        let beams = beam::takes(self.model);
        let rounds = match self.budget < self.floor {
            true if beams && self.model.tasks <= BEAM_TASKS => 0..0,
            true if self.model.tasks > MANY => 0..0,
            // These walks are for the least budget only.
            true => 1..2,
            false if beams => 0..ROUNDS_AFTER_BEAMS,
            false => 0..ROUNDS,
        };
        for round in rounds {
            // Beams are quicker with few tasks; walks rearrange, and squeeze last.
            let beams_first = !self.free && self.model.tasks <= BEAM_TASKS;
            let mut found = None;
            if round == 0 && beams_first {
                found = self.beams(WIDTHS.len());
            }
            found = found.or_else(|| self.walks(round, &mut leanest));
            if round == 0 && !beams_first {
                found = found.or_else(|| self.beams(WIDTHS.len()));
            }
            if let Some(runs) = found {
                return Ok(runs);
            }
            if self.cutoff.reached() {
                break;
            }
        }
        // A caller that asked for too little should learn what is enough, however late it is.
        let late = match self.patient {
            true => self.late.not_within(LEAST_TIME),
            false => self.late,
        };
        Err(FirstPlan { late, ..*self }.least(leanest))
    }

    /// Walks that repair and squeeze. Costs steer them, sometimes astray if the budget is tight. So each
    /// round blurs the costs to a different degree, from their real values to all equal.
    fn walks(&self, round: u64, leanest: &mut Option<(f64, Vec<TaskId>)>) -> Option<Vec<TaskId>> {
        let blurred = blurred(self.model, [1.0, 0.5, 0.0, 0.8][round as usize % 4]);
        let given = self.given();
        let mut walks: Vec<Walk<'_>> = (0..WALKS as u64)
            .map(|k| {
                let random = Random::new(self.seed, round * WALKS as u64 + k);
                Walk::new(
                    &blurred,
                    &given,
                    self.budget,
                    self.free,
                    self.cutoff,
                    random,
                )
            })
            .collect();
        each(self.threads, &mut walks, &|k, walk| {
            walk.first_plan(k, round > 0);
        });
        for walk in &walks {
            if leanest.as_ref().is_none_or(|l| walk.leanest.0 < l.0) {
                *leanest = Some(walk.leanest.clone());
            }
        }
        let found = walks.iter().filter_map(|walk| walk.best.as_ref());
        let found = found.map(|(_, runs)| runs);
        found
            .min_by(|a, b| self.seconds(a).total_cmp(&self.seconds(b)))
            .cloned()
    }

    fn given(&self) -> Vec<TaskId> {
        self.model.given_order()
    }

    /// The same search in the given order.
    pub fn keeping(&self) -> Self {
        FirstPlan {
            free: false,
            ..*self
        }
    }

    /// A sequence that fits; if the order is free, also one that keeps the given order, if such a sequence is
    /// found quickly. The error is that of [`Self::search`].
    #[allow(
        clippy::type_complexity,
        reason = "the plans, or the least budget with its plan"
    )]
    pub fn plans(&self) -> Result<(Vec<TaskId>, Option<Vec<TaskId>>), (f64, Vec<TaskId>)> {
        if self.model.tasks > MANY && self.budget >= self.floor {
            return self
                .of_many()
                .map_or_else(|| Ok((self.search()?, None)), Ok);
        }
        let possible = self.free && self.budget >= self.floor;
        let Some(kept) = possible.then(|| self.keeping().quickly()).flatten() else {
            return Ok((self.search()?, None));
        };
        let seconds = |runs: &Vec<TaskId>| self.seconds(runs);
        let found = self.quickly().into_iter().chain([kept.clone()]);
        let cheapest = found.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        Ok((cheapest.unwrap_or_else(|| kept.clone()), Some(kept)))
    }

    fn seconds(&self, runs: &[TaskId]) -> f64 {
        runs.iter().map(|&t| self.model.cost[t]).sum()
    }

    /// A sequence that fits, if the quick methods find one.
    fn quickly(&self) -> Option<Vec<TaskId>> {
        let few = self.model.tasks <= BEAM_TASKS;
        let found = self.walks(0, &mut None);
        found.or_else(|| few.then(|| self.beams(QUICK_WIDTHS)).flatten())
    }

    /// Tries beams of the first few widths, in the given order and, if the order is free, in lean orders.
    fn beams(&self, widths: usize) -> Option<Vec<TaskId>> {
        let mut rng = Random::new(self.seed, 0);
        if !beam::takes(self.model) {
            return None;
        }
        let orders = self.orders(&mut rng);
        let widths = widths.min(if self.model.tasks > FEW { 2 } else { 3 });
        let mut work = 0;
        for &width in &WIDTHS[..widths] {
            let free = orders
                .iter()
                .take(usize::from(self.free))
                .map(|order| (order, true));
            for (order, free) in orders.iter().map(|order| (order, false)).chain(free) {
                let breadth = Breadth {
                    width,
                    rent: 1.0,
                    noise: 0.0,
                    free,
                };
                let tools = (self.late, &mut rng, &mut work);
                let found = beam::search(self.model, order, self.budget, breadth, tools);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// [`Self::plans`] for many tasks: built from the front in the given order and, if the order is free, in a
    /// lean one.
    fn of_many(&self) -> Option<(Vec<TaskId>, Option<Vec<TaskId>>)> {
        let kept = self.fronts(&self.given());
        if !self.free {
            return kept.map(|kept| (kept, None));
        }
        let mut rng = Random::new(self.seed, 0);
        let lean = order::lean(self.model, 0.0, INERTIA, self.cutoff, &mut rng);
        let whole = lean.len() == self.model.tasks as usize;
        let lean = whole.then(|| self.fronts(&lean)).flatten();
        Some((self.cheapest([lean, kept.clone()])?, kept))
    }

    /// The cheapest sequence of those built from the front at different first prices.
    fn fronts(&self, order: &[TaskId]) -> Option<Vec<TaskId>> {
        let job = |&power: &f64| {
            front::cheapest(self.model, order.to_vec(), self.budget, power, self.cutoff)
        };
        let mut found = POWERS.map(|_| None);
        if self.threads < 2 {
            POWERS.iter().zip(&mut found).for_each(|(p, f)| *f = job(p));
        } else {
            std::thread::scope(|scope| {
                for (p, f) in POWERS.iter().zip(&mut found) {
                    scope.spawn(|| *f = job(p));
                }
            });
        }
        self.cheapest(found)
    }

    fn cheapest(
        &self,
        found: impl IntoIterator<Item = Option<Vec<TaskId>>>,
    ) -> Option<Vec<TaskId>> {
        let found = found.into_iter().flatten();
        found.min_by(|a, b| self.seconds(a).total_cmp(&self.seconds(b)))
    }

    fn orders(&self, rng: &mut Random) -> Vec<Vec<TaskId>> {
        let mut orders = vec![self.given()];
        if self.free {
            let random = rng.clone();
            let mut walk = Walk::new(
                self.model,
                &orders[0],
                self.budget,
                true,
                self.cutoff,
                random,
            );
            walk.rearrange(100, 100.0, 0.01);
            orders.push(walk.state.order());
            for inertia in [0.0, 20.0] {
                orders.push(order::lean(self.model, 0.0, inertia, self.cutoff, rng));
            }
            orders.retain(|o| o.len() == self.model.tasks as usize);
        }
        orders
    }

    /// The least budget for which beams find a plan, and that plan; asked for that budget, they find it
    /// again. Otherwise what is already known: a plan, with its peak.
    pub fn least(&self, known: Option<(f64, Vec<TaskId>)>) -> (f64, Vec<TaskId>) {
        let mut least = known.unwrap_or_else(|| {
            let given = self.given();
            (State::new(self.model, &given).peak(), given)
        });
        let mut none = self.budget.max(self.floor - 1.0);
        let close = ((least.0 - self.floor) * PRECISION).max(1.0);
        let lowest = none;
        let many = self.model.tasks > MANY;
        for widths in 1..=if many { 1 } else { WIDTHS.len() } {
            let at = |budget| {
                let cutoff = self.late;
                let asked = FirstPlan {
                    budget,
                    cutoff,
                    ..*self
                };
                let found = match many {
                    true => asked.of_many().map(|(runs, _)| runs),
                    false => asked.beams(widths),
                };
                found.map(|runs| (budget, runs))
            };
            let mut next = match self.model.tasks <= BEAM_TASKS {
                true => self.floor,
                false => (lowest + least.0) / 2.0,
            };
            none = lowest;
            while least.0 - none > close && !self.late.reached() {
                let budget = next.floor().max(none + 1.0);
                match at(budget) {
                    Some(found) => {
                        let peak = State::new(self.model, &found.1).peak();
                        least = if peak < budget {
                            at(peak).unwrap_or(found)
                        } else {
                            found
                        };
                    }
                    None => none = budget,
                }
                next = (none + least.0) / 2.0;
            }
        }
        least
    }
}

/// The model with costs raised to a power, from 1 (unchanged) to 0 (all equal).
fn blurred(model: &Model, power: f64) -> Model {
    let mut model = model.clone();
    let mean = model.base_cost() / f64::from(model.tasks.max(1));
    if power < 1.0 && mean > 0.0 {
        for t in model.task_ids() {
            model.cost[t] = mean * (model.cost[t] / mean).powf(power);
        }
    }
    model
}

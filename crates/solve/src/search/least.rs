//! The least budget for which a plan is found.
//!
//! What is tried doesn't depend on the budget that was asked for. So whoever is told a least budget, and asks
//! for it within the same time, gets a plan.

use scrimp_plan::TaskId;

use std::time::Instant;

use crate::cutoff::Cutoff;
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::backward::Estimate;
use crate::search::beam;
use crate::search::first::{FEW, FirstPlan, Lean, MANY, WIDE_WORDS, WIDTHS, blurred};
use crate::search::front;
use crate::search::narrow::{Gap, LONG, Until};
use crate::search::space;
use crate::search::starts::BEAM_TASKS;
use crate::search::state::State;
use crate::search::stretch::remakes;
use crate::search::walks::{WALKS, each};

/// The least budget is found to this share of the distance between the floor and the keep-all peak.
const PRECISION: f64 = 1e-4;
/// The part of the time for bisection: where the widest beams are tried and squeezing finds more in the same time, with few
/// tasks, for which wide beams find much, with more, where squeezing gets further from plans that aren't too lean, and with very
/// many, where squeezing brings little.
const BISECTION_OF_SMALL: f64 = 0.3;
const BISECTION_OF_FEW: f64 = 0.5;
const BISECTION: f64 = 0.2;
const BISECTION_OF_MANY: f64 = 0.5;
/// Where squeezing follows that gets much further, only the narrowest beams are tried, and bisection ends this close, as a share of
/// the least budget.
const ROUGHLY: f64 = 0.01;
/// The part of the time for search from the end, before squeezing and after it.
const NARROWING: f64 = 0.2;
/// How far the widest beams go down at once, as a share of the distance to the last failure, and those in other orders, as a share
/// of the least budget.
const DOWN: f64 = 0.25;
const CLOSER: f64 = 0.002;
/// So many other orders without a leaner plan are enough.
const OTHER_ORDERS: u64 = 8;
/// The rounds of a cycle of squeezing; there are more where stretches are remade, because those get further from the leanest plan. In
/// the first few rounds each walk has a plan of its own. In the others both go on from the leanest plan of all or, where that has brought
/// nothing, from the leaner of these two.
const CYCLE: u64 = 3;
const REMAKING_CYCLE: u64 = 6;
const APART: u64 = 2;
/// The most units of work of a round per task in the first cycle, with few tasks more because stretches are remade, and the
/// least number of such rounds for which a turn has work; with more tasks than the widest beams are for, remaking takes longer, and so
/// does a round. Each later cycle is longer by a quarter.
const ROUND: u64 = 80_000;
const REMAKING_ROUND: u64 = 300_000;
const ROUNDS: u64 = 24;
const ROUNDS_OF_MORE: u64 = 8;
/// The first stream of random numbers for squeezing a known plan.
const KNOWN_STREAMS: u64 = 1 << 32;
/// How much a walk blurs the costs, by round.
const BLURS: [f64; 3] = [0.0, 1.0, 0.5];

impl FirstPlan<'_> {
    /// The leanest plan that is found: by search from the end, which often decides all budgets; else from there, by bisection except
    /// where few tasks have a given order or many would take too long; and then by walks that squeeze it and search from the end, by
    /// turns where stretches are remade. Ends as soon as a plan fits the budget.
    pub(super) fn leanest(&self) -> Lean {
        let known = match self.known {
            Some(known) => (State::new(self.model, known).peak(), known.to_vec()),
            None => self.kept(),
        };
        let mut gap = Gap::new(self.model, self.floor - 1.0, known);
        let early = self.part(NARROWING);
        self.narrow(&mut gap, Estimate::ANY, None, early);
        let (floor, first) = (gap.none + 1.0, gap.known);
        if first.0 <= floor.max(self.budget) {
            let (least, runs) = first;
            return Lean { least, runs, floor };
        }
        let mut rest = FirstPlan { floor, ..*self };
        let first = match self.known {
            // Squeezing gets further than plans built from the front, until repair takes too long.
            _ if (MANY + 1..=front::TOO_MANY).contains(&self.model.tasks) => first,
            Some(_) if self.model.tasks <= MANY => first,
            None if self.model.tasks <= BEAM_TASKS && !self.free => first,
            _ => rest.bisected_in_time(first),
        };
        let late = self.part(1.0 - NARROWING);
        let mut squeezing = Squeezing::new(&rest, first);
        let mut gap = Gap::new(self.model, gap.none, squeezing.leanest.clone());
        loop {
            let start = Instant::now();
            FirstPlan { late, ..rest }.squeeze(&mut squeezing);
            gap.learn(squeezing.leanest.clone());
            // Both have as much time, and squeezing all of it once no more states fit.
            let turn = match remakes(self.model) && self.squeeze > 0 && !late.reached() {
                true => Instant::now().checked_add(start.elapsed()),
                false => None,
            };
            let open = self.narrow(&mut gap, Estimate::OTHERS, turn, self.late);
            let floor = gap.none + 1.0;
            if turn.is_none() || !open {
                let (least, runs) = gap.known;
                return Lean { least, runs, floor };
            }
            rest.floor = floor;
            if gap.known.0 < squeezing.leanest.0 {
                squeezing.leanest = gap.known.clone();
                squeezing.stuck = false;
            }
        }
    }

    /// The end of a part of the time that is left.
    fn part(&self, part: f64) -> Cutoff<'_> {
        let end = Instant::now().checked_add(self.late.left().mul_f64(part));
        self.late.by(end)
    }

    /// Search from the end by two estimates in lean orders. Returns whether the gap is still open.
    fn narrow(
        &self,
        gap: &mut Gap,
        by: [Estimate; 2],
        turn: Option<Instant>,
        cutoff: Cutoff<'_>,
    ) -> bool {
        if !beam::takes(self.model) {
            return false;
        }
        let mut rng = Random::new(self.seed, 0);
        let mut orders = Vec::new();
        if self.free {
            orders.push(self.model.first_runs(&gap.known.1));
            orders.extend(self.orders(&mut rng));
            orders.dedup();
        } else {
            orders.push(self.given());
        }
        let mut orders: Vec<_> = orders.iter().map(|order| Some(&order[..])).collect();
        if self.free {
            orders.push(None);
        }
        let until = Until {
            close: ((gap.known.0 - gap.none) * PRECISION).max(1.0),
            enough: self.budget,
            turn: turn.map(|end| (end, LONG)),
            cutoff,
        };
        gap.narrow(self.model, (&orders, by), until, self.threads)
    }

    /// Every task once in the given order, with the peak.
    fn kept(&self) -> (f64, Vec<TaskId>) {
        let given = self.given();
        (State::new(self.model, &given).peak(), given)
    }

    /// The least budget for which beams, or plans built from the front, meet it, in a part of the time. A plan that takes the most may
    /// be known.
    fn bisected_in_time(&self, known: (f64, Vec<TaskId>)) -> (f64, Vec<TaskId>) {
        let part = match self.model.tasks {
            _ if space::words(self.model) <= WIDE_WORDS => BISECTION_OF_SMALL,
            ..=FEW => BISECTION_OF_FEW,
            tasks if tasks > MANY => BISECTION_OF_MANY,
            _ => BISECTION,
        };
        let by = Instant::now().checked_add(self.late.left().mul_f64(part));
        let bisected = FirstPlan {
            late: self.late.by(by),
            any: self.model.tasks > front::TOO_MANY,
            ..*self
        };
        bisected.bisected(known)
    }

    fn bisected(&self, most: (f64, Vec<TaskId>)) -> (f64, Vec<TaskId>) {
        let mut least = most;
        let close = ((least.0 - self.floor) * PRECISION).max(1.0);
        let many = self.model.tasks > MANY;
        let roughly = !many && self.model.tasks > FEW;
        for widths in 1..=if many || roughly { 1 } else { self.widths() } {
            // The widest beams take longest where they fail.
            let step = if widths == WIDTHS.len() { DOWN } else { 0.5 };
            let mut none = self.floor - 1.0;
            let mut next = match self.model.tasks <= BEAM_TASKS {
                true => self.floor,
                false => (none + least.0) / 2.0,
            };
            while least.0 > self.budget && !self.late.reached() {
                let close = if roughly { ROUGHLY * least.0 } else { close };
                if least.0 - none <= close {
                    break;
                }
                let budget = next.floor().max(none + 1.0);
                match self.within(budget, widths, 0) {
                    Some(found) => least = found,
                    None => none = budget,
                }
                next = least.0 - step * (least.0 - none);
            }
        }
        match self.free && space::words(self.model) <= WIDE_WORDS {
            true => self.in_other_orders(least),
            false => least,
        }
    }

    /// Goes down from a plan in small steps by beams in other lean orders, until several in a row find none.
    fn in_other_orders(&self, most: (f64, Vec<TaskId>)) -> (f64, Vec<TaskId>) {
        let mut least = most;
        let (mut orders, mut failed) = (1, 0);
        while failed < OTHER_ORDERS && least.0 > self.budget.max(self.floor) && !self.late.reached()
        {
            let budget = (least.0 * (1.0 - CLOSER)).floor().max(self.floor);
            match self.within(budget, WIDTHS.len(), orders) {
                Some(found) => (least, failed) = (found, 0),
                None => (orders, failed) = (orders + 1, failed + 1),
            }
        }
        least
    }

    /// A plan within a budget, with its peak, by beams of the first few widths, or of many tasks one built from the front. Beams
    /// run in these of several pairs of orders.
    fn within(&self, budget: f64, widths: usize, orders: u64) -> Option<(f64, Vec<TaskId>)> {
        let asked = FirstPlan {
            budget,
            cutoff: self.late,
            seed: self.seed.wrapping_add(orders),
            ..*self
        };
        let runs = match self.model.tasks > MANY {
            true => asked.of_many().map(|(runs, _)| runs),
            false => asked.beams(widths),
        };
        runs.map(|runs| (State::new(self.model, &runs).peak(), runs))
    }

    /// Walks that lower the peak, for some work. In the first cycle one starts from the first plan and the other from a lean order. In
    /// each later one both start from that plan again, because how far a walk gets depends more on chance than on its length; if that plan
    /// was known before, from one found by bisection, because they get further from plans that aren't too lean.
    fn squeeze(&self, squeezing: &mut Squeezing) {
        // A search that goes on shouldn't repeat what led to the known plan.
        let first_stream = if self.known.is_some() {
            KNOWN_STREAMS
        } else {
            0
        };
        let cycle = match remakes(self.model) {
            true => REMAKING_CYCLE,
            false => CYCLE,
        };
        let mut left = self.squeeze;
        while left > 0 && !self.late.reached() {
            if squeezing.leanest.0 <= self.budget.max(self.floor) {
                break;
            }
            let round = squeezing.round;
            let models: Vec<_> = (0..WALKS)
                .map(|k| blurred(self.model, BLURS[(round as usize + k) % BLURS.len()]))
                .collect();
            if round.is_multiple_of(cycle) && round > 0 {
                if round == cycle && self.known.is_some() && self.model.tasks <= MANY {
                    squeezing.origin = self.bisected_in_time(self.kept());
                }
                squeezing.plans = vec![squeezing.origin.clone(); WALKS];
                squeezing.length = self.squeeze.min(squeezing.length + squeezing.length / 4);
            }
            let apart = round % cycle < APART;
            let mut walks: Vec<Walk<'_>> = (0..WALKS)
                .map(|k| {
                    let (_, order) = match apart {
                        true => &squeezing.plans[k],
                        false if squeezing.stuck => leaner(&squeezing.plans),
                        false => &squeezing.leanest,
                    };
                    let stream = round * WALKS as u64 + k as u64;
                    let random = Random::new(self.seed, stream + first_stream);
                    Walk::new(&models[k], order, self.floor, self.free, self.late, random)
                })
                .collect();
            let most = squeezing.length.min(left);
            each(self.threads, &mut walks, &|k, walk| {
                if round == 0 && k == 1 {
                    walk.start_leaner();
                }
                walk.squeeze(self.floor, self.budget, most);
            });
            let used = walks.iter().map(|walk| walk.repairer.work).max();
            // Walks that get nowhere at once don't start again for ever.
            left -= used.unwrap_or(0).max(most / ROUNDS).clamp(1, left);
            squeezing.plans = walks.into_iter().map(|walk| walk.leanest).collect();
            let leaner = leaner(&squeezing.plans);
            if leaner.0 < squeezing.leanest.0 {
                squeezing.leanest = leaner.clone();
                squeezing.stuck = false;
            } else {
                squeezing.stuck |= !apart;
            }
            squeezing.round += 1;
        }
    }
}

/// How far walks that lower the peak have got. Plans are with their peaks.
struct Squeezing {
    leanest: (f64, Vec<TaskId>),
    /// Whether walks have gone on from the leanest plan without finding a leaner one.
    stuck: bool,
    /// Where walks start afresh.
    origin: (f64, Vec<TaskId>),
    /// What each walk has found last.
    plans: Vec<(f64, Vec<TaskId>)>,
    round: u64,
    /// The units of work of a round.
    length: u64,
}

impl Squeezing {
    fn new(first: &FirstPlan<'_>, known: (f64, Vec<TaskId>)) -> Squeezing {
        let (longest, rounds) = match remakes(first.model) {
            false => (ROUND, ROUNDS),
            true if space::words(first.model) <= WIDE_WORDS => (REMAKING_ROUND, ROUNDS),
            true => (REMAKING_ROUND, ROUNDS_OF_MORE),
        };
        Squeezing {
            stuck: false,
            origin: known.clone(),
            plans: vec![known.clone(), first.kept()],
            leanest: known,
            round: 0,
            length: (first.squeeze / rounds).min(longest * u64::from(first.model.tasks)),
        }
    }
}

/// The plan with the lowest peak.
fn leaner(plans: &[(f64, Vec<TaskId>)]) -> &(f64, Vec<TaskId>) {
    let least = plans.iter().min_by(|a, b| a.0.total_cmp(&b.0));
    least.unwrap_or(&plans[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound;
    use crate::cutoff::Cutoff;
    use crate::model::Model;
    use crate::testing::{Shape, problem};

    #[test]
    fn bisection_of_many_tasks_goes_on_below_a_known_plan() {
        let shape = Shape {
            tasks: MANY as usize + 50,
            rich: false,
        };
        let p = problem(shape, &mut Random::new(3, 0));
        let model = Model::new(&p).expect("it can be planned").0;
        let given = model.given_order();
        let peak = State::new(&model, &given).peak();
        let known = FirstPlan {
            model: &model,
            budget: 0.0,
            floor: bound::floor(&model),
            free: false,
            cutoff: Cutoff::NEVER,
            late: Cutoff::NEVER,
            squeeze: 0,
            patient: false,
            any: false,
            known: Some(&given),
            seed: 0,
            threads: 2,
        };
        let (first, runs) = known.bisected((peak, given.clone()));
        assert!(first < peak, "{first} of {peak}");
        assert_eq!(State::new(&model, &runs).peak(), first);
        // It never gives back more than is known.
        assert!(known.bisected((first, runs)).0 <= first);
    }
}

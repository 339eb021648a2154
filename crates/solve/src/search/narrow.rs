//! Narrowing the gap between a budget without a plan and a known plan, by search from the end.

use scrimp_plan::TaskId;

use std::time::Instant;

use crate::cutoff::Cutoff;
use crate::divisor;
use crate::model::Model;
use crate::search::backward::{self, Verdict, Ways};
use crate::search::state::State;

/// The states for each budget at first, and how many times more there are whenever no budget is left to try.
const FIRST_STATES: usize = 3000;
const MORE: usize = 8;
/// So many states take long if they decide nothing.
pub(super) const LONG: usize = FIRST_STATES * MORE * MORE;
/// How far a try goes down from the leanest plan, as a share of what is open, with fewer states and with these: those find a leaner
/// plan the more often and the sooner, the less far it is.
const DOWN: f64 = 0.5;
const DOWN_OF_LONG: f64 = 0.125;

/// What is known of a problem's least budget, and what remains to be tried with the present number of states.
pub(super) struct Gap {
    /// The largest budget that is known to have no plan.
    pub none: f64,
    /// The leanest plan, with its peak.
    pub known: (f64, Vec<TaskId>),
    states: usize,
    /// The largest budget for which this number of states has decided nothing, or that has no plan; none if nothing has been tried.
    open: Option<f64>,
    /// The most bytes of which the bytes of every value and workspace are a multiple, and so every peak.
    unit: f64,
}

/// When narrowing ends before the gap is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until<'a> {
    /// Budgets closer than this to a known plan aren't tried.
    pub close: f64,
    /// Nothing less than a plan of at most these bytes is looked for.
    pub enough: f64,
    /// After this moment, if there is one, a search of at least so many states that decides nothing is the last one.
    pub turn: Option<(Instant, usize)>,
    pub cutoff: Cutoff<'a>,
}

impl Gap {
    pub fn new(model: &Model, none: f64, known: (f64, Vec<TaskId>)) -> Gap {
        let bytes = model.bytes.values().chain(model.workspace.values());
        let unit = divisor::common(bytes.map(|&bytes| bytes as u64)) as f64;
        let mut gap = Gap {
            none,
            known,
            states: FIRST_STATES,
            open: None,
            unit,
        };
        gap.none = gap.last(none);
        gap
    }

    /// Takes a plan into account if it is the leanest one.
    pub fn learn(&mut self, plan: (f64, Vec<TaskId>)) {
        if plan.0 < self.known.0 {
            self.known = plan;
        }
    }

    /// Narrows the gap in the ways of [`backward::decided`], until the cutoff or with as many states as fit. Returns whether the
    /// gap is still open; if that ended because its turn is over, the next call goes on with the next budget.
    pub fn narrow(
        &mut self,
        model: &Model,
        ways: Ways<'_>,
        until: Until<'_>,
        threads: usize,
    ) -> bool {
        let most = backward::most_states(model, ways.0.len());
        while self.states < MORE * most && !self.ends(until) {
            if self
                .open
                .is_some_and(|open| self.known.0 - open <= until.close)
            {
                self.states *= MORE;
                self.open = Some(self.none);
                continue;
            }
            let budget = self.next();
            let asked = (budget, self.states);
            let last = self.last(budget);
            match backward::decided(model, asked, ways, (threads, until.cutoff)) {
                Verdict::Plan(runs) => self.known = (State::new(model, &runs).peak(), runs),
                Verdict::NoPlan => (self.none, self.open) = (last, Some(last)),
                Verdict::Unknown => {
                    self.open = Some(last);
                    let over = |(end, states)| self.states >= states && Instant::now() >= end;
                    if until.turn.is_some_and(over) {
                        return true;
                    }
                }
            }
        }
        !self.ends(until)
    }

    fn ends(&self, until: Until<'_>) -> bool {
        let (least, none) = (self.known.0, self.none);
        least - none <= until.close || least <= until.enough || until.cutoff.reached()
    }

    /// The budget to try next: at first the least, because many problems have a plan within that, and then one between.
    fn next(&self) -> f64 {
        let Some(open) = self.open else {
            return self.none + 1.0;
        };
        let down = match self.states < LONG {
            true => DOWN,
            false => DOWN_OF_LONG,
        };
        let next = self.known.0 - down * (self.known.0 - open);
        let next = (next / self.unit).ceil() * self.unit;
        next.min(self.known.0 - self.unit)
    }

    /// The largest budget with the plans of this one: budgets between two multiples of the unit have those of the lower one.
    fn last(&self, budget: f64) -> f64 {
        ((budget / self.unit).floor() + 1.0) * self.unit - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound;
    use crate::random::Random;
    use crate::search::backward::Estimate;
    use crate::testing::{Shape, problem};

    #[test]
    fn least_budgets_are_decided() {
        let mut rng = Random::new(22, 0);
        let mut turns = 0;
        for round in 0..40 {
            let shape = Shape {
                tasks: 10 + round,
                rich: false,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let given = model.given_order();
            let floor = bound::floor(&model);
            let known = (State::new(&model, &given).peak(), given.clone());
            let orders = [Some(&given[..])];
            let until = Until {
                close: 1.0,
                enough: 0.0,
                turn: None,
                cutoff: Cutoff::NEVER,
            };
            let found = |threads, by| {
                let mut gap = Gap::new(&model, floor - 1.0, known.clone());
                assert!(!gap.narrow(&model, (&orders, by), until, threads));
                (gap.none, gap.known)
            };
            let mut leasts = Vec::new();
            for by in [Estimate::ANY, Estimate::OTHERS] {
                let (none, (least, runs)) = found(1, by);
                assert_eq!(none + 1.0, least, "nothing is left open");
                assert_eq!(State::new(&model, &runs).peak(), least);
                leasts.push(least);
                assert_eq!(found(2, by), (none, (least, runs)), "with two threads");
            }
            assert_eq!(leasts[0], leasts[1]);
            // Turns that each end with the first search that decides nothing, as those of few states do.
            let mut gap = Gap::new(&model, floor - 1.0, known.clone());
            gap.states = 10;
            let turn = Some((Instant::now(), 0));
            while gap.narrow(&model, (&orders, Estimate::ANY), Until { turn, ..until }, 1) {
                turns += 1;
            }
            assert_eq!((gap.none + 1.0, gap.known.0), (leasts[0], leasts[0]));
        }
        assert!(turns > 40, "{turns} searches decide nothing");
    }
}

//! Layouts of the plans that a search knows.

use std::time::Instant;

use scrimp_plan::{Capacities, CheckedLayout, CheckedPlan, Problem, Sequence};
use scrimp_solve::{
    Method, Options, Order, Overflow, PlaceAny, PlaceError, SolveError, Solved, place_by,
    place_reordered, place_thinned, sequence_of, solve,
};

use crate::error::Result;
use crate::pipeline::one::{Fit, counts_energy, plan_of};
use crate::pipeline::under::{AGAIN_PART, PLACE_PART, PLACE_TIME, Under, earlier};

/// If there are other plans, this share of the time left is for placing the best one, of few tasks or of more, and, while no layout
/// fits, this share of the rest for placing others.
const BEST_SHARES: [f64; 2] = [0.05, 0.1];
const OTHERS_SHARE: f64 = 0.75;
/// The share of the time left in which plans that cost the same are tried before one is made that leaves room, in problems of few
/// tasks and of more. A problem of few tasks often has no plan with room.
const AT_ONCE: [f64; 2] = [0.6, 0.3];
/// At most so many plans are made that leave room, each with half of the bytes less that the layout of the one before lacks, or
/// half of that if there is none. Its search takes at most this share of the limit, of few tasks or of more, its placement a
/// quarter of that time, and the placement of those that cost the same half of it.
const ROOMS: usize = 3;
const ROOM_PARTS: [f64; 2] = [0.1, 0.2];
/// The share of the time left for a plan with more recomputation, whose buffers pack more easily.
const THIN_SHARE: f64 = 0.25;
/// Where such plans don't fit, one is made that needs less by the first of these parts of the budget, and then by the second.
const SQUEEZED_PARTS: [u64; 2] = [128, 64];

impl Under<'_> {
    /// The layout of a plan, or what is missing.
    pub(super) fn placed(
        &self,
        solved: &Solved,
        order: Order,
    ) -> Result<Result<CheckedLayout, Vec<Overflow>>> {
        let share = match self.fit {
            Fit::Layout if !solved.others.ties.is_empty() => self.by_size(BEST_SHARES),
            _ => 1.0,
        };
        let cutoff = self.placing(share);
        fitting(match (self.fit, solved.method) {
            (Fit::Layout, Method::Search) => {
                place_reordered(&solved.plan, &self.limit, order, cutoff)
            }
            // A published planner's plan stays as it is.
            _ => place_by(&solved.plan, &self.limit, cutoff),
        })
    }

    /// The layout of another plan, which costs the same or nearly so. A dearer one may become the spare.
    pub(super) fn other(
        &mut self,
        best: &Solved,
        over: &[Overflow],
        options: &Options,
        thorough: bool,
    ) -> Result<Option<CheckedLayout>> {
        let limit = self.limit.clone();
        self.thin(&best.plan)?;
        if thorough && !self.has_few_tasks() && self.is_searched_without_spare() {
            self.squeeze(best)?;
        }
        let mut any = PlaceAny::new(&self.budgeted.problem, &best.others, &limit, options);
        if thorough {
            let cutoff = self.within(self.left(PLACE_PART).mul_f64(self.by_size(AT_ONCE)));
            if let Some(tie) = any.tie(&mut self.spare, [cutoff; 2])? {
                return Ok(Some(tie));
            }
            if let Some(found) = self.with_room(best, over)?
                && self.is_cheapest(self.cost(found.plan()))
            {
                if self.cost(found.plan()) - best.cost < self.near() {
                    return Ok(Some(found));
                }
                self.spare = Some(found);
            }
        }
        let end = self.options.time_limit.saturating_add(self.grace());
        let without_spare = self.left(PLACE_PART).mul_f64(OTHERS_SHARE) + self.grace();
        let without_spare = without_spare.min(end.saturating_sub(self.began.elapsed()));
        let cutoffs = [without_spare, self.until_limit()].map(|time| self.within(time));
        Ok(any.tie(&mut self.spare, cutoffs)?)
    }

    /// Whether a plan with more recomputation may become the spare.
    fn is_searched_without_spare(&self) -> bool {
        let searched = self.options.method == Method::Search && self.fit == Fit::Layout;
        searched && self.spare.is_none() && !counts_energy(self.budgeted, self.options)
    }

    /// Makes a plan with more recomputation the spare, if there is none yet and its layout fits.
    fn thin(&mut self, plan: &CheckedPlan) -> Result<()> {
        if self.is_searched_without_spare() {
            let cutoff = self.placing(THIN_SHARE);
            self.spare = place_thinned(plan, &self.limit, self.options, cutoff)?;
        }
        Ok(())
    }

    /// The same for the leanest plan that a refusal names, if it is lean enough.
    fn thin_leanest(&mut self, refusal: SolveError) -> Result<()> {
        let SolveError::Infeasible { leanest, .. } = refusal else {
            return Ok(());
        };
        let plan = leanest.and_then(|runs| plan_of(&self.budgeted.problem, &runs));
        match plan {
            Some(plan) if plan.peak(self.budgeted.device) <= self.budget => self.thin(&plan),
            _ => Ok(()),
        }
    }

    /// Makes a first plan that needs a little less than the budget, then one that needs even less, or the leanest one there is, with more
    /// recomputation the spare.
    /// A plan that could not be thinned fills the budget almost throughout.
    fn squeeze(&mut self, best: &Solved) -> Result<()> {
        for part in SQUEEZED_PARTS {
            if self.spare.is_some() || self.is_over() {
                break;
            }
            let asked = self.budget - self.budget / part;
            let capacities = self
                .asked
                .clone()
                .with_bytes(self.budgeted.device, Some(asked));
            let options = Options {
                enough: Some(f64::INFINITY),
                start: Some(sequence_of(&best.plan)),
                ..self.for_room()
            };
            match solve(&self.budgeted.problem, &capacities, &options, &mut |_| {}) {
                Ok(solved) => self.thin(&solved.plan)?,
                Err(refusal @ (SolveError::Infeasible { .. } | SolveError::Short(_))) => {
                    return self.thin_leanest(refusal);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What a search for less than the budget may take.
    fn for_room(&self) -> Options {
        let most = self.options.time_limit.mul_f64(self.by_size(ROOM_PARTS));
        let time = most.min(self.left(AGAIN_PART));
        Options {
            time_limit: time,
            deadline: earlier(self.options.deadline, Instant::now().checked_add(time)),
            ..self.options.clone()
        }
    }

    /// The layout of a plan like the best one that needs less. Dearer ones may become the spare.
    fn with_room(&mut self, best: &Solved, over: &[Overflow]) -> Result<Option<CheckedLayout>> {
        let (problem, device) = (&self.budgeted.problem, self.budgeted.device);
        let lacks = |over: &[Overflow]| {
            let here = over.iter().find(|over| over.device == device);
            here.map_or(0, Overflow::excess)
        };
        let (mut bytes, mut lacking) = (self.budget, lacks(over));
        for turn in 0..ROOMS {
            if lacking == 0 || turn > 0 && self.is_over() {
                break;
            }
            let asked = bytes.saturating_sub(lacking / 2);
            let capacities = self.asked.clone().with_bytes(device, Some(asked));
            let options = Options {
                start: self.cheapest_within(best, asked),
                ..self.for_room()
            };
            let time = options.time_limit;
            let solved = match solve(problem, &capacities, &options, &mut |_| {}) {
                Ok(solved) => solved,
                Err(refusal @ (SolveError::Infeasible { .. } | SolveError::Short(_))) => {
                    self.thin_leanest(refusal)?;
                    lacking /= 2;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.thin(&solved.plan)?;
            self.provenance.attempts += 1;
            self.provenance.elapsed += solved.elapsed;
            let cutoff = self.within(time / 4);
            let order = self.options.order;
            (bytes, lacking) =
                match fitting(place_reordered(&solved.plan, &self.limit, order, cutoff))? {
                    Ok(layout) => return Ok(Some(layout)),
                    Err(over) => (asked, lacks(&over)),
                };
            let mut any = PlaceAny::new(problem, &solved.others, &self.limit, self.options);
            let mut spare = None;
            let tie = any.tie(&mut spare, [self.within(time / 2); 2])?;
            if tie.is_some() {
                return Ok(tie);
            }
            if let Some(spare) = spare.filter(|spare| self.is_cheapest(self.cost(spare.plan()))) {
                self.spare = Some(spare);
            }
        }
        Ok(None)
    }

    /// The cheapest plan that a search knows within so many bytes. If there is none, the best one if there are few tasks or finding a
    /// first plan takes long, and else what that search began with: repaired for fewer bytes, the best plan of many tasks takes as long
    /// to improve as another one.
    fn cheapest_within(&self, best: &Solved, bytes: u64) -> Option<Sequence> {
        let problem = &self.budgeted.problem;
        let fits = |sequence: &Sequence| {
            let plan = plan_of(problem, sequence);
            plan.is_some_and(|plan| plan.peak(self.budgeted.device) <= bytes)
        };
        let mut known = best.others.ties.iter().chain(&best.others.dearer);
        let fitting = known.find(|sequence| fits(sequence));
        let goes_on = self.has_few_tasks() || !self.has_time_afresh();
        fitting.cloned().or_else(|| match goes_on {
            true => Some(sequence_of(&best.plan)),
            false => self.options.start.clone(),
        })
    }

    /// The layout of a plan, or of the cheapest other one that is found by the limit and costs less than the best one so far.
    pub(super) fn cheaper(
        &self,
        solved: &Solved,
        best: &CheckedLayout,
    ) -> Result<Option<CheckedLayout>> {
        let (limit, order) = (&self.limit, self.options.order);
        let cutoff = self.placing(self.by_size(BEST_SHARES));
        if let Ok(layout) = fitting(place_reordered(&solved.plan, limit, order, cutoff))? {
            return Ok(Some(layout));
        }
        let cutoff = self.within(self.until_limit());
        let mut any = PlaceAny::new(&self.budgeted.problem, &solved.others, limit, self.options);
        let mut spare = Some(best.clone());
        let tie = any.tie(&mut spare, [cutoff; 2])?;
        let cost = self.cost(best.plan());
        let found = tie.or(spare);
        Ok(found.filter(|layout| self.cost(layout.plan()) < cost))
    }
}

/// Apart from defects, a layout or what is missing.
pub(in crate::pipeline) fn fitting(
    placed: Result<CheckedLayout, PlaceError>,
) -> Result<Result<CheckedLayout, Vec<Overflow>>> {
    match placed {
        Ok(layout) => Ok(Ok(layout)),
        Err(PlaceError::OverCapacity(over)) => Ok(Err(over)),
        Err(error) => Err(error.into()),
    }
}

/// The layout of the plan that the search starts from, if that is a plan of this problem and its layout fits.
pub(in crate::pipeline) fn layout_of_start(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
) -> Result<Option<CheckedLayout>> {
    let start = match &options.start {
        Some(start) if options.method == Method::Search => start,
        _ => return Ok(None),
    };
    let Some(plan) = plan_of(problem, start).filter(|plan| plan.within(capacities).is_ok()) else {
        return Ok(None);
    };
    let cutoff = options.cutoff(
        Instant::now(),
        PLACE_TIME.max(options.time_limit / PLACE_PART),
    );
    let placed = match problem.sole_device() {
        Some(_) => place_reordered(&plan, capacities, options.order, cutoff),
        None => place_by(&plan, capacities, cutoff),
    };
    Ok(fitting(placed)?.ok())
}

#[cfg(test)]
mod tests {
    use scrimp_graph::networks::{self, NetworkOptions};
    use scrimp_graph::{Loss, Optimizer, Tiles};
    use scrimp_plan::Budget;
    use scrimp_run::{Compiled, Cpu, Processor};
    use scrimp_solve::sequence_of;

    use super::*;
    use crate::pipeline::{Budgeted, Recipe, budget, differentiate, estimate, lower};

    fn digits(batch: usize) -> Budgeted {
        let options = NetworkOptions {
            batch,
            ..NetworkOptions::default()
        };
        let graph = networks::build("digits", &options).expect("it is built in");
        let recipe = Recipe {
            loss: Loss::CrossEntropy,
            optimizer: Optimizer::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            tiles: Tiles::Off,
        };
        let training = differentiate(&graph, recipe).expect("it has gradients");
        let cpu = Cpu::new(1).expect("threads start");
        let compiled = Compiled::new(&training.graph, Processor::Cpu(&cpu));
        let lowered = lower(&training, &estimate(&compiled)).expect("it can be planned");
        budget(&lowered.problem, Budget::Percent(100.0)).expect("a budget")
    }

    #[test]
    fn only_a_start_whose_layout_fits_is_a_spare() {
        let budgeted = digits(4);
        let keeps_all = Options {
            start: Some(sequence_of(&budgeted.base)),
            ..Options::default()
        };
        let spare = |budgeted: &Budgeted, bytes, options: &Options| {
            layout_of_start(&budgeted.problem, &budgeted.within(bytes), options).expect("no fault")
        };
        let layout = spare(&budgeted, u64::MAX, &keeps_all).expect("there is room");
        let needed = layout.needed_bytes(budgeted.device);
        assert_eq!(layout.plan().recomputed(), 0);
        assert!(spare(&budgeted, needed, &keeps_all).is_some());
        assert!(spare(&budgeted, budgeted.base_peak() - 1, &keeps_all).is_none());
        assert!(spare(&digits(8), needed, &keeps_all).is_none());
        assert!(spare(&budgeted, u64::MAX, &Options::default()).is_none());
        let published = Options {
            method: Method::KeepAll,
            ..keeps_all
        };
        assert!(spare(&budgeted, u64::MAX, &published).is_none());
    }
}

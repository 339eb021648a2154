//! The search between the largest batch that fits without a plan and the proven bound.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use scrimp_plan::{Budget, CheckedPlan, check, simulate};
use scrimp_solve::{Options, PlaceError, SolveError, floor_bytes, place, solve};

use super::{AtBatch, Attempt, BatchProgress, LargestBatch, Limit, MOST_BATCH};
use crate::error::{Error, Result};
use crate::pipeline::{Budgeted, Fit, budget, find_plan, homes};

/// One batch size gets at most one part in this many of the time limit, so that several can be tried.
const SHARE: u32 = 8;
/// How many unsuccessful rounds with other seeds are tried at sizes just above the largest so far.
const ROUNDS: u64 = 2;

/// A batch size and everything that follows from the graph alone.
#[derive(Clone, Debug)]
struct Size {
    budgeted: Budgeted,
    budget_bytes: u64,
    floor: u64,
    cost_limit: f64,
}

pub(super) struct Hunt<'a> {
    make: &'a mut dyn FnMut(u64) -> Result<Option<AtBatch>>,
    fit: Fit,
    limit: Limit,
    options: &'a Options,
    watch: &'a mut dyn FnMut(BatchProgress),
    began: Instant,
    seen: BTreeMap<u64, Option<Size>>,
    best: Option<(u64, CheckedPlan)>,
    bound: u64,
    attempts: Vec<Attempt>,
}

enum Missed {
    /// A plan was found, but it costs too much.
    Slow,
    /// No plan was found within the budget; the leanest needs this much.
    Lean(Option<u64>),
    /// It is proven that there is no plan.
    Impossible,
}

impl<'a> Hunt<'a> {
    pub(super) fn new(
        make: &'a mut dyn FnMut(u64) -> Result<Option<AtBatch>>,
        fit: Fit,
        limit: Limit,
        options: &'a Options,
        watch: &'a mut dyn FnMut(BatchProgress),
    ) -> Hunt<'a> {
        Hunt {
            make,
            fit,
            limit,
            options,
            watch,
            began: Instant::now(),
            seen: BTreeMap::new(),
            best: None,
            bound: 0,
            attempts: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<LargestBatch> {
        self.bound = self.last(MOST_BATCH, |size| size.floor <= size.budget_bytes)?;
        if self.bound == 0 {
            let (needed, memory) = self
                .size(1)?
                .map_or((u64::MAX, 0), |size| (size.floor, size.budget_bytes));
            return Err(Error::NoBatch { memory, needed });
        }
        let keep_all = self.last(self.bound, |size| {
            size.budgeted.base_peak() <= size.budget_bytes
        })?;
        if keep_all > 0 {
            self.attempt(keep_all, self.options.seed, SHARE)?;
        }
        // One more sample mostly fits easily, so try it first: the answer is then seldom less, however short
        // the time.
        if keep_all < self.bound {
            self.attempt(keep_all + 1, self.options.seed, SHARE)?;
        }
        let mut next = Some(self.bound).filter(|&bound| bound > self.best());
        let mut above = self.bound + 1;
        // The first batch sizes bracket the answer. The rest of the time goes to the sizes just above it,
        // with other seeds.
        while let Some(batch) = next.filter(|_| self.may_go_on()) {
            let missed = self.attempt(batch, self.options.seed, SHARE)?;
            above = above.min(self.bound + 1);
            let lean = match missed {
                None => None,
                Some(missed) => {
                    above = above.min(batch);
                    self.where_it_fits(batch, &missed)?
                }
            };
            let best = self.best();
            next = match lean {
                // Even the leanest plan so far reaches no larger batch than the best.
                Some(lean) if lean <= best => None,
                Some(lean) if lean < above => Some(lean),
                _ => Some(best + above.saturating_sub(best) / 2).filter(|&middle| middle > best),
            };
        }
        self.go_on_above()?;
        self.cheapen()?;
        let (batch, plan) = match self.best.take() {
            Some(best) => best,
            None => {
                let size = self.size(1)?;
                let (needed, memory) =
                    size.map_or((0, 0), |s| (s.budgeted.base_peak(), s.budget_bytes));
                return Err(Error::NoBatch { memory, needed });
            }
        };
        let size = self.size(batch)?.expect("a batch that fits has a graph");
        let problem = plan.problem().clone();
        Ok(LargestBatch {
            batch,
            bound: self.bound.max(batch),
            keep_all,
            budgeted: Budgeted {
                fixed_bytes: problem.fixed_bytes(size.budgeted.device),
                problem,
                ..size.budgeted
            },
            plan,
            cost_limit: size.cost_limit,
            attempts: std::mem::take(&mut self.attempts),
            elapsed: self.began.elapsed(),
        })
    }

    /// Tries sizes just above the best, doubling the stride after each success, until other seeds gain
    /// nothing.
    fn go_on_above(&mut self) -> Result<()> {
        let mut fruitless = 0;
        while fruitless < ROUNDS {
            let seed = self.options.seed.wrapping_add(1 + fruitless);
            let mut stride = 1;
            loop {
                let batch = self.best().saturating_add(stride).min(self.bound);
                if batch <= self.best() || !self.may_go_on() {
                    return Ok(());
                }
                if self.attempt(batch, seed, SHARE / 2)?.is_some() {
                    if stride == 1 {
                        break;
                    }
                    stride = 1;
                } else {
                    fruitless = 0;
                    stride *= 2;
                }
            }
            fruitless += 1;
        }
        Ok(())
    }

    fn cheapen(&mut self) -> Result<()> {
        let Some((batch, plan)) = &self.best else {
            return Ok(());
        };
        let (batch, cost) = (*batch, simulate(plan).makespan());
        let size = self
            .size(batch)?
            .filter(|size| cost > size.budgeted.base.cost());
        let Some(size) = size.filter(|_| self.may_go_on()) else {
            return Ok(());
        };
        let left = self.options.time_limit.saturating_sub(self.began.elapsed());
        let options = Options {
            time_limit: (self.options.time_limit / 4).min(left),
            ..self.options.clone()
        };
        if let Ok((plan, _)) = self.plan(&size, &options)?
            && simulate(&plan).makespan() < cost
        {
            self.best = Some((batch, plan));
        }
        Ok(())
    }

    fn best(&self) -> u64 {
        self.best.as_ref().map_or(0, |(batch, _)| *batch)
    }

    fn may_go_on(&self) -> bool {
        let stop = self.options.stop.as_ref();
        let stopped = stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        !stopped && self.began.elapsed() < self.options.time_limit
    }

    /// The graph at a size; `None` if it is too large to be counted.
    fn size(&mut self, batch: u64) -> Result<Option<Size>> {
        if let Some(size) = self.seen.get(&batch) {
            return Ok(size.clone());
        }
        let size = match (self.make)(batch)? {
            None => None,
            Some(AtBatch {
                problem,
                budget_bytes,
                beside,
            }) => {
                let budgeted = Budgeted {
                    budget_bytes: Some(budget_bytes),
                    beside,
                    ..budget(&problem, Budget::Min)?
                };
                let leanest = match self.fit {
                    Fit::Layout => homes::leanest(&budgeted)?.problem,
                    Fit::LiveBytes => problem,
                };
                Some(Size {
                    floor: floor_bytes(&leanest)?,
                    cost_limit: self.limit.cost(&budgeted.problem).ok_or(Error::NoForward)?,
                    budgeted,
                    budget_bytes,
                })
            }
        };
        self.seen.insert(batch, size.clone());
        Ok(size)
    }

    /// The largest size up to `most` that passes, provided that all smaller ones do; 0 if none does.
    fn last(&mut self, most: u64, passes: impl Fn(&Size) -> bool) -> Result<u64> {
        let passes = |hunt: &mut Self, batch| -> Result<bool> {
            Ok(hunt.size(batch)?.is_some_and(|size| passes(&size)))
        };
        let (mut low, mut high) = (0, 1);
        while high <= most && passes(self, high)? {
            (low, high) = (high, high * 2);
        }
        high = high.min(most + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if passes(self, middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Estimates the largest size that the leanest plan of a failed attempt would fit, if all memory that grows
    /// with the batch is on one device.
    fn where_it_fits(&mut self, batch: u64, missed: &Missed) -> Result<Option<u64>> {
        let (Missed::Lean(Some(lean)), Some(size)) = (missed, self.size(batch)?) else {
            return Ok(None);
        };
        if size.budgeted.problem.devices().len() > 1 {
            return Ok(None);
        }
        let fixed = size.budgeted.fixed_bytes;
        let (room, needed) = (
            size.budget_bytes.saturating_sub(fixed),
            lean.saturating_sub(fixed),
        );
        let scaled = u128::from(batch) * u128::from(room) / u128::from(needed.max(1));
        Ok(Some((scaled as u64).min(batch - 1)))
    }

    /// Plans for one size. A plan that fits is kept, at the largest size that its steps fit.
    fn attempt(&mut self, batch: u64, seed: u64, share: u32) -> Result<Option<Missed>> {
        let Some(size) = self.size(batch)? else {
            return Ok(Some(Missed::Impossible));
        };
        let best = self.best.as_ref().map(|(batch, _)| *batch);
        (self.watch)(BatchProgress {
            trying: batch,
            best,
            bound: self.bound,
        });
        let started = Instant::now();
        let left = self.options.time_limit.saturating_sub(self.began.elapsed());
        let options = Options {
            enough: Some(size.cost_limit),
            time_limit: (self.options.time_limit / share).min(left),
            seed,
            ..self.options.clone()
        };
        let outcome = self.plan(&size, &options);
        let base = size.budgeted.base.cost();
        let mut attempt = Attempt {
            batch,
            fits: false,
            overhead_percent: None,
            impossible: false,
            seconds: started.elapsed().as_secs_f64(),
        };
        let missed = match outcome? {
            Ok((plan, bound)) => {
                let cost = simulate(&plan).makespan();
                attempt.overhead_percent = Some(crate::percent_over(cost, base));
                attempt.fits = cost <= size.cost_limit * (1.0 + 1e-9);
                attempt.impossible = bound > size.cost_limit * (1.0 + 1e-9);
                if attempt.fits {
                    self.keep(batch, plan)?;
                    None
                } else {
                    Some(Missed::Slow)
                }
            }
            Err(missed) => Some(missed),
        };
        attempt.impossible |= matches!(missed, Some(Missed::Impossible));
        if attempt.impossible {
            self.bound = self.bound.min(batch - 1);
        }
        self.attempts.push(attempt);
        Ok(missed)
    }

    /// A plan for one size, and a proven lower bound on its cost.
    fn plan(
        &self,
        size: &Size,
        options: &Options,
    ) -> Result<Result<(CheckedPlan, f64), Missed>, Error> {
        let made = match self.fit {
            Fit::Layout => {
                find_plan(&size.budgeted, Fit::Layout, options, &mut |_| {}).map(|planned| {
                    let bound = planned.provenance.as_ref().map_or(0.0, |s| s.lower_bound);
                    (planned.plan().clone(), bound)
                })
            }
            Fit::LiveBytes => {
                let capacities = size.budgeted.capacities();
                solve(&size.budgeted.problem, &capacities, options, &mut |_| {})
                    .map(|solved| (solved.plan, solved.lower_bound))
                    .map_err(Error::from)
            }
        };
        match made {
            Ok(made) => Ok(Ok(made)),
            Err(Error::Solve(SolveError::Infeasible {
                floor, least_found, ..
            })) => Ok(Err(if floor > size.budget_bytes {
                Missed::Impossible
            } else {
                Missed::Lean(Some(least_found))
            })),
            Err(Error::NoLayout { needed, .. }) => Ok(Err(Missed::Lean(Some(needed)))),
            Err(error) => Err(error),
        }
    }

    /// Keeps a plan that fits, at the largest size where its steps keep both limits.
    fn keep(&mut self, batch: u64, plan: CheckedPlan) -> Result<()> {
        if batch < self.best() {
            return Ok(());
        }
        let (mut low, mut kept) = (batch, plan);
        let mut high = self.bound + 1;
        let mut stride = 1;
        while high - low > 1 {
            // Start with small strides, since most plans fit hardly any larger size.
            let at = (low + stride).min(low + (high - low) / 2).max(low + 1);
            match self.carried(at, &kept)? {
                Some(plan) => {
                    (low, kept) = (at, plan);
                    stride *= 2;
                }
                None => {
                    high = at;
                    stride = 1;
                }
            }
        }
        self.best = Some((low, kept));
        Ok(())
    }

    /// A plan's steps at another size, if they keep both limits there.
    fn carried(&mut self, batch: u64, plan: &CheckedPlan) -> Result<Option<CheckedPlan>> {
        let Some(size) = self.size(batch)? else {
            return Ok(None);
        };
        let homes = size.budgeted.problem.homes_under(plan.plan());
        let there = homes::with_homes(&size.budgeted, &homes)?;
        let capacities = there.capacities();
        let Ok(plan) = check(&there.problem, plan.plan().clone()) else {
            return Ok(None);
        };
        if plan.within(&capacities).is_err()
            || simulate(&plan).makespan() > size.cost_limit * (1.0 + 1e-9)
        {
            return Ok(None);
        }
        match self.fit {
            Fit::LiveBytes => Ok(Some(plan)),
            Fit::Layout => match place(&plan, &capacities) {
                Ok(_) => Ok(Some(plan)),
                Err(PlaceError::OverCapacity(_)) => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }
}

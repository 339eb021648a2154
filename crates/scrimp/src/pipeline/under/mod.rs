//! A plan for one device under a budget in bytes, which the layout must fit.

mod again;
mod layouts;

use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, CheckedLayout, CheckedPlan};
use scrimp_solve::{
    Cutoff, Method, Options, Order, Progress, SolveError, Solved, sequence_of, solve,
};

use crate::error::Result;
use crate::history::History;
use crate::pipeline::one::{Fit, Missed, counts_energy, most_missed, tighten, with_layout};
use crate::pipeline::{Budgeted, Planned, Provenance, homes};

pub(super) use layouts::{fitting, layout_of_start};

/// The share of the time limit by which the first attempt ends, in problems of few tasks and of more, if the limit is at least
/// this long. A shorter one may not suffice for a first plan. With more tasks the best plan packs less often.
const FIRST_PARTS: [f64; 2] = [0.75, 0.6];
/// The same share if no plan can fit: then only the leanest one is placed, which takes long with more tasks than this.
const IMPOSSIBLE_PART: f64 = 0.8;
const PACKED_SOON: usize = 1000;
const FIRST_LIMIT: Duration = Duration::from_secs(2);
/// Problems of few tasks have up to so many.
const FEW: usize = 300;
/// A placement may take at least this time and this part of the limit, and so may a further attempt.
const PLACE_TIME: Duration = Duration::from_millis(500);
const PLACE_PART: u32 = 10;
const AGAIN_TIME: Duration = Duration::from_millis(150);
const AGAIN_PART: u32 = 20;
/// A further search is made only if this share of the limit is left.
const AGAIN_LEAST: f64 = 0.1;
/// If the leanest plan takes at most so many times the budget, it is placed in this share of the time left, and then squeezed further.
const NEAR_BUDGET: f64 = 1.25;
const NEAR_SHARE: f64 = 0.2;
/// A plan that adds this share of the cost of running every task once is as good as the best.
const NEAR: f64 = 1e-4;

/// The most times that the planner is asked, and for how long after the limit while no layout fits: a budget that can be met
/// should not be refused.
const ATTEMPTS: u64 = 12;
const GRACE: Duration = Duration::from_secs(1);
/// The first tightening removes, besides the missing bytes, one part in this many of what planning can
/// change. Each further tightening removes twice as much as the one before. Another plan has other holes, so
/// without a margin it may miss the budget by as much again.
const MARGIN: u64 = 256;

/// The plan under a budget in bytes. If the plan's live bytes fit the budget but its layout doesn't, one with more recomputation
/// becomes the spare if it packs, other plans that cost the same are placed, and then one that uses a little less. If none of them
/// fits and the order is free, the planner is asked for a plan in the given order, whose lifetimes are nested more neatly. Then it is
/// asked for a plan that uses less by the missing bytes and a margin or, if there is none, for another plan.
/// A layout that fits may be known.
pub(super) fn find(
    known: Option<CheckedLayout>,
    budgeted: &Budgeted,
    budget: u64,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let spare = match fit {
        Fit::Layout if known.is_none() => {
            layout_of_start(&budgeted.problem, &budgeted.within(budget), options)?
        }
        _ => known,
    };
    let asked = budgeted.within(budget);
    let under = Under {
        budgeted,
        budget,
        fit,
        options,
        began: Instant::now(),
        asked,
        // Published budgets are for live bytes. With the least budget, the layout gets what it needs.
        limit: match fit {
            Fit::Layout => budgeted.capacities(),
            Fit::LiveBytes => Capacities::unlimited(),
        },
        spare,
        missed: Missed::NONE,
        provenance: Provenance {
            alpha: options.alpha,
            history: History::new(budgeted.base.objective(options.alpha)),
            ..Provenance::default()
        },
    };
    under.plan(watch)
}

/// The search for a plan whose layout fits.
struct Under<'a> {
    budgeted: &'a Budgeted,
    budget: u64,
    fit: Fit,
    options: &'a Options,
    began: Instant,
    /// What live bytes must fit.
    asked: Capacities,
    /// What layouts must fit.
    limit: Capacities,
    /// A layout that fits, at whatever cost.
    spare: Option<CheckedLayout>,
    /// By how much the best layout misses the budget.
    missed: Missed,
    provenance: Provenance,
}

impl<'a> Under<'a> {
    fn plan(mut self, watch: &mut dyn FnMut(Progress)) -> Result<Planned> {
        let (budgeted, whole) = (self.budgeted, self.options);
        let changeable = budgeted.base_peak().saturating_sub(budgeted.fixed_bytes);
        let mut margin = changeable / MARGIN;
        let mut tightened = self.asked.clone();
        // An attempt's deadline is not that of its placement.
        let mut options = whole.clone();
        if self.fit == Fit::Layout && whole.time_limit >= FIRST_LIMIT && whole.enough.is_none() {
            // A plan made in the last moment is poor, so what follows has time of its own.
            let tasks = budgeted.problem.tasks().len();
            let part = match tasks <= PACKED_SOON && homes::share_needed(budgeted)? > 1.0 {
                true => IMPOSSIBLE_PART,
                false => self.by_size(FIRST_PARTS),
            };
            let first = whole.time_limit.mul_f64(part);
            options.deadline = earlier(whole.deadline, self.began.checked_add(first));
            options.time_limit = first;
        }
        let mut known = whole.start.clone();
        // While no plan is known: why not.
        let mut refused = None;
        for attempt in 1..=ATTEMPTS {
            let solved = match self.solve(&tightened, &options, attempt == 1, watch) {
                Ok(solved) => solved,
                Err(refusal) if attempt == 1 && self.fit == Fit::LiveBytes => {
                    return Err(refusal.into());
                }
                // From the second attempt on the budget was tightened too far: the bytes that are missing are the layout's, not
                // the plan's.
                Err(refusal @ (SolveError::Infeasible { .. } | SolveError::Short(_))) => {
                    if self.spare.is_none() {
                        let goes_on = attempt == 1 && self.is_near(&refusal);
                        let share = if goes_on { NEAR_SHARE } else { 1.0 };
                        let (refusal, leanest) =
                            with_layout(refusal, budgeted, &options, self.placing(share));
                        if let Some(layout) = leanest {
                            known = Some(sequence_of(layout.plan()));
                            self.keep_leanest(layout);
                        }
                        if attempt == 1 || refused.is_some() {
                            let refusal = leaner(refused.take(), refusal);
                            if self.spare.is_none() && !goes_on {
                                return Err(refusal.into());
                            }
                            refused = Some(refusal);
                        }
                    }
                    if self.is_over() {
                        break;
                    }
                    options.order = whole.order;
                    options.start.clone_from(&known);
                    options.seed = options.seed.wrapping_add(1);
                    options.deadline = self.next_deadline();
                    (tightened, margin) = (self.halfway(&tightened), changeable / MARGIN);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            refused = None;
            let thorough = attempt == 1 && self.is_thorough();
            let found = match self.placed(&solved, options.order)? {
                Ok(layout) => Ok(layout),
                Err(over) => {
                    self.missed = self.missed.min(most_missed(&over, &self.asked));
                    let other = self.other(&solved, &over, &options, thorough)?;
                    other.ok_or(over)
                }
            };
            match found {
                Ok(layout) if self.is_cheapest(self.cost(layout.plan())) => {
                    let layout = match thorough {
                        true => self.again(layout, watch)?,
                        false => layout,
                    };
                    return Ok(self.ended(layout));
                }
                Ok(_) => break,
                Err(_) if self.is_over() => break,
                Err(over) => {
                    // A search that ends at its first plan knows no others to place.
                    options.enough = None;
                    options.time_limit = whole.time_limit / 4;
                    options.deadline = self.next_deadline();
                    known = Some(sequence_of(&solved.plan));
                    if attempt == 1 && whole.order == Order::Free && self.has_time_afresh() {
                        options.order = Order::Fixed;
                        continue;
                    }
                    options.order = whole.order;
                    options.start.clone_from(&known);
                    tightened = tighten(tightened, &over, margin);
                    margin = margin.saturating_mul(2);
                }
            }
        }
        match (self.spare.take(), refused) {
            (Some(layout), _) => Ok(self.ended(layout)),
            (None, Some(refusal)) => Err(refusal.into()),
            (None, None) => Err(self.missed.error(&self.budgeted.problem)),
        }
    }

    /// Whether a plan within the budget may exist, the leanest plan isn't far from it, and there is time to look further.
    fn is_near(&self, refusal: &SolveError) -> bool {
        match *refusal {
            SolveError::Infeasible {
                budget,
                least_found,
                floor,
                ..
            } => {
                floor <= budget
                    && least_found as f64 <= NEAR_BUDGET * budget as f64
                    && self.until_limit() > self.options.time_limit.mul_f64(AGAIN_LEAST)
            }
            _ => false,
        }
    }

    /// Asks the planner within these capacities.
    fn solve(
        &mut self,
        capacities: &Capacities,
        options: &Options,
        first: bool,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<Solved, SolveError> {
        // With energy, the search is called for several prices of a joule.
        let told = first && !counts_energy(self.budgeted, options);
        let history = &mut self.provenance.history;
        let mut watch = |news| {
            if told {
                history.add(news);
            }
            watch(news);
        };
        let solved = solve(&self.budgeted.problem, capacities, options, &mut watch)?;
        if first {
            self.provenance.history.end(&solved);
        }
        let before = std::mem::take(&mut self.provenance);
        self.provenance = before.followed_by(&solved, self.options.order);
        Ok(solved)
    }

    fn has_few_tasks(&self) -> bool {
        self.budgeted.problem.tasks().len() <= FEW
    }

    /// What holds for few tasks, or for more.
    fn by_size(&self, [few, more]: [f64; 2]) -> f64 {
        if self.has_few_tasks() { few } else { more }
    }

    /// Whether what is left of the limit is twice the time that a first plan took.
    fn has_time_afresh(&self) -> bool {
        let moments = self.provenance.history.moments();
        let first = moments
            .iter()
            .find(|moment| moment.overhead_percent.is_some());
        let left = self.until_limit().as_secs_f64();
        first.is_none_or(|first| 2.0 * first.seconds <= left)
    }

    /// What a plan may cost more than another one and be as good.
    fn near(&self) -> f64 {
        NEAR * self.budgeted.base.objective(self.options.alpha)
    }

    /// What a plan costs.
    fn cost(&self, plan: &CheckedPlan) -> f64 {
        plan.objective(self.options.alpha)
    }

    /// Keeps the smallest layout so far: as the spare if it fits, and else for what the refusal says.
    fn keep_leanest(&mut self, layout: CheckedLayout) {
        let needed = layout.needed_bytes(self.budgeted.device);
        match needed.checked_sub(self.budget) {
            None | Some(0) => self.spare = Some(layout),
            Some(excess) => {
                self.missed = self
                    .missed
                    .min(Missed::by(excess, self.budget, self.budgeted.device))
            }
        }
    }

    /// Whether no layout that fits is known to cost less.
    fn is_cheapest(&self, cost: f64) -> bool {
        let spare = self.spare.as_ref();
        spare.is_none_or(|spare| cost <= self.cost(spare.plan()))
    }

    /// Whether no plan costs less.
    fn is_least(&self, cost: f64) -> bool {
        cost <= self.provenance.lower_bound * (1.0 + 1e-9)
    }

    /// Whether there is time for more than the first plan, and a search in one memory, which can use it.
    fn is_thorough(&self) -> bool {
        self.options.method == Method::Search
            && self.options.time_limit >= FIRST_LIMIT
            && self.options.enough.is_none()
            && self.budgeted.problem.devices().len() == 1
            && !counts_energy(self.budgeted, self.options)
    }

    /// The time until the limit's end, and at least this part of it, but a part of no more than [`GRACE`].
    fn left(&self, part: u32) -> Duration {
        let part = self.options.time_limit / part;
        self.until_limit().max(part.min(GRACE))
    }

    /// The time until the limit's end.
    fn until_limit(&self) -> Duration {
        self.options.time_limit.saturating_sub(self.began.elapsed())
    }

    /// When a further attempt ends.
    fn next_deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.left(AGAIN_PART).max(AGAIN_TIME))
    }

    /// Capacities halfway from these back to what was asked.
    fn halfway(&self, tightened: &Capacities) -> Capacities {
        let device = self.budgeted.device;
        let bytes = tightened
            .bytes(device)
            .map(|bytes| bytes.midpoint(self.budget));
        self.asked.clone().with_bytes(device, bytes)
    }

    /// Whether there is no time for another attempt.
    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.options.time_limit.saturating_add(self.grace())
    }

    /// How long the search may go on after the limit. A caller with a deadline of its own looks elsewhere after it.
    fn grace(&self) -> Duration {
        match self.spare {
            None if self.options.deadline.is_none() => GRACE,
            _ => Duration::ZERO,
        }
    }

    /// The end of a placement that may take this share of the time left.
    fn placing(&self, share: f64) -> Cutoff<'a> {
        self.within(self.left(PLACE_PART).max(PLACE_TIME).mul_f64(share))
    }

    /// The end of something that begins now.
    fn within(&self, time: Duration) -> Cutoff<'a> {
        self.options.cutoff(Instant::now(), time)
    }

    /// The plan with this layout.
    fn ended(self, layout: CheckedLayout) -> Planned {
        let optimal = self.is_least(self.cost(layout.plan()));
        let provenance = Provenance {
            optimal,
            ..self.provenance
        };
        self.budgeted
            .planned(layout, self.fit, self.budget, Some(provenance))
    }
}

/// The refusal that names fewer bytes.
fn leaner(one: Option<SolveError>, other: SolveError) -> SolveError {
    let named = |refusal: &SolveError| match *refusal {
        SolveError::Infeasible { least_found, .. } => least_found,
        _ => u64::MAX,
    };
    match one {
        Some(one) if named(&one) <= named(&other) => one,
        _ => other,
    }
}

/// The earlier of two moments, of which each may be never.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

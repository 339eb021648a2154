//! Plans that count energy: they minimize seconds plus α times joules, under a cap on the joules of a device.
//!
//! On one device each run takes the same seconds and joules, whenever it runs. So a plan for a given price of
//! a joule is a plan by time alone of a problem whose tasks take seconds + price · joules, and any method can
//! make it. Copies take seconds + price · joules likewise: that stretches a plan's makespan by no more than
//! the price of all its joules, so a bound at a price holds for seconds plus joules. A plan that copies beside
//! compute hides the price of its copies, so a plan without other memories is made too, and the one that
//! costs less counts. To meet a cap, the price is raised (Lagrange). A lower bound on the cost of all plans at a price
//! λ above α also bounds the plans within the cap, because their cost at that price exceeds their own by at
//! most (λ − α) · cap.

use std::time::{Duration, Instant};

use scrimp_plan::{DeviceId, Problem, ValueId, check};

use crate::error::SolveError;
use crate::options::Solved;

/// How often the price is multiplied at most until the cap is met, and how often the last interval is then
/// halved.
const RAISES: usize = 6;
const HALVINGS: usize = 3;
/// The first price is this factor below the seconds per joule of running every task once.
const FIRST: f64 = 16.0;
const FACTOR: f64 = 8.0;

/// The caller's request.
pub(crate) struct Asked<'a> {
    pub problem: &'a Problem,
    pub device: DeviceId,
    /// The price of a joule in seconds.
    pub alpha: f64,
    /// The most joules that a plan may take.
    pub cap: Option<f64>,
    /// The time limit of each plan; raising the price takes as long again.
    pub time_limit: Duration,
    pub stopped: &'a dyn Fn() -> bool,
}

/// A planner that counts seconds only, called with a time limit.
pub(crate) type ByTime<'a> = dyn FnMut(&Problem, Duration) -> Result<Solved, SolveError> + 'a;

/// Finds the cheapest plan within the cap.
pub(crate) fn plan(asked: &Asked<'_>, by_time: &mut ByTime<'_>) -> Result<Solved, SolveError> {
    let start = Instant::now();
    let modes = asked.problem.tasks().values();
    let modes = modes.filter_map(|task| task.mode(asked.device));
    let (seconds, joules) = modes.fold((0.0, 0.0), |(seconds, joules), mode| {
        (seconds + mode.seconds, joules + mode.joules)
    });
    let mut prices = Prices {
        asked,
        by_time,
        bound: 0.0,
        best: None,
        least: f64::INFINITY,
    };
    // Every plan runs every task, so no plan takes fewer joules than running each once.
    let cap = asked.cap.unwrap_or(f64::INFINITY);
    if joules <= cap {
        let met = prices.at(asked.alpha, asked.time_limit)?;
        if !met {
            let unit = if joules > 0.0 { seconds / joules } else { 0.0 };
            prices.raise(if unit > 0.0 { unit / FIRST } else { 1.0 })?;
        }
    }
    let Prices {
        bound, best, least, ..
    } = prices;
    let best = best.ok_or(SolveError::EnergyCap {
        cap,
        least_found: least.is_finite().then_some(least),
        floor: joules,
    })?;
    Ok(Solved {
        optimal: best.cost <= bound * (1.0 + 1e-9),
        lower_bound: bound.min(best.cost),
        elapsed: start.elapsed(),
        ..best
    })
}

/// The search for a price of a joule.
struct Prices<'a, 'b> {
    asked: &'a Asked<'a>,
    by_time: &'a mut ByTime<'b>,
    /// No plan within the cap costs less than this.
    bound: f64,
    /// The cheapest plan within the cap so far.
    best: Option<Solved>,
    /// Joules of the plan with the fewest so far.
    least: f64,
}

impl Prices<'_, '_> {
    /// Plans at a price; returns whether the plan is within the cap.
    fn at(&mut self, price: f64, time_limit: Duration) -> Result<bool, SolveError> {
        let priced = priced(self.asked.problem, price)?;
        if price == 0.0 || priced.links().is_empty() {
            let solved = (self.by_time)(&priced, time_limit)?;
            return self.offer(solved, price);
        }
        let swapped = (self.by_time)(&priced, time_limit / 2);
        let met = match (self.by_time)(&without_links(&priced)?, time_limit / 2) {
            // Plans that may copy can cost less than the bound of those that may not.
            Ok(alone) => self.offer(
                Solved {
                    lower_bound: 0.0,
                    ..alone
                },
                price,
            )?,
            Err(_) => false,
        };
        match swapped {
            Ok(swapped) => Ok(self.offer(swapped, price)? || met),
            Err(error) if self.best.is_none() => Err(error),
            Err(_) => Ok(met),
        }
    }

    /// Takes a plan that was made at a price; returns whether it is within the cap.
    fn offer(&mut self, solved: Solved, price: f64) -> Result<bool, SolveError> {
        let Asked { problem, alpha, .. } = *self.asked;
        // The plan has the same steps, but with their real seconds.
        let plan = check(problem, solved.plan.plan().clone()).map_err(|wrong| {
            let what = wrong.iter().take(3).map(ToString::to_string);
            SolveError::Defect {
                method: solved.method.name(),
                what: what.collect::<Vec<_>>().join("; "),
            }
        })?;
        let joules = plan.joules(self.asked.device);
        let cap = self.asked.cap.unwrap_or(f64::INFINITY);
        let saved = if price > alpha {
            (price - alpha) * cap
        } else {
            0.0
        };
        self.bound = self.bound.max(solved.lower_bound - saved);
        self.least = self.least.min(joules);
        let cost = plan.objective(alpha);
        let met = joules <= cap;
        if met && self.best.as_ref().is_none_or(|best| cost < best.cost) {
            self.best = Some(Solved {
                plan,
                cost,
                ..solved
            });
        }
        Ok(met)
    }

    /// Multiplies the increase over α until the cap is met, then looks for the smallest increase that meets
    /// it.
    fn raise(&mut self, first: f64) -> Result<(), SolveError> {
        let alpha = self.asked.alpha;
        let share = self.asked.time_limit / (RAISES + HALVINGS) as u32;
        let (mut low, mut high) = (0.0, first);
        for _ in 0..RAISES {
            if (self.asked.stopped)() || self.at(alpha + high, share)? {
                break;
            }
            (low, high) = (high, high * FACTOR);
        }
        for _ in 0..HALVINGS {
            if self.best.is_none() || (self.asked.stopped)() {
                break;
            }
            let middle = (low + high) / 2.0;
            if self.at(alpha + middle, share)? {
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(())
    }
}

/// The same problem with tasks that take seconds + price · joules.
fn priced(problem: &Problem, price: f64) -> Result<Problem, SolveError> {
    if price == 0.0 {
        return Ok(problem.clone());
    }
    let mut parts = problem.parts();
    for mode in parts.tasks.values_mut().flat_map(|task| &mut task.modes) {
        mode.seconds += price * mode.joules;
    }
    for link in parts.links.values_mut() {
        let bytes = |value: ValueId| problem.value(value).bytes as f64;
        for (&value, seconds) in &mut link.seconds {
            *seconds += price * (link.joules + bytes(value) * link.joules_per_byte);
        }
        link.latency += price * link.joules;
        link.bandwidth = 1.0 / (1.0 / link.bandwidth + price * link.joules_per_byte);
    }
    Problem::new(parts)
        .map_err(|error| SolveError::Unsupported(format!("at {price} seconds per joule, {error}")))
}

/// The same problem without links, so that nothing can wait in another memory.
fn without_links(problem: &Problem) -> Result<Problem, SolveError> {
    let mut parts = problem.parts();
    parts.links.clear();
    Problem::new(parts).map_err(|error| SolveError::Unsupported(error.to_string()))
}

#[cfg(test)]
mod tests;

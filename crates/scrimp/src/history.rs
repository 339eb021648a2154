//! How a search went: what it had found and proven by when, and what more time would likely bring.

use std::time::Duration;

use scrimp_plan::format_seconds;
use scrimp_solve::{Progress, Solved};
use serde::Serialize;

use crate::summary::percent_over;

/// From this gap on, in points, an answer says what more time would likely bring.
const LARGE_GAP: f64 = 1.0;

/// Points that are nothing: the seconds of a plan may be summed in another order.
const NOTHING: f64 = 1e-6;

/// What a search knew at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Since its start.
    pub seconds: f64,
    /// By how much the objective of the best plan exceeds that of running every task once, in percent;
    /// `None` before the first plan.
    pub overhead_percent: Option<f64>,
    /// The same of the proven bound.
    pub lower_bound_percent: f64,
}

/// The moments at which a search knew more than before, and its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct History {
    moments: Vec<Moment>,
    /// The objective of running every task once.
    #[serde(skip)]
    base: f64,
}

impl History {
    /// No moments yet.
    pub fn new(base: f64) -> History {
        History {
            moments: Vec::new(),
            base,
        }
    }

    /// Adds news that say more than those before.
    pub fn add(&mut self, news: Progress) {
        let now = self.moment(news.elapsed, news.cost, news.lower_bound);
        let same = |last: &Moment| {
            Moment {
                seconds: now.seconds,
                ..*last
            } == now
        };
        if !self.moments.last().is_some_and(same) {
            self.moments.push(now);
        }
    }

    /// Adds the search's end.
    pub fn end(&mut self, solved: &Solved) {
        let mut end = self.moment(solved.elapsed, Some(solved.cost), solved.lower_bound);
        if let Some(last) = self.moments.last() {
            end.seconds = end.seconds.max(last.seconds);
        }
        self.moments.push(end);
    }

    fn moment(&self, elapsed: Duration, cost: Option<f64>, lower_bound: f64) -> Moment {
        Moment {
            seconds: elapsed.as_secs_f64(),
            overhead_percent: cost.map(|cost| percent_over(cost, self.base)),
            lower_bound_percent: percent_over(lower_bound, self.base),
        }
    }

    /// In their order.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// The points that twice the time would likely take off at most, because a search slows down: those that the
    /// second half of the time took off, or four times those of the last quarter if that is less. `None` if the
    /// search didn't tell, or had no plan in the first half.
    pub fn expected_gain(&self) -> Option<f64> {
        let end = self.moments.last()?;
        let last = end.overhead_percent?;
        let since = |share: f64| {
            let mut before = self.moments.iter().rev();
            let then = before.find(|m| m.seconds <= end.seconds * share)?;
            Some(then.overhead_percent? - last)
        };
        let gain = since(0.5)?.min(4.0 * since(0.75)?);
        let gain = gain.min(last - end.lower_bound_percent);
        Some(if gain > NOTHING { gain } else { 0.0 })
    }

    /// A sentence about what more time would likely bring, if the gap is large.
    pub fn outlook(&self) -> Option<String> {
        let end = self.moments.last()?;
        let last = end.overhead_percent?;
        if last - end.lower_bound_percent < LARGE_GAP || self.moments.len() < 2 {
            return None;
        }
        let better = self
            .moments
            .iter()
            .find(|m| m.overhead_percent.is_some_and(|p| p <= last + NOTHING));
        let came = format!(
            "The last better plan came after {} of {}",
            format_seconds(better?.seconds),
            format_seconds(end.seconds)
        );
        Some(match self.expected_gain() {
            Some(gain) if gain >= 0.005 => format!(
                "{came}: by the pace of its second half, twice the time would likely take off no more than {gain:.2} \
                 points."
            ),
            Some(_) => {
                format!("{came}: twice the time would likely bring little, but another seed may.")
            }
            None => format!(
                "{came}, and there was none in the first half: more time would likely bring better ones."
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(found: &[(u64, Option<f64>)], bound: f64) -> History {
        let mut history = History::new(100.0);
        for &(millis, cost) in found {
            history.add(Progress {
                elapsed: Duration::from_millis(millis),
                cost,
                lower_bound: bound,
            });
        }
        history
    }

    #[test]
    fn what_more_time_would_bring() {
        let falling = history(
            &[
                (10, None),
                (100, Some(130.0)),
                (3000, Some(120.0)),
                (5000, Some(118.0)),
            ],
            105.0,
        );
        assert_eq!(falling.expected_gain().map(f64::round), Some(8.0));
        let text = falling.outlook().unwrap();
        assert!(
            text.contains("after 5.00 s of 5.00 s") && text.contains("8.00 points"),
            "{text}"
        );

        let settled = history(
            &[
                (100, Some(130.0)),
                (1000, Some(120.0)),
                (5000, Some(120.0)),
                (6000, None),
            ],
            105.0,
        );
        // The same news later aren't a moment.
        assert_eq!(settled.moments().len(), 3);
        let mut settled = history(&[(100, Some(130.0)), (1000, Some(120.0))], 105.0);
        settled.moments.push(Moment {
            overhead_percent: Some(20.0 - 1e-12),
            seconds: 5.0,
            ..settled.moments[1]
        });
        assert_eq!(settled.expected_gain(), Some(0.0));
        assert!(
            settled
                .outlook()
                .unwrap()
                .contains("after 1.00 s of 5.00 s: twice the time would likely bring little")
        );

        let late = history(
            &[(10, None), (4000, Some(130.0)), (5000, Some(120.0))],
            105.0,
        );
        assert_eq!(late.expected_gain(), None);
        assert!(late.outlook().unwrap().contains("none in the first half"));

        // No more than the gap can come, and a small gap needs no words.
        let met = history(&[(10, Some(130.0)), (5000, Some(105.5))], 105.0);
        assert!((met.expected_gain().unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(met.outlook(), None);
        assert_eq!(history(&[], 105.0).outlook(), None);
    }
}

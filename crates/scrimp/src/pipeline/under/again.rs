//! Further searches with the work that is left.

use scrimp_plan::CheckedLayout;
use scrimp_solve::{Options, Progress, SolveError, Solved, sequence_of, solve};

use crate::error::Result;
use crate::pipeline::under::{AGAIN_LEAST, Under, earlier};

/// If there is a layout, the search runs at most so many times more, each with this share of all work, until this share
/// of the limit. It goes on from the best plan. In problems of few tasks every other search, the first one among them, starts from
/// nothing if a first plan was found in half of the time that is left, because where it ends depends most on where it began.
const AGAIN_TIMES: u64 = 3;
const AGAIN_WORK: f64 = 0.25;
const AGAIN_END: f64 = 0.95;

impl Under<'_> {
    /// Searches with the work that is left, and returns the cheapest layout that is known then.
    pub(super) fn again(
        &mut self,
        mut best: CheckedLayout,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<CheckedLayout> {
        let least = self.options.time_limit.mul_f64(1.0 - AGAIN_LEAST);
        for time in 1..=AGAIN_TIMES {
            let over = self.began.elapsed() > least || self.options.stopped();
            let gap = self.cost(best.plan()) - self.provenance.lower_bound;
            if over || gap <= self.near() {
                break;
            }
            if let Some(better) = self.once_more(&best, time, watch)? {
                best = better;
            }
        }
        Ok(best)
    }

    /// The layout of a plan that is cheaper than the best one, by this search after the first.
    fn once_more(
        &mut self,
        best: &CheckedLayout,
        time: u64,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<Option<CheckedLayout>> {
        let (budgeted, whole) = (self.budgeted, self.options);
        let cost = self.cost(best.plan());
        let end = self.began.checked_add(whole.time_limit.mul_f64(AGAIN_END));
        let goes_on = !self.has_few_tasks() || time.is_multiple_of(2) || !self.has_time_afresh();
        let options = Options {
            seed: whole.seed.wrapping_add(time),
            time_limit: whole.time_limit.mul_f64(AGAIN_WORK),
            deadline: earlier(whole.deadline, end),
            start: goes_on.then(|| sequence_of(best.plan())),
            ..whole.clone()
        };
        let (before, bound) = (self.began.elapsed(), self.provenance.lower_bound);
        let history = &mut self.provenance.history;
        let mut watch = |news: Progress| {
            let news = Progress {
                elapsed: before + news.elapsed,
                cost: Some(news.cost.map_or(cost, |found| found.min(cost))),
                lower_bound: news.lower_bound.max(bound),
            };
            history.add(news);
            watch(news);
        };
        let solved = match solve(&budgeted.problem, &self.asked, &options, &mut watch) {
            Ok(solved) => solved,
            Err(SolveError::Infeasible { .. } | SolveError::Short(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let layout = match solved.cost < cost {
            true => self.cheaper(&solved, best)?,
            false => None,
        };
        self.provenance.lower_bound = bound.max(solved.lower_bound);
        self.provenance.elapsed += solved.elapsed;
        self.provenance.history.end(&Solved {
            cost: layout
                .as_ref()
                .map_or(cost, |layout| self.cost(layout.plan())),
            lower_bound: self.provenance.lower_bound,
            elapsed: before + solved.elapsed,
            ..solved
        });
        Ok(layout)
    }
}

//! The curve of time over energy: plans at several prices of a joule.
//!
//! The first two plans are the fastest and one that hardly minds time. Between two neighbours a price at which both
//! cost the same is tried: a plan that costs less there lies below the line through them (Aneja and Nair, Bicriteria
//! transportation problem, Management Science 25, 1979). A bound B on seconds + price · joules of all plans also says
//! that a plan of J joules takes at least B − price · J seconds.

use scrimp_plan::{Capacities, CheckedPlan, Problem};

use crate::error::SolveError;
use crate::options::{Options, Progress, Solved};
use crate::solve::solve;

/// The price of the plan that hardly minds time, in seconds per joule of the fastest plan.
const FRUGAL: f64 = 1e3;

/// Plans of which none is both slower and less frugal than another.
#[derive(Clone, Debug, Default)]
pub struct Frontier {
    /// By ascending joules, so by descending seconds.
    pub plans: Vec<Solved>,
    /// Proven: a price of a joule, and what no plan's seconds + price · joules is below.
    pub bounds: Vec<(f64, f64)>,
}

impl Frontier {
    /// Proven: plans of at most this energy take at least these seconds.
    #[must_use]
    pub fn least_seconds(&self, joules: f64) -> f64 {
        let bounds = self
            .bounds
            .iter()
            .map(|(price, bound)| bound - price * joules);
        bounds.fold(0.0, f64::max)
    }

    /// Takes a plan, unless another one is as fast and as frugal.
    fn take(&mut self, solved: Solved, options: &Options) {
        let point = |solved: &Solved| point(&solved.plan, options);
        let new = point(&solved);
        let beats = |a: (f64, f64), b: (f64, f64)| {
            let about = |x: f64, y: f64| x <= y * (1.0 + 1e-9);
            about(a.0, b.0) && about(a.1, b.1)
        };
        if self.plans.iter().any(|plan| beats(point(plan), new)) {
            return;
        }
        self.plans.retain(|plan| !beats(new, point(plan)));
        self.plans.push(solved);
        self.plans.sort_by(|a, b| point(a).1.total_cmp(&point(b).1));
    }
}

/// A plan's seconds, as the options count them, and its joules.
fn point(plan: &CheckedPlan, options: &Options) -> (f64, f64) {
    (options.objective.cost(plan, 0.0), plan.total_joules())
}

/// Plans within the capacities, from the most frugal to the fastest. At most `most` prices are tried, each for the
/// options' time limit. `progress` is called with the number of the price and its news.
///
/// # Errors
/// The errors of [`solve`] for the first price.
pub fn solve_frontier(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
    most: usize,
    progress: &mut dyn FnMut(usize, Progress),
) -> Result<Frontier, SolveError> {
    let mut frontier = Frontier::default();
    let mut tried = 0;
    let mut at = |price: f64, frontier: &mut Frontier| -> Result<(), SolveError> {
        tried += 1;
        let options = Options {
            alpha: price,
            ..options.clone()
        };
        let solved = solve(problem, capacities, &options, &mut |news| {
            progress(tried, news)
        })?;
        frontier.bounds.push((price, solved.lower_bound));
        frontier.take(solved, &options);
        Ok(())
    };
    at(0.0, &mut frontier)?;
    let (time, energy) = point(&frontier.plans[0].plan, options);
    if energy <= 0.0 || most < 2 {
        return Ok(frontier);
    }
    at(FRUGAL * time / energy, &mut frontier)?;
    // Neighbours between which a price was tried.
    let mut closed: Vec<(f64, f64)> = Vec::new();
    for _ in 2..most {
        let plans = frontier.plans.iter();
        let points: Vec<(f64, f64)> = plans.map(|solved| point(&solved.plan, options)).collect();
        let (time, energy) = (points[0].0, points[points.len() - 1].1);
        let gap = |pair: &&[(f64, f64)]| {
            (pair[0].0 - pair[1].0) / time + (pair[1].1 - pair[0].1) / energy
        };
        let open = |pair: &&[(f64, f64)]| !closed.contains(&(pair[0].1, pair[1].1));
        let widest = points.windows(2).filter(open);
        let widest = widest.max_by(|a, b| gap(a).total_cmp(&gap(b)));
        let Some(pair) = widest.filter(|_| !options.stopped()) else {
            break;
        };
        closed.push((pair[0].1, pair[1].1));
        at(
            (pair[0].0 - pair[1].0) / (pair[1].1 - pair[0].1),
            &mut frontier,
        )?;
    }
    Ok(frontier)
}

//! [`solve_sweep`]: one problem under many budgets, such that a larger budget never gives a slower
//! plan.

use std::time::Duration;

use scrimp_plan::{Capacities, DeviceId, Problem};

use crate::error::SolveError;
use crate::model::Model;
use crate::options::{Options, Progress, Solved};
use crate::solve::solve;

/// The outcome of each budget, in the order of the budgets.
pub type Outcomes = Vec<(u64, Result<Solved, SolveError>)>;

/// Plans the problem under each budget of the computing device (in bytes, including resident bytes), with the
/// other limits `beside`, and returns the outcomes in the order of the budgets. Each budget gets the options'
/// time limit. A budget also takes over the plan of another budget if that plan fits and is faster, or as fast
/// and leaner. So a larger budget's plan is never
/// slower than a smaller one's, and its peak never lower. Budgets that weren't reached before a stop are left
/// out. `progress` is called when work on a budget begins, and with its news.
///
/// # Errors
/// [`SolveError::Unsupported`] for problems that no single device can run. An error of one budget is in that
/// budget's outcome.
pub fn solve_sweep(
    problem: &Problem,
    beside: &Capacities,
    budgets: &[u64],
    options: &Options,
    progress: &mut dyn FnMut(u64, Progress),
) -> Result<Outcomes, SolveError> {
    let (_, device) = Model::with_copies(problem, beside)?;
    let mut ascending: Vec<usize> = (0..budgets.len()).collect();
    ascending.sort_by_key(|&k| budgets[k]);
    let mut outcomes: Vec<Option<Result<Solved, SolveError>>> = vec![None; budgets.len()];
    let mut before: Option<Solved> = None;
    for &k in &ascending {
        if options.stopped() {
            break;
        }
        let budget = budgets[k];
        progress(
            budget,
            Progress {
                elapsed: Duration::ZERO,
                cost: None,
                lower_bound: 0.0,
            },
        );
        let capacities = beside.clone().with_bytes(device, Some(budget));
        let mut outcome = solve(problem, &capacities, options, &mut |news| {
            progress(budget, news)
        });
        if let Some(leaner) = &before {
            let slower = outcome.as_ref().map_or(true, |s| s.cost > leaner.cost);
            if slower {
                let bound = outcome.as_ref().map_or(0.0, |s| s.lower_bound);
                outcome = Ok(adopted(leaner, bound));
            }
        }
        if let Ok(solved) = &outcome {
            before = Some(solved.clone());
        }
        outcomes[k] = Some(outcome);
    }
    pass_plans_down(device, budgets, &ascending, &mut outcomes);
    pass_bounds_down(&ascending, &mut outcomes);
    Ok(budgets
        .iter()
        .copied()
        .zip(outcomes)
        .filter_map(|(budget, outcome)| Some((budget, outcome?)))
        .collect())
}

/// Gives a smaller budget the plan of a larger one, if that plan fits and is faster, or as fast and leaner.
fn pass_plans_down(
    device: DeviceId,
    budgets: &[u64],
    ascending: &[usize],
    outcomes: &mut [Option<Result<Solved, SolveError>>],
) {
    let mut larger: Option<Solved> = None;
    for &k in ascending.iter().rev() {
        if let Some(candidate) = &larger {
            let peak = candidate.plan.peak(device);
            let better = match &outcomes[k] {
                Some(Ok(own)) => {
                    (candidate.cost, peak) < (own.cost, own.plan.peak(device))
                        && candidate.cost <= own.cost
                }
                Some(Err(_)) => true,
                None => false,
            };
            if better && peak <= budgets[k] {
                let bound = match &outcomes[k] {
                    Some(Ok(own)) => own.lower_bound,
                    _ => candidate.lower_bound,
                };
                outcomes[k] = Some(Ok(adopted(candidate, bound)));
            }
        }
        if let Some(Ok(own)) = &outcomes[k] {
            larger = Some(own.clone());
        }
    }
}

/// Passes bounds down: a bound on all plans within a budget also holds for every smaller budget.
fn pass_bounds_down(ascending: &[usize], outcomes: &mut [Option<Result<Solved, SolveError>>]) {
    let mut above = 0.0f64;
    for &k in ascending.iter().rev() {
        if let Some(Ok(solved)) = &mut outcomes[k] {
            above = above.max(solved.lower_bound);
            solved.lower_bound = above.min(solved.cost);
            solved.optimal |= solved.cost <= above * (1.0 + 1e-9);
        }
    }
}

/// Another budget's plan, which this budget has room for too.
fn adopted(other: &Solved, bound: f64) -> Solved {
    let lower_bound = bound.min(other.cost);
    Solved {
        lower_bound,
        optimal: other.cost <= lower_bound * (1.0 + 1e-9),
        ..other.clone()
    }
}

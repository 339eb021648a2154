//! Stages 6 to 8, from a budget to a plan with its layout.

use std::time::Instant;

use scrimp_plan::{Plan, SavedPlan, Step, check};
use scrimp_solve::{Options, PlaceError, Progress, SolveError, place};

use crate::error::{Error, Result};
use crate::pipeline::homes::Chosen;
use crate::pipeline::{Budgeted, Planned, homes, is_too_little, least, one, several};

pub use super::one::{Fit, plan_bytes};

/// Of the time left once homes are chosen, the share for a plan with the first ones, if there are second ones.
const FIRST_SHARE: f64 = 0.8;

/// Stages 6 to 8: solve, check, place. It is first decided where weights and optimizer state live between steps, so the
/// plan's problem may differ from the one given in these. A loop follows, the only one of the pipeline: if the layout
/// doesn't fit, the planner is asked for a plan that uses less.
///
/// # Errors
/// If no plan is found, with the least budget for which there is one, or if no layout fits.
pub fn find_plan(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    if budgeted.problem.sole_device().is_none() {
        return match budgeted.least.is_empty() {
            true => several::within(budgeted, fit, options, watch),
            false => least::find(budgeted, fit, options, watch),
        };
    }
    let began = Instant::now();
    let (first, second) = homes::choose(budgeted, fit, options)?;
    let mut find = |chosen: Chosen, share: f64| {
        let left = match budgeted.problem.devices().len() {
            1 => options.time_limit,
            _ => options.time_limit.saturating_sub(began.elapsed()),
        };
        let options = Options {
            time_limit: left.mul_f64(share),
            start: chosen.start.or_else(|| options.start.clone()),
            ..options.clone()
        };
        one::find(chosen.known, &chosen.budgeted, fit, &options, watch)
    };
    let Some(second) = second else {
        return find(first, 1.0);
    };
    match find(first, FIRST_SHARE) {
        Err(error) if is_too_little(&error) => match find(second, 1.0) {
            Err(other) if missing(&error) < missing(&other) => Err(error),
            found => found,
        },
        found => found,
    }
}

/// By how many bytes a refusal says that the budget is too small.
fn missing(error: &Error) -> u64 {
    let (needed, budget) = match *error {
        Error::NoLayout { needed, budget, .. } => (needed, budget),
        Error::Solve(SolveError::Infeasible {
            least_found,
            budget,
            ..
        }) => (least_found, budget),
        _ => return u64::MAX,
    };
    needed.saturating_sub(budget)
}

/// Stages 7 and 8 for a plan that was made before, perhaps for another device: checks it under this budget
/// with this device's workspaces and costs, and places it. `device` is the device's signature.
///
/// # Errors
/// If the plan is wrong or needs more than the budget, or if no layout fits.
pub fn adopt(budgeted: &Budgeted, saved: SavedPlan, device: &str) -> Result<Planned> {
    let budgeted = &homes::with_homes(budgeted, &saved.homes)?;
    let made = saved.device.filter(|made| made != device);
    if made.is_none() && saved.exact {
        return check_again(budgeted, saved.plan);
    }
    let made = made.unwrap_or_else(|| "other workspaces".into());
    match check_again(budgeted, saved.plan) {
        Ok(planned) => Ok(Planned {
            remark: Some(format!(
                "made for {made}; checked again with the workspaces and costs of {device}"
            )),
            ..planned
        }),
        Err(source) => Err(Error::OtherDevice {
            made,
            device: device.into(),
            source: Box::new(source),
        }),
    }
}

fn check_again(budgeted: &Budgeted, plan: Plan) -> Result<Planned> {
    let runs = plan.steps.iter().filter_map(|step| match *step {
        Step::Run { device, .. } => Some(device),
        _ => None,
    });
    let budgeted = &budgeted.for_plan_on(runs)?;
    let plan = check(&budgeted.problem, plan)?;
    let budget = budgeted.budget_bytes.unwrap_or(plan.peak(budgeted.device));
    let capacities = budgeted.capacities();
    plan.within(&capacities)?;
    match place(&plan, &capacities) {
        Ok(layout) => Ok(budgeted.planned(layout, Fit::Layout, budget, None)),
        Err(PlaceError::OverCapacity(over)) => {
            Err(one::most_missed(&over, &capacities).error(&budgeted.problem))
        }
        Err(error) => Err(error.into()),
    }
}

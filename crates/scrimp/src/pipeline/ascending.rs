//! Plans under several budgets, of which none is slower than that of a smaller budget.

use scrimp_solve::{Options, Progress, lower_bound};

use crate::error::Result;
use crate::pipeline::{Budgeted, Fit, Planned, Provenance, find_plan};

/// Plans under each of several budgets of one problem, each of which allows on every device what the one before allows. A
/// budget takes over the plan of the one before unless it finds a faster one. A stop ends the list early. `watch` also
/// gets the index of the budget.
pub fn find_ascending(
    budgets: &[Budgeted],
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(usize, Progress),
) -> Vec<Result<Planned>> {
    let mut found: Vec<Result<Planned>> = Vec::new();
    let mut best: Option<Planned> = None;
    for (index, budgeted) in budgets.iter().enumerate() {
        if options.stopped() {
            break;
        }
        let mut planned = find_plan(budgeted, fit, options, &mut |news| watch(index, news));
        let cost = |planned: &Planned| options.objective.cost(planned.plan(), options.alpha);
        if let Some(before) = &best
            && planned
                .as_ref()
                .map_or(true, |own| cost(own) > cost(before))
        {
            planned = Ok(taken_over(before, budgeted, options));
        }
        best = planned.as_ref().ok().cloned().or(best);
        found.push(planned);
    }
    found
}

/// A smaller budget's plan as this budget's.
fn taken_over(before: &Planned, budgeted: &Budgeted, options: &Options) -> Planned {
    let budgeted = Budgeted {
        budget_bytes: budgeted.budget_bytes,
        asked: budgeted.asked,
        beside: budgeted.beside.clone(),
        ..before.budgeted.clone()
    };
    let provenance = before.provenance.clone().map(|before| {
        let bound = lower_bound(&budgeted.problem, &budgeted.capacities(), options);
        Provenance {
            optimal: before.optimal && bound >= before.lower_bound,
            lower_bound: bound.min(before.lower_bound),
            ..before
        }
    });
    Planned {
        budget_bytes: budgeted.budget_bytes.unwrap_or(before.budget_bytes),
        budgeted,
        provenance,
        ..before.clone()
    }
}

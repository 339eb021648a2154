//! `scrimp sweep`: plans for a list of budgets.

use anyhow::Result;
use scrimp::plan::Budget;
use scrimp::solve::{Solved, solve_sweep};
use scrimp::{Error, percent_over};
use serde_json::{Value, json};

use super::plan;
use crate::args::SweepArgs;
use crate::failure::{Failure, Kind};
use crate::progress::Line;
use crate::table::Table;
use crate::target::{self, Wanted};
use crate::{Answer, interrupt};

/// Plans under each budget and shows the trade-off.
pub fn run(args: &SweepArgs, quiet: bool) -> Result<Answer> {
    let wanted = Wanted {
        shape: &args.shape,
        recipe: &args.recipe,
        costs: args.costs,
        quiet,
        threads: args.solve.search.threads,
    };
    let (problem, _) = target::problem(&args.target, &wanted)?;
    let budgeted = scrimp::budget(&problem, Budget::Percent(100.0))?;
    let bytes = args.budgets.iter().map(|budget| {
        let bytes = budget
            .bytes(&problem, budgeted.device, budgeted.base_peak())
            .map_err(Error::from)?;
        bytes.ok_or_else(|| {
            Failure::new(
                Kind::Usage,
                "a sweep takes bytes and percentages, not `min`",
            )
            .into()
        })
    });
    let bytes: Vec<u64> = bytes.collect::<Result<_>>()?;
    let line = Line::spinner(quiet, "planning");
    let units = problem.units();
    let mut watch = |budget, _| line.say(|| units.format_memory(budget));
    let outcomes = solve_sweep(
        &budgeted.problem,
        &bytes,
        &plan::options(&args.solve),
        &mut watch,
    )
    .map_err(Error::from)?;
    drop(line);
    let base_cost = budgeted.base.cost();
    let mut table = Table::new("lrrrrl");
    table.row(["asked", "budget", "peak", "overhead", "runs again", ""]);
    let mut entries = Vec::new();
    for (asked, (budget, outcome)) in args.budgets.iter().zip(outcomes) {
        let solved = outcome.as_ref().ok();
        entries.push(entry(budget, solved, &budgeted));
        let mut row = vec![asked.to_string(), units.format_memory(budget)];
        row.extend(solved.map_or_else(
            || vec!["no plan found".to_owned()],
            |solved| {
                vec![
                    units.format_memory(solved.plan.peak(budgeted.device)),
                    format!("{:+.2} %", percent_over(solved.cost, base_cost)),
                    solved.plan.recomputed().to_string(),
                    format!(
                        "at least {:+.2} %, proven",
                        percent_over(solved.lower_bound, base_cost)
                    ),
                ]
            },
        ));
        table.row(row);
    }
    let json = json!({
        "name": problem.name(),
        "memory_unit": units.memory,
        "cost_unit": units.cost,
        "method": args.solve.method.name(),
        "fixed_bytes": budgeted.fixed_bytes,
        "base_peak_bytes": budgeted.base_peak(),
        "base_cost": base_cost,
        "budgets": entries,
        "interrupted": interrupt::requested(),
    });
    Ok(Answer::new(json, format!("{}\n{table}", problem.name())))
}

fn entry(budget: u64, solved: Option<&Solved>, budgeted: &scrimp::Budgeted) -> Value {
    let base_cost = budgeted.base.cost();
    json!({
        "budget_bytes": budget,
        "feasible": solved.is_some(),
        "peak_bytes": solved.map(|solved| solved.plan.peak(budgeted.device)),
        "cost": solved.map(|solved| solved.cost),
        "overhead_percent": solved.map(|solved| percent_over(solved.cost, base_cost)),
        "lower_bound_percent": solved.map(|solved| percent_over(solved.lower_bound, base_cost)),
        "optimal": solved.map(|solved| solved.optimal),
        "recomputed": solved.map(|solved| solved.plan.recomputed()),
    })
}

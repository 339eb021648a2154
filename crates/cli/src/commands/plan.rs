//! `scrimp plan`: a plan for a model, an instance or a problem.

use anyhow::Result;
use scrimp::plan::{Budget, Units, format_seconds, plan_to_json, problem_to_json};
use scrimp::solve::{Options, Progress};
use scrimp::{Budgeted, Fit, PlanSummary, Planned, Status};
use serde_json::json;

use crate::Answer;
use crate::args::{PlanArgs, SolveArgs};
use crate::interrupt;
use crate::output::claim;
use crate::progress::Line;
use crate::reports::Reports;
use crate::table::Table;
use crate::target::{self, Wanted};

/// Plans, writes what was asked for and summarizes.
pub fn run(args: &PlanArgs, quiet: bool) -> Result<Answer> {
    let output = claim(args.output.as_ref())?;
    let problem_out = claim(args.problem_out.as_ref())?;
    let reports = Reports::claim(&args.reports)?;
    let wanted = Wanted {
        shape: &args.shape,
        recipe: &args.recipe,
        costs: args.costs,
        quiet,
        threads: args.solve.search.threads,
    };
    let (problem, fit) = target::problem(&args.target, &wanted)?;
    let budgeted = scrimp::budget(&problem, args.budget)?;
    let planned = solve(&budgeted, fit, &args.solve, quiet)?;
    if let Some(output) = &problem_out {
        output.write(
            problem_to_json(&problem.with_capacity(budgeted.device, Some(planned.budget_bytes)))
                .as_bytes(),
        )?;
    }
    if let Some(output) = &output {
        output.write(plan_to_json(&budgeted.problem, planned.plan().plan()).as_bytes())?;
    }
    let summary = PlanSummary::new(&planned);
    reports.write(&planned, &summary, None)?;
    let text = describe(&summary, args.budget, problem.units());
    let mut json = serde_json::to_value(&summary)?;
    json["interrupted"] = json!(interrupt::requested());
    Ok(Answer::new(json, text))
}

/// Plans with progress on the terminal; the first Ctrl-C ends it with the best plan so far.
pub fn solve(budgeted: &Budgeted, fit: Fit, args: &SolveArgs, quiet: bool) -> Result<Planned> {
    let options = options(args);
    let line = Line::spinner(quiet, "planning");
    let base = budgeted.base.cost();
    let mut watch = |news: Progress| {
        line.say(|| {
            let over = |cost| scrimp::percent_over(cost, base);
            let best = news
                .cost
                .map_or("none yet".into(), |cost| format!("{:+.2} %", over(cost)));
            format!("best {best}, bound {:+.2} %", over(news.lower_bound))
        });
    };
    Ok(scrimp::make_plan(budgeted, fit, &options, &mut watch)?)
}

/// What the planner takes.
pub fn options(args: &SolveArgs) -> Options {
    Options {
        method: args.method,
        order: args.order,
        time_limit: args.search.time_limit,
        seed: args.search.seed.unwrap_or(0),
        threads: args.search.threads(),
        stop: Some(interrupt::flag()),
        ..Options::default()
    }
}

/// A plan's numbers for people.
pub fn describe(summary: &PlanSummary, budget: Budget, units: &Units) -> String {
    let mut table = Table::new("lrl");
    let proven = match summary.status {
        Status::Optimal => "proven to be the least".into(),
        Status::Feasible => format!(
            "the least is proven to be {:+.2} % or more",
            summary.lower_bound_percent
        ),
    };
    let overhead = format!("{:+.2} %", summary.overhead_percent);
    let runs = format!("of {} tasks, beyond each one's first run", summary.tasks);
    let asked = match budget {
        Budget::Bytes(_) => "given".into(),
        other => format!("{other} asked"),
    };
    table
        .row([
            "budget".into(),
            units.format_memory(summary.budget_bytes),
            asked,
        ])
        .row([
            "peak".into(),
            units.format_memory(summary.peak_bytes),
            "computed and checked".into(),
        ])
        .row([
            "peak without a plan".into(),
            units.format_memory(summary.base_peak_bytes),
            "computed".into(),
        ])
        .row([
            "always there".into(),
            units.format_memory(summary.fixed_bytes),
            "weights, optimizer state".into(),
        ])
        .row([
            "layout".into(),
            units.format_memory(summary.arena_bytes),
            "computed and checked".into(),
        ])
        .row([
            "cost".into(),
            units.format_cost(summary.cost),
            "predicted".into(),
        ])
        .row([
            "cost without a plan".into(),
            units.format_cost(summary.base_cost),
            "predicted".into(),
        ])
        .row(["overhead".into(), overhead, proven])
        .row(["runs again".into(), summary.recomputed.to_string(), runs])
        .row([
            "planning took".into(),
            format_seconds(summary.solve_seconds),
            summary.method.into(),
        ]);
    format!("{}\n{table}", summary.name)
}

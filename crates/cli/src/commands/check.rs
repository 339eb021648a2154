//! `scrimp check`: a saved plan against its problem.

use anyhow::Result;
use scrimp::plan::file::read_text;
use scrimp::plan::{Capacities, CheckedPlan, check, plan_from_json, simulate};
use scrimp::{Error, Homes, percent_over};
use serde_json::json;

use crate::Answer;
use crate::args::CheckArgs;
use crate::failure::{Failure, Kind};
use crate::table::Table;
use crate::target;

/// Reads both files, checks, and says what the plan does.
pub fn run(args: &CheckArgs) -> Result<Answer> {
    let read = target::read_problem(&args.problem)?;
    let (problem, stated) = (read.problem, read.capacities);
    let in_plan = |source| Error::File {
        path: args.plan.clone(),
        source: Box::new(source),
    };
    let text = read_text(&args.plan).map_err(in_plan)?;
    let plan = plan_from_json(&problem, &text).map_err(in_plan)?;
    let capacities = match &args.budget {
        Some(budgets) => {
            scrimp::budgets(&problem, Some(budgets), &stated, Homes::Given)?.capacities()
        }
        None => stated,
    };
    let plan = check(&problem, plan).map_err(|wrong| invalid(args, &wrong))?;
    plan.within(&capacities)
        .map_err(|excesses| invalid(args, &excesses))?;
    Ok(valid(&plan, &capacities))
}

fn valid(plan: &CheckedPlan, capacities: &Capacities) -> Answer {
    let problem = plan.problem();
    let units = problem.units();
    let (base_cost, cost) = (problem.base_cost(), plan.cost());
    let overhead = percent_over(cost, base_cost);
    let makespan = simulate(plan).makespan();
    let mut table = Table::new("lrl");
    let mut devices = Vec::new();
    for (id, device) in problem.devices().iter() {
        let capacity = capacities.bytes(id);
        let limit = capacity.map_or("no limit".into(), |bytes| {
            format!("of {}", units.format_memory(bytes))
        });
        table.row([
            format!("peak on {}", device.name),
            units.format_memory(plan.peak(id)),
            limit,
        ]);
        devices.push(json!({
            "name": device.name,
            "peak_bytes": plan.peak(id),
            "capacity_bytes": capacity,
        }));
    }
    table.row([
        "cost".into(),
        units.format_cost(cost),
        format!("{overhead:+.2} % over running every task once"),
    ]);
    table.row([
        "makespan".into(),
        units.format_cost(makespan),
        "simulated".into(),
    ]);
    table.row([
        "recomputed".into(),
        plan.recomputed().to_string(),
        "runs beyond each task's first".into(),
    ]);
    let json = json!({
        "valid": true,
        "name": problem.name(),
        "memory_unit": problem.units().memory,
        "cost_unit": problem.units().cost,
        "devices": devices,
        "base_cost": base_cost,
        "cost": cost,
        "overhead_percent": overhead,
        "makespan": makespan,
        "recomputed": plan.recomputed(),
        "keeps_order": plan.keeps_order(),
        "tasks": problem.tasks().len(),
        "plan_steps": plan.steps().len(),
    });
    Answer::new(
        json,
        format!("The plan is valid for {}.\n{table}", problem.name()),
    )
}

fn invalid<T: ToString>(args: &CheckArgs, violations: &[T]) -> Failure {
    let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let shown = all.iter().take(3).cloned().collect::<Vec<_>>().join("; ");
    let more = match all.len() {
        0..=3 => String::new(),
        n => format!("; and {} more (all of them with --json)", n - 3),
    };
    let (plan, problem) = (args.plan.display(), args.problem.display());
    let sentence = format!("'{plan}' is not a valid plan for '{problem}': {shown}{more}");
    Failure::new(Kind::Check, sentence).with(json!({ "violations": all }))
}

//! `scrimp plan`: a plan for a model, an instance or a problem.

use std::path::Path;

use anyhow::Result;
use scrimp::graph::{Tiled, Tiles};
use scrimp::plan::{Budget, format_seconds, plan_to_json, problem_to_json};
use scrimp::solve::{Method, Options, Progress, SolveError};
use scrimp::{Budgeted, Choice, Error, Fit, Optimality, PlanSummary, Planned};
use serde_json::{Value, json};

use crate::Answer;
use crate::args::{PlanArgs, SolveArgs};
use crate::failure::{Failure, Kind};
use crate::interrupt;
use crate::output::Outputs;
use crate::progress::Line;
use crate::reports::{Reports, tile_words};
use crate::table::Table;
use crate::target;

/// Plans, writes what was asked for and summarizes.
pub fn run(args: &PlanArgs, quiet: bool) -> Result<Answer> {
    let mut outputs = Outputs::beside([Path::new(&args.target.name)]);
    let output = outputs.claim(args.output.as_ref())?;
    let problem_out = outputs.claim(args.problem_out.as_ref())?;
    let reports = Reports::claim(&args.reports, &mut outputs)?;
    let target::Target {
        problem,
        capacities,
        fit,
        device,
        layers,
        homes,
        tiled,
        choice,
        slowed,
    } = target::problem(
        &args.target,
        args.budget.as_ref(),
        &args.devices.devices,
        &args.solve.search,
        &args.swap,
        quiet,
    )?;
    let problem = args.energy.power.of(problem).map_err(Error::from)?;
    let stated = args
        .energy
        .within(&problem, capacities)
        .map_err(Error::from)?;
    let budget = match &choice {
        Some(choice) => Some(&choice.budget),
        None => args.budget.as_ref(),
    };
    let budgeted = Budgeted {
        slowed,
        ..scrimp::budgets(&problem, budget, &stated, homes)?
    };
    let options = options(&args.solve);
    let (budgeted, options) = match &choice {
        Some(choice) => choice.within(budgeted, options)?,
        None => (budgeted, options),
    };
    let options = Options {
        alpha: args.energy.alpha,
        layers,
        ..options
    };
    let planned = solve(&budgeted, fit, &options, choice.as_ref(), quiet)?;
    if let Some(output) = &problem_out {
        let capacities = budgeted.within(planned.budget_bytes);
        let problem = &planned.budgeted.problem;
        output.write(problem_to_json(problem, &capacities).as_bytes())?;
    }
    if let Some(output) = &output {
        let plan = planned.plan().plan();
        let text = plan_to_json(&planned.budgeted.problem, plan, device.as_deref());
        output.write(text.as_bytes())?;
    }
    let summary = PlanSummary::new(&planned);
    reports.write(&planned, &summary, &tiled, None)?;
    let text = describe(&summary, &budgeted) + &tiles_text(&tiled);
    let mut json = serde_json::to_value(&summary)?;
    add_tiles(&mut json, &tiled);
    json["interrupted"] = json!(interrupt::requested());
    Ok(Answer::new(json, text))
}

/// What is run by tiles, for people; nothing if nothing is.
pub fn tiles_text(tiled: &[Tiled]) -> String {
    if tiled.is_empty() {
        return String::new();
    }
    let mut table = Table::new("llrrr");
    table.row(["from", "to", "tiles", "halos", "one tile"]);
    for part in tiled {
        let [tiles, halo, bytes] = tile_words(part);
        table.row([&part.first, &part.last, &tiles, &halo, &bytes]);
    }
    format!("\nRun by tiles\n{table}")
}

/// The same for programs.
pub fn add_tiles(json: &mut Value, tiled: &[Tiled]) {
    let segment = |tiled: &Tiled| {
        json!({
            "first": tiled.first,
            "last": tiled.last,
            "tiles": tiled.tiles,
            "halo_percent": 100.0 * tiled.halo,
            "tile_bytes": tiled.tile_bytes,
        })
    };
    if !tiled.is_empty() {
        json["segments"] = tiled.iter().map(segment).collect();
    }
}

/// Plans with progress on the terminal, a model with these tiles; the first Ctrl-C ends it with the best plan so far.
pub fn solve(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    choice: Option<&Choice>,
    quiet: bool,
) -> Result<Planned> {
    let line = Line::spinner(quiet, "planning");
    let base = budgeted.base.objective(options.alpha);
    let mut watch = |news: Progress| {
        line.say(|| {
            let over = |cost| scrimp::percent_over(cost, base);
            let best = news
                .cost
                .map_or("none yet".into(), |cost| format!("{:+.2} %", over(cost)));
            format!("best {best}, bound {:+.2} %", over(news.lower_bound))
        });
    };
    let planned = scrimp::find_plan(budgeted, fit, options, &mut watch);
    Ok(planned.map_err(|error| too_little(error, budgeted, choice))?)
}

/// What the planner takes.
pub fn options(args: &SolveArgs) -> Options {
    Options {
        method: args.method,
        order: args.order,
        objective: args.objective,
        time_limit: args.search.time_limit,
        seed: args.search.seed.unwrap_or(0),
        threads: args.search.threads(),
        stop: Some(interrupt::flag()),
        ..args.published.options()
    }
}

/// A plan's numbers for people.
pub fn describe(summary: &PlanSummary, budgeted: &Budgeted) -> String {
    let units = budgeted.problem.units();
    let mut table = Table::new("lrl");
    // An exact published method proves its optimum in its own model.
    let method: Option<Method> = summary.method.parse().ok();
    let own = method.and_then(Method::library);
    let order = match (own, summary.order) {
        (Some(_), _) => format!(" in {}'s model", summary.method),
        (None, Some(order)) => format!(" in {order} order"),
        (None, None) => String::new(),
    };
    let proven = match summary.status {
        Optimality::Optimal => format!("optimal: proven to be the least{order}"),
        Optimality::Feasible => format!("{:.2} points above what is proven", summary.gap_percent),
    };
    let overhead = format!("{:+.2} %", summary.overhead_percent);
    let runs = format!("of {} tasks, beyond each one's first run", summary.tasks);
    let asked: String = match budgeted.asked {
        Budget::Bytes(_) | Budget::Units(_) => "given".into(),
        Budget::Min => "the least that a plan was found for".into(),
        other => format!("{other} asked"),
    };
    // With several devices that compute, each has its row below.
    let sole = budgeted.problem.sole_device().is_some();
    let bytes = [
        ("budget", summary.budget_bytes, asked.as_str()),
        ("peak", Some(summary.peak_bytes), "computed and checked"),
        (
            "peak without a plan",
            Some(summary.base_peak_bytes),
            "computed",
        ),
        ("no plan below", Some(summary.floor_bytes), "proven"),
        (
            "always there",
            Some(summary.fixed_bytes),
            "weights, optimizer state",
        ),
        ("layout", Some(summary.arena_bytes), "computed and checked"),
    ];
    for (name, bytes, what) in bytes.into_iter().filter(|_| sole) {
        if let Some(bytes) = bytes {
            table.row([name, &units.format_memory(bytes), what]);
        }
    }
    // Where runs wait for copies or devices work side by side, a step doesn't take the sum of its runs.
    let parallel = summary.makespan != summary.cost;
    if parallel {
        table.row([
            "time per step".into(),
            units.format_cost(summary.makespan),
            "predicted, copies included".into(),
        ]);
    }
    let cost = if parallel { "cost of all runs" } else { "cost" };
    table
        .row([
            cost.into(),
            units.format_cost(summary.cost),
            "predicted".into(),
        ])
        .row([
            "cost without a plan".into(),
            units.format_cost(summary.base_cost),
            "predicted".into(),
        ])
        .row(["overhead".into(), overhead, proven])
        .row([
            "least overhead".into(),
            format!("{:+.2} %", summary.lower_bound_percent),
            format!("proven: no plan{order} adds less"),
        ])
        .row(["runs again".into(), summary.recomputed.to_string(), runs]);
    for (ends, link) in summary.links.iter().filter(|(_, link)| link.bytes > 0) {
        let busy = units.format_cost(link.busy_seconds);
        table.row([
            format!("copied {ends}"),
            units.format_memory(link.bytes),
            format!("{busy} of the link's time"),
        ]);
    }
    if summary.devices.len() > 1 {
        for (name, device) in &summary.devices {
            let limit = device.capacity_bytes.map_or("unlimited".into(), |bytes| {
                format!("of {}", units.format_memory(bytes))
            });
            let [busy, waiting] = [device.busy_seconds, device.waiting_seconds];
            let [busy, waiting] = [busy, waiting].map(|seconds| units.format_cost(seconds));
            table.row([
                format!("peak of {name}"),
                units.format_memory(device.peak_bytes),
                format!("{limit}; busy {busy}, waiting {waiting}"),
            ]);
        }
    }
    let waits: f64 = (summary.devices.values())
        .map(|device| device.waiting_seconds)
        .sum();
    if summary.swapped_bytes > 0 {
        table.row([
            "waits for copies".into(),
            units.format_cost(waits),
            "simulated".into(),
        ]);
    }
    table.row([
        "planning took".into(),
        format_seconds(summary.solve_seconds),
        summary.method.into(),
    ]);
    let remarks = [&summary.note, &summary.outlook].into_iter().flatten();
    let remarks: String = remarks.map(|remark| format!("{remark}\n")).collect();
    format!("{}\n{table}{remarks}", summary.name)
}

/// A budget that nothing meets, in the problem's units, with the proven floor whoever planned.
fn too_little(error: Error, budgeted: &Budgeted, choice: Option<&Choice>) -> Failure {
    let units = budgeted.problem.units();
    // What is proven of some tiles isn't of others.
    let among = choice.filter(|choice| !choice.fits);
    let known = among.and_then(|choice| choice.least).unwrap_or(u64::MAX);
    let (asked, least_found, floor) = match error {
        Error::Solve(SolveError::Infeasible {
            budget,
            least_found,
            floor,
            ..
        }) => (budget, least_found.min(known), floor),
        Error::NoLayout {
            memory,
            budget,
            needed,
        } => {
            // What other tiles need says nothing about another memory.
            let own = budgeted.problem.devices()[budgeted.device].name == memory;
            let needed = if own { needed.min(known) } else { needed };
            return Error::NoLayout {
                memory,
                budget,
                needed,
            }
            .into();
        }
        error => return error.into(),
    };
    let which = among.map_or("", |choice| match choice.tiles {
        Tiles::Off => " without tiles",
        _ => " with these tiles",
    });
    let mut sentence = match asked < floor && among.is_none() {
        true => format!("no plan within {} exists", units.format_memory(asked)),
        false => format!("no plan within {} was found", units.format_memory(asked)),
    };
    let least = units.format_memory(least_found);
    sentence += &format!(": the least budget a plan was found for is {least}");
    let amount = units.format_memory(floor);
    sentence += &format!(
        "; none exists below {amount}{which}, proven; raise the budget to {least_found} or more"
    );
    Failure::new(Kind::Budget, sentence).with(json!({
        "budget_bytes": asked,
        "least_found_bytes": least_found,
        "floor_bytes": floor,
    }))
}

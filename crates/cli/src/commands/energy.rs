//! `scrimp sweep --energy`: under each budget, plans from the fastest to the most frugal.

use std::path::Path;

use anyhow::Result;
use scrimp::plan::{Budget, CheckedPlan, PerDevice, Units, simulate};
use scrimp::report::{EnergyCurve, EnergyPoint, energy};
use scrimp::solve::{Frontier, Progress, SolveError, solve_frontier};
use scrimp::{Budgeted, Error, percent_over};
use serde_json::{Value, json};

use super::plan;
use crate::args::SweepArgs;
use crate::budgets::Budgets;
use crate::failure::Failure;
use crate::output::Outputs;
use crate::progress::Line;
use crate::table::Table;
use crate::{Answer, interrupt, target};

/// The most prices of a joule that are tried under each budget.
const PRICES: usize = 12;

/// Plans, and shows time over energy.
pub fn run(args: &SweepArgs, quiet: bool) -> Result<Answer> {
    let mut outputs = Outputs::beside([Path::new(&args.target.name)]);
    let report = outputs.claim(args.report.as_ref())?;
    target::given(args.target.recipe.tile)?;
    let all = Budget::Percent(100.0);
    let problem = target::problem(
        &args.target,
        Some(&PerDevice::Sole(all)),
        &[],
        &args.solve.search,
        &args.swap,
        quiet,
    )?;
    let beside = problem.capacities;
    let problem = args.power.of(problem.problem).map_err(Error::from)?;
    let budgeted = Budgeted {
        beside,
        ..scrimp::budget(&problem, all)?
    };
    if budgeted.base.total_joules() <= 0.0 {
        return Err(Error::NoEnergy {
            problem: problem.name().into(),
            device: problem.devices()[budgeted.device].name.clone(),
        }
        .into());
    }
    let mut curves = Vec::new();
    let line = Line::spinner(quiet, "planning");
    for budget in Budgets::all(&args.budgets) {
        if interrupt::requested() {
            break;
        }
        let bytes = budget.bytes(&problem, budgeted.device, budgeted.base_peak());
        let bytes = bytes.map_err(Error::from)?.unwrap_or(0);
        let mut watch = |price: usize, news: Progress| {
            line.say(|| {
                let best = news
                    .cost
                    .map_or("none yet".into(), |cost| format!("{cost:.4}"));
                format!("{budget}, price {price} of at most {PRICES}, best {best}")
            });
        };
        let options = plan::options(&args.solve);
        let capacities = budgeted.within(bytes);
        curves.push(Made {
            budget,
            bytes,
            outcome: solve_frontier(&problem, &capacities, &options, PRICES, &mut watch),
        });
    }
    let traded = Traded { budgeted, curves };
    if let Some(report) = &report {
        report.write(traded.page().as_bytes())?;
    }
    let mut answer = Answer::new(traded.object(), traded.table().to_string());
    answer.failure = traded.failure();
    Ok(answer)
}

/// The plans under one budget.
struct Made {
    budget: Budget,
    bytes: u64,
    outcome: Result<Frontier, SolveError>,
}

struct Traded {
    budgeted: Budgeted,
    curves: Vec<Made>,
}

impl Made {
    /// Plans with their seconds and the proven ones.
    fn points(&self) -> impl Iterator<Item = (&CheckedPlan, f64, f64)> {
        self.outcome.iter().flat_map(|frontier| {
            frontier.plans.iter().map(|solved| {
                let plan = &solved.plan;
                let proven = frontier.least_seconds(plan.total_joules());
                (plan, simulate(plan).makespan(), proven)
            })
        })
    }
}

impl Traded {
    fn units(&self) -> &Units {
        self.budgeted.problem.units()
    }

    /// Time added to running every task once, in percent.
    fn over(&self, seconds: f64) -> f64 {
        percent_over(seconds, self.budgeted.base.cost())
    }

    /// Without any plan the command ends as `plan` does.
    fn failure(&self) -> Option<Failure> {
        let mut errors = self.curves.iter().map(|made| made.outcome.as_ref().err());
        let first = errors.next()??;
        let all = errors.all(|error| error.is_some());
        all.then(|| Failure::from(Error::Solve(first.clone())))
    }

    fn object(&self) -> Value {
        let curves = self.curves.iter().map(|made| {
            let points = made.points().map(|(plan, seconds, proven)| {
                json!({
                    "joules": plan.total_joules(),
                    "makespan": seconds,
                    "overhead_percent": self.over(seconds),
                    "lower_bound_percent": self.over(proven),
                    "peak_bytes": plan.peak(self.budgeted.device),
                    "recomputed": plan.recomputed(),
                    "swapped_bytes": super::sweep::swapped_bytes(plan),
                })
            });
            json!({
                "asked": made.budget.to_string(),
                "budget_bytes": made.bytes,
                "error": made.outcome.as_ref().err().map(ToString::to_string),
                "plans": points.collect::<Vec<_>>(),
            })
        });
        let Budgeted { problem, base, .. } = &self.budgeted;
        json!({
            "name": problem.name(),
            "memory_unit": problem.units().memory,
            "cost_unit": problem.units().cost,
            "base_peak_bytes": self.budgeted.base_peak(),
            "base_cost": base.cost(),
            "base_joules": base.total_joules(),
            "energy": curves.collect::<Vec<_>>(),
            "interrupted": interrupt::requested(),
        })
    }

    fn table(&self) -> Table {
        let mut table = Table::new("lrrrrrrl");
        table.row([
            "asked",
            "budget",
            "joules",
            "time",
            "overhead",
            "proven",
            "runs again",
        ]);
        for made in &self.curves {
            let budget = self.units().format_memory(made.bytes);
            if let Err(error) = &made.outcome {
                let asked = made.budget.to_string();
                table.row([&asked, &budget, "", "", "", "", "", &error.to_string()]);
            }
            for (plan, seconds, proven) in made.points() {
                table.row([
                    made.budget.to_string(),
                    budget.clone(),
                    format!("{:.5}", plan.total_joules()),
                    self.units().format_cost(seconds),
                    format!("{:+.3} %", self.over(seconds)),
                    format!("{:+.3} %", self.over(proven)),
                    plan.recomputed().to_string(),
                ]);
            }
        }
        table
    }

    fn page(&self) -> String {
        let curves = self.curves.iter().map(|made| EnergyCurve {
            name: format!(
                "{}, {}",
                made.budget,
                self.units().format_memory(made.bytes)
            ),
            points: made
                .points()
                .map(|(plan, seconds, proven)| EnergyPoint {
                    joules: plan.total_joules(),
                    seconds,
                    proven,
                    recomputed: plan.recomputed(),
                    copied: super::sweep::swapped_bytes(plan),
                })
                .collect(),
            note: made.outcome.as_ref().err().map(ToString::to_string),
        });
        energy(&self.budgeted.base, &curves.collect::<Vec<_>>())
    }
}

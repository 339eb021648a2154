//! `scrimp sweep`: plans for many budgets, by one or several planners.

use std::path::Path;

use anyhow::Result;
use scrimp::plan::{Budget, Capacities, CheckedPlan, PerDevice, Problem, SwapMemory, Units};
use scrimp::report::{Curve, FoundPoint, Point, TradeOff, tradeoff};
use scrimp::solve::{
    Method, Options, Order, Progress, SolveError, Solved, floor_bytes, solve_variants,
};
use scrimp::{Budgeted, Error, percent_over};
use serde_json::{Value, json};

use super::plan;
use crate::args::SweepArgs;
use crate::budgets::Budgets;
use crate::failure::{Failure, Kind};
use crate::output::Outputs;
use crate::progress::Line;
use crate::table::Table;
use crate::target;
use crate::{Answer, interrupt};

/// Plans under each budget by each planner, and shows the trade-off.
pub fn run(args: &SweepArgs, quiet: bool) -> Result<Answer> {
    let mut outputs = Outputs::beside([Path::new(&args.target.name)]);
    let report = outputs.claim(args.report.as_ref())?;
    let csv = outputs.claim(args.csv.as_ref())?;
    let all = Budget::Percent(100.0);
    let problem = target::problem(
        &args.target,
        Some(&PerDevice::Sole(all)),
        &[],
        &args.solve.search,
        &[],
        quiet,
    )?
    .problem;
    let budgeted = scrimp::budget(&problem, all)?;
    let variants = variants(args, &budgeted)?;
    let floors = variants.iter().map(|variant| floor_bytes(&variant.problem));
    let floors: Result<Vec<u64>, SolveError> = floors.collect();
    let sweep = Sweep {
        asked: asked(&Budgets::all(&args.budgets), &budgeted)?,
        floor: floors.map_err(Error::from)?.into_iter().min().unwrap_or(0),
        variants,
        order: args.solve.order,
        curves: Vec::new(),
        budgeted,
    };
    let sweep = sweep.run(args, quiet)?;
    if let Some(csv) = &csv {
        csv.write(sweep.csv().as_bytes())?;
    }
    if let Some(report) = &report {
        report.write(sweep.page().as_bytes())?;
    }
    let mut answer = Answer::new(sweep.object(), sweep.text());
    answer.failure = sweep.failure();
    Ok(answer)
}

/// What the budgets are in the problem's unit.
fn asked(budgets: &[Budget], budgeted: &Budgeted) -> Result<Vec<(Budget, u64)>> {
    let bytes = |&budget: &Budget| {
        let bytes = budget.bytes(&budgeted.problem, budgeted.device, budgeted.base_peak());
        Ok((budget, bytes.map_err(Error::from)?.unwrap_or(0)))
    };
    budgets.iter().map(bytes).collect()
}

/// The problem with or without other memories.
struct Variant {
    /// `None` if there is only one.
    name: Option<String>,
    problem: Problem,
    beside: Capacities,
}

/// What a planner may do in turn: swap at each speed, and apart from that only one of making again and swapping.
fn variants(args: &SweepArgs, budgeted: &Budgeted) -> Result<Vec<Variant>> {
    let alone = || (budgeted.problem.clone(), budgeted.beside.clone());
    let speeds = args.speeds.iter().map(Some);
    let speeds: Vec<_> = match args.speeds.is_empty() {
        true => vec![None],
        false => speeds.collect(),
    };
    let mut variants = Vec::new();
    for speed in speeds {
        let (mut problem, mut beside) = alone();
        for memory in &args.swap {
            let rates = speed.map_or(memory.rates, |speed| Some(speed.rates));
            let memory = SwapMemory {
                rates,
                ..memory.clone()
            };
            (problem, beside) = memory.add(&problem, &beside).map_err(Error::from)?;
        }
        if args.apart && variants.is_empty() {
            let mut parts = problem.parts();
            parts.links = budgeted.problem.links().clone();
            variants.push(Variant {
                name: Some("recompute only".into()),
                problem: Problem::new(parts)?,
                beside: beside.clone(),
            });
        }
        let at = speed.map(|speed| speed.text.clone());
        if args.apart {
            let mut parts = problem.parts();
            parts
                .tasks
                .values_mut()
                .for_each(|task| task.rerunnable = false);
            let at = at.as_ref().map_or(String::new(), |at| format!(" at {at}"));
            variants.push(Variant {
                name: Some(format!("swap only{at}")),
                problem: Problem::new(parts)?,
                beside: beside.clone(),
            });
        }
        let both = args.apart.then(|| "both".to_owned());
        let name = match (both, at) {
            (Some(both), Some(at)) => Some(format!("{both} at {at}")),
            (both, at) => both.or(at),
        };
        variants.push(Variant {
            name,
            problem,
            beside,
        });
    }
    Ok(variants)
}

/// A problem under many budgets.
struct Sweep {
    variants: Vec<Variant>,
    budgeted: Budgeted,
    asked: Vec<(Budget, u64)>,
    floor: u64,
    order: Order,
    curves: Vec<Made>,
}

/// What one planner made of them.
struct Made {
    method: Method,
    /// The variant's name, if there are several.
    variant: Option<String>,
    /// One per budget, in the order asked; none below the floor, and where the work ended before.
    outcomes: Vec<Option<Result<Solved, SolveError>>>,
    /// What ended its work.
    failure: Option<Failure>,
}

/// Whether an error says that there is no plan, and not that none can be made.
fn is_too_little(error: &SolveError) -> bool {
    matches!(error, SolveError::Infeasible { .. })
}

/// Bytes that all copies move.
pub(super) fn swapped_bytes(plan: &CheckedPlan) -> u64 {
    let links = plan.problem().links().keys();
    links.map(|link| plan.copied(link).bytes).sum()
}

fn least_found(outcome: &Result<Solved, SolveError>) -> Option<u64> {
    match outcome {
        Err(SolveError::Infeasible { least_found, .. }) => Some(*least_found),
        _ => None,
    }
}

impl Made {
    fn name(&self) -> String {
        named(self.method, self.variant.as_deref())
    }
}

/// What a curve is called.
fn named(method: Method, variant: Option<&str>) -> String {
    match (method, variant) {
        (_, None) => method.name().into(),
        (Method::Search, Some(variant)) => variant.into(),
        (_, Some(variant)) => format!("{}: {variant}", method.name()),
    }
}

impl Sweep {
    fn run(mut self, args: &SweepArgs, quiet: bool) -> Result<Sweep> {
        let methods = match args.methods.is_empty() {
            true => vec![args.solve.method],
            false => args.methods.clone(),
        };
        let line = Line::spinner(quiet, "planning");
        for method in methods {
            if self.curves.iter().any(|made| made.method == method) || interrupt::requested() {
                continue;
            }
            let options = Options {
                method,
                ..plan::options(&args.solve)
            };
            let made = self.curves_of(&options, &line)?;
            self.curves.extend(made);
        }
        Ok(self)
    }

    /// All variants and budgets by one planner.
    fn curves_of(&self, options: &Options, line: &Line) -> Result<Vec<Made>> {
        let all = self.asked.iter().map(|(_, bytes)| *bytes);
        let budgets: Vec<u64> = all.filter(|&bytes| bytes >= self.floor).collect();
        let base = self.budgeted.base.cost();
        let mut begun: Vec<(usize, u64)> = Vec::new();
        let mut watch = |variant: usize, budget: u64, news: Progress| {
            if begun.last() != Some(&(variant, budget)) {
                begun.push((variant, budget));
            }
            line.say(|| {
                let amount = self.units().format_memory(budget);
                let best = news.cost.map_or("none yet".into(), |cost| {
                    format!("{:+.2} %", percent_over(cost, base))
                });
                let name = named(options.method, self.variants[variant].name.as_deref());
                let (number, all) = (begun.len(), budgets.len() * self.variants.len());
                format!("{name}, {number} of {all}: {amount}, best {best}")
            });
        };
        let variants = self.variants.iter();
        let variants: Vec<_> = variants
            .map(|variant| (variant.problem.clone(), variant.beside.clone()))
            .collect();
        let swept = solve_variants(&variants, &budgets, options, &mut watch);
        let swept = swept.map_err(Error::from)?;
        let curves = self.variants.iter().zip(swept);
        let made = curves.map(|(variant, swept)| {
            let outcome = |(_, bytes): &(Budget, u64)| {
                let found = swept.iter().find(|(budget, _)| budget == bytes);
                found.map(|(_, outcome)| outcome.clone())
            };
            let outcomes: Vec<_> = self.asked.iter().map(outcome).collect();
            let mut errors = outcomes.iter().flatten().filter_map(|o| o.as_ref().err());
            let failure = errors
                .find(|error| !is_too_little(error))
                .map(|error| Failure::from(Error::Solve(error.clone())));
            Made {
                method: options.method,
                variant: variant.name.clone(),
                outcomes,
                failure,
            }
        });
        Ok(made.collect())
    }

    fn units(&self) -> &Units {
        self.budgeted.problem.units()
    }

    fn over(&self, cost: f64) -> f64 {
        percent_over(cost, self.budgeted.base.cost())
    }

    fn below(&self, budget: u64) -> bool {
        budget < self.floor
    }

    /// A planner that can't work ends with its own code, Ctrl-C before the end with that of an
    /// interruption, and budgets that are all too small with theirs. What there is is told all the same.
    fn failure(&self) -> Option<Failure> {
        let failed = self.curves.iter().find_map(|made| made.failure.clone());
        if failed.is_some() {
            return failed;
        }
        let outcomes = || {
            self.curves
                .iter()
                .flat_map(|made| made.outcomes.iter().flatten())
        };
        if interrupt::requested() {
            let done = outcomes().count();
            let sentence =
                format!("interrupted after {done} plans; what there is is shown and written");
            return Some(Failure::new(Kind::Interrupted, sentence));
        }
        if outcomes().any(Result::is_ok) {
            return None;
        }
        let least = outcomes().filter_map(least_found).min();
        let found = least.map_or(String::new(), |least| {
            format!(
                "; the least found for is {}",
                self.units().format_memory(least)
            )
        });
        let floor = self.units().format_memory(self.floor);
        let sentence =
            format!("no plan within any of the budgets: none exists below {floor}{found}");
        let details = json!({ "floor_bytes": self.floor, "least_found_bytes": least });
        Some(Failure::new(Kind::Budget, sentence).with(details))
    }

    fn object(&self) -> Value {
        let problem = &self.budgeted.problem;
        let curves = self.curves.iter().map(|made| {
            let entries = self.asked.iter().zip(&made.outcomes);
            json!({
                "method": made.method.name(),
                "variant": made.variant,
                "error": made.failure.as_ref().map(ToString::to_string),
                "budgets": entries
                    .map(|(asked, outcome)| self.entry(asked, outcome.as_ref()))
                    .collect::<Vec<_>>(),
            })
        });
        json!({
            "name": problem.name(),
            "memory_unit": problem.units().memory,
            "cost_unit": problem.units().cost,
            "order": self.order.name(),
            "fixed_bytes": self.budgeted.fixed_bytes,
            "floor_bytes": self.floor,
            "base_peak_bytes": self.budgeted.base_peak(),
            "base_cost": self.budgeted.base.cost(),
            "curves": curves.collect::<Vec<_>>(),
            "interrupted": interrupt::requested(),
        })
    }

    fn entry(&self, asked: &(Budget, u64), outcome: Option<&Result<Solved, SolveError>>) -> Value {
        let solved = outcome.and_then(|outcome| outcome.as_ref().ok());
        json!({
            "asked": asked.0.to_string(),
            "budget_bytes": asked.1,
            "done": outcome.is_some() || self.below(asked.1),
            "feasible": solved.is_some(),
            "least_found_bytes": outcome.and_then(least_found),
            "peak_bytes": solved.map(|solved| solved.plan.peak(self.budgeted.device)),
            "cost": solved.map(|solved| solved.cost),
            "swapped_bytes": solved.map(|solved| swapped_bytes(&solved.plan)),
            "overhead_percent": solved.map(|solved| self.over(solved.cost)),
            "lower_bound_percent": solved.map(|solved| self.over(solved.lower_bound)),
            "optimal": solved.map(|solved| solved.optimal),
            "recomputed": solved.map(|solved| solved.plan.recomputed()),
            "solve_seconds": solved.map(|solved| solved.elapsed.as_secs_f64()),
        })
    }

    /// One row per plan: the same names as the keys of `--json`.
    fn csv(&self) -> String {
        let columns = [
            "budget_bytes",
            "feasible",
            "peak_bytes",
            "cost",
            "overhead_percent",
            "lower_bound_percent",
            "optimal",
            "recomputed",
            "solve_seconds",
        ];
        let mut text = format!("method,asked,{}\n", columns.join(","));
        for made in &self.curves {
            for (asked, outcome) in self.asked.iter().zip(&made.outcomes) {
                if outcome.is_none() && !self.below(asked.1) {
                    continue;
                }
                let entry = self.entry(asked, outcome.as_ref());
                let cells = columns.iter().map(|column| match &entry[*column] {
                    Value::Null => String::new(),
                    value => value.to_string(),
                });
                let cells: Vec<String> = cells.collect();
                let (method, asked) = (made.name(), asked.0);
                text += &format!("{method},{asked},{}\n", cells.join(","));
            }
        }
        text
    }

    fn page(&self) -> String {
        let found = |solved: &Solved| FoundPoint {
            peak: solved.plan.peak(self.budgeted.device),
            overhead: self.over(solved.cost),
            bound: self.over(solved.lower_bound),
            recomputed: solved.plan.recomputed(),
            seconds: solved.elapsed.as_secs_f64(),
        };
        let curves = self.curves.iter().map(|made| {
            let outcomes = self.asked.iter().zip(&made.outcomes);
            let points = outcomes.filter_map(|(asked, outcome)| {
                let outcome = outcome.as_ref()?;
                Some(Point {
                    budget: asked.1,
                    found: outcome.as_ref().ok().map(found),
                })
            });
            Curve {
                name: made.name(),
                points: points.collect(),
                note: made.failure.as_ref().map(ToString::to_string),
            }
        });
        let line = format!(
            "{} tasks, {} order of first runs",
            self.budgeted.problem.tasks().len(),
            self.order.name()
        );
        tradeoff(&TradeOff {
            title: self.budgeted.problem.name(),
            line: &line,
            units: self.units(),
            base_peak: self.budgeted.base_peak(),
            floor: self.floor,
            curves: &curves.collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let one = self.curves.len() == 1;
        let table = if one {
            self.one_curve(&self.curves[0])
        } else {
            self.many_curves()
        };
        let units = self.units();
        let (floor, peak) = (
            units.format_memory(self.floor),
            units.format_memory(self.budgeted.base_peak()),
        );
        format!(
            "{}: {peak} without a plan, none below {floor}, proven\n{table}",
            self.budgeted.problem.name()
        )
    }

    /// Everything about one planner's plans.
    fn one_curve(&self, made: &Made) -> Table {
        let mut table = Table::new("lrrrrrl");
        table.row([
            "asked",
            "budget",
            "peak",
            "overhead",
            "proven",
            "runs again",
            "",
        ]);
        for ((asked, bytes), outcome) in self.asked.iter().zip(&made.outcomes) {
            let mut row = vec![asked.to_string(), self.units().format_memory(*bytes)];
            match outcome {
                Some(Ok(solved)) => row.extend([
                    self.units()
                        .format_memory(solved.plan.peak(self.budgeted.device)),
                    format!("{:+.2} %", self.over(solved.cost)),
                    format!("{:+.2} %", self.over(solved.lower_bound)),
                    solved.plan.recomputed().to_string(),
                    if solved.optimal { "optimal" } else { "" }.into(),
                ]),
                outcome => {
                    let note = match outcome.as_ref().map(least_found) {
                        Some(Some(least)) => format!(
                            "none found; the least found for is {}",
                            self.units().format_memory(least)
                        ),
                        Some(None) => "none found".into(),
                        None if self.below(*bytes) => "below the proven floor".into(),
                        None => "not planned for".into(),
                    };
                    row.extend([const { String::new() }; 4].into_iter().chain([note]));
                }
            }
            table.row(row);
        }
        table
    }

    /// Added time, a column per planner.
    fn many_curves(&self) -> Table {
        let columns = format!("lr{}", "r".repeat(self.curves.len()));
        let mut table = Table::new(&columns);
        let names = self.curves.iter().map(Made::name);
        let start = ["asked", "budget"].map(String::from);
        table.row(start.into_iter().chain(names));
        for (k, (asked, bytes)) in self.asked.iter().enumerate() {
            let cells = self.curves.iter().map(|made| match &made.outcomes[k] {
                Some(Ok(solved)) => format!("{:+.2} %", self.over(solved.cost)),
                Some(Err(_)) => "none found".into(),
                None if self.below(*bytes) => "–".into(),
                None => String::new(),
            });
            let start = [asked.to_string(), self.units().format_memory(*bytes)];
            table.row(start.into_iter().chain(cells));
        }
        table
    }
}

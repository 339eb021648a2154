//! `scrimp sweep`: plans for many budgets, by one or several planners.

use std::path::Path;

use anyhow::Result;
use scrimp::plan::{Budget, Capacities, CheckedPlan, Device, DeviceId, PerDevice, Units};
use scrimp::solve::{
    Method, Options, Order, Progress, SolveError, Solved, floor_bytes, solve_variants,
};
use scrimp::{Budgeted, DeviceSpec, Error, Fit, Planned, percent_over};
use serde_json::json;

use super::plan;
use crate::args::SweepArgs;
use crate::budgets::Budgets;
use crate::failure::{Failure, Kind};
use crate::output::Outputs;
use crate::progress::Line;
use crate::target;
use crate::{Answer, interrupt};

mod answer;
mod variants;

use variants::{Variant, variants};

/// Plans under each budget by each planner, and shows the trade-off.
pub fn run(args: &SweepArgs, quiet: bool) -> Result<Answer> {
    let mut outputs = Outputs::beside([Path::new(&args.target.name)]);
    let report = outputs.claim(args.report.as_ref())?;
    let csv = outputs.claim(args.csv.as_ref())?;
    let devices = &args.devices.devices;
    let within = |budget: Budget| per_device(budget, devices, args.beside.as_ref());
    let all = within(Budget::Percent(100.0));
    target::given(args.target.recipe.tile)?;
    let target::Target {
        problem,
        fit,
        homes,
        slowed,
        ..
    } = target::problem(
        &args.target,
        Some(&all),
        devices,
        &args.solve.search,
        &[],
        quiet,
    )?;
    let none = Capacities::unlimited();
    let at = |budget: PerDevice<Budget>| {
        let budgeted = scrimp::budgets(&problem, Some(&budget), &none, homes)?;
        let slowed = slowed.clone();
        Ok::<_, Error>(Budgeted { slowed, ..budgeted })
    };
    let budgeted = at(all)?;
    let budgets = Budgets::all(&args.budgets);
    let several = match budgeted.problem.sole_device() {
        Some(_) => Vec::new(),
        None => {
            let each = budgets.iter().map(|&budget| at(within(budget)));
            each.collect::<Result<_, Error>>()?
        }
    };
    let device = swept(&budgeted, args.beside.as_ref());
    let asked = match several.is_empty() {
        true => asked(&budgets, &budgeted)?,
        false => {
            let bytes = |at: &Budgeted| at.capacities().bytes(device).unwrap_or(u64::MAX);
            budgets.into_iter().zip(several.iter().map(bytes)).collect()
        }
    };
    let variants = variants(args, &budgeted)?;
    let sweep = Sweep {
        asked,
        device,
        fit,
        floor: match several.is_empty() {
            true => floor(&variants)?,
            // Values may be on any of them.
            false => 0,
        },
        several,
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

/// A budget for all devices except those whose budgets stay the same.
fn per_device(
    budget: Budget,
    devices: &[DeviceSpec],
    beside: Option<&PerDevice<Budget>>,
) -> PerDevice<Budget> {
    if devices.is_empty() {
        return PerDevice::Sole(budget);
    }
    let mut named: Vec<(String, Budget)> = match beside {
        Some(PerDevice::Named(named)) => named.clone(),
        // Refused as soon as the devices are known.
        Some(sole @ PerDevice::Sole(_)) => return sole.clone(),
        None => Vec::new(),
    };
    for device in devices {
        if !named.iter().any(|(name, _)| *name == device.name) {
            named.push((device.name.clone(), budget));
        }
    }
    PerDevice::Named(named)
}

/// The device whose bytes are told: of those that get each budget, the one that alone is the fastest, or else the first.
fn swept(budgeted: &Budgeted, beside: Option<&PerDevice<Budget>>) -> DeviceId {
    let mut devices = budgeted.problem.devices().iter();
    let stays = |device: &Device| beside.is_some_and(|beside| beside.named(&device.name).is_some());
    if !stays(&budgeted.problem.devices()[budgeted.device]) {
        return budgeted.device;
    }
    let other = devices.find(|(_, what)| what.computes && !stays(what));
    other.map_or(budgeted.device, |(id, _)| id)
}

/// Below these bytes no variant has a plan.
fn floor(variants: &[Variant]) -> Result<u64> {
    let floors = variants.iter().map(|variant| floor_bytes(&variant.problem));
    let floors: Result<Vec<u64>, SolveError> = floors.collect();
    Ok(floors.map_err(Error::from)?.into_iter().min().unwrap_or(0))
}

/// What the budgets are in the problem's unit.
fn asked(budgets: &[Budget], budgeted: &Budgeted) -> Result<Vec<(Budget, u64)>> {
    let bytes = |&budget: &Budget| {
        let bytes = budget.bytes(&budgeted.problem, budgeted.device, budgeted.base_peak());
        Ok((budget, bytes.map_err(Error::from)?.unwrap_or(0)))
    };
    budgets.iter().map(bytes).collect()
}

/// A problem under many budgets.
struct Sweep {
    variants: Vec<Variant>,
    budgeted: Budgeted,
    asked: Vec<(Budget, u64)>,
    /// Where several devices compute: the budgets of all of them for each that was asked.
    several: Vec<Budgeted>,
    /// The device whose bytes are told.
    device: DeviceId,
    fit: Fit,
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
    matches!(
        error,
        SolveError::Infeasible { .. } | SolveError::Short(_) | SolveError::NoRoom { .. }
    )
}

/// A plan for several devices with its bound, as a planner for one device gives it.
fn solved(planned: &Planned, options: &Options) -> Solved {
    let plan = planned.plan().clone();
    let cost = options.objective.cost(&plan, options.alpha);
    let provenance = planned.provenance.clone().unwrap_or_default();
    Solved {
        others: Default::default(),
        cost,
        plan,
        lower_bound: provenance.lower_bound.min(cost),
        optimal: provenance.optimal,
        method: provenance.method,
        elapsed: provenance.elapsed,
        note: provenance.note,
    }
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
    fn new(
        method: Method,
        variant: Option<String>,
        outcomes: Vec<Option<Result<Solved, SolveError>>>,
    ) -> Made {
        let mut errors = outcomes.iter().flatten().filter_map(|o| o.as_ref().err());
        let failure = errors
            .find(|error| !is_too_little(error))
            .map(|error| Failure::from(Error::Solve(error.clone())));
        Made {
            method,
            variant,
            outcomes,
            failure,
        }
    }

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
            let made = match self.several.is_empty() {
                true => self.curves_of(&options, &line)?,
                false => vec![self.curve_of_several(&options, &line)?],
            };
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
            Made::new(options.method, variant.name.clone(), outcomes)
        });
        Ok(made.collect())
    }

    /// All budgets of several devices by one planner, from the smallest on.
    fn curve_of_several(&self, options: &Options, line: &Line) -> Result<Made> {
        let mut ascending: Vec<usize> = (0..self.asked.len()).collect();
        ascending.sort_by_key(|&k| self.asked[k].1);
        let budgets: Vec<Budgeted> = ascending.iter().map(|&k| self.several[k].clone()).collect();
        let mut watch = |at: usize, news: Progress| {
            line.say(|| {
                let best = news.cost.map_or("none yet".into(), |cost| {
                    format!("{:+.2} %", self.over(cost))
                });
                let (number, all) = (at + 1, budgets.len());
                let asked = self.asked[ascending[at]].0;
                format!("{number} of {all}: {asked}, best {best}")
            });
        };
        let found = scrimp::find_ascending(&budgets, self.fit, options, &mut watch);
        let mut outcomes = vec![None; self.asked.len()];
        for (&at, planned) in ascending.iter().zip(found) {
            outcomes[at] = Some(match planned {
                Ok(planned) => Ok(solved(&planned, options)),
                Err(Error::Solve(error)) => Err(error),
                Err(Error::NoLayout { budget, needed, .. }) => Err(SolveError::Infeasible {
                    budget,
                    least_found: needed,
                    floor: 0,
                    leanest: None,
                }),
                Err(error) => return Err(error.into()),
            });
        }
        Ok(Made::new(options.method, None, outcomes))
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
        let floor = match self.floor {
            0 => String::new(),
            floor => format!(": none exists below {}", self.units().format_memory(floor)),
        };
        let sentence = format!("no plan within any of the budgets{floor}{found}");
        let details = json!({ "floor_bytes": self.floor, "least_found_bytes": least });
        Some(Failure::new(Kind::Budget, sentence).with(details))
    }
}

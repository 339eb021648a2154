//! What a sweep says: an object, rows, a page and a table.

use scrimp::plan::{Budget, CheckedPlan, Device, DeviceId};
use scrimp::report::{Curve, FoundPoint, Point, TradeOff, tradeoff};
use scrimp::solve::{SolveError, Solved};
use serde_json::{Value, json};

use super::{Made, Sweep, least_found, swapped_bytes};
use crate::interrupt;
use crate::table::Table;

impl Sweep {
    pub(super) fn object(&self) -> Value {
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
            "peak_bytes": solved.map(|solved| solved.plan.peak(self.device)),
            "devices": solved.map(|solved| peaks(&solved.plan)),
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
    pub(super) fn csv(&self) -> String {
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

    pub(super) fn page(&self) -> String {
        let found = |solved: &Solved| FoundPoint {
            peak: solved.plan.peak(self.device),
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

    pub(super) fn text(&self) -> String {
        let one = self.curves.len() == 1;
        let table = if one {
            self.one_curve(&self.curves[0])
        } else {
            self.many_curves()
        };
        let units = self.units();
        let floor = match self.floor {
            0 => String::new(),
            floor => format!(", none below {}, proven", units.format_memory(floor)),
        };
        format!(
            "{}: {} without a plan{floor}\n{table}",
            self.budgeted.problem.name(),
            units.format_memory(self.budgeted.base_peak())
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
                    self.units().format_memory(solved.plan.peak(self.device)),
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

/// The peak of each device.
fn peaks(plan: &CheckedPlan) -> Vec<Value> {
    let devices = plan.problem().devices().iter();
    let peak = |(id, device): (DeviceId, &Device)| json!({ "name": device.name, "peak_bytes": plan.peak(id) });
    devices.map(peak).collect()
}

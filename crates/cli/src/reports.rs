//! The report and the trace that `plan` and `train` write.

use anyhow::Result;
use scrimp::graph::Tiled;
use scrimp::plan::{format_bytes, format_seconds};
use scrimp::report::{Losses, ReportInput, html, perfetto, perfetto_measured};
use scrimp::{Optimality, Outcome, PlanSummary, Planned};

use crate::args::ReportArgs;
use crate::output::{OutputFile, Outputs};

/// Where to write them.
pub struct Reports {
    page: Option<OutputFile>,
    trace: Option<OutputFile>,
}

impl Reports {
    /// Finds out whether they can be written.
    pub fn claim(args: &ReportArgs, outputs: &mut Outputs) -> Result<Reports> {
        Ok(Reports {
            page: outputs.claim(args.report.as_ref())?,
            trace: outputs.claim(args.trace.as_ref())?,
        })
    }

    /// Writes what was asked for.
    pub fn write(
        &self,
        planned: &Planned,
        summary: &PlanSummary,
        tiled: &[Tiled],
        outcome: Option<&Outcome>,
    ) -> Result<()> {
        if let Some(trace) = &self.trace {
            // A run has measured times; a plan that wasn't run has predicted ones only.
            let text = match outcome {
                Some(outcome) => perfetto_measured(planned.plan(), &outcome.planned.trace),
                None => perfetto(planned.plan()),
            };
            trace.write(text.as_bytes())?;
        }
        if let Some(page) = &self.page {
            page.write(report(planned, summary, tiled, outcome).as_bytes())?;
        }
        Ok(())
    }
}

fn report(
    planned: &Planned,
    summary: &PlanSummary,
    tiled: &[Tiled],
    outcome: Option<&Outcome>,
) -> String {
    let widened = |losses: Vec<f32>| losses.into_iter().map(f64::from).collect::<Vec<_>>();
    let losses = outcome
        .map(|outcome| widened(outcome.planned.losses()))
        .unwrap_or_default();
    let base = outcome.and_then(|outcome| outcome.base.as_ref());
    let base_losses = base.map(|base| widened(base.losses())).unwrap_or_default();
    let status = match summary.status {
        Optimality::Optimal => "optimal: proven to cost the least",
        Optimality::Feasible => "feasible: checked, perhaps not the cheapest",
    };
    html(&ReportInput {
        title: &summary.name,
        method: summary.method,
        status,
        capacities: &planned.budgeted.within(planned.budget_bytes),
        numbers: &numbers(planned, summary, tiled, outcome),
        base: &planned.budgeted.base,
        planned: planned.plan(),
        tiles: !tiled.is_empty(),
        layout: Some(&planned.layout),
        history: Some(&summary.history),
        losses: outcome.map(|_| Losses {
            planned: &losses,
            base: &base_losses,
        }),
    })
}

/// Rows that the report can't work out itself.
fn numbers(
    planned: &Planned,
    summary: &PlanSummary,
    tiled: &[Tiled],
    outcome: Option<&Outcome>,
) -> Vec<(String, String)> {
    let units = planned.budgeted.problem.units();
    let mut rows = vec![
        (
            "lower bound on the overhead, proven".into(),
            format!("{:+.2} %", summary.lower_bound_percent),
        ),
        (
            "planning took".into(),
            format_seconds(summary.solve_seconds),
        ),
    ];
    rows.extend(tiled.iter().map(|part| {
        let name = format!("run by tiles: {} to {}", part.first, part.last);
        let [tiles, halo, bytes] = tile_words(part);
        (
            name,
            format!("{tiles} tiles, halos {halo}, one tile {bytes}"),
        )
    }));
    if let Some(outcome) = outcome {
        let run = &outcome.planned;
        rows.push(("steps".into(), run.records.len().to_string()));
        rows.push((
            "arena, taken before the first step".into(),
            units.format_memory(run.arena_bytes),
        ));
        rows.push((
            "seconds per step, measured".into(),
            format_seconds(run.step_seconds()),
        ));
        if let Some(base) = &outcome.base {
            let seconds = format_seconds(base.step_seconds());
            rows.push(("seconds per step without a plan, measured".into(), seconds));
        }
    }
    rows
}

/// Tiles in each dimension, what halos add, and the bytes of a tile.
pub fn tile_words(part: &Tiled) -> [String; 3] {
    let tiles: Vec<String> = part.tiles.iter().map(usize::to_string).collect();
    let halo = format!("{:+.1} %", 100.0 * part.halo);
    [tiles.join("×"), halo, format_bytes(part.tile_bytes)]
}

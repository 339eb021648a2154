//! Our side of a comparison: plans, the largest batch, a placement, with how long they took.

use std::time::Instant;

use anyhow::Result;
use scrimp::pipeline::find_plan;
use scrimp::plan::Capacities;
use scrimp::plan::file::{AllocationInstance, Instance};
use scrimp::solve::{Options, Order, Progress, SolveError};
use scrimp::{Budgeted, Error, Fit, LargestBatch, Limit, largest_scaled, percent_over};
use serde_json::{Value, json};

use super::super::place;
use super::published::{Batch, Row};

/// Plans for one budget in one order.
#[derive(Clone, Debug)]
pub struct Ours {
    /// Whether first runs keep the given order.
    pub order: Order,
    /// One per seed.
    pub runs: Vec<Run>,
}

/// A plan with one seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// None if no plan was found.
    pub found: Option<Found>,
    /// Wall time of planning.
    pub seconds: f64,
}

/// The plan's numbers.
#[derive(Clone, Debug)]
pub struct Found {
    pub overhead_percent: f64,
    pub lower_bound_percent: f64,
    pub optimal: bool,
    pub peak: u64,
    /// When the best published number was reached, at its rounding; none if it wasn't. Numbers below
    /// what is proven for this order don't count: whoever reached them changed it.
    pub reached_seconds: Option<f64>,
    /// When the plan was there.
    pub best_seconds: f64,
}

impl Ours {
    /// Those of the seeds' plans that were found.
    pub fn found(&self) -> impl Iterator<Item = &Found> {
        self.runs.iter().filter_map(|run| run.found.as_ref())
    }

    /// The lower median over seeds; seeds without a number count as the largest.
    pub fn median(&self, number: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let mut numbers: Vec<f64> = self.runs.iter().filter_map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get((self.runs.len() - 1) / 2).copied()
    }

    /// The same of a number of the plan.
    pub fn median_found(&self, number: impl Fn(&Found) -> Option<f64>) -> Option<f64> {
        self.median(|run| number(run.found.as_ref()?))
    }

    /// Added time: the median, the best and the worst of those found.
    pub fn overheads(&self) -> Option<[f64; 3]> {
        let all = || self.found().map(|found| found.overhead_percent);
        let (best, worst) = (all().reduce(f64::min)?, all().reduce(f64::max)?);
        let median = self.median_found(|found| Some(found.overhead_percent));
        Some([median?, best, worst])
    }

    /// The best bound of any seed.
    pub fn lower_bound_percent(&self) -> Option<f64> {
        let bounds = self.found().map(|found| found.lower_bound_percent);
        bounds.reduce(f64::max)
    }
}

/// Plans for a budget and notes when what was reached.
pub fn plan(budgeted: &Budgeted, row: &Row, options: &Options) -> Result<Run> {
    let base = budgeted.base.cost();
    let over = |cost| percent_over(cost, base);
    let best_published = |proven: f64| {
        let claims = row.claims.iter();
        let published = claims.filter_map(|claim| Some(claim.overhead_percent? + claim.rounding));
        let possible = published.filter(|&percent| percent >= proven);
        possible.fold(f64::INFINITY, f64::min)
    };
    let mut costs: Vec<(f64, f64)> = Vec::new();
    let mut watch = |news: Progress| {
        if let Some(cost) = news.cost
            && costs.last().is_none_or(|(_, last)| cost < *last)
        {
            costs.push((news.elapsed.as_secs_f64(), cost));
        }
    };
    let budgeted = Budgeted {
        budget_bytes: Some(row.budget),
        ..budgeted.clone()
    };
    let began = Instant::now();
    let outcome = find_plan(&budgeted, Fit::LiveBytes, options, &mut watch);
    let seconds = began.elapsed().as_secs_f64();
    let found = match outcome {
        Ok(planned) => {
            let first = |most: f64| {
                let seen = costs
                    .iter()
                    .find(|(_, cost)| over(*cost) <= most)
                    .map(|(at, _)| *at);
                seen.unwrap_or(seconds)
            };
            let (bound, optimal) = match &planned.provenance {
                Some(found) => (found.lower_bound, found.optimal),
                None => (base, false),
            };
            let overhead_percent = over(planned.plan().cost());
            let lower_bound_percent = over(bound);
            let published = best_published(lower_bound_percent);
            Some(Found {
                overhead_percent,
                lower_bound_percent,
                optimal,
                peak: planned.plan().peak(budgeted.device),
                reached_seconds: (overhead_percent <= published && published.is_finite())
                    .then(|| first(published)),
                best_seconds: first(overhead_percent + 1e-9),
            })
        }
        Err(Error::Solve(SolveError::Infeasible { .. })) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Run { found, seconds })
}

/// The largest batch of an instance at the memory that was published.
pub fn batch(instance: &Instance, wanted: &Batch, options: &Options) -> Result<LargestBatch> {
    let unit = instance.problem.units().bytes_per_unit().unwrap_or(1);
    let fixed = instance.fixed_memory.unwrap_or(0).saturating_mul(unit);
    let at = instance.batch_size.unwrap_or(1).max(1);
    let room = wanted.memory.saturating_sub(fixed) / unit;
    let (problem, limit) = (&instance.problem, Limit::OneForward);
    Ok(largest_scaled(
        problem,
        at,
        room,
        &Capacities::unlimited(),
        limit,
        options,
        &mut |_| {},
    )?)
}

/// A placement as a row of its table.
pub fn placement(instance: &AllocationInstance) -> Result<Value> {
    let began = Instant::now();
    let (placed, arena) = place::place(instance, instance.capacity)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(json!({
        "instance": instance.name,
        "buffers": instance.intervals.len(),
        "capacity_bytes": instance.capacity,
        "arena_bytes": arena,
        "live_bytes": placed.live_bytes,
        "fits": instance.capacity.is_none_or(|capacity| arena <= capacity),
        "seconds": seconds,
    }))
}

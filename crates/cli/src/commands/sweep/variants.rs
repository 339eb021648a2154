//! The problems of a sweep that may swap: with each speed of the links, or with only a part of what a plan may do.

use anyhow::Result;
use scrimp::plan::{Capacities, Problem, SwapMemory};
use scrimp::{Budgeted, Error};

use crate::args::SweepArgs;

/// The problem with or without other memories.
pub(super) struct Variant {
    /// `None` if there is only one.
    pub name: Option<String>,
    pub problem: Problem,
    pub beside: Capacities,
}

/// What a planner may do in turn: swap at each speed, and apart from that only one of making again and swapping.
pub(super) fn variants(args: &SweepArgs, budgeted: &Budgeted) -> Result<Vec<Variant>> {
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

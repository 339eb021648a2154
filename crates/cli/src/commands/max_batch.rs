//! `scrimp max-batch`: the largest batch that trains within a memory.

use std::error::Error as _;
use std::path::Path;

use anyhow::Result;
use scrimp::graph::{GraphError, ShapeError};
use scrimp::plan::file::Content;
use scrimp::plan::{
    Budget, Capacities, CheckedPlan, Problem, format_bytes, format_seconds, plan_to_json,
    problem_to_json, simulate,
};
use scrimp::run::{Compiled, Processor};
use scrimp::solve::published::{MaxBatchOptions, max_batch};
use scrimp::solve::{Formulation, Method, Options, Published};
use scrimp::{
    AtBatch, Attempt, BatchProgress, Budgeted, Error, Fit, LargestBatch, MOST_BATCH, Swap,
    largest_batch, largest_scaled, percent_over,
};
use serde_json::{Value, json};

use super::plan;
use super::sweep::swapped_bytes;
use crate::args::MaxBatchArgs;
use crate::failure::{Failure, Kind};
use crate::output::Outputs;
use crate::progress::Line;
use crate::table::Table;
use crate::{Answer, costing, interrupt, target};

/// Searches, writes what was asked for and tells.
pub fn run(args: &MaxBatchArgs, quiet: bool) -> Result<Answer> {
    let mut outputs = Outputs::beside([Path::new(&args.target)]);
    let output = outputs.claim(args.output.as_ref())?;
    let problem_out = outputs.claim(args.problem_out.as_ref())?;
    let line = Line::spinner(quiet, "trying");
    let found = match target::is_json(Path::new(&args.target)) {
        true => of_instance(args, &line)?,
        false => of_model(args, &line)?,
    };
    drop(line);
    let problem = &found.largest.budgeted.problem;
    if let Some(output) = &problem_out {
        let capacities = found.largest.budgeted.capacities();
        output.write(problem_to_json(problem, &capacities).as_bytes())?;
    }
    if let Some(output) = &output {
        let plan = found.largest.plan.plan();
        output.write(plan_to_json(problem, plan, found.device.as_deref()).as_bytes())?;
    }
    Ok(Answer::new(object(args, &found), describe(args, &found)))
}

/// A largest batch in bytes.
struct Found {
    largest: LargestBatch,
    /// Bytes that don't grow with the batch.
    fixed: u64,
    /// What they are.
    fixed_note: String,
    /// Most in use at the batch, everything counted.
    peak: u64,
    /// The batch that the problem's values are of.
    at: u64,
    /// What its workspaces belong to; none for an instance.
    device: Option<String>,
}

/// The graph of a model, made anew at every size.
fn of_model(args: &MaxBatchArgs, line: &Line) -> Result<Found> {
    if args.fixed.is_some() || args.at.is_some() {
        let sentence = "--fixed and --at are for instances: a model's weights and workspaces are counted \
                        at every batch size";
        return Err(Failure::new(Kind::Usage, sentence).into());
    }
    if args.shape.batch.is_some() {
        let sentence = "the batch is what is looked for; leave --batch out";
        return Err(Failure::new(Kind::Usage, sentence).into());
    }
    let cpu = target::cpu(args.solve.search.threads(), args.recipe.library)?;
    let device = Processor::Cpu(&cpu);
    let mut cache = costing::cache(device);
    let swap = Swap::measure(&args.swap, device, args.memory, cache.as_mut(), false)?;
    let model = target::Model::find(&args.target, &args.shape)?;
    let recipe = target::recipe(&args.recipe, &model.import(Some(1))?)?;
    let mut make = |batch: u64| -> Result<Option<AtBatch>, Error> {
        let Ok(size) = usize::try_from(batch) else {
            return Ok(None);
        };
        let problem = || -> Result<Problem, Error> {
            let training = scrimp::differentiate(&model.import(Some(size))?, recipe)?;
            let costs = scrimp::estimate(&Compiled::new(&training.graph, device));
            Ok(scrimp::lower(&training, &costs)?.problem)
        };
        match problem().and_then(|problem| swap.add(&problem)) {
            Ok((problem, beside)) => Ok(Some(AtBatch {
                problem,
                budget_bytes: args.memory,
                beside,
            })),
            Err(error) if batch > 1 && too_large(&error) => Ok(None),
            Err(error) => Err(error),
        }
    };
    let options = plan::options(&args.solve);
    let mut watch = |news: BatchProgress| say(line, news);
    let largest = largest_batch(
        &mut make,
        Fit::Layout,
        args.overhead.0,
        &options,
        &mut watch,
    )?;
    Ok(Found {
        fixed: largest.budgeted.fixed_bytes,
        fixed_note: "weights, optimizer state".into(),
        peak: largest.plan.peak(largest.budgeted.device),
        at: largest.batch,
        device: Some(cpu.signature()),
        largest,
    })
}

/// Whether a graph has tensors that no machine can hold.
fn too_large(error: &Error) -> bool {
    let whole = |error: &GraphError| matches!(error, GraphError::GraphTooLarge { .. });
    if let Error::Graph(error) = error
        && whole(error)
    {
        return true;
    }
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.into_iter().any(|cause| {
        let tensor = cause.downcast_ref::<Box<ShapeError>>();
        tensor.is_some_and(|error| matches!(**error, ShapeError::TooLarge { .. }))
            || cause.downcast_ref::<GraphError>().is_some_and(whole)
    })
}

/// An instance, whose values grow with the batch.
fn of_instance(args: &MaxBatchArgs, line: &Line) -> Result<Found> {
    let path = Path::new(&args.target);
    let Content::Instance(instance) = target::read(path)? else {
        let path = path.display();
        let sentence = format!(
            "'{path}' isn't an instance, so how it grows with the batch isn't known; give an instance, an ONNX file \
             or a built-in network"
        );
        return Err(Failure::new(Kind::Input, sentence).into());
    };
    let problem = instance.problem;
    let Some(unit) = problem.units().bytes_per_unit() else {
        let memory = &problem.units().memory;
        let sentence =
            format!("the instance counts memory in `{memory}`, not in bytes; give one in bytes");
        return Err(Failure::new(Kind::Input, sentence).into());
    };
    let at = args.at.or(instance.batch_size).unwrap_or(1).max(1);
    let in_file = instance
        .fixed_memory
        .map(|fixed| fixed.saturating_mul(unit));
    let fixed = args.fixed.or(in_file).unwrap_or(0);
    let room = args.memory.saturating_sub(fixed);
    if room == 0 {
        let sentence = format!(
            "no batch fits: {} are fixed and {} are there; raise the memory",
            format_bytes(fixed),
            format_bytes(args.memory)
        );
        let details = json!({ "budget_bytes": args.memory, "floor_bytes": fixed });
        return Err(Failure::new(Kind::Budget, sentence).with(details).into());
    }
    let options = plan::options(&args.solve);
    let largest = match args.solve.method {
        Method::Published(Published::Checkmate(_)) if !args.swap.is_empty() => {
            let sentence = "checkmate's program for the largest batch has no copies; leave --swap out or choose \
                            another method";
            return Err(Failure::new(Kind::Usage, sentence).into());
        }
        Method::Published(Published::Checkmate(formulation)) => {
            line.say(|| "checkmate's program for the largest batch".into());
            by_program(args, &problem, at, (fixed, room), formulation)?
        }
        _ => {
            let limit = args.overhead.0;
            let mut watch = |news: BatchProgress| say(line, news);
            let start = (problem, Capacities::unlimited());
            let mut memories = args.swap.iter();
            let (problem, beside) = memories
                .try_fold(start, |(problem, beside), memory| {
                    memory.add(&problem, &beside)
                })
                .map_err(Error::from)?;
            let room = room / unit;
            largest_scaled(&problem, at, room, &beside, limit, &options, &mut watch)
                .map_err(|error| unscaled(error, at * unit, fixed))?
        }
    };
    let peak = u128::from(largest.plan.peak(largest.budgeted.device));
    let scaled = (peak * u128::from(unit) * u128::from(largest.batch)).div_ceil(u128::from(at));
    let fixed_note = match (args.fixed, in_file) {
        (Some(_), Some(file)) => format!("given; {} in the file", format_bytes(file)),
        (Some(_), None) => "given".into(),
        (None, Some(_)) => "fixed memory in the file".into(),
        (None, None) => "the file names none; see --fixed".into(),
    };
    Ok(Found {
        fixed,
        fixed_note,
        peak: fixed.saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX)),
        at,
        device: None,
        largest,
    })
}

/// Checkmate's equation 10, as one program.
fn by_program(
    args: &MaxBatchArgs,
    problem: &Problem,
    at: u64,
    (fixed, room): (u64, u64),
    formulation: Formulation,
) -> Result<LargestBatch> {
    let options = plan::options(&args.solve);
    let budgeted = scrimp::budget(problem, Budget::Percent(100.0))?;
    let cost = args.overhead.0.cost(&budgeted.problem);
    let cost = cost.ok_or(Error::NoForward)?;
    let unit = problem.units().bytes_per_unit().unwrap_or(1);
    let wanted = MaxBatchOptions {
        memory: args.memory / unit,
        fixed: fixed / unit,
        cost,
    };
    let options = Options {
        formulation,
        ..options
    };
    let found = max_batch(problem, at, wanted, &options).map_err(Error::Solve)?;
    let keep_all =
        u128::from(room / unit) * u128::from(at) / u128::from(budgeted.base_peak().max(1));
    let base = budgeted.base.cost();
    Ok(LargestBatch {
        batch: found.batch,
        bound: found.bound,
        keep_all: keep_all as u64,
        attempts: vec![Attempt {
            batch: found.batch,
            fits: true,
            overhead_percent: Some(percent_over(found.plan.cost(), base)),
            impossible: false,
            seconds: found.elapsed.as_secs_f64(),
        }],
        plan: found.plan,
        cost_limit: cost,
        elapsed: found.elapsed,
        budgeted,
    })
}

/// An error about one sample, in bytes: the instance counts `scale` times as little.
fn unscaled(error: Error, scale: u64, fixed: u64) -> Error {
    match error {
        Error::NoBatch { memory, needed } => Error::NoBatch {
            memory: (memory / scale).saturating_add(fixed),
            needed: needed.div_ceil(scale).saturating_add(fixed),
        },
        other => other,
    }
}

fn say(line: &Line, news: BatchProgress) {
    line.say(|| {
        let best = news.best.map_or("none yet".into(), |best| best.to_string());
        let BatchProgress { trying, bound, .. } = news;
        format!("batch {trying}; largest so far {best}, at most {bound}")
    });
}

/// Bytes in the unit that makes them a whole number: `16 GB`, `8 GiB`.
pub fn as_given(bytes: u64) -> String {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    let whole = units
        .iter()
        .find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    whole.map_or_else(
        || format_bytes(bytes),
        |(name, unit)| format!("{} {name}", bytes / unit),
    )
}

/// Over running every task once.
fn overhead(budgeted: &Budgeted, plan: &CheckedPlan) -> f64 {
    percent_over(simulate(plan).makespan(), budgeted.base.cost())
}

fn object(args: &MaxBatchArgs, found: &Found) -> Value {
    let Found { largest, .. } = found;
    let base = largest.budgeted.base.cost();
    let attempts = largest.attempts.iter().map(|attempt| {
        json!({
            "batch": attempt.batch,
            "fits": attempt.fits,
            "impossible": attempt.impossible,
            "overhead_percent": attempt.overhead_percent,
            "seconds": attempt.seconds,
        })
    });
    json!({
        "name": largest.budgeted.problem.name(),
        "cost_unit": largest.budgeted.problem.units().cost,
        "method": args.solve.method.name(),
        "memory_bytes": args.memory,
        "fixed_bytes": found.fixed,
        "batch": largest.batch,
        "bound": largest.bound,
        "optimal": largest.batch == largest.bound,
        "keep_all_batch": largest.keep_all,
        "peak_bytes": found.peak,
        "problem_batch": found.at,
        "base_cost": base,
        "cost": largest.plan.cost(),
        "cost_limit": largest.cost_limit,
        "makespan": simulate(&largest.plan).makespan(),
        "overhead_percent": overhead(&largest.budgeted, &largest.plan),
        "overhead_limit_percent": percent_over(largest.cost_limit, base),
        "recomputed": largest.plan.recomputed(),
        "swapped_bytes": swapped_bytes(&largest.plan),
        "keeps_order": largest.plan.keeps_order(),
        "attempts": attempts.collect::<Vec<_>>(),
        "solve_seconds": largest.elapsed.as_secs_f64(),
        "interrupted": interrupt::requested(),
    })
}

fn describe(args: &MaxBatchArgs, found: &Found) -> String {
    let Found { largest, .. } = found;
    let bound = match largest.bound {
        MOST_BATCH => "larger ones aren't looked at".into(),
        bound if bound == largest.batch => "proven to be the largest".into(),
        bound => format!("none above {bound}, proven"),
    };
    let times = match largest.keep_all {
        0 => "not even one sample".into(),
        most => format!(
            "{:.2} times as much fits",
            largest.batch as f64 / most as f64
        ),
    };
    let base = largest.budgeted.base.cost();
    let limit = percent_over(largest.cost_limit, base);
    let tried = match largest.attempts.len() {
        1 => "one size tried".into(),
        n => format!("{n} sizes tried"),
    };
    let mut table = Table::new("lrl");
    table
        .row(["largest batch", &largest.batch.to_string(), &bound])
        .row(["without a plan", &largest.keep_all.to_string(), &times])
        .row(["memory", &as_given(args.memory), "given"])
        .row(["peak", &format_bytes(found.peak), "computed and checked"])
        .row(["fixed", &format_bytes(found.fixed), &found.fixed_note])
        .row([
            "overhead",
            &format!("{:+.2} %", overhead(&largest.budgeted, &largest.plan)),
            &format!("{limit:+.2} % allowed"),
        ])
        .row([
            "runs again",
            &largest.plan.recomputed().to_string(),
            &format!("of {} tasks", largest.budgeted.problem.tasks().len()),
        ]);
    if !args.swap.is_empty() {
        let copied = format_bytes(swapped_bytes(&largest.plan));
        table.row(["copied", &copied, "to other memories and back"]);
    }
    table.row([
        "planning took",
        &format_seconds(largest.elapsed.as_secs_f64()),
        &format!("{}, {tried}", args.solve.method.name()),
    ]);
    let early = match interrupt::requested() {
        true => "Interrupted: the largest so far.\n",
        false => "",
    };
    format!("{}\n{early}{table}", largest.budgeted.problem.name())
}

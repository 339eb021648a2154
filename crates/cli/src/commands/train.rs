//! `scrimp train`: trains a model inside a byte budget.

use anyhow::Result;
use scrimp::graph::data::{Arrays, Feed, Rows};
use scrimp::graph::onnx::ModelCopy;
use scrimp::graph::{Graph, Tiles, TrainingGraph};
use scrimp::plan::file::read_text;
use scrimp::plan::{
    Capacities, CheckedLayout, Lane, Problem, Step, Timeline, format_seconds, plan_to_json,
    saved_plan_from_json,
};
use scrimp::solve::{Options, SolveError, place};
use scrimp::{
    Budgeted, Choice, Error, Evaluation, Fit, Homes, Job, ModelSource, Outcome, PlanSummary,
    Planned, Recipe, Session, Start, StepRecord, training,
};
use std::path::{Path, PathBuf};

use super::plan;
use super::trained::{Told, answer};
use crate::args::{LossArg, OptimizerArg, TrainArgs};
use crate::costing::{self, Costing, MUCH, Measured};
use crate::failure::{Failure, Kind};
use crate::output::Outputs;
use crate::progress::Line;
use crate::reports::Reports;
use crate::terminal::tell;
use crate::{Answer, interrupt, target};

/// The stages of the pipeline, then the training loop, then the answer.
pub fn run(args: &TrainArgs, quiet: bool) -> Result<Answer> {
    let paths = [&args.data, &args.plan].into_iter().flatten();
    let paths = paths.map(PathBuf::as_path);
    let mut outputs = Outputs::beside(paths.chain([Path::new(&args.model)]));
    let save = outputs.claim(args.save.as_ref())?;
    // Only the weights may go where those came from.
    outputs.keep(args.resume.as_deref());
    let plan_out = outputs.claim(args.plan_out.as_ref())?;
    let reports = Reports::claim(&args.reports, &mut outputs)?;
    let room = scrimp::machine::memory().available.unwrap_or(u64::MAX);
    let data = args
        .data
        .as_deref()
        .map(|path| Arrays::open(path, room))
        .transpose()
        .map_err(Error::from)?;
    let (train, test) = data.map_or((None, None), |data| {
        let (train, test) = data.split();
        (Some(train), test)
    });
    let graph = target::import(&args.model, &args.shape, quiet)?;
    let copied = copied(args, &graph)?;
    let devices = target::devices(
        &args.devices.devices,
        args.solve.search.threads(),
        args.recipe.library,
    )?;
    let costing = Costing {
        source: args.costs,
        afresh: args.fresh_costs,
        budget: &args.budget,
        search: &args.solve.search,
        swap: &args.swap,
    };
    let (mut recipe, mut choice) =
        target::recipe_within(&args.recipe, &graph, &devices, &costing, quiet)?;
    if args.plan.is_some() && args.recipe.tile.is_none() && !choice.fits {
        // Checking the given plan says what it lacks.
        recipe.tiles = Tiles::Off;
        choice.budget = args.budget.clone();
    }
    let costing = Costing {
        budget: &choice.budget,
        ..costing
    };
    let training = scrimp::differentiate(&graph, recipe)?;
    let start = start(args, &training, recipe)?;
    let feed = feed(args, &training, train, room, start.seed)?;
    let compiled = devices.compiled(&training.graph);
    let measured = costing::costs(&training.phases, &compiled, &devices, &costing, quiet)?;
    let (costs, crossing) = (&measured.costs, &measured.crossing);
    let lowered = devices.lower(&training.graph, &training.phases, costs, crossing)?;
    let slowed = measured.slowed(&lowered);
    let Measured {
        profiles,
        swap,
        others,
        kept,
        ..
    } = measured;
    let (problem, beside) = swap.add(&lowered.problem)?;
    let budgeted = Budgeted {
        slowed,
        ..scrimp::budgets(&problem, Some(&choice.budget), &beside, Homes::Free)?
    };
    let device = devices.signature();
    let (budgeted, options) = choice.within(budgeted, plan::options(&args.solve))?;
    let planned = planned(args, &budgeted, &device, &options, &choice, quiet)?;
    if let Some(output) = &plan_out {
        let problem = &planned.budgeted.problem;
        let text = plan_to_json(problem, planned.plan().plan(), Some(&device));
        output.write(text.as_bytes())?;
    }
    let job = Job {
        training: &training,
        lowered: &lowered,
        compiled: &compiled,
        feed: &feed,
        optimizer: recipe.optimizer,
        learning_rate: learning_rate(args),
        start: &start,
        swap: &swap,
    };
    let base = place(&planned.compared()?, &Capacities::unlimited()).map_err(Error::from)?;
    let mut evaluation = match (test, target::loss(&args.recipe, &graph)) {
        (Some(test), LossArg::CrossEntropy) => {
            let (processor, budget) = (compiled[0].processor(), planned.budget_bytes);
            match Evaluation::new(&graph, test, room, processor, budget) {
                // Only training swaps.
                Err(Error::Solve(SolveError::Infeasible { .. })) if !args.swap.is_empty() => {
                    tell("the test samples need more than the budget, so they aren't classified");
                    None
                }
                evaluation => Some(evaluation?),
            }
        }
        _ => None,
    };
    let mut finish = |session: &Session<'_>| {
        if let Some(save) = &save {
            save.write_with(|file| match &copied {
                Some(copy) => copy.write(file, session),
                None => session.save(file),
            })?;
        }
        match &mut evaluation {
            Some(evaluation) => Ok(evaluation.hold(session)?),
            None => Ok(()),
        }
    };
    let outcome = execute(args, job, &planned, &base, quiet, &mut finish)?;
    let accuracy = evaluation.map(|evaluation| accuracy(&evaluation, quiet));
    let accuracy = accuracy.transpose()?;
    reports.write(
        &planned,
        &PlanSummary::new(&planned),
        &training.tiled,
        Some(&outcome),
    )?;
    let predicted = |layout: &CheckedLayout| scrimp::predicted(layout, &lowered, &profiles);
    let times = predicted(&planned.layout);
    let stale = kept && is_stale(times.makespan(), &outcome);
    if stale {
        costing::forget(&devices, &profiles);
        if !quiet {
            let (predicted, measured) = (times.makespan(), outcome.planned.step_seconds());
            tell(&format!(
                "costs that an earlier run measured predict {} a step, which takes {}; the next run measures them again",
                format_seconds(predicted),
                format_seconds(measured)
            ));
        }
    }
    if !quiet && let Some(sentence) = slower_than_alone(&planned, &outcome) {
        tell(&sentence);
    }
    answer(&Told {
        args,
        planned: &planned,
        job: &job,
        device: &device,
        outcome: &outcome,
        accuracy,
        predicted: times.makespan(),
        predicted_waiting: waiting(&problem, &times),
        base_predicted: predicted(&base).makespan(),
        others_while_measuring: others,
        forgotten: stale,
    })
}

/// Costs of an earlier run no longer hold if what they predict and what steps take differ by this factor.
const FAR: f64 = 2.0;

/// Whether steps took so much less than predicted, or so much more although nothing else ran, that the costs must be
/// measured again. A machine that is busy now makes steps slower, never faster.
fn is_stale(predicted: f64, outcome: &Outcome) -> bool {
    let measured = outcome.planned.step_seconds();
    let quiet = outcome.others.is_some_and(|others| 100.0 * others < MUCH);
    match outcome.planned.records.len() {
        0 => false,
        // The first step warms up.
        1 => predicted > FAR * measured,
        _ => predicted > FAR * measured || quiet && measured > FAR * predicted,
    }
}

/// What to say if steps on several devices take longer than one of the devices was predicted to take alone.
fn slower_than_alone(planned: &Planned, outcome: &Outcome) -> Option<String> {
    let (device, seconds) = planned.provenance.as_ref()?.alone?;
    let measured = outcome.planned.step_seconds();
    // The first step warms up.
    let slower = outcome.planned.records.len() > 1 && measured > seconds;
    let elsewhere = |step: &Step| matches!(*step, Step::Run { device: on, .. } if on != device);
    let several = planned.plan().steps().iter().any(elsewhere);
    (slower && several).then(|| {
        let name = &planned.budgeted.problem.devices()[device].name;
        format!(
            "a step on these devices takes {}, and {} was predicted for `{name}` alone; train on `{name}` only, or \
             measure again with --fresh-costs while nothing else runs",
            format_seconds(measured),
            format_seconds(seconds)
        )
    })
}

/// Seconds that the devices that compute wait for copies.
fn waiting(problem: &Problem, times: &Timeline) -> f64 {
    let devices = problem.devices().iter().filter(|(_, what)| what.computes);
    devices
        .map(|(device, _)| times.waiting(Lane::Device(device)))
        .sum()
}

/// The copy of the model that gets the trained weights, if they are to be saved as one.
fn copied(args: &TrainArgs, graph: &Graph) -> Result<Option<ModelCopy>> {
    let is_onnx = |path: &PathBuf| {
        path.extension()
            .is_some_and(|extension| extension == "onnx")
    };
    if !args.save.as_ref().is_some_and(is_onnx) {
        return Ok(None);
    }
    match ModelSource::find(&args.model)? {
        ModelSource::File(path) => Ok(Some(scrimp::copy_of(&path, graph)?)),
        ModelSource::BuiltIn(name) => {
            let sentence = format!(
                "--save as ONNX makes a copy of the model's file, but '{name}' is built in; save it as safetensors"
            );
            Err(Failure::new(Kind::Usage, sentence).into())
        }
    }
}

fn start(args: &TrainArgs, training: &TrainingGraph, recipe: Recipe) -> Result<Start> {
    let seed = args.solve.search.seed;
    match &args.resume {
        Some(path) => Ok(Start::resume(path, training, recipe.optimizer, seed)?),
        None => Ok(Start::new(seed.unwrap_or(0))),
    }
}

fn feed(
    args: &TrainArgs,
    training: &TrainingGraph,
    data: Option<Arrays>,
    room: u64,
    seed: u64,
) -> Result<Feed> {
    match (&args.data, data) {
        (Some(path), Some(arrays)) => {
            let rows = Rows::new(&training.graph, arrays, room).map_err(target::of_file(path))?;
            Ok(Feed::shuffled(rows, seed))
        }
        _ => Ok(Feed::synthetic(&training.graph, seed)),
    }
}

fn learning_rate(args: &TrainArgs) -> f32 {
    let usual = match args.recipe.optimizer {
        OptimizerArg::Sgd => 0.1,
        OptimizerArg::Momentum => 0.01,
        OptimizerArg::Adam => 0.001,
    };
    args.lr.unwrap_or(usual) as f32
}

/// A plan from a file, or a new one.
fn planned(
    args: &TrainArgs,
    budgeted: &Budgeted,
    device: &str,
    options: &Options,
    choice: &Choice,
    quiet: bool,
) -> Result<Planned> {
    let Some(path) = &args.plan else {
        return plan::solve(budgeted, Fit::Layout, options, Some(choice), quiet);
    };
    let in_plan = |source| Error::File {
        path: path.clone(),
        source: Box::new(source),
    };
    let text = read_text(path).map_err(in_plan)?;
    let saved = saved_plan_from_json(&budgeted.problem, &text).map_err(in_plan)?;
    Ok(scrimp::adopt(budgeted, saved, device)?)
}

/// Trains with a bar on the terminal, without a plan too if asked.
fn execute(
    args: &TrainArgs,
    job: Job<'_>,
    planned: &Planned,
    base: &CheckedLayout,
    quiet: bool,
    finish: &mut dyn FnMut(&Session<'_>) -> Result<()>,
) -> Result<Outcome> {
    let line = Line::bar(quiet, "training", args.steps);
    let mut diverged = false;
    let mut watch = |index: u64, record: &StepRecord| {
        if !record.loss.is_finite() && !std::mem::replace(&mut diverged, true) {
            tell(&format!(
                "the loss of step {} is {}",
                index + 1,
                record.loss
            ));
        }
        line.at(index + 1);
        line.say(|| format!("loss {:.4}", record.loss));
    };
    let stop = interrupt::flag();
    training::run(
        job,
        planned,
        args.compare.then_some(base),
        args.steps,
        &stop,
        &mut watch,
        finish,
    )
}

/// The accuracy on test samples, with a line on the terminal.
fn accuracy(evaluation: &Evaluation<'_>, quiet: bool) -> Result<f64> {
    let line = Line::spinner(quiet, "testing");
    line.say(|| format!("{} samples", evaluation.samples()));
    Ok(evaluation.accuracy()?)
}

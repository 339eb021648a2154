//! What `scrimp train` answers.

use anyhow::Result;
use scrimp::machine::peak_resident;
use scrimp::plan::{CheckedLayout, Step, format_bytes, format_seconds};
use scrimp::run::{RunTrace, StepTrace};
use scrimp::{Job, Outcome, PlanSummary, Planned, percent_over};
use serde_json::{Value, json};

use super::plan;
use crate::args::TrainArgs;
use crate::costing::MUCH;
use crate::failure::{Failure, Kind};
use crate::table::Table;
use crate::{Answer, interrupt};

/// Everything that there is to tell.
pub struct Told<'a> {
    /// What was asked.
    pub args: &'a TrainArgs,
    /// The plan.
    pub planned: &'a Planned,
    /// What was trained.
    pub job: &'a Job<'a>,
    /// The signature of the devices.
    pub device: &'a str,
    /// How it went.
    pub outcome: &'a Outcome,
    /// On test samples.
    pub accuracy: Option<f64>,
    /// Seconds of a step.
    pub predicted: f64,
    /// Seconds of a step in which computing waits for copies.
    pub predicted_waiting: f64,
    /// Seconds of a step without a plan.
    pub base_predicted: f64,
    /// The part of the processors' time that others took while costs were measured.
    pub others_while_measuring: Option<f64>,
    /// Whether costs of an earlier run were so far off that they will be measured again.
    pub forgotten: bool,
}

/// The plan's numbers and the run's, and a failure if the run stopped early or differed.
pub fn answer(told: &Told<'_>) -> Result<Answer> {
    let summary = PlanSummary::new(told.planned);
    let difference = told.outcome.first_difference(told.job);
    let interrupted = (told.outcome.planned.records.len() as u64) < told.args.steps;
    let mut json = serde_json::to_value(&summary)?;
    if let (Value::Object(all), Value::Object(run)) =
        (&mut json, object(told, difference.as_deref()))
    {
        all.extend(run);
        all.insert("interrupted".into(), interrupted.into());
    }
    let tiled = &told.job.training.tiled;
    plan::add_tiles(&mut json, tiled);
    let text = format!(
        "{}{}\n{}",
        plan::describe(&summary, &told.planned.budgeted),
        plan::tiles_text(tiled),
        describe(told, difference.as_deref())
    );
    let mut answer = Answer::new(json, text);
    if let Some(what) = difference {
        let sentence = format!(
            "the run under the plan is not the same as without: {what} differs; please report this"
        );
        answer.failure = Some(Failure::new(Kind::Differs, sentence));
    } else if let Some(step) = diverged(told).filter(|_| !told.job.feed.is_synthetic()) {
        let sentence =
            format!("the loss isn't a finite number from step {step} on; a lower --lr may help");
        answer.failure = Some(Failure::new(Kind::Diverged, sentence));
    } else if interrupted && interrupt::requested() {
        let done = told.outcome.planned.records.len();
        let saved = if told.args.save.is_some() {
            ", which are saved"
        } else {
            ""
        };
        let sentence = format!(
            "interrupted after {done} of {} steps{saved}",
            told.args.steps
        );
        answer.failure = Some(Failure::new(Kind::Interrupted, sentence));
    }
    Ok(answer)
}

/// The first step, counted from 1, whose loss isn't a finite number.
fn diverged(told: &Told<'_>) -> Option<usize> {
    let mut records = told.outcome.planned.records.iter();
    records
        .position(|record| !record.loss.is_finite())
        .map(|index| index + 1)
}

fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| share * 100.0)
}

fn object(told: &Told<'_>, difference: Option<&str>) -> Value {
    let (run, base) = (&told.outcome.planned, told.outcome.base.as_ref());
    let processors = told.job.compiled.iter().map(|on| on.processor());
    let threads: usize = processors.map(|processor| processor.threads()).sum();
    json!({
        "steps": run.records.len(),
        "steps_done": run.steps_done,
        "batch": told.job.feed.batch(),
        "seed": told.job.start.seed,
        "learning_rate": told.job.learning_rate,
        "threads": threads,
        "device": told.device,
        "synthetic_data": told.job.feed.is_synthetic(),
        "losses": run.losses(),
        "diverged_step": diverged(told),
        "planned_peak_bytes": told.planned.plan().peak(told.planned.budgeted.device),
        "process_peak_bytes": peak_resident(),
        "resident_bytes": told.planned.budgeted.fixed_bytes,
        "allocated_bytes": run.arena_bytes,
        "step_seconds": run.step_seconds(),
        "predicted_step_seconds": told.predicted,
        "predicted_waiting_seconds": told.predicted_waiting,
        "memories": memories(told),
        "measured_devices": measured(&told.planned.layout, &run.trace),
        "others_percent": percent(told.outcome.others),
        "others_percent_while_measuring": percent(told.others_while_measuring),
        "costs_forgotten": told.forgotten,
        "seconds_per_step": run.breakdown,
        "bit_identical": told.outcome.bit_identical(told.job),
        "first_difference": difference,
        "base_step_seconds": base.map(|base| base.step_seconds()),
        "base_predicted_step_seconds": told.base_predicted,
        "predicted_slowdown_percent": percent_over(told.predicted, told.base_predicted),
        "base_allocated_bytes": base.map(|base| base.arena_bytes),
        "base_losses": base.map(|base| base.losses()),
        "slowdown_percent": base.map(|base| percent_over(run.step_seconds(), base.step_seconds())),
        "test_accuracy": told.accuracy,
    })
}

/// What each device that computes did in a step, by name.
pub fn measured(layout: &CheckedLayout, trace: &StepTrace) -> Value {
    let (problem, steps) = (layout.plan().problem(), layout.plan().steps());
    let computing = problem.devices().iter().filter(|(_, what)| what.computes);
    let each = computing.map(|(id, what)| {
        let on =
            |run: &&RunTrace| matches!(steps[run.step], Step::Run { device, .. } if device == id);
        let runs = trace.runs.iter().filter(on);
        let busy = runs.fold(0.0, |sum, run| sum + run.seconds);
        let object = json!({
            "peak_bytes": trace.in_use.get(id).and_then(|bytes| bytes.iter().max()),
            "allocated_bytes": layout.arena_bytes(id),
            "busy_seconds": busy,
            "waiting_seconds": trace.waiting.get(id),
        });
        (what.name.clone(), object)
    });
    Value::Object(each.collect())
}

/// What is known of the memories to swap to, by name.
fn memories(told: &Told<'_>) -> Value {
    let layout = &told.planned.layout;
    let problem = layout.plan().problem();
    let each = told.job.swap.memories().iter().map(|(memory, links)| {
        let bytes = problem.device_named(&memory.name).ok();
        let bytes = bytes.map(|device| layout.arena_bytes(device));
        let object = json!({ "allocated_bytes": bytes, "folder": memory.folder, "links": links });
        (memory.name.clone(), object)
    });
    Value::Object(each.collect())
}

fn describe(told: &Told<'_>, difference: Option<&str>) -> String {
    let run = &told.outcome.planned;
    let losses = run.losses();
    let mut table = Table::new("lrl");
    let data = if told.job.feed.is_synthetic() {
        "random data: measures, learns nothing"
    } else {
        ""
    };
    table.row(["steps", &losses.len().to_string(), data]);
    if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
        table.row([
            "loss",
            &format!("{last:.4}"),
            &format!("of the last step; {first:.4} of the first"),
        ]);
    }
    if let Some(step) = diverged(told) {
        table.row([
            "diverged",
            &step.to_string(),
            "the first step whose loss isn't a finite number",
        ]);
    }
    if let Some(accuracy) = told.accuracy {
        table.row([
            "test accuracy",
            &format!("{:.2} %", accuracy * 100.0),
            "measured, on samples not trained with",
        ]);
    }
    let predicted = format!(
        "measured, median; {} predicted",
        format_seconds(told.predicted)
    );
    table.row([
        "memory taken",
        &format_bytes(run.arena_bytes),
        match told.job.compiled.len() {
            1 => "one arena, before the first step",
            _ => "an arena for each device, before the first step",
        },
    ]);
    if let Some(base) = &told.outcome.base {
        let note = "another arena";
        table.row(["  without a plan", &format_bytes(base.arena_bytes), note]);
    }
    for (memory, _) in told.job.swap.memories() {
        let layout = &told.planned.layout;
        if let Ok(device) = layout.plan().problem().device_named(&memory.name) {
            let bytes = format_bytes(layout.arena_bytes(device));
            let note = match &memory.folder {
                None => "in RAM, before the first step".to_owned(),
                Some(folder) => format!("a file in '{}', before the first step", folder.display()),
            };
            table.row([format!("  in {}", memory.name), bytes, note]);
        }
    }
    if let Some(bytes) = peak_resident() {
        let note = "measured: the most at a time, everything included";
        table.row(["whole process", &format_bytes(bytes), note]);
    }
    table.row([
        "seconds per step",
        &format_seconds(run.step_seconds()),
        &predicted,
    ]);
    for (others, when) in [
        (told.others_while_measuring, "while costs were measured"),
        (told.outcome.others, "during the steps"),
    ] {
        if let Some(percent) = percent(others).filter(|&percent| percent >= MUCH) {
            let note = format!("of the processors' time {when}");
            table.row(["  others took", &format!("{percent:.0} %"), &note]);
        }
    }
    if !run.trace.copies.is_empty() {
        let predicted = format!(
            "measured, for copies, mean; {} predicted",
            format_seconds(told.predicted_waiting)
        );
        let waiting = format_seconds(run.breakdown.waiting);
        table.row(["  waiting", &waiting, &predicted]);
    }
    if let Some(base) = &told.outcome.base {
        let slowdown = percent_over(run.step_seconds(), base.step_seconds());
        table
            .row([
                "  without a plan",
                &format_seconds(base.step_seconds()),
                "measured, median",
            ])
            .row(["slowdown", &format!("{slowdown:+.1} %"), "measured"]);
        let (same, what) = match difference {
            None => ("yes", "every loss, gradient and final weight compared"),
            Some(what) => ("NO", what),
        };
        table.row(["same bits", same, what]);
    }
    table.to_string()
}

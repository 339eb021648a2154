//! Training under a plan, and beside it without one, to compare bit by bit.

use std::sync::atomic::{AtomicBool, Ordering};

use scrimp_graph::weights::Weights;
use scrimp_plan::CheckedLayout;
use scrimp_run::StepTrace;

use crate::Planned;
use crate::error::{Error, Result};
use crate::machine;
use crate::session::{Breakdown, Job, Session, StepRecord};

/// What a run did.
#[derive(Clone, Debug)]
pub struct Trained {
    /// Step by step.
    pub records: Vec<StepRecord>,
    /// Steps done, those before a resumption included.
    pub steps_done: u64,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Per step.
    pub breakdown: Breakdown,
    /// The last step, run by run.
    pub trace: StepTrace,
    /// At the end.
    pub weights: Weights,
}

/// A run, and perhaps the same without a plan.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Under the plan.
    pub planned: Trained,
    /// Without one.
    pub base: Option<Trained>,
}

/// Trains, step by step; `watch` is told of every step of the planned run. When `stop` is set the
/// step that is running is the last.
///
/// With a base layout every step is run under both, one after the other, so that both meet the same
/// clock speeds and neighbours; if memory for both isn't there, one run follows the other.
///
/// # Errors
/// If memory isn't there, or a step fails.
pub fn run(
    job: Job<'_>,
    planned: &Planned,
    base: Option<&CheckedLayout>,
    steps: u64,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(u64, &StepRecord),
) -> Result<Outcome> {
    let hash = base.is_some();
    let needed = planned.reserved_bytes();
    let base_needed = base.map_or(0, |layout| layout.arena_bytes(planned.budgeted.device));
    let both = needed.saturating_add(base_needed);
    let together = base.is_some() && there_is(both);
    fits(needed.max(base_needed))?;
    let mut first = Session::new(job, &planned.layout, needed)?;
    let mut second = match base {
        Some(layout) if together => Some(Session::new(job, layout, 0)?),
        _ => None,
    };
    let (mut records, mut base_records) = (Vec::new(), Vec::new());
    for index in 0..steps {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let record = first.step(hash)?;
        watch(index, &record);
        records.push(record);
        if let Some(second) = &mut second {
            base_records.push(second.step(hash)?);
        }
    }
    let done = records.len() as u64;
    let planned = finish(first, records)?;
    let base = match (base, second) {
        (None, _) => None,
        (Some(_), Some(second)) => Some(finish(second, base_records)?),
        (Some(layout), None) => {
            let mut session = Session::new(job, layout, 0)?;
            let records = (0..done)
                .map(|_| session.step(hash))
                .collect::<Result<_>>()?;
            Some(finish(session, records)?)
        }
    };
    Ok(Outcome { planned, base })
}

/// Ends a session, whose memory is given back.
fn finish(session: Session<'_>, records: Vec<StepRecord>) -> Result<Trained> {
    Ok(Trained {
        steps_done: session.steps_done(),
        arena_bytes: session.arena_bytes(),
        breakdown: session.breakdown().per_step(records.len() as u64),
        trace: session.trace().clone(),
        weights: session.weights()?,
        records,
    })
}

/// Whether that much memory can be taken, as far as the operating system says. Weights that are read
/// out and the like need some too.
fn there_is(bytes: u64) -> bool {
    machine::memory()
        .available
        .is_none_or(|available| bytes <= available / 10 * 9)
}

/// Operating systems hand out memory that isn't there and end the process when it is used, so this is
/// found out before.
pub(crate) fn fits(bytes: u64) -> Result<()> {
    match machine::memory().available {
        Some(available) if bytes > available => Err(Error::Memory {
            needed: bytes,
            available,
        }),
        _ => Ok(()),
    }
}

impl Trained {
    /// The losses of all steps.
    pub fn losses(&self) -> Vec<f32> {
        self.records.iter().map(|record| record.loss).collect()
    }

    /// The median over the steps after the first, which warms up; 0 without steps.
    pub fn step_seconds(&self) -> f64 {
        let warm = if self.records.len() > 1 {
            &self.records[1..]
        } else {
            &self.records[..]
        };
        let mut seconds: Vec<f64> = warm.iter().map(|record| record.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        match seconds.len() {
            0 => 0.0,
            n => (seconds[(n - 1) / 2] + seconds[n / 2]) / 2.0,
        }
    }
}

impl Outcome {
    /// Whether both runs gave the same bits; none without a second run.
    pub fn bit_identical(&self, job: &Job<'_>) -> Option<bool> {
        self.base
            .as_ref()
            .map(|_| self.first_difference(job).is_none())
    }

    /// Where the two runs differ first: a loss, a gradient, a final weight.
    pub fn first_difference(&self, job: &Job<'_>) -> Option<String> {
        let base = self.base.as_ref()?;
        let pairs = self.planned.records.iter().zip(&base.records);
        for (step, (planned, base)) in pairs.enumerate() {
            if planned.loss.to_bits() != base.loss.to_bits() {
                return Some(format!("the loss of step {}", step + 1));
            }
            let gradients = planned.gradients.iter().zip(&base.gradients);
            if let Some(index) = gradients.into_iter().position(|(a, b)| a != b) {
                let parameter = job.training.gradients[index].0;
                let name = &job.training.graph.tensor(parameter).name;
                return Some(format!("the gradient of '{name}' in step {}", step + 1));
            }
        }
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let others = &base.weights.tensors;
        let differs = self.planned.weights.tensors.iter().find(|(name, array)| {
            others
                .get(*name)
                .is_none_or(|other| bits(&other.values) != bits(&array.values))
        });
        differs.map(|(name, _)| format!("'{name}' at the end"))
    }
}

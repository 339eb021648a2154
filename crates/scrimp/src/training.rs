//! Trains under a plan and, for a comparison bit by bit, also without one.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};

use scrimp_graph::TensorId;
use scrimp_plan::CheckedLayout;
use scrimp_run::{Compiled, RunError, StepTrace};

use crate::Planned;
use crate::error::{Error, Result};
use crate::machine;
use crate::session::{Breakdown, Job, Session, StepRecord};
use crate::swap::Swap;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Trained {
    /// Records of the steps.
    pub records: Vec<StepRecord>,
    /// Steps done, including those before a resumption.
    pub steps_done: u64,
    /// Size of the arenas of all devices that compute.
    pub arena_bytes: u64,
    /// Where the time went, per step.
    pub breakdown: Breakdown,
    /// A record of the last step, run by run.
    pub trace: StepTrace,
    /// A hash of each parameter and each tensor of state at the end; empty unless runs are compared.
    pub hashes: Vec<(TensorId, u64)>,
}

/// A run and, if asked for, the same run without a plan.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run under the plan.
    pub planned: Trained,
    /// The run without a plan.
    pub base: Option<Trained>,
    /// The part of the processors' time that others took during the steps; `None` if that isn't known.
    pub others: Option<f64>,
}

/// Bytes that the end of a run takes outside of the arena, to save weights and to report.
const SPARE: usize = 8 << 20;

/// Trains step by step. `watch` is called after every step of the planned run. Once `stop` is set, the step
/// that is running is the last. `finish` receives the planned run after its last step, while its weights are
/// still in the arena. All memory that grows with the model is taken before the first step.
///
/// With a base layout every step runs under both layouts, one after the other, so that both meet the same
/// clock speeds and the same load from other processes. If there isn't enough memory for both, the second run
/// follows the first.
///
/// # Errors
/// If there isn't enough memory, a step fails, or `finish` fails.
pub fn run<E: From<Error>>(
    job: Job<'_>,
    planned: &Planned,
    base: Option<&CheckedLayout>,
    steps: u64,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(u64, &StepRecord),
    finish: &mut dyn FnMut(&Session<'_>) -> Result<(), E>,
) -> Result<Outcome, E> {
    let hash = base.is_some();
    let needed = planned.reserved_bytes();
    let taken = |layout, first| main_memory(job.compiled, layout, first, job.swap);
    let own = taken(&planned.layout, needed);
    let base_needed = base.map_or(0, |layout| taken(layout, 0));
    let together = base.is_some_and(|base| {
        there_is(own.saturating_add(base_needed))
            && devices_hold(job.compiled, [&planned.layout, base])
    });
    fits(own.max(base_needed).saturating_add(SPARE as u64))?;
    let mut first = Session::new(job, &planned.layout, needed)?;
    let mut second = match base {
        Some(layout) if together => Some(Session::new(job, layout, 0)?),
        _ => None,
    };
    let spare = spare()?;
    let (mut records, mut base_records) = (Vec::new(), Vec::new());
    let others = machine::Others::watch();
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
    let others = others.share();
    drop(spare);
    finish(&first)?;
    let done = records.len() as u64;
    let planned = ended(first, records, hash)?;
    let base = match (base, second) {
        (None, _) => None,
        (Some(_), Some(second)) => Some(ended(second, base_records, hash)?),
        (Some(layout), None) => {
            let mut session = Session::new(job, layout, 0)?;
            let records = (0..done)
                .map(|_| session.step(hash))
                .collect::<Result<_>>()?;
            Some(ended(session, records, hash)?)
        }
    };
    Ok(Outcome {
        planned,
        base,
        others,
    })
}

/// The bytes of a layout on each device that computes, in their order.
fn arenas(layout: &CheckedLayout) -> impl Iterator<Item = u64> {
    let devices = layout.plan().problem().devices().iter();
    let computing = devices.filter(|(_, what)| what.computes);
    computing.map(|(device, _)| layout.arena_bytes(device))
}

/// Bytes of main memory that a layout takes: the arenas of the devices that compute there, the first of which has at
/// least `first` bytes, and what is swapped to in RAM.
pub(crate) fn main_memory(
    compiled: &[Compiled<'_>],
    layout: &CheckedLayout,
    first: u64,
    swap: &Swap,
) -> u64 {
    let least = iter::once(first).chain(iter::repeat(0));
    let each = compiled.iter().zip(arenas(layout)).zip(least);
    let here = each.filter(|((compiled, _), _)| compiled.processor().own_memory().is_none());
    let bytes = here.map(|((_, bytes), least)| bytes.max(least));
    bytes.fold(swap.ram_bytes(layout), u64::saturating_add)
}

/// Whether devices with a memory of their own hold the arenas of both layouts at once.
fn devices_hold(compiled: &[Compiled<'_>], [a, b]: [&CheckedLayout; 2]) -> bool {
    let mut each = compiled.iter().zip(arenas(a).zip(arenas(b)));
    each.all(|(compiled, (a, b))| {
        let own = compiled.processor().own_memory();
        own.is_none_or(|own| a.saturating_add(b) <= own)
    })
}

/// Ends a session and gives its memory back.
fn ended(session: Session<'_>, records: Vec<StepRecord>, hash: bool) -> Result<Trained> {
    Ok(Trained {
        steps_done: session.steps_done(),
        arena_bytes: session.arena_bytes(),
        breakdown: session.breakdown().per_step(records.len() as u64),
        trace: session.trace().clone(),
        hashes: match hash {
            true => session.hashes()?,
            false => Vec::new(),
        },
        records,
    })
}

/// Takes memory in advance for the end of the run.
fn spare() -> Result<Vec<u8>> {
    let mut spare = Vec::new();
    spare
        .try_reserve_exact(SPARE)
        .map_err(|_| RunError::OutOfMemory {
            bytes: SPARE as u64,
        })?;
    Ok(spare)
}

/// Whether that many bytes can be taken, with some to spare, as far as the operating system says.
fn there_is(bytes: u64) -> bool {
    machine::memory()
        .available
        .is_none_or(|available| bytes <= available / 10 * 9)
}

/// Checks that this many bytes can be taken. Operating systems hand out memory that isn't there and end the
/// process when it is used.
pub(crate) fn fits(bytes: u64) -> Result<()> {
    match machine::memory().available {
        Some(available) if bytes > available => Err(Error::Memory {
            needed: bytes,
            available,
        }),
        _ => Ok(()),
    }
}

/// The middle number, or the mean of the two; none of none.
pub fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    (count > 0).then(|| f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]))
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
        let seconds: Vec<f64> = warm.iter().map(|record| record.seconds).collect();
        median(&seconds).unwrap_or(0.0)
    }
}

impl Outcome {
    /// Whether both runs gave the same bits; `None` without a second run.
    pub fn bit_identical(&self, job: &Job<'_>) -> Option<bool> {
        self.base
            .as_ref()
            .map(|_| self.first_difference(job).is_none())
    }

    /// The first difference between the two runs: in a loss, a gradient or a final weight.
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
        let mut pairs = self.planned.hashes.iter().zip(&base.hashes);
        let differing = pairs.find(|(planned, base)| planned != base);
        differing.map(|(&(tensor, _), _)| {
            let name = &job.training.graph.tensor(tensor).name;
            format!("'{name}' at the end")
        })
    }
}

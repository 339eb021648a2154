//! How devices that compute at the same time slow each other down: they share memory, caches, and perhaps cores.
//!
//! Every device goes through its whole step alone and beside the others, in turn, so that a machine whose speed changes
//! changes both. While one device is measured beside the others, these go through their own steps again and again: the
//! load is that of the operators themselves.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::distinct::Distinct;
use super::passes::{Pass, Passes};
use super::{ProfileOptions, ProfileProgress, ProfileWatch, Rehearsal};
use crate::error::RunError;

/// How many times as long each measurement of a graph on a device takes while the other devices compute, in the order
/// of the measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Slowdown(pub(super) Vec<f64>);

/// Rounds that are measured at least and at most. In each, every device has a turn alone before all have one together.
const LEAST_ROUNDS: usize = 3;
const MOST_ROUNDS: usize = 5;

/// Measures how devices slow each other down, each by the step that it rehearses. No round begins after the options'
/// time once enough have been measured.
///
/// # Errors
/// As for [`super::profile()`].
pub fn profile_beside(
    rehearsals: &[Rehearsal<'_>],
    options: &ProfileOptions,
    stop: &AtomicBool,
    progress: ProfileWatch<'_>,
) -> Result<Vec<Slowdown>, RunError> {
    let devices = rehearsals.iter();
    let mut devices = devices
        .map(|rehearsal| {
            let distinct = Distinct::new(rehearsal.compiled)?;
            Ok((distinct, Passes::new(rehearsal)?))
        })
        .collect::<Result<Vec<(Distinct, Passes<'_>)>, RunError>>()?;
    for (_, run) in &mut devices {
        run.pass(Pass::Unmeasured, &mut |_, _| {})?;
    }
    let start = Instant::now();
    for round in 0..MOST_ROUNDS {
        if round >= LEAST_ROUNDS && start.elapsed() > options.time {
            break;
        }
        for (_, run) in &mut devices {
            if stop.load(Ordering::SeqCst) {
                return Err(RunError::Stopped);
            }
            let mut watch = |node: usize, nodes: usize| {
                progress(ProfileProgress {
                    pass: round,
                    passes: MOST_ROUNDS,
                    node,
                    nodes,
                });
            };
            run.pass(Pass::InPlace, &mut watch)?;
        }
        let working = AtomicUsize::new(devices.len());
        std::thread::scope(|scope| {
            let runs = devices.iter_mut().map(|(_, run)| run);
            let threads = runs.map(|run| scope.spawn(|| run.beside(&working)));
            let threads: Vec<_> = threads.collect();
            let ends = threads.into_iter().map(|thread| {
                let panicked = RunError::Threads {
                    threads: rehearsals.len(),
                    reason: "a device's thread ended early".into(),
                };
                thread.join().unwrap_or(Err(panicked))
            });
            ends.fold(Ok(()), Result::and)
        })?;
    }
    let slowed = devices.iter().map(|(distinct, run)| run.slowed(distinct));
    Ok(slowed.map(Slowdown).collect())
}

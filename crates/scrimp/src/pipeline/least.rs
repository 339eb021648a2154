//! The least budgets of several devices that compute: one share of what each would need to run everything alone.

use scrimp_plan::DeviceId;
use scrimp_solve::{Options, Progress};

use crate::error::Result;
use crate::pipeline::several::{self, is_too_little};
use crate::pipeline::{Budgeted, Fit, Planned};

/// The most plans that are made, which share the time limit.
const PROBES: u32 = 10;
/// The search ends when the least share for which there is a plan is this close to one for which none was found.
const CLOSE: f64 = 0.01;

/// The plan within the least share, the same for every device whose least budget is asked. Bisects the share.
///
/// # Errors
/// If there is no plan even when each of these devices may take what running everything there needs.
pub(super) fn find(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let options = Options {
        time_limit: options.time_limit / PROBES,
        ..options.clone()
    };
    let mut probe = |share: f64| {
        let limited = limited(budgeted, |all| (share * all as f64) as u64);
        several::within(&limited, fit, &options, watch)
    };
    let mut best = probe(1.0)?;
    let (mut low, mut high) = (0.0, used(budgeted, &best));
    for _ in 1..PROBES {
        if high - low <= CLOSE * high || options.stopped() {
            break;
        }
        let share = f64::midpoint(low, high);
        match probe(share) {
            Ok(planned) => {
                high = used(budgeted, &planned).min(share);
                best = planned;
            }
            Err(error) if is_too_little(&error) => low = share,
            Err(error) => return Err(error),
        }
    }
    // The budgets are what the layout needs.
    let needed = |device: DeviceId| best.layout.needed_bytes(device);
    let mut within = best.budgeted.clone();
    for &(device, _) in &budgeted.least {
        within.beside = within.beside.with_bytes(device, Some(needed(device)));
    }
    let main = budgeted
        .least
        .iter()
        .any(|&(device, _)| device == best.budgeted.device);
    let budget_bytes = match main {
        true => needed(best.budgeted.device),
        false => best.budget_bytes,
    };
    Ok(Planned {
        budgeted: within,
        budget_bytes,
        ..best
    })
}

/// The largest share that a layout takes of what a device would need alone.
fn used(budgeted: &Budgeted, planned: &Planned) -> f64 {
    let shares = budgeted
        .least
        .iter()
        .map(|&(device, all)| planned.layout.needed_bytes(device) as f64 / all.max(1) as f64);
    shares.fold(0.0, f64::max)
}

/// The same with budgets in place of the least ones, given what each device would need alone.
fn limited(budgeted: &Budgeted, bytes: impl Fn(u64) -> u64) -> Budgeted {
    let mut limited = budgeted.clone();
    for (device, all) in std::mem::take(&mut limited.least) {
        match device == limited.device {
            true => limited.budget_bytes = Some(bytes(all)),
            false => limited.beside = limited.beside.with_bytes(device, Some(bytes(all))),
        }
    }
    limited
}

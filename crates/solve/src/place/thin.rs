//! Placing plans with more recomputation, whose buffers pack more easily.

use std::time::Instant;

use rayon::prelude::*;
use scrimp_plan::{Capacities, CheckedLayout, CheckedPlan};

use super::pack::Effort;
use super::stir::relieved;
use super::{PLAN_WORK, PlaceError, placed};
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::options::Options;

/// The shares of the peak beyond which a moment is crowded, from mild to strong thinning.
const CROWDED: [f64; 6] = [0.995, 0.99, 0.98, 0.97, 0.95, 0.9];
/// How often each is tried, with other random choices each time.
const SEEDS: u64 = 4;
/// The work of placing each, at first and, if none fits, once more.
const THIN_WORKS: [u64; 2] = [60_000_000, PLAN_WORK];
/// The part of the time left for layouts without loss, and then for each that may lose something.
const WHOLE_PART: u32 = 2;
const EACH_PART: u32 = 4;

/// Places a plan on one device with more recomputation wherever it is close to the capacity: so few moments are crowded, and less is
/// lost. The mildest thinning that fits with little work counts, or else with more. First runs keep the given order unless it is free.
/// `None` if nothing fits by the cutoff, without a capacity, and for several devices and copies.
///
/// # Errors
/// [`PlaceError::Defect`] if a packing isn't valid.
pub fn place_thinned(
    plan: &CheckedPlan,
    capacities: &Capacities,
    options: &Options,
    cutoff: Cutoff<'_>,
) -> Result<Option<CheckedLayout>, PlaceError> {
    let device = plan.problem().sole_device();
    let most = device.and_then(|device| capacities.bytes(device));
    let Some(most) = most else {
        return Ok(None);
    };
    let each = (0..SEEDS).flat_map(|seed| CROWDED.map(|share| (share, seed)));
    let all = THIN_WORKS.map(|work| each.clone().map(move |(share, seed)| (share, seed, work)));
    let all: Vec<_> = all.into_iter().flatten().collect();
    let place = |&(share, seed, work): &(f64, u64, u64)| {
        if cutoff.reached() {
            return None;
        }
        let thin = thinned(plan, most, share, seed, options.order, cutoff)?;
        let layout = placed(&thin, capacities, Effort::Work(work), cutoff);
        (!matches!(layout, Err(PlaceError::OverCapacity(_)))).then_some(layout)
    };
    let find = || all.par_iter().find_map_first(place);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads.max(1));
    match pool.build() {
        Ok(pool) => pool.install(find).transpose(),
        Err(_) => find().transpose(),
    }
}

/// The smallest layout that is found of a plan on one device with more recomputation wherever it is close to its peak: one without
/// loss, or else the best of several. First runs keep the given order unless it is free. `None` for several devices and copies.
///
/// # Errors
/// [`PlaceError::Defect`] if a packing isn't valid.
pub fn smallest_thinned(
    plan: &CheckedPlan,
    options: &Options,
    cutoff: Cutoff<'_>,
) -> Result<Option<CheckedLayout>, PlaceError> {
    let Some(device) = plan.problem().sole_device() else {
        return Ok(None);
    };
    let peak = plan.peak(device);
    let part = |part| cutoff.by(Instant::now().checked_add(cutoff.left() / part));
    let unlimited = Capacities::unlimited();
    let tight = unlimited.clone().with_bytes(device, Some(peak));
    if let Some(layout) = place_thinned(plan, &tight, options, part(WHOLE_PART))? {
        return Ok(Some(layout));
    }
    let mut best: Option<CheckedLayout> = None;
    for share in CROWDED.into_iter().rev() {
        let Some(thin) = thinned(plan, peak, share, 0, options.order, cutoff) else {
            break;
        };
        let layout = placed(
            &thin,
            &unlimited,
            Effort::Work(PLAN_WORK / 4),
            part(EACH_PART),
        )?;
        let needed = layout.needed_bytes(device);
        if best
            .as_ref()
            .is_none_or(|best| needed < best.needed_bytes(device))
        {
            best = Some(layout);
        }
        if cutoff.reached() {
            break;
        }
    }
    Ok(best)
}

/// A plan that is crowded only where nothing helps, if it is beyond a share of the most bytes.
fn thinned(
    plan: &CheckedPlan,
    most: u64,
    share: f64,
    seed: u64,
    order: Order,
    cutoff: Cutoff<'_>,
) -> Option<CheckedPlan> {
    let resident = plan.resident(plan.problem().sole_device()?);
    let enough = resident + (most.saturating_sub(resident) as f64 * share) as u64;
    relieved(plan, order, [enough, most], seed, cutoff)
}

//! Placing one of several plans.

use std::collections::BTreeSet;

use rayon::prelude::*;
use scrimp_plan::{Buffer, Capacities, CheckedLayout, CheckedPlan, Problem, Sequence};

use super::pack::Effort;
use super::stir::reordered;
use super::{PlaceError, VARIANTS, placed};
use crate::cutoff::Cutoff;
use crate::options::{Options, Others};

/// The plans whose orders are made at a time. The half whose buffers are held for less is placed.
const ROUND: usize = 16;

/// Places the buffers of one of these plans within the capacities: of a tie, or of a dearer one as a spare. Little work goes
/// to each; then their runs are tried in other orders. While there is no spare, ties and dearer plans take turns until the
/// first cutoff; once there is one, ties alone are tried until the second. Returns a tie's layout, if one was found.
///
/// # Errors
/// [`PlaceError::Defect`] if a packing isn't valid.
pub fn place_any(
    problem: &Problem,
    plans: &Others<Sequence>,
    spare: &mut Option<CheckedLayout>,
    capacities: &Capacities,
    options: &Options,
    cutoffs: [Cutoff<'_>; 2],
) -> Result<Option<CheckedLayout>, PlaceError> {
    let threads = rayon::ThreadPoolBuilder::new().num_threads(options.threads.max(1));
    // Without threads of its own, the work is done on those that all share.
    let pool = threads.build().ok();
    let stirring = [None].into_iter().chain((0..VARIANTS).map(Some));
    let rounds = plans.ties.len().max(plans.dearer.len()).div_ceil(ROUND);
    let turns = stirring.flat_map(|seed| (0..rounds).map(move |round| (seed, round)));
    let turns = turns.flat_map(|turn| [(true, turn), (false, turn)]);
    // Plans in which buffers are held for as long pack as well.
    let mut seen: BTreeSet<u128> = BTreeSet::new();
    for (ties, (seed, round)) in turns {
        let cutoff = cutoffs[usize::from(spare.is_some())];
        if cutoff.reached() {
            break;
        }
        let all = match ties {
            true => &plans.ties,
            false if spare.is_none() => &plans.dearer,
            false => continue,
        };
        let order = |sequence| {
            let plan = reordered(problem, sequence, capacities, options.order, seed, cutoff)?;
            plan.within(capacities).is_ok().then(|| (held(&plan), plan))
        };
        let place = |(_, plan): &(u128, CheckedPlan)| {
            let layout = placed(plan, capacities, Effort::Brief, cutoff);
            (!matches!(layout, Err(PlaceError::OverCapacity(_)))).then_some(layout)
        };
        let mut find = || {
            let some = all.par_iter().skip(round * ROUND).take(ROUND);
            let mut orders: Vec<_> = some.filter_map(order).collect();
            orders.retain(|(held, _)| !seen.contains(held));
            orders.sort_by_key(|(held, _)| *held);
            orders.dedup_by_key(|(held, _)| *held);
            orders.truncate(orders.len().div_ceil(2));
            seen.extend(orders.iter().map(|(held, _)| *held));
            orders.par_iter().find_map_first(place)
        };
        let found = match &pool {
            Some(pool) => pool.install(find),
            None => find(),
        };
        match found.transpose()? {
            Some(layout) if ties => return Ok(Some(layout)),
            Some(layout) => *spare = Some(layout),
            None => {}
        }
    }
    Ok(None)
}

/// The sum of all buffers' bytes times the steps during which they are held.
fn held(plan: &CheckedPlan) -> u128 {
    let held = |b: &Buffer| (b.end - b.start) as u128 * u128::from(b.bytes);
    plan.buffers().values().map(held).sum()
}

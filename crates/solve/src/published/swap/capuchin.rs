//! Capuchin (Peng et al., ASPLOS 2020): chooses one map after another by what an iteration without a plan
//! tells about it, until the step fits.
//!
//! * A candidate is a map whose idle gap, from its last forward use (evicted-access) to its next use
//!   (back-access), covers a moment at which memory is short.
//! * Its free time is FT = (start of the copy back) − (end of the copy out). A copy out begins after the
//!   evicted-access, a copy back ends before the back-access, and copies are exclusive on each link, so FT
//!   depends on what else is swapped. Maps are tried in the order of the FT that they have alone, largest
//!   first, and swapped if every FT stays at least 0, until the step fits.
//! * If it still doesn't fit, each choice is the cheaper of two: the swap with the largest FT alone, which
//!   costs as much as the lowest FT falls below 0, and the recomputation that saves the most bytes per second
//!   (MSPS). The seconds of a recomputation count whatever must be made again for it, so they follow earlier
//!   choices.
//! * If even that doesn't fit, maps are swapped in the order of their evicted-accesses, as the paper's passive
//!   mode evicts, until it does.
//! * The access nearest before the start of a copy back triggers it (in-trigger).
//! * Feedback: while a back-access waits for its copy, the copy begins earlier by 5 % of its time in the next
//!   iteration. The best of these iterations is the plan.
//! * The device waits for a copy out only when it needs the bytes (delayed synchronization). What is made
//!   again on the way to another map stays if there is room (collective recomputation).

use super::evaluate::{Evaluator, Policy, uniform};
use super::maps::Maps;
use super::unfold::Action;
use crate::cutoff::Cutoff;

/// Iterations with feedback.
const ROUNDS: usize = 100;
/// By how much of its time a late copy begins earlier.
const STEP: f64 = 0.05;

/// Times of an iteration in which everything fits.
struct Profile<'m, 'g, 'p> {
    maps: &'m Maps<'g, 'p>,
    /// By task, when it starts; one more for the end.
    start: Vec<f64>,
    /// The maps in the order of their evicted-accesses and of their back-accesses.
    by_eviction: Vec<usize>,
    by_return: Vec<usize>,
}

impl<'m, 'g, 'p> Profile<'m, 'g, 'p> {
    fn new(maps: &'m Maps<'g, 'p>) -> Self {
        let mut start = vec![0.0];
        for task in &maps.graph.tasks {
            start.push(start[start.len() - 1] + task.seconds);
        }
        let mut by_eviction: Vec<usize> = (0..maps.maps.len()).collect();
        by_eviction.sort_by_key(|&map| maps.maps[map].last_forward);
        let mut by_return: Vec<usize> = (0..maps.maps.len()).collect();
        by_return.sort_by_key(|&map| maps.maps[map].first_backward);
        Profile {
            maps,
            start,
            by_eviction,
            by_return,
        }
    }

    /// FT of a map that is swapped alone.
    fn free_time_alone(&self, map: usize) -> f64 {
        let map = &self.maps.maps[map];
        let out = self.start[map.last_forward + 1] + map.out;
        self.start[map.first_backward] - map.back - out
    }

    /// By map, when its copy back begins; infinite for a map that isn't swapped.
    fn returns(&self, actions: &[Action]) -> Vec<f64> {
        let mut begin = vec![f64::INFINITY; actions.len()];
        let mut next = f64::INFINITY;
        for &map in self.by_return.iter().rev() {
            if actions[map] == Action::Swap {
                let what = &self.maps.maps[map];
                next = self.start[what.first_backward].min(next) - what.back;
                begin[map] = next;
            }
        }
        begin
    }

    /// The seconds by which the lowest FT of the swapped maps falls below 0.
    fn shortfall(&self, actions: &[Action]) -> f64 {
        let begin = self.returns(actions);
        let (mut out, mut lowest) = (0.0_f64, 0.0_f64);
        for &map in &self.by_eviction {
            if actions[map] == Action::Swap {
                let what = &self.maps.maps[map];
                out = out.max(self.start[what.last_forward + 1]) + what.out;
                lowest = lowest.min(begin[map] - out);
            }
        }
        -lowest
    }
}

/// The policy, and whether it fits.
pub(super) fn policy(maps: &Maps<'_, '_>, cutoff: Cutoff<'_>) -> (Policy, bool) {
    let profile = Profile::new(maps);
    let mut evaluator = Evaluator::new(maps);
    let mut policy = Policy::of(uniform(maps, Action::Keep));
    let mut fits = choose(maps, &profile, &mut evaluator, &mut policy, cutoff);
    if fits {
        keep_collectively(maps, &mut evaluator, &mut policy);
        fits = trigger(maps, &profile, &mut evaluator, &mut policy, cutoff);
    }
    (policy, fits)
}

/// Chooses until the step fits; whether it does.
fn choose(
    maps: &Maps<'_, '_>,
    profile: &Profile<'_, '_, '_>,
    evaluator: &mut Evaluator<'_, '_, '_>,
    policy: &mut Policy,
    cutoff: Cutoff<'_>,
) -> bool {
    let capacity = maps.graph.capacity;
    let fits = |evaluator: &mut Evaluator<'_, '_, '_>, policy: &Policy| {
        evaluator.peak(policy).is_some_and(|peak| peak <= capacity)
    };
    if fits(evaluator, policy) {
        return true;
    }
    // Each task is one operation, because nothing runs again.
    let short: Vec<bool> = (evaluator.unfolded.base.iter())
        .map(|&bytes| bytes > capacity as i64)
        .collect();
    let covers = |map: &usize| {
        let map = &maps.maps[*map];
        short[map.last_forward + 1..map.first_backward].contains(&true)
    };
    let mut left: Vec<usize> = (0..maps.maps.len()).filter(covers).collect();
    // The largest free time last.
    left.sort_by(|&a, &b| {
        profile
            .free_time_alone(a)
            .total_cmp(&profile.free_time_alone(b))
    });
    let mut rest = Vec::new();
    while let Some(map) = left.pop() {
        policy.actions[map] = Action::Swap;
        if profile.shortfall(&policy.actions) > 0.0 {
            policy.actions[map] = Action::Keep;
            rest.push(map);
        } else if fits(evaluator, policy) {
            return true;
        }
    }
    let mut shortfall = 0.0;
    while !rest.is_empty() && !cutoff.reached() {
        let times = rest
            .iter()
            .map(|&map| (map, recompute_seconds(maps, &policy.actions, map)));
        let saving = |&(map, seconds): &(usize, f64)| maps.maps[map].bytes as f64 / seconds;
        let again = times
            .filter(|(_, seconds)| seconds.is_finite())
            .max_by(|one, other| saving(one).total_cmp(&saving(other)));
        let swap = rest[0];
        policy.actions[swap] = Action::Swap;
        let swapped = profile.shortfall(&policy.actions);
        let map = match again {
            Some((map, seconds)) if seconds < swapped - shortfall => {
                policy.actions[swap] = Action::Keep;
                policy.actions[map] = Action::RecomputeLean;
                map
            }
            _ => {
                shortfall = swapped;
                swap
            }
        };
        rest.retain(|&other| other != map);
        if fits(evaluator, policy) {
            return true;
        }
    }
    // What is left is evicted in the order of access, whatever it costs.
    for &map in &profile.by_eviction {
        policy.actions[map] = Action::Swap;
        if fits(evaluator, policy) {
            return true;
        }
    }
    false
}

/// Seconds of making a map again with everything that is gone by then; infinite if that is impossible.
fn recompute_seconds(maps: &Maps<'_, '_>, actions: &[Action], map: usize) -> f64 {
    let graph = maps.graph;
    let mut seen = Vec::new();
    let mut left = vec![maps.maps[map].producer];
    let mut seconds = 0.0;
    while let Some(task) = left.pop() {
        if seen.contains(&task) {
            continue;
        }
        if !graph.tasks[task].rerunnable {
            return f64::INFINITY;
        }
        seen.push(task);
        seconds += graph.tasks[task].seconds;
        for &value in &graph.tasks[task].inputs {
            let what = &graph.values[value];
            let gone = match maps.of(value) {
                Some(map) => matches!(actions[map], Action::Recompute | Action::RecomputeLean),
                // Forward values that the backward pass doesn't read are gone by then.
                None => {
                    let last = what.consumers[what.consumers.len() - 1];
                    !what.kept && graph.tasks[last].forward
                }
            };
            left.extend(what.producer.filter(|_| gone));
        }
    }
    seconds
}

/// What is made again stays where there is room for it.
fn keep_collectively(
    maps: &Maps<'_, '_>,
    evaluator: &mut Evaluator<'_, '_, '_>,
    policy: &mut Policy,
) {
    for map in (0..maps.maps.len()).rev() {
        if policy.actions[map] != Action::RecomputeLean {
            continue;
        }
        policy.actions[map] = Action::Recompute;
        let peak = evaluator.peak(policy);
        if peak.is_none_or(|peak| peak > maps.graph.capacity) {
            policy.actions[map] = Action::RecomputeLean;
        }
    }
}

/// Places the in-triggers, with feedback; whether any iteration fits.
fn trigger(
    maps: &Maps<'_, '_>,
    profile: &Profile<'_, '_, '_>,
    evaluator: &mut Evaluator<'_, '_, '_>,
    policy: &mut Policy,
    cutoff: Cutoff<'_>,
) -> bool {
    let mut begin = profile.returns(&policy.actions);
    let mut best: Option<(f64, Policy)> = None;
    for _ in 0..ROUNDS {
        let access = |&begin: &f64| {
            profile
                .start
                .partition_point(|&start| start <= begin)
                .saturating_sub(1)
        };
        policy.issue = Some(begin.iter().map(access).collect());
        let Some(seconds) = evaluator.seconds(policy) else {
            break;
        };
        if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
            best = Some((seconds, policy.clone()));
        }
        let mut late = false;
        for (map, begin) in begin.iter_mut().enumerate() {
            if evaluator.late[map] > 0.0 {
                *begin -= STEP * maps.maps[map].back;
                late = true;
            }
        }
        if !late || cutoff.reached() {
            break;
        }
    }
    let fits = best.is_some();
    if let Some((_, found)) = best {
        *policy = found;
    }
    fits
}

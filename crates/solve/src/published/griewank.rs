//! Griewank & Walther 2000: binomial checkpointing ("revolve") on the chain of candidates, completed with the
//! fewest runs.

use std::ops::Range;

use super::chain::{Chain, stretches};
use super::chen::Search;
use super::graph::Graph;
use super::policy::Policy;
use crate::error::SolveError;
use crate::method::Candidates;
use crate::options::{Options, Solved};

/// Searches over the number of checkpoints.
pub(super) fn plan(
    graph: &Graph<'_>,
    options: &Options,
    candidates: Candidates,
) -> Result<Solved, SolveError> {
    let mut search = Search::new(graph, options);
    let chain = Chain::new(graph);
    let allowed = chain.candidates(candidates);
    for slots in counts(allowed.len()) {
        if search.cutoff.reached() {
            break;
        }
        search.offer(policy(graph, &chain, &allowed, slots), || {
            format!("{slots} checkpoints")
        })?;
    }
    search.outcome()
}

/// Numbers of checkpoints worth trying: every number up to 32, then in ever larger steps.
fn counts(candidates: usize) -> Vec<usize> {
    let mut counts = vec![0];
    while let Some(&last) = counts.last()
        && last < candidates
    {
        counts.push((last + 1 + last / 32).min(candidates));
    }
    counts
}

/// What each stage holds with this many slots besides the slot of the input.
pub(super) fn policy(
    graph: &Graph<'_>,
    chain: &Chain<'_, '_>,
    candidates: &[usize],
    slots: usize,
) -> Policy {
    let n = graph.tasks.len();
    // Step `j` of the chain leads from candidate `j - 1` (or the input, for 0) to candidate `j`; the last
    // step leads beyond the last candidate. A stage that belongs to a task reverses the step after that task.
    // During the forward pass, what is stored is what the last step needs.
    let steps = candidates.len() + 1;
    let step_of = |stage: usize| match stage >= chain.forward {
        true => candidates.partition_point(|&candidate| candidate <= chain.place(stage)),
        false => steps - 1,
    };
    let stored = revolve(steps, slots);
    let mut policy = chain.one_forward_pass();
    let of_step = stretches(1..n, step_of);
    for (state, during) in stored {
        for stages in joined(&of_step, |stages| during.contains(&step_of(stages.start))) {
            chain.hold(&mut policy, stages, [candidates[state - 1]]);
        }
    }
    // What the previous stage read, or made again, for the same step serves this stage too.
    for stage in chain.forward + 1..n {
        for &value in &graph.tasks[stage].inputs {
            if graph.tasks[stage - 1].inputs.contains(&value) {
                policy.hold(value, stage..stage + 1);
            }
        }
    }
    for stages in stretches(chain.forward..n, step_of) {
        let step = step_of(stages.start);
        let first = if step == 0 { 0 } else { candidates[step - 1] };
        let last = candidates.get(step).copied().unwrap_or(chain.forward);
        let segment = first..(last + 1).min(n);
        chain.hold(&mut policy, stages.start + 1..stages.end, segment);
    }
    policy
}

/// The stretches with a property, where adjacent ones are joined.
fn joined(stretches: &[Range<usize>], holds: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for stretch in stretches.iter().filter(|stretch| holds(stretch)) {
        match joined.last_mut() {
            Some(last) if last.end == stretch.start => last.end = stretch.end,
            _ => joined.push(stretch.clone()),
        }
    }
    joined
}

/// The states of a chain of `steps` that are stored, each with the steps during whose reversal it is stored.
/// State `j` is the input of step `j`. State 0 is always stored, and `slots` others can be.
fn revolve(steps: usize, slots: usize) -> Vec<(usize, Range<usize>)> {
    let mut stored = Vec::new();
    // Ranges of steps still to be reversed, last range first, each with the number of states stored below it.
    let mut ranges = vec![(0..steps, 0)];
    while let Some((range, below)) = ranges.pop() {
        let free = slots.saturating_sub(below);
        if range.len() == 1 || free == 0 {
            continue;
        }
        let middle = range.start + advance(range.len(), free);
        stored.push((middle, middle..range.end));
        ranges.push((range.start..middle, below));
        ranges.push((middle..range.end, below + 1));
    }
    stored
}

/// How far to advance before the next checkpoint, with `steps` to reverse and `slots` left besides the slot
/// of the range's first state. Let `c = slots + 1`, β(c, r) = (c + r choose c), and r be the least number of
/// repetitions for which β(c, r) ≥ steps. An advance within [β(c, r − 2), β(c, r − 1)] that leaves a rest
/// within [β(c − 1, r − 1), β(c − 1, r)] is optimal; the largest one is taken.
fn advance(steps: usize, slots: usize) -> usize {
    let mut repetitions = 1;
    while binomial(slots + 1, repetitions) < steps {
        repetitions += 1;
    }
    let most = binomial(slots + 1, repetitions - 1);
    let rest = binomial(slots, repetitions - 1);
    most.min(steps.saturating_sub(rest)).clamp(1, steps - 1)
}

/// (s + r choose s), saturating.
fn binomial(s: usize, r: usize) -> usize {
    let mut value: u128 = 1;
    for i in 1..=s.min(r) as u128 {
        value = value * ((s + r) as u128 + 1 - i) / i;
        if value > u128::from(u32::MAX) {
            return usize::MAX;
        }
    }
    value as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forward steps that reversing takes beyond the first sweep, by dynamic programming over the place of
    /// the next checkpoint.
    fn least_advances(steps: usize, slots: usize) -> Vec<Vec<usize>> {
        let mut best = vec![vec![0; slots + 1]; steps + 1];
        for n in 2..=steps {
            // Without a slot, each step is reached from the start of the range.
            best[n][0] = n * (n - 1) / 2;
            for s in 1..=slots {
                let options = (1..n).map(|m| m + best[n - m][s - 1] + best[m][s]);
                best[n][s] = options.min().unwrap_or(0);
            }
        }
        best
    }

    /// Forward steps of the schedule: for each range, the advance to the checkpoint or to each step.
    fn advances(steps: usize, slots: usize) -> usize {
        if steps <= 1 {
            0
        } else if slots == 0 {
            steps * (steps - 1) / 2
        } else {
            let middle = advance(steps, slots);
            middle + advances(steps - middle, slots - 1) + advances(middle, slots)
        }
    }

    #[test]
    fn the_schedule_takes_the_fewest_steps_there_are() {
        let best = least_advances(60, 8);
        for (steps, best) in best.iter().enumerate().skip(1) {
            for (slots, &best) in best.iter().enumerate() {
                assert_eq!(advances(steps, slots), best, "{steps} steps, {slots} slots");
            }
        }
    }

    #[test]
    fn no_more_states_are_stored_than_there_are_slots() {
        for steps in 1..40 {
            for slots in 0..10 {
                let stored = revolve(steps, slots);
                for step in 0..steps {
                    let states = stored.iter().filter(|(_, during)| during.contains(&step));
                    let states: Vec<usize> = states.map(|(state, _)| *state).collect();
                    assert!(states.len() <= slots && states.iter().all(|&s| s >= 1 && s <= step));
                }
            }
        }
    }
}

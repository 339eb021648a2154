//! What a plan takes on devices that slow each other down. A run takes its seconds as long as no other device computes,
//! and `slowed` times as long as all others do; in between, what that makes of its own time. A copy between two devices
//! that compute takes from them what its link says while all devices compute: else it has a core to itself. Who computes
//! when follows from the times, so these are worked out again until they stay.

use scrimp_plan::{CheckedPlan, Lane, Span, Step, Timeline, simulate_with};

/// What a run takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Seconds while no other device computes.
    pub seconds: f64,
    /// How many times as long it takes while all others compute.
    pub slowed: f64,
}

/// Times are worked out at most so often, and until a plan's makespan changes by less than this part.
const ROUNDS: usize = 30;
const SETTLED: f64 = 1e-4;

/// Plays a plan through time. Steps without an entry take what the problem says.
pub(super) fn simulate_beside(plan: &CheckedPlan, runs: &[Option<Run>]) -> Timeline {
    let mut shares = vec![0.0; runs.len()];
    let devices = plan.problem().devices();
    let between = |step: usize| match plan.steps()[step] {
        Step::Copy { from, to, .. } => devices[from].computes && devices[to].computes,
        _ => false,
    };
    let mut before = f64::INFINITY;
    for round in 0.. {
        let seconds = |step: usize| {
            let Run { seconds, slowed } = runs[step]?;
            // A share of the longer time was beside others: in it, 1 / slowed of the work is done that is done alone.
            Some(seconds / (1.0 - shares[step] * (1.0 - 1.0 / slowed)))
        };
        let drag = |step: usize| if between(step) { shares[step] } else { 1.0 };
        let times = simulate_with(plan, &seconds, &drag);
        let settled = (times.makespan() - before).abs() <= SETTLED * times.makespan();
        if settled || round + 1 >= ROUNDS {
            return times;
        }
        before = times.makespan();
        // Half of the way: two devices whose runs evade each other would change places for ever.
        for (share, overlap) in shares.iter_mut().zip(overlaps(plan, &times)) {
            *share += (overlap - *share) / 2.0;
        }
    }
    unreachable!("the last round returns")
}

/// The share of each run's time in which another device computes, in the mean over the others, and of each copy's time
/// in which all devices compute, if they do so independently of each other; 0 for frees.
fn overlaps(plan: &CheckedPlan, times: &Timeline) -> Vec<f64> {
    let on = |lane: Lane| {
        let spans = times.spans().iter().enumerate();
        let busy = spans.filter(move |(_, span)| span.lane == lane && span.end > span.start);
        let mut busy: Vec<(usize, &Span)> = busy.collect();
        busy.sort_by(|(_, a), (_, b)| a.start.total_cmp(&b.start));
        busy
    };
    let problem = plan.problem();
    let devices = problem.devices().iter();
    let devices = devices.filter(|(_, what)| what.computes);
    let devices: Vec<Vec<(usize, &Span)>> = devices
        .map(|(device, _)| on(Lane::Device(device)))
        .collect();
    let mut shares = vec![0.0; times.spans().len()];
    let others = devices.len().saturating_sub(1).max(1) as f64;
    for (number, runs) in devices.iter().enumerate() {
        for (_, other) in devices.iter().enumerate().filter(|&(k, _)| k != number) {
            covered(runs, other, &mut |step, share| {
                shares[step] += share / others
            });
        }
    }
    for link in problem.links().keys() {
        let copies = on(Lane::Link(link));
        copies.iter().for_each(|&(step, _)| shares[step] = 1.0);
        for runs in &devices {
            covered(&copies, runs, &mut |step, share| shares[step] *= share);
        }
    }
    shares
}

/// Tells the share of each span's time that the spans of another lane cover. Both are sorted.
fn covered(spans: &[(usize, &Span)], others: &[(usize, &Span)], tell: &mut dyn FnMut(usize, f64)) {
    let mut first = 0;
    for &(step, span) in spans {
        while first < others.len() && others[first].1.end <= span.start {
            first += 1;
        }
        let beside = others[first..].iter();
        let beside = beside.take_while(|(_, other)| other.start < span.end);
        let shared = beside.map(|(_, other)| other.end.min(span.end) - other.start.max(span.start));
        tell(step, shared.sum::<f64>() / (span.end - span.start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::PrimaryMap;
    use scrimp_plan::{
        Device, DeviceId, Keep, Link, Mode, Move, Origin, Phase, Problem, ProblemParts, Sequence,
        Task, TaskId, Value, ValueId, check,
    };

    /// Two devices and tasks, each on one of the devices; it may read what an earlier one makes, which is copied as soon as
    /// it is there. A copy takes a second and half of that from computing.
    fn plan(placed: &[(u32, Option<u32>)]) -> CheckedPlan {
        let (mut tasks, mut values) = (PrimaryMap::new(), PrimaryMap::new());
        for &(device, read) in placed {
            let task = TaskId::from_u32(tasks.len() as u32);
            let output = values.push(Value {
                name: format!("v{task}"),
                bytes: 1,
                origin: Origin::Task(task),
                keep: Keep::No,
            });
            tasks.push(Task {
                name: format!("t{task}"),
                phase: Phase::Forward,
                inputs: read.map(ValueId::from_u32).into_iter().collect(),
                outputs: vec![output],
                overwrites: Vec::new(),
                modes: vec![Mode {
                    device: DeviceId::from_u32(device),
                    seconds: 1.0,
                    joules: 0.0,
                    workspace: 0,
                    resident: 0,
                }],
                rerunnable: true,
            });
        }
        let computing = ["a", "b"].map(Device::computing);
        let link = |(from, to): (u32, u32)| Link {
            drag: 0.5,
            ..Link::new(DeviceId::from_u32(from), DeviceId::from_u32(to), 1.0, 0.0)
        };
        let problem = Problem::new(ProblemParts {
            name: "apart".into(),
            devices: computing.into_iter().collect(),
            tasks,
            values,
            links: [(0, 1), (1, 0)].into_iter().map(link).collect(),
            ..ProblemParts::default()
        });
        let problem = problem.expect("valid");
        let device = |number: u32| DeviceId::from_u32(number);
        let mut moves = Vec::new();
        for (task, &(on, _)) in problem.tasks().keys().zip(placed) {
            let on = device(on);
            moves.push(Move::Run { task, device: on });
            let value = problem.task(task).outputs[0];
            let read = |&&(other, read): &&(u32, Option<u32>)| {
                device(other) != on && read.map(ValueId::from_u32) == Some(value)
            };
            moves.extend(placed.iter().find(read).map(|&(other, _)| Move::Copy {
                value,
                from: on,
                to: device(other),
            }));
        }
        let sequence = Sequence { moves };
        check(&problem, sequence.plan(&problem).expect("it can run")).expect("a plan")
    }

    fn ends(placed: &[(u32, Option<u32>)], seconds: &[f64], slowed: f64) -> Vec<f64> {
        let plan = plan(placed);
        let mut left = seconds.iter();
        let runs = plan.steps().iter().map(|step| match step {
            Step::Run { .. } => left.next().map(|&seconds| Run { seconds, slowed }),
            _ => None,
        });
        let runs: Vec<Option<Run>> = runs.collect();
        let times = simulate_beside(&plan, &runs);
        let steps = plan.steps().iter().zip(times.spans());
        let runs = steps.filter(|(step, _)| matches!(step, Step::Run { .. }));
        runs.map(|(_, span)| span.end).collect()
    }

    #[test]
    fn copies_take_a_core_only_while_all_devices_compute() {
        let makespan = |tasks: &[(u32, Option<u32>)], seconds: &[f64]| {
            let ends = ends(tasks, seconds, 1.0);
            ends.into_iter().fold(0.0, f64::max)
        };
        // The copy takes a second, in which the second device has nothing to do.
        let tasks = [(0, None), (0, Some(0)), (1, Some(0))];
        let found = makespan(&tasks, &[1.0, 3.0, 1.0]);
        assert!((found - 4.0).abs() < 0.01, "{found}");
        // Now both compute meanwhile but for what they lose.
        let tasks = [(0, None), (1, None), (0, Some(0)), (1, Some(0))];
        let found = makespan(&tasks, &[1.0, 3.0, 3.0, 1.0]);
        assert!((4.3..4.5).contains(&found), "{found}");
    }

    #[test]
    fn only_who_computes_at_the_same_time_is_slowed_down() {
        let near = |found: Vec<f64>, expected: &[f64]| {
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            assert!(
                off.fold(0.0, f64::max) < 0.01,
                "{found:?}, not {expected:?}"
            );
        };
        // One after the other on one device.
        near(ends(&[(0, None), (0, None)], &[1.0, 3.0], 2.0), &[1.0, 4.0]);
        // The first takes 2 s, in which the second does 1 s of its work; it then goes on alone.
        near(ends(&[(0, None), (1, None)], &[1.0, 3.0], 2.0), &[2.0, 4.0]);
        near(ends(&[(0, None), (1, None)], &[1.0, 3.0], 1.0), &[1.0, 3.0]);
    }
}

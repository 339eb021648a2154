//! What a plan takes on devices that slow each other down. A run takes its seconds as long as no other device computes,
//! and `slowed` times as long as all others do; in between, what that makes of its own time. When the others compute
//! follows from the times, so these are worked out again until they stay.

use scrimp_plan::{CheckedPlan, Lane, Span, Timeline, simulate_with};

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
    let mut before = f64::INFINITY;
    for round in 0.. {
        let seconds = |step: usize| {
            let Run { seconds, slowed } = runs[step]?;
            // A share of the longer time was beside others: in it, 1 / slowed of the work is done that is done alone.
            Some(seconds / (1.0 - shares[step] * (1.0 - 1.0 / slowed)))
        };
        let times = simulate_with(plan, &seconds);
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

/// The share of each run's time in which another device computes, in the mean over the others; 0 for other steps.
fn overlaps(plan: &CheckedPlan, times: &Timeline) -> Vec<f64> {
    let devices = plan.problem().devices().iter();
    let computing: Vec<Lane> = devices
        .filter(|(_, what)| what.computes)
        .map(|(device, _)| Lane::Device(device))
        .collect();
    let mut shares = vec![0.0; times.spans().len()];
    let on = |lane: Lane| {
        let spans = times.spans().iter().enumerate();
        let runs = spans.filter(move |(_, span)| span.lane == lane && span.end > span.start);
        let mut runs: Vec<(usize, &Span)> = runs.collect();
        runs.sort_by(|(_, a), (_, b)| a.start.total_cmp(&b.start));
        runs
    };
    let lanes: Vec<Vec<(usize, &Span)>> = computing.iter().map(|&lane| on(lane)).collect();
    let others = lanes.len().saturating_sub(1).max(1) as f64;
    for (number, lane) in lanes.iter().enumerate() {
        for (_, other) in lanes.iter().enumerate().filter(|&(k, _)| k != number) {
            let mut first = 0;
            for &(step, span) in lane {
                while first < other.len() && other[first].1.end <= span.start {
                    first += 1;
                }
                let beside = other[first..].iter();
                let beside = beside.take_while(|(_, run)| run.start < span.end);
                let shared =
                    beside.map(|(_, run)| run.end.min(span.end) - run.start.max(span.start));
                shares[step] += shared.sum::<f64>() / (span.end - span.start) / others;
            }
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::PrimaryMap;
    use scrimp_plan::{
        Device, DeviceId, Keep, Mode, Origin, Phase, Problem, ProblemParts, Sequence, Step, Task,
        TaskId, Value, check,
    };

    /// Two devices and tasks that don't depend on each other, each on one of the devices.
    fn plan(devices: &[u32]) -> CheckedPlan {
        let (mut tasks, mut values) = (PrimaryMap::new(), PrimaryMap::new());
        for &device in devices {
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
                inputs: Vec::new(),
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
        let problem = Problem::new(ProblemParts {
            name: "apart".into(),
            devices: computing.into_iter().collect(),
            tasks,
            values,
            ..ProblemParts::default()
        });
        let problem = problem.expect("valid");
        let runs = problem.tasks().keys().zip(devices);
        let runs = runs.map(|(task, &device)| (task, DeviceId::from_u32(device)));
        let sequence = Sequence::placed(&problem, runs.collect::<Vec<_>>());
        check(&problem, sequence.plan(&problem).expect("it can run")).expect("a plan")
    }

    fn ends(devices: &[u32], seconds: &[f64], slowed: f64) -> Vec<f64> {
        let plan = plan(devices);
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
    fn only_who_computes_at_the_same_time_is_slowed_down() {
        let near = |found: Vec<f64>, expected: &[f64]| {
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            assert!(
                off.fold(0.0, f64::max) < 0.01,
                "{found:?}, not {expected:?}"
            );
        };
        // One after the other on one device.
        near(ends(&[0, 0], &[1.0, 3.0], 2.0), &[1.0, 4.0]);
        // The first takes 2 s, in which the second does 1 s of its work; it then goes on alone.
        near(ends(&[0, 1], &[1.0, 3.0], 2.0), &[2.0, 4.0]);
        near(ends(&[0, 1], &[1.0, 3.0], 1.0), &[1.0, 3.0]);
    }
}

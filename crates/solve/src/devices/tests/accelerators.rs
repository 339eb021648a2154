//! The best placements on a host and two accelerators, from all there are.

use scrimp_plan::{Device, Keep, Link, Mode, Origin, Phase, ProblemParts, Task, Value};

use super::*;

/// A host, and two equal accelerators with a link each way, for tasks that take bytes for good there and read what
/// these earlier tasks make; those of the pair are on one device.
fn on_accelerators(
    reads: &[Vec<usize>],
    pair: [usize; 2],
    random: &mut Random,
) -> (Problem, Capacities) {
    let mut parts = ProblemParts::default();
    let host = parts.devices.push(Device {
        concurrent: true,
        ..Device::computing("host")
    });
    let mut capacities = Capacities::unlimited();
    for name in ["one", "two"] {
        let device = parts.devices.push(Device::computing(name));
        capacities = capacities.with_bytes(device, Some(4));
        parts.links.push(Link::new(host, device, 1.0, 0.0));
        parts.links.push(Link::new(device, host, 1.0, 0.0));
    }
    for inputs in reads {
        let id = parts.tasks.next_key();
        let output = parts.values.push(Value {
            name: String::new(),
            bytes: 0,
            origin: Origin::Task(id),
            keep: Keep::No,
        });
        let seconds = 1.0 + random.unit();
        let mode = |device: DeviceId| Mode {
            device,
            seconds: if device == host {
                8.0 * seconds
            } else {
                seconds
            },
            joules: 0.0,
            workspace: 0,
            resident: u64::from(device != host) * (1 + id.index() as u64 % 2),
        };
        parts.tasks.push(Task {
            name: String::new(),
            phase: Phase::Forward,
            inputs: inputs.iter().map(|&task| ValueId::new(task)).collect(),
            outputs: vec![output],
            overwrites: Vec::new(),
            modes: parts.devices.keys().map(mode).collect(),
            rerunnable: false,
        });
    }
    for link in parts.links.values_mut() {
        let seconds = parts.values.keys().map(|v| (v, 4.0 * random.unit()));
        link.seconds = seconds.collect();
    }
    parts.together.push(pair.map(TaskId::new).to_vec());
    (Problem::new(parts).unwrap(), capacities)
}

#[test]
fn a_wide_beam_finds_the_best_placement_of_a_chain() {
    let tasks = 7;
    let chain: Vec<Vec<usize>> = (0..tasks)
        .map(|t| (0..t).last().into_iter().collect())
        .collect();
    for seed in 0..20 {
        let mut random = Random::new(seed, 8);
        let (problem, capacities) = on_accelerators(&chain, [1, tasks - 1], &mut random);
        let system = System::new(&problem, &capacities, &Options::default());
        let mut roomy = Roomy::new(&system);
        let mut cost = |list: &[Run]| {
            let judged = roomy.judge(list).unwrap();
            (judged.over == 0.0).then_some(judged.cost)
        };
        let mut least = f64::INFINITY;
        let place = |code: usize| {
            let device = |task: usize| code / 3usize.pow(task as u32) % 3;
            let runs = (0..tasks).map(|task| Run {
                task,
                device: device(task),
            });
            runs.collect::<Vec<Run>>()
        };
        for list in (0..3usize.pow(tasks as u32)).map(place) {
            if list[1].device == list[tasks - 1].device {
                least = least.min(cost(&list).unwrap_or(f64::INFINITY));
            }
        }
        let bound = bound::devices::cost(&problem, &capacities, &Options::default());
        assert!(
            bound <= least * (1.0 + 1e-9),
            "seed {seed}: {bound} {least}"
        );
        let mut beam = Beam::new(&system);
        let taste = Taste {
            width: 5000,
            blur: 0.0,
            caution: 1.0,
        };
        let found = beam.all(taste, &mut random).unwrap();
        let found_cost = cost(&found).unwrap();
        assert!(
            (found_cost - least).abs() < 1e-9,
            "seed {seed}: {found_cost} {least}"
        );
        // A window changes what is in it, and nothing gets slower.
        let host = place(0);
        let better = beam.window(&host, 2..5, taste, &mut random).unwrap();
        assert!(
            [0, 1, 5, 6].iter().all(|&t| better[t] == host[t]),
            "seed {seed}"
        );
        assert!(cost(&better) <= cost(&host), "seed {seed}");
    }
}

/// All orders in which tasks come after what they read.
fn orders(reads: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in reads {
        let longer = all.iter().flat_map(|order: &Vec<usize>| {
            let ready = (0..reads.len()).filter(|t| {
                !order.contains(t) && reads[*t].iter().all(|read| order.contains(read))
            });
            let with = |t: usize| order.iter().copied().chain([t]).collect();
            ready.map(with).collect::<Vec<Vec<usize>>>()
        });
        all = longer.collect();
    }
    all
}

#[test]
fn no_placement_in_any_order_is_below_the_bound_of_the_makespan() {
    const PROBLEMS: u32 = 300;
    let tasks = 6;
    let mut shares = 0.0;
    for seed in 0..PROBLEMS {
        let mut random = Random::new(seed.into(), 9);
        let mut reads: Vec<Vec<usize>> = Vec::new();
        for t in 0..tasks {
            let near = |u: &usize| random.unit() < if u + 1 == t { 0.8 } else { 0.3 };
            reads.push((0..t).filter(near).collect());
        }
        let first = (random.unit() * (tasks - 1) as f64) as usize;
        let pair = [
            first,
            first + 1 + (random.unit() * (tasks - 1 - first) as f64) as usize,
        ];
        let (problem, capacities) = on_accelerators(&reads, pair, &mut random);
        let system = System::new(&problem, &capacities, &Options::default());
        let mut roomy = Roomy::new(&system);
        let mut least = f64::INFINITY;
        for order in orders(&reads) {
            for code in 0..3usize.pow(tasks as u32) {
                let device = |task: usize| code / 3usize.pow(task as u32) % 3;
                if device(pair[0]) != device(pair[1]) {
                    continue;
                }
                let run = |&task: &usize| Run {
                    task,
                    device: device(task),
                };
                let list: Vec<Run> = order.iter().map(run).collect();
                let judged = roomy.judge(&list).unwrap();
                if judged.over == 0.0 {
                    least = least.min(judged.cost);
                }
            }
        }
        let bound = bound::devices::cost(&problem, &capacities, &Options::default());
        assert!(
            bound <= least * (1.0 + 1e-9),
            "seed {seed}: {bound} {least}"
        );
        shares += bound / least / f64::from(PROBLEMS);
    }
    // A bound of zero would pass, too.
    assert!(shares > 0.6, "{shares}");
}

use scrimp_plan::testing::{Family, network};
use scrimp_plan::{
    Capacities, Device, DeviceId, LinkSpeed, Mode, Origin, Phase, Problem, ProblemParts, Task,
    TaskId, Value, ValueId, check, simulate,
};

use super::evaluate::{Evaluator, Policy, uniform};
use super::layers::{Layer, Layers};
use super::maps::Maps;
use super::unfold::Action;
use super::{home, superneurons, vdnn};
use crate::cutoff::Cutoff;
use crate::error::SolveError;
use crate::method::{Method, Offload, Published, Reading};
use crate::options::{Options, Solved};
use crate::published::graph::Graph;
use crate::random::Random;
use crate::testing::{Shape, base_peak, device, problem};

mod joules;

fn speed(bandwidth: f64, half: bool) -> LinkSpeed {
    LinkSpeed {
        out: bandwidth,
        back: bandwidth,
        latency: 0.0,
        half,
        drag: 0.0,
    }
}

fn linked(problem: &Problem, speed: &LinkSpeed) -> Problem {
    problem.with_memory("host", speed).unwrap().0
}

fn within(bytes: u64) -> Capacities {
    Capacities::bytes_of(device(), bytes)
}

fn solve(
    problem: &Problem,
    capacities: &Capacities,
    method: Published,
) -> Result<Solved, SolveError> {
    let options = Options {
        method: Method::Published(method),
        ..Options::default()
    };
    crate::published::plan(problem, capacities, method, &options)
}

fn with_maps<T>(
    problem: &Problem,
    capacities: &Capacities,
    method: Published,
    use_them: impl FnOnce(&Maps<'_, '_>) -> T,
) -> T {
    let graph = Graph::new(problem, capacities, Method::Published(method)).unwrap();
    use_them(&Maps::new(&graph).unwrap())
}

/// A layer: name, seconds forward and backward, bytes of its map, workspace of its forward task.
type LayerOf<'a> = (&'a str, f64, f64, u64, u64);

/// A chain of layers: FWDi writes map i and reads map i − 1; BWDi reads map i − 1 and the gradient of i's
/// output, which has 10 bytes; the last one reads the last map too.
fn chain(layers: &[LayerOf<'_>]) -> Problem {
    let mut parts = ProblemParts {
        name: "chain".into(),
        ..ProblemParts::default()
    };
    let device = parts.devices.push(Device::computing("gpu"));
    let n = layers.len() as u32;
    for k in 0..2 * n {
        let i = if k < n { k } else { 2 * n - 1 - k };
        let (name, forward, backward, bytes, workspace) = layers[i as usize];
        let mut inputs = Vec::new();
        inputs.extend((i > 0).then(|| ValueId::from_u32(i - 1)));
        // The gradient that the task before wrote, or the last map.
        inputs.extend((k >= n).then(|| ValueId::from_u32(k - 1)));
        parts.values.push(Value {
            name: String::new(),
            bytes: if k < n { bytes } else { 10 },
            origin: Origin::Task(TaskId::from_u32(k)),
            keep: Default::default(),
        });
        parts.tasks.push(Task {
            name: name.into(),
            phase: if k < n {
                Phase::Forward
            } else {
                Phase::Backward
            },
            inputs,
            outputs: vec![ValueId::from_u32(k)],
            overwrites: Vec::new(),
            modes: vec![Mode {
                device,
                seconds: if k < n { forward } else { backward },
                joules: 0.0,
                workspace: if k < n { workspace } else { 0 },
                resident: 0,
            }],
            rerunnable: true,
        });
    }
    Problem::new(parts).unwrap()
}

/// The example of 3.4: FWD4 needs the room of map 2, and BWD3 needs the map.
fn example() -> Problem {
    chain(&[
        ("l1", 2.0, 2.0, 10, 0),
        ("l2", 2.0, 2.0, 100, 0),
        ("l3", 3.0, 2.0, 10, 0),
        ("l4", 2.0, 4.0, 10, 100),
    ])
}

#[test]
fn swapping_costs_what_the_paper_says() {
    for (bandwidth, half) in [
        (100.0, false),
        (50.0, true),
        (32.0, false),
        (20.0, true),
        (10.0, false),
    ] {
        let problem = linked(&example(), &speed(bandwidth, half));
        let capacities = within(150);
        with_maps(
            &problem,
            &capacities,
            Published::Home(Reading::Literal),
            |maps| {
                let mut actions = uniform(maps, Action::Keep);
                actions[1] = Action::Swap;
                let policy = Policy::of(actions);
                let copy: f64 = 100.0 / bandwidth;
                let (out, back) = ((copy - 3.0).max(0.0), (copy - 4.0).max(0.0));
                let mut evaluator = Evaluator::new(maps);
                assert_eq!(
                    evaluator.seconds(&policy),
                    Some(19.0 + out + back),
                    "{bandwidth}"
                );
                assert_eq!(evaluator.overhead, [0.0, out + back, 0.0, 0.0]);
                let kept = Policy::of(uniform(maps, Action::Keep));
                assert_eq!(evaluator.seconds(&kept), None);
            },
        );
    }
}

#[test]
fn making_a_map_again_makes_what_is_missing_too() {
    let problem = linked(&example(), &speed(1.0, false));
    let capacities = within(1000);
    with_maps(
        &problem,
        &capacities,
        Published::Home(Reading::Literal),
        |maps| {
            let mut actions = uniform(maps, Action::Keep);
            (actions[1], actions[2]) = (Action::Recompute, Action::Recompute);
            let mut evaluator = Evaluator::new(maps);
            // BWD4 needs map 3, which needs map 2; map 2 stays for BWD3.
            let policy = Policy::of(actions.clone());
            assert_eq!(evaluator.seconds(&policy), Some(19.0 + 5.0));
            assert_eq!(evaluator.overhead, [0.0, 0.0, 5.0, 0.0]);
            actions[1] = Action::RecomputeLean;
            let policy = Policy::of(actions.clone());
            assert_eq!(evaluator.seconds(&policy), Some(19.0 + 5.0 + 2.0));
            // The copy back of map 2 (100 s) begins when its copy out is done; FWD3 can't begin again before that.
            actions[1] = Action::Swap;
            let policy = Policy::of(actions);
            let capacities = within(150);
            let lingers = evaluator.seconds(&policy);
            assert_eq!(
                lingers,
                Some(4.0 + 100.0 + 4.0),
                "BWD2 waits until map 2 can be freed"
            );
            with_maps(
                &problem,
                &capacities,
                Published::Home(Reading::Literal),
                |maps| {
                    let seconds = Evaluator::new(maps).seconds(&policy);
                    assert_eq!(seconds, Some(4.0 + 100.0 + 2.0 + 100.0 + 3.0 + 10.0));
                },
            );
        },
    );
}

#[test]
fn vdnn_waits_for_every_copy_out() {
    let layers = [
        ("conv1", 2.0, 2.0, 100, 0),
        ("conv2", 2.0, 3.0, 60, 0),
        ("conv3", 1.0, 2.0, 40, 0),
    ];
    let problem = linked(&chain(&layers), &speed(20.0, false));
    let capacities = within(1000);
    let found = solve(
        &problem,
        &capacities,
        Published::Vdnn(Offload::Convolutions),
    )
    .unwrap();
    // Map 1 (5 s) leaves while conv2 runs, map 2 (3 s) while conv3 runs. BWD3 brings map 2 back (3 s) for
    // itself and then waits; while it runs (2 s), map 1 comes back (5 s), for which BWD2 waits 3 s.
    assert_eq!(found.cost, 2.0 + 5.0 + 3.0 + 3.0 + (2.0 + 3.0) + 3.0 + 2.0);
}

#[test]
fn superneurons_follows_the_layers() {
    let layers = [
        ("conv1", 9.0, 9.0, 40, 0),
        ("bn1", 1.0, 1.0, 40, 0),
        ("relu1", 1.0, 1.0, 40, 0),
        ("conv2", 9.0, 9.0, 20, 0),
        ("relu2", 1.0, 1.0, 20, 0),
        ("cat", 1.0, 1.0, 20, 0),
        ("fc", 1.0, 1.0, 10, 0),
    ];
    let problem = linked(&chain(&layers), &speed(20.0, false));
    with_maps(&problem, &within(1000), Published::SuperNeurons, |maps| {
        let layers = Layers::new(maps, None);
        let policy = superneurons::policy(maps, &layers).unwrap();
        use Action::{Keep, Recompute, RecomputeLean, Swap};
        // No backward task has more than 60 bytes, and the first segment holds 80.
        let expected = [
            Swap,
            RecomputeLean,
            RecomputeLean,
            Swap,
            Recompute,
            Keep,
            Keep,
        ];
        assert_eq!(policy.actions, expected);
        let told = vec![Layer::Convolution; 14];
        let all = superneurons::policy(maps, &Layers::new(maps, Some(&told))).unwrap();
        assert_eq!(all.actions, vec![Swap; 7]);
        let offloaded = vdnn::policy(maps, &layers, Offload::All).unwrap();
        // What the classifier reads stays, and so does what it writes.
        assert_eq!(
            offloaded.actions,
            [Swap, Swap, Swap, Swap, Swap, Keep, Keep]
        );
    });
}

#[test]
fn capuchin_swaps_what_is_hidden_first() {
    let layers: Vec<LayerOf<'_>> = (0..8).map(|_| ("layer", 4.0, 4.0, 40, 0)).collect();
    let problem = linked(&chain(&layers), &speed(20.0, false));
    let peak = base_peak(&problem);
    let found = solve(&problem, &within(peak - 80), Published::Capuchin).unwrap();
    assert_eq!(
        found.cost, 64.0,
        "two early maps leave and return beside compute"
    );
    assert_eq!(found.plan.recomputed(), 0);
    // A link that hides nothing: the cheapest layers are made again.
    let problem = linked(&chain(&layers), &speed(0.1, false));
    let found = solve(&problem, &within(peak - 80), Published::Capuchin).unwrap();
    assert!(
        found.plan.recomputed() > 0 && found.cost < 100.0,
        "{}",
        found.cost
    );
}

/// Random training graphs with a memory.
fn training_graphs() -> impl Iterator<Item = (u64, Problem)> {
    (0..24).map(|seed| {
        let family = Family::ALL[seed as usize % 4];
        let problem = network(family, 40, true, seed);
        let bytes: u64 = problem.values().values().map(|value| value.bytes).sum();
        let seconds = problem.base_cost();
        let bandwidth = bytes as f64 / seconds * [0.3, 1.0, 4.0][seed as usize % 3];
        (seed, linked(&problem, &speed(bandwidth, seed % 2 == 0)))
    })
}

#[test]
fn evaluations_are_what_the_simulator_says() {
    let mut fitting = 0;
    for (seed, problem) in training_graphs() {
        let peak = base_peak(&problem);
        let mut random = Random::new(seed, 0);
        for percent in [40, 60, 80, 100] {
            let capacities = within(peak * percent / 100);
            with_maps(
                &problem,
                &capacities,
                Published::Home(Reading::Literal),
                |maps| {
                    let mut evaluator = Evaluator::new(maps);
                    for draw in 0..40 {
                        let mut policy = Policy::of(uniform(maps, Action::Keep));
                        for action in &mut policy.actions {
                            use Action::{Keep, Recompute, RecomputeLean, Swap};
                            *action = [Keep, Swap, Swap, Recompute, RecomputeLean][random.below(5)];
                        }
                        policy.synchronous = draw % 4 == 3;
                        if draw % 2 == 1 {
                            // Copies back in the forward pass could delay those out: the other memory has
                            // only as many bytes as the plan needs.
                            let (first, tasks) = (maps.stages[0], problem.tasks().len());
                            let issue = maps.maps.iter();
                            let issue = issue.map(|_| first + random.below(tasks - first));
                            policy.issue = Some(issue.collect());
                        }
                        let Some(seconds) = evaluator.seconds(&policy) else {
                            continue;
                        };
                        fitting += 1;
                        let plan = evaluator.plan(&policy).unwrap();
                        let plan = check(&problem, plan)
                            .unwrap_or_else(|all| panic!("{seed}: {}", all[0]));
                        assert!(plan.within(&capacities).is_ok(), "{seed}");
                        let simulated = simulate(&plan).makespan();
                        let close = (simulated - seconds).abs() <= 1e-9 * seconds;
                        assert!(close, "seed {seed}, draw {draw}: {seconds} and {simulated}");
                    }
                },
            );
        }
    }
    assert!(fitting > 1000, "{fitting}");
}

#[test]
fn methods_plan_within_both_capacities() {
    let mut planned = 0;
    // POET's program has tests of its own.
    let methods = || {
        let all = Published::ALL.into_iter();
        all.filter(|method| method.swaps() && method.library().is_none())
    };
    let rich = (0..30).map(|seed| {
        let shape = Shape {
            tasks: 10,
            rich: true,
        };
        let problem = problem(shape, &mut Random::new(seed, 0));
        (seed, linked(&problem, &speed(2.0, seed % 2 == 0)))
    });
    for (seed, problem) in training_graphs().chain(rich) {
        let peak = base_peak(&problem);
        let copied: u64 = problem.values().values().map(|value| value.bytes).sum();
        for (percent, room) in [(100, copied), (70, copied), (50, copied), (70, copied / 20)] {
            let capacities =
                within(peak * percent / 100).with_bytes(DeviceId::from_u32(1), Some(room));
            for method in methods() {
                let few = problem.tasks().len() > 20 && seed % 8 != 0;
                if few && matches!(method, Published::Home(_)) {
                    continue;
                }
                match solve(&problem, &capacities, method) {
                    Ok(found) => {
                        planned += 1;
                        assert!(found.plan.within(&capacities).is_ok(), "{seed}");
                        assert!(found.plan.keeps_order(), "{seed}");
                        assert!(found.lower_bound <= found.cost, "{seed}");
                    }
                    Err(SolveError::NotFound { least, .. }) => {
                        let budget = capacities.bytes(device()).unwrap();
                        assert!(least.is_none_or(|least| least > budget), "{seed}");
                    }
                    Err(SolveError::Unsupported(_)) => {}
                    Err(error) => panic!("{seed}, {}: {error}", method.name()),
                }
            }
        }
    }
    assert!(planned > 200, "{planned}");
}

#[test]
fn home_finds_the_best_policy_of_a_few_maps() {
    let layers = [
        ("l1", 5.0, 2.0, 30, 0),
        ("l2", 1.0, 2.0, 50, 0),
        ("l3", 3.0, 2.0, 40, 0),
        ("l4", 2.0, 4.0, 20, 60),
    ];
    for (bandwidth, bytes) in [(5.0, 140), (10.0, 130), (20.0, 160), (40.0, 120)] {
        let problem = linked(&chain(&layers), &speed(bandwidth, false));
        let capacities = within(bytes);
        let best = with_maps(
            &problem,
            &capacities,
            Published::Home(Reading::Literal),
            |maps| {
                let mut evaluator = Evaluator::new(maps);
                let kinds = [Action::Keep, Action::Swap, Action::Recompute];
                let policies = (0..81).map(|code: usize| {
                    let digit = |map: u32| kinds[code / 3usize.pow(map) % 3];
                    Policy::of((0..4).map(digit).collect())
                });
                let times = policies.filter_map(|policy| evaluator.seconds(&policy));
                times.min_by(f64::total_cmp)
            },
        );
        for reading in [Reading::Literal, Reading::Table3] {
            let found = solve(&problem, &capacities, Published::Home(reading));
            assert_eq!(
                found.ok().map(|found| found.cost),
                best,
                "{bandwidth} {bytes}"
            );
        }
    }
}

#[test]
fn home_does_not_depend_on_threads() {
    let (_, problem) = training_graphs().next().unwrap();
    let capacities = within(base_peak(&problem) * 6 / 10);
    with_maps(
        &problem,
        &capacities,
        Published::Home(Reading::Table3),
        |maps| {
            let found = [1, 2, 3].map(|threads| {
                let options = Options {
                    threads,
                    ..Options::default()
                };
                let layers = Layers::new(maps, None);
                home::search(maps, &layers, &options, Reading::Table3, Cutoff::NEVER).policy
            });
            assert!(found[0] == found[1] && found[1] == found[2]);
        },
    );
}

#[test]
fn problems_outside_the_models_are_refused() {
    let refused = |problem: &Problem, method: Published, part: &str| {
        let error = solve(problem, &within(100), method).unwrap_err();
        assert!(matches!(error, SolveError::Unsupported(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    for method in Published::ALL.into_iter().filter(|method| method.swaps()) {
        refused(&example(), method, "--swap");
    }
    let inference = network(Family::Skips, 20, false, 1);
    let inference = linked(&inference, &speed(1.0, false));
    refused(&inference, Published::Capuchin, "backward");
    let nameless = linked(&example(), &speed(1.0, false));
    refused(&nameless, Published::SuperNeurons, "convolution");
    refused(
        &nameless,
        Published::Vdnn(Offload::Convolutions),
        "convolution",
    );
    let two = nameless.with_memory("disk", &speed(1.0, false)).unwrap().0;
    refused(&two, Published::Capuchin, "several memories");
}

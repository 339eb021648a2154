use std::time::Duration;

use cranelift_entity::EntityRef;
use scrimp_plan::testing::{Family, network};
use scrimp_plan::{
    Capacities, Device, DeviceId, Keep, Link, LinkSpeed, Mode, Origin, Phase, Problem,
    ProblemParts, Sequence, Task, TaskId, Value, ValueId, check, simulate,
};

use super::*;
use crate::ids::Position;
use crate::solve::{leanest, solve};
use crate::testing::{Shape, base_peak, device, problem, swapping};

const MEMORY: u32 = 1;

/// The bytes of the values that are given in the first memory.
fn resting(problem: &Problem) -> u64 {
    let values = problem.values().values();
    let given = values.filter(|v| v.origin == Origin::Given(DeviceId::from_u32(MEMORY)));
    given.map(|v| v.bytes).sum()
}

fn random(round: usize) -> Random {
    Random::new(71, round as u64)
}

#[test]
fn the_profile_follows_every_copy() {
    let (mut brought, mut simulations) = (0, 0);
    for round in 0..300 {
        let mut rng = random(round);
        let p = swapping(round, &mut rng);
        let (model, _) = Model::with_copies(&p, &Capacities::unlimited()).unwrap();
        let given = model.with_brings(model.given_order());
        let mut state = State::new(&model, &given);
        let budget = (state.peak() * 1.2).floor();
        let mut timing = Timing::new(&model, budget);
        for _ in 0..30 {
            let mark = state.mark();
            for _ in 0..4 {
                let at = Position::new(1 + rng.below(state.len() - 1));
                let v = ValueId::new(rng.below(model.bytes.len()));
                let memory = rng.below(model.copies.memories.len());
                let bring = model.copies.bringing(memory, v);
                let run = state.run_at(at);
                let t = state.task_of(run);
                let again = TaskId::new(rng.below(model.tasks as usize));
                let may = model.rerunnable[again] && state.events_begin(v).is_some_and(|p| p < at);
                if may && state.available(v, at) && rng.below(2) == 0 {
                    state.insert(bring, at);
                    brought += 1;
                } else if model.rerunnable[again] && state.can_insert(again, at) {
                    state.insert(again, at);
                } else if at < state.last() && state.runs(t).len() > 1 && state.can_remove(run) {
                    state.remove(run);
                }
            }
            if rng.below(3) == 0 {
                state.undo_to(mark);
            }
            let fresh = State::new(&model, &state.order());
            assert_eq!(state.mem(), fresh.mem());
            assert!((state.copying() - fresh.copying()).abs() < 1e-9);
            // The same timing serves one state after another.
            let timed = Timing::new(&model, budget).makespan(&fresh);
            if fresh.peak() <= budget {
                assert_eq!(timing.makespan(&state), timed);
                if state.is_sound() {
                    let sequence = Sequence {
                        moves: timing.moves(&state),
                    };
                    let plan = check(&p, sequence.plan(&p).unwrap()).unwrap();
                    let simulated = simulate(&plan).makespan();
                    assert!(
                        (simulated - timed).abs() < 1e-9,
                        "round {round}: {simulated} {timed}"
                    );
                    simulations += 1;
                }
            }
            let mut memories = 0..model.copies.memories.len();
            assert!(memories.all(|m| state.sent(m) == fresh.sent(m)));
        }
    }
    assert!(
        brought > 1000 && simulations > 1000,
        "{brought} {simulations}"
    );
}

#[test]
fn plans_take_what_the_search_says_and_fit() {
    let (mut copies, mut reruns, mut plans) = (0, 0, 0);
    for round in 0..160 {
        let mut rng = random(round);
        let p = swapping(round, &mut rng);
        // In every other round, the first memory has little room.
        let memory = DeviceId::from_u32(MEMORY);
        let little = (round % 4 < 2).then(|| resting(&p) + 4 + rng.below(5) as u64);
        let capacities = Capacities::unlimited().with_bytes(memory, little);
        let (model, _) = Model::with_copies(&p, &capacities).unwrap();
        let options = Options {
            order: [Order::Fixed, Order::Free][round % 2],
            time_limit: Duration::from_millis(4),
            threads: 1,
            seed: round as u64,
            ..Options::default()
        };
        let order = model.with_brings(model.given_order());
        let (least, most) = (model.least_working_set(), State::new(&model, &order).peak());
        let share = rng.unit() * rng.unit();
        let budget = (least + (most - least) * share).floor();
        let found = run(&model, None, budget, &options, Instant::now(), &mut |_| {});
        let Some((seconds, moves)) = found.plan else {
            assert!(found.least > budget);
            continue;
        };
        let sequence = Sequence { moves };
        let plan = check(&p, sequence.plan(&p).unwrap()).unwrap();
        assert!(plan.peak(device()) as f64 <= budget + model.resident);
        plan.within(&capacities).unwrap();
        assert!(options.order == Order::Free || plan.keeps_order());
        let makespan = simulate(&plan).makespan();
        assert!(
            (makespan - seconds).abs() < 1e-9,
            "round {round}: {makespan} {seconds}"
        );
        copies += sequence
            .moves
            .iter()
            .filter(|m| matches!(m, Move::Copy { to, .. } if *to == device()))
            .count();
        reruns += plan.recomputed();
        plans += 1;
    }
    assert!(
        copies > 200 && reruns > 6 && plans > 120,
        "{copies} {reruns} {plans}"
    );
}

#[test]
fn what_is_given_in_one_memory_ends_in_another() {
    let mut passed = 0;
    for round in (4..200).step_by(5) {
        let mut rng = random(round);
        let mut parts = swapping(round, &mut rng).parts();
        let (memory, other) = (DeviceId::from_u32(MEMORY), DeviceId::from_u32(MEMORY + 1));
        let over = parts.tasks.values().flat_map(|task| &task.overwrites);
        let over: Vec<ValueId> = over.map(|over| over.input).collect();
        for (v, value) in parts.values.iter_mut() {
            if matches!(value.origin, Origin::Given(_)) && !over.contains(&v) {
                value.origin = Origin::Given(memory);
                value.keep = Keep::On(other);
            }
        }
        let p = Problem::new(parts).unwrap();
        let options = Options {
            order: [Order::Fixed, Order::Free][round % 2],
            time_limit: Duration::from_millis(4),
            threads: 1,
            ..Options::default()
        };
        let unlimited = Capacities::unlimited();
        let (least, _) = leanest(&p, &unlimited, &options, &mut |_| {}).unwrap();
        let within = Capacities::bytes_of(device(), least);
        let plan = solve(&p, &within, &options, &mut |_| {}).unwrap().plan;
        plan.within(&within).unwrap();
        let (model, _) = Model::with_copies(&p, &within).unwrap();
        passed += model.copies.passed.len();
        let runs = model.with_brings(model.given_order());
        let state = State::new(&model, &runs);
        let mut timing = Timing::new(&model, state.peak());
        let sequence = Sequence {
            moves: timing.moves(&state),
        };
        let plan = check(&p, sequence.plan(&p).unwrap()).unwrap();
        assert!(plan.peak(device()) as f64 <= state.peak() + model.resident);
        let simulated = simulate(&plan).makespan();
        let timed = timing.makespan(&state);
        assert!(
            (simulated - timed).abs() < 1e-9,
            "round {round}: {simulated} {timed}"
        );
    }
    assert!(passed > 10, "{passed}");
}

#[test]
fn a_memory_that_is_full_takes_no_more() {
    let mut met = 0;
    for round in 0..30 {
        let mut rng = random(round);
        let p = swapping(round, &mut rng);
        let memory = DeviceId::from_u32(MEMORY);
        let room = rng.below(8) as u64;
        let capacities = Capacities::bytes_of(memory, resting(&p) + room);
        let options = Options {
            time_limit: Duration::from_millis(4),
            ..Options::default()
        };
        if let Ok((least, solved)) = leanest(&p, &capacities, &options, &mut |_| {}) {
            assert!(solved.plan.peak(device()) <= least);
            let within = capacities.with_bytes(device(), Some(least));
            if solved.plan.within(&within).is_ok() {
                met += 1;
                let again = solve(&p, &within, &options, &mut |_| {}).unwrap();
                again.plan.within(&within).unwrap();
            }
        }
    }
    assert!(met > 15, "{met}");
}

#[test]
fn little_room_never_raises_the_least_budget() {
    let (mut tried, mut lower, mut higher) = (0, 0, 0);
    for round in 0..40 {
        let p = swapping(round, &mut random(round));
        // What rests in the memory can't do without it.
        let Ok((plain, _)) = Model::new(&p) else {
            continue;
        };
        let options = Options {
            time_limit: Duration::from_millis(100),
            ..Options::default()
        };
        let alone = driver::leanest(&plain, &options, Instant::now(), &mut |_| {});
        let alone = (State::new(&plain, &alone.runs).peak() + plain.resident) as u64;
        let little = Capacities::bytes_of(DeviceId::from_u32(MEMORY), 3);
        let (least, solved) = leanest(&p, &little, &options, &mut |_| {}).unwrap();
        assert!(solved.plan.peak(device()) <= least);
        solved.plan.within(&little).unwrap();
        tried += 1;
        lower += usize::from(least < alone);
        higher += usize::from(least > alone);
    }
    assert!(
        tried > 8 && lower > 0 && higher == 0,
        "{tried}: {lower}, {higher}"
    );
}

#[test]
fn room_is_used_again_when_a_value_has_come_back() {
    const TIMES: u32 = 4;
    const BYTES: u64 = 8;
    let mut parts = ProblemParts {
        name: "stretches".into(),
        ..ProblemParts::default()
    };
    parts.devices.push(Device::computing("cpu"));
    let memory = parts.devices.push(Device::memory("memory"));
    parts.links.push(Link::new(device(), memory, 8.0, 0.0));
    parts.links.push(Link::new(memory, device(), 8.0, 0.0));
    // Each value waits while a large task runs.
    let mut last = None;
    for k in 0..TIMES {
        let mut task = |name: &str, inputs: Vec<ValueId>, workspace, bytes| {
            let id = TaskId::from_u32(parts.tasks.len() as u32);
            let output = parts.values.push(Value {
                name: format!("{name} {k}"),
                bytes,
                origin: Origin::Task(id),
                keep: Keep::No,
            });
            parts.tasks.push(Task {
                name: format!("{name} {k}"),
                phase: Phase::Forward,
                inputs,
                outputs: vec![output],
                overwrites: Vec::new(),
                modes: vec![Mode {
                    device: device(),
                    seconds: 10.0,
                    joules: 0.0,
                    workspace,
                    resident: 0,
                }],
                rerunnable: true,
            });
            output
        };
        let made = task("make", last.into_iter().collect(), 0, BYTES);
        let between = task("wait", vec![made], 0, 1);
        let large = task("large", vec![between], 2 * BYTES, 1);
        last = Some(task("use", vec![made, large], 0, 1));
    }
    let p = Problem::new(parts).unwrap();
    let capacities = Capacities::bytes_of(memory, BYTES);
    let (model, _) = Model::with_copies(&p, &capacities).unwrap();
    let options = Options::default();
    let search = Search {
        model: &model,
        budget: (2 * BYTES + 2) as f64,
        options: &options,
        cutoff: Cutoff::NEVER,
    };
    let (seconds, runs) = search.repaired(None, false).unwrap();
    // Nothing has room for coming back while a large task runs.
    assert_eq!(seconds, model.base_cost() + f64::from(TIMES));
    let state = State::new(&model, &runs);
    assert_eq!(state.sent(0), (u64::from(TIMES) * BYTES) as f64);
    let (_, paged) = search.paged().unwrap();
    assert_eq!(State::new(&model, &paged).sent(0), state.sent(0));
}

#[test]
fn copies_never_make_a_plan_slower() {
    let options = Options {
        time_limit: Duration::from_millis(20),
        ..Options::default()
    };
    for round in 0..8 {
        let mut rng = random(round);
        let shape = Shape {
            tasks: 10 + round,
            rich: round % 2 == 0,
        };
        let plain = problem(shape, &mut rng);
        let mut parts = plain.parts();
        let memory = parts.devices.push(Device::memory("memory"));
        parts.links.push(Link::new(device(), memory, 0.5, 0.0));
        parts.links.push(Link::new(memory, device(), 0.5, 0.0));
        let with = Problem::new(parts).unwrap();
        let (least, _) = leanest(&plain, &Capacities::unlimited(), &options, &mut |_| {}).unwrap();
        let capacities = Capacities::bytes_of(device(), least);
        let alone = solve(&plain, &capacities, &options, &mut |_| {}).unwrap();
        let swapped = solve(&with, &capacities, &options, &mut |_| {}).unwrap();
        assert!(swapped.cost <= alone.cost * (1.0 + 1e-9), "round {round}");
    }
}

#[test]
fn no_working_set_is_larger_than_the_peak() {
    let mut fixed = 0;
    for round in 0..300 {
        let p = swapping(round, &mut random(round));
        let (model, _) = Model::with_copies(&p, &Capacities::unlimited()).unwrap();
        let order = model.with_brings(model.given_order());
        let peak = State::new(&model, &order).peak();
        assert!(model.least_working_set() <= peak, "round {round}");
        fixed += usize::from(model.fixed_bytes > 0.0);
    }
    assert!(fixed > 0);
}

#[test]
fn paging_reaches_every_budget_that_copies_can() {
    let (mut paged, mut least) = (0, 0);
    for round in 0..300 {
        let mut rng = random(round);
        let p = swapping(round, &mut rng);
        let (model, _) = Model::with_copies(&p, &Capacities::unlimited()).unwrap();
        let order = model.with_brings(model.given_order());
        let (low, high) = (model.least_working_set(), State::new(&model, &order).peak());
        let rests = |v: ValueId| model.copies.may_move(v) || model.bytes[v] == 0.0;
        let movable = model.value_ids().all(rests);
        for budget in [low, (low + high) / 2.0, high] {
            let Some(runs) = belady::paged(&model, budget) else {
                assert!(!movable, "round {round}, {budget}");
                continue;
            };
            let state = State::new(&model, &runs);
            assert!(state.is_sound() && state.peak() <= budget, "round {round}");
            let moves = Timing::new(&model, budget).moves(&state);
            let sequence = Sequence { moves };
            let plan = check(&p, sequence.plan(&p).unwrap()).unwrap();
            assert!(plan.keeps_order() && plan.recomputed() == 0);
            assert!(plan.peak(device()) as f64 <= budget + model.resident);
            paged += 1;
            least += usize::from(budget == low && low < high);
        }
    }
    assert!(paged > 600 && least > 100, "{paged} {least}");
}

#[test]
fn a_large_problem_has_a_plan_at_once() {
    let speed = LinkSpeed {
        out: 1e9,
        back: 1e9,
        latency: 0.0,
        half: false,
        drag: 0.0,
    };
    for (seed, family) in Family::ALL.into_iter().enumerate() {
        let alone = network(family, 3000, true, seed as u64);
        let (p, _) = alone.with_memory("host", &speed).unwrap();
        let options = Options {
            time_limit: Duration::ZERO,
            deadline: Some(Instant::now()),
            order: [Order::Fixed, Order::Free][seed % 2],
            ..Options::default()
        };
        let unlimited = Capacities::unlimited();
        let (least, lean) = leanest(&p, &unlimited, &options, &mut |_| {}).unwrap();
        assert!(least < base_peak(&p) / 2 && lean.plan.peak(device()) <= least);
        let within = Capacities::bytes_of(device(), least);
        let solved = solve(&p, &within, &options, &mut |_| {}).unwrap();
        solved.plan.within(&within).unwrap();
        let again = solve(&p, &within, &options, &mut |_| {}).unwrap();
        assert_eq!(solved.plan.steps(), again.plan.steps());
    }
}

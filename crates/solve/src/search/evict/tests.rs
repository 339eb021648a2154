use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, Problem, Sequence, TaskId, ValueId, check};

use super::*;
use crate::cutoff::Cutoff;
use crate::model::Model;
use crate::random::Random;
use crate::search::timing::Timing;
use crate::testing::{Shape, device, problem, swapping};

/// A random eviction, which may be impossible.
fn any_eviction(state: &State<'_>, rng: &mut Random) -> Eviction {
    let model = state.model;
    let mut place = || Position::new(1 + rng.below(state.len() - 2));
    let (a, b) = (place(), place());
    let (early, late) = (a.min(b), a.max(b));
    let memories = model.copies.memories.len();
    let value = ValueId::new(rng.below(model.bytes.len()));
    match rng.below(if memories > 0 { 5 } else { 4 }) {
        0 => Eviction::Rerun {
            task: TaskId::new(rng.below(model.tasks as usize)),
            before: late,
        },
        1 if early < late => Eviction::Advance {
            from: late,
            to: early,
        },
        1..=3 => Eviction::Postpone {
            from: early,
            to: late + 1,
        },
        _ => Eviction::Fetch {
            value,
            bring: model.copies.bringing(rng.below(memories), value),
            before: late,
        },
    }
}

/// Asserts that a state is what its order makes, and that the order makes a plan.
fn assert_sound(state: &State<'_>, problem: &Problem, what: &str) {
    let fresh = State::new(state.model, &state.order());
    assert_eq!(state.mem(), fresh.mem(), "{what}");
    assert!(state.is_sound(), "{what}");
    assert!((state.cost() - fresh.cost()).abs() < 1e-6, "{what}");
    assert!((state.copying() - fresh.copying()).abs() < 1e-6, "{what}");
    let sequence = if state.model.copies.none() {
        Sequence::of_runs(device(), state.order())
    } else {
        Sequence {
            moves: Timing::new(state.model, state.peak()).moves(state),
        }
    };
    let plan = check(problem, sequence.plan(problem).expect(what)).expect(what);
    let peak = (state.peak() + state.model.resident) as u64;
    if state.model.copies.none() {
        assert_eq!(plan.peak(device()), peak, "{what}");
    } else {
        assert!(plan.peak(device()) <= peak, "{what}");
    }
}

/// Evicts at random, and undoes some of it; returns how often each kind was done.
fn evict(problem: &Problem, model: &Model, rng: &mut Random) -> [usize; 4] {
    let mut done = [0; 4];
    let order = model.with_brings(model.given_order());
    let mut state = State::new(model, &order);
    for _ in 0..40 {
        let budget = (state.peak() * (0.6 + 0.4 * rng.unit())).floor();
        let mut repairer = Repairer::new(model, budget, true, Cutoff::NEVER);
        repairer.survey(&state);
        repairer.price = 10f64.powf(4.0 * rng.unit() - 3.0);
        repairer.copying = rng.unit();
        let before = (state.order(), state.mem().to_vec());
        let mark = state.mark();
        let eviction = any_eviction(&state, rng);
        let what = format!("{eviction:?} of {:?}", before.0);
        let ok = repairer.apply(&mut state, eviction);
        if ok {
            assert_sound(&state, problem, &what);
            done[match eviction {
                Eviction::Rerun { .. } => 0,
                Eviction::Fetch { .. } => 1,
                Eviction::Advance { .. } => 2,
                Eviction::Postpone { .. } => 3,
            }] += 1;
        }
        if !ok || rng.below(3) == 0 {
            state.undo_to(mark);
            assert_eq!((state.order(), state.mem().to_vec()), before, "{what}");
        }
    }
    done
}

fn evict_in(rounds: usize, model: impl Fn(usize, &mut Random) -> (Problem, Model)) -> [usize; 4] {
    let mut done = [0; 4];
    for round in 0..rounds {
        let mut rng = Random::new(31, round as u64);
        let (problem, model) = model(round, &mut rng);
        let now = evict(&problem, &model, &mut rng);
        (0..4).for_each(|k| done[k] += now[k]);
    }
    done
}

#[test]
fn evictions_leave_a_plan_and_its_profile() {
    let done = evict_in(300, |round, rng| {
        let shape = Shape {
            tasks: 4 + round % 20,
            rich: true,
        };
        let problem = problem(shape, rng);
        let model = Model::new(&problem).unwrap().0;
        (problem, model)
    });
    let [reruns, _, advanced, postponed] = done;
    assert!(
        reruns > 500 && advanced > 200 && postponed > 500,
        "{done:?}"
    );
}

#[test]
fn evictions_with_copies_leave_a_plan_and_its_profile() {
    let done = evict_in(300, |round, rng| {
        let problem = swapping(round, rng);
        let model = Model::with_copies(&problem, &Capacities::unlimited())
            .unwrap()
            .0;
        (problem, model)
    });
    assert!(done.iter().all(|&n| n > 200), "{done:?}");
}

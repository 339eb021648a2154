//! Tests of the whole crate on small random problems, compared with exact optima.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use scrimp_plan::testing::{Family, network};
use scrimp_plan::{Capacities, Interval, LinkSpeed, Problem, TaskId, check_offsets, simulate};

use crate::ids::Position;
use crate::model::Model;
use crate::random::Random;
use crate::search::driver::{self, Found, How};
use crate::search::exact::{self, Limits, Verdict};
use crate::search::state::State;
use crate::testing::{Shape, base_peak, device, optimum, problem};
use crate::{
    Cutoff, Method, Options, Order, SolveError, Solved, floor_bytes, leanest, place,
    place_intervals, solve, solve_sweep, solve_variants,
};

mod sweeps;

/// The work of a search without a clock.
const WORK: Duration = Duration::from_millis(10);

fn options(order: Order, method: Method) -> Options {
    Options {
        order,
        method,
        time_limit: Duration::from_secs(1),
        threads: 1,
        ..Options::default()
    }
}

fn budgets(problem: &Problem) -> Vec<u64> {
    let peak = base_peak(problem);
    let floor = floor_bytes(problem).unwrap();
    (0..4).map(|k| floor + (peak - floor) * k / 4).collect()
}

#[test]
fn the_profile_follows_every_edit() {
    let mut rng = Random::new(1, 0);
    for round in 0..200 {
        let p = problem(
            Shape {
                tasks: 4 + round % 20,
                rich: round % 4 != 0,
            },
            &mut rng,
        );
        let model = Model::new(&p).unwrap().0;
        let given = model.given_order();
        let mut state = State::new(&model, &given);
        for _ in 0..60 {
            let before = (state.order(), state.mem().to_vec());
            let mark = state.mark();
            for _ in 0..1 + rng.below(3) {
                let p = Position::new(1 + rng.below(state.len() - 1));
                if rng.below(3) > 0 {
                    let t = TaskId::new(rng.below(model.tasks as usize));
                    if model.rerunnable[t] && state.can_insert(t, p) {
                        state.insert(t, p);
                    }
                } else {
                    let run = state.run_at(p);
                    if state.runs(state.task_of(run)).len() > 1 && state.can_remove(run) {
                        state.remove(run);
                    }
                }
            }
            let fresh = State::new(&model, &state.order());
            assert_eq!(fresh.mem(), state.mem(), "after edits of {:?}", before.0);
            assert!((fresh.cost() - state.cost()).abs() < 1e-6);
            if rng.below(2) == 0 {
                state.undo_to(mark);
                assert_eq!((state.order(), state.mem().to_vec()), before);
            }
        }
    }
}

#[test]
fn the_profile_is_the_checkers() {
    let mut rng = Random::new(2, 0);
    for _ in 0..200 {
        let p = problem(
            Shape {
                tasks: 12,
                rich: true,
            },
            &mut rng,
        );
        let model = Model::new(&p).unwrap().0;
        let given = model.given_order();
        let state = State::new(&model, &given);
        assert_eq!((state.peak() + model.resident) as u64, base_peak(&p));
    }
}

/// A start that puts off the clock, so that only the limit of work ends a search.
fn without_clock() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Asserts that small problems are solved exactly: plans are optimal and say so, and none is missed.
fn exactly(order: Order, seed: u64, rounds: usize) {
    let mut rng = Random::new(seed, 0);
    let asked = Options {
        time_limit: WORK,
        ..options(order, Method::Search)
    };
    for round in 0..rounds {
        let shape = Shape {
            tasks: 5 + round % 4,
            rich: round % 3 != 0,
        };
        let p = problem(shape, &mut rng);
        let (model, _) = Model::new(&p).unwrap();
        for budget in budgets(&p) {
            let exact = optimum(&p, budget, order);
            let within = budget as f64 - model.resident;
            let found = driver::run(&model, within, &asked, without_clock(), &mut |_| {});
            let fits = found.least <= within;
            assert_eq!(fits, exact.is_some());
            if !fits {
                assert_eq!(found.floor, found.least, "the least budget is proven too");
            }
            let patient = Options {
                time_limit: Duration::from_secs(600),
                ..asked.clone()
            };
            let asked = if fits { &patient } else { &asked };
            let capacities = Capacities::bytes_of(device(), budget);
            match solve(&p, &capacities, asked, &mut |_| {}) {
                Ok(found) => {
                    assert!(
                        (Some(found.cost), found.optimal) == (exact, true),
                        "{exact:?}"
                    );
                }
                Err(SolveError::Infeasible {
                    least_found, floor, ..
                }) => {
                    assert_eq!(exact, None);
                    assert_eq!(optimum(&p, floor - 1, order), None);
                    assert!(optimum(&p, least_found, order).is_some());
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn small_problems_are_solved_exactly_in_fixed_order() {
    exactly(Order::Fixed, 3, 40);
}

#[test]
fn small_problems_are_solved_exactly_in_free_order() {
    exactly(Order::Free, 4, 20);
}

#[test]
fn the_exact_search_finds_only_plans_below_the_seconds_asked_for() {
    let mut rng = Random::new(5, 0);
    let (mut cheaper, mut none) = (0, 0);
    for _ in 0..20 {
        let shape = Shape {
            tasks: 8,
            rich: true,
        };
        let p = problem(shape, &mut rng);
        let (model, _) = Model::new(&p).unwrap();
        for budget in budgets(&p) {
            let Some(least) = optimum(&p, budget, Order::Fixed) else {
                continue;
            };
            let below = |below| {
                let limits = Limits {
                    states: 100_000,
                    below,
                    cutoff: Cutoff::NEVER,
                };
                exact::cheapest(&model, budget as f64 - model.resident, false, limits)
            };
            match below(least * 1.001) {
                Verdict::Optimal(runs) => {
                    assert_eq!(State::new(&model, &runs).cost(), least);
                    cheaper += 1;
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(below(least), Verdict::Infeasible);
            none += 1;
        }
    }
    assert!(cheaper > 20 && none > 20, "{cheaper} {none}");
}

#[test]
fn what_is_left_of_the_work_proves_plans() {
    let (mut proven, mut tried) = (0, 0);
    for (k, family) in Family::ALL.into_iter().cycle().take(24).enumerate() {
        let p = network(family, 24, true, 40 + k as u64);
        let (model, _) = Model::new(&p).unwrap();
        let (floor, peak) = (floor_bytes(&p).unwrap(), base_peak(&p));
        let budget = (floor + (peak - floor) / 3) as f64 - model.resident;
        let asked = Options {
            time_limit: Duration::from_millis(500),
            ..options(Order::Fixed, Method::Search)
        };
        let limits = Limits {
            states: 150_000,
            below: f64::INFINITY,
            cutoff: Cutoff::NEVER,
        };
        if !matches!(
            exact::cheapest(&model, budget, false, limits),
            Verdict::AtLeast(_)
        ) {
            continue;
        }
        let found = driver::run(&model, budget, &asked, without_clock(), &mut |_| {});
        let cost = State::new(&model, &found.runs).cost();
        tried += 1;
        proven += usize::from(found.least <= budget && found.lower_bound >= cost * (1.0 - 1e-9));
    }
    assert!(proven > 1, "{proven} of {tried}");
}

#[test]
fn a_search_that_settles_is_the_search_in_the_given_order() {
    let (mut settled, mut open) = (0, 0);
    // So many tasks that the search in the given order doesn't begin with beams: then both do the same.
    for (k, family) in Family::ALL.into_iter().cycle().take(8).enumerate() {
        let p = network(family, 310, k < 4, 8 + k as u64);
        let (model, _) = Model::new(&p).unwrap();
        let (floor, peak) = (floor_bytes(&p).unwrap(), base_peak(&p));
        let budget = (floor + (peak - floor) / 2) as f64 - model.resident;
        let asked = |order| Options {
            time_limit: WORK,
            ..options(order, Method::Search)
        };
        let found = driver::settled(&model, budget, &asked(Order::Free), without_clock());
        if !found.settled {
            open += 1;
            continue;
        }
        let fixed = asked(Order::Fixed);
        let fixed = driver::run(&model, budget, &fixed, without_clock(), &mut |_| {});
        assert_eq!(found.runs, fixed.runs, "{} {k}", family.name());
        settled += 1;
    }
    assert!(settled > 1 && open > 1, "{settled} {open}");
}

/// Compares what beams and walks find with the exact search, on random problems that it solves too.
fn near_the_optimum(order: Order, problems: impl Iterator<Item = Problem>) {
    let (mut solved, mut good, mut missed) = (0, 0, 0);
    for p in problems {
        for budget in budgets(&p) {
            let (model, _) = Model::new(&p).unwrap();
            let options = Options {
                time_limit: WORK,
                ..options(order, Method::Search)
            };
            let budget = budget as f64 - model.resident;
            let begun = without_clock();
            let search = |exactly| {
                let how = How {
                    exactly,
                    settles: false,
                    whole: true,
                };
                driver::with(&model, budget, &options, begun, how, &mut |_| {})
            };
            let cost = |found: &Found| State::new(&model, &found.runs).cost();
            let exact = search(true);
            if exact.least > budget || cost(&exact) > exact.lower_bound * (1.0 + 1e-9) {
                continue; // There is no plan, or the problem is too large to be solved exactly.
            }
            let found = search(false);
            if found.least > budget {
                missed += 1;
                continue;
            }
            let (exact, found) = (cost(&exact), cost(&found));
            assert!(found >= exact - 1e-9, "{found} is better than {exact}");
            solved += 1;
            good += usize::from(found <= exact * 1.01 + 1e-9);
        }
    }
    assert!(solved >= 100, "{solved} solved");
    assert!(
        good * 100 >= solved * 95,
        "within 1 % of the optimum on {good} of {solved}"
    );
    assert!(
        missed * 100 <= solved * 3,
        "missed {missed} plans that exist, found {solved}"
    );
}

fn own_problems(seed: u64, rounds: usize) -> impl Iterator<Item = Problem> {
    let mut rng = Random::new(seed, 0);
    (0..rounds).map(move |round| {
        let shape = Shape {
            tasks: 6 + round % 9,
            rich: round % 3 != 0,
        };
        problem(shape, &mut rng)
    })
}

fn plan_crates_problems(seed: u64, rounds: u64) -> impl Iterator<Item = Problem> {
    use scrimp_plan::testing::{Shape, random_problem};
    (0..rounds).map(move |round| {
        let shape = if round % 2 == 0 {
            Shape::plain(14)
        } else {
            Shape::one_device(14)
        };
        random_problem(seed + round, &shape)
    })
}

#[test]
fn walks_are_near_the_optimum_in_fixed_order() {
    near_the_optimum(
        Order::Fixed,
        own_problems(12, 40).chain(plan_crates_problems(1, 40)),
    );
}

#[test]
fn walks_are_near_the_optimum_in_free_order() {
    near_the_optimum(
        Order::Free,
        own_problems(13, 20).chain(plan_crates_problems(100, 20)),
    );
}

#[test]
fn the_floor_is_below_every_plan() {
    let mut rng = Random::new(5, 0);
    let mut met = 0;
    for round in 0..100 {
        let p = problem(
            Shape {
                tasks: 4 + round % 4,
                rich: round % 4 != 0,
            },
            &mut rng,
        );
        let floor = floor_bytes(&p).unwrap();
        if floor > 0 {
            assert_eq!(optimum(&p, floor - 1, Order::Free), None);
        }
        met += usize::from(optimum(&p, floor, Order::Free).is_some());
    }
    // Without what gathering inputs takes, 71 are.
    assert!(met >= 85, "{met} floors are the least budget");
}

#[test]
fn threads_do_not_change_the_plan() {
    let mut rng = Random::new(6, 0);
    for _ in 0..2 {
        let p = problem(
            Shape {
                tasks: 30,
                rich: true,
            },
            &mut rng,
        );
        let floor = floor_bytes(&p).unwrap();
        let budget = floor + (base_peak(&p) - floor) * 2 / 3;
        let capacities = Capacities::bytes_of(device(), budget);
        let one = Options {
            time_limit: Duration::from_secs(20),
            ..options(Order::Free, Method::Search)
        };
        let two = Options {
            threads: 2,
            ..one.clone()
        };
        let plan = |o: &Options| {
            solve(&p, &capacities, o, &mut |_| {})
                .ok()
                .map(|s| s.plan.plan().clone())
        };
        let first = plan(&one);
        assert_eq!(first, plan(&one));
        assert_eq!(first, plan(&two));
    }
}

#[test]
fn the_least_budget_that_was_found_is_found_again() {
    let mut rng = Random::new(14, 0);
    for order in [Order::Fixed, Order::Free] {
        for rich in [false, true] {
            let p = problem(Shape { tasks: 40, rich }, &mut rng);
            let ask = |budget: u64| {
                let capacities = Capacities::bytes_of(device(), budget);
                solve(
                    &p,
                    &capacities,
                    &options(order, Method::Search),
                    &mut |_| {},
                )
            };
            let Err(SolveError::Infeasible {
                least_found, floor, ..
            }) = ask(floor_bytes(&p).unwrap() - 1)
            else {
                panic!("a plan below the floor");
            };
            let peak = base_peak(&p);
            assert!(floor <= least_found && least_found < peak);
            assert!(ask(least_found).is_ok(), "{least_found} of {peak}");
        }
    }
}

#[test]
fn a_budget_with_a_plan_is_not_refused() {
    let mut rng = Random::new(21, 0);
    for round in 0..12 {
        let shape = Shape {
            tasks: 14 + round,
            rich: round % 2 == 0,
        };
        let p = problem(shape, &mut rng);
        let asked = options(Order::Free, Method::Search);
        let (least, _) = leanest(&p, &Capacities::unlimited(), &asked, &mut |_| {}).unwrap();
        let peak = base_peak(&p);
        // Any plan will do, however busy the machine is.
        let any = Options {
            time_limit: Duration::from_secs(20),
            enough: Some(f64::INFINITY),
            ..asked
        };
        for part in 0..3 {
            let budget = least + (peak - least) * part / 6;
            let capacities = Capacities::bytes_of(device(), budget);
            let plan = solve(&p, &capacities, &any, &mut |_| {});
            assert!(plan.is_ok(), "{budget} from {least} to {peak}: {plan:?}");
        }
    }
}

#[test]
fn a_stopped_search_keeps_its_plan() {
    let mut rng = Random::new(15, 0);
    let p = problem(
        Shape {
            tasks: 150,
            rich: false,
        },
        &mut rng,
    );
    let budget = (floor_bytes(&p).unwrap() + base_peak(&p)) / 2;
    let capacities = Capacities::bytes_of(device(), budget);
    for order in [Order::Fixed, Order::Free] {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Options {
            time_limit: Duration::from_secs(3600),
            stop: Some(Arc::clone(&stop)),
            ..options(order, Method::Search)
        };
        let mut known = None;
        let solved = solve(&p, &capacities, &stopping, &mut |news| {
            known = known.or(news.cost);
            stop.store(news.cost.is_some(), Ordering::Relaxed);
        });
        let solved = solved.unwrap();
        assert!(
            Some(solved.cost) <= known,
            "not dearer than what was announced"
        );
        assert!(solved.lower_bound <= solved.cost);
    }
}

#[test]
fn heuristics_make_plans_of_anything() {
    let mut rng = Random::new(7, 0);
    let heuristics = [
        "keep-all",
        "ap-sqrt-n",
        "ap-greedy",
        "ap-griewank",
        "chen-sqrt-n",
        "chen-greedy",
    ];
    for round in 0..100 {
        let p = problem(
            Shape {
                tasks: 6 + round % 30,
                rich: round % 3 != 0,
            },
            &mut rng,
        );
        for name in heuristics.into_iter().chain(["linearized-griewank"]) {
            let method: Method = name.parse().unwrap();
            let unlimited = Capacities::unlimited();
            let options = options(Order::Fixed, method);
            let solved = solve(&p, &unlimited, &options, &mut |_| {}).unwrap();
            assert!(solved.plan.keeps_order());
        }
    }
}

#[test]
fn placements_are_valid_and_mostly_lose_nothing() {
    let mut rng = Random::new(8, 0);
    let mut exact = 0;
    for round in 0..100 {
        let intervals: Vec<Interval> = (0..5 + round)
            .map(|_| {
                let start = rng.below(50) as u64;
                Interval {
                    start,
                    end: start + rng.below(12) as u64,
                    bytes: rng.below(20) as u64,
                }
            })
            .collect();
        let placed = place_intervals(&intervals, None, Cutoff::NEVER);
        let arena = check_offsets(&intervals, &placed.offsets).unwrap();
        assert_eq!(arena, placed.arena_bytes);
        assert!(placed.arena_bytes >= placed.live_bytes);
        exact += usize::from(placed.arena_bytes == placed.live_bytes);
    }
    assert!(exact >= 90, "{exact} of 100 at the bound");
}

#[test]
fn plans_are_placed_within_their_peak() {
    let mut rng = Random::new(9, 0);
    for _ in 0..20 {
        let p = problem(
            Shape {
                tasks: 30,
                rich: true,
            },
            &mut rng,
        );
        let unlimited = Capacities::unlimited();
        let options = options(Order::Fixed, Method::KeepAll);
        let solved = solve(&p, &unlimited, &options, &mut |_| {}).unwrap();
        let layout = place(&solved.plan, &unlimited).unwrap();
        let resident = p.devices()[device()].resident;
        assert_eq!(
            layout.arena_bytes(device()) + resident,
            solved.plan.peak(device())
        );
    }
}

/// The average share of a budget's cost that the bound proves; asserts that it never exceeds the optimum.
fn bound_share(order: Order, seed: u64, rounds: usize) -> f64 {
    let mut rng = Random::new(seed, 0);
    let (mut share, mut count) = (0.0, 0);
    for round in 0..rounds {
        let p = problem(
            Shape {
                tasks: 4 + round % 5,
                rich: round % 3 != 0,
            },
            &mut rng,
        );
        let model = Model::new(&p).unwrap().0;
        let base = model.base_cost();
        for budget in budgets(&p) {
            if let Some(exact) = optimum(&p, budget, order) {
                // A wrong guess of the known cost must not make the bound wrong.
                let known = (exact - base) * [1.0, 3.0, 0.5][round % 3] + (round % 2) as f64;
                let bytes = budget as f64 - model.resident;
                let mut bound = crate::bound::seconds(&model, bytes, order, known, Cutoff::NEVER);
                bound.advance(100_000, known, &|| false);
                bound.at_moments(100_000, known, &|| false);
                assert!(
                    bound.proven() <= exact + 1e-6,
                    "bound {} above the optimum {exact} at {budget}, {order:?}: {p:?}",
                    bound.proven()
                );
                if exact > base {
                    share += (bound.proven() - base) / (exact - base);
                    count += 1;
                }
            }
        }
    }
    share / f64::from(count)
}

#[test]
fn bounds_in_fixed_order_are_never_above_the_optimum() {
    let share = bound_share(Order::Fixed, 11, 200);
    assert!(share > 0.5, "on average {share} of the optimum");
}

#[test]
fn bounds_in_free_order_are_never_above_the_optimum() {
    let share = bound_share(Order::Free, 12, 80);
    assert!(share > 0.2, "on average {share} of the optimum");
}

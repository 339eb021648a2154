//! The exact methods, compared with brute force and each other on small random problems. Tests that need a
//! missing solver are skipped, and print a line that says so.
#![allow(clippy::print_stderr, reason = "tells which tests were skipped")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, Keep, Origin, Problem, ValueId};
use scrimp_solvers::highs::Start;

use super::chain::{Chain, Selection};
use super::formulation::fits_in_memory;
use super::graph::Graph;
use super::plan;
use super::stages::Stages;
use crate::bound;
use crate::cutoff::Cutoff;
use crate::error::SolveError;
use crate::exact;
use crate::method::{Candidates, Formulation, Method, Order, Precedence, Published, Rounding};
use crate::model::Model;
use crate::options::{Options, Solved};
use crate::random::Random;
use crate::testing::{Shape, base_peak, device, optimum, problem};

/// Whether HiGHS and CP-SAT are installed; prints a line for each that isn't.
fn installed() -> (bool, bool) {
    let highs = scrimp_solvers::Highs::load(None).map(|_| ());
    let cpsat = scrimp_solvers::CpSat::load(None).map(|_| ());
    for error in [&highs, &cpsat]
        .into_iter()
        .filter_map(|loaded| loaded.as_ref().err())
    {
        eprintln!("skipped: {error}");
    }
    (highs.is_ok(), cpsat.is_ok())
}

/// The least cost in stages, by search over (values present, stage, next task of the stage).
fn stage_optimum(problem: &Problem, capacity: u64) -> Option<f64> {
    let n = problem.tasks().len();
    let bit = |value: ValueId| 1u32 << value.as_u32();
    let bytes = |set: u32| {
        let values = problem
            .values()
            .iter()
            .filter(|(id, _)| set & bit(*id) != 0);
        problem.devices()[device()].resident + values.map(|(_, value)| value.bytes).sum::<u64>()
    };
    let select = |test: &dyn Fn(&scrimp_plan::Value) -> bool| {
        let values = problem.values().iter().filter(|(_, value)| test(value));
        values.fold(0, |set, (id, _)| set | bit(id))
    };
    let start = select(&|value| matches!(value.origin, Origin::Given(_)));
    let kept = select(&|value| value.keep != Keep::No);
    if bytes(start) > capacity {
        return None;
    }
    let mut least: HashMap<(u32, usize, usize), u64> = HashMap::from([((start, 0, 0), 0)]);
    let mut queue = BinaryHeap::from([Reverse((0, start, 0, 0))]);
    while let Some(Reverse((cost, set, stage, next))) = queue.pop() {
        if stage == n && set & kept == kept {
            return Some(cost as f64);
        }
        let mut reach = |cost: u64, set: u32, stage: usize, next: usize| {
            let known = least.entry((set, stage, next)).or_insert(u64::MAX);
            if cost < *known {
                *known = cost;
                queue.push(Reverse((cost, set, stage, next)));
            }
        };
        for id in problem.values().keys().filter(|id| set & bit(*id) != 0) {
            reach(cost, set & !bit(id), stage, next);
        }
        for (id, task) in problem.tasks().iter() {
            let k = id.as_u32() as usize;
            if k < next || k > stage || stage == n || (k < stage && !task.rerunnable) {
                continue;
            }
            let all = |list: &[ValueId]| list.iter().fold(0, |set, &value| set | bit(value));
            let (inputs, outputs) = (all(&task.inputs), all(&task.outputs));
            if set & inputs != inputs || set & outputs != 0 {
                continue;
            }
            let gone = task
                .overwrites
                .iter()
                .fold(0, |set, pair| set | bit(pair.input));
            let after = (set & !gone) | outputs;
            if bytes(after) + task.modes[0].workspace <= capacity {
                let cost = cost + task.modes[0].seconds as u64;
                let (stage, next) = if k == stage {
                    (stage + 1, 0)
                } else {
                    (stage, k + 1)
                };
                reach(cost, after, stage, next);
            }
        }
    }
    None
}

/// A random problem with a budget below what it needs without planning.
fn case(seed: u64, rich: bool, tasks: usize) -> (Problem, u64) {
    let mut random = Random::new(seed, 17);
    let problem = problem(Shape { tasks, rich }, &mut random);
    let peak = base_peak(&problem);
    let budget = peak - 1 - random.below(1 + peak as usize / 6) as u64;
    (problem, budget)
}

fn within(budget: u64) -> Capacities {
    Capacities::bytes_of(device(), budget)
}

/// Asserts what a method finds: a proven plan of this cost, or a proof that there is no plan.
fn expect(what: &str, outcome: Result<Solved, SolveError>, optimum: Option<f64>) -> Option<Solved> {
    match (outcome, optimum) {
        (Ok(outcome), Some(cost)) => {
            assert_eq!(outcome.plan.cost(), cost, "{what}: {:?}", outcome.note);
            assert!(outcome.optimal, "{what}: {outcome:?}");
            assert!(
                (outcome.lower_bound - cost).abs() < 1e-3 * cost.max(1.0),
                "{what}"
            );
            Some(outcome)
        }
        (Err(SolveError::OutsideModel { .. }), None) => None,
        (found, optimum) => panic!("{what}: {found:?}, but the optimum is {optimum:?}"),
    }
}

fn options() -> Options {
    Options {
        threads: 1,
        time_limit: Duration::from_secs(3600),
        ..Options::default()
    }
}

#[test]
fn checkmate_agrees_with_brute_force() {
    if !installed().0 {
        return;
    }
    let (mut found, mut saved) = (0, 0);
    for seed in 0..240 {
        let (problem, budget) = case(seed, seed % 2 == 0, 5 + seed as usize % 4);
        let best = stage_optimum(&problem, budget);
        let formulation = match seed % 3 {
            0 => Formulation::Disaggregated,
            _ => Formulation::Published,
        };
        let what = format!("seed {seed}");
        if let Some(outcome) = expect(
            &what,
            plan(
                &problem,
                &within(budget),
                Published::Checkmate(formulation),
                &options(),
            ),
            best,
        ) {
            assert!(outcome.plan.keeps_order());
            // A plan that is free within a stage can't cost more.
            assert!(optimum(&problem, budget, Order::Fixed).unwrap() <= outcome.plan.cost());
            found += 1;
            saved += usize::from(outcome.plan.recomputed() > 0);
        }
    }
    assert!(
        found > 50 && saved > 50,
        "{found} feasible, {saved} with recomputation"
    );
}

#[test]
fn moccasin_agrees_with_brute_force() {
    if !installed().1 {
        return;
    }
    let mut saved = 0;
    for seed in 1000..1070 {
        let (problem, budget) = case(seed, false, 5 + seed as usize % 4);
        let best = stage_optimum(&problem, budget);
        let precedence = match seed % 2 {
            0 => Precedence::Reservoir,
            _ => Precedence::Choice,
        };
        // Allowing as many runs as there are stages loses nothing.
        let options = Options {
            precedence,
            runs_per_task: 8,
            ..options()
        };
        let found = plan(
            &problem,
            &within(budget),
            Published::MoccasinStaged,
            &options,
        );
        if let Some(outcome) = expect(&format!("seed {seed}"), found, best) {
            saved += usize::from(outcome.plan.recomputed() > 0);
        }
    }
    assert!(saved > 15, "{saved} with recomputation");
}

/// Compares the two exact programs, brute force and the search on the same problems. The programs prove the
/// same optimum. The search beats it only with plans outside the stages, and never beats the best plan of any
/// kind.
#[test]
fn the_programs_agree_with_each_other_and_bound_the_search() {
    let (highs, cpsat) = installed();
    if !highs || !cpsat {
        return;
    }
    let (mut feasible, mut met) = (0, 0);
    for seed in 6000..6040 {
        let (problem, budget) = case(seed, false, 5 + seed as usize % 3);
        let wide = Options {
            runs_per_task: 8,
            ..options()
        };
        let formulation = Formulation::Published;
        let checkmate = plan(
            &problem,
            &within(budget),
            Published::Checkmate(formulation),
            &options(),
        );
        let moccasin = plan(&problem, &within(budget), Published::MoccasinStaged, &wide);
        let best = stage_optimum(&problem, budget);
        let what = format!("seed {seed}");
        let milp = expect(&what, checkmate, best);
        let program = expect(&what, moccasin, best);
        let Some((milp, program)) = milp.zip(program) else {
            continue;
        };
        feasible += 1;
        assert_eq!(milp.plan.cost(), program.plan.cost(), "{what}");
        let search = Options {
            order: Order::Fixed,
            threads: 1,
            time_limit: Duration::from_secs(1),
            ..Options::default()
        };
        let found = crate::solve(&problem, &within(budget), &search, &mut |_| {});
        let found = found.expect("the programs found a plan");
        let any = optimum(&problem, budget, Order::Fixed).expect("so did brute force");
        assert!(
            found.cost >= any && found.lower_bound <= any,
            "{what}: {found:?}"
        );
        let unlimited = Capacities::unlimited();
        let graph = Graph::new(&problem, &unlimited, Method::Search).unwrap();
        let runs: Vec<usize> = found.plan.runs().map(|task| task.index()).collect();
        let staged = Stages::from_sequence(&graph, &runs).is_some();
        assert!(
            !staged || found.cost >= milp.plan.cost(),
            "{what}: {found:?}"
        );
        met += usize::from(found.cost <= milp.plan.cost());
    }
    assert!(feasible > 10, "{feasible} feasible");
    assert!(
        met * 100 >= feasible * 95,
        "{met} of {feasible} at the optimum"
    );
}

#[test]
fn unstaged_moccasin_finds_the_best_order() {
    if !installed().1 {
        return;
    }
    let mut changed = 0;
    for seed in 2000..2045 {
        let (problem, budget) = case(seed, false, 4 + seed as usize % 2);
        let best = optimum(&problem, budget, Order::Free);
        let options = Options {
            runs_per_task: 3,
            ..options()
        };
        let found = plan(
            &problem,
            &within(budget),
            Published::MoccasinUnstaged,
            &options,
        );
        if let Some(outcome) = expect(&format!("seed {seed}"), found, best) {
            changed += usize::from(!outcome.plan.keeps_order());
        }
    }
    assert!(changed > 0);
}

#[test]
fn two_phase_rounding_is_never_better_than_the_program_and_its_bound_holds() {
    if !installed().0 {
        return;
    }
    let mut found = 0;
    for seed in 3000..3060 {
        let (problem, budget) = case(seed, seed % 2 == 0, 6);
        let best = stage_optimum(&problem, budget);
        for rounding in [Rounding::Deterministic, Rounding::Randomized] {
            match plan(
                &problem,
                &within(budget),
                Published::CheckmateRounding(rounding),
                &options(),
            ) {
                Ok(outcome) => {
                    let best = best.expect("a plan proves that there is one");
                    assert!(outcome.plan.cost() >= best && outcome.lower_bound <= best + 1e-9);
                    assert!(outcome.plan.peak(device()) <= budget);
                    found += 1;
                }
                Err(SolveError::OutsideModel { .. }) => assert_eq!(best, None),
                Err(SolveError::NotFound { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    assert!(found > 20, "{found} plans");
}

/// A plan's stages hold what it needs, and no more than their completion.
#[test]
fn stages_and_sequences_describe_the_same_plans() {
    for seed in 4000..4200 {
        let (problem, _) = case(seed, seed % 2 == 0, 7);
        let unlimited = Capacities::unlimited();
        let graph = Graph::new(&problem, &unlimited, Method::Search).unwrap();
        let once: Vec<usize> = (0..graph.tasks.len()).collect();
        let stages = Stages::from_sequence(&graph, &once).unwrap();
        assert_eq!(stages.sequence(), once);
        let completed = Stages::complete(&graph, &stages.held).unwrap();
        assert_eq!(completed.sequence(), once, "seed {seed}");
        // Any checkpoints either can be completed, or give an error that names what is lost.
        let mut random = Random::new(seed, 3);
        let mut held = stages.held.clone();
        for held in held.iter_mut().flatten() {
            *held &= random.below(3) > 0;
        }
        if let Ok(stages) = Stages::complete(&graph, &held) {
            let runs = stages.sequence();
            graph.check(&runs).unwrap().unwrap();
            assert_eq!(
                Stages::from_sequence(&graph, &runs).unwrap().runs,
                stages.runs
            );
        }
    }
}

#[test]
fn heuristics_make_plans_of_training_graphs() {
    let problem = training_chain(9);
    let peak = base_peak(&problem);
    for method in Published::ALL.into_iter().filter(|method| {
        matches!(
            method,
            Published::ChenSqrtN(_) | Published::ChenGreedy(_) | Published::Griewank(_)
        )
    }) {
        let plan = |capacities| plan(&problem, &capacities, method, &options());
        let outcome = plan(Capacities::unlimited()).unwrap();
        assert!(outcome.plan.keeps_order(), "{}", method.name());
        let outcome = plan(within(peak * 3 / 4)).unwrap();
        assert!(outcome.plan.recomputed() > 0, "{}", method.name());
        let error = plan(within(2)).unwrap_err();
        assert!(
            matches!(error, SolveError::NotFound { least: Some(_), .. }),
            "{error}"
        );
    }
}

/// A chain of `f` forward tasks of unit cost and size, the loss, and the backward tasks.
fn training_chain(f: usize) -> Problem {
    let nodes: Vec<String> = (0..2 * f + 1)
        .map(|i| {
            format!(
                r#"{{"name":"t{i}","cost":1,"memory":4,"is_backward":{}}}"#,
                i > f
            )
        })
        .collect();
    let mut edges: Vec<String> = (1..2 * f + 1).map(|i| format!("[{},{i}]", i - 1)).collect();
    edges.extend((0..f).map(|i| format!("[{i},{}]", 2 * f - i)));
    let text = format!(
        r#"{{"name":"chain","kind":"test","units":{{"cost":"s","memory":"B"}},"source":"","license":"","published":{{}},"outputs":[{}],"stats":{{}},"nodes":[{}],"edges":[{}]}}"#,
        2 * f,
        nodes.join(","),
        edges.join(",")
    );
    scrimp_plan::file::read_instance(&text).unwrap().problem
}

#[test]
fn names_are_distinct() {
    let mut names: Vec<&str> = Published::ALL.iter().map(|method| method.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Published::ALL.len());
}

#[test]
fn in_place_tasks_are_outside_retention_intervals() {
    let overwrites = |problem: &Problem| {
        problem
            .tasks()
            .values()
            .any(|task| !task.overwrites.is_empty())
    };
    let problem = (0..100)
        .map(|seed| case(seed, true, 7).0)
        .find(overwrites)
        .unwrap();
    let unlimited = Capacities::unlimited();
    let error = plan(&problem, &unlimited, Published::MoccasinStaged, &options()).unwrap_err();
    assert!(matches!(error, SolveError::Unsupported { .. }), "{error}");
}

#[test]
fn an_absent_solver_is_an_error_that_says_how_to_get_it() {
    let options = Options {
        highs: Some("/nonexistent/libhighs.so.1".into()),
        ortools: Some("/nonexistent/libortools.so.9".into()),
        ..options()
    };
    let problem = training_chain(3);
    let unlimited = Capacities::unlimited();
    let by = |method| plan(&problem, &unlimited, method, &options);
    for found in [
        by(Published::Checkmate(Formulation::Published)),
        by(Published::MoccasinStaged),
        exact::plan(&problem, &unlimited, &options),
    ] {
        let error = found.unwrap_err();
        assert!(error.to_string().contains("/nonexistent/"), "{error}");
    }
}

/// The plan may be outside the stages if the search found it there. It is never worse than the best in stages
/// and never better than the best in this order, and the bound holds for stages.
#[test]
fn the_restricted_program_loses_nothing() {
    if !installed().0 {
        return;
    }
    let mut saved = 0;
    for seed in 5000..5080 {
        let (problem, budget) = case(seed, seed % 2 == 0, 5 + seed as usize % 4);
        let stages = stage_optimum(&problem, budget);
        let order = optimum(&problem, budget, Order::Fixed);
        match exact::plan(&problem, &within(budget), &options()) {
            Ok(found) => {
                let order = order.expect("a plan proves that there is one");
                let cost = found.plan.cost();
                assert!(cost >= order, "seed {seed}: {cost} < {order}");
                assert!(found.optimal, "seed {seed}: {found:?}");
                if let Some(stages) = stages {
                    assert!(cost <= stages, "seed {seed}: {cost} > {stages}");
                    assert!(found.lower_bound <= stages + 1e-6, "seed {seed}: {found:?}");
                }
                saved += usize::from(found.plan.recomputed() > 0);
            }
            Err(SolveError::OutsideModel { .. }) => assert_eq!(stages, None, "seed {seed}"),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(saved > 20, "{saved} with recomputation");
}

/// The stay program in whole numbers is below every plan that it allows, and says more than the Lagrangian.
#[test]
fn whole_stays_are_never_above_the_optimum() {
    let Ok(highs) = scrimp_solvers::Highs::load(None) else {
        return;
    };
    let mut more = 0;
    for seed in 6000..6150 {
        let (problem, budget) = case(seed, seed % 3 != 0, 4 + seed as usize % 5);
        let order = [Order::Fixed, Order::Free][seed as usize % 2];
        let Some(exact) = optimum(&problem, budget, order) else {
            continue;
        };
        let model = Model::new(&problem).unwrap().0;
        let bytes = budget as f64 - model.resident;
        let known = exact - model.base_cost();
        let mut ascent = bound::seconds(&model, bytes, order, known, Cutoff::NEVER);
        ascent.advance(20_000, known, &|| false);
        // The optimum is cheaper than this by the least difference of costs.
        let program = ascent.integer(&ascent.worthwhile(exact + 1.0));
        let found = highs
            .solve(
                &program.milp,
                &Default::default(),
                Start::default(),
                &mut |_| true,
            )
            .unwrap();
        let whole = found.bound * program.unit;
        assert!(
            whole <= exact + 1e-4,
            "seed {seed}: {whole} > {exact}: {problem:?}"
        );
        more += usize::from(whole > ascent.proven() + 0.5);
    }
    assert!(more > 5, "{more} bounds are larger");
}

/// The heuristics of the papers for one memory.
fn heuristics() -> impl Iterator<Item = Published> {
    Published::ALL
        .into_iter()
        .filter(|method| method.library().is_none() && !method.swaps() && !method.places())
}

#[test]
fn heuristics_end_when_they_are_told_to() {
    let problem = training_chain(300);
    let unlimited = Capacities::unlimited();
    let stopped = Options {
        stop: Some(Arc::new(AtomicBool::new(true))),
        ..options()
    };
    let late = Options {
        time_limit: Duration::ZERO,
        ..options()
    };
    for method in heuristics() {
        for options in [&stopped, &late] {
            let error = plan(&problem, &unlimited, method, options).unwrap_err();
            assert!(
                matches!(error, SolveError::NotFound { least: None, .. }),
                "{}: {error}",
                method.name()
            );
        }
    }
}

#[test]
fn policies_grow_with_the_graph_and_not_with_its_square() {
    for forward in [200, 2000] {
        let problem = training_chain(forward);
        let unlimited = Capacities::unlimited();
        let graph = Graph::new(&problem, &unlimited, Method::Search).unwrap();
        let chain = Chain::new(&graph);
        let all = chain.candidates(Candidates::Linearized);
        for selection in [
            Selection::All,
            Selection::SqrtN,
            Selection::Greedy { bytes: 100.0 },
        ] {
            let policy = chain.policy(&chain.select(&all, selection), false);
            let stretches = policy.stretches();
            assert!(
                stretches <= 20 * graph.tasks.len(),
                "{stretches} of {forward}"
            );
        }
        for slots in [0, 3, 50, forward] {
            let policy = super::griewank::policy(&graph, &chain, &all, slots);
            let stretches = policy.stretches();
            assert!(
                stretches <= 20 * graph.tasks.len(),
                "{stretches} of {forward}"
            );
        }
    }
}

#[test]
fn programs_that_would_take_too_much_memory_are_refused() {
    let problem = training_chain(10_000);
    let unlimited = Capacities::unlimited();
    let graph = Graph::new(&problem, &unlimited, Method::Exact).unwrap();
    let error = fits_in_memory(&graph).unwrap_err();
    assert!(
        matches!(error, SolveError::TooLarge { bytes, most, .. } if bytes > most),
        "{error}"
    );
}

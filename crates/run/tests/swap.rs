//! Copies beside compute, in memory and in a file: the bits don't depend on when copies take place.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, beside_a_host, place, set_inputs, small_net, swapped};
use scrimp_graph::{DType, Graph, GraphBuilder, Optimizer, Role, Unary};
use scrimp_plan::testing::{Unstructured, plan as random_plan, random_bytes};
use scrimp_plan::{CheckedPlan, DeviceId, Keep, Origin, Plan, Problem, Step, ValueId, check};
use scrimp_run::{Cpu, Executor, ExecutorOptions, PAGE, RunError};
use std::collections::HashMap;
use std::path::Path;

const ADAM: Optimizer = Optimizer::Adam {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
};

/// Layers with dropout and a residual connection.
fn layers() -> Graph {
    let mut b = GraphBuilder::new("layers");
    let x = b.input("x", &[8, 24], DType::F32).unwrap();
    let y = b.linear("l1", x, 40, true).unwrap();
    let y = b.unary("gelu", Unary::Gelu, y).unwrap();
    let z = b.linear("l2", y, 40, true).unwrap();
    let z = b.dropout("drop", z, 0.25).unwrap();
    let y = b.binary("add", scrimp_graph::Binary::Add, y, z).unwrap();
    let y = b.relu("relu", y).unwrap();
    let y = b.linear("l3", y, 10, true).unwrap();
    b.output(y);
    b.finish().unwrap()
}

/// The loss and the bytes of parameters and state after three steps.
fn results(
    case: &Case,
    plan: &CheckedPlan,
    cpu: &Cpu,
    options: ExecutorOptions<'_>,
) -> Vec<Vec<u8>> {
    let compiled = case.compiled(cpu);
    let layout = place(plan);
    let mut executor = Executor::new(
        std::slice::from_ref(&compiled),
        &case.lowered,
        &layout,
        options,
    )
    .unwrap();
    let mut results = Vec::new();
    for step in 0..3 {
        set_inputs(case.graph(), &mut executor, step);
        let trace = executor.step(None).unwrap();
        for device in plan.problem().devices().keys() {
            assert_eq!(trace.in_use[device], plan.profile(device), "{device}");
        }
        let copies = plan.steps().iter().enumerate();
        let copies = copies.filter(|(_, step)| matches!(step, Step::Copy { .. }));
        assert!(
            copies
                .map(|(k, _)| k)
                .eq(trace.copies.iter().map(|copy| copy.step))
        );
        assert!(
            trace
                .waiting
                .values()
                .all(|&waiting| waiting <= trace.seconds)
        );
        results.push(executor.bytes(case.training.loss).unwrap().into_owned());
    }
    let kept = case.graph().given();
    let kept = kept.filter(|(_, what)| matches!(what.role, Role::Parameter(_) | Role::State(_)));
    results.extend(kept.map(|(tensor, _)| executor.bytes(tensor).unwrap().into_owned()));
    results
}

fn options<'a>(files: &'a [(DeviceId, &'a Path)], delays: Option<u64>) -> ExecutorOptions<'a> {
    ExecutorOptions {
        seed: 5,
        poison: true,
        files,
        delays,
        ..ExecutorOptions::default()
    }
}

/// Whether a problem's weights and state are given in the other memory and kept there.
fn living_in(problem: &Problem, host: DeviceId) -> Problem {
    let mut parts = problem.parts();
    let home = problem.sole_device().unwrap();
    let fixed: Vec<_> = problem.fixed(home).collect();
    for value in fixed {
        parts.values[value].origin = Origin::Given(host);
        let last = problem.chain(value).last().unwrap();
        parts.values[last].keep = Keep::On(host);
    }
    Problem::new(parts).unwrap()
}

/// The plan with the old version of a value that lives in the other memory given back there before the new one
/// comes, whose place it has.
fn in_one_place(problem: &Problem, plan: Plan, host: DeviceId) -> Plan {
    let mut old: HashMap<ValueId, ValueId> = HashMap::new();
    for (value, what) in problem.values().iter() {
        let last = problem.chain(value).last().unwrap();
        if what.origin == Origin::Given(host) && last != value {
            old.insert(last, value);
        }
    }
    let mut steps = Vec::new();
    for step in plan.steps {
        if let Step::Copy { value, to, .. } = step
            && let Some(&old) = old.get(&value).filter(|_| to == host)
        {
            let free = Step::Free {
                value: old,
                device: host,
            };
            if !steps.contains(&free) {
                steps.push(free);
            }
        }
        steps.push(step);
    }
    Plan { steps }
}

/// How many values end a step in another place of the other memory than the one in which the next step expects
/// them.
fn moved_between_steps(plan: &CheckedPlan, host: DeviceId) -> usize {
    let (problem, layout) = (plan.problem(), place(plan));
    let values = problem.values().iter();
    let lives = values.filter(|(_, what)| what.origin == Origin::Given(host));
    let moves = lives.filter(|&(value, _)| {
        let last = problem.chain(value).last().unwrap();
        let buffers = [plan.given_buffer(value), plan.final_buffer(last, host)];
        let [start, end] = buffers.map(|buffer| buffer.map(|buffer| layout.offset(buffer)));
        end.is_some() && start != end
    });
    moves.count()
}

/// Runs this many random plans with copies that are delayed at random; each has the bits of the plan that
/// keeps everything.
fn random_plans(seeds: std::ops::Range<u64>) {
    let cpu = Cpu::new(1).unwrap();
    let case = Case::new(&layers(), Some(ADAM), &cpu);
    let folder = tempfile::tempdir().unwrap();
    let expected = results(&case, &case.keep_all(), &cpu, options(&[], None));
    let (problem, [_, host]) = beside_a_host(&case.lowered.problem);
    let paged = problem.rounded_up(PAGE).unwrap();
    let (mut copies, mut plans, mut moved) = (0, 0, 0);
    let all = (seeds.end - seeds.start) as usize;
    for seed in seeds {
        let files = [(host, folder.path())];
        let (problem, files) = match seed % 2 {
            0 => (&problem, &files[..0]),
            _ => (&paged, &files[..]),
        };
        let problem = match seed % 4 {
            0 | 1 => problem.clone(),
            _ => living_in(problem, host),
        };
        let bytes = random_bytes(seed, 4096);
        let plan = random_plan(&mut Unstructured::new(&bytes), &problem).unwrap();
        let plan = match seed % 8 {
            2 | 3 => plan,
            _ => in_one_place(&problem, plan, host),
        };
        // A few plans still read the old version.
        let Ok(plan) = check(&problem, plan) else {
            continue;
        };
        copies += plan
            .steps()
            .iter()
            .filter(|step| matches!(step, Step::Copy { .. }))
            .count();
        moved += moved_between_steps(&plan, host);
        let found = results(&case, &plan, &cpu, options(files, Some(seed)));
        assert!(found == expected, "seed {seed}");
        plans += 1;
    }
    assert!(
        plans > all / 10 * 9 && copies > 20 * plans && moved > plans,
        "{plans} {copies} {moved}"
    );
}

#[test]
fn delayed_copies_change_no_bit() {
    random_plans(0..24);
}

#[test]
#[ignore = "takes a minute: run it with --ignored"]
fn delayed_copies_change_no_bit_in_a_thousand_plans() {
    random_plans(0..1000);
}

#[test]
fn a_training_step_swaps_to_a_file() {
    let cpu = Cpu::new(2).unwrap();
    let case = Case::new(&small_net(), Some(ADAM), &cpu);
    let base = case.keep_all();
    let (problem, devices) = beside_a_host(&case.lowered.problem);
    let problem = problem.rounded_up(PAGE).unwrap();
    let kept = check(&problem, base.plan().clone()).unwrap();
    let plan = swapped(&kept, &problem, devices);
    let folder = tempfile::tempdir().unwrap();
    let expected = results(&case, &base, &cpu, options(&[], None));
    for delays in [None, Some(3)] {
        let files = [(devices[1], folder.path())];
        assert!(results(&case, &plan, &cpu, options(&files, delays)) == expected);
    }
}

#[test]
fn a_file_needs_whole_pages_and_room() {
    let cpu = Cpu::new(1).unwrap();
    let case = Case::new(&small_net(), None, &cpu);
    let (problem, devices) = beside_a_host(&case.lowered.problem);
    let plan = swapped(&case.keep_all(), &problem, devices);
    let compiled = case.compiled(&cpu);
    let layout = place(&plan);
    let folder = tempfile::tempdir().unwrap();
    let files = [(devices[1], folder.path())];
    let refused = Executor::new(
        std::slice::from_ref(&compiled),
        &case.lowered,
        &layout,
        options(&files, None),
    );
    let refused = refused.unwrap_err();
    assert!(matches!(refused, RunError::WrongPlan { .. }), "{refused}");
    let missing = folder.path().join("none");
    let paged = problem.rounded_up(PAGE).unwrap();
    let plan = swapped(
        &check(&paged, case.keep_all().plan().clone()).unwrap(),
        &paged,
        devices,
    );
    let files = [(devices[1], missing.as_path())];
    let refused = Executor::new(
        std::slice::from_ref(&compiled),
        &case.lowered,
        &place(&plan),
        options(&files, None),
    );
    let refused = refused.unwrap_err();
    assert!(matches!(refused, RunError::SwapFolder { .. }), "{refused}");
}

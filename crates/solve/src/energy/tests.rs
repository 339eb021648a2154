//! Prices and caps of energy, compared with hand-computed numbers and brute force.

use std::time::Duration;

use scrimp_plan::{
    Capacities, Device, Keep, Mode, Origin, Phase, Problem, ProblemParts, Task, TaskId, Value,
    ValueId,
};

use crate::random::Random;
use crate::testing::{Shape, base_peak, device, optimum, problem};
use crate::{Method, Options, Order, SolveError, floor_bytes, solve, solve_frontier};

fn options(order: Order, method: Method) -> Options {
    Options {
        order,
        method,
        time_limit: Duration::from_secs(1),
        threads: 1,
        ..Options::default()
    }
}

/// Two values of ten bytes wait while a task with much scratch memory runs, and one of them must be dropped.
/// Making `a` again is quick but takes many joules; making `b` again is slow but takes few.
fn thrifty_or_quick() -> Problem {
    let mut parts = ProblemParts::default();
    let device = parts.devices.push(Device::computing("cpu"));
    let mut task = |inputs: &[usize], bytes: &[u64], seconds: f64, joules: f64, workspace: u64| {
        let id = TaskId::from_u32(parts.tasks.len() as u32);
        let outputs = bytes.iter().map(|&bytes| {
            parts.values.push(Value {
                name: String::new(),
                bytes,
                origin: Origin::Task(id),
                keep: Keep::No,
            })
        });
        let outputs = outputs.collect();
        parts.tasks.push(Task {
            name: String::new(),
            phase: Phase::Forward,
            inputs: inputs
                .iter()
                .map(|&v| ValueId::from_u32(v as u32))
                .collect(),
            outputs,
            overwrites: Vec::new(),
            modes: vec![Mode {
                device,
                seconds,
                joules,
                workspace,
                resident: 0,
            }],
            rerunnable: true,
        });
    };
    task(&[], &[10], 1.0, 10.0, 0);
    task(&[], &[10], 3.0, 1.0, 0);
    task(&[0, 1], &[1], 1.0, 1.0, 0);
    task(&[2], &[5], 1.0, 1.0, 15);
    task(&[0, 1, 3], &[1], 1.0, 1.0, 0);
    Problem::new(parts).unwrap()
}

/// Running every task once takes 7 s and 14 J. Running `a` again takes 1 s and 10 J, `b` again 3 s and 1 J.
#[test]
fn joules_have_a_price_and_a_cap() {
    let problem = thrifty_or_quick();
    let within = Capacities::bytes_of(device(), 32);
    let ask = |alpha: f64, cap: Option<f64>| -> Result<(f64, f64, bool), SolveError> {
        let options = Options {
            alpha,
            ..options(Order::Free, Method::Search)
        };
        let capacities = within.clone().with_joules(device(), cap);
        let solved = solve(&problem, &capacities, &options, &mut |_| {})?;
        let (seconds, joules) = (solved.plan.cost(), solved.plan.joules(device()));
        assert_eq!(solved.cost, solved.plan.objective(alpha));
        assert!(solved.lower_bound <= solved.cost);
        Ok((seconds, joules, solved.optimal))
    };
    assert_eq!(ask(0.0, None), Ok((8.0, 24.0, true)));
    assert_eq!(ask(0.1, None), Ok((8.0, 24.0, true)));
    assert_eq!(ask(1.0, None), Ok((10.0, 15.0, true)));
    assert_eq!(ask(0.0, Some(24.0)), Ok((8.0, 24.0, true)));
    let (seconds, joules, _) = ask(0.0, Some(20.0)).unwrap();
    assert_eq!((seconds, joules), (10.0, 15.0));
    let refused = |cap, least_found| {
        Err(SolveError::EnergyCap {
            cap,
            least_found,
            floor: 14.0,
        })
    };
    assert_eq!(ask(0.0, Some(14.5)), refused(14.5, Some(15.0)));
    assert_eq!(ask(0.0, Some(13.0)), refused(13.0, None));
}

#[test]
fn a_frontier_has_the_quick_and_the_thrifty_plan() {
    let within = Capacities::bytes_of(device(), 32);
    let options = options(Order::Free, Method::Search);
    let frontier = solve_frontier(&thrifty_or_quick(), &within, &options, 9, &mut |_, _| {});
    let frontier = frontier.unwrap();
    let points = frontier.plans.iter();
    let points: Vec<_> = points
        .map(|solved| (solved.plan.cost(), solved.plan.total_joules()))
        .collect();
    assert_eq!(points, [(10.0, 15.0), (8.0, 24.0)]);
    assert_eq!(frontier.bounds.len(), 3, "nothing lies between two plans");
    // Brute force knows of no others, and what is proven is below both.
    assert!((frontier.least_seconds(24.0) - 8.0).abs() < 1e-9);
    assert!(frontier.least_seconds(15.0) <= 10.0 + 1e-9);
    assert!(
        frontier.least_seconds(15.0) > 9.0,
        "{}",
        frontier.least_seconds(15.0)
    );
    assert!(frontier.least_seconds(14.9) > 10.0);
}

/// At a given price, the search finds what brute force finds for tasks that take the correspondingly longer
/// time.
#[test]
fn priced_joules_are_planned_as_seconds_are() {
    let mut rng = Random::new(77, 0);
    for _ in 0..10 {
        let shape = Shape {
            tasks: 6,
            rich: true,
        };
        let mut parts = problem(shape, &mut rng).parts();
        for task in parts.tasks.values_mut() {
            task.modes[0].joules = rng.below(8) as f64;
        }
        let p = Problem::new(parts.clone()).unwrap();
        for task in parts.tasks.values_mut() {
            task.modes[0].seconds += 2.0 * task.modes[0].joules;
        }
        let priced = Problem::new(parts).unwrap();
        let (floor, peak) = (floor_bytes(&p).unwrap(), base_peak(&p));
        for budget in [floor, (floor + peak) / 2] {
            let options = Options {
                alpha: 2.0,
                ..options(Order::Fixed, Method::Search)
            };
            let capacities = Capacities::bytes_of(device(), budget);
            let found = solve(&p, &capacities, &options, &mut |_| {});
            let exact = optimum(&priced, budget, Order::Fixed);
            assert_eq!(found.ok().map(|solved| solved.cost), exact);
        }
    }
}

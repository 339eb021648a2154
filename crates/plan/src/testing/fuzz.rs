//! The bodies of the fuzz targets: properties that must hold for any bytes. The ordinary tests run them too.

use arbitrary::{Result, Unstructured};

use super::{Shape, mutate, plan, problem};
use crate::capacities::Capacities;
use crate::check::check;
use crate::file::{
    Content, plan_from_json, plan_to_json, problem_from_json, problem_to_json, read,
};
use crate::plan::Plan;
use crate::problem::Problem;
use crate::simulate::simulate;

/// Reading any text as a problem gives an error, or a problem that survives writing and reading unchanged.
///
/// # Panics
/// If the property doesn't hold.
pub fn problem_text(data: &[u8]) {
    if let Ok((problem, capacities)) = problem_from_json(&String::from_utf8_lossy(data)) {
        same_when_read_again(&problem, &capacities);
    }
}

/// Reading any text as an instance gives an error, or a problem with a plan that keeps everything.
///
/// # Panics
/// If the property doesn't hold.
pub fn instance_text(data: &[u8]) {
    if let Ok(Content::Instance(instance)) = read(&String::from_utf8_lossy(data)) {
        let problem = &instance.problem;
        same_when_read_again(problem, &instance.capacities);
        if let Some(device) = problem.sole_device() {
            let plan = Plan::keep_all(problem, device)
                .expect("instances have one mode per computing device");
            check(problem, plan).expect("keeping everything is valid");
        }
    }
}

/// Reading any text as a plan gives an error, or a plan on which the checker doesn't panic.
///
/// # Panics
/// If the property doesn't hold.
pub fn plan_text(problem: &Problem, data: &[u8]) {
    if let Ok(plan) = plan_from_json(problem, &String::from_utf8_lossy(data)) {
        let again = plan_from_json(problem, &plan_to_json(problem, &plan, None))
            .expect("a written plan is read");
        assert_eq!(again, plan);
        if let Ok(checked) = check(problem, plan) {
            assert!(simulate(&checked).makespan().is_finite());
        }
    }
}

/// Any problem has a valid plan; on one device, keeping everything is one. Damaged plans make neither the
/// checker nor the simulator panic.
///
/// # Errors
/// Never, because an exhausted source gives zeros.
///
/// # Panics
/// If a property doesn't hold.
pub fn generate_and_check(data: &[u8]) -> Result<()> {
    let u = &mut Unstructured::new(data);
    let shape = if u.ratio(1, 2)? {
        Shape::one_device(24)
    } else {
        Shape::everything(24)
    };
    let problem = problem(u, &shape)?;
    same_when_read_again(&problem, &Capacities::unlimited());
    if let Some(device) = problem
        .sole_device()
        .filter(|_| problem.devices().len() == 1)
    {
        let plan = Plan::keep_all(&problem, device).expect("one device runs everything");
        let checked = check(&problem, plan).expect("keeping everything is valid");
        assert_eq!(simulate(&checked).makespan(), checked.cost());
    }
    let mut plan = plan(u, &problem)?;
    let checked = check(&problem, plan.clone()).expect("the walk takes legal steps");
    assert!(simulate(&checked).makespan().is_finite());
    for _ in 0..4 {
        plan = mutate(u, &problem, &plan)?;
        if let Ok(checked) = check(&problem, plan.clone()) {
            assert!(simulate(&checked).makespan().is_finite());
        }
    }
    Ok(())
}

fn same_when_read_again(problem: &Problem, capacities: &Capacities) {
    let text = problem_to_json(problem, capacities);
    let (again, same) = problem_from_json(&text).expect("a written problem is read");
    assert_eq!(problem_to_json(&again, &same), text);
}

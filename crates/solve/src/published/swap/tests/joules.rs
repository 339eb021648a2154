//! Tests of POET's program, and of the search beside it.

use super::*;

/// A chain whose tasks take 10 joules per second and whose link takes a joule per byte.
fn energetic(layers: &[LayerOf<'_>]) -> Problem {
    let mut parts = linked(&chain(layers), &speed(100.0, false)).parts();
    for task in parts.tasks.values_mut() {
        task.modes[0].joules = 10.0 * task.modes[0].seconds;
    }
    for link in parts.links.values_mut() {
        link.joules_per_byte = 0.1;
    }
    Problem::new(parts).unwrap()
}

#[test]
fn poet_takes_the_least_energy() {
    if scrimp_solvers::Highs::load(None).is_err() {
        return;
    }
    let layers = [
        ("l1", 2.0, 2.0, 20, 0),
        ("l2", 9.0, 2.0, 40, 0),
        ("l3", 1.0, 2.0, 30, 0),
        ("l4", 3.0, 4.0, 20, 30),
        ("l5", 3.0, 4.0, 20, 30),
    ];
    let problem = energetic(&layers);
    let runs: f64 = problem.base_cost() * 10.0;
    let peak = base_peak(&problem);
    let kept = solve(&problem, &within(peak), Published::Poet).unwrap();
    assert!((kept.plan.total_joules() - runs).abs() < 1e-9);
    // Map 2 must go: making it again takes 90 joules, copying it there and back 8.
    let swapped = solve(&problem, &within(peak - 40), Published::Poet).unwrap();
    assert!(swapped.plan.within(&within(peak - 40)).is_ok());
    assert!(
        (swapped.plan.total_joules() - runs - 8.0).abs() < 1e-9,
        "{:?}",
        swapped.note
    );
    // A copy that takes more joules than layer 3 does: that is made again, unless the time is short.
    let mut parts = problem.parts();
    for link in parts.links.values_mut() {
        link.joules_per_byte = 10.0;
    }
    let dear = Problem::new(parts).unwrap();
    let again = solve(&dear, &within(peak - 20), Published::Poet).unwrap();
    assert!(again.plan.recomputed() > 0, "{:?}", again.note);
    let options = Options {
        runtime_budget: Some(1.0),
        method: Method::Published(Published::Poet),
        ..Options::default()
    };
    let hurried =
        crate::published::plan(&dear, &within(peak - 20), Published::Poet, &options).unwrap();
    assert_eq!(hurried.plan.recomputed(), 0);
    assert!(hurried.plan.total_joules() > again.plan.total_joules());
}

#[test]
fn the_search_counts_the_joules_of_copies() {
    let layers: Vec<LayerOf<'_>> = (0..8).map(|_| ("layer", 4.0, 4.0, 40, 0)).collect();
    let mut parts = energetic(&layers).parts();
    for link in parts.links.values_mut() {
        // A copy takes 80 joules, and making a map again takes 40.
        link.joules_per_byte = 2.0;
    }
    let problem = Problem::new(parts).unwrap();
    let capacities = within(base_peak(&problem) - 40);
    let plan = |alpha| {
        let options = Options {
            alpha,
            ..Options::default()
        };
        crate::solve(&problem, &capacities, &options, &mut |_| {}).unwrap()
    };
    let (fast, frugal) = (plan(0.0), plan(1.0));
    assert_eq!(fast.plan.recomputed(), 0);
    assert_eq!(fast.cost, 64.0, "copies hide");
    assert_eq!(frugal.plan.total_joules(), 640.0 + 40.0);
    assert!(frugal.lower_bound <= frugal.cost);
    assert_eq!(frugal.cost, frugal.plan.objective(1.0));
}

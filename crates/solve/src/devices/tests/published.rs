//! Published instances, where `SCRIMP_INSTANCES` names their folder.

use super::*;

/// A file of the folder that `SCRIMP_INSTANCES` names; none if it isn't set.
fn instance(name: &str) -> Option<scrimp_plan::Instance> {
    let folder = std::env::var_os("SCRIMP_INSTANCES")?;
    let text = std::fs::read_to_string(std::path::Path::new(&folder).join(name)).unwrap();
    Some(scrimp_plan::read_instance(&text).unwrap())
}

#[test]
fn the_example_of_heft_takes_73() {
    let Some(read) = instance("partitioning/heft_topcuoglu2002.json") else {
        return;
    };
    let options = Options::default();
    let solved = solve(&read.problem, &read.capacities, &options, &mut |_| {}).unwrap();
    assert!((solved.cost - 73.0).abs() < 1e-9, "{}", solved.cost);
}

#[test]
fn tasks_that_fit_on_no_device_together_prove_plans_best() {
    // Networks that are nearly chains: what the search finds for them can't be improved.
    for (name, cost) in [("bert24", 100.2185), ("gnmt", 219.05609375)] {
        let Some(read) = instance(&format!("partitioning/latency_layer_{name}.json")) else {
            return;
        };
        let options = Options::default();
        let bound = bound::devices::cost(&read.problem, &read.capacities, &options);
        assert!((bound - cost).abs() < 1e-9 * cost, "{name}: {bound}");
        let unlimited = bound::devices::cost(&read.problem, &Capacities::unlimited(), &options);
        assert!(unlimited < bound, "{name}: {unlimited}");
    }
    // Where branches meet, all of their tasks count that are on one device, and not only those of one path.
    for (name, cost) in [("layer_resnet50", 882.216), ("operator_bert_l-6", 427.854)] {
        let Some(read) = instance(&format!("partitioning/latency_{name}.json")) else {
            return;
        };
        let bound = bound::devices::cost(&read.problem, &read.capacities, &Options::default());
        assert!((bound - cost).abs() < 0.001, "{name}: {bound}");
    }
}

#[test]
fn the_toys_of_xengine_reach_their_optima() {
    let optima = [
        ("simple_costs_very_tiny_linear", 11.0),
        ("simple_costs_tiny_linear", 16.0),
        ("simple_costs_linear", 24.0),
        ("simple_costs_skip", 24.0),
        ("multi_costs_very_tiny_linear", 2.0),
        ("multi_costs_very_tiny_linear_copy_costs", 5.0),
        ("multi_costs_tiny_linear", 7.0),
        ("multi_costs_linear", 12.0),
        ("multi_costs_skip", 11.5),
    ];
    let options = Options {
        objective: Objective::Serial,
        time_limit: Duration::from_millis(300),
        ..Options::default()
    };
    let path = |name: &str| format!("xengine/xengine_test_ilp_{name}.json");
    for (name, optimum) in optima {
        let Some(read) = instance(&path(name)) else {
            return;
        };
        let solved = solve(&read.problem, &read.capacities, &options, &mut |_| {}).unwrap();
        assert!(
            (solved.cost - optimum).abs() < 1e-9,
            "{name}: {}",
            solved.cost
        );
    }
    let Some(read) = instance(&path("multi_costs_skip_copy_costs")) else {
        return;
    };
    let none = solve(&read.problem, &read.capacities, &options, &mut |_| {}).unwrap_err();
    assert!(none.to_string().contains("6000000"), "{none}");
}

//! `--budget min`: the least budget that the search finds, a plan under it, and what is left when it is stopped.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scrimp::graph::networks::NetworkOptions;
use scrimp::graph::{Loss, Optimizer, Roofline, Tiles};
use scrimp::plan::Budget;
use scrimp::solve::Options;
use scrimp::{Budgeted, Fit, ModelSource, Recipe};

/// A training step, asked for its least budget.
fn least_of_a_transformer() -> Budgeted {
    let options = NetworkOptions {
        layers: Some(2),
        ..NetworkOptions::default()
    };
    let source = ModelSource::BuiltIn("transformer".into());
    let graph = scrimp::pipeline::import(&source, &options, None).unwrap();
    let recipe = Recipe {
        loss: Loss::CrossEntropy,
        optimizer: Optimizer::Sgd {
            momentum: 0.0,
            weight_decay: 0.0,
        },
        tiles: Tiles::Off,
    };
    let training = scrimp::pipeline::differentiate(&graph, recipe).unwrap();
    let costs = scrimp::graph::estimate(&training.graph, &Roofline::default(), &|_| 0);
    let lowered = scrimp::pipeline::lower(&training, &costs).unwrap();
    scrimp::pipeline::budget(&lowered.problem, Budget::Min).unwrap()
}

#[test]
fn a_stop_keeps_the_leanest_plan_so_far() {
    let budgeted = least_of_a_transformer();
    let options = Options {
        time_limit: Duration::from_secs(3600),
        stop: Some(Arc::new(AtomicBool::new(true))),
        ..Options::default()
    };
    // Stopped before anything was found, there still is the plan that keeps everything.
    for fit in [Fit::Layout, Fit::LiveBytes] {
        let planned = scrimp::pipeline::find_plan(&budgeted, fit, &options, &mut |_| {}).unwrap();
        let peak = planned.plan().peak(budgeted.device);
        assert!(peak <= planned.budget_bytes && peak <= budgeted.base_peak());
    }
}

#[test]
fn a_stop_while_the_plan_is_improved_keeps_the_least_budget() {
    let budgeted = least_of_a_transformer();
    let stop = Arc::new(AtomicBool::new(false));
    let options = Options {
        time_limit: Duration::from_secs(20),
        stop: Some(Arc::clone(&stop)),
        ..Options::default()
    };
    let planned = scrimp::pipeline::find_plan(&budgeted, Fit::LiveBytes, &options, &mut |news| {
        stop.store(news.cost.is_some(), Ordering::Relaxed);
    });
    let planned = planned.unwrap();
    assert!(planned.budget_bytes < budgeted.base_peak());
    assert!(planned.plan().peak(budgeted.device) <= planned.budget_bytes);
}

#[test]
fn the_least_budget_is_what_its_layout_takes() {
    let budgeted = least_of_a_transformer();
    let options = Options {
        time_limit: Duration::from_secs(3),
        ..Options::default()
    };
    let planned = scrimp::pipeline::find_plan(&budgeted, Fit::Layout, &options, &mut |_| {});
    let planned = planned.unwrap();
    let needed = planned.layout.needed_bytes(budgeted.device);
    assert_eq!(planned.budget_bytes, needed);
    assert!(needed < budgeted.base_peak());
}

//! What planners choose to compute again rather than keep: results of normalizations with their activations, of
//! gelu and of layer norm are made again from their inputs.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use scrimp::graph::networks::{self, NetworkOptions};
use scrimp::graph::{Loss, Lowered, Norm, Op, Optimizer, Tiles, TrainingGraph, Unary};
use scrimp::plan::{Budget, Step, TaskId};
use scrimp::run::{Compiled, Cpu, Processor};
use scrimp::solve::Options;
use scrimp::{Fit, Planned, Recipe};

struct Case {
    training: TrainingGraph,
    lowered: Lowered,
}

impl Case {
    fn new(network: &str, options: &NetworkOptions) -> Case {
        let graph = networks::build(network, options).unwrap();
        let recipe = Recipe {
            loss: Loss::CrossEntropy,
            optimizer: Optimizer::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            tiles: Tiles::Off,
        };
        let training = scrimp::pipeline::differentiate(&graph, recipe).unwrap();
        let cpu = Cpu::new(1).unwrap();
        let compiled = Compiled::new(&training.graph, Processor::Cpu(&cpu));
        let costs = scrimp::pipeline::estimate(&compiled);
        let lowered = scrimp::pipeline::lower(&training, &costs).unwrap();
        Case { training, lowered }
    }

    fn op(&self, task: TaskId) -> &Op {
        &self.training.graph.node(self.lowered.nodes[task]).op
    }

    /// A plan at a part of what planning can change.
    fn plan(&self, percent: f64) -> Planned {
        let budgeted = scrimp::pipeline::budget(&self.lowered.problem, Budget::Percent(percent));
        let options = Options {
            time_limit: Duration::from_secs(1),
            ..Options::default()
        };
        scrimp::pipeline::find_plan(&budgeted.unwrap(), Fit::Layout, &options, &mut |_| {}).unwrap()
    }

    /// How many tasks of a kind run more than once.
    fn runs_again(&self, planned: &Planned, kind: impl Fn(&Op) -> bool) -> usize {
        let mut runs = std::collections::BTreeMap::<TaskId, usize>::new();
        for step in &planned.plan().plan().steps {
            if let Step::Run { task, .. } = step {
                *runs.entry(*task).or_default() += 1;
            }
        }
        let again = runs.iter().filter(|&(_, &runs)| runs > 1);
        again.filter(|&(&task, _)| kind(self.op(task))).count()
    }
}

fn with_activation(op: &Op) -> bool {
    matches!(
        op,
        Op::NormApply {
            activation: Some(_),
            ..
        }
    )
}

fn images(batch: usize, image: usize) -> NetworkOptions {
    NetworkOptions {
        batch,
        image: Some([image; 2]),
        ..NetworkOptions::default()
    }
}

/// Without a plan, the output of a normalization with its activation is gone before its gradient runs: that
/// reads the input. With a small budget, it is made again for the convolution that reads it.
#[test]
fn normalizations_with_activations_are_applied_again() {
    for (network, image) in [("resnet18", 64), ("mobilenet", 64)] {
        let case = Case::new(network, &images(8, image));
        let planned = case.plan(35.0);
        assert!(case.runs_again(&planned, with_activation) > 0, "{network}");

        let problem = &case.lowered.problem;
        let steps = &planned.budgeted.base.plan().steps;
        let (mut live, mut gradients) = (std::collections::BTreeSet::new(), 0);
        for step in steps {
            match step {
                Step::Free { value, .. } => {
                    live.remove(value);
                }
                Step::Run { task, .. } => {
                    let node = case.training.graph.node(case.lowered.nodes[*task]);
                    if with_activation(&node.op) {
                        live.extend(problem.tasks()[*task].outputs.iter().copied());
                    }
                    let (true, &[x, ..]) = (
                        matches!(
                            node.op,
                            Op::NormGrad {
                                activation: Some(_),
                                ..
                            }
                        ),
                        &node.inputs[..],
                    ) else {
                        continue;
                    };
                    // The application of the same input.
                    let apply = case.lowered.nodes.iter().find(|&(_, &id)| {
                        let node = case.training.graph.node(id);
                        with_activation(&node.op) && node.inputs[0] == x
                    });
                    let y = problem.tasks()[apply.unwrap().0].outputs[0];
                    assert!(
                        !live.contains(&y),
                        "{network}: {}",
                        problem.values()[y].name
                    );
                    gradients += 1;
                }
                Step::Copy { .. } => {}
            }
        }
        assert!(gradients > 8, "{network}");
    }
}

#[test]
fn gelu_and_layer_norm_are_computed_again_from_their_inputs() {
    let options = NetworkOptions {
        batch: 4,
        layers: Some(4),
        width: Some(64),
        heads: Some(4),
        sequence: Some(64),
        vocabulary: Some(100),
        ..NetworkOptions::default()
    };
    let case = Case::new("transformer", &options);
    let planned = case.plan(30.0);
    let gelu = |op: &Op| matches!(op, Op::Unary(Unary::Gelu | Unary::GeluTanh));
    let layer_norm = |op: &Op| {
        let norm = Norm::Layer { axis: 2 };
        matches!(op, Op::NormApply { norm: of, .. } if *of == norm)
    };
    assert!(case.runs_again(&planned, gelu) > 0);
    assert!(case.runs_again(&planned, layer_norm) > 0);
}

//! `scrimp inspect`: what a model is and what training it needs.

use anyhow::Result;
use scrimp::graph::Summary;
use scrimp::plan::{Budget, format_bytes, format_seconds};
use scrimp::run::{Compiled, Processor};
use scrimp::solve::floor_bytes;
use serde_json::{Value, json};

use crate::Answer;
use crate::args::InspectArgs;
use crate::table::Table;
use crate::target;

/// Imports, differentiates and counts.
pub fn run(args: &InspectArgs) -> Result<Answer> {
    let graph = target::import(&args.model, &args.shape, true)?;
    let training = scrimp::differentiate(&graph, target::recipe(&args.recipe, &graph)?)?;
    let cpu = target::cpu(0, &args.recipe)?;
    let costs = scrimp::estimate(&Compiled::new(&training.graph, Processor::Cpu(&cpu)));
    let problem = scrimp::lower(&training, &costs)?.problem;
    let step = TrainingNeeds {
        tasks: problem.tasks().len(),
        values: problem.values().len(),
        floor_bytes: floor_bytes(&problem).map_err(scrimp::Error::from)?,
        budgeted: scrimp::budget(&problem, Budget::Percent(50.0))?,
    };
    let summary = graph.summary();
    let mut json = object(&summary, &step);
    json["remarks"] = json!(graph.remarks);
    let mut text = describe(&summary, &step);
    for remark in &graph.remarks {
        text += &format!("\nRemark: {remark}\n");
    }
    Ok(Answer::new(json, text))
}

/// What a training step needs.
struct TrainingNeeds {
    tasks: usize,
    values: usize,
    /// No plan needs less.
    floor_bytes: u64,
    /// At 50 %.
    budgeted: scrimp::Budgeted,
}

fn object(summary: &Summary, step: &TrainingNeeds) -> Value {
    let operators: Vec<Value> = summary
        .operators
        .iter()
        .map(|(name, all)| {
            json!({
                "operator": name,
                "count": all.count,
                "flops": all.flops,
                "output_bytes": all.output_bytes,
            })
        })
        .collect();
    json!({
        "name": summary.name,
        "inputs": summary.inputs,
        "outputs": summary.outputs,
        "nodes": summary.nodes,
        "operators": operators,
        "parameters": summary.parameters,
        "parameter_bytes": summary.parameter_bytes,
        "state_bytes": summary.state_bytes,
        "constant_bytes": summary.constant_bytes,
        "activation_bytes": summary.activation_bytes,
        "flops": summary.flops,
        "training": {
            "tasks": step.tasks,
            "values": step.values,
            "fixed_bytes": step.budgeted.fixed_bytes,
            "base_peak_bytes": step.budgeted.base_peak(),
            "half_budget_bytes": step.budgeted.budget_bytes,
            "floor_bytes": step.floor_bytes,
            "base_cost": step.budgeted.base.cost(),
        },
    })
}

fn describe(summary: &Summary, step: &TrainingNeeds) -> String {
    let mut sizes = Table::new("lrl");
    sizes
        .row(["inputs", "", &summary.inputs.join(", ")])
        .row(["outputs", "", &summary.outputs.join(", ")])
        .row([
            "parameters",
            &summary.parameters.to_string(),
            &format_bytes(summary.parameter_bytes),
        ])
        .row([
            "forward pass",
            &format!("{:.2} GFLOP", summary.flops / 1e9),
            "counted",
        ])
        .row([
            "activations",
            &format_bytes(summary.activation_bytes),
            "as if all were kept",
        ]);
    let mut needs = Table::new("lrl");
    let half = step.budgeted.budget_bytes.unwrap_or_default();
    needs
        .row([
            "tasks",
            &step.tasks.to_string(),
            "forward, backward, updates",
        ])
        .row([
            "peak without a plan",
            &format_bytes(step.budgeted.base_peak()),
            "computed",
        ])
        .row([
            "budget of 50 %",
            &format_bytes(half),
            "half of what planning can change",
        ])
        .row(["no plan below", &format_bytes(step.floor_bytes), "proven"])
        .row([
            "always there",
            &format_bytes(step.budgeted.fixed_bytes),
            "weights, optimizer state",
        ])
        .row([
            "seconds",
            &format_seconds(step.budgeted.base.cost()),
            "by the static model",
        ]);
    let mut operators = Table::new("lrrr");
    operators.row(["operator", "nodes", "GFLOP", "outputs"]);
    for (name, all) in &summary.operators {
        let flops = format!("{:.3}", all.flops / 1e9);
        operators.row([
            *name,
            &all.count.to_string(),
            &flops,
            &format_bytes(all.output_bytes),
        ]);
    }
    format!(
        "{}\n{sizes}\nOne training step\n{needs}\n{operators}",
        summary.name
    )
}

//! `scrimp inspect`: what a model is and what training it needs.

use anyhow::Result;
use scrimp::Devices;
use scrimp::graph::{Graph, Summary};
use scrimp::plan::{Budget, format_bytes, format_seconds};
use scrimp::solve::floor_bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::Answer;
use crate::args::{InspectArgs, SearchArgs};
use crate::costing::{self, Costing, Measured};
use crate::table::Table;
use crate::target;

/// Imports, differentiates and counts.
pub fn run(args: &InspectArgs, quiet: bool) -> Result<Answer> {
    let graph = target::import(&args.model, &args.shape, true)?;
    let training = scrimp::differentiate(&graph, target::recipe(&args.recipe, &graph)?)?;
    let devices = target::devices(&args.devices.devices, 0, args.recipe.library)?;
    let compiled = devices.compiled(&training.graph);
    let costing = Costing {
        source: args.costs,
        afresh: args.fresh_costs,
        budget: &devices.all(Budget::Percent(100.0)),
        search: &SearchArgs::default(),
        swap: &[],
    };
    let measured = costing::costs(&training.phases, &compiled, &devices, &costing, quiet)?;
    let problem = scrimp::lower(&training, &scrimp::estimate(&compiled[0]))?.problem;
    let step = TrainingNeeds {
        tasks: problem.tasks().len(),
        values: problem.values().len(),
        floor_bytes: floor_bytes(&problem).map_err(scrimp::Error::from)?,
        budgeted: scrimp::budget(&problem, Budget::Percent(50.0))?,
        devices: work(&devices, &training.graph, &measured),
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
    devices: Vec<Work>,
}

/// What a device would do in a step if it did everything.
struct Work {
    device: String,
    seconds: f64,
    /// How many times as long it would take while all other devices compute, if that was measured.
    slowed: Option<f64>,
    /// Seconds by operator.
    operators: BTreeMap<&'static str, f64>,
}

fn work(devices: &Devices, graph: &Graph, measured: &Measured) -> Vec<Work> {
    let each = devices.iter().zip(&measured.costs).enumerate();
    let each = each.map(|(number, ((name, _), costs))| {
        let profile = measured.profiles.get(number);
        let mut operators = BTreeMap::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
            *operators.entry(node.op.kind()).or_insert(0.0) += costs.nodes[id].seconds;
        }
        Work {
            device: name.into(),
            seconds: costs.seconds(graph),
            slowed: profile.and_then(|profile| profile.slowed_step(graph)),
            operators,
        }
    });
    each.collect()
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
        "devices": devices(step),
    })
}

fn devices(step: &TrainingNeeds) -> Value {
    let each = step.devices.iter().map(|work| {
        let operators = work.operators.iter();
        let operators =
            operators.map(|(name, seconds)| json!({ "operator": name, "seconds": seconds }));
        let operators: Vec<Value> = operators.collect();
        let what = json!({
            "seconds": work.seconds,
            "slowed": work.slowed,
            "operators": operators,
        });
        (work.device.clone(), what)
    });
    Value::Object(each.collect())
}

/// A column for each device, and a row for each operator of a step, the slowest first.
fn seconds(devices: &[Work]) -> Table {
    let mut table = Table::new(&format!("l{}", "r".repeat(devices.len())));
    let names = devices
        .iter()
        .map(|work| format!("seconds on {}", work.device));
    table.row(["one step".to_owned()].into_iter().chain(names));
    let mut rows: Vec<&str> = devices
        .iter()
        .flat_map(|work| work.operators.keys())
        .copied()
        .collect();
    let most = |name: &str| {
        devices
            .iter()
            .map(|work| work.operators[name])
            .fold(0.0, f64::max)
    };
    rows.sort_by(|a, b| most(b).total_cmp(&most(a)).then(a.cmp(b)));
    rows.dedup();
    for name in rows {
        let cells = devices
            .iter()
            .map(|work| format_seconds(work.operators[name]));
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    let sums = devices.iter().map(|work| format_seconds(work.seconds));
    table.row(["all".to_owned()].into_iter().chain(sums));
    if devices.iter().any(|work| work.slowed.is_some()) {
        let cells = devices.iter().map(|work| match work.slowed {
            Some(slowed) => format!("{slowed:.2} times as long"),
            None => String::new(),
        });
        let beside = "while the others compute".to_owned();
        table.row([beside].into_iter().chain(cells));
    }
    table
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
        "{}\n{sizes}\nOne training step\n{needs}\n{operators}\n{}",
        summary.name,
        seconds(&step.devices)
    )
}

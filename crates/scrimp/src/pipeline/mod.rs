//! The pipeline, from a model and a budget to a plan that can be executed: read it from top to
//! bottom.
//!
//! Every stage is a function from the last stage's type to the next: [`import`] → [`differentiate`]
//! → [`crate::profile()`] or [`estimate`] → [`lower`] → [`budget`] → [`find_plan`] (solve, check,
//! place) → [`crate::Session`]. Nothing goes backwards except the one loop in [`find_plan`].
//!
//! ```
//! use scrimp::graph::data::Feed;
//! use scrimp::graph::networks::NetworkOptions;
//! use scrimp::graph::{Loss, Optimizer, Tiles};
//! use scrimp::plan::Budget;
//! use scrimp::run::{Compiled, Cpu, Processor};
//! use scrimp::solve::Options;
//! use scrimp::{Fit, Job, ModelSource, Recipe, Session, Start, Swap, pipeline};
//!
//! # fn main() -> Result<(), scrimp::Error> {
//! let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 };
//! let recipe = Recipe { loss: Loss::CrossEntropy, optimizer, tiles: Tiles::Off };
//! let options = NetworkOptions { batch: 4, ..NetworkOptions::default() };
//!
//! let graph = pipeline::import(&ModelSource::find("digits")?, &options, None)?;
//! let training = pipeline::differentiate(&graph, recipe)?;
//! let cpu = Cpu::new(1)?;
//! let compiled = Compiled::new(&training.graph, Processor::Cpu(&cpu));
//! let costs = pipeline::estimate(&compiled);
//! let lowered = pipeline::lower(&training, &costs)?;
//! let budgeted = pipeline::budget(&lowered.problem, Budget::Percent(70.0))?;
//! let planned = pipeline::find_plan(&budgeted, Fit::Layout, &Options::default(), &mut |_| {})?;
//! assert!(planned.plan().peak(budgeted.device) < budgeted.base_peak());
//!
//! let feed = Feed::synthetic(&training.graph, 0);
//! let start = Start::new(0);
//! let job = Job {
//!     training: &training,
//!     lowered: &lowered,
//!     compiled: std::slice::from_ref(&compiled),
//!     feed: &feed,
//!     optimizer,
//!     learning_rate: 0.01,
//!     start: &start,
//!     swap: &Swap::default(),
//! };
//! let mut session = Session::new(job, &planned.layout, planned.reserved_bytes())?;
//! session.step(false)?;
//! assert_eq!(session.arena_bytes(), planned.budget_bytes);
//! # Ok(())
//! # }
//! ```

mod ascending;
mod cuts;
mod devices;
mod find;
pub(crate) mod homes;
mod least;
mod one;
mod several;
mod slowed;
mod tiles;
mod under;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use scrimp_graph::networks::{self, NetworkOptions};
use scrimp_graph::onnx::{self, ImportOptions, ModelCopy};
use scrimp_graph::{
    Costs, Graph, Loss, Lowered, NodeId, Op, Optimizer, Roofline, Tiles, TrainingGraph,
};
use scrimp_plan::{
    Budget, Capacities, CheckedLayout, CheckedPlan, DeviceId, PerDevice, Problem, simulate,
};
use scrimp_run::Compiled;
use scrimp_solve::{Layer, Method, Order};

use crate::error::{Error, Result};
use crate::history::History;
use crate::machine;

pub use ascending::find_ascending;
pub use find::{Fit, adopt, find_plan, plan_bytes};
pub(crate) use several::is_too_little;
pub use slowed::Slowed;
pub use tiles::{Choice, Pricing, TileSearch, TiledStep, TrialPlan, Work, choose_tiles};

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The name of a built-in network.
    BuiltIn(String),
    /// An ONNX file.
    File(PathBuf),
}

impl ModelSource {
    /// A built-in network if there is one of this name, otherwise a file that exists.
    ///
    /// # Errors
    /// If there is neither.
    pub fn find(model: &str) -> Result<ModelSource> {
        if networks::NAMES.iter().any(|network| network.name == model) {
            return Ok(ModelSource::BuiltIn(model.into()));
        }
        match Path::new(model).is_file() {
            true => Ok(ModelSource::File(model.into())),
            false => Err(Error::UnknownModel {
                model: model.into(),
            }),
        }
    }
}

/// Stage 1, import: the graph as its author wrote it.
///
/// # Errors
/// If the file can't be read or has something unsupported, or the options don't fit the network.
pub fn import(
    source: &ModelSource,
    options: &NetworkOptions,
    batch: Option<usize>,
) -> Result<Graph> {
    match source {
        ModelSource::BuiltIn(name) => Ok(networks::build(name, options)?),
        ModelSource::File(path) => {
            let options = ImportOptions {
                batch,
                room: machine::memory().available,
                ..ImportOptions::default()
            };
            onnx::import(path, &options).map_err(|source| Error::Onnx {
                path: path.clone(),
                source,
            })
        }
    }
}

/// A copy of an ONNX model for trained weights; `graph` is what [`import`] made of the model.
///
/// # Errors
/// If the file can't be read, or isn't the one that the graph was made from.
pub fn copy_of(path: &Path, graph: &Graph) -> Result<ModelCopy> {
    ModelCopy::new(path, graph).map_err(|source| Error::Onnx {
        path: path.into(),
        source,
    })
}

/// What a training step minimizes, and how its parameters change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// The loss.
    pub loss: Loss,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// What is run by tiles.
    pub tiles: Tiles,
}

/// Stage 2, differentiate: one training step with its gradients and updates as nodes.
///
/// # Errors
/// If the loss doesn't fit the graph's output, an operator has no gradient, or nothing can be run by tiles.
pub fn differentiate(graph: &Graph, recipe: Recipe) -> Result<TrainingGraph> {
    Ok(scrimp_graph::train_tiled(
        graph,
        recipe.loss,
        Some(recipe.optimizer),
        recipe.tiles,
    )?)
}

/// Stage 3, estimate: what each node costs by the static model, which is the same on every machine, with the
/// scratch memory that this processor needs. The alternative is [`crate::profile()`], which measures.
pub fn estimate(compiled: &Compiled<'_>) -> Costs {
    let workspace = |node| compiled.workspace(node);
    scrimp_graph::estimate(compiled.graph(), &Roofline::default(), &workspace)
}

/// Stage 4, lower: the planning problem for one device; see [`crate::Devices::lower`] for several.
///
/// # Errors
/// If the graph can't be planned; see [`scrimp_graph::lower()`].
pub fn lower(training: &TrainingGraph, costs: &Costs) -> Result<Lowered> {
    Ok(scrimp_graph::lower(
        &training.graph,
        &training.phases,
        costs,
        "cpu",
    )?)
}

/// What kind of layer each task is, for planners whose rules ask for it.
pub fn layers(training: &TrainingGraph, lowered: &Lowered) -> Arc<[Layer]> {
    let layer = |&node: &NodeId| match training.graph.node(node).op {
        Op::Conv { .. } => Layer::Convolution,
        Op::MatMul { .. } => Layer::Linear,
        Op::BatchNorm { .. } | Op::NormStats { .. } | Op::NormApply { .. } => Layer::Normalization,
        Op::Unary(_) => Layer::Activation,
        Op::MaxPool { .. } | Op::AvgPool { .. } => Layer::Pooling,
        _ => Layer::Other,
    };
    lowered.nodes.values().map(layer).collect()
}

/// Stage 5, budget: a problem, the plan that does no planning, and the bytes that the plan may use.
#[derive(Clone, Debug)]
pub struct Budgeted {
    /// The problem to plan.
    pub problem: Problem,
    /// The device that computes; of several, the one that alone is the fastest.
    pub device: DeviceId,
    /// The plan without planning: it runs every task once, in the given order, on that device, and keeps
    /// everything until its last use.
    pub base: CheckedPlan,
    /// Bytes in use at all times, which no plan can change.
    pub fixed_bytes: u64,
    /// The budget that was asked for on that device.
    pub asked: Budget,
    /// That budget as the most bytes in use; `None` asks for the least for which a plan is found.
    pub budget_bytes: Option<u64>,
    /// Other limits: bytes of other devices, and energy.
    pub beside: Capacities,
    /// Whether planning for several devices that compute decides where what is given is.
    pub homes: Homes,
    /// Of several devices that compute, those whose least budget is asked, with the peak of running everything
    /// there.
    pub least: Vec<(DeviceId, u64)>,
    /// How devices that compute at the same time slow each other down. Plans that use several devices are made and judged
    /// with it; those of one device, as `base` is, are not.
    pub slowed: Slowed,
}

impl Budgeted {
    /// The most bytes in use at any time without planning.
    pub fn base_peak(&self) -> u64 {
        self.base.peak(self.device)
    }

    /// The budget as capacities; without a limit if the least is looked for.
    pub fn capacities(&self) -> Capacities {
        self.beside
            .clone()
            .with_bytes(self.device, self.budget_bytes)
    }

    /// At most this many bytes of the device that computes, with the other limits unchanged.
    pub fn within(&self, bytes: u64) -> Capacities {
        self.beside.clone().with_bytes(self.device, Some(bytes))
    }
}

/// Works out what a budget means for a problem with one device that computes.
///
/// # Errors
/// As for [`budgets`].
pub fn budget(problem: &Problem, budget: Budget) -> Result<Budgeted> {
    let budgets = PerDevice::Sole(budget);
    self::budgets(
        problem,
        Some(&budgets),
        &Capacities::unlimited(),
        Homes::Given,
    )
}

/// Where what is given may be at the start of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Homes {
    /// Where the problem says.
    Given,
    /// On any device that computes.
    Free,
}

/// Works out what budgets for several devices mean. A device without a budget has its `stated` capacity,
/// which a file may give. A percentage of a device's budget refers to running everything on that device alone.
///
/// # Errors
/// If there is no budget for a device that computes, or the budget of another memory isn't a number of bytes; if the
/// given order can't be run.
pub fn budgets(
    problem: &Problem,
    budgets: Option<&PerDevice<Budget>>,
    stated: &Capacities,
    homes: Homes,
) -> Result<Budgeted> {
    let budgets = budgets.map_or(Ok(Vec::new()), |budgets| budgets.of(problem))?;
    let name = |device: DeviceId| problem.devices()[device].name.clone();
    let computing = problem.devices().iter().filter(|(_, what)| what.computes);
    let bases = computing
        .map(|(device, _)| Ok((device, devices::alone(problem, device, homes)?)))
        .collect::<Result<Vec<(DeviceId, CheckedPlan)>>>()?;
    let seconds = |(_, base): &&(DeviceId, CheckedPlan)| simulate(base).makespan();
    let fastest = bases.iter();
    let fastest = fastest.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let (device, base) = fastest.expect("a device of every problem computes");
    let (mut asked, mut beside) = ((Budget::Min, None), stated.clone());
    let mut least = Vec::new();
    for (other, base) in &bases {
        let mut named = budgets.iter();
        let named = named.find(|(device, _)| device == other);
        let budget = named.map(|&(_, &budget)| budget);
        let budget = budget.or_else(|| stated.bytes(*other).map(Budget::Units));
        let budget = match (budget, homes, bases.len()) {
            (Some(budget), ..) => budget,
            // A file may leave some of its devices without a limit.
            (None, Homes::Given, 2..) => Budget::Units(u64::MAX),
            (None, ..) => {
                return Err(Error::NoBudget {
                    device: name(*other),
                });
            }
        };
        if budget == Budget::Min && bases.len() > 1 {
            least.push((*other, base.peak(*other)));
        }
        let bytes = budget.bytes(base.problem(), *other, base.peak(*other))?;
        if other == device {
            asked = (budget, bytes);
        } else {
            beside = beside.with_bytes(*other, bytes.filter(|&bytes| bytes < u64::MAX));
        }
    }
    for &(memory, &budget) in &budgets {
        if problem.devices()[memory].computes {
            continue;
        }
        if !matches!(budget, Budget::Bytes(_) | Budget::Units(_)) {
            return Err(Error::MemoryBudget {
                device: name(memory),
            });
        }
        beside = beside.with_bytes(memory, budget.bytes(problem, memory, 0)?);
    }
    let (asked, budget_bytes) = asked;
    Ok(Budgeted {
        fixed_bytes: base.problem().fixed_bytes(*device),
        problem: base.problem().clone(),
        device: *device,
        base: base.clone(),
        asked,
        budget_bytes,
        beside,
        homes,
        least,
        slowed: Slowed::default(),
    })
}

/// Stages 6 to 8: a plan that is solved, checked and placed, which is what the executor takes.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The problem and its budget.
    pub budgeted: Budgeted,
    /// The most bytes that may be in use.
    pub budget_bytes: u64,
    /// The plan with its byte offsets. With [`Fit::Layout`] the offsets are within the budget.
    pub layout: CheckedLayout,
    /// How the planner found it; `None` for a plan that was given.
    pub provenance: Option<Provenance>,
    /// A remark on a plan that was given.
    pub remark: Option<String>,
}

/// How a plan was found and how good it must be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Provenance {
    /// The planner.
    pub method: Method,
    /// Whether tasks had to run first in the given order.
    pub order: Order,
    /// Seconds per joule. The planner minimizes seconds plus `alpha` times joules.
    pub alpha: f64,
    /// Proven: no plan within the budget and in that `order` has a smaller objective.
    pub lower_bound: f64,
    /// Whether the plan's cost is proven to be the least.
    pub optimal: bool,
    /// Time that all attempts took together.
    pub elapsed: Duration,
    /// How often the planner was asked; more than once if a layout didn't fit. A search after that doesn't count.
    pub attempts: usize,
    /// The planner's remark.
    pub note: Option<String>,
    /// How the first attempt went, and the search after its layout was made.
    pub history: History,
    /// Of several devices that compute, the one whose plan is the best among those in which one device does everything,
    /// and what that plan costs.
    pub alone: Option<(DeviceId, f64)>,
}

impl Planned {
    /// The checked plan.
    pub fn plan(&self) -> &CheckedPlan {
        self.layout.plan()
    }

    /// Extent of the layout in bytes.
    pub fn arena_bytes(&self) -> u64 {
        self.layout.arena_bytes(self.budgeted.device)
    }

    /// Size of the arena that a run reserves on the first device that computes. If it is the only one, that is the
    /// budget, or what running without a plan needs if that is less; one of several gets what its layout needs.
    pub fn reserved_bytes(&self) -> u64 {
        let problem = &self.budgeted.problem;
        if problem.sole_device().is_none() {
            let mut devices = problem.devices().iter();
            let first = devices.find(|(_, what)| what.computes);
            return first.map_or(0, |(device, _)| self.layout.arena_bytes(device));
        }
        let needed = self.layout.needed_bytes(self.budgeted.device);
        self.budget_bytes.min(self.budgeted.base_peak()).max(needed)
    }

    /// The plan that a comparison runs: that without planning on one device; with several, the same placement
    /// without budgets.
    ///
    /// # Errors
    /// The tasks can't run once in this order.
    pub fn compared(&self) -> Result<CheckedPlan> {
        match self.budgeted.problem.sole_device() {
            Some(_) => Ok(self.budgeted.base.clone()),
            None => devices::alike(self.plan()),
        }
    }
}

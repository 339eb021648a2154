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
//! use scrimp::graph::{Loss, Optimizer};
//! use scrimp::plan::Budget;
//! use scrimp::run::{Compiled, Cpu, Processor};
//! use scrimp::solve::Options;
//! use scrimp::{Fit, Job, ModelSource, Recipe, Session, Start, pipeline};
//!
//! # fn main() -> Result<(), scrimp::Error> {
//! let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 };
//! let recipe = Recipe { loss: Loss::CrossEntropy, optimizer };
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
//!     compiled: &compiled,
//!     feed: &feed,
//!     optimizer,
//!     learning_rate: 0.01,
//!     start: &start,
//! };
//! let mut session = Session::new(job, &planned.layout, planned.reserved_bytes())?;
//! session.step(false)?;
//! assert_eq!(session.arena_bytes(), planned.budget_bytes);
//! # Ok(())
//! # }
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use scrimp_graph::networks::{self, NetworkOptions};
use scrimp_graph::onnx::{self, ImportOptions, ModelCopy};
use scrimp_graph::{Costs, Graph, Loss, Lowered, Optimizer, Roofline, TrainingGraph};
use scrimp_plan::{
    Budget, Capacities, CheckedLayout, CheckedPlan, DeviceId, PerDevice, Plan, Problem, SavedPlan,
    Sequence, check,
};
use scrimp_run::Compiled;
use scrimp_solve::{
    Method, Options, Order, PlaceError, Progress, SolveError, Solved, leanest, place,
    place_reordered, solve,
};

use crate::error::{Error, Result};
use crate::history::History;
use crate::machine;

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
}

/// Stage 2, differentiate: one training step with its gradients and updates as nodes.
///
/// # Errors
/// If the loss doesn't fit the graph's output, or an operator has no gradient.
pub fn differentiate(graph: &Graph, recipe: Recipe) -> Result<TrainingGraph> {
    Ok(scrimp_graph::train(
        graph,
        recipe.loss,
        Some(recipe.optimizer),
    )?)
}

/// Stage 3, estimate: what each node costs by the static model, which is the same on every machine, with the
/// scratch memory that this processor needs. The alternative is [`crate::profile()`], which measures.
pub fn estimate(compiled: &Compiled<'_>) -> Costs {
    let workspace = |node| compiled.workspace(node);
    scrimp_graph::estimate(compiled.graph(), &Roofline::default(), &workspace)
}

/// Stage 4, lower: the planning problem.
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

/// Stage 5, budget: a problem with one computing device, the plan that does no planning, and the bytes that
/// the plan may use.
#[derive(Clone, Debug)]
pub struct Budgeted {
    /// The problem to plan.
    pub problem: Problem,
    /// The only device that computes.
    pub device: DeviceId,
    /// The plan without planning: it runs every task once, in the given order, and keeps everything until its
    /// last use.
    pub base: CheckedPlan,
    /// Bytes in use at all times, which no plan can change.
    pub fixed_bytes: u64,
    /// The budget that was asked for on that device.
    pub asked: Budget,
    /// That budget as the most bytes in use; `None` asks for the least for which a plan is found.
    pub budget_bytes: Option<u64>,
    /// Other limits: bytes of other devices, and energy.
    pub beside: Capacities,
}

impl Budgeted {
    /// The most bytes in use at any time without planning.
    pub fn base_peak(&self) -> u64 {
        self.base.peak(self.device)
    }
}

/// Works out what a budget means for a problem.
///
/// # Errors
/// If several devices compute, or the given order can't be run.
pub fn budget(problem: &Problem, budget: Budget) -> Result<Budgeted> {
    let device = problem.sole_device().ok_or_else(|| Error::SeveralDevices {
        problem: problem.name().into(),
    })?;
    let base = check(problem, Plan::keep_all(problem, device)?)?;
    let budget_bytes = budget.bytes(problem, device, base.peak(device))?;
    Ok(Budgeted {
        fixed_bytes: problem.fixed_bytes(device),
        problem: problem.clone(),
        device,
        base,
        asked: budget,
        budget_bytes,
        beside: Capacities::unlimited(),
    })
}

/// Works out what budgets for several devices mean. A device without a budget has its `stated` capacity,
/// which a file may give.
///
/// # Errors
/// As for [`budget`]; also if there is no budget for the device that computes, or the budget of another
/// memory isn't a number of bytes.
pub fn budgets(
    problem: &Problem,
    budgets: Option<&PerDevice<Budget>>,
    stated: &Capacities,
) -> Result<Budgeted> {
    let device = problem.sole_device().ok_or_else(|| Error::SeveralDevices {
        problem: problem.name().into(),
    })?;
    let mut beside = stated.clone();
    let mut asked = stated.bytes(device).map(Budget::Units);
    for (other, &budget) in budgets.map_or(Ok(Vec::new()), |budgets| budgets.of(problem))? {
        if other == device {
            asked = Some(budget);
        } else if matches!(budget, Budget::Bytes(_) | Budget::Units(_)) {
            beside = beside.with_bytes(other, budget.bytes(problem, other, 0)?);
        } else {
            return Err(Error::MemoryBudget {
                device: problem.devices()[other].name.clone(),
            });
        }
    }
    let asked = asked.ok_or_else(|| Error::NoBudget {
        device: problem.devices()[device].name.clone(),
    })?;
    Ok(Budgeted {
        beside,
        ..budget(problem, asked)?
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
    /// How often the planner was asked; more than once if a layout didn't fit.
    pub attempts: usize,
    /// The planner's remark.
    pub note: Option<String>,
    /// How the first attempt went.
    pub history: History,
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

    /// Size of the arena that a run reserves: the budget, or what running without a plan needs if that is
    /// less.
    pub fn reserved_bytes(&self) -> u64 {
        let needed = self.layout.needed_bytes(self.budgeted.device);
        self.budget_bytes.min(self.budgeted.base_peak()).max(needed)
    }
}

/// The share of the time limit by which the first attempt ends, if the limit is at least this long. A shorter
/// one may not suffice for a first plan.
const FIRST_PART: f64 = 0.75;
const FIRST_LIMIT: Duration = Duration::from_secs(4);
/// A placement may take at least this time and this part of the limit, and a further attempt this part.
const PLACE_TIME: Duration = Duration::from_millis(500);
const PLACE_PART: u32 = 10;
const AGAIN_PART: u32 = 20;

/// What must fit the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The layout: the plan will be executed in an arena of the budget's size.
    Layout,
    /// The live bytes, which is what budgets of published instances mean. A layout is made all the same.
    LiveBytes,
}

/// The most times that the planner is asked.
const ATTEMPTS: u64 = 12;
/// The first tightening removes, besides the missing bytes, one part in this many of what planning can
/// change. Each further tightening removes twice as much as the one before. Another plan has other holes, so
/// without a margin it may miss the budget by as much again.
const MARGIN: u64 = 256;

/// Stages 6 to 8: solve, check, place. This is the one loop of the pipeline. If the plan's live bytes fit the
/// budget but its layout doesn't, the planner is asked again. If the order is free, it is first asked for a
/// plan in the given order, whose lifetimes are nested more neatly. Then it is asked for a plan that uses
/// less by the missing bytes and a margin or, if there is none, for another plan.
///
/// # Errors
/// If no plan is found, with the least budget for which there is one, or if no layout fits.
pub fn find_plan(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    match budgeted.budget_bytes {
        Some(bytes) => under(budgeted, bytes, fit, options, watch),
        None if options.method == Method::Search && !counts_energy(budgeted, options) => {
            least(budgeted, fit, options, watch)
        }
        None => {
            let bytes = least_of_method(budgeted, options, watch)?;
            under(budgeted, bytes, fit, options, watch)
        }
    }
}

/// Whether energy has a price or a cap.
fn counts_energy(budgeted: &Budgeted, options: &Options) -> bool {
    options.alpha != 0.0 || budgeted.beside.joules(budgeted.device).is_some()
}

/// The plan under a budget in bytes.
fn under(
    budgeted: &Budgeted,
    budget: u64,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    // Published budgets are for live bytes. With the least budget, the layout gets what it needs.
    let limit = match fit {
        Fit::Layout => budgeted.capacities(),
        Fit::LiveBytes => Capacities::unlimited(),
    };
    let mut target = budget;
    let mut provenance = Provenance {
        alpha: options.alpha,
        history: History::new(budgeted.base.objective(options.alpha)),
        ..Provenance::default()
    };
    let mut needed = u64::MAX;
    let changeable = budgeted.base_peak().saturating_sub(budgeted.fixed_bytes);
    let mut margin = changeable / MARGIN;
    let first_limit = options.time_limit;
    let began = Instant::now();
    // From now on at least this part of the limit, and until the limit's end.
    let left = |part: u32| {
        let left = first_limit.saturating_sub(began.elapsed());
        left.max(first_limit / part)
    };
    let order = options.order;
    let mut options = options.clone();
    if fit == Fit::Layout && first_limit >= FIRST_LIMIT {
        // A plan made in the last moment is poor, so later attempts have time of their own.
        let first = began.checked_add(first_limit.mul_f64(FIRST_PART));
        options.deadline = options.deadline.into_iter().chain(first).min();
    }
    // With energy, the search is called for several prices of a joule.
    let untold = counts_energy(budgeted, &options);
    for attempt in 1..=ATTEMPTS {
        let mut watch = |news| {
            if attempt == 1 && !untold {
                provenance.history.add(news);
            }
            watch(news);
        };
        let capacities = budgeted.within(target);
        let solved = match solve(&budgeted.problem, &capacities, &options, &mut watch) {
            Ok(solved) => solved,
            // The budget was tightened too far: the bytes that are missing are the layout's, not the plan's.
            Err(SolveError::Infeasible { .. }) if attempt > 1 => {
                options.order = order;
                options.seed = options.seed.wrapping_add(1);
                (target, margin) = (budget, changeable / MARGIN);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if attempt == 1 {
            provenance.history.end(&solved);
        }
        provenance = provenance.followed_by(&solved, order);
        let placed = match (fit, solved.method) {
            (Fit::Layout, Method::Search) => {
                let cutoff = options.cutoff(Instant::now(), left(PLACE_PART).max(PLACE_TIME));
                place_reordered(&solved.plan, &limit, options.order, cutoff)
            }
            // A published planner's plan stays as it is.
            _ => place(&solved.plan, &limit),
        };
        match placed {
            Ok(layout) => return Ok(budgeted.planned(layout, fit, budget, Some(provenance))),
            Err(PlaceError::OverCapacity { arena, available }) => {
                let excess = arena - available;
                needed = needed.min(budget.saturating_add(excess));
                options.time_limit = first_limit / 4;
                options.deadline = Instant::now().checked_add(left(AGAIN_PART));
                if attempt == 1 && order == Order::Free {
                    options.order = Order::Fixed;
                    continue;
                }
                options.order = order;
                target = target.saturating_sub(excess.saturating_add(margin));
                margin = margin.saturating_mul(2);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::NoLayout { budget, needed })
}

/// Stages 7 and 8 for a plan that was made before, perhaps for another device: checks it under this budget
/// with this device's workspaces and costs, and places it. `device` is the device's signature.
///
/// # Errors
/// If the plan is wrong or needs more than the budget, or if no layout fits.
pub fn adopt(budgeted: &Budgeted, saved: SavedPlan, device: &str) -> Result<Planned> {
    let made = saved.device.filter(|made| made != device);
    if made.is_none() && saved.exact {
        return check_again(budgeted, saved.plan);
    }
    let made = made.unwrap_or_else(|| "other workspaces".into());
    match check_again(budgeted, saved.plan) {
        Ok(planned) => Ok(Planned {
            remark: Some(format!(
                "made for {made}; checked again with the workspaces and costs of {device}"
            )),
            ..planned
        }),
        Err(source) => Err(Error::OtherDevice {
            made,
            device: device.into(),
            source: Box::new(source),
        }),
    }
}

fn check_again(budgeted: &Budgeted, plan: Plan) -> Result<Planned> {
    let plan = check(&budgeted.problem, plan)?;
    let budget = budgeted.budget_bytes.unwrap_or(plan.peak(budgeted.device));
    let capacities = budgeted.capacities();
    plan.within(&capacities)?;
    match place(&plan, &capacities) {
        Ok(layout) => Ok(budgeted.planned(layout, Fit::Layout, budget, None)),
        Err(PlaceError::OverCapacity { arena, available }) => Err(Error::NoLayout {
            budget,
            needed: budget.saturating_add(arena - available),
        }),
        Err(error) => Err(error.into()),
    }
}

/// The shares of the time limit after which the least budget and the plan under it must be known.
const LEAST_SHARE: f64 = 0.75;
const PLAN_SHARE: f64 = 0.9;
/// The placement's share of the time limit.
const PLACE_SHARE: f64 = 0.1;

/// The plan under the least budget for which the search finds one. The time limit covers everything. If the
/// search is stopped, the result is the leanest plan so far, at worst the one that keeps everything.
fn least(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let began = Instant::now();
    let until = |share: f64| Options {
        deadline: began.checked_add(options.time_limit.mul_f64(share)),
        ..options.clone()
    };
    let (budget, mut solved) = leanest(&budgeted.problem, &until(LEAST_SHARE), watch)?;
    let mut history = History::new(budgeted.base.cost());
    if !options.stopped() {
        let (problem, capacities) = (&budgeted.problem, budgeted.within(budget));
        let mut watch = |news| {
            history.add(news);
            watch(news);
        };
        let options = Options {
            start: Some(Sequence::of_runs(budgeted.device, solved.plan.runs())),
            ..until(PLAN_SHARE)
        };
        match solve(problem, &capacities, &options, &mut watch) {
            Ok(cheaper) if cheaper.cost <= solved.cost => solved = cheaper,
            Ok(_) | Err(SolveError::Infeasible { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    history.end(&solved);
    solved.elapsed = began.elapsed();
    let unlimited = Capacities::unlimited();
    let cutoff = options.cutoff(Instant::now(), options.time_limit.mul_f64(PLACE_SHARE));
    // With the least budget, the layout gets what it needs.
    let layout = match fit {
        Fit::Layout => place_reordered(&solved.plan, &unlimited, options.order, cutoff)?,
        Fit::LiveBytes => place(&solved.plan, &unlimited)?,
    };
    let provenance = Provenance {
        history,
        ..Provenance::default()
    };
    let provenance = provenance.followed_by(&solved, options.order);
    Ok(budgeted.planned(layout, fit, budget, Some(provenance)))
}

/// The least budget for which a method other than the search finds a plan.
fn least_of_method(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<u64> {
    match solve(&budgeted.problem, &budgeted.within(0), options, watch) {
        Ok(solved) => Ok(solved.plan.peak(budgeted.device)),
        Err(SolveError::Infeasible { least_found, .. }) => Ok(least_found),
        Err(error) => Err(error.into()),
    }
}

impl Budgeted {
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

    fn planned(
        &self,
        layout: CheckedLayout,
        fit: Fit,
        budget_bytes: u64,
        provenance: Option<Provenance>,
    ) -> Planned {
        // With the least budget, the layout gets what it needs.
        let budget_bytes = match fit {
            Fit::Layout => budget_bytes.max(layout.needed_bytes(self.device)),
            Fit::LiveBytes => budget_bytes,
        };
        Planned {
            budgeted: self.clone(),
            budget_bytes,
            layout,
            provenance,
            remark: None,
        }
    }
}

impl Provenance {
    /// This provenance with one more attempt. Only the first attempt is made under the budget itself, so only
    /// its bound is valid for the budget.
    fn followed_by(self, solved: &Solved, order: Order) -> Provenance {
        let lower_bound = if self.attempts == 0 {
            solved.lower_bound
        } else {
            self.lower_bound
        };
        Provenance {
            method: solved.method,
            order,
            alpha: self.alpha,
            lower_bound,
            optimal: solved.cost <= lower_bound * (1.0 + 1e-9),
            elapsed: self.elapsed + solved.elapsed,
            attempts: self.attempts + 1,
            note: solved.note.clone(),
            history: self.history,
        }
    }
}

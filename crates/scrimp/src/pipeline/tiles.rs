//! How many tiles: so many that a plan within the budget is fastest, none if that is as fast.

use std::cmp::Ordering;
use std::sync::atomic;
use std::time::{Duration, Instant};

use scrimp_graph::data::{Stream, streamed};
use scrimp_graph::{Costs, Graph, GraphError, Phases, Tiled, Tiles};
use scrimp_plan::{Budget, Mode, PerDevice};
use scrimp_run::Compiled;
use scrimp_solve::{Options, SolveError, floor_bytes, share_needed};

use super::{Budgeted, Fit, Homes, Planned, Recipe, budgets, differentiate, estimate, find_plan};
use crate::crossing::Crossing;
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::inference::forward;
use crate::swap::Swap;

/// Each number of bytes for which tiles are chosen is this part of the one before, this often at most.
const PART: f64 = 0.8;
const CHOICES: i32 = 20;

/// First every so many numbers of bytes are tried, then those between the best and its neighbours.
const STRIDE: i32 = 4;

/// Tiles in each dimension that are tried if none of those numbers of bytes leads to a plan.
const COUNTS: [usize; 5] = [2, 3, 4, 6, 8];

/// Smaller tiles aren't tried after so many in a row that were no better than larger ones.
const MOST_WORSE: u32 = 2;

/// A plan that is only compared has this part of the time limit.
const TRIAL: u32 = 10;

/// The search for tiles ends after the time limit; while no plan within the budget is known, after twice the limit and
/// this.
const PATIENCE: Duration = Duration::from_secs(3);

/// A step of more tasks isn't planned, for one device and for several, where quick plans take much longer.
const MOST_TASKS: usize = 200_000;
const MOST_TASKS_OF_SEVERAL: usize = 5_000;

/// A layout for several devices is thought to take one part in so many beyond the bytes in use.
const LAYOUT_PART: u64 = 64;

/// So many of the tiles that the static model says are fastest are compared by other costs.
const FINALISTS: usize = 3;

/// What tiles are chosen for.
#[derive(Clone, Copy, Debug)]
pub struct TileSearch<'a> {
    /// The network.
    pub graph: &'a Graph,
    /// What is done with it.
    pub work: Work<'a>,
    /// Where it runs.
    pub devices: &'a Devices,
    /// The budgets; shares refer to what a step needs without a plan and without tiles.
    pub budget: &'a PerDevice<Budget>,
    /// Whether tiles are looked for even if a plan without them may meet the budgets.
    pub asked: bool,
    /// Memories to swap to.
    pub swap: &'a Swap,
    /// How to plan. Once it is told to stop, the best so far is the answer.
    pub options: &'a Options,
}

/// What a network is for.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// A training step; its tiles are what is looked for.
    Train(Recipe),
    /// Only running forward, with these inputs in files.
    Run(&'a [(String, Stream)]),
}

/// A network that runs by tiles, ready to be lowered.
#[derive(Debug)]
pub struct TiledStep {
    /// What runs.
    pub graph: Graph,
    /// Where each node belongs.
    pub phases: Phases,
    /// What is run by tiles.
    pub tiled: Vec<Tiled>,
}

impl Work<'_> {
    /// A network with these tiles, for this work.
    ///
    /// # Errors
    /// Those of [`differentiate`]; nothing can be cut; a tile lies wholly in padding.
    pub fn tiled(self, network: &Graph, tiles: Tiles) -> Result<TiledStep> {
        match self {
            Work::Train(recipe) => {
                let training = differentiate(network, Recipe { tiles, ..recipe })?;
                Ok(TiledStep {
                    graph: training.graph,
                    phases: training.phases,
                    tiled: training.tiled,
                })
            }
            Work::Run(streams) => {
                let (graph, tiled) = match tiles {
                    Tiles::Off => (network.clone(), Vec::new()),
                    tiles => scrimp_graph::tile::tiled(network, tiles)?,
                };
                let graph = streamed(&graph, streams)?;
                Ok(TiledStep {
                    phases: forward(&graph),
                    graph,
                    tiled,
                })
            }
        }
    }
}

/// Tiles, and whether a plan within the budgets was found with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The fastest, or without a plan those that come closest to the budgets.
    pub tiles: Tiles,
    /// Whether they meet the budgets.
    pub fits: bool,
    /// The budgets, in bytes where there are tiles.
    pub budget: PerDevice<Budget>,
}

/// What nodes cost on each device, if not what the static model says, and copies between devices.
pub type Pricing<'a> = &'a mut dyn FnMut(&[Compiled<'_>]) -> Result<(Vec<Costs>, Crossing)>;

/// What is known of some tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Judged {
    /// There is a plan within the budgets.
    Fits {
        /// What it costs or, where the least budgets are asked, the bytes that it needs.
        cost: f64,
        /// How many runs are beyond the first of their tasks.
        again: usize,
    },
    /// No such plan was found; the one that came closest takes so many times a device's budget.
    Missed(f64),
    /// None exists, nor any that takes less than so many times a device's budget.
    Floor(f64),
    /// There is nothing to cut, or too much.
    Nothing,
}

/// The tiles with which a step is fastest within the budgets: none, or those for a falling number
/// of bytes ([`Tiles::Within`]), first few far apart, then those around the best. On one device every plan runs each task
/// at least once, so tiles with which that takes longer than the best plan so far aren't planned. With `pricing`, the few
/// that the static model finds fastest are compared by those costs. Where the least budgets are asked, the best tiles are
/// those that need the least.
///
/// Unless tiles are asked for, there are none where a plan without them may meet the budgets.
///
/// # Errors
/// As for [`Work::tiled`], [`scrimp_graph::lower_onto()`] and [`budgets`]; those of `pricing`.
pub fn choose_tiles(search: &TileSearch<'_>, pricing: Option<Pricing<'_>>) -> Result<Choice> {
    let none = Choice {
        tiles: Tiles::Off,
        fits: true,
        budget: search.budget.clone(),
    };
    let all = |budget: &Budget| matches!(*budget, Budget::Min) || *budget == Budget::Percent(100.0);
    if !search.asked && search.budgets().all(all) {
        return Ok(none);
    }
    let step = search.work.tiled(search.graph, Tiles::Off)?;
    let untiled = search.budgeted(&step, search.budget, None)?;
    if !search.asked && !needs_tiles(&untiled)? {
        return Ok(none);
    }
    let mut judge = Judge {
        search,
        budget: search.in_bytes(&untiled),
        began: Instant::now(),
        best: None,
        seen: Vec::new(),
    };
    let off = judge.plan(&untiled)?;
    if judge.is_best(&untiled, off) {
        return Ok(none);
    }
    judge.keep(step, off);
    let mut known = vec![(Tiles::Off, off)];
    judge.by_bytes(most_bytes(&untiled) as f64, &mut known)?;
    if none_fits(&known) {
        // Bytes are estimated, and badly where statistics take several passes over the tiles.
        for count in COUNTS {
            let tiles = Tiles::Count(count);
            known.push((tiles, judge.judge(tiles, None)?));
        }
    }
    if none_fits(&known) {
        judge.find_leasts(&mut known)?;
    }
    known.sort_by(|a, b| a.1.by_use(b.1));
    if let Some(pricing) = pricing {
        judge.compare(&mut known, pricing)?;
    }
    let (tiles, judged) = known[0];
    Ok(Choice {
        tiles,
        fits: judged.cost().is_some(),
        budget: match tiles {
            Tiles::Off => none.budget,
            _ => judge.budget,
        },
    })
}

fn none_fits(known: &[(Tiles, Judged)]) -> bool {
    known.iter().all(|(_, judged)| judged.cost().is_none())
}

/// Whether no plan without tiles can meet the budgets although what no plan changes does: then tiles may.
fn needs_tiles(untiled: &Budgeted) -> Result<bool> {
    let capacities = untiled.capacities();
    let always = match untiled.problem.sole_device() {
        Some(_) => untiled
            .budget_bytes
            .is_some_and(|bytes| untiled.fixed_bytes >= bytes),
        None => false,
    };
    Ok(!always && share_needed(&untiled.problem, &capacities)? > 1.0)
}

impl Judged {
    fn cost(self) -> Option<f64> {
        match self {
            Judged::Fits { cost, .. } => Some(cost),
            Judged::Missed(_) | Judged::Floor(_) | Judged::Nothing => None,
        }
    }

    /// The fastest come first, then those that miss the budgets by the least, then those that must miss them.
    fn by_use(self, other: Judged) -> Ordering {
        let key = |judged| match judged {
            Judged::Fits { cost, .. } => (0, cost),
            Judged::Missed(share) => (1, share),
            Judged::Floor(share) => (2, share),
            Judged::Nothing => (3, 0.0),
        };
        let (a, b) = (key(self), key(other));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    }
}

impl TileSearch<'_> {
    fn stopped(&self) -> bool {
        let stop = self.options.stop.as_ref();
        stop.is_some_and(|stop| stop.load(atomic::Ordering::SeqCst))
    }

    /// The budgets of the devices that compute, as far as there are any.
    fn budgets(&self) -> impl Iterator<Item = &Budget> {
        let names = self.devices.iter().map(|(name, _)| name);
        names.filter_map(|name| self.budget.named(name))
    }

    /// The budgets as bytes, but those that ask for the least.
    fn in_bytes(&self, untiled: &Budgeted) -> PerDevice<Budget> {
        let capacities = untiled.capacities();
        let bytes = |name: &str, budget: Budget| {
            let mut devices = untiled.problem.devices().iter();
            let device = devices.find(|(_, what)| what.computes && what.name == name);
            let bytes = device.and_then(|(device, _)| capacities.bytes(device));
            bytes.map_or(budget, Budget::Bytes)
        };
        match self.budget {
            PerDevice::Sole(budget) => {
                PerDevice::Sole(untiled.budget_bytes.map_or(*budget, Budget::Bytes))
            }
            PerDevice::Named(named) => {
                let each = named.iter();
                let each = each.map(|(name, budget)| (name.clone(), bytes(name, *budget)));
                PerDevice::Named(each.collect())
            }
        }
    }

    /// The problem of a step within these budgets.
    fn budgeted(
        &self,
        step: &TiledStep,
        budget: &PerDevice<Budget>,
        pricing: Option<Pricing<'_>>,
    ) -> Result<Budgeted> {
        let compiled = self.devices.compiled(&step.graph);
        let (costs, crossing) = match pricing {
            Some(pricing) => pricing(&compiled)?,
            None => (
                compiled.iter().map(estimate).collect(),
                Crossing::estimate(&compiled),
            ),
        };
        let lowered = self
            .devices
            .lower(&step.graph, &step.phases, &costs, &crossing)?;
        let (problem, beside) = self.swap.add(&lowered.problem)?;
        budgets(&problem, Some(budget), &beside, Homes::Free)
    }
}

struct Judge<'a> {
    search: &'a TileSearch<'a>,
    /// The budgets in bytes.
    budget: PerDevice<Budget>,
    began: Instant,
    /// The least cost of a plan within the budgets.
    best: Option<f64>,
    /// Bytes for different numbers of tiles may lead to the same tiles.
    seen: Vec<(Vec<Tiled>, Judged)>,
}

impl Judge<'_> {
    /// Judges tiles for numbers of bytes from `most` down.
    fn by_bytes(&mut self, most: f64, known: &mut Vec<(Tiles, Judged)>) -> Result<()> {
        let mut tried: Vec<(i32, Judged)> = Vec::new();
        let mut stride = STRIDE;
        while stride > 0 {
            let best = tried.iter().min_by(|a, b| a.1.by_use(b.1));
            let near = best.map(|&(power, _)| power);
            let powers = (0..CHOICES).step_by(stride as usize);
            let new = powers.filter(|&power| tried.iter().all(|&(other, _)| other != power));
            let new = new.filter(|power| near.is_none_or(|near| (power - near).abs() < 2 * stride));
            let mut worse = 0;
            for power in new.collect::<Vec<_>>() {
                let tiles = Tiles::Within((most * PART.powi(power)) as u64);
                let judged = self.judge(tiles, None)?;
                tried.push((power, judged));
                known.push((tiles, judged));
                // Smaller tiles have larger halos, and their graphs take time and memory.
                worse = match judged {
                    Judged::Fits { cost, .. } if self.best == Some(cost) => 0,
                    Judged::Fits { .. } | Judged::Nothing if self.best.is_some() => worse + 1,
                    _ => worse,
                };
                if worse == MOST_WORSE {
                    break;
                }
            }
            stride /= 2;
        }
        Ok(())
    }

    /// Leaves the best few, and judges those anew by other costs if several fit.
    fn compare(&mut self, known: &mut Vec<(Tiles, Judged)>, pricing: Pricing<'_>) -> Result<()> {
        known.truncate(FINALISTS);
        let fitting = known.iter().filter(|(_, judged)| judged.cost().is_some());
        if fitting.count() > 1 && !self.search.stopped() {
            (self.best, self.seen, self.began) = (None, Vec::new(), Instant::now());
            for (tiles, judged) in known.iter_mut() {
                *judged = self.judge(*tiles, Some(&mut *pricing))?;
            }
            known.sort_by(|a, b| a.1.by_use(b.1));
        }
        Ok(())
    }

    fn judge(&mut self, tiles: Tiles, pricing: Option<Pricing<'_>>) -> Result<Judged> {
        let search = self.search;
        let limit = search.options.time_limit;
        let patience = match self.best {
            Some(_) if search.stopped() => return Ok(Judged::Nothing),
            Some(_) => limit,
            None => 2 * limit + PATIENCE,
        };
        if self.began.elapsed() > patience {
            return Ok(Judged::Nothing);
        }
        let step = match search.work.tiled(search.graph, tiles) {
            Err(Error::Graph(
                GraphError::NothingToTile { .. } | GraphError::NotTileable { .. },
            )) if tiles != Tiles::Off => return Ok(Judged::Nothing),
            step => step?,
        };
        let tiled = &step.tiled;
        if let Some((_, judged)) = self.seen.iter().find(|(other, _)| other == tiled) {
            return Ok(*judged);
        }
        let most = match search.devices.iter().count() {
            1 => MOST_TASKS,
            _ => MOST_TASKS_OF_SEVERAL,
        };
        if step.graph.nodes().len() > most {
            return Ok(Judged::Nothing);
        }
        let budgeted = search.budgeted(&step, &self.budget, pricing)?;
        let judged = self.plan(&budgeted)?;
        self.keep(step, judged);
        Ok(judged)
    }

    fn keep(&mut self, step: TiledStep, judged: Judged) {
        let cost = judged.cost().unwrap_or(f64::INFINITY);
        if cost < self.best.unwrap_or(f64::INFINITY) {
            self.best = Some(cost);
        }
        self.seen.push((step.tiled, judged));
    }

    /// Whether the least budgets are asked.
    fn seeks_least(&self) -> bool {
        self.search.budgets().any(|budget| *budget == Budget::Min)
    }

    /// Whether a plan without tiles is as good as any with them.
    fn is_best(&self, untiled: &Budgeted, judged: Judged) -> bool {
        match judged {
            Judged::Fits { .. } if self.seeks_least() => false,
            // Where a budget makes such a plan slower than without one isn't known.
            Judged::Fits { again, .. } if untiled.problem.sole_device().is_none() => again == 0,
            Judged::Fits { cost, .. } => cost <= self.least_cost(untiled),
            _ => false,
        }
    }

    /// No plan of a step costs less.
    fn least_cost(&self, budgeted: &Budgeted) -> f64 {
        let problem = &budgeted.problem;
        match (problem.sole_device(), self.seeks_least()) {
            (Some(_), true) => floor_bytes(problem).map_or(0.0, |bytes| bytes as f64),
            (None, true) => 0.0,
            (Some(_), false) => budgeted.base.objective(self.search.options.alpha),
            (None, false) => {
                let least = |modes: &[Mode]| {
                    let seconds = modes.iter().map(|mode| mode.seconds);
                    seconds.fold(f64::INFINITY, f64::min)
                };
                let tasks = problem.tasks().values();
                let devices = problem.devices().values().filter(|device| device.computes);
                tasks.map(|task| least(&task.modes)).sum::<f64>() / devices.count() as f64
            }
        }
    }

    /// What a plan in little time achieves, unless it can't be better than what is known.
    fn plan(&self, budgeted: &Budgeted) -> Result<Judged> {
        let needed = share_needed(&budgeted.problem, &budgeted.capacities())?;
        if needed > 1.0 {
            return Ok(Judged::Floor(needed));
        }
        match self.best {
            Some(best) if self.least_cost(budgeted) >= best => Ok(Judged::Nothing),
            _ => self.trial(budgeted),
        }
    }

    fn trial(&self, budgeted: &Budgeted) -> Result<Judged> {
        let options = Options {
            time_limit: self.search.options.time_limit / TRIAL,
            ..self.search.options.clone()
        };
        // Attempts at a layout for several devices take long.
        let planned = match budgeted.problem.sole_device() {
            Some(_) => find_plan(budgeted, Fit::Layout, &options, &mut |_| {}),
            None => find_plan(
                &with_margin(budgeted),
                Fit::LiveBytes,
                &options,
                &mut |_| {},
            ),
        };
        match planned {
            Ok(planned) => Ok(Judged::Fits {
                cost: match self.seeks_least() {
                    true => needed_bytes(&planned) as f64,
                    false => planned.plan().objective(options.alpha),
                },
                again: planned.plan().recomputed(),
            }),
            Err(error) => missed(&error).map(Judged::Missed).ok_or(error),
        }
    }

    /// Finds out by how much tiles miss the budgets of which only a floor is known, as far as that is below the least that
    /// was found.
    fn find_leasts(&self, known: &mut [(Tiles, Judged)]) -> Result<()> {
        let found = known.iter().filter_map(|(_, judged)| match judged {
            Judged::Missed(share) => Some(*share),
            _ => None,
        });
        let mut least = found.fold(f64::INFINITY, f64::min);
        for (tiles, judged) in known.iter_mut() {
            match *judged {
                Judged::Floor(floor) if floor < least && !self.search.stopped() => {}
                _ => continue,
            }
            let step = self.search.work.tiled(self.search.graph, *tiles)?;
            *judged = self.trial(&self.search.budgeted(&step, &self.budget, None)?)?;
            if let Judged::Missed(share) = *judged {
                least = least.min(share);
            }
        }
        Ok(())
    }
}

/// The most bytes that a device may take, or that a step takes without a plan where the least budget is asked.
fn most_bytes(untiled: &Budgeted) -> u64 {
    let computing = untiled
        .problem
        .devices()
        .iter()
        .filter(|(_, what)| what.computes);
    let capacities = untiled.capacities();
    let bytes = computing.filter_map(|(device, _)| capacities.bytes(device));
    bytes.max().unwrap_or_else(|| untiled.base_peak())
}

/// Budgets that leave room for what a layout takes beyond the bytes in use.
fn with_margin(budgeted: &Budgeted) -> Budgeted {
    let less = |bytes: u64| bytes - bytes / LAYOUT_PART;
    let mut within = budgeted.clone();
    within.budget_bytes = budgeted.budget_bytes.map(less);
    for device in budgeted.problem.devices().keys() {
        let bytes = budgeted.beside.bytes(device).map(less);
        within.beside = within.beside.with_bytes(device, bytes);
    }
    within
}

/// The bytes that a plan needs on all devices that compute.
fn needed_bytes(planned: &Planned) -> u64 {
    let computing = planned.plan().problem().devices().iter();
    let computing = computing.filter(|(_, what)| what.computes);
    computing
        .map(|(device, _)| planned.layout.needed_bytes(device))
        .sum()
}

/// How many times a device's budget the plan takes that comes closest, if that is what an error is about.
fn missed(error: &Error) -> Option<f64> {
    let share = |least: u64, budget: u64| least as f64 / budget.max(1) as f64;
    match error {
        Error::NoLayout { budget, needed } => Some(share(*needed, *budget)),
        Error::Solve(SolveError::Infeasible {
            budget,
            least_found,
            ..
        }) => Some(share(*least_found, *budget)),
        Error::Solve(SolveError::NoRoom { budget, least, .. }) => Some(share(*least, *budget)),
        Error::Solve(SolveError::Short(short)) => {
            let shares = short
                .iter()
                .map(|short| share(short.least_found, short.capacity));
            Some(shares.fold(1.0, f64::max))
        }
        _ => None,
    }
}

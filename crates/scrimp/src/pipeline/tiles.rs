//! How many tiles: so many that a plan within the budget is fastest, none if that is as fast.

use std::cmp::Ordering;
use std::sync::atomic;
use std::time::{Duration, Instant};

use scrimp_graph::data::{Stream, streamed};
use scrimp_graph::{Costs, Graph, GraphError, Phases, Tiled, Tiles};
use scrimp_plan::{Budget, Mode, PerDevice, Sequence};
use scrimp_run::Compiled;
use scrimp_solve::{Options, SolveError, floor_bytes, sequence_of, share_needed};

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

/// Numbers of tiles in each dimension that are tried.
const COUNTS: [usize; 11] = [2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32];

/// Smaller tiles aren't tried after so many in a row that were no better than larger ones.
const MOST_WORSE: u32 = 2;

/// A plan that is only compared has this part of the time limit.
const TRIAL: u32 = 10;

/// The search for tiles ends after this part of the time limit; while no plan within the budget is known, after twice the
/// limit and this.
const SHARE: f64 = 0.5;
const PATIENCE: Duration = Duration::from_secs(3);

/// The plan with the chosen tiles has at least this part of the limit.
const LEAST_LEFT: u32 = 4;

/// Where tiles aren't asked for, any plan without them is looked for if a step of one device needs at least this part of the
/// budget, for this part of the limit.
const TIGHT: f64 = 0.7;
const UNTILED: u32 = 2;

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
#[derive(Clone, Debug)]
pub struct Choice {
    /// The fastest, or without a plan those that come closest to the budgets.
    pub tiles: Tiles,
    /// Whether they meet the budgets.
    pub fits: bool,
    /// The budgets, in bytes where there are tiles.
    pub budget: PerDevice<Budget>,
    /// A plan with these tiles whose layout fits, if one was made, for [`Options::start`].
    pub start: Option<Sequence>,
    /// What is left of the time limit.
    pub left: Duration,
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

/// The tiles with which a step is fastest within the budgets: none, a number of them in each dimension, or those for a
/// number of bytes ([`Tiles::Within`]). On one device numbers of tiles come first, from the root of how many times the
/// budget the step needs without a plan; bytes follow, and come first elsewhere: first few far apart, then those around the
/// best. On one device every plan runs each task
/// at least once, so tiles with which that takes longer than the best plan so far aren't planned. With `pricing`, the few
/// that the static model finds fastest are compared by those costs. Where the least budgets are asked, the best tiles are
/// those that need the least.
///
/// Unless tiles are asked for, there are none where a plan without them is found, and on several devices none where such a
/// plan may meet the budgets.
///
/// # Errors
/// As for [`Work::tiled`], [`scrimp_graph::lower_onto()`] and [`budgets`]; those of `pricing`.
pub fn choose_tiles(search: &TileSearch<'_>, pricing: Option<Pricing<'_>>) -> Result<Choice> {
    let began = Instant::now();
    let limit = search.options.time_limit;
    let left = || {
        let left = limit.saturating_sub(began.elapsed());
        left.max(limit / LEAST_LEFT)
    };
    let none = |start| Choice {
        tiles: Tiles::Off,
        fits: true,
        budget: search.budget.clone(),
        start,
        left: left(),
    };
    let all = |budget: &Budget| matches!(*budget, Budget::Min) || *budget == Budget::Percent(100.0);
    if !search.asked && search.budgets().all(all) {
        return Ok(none(None));
    }
    let step = search.work.tiled(search.graph, Tiles::Off)?;
    let untiled = search.budgeted(&step, search.budget, None)?;
    if !search.asked && !search.needs_tiles(&untiled)? {
        return Ok(none(None));
    }
    let mut judge = Judge {
        search,
        budget: search.in_bytes(&untiled),
        began: Instant::now(),
        best: None,
        start: None,
        seen: Vec::new(),
    };
    let (off, start) = judge.plan(&untiled)?;
    if judge.is_best(&untiled, off) {
        return Ok(none(start));
    }
    judge.keep(step, off, start);
    let mut known = vec![(Tiles::Off, off)];
    let by_count = untiled.problem.sole_device().is_some() && !judge.seeks_least();
    if by_count {
        judge.by_count(&untiled, &mut known)?;
    }
    judge.by_bytes(most_bytes(&untiled) as f64, &mut known)?;
    if !by_count && none_fits(&known) {
        // Bytes are estimated, and badly where statistics take several passes over the tiles.
        for count in COUNTS {
            judge.count(count, &mut known)?;
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
    let fits = judged.cost().is_some();
    Ok(Choice {
        tiles,
        fits,
        budget: match tiles {
            Tiles::Off => search.budget.clone(),
            _ => judge.budget,
        },
        start: judge.start.filter(|_| fits),
        left: left(),
    })
}

fn none_fits(known: &[(Tiles, Judged)]) -> bool {
    known.iter().all(|(_, judged)| judged.cost().is_none())
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

    /// Whether no plan without tiles is found although what no plan changes fits: then tiles may help. One is looked for
    /// on one device alone, and only where the budget is tight: on several devices that takes long.
    fn needs_tiles(&self, untiled: &Budgeted) -> Result<bool> {
        let needed = share_needed(&untiled.problem, &untiled.capacities())?;
        let sole = untiled.problem.sole_device().is_some();
        let budget = untiled.budget_bytes;
        if sole && budget.is_some_and(|bytes| untiled.fixed_bytes >= bytes) {
            return Ok(false);
        }
        if needed > 1.0 || !sole || needed < TIGHT {
            return Ok(needed > 1.0);
        }
        let options = Options {
            time_limit: self.options.time_limit / UNTILED,
            enough: Some(f64::INFINITY),
            ..self.options.clone()
        };
        match find_plan(untiled, Fit::Layout, &options, &mut |_| {}) {
            Ok(_) => Ok(false),
            Err(error) if missed(&error).is_some() => Ok(!self.stopped()),
            Err(error) => Err(error),
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
    /// That plan, where its layout fits.
    start: Option<Sequence>,
    /// Bytes for different numbers of tiles may lead to the same tiles.
    seen: Vec<(Vec<Tiled>, Judged)>,
}

impl Judge<'_> {
    fn count(&mut self, count: usize, known: &mut Vec<(Tiles, Judged)>) -> Result<Judged> {
        let tiles = Tiles::Count(count);
        let judged = self.judge(tiles, None)?;
        known.push((tiles, judged));
        Ok(judged)
    }

    /// Judges numbers of tiles: the first that fits from the root of how many times the budget the step needs without a
    /// plan, and then its neighbours, as long as they are better.
    fn by_count(&mut self, untiled: &Budgeted, known: &mut Vec<(Tiles, Judged)>) -> Result<()> {
        let share = untiled.base_peak() as f64 / most_bytes(untiled).max(1) as f64;
        let enough = |&count: &usize| count as f64 >= share.sqrt();
        let first = COUNTS.iter().position(enough).unwrap_or(COUNTS.len() - 1);
        let mut found = None;
        for (index, &count) in COUNTS.iter().enumerate().skip(first) {
            if let Some(cost) = self.count(count, known)?.cost() {
                found = Some((index, cost));
                break;
            }
        }
        let Some((index, mut least)) = found else {
            return Ok(());
        };
        let (fewer, more) = (&COUNTS[..index], &COUNTS[index + 1..]);
        let fewer: Vec<usize> = fewer.iter().rev().copied().collect();
        for side in [&fewer[..], more] {
            for &count in side {
                match self.count(count, known)?.cost() {
                    Some(cost) if cost < least => least = cost,
                    _ => break,
                }
            }
        }
        Ok(())
    }

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
            (self.best, self.start) = (None, None);
            (self.seen, self.began) = (Vec::new(), Instant::now());
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
            Some(_) => limit.mul_f64(SHARE),
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
        let (judged, start) = self.plan(&budgeted)?;
        self.keep(step, judged, start);
        Ok(judged)
    }

    fn keep(&mut self, step: TiledStep, judged: Judged, start: Option<Sequence>) {
        let cost = judged.cost().unwrap_or(f64::INFINITY);
        if cost < self.best.unwrap_or(f64::INFINITY) {
            (self.best, self.start) = (Some(cost), start);
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

    /// What a plan in little time achieves, unless it can't be better than what is known; and that plan, if it has a layout
    /// within the budget.
    fn plan(&self, budgeted: &Budgeted) -> Result<(Judged, Option<Sequence>)> {
        let needed = share_needed(&budgeted.problem, &budgeted.capacities())?;
        if needed > 1.0 {
            return Ok((Judged::Floor(needed), None));
        }
        match self.best {
            Some(best) if self.least_cost(budgeted) >= best => Ok((Judged::Nothing, None)),
            _ => self.trial(budgeted),
        }
    }

    fn trial(&self, budgeted: &Budgeted) -> Result<(Judged, Option<Sequence>)> {
        let limit = self.search.options.time_limit / TRIAL;
        let options = Options {
            time_limit: limit,
            deadline: Instant::now().checked_add(limit),
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
            Ok(planned) => {
                let fits = Judged::Fits {
                    cost: match self.seeks_least() {
                        true => needed_bytes(&planned) as f64,
                        false => planned.plan().objective(options.alpha),
                    },
                    again: planned.plan().recomputed(),
                };
                let sole = budgeted.problem.sole_device();
                Ok((fits, sole.map(|_| sequence_of(planned.plan()))))
            }
            Err(error) => {
                let judged = missed(&error).map(Judged::Missed).ok_or(error)?;
                Ok((judged, None))
            }
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
            (*judged, _) = self.trial(&self.search.budgeted(&step, &self.budget, None)?)?;
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

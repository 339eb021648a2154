//! How many tiles: so many that a plan within the budget is fastest, none if that is as fast.

use std::cmp::Ordering;
use std::sync::atomic;
use std::time::{Duration, Instant};

use scrimp_graph::data::{Stream, streamed};
use scrimp_graph::{Costs, Graph, GraphError, Phases, Tiled, Tiles};
use scrimp_plan::{Budget, simulate};
use scrimp_run::{Compiled, Processor};
use scrimp_solve::{Options, SolveError, floor_bytes};

use super::{Budgeted, Fit, Recipe, budget, differentiate, estimate, find_plan};
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

/// A step of more tasks isn't planned.
const MOST_TASKS: usize = 200_000;

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
    pub device: Processor<'a>,
    /// The budget.
    pub bytes: u64,
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

/// Tiles, and whether a plan within the budget was found with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The fastest, or without a plan those with the least budget for which one was found.
    pub tiles: Tiles,
    /// Whether they meet the budget.
    pub fits: bool,
}

/// What nodes cost, if not what the static model says.
pub type Pricing<'a> = &'a mut dyn FnMut(&Compiled<'_>) -> Result<Costs>;

/// What is known of some tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Judged {
    /// The cost of a plan within the budget.
    Cost(f64),
    /// No such plan was found; this many bytes are the least that any was found for.
    Least(u64),
    /// None exists, nor any below this many bytes.
    Floor(u64),
    /// There is nothing to cut, or too much.
    Nothing,
}

/// The tiles with which a step is fastest within a budget of so many bytes: none, or those for a falling number
/// of bytes ([`Tiles::Within`]), first few far apart, then those around the best. Every plan runs each task at least
/// once, so tiles with which that takes longer than the best plan so far aren't planned. With `pricing`, the few that
/// the static model finds fastest are compared by those costs.
///
/// # Errors
/// As for [`Work::tiled`] and [`scrimp_graph::lower()`]; those of `pricing`.
pub fn choose_tiles(search: &TileSearch<'_>, pricing: Option<Pricing<'_>>) -> Result<Choice> {
    let mut judge = Judge {
        search,
        began: Instant::now(),
        best: None,
        untiled: None,
        seen: Vec::new(),
    };
    let off = judge.judge(Tiles::Off, None)?;
    if off.cost().is_some() && off.cost() <= judge.untiled {
        return Ok(Choice {
            tiles: Tiles::Off,
            fits: true,
        });
    }
    let mut known = vec![(Tiles::Off, off)];
    let within = |power: i32| Tiles::Within((search.bytes as f64 * PART.powi(power)) as u64);
    let mut tried: Vec<(i32, Judged)> = Vec::new();
    let mut stride = STRIDE;
    while stride > 0 {
        let near = tried
            .iter()
            .min_by(|a, b| a.1.by_use(b.1))
            .map(|&(power, _)| power);
        let powers = (0..CHOICES).step_by(stride as usize);
        let new = powers.filter(|&power| tried.iter().all(|&(other, _)| other != power));
        let new = new.filter(|power| near.is_none_or(|near| (power - near).abs() < 2 * stride));
        let mut worse = 0;
        for power in new.collect::<Vec<_>>() {
            let judged = judge.judge(within(power), None)?;
            tried.push((power, judged));
            known.push((within(power), judged));
            // Smaller tiles have larger halos, and their graphs take time and memory.
            worse = match judged {
                Judged::Cost(cost) if judge.best == Some(cost) => 0,
                Judged::Cost(_) | Judged::Nothing if judge.best.is_some() => worse + 1,
                _ => worse,
            };
            if worse == MOST_WORSE {
                break;
            }
        }
        stride /= 2;
    }
    known.sort_by(|a, b| a.1.by_use(b.1));
    let misses =
        |known: &[(Tiles, Judged)]| known.iter().all(|(_, judged)| judged.cost().is_none());
    if misses(&known) {
        // Bytes are estimated, and badly where statistics take several passes over the tiles.
        for count in COUNTS {
            let tiles = Tiles::Count(count);
            known.push((tiles, judge.judge(tiles, None)?));
        }
        known.sort_by(|a, b| a.1.by_use(b.1));
    }
    if misses(&known) {
        search.find_leasts(&mut known)?;
    }
    if let Some(pricing) = pricing {
        known.truncate(FINALISTS);
        let fitting = known.iter().filter(|(_, judged)| judged.cost().is_some());
        if fitting.count() > 1 && !search.stopped() {
            (judge.best, judge.seen, judge.began) = (None, Vec::new(), Instant::now());
            for (tiles, judged) in &mut known {
                *judged = judge.judge(*tiles, Some(&mut *pricing))?;
            }
            known.sort_by(|a, b| a.1.by_use(b.1));
        }
    }
    let (tiles, judged) = known[0];
    Ok(Choice {
        tiles,
        fits: judged.cost().is_some(),
    })
}

/// Whether no plan without tiles can meet the budget although what no plan changes does: then tiles may.
///
/// # Errors
/// As for [`Work::tiled`] and [`scrimp_graph::lower()`].
pub fn needs_tiles(search: &TileSearch<'_>) -> Result<bool> {
    let step = search.work.tiled(search.graph, Tiles::Off)?;
    let compiled = Compiled::new(&step.graph, search.device);
    let budgeted = search.budgeted(&compiled, &step, None)?;
    let fixed = budgeted.fixed_bytes;
    Ok(fixed < search.bytes && floor_bytes(&budgeted.problem)? > search.bytes)
}

impl Judged {
    fn cost(self) -> Option<f64> {
        match self {
            Judged::Cost(cost) => Some(cost),
            Judged::Least(_) | Judged::Floor(_) | Judged::Nothing => None,
        }
    }

    /// The fastest come first, then those that miss the budget by the least, then those that must miss it.
    fn by_use(self, other: Judged) -> Ordering {
        let key = |judged| match judged {
            Judged::Cost(cost) => (0, cost),
            Judged::Least(bytes) => (1, bytes as f64),
            Judged::Floor(bytes) => (2, bytes as f64),
            Judged::Nothing => (3, 0.0),
        };
        let (a, b) = (key(self), key(other));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    }
}

impl TileSearch<'_> {
    /// Finds the least budgets of tiles of which only a floor is known, as far as that is below the least that was found.
    fn find_leasts(&self, known: &mut [(Tiles, Judged)]) -> Result<()> {
        let found = known.iter().filter_map(|(_, judged)| match judged {
            Judged::Least(bytes) => Some(*bytes),
            _ => None,
        });
        let mut least = found.min().unwrap_or(u64::MAX);
        for (tiles, judged) in known.iter_mut() {
            match *judged {
                Judged::Floor(floor) if floor < least && !self.stopped() => {}
                _ => continue,
            }
            let step = self.work.tiled(self.graph, *tiles)?;
            let compiled = Compiled::new(&step.graph, self.device);
            *judged = self.trial(&self.budgeted(&compiled, &step, None)?)?;
            if let Judged::Least(bytes) = *judged {
                least = least.min(bytes);
            }
        }
        known.sort_by(|a, b| a.1.by_use(b.1));
        Ok(())
    }

    fn stopped(&self) -> bool {
        let stop = self.options.stop.as_ref();
        stop.is_some_and(|stop| stop.load(atomic::Ordering::SeqCst))
    }

    /// The problem of a step within the budget.
    fn budgeted(
        &self,
        compiled: &Compiled<'_>,
        step: &TiledStep,
        pricing: Option<Pricing<'_>>,
    ) -> Result<Budgeted> {
        let costs = match pricing {
            Some(pricing) => pricing(compiled)?,
            None => estimate(compiled),
        };
        let lowered = scrimp_graph::lower(&step.graph, &step.phases, &costs, "cpu")?;
        let (problem, beside) = self.swap.add(&lowered.problem)?;
        Ok(Budgeted {
            beside,
            ..budget(&problem, Budget::Bytes(self.bytes))?
        })
    }
}

struct Judge<'a> {
    search: &'a TileSearch<'a>,
    began: Instant,
    /// The least cost of a plan within the budget.
    best: Option<f64>,
    /// What running everything once without tiles costs.
    untiled: Option<f64>,
    /// Bytes for different numbers of tiles may lead to the same tiles.
    seen: Vec<(Vec<Tiled>, Judged)>,
}

impl Judge<'_> {
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
        if step.graph.nodes().len() > MOST_TASKS {
            return Ok(Judged::Nothing);
        }
        let compiled = Compiled::new(&step.graph, search.device);
        let budgeted = search.budgeted(&compiled, &step, pricing)?;
        if tiles == Tiles::Off {
            self.untiled = Some(budgeted.base.cost());
        }
        let judged = self.plan(&budgeted)?;
        if let Judged::Cost(cost) = judged {
            self.best = Some(self.best.map_or(cost, |best| best.min(cost)));
        }
        self.seen.push((step.tiled, judged));
        Ok(judged)
    }

    fn plan(&self, budgeted: &Budgeted) -> Result<Judged> {
        let floor = floor_bytes(&budgeted.problem)?;
        if floor > self.search.bytes {
            return Ok(Judged::Floor(floor));
        }
        if self.best.is_some_and(|best| budgeted.base.cost() >= best) {
            return Ok(Judged::Nothing);
        }
        self.search.trial(budgeted)
    }
}

impl TileSearch<'_> {
    /// What a plan in little time achieves.
    fn trial(&self, budgeted: &Budgeted) -> Result<Judged> {
        let options = Options {
            time_limit: self.options.time_limit / TRIAL,
            ..self.options.clone()
        };
        match find_plan(budgeted, Fit::Layout, &options, &mut |_| {}) {
            Ok(planned) => Ok(Judged::Cost(simulate(planned.plan()).makespan())),
            Err(
                Error::Solve(SolveError::Infeasible {
                    least_found: least, ..
                })
                | Error::NoLayout { needed: least, .. },
            ) => Ok(Judged::Least(least)),
            Err(error) => Err(error),
        }
    }
}

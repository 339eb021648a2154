//! What tiles are chosen for, and what a step with some tiles is.

use std::sync::atomic;

use scrimp_graph::data::{Stream, streamed};
use scrimp_graph::{Costs, Graph, Phases, Tiled, Tiles};
use scrimp_plan::{Budget, PerDevice};
use scrimp_run::Compiled;
use scrimp_solve::Options;

use crate::crossing::Crossing;
use crate::devices::Devices;
use crate::error::Result;
use crate::inference::forward;
use crate::pipeline::{Budgeted, Homes, Recipe, budgets, differentiate, estimate};
use crate::swap::Swap;

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

/// What nodes cost on each device, if not what the static model says, and copies between devices.
pub type Pricing<'a> = &'a mut dyn FnMut(&[Compiled<'_>]) -> Result<(Vec<Costs>, Crossing)>;

impl TileSearch<'_> {
    pub(super) fn stopped(&self) -> bool {
        let stop = self.options.stop.as_ref();
        stop.is_some_and(|stop| stop.load(atomic::Ordering::SeqCst))
    }

    /// The budgets of the devices that compute, as far as there are any.
    pub(super) fn budgets(&self) -> impl Iterator<Item = &Budget> {
        let names = self.devices.iter().map(|(name, _)| name);
        names.filter_map(|name| self.budget.named(name))
    }

    /// The budgets as bytes, but those that ask for the least.
    pub(super) fn in_bytes(&self, untiled: &Budgeted) -> PerDevice<Budget> {
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
    pub(super) fn budgeted(
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

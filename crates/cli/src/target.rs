//! What can be planned: a model, or a problem or an instance in JSON.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use scrimp::graph::data::DataError;
use scrimp::graph::networks::NetworkOptions;
use scrimp::graph::{Graph, Loss, Optimizer, TensorId, Tiled, Tiles};
use scrimp::plan::file::{self, Content};
use scrimp::plan::{Budget, Capacities, PerDevice, Problem, SwapMemory};
use scrimp::run::{Compiled, Cpu, Samples};
use scrimp::solve::Layer;
use scrimp::{
    Choice, DeviceSpec, Devices, Error, Fit, Homes, ModelSource, Pricing, Recipe, Slowed,
    TileSearch, Work,
};

use crate::args::{
    CostsArg, LibraryArg, LossArg, OptimizerArg, RecipeArgs, SearchArgs, ShapeArgs, TargetArgs,
    TileArg,
};
use crate::costing::{self, Costing};
use crate::failure::{Failure, Kind};
use crate::interrupt;
use crate::progress::Line;
use crate::terminal::tell;

/// Reads a file in JSON.
pub fn read(path: &Path) -> Result<Content> {
    let in_file = |source| Error::File {
        path: path.into(),
        source: Box::new(source),
    };
    let text = file::read_text(path).map_err(in_file)?;
    Ok(file::read(&text).map_err(in_file)?)
}

/// A problem from a file.
#[derive(Debug)]
pub struct FromFile {
    /// The problem.
    pub problem: Problem,
    /// What the file states for its devices.
    pub capacities: Capacities,
    /// What must fit a budget.
    pub fit: Fit,
}

/// Reads a problem or an instance.
pub fn read_problem(path: &Path) -> Result<FromFile> {
    match read(path)? {
        Content::Problem(problem, capacities) => Ok(FromFile {
            problem,
            capacities,
            fit: Fit::Layout,
        }),
        Content::Instance(instance) => Ok(FromFile {
            problem: instance.problem,
            capacities: instance.capacities,
            fit: Fit::LiveBytes,
        }),
        Content::Allocation(_) => {
            let path = path.display();
            let sentence = format!(
                "'{path}' lists buffers to place, not tasks to plan; use `scrimp place '{path}'`"
            );
            Err(Failure::new(Kind::Input, sentence).into())
        }
    }
}

/// A model that may be imported at several batch sizes.
#[derive(Clone, Debug)]
pub struct Model {
    source: ModelSource,
    options: NetworkOptions,
}

impl Model {
    /// A built-in network or a file, with its sizes.
    pub fn find(model: &str, shape: &ShapeArgs) -> Result<Model> {
        let options = NetworkOptions {
            batch: NetworkOptions::default().batch,
            image: shape.image,
            classes: shape.classes,
            layers: shape.layers,
            width: shape.width,
            heads: shape.heads,
            sequence: shape.sequence,
            vocabulary: shape.vocabulary,
            dropout: shape.dropout,
        };
        let source = ModelSource::find(model)?;
        if let ModelSource::File(path) = &source
            && options != NetworkOptions::default()
        {
            let path = path.display();
            let sentence = format!(
                "'{path}' is a file, which has its own sizes; of the model options give only --batch"
            );
            return Err(Failure::new(Kind::Usage, sentence).into());
        }
        Ok(Model { source, options })
    }

    /// Its graph; without a batch that of the file, or the usual one of built-in networks.
    pub fn import(&self, batch: Option<usize>) -> Result<Graph, Error> {
        let options = NetworkOptions {
            batch: batch.unwrap_or(self.options.batch),
            ..self.options.clone()
        };
        scrimp::import(&self.source, &options, batch)
    }
}

/// Imports a model, and says what there is to remark unless `quiet`.
pub fn import(model: &str, shape: &ShapeArgs, quiet: bool) -> Result<Graph> {
    imported(&Model::find(model, shape)?, shape.batch, quiet)
}

fn imported(model: &Model, batch: Option<usize>, quiet: bool) -> Result<Graph> {
    let graph = model.import(batch)?;
    if !quiet {
        graph.remarks.iter().for_each(|text| tell(text));
    }
    Ok(graph)
}

/// What is minimized in training a graph.
pub fn loss(args: &RecipeArgs, graph: &Graph) -> LossArg {
    let number = |&output: &TensorId| graph.tensor(output).elements() == 1;
    match (args.loss, graph.outputs()) {
        (Some(loss), _) => loss,
        (None, [output]) if number(output) => LossArg::Output,
        (None, _) => LossArg::CrossEntropy,
    }
}

/// What a training step of a graph does, with tiles and budgets as in [`tiles_within`].
pub fn recipe_within(
    args: &RecipeArgs,
    graph: &Graph,
    devices: &Devices,
    costing: &Costing<'_>,
    quiet: bool,
) -> Result<(Recipe, Choice)> {
    let untiled = RecipeArgs {
        tile: None,
        ..*args
    };
    let untiled = recipe(&untiled, graph)?;
    let work = Work::Train(untiled);
    let choice = tiles_within(args.tile, graph, work, devices, costing, quiet)?;
    let tiles = choice.tiles;
    Ok((Recipe { tiles, ..untiled }, choice))
}

/// The tiles that are best within the budgets if that is asked, or if no plan without tiles is found within them; and what the
/// budgets are then (shares refer to the step without tiles), with what is left to plan.
pub fn tiles_within(
    tile: Option<TileArg>,
    graph: &Graph,
    work: Work<'_>,
    devices: &Devices,
    costing: &Costing<'_>,
    quiet: bool,
) -> Result<Choice> {
    let given = |tiles| Choice {
        tiles,
        fits: true,
        least: None,
        budget: costing.budget.clone(),
        start: None,
        left: costing.search.time_limit,
    };
    let asked = match (tile, costing.budget) {
        (None, _) => false,
        (Some(TileArg::Auto), _) => true,
        (Some(TileArg::Given(tiles)), _) => return Ok(given(tiles)),
        (Some(TileArg::Sft(count)), PerDevice::Sole(Budget::Bytes(capacity))) => {
            let capacity = *capacity;
            return Ok(given(Tiles::Published { capacity, count }));
        }
        (Some(TileArg::Sft(_)), _) => {
            let sentence = "--tile sft is for one device with its budget in bytes; give auto or a number of tiles";
            return Err(Failure::new(Kind::Usage, sentence).into());
        }
    };
    let budgets = costing::budgets(devices, costing)?;
    let device = devices.first();
    let mut cache = costing::cache(device);
    let swap = costing::links(
        costing.swap,
        device,
        budgets[0],
        cache.as_mut(),
        costing.afresh,
    )?;
    let search = TileSearch {
        graph,
        work,
        devices,
        budget: costing.budget,
        asked,
        swap: &swap,
        options: &costing.options(),
    };
    let line = Line::spinner(quiet, "choosing tiles");
    let count = u32::try_from(budgets.len()).expect("few devices");
    let limit = costing.search.time_limit / count;
    let mut samples: Vec<Samples> = budgets.iter().map(|_| Samples::new(limit)).collect();
    let mut measured = |compiled: &[Compiled<'_>]| {
        let each = compiled.iter().zip(&budgets).zip(&mut samples);
        let costs = each.map(|((compiled, &budget), samples)| {
            let estimated = scrimp::estimate(compiled);
            let room = costing::room(budget);
            samples.costs(compiled, &estimated, room, &interrupt::flag())
        });
        let costs = costs.collect::<std::result::Result<_, _>>()?;
        let crossing = costing::crossing(compiled, &budgets, cache.as_mut(), costing.afresh)?;
        Ok((costs, crossing))
    };
    let pricing: Option<Pricing<'_>> = match costing.source {
        CostsArg::Measured => Some(&mut measured),
        CostsArg::Static => None,
    };
    let choice = scrimp::choose_tiles(&search, pricing)?;
    drop(line);
    if !asked && choice.tiles != Tiles::Off && !quiet {
        tell(match choice.fits {
            true => {
                "no plan without tiles was found within the budget, so parts run by tiles (--tile auto)"
            }
            false => {
                "the search for tiles found no plan within the budget; planning goes on with those that need the least (--tile auto)"
            }
        });
    }
    Ok(choice)
}

/// What is run by tiles, if that is a number or nothing.
pub fn given(tile: Option<TileArg>) -> Result<Tiles> {
    match tile {
        None => Ok(Tiles::Off),
        Some(TileArg::Given(tiles)) => Ok(tiles),
        Some(TileArg::Auto | TileArg::Sft(_)) => {
            let sentence =
                "--tile auto and sft are for plan, train and run; give a number of tiles";
            Err(Failure::new(Kind::Usage, sentence).into())
        }
    }
}

/// What a training step of a graph does.
pub fn recipe(args: &RecipeArgs, graph: &Graph) -> Result<Recipe> {
    let tiles = given(args.tile)?;
    let RecipeArgs {
        momentum,
        weight_decay,
        ..
    } = *args;
    Ok(Recipe {
        tiles,
        loss: match loss(args, graph) {
            LossArg::CrossEntropy => Loss::CrossEntropy,
            LossArg::Mse => Loss::MeanSquaredError,
            LossArg::Output => Loss::Output,
        },
        optimizer: match args.optimizer {
            OptimizerArg::Sgd => Optimizer::Sgd {
                momentum: 0.0,
                weight_decay,
            },
            OptimizerArg::Momentum => Optimizer::Sgd {
                momentum,
                weight_decay,
            },
            OptimizerArg::Adam => Optimizer::Adam {
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay,
            },
        },
    })
}

/// Whether a target is JSON rather than a model: it is a file that starts with a brace.
pub fn is_json(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut start));
    read.is_ok() && start.trim_ascii_start().first() == Some(&b'{')
}

/// What is to be planned.
#[derive(Debug)]
pub struct Target {
    /// As a problem.
    pub problem: Problem,
    /// What its file states for its devices.
    pub capacities: Capacities,
    /// What must fit a budget.
    pub fit: Fit,
    /// The signature of the device that workspaces and costs belong to; none for a file's.
    pub device: Option<String>,
    /// What kind of layer each task is, if that is known.
    pub layers: Option<Arc<[Layer]>>,
    /// Where what is given may be.
    pub homes: Homes,
    /// What is run by tiles.
    pub tiled: Vec<Tiled>,
    /// The choice of tiles, for a model.
    pub choice: Option<Choice>,
    /// How the devices slow each other down, if that was measured.
    pub slowed: Slowed,
}

/// Reads a problem or an instance, or makes the problem of training a model, whose costs are measured within a
/// budget if they are. Adds memories to swap to.
pub fn problem(
    target: &TargetArgs,
    budget: Option<&PerDevice<Budget>>,
    devices: &[DeviceSpec],
    search: &SearchArgs,
    swap: &[SwapMemory],
    quiet: bool,
) -> Result<Target> {
    let path = Path::new(&target.name);
    if is_json(path) {
        if !devices.is_empty() {
            let path = path.display();
            let sentence = format!("'{path}' has its own devices; leave --devices out");
            return Err(Failure::new(Kind::Usage, sentence).into());
        }
        let FromFile {
            problem,
            capacities,
            fit,
        } = read_problem(path)?;
        let mut added = (problem, capacities);
        for memory in swap {
            added = memory.add(&added.0, &added.1).map_err(Error::from)?;
        }
        let (problem, capacities) = added;
        return Ok(Target {
            problem,
            capacities,
            fit,
            device: None,
            layers: None,
            homes: Homes::Given,
            tiled: Vec::new(),
            choice: None,
            slowed: Slowed::default(),
        });
    }
    let model = Model::find(&target.name, &target.shape)?;
    let devices = self::devices(devices, search.threads(), target.recipe.library)?;
    let budget = budget.ok_or_else(|| Error::NoBudget {
        device: devices.iter().next().map_or("", |(name, _)| name).into(),
    })?;
    let graph = imported(&model, target.shape.batch, quiet)?;
    let costing = Costing {
        source: target.costs,
        afresh: target.fresh_costs,
        budget,
        search,
        swap,
    };
    let (recipe, choice) = recipe_within(&target.recipe, &graph, &devices, &costing, quiet)?;
    let costing = Costing {
        budget: &choice.budget,
        ..costing
    };
    let training = scrimp::differentiate(&graph, recipe)?;
    let compiled = devices.compiled(&training.graph);
    let (graph, phases) = (&training.graph, &training.phases);
    let measured = costing::costs(phases, &compiled, &devices, &costing, quiet)?;
    let lowered = devices.lower(graph, phases, &measured.costs, &measured.crossing)?;
    let (problem, capacities) = measured.swap.add(&lowered.problem)?;
    Ok(Target {
        layers: Some(scrimp::layers(&training, &lowered)),
        problem,
        capacities,
        fit: Fit::Layout,
        device: Some(devices.signature()),
        homes: Homes::Free,
        tiled: training.tiled,
        choice: Some(choice),
        slowed: measured.slowed(&lowered),
    })
}

/// The device that training runs on; 0 threads are as many as there are.
pub fn cpu(threads: usize, library: LibraryArg) -> Result<Cpu> {
    Ok(Cpu::with_library(threads, library.into()).map_err(Error::from)?)
}

/// Makes an error of data that doesn't fit name their file.
pub fn of_file(path: &Path) -> impl FnOnce(DataError) -> Error {
    let path = path.to_owned();
    |source| Error::DataFile { path, source }
}

/// The devices of the list or, if it is empty, one with this many threads.
pub fn devices(specs: &[DeviceSpec], threads: usize, library: LibraryArg) -> Result<Devices> {
    match specs.is_empty() {
        true => Ok(Devices::one(cpu(threads, library)?)),
        false => Ok(Devices::start(specs, threads, library.into())?),
    }
}

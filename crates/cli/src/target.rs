//! What can be planned: a model, or a problem or an instance in JSON.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use scrimp::graph::networks::NetworkOptions;
use scrimp::graph::{Costs, Graph, Loss, Optimizer, Phases, TensorId, Tiled, Tiles};
use scrimp::machine::Others;
use scrimp::plan::file::{self, Content};
use scrimp::plan::{
    Budget, Capacities, NoDevice, PerDevice, Problem, SwapMemory, UnknownDeviceName,
};
use scrimp::run::{Compiled, CostCache, Cpu, Processor, Profile, ProfileProgress, Samples};
use scrimp::solve::{Layer, Options};
use scrimp::{
    Choice, Crossing, DeviceSpec, Devices, Error, Fit, Homes, ModelSource, Pricing, Recipe, Swap,
    TileSearch,
};

use crate::args::{
    CostsArg, LibraryArg, LossArg, OptimizerArg, RecipeArgs, SearchArgs, ShapeArgs, TargetArgs,
    TileArg,
};
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
    let graph = Model::find(model, shape)?.import(shape.batch)?;
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

/// What a training step of a graph does, with the tiles that are best within a budget if that is asked, or if no plan
/// without tiles can meet it.
pub fn recipe_within(
    args: &RecipeArgs,
    graph: &Graph,
    devices: &Devices,
    costing: &Costing<'_>,
    quiet: bool,
) -> Result<Recipe> {
    let mut names = devices.iter().map(|(name, _)| name);
    let only = names.next().filter(|_| names.next().is_none());
    let budget = only.and_then(|name| costing.budget.named(name));
    let (Some(&Budget::Bytes(bytes)), None | Some(TileArg::Auto | TileArg::Sft(_))) =
        (budget, args.tile)
    else {
        return recipe(args, graph);
    };
    let untiled = recipe(
        &RecipeArgs {
            tile: None,
            ..*args
        },
        graph,
    )?;
    if let Some(TileArg::Sft(count)) = args.tile {
        let capacity = bytes;
        let tiles = Tiles::Published { capacity, count };
        return Ok(Recipe { tiles, ..untiled });
    }
    let device = devices.first();
    let mut cache = self::cache(device);
    let budget = Budget::Bytes(bytes);
    let swap = links(costing.swap, device, budget, cache.as_mut(), costing.afresh)?;
    let search = TileSearch {
        graph,
        recipe: untiled,
        device,
        bytes,
        swap: &swap,
        options: &costing.options(),
    };
    let asked = args.tile.is_some();
    if !asked && !scrimp::needs_tiles(&search)? {
        return Ok(untiled);
    }
    let line = Line::spinner(quiet, "choosing tiles");
    let mut samples = Samples::new(costing.search.time_limit);
    let mut measured = |compiled: &Compiled<'_>| {
        let estimated = scrimp::estimate(compiled);
        Ok(samples.costs(compiled, &estimated, bytes, &interrupt::flag())?)
    };
    let pricing: Option<Pricing<'_>> = match costing.source {
        CostsArg::Measured => Some(&mut measured),
        CostsArg::Static => None,
    };
    let Choice { tiles, fits } = scrimp::choose_tiles(&search, pricing)?;
    drop(line);
    if asked {
        return Ok(Recipe { tiles, ..untiled });
    }
    if fits && !quiet {
        tell("no plan without tiles can meet the budget, so parts run by tiles (--tile auto)");
    }
    let tiles = if fits { tiles } else { Tiles::Off };
    Ok(Recipe { tiles, ..untiled })
}

/// What is run by tiles, if that is a number or nothing.
pub fn given(tile: Option<TileArg>) -> Result<Tiles> {
    match tile {
        None => Ok(Tiles::Off),
        Some(TileArg::Given(tiles)) => Ok(tiles),
        Some(TileArg::Auto | TileArg::Sft(_)) => {
            let sentence = "--tile auto and sft are for plan and train with one device and its budget in bytes; give a number of tiles";
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
}

/// Where costs come from, and within which budget they are measured.
#[derive(Clone, Copy, Debug)]
pub struct Costing<'a> {
    /// Measured or estimated.
    pub source: CostsArg,
    /// Whether to measure again what was measured before.
    pub afresh: bool,
    /// Nothing that is run takes more memory.
    pub budget: &'a PerDevice<Budget>,
    /// How to plan what is run.
    pub search: &'a SearchArgs,
    /// Memories to swap to.
    pub swap: &'a [SwapMemory],
}

impl Costing<'_> {
    /// How to plan what isn't the final plan.
    fn options(&self) -> Options {
        Options {
            time_limit: self.search.time_limit,
            seed: self.search.seed.unwrap_or(0),
            threads: self.search.threads(),
            stop: Some(interrupt::flag()),
            ..Options::default()
        }
    }
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
        });
    }
    let devices = self::devices(devices, search.threads(), target.recipe.library)?;
    let budget = budget.ok_or_else(|| Error::NoBudget {
        device: devices.iter().next().map_or("", |(name, _)| name).into(),
    })?;
    let graph = import(&target.name, &target.shape, quiet)?;
    let costing = Costing {
        source: target.costs,
        afresh: target.fresh_costs,
        budget,
        search,
        swap,
    };
    let recipe = recipe_within(&target.recipe, &graph, &devices, &costing, quiet)?;
    let training = scrimp::differentiate(&graph, recipe)?;
    let compiled = devices.compiled(&training.graph);
    let (graph, phases) = (&training.graph, &training.phases);
    let measured = costs(phases, &compiled, &devices, &costing, quiet)?;
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
    })
}

/// The device that training runs on; 0 threads are as many as there are.
pub fn cpu(threads: usize, library: LibraryArg) -> Result<Cpu> {
    Ok(Cpu::with_library(threads, library.into()).map_err(Error::from)?)
}

/// The devices of the list or, if it is empty, one with this many threads.
pub fn devices(specs: &[DeviceSpec], threads: usize, library: LibraryArg) -> Result<Devices> {
    match specs.is_empty() {
        true => Ok(Devices::one(cpu(threads, library)?)),
        false => Ok(Devices::start(specs, threads, library.into())?),
    }
}

/// What things cost on this machine.
#[derive(Debug)]
pub struct Measured {
    /// Each node on each device, estimated or measured.
    pub costs: Vec<Costs>,
    /// What was measured of the nodes on each device; none if they were estimated.
    pub profiles: Vec<Profile>,
    /// Copies between devices.
    pub crossing: Crossing,
    /// The memories to swap to, with their links.
    pub swap: Swap,
    /// The most of the processors' time that others took while nodes were measured; `None` if it isn't known or none
    /// were.
    pub others: Option<f64>,
}

/// What each node costs on each device, estimated or measured within the budgets, each link to a memory and each copy
/// between devices. Measurements are kept in the user's cache and taken from there unless `afresh` is set. Each device
/// is measured while the others do nothing.
pub fn costs(
    phases: &Phases,
    compiled: &[Compiled<'_>],
    devices: &Devices,
    costing: &Costing<'_>,
    quiet: bool,
) -> Result<Measured> {
    let budgets = budgets(devices, costing)?;
    let mut caches: Vec<Option<CostCache>> =
        devices.iter().map(|(_, device)| cache(device)).collect();
    let swap = links(
        costing.swap,
        devices.first(),
        budgets[0],
        caches[0].as_mut(),
        costing.afresh,
    )?;
    if costing.source == CostsArg::Static {
        return Ok(Measured {
            costs: compiled.iter().map(scrimp::estimate).collect(),
            profiles: Vec::new(),
            crossing: Crossing::estimate(compiled),
            swap,
            others: None,
        });
    }
    let within = scrimp::shared_budgets(phases, compiled, &budgets)?;
    let (mut profiles, mut others) = (Vec::new(), None);
    for ((compiled, &budget), cache) in compiled.iter().zip(&within).zip(&mut caches) {
        let kept = match cache {
            Some(cache) if !costing.afresh => cache.find(compiled).map_err(Error::from)?,
            _ => None,
        };
        profiles.push(match kept {
            Some(kept) => kept,
            None => {
                let watch = Others::watch();
                let made = measured(phases, compiled, budget, costing, &swap, quiet)?;
                others = watch.share().into_iter().chain(others).reduce(f64::max);
                if let Some(cache) = cache {
                    cache.keep(&made);
                }
                made
            }
        });
    }
    let room = budgets.iter().copied().map(room).min().unwrap_or(0);
    let cache = caches[0].as_mut();
    let crossing = Crossing::measure(compiled, room, cache, costing.afresh)?;
    for text in caches.iter().flatten().filter_map(CostCache::note) {
        if !quiet {
            tell(text);
        }
    }
    Ok(Measured {
        costs: profiles.iter().map(|made| made.costs.clone()).collect(),
        profiles,
        crossing,
        swap,
        others,
    })
}

/// The budget of each device. All names must be those of devices or of memories to swap to.
fn budgets(devices: &Devices, costing: &Costing<'_>) -> Result<Vec<Budget>> {
    let names: Vec<&str> = devices.iter().map(|(name, _)| name).collect();
    let known = || {
        let memories = costing.swap.iter().map(|memory| memory.name.as_str());
        let all: Vec<&str> = names.iter().copied().chain(memories).collect();
        all.join(", ")
    };
    match costing.budget {
        PerDevice::Sole(_) if names.len() > 1 => {
            let several = NoDevice::Several {
                known: names.join(", "),
                first: names[0].into(),
            };
            return Err(Error::from(several).into());
        }
        PerDevice::Sole(_) => {}
        PerDevice::Named(named) => {
            for (name, _) in named {
                let memory = costing.swap.iter().any(|memory| memory.name == *name);
                if !memory && !names.contains(&name.as_str()) {
                    let (name, known) = (name.clone(), known());
                    let unknown = NoDevice::from(UnknownDeviceName { name, known });
                    return Err(Error::from(unknown).into());
                }
            }
        }
    }
    let budget = |&name: &&str| {
        let budget = costing.budget.named(name).copied();
        budget.ok_or_else(|| Error::NoBudget {
            device: name.into(),
        })
    };
    Ok(names.iter().map(budget).collect::<Result<_, _>>()?)
}

/// The user's cache of measured costs.
pub fn cache(device: Processor<'_>) -> Option<CostCache> {
    scrimp::machine::cache_folder().map(|folder| CostCache::new(&folder, device))
}

/// Memories to swap to with the speed of their links. Measuring takes no more memory than a budget in bytes.
pub fn links(
    memories: &[SwapMemory],
    device: Processor<'_>,
    budget: Budget,
    cache: Option<&mut CostCache>,
    afresh: bool,
) -> Result<Swap> {
    Ok(Swap::measure(
        memories,
        device,
        room(budget),
        cache,
        afresh,
    )?)
}

/// The most bytes that measuring a link may take.
fn room(budget: Budget) -> u64 {
    match budget {
        Budget::Bytes(bytes) => bytes,
        _ => u64::MAX,
    }
}

/// Measures with a line on the terminal; the first Ctrl-C ends it.
fn measured(
    phases: &Phases,
    compiled: &Compiled<'_>,
    budget: Budget,
    costing: &Costing<'_>,
    swap: &Swap,
    quiet: bool,
) -> Result<Profile> {
    let line = Line::spinner(quiet, "measuring");
    let mut watch = |news: ProfileProgress| {
        let ProfileProgress {
            pass,
            passes,
            node,
            nodes,
        } = news;
        line.say(|| {
            format!(
                "pass {} of at most {passes}, run {node} of {nodes}",
                pass + 1
            )
        });
    };
    let (stop, options) = (interrupt::flag(), costing.options());
    let made = scrimp::profile(phases, compiled, budget, swap, &options, &stop, &mut watch);
    match made {
        Err(_) if interrupt::requested() => {
            let sentence = "interrupted before all costs were measured; nothing was written";
            Err(Failure::new(Kind::Interrupted, sentence).into())
        }
        made => Ok(made?),
    }
}

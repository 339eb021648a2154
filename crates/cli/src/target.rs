//! What can be planned: a model, or a problem or an instance in JSON.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use scrimp::graph::networks::NetworkOptions;
use scrimp::graph::{Costs, Graph, Loss, Optimizer, TrainingGraph};
use scrimp::plan::file::{self, Content};
use scrimp::plan::{Budget, Capacities, PerDevice, Problem, SwapMemory};
use scrimp::run::{Compiled, CostCache, Cpu, Processor, Profile, ProfileProgress};
use scrimp::solve::{Layer, Options};
use scrimp::{Error, Fit, ModelSource, Recipe, Swap};

use crate::args::{CostsArg, LossArg, OptimizerArg, RecipeArgs, SearchArgs, ShapeArgs, TargetArgs};
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

/// What a training step does.
pub fn recipe(args: &RecipeArgs) -> Recipe {
    let RecipeArgs {
        momentum,
        weight_decay,
        ..
    } = *args;
    Recipe {
        loss: match args.loss {
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
    }
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
}

/// Where costs come from, and within which budget they are measured.
#[derive(Clone, Copy, Debug)]
pub struct Costing<'a> {
    /// Measured or estimated.
    pub source: CostsArg,
    /// Whether to measure again what was measured before.
    pub afresh: bool,
    /// Nothing that is run takes more memory.
    pub budget: Budget,
    /// How to plan what is run.
    pub search: &'a SearchArgs,
    /// Memories to swap to.
    pub swap: &'a [SwapMemory],
}

/// Reads a problem or an instance, or makes the problem of training a model, whose costs are measured within a
/// budget if they are. Adds memories to swap to.
pub fn problem(
    target: &TargetArgs,
    budget: Option<&PerDevice<Budget>>,
    search: &SearchArgs,
    swap: &[SwapMemory],
    quiet: bool,
) -> Result<Target> {
    let path = Path::new(&target.name);
    if is_json(path) {
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
        });
    }
    // Training has one device.
    let device = "cpu";
    let &budget = budget
        .and_then(|budget| budget.named(device))
        .ok_or_else(|| Error::NoBudget {
            device: device.into(),
        })?;
    let graph = import(&target.name, &target.shape, quiet)?;
    let training = scrimp::differentiate(&graph, recipe(&target.recipe))?;
    let cpu = cpu(search.threads(), &target.recipe)?;
    let compiled = Compiled::new(&training.graph, Processor::Cpu(&cpu));
    let costing = Costing {
        source: target.costs,
        afresh: target.fresh_costs,
        budget,
        search,
        swap,
    };
    let measured = costs(&training, &compiled, &cpu, &costing, quiet)?;
    let lowered = scrimp::lower(&training, &measured.costs)?;
    let (problem, capacities) = measured.swap.add(&lowered.problem)?;
    Ok(Target {
        layers: Some(scrimp::layers(&training, &lowered)),
        problem,
        capacities,
        fit: Fit::Layout,
        device: Some(cpu.signature()),
    })
}

/// The device that training runs on; 0 threads are as many as there are.
pub fn cpu(threads: usize, recipe: &RecipeArgs) -> Result<Cpu> {
    Ok(Cpu::with_library(threads, recipe.library.into()).map_err(Error::from)?)
}

/// What things cost on this machine.
#[derive(Debug)]
pub struct Measured {
    /// Each node, estimated or measured.
    pub costs: Costs,
    /// What was measured of the nodes.
    pub profile: Option<Profile>,
    /// The memories to swap to, with their links.
    pub swap: Swap,
}

/// What each node costs on this machine, estimated or measured within the budget, and each link to a memory.
/// Measurements are kept in the user's cache and taken from there unless `afresh` is set.
pub fn costs(
    training: &TrainingGraph,
    compiled: &Compiled<'_>,
    cpu: &Cpu,
    costing: &Costing<'_>,
    quiet: bool,
) -> Result<Measured> {
    let mut cache = cache(cpu);
    let swap = links(
        costing.swap,
        cpu,
        costing.budget,
        cache.as_mut(),
        costing.afresh,
    )?;
    if costing.source == CostsArg::Static {
        return Ok(Measured {
            costs: scrimp::estimate(compiled),
            profile: None,
            swap,
        });
    }
    let kept = match &mut cache {
        Some(cache) if !costing.afresh => cache.find(compiled).map_err(Error::from)?,
        _ => None,
    };
    let profile = match kept {
        Some(kept) => kept,
        None => {
            let made = measured(training, compiled, costing, &swap, quiet)?;
            if let Some(cache) = &mut cache {
                cache.keep(&made);
            }
            made
        }
    };
    let note = cache.as_ref().and_then(CostCache::note);
    if let Some(text) = note.filter(|_| !quiet) {
        tell(text);
    }
    Ok(Measured {
        costs: profile.costs.clone(),
        profile: Some(profile),
        swap,
    })
}

/// The user's cache of measured costs.
pub fn cache(cpu: &Cpu) -> Option<CostCache> {
    scrimp::machine::cache_folder().map(|folder| CostCache::new(&folder, cpu))
}

/// Memories to swap to with the speed of their links. Measuring takes no more memory than a budget in bytes.
pub fn links(
    memories: &[SwapMemory],
    cpu: &Cpu,
    budget: Budget,
    cache: Option<&mut CostCache>,
    afresh: bool,
) -> Result<Swap> {
    let room = match budget {
        Budget::Bytes(bytes) => bytes,
        _ => u64::MAX,
    };
    Ok(Swap::measure(memories, cpu, room, cache, afresh)?)
}

/// Measures with a line on the terminal; the first Ctrl-C ends it.
fn measured(
    training: &TrainingGraph,
    compiled: &Compiled<'_>,
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
    let stop = interrupt::flag();
    let options = Options {
        time_limit: costing.search.time_limit,
        seed: costing.search.seed.unwrap_or(0),
        threads: costing.search.threads(),
        stop: Some(Arc::clone(&stop)),
        ..Options::default()
    };
    let budget = costing.budget;
    let made = scrimp::profile(
        training, compiled, budget, swap, &options, &stop, &mut watch,
    );
    match made {
        Err(_) if interrupt::requested() => {
            let sentence = "interrupted before all costs were measured; nothing was written";
            Err(Failure::new(Kind::Interrupted, sentence).into())
        }
        made => Ok(made?),
    }
}

//! What can be planned: a model, or a problem or an instance in JSON.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Result;
use scrimp::graph::networks::NetworkOptions;
use scrimp::graph::{Costs, Graph, Loss, Optimizer};
use scrimp::plan::file::{self, Content};
use scrimp::plan::{Capacities, Problem};
use scrimp::run::{Compiled, CostCache, Cpu, Processor, ProfileOptions, ProfileProgress, profile};
use scrimp::{Error, Fit, ModelSource, Recipe};

use crate::args::{CostsArg, LossArg, OptimizerArg, RecipeArgs, ShapeArgs, TargetArgs};
use crate::failure::{Failure, Kind};
use crate::progress::{self, Line};

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
        graph.remarks.iter().for_each(|text| progress::note(text));
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
    /// What must fit a budget.
    pub fit: Fit,
    /// The signature of the device that workspaces and costs belong to; none for a file's.
    pub device: Option<String>,
}

/// Reads a problem or an instance, or makes the problem of training a model on so many threads.
pub fn problem(target: &TargetArgs, threads: usize, quiet: bool) -> Result<Target> {
    let path = Path::new(&target.name);
    if is_json(path) {
        let FromFile { problem, fit, .. } = read_problem(path)?;
        return Ok(Target {
            problem,
            fit,
            device: None,
        });
    }
    let graph = import(&target.name, &target.shape, quiet)?;
    let training = scrimp::differentiate(&graph, recipe(&target.recipe))?;
    let cpu = cpu(threads, &target.recipe)?;
    let compiled = Compiled::new(&training.graph, Processor::Cpu(&cpu));
    let costs = costs(&compiled, &cpu, target.costs, target.fresh_costs, quiet)?;
    Ok(Target {
        problem: scrimp::lower(&training, &costs)?.problem,
        fit: Fit::Layout,
        device: Some(cpu.signature()),
    })
}

/// The device that training runs on; 0 threads are as many as there are.
pub fn cpu(threads: usize, recipe: &RecipeArgs) -> Result<Cpu> {
    Ok(Cpu::with_library(threads, recipe.library.into()).map_err(Error::from)?)
}

/// What each node costs on this machine, measured or estimated. Measurements are kept in the user's
/// cache and taken from there unless `afresh` is set.
pub fn costs(
    compiled: &Compiled<'_>,
    cpu: &Cpu,
    source: CostsArg,
    afresh: bool,
    quiet: bool,
) -> Result<Costs> {
    if source == CostsArg::Static {
        return Ok(scrimp::estimate(compiled));
    }
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
                "pass {} of at most {passes}, node {node} of {nodes}",
                pass + 1
            )
        });
    };
    let options = ProfileOptions {
        // Half of what is free, so that a step that keeps everything fits where it can.
        room: scrimp::machine::memory()
            .available
            .map_or(0, |bytes| bytes / 2)
            .max(ProfileOptions::default().room),
        ..ProfileOptions::default()
    };
    let Some(folder) = scrimp::machine::cache_folder() else {
        let costs = profile(compiled, &options, &mut watch);
        return Ok(costs.map_err(Error::from)?);
    };
    let mut cache = CostCache::new(&folder, cpu);
    let costs = cache.profile(compiled, &options, afresh, &mut watch);
    drop(line);
    if let Some(text) = cache.note().filter(|_| !quiet) {
        progress::note(text);
    }
    Ok(costs.map_err(Error::from)?)
}

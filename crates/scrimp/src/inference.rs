//! A network that only runs forward, planned within a budget and fed batch by batch.

use std::borrow::Cow;

use scrimp_graph::data::Contents;
use scrimp_graph::weights::{Require, WeightsFile};
use scrimp_graph::{Graph, Lowered, Phases, Role, TensorId};
use scrimp_plan::{Budget, CheckedLayout, PerDevice, Phase};
use scrimp_run::{Compiled, Data, Executor, ExecutorOptions, Processor, StepTrace};
use scrimp_solve::{Options, Progress};

use crate::checkpoint;
use crate::error::Result;
use crate::pipeline::{self, Budgeted, Fit, Homes, Planned};
use crate::session;
use crate::swap::Swap;
use crate::training;

/// A network in inference mode: batch normalizations apply their running statistics, dropouts are gone.
#[derive(Debug)]
pub struct Inference<'a> {
    /// The network on each device that computes, in their order.
    pub compiled: Vec<Compiled<'a>>,
    /// Its tasks and values, with their costs.
    pub lowered: Lowered,
    /// Memories in which weights and values may wait.
    pub swap: Swap,
}

impl<'a> Inference<'a> {
    /// Lowers a network that [`scrimp_graph::inference`] returned for one device, with estimated costs.
    ///
    /// # Errors
    /// If the graph can't be planned; see [`scrimp_graph::lower()`].
    pub fn new(graph: &'a Graph, processor: Processor<'a>, swap: Swap) -> Result<Inference<'a>> {
        let compiled = Compiled::new(graph, processor);
        let costs = pipeline::estimate(&compiled);
        let lowered = scrimp_graph::lower(graph, &forward(graph), &costs, "cpu")?;
        Ok(Inference {
            compiled: vec![compiled],
            lowered,
            swap,
        })
    }

    /// What budgets mean for it.
    ///
    /// # Errors
    /// The errors of [`Swap::add`] and [`pipeline::budgets`].
    pub fn budget(&self, budgets: &PerDevice<Budget>) -> Result<Budgeted> {
        let (problem, beside) = self.swap.add(&self.lowered.problem)?;
        pipeline::budgets(&problem, Some(budgets), &beside, Homes::Free)
    }

    /// A plan within the budget of the only device that computes, placed.
    ///
    /// # Errors
    /// The errors of [`pipeline::find_plan`].
    pub fn plan(
        &self,
        budget: Budget,
        options: &Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Planned> {
        let budgeted = self.budget(&PerDevice::Sole(budget))?;
        pipeline::find_plan(&budgeted, Fit::Layout, options, progress)
    }

    /// Reserves the memory of a plan. Weights are the model's own, or initial ones made from `seed`.
    ///
    /// # Errors
    /// If the plan doesn't fit this network or machine, or there isn't enough memory.
    pub fn start(
        &self,
        layout: &CheckedLayout,
        arena_bytes: u64,
        seed: u64,
    ) -> Result<Forward<'_>> {
        training::fits(training::main_memory(
            &self.compiled,
            layout,
            arena_bytes,
            &self.swap,
        ))?;
        let options = ExecutorOptions {
            seed,
            arena_bytes,
            files: &self.swap.files(layout.plan().problem()),
            ..ExecutorOptions::default()
        };
        let executor = Executor::new(&self.compiled, &self.lowered, layout, options)?;
        Ok(Forward {
            graph: self.compiled[0].graph(),
            executor,
        })
    }
}

/// Every node of a network that only runs forward.
pub fn forward(graph: &Graph) -> Phases {
    let mut phases = Phases::with_default(Phase::Forward);
    phases.resize(graph.nodes().len());
    phases
}

/// A network in memory, ready to run.
#[derive(Debug)]
pub struct Forward<'a> {
    graph: &'a Graph,
    executor: Executor<'a>,
}

impl Forward<'_> {
    /// Takes weights and running statistics from a file, piece by piece.
    ///
    /// # Errors
    /// If one of them is missing or has another shape, or the file can't be read.
    pub fn load(&mut self, file: &WeightsFile) -> Result<()> {
        let tensors = file.fit(self.graph, Require::Everything)?;
        checkpoint::fill(&mut self.executor, self.graph, file, &tensors)
    }

    /// Sets one weight or running statistic.
    ///
    /// # Errors
    /// If the network computes this tensor, or it has another size.
    pub fn set(&mut self, tensor: TensorId, values: &[f32]) -> Result<()> {
        Ok(self.executor.set(tensor, Data::F32(values))?)
    }

    /// Runs one batch.
    ///
    /// # Errors
    /// If contents don't fit an input, or a kernel refuses them.
    pub fn run(&mut self, inputs: &[(TensorId, Contents)]) -> Result<&StepTrace> {
        for (tensor, contents) in inputs {
            session::set(&mut self.executor, *tensor, contents)?;
        }
        for (tensor, what) in self.graph.given() {
            if what.role == Role::Seed {
                self.executor.set(tensor, Data::I64(&[0]))?;
            }
        }
        Ok(self.executor.step(None)?)
    }

    /// The elements of an output of the last batch, in row order and in the output's type.
    ///
    /// # Errors
    /// If no batch was run.
    pub fn output(&self, tensor: TensorId) -> Result<Cow<'_, [u8]>> {
        Ok(self.executor.bytes(tensor)?)
    }

    /// The elements of an output of the last batch as 32-bit floats.
    ///
    /// # Errors
    /// If no batch was run.
    pub fn floats(&self, tensor: TensorId) -> Result<Vec<f32>> {
        Ok(self.executor.read(tensor)?)
    }

    /// Bytes of the arenas of all devices that compute.
    pub fn arena_bytes(&self) -> u64 {
        self.executor.arena_bytes()
    }
}

//! The model as the published methods see it: tasks and values by index, and the stages in which tasks may
//! run again.

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, CheckedPlan, DeviceId, Phase, Problem, Sequence, TaskId, ValueId};

use crate::bound::Worthwhile;
use crate::checked::checked;
use crate::error::SolveError;
use crate::method::Method;
use crate::model::Model;

/// One task.
pub(crate) struct Task {
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    /// Inputs whose buffer an output takes over.
    pub(crate) overwrites: Vec<usize>,
    pub(crate) seconds: f64,
    pub(crate) workspace: u64,
    pub(crate) rerunnable: bool,
    pub(crate) forward: bool,
    /// Bytes of the outputs that need their own buffer.
    pub(crate) allocates: u64,
}

/// One value.
pub(crate) struct Value {
    /// None for a given value.
    pub(crate) producer: Option<usize>,
    /// Ascending.
    pub(crate) consumers: Vec<usize>,
    pub(crate) overwriter: Option<usize>,
    /// Zero if the bytes are in use whatever the plan; then [`Graph::fixed`] counts them.
    pub(crate) bytes: u64,
    pub(crate) kept: bool,
}

impl Value {
    /// Whether the value is always in memory: given, kept and never overwritten.
    pub(crate) fn constant(&self) -> bool {
        self.producer.is_none() && self.kept && self.overwriter.is_none()
    }
}

/// The stages, besides their own, in which tasks may run.
pub(crate) enum Reruns {
    /// All tasks, wherever they can.
    Anywhere,
    /// Tasks and stages for which the bound says that a rerun can be worth it.
    Where(Worthwhile),
}

impl Reruns {
    /// Whether a task may run in a stage.
    pub(crate) fn allow(&self, task: usize, stage: usize) -> bool {
        match self {
            Reruns::Anywhere => true,
            Reruns::Where(worthwhile) => worthwhile.before(TaskId::new(task), TaskId::new(stage)),
        }
    }
}

/// A model, with facts about it that the methods ask for.
pub(crate) struct Graph<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) capacities: &'a Capacities,
    pub(crate) method: Method,
    pub(crate) device: DeviceId,
    pub(crate) model: Model,
    pub(crate) tasks: Vec<Task>,
    pub(crate) values: Vec<Value>,
    /// Bytes that are in use whatever the plan.
    pub(crate) fixed: u64,
    /// The budget; for an unlimited device, more bytes than anything can use.
    pub(crate) capacity: u64,
    reruns: Reruns,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(
        problem: &'a Problem,
        capacities: &'a Capacities,
        method: Method,
    ) -> Result<Self, SolveError> {
        let (model, device) = Model::new(problem)?;
        let mut graph = Graph {
            problem,
            capacities,
            method,
            device,
            tasks: model.task_ids().map(|t| task(problem, &model, t)).collect(),
            values: model.value_ids().map(|v| value(&model, v)).collect(),
            fixed: (model.resident + model.fixed_bytes) as u64,
            capacity: 0,
            model,
            reruns: Reruns::Anywhere,
        };
        graph.forbid_impossible_reruns();
        let total: u64 = graph.values.iter().map(|value| value.bytes).sum();
        let workspace = graph.tasks.iter().map(|task| task.workspace).max();
        let everything = graph.fixed + total + workspace.unwrap_or(0);
        let capacity = capacities.bytes(device);
        graph.capacity = capacity.map_or(everything, |capacity| capacity.min(everything));
        Ok(graph)
    }

    /// The same graph with reruns in some stages only.
    pub(crate) fn restricted(&self, reruns: Reruns) -> Result<Self, SolveError> {
        let mut graph = Graph::new(self.problem, self.capacities, self.method)?;
        let n = graph.tasks.len();
        for (task, what) in graph.tasks.iter_mut().enumerate() {
            what.rerunnable &= (0..n).any(|stage| reruns.allow(task, stage));
        }
        graph.reruns = reruns;
        graph.forbid_impossible_reruns();
        Ok(graph)
    }

    /// Forbids reruns of tasks that overwrite something which can't be made again.
    fn forbid_impossible_reruns(&mut self) {
        for task in 0..self.tasks.len() {
            let replaceable = |&input: &usize| {
                let producer = self.values[input].producer;
                producer.is_some_and(|producer| self.tasks[producer].rerunnable)
            };
            let all = self.tasks[task].overwrites.iter().all(replaceable);
            self.tasks[task].rerunnable &= all;
        }
    }

    /// Seconds of running every task once.
    pub(crate) fn base_cost(&self) -> f64 {
        self.tasks.iter().map(|task| task.seconds).sum()
    }

    /// The plan of a sequence of runs, whether or not it fits. `Err` holds the peak of a plan that doesn't
    /// fit.
    pub(crate) fn check(&self, runs: &[usize]) -> Result<Result<CheckedPlan, u64>, SolveError> {
        let runs = runs.iter().map(|&run| TaskId::new(run));
        let sequence = Sequence::of_runs(self.device, runs);
        let plan = checked(self.problem, &sequence, self.method.name())?;
        Ok(match plan.within(self.capacities) {
            Ok(()) => Ok(plan),
            Err(_) => Err(plan.peak(self.device)),
        })
    }

    /// The budget as the caller gave it.
    pub(crate) fn budget(&self) -> u64 {
        self.capacities.bytes(self.device).unwrap_or(self.capacity)
    }

    /// The error when no plan was found; the leanest plan, if there is one, needs `least` bytes.
    pub(crate) fn not_found(&self, least: Option<u64>) -> SolveError {
        SolveError::NotFound {
            method: self.method.name(),
            budget: self.budget(),
            least,
        }
    }

    /// The error when the method's model has no plan.
    pub(crate) fn infeasible(&self) -> SolveError {
        SolveError::OutsideModel {
            method: self.method.name(),
            budget: self.budget(),
        }
    }

    /// Whether a value can't be made again.
    pub(crate) fn irreplaceable(&self, value: usize) -> bool {
        let producer = self.values[value].producer;
        producer.is_none_or(|task| !self.tasks[task].rerunnable)
    }

    /// The last task whose first run reads a value; the number of tasks if the value must be in memory at the
    /// end, 0 if nothing needs it.
    pub(crate) fn last_use(&self, value: usize) -> usize {
        let value = &self.values[value];
        let last = value.consumers.last().copied().unwrap_or(0);
        if value.kept { self.tasks.len() } else { last }
    }

    /// The most bytes, besides the fixed ones, that a task has in memory while it runs.
    pub(crate) fn working_set(&self) -> u64 {
        let sets = self.tasks.iter().map(|task| {
            let inputs = task.inputs.iter().map(|&value| self.values[value].bytes);
            inputs.sum::<u64>() + task.allocates + task.workspace
        });
        sets.max().unwrap_or(0)
    }

    /// Whether a task may run in a stage other than its own.
    pub(crate) fn may_rerun(&self, task: usize, stage: usize) -> bool {
        self.tasks[task].rerunnable && stage > task && self.reruns.allow(task, stage)
    }

    /// For each task, the last stage in which running it can serve anything: its own stage, or the last one
    /// in which one of its outputs can be read or must be in memory. `tasks.len()` stands for the end.
    pub(crate) fn reach(&self) -> Vec<usize> {
        let n = self.tasks.len();
        let mut reach = vec![0; n];
        for task in (0..n).rev() {
            let outputs = self.tasks[task].outputs.iter();
            let last = outputs.map(|&value| self.value_reach(value, &reach)).max();
            reach[task] = task.max(last.unwrap_or(0));
        }
        reach
    }

    /// The last stage in which a value can be read or must be in memory, given the reach of its readers.
    pub(crate) fn value_reach(&self, value: usize, reach: &[usize]) -> usize {
        let value = &self.values[value];
        if value.kept {
            return self.tasks.len();
        }
        let stage = |&task: &usize| {
            let stages = (task + 1..=reach[task].min(self.tasks.len() - 1)).rev();
            stages
                .clone()
                .find(|&stage| self.may_rerun(task, stage))
                .unwrap_or(task)
        };
        value.consumers.iter().map(stage).max().unwrap_or(0)
    }
}

fn task(problem: &Problem, model: &Model, t: TaskId) -> Task {
    let inputs = model.inputs.of(t);
    let overwritten = || inputs.iter().filter(|input| input.overwritten);
    let outputs = model.outputs.of(t);
    let written: f64 = outputs.iter().map(|&v| model.size(v)).sum();
    let taken: f64 = overwritten().map(|input| model.size(input.value)).sum();
    Task {
        inputs: inputs.iter().map(|input| input.value.index()).collect(),
        outputs: outputs.iter().map(|v| v.index()).collect(),
        overwrites: overwritten().map(|input| input.value.index()).collect(),
        seconds: model.cost[t],
        workspace: model.workspace[t] as u64,
        rerunnable: model.rerunnable[t],
        forward: problem.task(t).phase == Phase::Forward,
        allocates: (written - taken) as u64,
    }
}

fn value(model: &Model, v: ValueId) -> Value {
    let producer = model.producer[v];
    let consumers = model.consumers.of(v);
    Value {
        producer: model.has(producer).then(|| producer.index()),
        consumers: consumers
            .iter()
            .filter(|&&task| model.has(task))
            .map(|task| task.index())
            .collect(),
        overwriter: model.overwriter(v).map(|task| task.index()),
        bytes: model.size(v) as u64,
        kept: consumers.contains(&model.end()),
    }
}

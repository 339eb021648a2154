//! A problem as the published methods see it: one device, tasks and values by index, and what each
//! value costs to hold.

use cranelift_entity::EntityRef;
use scrimp_plan::{
    Capacities, CheckedPlan, DeviceId, Keep, Origin, Phase, Plan, Problem, TaskId, Violation, check,
};

use super::PublishedError;

/// One task.
pub(super) struct Task {
    pub(super) inputs: Vec<usize>,
    pub(super) outputs: Vec<usize>,
    /// Pairs of an input and the output that takes its buffer.
    pub(super) overwrites: Vec<(usize, usize)>,
    pub(super) seconds: f64,
    pub(super) workspace: u64,
    pub(super) rerunnable: bool,
    pub(super) forward: bool,
    /// Bytes of the outputs that need a buffer of their own.
    pub(super) allocates: u64,
}

/// One value.
pub(super) struct Value {
    /// None for a given one.
    pub(super) producer: Option<usize>,
    /// Ascending.
    pub(super) consumers: Vec<usize>,
    pub(super) overwriter: Option<usize>,
    /// Zero where the bytes are in use whatever the plan, and counted in [`Graph::fixed`].
    pub(super) bytes: u64,
    pub(super) kept: bool,
}

impl Value {
    /// Always there: given, kept and never overwritten.
    pub(super) fn constant(&self) -> bool {
        self.producer.is_none() && self.kept && self.overwriter.is_none()
    }
}

/// A problem on its only computing device.
pub(super) struct Graph<'a> {
    pub(super) problem: &'a Problem,
    pub(super) capacities: &'a Capacities,
    pub(super) method: &'static str,
    pub(super) device: DeviceId,
    pub(super) tasks: Vec<Task>,
    pub(super) values: Vec<Value>,
    /// Bytes in use whatever the plan.
    pub(super) fixed: u64,
    /// The budget; of an unlimited device, more than anything can use.
    pub(super) capacity: u64,
    /// By task and stage, whether it may run again there; empty if it may wherever it can.
    allowed: Vec<Vec<bool>>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(
        problem: &'a Problem,
        capacities: &'a Capacities,
        method: &'static str,
    ) -> Result<Self, PublishedError> {
        let unsupported = |what: String| PublishedError::Unsupported { method, what };
        let device = problem
            .sole_device()
            .ok_or_else(|| unsupported("it has several devices that compute".into()))?;
        for (id, value) in problem.values().iter() {
            let elsewhere = match (value.origin, value.keep) {
                (Origin::Given(at), _) if at != device => Some(at),
                (_, Keep::On(at)) if at != device => Some(at),
                _ => None,
            };
            if let Some(at) = elsewhere {
                return Err(unsupported(format!(
                    "{id} ({}) is or must be on {at}, which takes a copy",
                    value.name
                )));
            }
        }
        let mut graph = Graph {
            problem,
            capacities,
            method,
            device,
            tasks: tasks(problem, device),
            values: values(problem),
            fixed: problem.devices()[device].resident,
            capacity: 0,
            allowed: Vec::new(),
        };
        graph.fix_chains();
        graph.forbid_impossible_reruns();
        let total: u64 = graph.values.iter().map(|value| value.bytes).sum();
        let workspace = graph
            .tasks
            .iter()
            .map(|task| task.workspace)
            .max()
            .unwrap_or(0);
        let everything = graph.fixed + total + workspace;
        let capacity = capacities.bytes(device);
        graph.capacity = capacity.map_or(everything, |capacity| capacity.min(everything));
        Ok(graph)
    }

    /// Counts given values that can't leave, alone or as the head of a chain of overwriting tasks
    /// that ends in a kept value, as fixed, and their chains as free of charge.
    fn fix_chains(&mut self) {
        for head in 0..self.values.len() {
            if self.values[head].producer.is_some() {
                continue;
            }
            let mut chain = vec![head];
            let mut last = head;
            while let Some(task) = self.values[last].overwriter {
                let pair = self.tasks[task]
                    .overwrites
                    .iter()
                    .find(|pair| pair.0 == last);
                let Some(&(_, output)) = pair else { break };
                chain.push(output);
                last = output;
            }
            if self.values[last].kept {
                self.fixed += self.values[head].bytes;
                for value in chain {
                    self.values[value].bytes = 0;
                }
            }
        }
        for task in &mut self.tasks {
            let in_place = |output: &usize| task.overwrites.iter().any(|pair| pair.1 == *output);
            let own = task.outputs.iter().filter(|output| !in_place(output));
            task.allocates = own.map(|&output| self.values[output].bytes).sum();
        }
    }

    /// A task that overwrites something that can't be made again can't run again either.
    fn forbid_impossible_reruns(&mut self) {
        for task in 0..self.tasks.len() {
            let replaceable = |&(input, _): &(usize, usize)| {
                let producer = self.values[input].producer;
                producer.is_some_and(|producer| self.tasks[producer].rerunnable)
            };
            let all = self.tasks[task].overwrites.iter().all(replaceable);
            self.tasks[task].rerunnable &= all;
        }
    }

    /// Seconds of running every task once.
    pub(super) fn base_cost(&self) -> f64 {
        self.tasks.iter().map(|task| task.seconds).sum()
    }

    /// The plan of a sequence of runs, whether or not it fits: `Err` holds the peak of one that
    /// doesn't.
    pub(super) fn check(&self, runs: &[usize]) -> Result<Result<CheckedPlan, u64>, PublishedError> {
        let defect = |what: String| PublishedError::Defect {
            method: self.method,
            what,
        };
        let ids: Vec<TaskId> = runs.iter().map(|&run| TaskId::new(run)).collect();
        let plan = Plan::from_runs(self.problem, self.device, &ids)
            .map_err(|error| defect(error.to_string()))?;
        let tell = |all: Vec<Violation>| {
            let texts: Vec<String> = all.iter().take(3).map(ToString::to_string).collect();
            defect(texts.join("; "))
        };
        let plan = check(self.problem, plan).map_err(tell)?;
        Ok(match plan.within(self.capacities) {
            Ok(()) => Ok(plan),
            Err(_) => Err(plan.peak(self.device)),
        })
    }

    /// The budget as the caller gave it.
    pub(super) fn budget(&self) -> u64 {
        self.capacities.bytes(self.device).unwrap_or(self.capacity)
    }

    /// Whether a value can't be made again.
    pub(super) fn irreplaceable(&self, value: usize) -> bool {
        let producer = self.values[value].producer;
        producer.is_none_or(|task| !self.tasks[task].rerunnable)
    }

    /// The last task whose first run reads a value; the number of tasks if it must be there at the
    /// end, 0 if nothing needs it.
    pub(super) fn last_use(&self, value: usize) -> usize {
        let value = &self.values[value];
        let last = value.consumers.last().copied().unwrap_or(0);
        if value.kept { self.tasks.len() } else { last }
    }

    /// The most bytes, beside the fixed ones, that some task has in memory while it runs.
    pub(super) fn working_set(&self) -> u64 {
        let sets = self.tasks.iter().map(|task| {
            let inputs = task.inputs.iter().map(|&value| self.values[value].bytes);
            inputs.sum::<u64>() + task.allocates + task.workspace
        });
        sets.max().unwrap_or(0)
    }

    /// Lets tasks run again only in some stages: by task and stage.
    pub(super) fn restrict(&mut self, allowed: Vec<Vec<bool>>) {
        for (task, stages) in self.tasks.iter_mut().zip(&allowed) {
            task.rerunnable &= stages.contains(&true);
        }
        self.allowed = allowed;
        self.forbid_impossible_reruns();
    }

    /// Whether a task may run in a stage besides its own.
    pub(super) fn may_rerun(&self, task: usize, stage: usize) -> bool {
        let allowed = self.allowed.get(task).is_none_or(|stages| stages[stage]);
        self.tasks[task].rerunnable && stage > task && allowed
    }

    /// For each task, the last stage in which running it can serve anything: its own, or the last one
    /// in which one of its outputs can be read or must be there. `tasks.len()` is the end.
    pub(super) fn reach(&self) -> Vec<usize> {
        let n = self.tasks.len();
        let mut reach = vec![0; n];
        for task in (0..n).rev() {
            let outputs = self.tasks[task].outputs.iter();
            let last = outputs.map(|&value| self.value_reach(value, &reach)).max();
            reach[task] = task.max(last.unwrap_or(0));
        }
        reach
    }

    /// The last stage in which a value can be read or must be there, given the reach of its readers.
    pub(super) fn value_reach(&self, value: usize, reach: &[usize]) -> usize {
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

fn tasks(problem: &Problem, device: DeviceId) -> Vec<Task> {
    let tasks = problem.tasks().values().map(|task| {
        let mode = task.mode(device);
        Task {
            inputs: task.inputs.iter().map(|value| value.index()).collect(),
            outputs: task.outputs.iter().map(|value| value.index()).collect(),
            overwrites: task
                .overwrites
                .iter()
                .map(|pair| (pair.input.index(), pair.output.index()))
                .collect(),
            seconds: mode.map_or(0.0, |mode| mode.seconds),
            workspace: mode.map_or(0, |mode| mode.workspace),
            rerunnable: task.rerunnable,
            forward: task.phase == Phase::Forward,
            allocates: 0,
        }
    });
    tasks.collect()
}

fn values(problem: &Problem) -> Vec<Value> {
    let values = problem.values().iter().map(|(id, value)| Value {
        producer: problem.producer(id).map(|task| task.index()),
        consumers: problem
            .consumers(id)
            .iter()
            .map(|task| task.index())
            .collect(),
        overwriter: problem.overwriter(id).map(|task| task.index()),
        bytes: value.bytes,
        kept: value.keep != Keep::No,
    });
    values.collect()
}

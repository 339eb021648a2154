//! The single-device problem as flat arrays, which are all that the planners of this crate read.
//!
//! Two extra tasks avoid special cases: [`Model::start`] writes the given values, and [`Model::end`] reads
//! the kept ones. Bytes are `f64` but hold integers below 2⁵², so sums and differences are exact, and minima
//! and maxima of stretches vectorize.

use std::marker::PhantomData;

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{Capacities, DeviceId, Keep, Origin, Problem, TaskId, ValueId};

use crate::copies::Copies;
use crate::error::SolveError;
use crate::outside::{End, Outside};

/// Sums of bytes stay below this, so that `f64` holds them exactly.
const EXACT: f64 = (1u64 << 52) as f64;

/// One input of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub value: ValueId,
    /// Whether the task's output takes over this input's buffer, so that the input is gone afterwards.
    pub overwritten: bool,
}

/// Lists of varying length in one array, with one list per id.
#[derive(Clone, Debug)]
pub(crate) struct Lists<K, T> {
    first: Vec<u32>,
    items: Vec<T>,
    ids: PhantomData<K>,
}

impl<K: EntityRef, T: Copy> Lists<K, T> {
    pub fn new(lists: impl IntoIterator<Item: AsRef<[T]>>) -> Lists<K, T> {
        let mut out = Lists {
            first: vec![0],
            items: Vec::new(),
            ids: PhantomData,
        };
        for list in lists {
            out.items.extend_from_slice(list.as_ref());
            out.first.push(out.items.len() as u32);
        }
        out
    }

    #[inline]
    pub fn of(&self, id: K) -> &[T] {
        &self.items[self.first[id.index()] as usize..self.first[id.index() + 1] as usize]
    }
}

/// The problem as the computing device sees it.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// The device that computes.
    pub device: DeviceId,
    /// The number of the problem's tasks and of those that pass values from one memory on to another; `start` and
    /// `end` come after them.
    pub tasks: u32,
    /// Seconds of one run.
    pub cost: PrimaryMap<TaskId, f64>,
    /// Scratch bytes of one run.
    pub workspace: PrimaryMap<TaskId, f64>,
    pub inputs: Lists<TaskId, Input>,
    pub outputs: Lists<TaskId, ValueId>,
    /// Bytes that one run allocates: its outputs less the overwritten inputs, and its workspace.
    pub grows: PrimaryMap<TaskId, f64>,
    pub rerunnable: PrimaryMap<TaskId, bool>,
    /// Bytes of each value.
    pub bytes: PrimaryMap<ValueId, f64>,
    pub producer: PrimaryMap<ValueId, TaskId>,
    overwriter: PrimaryMap<ValueId, PackedOption<TaskId>>,
    /// The tasks that read a value, including `end`.
    pub consumers: Lists<ValueId, TaskId>,
    /// Bytes that are always in use besides the values.
    pub resident: f64,
    /// Whether a value's buffer is in use throughout: the value is given, and kept or overwritten in a chain
    /// that ends in a kept value. No value's, if there are other memories.
    pub fixed: PrimaryMap<ValueId, bool>,
    /// The bytes of those buffers.
    pub fixed_bytes: f64,
    /// Copies to and from other memories; none if the planner doesn't plan them.
    pub copies: Copies,
    /// Other memories, if links lead there; only for bounds.
    pub outside: Option<Outside>,
}

/// What a model has beside the computing device.
enum Beside<'c> {
    Nothing,
    /// What the search decides about.
    Copies(&'c Capacities),
    /// What bounds count with.
    Outside,
}

impl Model {
    /// The problem as the only computing device sees it, without other memories.
    pub fn new(problem: &Problem) -> Result<(Model, DeviceId), SolveError> {
        Model::beside(problem, &Beside::Nothing)
    }

    /// The problem as the only computing device sees it, with copies to and from the other memories.
    pub fn with_copies(
        problem: &Problem,
        capacities: &Capacities,
    ) -> Result<(Model, DeviceId), SolveError> {
        Model::beside(problem, &Beside::Copies(capacities))
    }

    /// The problem as the only computing device sees it, and what is outside of the device.
    pub fn with_outside(problem: &Problem) -> Result<(Model, DeviceId), SolveError> {
        Model::beside(problem, &Beside::Outside)
    }

    fn beside(problem: &Problem, beside: &Beside<'_>) -> Result<(Model, DeviceId), SolveError> {
        let device = problem.sole_device().ok_or_else(|| {
            SolveError::Unsupported(
                "several devices compute, but this version plans for one only: keep one that computes"
                    .into(),
            )
        })?;
        if problem.devices()[device].concurrent {
            return Err(SolveError::Unsupported(format!(
                "{} runs any number of tasks at once, for which only several devices are planned: leave `concurrent` out",
                problem.devices()[device].name
            )));
        }
        let n = problem.tasks().len() as u32;
        let values = problem.values();
        let (mut outside, mut copies) = (None, Copies::default());
        match *beside {
            Beside::Nothing => {}
            Beside::Copies(capacities) => {
                copies = Copies::new(problem, device, capacities, n as usize);
            }
            Beside::Outside => outside = Outside::of(problem, device),
        }
        let mut given = Vec::new();
        let mut kept = Vec::new();
        for (v, value) in values.iter() {
            match value.origin {
                Origin::Given(on) if on == device => given.push(v),
                Origin::Given(_) if !copies.none() && copies.given[v].is_some() => {}
                Origin::Given(_) if outside.is_some() => {}
                Origin::Given(_) => {
                    return Err(SolveError::Unsupported(format!(
                        "value {} is given in another memory, from which this method can't copy: give it on {}, or use the default method with links to and from that memory",
                        value.name,
                        problem.devices()[device].name
                    )));
                }
                Origin::Task(_) => {}
            }
            match value.keep {
                Keep::No => {}
                Keep::On(on) if on != device && !copies.none() && copies.kept[v].is_some() => {}
                Keep::On(on) if on != device && outside.is_some() => {}
                Keep::On(on) if on != device => {
                    return Err(SolveError::Unsupported(format!(
                        "value {} must end in another memory, to which this method can't copy: keep it on {}, or use the default method with links to and from that memory",
                        value.name,
                        problem.devices()[device].name
                    )));
                }
                _ => kept.push(Input {
                    value: v,
                    overwritten: false,
                }),
            }
        }
        let (mut cost, mut workspace, mut rerunnable) = (Vec::new(), Vec::new(), Vec::new());
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for task in problem.tasks().values() {
            let mode = task
                .modes
                .iter()
                .find(|m| m.device == device)
                .ok_or_else(|| {
                    SolveError::Unsupported(format!(
                        "task {} can't run on the planned device",
                        task.name
                    ))
                })?;
            cost.push(mode.seconds);
            workspace.push(mode.workspace as f64);
            rerunnable.push(task.rerunnable);
            let overwritten = |v: ValueId| task.overwrites.iter().any(|o| o.input == v);
            inputs.push(
                task.inputs
                    .iter()
                    .map(|&v| Input {
                        value: v,
                        overwritten: overwritten(v),
                    })
                    .collect::<Vec<_>>(),
            );
            outputs.push(task.outputs.clone());
        }
        for &v in &copies.passed {
            cost.push(0.0);
            workspace.push(0.0);
            rerunnable.push(false);
            inputs.push(vec![Input {
                value: v,
                overwritten: false,
            }]);
            outputs.push(Vec::new());
        }
        let tasks = cost.len() as u32;
        let mut model = Model::from_lists(Parts {
            device,
            cost,
            workspace,
            rerunnable,
            inputs,
            outputs,
            bytes: values.values().map(|v| v.bytes as f64).collect(),
            given,
            kept,
            resident: problem.resident_bytes(device) as f64,
            copies,
        });
        model.outside = outside;
        if model.outside.is_none() {
            model.fix(problem, device);
        }
        let total: f64 = model.resident
            + model.bytes.values().sum::<f64>()
            + model.workspace.values().sum::<f64>();
        if total >= EXACT {
            return Err(SolveError::Unsupported(
                "the problem's sizes sum to 2^52 or more: divide them by a common unit".into(),
            ));
        }
        debug_assert_eq!(model.tasks, tasks);
        Ok((model, device))
    }

    /// Marks the values that stay in memory throughout.
    fn fix(&mut self, problem: &Problem, device: DeviceId) {
        for head in problem.fixed(device) {
            self.fixed_bytes += self.bytes[head];
            for value in problem.chain(head) {
                self.fixed[value] = true;
            }
        }
    }

    pub(crate) fn from_lists(mut p: Parts) -> Model {
        let n = p.cost.len() as u32;
        let values = p.bytes.len();
        for list in [&mut p.cost, &mut p.workspace] {
            list.extend([0.0, 0.0]);
        }
        p.rerunnable.extend([false, false]);
        p.inputs.extend([Vec::new(), p.kept]);
        p.outputs.extend([p.given, Vec::new()]);
        let start = TaskId::from_u32(n);
        let mut producer: PrimaryMap<ValueId, TaskId> =
            std::iter::repeat_n(start, values).collect();
        for (t, outs) in p.outputs.iter().enumerate() {
            for &v in outs {
                producer[v] = TaskId::new(t);
            }
        }
        let brings = p.copies.tasks();
        for list in [&mut p.cost, &mut p.workspace] {
            list.extend(std::iter::repeat_n(0.0, brings));
        }
        p.rerunnable.extend(std::iter::repeat_n(true, brings));
        p.inputs.extend(std::iter::repeat_n(Vec::new(), brings));
        let brought = (0..brings).map(|k| vec![ValueId::new(k % values)]);
        p.outputs.extend(brought);
        let bytes: PrimaryMap<ValueId, f64> = p.bytes.into_iter().collect();
        let mut overwriter: PrimaryMap<ValueId, PackedOption<TaskId>> =
            std::iter::repeat_n(None.into(), values).collect();
        let mut consumers = vec![Vec::new(); values];
        let mut grows: PrimaryMap<TaskId, f64> = p.workspace.iter().copied().collect();
        for (t, grows) in grows.iter_mut() {
            for &i in &p.inputs[t.index()] {
                consumers[i.value.index()].push(t);
                if i.overwritten {
                    overwriter[i.value] = t.into();
                    *grows -= bytes[i.value];
                }
            }
            *grows += p.outputs[t.index()].iter().map(|&v| bytes[v]).sum::<f64>();
        }
        Model {
            device: p.device,
            tasks: n,
            cost: p.cost.into_iter().collect(),
            workspace: p.workspace.into_iter().collect(),
            inputs: Lists::new(p.inputs),
            outputs: Lists::new(p.outputs),
            grows,
            rerunnable: p.rerunnable.into_iter().collect(),
            bytes,
            producer,
            overwriter,
            consumers: Lists::new(consumers),
            resident: p.resident,
            fixed: std::iter::repeat_n(false, values).collect(),
            fixed_bytes: 0.0,
            copies: p.copies,
            outside: None,
        }
    }

    /// The task that writes the given values.
    #[inline]
    pub fn start(&self) -> TaskId {
        TaskId::from_u32(self.tasks)
    }

    /// The task that reads the kept values.
    #[inline]
    pub fn end(&self) -> TaskId {
        TaskId::from_u32(self.tasks + 1)
    }

    /// Whether a task is the problem's own: neither `start` nor `end`.
    #[inline]
    pub fn has(&self, t: TaskId) -> bool {
        t < self.start()
    }

    /// The tasks of a sequence in the order of their first runs.
    pub fn first_runs(&self, runs: &[TaskId]) -> Vec<TaskId> {
        let mut new: PrimaryMap<TaskId, bool> = self.cost.values().map(|_| true).collect();
        let runs = runs.iter().copied();
        runs.filter(|&t| std::mem::replace(&mut new[t], false))
            .collect()
    }

    /// The problem's own tasks, in the given order.
    pub fn task_ids(&self) -> impl DoubleEndedIterator<Item = TaskId> + Clone + use<> {
        (0..self.tasks).map(TaskId::from_u32)
    }

    /// All values.
    pub fn value_ids(&self) -> impl DoubleEndedIterator<Item = ValueId> + Clone + use<> {
        (0..self.bytes.len()).map(ValueId::new)
    }

    /// Every task once, in the given order.
    pub fn given_order(&self) -> Vec<TaskId> {
        self.task_ids().collect()
    }

    /// An order of tasks in which a value that is given in another memory is brought before its first use.
    pub fn with_brings(&self, order: Vec<TaskId>) -> Vec<TaskId> {
        if self.copies.none() {
            return order;
        }
        let mut seen: PrimaryMap<ValueId, bool> = self.bytes.values().map(|_| false).collect();
        let mut out = Vec::with_capacity(order.len());
        for t in order.into_iter().chain([self.end()]) {
            for i in self.inputs.of(t) {
                if let Some(memory) = self.copies.given[i.value]
                    && !std::mem::replace(&mut seen[i.value], true)
                {
                    out.push(self.copies.bringing(memory, i.value));
                }
            }
            out.push(t);
        }
        out.pop();
        out
    }

    /// The task that takes over a value's buffer for its output.
    #[inline]
    pub fn overwriter(&self, v: ValueId) -> Option<TaskId> {
        self.overwriter[v].expand()
    }

    /// Whether a task takes over a value's buffer for its output.
    #[inline]
    pub fn overwrites(&self, t: TaskId, v: ValueId) -> bool {
        self.overwriter[v] == t.into()
    }

    /// A value's bytes; zero for a fixed value, because `fixed_bytes` counts its bytes.
    #[inline]
    pub fn size(&self, v: ValueId) -> f64 {
        if self.fixed[v] { 0.0 } else { self.bytes[v] }
    }

    /// The bytes without which some task can't run, even if everything else is elsewhere.
    pub fn least_working_set(&self) -> f64 {
        let tasks = self.task_ids().chain([self.start(), self.end()]);
        let sets = tasks.map(|t| {
            let inputs = self.inputs.of(t).iter().map(|i| i.value);
            let inputs: f64 = inputs.map(|v| self.size(v)).sum();
            // The start grows by the fixed values, too, which have been counted.
            let counted = if t == self.start() {
                self.fixed_bytes
            } else {
                0.0
            };
            self.grows[t] - counted + inputs + self.fixed_bytes
        });
        sets.fold(0.0, f64::max)
    }

    /// Whether a value is given on another device.
    pub fn is_away(&self, v: ValueId) -> bool {
        self.outside.as_ref().is_some_and(|outside| outside.away[v])
    }

    /// Whether a kept value must be on the planned device at the end.
    pub fn ends_here(&self, v: ValueId) -> bool {
        let outside = self.outside.as_ref();
        outside.is_none_or(|outside| outside.end[v] == End::Here)
    }

    /// Seconds of running every task once.
    pub fn base_cost(&self) -> f64 {
        self.cost.values().sum()
    }
}

/// The fields from which [`Model::from_lists`] derives the rest.
pub(crate) struct Parts {
    pub device: DeviceId,
    pub cost: Vec<f64>,
    pub workspace: Vec<f64>,
    pub rerunnable: Vec<bool>,
    pub inputs: Vec<Vec<Input>>,
    pub outputs: Vec<Vec<ValueId>>,
    pub bytes: Vec<f64>,
    pub given: Vec<ValueId>,
    pub kept: Vec<Input>,
    pub resident: f64,
    pub copies: Copies,
}

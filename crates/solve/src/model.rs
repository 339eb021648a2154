//! The single-device problem as flat arrays, which is all that the planners of this crate read.
//!
//! Two tasks are added so that nothing is a special case: [`Model::start`] writes the given values,
//! [`Model::end`] reads the kept ones. Bytes are `f64`: they are integers below 2⁵², so sums and
//! differences are exact, and minima and maxima of stretches vectorize.

use scrimp_plan::{DeviceId, Keep, Origin, Problem, TaskId, ValueId};

use crate::SolveError;

/// Index of a task in a [`Model`]; below `tasks` it is the problem's own index.
pub(crate) type Task = u32;
/// Index of a value, the problem's own.
pub(crate) type Value = u32;
/// No task.
pub(crate) const NONE: u32 = u32::MAX;
/// Sums of bytes stay below this, so that `f64` holds them exactly.
const EXACT: f64 = (1u64 << 52) as f64;

/// One input of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub value: Value,
    /// The task's output takes this input's buffer, which is gone afterwards.
    pub overwritten: bool,
}

/// Lists of varying length in one array.
#[derive(Clone, Debug)]
pub(crate) struct Lists<T> {
    first: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy> Lists<T> {
    pub fn new(lists: impl IntoIterator<Item = Vec<T>>) -> Lists<T> {
        let mut out = Lists {
            first: vec![0],
            items: Vec::new(),
        };
        for list in lists {
            out.items.extend(list);
            out.first.push(out.items.len() as u32);
        }
        out
    }

    #[inline]
    pub fn of(&self, i: u32) -> &[T] {
        &self.items[self.first[i as usize] as usize..self.first[i as usize + 1] as usize]
    }
}

/// The problem on its one computing device.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// Number of the problem's tasks; `start` and `end` come after them.
    pub tasks: u32,
    /// Seconds of one run.
    pub cost: Vec<f64>,
    /// Scratch bytes of one run.
    pub workspace: Vec<f64>,
    pub inputs: Lists<Input>,
    pub outputs: Lists<Value>,
    /// Bytes allocated by one run: its outputs less the overwritten inputs, and its workspace.
    pub grows: Vec<f64>,
    pub rerunnable: Vec<bool>,
    /// Per value.
    pub bytes: Vec<f64>,
    pub producer: Vec<Task>,
    pub overwriter: Vec<Task>,
    /// Tasks that read a value, `end` included.
    pub consumers: Lists<Task>,
    /// Bytes that are always in use beside the values.
    pub resident: f64,
    /// Values whose buffer is in use throughout: given, and kept or overwritten in a chain that ends
    /// in a kept value.
    pub pinned: Vec<bool>,
    /// Bytes of those buffers.
    pub pinned_bytes: f64,
}

impl Model {
    /// The problem as seen by its only computing device, or by the first that can run every task.
    pub fn new(problem: &Problem) -> Result<(Model, DeviceId), SolveError> {
        let device = device_for_all(problem)?;
        let n = problem.tasks().len() as u32;
        let values = problem.values();
        let mut given = Vec::new();
        let mut kept = Vec::new();
        for (v, value) in values.iter() {
            match value.origin {
                Origin::Given(on) if on == device => given.push(v.as_u32()),
                Origin::Given(_) => {
                    return Err(SolveError::Unsupported(format!(
                        "value {} is given on another device; this version plans one device: give it on {}",
                        value.name,
                        problem.devices()[device].name
                    )));
                }
                Origin::Task(_) => {}
            }
            match value.keep {
                Keep::No => {}
                Keep::On(on) if on != device => {
                    return Err(SolveError::Unsupported(format!(
                        "value {} must end on another device; this version plans one device: keep it on {}",
                        value.name,
                        problem.devices()[device].name
                    )));
                }
                _ => kept.push(Input {
                    value: v.as_u32(),
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
                        value: v.as_u32(),
                        overwritten: overwritten(v),
                    })
                    .collect::<Vec<_>>(),
            );
            outputs.push(task.outputs.iter().map(|v| v.as_u32()).collect::<Vec<_>>());
        }
        let mut model = Model::from_lists(Parts {
            cost,
            workspace,
            rerunnable,
            inputs,
            outputs,
            bytes: values.values().map(|v| v.bytes as f64).collect(),
            given,
            kept,
            resident: problem.devices()[device].resident as f64,
        });
        model.pin(problem);
        let total: f64 =
            model.resident + model.bytes.iter().sum::<f64>() + model.workspace.iter().sum::<f64>();
        if total >= EXACT {
            return Err(SolveError::Unsupported(
                "the problem's sizes sum to 2^52 or more: divide them by a common unit".into(),
            ));
        }
        debug_assert_eq!(model.tasks, n);
        Ok((model, device))
    }

    /// Finds the pinned buffers.
    fn pin(&mut self, problem: &Problem) {
        let heads = self.outputs.of(self.start()).to_vec();
        for head in heads {
            let mut chain = vec![head];
            let mut last = ValueId::from_u32(head);
            while let Some(by) = problem.overwriter(last)
                && let Some(output) = problem.task(by).overwritten_by(last)
            {
                chain.push(output.as_u32());
                last = output;
            }
            if problem.value(last).keep != Keep::No {
                self.pinned_bytes += self.bytes[head as usize];
                chain.iter().for_each(|&v| self.pinned[v as usize] = true);
            }
        }
    }

    fn from_lists(mut p: Parts) -> Model {
        let n = p.cost.len() as u32;
        let values = p.bytes.len();
        for list in [&mut p.cost, &mut p.workspace] {
            list.extend([0.0, 0.0]);
        }
        p.rerunnable.extend([false, false]);
        p.inputs.extend([Vec::new(), p.kept]);
        p.outputs.extend([p.given, Vec::new()]);
        let mut producer = vec![NONE; values];
        for (t, outs) in p.outputs.iter().enumerate() {
            for &v in outs {
                producer[v as usize] = t as u32;
            }
        }
        let mut overwriter = vec![NONE; values];
        let mut consumers = vec![Vec::new(); values];
        let mut grows = p.workspace.clone();
        for (t, grows) in grows.iter_mut().enumerate() {
            for &i in &p.inputs[t] {
                consumers[i.value as usize].push(t as u32);
                if i.overwritten {
                    overwriter[i.value as usize] = t as u32;
                    *grows -= p.bytes[i.value as usize];
                }
            }
            *grows += p.outputs[t]
                .iter()
                .map(|&v| p.bytes[v as usize])
                .sum::<f64>();
        }
        Model {
            tasks: n,
            cost: p.cost,
            workspace: p.workspace,
            inputs: Lists::new(p.inputs),
            outputs: Lists::new(p.outputs),
            grows,
            rerunnable: p.rerunnable,
            bytes: p.bytes,
            producer,
            overwriter,
            consumers: Lists::new(consumers),
            resident: p.resident,
            pinned: vec![false; values],
            pinned_bytes: 0.0,
        }
    }

    /// The task that writes the given values.
    pub fn start(&self) -> Task {
        self.tasks
    }

    /// The task that reads the kept values.
    pub fn end(&self) -> Task {
        self.tasks + 1
    }

    /// Seconds of running every task once.
    pub fn base_cost(&self) -> f64 {
        self.cost.iter().sum()
    }

    /// Ids of a sequence of tasks.
    pub fn ids(runs: &[Task]) -> Vec<TaskId> {
        runs.iter().map(|&t| TaskId::from_u32(t)).collect()
    }
}

/// What [`Model::from_lists`] derives the rest from.
pub(crate) struct Parts {
    pub cost: Vec<f64>,
    pub workspace: Vec<f64>,
    pub rerunnable: Vec<bool>,
    pub inputs: Vec<Vec<Input>>,
    pub outputs: Vec<Vec<Value>>,
    pub bytes: Vec<f64>,
    pub given: Vec<Value>,
    pub kept: Vec<Input>,
    pub resident: f64,
}

/// The first computing device that can run every task.
fn device_for_all(problem: &Problem) -> Result<DeviceId, SolveError> {
    let computing: Vec<DeviceId> = problem
        .devices()
        .iter()
        .filter(|(_, d)| d.computes)
        .map(|(id, _)| id)
        .collect();
    computing
        .into_iter()
        .find(|&d| problem.tasks().values().all(|t| t.modes.iter().any(|m| m.device == d)))
        .ok_or_else(|| {
            SolveError::Unsupported(
                "no single device can run every task, and this version plans one device: give every task a mode on it"
                    .into(),
            )
        })
}

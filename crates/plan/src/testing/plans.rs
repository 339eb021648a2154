//! Random valid plans made only of legal steps, and changes that may damage them.

use arbitrary::{Result, Unstructured};
use cranelift_entity::EntityRef;
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{DeviceId, TaskId, ValueId};
use crate::plan::{Plan, Step};
use crate::problem::{Keep, Origin, Problem};

/// Draws a valid plan for a problem whose devices are all linked. The plan reruns, copies and frees at
/// random, but never frees what is still needed.
///
/// # Errors
/// Never, because an exhausted source gives zeros.
pub fn plan(u: &mut Unstructured<'_>, problem: &Problem) -> Result<Plan> {
    let mut present = vec![BTreeSet::new(); problem.devices().len()];
    for (value, what) in problem.values().iter() {
        if let Origin::Given(device) = what.origin {
            present[device.index()].insert(value);
        }
    }
    let mut plan = RandomPlan {
        problem,
        present,
        next: TaskId::new(0),
        first: BTreeMap::new(),
        steps: Vec::new(),
    };
    for task in problem.tasks().keys() {
        plan.next = task;
        for _ in 0..u.int_in_range(0..=3)? {
            match u.int_in_range(0..=2u8)? {
                0 => plan.free_something(u)?,
                1 => plan.copy_something(u)?,
                _ => plan.run_again(u)?,
            }
        }
        let modes = &problem.task(task).modes;
        let device = modes[u.choose_index(modes.len())?].device;
        for &input in &problem.task(task).inputs {
            plan.bring(input, device);
        }
        plan.run(task, device);
    }
    for (value, what) in problem.values().iter() {
        if let Keep::On(device) = what.keep {
            plan.bring(value, device);
        }
    }
    Ok(Plan { steps: plan.steps })
}

struct RandomPlan<'a> {
    problem: &'a Problem,
    present: Vec<BTreeSet<ValueId>>,
    /// The first task that hasn't run yet.
    next: TaskId,
    /// The device on which each task first ran.
    first: BTreeMap<TaskId, DeviceId>,
    steps: Vec<Step>,
}

impl RandomPlan<'_> {
    fn holds(&self, device: DeviceId, value: ValueId) -> bool {
        self.present[device.index()].contains(&value)
    }

    fn run(&mut self, task: TaskId, device: DeviceId) {
        let what = self.problem.task(task);
        for &output in &what.outputs {
            if self.holds(device, output) {
                self.free(output, device);
            }
        }
        self.steps.push(Step::Run { task, device });
        self.first.entry(task).or_insert(device);
        let present = &mut self.present[device.index()];
        for pair in &what.overwrites {
            present.remove(&pair.input);
        }
        present.extend(&what.outputs);
    }

    fn free(&mut self, value: ValueId, device: DeviceId) {
        self.present[device.index()].remove(&value);
        self.steps.push(Step::Free { value, device });
    }

    fn bring(&mut self, value: ValueId, to: DeviceId) {
        if self.holds(to, value) {
            return;
        }
        let from = self
            .problem
            .devices()
            .keys()
            .find(|&device| self.holds(device, value));
        let from = from.expect("a value that is still needed is on some device");
        self.steps.push(Step::Copy { value, from, to });
        self.present[to.index()].insert(value);
    }

    fn something(&self, u: &mut Unstructured<'_>) -> Result<Option<(ValueId, DeviceId)>> {
        let device = DeviceId::new(u.choose_index(self.present.len())?);
        let here = &self.present[device.index()];
        if here.is_empty() {
            return Ok(None);
        }
        let nth = u.choose_index(here.len())?;
        Ok(here.iter().nth(nth).map(|&value| (value, device)))
    }

    fn free_something(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if let Some((value, device)) = self.something(u)? {
            let copies = self
                .present
                .iter()
                .filter(|here| here.contains(&value))
                .count();
            let needed = self
                .problem
                .consumers(value)
                .last()
                .is_some_and(|&last| last >= self.next);
            if copies > 1 || !(needed || self.problem.value(value).keep != Keep::No) {
                self.free(value, device);
            }
        }
        Ok(())
    }

    fn copy_something(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if let Some((value, _)) = self.something(u)? {
            self.bring(value, DeviceId::new(u.choose_index(self.present.len())?));
        }
        Ok(())
    }

    fn run_again(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.next.index() == 0 {
            return Ok(());
        }
        let task = TaskId::new(u.choose_index(self.next.index())?);
        let what = self.problem.task(task);
        let device = what.modes[u.choose_index(what.modes.len())?].device;
        let devices = self.problem.devices();
        let alike = self
            .first
            .get(&task)
            .is_some_and(|&first| devices[first].arithmetic == devices[device].arithmetic);
        if alike && what.rerunnable && what.inputs.iter().all(|&input| self.holds(device, input)) {
            self.run(task, device);
        }
        Ok(())
    }
}

/// Changes a plan in one place: drops, doubles, moves, replaces or inserts a step. The result may be valid or
/// not, and may name ids that don't exist.
///
/// # Errors
/// Never, because an exhausted source gives zeros.
pub fn mutate(u: &mut Unstructured<'_>, problem: &Problem, plan: &Plan) -> Result<Plan> {
    let mut steps = plan.steps.clone();
    if steps.is_empty() {
        steps.push(any_step(u, problem)?);
        return Ok(Plan { steps });
    }
    let at = u.choose_index(steps.len())?;
    match u.int_in_range(0..=4u8)? {
        0 => drop(steps.remove(at)),
        1 => steps.insert(at, steps[at]),
        2 => {
            let other = u.choose_index(steps.len())?;
            steps.swap(at, other);
        }
        3 => steps[at] = any_step(u, problem)?,
        _ => steps.insert(at, any_step(u, problem)?),
    }
    Ok(Plan { steps })
}

fn any_step(u: &mut Unstructured<'_>, problem: &Problem) -> Result<Step> {
    // The id one beyond the last is drawn too.
    let device =
        |u: &mut Unstructured<'_>| Ok(DeviceId::new(u.int_in_range(0..=problem.devices().len())?));
    let value =
        |u: &mut Unstructured<'_>| Ok(ValueId::new(u.int_in_range(0..=problem.values().len())?));
    let task =
        |u: &mut Unstructured<'_>| Ok(TaskId::new(u.int_in_range(0..=problem.tasks().len())?));
    Ok(match u.int_in_range(0..=2u8)? {
        0 => Step::Run {
            task: task(u)?,
            device: device(u)?,
        },
        1 => Step::Free {
            value: value(u)?,
            device: device(u)?,
        },
        _ => Step::Copy {
            value: value(u)?,
            from: device(u)?,
            to: device(u)?,
        },
    })
}

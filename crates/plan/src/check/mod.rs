//! The checker: decides whether a plan is right for a problem. It trusts nothing that a planner says and
//! shares no code with anything that makes plans.
//!
//! # Semantics
//!
//! A state maps each pair (device, value) to the buffer that holds the value there, or to none. At the start,
//! a value given on `d` has a buffer on `d`, and nothing else has one. Steps are taken in list order. Below,
//! a step is legal under the condition to the left of the arrow and changes the state as described to its
//! right:
//!
//! * `Run(t, d)`: `t` has a mode on `d`; each input has a buffer on `d`; no output has one; `t` has not run
//!   before, or it is rerunnable and first ran on a device with the same arithmetic as `d` ⟶ each overwritten
//!   input loses its buffer on `d` to the output that overwrites it; every other output gets a new buffer.
//!   The workspace, if it isn't empty, is a buffer of this one step.
//! * `Free(v, d)`: `v` has a buffer on `d` ⟶ `v` has none there.
//! * `Copy(v, d, e)`: a link leads from `d` to `e`; `v` has a buffer on `d` and none on `e` ⟶ `v` has a new
//!   buffer on `e`.
//!
//! Let step `i` make a buffer and step `j` free it. The buffer holds its bytes during the steps `[i, j + 1)`:
//! it is still held while it is being freed. A buffer of a given value begins at step 0; a buffer that is
//! never freed ends with the plan. *Bytes in use* on `d` during step `k` are the resident bytes of `d` and
//! the bytes of all its buffers that are held during `k`. The proof holds for any capacity;
//! [`CheckedPlan::within`] compares the bytes in use with given capacities.
//!
//! At the end, every task has run, every value kept on `d` has a buffer there, and every value kept
//! anywhere has a buffer on some device.
//!
//! A run on `d` also requires that no task of `t`'s group has run on another device. If `t` ever runs on `d`,
//! the resident bytes of its mode there count among those of `d` during every step. On a concurrent device,
//! runs overlap in ways that list order doesn't show: each buffer there, workspaces included, holds its bytes
//! until the plan ends.
//!
//! The *joules* of a device are those of its runs; the joules of a link are those of its copies.
//!
//! List order is enough for every timing. A device that computes takes and gives back bytes in list order, so
//! it passes through the states above whatever the links do. A memory that doesn't compute may give bytes
//! back late, but takes none before they fit under the peak of the list order. [`crate::plan`] proves both
//! claims.
//!
//! After a violation the replay goes on as if the step had been made legal: a missing buffer appears, and a
//! buffer in the way is freed. So one pass reports every step that is wrong by itself.

mod checked;
mod excess;
mod violation;

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::ids::{BufferId, DeviceId, LinkId, TaskId, ValueId};
use crate::plan::{Plan, Step};
use crate::problem::{Keep, Origin, Problem};

pub use checked::{Binding, Buffer, BufferKind, CheckedPlan, Copied};
pub use excess::Excess;
pub use violation::Violation;

/// Checks a plan in time linear in steps times devices, the operands of all steps and the values of the
/// problem. This is the only constructor of [`CheckedPlan`].
///
/// # Errors
/// Every violation of the semantics above, in order of steps.
pub fn check(problem: &Problem, plan: Plan) -> Result<CheckedPlan, Vec<Violation>> {
    let mut replay = Replay::new(problem, plan.steps.len());
    for &step in &plan.steps {
        replay.step(step);
    }
    replay.end();
    if replay.violations.is_empty() {
        Ok(replay.checked(plan))
    } else {
        Err(replay.violations)
    }
}

/// One device's part of the state.
struct OnDevice {
    /// Which buffer holds a value here.
    holds: SecondaryMap<ValueId, PackedOption<BufferId>>,
    /// Bytes in use after the steps so far.
    in_use: u64,
    /// Bytes held during the current step and given back with it.
    passing: u64,
    /// Bytes in use during each step so far, without those of `ran`.
    profile: Vec<u64>,
    /// The tasks with resident bytes that have run here, and the sum of these bytes.
    ran: SecondaryMap<TaskId, bool>,
    resident: u64,
    /// Whether runs overlap, so that nothing is given back before the end.
    concurrent: bool,
}

/// The state after the first `k` steps, and what the replay has gathered so far.
struct Replay<'a> {
    problem: &'a Problem,
    k: usize,
    length: usize,
    devices: PrimaryMap<DeviceId, OnDevice>,
    first_run: SecondaryMap<TaskId, Option<(usize, DeviceId)>>,
    /// By group, the first run of one of its tasks.
    groups: Vec<Option<(usize, DeviceId)>>,
    last_first_run: Option<TaskId>,
    keeps_order: bool,
    runs: usize,
    cost: f64,
    joules: PrimaryMap<DeviceId, f64>,
    copied: PrimaryMap<LinkId, Copied>,
    buffers: PrimaryMap<BufferId, Buffer>,
    bindings: Vec<Binding>,
    given: SecondaryMap<ValueId, PackedOption<BufferId>>,
    violations: Vec<Violation>,
}

impl<'a> Replay<'a> {
    fn new(problem: &'a Problem, length: usize) -> Self {
        let mut devices = PrimaryMap::new();
        for device in problem.devices().values() {
            devices.push(OnDevice {
                holds: SecondaryMap::with_capacity(problem.values().len()),
                in_use: device.resident,
                passing: 0,
                profile: Vec::with_capacity(length),
                ran: SecondaryMap::new(),
                resident: 0,
                concurrent: device.concurrent,
            });
        }
        let mut replay = Replay {
            problem,
            k: 0,
            length,
            devices,
            first_run: SecondaryMap::with_capacity(problem.tasks().len()),
            groups: vec![None; problem.together().len()],
            last_first_run: None,
            keeps_order: true,
            runs: 0,
            cost: 0.0,
            joules: problem.devices().keys().map(|_| 0.0).collect(),
            copied: problem.links().keys().map(|_| Copied::default()).collect(),
            buffers: PrimaryMap::new(),
            bindings: Vec::with_capacity(length),
            given: SecondaryMap::new(),
            violations: Vec::new(),
        };
        for (value, what) in problem.values().iter() {
            if let Origin::Given(device) = what.origin {
                replay.given[value] = replay.allocate(device, value).into();
            }
        }
        replay
    }

    fn step(&mut self, step: Step) {
        let mut binding = Binding::default();
        if self.knows_the_names_in(step) {
            match step {
                Step::Run { task, device } => self.run(task, device, &mut binding),
                Step::Free { value, device } => self.free(value, device, &mut binding),
                Step::Copy { value, from, to } => self.copy(value, from, to, &mut binding),
            }
        }
        self.bindings.push(binding);
        for device in self.devices.values_mut() {
            device.profile.push(device.in_use + device.passing);
            device.passing = 0;
        }
        self.k += 1;
    }

    fn knows_the_names_in(&mut self, step: Step) -> bool {
        let (task, value, devices) = match step {
            Step::Run { task, device } => (Some(task), None, [device, device]),
            Step::Free { value, device } => (None, Some(value), [device, device]),
            Step::Copy { value, from, to } => (None, Some(value), [from, to]),
        };
        let before = self.violations.len();
        let step = self.k;
        if let Some(task) = task.filter(|&task| !self.problem.tasks().is_valid(task)) {
            self.violations.push(Violation::UnknownTask { step, task });
        }
        if let Some(value) = value.filter(|&value| !self.problem.values().is_valid(value)) {
            self.violations
                .push(Violation::UnknownValue { step, value });
        }
        if let Some(&device) = devices
            .iter()
            .find(|&&d| !self.problem.devices().is_valid(d))
        {
            self.violations
                .push(Violation::UnknownDevice { step, device });
        }
        self.violations.len() == before
    }

    fn run(&mut self, task: TaskId, device: DeviceId, binding: &mut Binding) {
        let (step, problem) = (self.k, self.problem);
        let what = problem.task(task);
        self.count(task, device);
        match what.modes.iter().find(|mode| mode.device == device) {
            None => self
                .violations
                .push(Violation::NoMode { step, task, device }),
            Some(mode) => {
                self.cost += mode.seconds;
                self.joules[device] += mode.joules;
                let here = &mut self.devices[device];
                if mode.resident > 0 && !std::mem::replace(&mut here.ran[task], true) {
                    here.resident += mode.resident;
                }
                if mode.workspace > 0 {
                    let end = match here.concurrent {
                        true => {
                            here.in_use += mode.workspace;
                            self.length
                        }
                        false => {
                            here.passing += mode.workspace;
                            step + 1
                        }
                    };
                    binding.workspace = Some(self.buffers.push(Buffer {
                        device,
                        bytes: mode.workspace,
                        start: step,
                        end,
                        kind: BufferKind::Workspace(task),
                    }));
                }
            }
        }
        for &value in &what.inputs {
            let buffer = self.devices[device].holds[value]
                .expand()
                .unwrap_or_else(|| {
                    self.violations.push(Violation::InputAbsent {
                        step,
                        task,
                        device,
                        value,
                    });
                    self.allocate(device, value)
                });
            binding.inputs.push(buffer);
        }
        for &value in &what.outputs {
            if self.devices[device].holds[value].is_some() {
                self.violations.push(Violation::OutputPresent {
                    step,
                    task,
                    device,
                    value,
                });
                self.release(device, value);
            }
            let overwritten = what.overwrites.iter().find(|pair| pair.output == value);
            binding.outputs.push(match overwritten {
                Some(pair) => self.hand_over(device, pair.input, value),
                None => self.allocate(device, value),
            });
        }
    }

    /// Counts a run of a task, and reports a rerun that isn't allowed.
    fn count(&mut self, task: TaskId, device: DeviceId) {
        self.runs += 1;
        if let Some(group) = self.problem.group(task) {
            let (first, on) = *self.groups[group].get_or_insert((self.k, device));
            if on != device {
                self.violations.push(Violation::Apart {
                    step: self.k,
                    task,
                    device,
                    first,
                });
            }
        }
        match self.first_run[task] {
            None => {
                self.first_run[task] = Some((self.k, device));
                self.keeps_order &= self.last_first_run.is_none_or(|last| last < task);
                self.last_first_run = Some(task);
            }
            Some((first, _)) if !self.problem.task(task).rerunnable => {
                self.violations.push(Violation::NotRerunnable {
                    step: self.k,
                    task,
                    first,
                });
            }
            Some((first, before)) => {
                let devices = self.problem.devices();
                let same = devices[before].arithmetic == devices[device].arithmetic;
                // A task without a mode here is reported as [`Violation::NoMode`] only.
                if !same && self.problem.task(task).mode(device).is_some() {
                    self.violations.push(Violation::OtherArithmetic {
                        step: self.k,
                        task,
                        device,
                        first,
                    });
                }
            }
        }
    }

    fn free(&mut self, value: ValueId, device: DeviceId, binding: &mut Binding) {
        match self.release(device, value) {
            Some(buffer) => {
                binding.inputs.push(buffer);
                if !self.devices[device].concurrent {
                    self.devices[device].passing += self.buffers[buffer].bytes;
                }
            }
            None => self.violations.push(Violation::FreeAbsent {
                step: self.k,
                value,
                device,
            }),
        }
    }

    fn copy(&mut self, value: ValueId, from: DeviceId, to: DeviceId, binding: &mut Binding) {
        let step = self.k;
        let mut links = self.problem.links().iter();
        match links.find(|(_, link)| link.from == from && link.to == to) {
            None => self.violations.push(Violation::NoLink { step, from, to }),
            Some((id, link)) => {
                let bytes = self.problem.value(value).bytes;
                let copied = &mut self.copied[id];
                copied.bytes = copied.bytes.saturating_add(bytes);
                copied.seconds += self.problem.copy_seconds(id, value);
                copied.joules += link.joules + bytes as f64 * link.joules_per_byte;
            }
        }
        let source = self.devices[from].holds[value].expand().unwrap_or_else(|| {
            self.violations
                .push(Violation::SourceAbsent { step, value, from });
            self.allocate(from, value)
        });
        if self.devices[to].holds[value].is_some() {
            self.violations
                .push(Violation::DestinationPresent { step, value, to });
            self.release(to, value);
        }
        binding.inputs.push(source);
        binding.outputs.push(self.allocate(to, value));
    }

    fn allocate(&mut self, device: DeviceId, value: ValueId) -> BufferId {
        let bytes = self.problem.value(value).bytes;
        let kind = BufferKind::Value(value);
        let buffer = self.buffers.push(Buffer {
            device,
            bytes,
            start: self.k,
            end: self.length,
            kind,
        });
        self.devices[device].in_use += bytes;
        self.devices[device].holds[value] = buffer.into();
        buffer
    }

    /// Ends a value's buffer on a device with the current step, or with the plan if the device is concurrent.
    fn release(&mut self, device: DeviceId, value: ValueId) -> Option<BufferId> {
        let on = &mut self.devices[device];
        let buffer = on.holds[value].take()?;
        if !on.concurrent {
            self.buffers[buffer].end = self.k + 1;
            on.in_use -= self.buffers[buffer].bytes;
        }
        Some(buffer)
    }

    /// Hands the buffer of an overwritten input to the output.
    fn hand_over(&mut self, device: DeviceId, input: ValueId, output: ValueId) -> BufferId {
        let holds = &mut self.devices[device].holds;
        match holds[input].take() {
            Some(buffer) => {
                holds[output] = buffer.into();
                buffer
            }
            None => self.allocate(device, output),
        }
    }

    fn end(&mut self) {
        for task in self.problem.tasks().keys() {
            if self.first_run[task].is_none() {
                self.violations.push(Violation::NeverRun { task });
            }
        }
        for (value, what) in self.problem.values().iter() {
            let device = match what.keep {
                Keep::No => continue,
                Keep::Anywhere => None,
                Keep::On(device) => Some(device),
            };
            let there = |on: &OnDevice| on.holds[value].is_some();
            let kept = match device {
                Some(device) => there(&self.devices[device]),
                None => self.devices.values().any(there),
            };
            if !kept {
                self.violations.push(Violation::NotKept { value, device });
            }
        }
    }

    fn checked(self, plan: Plan) -> CheckedPlan {
        let mut profiles = PrimaryMap::with_capacity(self.devices.len());
        let mut held_at_end = PrimaryMap::with_capacity(self.devices.len());
        let mut resident = PrimaryMap::with_capacity(self.devices.len());
        for (id, mut device) in self.devices {
            resident.push(self.problem.devices()[id].resident + device.resident);
            let bytes = device.profile.iter_mut();
            bytes.for_each(|bytes| *bytes += device.resident);
            profiles.push(device.profile);
            held_at_end.push(device.holds);
        }
        CheckedPlan {
            problem: self.problem.clone(),
            plan,
            resident,
            profiles,
            held_at_end,
            cost: self.cost,
            joules: self.joules,
            copied: self.copied,
            keeps_order: self.keeps_order,
            recomputed: self.runs - self.problem.tasks().len(),
            buffers: self.buffers,
            bindings: self.bindings,
            given: self.given,
        }
    }
}

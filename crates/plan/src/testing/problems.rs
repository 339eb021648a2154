//! Random valid problems.

use arbitrary::{Result, Unstructured};
use cranelift_entity::EntityRef;

use crate::ids::{DeviceId, LinkId, TaskId, ValueId};
use crate::problem::{
    Device, Keep, Link, Mode, Origin, Overwrite, Phase, Problem, ProblemParts, Task, Value,
};

/// What random problems may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The most tasks; there is at least one.
    pub max_tasks: usize,
    /// Up to two devices that compute and two memories, all linked, where some links share a queue; otherwise
    /// one device.
    pub several_devices: bool,
    /// Tasks that overwrite inputs.
    pub overwriting: bool,
    /// Tasks that may run only once.
    pub once_only: bool,
    /// Tasks with any number of outputs, and with workspace.
    pub outputs_and_workspace: bool,
}

impl Shape {
    /// Everything that a problem can have.
    #[must_use]
    pub fn everything(max_tasks: usize) -> Shape {
        Shape {
            max_tasks,
            several_devices: true,
            overwriting: true,
            once_only: true,
            outputs_and_workspace: true,
        }
    }

    /// Everything on one device.
    #[must_use]
    pub fn one_device(max_tasks: usize) -> Shape {
        Shape {
            several_devices: false,
            ..Shape::everything(max_tasks)
        }
    }

    /// One device, one output per task, everything rerunnable: like published instances.
    #[must_use]
    pub fn plain(max_tasks: usize) -> Shape {
        Shape {
            max_tasks,
            several_devices: false,
            overwriting: false,
            once_only: false,
            outputs_and_workspace: false,
        }
    }
}

/// Draws a problem. On one device, `Plan::keep_all` has a plan for it.
///
/// # Errors
/// Never, because an exhausted source gives zeros.
///
/// # Panics
/// If the drawn problem isn't valid, which would be a mistake in this module.
pub fn problem(u: &mut Unstructured<'_>, shape: &Shape) -> Result<Problem> {
    let mut draw = Draw {
        shape,
        parts: ProblemParts {
            name: "random".into(),
            ..ProblemParts::default()
        },
        open: Vec::new(),
    };
    draw.devices(u)?;
    for i in 0..u.int_in_range(0..=3)? {
        let device = DeviceId::new(u.choose_index(draw.parts.devices.len())?);
        let value = draw.value(u, format!("given{i}"), Origin::Given(device))?;
        draw.open.push(value);
    }
    for i in 0..u.int_in_range(1..=shape.max_tasks.max(1))? {
        draw.task(u, i)?;
    }
    // Values that no task overwrites may be kept; values that nothing reads usually are.
    for value in std::mem::take(&mut draw.open) {
        let read = draw
            .parts
            .tasks
            .values()
            .any(|task| task.inputs.contains(&value));
        if u.ratio(if read { 1 } else { 6 }, 8)? {
            let device = DeviceId::new(u.choose_index(draw.parts.devices.len())?);
            draw.parts.values[value].keep = if u.ratio(1, 3)? {
                Keep::On(device)
            } else {
                Keep::Anywhere
            };
        }
    }
    Ok(Problem::new(draw.parts).expect("the generator keeps the invariants"))
}

fn resident(u: &mut Unstructured<'_>) -> Result<u64> {
    if u.ratio(1, 2)? {
        Ok(0)
    } else {
        u.int_in_range(0..=40)
    }
}

struct Draw<'a> {
    shape: &'a Shape,
    parts: ProblemParts,
    /// Values that a later task may read.
    open: Vec<ValueId>,
}

impl Draw<'_> {
    fn devices(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if !self.shape.several_devices {
            let resident = resident(u)?;
            self.parts.devices.push(Device {
                resident,
                ..Device::computing("d0")
            });
            return Ok(());
        }
        let count = u.int_in_range(1..=4)?;
        for (i, computes) in [true, true, false, false]
            .into_iter()
            .enumerate()
            .take(count)
        {
            let name = format!("d{i}");
            let alike = i > 0 && u.ratio(1, 2)?;
            let arithmetic = if alike { "d0".into() } else { name.clone() };
            self.parts.devices.push(Device {
                name,
                arithmetic,
                computes,
                concurrent: false,
                resident: resident(u)?,
            });
        }
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            self.link(u, DeviceId::new(from), DeviceId::new(to))?;
        }
        Ok(())
    }

    /// Adds a link, which sometimes shares the queue of an earlier one.
    fn link(&mut self, u: &mut Unstructured<'_>, from: DeviceId, to: DeviceId) -> Result<()> {
        let bandwidth = f64::from(u.int_in_range(1..=20u8)?);
        let latency = f64::from(u.int_in_range(0..=2u8)?);
        let links = &self.parts.links;
        let with_queues = links.iter().filter(|(_, link)| link.queue.is_none());
        let queues: Vec<LinkId> = with_queues.map(|(id, _)| id).collect();
        let queue = if !queues.is_empty() && u.ratio(1, 3)? {
            Some(queues[u.choose_index(queues.len())?])
        } else {
            None
        };
        self.parts.links.push(Link {
            joules: f64::from(u.int_in_range(0..=2u8)?),
            joules_per_byte: f64::from(u.int_in_range(0..=2u8)?),
            queue,
            ..Link::new(from, to, bandwidth, latency)
        });
        Ok(())
    }

    fn value(&mut self, u: &mut Unstructured<'_>, name: String, origin: Origin) -> Result<ValueId> {
        let bytes = u.int_in_range(0..=64)?;
        Ok(self.parts.values.push(Value {
            name,
            bytes,
            origin,
            keep: Keep::No,
        }))
    }

    fn task(&mut self, u: &mut Unstructured<'_>, index: usize) -> Result<()> {
        let id = TaskId::new(index);
        let mut inputs = Vec::new();
        if !self.open.is_empty() {
            for _ in 0..u.int_in_range(0..=3)? {
                // Mostly recent values are read: this gives long chains with some skips, as in networks.
                let back = if u.ratio(2, 3)? {
                    u.int_in_range(1..=4usize)?
                } else {
                    u.int_in_range(1..=64)?
                };
                let value = self.open[self.open.len() - back.min(self.open.len())];
                if !inputs.contains(&value) {
                    inputs.push(value);
                }
            }
        }
        let few = if self.shape.outputs_and_workspace {
            [1, 1, 1, 2, 3, 0]
        } else {
            [1; 6]
        };
        let mut outputs = Vec::new();
        for i in 0..*u.choose(&few)? {
            outputs.push(self.value(u, format!("v{index}.{i}"), Origin::Task(id))?);
        }
        let overwrites = self.overwrites(u, &inputs, &outputs)?;
        self.open.extend(&outputs);
        let task = Task {
            name: format!("t{index}"),
            phase: *u.choose(&[Phase::Forward, Phase::Backward, Phase::Update])?,
            modes: self.modes(u)?,
            rerunnable: !(self.shape.once_only && u.ratio(1, 8)?),
            inputs,
            outputs,
            overwrites,
        };
        self.parts.tasks.push(task);
        Ok(())
    }

    fn overwrites(
        &mut self,
        u: &mut Unstructured<'_>,
        inputs: &[ValueId],
        outputs: &[ValueId],
    ) -> Result<Vec<Overwrite>> {
        let mut pairs = Vec::new();
        for (&input, &output) in inputs.iter().zip(outputs) {
            if self.shape.overwriting && u.ratio(1, 4)? {
                self.parts.values[output].bytes = self.parts.values[input].bytes;
                self.open.retain(|&value| value != input);
                pairs.push(Overwrite { input, output });
            }
        }
        Ok(pairs)
    }

    fn modes(&self, u: &mut Unstructured<'_>) -> Result<Vec<Mode>> {
        let computing = self
            .parts
            .devices
            .iter()
            .filter(|(_, device)| device.computes);
        let mut modes = Vec::new();
        for (device, _) in computing {
            let workspace = if self.shape.outputs_and_workspace && u.ratio(1, 4)? {
                u.int_in_range(0..=64)?
            } else {
                0
            };
            let seconds = f64::from(u.int_in_range(0..=16u8)?);
            modes.push(Mode {
                device,
                seconds,
                joules: f64::from(u.int_in_range(0..=4u8)?),
                workspace,
                resident: if self.shape.outputs_and_workspace && u.ratio(1, 8)? {
                    u.int_in_range(1..=64)?
                } else {
                    0
                },
            });
        }
        if modes.len() > 1 && u.ratio(1, 4)? {
            modes.remove(u.choose_index(modes.len())?);
        }
        Ok(modes)
    }
}

//! Devices that slow each other down: what tasks cost while all of them compute.

use std::sync::Arc;

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_graph::Lowered;
use scrimp_plan::{DeviceId, Problem, TaskId};
use scrimp_run::Profile;

use super::devices;
use crate::error::Result;
use crate::pipeline::Budgeted;

/// How many times as long each task takes on each device while all other devices compute, too. A problem's own seconds
/// are those of a device that computes while the others do nothing.
#[derive(Clone, Debug, Default)]
pub struct Slowed(Option<Arc<PrimaryMap<TaskId, Vec<f64>>>>);

impl Slowed {
    /// What was measured of the nodes on each device that computes; nothing unless all of it was.
    pub fn new(lowered: &Lowered, profiles: &[Profile]) -> Slowed {
        Slowed::from_factors(lowered, |task, number| {
            profiles.get(number)?.slowed(lowered.nodes[task])
        })
    }

    /// A factor for each task on each device that computes, by the device's number among these; nothing unless there are
    /// several devices and all factors.
    pub fn from_factors(
        lowered: &Lowered,
        factor: impl Fn(TaskId, usize) -> Option<f64>,
    ) -> Slowed {
        let problem = &lowered.problem;
        let devices = devices::computing(problem).len();
        let of = |task| (0..devices).map(|number| factor(task, number)).collect();
        let all = problem.tasks().keys().map(of);
        let all = (devices > 1).then(|| all.collect::<Option<PrimaryMap<TaskId, Vec<f64>>>>());
        Slowed(all.flatten().map(Arc::new))
    }

    /// How many times as long a device takes for all tasks that it can run while all other devices compute; `None` if
    /// that isn't known.
    pub fn of(&self, problem: &Problem, device: DeviceId) -> Option<f64> {
        let factors = self.0.as_ref()?;
        let mut sums = (0.0, 0.0);
        for (task, what) in problem.tasks().iter() {
            if let Some(mode) = what.mode(device) {
                sums.0 += mode.seconds;
                sums.1 += mode.seconds * factors[task].get(device.index())?;
            }
        }
        (sums.0 > 0.0).then(|| sums.1 / sums.0)
    }

    /// The problem with what tasks cost while all devices compute.
    fn on(&self, problem: &Problem) -> Result<Problem> {
        let Some(factors) = &self.0 else {
            return Ok(problem.clone());
        };
        let mut parts = problem.parts();
        for (task, what) in parts.tasks.iter_mut() {
            for mode in &mut what.modes {
                mode.seconds *= factors[task]
                    .get(mode.device.index())
                    .copied()
                    .unwrap_or(1.0);
            }
        }
        Ok(Problem::new(parts).map_err(scrimp_plan::SwapError::from)?)
    }
}

impl Budgeted {
    /// The same with what tasks cost while all devices that compute do so. Call this once: the problem's seconds must be
    /// those of devices that compute while the others do nothing.
    pub(super) fn together(&self) -> Result<Budgeted> {
        Ok(Budgeted {
            problem: self.slowed.on(&self.problem)?,
            ..self.clone()
        })
    }

    /// The same for a plan: where it runs tasks on one device only, nothing slows that down.
    pub(super) fn for_plan_on(
        &self,
        mut devices: impl Iterator<Item = DeviceId>,
    ) -> Result<Budgeted> {
        let first = devices.next();
        match devices.all(|device| Some(device) == first) {
            true => Ok(self.clone()),
            false => self.together(),
        }
    }
}

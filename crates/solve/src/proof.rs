//! What is proven about all plans of a problem with other memories.

use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, Problem};

use crate::bound;
use crate::error::SolveError;
use crate::model::Model;
use crate::options::Options;
use crate::search::driver;

/// The share of the time limit that the bound on the makespan may take.
pub(crate) const SHARE: f64 = 0.1;

/// A problem with other memories, and the capacities.
pub(crate) struct Proof {
    model: Model,
    /// Bytes for values on the planned device, and in all other memories.
    budget: f64,
    elsewhere: f64,
}

impl Proof {
    /// `None` if no link leads to another memory.
    ///
    /// # Errors
    /// [`SolveError::Unsupported`] for problems that no single device can run.
    pub fn of(problem: &Problem, capacities: &Capacities) -> Result<Option<Proof>, SolveError> {
        let (model, device) = Model::with_outside(problem)?;
        if model.outside.is_none() {
            return Ok(None);
        }
        let room = |device| {
            let capacity = capacities.bytes(device);
            let resident = problem.resident_bytes(device);
            capacity.map_or(f64::INFINITY, |bytes| bytes as f64 - resident as f64)
        };
        let others = problem.devices().keys().filter(|&other| other != device);
        Ok(Some(Proof {
            budget: room(device),
            elsewhere: others.map(|other| room(other).max(0.0)).sum(),
            model,
        }))
    }

    /// Bytes of the planned device, resident ones included, without which no plan exists.
    pub fn floor(&self) -> u64 {
        bound::floor_with(&self.model, self.elsewhere) as u64
    }

    /// No plan has a smaller makespan. `cost` is the makespan of a known plan; the bound works until it proves
    /// that, or for a share of the time limit.
    pub fn makespan(&self, options: &Options, cost: f64) -> f64 {
        let limit = options
            .time_limit
            .mul_f64(SHARE)
            .max(Duration::from_millis(100));
        let cutoff = options.cutoff(Instant::now(), limit);
        let known = cost - self.model.base_cost();
        let mut ascent = bound::seconds(&self.model, self.budget, options.order, known, cutoff);
        let work = SHARE * driver::work(options);
        ascent.advance(work as u64, known, &|| cutoff.reached());
        ascent.proven()
    }
}

//! Numbers with the units of a problem: bytes and seconds are scaled, an instance's own units are
//! not.

use scrimp::plan::{Problem, format_bytes, format_seconds};

/// What the numbers of a problem mean.
#[derive(Clone, Debug)]
pub struct Units {
    memory: String,
    cost: String,
}

impl Units {
    /// A problem's units.
    pub fn of(problem: &Problem) -> Units {
        let units = problem.units();
        Units {
            memory: units.memory.clone(),
            cost: units.cost.clone(),
        }
    }

    /// An amount of memory.
    pub fn memory(&self, amount: u64) -> String {
        match self.memory.as_str() {
            "B" | "bytes" => format_bytes(amount),
            unit => format!("{amount} {unit}"),
        }
    }

    /// A cost.
    pub fn cost(&self, cost: f64) -> String {
        match self.cost.as_str() {
            "s" | "seconds" => format_seconds(cost),
            unit => format!("{cost} {unit}"),
        }
    }
}

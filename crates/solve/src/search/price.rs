//! Prices: what having values somewhere takes, up to what limit, and the state of an estimate of that.

use scrimp_plan::ValueId;

/// What having a value somewhere takes: seconds, and bytes × positions over the budget.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Price {
    pub seconds: f64,
    pub area: f64,
}

/// An input that isn't there for free: its bytes × positions over the budget if it is kept, and the
/// least that having it takes, as its limit counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub value: ValueId,
    pub keep: f64,
    pub lower: f64,
}

/// The state of one estimate.
#[derive(Debug, Default)]
pub(super) struct Pricing {
    /// How many more values may be looked at as made again.
    pub visits: u32,
    pub stack: Vec<Wanted>,
}

impl Pricing {
    /// One estimate that looks at so many values.
    pub fn of(visits: u32) -> Pricing {
        Pricing {
            visits,
            stack: Vec::new(),
        }
    }
}

/// A price beyond which nobody wants to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub per_second: f64,
    pub per_area: f64,
    pub most: f64,
}

impl Limit {
    pub fn of(self, price: Price) -> f64 {
        self.per_second * price.seconds + self.per_area * price.area
    }
}

//! Prices of having values at some position, limits on them, and the state of an estimate.

use scrimp_plan::ValueId;

/// The price of having a value at some position: seconds, and bytes × positions over the budget.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Price {
    pub seconds: f64,
    pub area: f64,
}

/// An input that isn't free to have: its bytes × positions over the budget if it is kept, and a lower bound
/// on its price in the terms of the limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub value: ValueId,
    pub keep: f64,
    pub lower: f64,
}

/// The state of one estimate.
#[derive(Debug, Default)]
pub(super) struct Pricing {
    /// How many more values may be considered for making again.
    pub visits: u32,
    /// How many inputs were looked at.
    pub looks: u64,
    pub stack: Vec<Wanted>,
}

impl Pricing {
    /// An estimate that considers this many values.
    pub fn of(visits: u32) -> Pricing {
        Pricing {
            visits,
            looks: 0,
            stack: Vec::new(),
        }
    }
}

/// A weighting of prices, and the price from which on an estimate is useless.
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

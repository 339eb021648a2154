//! Lower bounds: bytes without which there is no plan, and seconds that a budget costs at the least.

mod ascent;
mod floor;
mod gaps;
mod order;
mod stays;

pub(crate) use ascent::{Ascent, Worthwhile};
pub(crate) use floor::floor;

use scrimp_plan::TaskId;

use crate::method::Order;
use crate::model::Model;
use order::{Chain, Reach};

/// Begins a bound on the seconds that plans within `budget` bytes take beyond those of running every task
/// once. `known` is by how much a known plan exceeds that.
pub(crate) fn seconds(model: &Model, budget: f64, order: Order, known: f64) -> Ascent<'_> {
    let chain = match order {
        Order::Fixed => Chain::fixed(model),
        Order::Free => Chain::free(model, &Reach::new(model), budget),
    };
    Ascent::new(model, chain, budget, known)
}

/// Steps that make prices to steer by.
const PRICE_STEPS: usize = 300;

/// What a byte is worth while each task of this order runs, in seconds, where each task runs once; zero
/// before the first and after the last. `known` as above.
pub(crate) fn position_prices(
    model: &Model,
    order: &[TaskId],
    budget: f64,
    known: f64,
) -> Vec<f64> {
    let chain = Chain::of(order.to_vec());
    let prices = gaps::prices(model, &chain, budget, known, PRICE_STEPS);
    let inner = prices.of_row.into_iter();
    std::iter::once(0.0).chain(inner).chain([0.0]).collect()
}

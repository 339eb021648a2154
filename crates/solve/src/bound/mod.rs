//! Lower bounds: the bytes without which no plan exists, and the seconds that a budget costs at least.

mod ascent;
mod climb;
pub(crate) mod devices;
mod floor;
mod gaps;
mod gather;
mod integer;
mod lanes;
mod leave;
mod moment;
mod moments;
mod order;
mod paths;
mod precedence;
mod stays;
mod step;
#[cfg(test)]
mod tests;
mod tied;

pub(crate) use ascent::{Ascent, Growth, Worthwhile};
pub(crate) use floor::{floor, floor_with, lasting};

use scrimp_plan::TaskId;

use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::model::Model;
use order::Chain;

/// Starts a bound on the seconds that plans within `budget` bytes take beyond running every task once.
/// `known` is the number of seconds that a known plan takes beyond that. A cutoff makes the start coarser.
pub(crate) fn seconds<'m>(
    model: &'m Model,
    budget: f64,
    order: Order,
    known: f64,
    cutoff: Cutoff<'_>,
) -> Ascent<'m> {
    let held = order::held(model, order);
    let chain = match order {
        Order::Fixed => Chain::fixed(model),
        Order::Free => Chain::free(model, budget, &held),
    };
    let ascent = Ascent::new(model, chain, budget, known, cutoff);
    match model.outside {
        None => ascent.beside(order, &held),
        Some(_) => ascent,
    }
}

/// Steps of the ascent that makes prices for steering a search.
const PRICE_STEPS: usize = 300;

/// The price of a byte, in seconds, while each task of this order runs, in a plan that runs each task once.
/// The prices before the first and after the last task are zero. `known` is as for [`seconds`].
pub(crate) fn position_prices(
    model: &Model,
    order: &[TaskId],
    budget: f64,
    known: f64,
) -> Vec<f64> {
    let chain = Chain::of(order.to_vec());
    let prices = gaps::prices(
        model,
        &chain,
        budget,
        known,
        (PRICE_STEPS, Cutoff::NEVER),
        None,
    );
    let inner = prices.of_row.into_iter();
    std::iter::once(0.0).chain(inner).chain([0.0]).collect()
}

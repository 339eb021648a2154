//! Estimates the cost of an eviction's new run: each of its inputs is kept until then or made again there.

use scrimp_plan::TaskId;

use crate::ids::Position;
use crate::search::price::{Limit, Price, Pricing, Wanted};
use crate::search::repair::Repairer;
use crate::search::state::State;

impl<'m> Repairer<'m> {
    /// The price of having the inputs of `t` at `p`, each kept until `p`, brought or made again there, whichever is
    /// cheapest; `None` if the price reaches the limit. Once the visits are used up, all further inputs are
    /// kept.
    pub(super) fn inputs_price(
        &self,
        state: &State<'m>,
        t: TaskId,
        p: Position,
        pricing: &mut Pricing,
        limit: Limit,
    ) -> Option<Price> {
        let m = self.model;
        let bottom = pricing.stack.len();
        // Each input takes at least its bytes until then, or one run of its producer.
        let mut least = 0.0;
        for i in m.inputs.of(t) {
            pricing.looks += 1;
            let v = i.value;
            let keep = match state.around(v, p) {
                (Some(_), true) => continue,
                (Some(last), false) => m.bytes[v] * self.crowded(last + 1, p + 1),
                (None, _) => f64::INFINITY,
            };
            if keep == 0.0 {
                continue;
            }
            let make = m.cost[m.producer[v]];
            let fetch = self.fetch(state, v, p);
            let make = fetch.map_or(make, |(_, seconds)| make.min(seconds));
            let lower = (limit.per_area * keep).min(limit.per_second * make);
            least += lower;
            pricing.stack.push(Wanted {
                value: v,
                keep,
                lower,
            });
            if least >= limit.most {
                pricing.stack.truncate(bottom);
                return None;
            }
        }
        let mut sum = Price::default();
        let mut left = limit.most - least;
        for k in bottom..pricing.stack.len() {
            let wanted = pricing.stack[k];
            let most = left + wanted.lower;
            let price = self.input_price(state, wanted, p, pricing, Limit { most, ..limit });
            sum.seconds += price.seconds;
            sum.area += price.area;
            left = most - limit.of(price);
            if left <= 0.0 {
                break;
            }
        }
        pricing.stack.truncate(bottom);
        (left > 0.0).then_some(sum)
    }

    /// The cheapest of keeping a value until `p`, bringing it there and making it again there.
    fn input_price(
        &self,
        state: &State<'m>,
        wanted: Wanted,
        p: Position,
        pricing: &mut Pricing,
        limit: Limit,
    ) -> Price {
        let m = self.model;
        let t = m.producer[wanted.value];
        let mut keeping = Price {
            seconds: 0.0,
            area: wanted.keep,
        };
        let mut keep = wanted.keep * self.price;
        if let Some((_, seconds)) = self.fetch(state, wanted.value, p)
            && seconds < keep
        {
            keeping = Price { seconds, area: 0.0 };
            keep = seconds;
        }
        let cost = m.cost[t];
        let dearer = keep - cost;
        if dearer <= 0.0 || pricing.visits == 0 || !self.may(t, p) {
            return keeping;
        }
        pricing.visits -= 1;
        // Making the value again is worth it only if that costs less than keeping it. If keeping already
        // exceeds the caller's limit, making it again must stay below that limit.
        let own = if limit.of(keeping) < limit.most {
            Limit {
                per_second: 1.0,
                per_area: self.price,
                most: dearer,
            }
        } else {
            Limit {
                most: limit.most - limit.per_second * cost,
                ..limit
            }
        };
        self.inputs_price(state, t, p, pricing, own)
            .map_or(keeping, |taken| Price {
                seconds: taken.seconds + cost,
                ..taken
            })
    }
}

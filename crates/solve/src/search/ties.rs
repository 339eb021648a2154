//! Ties: plans that cost the same. Their buffers differ, so where one of them doesn't pack, another may.

use scrimp_plan::TaskId;

use crate::random::Random;
use crate::search::state::State;

/// The most ties that are kept.
const MOST: usize = 16;
/// Costs that differ by at most this share are the same, because sums of floats depend on their order.
pub(crate) const SAME: f64 = 1e-9;

/// A uniform sample of the cheapest plans that were offered.
#[derive(Clone, Debug)]
pub(crate) struct Ties {
    cost: f64,
    plans: Vec<Vec<TaskId>>,
    /// How many plans of this cost were offered.
    offered: usize,
    rng: Random,
}

impl Default for Ties {
    fn default() -> Self {
        Ties {
            cost: f64::INFINITY,
            plans: Vec::new(),
            offered: 0,
            rng: Random::new(0, 0),
        }
    }
}

impl Ties {
    /// Offers a plan.
    pub fn add(&mut self, cost: f64, plan: &State<'_>) {
        if cost > self.cost * (1.0 + SAME) {
            return;
        }
        if cost < self.cost * (1.0 - SAME) {
            self.cost = cost;
            self.plans.clear();
            self.offered = 0;
        }
        self.offered += 1;
        if self.plans.len() < MOST {
            self.plans.push(plan.order());
            return;
        }
        let place = self.rng.below(self.offered);
        if place < MOST {
            self.plans[place] = plan.order();
        }
    }

    /// The sample, with what each plan costs.
    pub fn plans(&self) -> Vec<(f64, Vec<TaskId>)> {
        let plans = self.plans.iter();
        plans.map(|plan| (self.cost, plan.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::testing::{Shape, problem};

    #[test]
    fn the_cheapest_plans_are_sampled() {
        let shape = Shape {
            tasks: 12,
            rich: false,
        };
        let p = problem(shape, &mut Random::new(1, 0));
        let model = Model::new(&p).unwrap().0;
        let given = model.given_order();
        let plan = State::new(&model, &given);
        let mut ties = Ties::default();
        for cost in [5.0, 4.0, 4.5, 4.0 + 1e-12, 6.0] {
            ties.add(cost, &plan);
        }
        assert_eq!(ties.plans(), vec![(4.0, given.clone()); 2]);
        let mut other = State::new(&model, &given);
        let again = model.task_ids().find(|&task| model.rerunnable[task]);
        let end = other.last();
        other.insert(again.unwrap(), end);
        for _ in 0..1000 {
            ties.add(4.0, &other);
        }
        let kept = ties.plans();
        assert_eq!(kept.len(), MOST);
        assert!(kept.iter().any(|plan| plan.1 == other.order()));
        ties.add(3.0, &plan);
        assert_eq!(ties.plans(), [(3.0, given)]);
    }
}

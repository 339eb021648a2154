//! Lean plans: where the cheapest plan doesn't pack, a slightly dearer one may that leaves a part of the budget free.

use scrimp_plan::TaskId;

use crate::search::state::State;

/// The shares of the budget that plans leave free.
const SHARES: [f64; 6] = [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016];

/// For each share, the cheapest plan that was offered that leaves so much free.
#[derive(Clone, Debug)]
pub(crate) struct Lean {
    /// In the order of the shares: limits fall and seconds rise.
    rungs: [Rung; SHARES.len()],
}

#[derive(Clone, Debug)]
struct Rung {
    limit: f64,
    seconds: f64,
    runs: Vec<TaskId>,
}

impl Lean {
    /// No plans, for a budget in bytes without resident ones.
    pub fn new(budget: f64) -> Lean {
        Lean {
            rungs: SHARES.map(|share| Rung {
                limit: budget * (1.0 - share),
                seconds: f64::INFINITY,
                runs: Vec::new(),
            }),
        }
    }

    /// Offers a plan.
    pub fn add(&mut self, seconds: f64, plan: &State<'_>) {
        let [.., dearest] = &self.rungs;
        if seconds >= dearest.seconds {
            return;
        }
        let peak = plan.peak();
        for rung in &mut self.rungs {
            if peak <= rung.limit && seconds < rung.seconds {
                (rung.seconds, rung.runs) = (seconds, plan.order());
            }
        }
    }

    /// The plans, with their seconds.
    pub fn plans(&self) -> Vec<(f64, Vec<TaskId>)> {
        let found = self.rungs.iter().filter(|rung| rung.seconds.is_finite());
        found
            .map(|rung| (rung.seconds, rung.runs.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::random::Random;
    use crate::testing::{Shape, problem};

    #[test]
    fn each_share_has_the_cheapest_plan_that_leaves_it_free() {
        let shape = Shape {
            tasks: 12,
            rich: false,
        };
        let p = problem(shape, &mut Random::new(1, 0));
        let model = Model::new(&p).unwrap().0;
        let plan = State::new(&model, &model.given_order());
        let seconds = |lean: &Lean| {
            let plans = lean.plans().into_iter();
            plans.map(|plan| plan.0).collect::<Vec<_>>()
        };
        let mut tight = Lean::new(plan.peak());
        tight.add(1.0, &plan);
        assert!(seconds(&tight).is_empty());
        let mut lean = Lean::new(plan.peak() / 0.997);
        for cost in [3.0, 2.0, 4.0] {
            lean.add(cost, &plan);
        }
        assert_eq!(seconds(&lean), [2.0; 3]);
        assert_eq!(lean.plans()[2].1, model.given_order());
    }
}

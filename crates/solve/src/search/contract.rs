//! Pairs of tasks as one: a gradient, and the update that alone reads it and takes no more bytes than the gradient gives
//! back. In good plans the two mostly run one right after the other, but neither can move there alone: the update must
//! come after the gradient, and the gradient without it holds its bytes. A problem of pairs is smaller, and its walks
//! don't stop at that barrier. Its plans are plans of the whole problem, which then takes pairs apart again where that is
//! better. In the given order nothing moves, so pairs would only take choices away.

use cranelift_entity::PrimaryMap;
use scrimp_plan::TaskId;

use crate::copies::Copies;
use crate::model::{Input, Model, Parts};

/// A smaller problem.
pub(super) struct Contracted {
    pub model: Model,
    /// By its tasks, the gradient that comes first, if it is a pair, and the task.
    members: PrimaryMap<TaskId, (Option<TaskId>, TaskId)>,
}

impl Contracted {
    /// The problem with its pairs as one task each, at the update's place. `None` if there are none.
    pub fn of(model: &Model) -> Option<Contracted> {
        if !model.copies.none() {
            return None;
        }
        let mut first: PrimaryMap<TaskId, Option<TaskId>> =
            model.cost.values().map(|_| None).collect();
        let mut is_first: PrimaryMap<TaskId, bool> = model.cost.values().map(|_| false).collect();
        for update in model.task_ids() {
            if model.rerunnable[update] {
                continue;
            }
            let made = model
                .inputs
                .of(update)
                .iter()
                .map(|i| model.producer[i.value]);
            let alone = made.filter(|&t| first[t].is_none() && is_for(model, t, update));
            let Some(gradient) = alone.max_by(|&a, &b| model.grows[a].total_cmp(&model.grows[b]))
            else {
                continue;
            };
            first[update] = Some(gradient);
            is_first[gradient] = true;
        }
        let members: PrimaryMap<TaskId, _> = model
            .task_ids()
            .filter(|&t| !is_first[t])
            .map(|t| (first[t], t))
            .collect();
        (members.len() < model.tasks as usize).then(|| Contracted {
            model: contracted(model, &members),
            members,
        })
    }

    /// A sequence of the whole problem as one of the smaller problem, in which each gradient runs when its update does. `None`
    /// if something that it reads is overwritten by then.
    pub fn contract(&self, whole: &Model, runs: &[TaskId]) -> Option<Vec<TaskId>> {
        let mut pair: PrimaryMap<TaskId, Option<TaskId>> =
            whole.cost.values().map(|_| None).collect();
        for (id, &(_, t)) in &self.members {
            pair[t] = Some(id);
        }
        let runs: Vec<TaskId> = runs.iter().filter_map(|&t| pair[t]).collect();
        let model = &self.model;
        let mut there: PrimaryMap<_, bool> = model.bytes.values().map(|_| false).collect();
        for t in [model.start()]
            .into_iter()
            .chain(runs.iter().copied())
            .chain([model.end()])
        {
            let inputs = model.inputs.of(t);
            if !inputs.iter().all(|i| there[i.value]) {
                return None;
            }
            for i in inputs.iter().filter(|i| i.overwritten) {
                there[i.value] = false;
            }
            for &v in model.outputs.of(t) {
                there[v] = true;
            }
        }
        Some(runs)
    }

    /// A sequence of the smaller problem as one of the whole problem.
    pub fn expand(&self, runs: &[TaskId]) -> Vec<TaskId> {
        let members = runs.iter().map(|&t| self.members[t]);
        members
            .flat_map(|(gradient, t)| gradient.into_iter().chain([t]))
            .collect()
    }
}

/// Whether nothing but an update, which takes no more bytes than that gives back, reads what a task writes. The task must
/// take over no buffer, and what it reads must be there until the update.
fn is_for(model: &Model, task: TaskId, update: TaskId) -> bool {
    let outputs = model.outputs.of(task);
    let stays =
        |i: &Input| !i.overwritten && model.overwriter(i.value).is_none_or(|by| by >= update);
    model.has(task)
        && !outputs.is_empty()
        && outputs.iter().all(|&v| model.consumers.of(v) == [update])
        && model.inputs.of(task).iter().all(stays)
        && kept(model, update) <= kept(model, task)
}

/// The bytes by which one run of a task leaves more in use, if it ends no value but those whose buffers it takes over.
fn kept(model: &Model, task: TaskId) -> f64 {
    model.grows[task] - model.workspace[task]
}

fn contracted(model: &Model, members: &PrimaryMap<TaskId, (Option<TaskId>, TaskId)>) -> Model {
    let tasks = || members.values().copied();
    let inputs = tasks().map(|(gradient, t)| {
        let before: &[Input] = gradient.map_or(&[], |gradient| model.inputs.of(gradient));
        let own = model.inputs.of(t).iter();
        let own: Vec<Input> = own
            .copied()
            .filter(|i| gradient.is_none_or(|gradient| model.producer[i.value] != gradient))
            .collect();
        let other = |i: &&Input| own.iter().all(|o| o.value != i.value);
        let before: Vec<Input> = before.iter().filter(other).copied().collect();
        [before, own].concat()
    });
    // While a pair runs, what its gradient reads stays.
    let workspace = tasks().map(|(gradient, t)| {
        let Some(gradient) = gradient else {
            return model.workspace[t];
        };
        let during = model.grows[gradient].max(kept(model, gradient) + model.grows[t]);
        let own = model.inputs.of(t).iter().filter(|i| i.overwritten);
        let inside = own.filter(|i| model.producer[i.value] == gradient);
        during - kept(model, t) - inside.map(|i| model.bytes[i.value]).sum::<f64>()
    });
    let cost = |t: TaskId| model.cost[t];
    let mut smaller = Model::from_lists(Parts {
        device: model.device,
        cost: tasks()
            .map(|(gradient, t)| gradient.map_or(0.0, cost) + cost(t))
            .collect(),
        workspace: workspace.collect(),
        rerunnable: tasks().map(|(_, t)| model.rerunnable[t]).collect(),
        inputs: inputs.collect(),
        outputs: tasks().map(|(_, t)| model.outputs.of(t).to_vec()).collect(),
        bytes: model.bytes.values().copied().collect(),
        given: model.outputs.of(model.start()).to_vec(),
        kept: model.inputs.of(model.end()).to_vec(),
        resident: model.resident,
        copies: Copies::default(),
    });
    smaller.fixed = model.fixed.clone();
    smaller.fixed_bytes = model.fixed_bytes;
    smaller
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::search::state::State;
    use crate::testing::{Shape, device, problem};
    use scrimp_plan::{Plan, check};

    #[test]
    fn a_plan_of_pairs_is_one_of_the_whole_problem() {
        let mut rng = Random::new(21, 0);
        let (mut pairs, mut tight, mut given) = (0, 0, 0);
        for round in 0..1000 {
            let shape = Shape {
                tasks: 6 + round % 30,
                rich: true,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let Some(smaller) = Contracted::of(&model) else {
                continue;
            };
            pairs += model.tasks - smaller.model.tasks;
            let state = State::new(&smaller.model, &smaller.model.given_order());
            let runs = smaller.expand(&state.order());
            assert_eq!(runs.len(), model.tasks as usize);
            let whole = State::new(&model, &runs);
            assert!(
                whole.peak() <= state.peak(),
                "pairs hold what their gradients read"
            );
            tight += usize::from(whole.peak() == state.peak());
            assert!((whole.cost() - state.cost()).abs() <= 1e-9 * whole.cost());
            assert_eq!(smaller.contract(&model, &runs), Some(state.order()));
            if let Some(apart) = smaller.contract(&model, &model.given_order()) {
                let runs = smaller.expand(&apart);
                check(&p, Plan::from_runs(&p, device(), &runs).unwrap()).unwrap();
                given += 1;
            }
            check(&p, Plan::from_runs(&p, device(), &runs).unwrap()).unwrap();
        }
        assert!(
            pairs > 100 && tight > 100 && given > 100,
            "{pairs} pairs, {tight} of the same peak, {given} of the given order"
        );
    }
}

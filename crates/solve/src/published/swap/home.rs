//! HOME (He et al., IEEE TC 2023): particle swarm search over keep, swap and recompute for each feature map.
//!
//! Algorithm 1: 500 particles with uniformly random actions; 500 iterations, in each of which every particle
//! is evaluated (algorithm 2, in `evaluate.rs`) and then updated (algorithm 3). The best policy ever is the
//! result. There is no velocity and no mutation.
//!
//! Algorithm 3 goes through the maps of a particle. For each it takes the action of P1, the best policy of the
//! last iteration, or that of P2, the particle's own best policy ever; ties go to P2, and the action that the
//! particle has is dropped even if it is better. Two readings say which of the two is better:
//!
//! * `home`: the listing, which evaluates the particle with either action: 2n evaluations per particle. An
//!   evaluation whose result is known isn't repeated, which changes no result.
//! * `home-table3`: the policy in which the map caused less overhead (the second result of algorithm 2). The
//!   search times of table 3 are those of one evaluation per particle and iteration, so their code can't have
//!   made 2n. Take this reading for more than about a hundred maps.
//!
//! How the print is read beyond that: actions are keep, swap and recompute as in figures 3 and 5 (2.3 numbers
//! them otherwise). A copy out begins when its map has been written (3.4 lets it overlap with the layer that
//! writes it, which its own formula contradicts). `BWDi` needs what layer i − 1 wrote. Each backward stage
//! begins the next copy back, if there is room; a backward stage begins where the backward pass first needs a
//! map. A map that is made again stays until its last use. A recomputation that needs a swapped map waits for
//! it. Policies that don't fit take forever.
//!
//! If no random policy fits, nothing in the listing ever leads to one that does. Then, and only then, the
//! particles start from the policies of the other methods: all swapped, vDNN's two, SuperNeurons' and
//! Capuchin's, as far as they fit. Particle i of m takes one of them in turn, and each action is drawn anew
//! with probability i/m. The paper doesn't have this.

use std::sync::atomic::{AtomicBool, Ordering};

use super::evaluate::{Evaluator, Policy, uniform};
use super::layers::Layers;
use super::maps::Maps;
use super::unfold::Action;
use super::{capuchin, superneurons, vdnn};
use crate::cutoff::Cutoff;
use crate::method::{Offload, Reading};
use crate::options::Options;
use crate::random::Random;

/// `m` and `iters` of algorithm 1 (3.3).
const PARTICLES: usize = 500;
const ITERATIONS: usize = 500;

const ACTIONS: [Action; 3] = [Action::Keep, Action::Swap, Action::Recompute];

/// A policy and what an evaluation says about it.
#[derive(Clone)]
struct Judged {
    actions: Vec<Action>,
    /// Infinite if it doesn't fit.
    seconds: f64,
    /// By map; infinite if it doesn't fit.
    overhead: Vec<f64>,
}

/// A particle and its own best policy.
struct Particle {
    now: Judged,
    best: Judged,
}

/// The result of a search.
pub(super) struct Found {
    pub(super) policy: Policy,
    /// Whether the particles started from other methods' policies.
    pub(super) seeded: bool,
    /// Iterations until nothing changed any more.
    pub(super) iterations: usize,
}

/// Searches.
pub(super) fn search(
    maps: &Maps<'_, '_>,
    layers: &Layers,
    options: &Options,
    reading: Reading,
    cutoff: Cutoff<'_>,
) -> Found {
    let threads = options.threads.max(1);
    let mut swarm: Vec<Particle> = (0..PARTICLES)
        .map(|i| {
            let mut random = Random::new(options.seed, i as u64);
            let actions = maps.maps.iter().map(|_| ACTIONS[random.below(3)]);
            Particle::new(Judged::unknown(actions.collect()))
        })
        .collect();
    for_all(maps, &mut swarm, threads, &|evaluator, particle| {
        particle.now.judge(evaluator);
        particle.best = particle.now.clone();
    });
    let seeded = !swarm.iter().any(|particle| particle.now.fits());
    if seeded {
        let seeds = seeds(maps, layers, cutoff);
        for (i, particle) in swarm.iter_mut().enumerate() {
            particle.now.actions = seeded_actions(&seeds, i, options.seed);
        }
        for_all(maps, &mut swarm, threads, &|evaluator, particle| {
            particle.now.judge(evaluator);
            particle.best = particle.now.clone();
        });
    }
    let mut best = leader(&swarm);
    let mut iterations = 1;
    while iterations < ITERATIONS && best.fits() && !cutoff.reached() {
        let first = leader(&swarm);
        let changed = AtomicBool::new(false);
        for_all(maps, &mut swarm, threads, &|evaluator, particle| {
            if cutoff.reached() {
                return;
            }
            let before = particle.now.actions.clone();
            match reading {
                Reading::Literal => particle.update_literally(evaluator, &first),
                Reading::Table3 => particle.update_by_overhead(evaluator, &first),
            }
            if particle.now.actions != before {
                changed.store(true, Ordering::Relaxed);
            }
            if particle.now.seconds < particle.best.seconds {
                particle.best = particle.now.clone();
            }
        });
        let found = leader(&swarm);
        if found.seconds < best.seconds {
            best = found;
        }
        iterations += 1;
        // Without a change, the next iteration would make this one's updates again.
        if !changed.load(Ordering::Relaxed) {
            break;
        }
    }
    Found {
        policy: Policy::of(best.actions),
        seeded,
        iterations,
    }
}

/// The best particle of an iteration, the first of equals.
fn leader(swarm: &[Particle]) -> Judged {
    let best = swarm.iter().map(|particle| &particle.now);
    let best = best.min_by(|one, other| one.seconds.total_cmp(&other.seconds));
    best.expect("there are particles").clone()
}

/// Policies of the other methods, those that fit if any does.
fn seeds(maps: &Maps<'_, '_>, layers: &Layers, cutoff: Cutoff<'_>) -> Vec<Vec<Action>> {
    let mut all = vec![uniform(maps, Action::Swap)];
    for offload in [Offload::All, Offload::Convolutions] {
        all.extend(vdnn::policy(maps, layers, offload).map(|policy| policy.actions));
    }
    all.extend(superneurons::policy(maps, layers).map(|policy| policy.actions));
    all.push(capuchin::policy(maps, cutoff).0.actions);
    for action in all.iter_mut().flatten() {
        if *action == Action::RecomputeLean {
            *action = Action::Recompute;
        }
    }
    let mut evaluator = Evaluator::new(maps);
    let fitting: Vec<_> = (all.iter())
        .filter(|actions| evaluator.seconds(&Policy::of(actions.to_vec())).is_some())
        .cloned()
        .collect();
    if fitting.is_empty() { all } else { fitting }
}

fn seeded_actions(seeds: &[Vec<Action>], particle: usize, seed: u64) -> Vec<Action> {
    let mut random = Random::new(seed, (PARTICLES + particle) as u64);
    let anew = particle as f64 / PARTICLES as f64;
    let actions = seeds[particle % seeds.len()].iter();
    let drawn = actions.map(|&action| match random.unit() < anew {
        true => ACTIONS[random.below(3)],
        false => action,
    });
    drawn.collect()
}

/// Updates particles side by side; they don't depend on each other.
fn for_all(
    maps: &Maps<'_, '_>,
    swarm: &mut [Particle],
    threads: usize,
    update: &(dyn Fn(&mut Evaluator<'_, '_, '_>, &mut Particle) + Sync),
) {
    let share = swarm.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for particles in swarm.chunks_mut(share) {
            scope.spawn(move || {
                let mut evaluator = Evaluator::new(maps);
                for particle in particles {
                    update(&mut evaluator, particle);
                }
            });
        }
    });
}

impl Judged {
    fn unknown(actions: Vec<Action>) -> Judged {
        Judged {
            overhead: vec![f64::INFINITY; actions.len()],
            actions,
            seconds: f64::INFINITY,
        }
    }

    fn fits(&self) -> bool {
        self.seconds.is_finite()
    }

    /// Evaluates the policy.
    fn judge(&mut self, evaluator: &mut Evaluator<'_, '_, '_>) {
        let policy = Policy::of(std::mem::take(&mut self.actions));
        match evaluator.seconds(&policy) {
            Some(seconds) => {
                self.seconds = seconds;
                self.overhead.copy_from_slice(&evaluator.overhead);
            }
            None => {
                self.seconds = f64::INFINITY;
                self.overhead.fill(f64::INFINITY);
            }
        }
        self.actions = policy.actions;
    }
}

impl Particle {
    fn new(now: Judged) -> Particle {
        Particle {
            best: now.clone(),
            now,
        }
    }

    /// Algorithm 3 as printed.
    fn update_literally(&mut self, evaluator: &mut Evaluator<'_, '_, '_>, first: &Judged) {
        let mut policy = Policy::of(std::mem::take(&mut self.now.actions));
        // Seconds of the current actions, if they are known.
        let mut known = Some(self.now.seconds);
        for map in 0..policy.actions.len() {
            let (one, two) = (first.actions[map], self.best.actions[map]);
            let current = policy.actions[map];
            if one == two {
                policy.actions[map] = one;
                known = known.filter(|_| current == one);
                continue;
            }
            let mut seconds = |action: Action| match known {
                Some(seconds) if action == current => seconds,
                _ => {
                    policy.actions[map] = action;
                    evaluator.seconds(&policy).unwrap_or(f64::INFINITY)
                }
            };
            let (with_one, with_two) = (seconds(one), seconds(two));
            let (action, seconds) = match with_one < with_two {
                true => (one, with_one),
                false => (two, with_two),
            };
            policy.actions[map] = action;
            known = Some(seconds);
        }
        self.now.actions = policy.actions;
        match known {
            Some(seconds) => self.now.seconds = seconds,
            None => self.now.judge(evaluator),
        }
    }

    /// Algorithm 3 with the overheads that are known.
    fn update_by_overhead(&mut self, evaluator: &mut Evaluator<'_, '_, '_>, first: &Judged) {
        for (map, action) in self.now.actions.iter_mut().enumerate() {
            *action = match first.overhead[map] < self.best.overhead[map] {
                true => first.actions[map],
                false => self.best.actions[map],
            };
        }
        self.now.judge(evaluator);
    }
}

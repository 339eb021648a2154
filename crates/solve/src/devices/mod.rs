//! The search for problems with several devices that compute: it decides where each task runs, what runs
//! again, and what is copied, in one plan.
//!
//! A plan's form here is a list of runs with their devices ([`decode`] makes all else of it). Walks anneal such
//! lists ([`walk`]), by the makespan that [`timing`] computes or by the sum of seconds. They start from each
//! device alone and from list schedules ([`starts`]). So no plan is worse than the best single device's.

mod beam;
mod decode;
mod roomy;
mod starts;
mod system;
#[cfg(test)]
mod tests;
mod timing;
mod walk;

use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, CheckedPlan, DeviceId, Move, Problem, Sequence, TaskId, ValueId};

use crate::bound;
use crate::checked::{checked, sequence_of};
use crate::cutoff::Cutoff;
use crate::error::{Shortage, SolveError};
use crate::method::{Method, Objective, Order};
use crate::options::{Options, Others, Progress, Solved};
use crate::place::held_bytes;
use crate::published;
use crate::random::Random;
use crate::solve::solve;
use beam::{Beam, Taste};
use cranelift_entity::EntityRef;
use decode::{Act, Decoder, Run};
use system::System;
use timing::Timing;
use walk::{Plan, Walk};

/// Units of work, which are runs and acts, in a second of one thread.
const RATE: f64 = 6e6;
/// The number of walks, and of rounds in which each is heated.
const WALKS: u64 = 2;
const ROUNDS: u64 = 4;
/// Each walk is this much cooler than the one before.
const APART: f64 = 0.3;
/// Each round starts this much cooler than the one before.
const COOLER: f64 = 0.5;
/// The share of the time for plans of single devices within their memory.
const ALONE_SHARE: f64 = 0.25;
/// Each of them may take this time even if a caller's deadline comes before, since without any plan that caller has nothing.
const ALONE_TIME: Duration = Duration::from_millis(600);
/// How often the plan of a single device is made, if given values lack their places elsewhere.
const ALONE_TRIES: u32 = 2;
/// The share of the work for beams over placements, the most of them, their most states, and by how much the scores
/// of one are blurred at most.
const BEAM_SHARE: f64 = 0.15;
const BEAMS: usize = 32;
const BEAM_WIDTH: usize = 500;
const BEAM_BLUR: f64 = 0.03;
/// The most lists that are judged: this many, and this many for each pair of tasks.
const LISTS: f64 = 50_000.0;
const LISTS_OF_PAIRS: f64 = 400.0;

/// Plans a problem within the capacities, in bytes and in joules.
///
/// # Errors
/// [`SolveError::Short`] or [`SolveError::EnergyCap`] if no plan was found within them, [`SolveError::NoRoom`] if some
/// task fits on no device.
pub(crate) fn plan(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Solved, SolveError> {
    let start = Instant::now();
    let cutoff = options.cutoff(start, options.time_limit);
    if let Some((_, device, floor)) = bound::devices::without_room(problem, capacities) {
        return Err(SolveError::NoRoom {
            method: Method::Search.name(),
            device: problem.devices()[device].name.clone(),
            budget: capacities.bytes(device).unwrap_or(u64::MAX),
            least: floor,
            floor,
        });
    }
    let system = System::new(problem, capacities, options);
    let search = Search {
        problem,
        capacities,
        options,
        system: &system,
        cutoff,
    };
    for device in problem.devices().keys() {
        let floor = bound::devices::least_joules(problem, device);
        if let Some(cap) = capacities.joules(device).filter(|&cap| cap < floor) {
            return Err(search.over_the_cap(device, cap, None));
        }
    }
    let (alone, lists) = search.starts()?;
    let mut tell = |cost: f64| {
        progress(Progress {
            elapsed: start.elapsed(),
            cost: Some(cost),
            lower_bound: 0.0,
        });
    };
    if let Some((cost, _)) = &alone {
        tell(*cost);
    }
    let bound = bound::devices::cost(problem, capacities, options);
    let proven = bound * (1.0 + 1e-9);
    let enough = options.enough.map_or(proven, |enough| enough.max(proven));
    let found = search.anneal(&lists, enough, &mut tell);
    let walked = match found {
        Some(found) if found.over == 0.0 => Some(search.checked(&found)?),
        Some(found) if alone.is_none() => return Err(search.refusal(&found)),
        None if alone.is_none() => return Err(search.unreached(&lists)),
        _ => None,
    };
    let (cost, plan) = walked
        .into_iter()
        .chain(alone)
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .ok_or_else(|| SolveError::Unsupported("no plan was found".into()))?;
    let lower_bound = bound.min(cost);
    Ok(Solved {
        others: Others::default(),
        plan,
        cost,
        lower_bound,
        optimal: cost <= lower_bound * (1.0 + 1e-9),
        method: Method::Search,
        elapsed: start.elapsed(),
        note: None,
    })
}

/// The runs of a sequence.
fn runs(sequence: &Sequence) -> Vec<Run> {
    let runs = sequence.moves.iter().filter_map(|made| match *made {
        Move::Run { task, device } => Some(Run {
            task: task.index(),
            device: device.index(),
        }),
        _ => None,
    });
    runs.collect()
}

struct Search<'a> {
    problem: &'a Problem,
    capacities: &'a Capacities,
    options: &'a Options,
    system: &'a System,
    cutoff: Cutoff<'a>,
}

/// A plan and its cost.
type Priced = (f64, CheckedPlan);

impl Search<'_> {
    fn is_fixed(&self) -> bool {
        self.options.order == Order::Fixed
    }

    /// A plan to start from, and all lists. The plan is the caller's if it gave one, or else the best of a single device
    /// that the search for one device finds, if memory makes that search necessary.
    fn starts(&self) -> Result<(Option<Priced>, Vec<Vec<Run>>), SolveError> {
        let s = self.system;
        let mut lists = Vec::new();
        let mut best = self.given();
        let devices: Vec<usize> = (0..s.devices).filter(|&d| s.computes[d]).collect();
        let mut walk = Walk::new(s, self.is_fixed(), Random::new(self.options.seed, 0));
        for &d in &devices {
            let Some(list) = starts::alone(s, d) else {
                continue;
            };
            let fits = walk.start(&list) && walk.best.take().is_some_and(|made| made.over == 0.0);
            lists.push(list);
            if fits || s.concurrent[d] || self.options.start.is_some() {
                continue;
            }
            let share = self
                .options
                .time_limit
                .mul_f64(ALONE_SHARE / devices.len() as f64);
            if let Some(found) = self.alone(d, share)? {
                lists.push(runs(&sequence_of(&found.1)));
                if best.as_ref().is_none_or(|best| found.0 < best.0) {
                    best = Some(found);
                }
            }
        }
        lists.extend(starts::earliest(s, self.is_fixed()));
        lists.extend(starts::filled(s));
        if s.objective == Objective::Makespan {
            lists.extend(self.placed());
        }
        if s.objective == Objective::Serial {
            let cut = published::least_cut(self.problem, self.capacities, self.options);
            let run = |(task, device): (TaskId, DeviceId)| Run {
                task: task.index(),
                device: device.index(),
            };
            lists.extend(cut.map(|cut| cut.into_iter().map(run).collect()));
        }
        lists.extend(self.options.start.as_ref().map(runs));
        Ok((best, lists))
    }

    /// Units of work for a thread.
    fn work(&self) -> f64 {
        let n = self.system.tasks as f64;
        let all = (LISTS + LISTS_OF_PAIRS * n * n) * 2.0 * n;
        all.min(self.options.time_limit.as_secs_f64().min(1e6) * RATE)
    }

    /// The lists of beams over placements: the first sees scores as they are, the others more or less blurred.
    fn placed(&self) -> Vec<Vec<Run>> {
        let s = self.system;
        let states = (BEAM_SHARE * self.work() / beam::STATE as f64) as u64;
        let width = states as usize / (s.tasks * s.devices).max(1);
        let most = width.clamp(1, BEAM_WIDTH);
        let mut random = Random::new(self.options.seed, WALKS + 1);
        let (mut beam, mut lists) = (Beam::new(s), Vec::new());
        let mut taste = Taste {
            width: most.div_ceil(4),
            blur: 0.0,
            caution: 1.0,
        };
        for _ in 0..BEAMS {
            lists.extend(beam.all(taste, &mut random));
            if beam.made >= states || self.cutoff.reached() {
                break;
            }
            taste.blur = BEAM_BLUR * random.unit();
            taste.caution = 1.0 + random.unit();
            taste.width = ((most as f64).powf(random.unit()) as usize).max(most / 8);
        }
        if self.is_fixed() {
            lists
                .iter_mut()
                .for_each(|list| list.sort_by_key(|run| run.task));
        }
        lists
    }

    /// The plan that the caller gave, if it is one within the capacities.
    fn given(&self) -> Option<Priced> {
        let start = self.options.start.as_ref()?;
        let plan = checked(self.problem, start, Method::Search.name()).ok()?;
        let fits = plan.within(self.capacities).is_ok() && self.lacks_places(&plan).is_empty();
        let fits = fits && (!self.is_fixed() || plan.keeps_order());
        let cost = self.options.objective.cost(&plan, self.options.alpha);
        fits.then_some((cost, plan))
    }

    /// The devices whose capacities a plan exceeds where given values that are away keep their places, and by how many
    /// bytes.
    fn lacks_places(&self, plan: &CheckedPlan) -> Vec<(DeviceId, u64)> {
        let devices = self.problem.devices().keys();
        let devices = devices.filter(|_| self.options.laid_out);
        let lacks = devices.filter_map(|device| {
            let more = held_bytes(plan, device).checked_sub(self.capacities.bytes(device)?)?;
            (more > 0).then_some((device, more))
        });
        lacks.collect()
    }

    /// A plan of one device within the capacities by the search for one device; the others are memories. That search doesn't
    /// know that given values keep their places there, so it is called again with smaller memories if they lack bytes.
    fn alone(&self, device: usize, time: Duration) -> Result<Option<Priced>, SolveError> {
        let mut parts = self.problem.parts();
        let device = DeviceId::new(device);
        for (id, what) in parts.devices.iter_mut() {
            what.computes = id == device;
        }
        let mut resident = 0;
        for task in parts.tasks.values_mut() {
            task.modes.retain(|mode| mode.device == device);
            for mode in &mut task.modes {
                resident += std::mem::take(&mut mode.resident);
            }
        }
        parts.devices[device].resident += resident;
        parts.together.clear();
        let Ok(single) = Problem::new(parts) else {
            return Ok(None);
        };
        let soonest = Instant::now() + ALONE_TIME;
        let options = Options {
            method: Method::Search,
            objective: Objective::Makespan,
            time_limit: time / ALONE_TRIES,
            deadline: self.options.deadline.map(|deadline| deadline.max(soonest)),
            start: None,
            ..self.options.clone()
        };
        let mut capacities = self.capacities.clone();
        for _ in 0..ALONE_TRIES {
            let Ok(solved) = solve(&single, &capacities, &options, &mut |_| {}) else {
                break;
            };
            let sequence = sequence_of(&solved.plan);
            let plan = checked(self.problem, &sequence, Method::Search.name())?;
            if plan.within(self.capacities).is_err() {
                break;
            }
            let lacks = self.lacks_places(&plan);
            if lacks.is_empty() {
                let cost = self.options.objective.cost(&plan, self.options.alpha);
                return Ok(Some((cost, plan)));
            }
            for (device, more) in lacks {
                let bytes = capacities.bytes(device).unwrap_or(u64::MAX);
                capacities = capacities.with_bytes(device, Some(bytes.saturating_sub(more)));
            }
        }
        Ok(None)
    }

    /// The best plan that the walks find, which end when one costs no more than enough.
    fn anneal(&self, lists: &[Vec<Run>], enough: f64, tell: &mut dyn FnMut(f64)) -> Option<Plan> {
        let s = self.system;
        let walk = |k: u64| Walk::new(s, self.is_fixed(), Random::new(self.options.seed, k));
        let mut first = walk(WALKS);
        let mut plans: Vec<Plan> = Vec::new();
        for list in lists {
            if first.start(list) {
                plans.extend(first.best.take());
            }
        }
        plans.sort_by(|a, b| {
            (a.over, a.cost)
                .partial_cmp(&(b.over, b.cost))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        let best = plans.first()?.clone();
        let mut walks: Vec<Walk<'_>> = (0..WALKS).map(walk).collect();
        for (k, walk) in walks.iter_mut().enumerate() {
            walk.start(&plans[k.min(plans.len() - 1)].list);
        }
        let work = self.work() as u64 / ROUNDS + 1;
        let mut best = best;
        for round in 0..ROUNDS {
            let heat = COOLER.powf(round as f64);
            let job = |(k, walk): (i32, &mut Walk<'_>)| {
                walk.anneal(work, heat * APART.powi(k), enough, self.cutoff);
            };
            if self.options.threads < 2 {
                (0..).zip(&mut walks).for_each(job);
            } else {
                std::thread::scope(|scope| {
                    for walk in (0..).zip(&mut walks) {
                        scope.spawn(|| job(walk));
                    }
                });
            }
            for walk in &walks {
                if let Some(found) = &walk.best
                    && found.is_better(&best)
                {
                    best = found.clone();
                }
            }
            if best.over == 0.0 {
                tell(best.cost);
            }
            if self.cutoff.reached() || (best.over == 0.0 && best.cost <= enough) {
                break;
            }
            for walk in &mut walks {
                let own = walk.best.take();
                // From the middle on, walks go on from the best of all.
                let from = own.filter(|_| 2 * (round + 1) < ROUNDS);
                walk.start(&from.as_ref().unwrap_or(&best).list);
            }
        }
        Some(best)
    }

    /// The checked plan of what a walk found.
    fn checked(&self, found: &Plan) -> Result<Priced, SolveError> {
        let mut decoder = Decoder::new(self.system);
        decoder.decode(&found.list);
        let moves = decoder.acts.iter().map(|act| match *act {
            Act::Run(Run { task, device }) => Move::Run {
                task: TaskId::new(task),
                device: DeviceId::new(device),
            },
            Act::Copy { value, from, to } => Move::Copy {
                value: ValueId::new(value),
                from: DeviceId::new(from),
                to: DeviceId::new(to),
            },
            Act::Release { value, device } => Move::Release {
                value: ValueId::new(value),
                device: DeviceId::new(device),
            },
        });
        let sequence = Sequence {
            moves: moves.collect(),
        };
        let method = Method::Search.name();
        let plan = checked(self.problem, &sequence, method)?;
        if let Err(excess) = plan.within(self.capacities) {
            let what = excess.iter().map(ToString::to_string).collect::<Vec<_>>();
            let what = what.join("; ");
            return Err(SolveError::Defect { method, what });
        }
        Ok((self.options.objective.cost(&plan, self.options.alpha), plan))
    }

    /// What the devices lack for the best plan that was found: bytes, or else joules.
    fn refusal(&self, found: &Plan) -> SolveError {
        let mut decoder = Decoder::new(self.system);
        decoder.decode(&found.list);
        let bytes = decoder.short;
        let devices = self.problem.devices().iter();
        let lacks = |d: usize| bytes[d] > 0.0 || self.system.room[d] < 0.0;
        let short = devices.filter(|(id, _)| lacks(id.index()));
        let short = short.map(|(id, device)| Shortage {
            device: device.name.clone(),
            capacity: self.capacities.bytes(id).unwrap_or(u64::MAX),
            least_found: (bytes[id.index()] + self.system.resident[id.index()]) as u64,
        });
        let short: Vec<Shortage> = short.collect();
        let mut timing = Timing::new(self.system);
        timing.cost(&decoder.acts);
        let mut devices = self.problem.devices().keys();
        let over = devices.find_map(|device| {
            let joules = timing.joules[device.index()];
            let cap = self.capacities.joules(device)?;
            (joules > cap).then(|| self.over_the_cap(device, cap, Some(joules)))
        });
        over.filter(|_| short.is_empty())
            .unwrap_or(SolveError::Short(short))
    }

    /// What the devices lack for a plan that keeps everything, if there is one.
    fn unreached(&self, lists: &[Vec<Run>]) -> SolveError {
        let unlimited = Capacities::unlimited();
        let system = System::new(self.problem, &unlimited, self.options);
        let roomy = Search {
            capacities: &unlimited,
            system: &system,
            ..*self
        };
        let mut walk = Walk::new(&system, self.is_fixed(), Random::new(self.options.seed, 0));
        let list = lists.iter().find(|list| walk.start(list));
        let kept = list.and(walk.best.take());
        let Some(Ok((_, plan))) = kept.map(|kept| roomy.checked(&kept)) else {
            return SolveError::Unsupported(
                "no order of the tasks was found in which every input can be where it is read: add links between the devices"
                    .into(),
            );
        };
        let devices = self.problem.devices().iter();
        let short = devices.filter_map(|(id, device)| {
            let (capacity, least_found) = (self.capacities.bytes(id)?, plan.peak(id));
            (least_found > capacity).then(|| Shortage {
                device: device.name.clone(),
                capacity,
                least_found,
            })
        });
        SolveError::Short(short.collect())
    }

    fn over_the_cap(&self, device: DeviceId, cap: f64, least_found: Option<f64>) -> SolveError {
        SolveError::EnergyCap {
            cap,
            least_found,
            floor: bound::devices::least_joules(self.problem, device),
        }
    }
}

//! Beam search over the states of [`Space`]. In a fixed order of first runs it keeps, for each task, the best
//! few states in which the task has just run; in a free order, for each number of tasks, the best few states
//! in which that many have run. It finds plans under budgets so tight that repair gets stuck,
//! because the sequence exceeds them everywhere.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, entity_impl};
use rustc_hash::FxHashMap;
use scrimp_plan::{TaskId, ValueId};

use std::collections::hash_map::Entry;
use std::ops::Range;
use std::rc::Rc;

use crate::bound;
use crate::model::Model;
use crate::random::Random;
use crate::search::space::{Place, Space, Tasks, Values, words};

/// The ways of making room that are tried for one run.
const WAYS: usize = 6;
/// The missing producers that are tried for one state.
const READY: usize = 2;
/// Work of pricing, per value, in the beam's own counts, and such counts per unit of work.
const PRICING: u64 = 100;
const PER_UNIT: u64 = 2;
/// The most states that are visited, per task and width; longer sequences are useless.
const LOOKS: usize = 8;
/// The tasks of which each may run next if the order is free.
const TARGETS: usize = 8;
/// Steps towards a task beyond its missing runs.
const SLACK: usize = 8;

/// How a beam searches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Breadth {
    /// States kept after each task.
    pub width: usize,
    /// What holding bytes is worth, as a multiple of the gap program's prices.
    pub rent: f64,
    /// The random factor on the apparent cost of dropping a value is between 1 and 1 + noise.
    pub noise: f64,
    /// Whether first runs may leave the given order.
    pub free: bool,
}

/// Whether the search must end.
pub(crate) type Over<'a> = &'a dyn Fn() -> bool;

/// A plan within `budget` bytes whose first runs keep `order`, or stay near it if `breadth` says so. It is cheap
/// but rarely the cheapest; `None` if no plan was found. Problems with more than 1024 tasks or values are
/// skipped. Adds to `work`.
pub(crate) fn search(
    model: &Model,
    order: &[TaskId],
    budget: f64,
    breadth: Breadth,
    (over, rng, work): (Over<'_>, &mut Random, &mut u64),
) -> Option<Vec<TaskId>> {
    let whole = Part {
        order,
        first: 0..order.len(),
        stretch: None,
        below: f64::INFINITY,
    };
    make(model, whole, budget, breadth, (over, rng, work))
}

/// Other runs for a stretch of a sequence within `budget` bytes and in less than `below` seconds, after which the rest of the
/// sequence has what it reads; `None` if no such runs were found. Problems with more than 1024 tasks or values are skipped.
/// Adds to `work`.
pub(crate) fn between(
    model: &Model,
    runs: &[TaskId],
    stretch: Range<usize>,
    (budget, below): (f64, f64),
    breadth: Breadth,
    tools: (Over<'_>, &mut Random, &mut u64),
) -> Option<Vec<TaskId>> {
    let order = model.first_runs(runs);
    let before = |end: usize| model.first_runs(&runs[..end]).len();
    let first = before(stretch.start)..before(stretch.end);
    let inner = Part {
        order: &order,
        first,
        stretch: Some((runs, stretch)),
        below,
    };
    make(model, inner, budget, breadth, tools)
}

/// What a beam makes: a whole sequence or a stretch of one.
struct Part<'r> {
    /// All tasks in the order of their first runs, and which of them run first here.
    order: &'r [TaskId],
    first: Range<usize>,
    /// The sequence and its stretch; none for a whole one.
    stretch: Option<(&'r [TaskId], Range<usize>)>,
    /// Its runs take fewer seconds than this.
    below: f64,
}

fn make(
    model: &Model,
    part: Part<'_>,
    budget: f64,
    breadth: Breadth,
    (over, rng, work): (Over<'_>, &mut Random, &mut u64),
) -> Option<Vec<TaskId>> {
    let search = match words(model) {
        0 | 1 => sized::<1>,
        2 => sized::<2>,
        3 | 4 => sized::<4>,
        5..=8 => sized::<8>,
        9..=16 => sized::<16>,
        _ => return None,
    };
    let rent = Rent::new(model, part.order, budget, breadth, rng);
    *work += PRICING * model.bytes.len() as u64;
    search(model, part, budget, (breadth, rent), over, work)
}

/// Whether a problem is small enough for beams.
pub(crate) fn takes(model: &Model) -> bool {
    words(model) <= 16
}

fn sized<const W: usize>(
    model: &Model,
    part: Part<'_>,
    budget: f64,
    (breadth, rent): (Breadth, Rent),
    over: Over<'_>,
    work: &mut u64,
) -> Option<Vec<TaskId>> {
    let whole = Space::<W>::new(model, budget, breadth.free)?;
    let space = match part.stretch {
        Some((runs, stretch)) => whole.between(runs, stretch),
        None => whole,
    };
    let mut beam = Beam {
        space: &space,
        rent,
        width: breadth.width,
        below: part.below,
        at: 1 + part.first.start,
        trail: PrimaryMap::new(),
        ranked: FxHashMap::default(),
        needed: None,
        looks: 0,
        work: 0,
        ways: Vec::new(),
        scratch: Scratch::default(),
    };
    let found = beam.search(&part.order[part.first], over);
    *work += beam.work / PER_UNIT;
    found
}

/// A run on the way to a state.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Link(u32);
entity_impl!(Link, "link");

/// A state, with the seconds so far and an estimate of those to come.
#[derive(Clone)]
struct Head<const W: usize> {
    place: Place<W>,
    /// The task that is to run for the first time next.
    target: TaskId,
    spent: f64,
    /// The seconds so far, those of the runs still necessary, and what holding the live values is worth.
    seconds: f64,
    /// Values that the runs still necessary read.
    read: Values<W>,
    /// The last run on the way to this state.
    trail: PackedOption<Link>,
}

/// What holding a value will cost: the sum of the gap program's prices until the value's next first use.
struct Rent {
    /// For each position, the sum of the prices before it.
    sums: Vec<f64>,
    /// By value, the positions of its uses if every task runs once, ascending.
    uses: PrimaryMap<ValueId, Vec<usize>>,
    /// By value, a random factor.
    noise: PrimaryMap<ValueId, f64>,
}

impl Rent {
    fn new(
        model: &Model,
        order: &[TaskId],
        budget: f64,
        breadth: Breadth,
        rng: &mut Random,
    ) -> Rent {
        let prices = bound::position_prices(model, order, budget, 0.3 * model.base_cost());
        let mut sums = vec![0.0];
        for (k, price) in prices.iter().enumerate() {
            sums.push(sums[k] + breadth.rent * price);
        }
        let mut uses: PrimaryMap<ValueId, Vec<usize>> =
            model.bytes.values().map(|_| Vec::new()).collect();
        for (k, &t) in order.iter().chain([&model.end()]).enumerate() {
            for i in model.inputs.of(t) {
                uses[i.value].push(k + 1);
            }
        }
        let noise = uses
            .values()
            .map(|_| 1.0 + breadth.noise * rng.unit())
            .collect();
        Rent { sums, noise, uses }
    }

    /// The price per byte, in seconds, of holding a value from position `from` until its next first use.
    fn of(&self, v: ValueId, from: usize) -> f64 {
        let uses = &self.uses[v];
        uses.get(uses.partition_point(|&u| u < from))
            .map_or(0.0, |&u| self.sums[u] - self.sums[from])
    }
}

/// States after equally many steps; of equal states, only the one reached soonest.
struct Best<const W: usize> {
    heads: Vec<Head<W>>,
    /// By state and target, the index of its head.
    known: FxHashMap<(Place<W>, TaskId), usize>,
}

impl<const W: usize> Default for Best<W> {
    fn default() -> Self {
        Best {
            heads: Vec::new(),
            known: FxHashMap::default(),
        }
    }
}

impl<const W: usize> Best<W> {
    fn add(&mut self, head: Head<W>) {
        match self.known.entry((head.place, head.target)) {
            Entry::Occupied(known) => {
                let known = &mut self.heads[*known.get()];
                if head.spent < known.spent {
                    *known = head;
                }
            }
            Entry::Vacant(new) => {
                new.insert(self.heads.len());
                self.heads.push(head);
            }
        }
    }

    /// The best few states, best first.
    fn first(mut self, width: usize) -> Vec<Head<W>> {
        self.heads.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        self.heads.truncate(width);
        self.heads
    }
}

/// Values that may be dropped, the one first whose bytes cost least, each with that cost per byte.
type Ranked = Rc<[(f64, ValueId)]>;

struct Beam<'s, 'm, const W: usize> {
    space: &'s Space<'m, W>,
    width: usize,
    /// States from which no plan takes fewer seconds than this are dropped.
    below: f64,
    rent: Rent,
    /// The position of the next first run, if every task ran once.
    at: usize,
    /// Runs, each with its predecessor.
    trail: PrimaryMap<Link, (PackedOption<Link>, TaskId)>,
    /// What may be dropped in each state of this step, because many runs begin in the same state.
    ranked: FxHashMap<Place<W>, Ranked>,
    /// The last set of tasks that have run, and what plans from there could read.
    needed: Option<(Tasks<W>, Values<W>)>,
    /// The number of states visited.
    looks: usize,
    work: u64,
    /// The ways of making room for one run, and what they are made from. Both are reused, because allocating them takes a tenth of the time.
    ways: Vec<Values<W>>,
    scratch: Scratch,
}

/// What making room for one run looks at.
#[derive(Default)]
struct Scratch {
    /// Values that may be dropped, each with the cost of that per byte.
    droppable: Vec<(f64, ValueId)>,
    /// Those that make room together.
    chosen: Vec<ValueId>,
    /// Those that make room alone, each with its cost.
    single: Vec<(f64, ValueId)>,
}

impl<const W: usize> Beam<'_, '_, W> {
    fn search(&mut self, order: &[TaskId], over: Over<'_>) -> Option<Vec<TaskId>> {
        let start = self.space.start()?;
        let (seconds, read) = self.space.to_go(&start)?;
        let end = self.space.model.end();
        let mut heads = vec![Head {
            place: start,
            target: end,
            spent: 0.0,
            seconds,
            read,
            trail: None.into(),
        }];
        let targets = if self.space.free { TARGETS } else { 1 };
        let most = LOOKS * targets * self.width * (order.len() + 1);
        for &target in order.iter().chain([&self.space.model.end()]) {
            if heads.is_empty() || self.looks > most || over() {
                return None;
            }
            let mut aimed = Vec::with_capacity(heads.len());
            for head in heads {
                let first = aimed.len();
                if self.space.free && target != end {
                    let targets = self.targets(&head.place, order).into_iter();
                    aimed.extend(targets.map(|target| Head {
                        target,
                        ..head.clone()
                    }));
                }
                if aimed.len() == first {
                    aimed.push(Head { target, ..head });
                }
            }
            heads = self.layer(aimed, over);
            self.at += 1;
        }
        let best = heads.iter().min_by(|a, b| a.spent.total_cmp(&b.spent))?;
        let mut runs = Vec::new();
        let mut at = best.trail;
        while let Some(link) = at.expand() {
            let (from, task) = self.trail[link];
            runs.push(task);
            at = from;
        }
        runs.reverse();
        Some(runs)
    }

    /// The first few tasks in this order that can run for the first time once their inputs are in memory.
    fn targets(&self, place: &Place<W>, order: &[TaskId]) -> Vec<TaskId> {
        let model = self.space.model;
        let done = |t: TaskId| !model.has(t) || place.done.has(t);
        let ready = |t: TaskId| {
            model
                .inputs
                .of(t)
                .iter()
                .all(|i| done(model.producer[i.value]))
        };
        let open = order
            .iter()
            .copied()
            .filter(|&t| !place.done.has(t) && ready(t));
        open.take(TARGETS).collect()
    }

    /// From these states, the best states in which their targets have run. All states take their steps
    /// towards them side by side, so that those that drop what they have just made fall behind.
    fn layer(&mut self, heads: Vec<Head<W>>, over: Over<'_>) -> Vec<Head<W>> {
        let mut done = Best::default();
        let mut heads = heads;
        let mut steps = 0;
        let mut most = 0;
        while !heads.is_empty() && steps <= most + SLACK && !over() {
            let mut next = Best::default();
            self.ranked.clear();
            self.looks += heads.len();
            self.work += heads.len() as u64 * u64::from(self.space.model.tasks);
            for head in &heads {
                let target = head.target;
                let missing = self.missing(&head.place, target);
                if missing.is_empty() {
                    if !self.space.model.has(target) {
                        done.add(head.clone());
                    } else {
                        self.run(head, target, &Values::EMPTY, &mut done);
                    }
                    continue;
                }
                most = most.max(missing.len());
                let soon = missing.iter().fold(*self.space.reads(target), |soon, t| {
                    soon.or(self.space.reads(t))
                });
                let space = self.space;
                let ready = |&t: &TaskId| space.reads(t).within(&head.place.live);
                for t in missing.iter().filter(ready).take(READY) {
                    self.run(head, t, &soon, &mut next);
                }
            }
            heads = next.first(self.width);
            steps += 1;
        }
        done.first(self.width)
    }

    /// Tasks that must run again before `target` can run.
    fn missing(&self, place: &Place<W>, target: TaskId) -> Tasks<W> {
        let missing = self.space.reads(target).minus(&place.live);
        self.space.makers(missing, &place.live)
    }

    /// Runs `t` with several ways of making room for it, without dropping `soon` if possible.
    fn run(&mut self, head: &Head<W>, t: TaskId, soon: &Values<W>, into: &mut Best<W>) {
        let space = self.space;
        let lack = space.lack(&head.place, t);
        let mut ways = std::mem::take(&mut self.ways);
        ways.clear();
        if lack <= 0.0 {
            ways.push(Values::EMPTY);
        } else {
            self.make_room(head, t, lack, soon, &mut ways);
            if ways.is_empty() {
                self.make_room(head, t, lack, &Values::EMPTY, &mut ways);
            }
        }
        let mut done = head.place.done;
        done.add(t);
        let needed = match self.needed {
            Some((known, needed)) if known == done => needed,
            _ => space.needed(&done),
        };
        self.needed = Some((done, needed));
        for dropped in &ways {
            let place = space.after(&head.place, t, dropped, &needed);
            self.work += u64::from(space.model.tasks) * W as u64 / 4 + 1;
            if let Some((to_go, read)) = space.to_go(&place) {
                let spent = head.spent + space.model.cost[t];
                if spent + to_go >= self.below {
                    continue;
                }
                let rent = self.rent_of(&place, &read);
                let trail = self.trail.push((head.trail, t));
                into.add(Head {
                    place,
                    target: head.target,
                    spent,
                    seconds: spent + to_go + rent,
                    read,
                    trail: trail.into(),
                });
            }
        }
        self.ways = ways;
    }

    /// What holding the live values until their next uses is worth, or the cost of making them again if that
    /// is less.
    fn rent_of(&self, place: &Place<W>, read: &Values<W>) -> f64 {
        let model = self.space.model;
        let rent = |v: ValueId| {
            let again = model.cost[model.producer[v]];
            (model.bytes[v] * self.rent.of(v, self.at)).min(again)
        };
        place.live.and(read).iter().map(rent).sum()
    }

    /// Adds sets of values whose bytes make up for `lack`: the cheapest per byte, the same without one of the
    /// first few, and single large values.
    fn make_room(
        &mut self,
        head: &Head<W>,
        t: TaskId,
        lack: f64,
        soon: &Values<W>,
        ways: &mut Vec<Values<W>>,
    ) {
        let space = self.space;
        let place = &head.place;
        let bytes = |v: ValueId| space.model.bytes[v];
        let stay = space.reads(t).or(space.writes(t)).or(soon);
        let known = self.ranked.get(place).cloned();
        let ranked = known.unwrap_or_else(|| self.rank(head));
        let Scratch {
            droppable,
            chosen,
            single,
        } = &mut self.scratch;
        droppable.clear();
        droppable.extend(ranked.iter().filter(|&&(_, v)| !stay.has(v)));
        let mut add = |way: Values<W>| {
            if !ways.contains(&way) {
                ways.push(way);
            }
        };
        for k in 0..=droppable.len().min(WAYS / 2) {
            let without = k.checked_sub(1).map(|k| droppable[k].1);
            chosen.clear();
            let mut left = lack;
            for &(_, v) in droppable.iter().filter(|&&(_, v)| Some(v) != without) {
                if left <= 0.0 {
                    break;
                }
                chosen.push(v);
                left -= bytes(v);
            }
            if left > 0.0 {
                continue;
            }
            // The most expensive go first: a value that later ones made superfluous stays in memory.
            let mut spare = -left;
            for k in (0..chosen.len()).rev() {
                if bytes(chosen[k]) <= spare {
                    spare -= bytes(chosen[k]);
                    chosen.remove(k);
                }
            }
            add(Values::of(chosen.iter().copied()));
        }
        single.clear();
        let large = droppable.iter().filter(|&&(_, v)| bytes(v) >= lack);
        single.extend(large.map(|&(density, v)| (density * bytes(v), v)));
        single.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        for &(_, v) in single.iter().take(WAYS / 2) {
            add(Values::of([v]));
        }
    }

    /// The live values that can be made again or are never read, the one first whose bytes cost least.
    fn rank(&mut self, head: &Head<W>) -> Ranked {
        let bytes = &self.space.model.bytes;
        let mut ranked = Vec::new();
        for v in head.place.live.iter().filter(|&v| bytes[v] > 0.0) {
            if !head.read.has(v) {
                ranked.push((0.0, v));
            } else if let Some(seconds) = self.seconds_again(&head.place, v) {
                let worth = (seconds / bytes[v] - self.rent.of(v, self.at)).max(0.0);
                let worth = worth + 1e-3 * seconds / bytes[v];
                ranked.push((worth * self.rent.noise[v], v));
            }
        }
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        let ranked: Ranked = ranked.into();
        self.ranked.insert(head.place, Rc::clone(&ranked));
        ranked
    }

    /// Seconds to make a value again from what is in memory now; `None` if that is impossible.
    fn seconds_again(&mut self, place: &Place<W>, v: ValueId) -> Option<f64> {
        let space = self.space;
        let mut live = *place;
        live.live = live.live.minus(&Values::of([v]));
        let mut again = Tasks::<W>::EMPTY;
        let mut missing = Values::<W>::of([v]);
        let mut seconds = 0.0;
        while !missing.is_empty() {
            let mut next = Values::EMPTY;
            for v in missing.iter() {
                let t = space.model.producer[v];
                if !space.model.has(t) || !space.model.rerunnable[t] {
                    return None;
                }
                if !again.has(t) {
                    again.add(t);
                    seconds += space.model.cost[t];
                    next = next.or(&space.reads(t).minus(&live.live));
                }
            }
            missing = next;
            self.work += 2;
        }
        Some(seconds)
    }
}

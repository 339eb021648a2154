//! How the time of a plan with copies is bounded: the intervals between some moments, and in each the shares
//! of compute and of the queues of copies.
//!
//! The moments are the beginning and end of each row's first run, and the beginnings of some other first runs
//! of the chain. Each interval between two moments takes at least the compute in it, and at least the copies of
//! each queue in it. So for any shares of these lanes that sum to one in each interval, all seconds of compute
//! and copies, each times its lane's share in its interval, are together at most the makespan. A run or copy of
//! which only a range of intervals is known counts with the least share there, even if it is spread over them.
//!
//! What is known about copies follows from the rules of [`scrimp_plan::plan`]. A value that is absent at a row
//! was freed before the row, and so all copies out of it had ended. A value that comes back after a row takes
//! its bytes after the row's end, and its copy begins later.

use cranelift_entity::PrimaryMap;
use scrimp_plan::{TaskId, ValueId};

use super::order::{Chain, Place};
use crate::model::Model;
use crate::outside::{End, Outside, Way};

/// Moments beside rows: one whenever the first runs since the last moment take this share of all compute.
const LONGEST: f64 = 1.0 / 32.0;

/// The weight of load against a rule's, with load in units of an interval's mean compute.
const UNIT: f64 = 30.0;

/// What begins an interval.
#[derive(Clone, Copy)]
enum Start {
    Plan,
    /// The first run of a task of the chain that is no row, by its place there.
    Task(usize),
    /// A row's first run.
    Row(usize),
    /// The end of a row's first run.
    AfterRow(usize),
}

/// The intervals, and what surely lies in them.
pub(super) struct Lanes {
    /// Lanes per interval: compute, and the queues.
    pub count: usize,
    starts: Vec<Start>,
    /// By block: its first and last interval.
    blocks: Vec<(usize, usize)>,
    /// The first runs of tasks: the first and last interval in which they may be, and seconds.
    runs: Vec<(usize, usize, f64)>,
    /// By value: the first interval in which it may be copied out.
    made: PrimaryMap<ValueId, usize>,
    /// By value and block: the last interval in which a copy back of that block serves a first run.
    due: Vec<usize>,
    base: f64,
}

/// Seconds of one copy or run, by the cheapest lane and interval.
#[derive(Clone, Copy)]
pub(super) struct Charge {
    pub price: f64,
    /// The place in [`Lanes`]' shares.
    pub lane: usize,
    pub seconds: f64,
}

impl Charge {
    pub const FREE: Charge = Charge {
        price: 0.0,
        lane: 0,
        seconds: 0.0,
    };
    pub const NEVER: Charge = Charge {
        price: f64::INFINITY,
        lane: 0,
        seconds: 0.0,
    };

    fn or(self, other: Charge) -> Charge {
        if other.price < self.price {
            other
        } else {
            self
        }
    }
}

/// The cheapest interval of every range, at some shares.
#[derive(Default)]
pub(super) struct Cheapest {
    shares: Vec<f64>,
    intervals: usize,
    /// By lane, first and last interval.
    places: Vec<u32>,
}

impl Cheapest {
    /// The least price of some seconds of a lane in the intervals `first..=last`.
    fn charge(&self, first: usize, last: usize, lane: usize, seconds: f64) -> Charge {
        let at = (lane * self.intervals + first) * self.intervals + last;
        let lane = self.places[at] as usize;
        Charge {
            price: self.shares[lane] * seconds,
            lane,
            seconds,
        }
    }

    /// The cheapest copy of a value by one of these links.
    fn by_any(&self, ways: &[Way], v: ValueId, first: usize, last: usize) -> Charge {
        let by = |way: &Way| self.charge(first, last, 1 + way.queue, way.seconds[v]);
        ways.iter().map(by).fold(Charge::NEVER, Charge::or)
    }
}

/// Which interval is where.
struct Moments<'c> {
    chain: &'c Chain,
    /// By task of the chain: the interval of its run.
    during: Vec<usize>,
    is_row: Vec<bool>,
    last: usize,
}

impl Moments<'_> {
    /// The last interval before a task of the chain begins; that of its run, if the run begins no interval.
    fn before(&self, at: usize, starts: &[Start]) -> usize {
        let during = self.during[at];
        let begins =
            matches!(starts[during], Start::Task(first) | Start::Row(first) if first == at);
        during - usize::from(begins)
    }

    /// The first interval after a task of the chain has ended.
    fn after(&self, at: usize) -> usize {
        self.during[at] + usize::from(self.is_row[at])
    }

    /// The first and last interval in which a task may run.
    fn of(&self, place: Place, starts: &[Start]) -> (usize, usize) {
        if place.exact {
            let during = self.during[place.until];
            return (during, during);
        }
        (self.earliest(place), self.latest(place, starts))
    }

    /// The first interval in which a task at this place may begin.
    fn earliest(&self, place: Place) -> usize {
        match place.after.checked_sub(1) {
            Some(at) => self.after(at),
            None => 0,
        }
    }

    /// The last interval before a task at this place must have begun.
    fn latest(&self, place: Place, starts: &[Start]) -> usize {
        match place.until < self.chain.tasks.len() {
            true => self.before(place.until, starts),
            false => self.last,
        }
    }
}

impl Lanes {
    pub fn new(model: &Model, outside: &Outside, chain: &Chain, rows: &[usize]) -> Lanes {
        let (mut starts, mut during, mut is_row) = (vec![Start::Plan], Vec::new(), Vec::new());
        let base = model.base_cost();
        let (mut blocks, mut first, mut passed) = (Vec::new(), 0, 0.0);
        for (at, &task) in chain.tasks.iter().enumerate() {
            let row = rows.binary_search(&at).is_ok();
            is_row.push(row);
            if row {
                blocks.push((first, starts.len() - 1));
                starts.extend([Start::Row(at), Start::AfterRow(at)]);
                during.push(starts.len() - 2);
                (first, passed) = (starts.len() - 1, 0.0);
                continue;
            }
            if passed > LONGEST * base {
                starts.push(Start::Task(at));
                passed = 0.0;
            }
            passed += model.cost[task];
            during.push(starts.len() - 1);
        }
        let last = starts.len() - 1;
        blocks.push((first, last));
        let moments = Moments {
            chain,
            during,
            is_row,
            last,
        };
        let run = |t: TaskId| {
            let (first, last) = moments.of(chain.place(t), &starts);
            (first, last, model.cost[t])
        };
        let made = |v: ValueId| {
            let place = chain.place(model.producer[v]);
            match place.exact {
                true => moments.after(place.until),
                false => moments.earliest(place),
            }
        };
        let mut due = Vec::with_capacity(model.bytes.len() * blocks.len());
        for v in model.value_ids() {
            let readers = model.consumers.of(v).iter();
            let readers = readers.filter(|&&r| model.has(r) || outside.end[v] == End::Here);
            let readers = readers.map(|&r| chain.place(r));
            let readers: Vec<_> = readers
                .map(|place| (place.after, moments.latest(place, &starts)))
                .collect();
            for block in 0..blocks.len() {
                // Readers that run after the row before the block.
                let from = block.checked_sub(1).map_or(0, |row| rows[row] + 1);
                let after = readers.iter().filter(|reader| reader.0 >= from);
                due.push(after.map(|reader| reader.1).min().unwrap_or(last));
            }
        }
        Lanes {
            count: 1 + outside.queues,
            runs: model.task_ids().map(run).collect(),
            made: model.value_ids().map(made).collect(),
            due,
            base,
            starts,
            blocks,
        }
    }

    pub fn shares_len(&self) -> usize {
        self.starts.len() * self.count
    }

    /// Shares that give everything to compute, or before and after a row of the chain the given weights to
    /// compute and the rest to copies out and copies back.
    pub fn shares(&self, outside: &Outside, step: Option<(usize, [f64; 2])>) -> Vec<f64> {
        let mut shares = vec![0.0; self.starts.len() * self.count];
        for (start, lanes) in self.starts.iter().zip(shares.chunks_exact_mut(self.count)) {
            lanes[0] = 1.0;
            let Some((row, weights)) = step else { continue };
            let (weight, pool) = match *start {
                Start::Row(at) if at == row => continue,
                Start::Plan => (weights[0], &outside.pools[0]),
                Start::Task(at) | Start::Row(at) if at < row => (weights[0], &outside.pools[0]),
                Start::AfterRow(at) if at < row => (weights[0], &outside.pools[0]),
                _ => (weights[1], &outside.pools[1]),
            };
            if !pool.is_empty() {
                lanes[0] = weight;
                let of_queue = lanes[1..].iter_mut().zip(pool);
                of_queue.for_each(|(lane, part)| *lane = (1.0 - weight) * part);
            }
        }
        shares
    }

    /// The same shares for lanes with other rows.
    pub fn carried(&self, shares: &[f64], to: &Lanes) -> Vec<f64> {
        // The interval that holds a moment is the last one that begins by then.
        let key = |start: &Start| match *start {
            Start::Plan => (0, 0),
            Start::Task(at) => (at, 0),
            Start::Row(at) => (at, 1),
            Start::AfterRow(at) => (at, 2),
        };
        let mut carried = Vec::with_capacity(to.starts.len() * to.count);
        for start in &to.starts {
            let k = self.starts.partition_point(|s| key(s) <= key(start)) - 1;
            // After a row that is new, time goes on as before it.
            carried.extend_from_slice(&shares[k * self.count..(k + 1) * self.count]);
        }
        carried
    }

    /// The seconds of compute that are not in reruns, at these shares, beyond all compute at full price. Adds
    /// them to the load.
    pub fn base(&self, cheapest: &Cheapest, load: &mut [f64]) -> f64 {
        load.fill(0.0);
        let mut sum = -self.base;
        for &(first, last, seconds) in &self.runs {
            let charge = cheapest.charge(first, last, 0, seconds);
            load[charge.lane] += seconds;
            sum += charge.price;
        }
        sum
    }

    /// The cheapest interval of every range, by lane.
    pub fn cheapest(&self, shares: &[f64]) -> Cheapest {
        let intervals = self.starts.len();
        let mut places = vec![0; self.count * intervals * intervals];
        for lane in 0..self.count {
            for first in 0..intervals {
                let mut best = first * self.count + lane;
                let row = (lane * intervals + first) * intervals;
                for last in first..intervals {
                    let place = last * self.count + lane;
                    if shares[place] < shares[best] {
                        best = place;
                    }
                    places[row + last] = best as u32;
                }
            }
        }
        Cheapest {
            shares: shares.to_vec(),
            intervals,
            places,
        }
    }

    /// A run that makes a value again in a block.
    pub fn rerun(&self, cheapest: &Cheapest, block: usize, seconds: f64) -> Charge {
        if seconds.is_infinite() {
            return Charge::NEVER;
        }
        let (first, last) = self.blocks[block];
        cheapest.charge(first, last, 0, seconds)
    }

    /// By block: a copy out of a value that ends before the row after the block; for the last block, before the
    /// plan ends.
    pub fn out(&self, cheapest: &Cheapest, ways: &[Way], v: ValueId, charges: &mut [Charge]) {
        let mut next = self.made[v];
        let mut best = Charge::NEVER;
        for (&(_, last), charge) in self.blocks.iter().zip(charges) {
            if next <= last {
                best = cheapest.by_any(ways, v, next, last).or(best);
                next = last + 1;
            }
            *charge = best;
        }
    }

    /// By block: a copy back of a value that begins in the block.
    pub fn back(&self, cheapest: &Cheapest, ways: &[Way], v: ValueId, charges: &mut [Charge]) {
        let due = &self.due[v.as_u32() as usize * self.blocks.len()..];
        for (block, charge) in charges.iter_mut().enumerate() {
            let (first, last) = (self.blocks[block].0, due[block]);
            *charge = cheapest.by_any(ways, v, first, last.max(first));
        }
    }

    /// The weight of a squared second of load in the direction of a step.
    pub fn unit(&self) -> f64 {
        let mean = self.base / self.starts.len() as f64;
        UNIT / mean.powi(2).max(f64::MIN_POSITIVE)
    }

    /// Makes the slopes of each interval sum to zero.
    pub fn center(&self, slopes: &mut [f64]) {
        for lanes in slopes.chunks_exact_mut(self.count) {
            let mean = lanes.iter().sum::<f64>() / lanes.len() as f64;
            lanes.iter_mut().for_each(|slope| *slope -= mean);
        }
    }

    /// Moves the shares of each interval to the nearest ones that are not negative and sum to one.
    pub fn project(&self, shares: &mut [f64]) {
        let mut sorted = Vec::with_capacity(self.count);
        for lanes in shares.chunks_exact_mut(self.count) {
            sorted.clear();
            sorted.extend_from_slice(lanes);
            sorted.sort_by(|a, b| b.total_cmp(a));
            let (mut sum, mut excess) = (0.0, 0.0);
            for (k, share) in sorted.iter().enumerate() {
                sum += share;
                let level = (sum - 1.0) / (k + 1) as f64;
                if *share > level {
                    excess = level;
                }
            }
            lanes
                .iter_mut()
                .for_each(|share| *share = (*share - excess).max(0.0));
            // Rounding must not make them sum to more than one.
            let sum = lanes.iter().sum::<f64>().max(1.0);
            lanes.iter_mut().for_each(|share| *share /= sum);
        }
    }
}

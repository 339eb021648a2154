//! The items to pack, each with a size and a range of sections, and how a set of items splits into parts that
//! can be packed independently.

use scrimp_plan::Interval;

/// Intervals that take room, by ascending start. Time is counted in sections. A section is a moment at which
/// the set of held items is included in no other moment's set. Two items overlap in time if and only if they
/// share a section.
#[derive(Clone, Debug, Default)]
pub(crate) struct Items {
    /// The sections `[from, to)` during which the item is held.
    pub from: Vec<u32>,
    pub to: Vec<u32>,
    pub bytes: Vec<u64>,
    /// The index of the item's interval.
    pub origin: Vec<u32>,
    /// Bytes held per section.
    pub load: Vec<u64>,
}

impl Items {
    /// Makes items of all intervals with bytes and a duration.
    pub fn new(intervals: &[Interval]) -> Items {
        let held = |k: &u32| {
            let i = &intervals[*k as usize];
            i.bytes > 0 && i.start < i.end
        };
        let origin: Vec<u32> = (0..intervals.len() as u32).filter(held).collect();
        let spans: Vec<(u64, u64, u64)> = origin
            .iter()
            .map(|&k| {
                let i = &intervals[k as usize];
                (i.start, i.end, i.bytes)
            })
            .collect();
        Items::of_spans(&spans, &origin)
    }

    /// A part of the items, with its own sections.
    fn part(&self, members: &[u32]) -> Items {
        let spans: Vec<(u64, u64, u64)> = members
            .iter()
            .map(|&k| {
                let k = k as usize;
                (
                    u64::from(self.from[k]),
                    u64::from(self.to[k]),
                    self.bytes[k],
                )
            })
            .collect();
        let origin: Vec<u32> = members.iter().map(|&k| self.origin[k as usize]).collect();
        Items::of_spans(&spans, &origin)
    }

    /// Items from starts, ends and bytes.
    fn of_spans(spans: &[(u64, u64, u64)], origin: &[u32]) -> Items {
        let mut order: Vec<u32> = (0..spans.len() as u32).collect();
        order.sort_unstable_by_key(|&k| (spans[k as usize], origin[k as usize]));
        let spans: Vec<(u64, u64, u64)> = order.iter().map(|&k| spans[k as usize]).collect();
        let moments = widest_moments(&spans);
        let mut items = Items {
            origin: order.iter().map(|&k| origin[k as usize]).collect(),
            load: vec![0; moments.len()],
            ..Items::default()
        };
        // The load starts as differences: the bytes that begin to be held, less those that end.
        let mut differences = vec![0i128; moments.len() + 1];
        for &(start, end, bytes) in &spans {
            let from = moments.partition_point(|&m| m < start);
            let to = moments.partition_point(|&m| m < end);
            differences[from] += i128::from(bytes);
            differences[to] -= i128::from(bytes);
            items.from.push(from as u32);
            items.to.push(to as u32);
            items.bytes.push(bytes);
        }
        let mut held = 0i128;
        for (load, difference) in items.load.iter_mut().zip(differences) {
            held += difference;
            *load = u64::try_from(held).unwrap_or(u64::MAX);
        }
        items
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn sections(&self) -> usize {
        self.load.len()
    }

    /// Bytes held at the worst moment.
    pub fn live_bytes(&self) -> u64 {
        self.load.iter().copied().max().unwrap_or(0)
    }

    /// The number of sections during which the item is held.
    pub fn width(&self, k: usize) -> u64 {
        u64::from(self.to[k] - self.from[k])
    }

    /// Sections times bytes.
    pub fn area(&self, k: usize) -> u64 {
        self.bytes[k].saturating_mul(self.width(k))
    }

    /// Per item, the largest load of its sections.
    pub fn crowds(&self) -> Vec<u64> {
        // A sparse table holds maxima of stretches whose lengths are powers of two.
        let mut table = vec![self.load.clone()];
        while let Some(last) = table.last() {
            let step = 1 << (table.len() - 1);
            if 2 * step > self.load.len() {
                break;
            }
            let next = (0..=self.load.len() - 2 * step).map(|s| last[s].max(last[s + step]));
            let next = next.collect();
            table.push(next);
        }
        (0..self.len())
            .map(|k| {
                let (from, to) = (self.from[k] as usize, self.to[k] as usize);
                let level = (to - from).ilog2() as usize;
                table[level][from].max(table[level][to - (1 << level)])
            })
            .collect()
    }

    /// The number of pairs of items that overlap in time.
    pub fn meetings(&self) -> u64 {
        let mut ends = vec![0u32; self.sections() + 1];
        let (mut open, mut pairs, mut section) = (0u64, 0u64, 0);
        for k in 0..self.len() {
            while section < self.from[k] as usize {
                section += 1;
                open -= u64::from(ends[section]);
            }
            pairs += open;
            open += 1;
            ends[self.to[k] as usize] += 1;
        }
        pairs
    }

    /// Per item, the items with which it overlaps in time.
    pub fn neighbours(&self) -> Vec<Vec<u32>> {
        let mut neighbours = vec![Vec::new(); self.len()];
        let mut open: Vec<u32> = Vec::new();
        for k in 0..self.len() {
            open.retain(|&o| self.to[o as usize] > self.from[k]);
            for &o in &open {
                neighbours[o as usize].push(k as u32);
            }
            neighbours[k].extend_from_slice(&open);
            open.push(k as u32);
        }
        neighbours
    }
}

/// The moments at which a maximal set of spans, sorted by start, is held: each is the last start before an
/// end.
fn widest_moments(spans: &[(u64, u64, u64)]) -> Vec<u64> {
    let mut ends: Vec<u64> = spans.iter().map(|&(_, end, _)| end).collect();
    ends.sort_unstable();
    let mut moments: Vec<u64> = Vec::new();
    let mut ended = 0;
    for &(start, _, _) in spans {
        let before = ended;
        while ended < ends.len() && ends[ended] <= start {
            ended += 1;
        }
        match moments.last_mut() {
            // Nothing has ended since, so the later set includes the earlier one.
            Some(last) if ended == before => *last = start,
            _ => moments.push(start),
        }
    }
    moments
}

/// Items handled per item before sets are left whole.
const WORK_PER_ITEM: usize = 50;

/// A part that can be packed on its own, above `base`.
pub(crate) struct Part {
    pub items: Items,
    pub base: u64,
}

/// Splits items into independent parts. Items that are held throughout go to the bottom, which loses nothing.
/// The rest is split at moments across which nothing is held, and each part is split again, up to a limited
/// depth.
///
/// Returns the parts, and the origin and offset of the items that are already placed.
pub(crate) fn take_apart(items: Items) -> (Vec<Part>, Vec<(u32, u64)>) {
    let mut parts = Vec::new();
    let mut placed = Vec::new();
    let mut work = WORK_PER_ITEM * items.len() + 1_000_000;
    let mut todo = vec![Part { items, base: 0 }];
    while let Some(Part { items, mut base }) = todo.pop() {
        if items.len() > work {
            parts.push(Part { items, base });
            continue;
        }
        work -= items.len();
        let sections = items.sections() as u32;
        let mut group: Vec<u32> = Vec::new();
        let mut groups = Vec::new();
        let mut until = 0;
        for k in 0..items.len() {
            if items.from[k] == 0 && items.to[k] == sections {
                placed.push((items.origin[k], base));
                base = base.saturating_add(items.bytes[k]);
                continue;
            }
            if items.from[k] >= until && !group.is_empty() {
                groups.push(std::mem::take(&mut group));
            }
            until = until.max(items.to[k]);
            group.push(k as u32);
        }
        if group.len() == items.len() {
            parts.push(Part { items, base });
            continue;
        }
        groups.push(group);
        let whole = groups.iter().filter(|g| !g.is_empty());
        todo.extend(whole.map(|g| Part {
            items: items.part(g),
            base,
        }));
    }
    (parts, placed)
}

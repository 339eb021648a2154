//! One slab of memory for the requests of a training step, which come in a known order: each is served
//! at the offset that was worked out for it. What isn't expected, or whose place is taken, is for the
//! caller to get elsewhere, and counted. Only numbers here: no memory is touched.

use std::collections::{BTreeMap, HashMap};

/// How far ahead a request is looked for if others were expected before it.
const AHEAD: usize = 16;

/// A request that is expected: bytes, and where in the slab.
pub type Expected = (u64, u64);

/// A request that was seen: bytes, and the events (requests and releases) at which it began and ended.
pub type Seen = (u64, u64, u64);

/// What happened during a step.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Served at their offsets.
    pub served: u64,
    /// Expected, but something else was there.
    pub taken: u64,
    /// Not served, for either reason.
    pub elsewhere: u64,
    /// Most bytes at once of those that weren't served.
    pub outside: u64,
}

/// The slab's range of addresses, and the stream whose order makes it safe to use them again.
#[derive(Clone, Copy)]
pub struct Range {
    pub base: usize,
    pub bytes: u64,
    pub stream: usize,
}

/// A step that is under way.
#[derive(Default)]
struct Step {
    table: Vec<Expected>,
    next: usize,
    counts: Counts,
    outside: u64,
    /// Without a table, requests are written down.
    seen: Vec<Seen>,
    open: HashMap<usize, usize>,
    events: u64,
}

#[derive(Default)]
pub struct Slab {
    pub range: Option<Range>,
    /// Bytes in use in the slab, by offset.
    live: BTreeMap<u64, u64>,
    step: Option<Step>,
}

impl Slab {
    /// What is in use in the slab: offsets and bytes.
    pub fn live(&self) -> Vec<(u64, u64)> {
        self.live.iter().map(|(&at, &bytes)| (at, bytes)).collect()
    }

    /// Begins a step that will ask for what the table says; with an empty table it is only watched.
    pub fn begin(&mut self, table: Vec<Expected>) {
        self.step = Some(Step {
            table,
            ..Step::default()
        });
    }

    /// Ends the step; gives its counts and, if it was watched, its requests.
    pub fn end(&mut self) -> (Counts, Vec<Seen>) {
        let Some(mut step) = self.step.take() else {
            return (Counts::default(), Vec::new());
        };
        if step.table.is_empty() {
            for &request in step.open.values() {
                step.seen[request].2 = step.events;
            }
        }
        (step.counts, step.seen)
    }

    /// The address for a request, if it is to be served from the slab.
    pub fn serve(&mut self, bytes: u64, stream: usize) -> Option<usize> {
        let step = self.step.as_mut()?;
        let range = self.range.filter(|range| range.stream == stream)?;
        let ahead = step.table.get(step.next..)?;
        let place = ahead
            .iter()
            .take(AHEAD)
            .position(|&(size, _)| size == bytes)?;
        let (_, at) = ahead[place];
        step.next += place + 1;
        let end = at.checked_add(bytes)?;
        let free = end <= range.bytes
            && self
                .live
                .range(..end)
                .next_back()
                .is_none_or(|(&below, &size)| below + size <= at);
        if !free {
            step.counts.taken += 1;
            return None;
        }
        step.counts.served += 1;
        self.live.insert(at, bytes);
        Some(range.base + usize::try_from(at).ok()?)
    }

    /// Notes a request that got its memory, in the slab or elsewhere.
    pub fn note(&mut self, address: usize, bytes: u64, served: bool) {
        let Some(step) = self.step.as_mut() else {
            return;
        };
        if step.table.is_empty() {
            step.open.insert(address, step.seen.len());
            step.seen.push((bytes, step.events, 0));
            step.events += 1;
        } else if !served {
            step.open.insert(address, 0);
            step.outside += bytes;
            step.counts.outside = step.counts.outside.max(step.outside);
            step.counts.elsewhere += 1;
        }
    }

    /// Notes that memory is given back; says whether it was the slab's.
    pub fn release(&mut self, address: usize, bytes: u64) -> bool {
        if let Some(step) = self.step.as_mut()
            && let Some(request) = step.open.remove(&address)
        {
            if step.table.is_empty() {
                step.seen[request].2 = step.events;
                step.events += 1;
            } else {
                step.outside -= bytes;
            }
        }
        self.offset(address)
            .is_some_and(|at| self.live.remove(&at).is_some())
    }

    /// Where in the slab an address lies.
    fn offset(&self, address: usize) -> Option<u64> {
        let range = self.range?;
        let at = address.checked_sub(range.base)? as u64;
        (at < range.bytes).then_some(at)
    }
}

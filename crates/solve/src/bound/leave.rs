//! Where it is cheapest to leave memory.

use super::stays::Stay;

/// Finds the cheapest row at which to leave memory, for descending `j` and one next block.
pub(super) struct Leave {
    best: (f64, usize),
    /// Rows from this one on have been considered.
    seen: usize,
    last: usize,
}

impl Leave {
    pub fn new(last: usize) -> Leave {
        Leave {
            best: (f64::INFINITY, 0),
            seen: last + 1,
            last,
        }
    }

    /// The least rent up to leaving memory, infinite if leaving is impossible, and the `l` that achieves it.
    pub fn cheapest(
        &mut self,
        stay: &Stay,
        rent: &[f64],
        j: usize,
        next: usize,
        first: bool,
    ) -> (f64, usize) {
        let low = j.max(stay.forced[next] as usize);
        if let Some(gone) = stay.gone
            && (j < gone.from || first)
            && gone.cap < self.last
        {
            let range = low..=gone.cap;
            let rows = range.map(|l| (rent[l], l));
            return rows.fold((f64::INFINITY, 0), |a, b| if b.0 < a.0 { b } else { a });
        }
        while self.seen > low {
            self.seen -= 1;
            if rent[self.seen] < self.best.0 {
                self.best = (rent[self.seen], self.seen);
            }
        }
        self.best
    }
}

//! What leaves a device that is short of bytes, and how: see [`super`].

use super::{Decoder, Next};

/// How a value may leave.
#[derive(Clone, Copy, Debug)]
enum Exit {
    Drop,
    Store(usize),
}

impl Decoder<'_> {
    /// Lets values go until there is room on a device.
    pub(super) fn make_room(&mut self, d: usize, need: f64) {
        let room = self.room[d];
        while self.level[d] + need > room && !self.system.concurrent[d] {
            let excess = self.level[d] + need - room;
            let Some((v, exit)) = self.victim(d, excess) else {
                return;
            };
            if let Exit::Store(e) = exit {
                self.copy(v, d, e);
            }
            self.drop(v, d);
        }
    }

    /// The value whose leaving costs the least, and how it leaves.
    fn victim(&self, d: usize, excess: f64) -> Option<(usize, Exit)> {
        let mut best: Option<(f64, f64, usize, Exit)> = None;
        for &v in &self.on[d] {
            let here = &self.here[self.system.cell(v, d)];
            if here.pins > 0 {
                continue;
            }
            let Some((cost, gap, exit)) = self.leaving(v, d) else {
                continue;
            };
            let freed = self.system.held(v, d).min(excess);
            // Among values that cost nothing, the one that was copied out first has surely left.
            let tie = match (cost > 0.0, here.sent) {
                (true, _) => -gap,
                (false, true) => f64::from(here.touched),
                (false, false) => -1.0,
            };
            let score = cost / (freed * gap);
            if best.is_none_or(|b| (score, tie) < (b.0, b.1)) {
                best = Some((score, tie, v, exit));
            }
        }
        best.map(|(.., v, exit)| (v, exit))
    }

    /// What it costs to let a value leave, the runs until it is used next, and how it leaves best.
    fn leaving(&self, v: usize, d: usize) -> Option<(f64, f64, Exit)> {
        let s = self.system;
        let here = match self.next(v, d) {
            Next::Read(i) => Some(i),
            Next::Make(_) | Next::Never => None,
        };
        let Some((read, reader)) = self.next_read(v) else {
            return Some((0.0, 1.0, Exit::Drop));
        };
        let gap = |i: usize| (i.max(self.at) - self.at + 1) as f64;
        let others = (0..s.devices).filter(|&e| e != d && self.is_on(v, e));
        let Some(i) = here else {
            if others.clone().next().is_some() {
                return Some((0.0, 1.0, Exit::Drop));
            }
            if let Next::Make(i) = self.next(v, d)
                && i <= read
            {
                return Some((0.0, 1.0, Exit::Drop));
            }
            return self.storing(v, d, reader.unwrap_or(d), gap(read));
        };
        let back = others
            .filter_map(|e| s.copying(v, e, d))
            .min_by(f64::total_cmp);
        match back {
            Some(seconds) => Some((seconds, gap(i), Exit::Drop)),
            None => self.storing(v, d, d, gap(i)),
        }
    }

    /// The cheaper of storing a value for its next reader and making it again there.
    fn storing(&self, v: usize, d: usize, reader: usize, gap: f64) -> Option<(f64, f64, Exit)> {
        let s = self.system;
        let fits =
            |e: usize| self.level[e] + s.held(v, e) <= self.room[e] && !self.is_replaced(v, e);
        let targets = (0..s.devices).filter(|&e| e != d && !self.is_on(v, e) && fits(e));
        let stored = targets
            .filter_map(|e| {
                let out = s.wire(d, e)?.seconds[v];
                // A copy to the next reader is needed anyway.
                let seconds = if e == reader {
                    0.0
                } else {
                    out + s.copying(v, e, reader)?
                };
                Some((seconds, e))
            })
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let again = s.producer[v].and_then(|t| self.again(t, reader, 4));
        match (stored, again) {
            (Some((seconds, e)), again) if again.is_none_or(|again| seconds <= again) => {
                Some((seconds, gap, Exit::Store(e)))
            }
            (_, Some(seconds)) => Some((seconds, gap, Exit::Drop)),
            _ => None,
        }
    }

    /// Seconds of running a task again on a device, with what it needs.
    pub(super) fn again(&self, t: usize, d: usize, depth: usize) -> Option<f64> {
        let s = self.system;
        if depth == 0 || !s.rerunnable[t] || self.ran[t] != Some(s.arithmetic[d]) {
            return None;
        }
        let way = s.way(t, d).filter(|way| way.resident == 0.0)?;
        let mut seconds = way.seconds;
        for &(v, _) in &s.inputs[t] {
            // An input that nothing reads later will be gone by then.
            let stays = self.next_read(v).is_some();
            let there = (0..s.devices).filter(|&e| stays && self.is_on(v, e));
            let copied = there
                .filter_map(|e| s.copying(v, e, d))
                .min_by(f64::total_cmp);
            seconds += match copied {
                Some(seconds) => seconds,
                None => self.again(s.producer[v]?, d, depth - 1)?,
            };
        }
        Some(seconds)
    }
}

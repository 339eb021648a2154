//! Which values are on each device while the list is walked, and the bytes that they take: see [`super`].

use super::{Act, Decoder, Here, Next};
use crate::devices::system::End;

impl Decoder<'_> {
    /// Records the bytes in use on a device during an act.
    pub(super) fn note(&mut self, d: usize, key: u32, level: f64) {
        let (room, all) = (self.room[d], self.system.room[d]);
        if room.is_finite() {
            self.events[d].push((key, level));
            if level > room {
                self.over += (level - room) / all.max(1.0);
                self.short[d] = self.short[d].max(all - room + level);
            }
        }
    }

    pub(super) fn put(&mut self, v: usize, d: usize, key: u32) {
        let cell = self.system.cell(v, d);
        let slot = self.on[d].len() as u32;
        let pins = self.here[cell].pins;
        self.here[cell] = Here {
            present: true,
            sent: false,
            since: key,
            touched: key,
            slot,
            pins,
        };
        if self.system.held(v, d) > 0.0 {
            self.on[d].push(v);
        }
    }

    pub(super) fn remove(&mut self, v: usize, d: usize) {
        let cell = self.system.cell(v, d);
        self.here[cell].present = false;
        if self.system.held(v, d) > 0.0 {
            let slot = self.here[cell].slot as usize;
            self.on[d].swap_remove(slot);
            if let Some(&moved) = self.on[d].get(slot) {
                let moved = self.system.cell(moved, d);
                self.here[moved].slot = slot as u32;
            }
        }
    }

    #[inline]
    pub(super) fn is_on(&self, v: usize, d: usize) -> bool {
        self.here[self.system.cell(v, d)].present
    }

    /// Whether a later value has the bytes of this one at home, if that is the device. It can't come back there.
    pub(super) fn is_replaced(&self, v: usize, d: usize) -> bool {
        self.system
            .replacing(v, d)
            .any(|later| self.is_on(later, d))
    }

    pub(super) fn next(&self, v: usize, d: usize) -> Next {
        let cell = self.system.cell(v, d);
        let k = self.cursor[cell];
        if k == self.first[cell + 1] {
            return match self.system.end[v] {
                End::On(at) if at == d => Next::Read(self.end),
                _ => Next::Never,
            };
        }
        let entry = self.entries[k as usize];
        let i = (entry / 2) as usize;
        match entry % 2 {
            0 => Next::Read(i),
            _ => Next::Make(i),
        }
    }

    /// The next run that reads a value, with its device; the end if the value is kept anywhere.
    pub(super) fn next_read(&self, v: usize) -> Option<(usize, Option<usize>)> {
        let reads = (0..self.system.devices).filter_map(|d| match self.next(v, d) {
            Next::Read(i) => Some((i, Some(d))),
            _ => None,
        });
        let kept = (self.system.end[v] == End::Anywhere).then_some((self.end, None));
        reads.chain(kept).min()
    }

    /// Frees a value that nothing needs any more.
    pub(super) fn settle(&mut self, v: usize) {
        if self.system.bytes[v] == 0.0 || self.next_read(v).is_some() {
            return;
        }
        for d in 0..self.system.devices {
            let here = self.here[self.system.cell(v, d)];
            if here.present && !here.sent && here.pins == 0 {
                self.drop(v, d);
            }
        }
    }

    /// Lets a value's bytes go: after its last use, or now if a copy has read it.
    pub(super) fn drop(&mut self, v: usize, d: usize) {
        let cell = self.system.cell(v, d);
        let bytes = match self.system.concurrent[d] {
            true => 0.0,
            false => self.system.held(v, d),
        };
        self.remove(v, d);
        if self.here[cell].sent && self.room[d].is_finite() {
            // The bytes are in use until now.
            self.events[d].push((self.clock, self.level[d]));
        }
        self.level[d] -= bytes;
        if self.here[cell].sent {
            self.here[cell].touched = self.clock;
            let act = Act::Release {
                value: v,
                device: d,
            };
            self.keyed.push((self.clock, act));
            return;
        }
        let touched = self.here[cell].touched;
        for event in self.events[d].iter_mut().rev() {
            if event.0 <= touched {
                break;
            }
            event.1 -= bytes;
        }
    }

    /// Copies a value over a link, as early as its source and the destination's bytes allow.
    pub(super) fn copy(&mut self, v: usize, from: usize, to: usize) {
        let s = self.system;
        let bytes = s.held(v, to);
        let (source, target) = (s.cell(v, from), s.cell(v, to));
        let mut key = self.here[source].since.max(self.here[target].touched);
        for old in s.replaced(v, to).filter(|&old| self.is_on(old, to)) {
            // A second run elsewhere may read it after the run that overwrote it.
            key = key.max(self.here[s.cell(old, to)].touched);
        }
        self.level[to] += bytes;
        if s.room[to].is_finite() && bytes > 0.0 {
            let room = self.room[to];
            let events = &mut self.events[to];
            let mut k = events.len();
            while k > 0 && events[k - 1].0 > key {
                if events[k - 1].1 + bytes > room {
                    key = events[k - 1].0;
                    break;
                }
                k -= 1;
                events[k].1 += bytes;
            }
            if k < events.len() {
                let level = events[k].1;
                events.insert(k, (key, level));
            } else {
                self.note(to, key, self.level[to]);
            }
        }
        let here = &mut self.here[source];
        here.touched = here.touched.max(key);
        here.sent = s.computes[from] && !s.concurrent[from];
        for old in s.replaced(v, to) {
            let sent = self.here[s.cell(old, to)].sent;
            if self.is_on(old, to) {
                self.remove(old, to);
                let act = Act::Release {
                    value: old,
                    device: to,
                };
                self.keyed.extend(sent.then_some((key, act)));
            }
        }
        self.put(v, to, key);
        self.keyed.push((key, Act::Copy { value: v, from, to }));
    }

    pub(super) fn pin(&mut self, v: usize, d: usize, by: i32) {
        let cell = self.system.cell(v, d);
        self.here[cell].pins = self.here[cell].pins.wrapping_add_signed(by);
    }
}

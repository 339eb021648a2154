//! Events of a value: the runs that write it and read it.

use cranelift_entity::PrimaryMap;

use crate::ids::{Position, Run};

/// A run that touches a value, and whether it writes or reads the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event(u32);

impl Event {
    const WRITE: u32 = 1 << 31;

    pub fn read(r: Run) -> Event {
        Event(r.as_u32())
    }

    pub fn write(r: Run) -> Event {
        Event(r.as_u32() | Event::WRITE)
    }

    #[inline]
    pub fn run(self) -> Run {
        Run::from_u32(self.0 & !Event::WRITE)
    }

    #[inline]
    pub fn writes(self) -> bool {
        self.0 & Event::WRITE != 0
    }
}

/// Inserts an event in order of position.
#[inline]
pub(super) fn insert_event(list: &mut Vec<Event>, e: Event, pos: &PrimaryMap<Run, Position>) {
    let p = pos[e.run()];
    let at = list
        .iter()
        .rposition(|x| pos[x.run()] < p)
        .map_or(0, |i| i + 1);
    list.insert(at, e);
}

//! Where other memories have room for one value more, if they may run out of it.

use cranelift_entity::EntityRef;
use scrimp_plan::ValueId;

use crate::ids::Position;
use crate::model::Model;
use crate::search::levels::Levels;
use crate::search::state::State;

/// What each memory holds by position, unless it has room for any one value more everywhere.
///
/// A memory holds a value from the last touch before it leaves until it is brought for the last time, and what must
/// end in the memory until the end.
pub(super) struct Rooms {
    held: Vec<Option<Levels>>,
    /// The bytes of the largest value that may move.
    largest: f64,
    /// By memory, the bytes of values that end there and aren't given there.
    ending: Vec<f64>,
}

impl Rooms {
    pub fn new(model: &Model) -> Rooms {
        let copies = &model.copies;
        let movable = model.value_ids().filter(|&v| copies.may_move(v));
        let ending = (0..copies.memories.len()).map(|memory| {
            let ends = |&v: &ValueId| copies.is_there(memory, v) && !copies.rests(memory, v);
            let values = model.value_ids().filter(ends);
            values.map(|v| model.bytes[v]).sum()
        });
        Rooms {
            held: Vec::new(),
            largest: movable.map(|v| model.bytes[v]).fold(0.0, f64::max),
            ending: ending.collect(),
        }
    }

    /// Notes what the memories hold.
    pub fn survey(&mut self, state: &State<'_>) {
        self.held.clear();
        for (memory, what) in state.model.copies.memories.iter().enumerate() {
            let most = self.ending[memory] + state.sent(memory) + self.largest;
            self.held
                .push((most > what.room).then(|| held(state, memory)));
        }
    }

    /// Whether a memory has room for bringing a value to `p`, besides what it is brought to already.
    pub fn has(&self, state: &State<'_>, memory: usize, v: ValueId, p: Position) -> bool {
        let Some(held) = self.held.get(memory).and_then(Option::as_ref) else {
            return true;
        };
        let model = state.model;
        let (copies, what) = (&model.copies, &model.copies.memories[memory]);
        let from = match state.runs(copies.bringing(memory, v)).last() {
            _ if copies.kept[v] == Some(memory) => return true,
            Some(&last) => state.pos(last),
            None if copies.rests(memory, v) => return true,
            None => left(state, v, p),
        };
        held.most(from.index(), p.index()) + model.bytes[v] <= what.room + what.resting
    }
}

/// The last position before `p` that touches the first instance of a value, or the one that makes it if the buffer
/// is taken over.
fn left(state: &State<'_>, v: ValueId, p: Position) -> Position {
    let left = state.first_left(v, p);
    left.or(state.events_begin(v)).unwrap_or(Position::FIRST)
}

fn held(state: &State<'_>, memory: usize) -> Levels {
    let model = state.model;
    let copies = &model.copies;
    let mut change = vec![0.0; state.len() + 1];
    for v in model.value_ids() {
        let last = state.runs(copies.bringing(memory, v)).last();
        if last.is_none() && !copies.is_there(memory, v) {
            continue;
        }
        let from = match copies.rests(memory, v) {
            true => Position::FIRST,
            false => left(state, v, state.end()),
        };
        let to = match last {
            Some(&last) if copies.kept[v] != Some(memory) => state.pos(last),
            _ => state.end(),
        };
        change[from.index()] += model.bytes[v];
        change[to.index()] -= model.bytes[v];
    }
    let mut level = 0.0;
    let levels = change[..state.len()].iter().map(|change| {
        level += change;
        level
    });
    Levels::new(levels.collect())
}

//! A packing: offsets of items, and the size of the arena that they take.

use super::items::Items;

/// A packing of [`Items`].
#[derive(Clone, Debug)]
pub(super) struct Packing {
    pub offsets: Vec<u64>,
    pub arena: u64,
}

impl Packing {
    pub fn new(items: &Items, offsets: Vec<u64>) -> Packing {
        let tops = offsets.iter().zip(&items.bytes);
        let arena = tops.map(|(at, bytes)| at.saturating_add(*bytes)).max();
        Packing {
            arena: arena.unwrap_or(0),
            offsets,
        }
    }

    /// Replaces this packing by another if that one is lower.
    pub fn improve(&mut self, other: Packing) {
        if other.arena < self.arena {
            *self = other;
        }
    }
}

//! Ids of the sequences that planners edit. Tasks and values keep the ids of the problem.

use std::ops::{Add, Sub};

use cranelift_entity::{EntityRef, entity_impl};

/// Names a run as long as it is in a sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct Run(u32);
entity_impl!(Run, "run");

/// A place in a sequence of runs, counted from the start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct Position(u32);
entity_impl!(Position, "position");

impl Position {
    /// The place of the first run of a sequence.
    pub const FIRST: Position = Position(0);

    /// The positions from this one up to, but not including, `end`.
    #[inline]
    pub fn until(
        self,
        end: Position,
    ) -> impl DoubleEndedIterator<Item = Position> + ExactSizeIterator + Clone {
        (self.0 as usize..end.0 as usize).map(Position::new)
    }

    /// How many positions lie between this one and another.
    #[inline]
    pub fn distance(self, other: Position) -> u32 {
        self.0.abs_diff(other.0)
    }
}

impl Add<u32> for Position {
    type Output = Position;

    #[inline]
    fn add(self, positions: u32) -> Position {
        Position(self.0 + positions)
    }
}

impl Sub<u32> for Position {
    type Output = Position;

    #[inline]
    fn sub(self, positions: u32) -> Position {
        Position(self.0 - positions)
    }
}

/// The distance of this position from an earlier one.
impl Sub for Position {
    type Output = u32;

    #[inline]
    fn sub(self, earlier: Position) -> u32 {
        self.0 - earlier.0
    }
}

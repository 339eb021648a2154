//! Ranges of a memory, whichever device it belongs to.

/// Alignment in bytes of every buffer and workspace.
pub const ALIGN: usize = 64;

/// Alignment in bytes of what is copied to and from a file.
pub const PAGE: u64 = 4096;

/// A range of bytes of a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub offset: u64,
    pub bytes: u64,
}

impl Span {
    /// No bytes.
    pub const EMPTY: Span = Span {
        offset: 0,
        bytes: 0,
    };

    /// The first byte after the range; `None` if the address would overflow.
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.bytes)
    }

    /// The first `bytes` bytes; `None` if the range has fewer.
    pub fn prefix(self, bytes: u64) -> Option<Span> {
        (bytes <= self.bytes).then_some(Span { bytes, ..self })
    }

    /// Whether the other range is inside.
    pub fn covers(self, other: Span) -> bool {
        let (end, other_end) = (self.end(), other.end());
        self.offset <= other.offset && other_end.is_some() && end >= other_end
    }

    /// Whether the two ranges share a byte.
    pub fn overlaps(self, other: Span) -> bool {
        let before = |a: Span, b: Span| a.offset < b.offset.saturating_add(b.bytes);
        self.bytes > 0 && other.bytes > 0 && before(self, other) && before(other, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: u64, bytes: u64) -> Span {
        Span { offset, bytes }
    }

    #[test]
    fn neighbours_and_empty_spans_overlap_nothing() {
        assert!(span(64, 64).overlaps(span(127, 1)));
        assert!(span(0, 256).overlaps(span(64, 8)));
        assert!(!span(0, 64).overlaps(span(64, 64)));
        assert!(!span(64, 0).overlaps(span(0, 256)));
    }

    #[test]
    fn a_prefix_is_within_its_span() {
        assert_eq!(span(64, 100).prefix(64), Some(span(64, 64)));
        assert_eq!(span(64, 100).prefix(101), None);
        assert_eq!(span(1, u64::MAX).end(), None);
    }
}

//! How much memory there is and how much of it is left, where several limits apply at once.

/// Memory in bytes, as far as the operating system says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// All memory, or this process's limit if that is less.
    pub total: Option<u64>,
    /// Memory that can be taken without displacing anything else.
    pub available: Option<u64>,
}

impl HostMemory {
    /// The memory under a limit of which `used` bytes are in use.
    pub(super) fn limited(limit: u64, used: u64) -> HostMemory {
        HostMemory {
            total: Some(limit),
            available: Some(limit.saturating_sub(used)),
        }
    }

    /// The memory that both allow.
    pub(super) fn and(self, other: HostMemory) -> HostMemory {
        HostMemory {
            total: least(self.total, other.total),
            available: least(self.available, other.available),
        }
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_known_number_counts() {
        assert_eq!(least(Some(3), Some(2)), Some(2));
        assert_eq!(least(None, Some(2)), Some(2));
        assert_eq!(least(None, None), None);
    }
}

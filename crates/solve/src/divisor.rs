//! Units: the greatest number of which several sizes are multiples.

/// The greatest common divisor of these numbers; 1 if there are none, or only zeros.
pub(crate) fn common(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, gcd).max(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_multiple_of_the_common_divisor() {
        assert_eq!(common([12, 0, 18, 30]), 6);
        assert_eq!(common([7, 12]), 1);
        assert_eq!(common([0]), 1);
        assert_eq!(common([]), 1);
    }
}

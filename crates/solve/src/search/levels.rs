//! A profile with quick maxima of stretches, in blocks.

/// Positions per block.
const BLOCK: usize = 256;

/// Bytes by position, and the maximum of each block.
#[derive(Debug)]
pub(super) struct Levels {
    bytes: Vec<f64>,
    most: Vec<f64>,
}

impl Levels {
    pub fn new(bytes: Vec<f64>) -> Levels {
        let most = bytes.chunks(BLOCK).map(most).collect();
        Levels { bytes, most }
    }

    /// The most bytes at a position in `[from, to)`.
    pub fn most(&self, from: usize, to: usize) -> f64 {
        let to = to.min(self.bytes.len());
        let (first, end) = (from.div_ceil(BLOCK), to / BLOCK);
        if first >= end {
            return most(self.bytes.get(from..to).unwrap_or_default());
        }
        let rests = most(&self.bytes[from..first * BLOCK]).max(most(&self.bytes[end * BLOCK..to]));
        most(&self.most[first..end]).max(rests)
    }
}

fn most(bytes: &[f64]) -> f64 {
    bytes.iter().fold(0.0, |a, &b| a.max(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn stretches_are_those_of_a_plain_list() {
        let mut rng = Random::new(31, 0);
        let plain: Vec<f64> = (0..2000).map(|_| rng.below(100_000) as f64).collect();
        let levels = Levels::new(plain.clone());
        for _ in 0..5000 {
            let from = rng.below(plain.len() + 1);
            let to = from + rng.below(plain.len() + 20 - from);
            let stretch = plain.iter().take(to).skip(from);
            assert_eq!(levels.most(from, to), stretch.copied().fold(0.0, f64::max));
        }
    }
}

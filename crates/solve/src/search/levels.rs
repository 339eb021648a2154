//! A growing profile with quick sums and maxima of stretches, in blocks.

/// Positions per block.
const BLOCK: usize = 256;

/// Bytes by position. Each block has what all of its positions are raised by, and its maximum.
#[derive(Debug, Default)]
pub(super) struct Levels {
    bytes: Vec<f64>,
    raised: Vec<f64>,
    most: Vec<f64>,
}

impl Levels {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn at(&self, position: usize) -> f64 {
        self.bytes[position] + self.raised[position / BLOCK]
    }

    pub fn push(&mut self, bytes: f64) {
        if self.bytes.len().is_multiple_of(BLOCK) {
            self.raised.push(0.0);
            self.most.push(bytes);
        }
        let block = self.bytes.len() / BLOCK;
        self.bytes.push(bytes - self.raised[block]);
        self.most[block] = self.most[block].max(bytes);
    }

    /// Raises the positions `[from, to)`.
    pub fn raise(&mut self, from: usize, to: usize, bytes: f64) {
        let (mut at, to) = (from, to.min(self.len()));
        while at < to {
            let block = at / BLOCK;
            let (start, end) = (block * BLOCK, (block * BLOCK + BLOCK).min(self.len()));
            let until = to.min(end);
            if at == start && until == end {
                self.raised[block] += bytes;
                self.most[block] += bytes;
            } else {
                self.bytes[at..until].iter_mut().for_each(|b| *b += bytes);
                self.most[block] = most(&self.bytes[start..end]) + self.raised[block];
            }
            at = until;
        }
    }

    /// The most bytes at a position in `[from, to)`.
    pub fn most(&self, from: usize, to: usize) -> f64 {
        let (mut at, to) = (from, to.min(self.len()));
        let mut found = 0.0f64;
        while at < to {
            let block = at / BLOCK;
            let (start, end) = (block * BLOCK, (block * BLOCK + BLOCK).min(self.len()));
            let until = to.min(end);
            found = found.max(match at == start && until == end {
                true => self.most[block],
                false => most(&self.bytes[at..until]) + self.raised[block],
            });
            at = until;
        }
        found
    }
}

fn most(bytes: &[f64]) -> f64 {
    bytes.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn stretches_are_those_of_a_plain_list() {
        let mut rng = Random::new(31, 0);
        let (mut levels, mut plain) = (Levels::default(), Vec::new());
        for _ in 0..5000 {
            let bytes = rng.below(1000) as f64;
            levels.push(bytes);
            plain.push(bytes);
            let from = rng.below(plain.len());
            let to = from + rng.below(plain.len() + 1 - from);
            let more = rng.below(500) as f64 - 200.0;
            levels.raise(from, to, more);
            plain[from..to].iter_mut().for_each(|b| *b += more);
            let at = rng.below(plain.len());
            let most = plain[at..].iter().copied().fold(0.0, f64::max);
            assert_eq!(levels.most(at, levels.len()), most);
            assert_eq!(levels.at(at), plain[at]);
        }
    }
}

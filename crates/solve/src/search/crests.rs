//! A growing profile whose later part is raised now and then, with quick maxima of that part.
//!
//! What is raised always reaches from some position to the end, and so does what is asked for. So only positions matter whose
//! level exceeds all later ones, the crests: their order never changes, and each is lost once. A Fenwick tree has the sums by
//! which positions were raised.

/// Bytes by position.
#[derive(Debug, Default)]
pub(super) struct Crests {
    /// By position, its bytes less all that was raised before it was there.
    bytes: Vec<f64>,
    /// By position `p`, what was raised from one of the positions `(p + 1 - lowbit(p + 1)) ..= p`.
    raised: Vec<f64>,
    total: f64,
    /// The positions whose level exceeds all later ones.
    crests: Vec<usize>,
}

impl Crests {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn at(&self, position: usize) -> f64 {
        let (mut level, mut k) = (self.bytes[position], position + 1);
        while k > 0 {
            level += self.raised[k - 1];
            k &= k - 1;
        }
        level
    }

    pub fn push(&mut self, bytes: f64) {
        while self
            .crests
            .last()
            .is_some_and(|&crest| self.at(crest) <= bytes)
        {
            self.crests.pop();
        }
        self.crests.push(self.len());
        self.bytes.push(bytes - self.total);
        // The new node takes over what is below it.
        let (node, mut below) = (self.len(), self.len() - 1);
        let mut sum = 0.0;
        while below > node & (node - 1) {
            sum += self.raised[below - 1];
            below &= below - 1;
        }
        self.raised.push(sum);
    }

    /// Raises all positions from this one on.
    pub fn raise(&mut self, from: usize, bytes: f64) {
        let last = self.before(from);
        if last == self.crests.len() {
            return;
        }
        self.total += bytes;
        let mut k = from + 1;
        while k <= self.len() {
            self.raised[k - 1] += bytes;
            k += k & k.wrapping_neg();
        }
        let level = self.at(self.crests[last]);
        let mut first = last;
        while first > 0 && self.at(self.crests[first - 1]) <= level {
            first -= 1;
        }
        self.crests.drain(first..last);
    }

    /// The most bytes at a position from this one on.
    pub fn most(&self, from: usize) -> f64 {
        let crest = self.crests.get(self.before(from));
        crest.map_or(0.0, |&crest| self.at(crest))
    }

    /// The number of crests before a position.
    fn before(&self, from: usize) -> usize {
        self.crests.partition_point(|&crest| crest < from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn maxima_are_those_of_a_plain_list() {
        let mut rng = Random::new(31, 0);
        let (mut crests, mut plain) = (Crests::default(), Vec::new());
        for _ in 0..5000 {
            let bytes = rng.below(1000) as f64;
            crests.push(bytes);
            plain.push(bytes);
            let from = rng.below(plain.len() + 1);
            let more = rng.below(500) as f64;
            crests.raise(from, more);
            plain[from..].iter_mut().for_each(|b| *b += more);
            let at = rng.below(plain.len());
            let most = plain[at..].iter().copied().fold(0.0, f64::max);
            assert_eq!(crests.most(at), most);
            assert_eq!(crests.at(at), plain[at]);
        }
        assert_eq!(crests.most(plain.len()), 0.0);
    }
}

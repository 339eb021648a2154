//! What a checkpoint policy holds: for each value, the stages at whose start it is held. A few stretches per
//! value represent these stages, so memory grows with the graph and not with its square.

use std::ops::Range;

/// Held values as stretches of stages.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    stretches: Vec<Stretch>,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    value: u32,
    from: u32,
    until: u32,
}

impl Policy {
    /// Holds a value at the start of each of these stages.
    pub(super) fn hold(&mut self, value: usize, stages: Range<usize>) {
        if !stages.is_empty() {
            self.stretches.push(Stretch {
                value: value as u32,
                from: stages.start as u32,
                until: stages.end as u32,
            });
        }
    }

    /// The number of stretches.
    #[cfg(test)]
    pub(super) fn stretches(&self) -> usize {
        self.stretches.len()
    }

    /// The rows of `S`. They must be requested in order, from the first stage on.
    pub(super) fn rows(mut self, values: usize) -> impl FnMut(usize, &mut [bool]) {
        let mut ends: Vec<(u32, u32)> = (self.stretches.iter())
            .map(|stretch| (stretch.until, stretch.value))
            .collect();
        ends.sort_unstable();
        self.stretches.sort_unstable_by_key(|stretch| stretch.from);
        let mut open = vec![0u32; values];
        let (mut begun, mut ended) = (0, 0);
        move |stage, row| {
            let begin = self.stretches[begun..].iter();
            for stretch in begin.take_while(|stretch| stretch.from as usize <= stage) {
                open[stretch.value as usize] += 1;
                begun += 1;
            }
            for &(_, value) in ends[ended..]
                .iter()
                .take_while(|end| end.0 as usize <= stage)
            {
                open[value as usize] -= 1;
                ended += 1;
            }
            for (held, &open) in row.iter_mut().zip(&open) {
                *held = open > 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_stretches_that_cover_them() {
        let mut random = crate::random::Random::new(3, 0);
        for _ in 0..100 {
            let (values, stages) = (1 + random.below(6), 1 + random.below(12));
            let mut expected = vec![vec![false; values]; stages];
            let mut policy = Policy::default();
            for _ in 0..random.below(20) {
                let (value, from) = (random.below(values), random.below(stages));
                let until = random.below(stages + 1);
                policy.hold(value, from..until);
                for row in expected.iter_mut().take(until).skip(from) {
                    row[value] = true;
                }
            }
            let mut rows = policy.rows(values);
            for (stage, expected) in expected.iter().enumerate() {
                let mut row = vec![false; values];
                rows(stage, &mut row);
                assert_eq!(row, *expected);
            }
        }
    }
}

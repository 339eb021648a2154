//! Functions of bytes that fall in steps, such as the least seconds of what must fit into those bytes.

/// The most steps of a function; beyond them, it is replaced by one that is nowhere larger.
const MOST: usize = 64;

/// A function of bytes that falls in steps and is infinite before the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Staircase {
    /// From so many bytes on, and the value there.
    steps: Vec<(f64, f64)>,
}

impl Staircase {
    /// The function that changes at some of these bytes only.
    pub fn new(mut bytes: Vec<f64>, value: impl Fn(f64) -> f64) -> Staircase {
        bytes.sort_unstable_by(f64::total_cmp);
        bytes.dedup();
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for from in bytes {
            let value = value(from);
            if value < steps.last().map_or(f64::INFINITY, |step| step.1) {
                steps.push((from, value));
            }
        }
        while steps.len() > MOST {
            let pairs = steps.chunks(2);
            steps = pairs
                .map(|pair| (pair[0].0, pair[pair.len() - 1].1))
                .collect();
        }
        Staircase { steps }
    }

    /// The value at so many bytes.
    #[inline]
    pub fn at(&self, bytes: f64) -> f64 {
        match self.steps.partition_point(|step| step.0 <= bytes) {
            0 => f64::INFINITY,
            after => self.steps[after - 1].1,
        }
    }

    /// The bytes at which the function changes.
    pub fn changes(&self) -> impl Iterator<Item = f64> + '_ {
        self.steps.iter().map(|step| step.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_falls_in_steps_and_a_long_one_is_nowhere_too_large() {
        let stairs = Staircase::new(
            vec![3.0, 1.0, 2.0],
            |bytes| if bytes < 2.5 { 7.0 } else { 4.0 },
        );
        let values = [0.5, 1.0, 2.0, 2.9, 3.0, 9.0].map(|bytes| stairs.at(bytes));
        assert_eq!(values, [f64::INFINITY, 7.0, 7.0, 7.0, 4.0, 4.0]);
        assert_eq!(stairs.changes().collect::<Vec<_>>(), [1.0, 3.0]);

        let exact = |bytes: f64| 1000.0 - bytes;
        let all = (0..1000).map(f64::from).collect();
        let long = Staircase::new(all, exact);
        assert!(long.steps.len() <= MOST);
        let below = |bytes: f64| (exact(bytes) - 32.0..=exact(bytes)).contains(&long.at(bytes));
        assert!((0..1000).map(f64::from).all(below));
    }
}

//! Lists of budgets: `80%`, `4GiB`, and ranges of them, `30%..100%`, `30%..100%:5%`, `4GiB..10GiB/7`.

use std::fmt;
use std::str::FromStr;

use scrimp::plan::Budget;

/// Number of points of a range that gives neither a step nor a count.
const POINTS: u64 = 15;
const MOST: u64 = 1000;

/// One entry of a list: a budget, or several budgets at equal distances.
#[derive(Clone, Debug, PartialEq)]
pub struct Budgets(Vec<Budget>);

impl Budgets {
    /// The budgets of several entries, in their order and without duplicates.
    pub fn all(entries: &[Budgets]) -> Vec<Budget> {
        let mut all: Vec<Budget> = Vec::new();
        for budget in entries.iter().flat_map(|entry| &entry.0) {
            if !all.contains(budget) {
                all.push(*budget);
            }
        }
        all
    }
}

/// Both ends of a range, in the same unit.
#[derive(Clone, Copy)]
enum Ends {
    Percent(f64, f64),
    Bytes(u64, u64),
    Units(u64, u64),
}

impl FromStr for Budgets {
    type Err = String;

    fn from_str(text: &str) -> Result<Budgets, String> {
        let single = |text: &str| match text.parse::<Budget>() {
            Ok(Budget::Min) => Err("a list takes bytes and percentages, not `min`".to_owned()),
            Ok(budget) => Ok(budget),
            Err(error) => Err(error.to_string()),
        };
        let Some((from, rest)) = text.split_once("..") else {
            return Ok(Budgets(vec![single(text)?]));
        };
        let (to, by) = match rest.find([':', '/']) {
            Some(at) => (&rest[..at], Some((&rest[at..at + 1], &rest[at + 1..]))),
            None => (rest, None),
        };
        let ends = match (single(from)?, single(to)?) {
            (Budget::Percent(a), Budget::Percent(b)) => Ends::Percent(a, b),
            (Budget::Bytes(a), Budget::Bytes(b)) => Ends::Bytes(a, b),
            (Budget::Units(a), Budget::Units(b)) => Ends::Units(a, b),
            _ => {
                return Err(format!(
                    "`{text}` goes from one unit to another; write both ends as percentages, as \
                     bytes, or as plain numbers"
                ));
            }
        };
        match by {
            None => ends.count(POINTS),
            Some(("/", count)) => {
                let count = count.trim().parse::<u64>().ok();
                let count = count.filter(|count| (2..=MOST).contains(count));
                ends.count(count.ok_or(format!(
                    "`{text}` needs a number of points from 2 to {MOST} after `/`"
                ))?)
            }
            Some((_, step)) => ends.step(single(step)?, text),
        }
    }
}

impl Ends {
    /// This many budgets at equal distances, including both ends.
    fn count(self, count: u64) -> Result<Budgets, String> {
        let share = |k: u64| k as f64 / (count - 1) as f64;
        let between = |a: u64, b: u64, k: u64| {
            let (from, to) = (i128::from(a), i128::from(b));
            (from + (to - from) * i128::from(k) / i128::from(count - 1)) as u64
        };
        let at = |k: u64| match self {
            Ends::Percent(a, b) => Budget::Percent(neat(a + (b - a) * share(k))),
            Ends::Bytes(a, b) => Budget::Bytes(between(a, b, k)),
            Ends::Units(a, b) => Budget::Units(between(a, b, k)),
        };
        Ok(Budgets((0..count).map(at).collect()))
    }

    /// Budgets from the first end on, one step apart, and the other end.
    fn step(self, step: Budget, text: &str) -> Result<Budgets, String> {
        let (distance, step) = match (self, step) {
            (Ends::Percent(a, b), Budget::Percent(step)) => ((b - a).abs(), step),
            (Ends::Bytes(a, b), Budget::Bytes(step)) | (Ends::Units(a, b), Budget::Units(step)) => {
                (a.abs_diff(b) as f64, step as f64)
            }
            _ => {
                return Err(format!(
                    "the step of `{text}` has another unit than its ends; write it in theirs"
                ));
            }
        };
        let steps = (distance / step + 1e-9).floor();
        if step <= 0.0 || steps >= MOST as f64 {
            return Err(format!(
                "`{text}` has too small a step; take one that gives at most {MOST} budgets"
            ));
        }
        let shift = |a: u64, b: u64, by: f64| if a <= b { a + by as u64 } else { a - by as u64 };
        let at = |by: f64| match self {
            Ends::Percent(a, b) => Budget::Percent(neat(a + by.copysign(b - a))),
            Ends::Bytes(a, b) => Budget::Bytes(shift(a, b, by)),
            Ends::Units(a, b) => Budget::Units(shift(a, b, by)),
        };
        let mut budgets: Vec<Budget> = (0..=steps as u64).map(|k| at(k as f64 * step)).collect();
        if budgets.last() != Some(&at(distance)) {
            budgets.push(at(distance));
        }
        Ok(Budgets(budgets))
    }
}

/// A percentage without the rounding errors of repeated steps.
fn neat(percent: f64) -> f64 {
    (percent * 1e4).round() / 1e4
}

impl fmt::Display for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Budget> {
        Budgets::all(&[text.parse().unwrap()])
    }

    fn percents(all: &[f64]) -> Vec<Budget> {
        all.iter()
            .map(|&percent| Budget::Percent(percent))
            .collect()
    }

    #[test]
    fn ranges() {
        assert_eq!(read("80%"), percents(&[80.0]));
        let tens = percents(&[30.0, 40.0, 50.0]);
        assert_eq!(read("30%..50%:10%"), tens);
        assert_eq!(read("30%..50%/3"), tens);
        assert_eq!(read("50% .. 30% : 10%"), percents(&[50.0, 40.0, 30.0]));
        assert_eq!(read("30%..100%").len(), 15);
        assert_eq!(read("30%..100%")[1], Budget::Percent(35.0));
        assert_eq!(read("0%..1%:0.3%"), percents(&[0.0, 0.3, 0.6, 0.9, 1.0]));
        assert_eq!(
            read("1KiB..2KiB/3"),
            [1024, 1536, 2048].map(Budget::Bytes).to_vec()
        );
        assert_eq!(read("10..20:5"), [10, 15, 20].map(Budget::Units).to_vec());
        assert_eq!(read("5..5:1"), [Budget::Units(5)]);
    }

    #[test]
    fn what_is_no_range_is_told() {
        for text in [
            "",
            "..",
            "30%..",
            "min",
            "min..100%",
            "30%..8GiB",
            "1..2%",
            "30%..50%:1",
            "30%..50%:0%",
            "0..100000:1",
            "1..9/1",
            "1..9/x",
            "30%..50%:10%:1%",
            "a..b",
        ] {
            let told = text.parse::<Budgets>();
            assert!(
                told.as_ref().is_err_and(|why| !why.is_empty()),
                "{text}: {told:?}"
            );
        }
    }

    #[test]
    fn doubles_count_once() {
        let entries = ["80%".parse().unwrap(), "60%..80%:10%".parse().unwrap()];
        assert_eq!(Budgets::all(&entries), percents(&[80.0, 60.0, 70.0]));
    }
}

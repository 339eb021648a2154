//! Budgets as people write them.

use std::fmt;
use std::str::FromStr;

use crate::ids::DeviceId;
use crate::problem::Problem;
use crate::units::{Decimal, UnitError, format_bytes, parse_bytes, split_unit};

/// How much memory a plan may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// That many bytes, with everything counted.
    Bytes(u64),
    /// That many of the problem's own units of memory, with everything counted. Our own problems count bytes;
    /// some instances count something else.
    Units(u64),
    /// A share of what planning can change: fixed bytes + p/100 · (peak without planning − fixed bytes). Text
    /// gives at most 100.
    Percent(f64),
    /// The smallest budget for which a plan can be found.
    Min,
}

impl Budget {
    /// The capacity that this budget gives a device, in the problem's unit of memory. `base_peak` is the peak
    /// without planning. `None` for `Min`, whose capacity only a planner can find.
    ///
    /// # Errors
    /// If the budget is in bytes and the problem's unit isn't a number of bytes.
    ///
    /// # Panics
    /// If the problem has no such device.
    pub fn bytes(
        &self,
        problem: &Problem,
        device: DeviceId,
        base_peak: u64,
    ) -> Result<Option<u64>, UnitError> {
        match *self {
            Budget::Bytes(bytes) => match problem.units().bytes_per_unit() {
                Some(unit) => Ok(Some(bytes / unit)),
                None => Err(UnitError::NotBytes {
                    unit: problem.units().memory.clone(),
                }),
            },
            Budget::Units(units) => Ok(Some(units)),
            Budget::Percent(percent) => {
                let fixed = problem.fixed_bytes(device);
                let changeable = base_peak.saturating_sub(fixed) as f64;
                // A cast from a float saturates. Dividing last keeps 80 % of 10 at 8.
                Ok(Some(fixed.saturating_add(
                    (percent * changeable / 100.0).floor() as u64,
                )))
            }
            Budget::Min => Ok(None),
        }
    }
}

const BUDGETS: &str = "bytes like `8GiB` or `123456`, a percentage like `60%`, or `min`";

impl FromStr for Budget {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Budget, UnitError> {
        let syntax = || UnitError::Syntax {
            text: text.into(),
            what: "a budget",
            examples: BUDGETS,
        };
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("min") {
            return Ok(Budget::Min);
        }
        let Some(number) = trimmed.strip_suffix('%') else {
            let bytes = parse_bytes(text).map_err(|error| match error {
                UnitError::Syntax { .. } => syntax(),
                other => other,
            })?;
            let plain = split_unit(text).1.is_empty();
            return Ok(if plain {
                Budget::Units(bytes)
            } else {
                Budget::Bytes(bytes)
            });
        };
        let percent = Decimal::parse(number.trim_end())
            .ok_or_else(syntax)?
            .value();
        if percent > 100.0 {
            return Err(UnitError::MoreThanAll { text: text.into() });
        }
        Ok(Budget::Percent(percent))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Bytes(bytes) => f.write_str(&format_bytes(*bytes)),
            Budget::Units(units) => write!(f, "{units}"),
            Budget::Percent(percent) => write!(f, "{percent} %"),
            Budget::Min => f.write_str("min"),
        }
    }
}

//! Bytes and seconds in the notation of people: parsing and formatting.

use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Why a text isn't a valid budget, size or duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// A text that isn't a number with a unit.
    #[error("`{text}` isn't {what}; write {examples}")]
    Syntax {
        /// The text.
        text: String,
        /// What it should be.
        what: &'static str,
        /// How it could look.
        examples: &'static str,
    },
    /// A unit with two meanings.
    #[error("`{text}` could mean powers of 1000 or of 1024; write `{decimal}` or `{binary}`")]
    Ambiguous {
        /// The text.
        text: String,
        /// The decimal unit.
        decimal: String,
        /// The binary unit.
        binary: String,
    },
    /// A size in bytes for a problem that counts another unit.
    #[error(
        "the problem counts memory in `{unit}`, not in bytes; write the budget as a plain number of that unit, or as a percentage"
    )]
    NotBytes {
        /// The unit that the problem counts.
        unit: String,
    },
    /// A percentage above 100.
    #[error(
        "the budget `{text}` is more than everything: `100%` keeps all that running each task once needs; write `100%` or less, or bytes"
    )]
    MoreThanAll {
        /// The text.
        text: String,
    },
    /// A number that is too large to represent.
    #[error("`{text}` is too large")]
    TooLarge {
        /// The text.
        text: String,
    },
}

/// A number without sign or exponent, exactly as written: `digits / 10^places`.
pub(crate) struct Decimal {
    digits: u128,
    places: u32,
}

impl Decimal {
    /// At most 30 digits, so that no arithmetic below overflows.
    pub(crate) fn parse(text: &str) -> Option<Decimal> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits: String = [whole, fraction].concat();
        let fits = (1..=30).contains(&digits.len()) && fraction.len() <= 18;
        if !fits || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Decimal {
            digits: digits.parse().ok()?,
            places: fraction.len() as u32,
        })
    }

    pub(crate) fn value(&self) -> f64 {
        self.digits as f64 / 10f64.powi(self.places as i32)
    }

    /// The value times a whole number, rounded down.
    fn times(&self, factor: u64) -> Option<u128> {
        Some(self.digits.checked_mul(u128::from(factor))? / 10u128.pow(self.places))
    }
}

/// Splits `8 GiB` into the number and the unit.
pub(crate) fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Parses a size: `8GiB`, `8 GB`, `1.5 MB`, `512 B`, `123456`. Decimal units are powers of 1000, binary ones
/// (`KiB`, …) powers of 1024. Case doesn't matter, and fractions of a byte are dropped.
///
/// # Errors
/// If the text isn't a number with such a unit, the unit is ambiguous (`8G`), or the size exceeds 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let syntax = || UnitError::Syntax {
        text: text.into(),
        what: "a size",
        examples: "bytes like `8GiB`, `1.5 GB` or `123456`",
    };
    let (number, unit) = split_unit(text);
    let number = Decimal::parse(number).ok_or_else(syntax)?;
    let unit = unit.to_ascii_lowercase();
    let mut letters = unit.chars();
    let power = match letters.next() {
        None => 0,
        Some('b') if unit == "b" => 0,
        Some(letter) => match "kmgtpe".find(letter) {
            Some(position) => position as u32 + 1,
            None => return Err(syntax()),
        },
    };
    let factor = match letters.as_str() {
        _ if power == 0 => 1,
        "b" => 1000u64.pow(power),
        "ib" => 1024u64.pow(power),
        "" | "i" => {
            let prefix = unit[..1].to_ascii_uppercase();
            let decimal = format!("{prefix}B");
            return Err(UnitError::Ambiguous {
                text: text.into(),
                decimal,
                binary: format!("{prefix}iB"),
            });
        }
        _ => return Err(syntax()),
    };
    let bytes = number
        .times(factor)
        .and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| UnitError::TooLarge { text: text.into() })
}

/// Parses a duration: `250 ms`, `1.5s`, `2 min`, `1h`, or a plain number of seconds.
///
/// # Errors
/// If the text isn't a number with such a unit, or the duration exceeds ten years.
pub fn parse_seconds(text: &str) -> Result<Duration, UnitError> {
    let syntax = || UnitError::Syntax {
        text: text.into(),
        what: "a duration",
        examples: "seconds like `30`, or `250 ms`, `1.5 s`, `2 min`, `1 h`",
    };
    let (number, unit) = split_unit(text);
    let number = Decimal::parse(number).ok_or_else(syntax)?;
    let nanoseconds = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(syntax()),
    };
    let limit = Duration::from_secs(10 * 366 * 24 * 3600);
    let duration = number
        .times(nanoseconds)
        .and_then(|ns| u64::try_from(ns).ok())
        .map(Duration::from_nanos);
    duration
        .filter(|&duration| duration <= limit)
        .ok_or_else(|| UnitError::TooLarge { text: text.into() })
}

/// Parses and formats energy as a number of joules.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Joules(pub f64);

impl FromStr for Joules {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Joules, UnitError> {
        let number = text.trim();
        let number = number.strip_suffix('J').unwrap_or(number).trim_end();
        let number = Decimal::parse(number).ok_or_else(|| UnitError::Syntax {
            text: text.into(),
            what: "an energy",
            examples: "joules like `250` or `0.5`",
        })?;
        Ok(Joules(number.value()))
    }
}

/// Formats a size with a binary unit and at least three significant digits: `1.50 GiB`, `512 B`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut power = (63 - bytes.max(1).leading_zeros() as usize) / 10;
    // Otherwise 1023.99 KiB would be written as `1024 KiB`.
    if power + 1 < units.len() && bytes as f64 / 1024f64.powi(power as i32) >= 1023.5 {
        power += 1;
    }
    if power == 0 {
        return format!("{bytes} B");
    }
    let scaled = bytes as f64 / 1024f64.powi(power as i32);
    format!("{scaled:.*} {}", places(scaled), units[power])
}

/// Formats a duration with a fitting unit and at least three significant digits: `12.3 ms`, `2.05 s`.
#[must_use]
pub fn format_seconds(seconds: f64) -> String {
    let magnitude = seconds.abs();
    let (scale, unit) = match magnitude {
        m if m == 0.0 || !m.is_finite() => (1.0, "s"),
        m if m < 0.999_5e-6 => (1e9, "ns"),
        m if m < 0.999_5e-3 => (1e6, "µs"),
        m if m < 0.999_5 => (1e3, "ms"),
        m if m < 600.0 => (1.0, "s"),
        m if m < 36_000.0 => (1.0 / 60.0, "min"),
        _ => (1.0 / 3600.0, "h"),
    };
    let scaled = seconds * scale;
    if seconds == 0.0 {
        "0 s".into()
    } else {
        format!("{scaled:.*} {unit}", places(scaled))
    }
}

/// The number of decimal places that makes three significant digits.
fn places(scaled: f64) -> usize {
    match scaled.abs() {
        m if m < 9.995 => 2,
        m if m < 99.95 => 1,
        _ => 0,
    }
}

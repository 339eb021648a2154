//! What all readers of JSON share: recognizing kinds of files, bounded parsing, numbers.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value as Json;

use super::{FileError, MAX_FILE_BYTES};

/// The kinds of files that readers distinguish.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Problem,
    Plan,
    Instance,
    Allocation,
    Results,
    Unknown,
}

impl Kind {
    fn article(self) -> &'static str {
        match self {
            Kind::Problem => "a problem in scrimp's own format",
            Kind::Plan => "a plan",
            Kind::Instance => "a published instance (it has `nodes` and `edges`)",
            Kind::Allocation => {
                "an allocation instance (it has `buffers`), which a placement is made for"
            }
            Kind::Results => "a table of published results without a graph to plan",
            Kind::Unknown => {
                "some other JSON: it has neither a `format` of ours nor `nodes` and `edges`"
            }
        }
    }
}

/// The fields by which kinds are recognized.
#[derive(Deserialize)]
struct Marks {
    format: Option<Json>,
    nodes: Option<IgnoredAny>,
    edges: Option<IgnoredAny>,
    buffers: Option<IgnoredAny>,
    rows: Option<IgnoredAny>,
    tables: Option<IgnoredAny>,
    results: Option<IgnoredAny>,
}

/// Finds out what kind of file a text is from its top-level fields.
pub(super) fn kind_of(text: &str) -> Result<Kind, FileError> {
    if !text.trim_start().starts_with('{') {
        parse::<IgnoredAny>(text)?;
        return Ok(Kind::Unknown);
    }
    let marks: Marks = parse(text)?;
    let format = marks.format.as_ref().and_then(Json::as_str);
    Ok(match format {
        Some(PROBLEM_FORMAT) => Kind::Problem,
        Some(PLAN_FORMAT) => Kind::Plan,
        _ if marks.nodes.is_some() && marks.edges.is_some() => Kind::Instance,
        _ if marks.buffers.is_some() => Kind::Allocation,
        _ if marks.rows.is_some() || marks.tables.is_some() || marks.results.is_some() => {
            Kind::Results
        }
        _ => Kind::Unknown,
    })
}

/// The value of `format` in problem files.
pub(super) const PROBLEM_FORMAT: &str = "scrimp-problem";
/// The value of `format` in plan files.
pub(super) const PLAN_FORMAT: &str = "scrimp-plan";

/// Refuses a text of another kind.
pub(super) fn expect(text: &str, kind: Kind) -> Result<(), FileError> {
    let found = kind_of(text)?;
    if found == kind {
        return Ok(());
    }
    Err(FileError::NotThis {
        expected: kind.article(),
        found: found.article(),
    })
}

/// Refuses an unknown version of our formats before the fields of the known one are expected.
pub(super) fn expect_version(text: &str, known: u64) -> Result<(), FileError> {
    #[derive(Deserialize)]
    struct Version {
        version: u64,
    }
    let Version { version: found } = parse(text)?;
    if found == known {
        Ok(())
    } else {
        Err(FileError::Version { found, known })
    }
}

/// Parses a text of bounded length.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, FileError> {
    let bytes = text.len() as u64;
    if bytes > MAX_FILE_BYTES {
        return Err(FileError::TooLarge {
            bytes,
            limit: MAX_FILE_BYTES,
        });
    }
    serde_json::from_str(text).map_err(|error| located(text, &error))
}

fn located(text: &str, error: &serde_json::Error) -> FileError {
    let (line, column) = (error.line(), error.column());
    let full = error.to_string();
    let message = full.split(" at line ").next().unwrap_or(&full);
    let bytes = text
        .split('\n')
        .nth(line.saturating_sub(1))
        .unwrap_or("")
        .as_bytes();
    let at = column.min(bytes.len());
    let near = String::from_utf8_lossy(&bytes[at.saturating_sub(24)..bytes.len().min(at + 8)]);
    let not_finite = ["NaN", "Infinity"].iter().find(|word| {
        let from = at.saturating_sub(2);
        bytes[from..bytes.len().min(from + 12)]
            .windows(word.len())
            .any(|window| window == word.as_bytes())
    });
    let message = match not_finite {
        Some(word) => format!("{word} isn't a number that JSON has; costs and sizes are finite"),
        None => message.into(),
    };
    FileError::Json {
        line,
        column,
        near: near.trim().into(),
        message,
    }
}

/// A finite number that isn't negative.
pub(super) fn cost(
    json: Option<&Json>,
    at: impl Fn() -> String,
    field: &str,
) -> Result<f64, FileError> {
    let number = json
        .and_then(Json::as_f64)
        .filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| wrong(json, at(), field, "a finite number that isn't negative"))
}

/// A whole number that isn't negative; `5000000.0` is one.
pub(super) fn whole(
    json: Option<&Json>,
    at: impl Fn() -> String,
    field: &str,
) -> Result<u64, FileError> {
    let from_float = |number: f64| {
        // An `f64` is exact for whole numbers up to 2^53.
        let exact = (0.0..=9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0;
        exact.then_some(number as u64)
    };
    let number = json.and_then(|json| json.as_u64().or_else(|| json.as_f64().and_then(from_float)));
    number.ok_or_else(|| wrong(json, at(), field, "a whole number from 0 to 2^64 - 1"))
}

/// Builds the error for a field that isn't as expected.
pub(super) fn wrong(
    json: Option<&Json>,
    at: String,
    field: &str,
    expected: &'static str,
) -> FileError {
    let found = match json {
        None => "missing".into(),
        Some(json) => json.to_string().chars().take(40).collect(),
    };
    FileError::Field {
        at,
        field: field.into(),
        found,
        expected,
    }
}

/// Refuses a count above a limit.
pub(super) fn at_most(limit: usize, count: usize, what: &'static str) -> Result<(), FileError> {
    if count <= limit {
        Ok(())
    } else {
        Err(FileError::TooMany { what, count, limit })
    }
}

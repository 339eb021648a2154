//! Allocation instances: lifetimes and sizes of buffers, and a capacity into which they fit.

use serde::Deserialize;
use serde_json::Value as Json;

use super::json::{self, Kind};
use super::{FileError, MAX_VALUES};
use crate::layout::Interval;

/// Buffers to place in one memory.
#[derive(Clone, Debug)]
pub struct AllocationInstance {
    /// A name for people to read.
    pub name: String,
    /// Bytes into which the buffers fit; none if the file states no capacity.
    pub capacity: Option<u64>,
    /// Names of the buffers.
    pub ids: Vec<String>,
    /// Lifetimes and sizes, in the order of `ids`.
    pub intervals: Vec<Interval>,
    /// Other systems' results, as the file gives them.
    pub published: Json,
    /// The most bytes held at one moment, as the file states it.
    pub max_load: Option<u64>,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    name: String,
    #[serde(default)]
    capacity: Json,
    #[serde(default)]
    published: Json,
    #[serde(default)]
    stats: Json,
    buffer_fields: Vec<String>,
    buffers: Vec<Vec<Json>>,
}

/// Reads an allocation instance: `buffers` with the columns `id`, `lower` (inclusive), `upper`
/// (exclusive) and `size`, in the order that `buffer_fields` gives.
///
/// # Errors
/// If the text is something else, or a field of a buffer is wrong; the error names the buffer and the field.
pub fn read_allocation_instance(text: &str) -> Result<AllocationInstance, FileError> {
    json::expect(text, Kind::Allocation)?;
    let raw: Raw = json::parse(text)?;
    json::at_most(MAX_VALUES, raw.buffers.len(), "buffers")?;
    let column = |name: &'static str| {
        let found = raw.buffer_fields.iter().position(|field| field == name);
        found.ok_or_else(|| {
            json::wrong(
                None,
                "the instance".into(),
                "buffer_fields",
                "a list with id, lower, upper and size",
            )
        })
    };
    let (id, lower, upper, size) = (
        column("id")?,
        column("lower")?,
        column("upper")?,
        column("size")?,
    );
    let mut instance = AllocationInstance {
        name: raw.name.clone(),
        capacity: match &raw.capacity {
            Json::Null => None,
            capacity => Some(json::whole(
                Some(capacity),
                || "the instance".into(),
                "capacity",
            )?),
        },
        ids: Vec::with_capacity(raw.buffers.len()),
        intervals: Vec::with_capacity(raw.buffers.len()),
        max_load: raw.stats.get("max_load").and_then(Json::as_u64),
        published: raw.published.clone(),
    };
    let mut total = 0u64;
    for (i, row) in raw.buffers.iter().enumerate() {
        let at = || format!("buffer {i}");
        let (start, end) = (
            json::whole(row.get(lower), at, "lower")?,
            json::whole(row.get(upper), at, "upper")?,
        );
        if start > end {
            return Err(json::wrong(
                row.get(upper),
                at(),
                "upper",
                "at least `lower`",
            ));
        }
        let bytes = json::whole(row.get(size), at, "size")?;
        // With a sum below 2^64, no offset overflows, however the buffers are placed.
        total = total.checked_add(bytes).ok_or_else(|| {
            let expected = "so small that all sizes together are below 2^64";
            json::wrong(row.get(size), at(), "size", expected)
        })?;
        instance.intervals.push(Interval { start, end, bytes });
        instance.ids.push(match row.get(id) {
            Some(Json::String(id)) => id.clone(),
            Some(other) => other.to_string(),
            None => return Err(json::wrong(None, at(), "id", "a name")),
        });
    }
    Ok(instance)
}

//! Published results as instances carry them, brought into one form: per budget, what each system
//! reached. Only the forms are known here; every number comes from the files.
//!
//! | form | where |
//! |---|---|
//! | `rows`: a budget and, under each system's name, `tdi_percent` and `time_s` | in the instance |
//! | a system's name, under it percentages of the peak, each with `tdi_percent` and `time_s` | in the instance |
//! | a system's name, under it a list of `overhead_percent` at `budget_kib_for_nodes` | in the instance |
//! | `runs` of systems: `overhead` at a `ratio` of `baseline_memory`, less `const_memory` | in the instance |
//! | `max_batch_size`: `budget_bytes_total` and systems' batches | in the instance |
//! | `results` by instance and system: `cost_ratio` at `activation_peak` | in a file beside it |

use std::collections::BTreeMap;
use std::path::Path;

use scrimp::plan::Units;
use serde_json::{Map, Value};

/// What one system reached under one budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Its name in the file.
    pub system: String,
    /// Added time; none if it found no plan.
    pub overhead_percent: Option<f64>,
    /// How far the number is rounded: half of its last decimal.
    pub rounding: f64,
    /// What it proved, if anything.
    pub lower_bound_percent: Option<f64>,
    /// How long it took, where that is known.
    pub seconds: Option<f64>,
}

/// What was published for one budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The budget, in the problem's unit.
    pub budget: u64,
    /// One per system.
    pub claims: Vec<Claim>,
}

/// A published largest batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Bytes of the device, everything counted.
    pub memory: u64,
    /// System and what it reached, in the file's words.
    pub claims: Vec<(String, String)>,
}

/// Everything published for one instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// By ascending budget.
    pub rows: Vec<Row>,
    /// The largest batch.
    pub batch: Option<Batch>,
}

/// What an instance is, as far as budgets depend on it.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it counts memory in.
    pub units: &'a Units,
    /// Its peak without planning.
    pub base_peak: u64,
}

impl Published {
    /// Reads what an instance carries, and what files beside it say of it.
    pub fn read(about: About<'_>, own: &Value, beside: &[Value]) -> Published {
        let mut all = Gathered {
            about,
            rows: BTreeMap::new(),
        };
        for row in own["rows"].as_array().into_iter().flatten() {
            all.row(row);
        }
        for (name, value) in own.as_object().into_iter().flatten() {
            match value {
                Value::Array(list) => list.iter().for_each(|entry| all.listed(name, entry)),
                Value::Object(fields) => {
                    all.by_percent(name, fields);
                    all.by_ratio(fields);
                }
                _ => {}
            }
        }
        for file in beside {
            for (system, entry) in file["results"][about.name]
                .as_object()
                .into_iter()
                .flatten()
            {
                all.by_peak(system, entry);
            }
        }
        Published {
            rows: all
                .rows
                .into_iter()
                .map(|(budget, claims)| Row { budget, claims })
                .collect(),
            batch: batch(&own["max_batch_size"]),
        }
    }

    /// Whether there is nothing to compare with.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.batch.is_none()
    }
}

struct Gathered<'a> {
    about: About<'a>,
    rows: BTreeMap<u64, Vec<Claim>>,
}

impl Gathered<'_> {
    fn add(&mut self, budget: Option<u64>, claim: Claim) {
        if let Some(budget) = budget.filter(|&budget| budget > 0) {
            let claims = self.rows.entry(budget).or_default();
            if !claims.iter().any(|known| known.system == claim.system) {
                claims.push(claim);
            }
        }
    }

    fn percent(&self, percent: f64) -> Option<u64> {
        let share = percent / 100.0 * self.about.base_peak as f64;
        (share > 0.0).then(|| (share + 1e-6).floor() as u64)
    }

    fn bytes(&self, bytes: f64) -> Option<u64> {
        let unit = self.about.units.bytes_per_unit()?;
        (bytes > 0.0).then(|| (bytes / unit as f64) as u64)
    }

    fn row(&mut self, row: &Value) {
        let given = row["budget"].as_u64();
        let budget = given.or_else(|| self.percent(row["budget_percent"].as_f64()?));
        for (system, entry) in row.as_object().into_iter().flatten() {
            if system.starts_with("budget") || !(entry.is_object() || entry.is_null()) {
                continue;
            }
            self.add(budget, claim(system, entry, "tdi_percent"));
        }
    }

    fn by_percent(&mut self, system: &str, fields: &Map<String, Value>) {
        for (percent, entry) in fields {
            if let Ok(percent) = percent.parse::<f64>()
                && entry["tdi_percent"].is_number()
            {
                let budget = self.percent(percent);
                self.add(budget, claim(system, entry, "tdi_percent"));
            }
        }
    }

    fn listed(&mut self, system: &str, entry: &Value) {
        if let Some(kib) = entry["budget_kib_for_nodes"].as_f64()
            && entry["overhead_percent"].is_number()
        {
            let budget = self.bytes(kib * 1024.0);
            self.add(budget, claim(system, entry, "overhead_percent"));
        }
    }

    fn by_ratio(&mut self, fields: &Map<String, Value>) {
        let number = |name: &str| fields.get(name).and_then(Value::as_f64);
        let (Some(whole), Some(fixed)) = (number("baseline_memory"), number("const_memory")) else {
            return;
        };
        let runs = fields.get("runs").and_then(Value::as_object);
        for (system, entries) in runs.into_iter().flatten() {
            for entry in entries.as_array().into_iter().flatten() {
                let Some(ratio) = entry["ratio"].as_f64() else {
                    continue;
                };
                let budget = self.bytes(ratio * whole - fixed);
                self.add(budget, factor(system, &entry["overhead"]));
            }
        }
    }

    fn by_peak(&mut self, system: &str, entry: &Value) {
        let budget = entry["activation_peak"].as_f64();
        let budget = budget.and_then(|bytes| self.bytes(bytes));
        self.add(budget, factor(system, &entry["cost_ratio"]));
    }
}

/// A claim in percent, with the field that it stands in.
fn claim(system: &str, entry: &Value, field: &str) -> Claim {
    let seconds = ["time_s", "solve_time_s"].iter();
    Claim {
        system: system.into(),
        overhead_percent: entry[field].as_f64(),
        rounding: rounding(&entry[field]),
        lower_bound_percent: entry["overhead_lower_bound_percent"].as_f64(),
        seconds: seconds.filter_map(|name| entry[*name].as_f64()).next(),
    }
}

/// A claim as a multiple of running every task once.
fn factor(system: &str, value: &Value) -> Claim {
    Claim {
        system: system.into(),
        overhead_percent: value.as_f64().map(|factor| (factor - 1.0) * 100.0),
        rounding: rounding(value) * 100.0,
        lower_bound_percent: None,
        seconds: None,
    }
}

/// Half of a number's last decimal.
fn rounding(number: &Value) -> f64 {
    let text = number.to_string();
    let decimals = text
        .split_once('.')
        .map_or(0, |(_, decimals)| decimals.len());
    0.5 * 10f64.powi(-(decimals.min(15) as i32))
}

fn batch(value: &Value) -> Option<Batch> {
    let memory = value["budget_bytes_total"].as_u64()?;
    let fields = value.as_object()?.iter();
    let claims = fields.filter(|(name, _)| {
        !["budget_bytes_total", "note"].contains(&name.as_str()) && !name.contains("bound")
    });
    let words = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    Some(Batch {
        memory,
        claims: claims
            .map(|(name, value)| (name.clone(), words(value)))
            .collect(),
    })
}

/// Files with results in the folder of an instance.
pub fn beside(instance: &Path) -> Vec<Value> {
    let folder = match instance.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let Ok(entries) = folder.read_dir() else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "json") && path != instance);
    paths.sort();
    let read = |path: &std::path::PathBuf| -> Option<Value> {
        let text = scrimp::plan::file::read_text(path).ok()?;
        // Most neighbours are instances, which needn't be parsed to know that.
        let results = text.contains("\"results\"") && !text.contains("\"nodes\"");
        serde_json::from_str(&text).ok().filter(|_| results)
    };
    paths.iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(own: &Value, beside: &[Value]) -> Published {
        let units = Units {
            memory: "KiB".into(),
            ..Units::default()
        };
        let about = About {
            name: "net",
            units: &units,
            base_peak: 1000,
        };
        Published::read(about, own, beside)
    }

    #[test]
    fn every_form_is_read() {
        let own = json!({
            "rows": [{ "budget_percent": 90, "a": { "tdi_percent": 0.8, "time_s": 9 }, "b": null, "note": "x" }],
            "c": { "90": { "tdi_percent": 1.25 }, "text": "no" },
            "d": [{ "budget_kib_for_nodes": 700, "overhead_percent": 3, "overhead_lower_bound_percent": 2.5 }],
            "rerun": { "baseline_memory": 1_024_000.0, "const_memory": 512_000.0,
                       "runs": { "e": [{ "ratio": 1.0, "overhead": 1.5 }, { "ratio": 0.5, "overhead": null }] } },
            "max_batch_size": { "budget_bytes_total": 16, "note": "n", "f": ">=3", "g": 4, "some_bound": 9 },
        });
        let beside = [
            json!({ "results": { "net": { "h": { "cost_ratio": 1.2, "activation_peak": 819_200 } },
                                           "other": { "h": { "cost_ratio": 9, "activation_peak": 1 } } } }),
        ];
        let published = read(&own, &beside);
        let rounded = |x: f64| (x * 1e6).round() / 1e6;
        let told = published.rows.iter().map(|row| {
            let claims = row.claims.iter();
            let claims = claims.map(|c| (c.system.as_str(), c.overhead_percent.map(rounded)));
            (row.budget, claims.collect::<Vec<_>>())
        });
        let told: Vec<_> = told.collect();
        let expected = [
            (500, vec![("e", Some(50.0))]),
            (700, vec![("d", Some(3.0))]),
            (800, vec![("h", Some(20.0))]),
            (900, vec![("a", Some(0.8)), ("b", None), ("c", Some(1.25))]),
        ];
        assert_eq!(told, expected);
        assert_eq!(published.rows[1].claims[0].lower_bound_percent, Some(2.5));
        assert_eq!(published.rows[3].claims[0].seconds, Some(9.0));
        assert_eq!(published.rows[3].claims[0].rounding, 0.05);
        let batch = published.batch.unwrap();
        assert_eq!(batch.memory, 16);
        assert_eq!(
            batch.claims,
            [("f".into(), ">=3".into()), ("g".into(), "4".into())]
        );
    }

    #[test]
    fn what_says_nothing_is_empty() {
        for own in [
            json!(null),
            json!({}),
            json!({ "rows": 3, "a": [1], "b": { "90": 1 } }),
            json!("text"),
        ] {
            assert!(read(&own, &[json!({ "results": [] })]).is_empty(), "{own}");
        }
    }
}

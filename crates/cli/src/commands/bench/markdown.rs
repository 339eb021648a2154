//! The tables in Markdown: one per folder and kind of comparison.

use scrimp::plan::format_seconds;
use scrimp::solve::Order;
use scrimp::{LargestBatch, percent_over};

use super::super::max_batch::as_given;
use super::measure::Ours;
use super::published::{Batch, Claim};
use super::{Compared, Group, NOTHING, Tables};
use crate::args::PapersArgs;

impl Tables {
    /// Everything, with the command that remakes it.
    pub fn markdown(&self, args: &PapersArgs) -> String {
        let only = match args.only.as_slice() {
            [] => String::new(),
            names => format!(" --only {}", names.join(",")),
        };
        let mut text = format!(
            "Remade by `scrimp bench papers …{only} --method {} --time-limit {} --seed {} --seeds {}`, scrimp {}. Added \
             time in percent of running every task once; published numbers as the instances carry them, with seconds \
             where they are known.{}\n",
            args.method.name(),
            format_seconds(args.time_limit.as_secs_f64()),
            args.seed,
            args.seeds,
            env!("CARGO_PKG_VERSION"),
            match args.seeds {
                1 => "",
                _ =>
                    " Numbers of ours are medians over the seeds, with the best and the worst in parentheses.",
            },
        );
        for group in &self.groups {
            text += &format!("\n## {}\n", group.name);
            if !group.compared.is_empty() {
                text += &plans(&group.compared);
            }
            if !group.batches.is_empty() {
                text += &batches(group);
            }
            if !group.placements.is_empty() {
                text += &placements(group);
            }
        }
        let unlike: Vec<String> = self
            .skipped
            .iter()
            .filter(|(_, reason)| reason != "not an instance" && reason != NOTHING)
            .map(|(name, reason)| format!("{name} ({reason})"))
            .collect();
        if !unlike.is_empty() {
            text += &format!("\nNot compared: {}.\n", unlike.join(", "));
        }
        if self.interrupted {
            text += "\nInterrupted: the rest wasn't compared.\n";
        }
        text
    }
}

/// A row of a table; bars in names would end a cell.
pub fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells
        .into_iter()
        .map(|cell| cell.replace('|', "\\|"))
        .collect();
    format!("| {} |\n", cells.join(" | "))
}

pub fn head(columns: &[String]) -> String {
    format!(
        "\n{}|{}\n",
        row(columns.iter().cloned()),
        "---|".repeat(columns.len())
    )
}

fn percent(percent: f64) -> String {
    // Not −0.000.
    format!("{:.3}", percent + 0.0)
}

fn plans(compared: &[Compared]) -> String {
    let mut systems: Vec<&str> = Vec::new();
    for claim in compared.iter().flat_map(|c| &c.row.claims) {
        if !systems.contains(&claim.system.as_str()) {
            systems.push(&claim.system);
        }
    }
    let mut columns: Vec<String> = ["instance (tasks)", "budget"].map(str::to_owned).to_vec();
    columns.extend(systems.iter().map(|system| (*system).to_owned()));
    let orders: Vec<Order> = compared
        .first()
        .map(|c| c.ours.iter().map(|ours| ours.order).collect())
        .unwrap_or_default();
    for order in &orders {
        let name = order.name();
        columns.extend([
            format!("{name} order: found / proven"),
            "published reached, all".into(),
        ]);
    }
    let mut text = head(&columns);
    for compared in compared {
        let mut cells = vec![
            format!("{} ({})", compared.instance, compared.tasks),
            format!("{} ({:.1} %)", compared.budget, compared.budget_percent),
        ];
        for system in &systems {
            let mut claims = compared.row.claims.iter();
            let claim = claims.find(|claim| claim.system == *system);
            cells.push(claim.map_or_else(String::new, published));
        }
        compared
            .ours
            .iter()
            .for_each(|ours| cells.extend(cells_of(ours)));
        text += &row(cells);
    }
    text
}

/// What a system reached: `3.4 / 12.5 s`.
fn published(claim: &Claim) -> String {
    let Some(overhead) = claim.overhead_percent else {
        return "–".into();
    };
    let decimals = (-(claim.rounding * 2.0).log10()).round().clamp(0.0, 3.0) as usize;
    let mut text = format!("{:.decimals$}", overhead + 0.0);
    if let Some(bound) = claim.lower_bound_percent {
        text += &format!(" (proven {bound:.3})");
    }
    if let Some(seconds) = claim.seconds {
        text += &format!(" / {}", format_seconds(seconds));
    }
    text
}

fn cells_of(ours: &Ours) -> [String; 2] {
    let seconds = |number: Option<f64>| number.map_or("–".into(), format_seconds);
    let reached = ours.median_found(|found| found.reached_seconds);
    let all = ours.median(|run| Some(run.seconds));
    let times = format!("{}, {}", seconds(reached), seconds(all));
    let (seeds, found) = (ours.runs.len(), ours.found().count());
    let mut text = match ours.overheads() {
        Some([median, best, worst]) if seeds > 1 => {
            let [median, best, worst] = [median, best, worst].map(percent);
            format!("{median} ({best}–{worst})")
        }
        Some([median, ..]) => percent(median),
        None => "–".into(),
    };
    if let Some(bound) = ours.lower_bound_percent() {
        text += &format!(" / {}", percent(bound));
    }
    if found < seeds && seeds > 1 {
        text += &format!(", found by {found} of {seeds} seeds");
    }
    [text, times]
}

fn batches(group: &Group) -> String {
    let columns = [
        "instance",
        "memory",
        "published",
        "batch",
        "none above, proven",
        "without a plan",
        "added time",
        "all",
    ];
    let mut text = head(&columns.map(str::to_owned));
    for (instance, wanted, found) in &group.batches {
        text += &row([
            instance.clone(),
            as_given(wanted.memory),
            claimed(wanted),
            found.batch.to_string(),
            found.bound.to_string(),
            found.keep_all.to_string(),
            percent(added(found)),
            format_seconds(found.elapsed.as_secs_f64()),
        ]);
    }
    text
}

fn claimed(wanted: &Batch) -> String {
    let claims = wanted
        .claims
        .iter()
        .map(|(system, text)| format!("{system}: {text}"));
    claims.collect::<Vec<_>>().join("; ")
}

fn added(found: &LargestBatch) -> f64 {
    percent_over(found.plan.cost(), found.budgeted.base.cost())
}

fn placements(group: &Group) -> String {
    let columns = [
        "instance",
        "buffers",
        "capacity",
        "arena",
        "live bytes",
        "fits",
        "seconds",
    ];
    let mut text = head(&columns.map(str::to_owned));
    for placed in &group.placements {
        let number = |key: &str| {
            placed[key]
                .as_u64()
                .map_or_else(|| "–".into(), |n| n.to_string())
        };
        text += &row([
            placed["instance"].as_str().unwrap_or_default().to_owned(),
            number("buffers"),
            number("capacity_bytes"),
            number("arena_bytes"),
            number("live_bytes"),
            if placed["fits"] == true { "yes" } else { "no" }.into(),
            format_seconds(placed["seconds"].as_f64().unwrap_or(0.0)),
        ]);
    }
    text
}

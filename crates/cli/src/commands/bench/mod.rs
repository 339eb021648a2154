//! `scrimp bench`: measurements against published results.
//!
//! | file | what |
//! |---|---|
//! | `published` | what the instances say that others reached |
//! | `measure` | what we reach |
//! | `markdown` | both beside each other |
//! | `home` | HOME's comparison of planners that swap, remade |
//! | `devices` | planners for several devices beside each other |

mod devices;
mod home;
mod markdown;
mod measure;
mod published;

use std::path::{Path, PathBuf};

use anyhow::Result;
use scrimp::plan::file::{Content, Instance};
use scrimp::plan::{Budget, NoDevice, Problem};
use scrimp::solve::{Options, Order};
use scrimp::{Budgeted, Error, LargestBatch, percent_over};
use serde_json::{Value, json};

use self::measure::Ours;
use self::published::{About, Batch, Published, Row};
use crate::args::{BenchArgs, BenchCommand, OrdersArg, PapersArgs};
use crate::budgets::Budgets;
use crate::failure::{Failure, Kind};
use crate::output::Outputs;
use crate::progress::Line;
use crate::{Answer, interrupt, target};

/// Why an instance wasn't planned.
const NOTHING: &str = "no published results and no budget";
const SEVERAL: &str = "several devices";

/// Runs one of the measurements.
pub fn run(args: &BenchArgs, quiet: bool) -> Result<Answer> {
    match &args.command {
        BenchCommand::Papers(args) => papers(args, quiet),
        BenchCommand::Home(args) => home::run(args, quiet),
        BenchCommand::Devices(args) => devices::run(args, quiet),
    }
}

/// One budget of one instance.
struct Compared {
    instance: String,
    tasks: usize,
    /// Of the peak without planning.
    budget_percent: f64,
    /// For people.
    budget: String,
    row: Row,
    ours: Vec<Ours>,
}

/// The rows of one folder, which share their columns.
struct Group {
    name: String,
    compared: Vec<Compared>,
    batches: Vec<(String, Batch, LargestBatch)>,
    placements: Vec<Value>,
}

/// All that was measured.
struct Tables {
    groups: Vec<Group>,
    /// Instances that weren't planned, and why.
    skipped: Vec<(String, String)>,
    interrupted: bool,
}

fn papers(args: &PapersArgs, quiet: bool) -> Result<Answer> {
    let files = files(&args.paths, &args.only)?;
    let output = Outputs::beside(files.iter().map(PathBuf::as_path)).claim(args.output.as_ref())?;
    let line = Line::bar(quiet, "comparing", files.len() as u64);
    let mut tables = Tables {
        groups: Vec::new(),
        skipped: Vec::new(),
        interrupted: false,
    };
    for (k, path) in files.iter().enumerate() {
        line.at(k as u64);
        if interrupt::requested() {
            break;
        }
        let name = group_name(path);
        if tables.groups.last().is_none_or(|group| group.name != name) {
            tables.groups.push(Group {
                name,
                compared: Vec::new(),
                batches: Vec::new(),
                placements: Vec::new(),
            });
        }
        if let Some(reason) = tables.file(path, args, &line)? {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("{}/{stem}", group_name(path));
            tables.skipped.push((name, reason));
        }
    }
    drop(line);
    tables.interrupted = interrupt::requested();
    tables.groups.retain(|group| !group.is_empty());
    if tables.groups.is_empty() && !tables.interrupted {
        let sentence = "nothing to compare with: none of the instances carries published results, or --only \
                        leaves none; --budgets plans others too";
        return Err(Failure::new(Kind::Input, sentence).into());
    }
    let text = tables.markdown(args);
    let mut answer = Answer::new(tables.object(args), text.clone());
    if let Some(output) = &output {
        output.write(text.as_bytes())?;
        let rows = tables.groups.iter().map(Group::len).sum::<usize>();
        answer.text = format!("{rows} rows written to {}\n", output.path().display());
    }
    if tables.interrupted {
        let sentence = "interrupted; what was compared by then is shown and written";
        answer.failure = Some(Failure::new(Kind::Interrupted, sentence));
    }
    Ok(answer)
}

/// The instances to look at, in the order of the arguments and then of their names.
fn files(paths: &[PathBuf], only: &[String]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let unreadable = |error: std::io::Error| {
                let sentence = format!("can't read the folder '{}': {error}", path.display());
                Failure::new(Kind::Input, sentence)
            };
            collect(path, &mut files).map_err(unreadable)?;
        } else if path.is_file() {
            files.push(path.clone());
        } else {
            let sentence = format!("'{}' is neither a file nor a folder", path.display());
            return Err(Failure::new(Kind::Input, sentence).into());
        }
    }
    if !only.is_empty() {
        let wanted = |name: &str| only.iter().any(|only| name.starts_with(only.as_str()));
        files.retain(|path| {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            wanted(&group_name(path)) || wanted(&name)
        });
    }
    Ok(files)
}

/// JSON files of a folder and of those in it; links to folders aren't followed.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries: Vec<_> = folder.read_dir()?.collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "json") {
            files.push(path);
        }
    }
    Ok(())
}

/// The folder that a file is in.
fn group_name(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name);
    folder.map_or_else(
        || "instances".into(),
        |name| name.to_string_lossy().into_owned(),
    )
}

impl Tables {
    fn group(&mut self) -> &mut Group {
        self.groups
            .last_mut()
            .expect("a group was made for the file")
    }

    /// Compares one file; says why if it can't be.
    fn file(&mut self, path: &Path, args: &PapersArgs, line: &Line) -> Result<Option<String>> {
        match target::read(path) {
            Ok(Content::Instance(instance)) => self.instance(path, &instance, args, line),
            Ok(Content::Allocation(instance)) => {
                line.say(|| instance.name.clone());
                self.group().placements.push(measure::placement(&instance)?);
                Ok(None)
            }
            Ok(Content::Problem(problem, capacities)) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                let Some(budgeted) = whole(&problem)? else {
                    return Ok(Some(SEVERAL.into()));
                };
                let stated = capacities.bytes(budgeted.device).map(Budget::Units);
                let asked = match args.budgets.is_empty() {
                    true => stated.into_iter().collect(),
                    false => Budgets::all(&args.budgets),
                };
                self.plans(&stem, &budgeted, asked_rows(&budgeted, &asked)?, args, line)
            }
            // Folders hold other files too; one that was named must be right.
            Err(error) if args.paths.iter().any(|named| named == path) => Err(error),
            Err(_) => Ok(Some("not an instance".into())),
        }
    }

    fn instance(
        &mut self,
        path: &Path,
        instance: &Instance,
        args: &PapersArgs,
        line: &Line,
    ) -> Result<Option<String>> {
        let name = instance.problem.name().to_owned();
        let Some(budgeted) = whole(&instance.problem)? else {
            return Ok(Some(SEVERAL.into()));
        };
        let about = About {
            name: &name,
            units: instance.problem.units(),
            base_peak: budgeted.base_peak(),
        };
        let published = Published::read(about, &instance.published, &published::beside(path));
        let rows = match published.is_empty() {
            true => asked_rows(&budgeted, &Budgets::all(&args.budgets))?,
            false => published.rows,
        };
        let unplanned = self.plans(&name, &budgeted, rows, args, line)?;
        if let Some(wanted) = published.batch
            && !interrupt::requested()
        {
            line.say(|| format!("{name}, largest batch"));
            let found = measure::batch(instance, &wanted, &options(args, Order::Free, args.seed))?;
            self.group().batches.push((name, wanted, found));
            return Ok(None);
        }
        Ok(unplanned)
    }

    /// Plans under each row's budget; says so if there are none.
    fn plans(
        &mut self,
        name: &str,
        budgeted: &Budgeted,
        rows: Vec<Row>,
        args: &PapersArgs,
        line: &Line,
    ) -> Result<Option<String>> {
        if rows.is_empty() {
            return Ok(Some(NOTHING.into()));
        }
        for row in rows {
            let budget = budgeted.problem.units().format_memory(row.budget);
            let mut ours = Vec::new();
            for &order in orders(args.orders) {
                let mut runs = Vec::new();
                for seed in 0..args.seeds {
                    if interrupt::requested() {
                        return Ok(None);
                    }
                    let seed = args.seed.wrapping_add(seed);
                    line.say(|| format!("{name}, {budget}, {} order, seed {seed}", order.name()));
                    let options = options(args, order, seed);
                    runs.push(measure::plan(budgeted, &row, &options)?);
                }
                ours.push(Ours { order, runs });
            }
            self.group().compared.push(Compared {
                instance: name.into(),
                tasks: budgeted.problem.tasks().len(),
                budget_percent: row.budget as f64 / budgeted.base_peak().max(1) as f64 * 100.0,
                budget,
                row,
                ours,
            });
        }
        Ok(None)
    }

    fn object(&self, args: &PapersArgs) -> Value {
        let skipped = self.skipped.iter();
        json!({
            "method": args.method.name(),
            "time_limit_seconds": args.time_limit.as_secs_f64(),
            "seeds": args.seeds,
            "tables": self.groups.iter().map(Group::object).collect::<Vec<_>>(),
            "skipped": skipped
                .map(|(path, reason)| json!({ "instance": path, "reason": reason }))
                .collect::<Vec<_>>(),
            "interrupted": self.interrupted,
        })
    }
}

fn orders(asked: OrdersArg) -> &'static [Order] {
    match asked {
        OrdersArg::Both => &[Order::Fixed, Order::Free],
        OrdersArg::Fixed => &[Order::Fixed],
        OrdersArg::Free => &[Order::Free],
    }
}

/// A problem without a limit; none if several devices compute.
fn whole(problem: &Problem) -> Result<Option<Budgeted>> {
    match scrimp::budget(problem, Budget::Percent(100.0)) {
        Ok(budgeted) => Ok(Some(budgeted)),
        Err(Error::NoDevice(NoDevice::Several { .. })) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Rows without published results.
fn asked_rows(budgeted: &Budgeted, budgets: &[Budget]) -> Result<Vec<Row>> {
    let row = |budget: &Budget| -> Result<Row> {
        let bytes = budget.bytes(&budgeted.problem, budgeted.device, budgeted.base_peak());
        Ok(Row {
            budget: bytes.map_err(Error::from)?.unwrap_or(0),
            claims: Vec::new(),
        })
    };
    budgets.iter().map(row).collect()
}

fn options(args: &PapersArgs, order: Order, seed: u64) -> Options {
    Options {
        method: args.method,
        order,
        time_limit: args.time_limit,
        seed,
        threads: args
            .threads
            .map_or_else(scrimp::machine::threads, usize::from),
        stop: Some(interrupt::flag()),
        ..args.published.options()
    }
}

impl Group {
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.compared.len() + self.batches.len() + self.placements.len()
    }

    fn object(&self) -> Value {
        json!({
            "name": self.name,
            "plans": self.compared.iter().map(Compared::object).collect::<Vec<_>>(),
            "batches": self.batches.iter().map(batch_object).collect::<Vec<_>>(),
            "placements": self.placements,
        })
    }
}

impl Compared {
    fn object(&self) -> Value {
        let claims = self.row.claims.iter().map(|claim| {
            json!({
                "system": claim.system,
                "overhead_percent": claim.overhead_percent,
                "lower_bound_percent": claim.lower_bound_percent,
                "seconds": claim.seconds,
            })
        });
        let ours = self.ours.iter().map(|ours| {
            let (overheads, bound) = (ours.overheads(), ours.lower_bound_percent());
            let [median, best, worst] = overheads.map_or([None; 3], |all| all.map(Some));
            let found = ours.found().count();
            json!({
                "order": ours.order.name(),
                "found": found,
                "overhead_percent": median,
                "overhead_percent_best": best,
                "overhead_percent_worst": worst,
                "lower_bound_percent": bound,
                "gap_points": median.zip(bound).map(|(median, bound)| median - bound),
                "optimal": (found > 0).then(|| ours.found().all(|found| found.optimal)),
                "peak_bytes": ours.found().map(|found| found.peak).max(),
                "reached_seconds": ours.median_found(|found| found.reached_seconds),
                "best_seconds": ours.median_found(|found| Some(found.best_seconds)),
                "seconds": ours.median(|run| Some(run.seconds)),
            })
        });
        json!({
            "instance": self.instance,
            "tasks": self.tasks,
            "budget_bytes": self.row.budget,
            "budget_percent": self.budget_percent,
            "published": claims.collect::<Vec<_>>(),
            "ours": ours.collect::<Vec<_>>(),
        })
    }
}

fn batch_object((instance, wanted, found): &(String, Batch, LargestBatch)) -> Value {
    let claims = wanted.claims.iter();
    json!({
        "instance": instance,
        "memory_bytes": wanted.memory,
        "published": claims
            .map(|(system, text)| json!({ "system": system, "batch": text }))
            .collect::<Vec<_>>(),
        "batch": found.batch,
        "bound": found.bound,
        "keep_all_batch": found.keep_all,
        "overhead_percent": percent_over(found.plan.cost(), found.budgeted.base.cost()),
        "seconds": found.elapsed.as_secs_f64(),
    })
}

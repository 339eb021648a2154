//! `scrimp bench devices`: published planners for several devices beside ours, and the bound.

use std::path::PathBuf;

use anyhow::Result;
use scrimp::plan::format_seconds;
use scrimp::solve::{
    Method, Objective, Options, Placing, Published, SolveError, Wording, lower_bound, solve,
};
use serde_json::{Value, json};

use super::markdown::{head, row};
use crate::args::PlacingArgs;
use crate::failure::{Failure, Kind};
use crate::output::Outputs;
use crate::progress::Line;
use crate::target::{FromFile, read_problem};
use crate::{Answer, interrupt};

/// XEngine's program minimizes the serial cost, so its column is left out for the makespan.
const METHODS: [Placing; 8] = [
    Placing::SingleDevice,
    Placing::Heft,
    Placing::Cpop,
    Placing::MTopo,
    Placing::MEtf,
    Placing::MSct,
    Placing::MinCut,
    Placing::XEngine(Wording::Mended),
];

/// What one method reached.
struct Reached {
    method: Method,
    cost: Result<f64, String>,
    seconds: f64,
}

/// One instance under all methods; ours is the last.
struct Compared {
    name: String,
    tasks: usize,
    devices: usize,
    reached: Vec<Reached>,
    lower_bound: f64,
}

/// Plans every instance by every method, writes what was asked for and tells.
pub fn run(args: &PlacingArgs, quiet: bool) -> Result<Answer> {
    let files = super::files(&args.paths, &args.only)?;
    let output = Outputs::beside(files.iter().map(PathBuf::as_path)).claim(args.output.as_ref())?;
    let line = Line::bar(quiet, "comparing", files.len() as u64);
    let mut compared = Vec::new();
    for (k, path) in files.iter().enumerate() {
        line.at(k as u64);
        let file = match read_problem(path) {
            Ok(file) => file,
            // Folders hold other files too; one that was named must be right.
            Err(error) if args.paths.contains(path) => return Err(error),
            Err(_) => continue,
        };
        if file.problem.sole_device().is_none() && !interrupt::requested() {
            compared.extend(compare(&file, args, &line)?);
        }
    }
    drop(line);
    let interrupted = interrupt::requested();
    if compared.is_empty() && !interrupted {
        let sentence = "nothing to compare: no file has several devices that compute";
        return Err(Failure::new(Kind::Input, sentence).into());
    }
    let text = markdown(args, &compared);
    let json = json!({
        "objective": args.objective.name(),
        "time_limit_seconds": args.time_limit.as_secs_f64(),
        "instances": compared.iter().map(object).collect::<Vec<_>>(),
        "interrupted": interrupted,
    });
    let mut answer = Answer::new(json, text.clone());
    if let Some(output) = &output {
        output.write(text.as_bytes())?;
        let path = output.path().display();
        answer.text = format!("{} instances written to {path}\n", compared.len());
    }
    if interrupted {
        let sentence = "interrupted; what was compared by then is shown and written";
        answer.failure = Some(Failure::new(Kind::Interrupted, sentence));
    }
    Ok(answer)
}

/// The methods of a table.
fn methods(args: &PlacingArgs) -> Vec<Method> {
    let programs = args.objective == Objective::Serial;
    let placing = METHODS.into_iter();
    let placing = placing.filter(|placing| programs || !matches!(placing, Placing::XEngine(_)));
    let published = placing.map(|placing| Method::Published(Published::Devices(placing)));
    published.chain([Method::Search]).collect()
}

/// A row; none if it was interrupted.
fn compare(file: &FromFile, args: &PlacingArgs, line: &Line) -> Result<Option<Compared>> {
    let problem = &file.problem;
    let mut compared = Compared {
        name: problem.name().into(),
        tasks: problem.tasks().len(),
        devices: problem.devices().len(),
        reached: Vec::new(),
        lower_bound: lower_bound(
            problem,
            &file.capacities,
            &Options {
                objective: args.objective,
                ..Options::default()
            },
        ),
    };
    for method in methods(args) {
        line.say(|| format!("{}, {}", compared.name, method.name()));
        let options = Options {
            method,
            objective: args.objective,
            time_limit: args.time_limit,
            seed: args.seed,
            threads: args
                .threads
                .map_or_else(scrimp::machine::threads, usize::from),
            stop: Some(interrupt::flag()),
            ..Options::default()
        };
        let began = std::time::Instant::now();
        let outcome = solve(problem, &file.capacities, &options, &mut |_| {});
        if interrupt::requested() {
            return Ok(None);
        }
        compared.reached.push(Reached {
            method,
            seconds: began.elapsed().as_secs_f64(),
            cost: match outcome {
                Ok(solved) => Ok(solved.cost),
                Err(defect @ SolveError::Defect { .. }) => {
                    return Err(scrimp::Error::Solve(defect).into());
                }
                Err(refusal) => Err(refusal.to_string()),
            },
        });
    }
    Ok(Some(compared))
}

fn markdown(args: &PlacingArgs, compared: &[Compared]) -> String {
    let mut text = format!(
        "Remade by `scrimp bench devices … --objective {} --time-limit {} --seed {}`, scrimp {}. {} of the plans, in \
         each instance's unit, within its capacities: – where a method has no plan that fits or doesn't know what \
         the instance has. In parentheses, seconds of planning. No plan is below the bound.\n",
        args.objective.name(),
        format_seconds(args.time_limit.as_secs_f64()),
        args.seed,
        env!("CARGO_PKG_VERSION"),
        match args.objective {
            Objective::Makespan => "Makespans",
            Objective::Serial => "Serial costs",
        },
    );
    let mut columns: Vec<String> = ["instance", "tasks", "devices"].map(String::from).into();
    columns.extend(methods(args).iter().map(|method| match method {
        Method::Search => "ours".into(),
        other => other.name().into(),
    }));
    columns.push("bound".into());
    text += &head(&columns);
    for one in compared {
        let mut cells = vec![
            one.name.clone(),
            one.tasks.to_string(),
            one.devices.to_string(),
        ];
        cells.extend(one.reached.iter().map(|reached| match &reached.cost {
            Ok(cost) => format!("{} ({:.2})", short(*cost), reached.seconds),
            Err(_) => "–".into(),
        }));
        cells.push(short(one.lower_bound));
        text += &row(cells);
    }
    text
}

/// Five digits.
fn short(cost: f64) -> String {
    let digits = if cost > 0.0 {
        cost.log10().floor() as i32
    } else {
        0
    };
    format!("{cost:.*}", (4 - digits).clamp(0, 12) as usize)
}

fn object(one: &Compared) -> Value {
    let methods = one.reached.iter().map(|reached| {
        json!({
            "method": reached.method.name(),
            "cost": reached.cost.as_ref().ok(),
            "solve_seconds": reached.seconds,
            "error": reached.cost.as_ref().err(),
        })
    });
    json!({
        "instance": one.name,
        "tasks": one.tasks,
        "devices": one.devices,
        "lower_bound": one.lower_bound,
        "methods": methods.collect::<Vec<_>>(),
    })
}

//! Plans a published instance by a published method:
//! `published INSTANCE.json METHOD BUDGET [SECONDS] [THREADS] [C_V] [choice]`, where
//! the budget is like `90%` or `12GB`.
#![allow(clippy::print_stdout, reason = "a command")]

use std::time::Duration;

use scrimp_plan::{Budget, Capacities, Plan, check, file::read_instance};
use scrimp_solve::{Method, Options, Precedence, solve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, method, budget, rest @ ..] = &words[..] else {
        return Err("INSTANCE METHOD BUDGET [SECONDS] [THREADS] [C_V] [choice]".into());
    };
    let problem = read_instance(&std::fs::read_to_string(file)?)?.problem;
    let device = problem.sole_device().ok_or("several devices")?;
    let method: Method = method.parse()?;
    let base = check(&problem, Plan::keep_all(&problem, device)?)
        .map_err(|violations| format!("{violations:?}"))?;
    let bytes = budget
        .parse::<Budget>()?
        .bytes(&problem, device, base.peak(device))?;
    let mut numbers = rest.iter().filter_map(|word| word.parse::<usize>().ok());
    let has = |word: &str| rest.iter().any(|other| other == word);
    let options = Options {
        method,
        time_limit: Duration::from_secs(numbers.next().unwrap_or(60) as u64),
        threads: numbers.next().unwrap_or(2),
        runs_per_task: numbers.next().unwrap_or(2),
        precedence: if has("choice") {
            Precedence::Choice
        } else {
            Precedence::Reservoir
        },
        ..Options::default()
    };
    let capacities = Capacities::unlimited().with_bytes(device, bytes);
    let outcome = solve(&problem, &capacities, &options, &mut |_| {})?;
    let percent = |cost: f64| 100.0 * (cost / base.cost() - 1.0);
    println!(
        "{} {budget}: +{:.4} % (bound +{:.4} %{}), peak {} of {:?}, {:.1} s{}",
        method.name(),
        percent(outcome.plan.cost()),
        percent(outcome.lower_bound),
        if outcome.optimal { ", proven" } else { "" },
        outcome.plan.peak(device),
        bytes,
        outcome.elapsed.as_secs_f64(),
        outcome
            .note
            .map(|note| format!(", {note}"))
            .unwrap_or_default(),
    );
    Ok(())
}

//! Plans an instance or a problem file and prints one line:
//! `measure FILE BUDGET [fixed|free] [SECONDS] [METHOD] [SEED] [bare]`; `bare` leaves the placement out.
//!
//! The budget is in the file's unit; with a percent sign it is a share of what planning can change.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a development tool"
)]
use std::time::Duration;

use scrimp_plan::{Budget, Capacities, Plan, check, problem_from_json, read_instance};
use scrimp_solve::{Cutoff, Method, Options, Order, place_reordered, solve};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&args[1]).unwrap();
    let problem = read_instance(&text)
        .map(|i| i.problem)
        .or_else(|_| problem_from_json(&text).map(|(problem, _)| problem))
        .unwrap();
    let device = problem.sole_device().unwrap();
    let peak = check(&problem, Plan::keep_all(&problem, device).unwrap())
        .unwrap()
        .peak(device);
    let budget: Budget = args[2].parse().unwrap();
    let bytes = budget.bytes(&problem, device, peak).unwrap().unwrap_or(0);
    let capacities = Capacities::bytes_of(device, bytes);
    let options = Options {
        order: args.get(3).map_or(Order::Fixed, |s| s.parse().unwrap()),
        time_limit: Duration::from_secs_f64(args.get(4).map_or(5.0, |s| s.parse().unwrap())),
        method: args.get(5).map_or(Method::Search, |s| s.parse().unwrap()),
        seed: args.get(6).map_or(0, |s| s.parse().unwrap()),
        ..Options::default()
    };
    let percent = |cost: f64| 100.0 * (cost / problem.base_cost() - 1.0);
    let (mut least, mut when) = (f64::INFINITY, Duration::ZERO);
    let solved = solve(&problem, &capacities, &options, &mut |news| {
        if let Some(cost) = news.cost
            && cost < least
        {
            (least, when) = (cost, news.elapsed);
        }
    });
    let name = args[1].rsplit('/').next().unwrap();
    match solved {
        Ok(s) => {
            let resident = problem.devices()[device].resident;
            let lost = |arena: u64| format!("lost {}", arena + resident - s.plan.peak(device));
            let arena = match args.get(7).map(String::as_str) {
                Some("bare") => "not placed".into(),
                _ => place_reordered(&s.plan, &capacities, options.order, Cutoff::NEVER)
                    .map_or_else(|e| e.to_string(), |l| lost(l.arena_bytes(device))),
            };
            println!(
                "{name:40} {bytes:>12} {:.4} % bound {:.4} % found {:.2} s of {:.2} s, recomputed {} peak {} {arena}{}",
                percent(s.cost),
                percent(s.lower_bound),
                when.as_secs_f64(),
                s.elapsed.as_secs_f64(),
                s.plan.recomputed(),
                s.plan.peak(device),
                if s.optimal { " optimal" } else { "" },
            );
        }
        Err(error) => println!("{name:40} {bytes:>12} {error}"),
    }
}

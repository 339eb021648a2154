//! Plans random small networks and compares with the best plan that exact methods or longer searches find:
//! `families [least] [FAMILY|all] [COUNT] [SECONDS] [SEED] [PROOF_SECONDS] [FOLDER] [FIRST]`.
//!
//! Of each family's problems half are training graphs and half plan in a fixed order. Budgets go from half a percent above the least
//! that the search finds towards the peak without a plan, in six steps that grow. Each problem is planned with two
//! seeds, and the worse plan counts. The reference of a fixed order is the plan of `exact`, and that of a
//! free order the best of `exact`, of `moccasin-unstaged` and of a search with another seed. For
//! the least step, they also look for a plan within 99.5 % of the least.
//! Problems on which the search is more than 0.5 % slower are written into FOLDER, which is made if it isn't there.
//!
//! With `least`, the least budgets that two seeds find are compared with the one that another seed finds in PROOF_SECONDS instead.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a development tool"
)]
use std::path::Path;
use std::time::Duration;

use scrimp_plan::testing::{Family, network};
use scrimp_plan::{Capacities, Plan, Problem, Sequence, Step, check, problem_to_json};
use scrimp_solve::{
    Method, Options, Order, Published, SolveError, Solved, floor_bytes, leanest, solve,
};

/// Budgets from half a percent above the least on: the k-th is k²/36 of the way to the peak without a plan.
const STEPS: u64 = 6;
/// Percent of slowness that count as equal.
const CLOSE: f64 = 0.5;
/// The most tasks for which `moccasin-unstaged` is asked.
const UNSTAGED_TASKS: usize = 60;

fn main() {
    let mut args: Vec<String> = std::env::args().collect();
    let leasts = args.get(1).is_some_and(|arg| arg == "least");
    if leasts {
        args.remove(1);
    }
    let arg = |k: usize| args.get(k).map(String::as_str);
    let number = |k: usize, or: f64| arg(k).map_or(or, |s| s.parse::<f64>().unwrap());
    let wanted = arg(1).unwrap_or("all");
    let tool = Tool {
        limit: Duration::from_secs_f64(number(3, 5.0)),
        proof: Duration::from_secs_f64(number(5, 20.0)),
        folder: arg(6),
    };
    if let Some(folder) = tool.folder {
        std::fs::create_dir_all(folder).unwrap();
    }
    let (count, seed) = (number(2, 30.0) as u64, number(4, 0.0) as u64);
    let first = number(7, 0.0) as u64;
    let mut table = String::from(
        "family problems within_0.5_% worst_% proven within_0.5_% worst_% least_missed\n",
    );
    for family in Family::ALL {
        if wanted == "all" || wanted == family.name() {
            let rows: Vec<Row> = (first..first + count)
                .map(|k| match leasts {
                    true => tool.compare_leasts(family, k, seed * 100_000 + k),
                    false => tool.compare(family, k, seed * 100_000 + k),
                })
                .collect();
            let of = |proven: bool| {
                let rows = rows.iter().filter(|row| row.proven || !proven);
                let close = rows.clone().filter(|row| row.beyond <= CLOSE).count();
                let worst = rows.clone().map(|row| row.beyond).fold(0.0, f64::max);
                format!("{} {close} {worst:.2}", rows.count())
            };
            let missed = rows.iter().filter(|row| row.least_missed).count();
            table += &format!("{} {} {} {missed}\n", family.name(), of(false), of(true));
        }
    }
    println!("{table}");
}

struct Tool<'a> {
    limit: Duration,
    proof: Duration,
    folder: Option<&'a str>,
}

struct Row {
    /// Percent by which the search's plan is slower than the reference.
    beyond: f64,
    /// Whether no plan of the reference's model is better than the reference.
    proven: bool,
    least_missed: bool,
}

/// One problem, its budget, and how it is asked.
struct Asked {
    problem: Problem,
    bytes: u64,
    options: Options,
}

impl Asked {
    /// The plan of a method; `start` is a known plan.
    fn plan(
        &self,
        method: Method,
        seed: u64,
        limit: Duration,
        start: Option<&Solved>,
    ) -> Option<Solved> {
        let device = self.problem.sole_device().unwrap();
        let start = start.map(|known| {
            let runs = known.plan.steps().iter().filter_map(|step| match step {
                Step::Run { task, .. } => Some(*task),
                _ => None,
            });
            Sequence::of_runs(device, runs)
        });
        let options = Options {
            method,
            seed,
            time_limit: limit,
            start,
            order: match method {
                Method::Search | Method::Published(Published::MoccasinUnstaged) => {
                    self.options.order
                }
                _ => Order::Fixed,
            },
            ..self.options.clone()
        };
        let capacities = Capacities::bytes_of(device, self.bytes);
        match solve(&self.problem, &capacities, &options, &mut |_| {}) {
            Ok(solved) => Some(solved),
            Err(SolveError::Infeasible { .. } | SolveError::Unsupported(_)) => None,
            Err(error) => {
                println!("{}: {error}", self.problem.name());
                None
            }
        }
    }

    /// The best plan of the exact methods and of a search with another seed, and whether it is proven.
    fn reference(&self, known: Option<&Solved>, limit: Duration) -> (Option<Solved>, bool) {
        let free = self.options.order == Order::Free;
        let mut methods = vec![Method::Exact];
        if free {
            methods.push(Method::Search);
            if self.problem.tasks().len() <= UNSTAGED_TASKS {
                methods.push(Method::Published(Published::MoccasinUnstaged));
            }
        }
        let mut best: Option<Solved> = known.cloned();
        let mut proven = false;
        for method in methods {
            let found = self.plan(method, self.options.seed + 2, limit, best.as_ref());
            if let Some(found) = found {
                proven |= found.optimal && !(free && method == Method::Exact);
                if best.as_ref().is_none_or(|best| found.cost < best.cost) {
                    best = Some(found);
                }
            }
        }
        (best, proven)
    }
}

/// Whether the k-th problem of a family is a training graph, and the order that it is planned in.
fn kind(k: u64) -> (bool, Order) {
    let free = k / 2 % 2 == 1;
    (
        k.is_multiple_of(2),
        if free { Order::Free } else { Order::Fixed },
    )
}

impl Tool<'_> {
    fn compare_leasts(&self, family: Family, k: u64, seed: u64) -> Row {
        let (training, order) = kind(k);
        let asked = self.draw(family, training, order, seed);
        let floor = floor_bytes(&asked.problem).unwrap();
        let least = |seed: u64, time_limit: Duration| {
            let options = Options {
                seed,
                time_limit,
                ..asked.options.clone()
            };
            let found = leanest(
                &asked.problem,
                &Capacities::unlimited(),
                &options,
                &mut |_| {},
            );
            found.unwrap().0
        };
        let found = [least(0, self.limit), least(1, self.limit)];
        let worst = found[0].max(found[1]);
        let best = found[0].min(found[1]);
        let reference = match best <= floor {
            true => best,
            false => best.min(least(2, self.proof)),
        };
        let beyond = 100.0 * (worst as f64 / reference as f64 - 1.0);
        println!(
            "{} {k}: {} tasks, {}, {} order, floor {floor}: {} {} reference {reference}, beyond {beyond:.2} %{}",
            asked.problem.name(),
            asked.problem.tasks().len(),
            if training { "training" } else { "forward" },
            order.name(),
            found[0],
            found[1],
            if beyond > CLOSE { " BEYOND" } else { "" },
        );
        if let Some(folder) = self.folder
            && beyond > CLOSE
        {
            let name = format!("{}_{}_{reference}.json", asked.problem.name(), order.name());
            let text = problem_to_json(&asked.problem, &Capacities::unlimited());
            std::fs::write(Path::new(folder).join(name), text).unwrap();
        }
        Row {
            beyond,
            proven: reference <= floor,
            least_missed: beyond > CLOSE,
        }
    }

    fn compare(&self, family: Family, k: u64, seed: u64) -> Row {
        let step = (k / 4 + k) % STEPS;
        let (training, order) = kind(k);
        let mut asked = self.draw(family, training, order, seed);
        let device = asked.problem.sole_device().unwrap();
        let keep_all = Plan::keep_all(&asked.problem, device).unwrap();
        let peak = check(&asked.problem, keep_all).unwrap().peak(device);
        let limited = |time_limit| Options {
            time_limit,
            ..asked.options.clone()
        };
        let (least, lean) = leanest(
            &asked.problem,
            &Capacities::unlimited(),
            &limited(self.limit),
            &mut |_| {},
        )
        .unwrap();
        let lowest = (least + least / 200).min(peak);
        asked.bytes = lowest + (peak - lowest) * (step * step) / (STEPS * STEPS);
        let plans: Vec<Option<Solved>> = (0..2)
            .map(|k| asked.plan(Method::Search, k, self.limit, None))
            .collect();
        let cost = |plan: &Option<Solved>| plan.as_ref().map_or(f64::INFINITY, |p| p.cost);
        let by_cost = |a: &&Option<Solved>, b: &&Option<Solved>| cost(a).total_cmp(&cost(b));
        let best = plans.iter().min_by(by_cost).unwrap();
        let worst = cost(plans.iter().max_by(by_cost).unwrap());
        let met = best.as_ref().is_some_and(|best| best.optimal);
        let (reference, proven) = if met {
            (best.clone(), true)
        } else {
            asked.reference(best.as_ref().or(Some(&lean)), self.proof)
        };
        let base = asked.problem.base_cost();
        let known = cost(&reference);
        let beyond = if worst <= known {
            0.0
        } else {
            100.0 * (worst / known - 1.0)
        };
        let added = |cost: f64| format!("{:.3}", 100.0 * (cost / base - 1.0));
        let mut least_missed = false;
        let (bytes, mut lesser) = (asked.bytes, None);
        if step == 0 {
            asked.bytes = least - least / 200 - 1;
            lesser = asked.reference(None, self.proof).0;
            asked.bytes = bytes;
            least_missed = lesser.is_some();
        }
        println!(
            "{} {k}: {} tasks, {}, {} order, {bytes} bytes (step {step}): {} {} reference {}{}, beyond {beyond:.2} %{}{}",
            asked.problem.name(),
            asked.problem.tasks().len(),
            if training { "training" } else { "forward" },
            order.name(),
            added(cost(&plans[0])),
            added(cost(&plans[1])),
            added(known),
            if proven { " proven" } else { "" },
            if beyond > CLOSE { " BEYOND" } else { "" },
            lesser
                .as_ref()
                .map_or(String::new(), |p| format!(" LEAST {}", p.plan.peak(device))),
        );
        if let Some(folder) = self.folder
            && (beyond > CLOSE || least_missed)
        {
            let least = lesser.map_or(String::new(), |p| format!("_least{}", p.plan.peak(device)));
            let name = format!(
                "{}_{}_{bytes}_{}{least}.json",
                asked.problem.name(),
                order.name(),
                added(known)
            );
            let text = problem_to_json(&asked.problem, &Capacities::bytes_of(device, bytes));
            std::fs::write(Path::new(folder).join(name), text).unwrap();
        }
        Row {
            beyond,
            proven,
            least_missed,
        }
    }

    /// A network whose peak planning can lower by more than a tenth.
    fn draw(&self, family: Family, training: bool, order: Order, seed: u64) -> Asked {
        // Sizes are spread evenly on a logarithmic scale.
        let spread = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64;
        let tasks = (20.0 * 7.5f64.powf(spread)) as usize;
        (0..100)
            .find_map(|again| {
                let problem = network(family, tasks, training, seed + 1_000_000_007 * again);
                let device = problem.sole_device().unwrap();
                let peak = check(&problem, Plan::keep_all(&problem, device).unwrap())
                    .unwrap()
                    .peak(device);
                let room = floor_bytes(&problem).unwrap() < peak - peak / 10;
                room.then(|| Asked {
                    problem,
                    bytes: peak,
                    options: Options {
                        order,
                        ..Options::default()
                    },
                })
            })
            .expect("most networks of a family can be planned")
    }
}

//! How planning cost grows with the graph: plans random layered graphs of growing size on one thread,
//! prints tasks, edges and CPU seconds until the first plan and until the added time is within 2 % of
//! the last, and draws them:
//! `growth SVG [BUDGET] [fixed|free] [SECONDS per 1000 tasks] [TASKS...]`.
//!
//! CPU seconds are those of the main thread, which does all the work, from Linux' /proc.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a development tool"
)]
use std::fmt::Write as _;
use std::time::Duration;

use scrimp_plan::testing::random_bytes;
use scrimp_plan::{
    Capacities, Device, Keep, Mode, Origin, Phase, Plan, Problem, ProblemParts, Task, TaskId,
    Value, ValueId, check,
};
use scrimp_solve::{Options, Order, solve};

/// Inputs of a task on average.
const DEGREE: usize = 5;
const SIZES: [usize; 8] = [1000, 1400, 2000, 2800, 4000, 5600, 8000, 10_000];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let svg = args.get(1).map_or("growth.svg", String::as_str);
    let budget = args.get(2).map_or("80%", String::as_str);
    let order: Order = args.get(3).map_or(Order::Fixed, |s| s.parse().unwrap());
    let seconds: f64 = args.get(4).map_or(2.0, |s| s.parse().unwrap());
    let sizes: Vec<usize> = match args.get(5..) {
        Some(sizes) if !sizes.is_empty() => sizes.iter().map(|s| s.parse().unwrap()).collect(),
        _ => SIZES.to_vec(),
    };
    println!("tasks edges first_s within_2%_s first_added_% added_%");
    let mut rows = Vec::new();
    for tasks in sizes {
        let (problem, edges) = layered(tasks);
        let row = measure(&problem, edges, budget, order, seconds);
        println!(
            "{tasks} {edges} {:.3} {:.3} {:.2} {:.2}",
            row.first, row.settled, row.first_added, row.added
        );
        rows.push(row);
    }
    std::fs::write(svg, plot(&rows)).unwrap();
}

struct Row {
    edges: f64,
    /// CPU seconds.
    first: f64,
    settled: f64,
    /// Percent.
    first_added: f64,
    added: f64,
}

fn measure(problem: &Problem, edges: usize, budget: &str, order: Order, seconds: f64) -> Row {
    let device = problem.sole_device().unwrap();
    let keep_all = check(problem, Plan::keep_all(problem, device).unwrap()).unwrap();
    let budget: scrimp_plan::Budget = budget.parse().unwrap();
    let bytes = budget
        .bytes(problem, device, keep_all.peak(device))
        .unwrap();
    let capacities = Capacities::bytes_of(device, bytes.unwrap());
    let options = Options {
        order,
        threads: 1,
        time_limit: Duration::from_secs_f64(seconds * problem.tasks().len() as f64 / 1000.0),
        ..Options::default()
    };
    let start = cpu_seconds();
    let mut news: Vec<(f64, f64)> = Vec::new();
    let solved = solve(problem, &capacities, &options, &mut |progress| {
        if let Some(cost) = progress.cost {
            news.push((cpu_seconds() - start, cost));
        }
    });
    let added = |cost: f64| 100.0 * (cost / problem.base_cost() - 1.0);
    let last = added(solved.unwrap().cost);
    let settled = news.iter().find(|n| added(n.1) <= 1.02 * last + 1e-9);
    Row {
        edges: edges as f64,
        first: news[0].0,
        settled: settled.unwrap().0,
        first_added: added(news[0].1),
        added: last,
    }
}

/// CPU seconds of the main thread so far.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Random numbers from a seed, one after the other.
struct Draw(Vec<u8>, usize);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        let word = self.0[self.1..self.1 + 4].try_into().unwrap();
        self.1 += 4;
        ((u64::from(u32::from_le_bytes(word)) * n as u64) >> 32) as usize
    }
}

/// Layers of up to 2√n tasks; most inputs come from the layer before, every fourth from anywhere in
/// the twenty before that. Returns the number of edges too.
fn layered(tasks: usize) -> (Problem, usize) {
    let mut draw = Draw(random_bytes(tasks as u64, tasks * 100), 0);
    let mut parts = ProblemParts::default();
    let device = parts.devices.push(Device::computing("cpu"));
    let width = 2 * tasks.isqrt();
    // Where each layer starts, that being made included.
    let (mut layers, mut edges) = (vec![0], 0);
    while parts.tasks.len() < tasks {
        let first = parts.tasks.len();
        let size = (1 + draw.below(width)).min(tasks - first);
        for k in first..first + size {
            let mut inputs: Vec<ValueId> = Vec::new();
            for _ in 0..1 + draw.below(2 * DEGREE - 1) {
                let back = if draw.below(4) > 0 {
                    1
                } else {
                    1 + draw.below(20)
                };
                if back < layers.len() {
                    let (from, to) = (layers[layers.len() - 1 - back], layers[layers.len() - back]);
                    let v = ValueId::from_u32((from + draw.below(to - from)) as u32);
                    if !inputs.contains(&v) {
                        inputs.push(v);
                    }
                }
            }
            edges += inputs.len();
            let output = parts.values.push(Value {
                name: String::new(),
                bytes: 1 + draw.below(1000) as u64,
                origin: Origin::Task(TaskId::from_u32(k as u32)),
                keep: Keep::No,
            });
            parts.tasks.push(Task {
                name: format!("t{k}"),
                phase: Phase::Forward,
                inputs,
                outputs: vec![output],
                overwrites: Vec::new(),
                modes: vec![Mode {
                    device,
                    seconds: (1 + draw.below(100)) as f64,
                    joules: 0.0,
                    workspace: 0,
                    resident: 0,
                }],
                rerunnable: true,
            });
        }
        layers.push(first + size);
    }
    (Problem::new(parts).unwrap(), edges)
}

/// A log-log plot of seconds over edges, with n log n through the first point.
fn plot(rows: &[Row]) -> String {
    let (w, h, left, top) = (640.0, 400.0, 60.0, 30.0);
    let all = rows.iter().flat_map(|r| [r.first, r.settled]);
    let (low, high) = all.fold((f64::INFINITY, 0.0f64), |(l, h), s| (l.min(s), h.max(s)));
    let (y0, y1) = (low.log10().floor(), high.log10().ceil());
    let x0 = rows[0].edges.log10();
    let x1 = rows[rows.len() - 1].edges.log10().max(x0 + 0.1);
    let x = |e: f64| left + (e.log10() - x0) / (x1 - x0) * (w - left - 120.0);
    let y = |s: f64| top + (y1 - s.log10()) / (y1 - y0) * (h - top - 50.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{w}\" height=\"{h}\" fill=\"white\"/>\n"
    );
    for decade in y0 as i32..=y1 as i32 {
        let s = 10f64.powi(decade);
        let at = y(s);
        writeln!(out, "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{s} s</text>", w - 120.0, left - 6.0, at + 4.0).unwrap();
    }
    for r in rows {
        let at = x(r.edges);
        writeln!(out, "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#eee\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", h - 50.0, h - 34.0, r.edges).unwrap();
    }
    writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">edges</text><text x=\"{left}\" y=\"18\">CPU seconds of planning</text>", (left + w - 120.0) / 2.0, h - 12.0).unwrap();
    let per = rows[0].first / (rows[0].edges * rows[0].edges.ln());
    let reference = |r: &Row| per * r.edges * r.edges.ln();
    type Line<'a> = (&'a str, &'a str, &'a dyn Fn(&Row) -> f64);
    let lines: [Line<'_>; 3] = [
        ("first plan", "#1f77b4", &|r| r.first),
        ("within 2 %", "#d62728", &|r| r.settled),
        ("m log m", "#999", &reference),
    ];
    for (k, (name, colour, of)) in lines.into_iter().enumerate() {
        let points: Vec<String> = rows
            .iter()
            .map(|r| format!("{:.1},{:.1}", x(r.edges), y(of(r).max(low))))
            .collect();
        let dash = match name {
            "m log m" => " stroke-dasharray=\"5 4\"",
            _ => "",
        };
        let (at, line) = (w - 112.0, top + 16.0 * (k + 1) as f64);
        writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/><text x=\"{at:.1}\" y=\"{line:.1}\" fill=\"{colour}\">{name}</text>", points.join(" ")).unwrap();
    }
    out + "</svg>\n"
}

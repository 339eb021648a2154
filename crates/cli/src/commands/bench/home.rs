//! `scrimp bench home`: table 2 of HOME's paper with six methods and ours, under one cost model and one
//! simulator.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use scrimp::graph::networks::{NetworkOptions, build};
use scrimp::graph::{Loss, Optimizer, Roofline, Tiles, estimate};
use scrimp::plan::{
    Budget, Capacities, DeviceId, Problem, SwapMemory, format_bytes, format_seconds,
};
use scrimp::solve::{
    Layer, Method, Offload, Options, Published, Reading, SolveError, Solved, solve,
};
use scrimp::{Error, Recipe};
use serde_json::{Value, json};

use super::markdown::{head, row};
use crate::args::HomeArgs;
use crate::failure::{Failure, Kind};
use crate::output::Outputs;
use crate::progress::Line;
use crate::{Answer, interrupt};

/// An RTX 2080 Ti: half of its 13.45 TFLOP/s, three quarters of its 616 GB/s, and what a launch takes.
const GPU: Roofline = Roofline {
    flops_per_second: 0.5 * 13.45e12,
    bytes_per_second: 0.75 * 616e9,
    overhead: 10e-6,
};

/// The columns. HOME is the better of its two readings, where the literal one has time to end.
const METHODS: [(&str, &[Method]); 7] = [
    ("keep-all", &[Method::KeepAll]),
    (
        "vDNN (all)",
        &[Method::Published(Published::Vdnn(Offload::All))],
    ),
    (
        "vDNN (conv)",
        &[Method::Published(Published::Vdnn(Offload::Convolutions))],
    ),
    (
        "SuperNeurons",
        &[Method::Published(Published::SuperNeurons)],
    ),
    ("Capuchin", &[Method::Published(Published::Capuchin)]),
    (
        "HOME",
        &[
            Method::Published(Published::Home(Reading::Table3)),
            Method::Published(Published::Home(Reading::Literal)),
        ],
    ),
    ("ours", &[Method::Search]),
];
const CAPUCHIN: usize = 4;
const HOME: usize = 5;
const OURS: usize = 6;

/// Batches are found to one part in this many.
const RESOLUTION: u64 = 128;
/// No batch is larger.
const MOST: u64 = 1 << 20;

/// What the paper's table 2 says: largest batches and samples per second of PyTorch, Capuchin and HOME.
const TABLE_2: [(&str, [u64; 3], [u64; 3]); 6] = [
    ("mobilenet", [2012, 3954, 4200], [1706, 2999, 3426]),
    ("plain20", [1040, 2843, 2926], [2368, 2012, 2554]),
    ("squeezenet", [1667, 4056, 4347], [6273, 5719, 6613]),
    ("vgg16", [2759, 4250, 5125], [2786, 5120, 6211]),
    ("resnet", [1255, 2014, 2576], [2285, 2179, 2519]),
    ("inception", [125, 345, 365], [257, 240, 280]),
];

/// One network under all methods, by their columns.
struct Network {
    name: String,
    /// The largest batch and its samples per second; none if nothing fits.
    largest: Vec<Option<(u64, f64)>>,
    /// Our samples per second at that batch.
    ours: Vec<Option<f64>>,
    /// Everybody's at Capuchin's largest batch.
    at_capuchin: Vec<Option<f64>>,
}

/// A network at one batch size.
struct Step {
    problem: Problem,
    capacities: Capacities,
    layers: Arc<[Layer]>,
}

struct Bench<'a> {
    args: &'a HomeArgs,
    line: &'a Line,
}

/// Measures, writes what was asked for and tells.
pub fn run(args: &HomeArgs, quiet: bool) -> Result<Answer> {
    let output =
        Outputs::beside(std::iter::empty::<&std::path::Path>()).claim(args.output.as_ref())?;
    let line = Line::bar(quiet, "comparing", args.networks.len() as u64);
    let bench = Bench { args, line: &line };
    let mut networks = Vec::new();
    for (k, name) in args.networks.iter().enumerate() {
        line.at(k as u64);
        if interrupt::requested() {
            break;
        }
        networks.extend(bench.network(name)?);
    }
    drop(line);
    let text = markdown(args, &networks);
    let json = json!({
        "networks": networks.iter().map(object).collect::<Vec<_>>(),
        "memory_bytes": args.memory,
        "link": args.link.text,
        "time_limit_seconds": args.time_limit.as_secs_f64(),
        "interrupted": interrupt::requested(),
    });
    let mut answer = Answer::new(json, text.clone());
    if let Some(output) = &output {
        output.write(text.as_bytes())?;
        answer.text = format!(
            "{} networks written to {}\n",
            networks.len(),
            output.path().display()
        );
    }
    if interrupt::requested() {
        let sentence = "interrupted; what was compared by then is shown and written";
        answer.failure = Some(Failure::new(Kind::Interrupted, sentence));
    }
    Ok(answer)
}

impl Bench<'_> {
    /// A row; none if it was interrupted.
    fn network(&self, name: &str) -> Result<Option<Network>> {
        let mut largest: Vec<Option<u64>> = Vec::new();
        for (title, methods) in METHODS {
            self.line
                .say(|| format!("{name}, largest batch of {title}"));
            let start = largest.first().copied().flatten().unwrap_or(1);
            largest.push(self.largest(name, methods[0], start)?);
            if interrupt::requested() {
                return Ok(None);
            }
        }
        let mut network = Network {
            name: name.into(),
            largest: Vec::new(),
            ours: Vec::new(),
            at_capuchin: Vec::new(),
        };
        let speed = |column: usize, batch: u64| -> Result<Option<f64>> {
            self.line
                .say(|| format!("{name}, {} at batch {batch}", METHODS[column].0));
            self.samples_per_second(name, METHODS[column].1, batch)
        };
        for (column, &batch) in largest.iter().enumerate() {
            let Some(batch) = batch else {
                network.largest.push(None);
                network.ours.push(None);
                continue;
            };
            let own = speed(column, batch)?;
            network.largest.push(own.map(|own| (batch, own)));
            network.ours.push(if column == OURS {
                own
            } else {
                speed(OURS, batch)?
            });
        }
        for column in 0..METHODS.len() {
            let batch = largest[CAPUCHIN].filter(|_| !interrupt::requested());
            network.at_capuchin.push(match batch {
                Some(batch) => speed(column, batch)?,
                None => None,
            });
        }
        Ok((!interrupt::requested()).then_some(network))
    }

    /// The largest batch for which a method finds a plan, looked for from `start` on.
    fn largest(&self, name: &str, method: Method, start: u64) -> Result<Option<u64>> {
        let fits = |batch: u64| -> Result<bool> {
            let found = self.plan(name, method, batch, Some(f64::MAX));
            Ok(!interrupt::requested() && found?.is_some())
        };
        // `low` fits and `high` doesn't.
        let (mut low, mut high) = (0, start);
        while high < MOST && fits(high)? {
            (low, high) = (high, 2 * high);
        }
        while high - low > (low / RESOLUTION).max(1) {
            let middle = low.midpoint(high);
            match fits(middle)? {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok((low > 0).then_some(low))
    }

    /// Of the fastest plan of several methods.
    fn samples_per_second(
        &self,
        name: &str,
        methods: &[Method],
        batch: u64,
    ) -> Result<Option<f64>> {
        let mut best: Option<f64> = None;
        for &method in methods {
            if let Some(solved) = self.plan(name, method, batch, None)? {
                let speed = batch as f64 / solved.cost;
                best = Some(best.map_or(speed, |best| best.max(speed)));
            }
        }
        Ok(best)
    }

    /// A plan; none if the method finds none.
    fn plan(
        &self,
        name: &str,
        method: Method,
        batch: u64,
        enough: Option<f64>,
    ) -> Result<Option<Solved>> {
        let args = self.args;
        let step = self.step(name, batch)?;
        let options = Options {
            method,
            enough,
            time_limit: args.time_limit,
            seed: args.seed,
            threads: args
                .threads
                .map_or_else(scrimp::machine::threads, usize::from),
            stop: Some(interrupt::flag()),
            layers: Some(step.layers),
            ..Options::default()
        };
        match solve(&step.problem, &step.capacities, &options, &mut |_| {}) {
            Ok(solved) => Ok(Some(solved)),
            Err(SolveError::Infeasible { .. } | SolveError::NotFound { .. }) => Ok(None),
            Err(error) => Err(Error::Solve(error).into()),
        }
    }

    /// The training step of a batch.
    fn step(&self, name: &str, batch: u64) -> Result<Step> {
        let shape = NetworkOptions {
            batch: batch as usize,
            ..NetworkOptions::default()
        };
        let graph = build(name, &shape).map_err(Error::from)?;
        let recipe = Recipe {
            loss: Loss::CrossEntropy,
            optimizer: Optimizer::Sgd {
                momentum: 0.9,
                weight_decay: 5e-4,
            },
            tiles: Tiles::Off,
        };
        let training = scrimp::differentiate(&graph, recipe)?;
        let costs = estimate(&training.graph, &GPU, &|_| 0);
        let lowered = scrimp::lower(&training, &costs)?;
        let memory = SwapMemory {
            name: "host".into(),
            folder: None,
            capacity: Budget::Bytes(self.args.host),
            rates: Some(self.args.link.rates),
        };
        let capacities = Capacities::bytes_of(DeviceId::from_u32(0), self.args.memory);
        let (problem, capacities) = memory.add(&lowered.problem, &capacities).map_err(|error| {
            Failure::new(
                Kind::Input,
                format!("--link doesn't fit the problem: {error}"),
            )
        })?;
        Ok(Step {
            problem,
            capacities,
            layers: scrimp::layers(&training, &lowered),
        })
    }
}

fn markdown(args: &HomeArgs, networks: &[Network]) -> String {
    let limit = Duration::as_secs_f64(&args.time_limit);
    let mut text = format!(
        "Remade by `scrimp bench home --memory {} --time-limit {} --seed {}`, scrimp {}. One simulator and one cost model \
         for all: an operator takes {:.0} µs plus the larger of its operations at {:.2} TFLOP/s and its bytes at {:.0} \
         GB/s (half and three quarters of an RTX 2080 Ti's peaks); no workspaces; a second memory of {} over a link of \
         {}. The step is forward, backward and an update by SGD with momentum. The other methods manage feature maps \
         only. Largest batches are within {:.1} %. HOME is the better of its readings.\n",
        format_bytes(args.memory),
        format_seconds(limit),
        args.seed,
        env!("CARGO_PKG_VERSION"),
        GPU.overhead * 1e6,
        GPU.flops_per_second / 1e12,
        GPU.bytes_per_second / 1e9,
        format_bytes(args.host),
        args.link.text,
        100.0 / RESOLUTION as f64,
    );
    let mut columns = vec!["network".to_owned()];
    columns.extend(METHODS.map(|(title, _)| title.to_owned()));
    text += "\n## Largest batch\n";
    text += &head(&columns);
    let number =
        |number: Option<f64>| number.map_or_else(|| "–".into(), |number| format!("{number:.0}"));
    for network in networks {
        let batches = network
            .largest
            .iter()
            .map(|own| number(own.map(|own| own.0 as f64)));
        text += &row([network.name.clone()].into_iter().chain(batches));
    }
    text += "\n## Samples per second at it\n\nIn parentheses, ours at the same batch.\n";
    text += &head(&columns);
    for network in networks {
        let speeds = network.largest.iter().zip(&network.ours).enumerate();
        let speeds = speeds.map(|(column, (own, ours))| match column {
            OURS => number(own.map(|own| own.1)),
            _ => format!("{} ({})", number(own.map(|own| own.1)), number(*ours)),
        });
        text += &row([network.name.clone()].into_iter().chain(speeds));
    }
    text += "\n## Samples per second at Capuchin's largest batch\n";
    text += &head(&columns);
    for network in networks {
        let speeds = network.at_capuchin.iter().map(|&speed| number(speed));
        text += &row([network.name.clone()].into_iter().chain(speeds));
    }
    text += "\n## HOME over Capuchin\n\nThe paper's (table 2) in parentheses: its speeds are those at each one's largest batch.\n";
    let ratios = [
        "network",
        "batch",
        "speed at Capuchin's batch",
        "ours over HOME, batch",
        "ours over HOME, speed at Capuchin's batch",
    ];
    text += &head(&ratios.map(str::to_owned));
    for network in networks {
        let paper = TABLE_2
            .iter()
            .find(|(name, ..)| network.name.starts_with(name));
        let beside = |ratio: Option<f64>, paper: Option<f64>| {
            let shown = ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}"));
            paper.map_or(shown.clone(), |paper| format!("{shown} ({paper:.2})"))
        };
        let batch = |column: usize| network.largest[column].map(|own| own.0 as f64);
        let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
        let speeds = &network.at_capuchin;
        text += &row([
            network.name.clone(),
            beside(
                ratio(batch(HOME), batch(CAPUCHIN)),
                paper.map(|(_, batches, _)| batches[2] as f64 / batches[1] as f64),
            ),
            beside(
                ratio(speeds[HOME], speeds[CAPUCHIN]),
                paper.map(|(_, _, speeds)| speeds[2] as f64 / speeds[1] as f64),
            ),
            beside(ratio(batch(OURS), batch(HOME)), None),
            beside(ratio(speeds[OURS], speeds[HOME]), None),
        ]);
    }
    text
}

fn object(network: &Network) -> Value {
    let methods = METHODS.iter().enumerate().map(|(column, (title, _))| {
        json!({
            "method": title,
            "batch": network.largest[column].map(|own| own.0),
            "samples_per_second": network.largest[column].map(|own| own.1),
            "ours_samples_per_second": network.ours[column],
            "samples_per_second_at_capuchins_batch": network.at_capuchin[column],
        })
    });
    json!({ "network": network.name, "methods": methods.collect::<Vec<_>>() })
}

//! The subcommands that plan many times: curves, largest batches, tables of published results.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use scrimp::Limit;
use scrimp::plan::{Budget, PerDevice, Rates, SwapError, SwapMemory, parse_bytes, parse_seconds};
use scrimp::solve::{Method, Objective};

use super::shared::{
    self, DevicesArgs, PowerArgs, PublishedArgs, RecipeArgs, ShapeArgs, SolveArgs, TargetArgs,
};
use crate::budgets::Budgets;

/// Plan for many budgets: the trade-off between memory and time
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp sweep resnet50 --batch 8
  scrimp sweep resnet50 --budgets 30%..100%:5% --report curve.html --csv curve.csv
  scrimp sweep instance.json --budgets 4GiB..10GiB:1GiB --order fixed --json
  scrimp sweep instance.json --swap host=64GiB --speeds 6GB/s,12GB/s,25GB/s --apart
  scrimp sweep resnet18 --devices cpu:0/1,cpu:1/1 --budgets 25%..100%:25%
  scrimp sweep instance.json --budgets 60%,40% --energy --watts 15 --report curves.html
  scrimp sweep instance.json --methods search,chen-sqrt-n,checkmate-rounding --report curves.html")]
pub struct SweepArgs {
    /// Budgets and ranges of them, separated by commas: 80%, 30%..100% (15 points),
    /// 30%..100%:5% (a step), 4GiB..10GiB/7 (a number of points)
    #[arg(
        long,
        short,
        value_delimiter = ',',
        default_value = "30%..100%:10%",
        value_name = "LIST"
    )]
    pub budgets: Vec<Budgets>,
    /// Several planners, separated by commas: one curve each
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = shared::methods(),
        conflicts_with = "method",
        value_name = "NAMES"
    )]
    pub methods: Vec<Method>,
    /// Memories in which values may wait, as for plan: NAME=SIZE@SPEED, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "MEMORIES")]
    pub swap: Vec<SwapMemory>,
    /// Speeds of these memories' links, separated by commas: one curve each
    #[arg(long, requires = "swap", value_delimiter = ',', value_name = "SPEEDS")]
    pub speeds: Vec<Speed>,
    /// Also plan without these memories, and with them but running nothing again
    #[arg(long, requires = "swap")]
    pub apart: bool,
    /// Trade time for energy instead: under each budget plans from the fastest to the most frugal
    #[arg(long, conflicts_with_all = ["methods", "speeds", "apart", "csv", "devices"])]
    pub energy: bool,
    /// Of several devices, those whose budgets stay the same, separated by commas: NAME=BUDGET. All
    /// others get each budget of the list
    #[arg(long, requires = "devices", value_name = "BUDGETS")]
    pub beside: Option<PerDevice<Budget>>,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub devices: DevicesArgs,
    /// The time limit is that of each budget and curve
    #[command(flatten)]
    pub solve: SolveArgs,
    #[command(flatten)]
    pub power: PowerArgs,
    /// Write a page with the curves that opens offline in any browser here
    #[arg(long, value_name = "OUT.html", help_heading = "Outputs")]
    pub report: Option<PathBuf>,
    /// Write the numbers as comma-separated values here
    #[arg(long, value_name = "OUT.csv", help_heading = "Outputs")]
    pub csv: Option<PathBuf>,
}

/// Rates of a memory's links, as they were written.
#[derive(Clone, Debug)]
pub struct Speed {
    pub text: String,
    pub rates: Rates,
}

impl FromStr for Speed {
    type Err = SwapError;

    fn from_str(text: &str) -> Result<Speed, SwapError> {
        Ok(Speed {
            text: text.trim().into(),
            rates: text.parse()?,
        })
    }
}

/// Find the largest batch that trains within a memory and a limit on the added time
#[derive(Debug, Args)]
#[command(
    name = "max-batch",
    after_help = "Of a model, the graph is made anew for every batch size that is tried, with its weights and workspaces. Of
an instance, every value grows with the batch, and what doesn't is its fixed memory: the file's, or
--fixed. Costs are the static model's, or the instance's.

Examples:
  scrimp max-batch resnet50 --memory 16GB
  scrimp max-batch model.onnx --memory 8GiB --overhead 10% -o plan.json
  scrimp max-batch VGG19_b1.json --memory 16GB --json
  scrimp max-batch instance.json --at 32 --fixed 2GiB --memory 16GiB --method checkmate"
)]
pub struct MaxBatchArgs {
    /// An ONNX file, a built-in network, or an instance in JSON
    pub target: String,
    /// Bytes of the device, everything counted
    #[arg(long, short, value_parser = parse_bytes, value_name = "BYTES")]
    pub memory: u64,
    /// Most added time: one-forward (one more forward pass), or a share like 10%
    #[arg(long, default_value = "one-forward", value_name = "LIMIT")]
    pub overhead: Overhead,
    /// Memories in which values may wait, as for plan; a model's may be ram=8GiB or disk:/scratch=50GiB
    #[arg(long, value_delimiter = ',', value_name = "MEMORIES")]
    pub swap: Vec<SwapMemory>,
    /// Bytes that an instance needs beside its graph, whatever the batch (else as in the file)
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES", help_heading = "Instance")]
    pub fixed: Option<u64>,
    /// The batch that an instance's values are of (else as in the file, else 1)
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), value_name = "BATCH", help_heading = "Instance")]
    pub at: Option<u64>,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub solve: SolveArgs,
    /// Write the plan for the largest batch here
    #[arg(long, short, value_name = "PLAN.json", help_heading = "Outputs")]
    pub output: Option<PathBuf>,
    /// Write the problem of the largest batch here
    #[arg(long, value_name = "PROBLEM.json", help_heading = "Outputs")]
    pub problem_out: Option<PathBuf>,
}

/// A limit on the added time, as written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead(pub Limit);

impl FromStr for Overhead {
    type Err = String;

    fn from_str(text: &str) -> Result<Overhead, String> {
        if text == "one-forward" {
            return Ok(Overhead(Limit::OneForward));
        }
        let percent = text
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok());
        match percent.filter(|percent| (0.0..=1e6).contains(percent)) {
            Some(percent) => Ok(Overhead(Limit::Percent(percent))),
            None => Err("give `one-forward` or a percentage like `10%`".into()),
        }
    }
}

/// Measure the planners against published results
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp bench papers instances/ --only moccasin,monet
  scrimp bench papers G1.json G2.json --time-limit 2s -o table.md
  scrimp bench home -o home.md")]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    Papers(PapersArgs),
    Home(HomeArgs),
    Devices(PlacingArgs),
}

/// Compare planners for several devices: what each reaches on instances with several that compute, and the bound
#[derive(Debug, Args)]
#[command(
    after_help = "Every method plans within the capacities that the instance states. Folders are searched for instances
and problems; those with one device that computes are left out.

Examples:
  scrimp bench devices instances/partitioning/ --only latency -o devices.md
  scrimp bench devices instances/xengine/ --objective serial --json"
)]
pub struct PlacingArgs {
    /// Instances or problems, or folders with some
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Only files whose folder or name starts with one of these, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// What a plan costs: makespan, or serial, one run or copy at a time
    #[arg(long, default_value = "makespan", value_parser = |text: &str| text.parse::<Objective>())]
    pub objective: Objective,
    /// Most time for each plan: 10, 2.5s, 500ms, 2min, 1h
    #[arg(long, default_value = "10s", value_parser = parse_seconds, help_heading = "Search")]
    pub time_limit: Duration,
    /// Seed of everything random
    #[arg(long, default_value_t = 0, help_heading = "Search")]
    pub seed: u64,
    /// Threads to search with (all that are there, unless given)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Search")]
    pub threads: Option<u16>,
    /// Write the table here, in Markdown, instead of on standard output
    #[arg(long, short, value_name = "FILE.md", help_heading = "Outputs")]
    pub output: Option<PathBuf>,
}

/// Compare planners that swap, as HOME's paper does: the largest batch of six networks, and how fast it is
#[derive(Debug, Args)]
#[command(
    after_help = "The networks are the variants for images of 32×32 that `scrimp networks` lists. Every method plans with
the same costs and the same second memory, and every plan is checked and simulated alike. Costs are
estimated for the paper's GPU; the table says how.

Examples:
  scrimp bench home -o home.md
  scrimp bench home --networks vgg16-cifar,plain20 --memory 8GB --link 6GB/s/half --json"
)]
pub struct HomeArgs {
    /// Built-in networks, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "mobilenet-cifar,plain20,squeezenet-cifar,vgg16-cifar,resnet18-cifar,inception-v3-cifar",
        value_name = "NAMES"
    )]
    pub networks: Vec<String>,
    /// The memory of the device that computes
    #[arg(long, default_value = "11GB", value_parser = parse_bytes)]
    pub memory: u64,
    /// The size of the second memory
    #[arg(long, default_value = "128GB", value_parser = parse_bytes)]
    pub host: u64,
    /// The speed of the link between them: as of `plan --swap`
    #[arg(long, default_value = "12GB/s", value_name = "SPEED")]
    pub link: Speed,
    /// Most time for each plan: 10, 2.5s, 500ms, 2min, 1h
    #[arg(long, default_value = "5s", value_parser = parse_seconds, help_heading = "Search")]
    pub time_limit: Duration,
    /// Seed of everything random
    #[arg(long, default_value_t = 0, help_heading = "Search")]
    pub seed: u64,
    /// Threads to search with (all that are there, unless given)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Search")]
    pub threads: Option<u16>,
    /// Write the tables here, in Markdown, instead of on standard output
    #[arg(long, short, value_name = "FILE.md", help_heading = "Outputs")]
    pub output: Option<PathBuf>,
}

/// Remake the tables of published results from instances that carry them
#[derive(Debug, Args)]
#[command(
    after_help = "Every budget of every instance that has published results is planned in fixed and in free order, and
so is every problem, under --budgets or its own capacity. Folders are searched for instances; files
beside them that name methods and their results count too. Buffers to place are placed at their
capacity.

Examples:
  scrimp bench papers instances/ --only moccasin --time-limit 5s -o moccasin.md
  scrimp bench papers instances/monet/unet.json --json
  scrimp bench papers problem.json --budgets 50%,60% --seeds 20
  scrimp bench papers instances/ --only allocation"
)]
pub struct PapersArgs {
    /// Instances, or folders with instances
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Only instances whose folder or name starts with one of these, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// Budgets of problems, and of instances without published results: as of `sweep`
    #[arg(long, short, value_delimiter = ',', value_name = "LIST")]
    pub budgets: Vec<Budgets>,
    /// Which orders of first runs to plan in
    #[arg(long, value_enum, default_value_t = OrdersArg::Both)]
    pub orders: OrdersArg,
    /// How to plan
    #[arg(long, default_value = Method::default().name(), value_parser = shared::methods())]
    pub method: Method,
    /// Most time for each plan: 10, 2.5s, 500ms, 2min, 1h
    #[arg(long, default_value = "5s", value_parser = parse_seconds, help_heading = "Search")]
    pub time_limit: Duration,
    /// Seed of everything random
    #[arg(long, default_value_t = 0, help_heading = "Search")]
    pub seed: u64,
    /// Plan with this many seeds, from the first on, and show the median, the best and the worst
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000), help_heading = "Search")]
    pub seeds: u64,
    /// Threads to search with (all that are there, unless given)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Search")]
    pub threads: Option<u16>,
    #[command(flatten)]
    pub published: PublishedArgs,
    /// Write the tables here, in Markdown, instead of on standard output
    #[arg(long, short, value_name = "FILE.md", help_heading = "Outputs")]
    pub output: Option<PathBuf>,
}

/// Orders to plan in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OrdersArg {
    /// Fixed, then free
    Both,
    /// First runs in the given order
    Fixed,
    /// Any order
    Free,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_on_the_added_time() {
        assert_eq!("one-forward".parse(), Ok(Overhead(Limit::OneForward)));
        assert_eq!("12.5 %".parse(), Ok(Overhead(Limit::Percent(12.5))));
        assert_eq!("0%".parse(), Ok(Overhead(Limit::Percent(0.0))));
        for text in ["", "%", "10", "-1%", "NaN%", "inf%", "two-forward"] {
            assert!(text.parse::<Overhead>().is_err(), "{text}");
        }
    }
}

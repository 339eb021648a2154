//! The one table of the command line: subcommands, flags, help and examples. Help, man pages and
//! shell completions are all made from it.

mod explore;
mod shared;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use scrimp::plan::{Budget, PerDevice, SwapMemory, parse_bytes};

pub use explore::{
    BenchArgs, BenchCommand, HomeArgs, MaxBatchArgs, OrdersArg, PapersArgs, PlacingArgs, SweepArgs,
};
pub use shared::{
    CostsArg, DevicesArgs, EnergyArgs, LibraryArg, LossArg, OptimizerArg, RecipeArgs, ReportArgs,
    SearchArgs, ShapeArgs, SolveArgs, TargetArgs, TileArg,
};
use shared::{positive, tiles};

/// The most batches that one plan runs.
const MOST_IN_FLIGHT: u64 = 1 << 10;

/// Run and train neural networks in less memory than they need.
#[derive(Debug, Parser)]
#[command(
    name = "scrimp",
    version,
    about,
    long_about = "Run and train neural networks in less memory than they need.\n\n\
        scrimp decides what to keep and what to compute again under a byte budget, proves that the \
        plan stays under it, and executes it: the results are the same bits as without a plan.",
    propagate_version = true,
    after_help = "Exit codes: 0 done, 1 internal error, 2 usage, 3 bad input, 4 budget too small, 5 plan \
        fails the check, 6 output not writable, 7 runs differ, 8 out of memory, 9 solver library \
        missing, 10 loss not finite, 130 interrupted."
)]
pub struct Cli {
    /// Print exactly one JSON object on standard output (its keys are in docs/cli.md)
    #[arg(long, global = true)]
    pub json: bool,
    /// Show no progress on standard error
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Inspect(InspectArgs),
    Plan(PlanArgs),
    Check(CheckArgs),
    Train(TrainArgs),
    Run(RunArgs),
    Sweep(SweepArgs),
    MaxBatch(MaxBatchArgs),
    Place(PlaceArgs),
    Bench(BenchArgs),
    Networks(NetworksArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Show what a model is and what it needs: shapes, operators, bytes, the peak of a training step
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp inspect resnet50 --batch 8
  scrimp inspect unet --devices cpu:0/1@onednn,cpu:1/1@native --costs measured
  scrimp inspect model.onnx --json")]
pub struct InspectArgs {
    /// An ONNX file or the name of a built-in network (see `scrimp networks`)
    pub model: String,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub devices: DevicesArgs,
    /// Where seconds come from
    #[arg(long, value_enum, default_value_t = CostsArg::Static)]
    pub costs: CostsArg,
    /// Measure again what was measured before
    #[arg(long)]
    pub fresh_costs: bool,
}

/// Plan a training step of a model, or any graph of costs and sizes, under a budget
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp plan resnet50 --batch 8 --budget 50% -o plan.json --problem-out problem.json
  scrimp plan model.onnx --budget 2GiB --report plan.html --trace plan.trace.json
  scrimp plan vgg16-trunk --image 10240 --batch 1 --budget 11GiB --tile auto
  scrimp plan instance.json --budget 80% --method chen-sqrt-n
  scrimp plan instance.json --budget 6GiB --swap host=64GiB@12GB/s
  scrimp plan resnet18 --devices cpu:0/1@onednn,cpu:1/1@native --budget cpu:0=60%,cpu:1=100MB
  scrimp plan problem.json --budget min --time-limit 30s --json")]
pub struct PlanArgs {
    /// Most memory in use at any time: bytes (8GiB), a share of what planning can change (50%), or min; for
    /// several devices NAME=BUDGET,NAME=BUDGET. Without it the capacities that a problem's file states count
    #[arg(long, short)]
    pub budget: Option<PerDevice<Budget>>,
    /// Memories in which values may wait, separated by commas: NAME=SIZE@SPEED, like host=64GiB@12GB/s;
    /// @6GB/s/half if both directions share the link, @170GB/s:411GB/s for out and back. A model's may be
    /// ram=8GiB or disk:/scratch=50GiB: then their speed is measured
    #[arg(long, value_delimiter = ',', value_name = "MEMORIES")]
    pub swap: Vec<SwapMemory>,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub devices: DevicesArgs,
    #[command(flatten)]
    pub solve: SolveArgs,
    #[command(flatten)]
    pub energy: EnergyArgs,
    /// Write the plan here
    #[arg(long, short, value_name = "PLAN.json", help_heading = "Outputs")]
    pub output: Option<PathBuf>,
    /// Write the problem that was planned here
    #[arg(long, value_name = "PROBLEM.json", help_heading = "Outputs")]
    pub problem_out: Option<PathBuf>,
    #[command(flatten)]
    pub reports: ReportArgs,
}

/// Check a saved plan against its problem, trusting neither
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp check problem.json plan.json
  scrimp check problem.json plan.json --budget 6GiB --json")]
pub struct CheckArgs {
    /// A problem (or an instance) in JSON
    pub problem: PathBuf,
    /// A plan in JSON
    pub plan: PathBuf,
    /// Check against this budget instead of the capacity in the problem; for several devices
    /// NAME=BUDGET,NAME=BUDGET
    #[arg(long, short)]
    pub budget: Option<PerDevice<Budget>>,
}

/// Train a model inside a byte budget
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp train digits --data testdata/digits.npz --budget 50% --steps 600 --compare
  scrimp train resnet50 --batch 8 --budget 50% --steps 2 --compare --json
  scrimp train resnet50 --batch 8 --budget 300MiB --swap disk:/scratch=50GiB --steps 2
  scrimp train unet --devices cpu:0/1,cpu:1/1 --budget cpu:0=50%,cpu:1=50% --steps 2 --compare
  scrimp train darknet19-trunk --image 2048 --batch 1 --budget 1GiB --tile auto --steps 1
  scrimp train model.onnx --budget 2GiB --steps 100 --data train.npz --optimizer adam --save w.safetensors
  scrimp train model.onnx --budget 2GiB --steps 100 --data train.npz --optimizer adam --resume w.safetensors")]
pub struct TrainArgs {
    /// An ONNX file or the name of a built-in network (see `scrimp networks`)
    pub model: String,
    /// Most memory in use at any time: bytes (8GiB), a share of what planning can change (50%), or min; for
    /// several devices NAME=BUDGET,NAME=BUDGET
    #[arg(long, short)]
    pub budget: PerDevice<Budget>,
    /// Memories in which values may wait, separated by commas: NAME=SIZE in RAM, like ram=8GiB, or
    /// NAME:FOLDER=SIZE in a file without a name, like disk:/scratch=50GiB
    #[arg(long, value_delimiter = ',', value_name = "MEMORIES")]
    pub swap: Vec<SwapMemory>,
    /// How many steps
    #[arg(long, short)]
    pub steps: u64,
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Training data: arrays x and y, or one for each input by its name; those that end in _test are
    /// for testing. Without it the data is random (made from the seed)
    #[arg(long, value_name = "FILE.npz", help_heading = "Training")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Learning rate (0.1 for sgd, 0.01 for momentum, 0.001 for adam unless given)
    #[arg(long, value_parser = positive, help_heading = "Training")]
    pub lr: Option<f64>,
    #[command(flatten)]
    pub devices: DevicesArgs,
    #[command(flatten)]
    pub solve: SolveArgs,
    /// Where the seconds that the planner sees come from
    #[arg(long, value_enum, default_value_t = CostsArg::Measured, help_heading = "Search")]
    pub costs: CostsArg,
    /// Measure again what was measured before
    #[arg(long, help_heading = "Search")]
    pub fresh_costs: bool,
    /// Use this saved plan instead of planning; it is checked again, with this device's workspaces and costs
    #[arg(long, value_name = "PLAN.json", help_heading = "Search", conflicts_with_all = ["method", "order", "time_limit"])]
    pub plan: Option<PathBuf>,
    /// Write the weights, the optimizer's state and the step number here at the end or at Ctrl-C; or, as
    /// FILE.onnx, a copy of the model with the trained weights
    #[arg(long, value_name = "FILE.safetensors", help_heading = "Outputs")]
    pub save: Option<PathBuf>,
    /// Write the plan here
    #[arg(long, value_name = "PLAN.json", help_heading = "Outputs")]
    pub plan_out: Option<PathBuf>,
    /// Go on from a file written by --save
    #[arg(long, value_name = "FILE.safetensors", help_heading = "Training")]
    pub resume: Option<PathBuf>,
    /// Train without a plan too, and say whether every loss, gradient and weight is the same bits
    #[arg(long, help_heading = "Training")]
    pub compare: bool,
    #[command(flatten)]
    pub reports: ReportArgs,
}

/// Run a trained model on data inside a byte budget
#[derive(Debug, Args)]
#[command(
    after_help = "Inputs are arrays of an npz file by the names of the model's inputs, or the only array of a file for
a model with one input; the first axis counts samples, and batches are streamed through.

Examples:
  scrimp run model.onnx --inputs x.npz --outputs y.npz
  scrimp run model.onnx --inputs x.npz --outputs y.npz --budget 150MB --swap disk:/scratch=50GiB
  scrimp run resnet50 --weights w.safetensors --inputs images.npy --outputs y.npz --batch 1 --budget min
  scrimp run unet --batch 1 --budget 50% --batches 5 --compare --json
  scrimp run model.onnx --devices cpu:0/1@onednn,cpu:1/1@native --in-flight 8 --batches 80"
)]
pub struct RunArgs {
    /// An ONNX file or the name of a built-in network (see `scrimp networks`)
    pub model: String,
    /// Most memory in use at any time: bytes (8GiB), a share of what planning can change (50%), or min; for
    /// several devices NAME=BUDGET,NAME=BUDGET (100% unless given)
    #[arg(long, short)]
    pub budget: Option<PerDevice<Budget>>,
    /// Memories in which weights and values may wait, separated by commas: NAME=SIZE in RAM, like ram=8GiB, or
    /// NAME:FOLDER=SIZE in a file without a name, like disk:/scratch=50GiB
    #[arg(long, value_delimiter = ',', value_name = "MEMORIES")]
    pub swap: Vec<SwapMemory>,
    /// The samples; without it they are random (made from the seed)
    #[arg(long, short, value_name = "FILE.npz")]
    pub inputs: Option<PathBuf>,
    /// Write the model's outputs for all samples here
    #[arg(long, short, value_name = "FILE.npz")]
    pub outputs: Option<PathBuf>,
    /// Weights, as `scrimp train --save` or others write them (else an ONNX file's own)
    #[arg(long, value_name = "FILE.safetensors")]
    pub weights: Option<PathBuf>,
    /// How many random batches (1 unless given)
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "inputs")]
    pub batches: Option<u64>,
    /// Batches that one plan runs: 1 for the least time of a batch; more where several devices compute, so that each
    /// can work on another batch, for the most batches per second
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=MOST_IN_FLIGHT))]
    pub in_flight: u64,
    /// Run without a plan too, and say whether every output is the same bits
    #[arg(long)]
    pub compare: bool,
    /// Run what can be cut by tiles: off, auto (what is fastest within the budgets), a number of tiles in each
    /// dimension, or sft: and a number. Without it as auto where no plan without tiles meets the budget. Of inputs
    /// in a file only tiles are read
    #[arg(long, value_parser = tiles, value_name = "TILES")]
    pub tile: Option<TileArg>,
    /// Whose kernels run
    #[arg(long, value_enum, default_value_t = LibraryArg::Auto)]
    pub library: LibraryArg,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub devices: DevicesArgs,
    #[command(flatten)]
    pub solve: SolveArgs,
    /// Where the seconds that the planner sees come from (static for one device, measured for several unless given)
    #[arg(long, value_enum, help_heading = "Search")]
    pub costs: Option<CostsArg>,
    /// Measure again what was measured before
    #[arg(long, help_heading = "Search")]
    pub fresh_costs: bool,
    #[command(flatten)]
    pub reports: ReportArgs,
}

/// Place buffers with known lifetimes: offsets that don't overlap, in as few bytes as can be found
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp place allocation.json
  scrimp place allocation.json --capacity 1MiB -o offsets.json")]
pub struct PlaceArgs {
    /// An allocation instance in JSON: buffers with bytes, start and end
    pub instance: PathBuf,
    /// Most bytes to use (else as in the file, else unlimited)
    #[arg(long, short, value_parser = parse_bytes)]
    pub capacity: Option<u64>,
    /// Write the offsets here
    #[arg(long, short, value_name = "OFFSETS.json")]
    pub output: Option<PathBuf>,
}

/// List the built-in networks
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp networks
  scrimp networks --json")]
pub struct NetworksArgs {}

/// Show what this machine offers: threads, instruction set, memory, solver libraries
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp doctor
  SCRIMP_PYTHON=venv/bin/python scrimp doctor
  scrimp doctor --json")]
pub struct DoctorArgs {
    /// Threads to use (all that are there, unless given)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// File or folder of the HiGHS library (else SCRIMP_HIGHS, the active Python environment, the
    /// system's libraries)
    #[arg(long, value_name = "PATH")]
    pub highs: Option<PathBuf>,
    /// File or folder of the OR-tools library (else SCRIMP_ORTOOLS, the active Python environment,
    /// the system's libraries)
    #[arg(long, value_name = "PATH")]
    pub ortools: Option<PathBuf>,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp completions bash > ~/.local/share/bash-completion/completions/scrimp
  scrimp completions fish > ~/.config/fish/completions/scrimp.fish")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Print the manual page of the command or of one subcommand
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp man > scrimp.1
  scrimp man train | man -l -")]
pub struct ManArgs {
    /// The subcommand; the whole command unless given
    pub subcommand: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_table_is_consistent() {
        Cli::command().debug_assert();
    }
}

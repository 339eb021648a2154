//! The one table of the command line: subcommands, flags, help and examples. Help, man pages and
//! shell completions are all made from it.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use scrimp::plan::{Budget, parse_bytes, parse_seconds};
use scrimp::solve::{Method, Order};

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
        fails the check, 6 output not writable, 7 runs differ, 8 out of memory, 130 interrupted."
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
    Sweep(SweepArgs),
    Place(PlaceArgs),
    Networks(NetworksArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Show what a model is and what it needs: shapes, operators, bytes, the peak of a training step
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp inspect resnet50 --batch 8
  scrimp inspect model.onnx --json")]
pub struct InspectArgs {
    /// An ONNX file or the name of a built-in network (see `scrimp networks`)
    pub model: String,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

/// Plan a training step of a model, or any graph of costs and sizes, under a budget
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp plan resnet50 --batch 8 --budget 50% -o plan.json --problem-out problem.json
  scrimp plan model.onnx --budget 2GiB --report plan.html --trace plan.trace.json
  scrimp plan instance.json --budget 80% --method chen-sqrt-n
  scrimp plan problem.json --budget min --time-limit 30s --json")]
pub struct PlanArgs {
    /// An ONNX file, a built-in network, an instance or a problem in JSON
    pub target: String,
    /// Most memory in use at any time: bytes (8GiB), a share of what planning can change (50%), or min
    #[arg(long, short)]
    pub budget: Budget,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub solve: SolveArgs,
    /// Where a model's seconds come from
    #[arg(long, value_enum, default_value_t = CostsArg::Static)]
    pub costs: CostsArg,
    /// Write the plan here
    #[arg(long, short, value_name = "PLAN.json")]
    pub output: Option<PathBuf>,
    /// Write the problem that was planned here
    #[arg(long, value_name = "PROBLEM.json")]
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
    /// Check against this budget instead of the capacity in the problem
    #[arg(long, short)]
    pub budget: Option<Budget>,
}

/// Train a model inside a byte budget
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp train digits --data testdata/digits.npz --budget 50% --steps 600 --compare
  scrimp train resnet50 --batch 8 --budget 50% --steps 2 --compare --json
  scrimp train model.onnx --budget 2GiB --steps 100 --data train.npz --optimizer adam --save w.safetensors
  scrimp train model.onnx --budget 2GiB --steps 100 --data train.npz --optimizer adam --resume w.safetensors")]
pub struct TrainArgs {
    /// An ONNX file or the name of a built-in network (see `scrimp networks`)
    pub model: String,
    /// Most memory in use at any time: bytes (8GiB), a share of what planning can change (50%), or min
    #[arg(long, short)]
    pub budget: Budget,
    /// How many steps
    #[arg(long, short)]
    pub steps: u64,
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Training data; without it the data is random (made from the seed)
    #[arg(long, value_name = "FILE.npz")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Learning rate (0.1 for sgd, 0.01 for momentum, 0.001 for adam unless given)
    #[arg(long, value_parser = positive)]
    pub lr: Option<f64>,
    #[command(flatten)]
    pub solve: SolveArgs,
    /// Where the seconds that the planner sees come from
    #[arg(long, value_enum, default_value_t = CostsArg::Profile)]
    pub costs: CostsArg,
    /// Use this saved plan (it is checked again) instead of planning
    #[arg(long, value_name = "PLAN.json", conflicts_with_all = ["method", "order", "time_limit"])]
    pub plan: Option<PathBuf>,
    /// Write the weights, the optimizer's state and the step number here at the end or at Ctrl-C
    #[arg(long, value_name = "FILE.safetensors")]
    pub save: Option<PathBuf>,
    /// Go on from a file written by --save
    #[arg(long, value_name = "FILE.safetensors")]
    pub resume: Option<PathBuf>,
    /// Train without a plan too, and say whether every loss, gradient and weight is the same bits
    #[arg(long)]
    pub compare: bool,
    #[command(flatten)]
    pub reports: ReportArgs,
}

/// Plan for a list of budgets: the trade-off between memory and time
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp sweep resnet50 --batch 8
  scrimp sweep instance.json --budgets 90%,80%,70%,60%,50% --json")]
pub struct SweepArgs {
    /// An ONNX file, a built-in network, an instance or a problem in JSON
    pub target: String,
    /// The budgets, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100%,90%,80%,70%,60%,50%,40%,30%"
    )]
    pub budgets: Vec<Budget>,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub solve: SolveArgs,
    /// Where a model's seconds come from
    #[arg(long, value_enum, default_value_t = CostsArg::Static)]
    pub costs: CostsArg,
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

/// Show what this machine offers: threads, instruction set, memory
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  scrimp doctor
  scrimp doctor --json")]
pub struct DoctorArgs {
    /// Threads to use (all that are there, unless given)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
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

/// Sizes of a model: its input's, and what else built-in networks let one choose.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ShapeArgs {
    /// Samples per step (8 for built-in networks, the file's own for ONNX, unless given)
    #[arg(long, value_parser = size)]
    pub batch: Option<usize>,
    /// Height and width of a built-in network's images: 224 or 416x608
    #[arg(long, value_parser = image, value_name = "SIZE")]
    pub image: Option<[usize; 2]>,
    /// Classes of a built-in network
    #[arg(long, value_parser = size)]
    pub classes: Option<usize>,
    /// Blocks of the built-in transformer
    #[arg(long, value_parser = size)]
    pub layers: Option<usize>,
    /// Features per token of the built-in transformer, channels of the U-Nets
    #[arg(long, value_parser = size)]
    pub width: Option<usize>,
    /// Attention heads of the built-in transformer
    #[arg(long, value_parser = size)]
    pub heads: Option<usize>,
    /// Tokens per sample of the built-in transformer
    #[arg(long, value_parser = size)]
    pub sequence: Option<usize>,
    /// Different tokens of the built-in transformer
    #[arg(long, value_parser = size)]
    pub vocabulary: Option<usize>,
    /// Probability that a built-in network's dropout drops; 0 leaves it out
    #[arg(long, value_parser = fraction)]
    pub dropout: Option<f64>,
}

/// What a training step does; decides what is in memory at all times.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Training")]
pub struct RecipeArgs {
    /// What is minimized
    #[arg(long, value_enum, default_value_t = LossArg::CrossEntropy)]
    pub loss: LossArg,
    /// How the parameters change
    #[arg(long, value_enum, default_value_t = OptimizerArg::Sgd)]
    pub optimizer: OptimizerArg,
    /// Momentum of --optimizer momentum
    #[arg(long, default_value_t = 0.9, value_parser = fraction)]
    pub momentum: f64,
    /// L2 penalty
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub weight_decay: f64,
}

/// How hard to search, and with what.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Search")]
pub struct SearchArgs {
    /// Most time for the search: 10, 2.5s, 500ms, 2min, 1h
    #[arg(long, default_value = "10s", value_parser = parse_seconds)]
    pub time_limit: Duration,
    /// Seed of everything random (0, or that of the file to --resume, unless given)
    #[arg(long)]
    pub seed: Option<u64>,
    /// Threads to search and to compute with (all that are there, unless given)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
}

impl SearchArgs {
    /// Threads to use.
    pub fn threads(&self) -> usize {
        self.threads
            .map_or_else(scrimp::machine::threads, usize::from)
    }
}

/// Options of the planner.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Search")]
pub struct SolveArgs {
    /// How to plan
    #[arg(long, default_value = Method::default().name(), value_parser = methods())]
    pub method: Method,
    /// Whether first runs may change their order: free or fixed
    #[arg(long, default_value = "free", value_parser = |text: &str| text.parse::<Order>())]
    pub order: Order,
    #[command(flatten)]
    pub search: SearchArgs,
}

/// Where seconds come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostsArg {
    /// Counted operations and bytes at an assumed speed; the same on every machine
    Static,
    /// Every distinct operator and shape measured on this machine
    Profile,
}

/// What to write besides the result.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Outputs")]
pub struct ReportArgs {
    /// Write a report that opens offline in any browser here
    #[arg(long, value_name = "OUT.html")]
    pub report: Option<PathBuf>,
    /// Write a trace for Perfetto (ui.perfetto.dev) here
    #[arg(long, value_name = "OUT.json")]
    pub trace: Option<PathBuf>,
}

/// Losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LossArg {
    /// Softmax cross-entropy with integer labels
    CrossEntropy,
    /// Mean of squared differences to a target
    Mse,
    /// The model's last output is the loss
    Output,
}

/// Optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerArg {
    /// Gradient descent without momentum
    Sgd,
    /// Gradient descent with momentum
    Momentum,
    /// Adam with bias correction
    Adam,
}

fn number(text: &str, right: impl Fn(f64) -> bool, wanted: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x: &f64| x.is_finite() && right(*x))
        .ok_or(format!("give {wanted}"))
}

/// The planners by name.
fn methods() -> impl TypedValueParser<Value = Method> {
    PossibleValuesParser::new(Method::ALL.map(Method::name)).try_map(|name| name.parse::<Method>())
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |x| x > 0.0, "a number above 0")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |x| x >= 0.0, "a number that isn't negative")
}

fn fraction(text: &str) -> Result<f64, String> {
    number(
        text,
        |x| (0.0..1.0).contains(&x),
        "a number from 0 to below 1",
    )
}

fn size(text: &str) -> Result<usize, String> {
    let limit = 1 << 24;
    let right = |x: &usize| (1..=limit).contains(x);
    text.parse()
        .ok()
        .filter(right)
        .ok_or(format!("give a whole number from 1 to {limit}"))
}

/// `224` or `416x608`.
fn image(text: &str) -> Result<[usize; 2], String> {
    match text.split_once(['x', '×']) {
        Some((height, width)) => Ok([size(height)?, size(width)?]),
        None => size(text).map(|side| [side, side]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_table_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn images() {
        assert_eq!(image("224"), Ok([224, 224]));
        assert_eq!(image("416x608"), Ok([416, 608]));
        for text in ["", "0", "-1", "2x", "x2", "1e3", "99999999999999999999"] {
            assert!(image(text).is_err(), "{text}");
        }
    }
}

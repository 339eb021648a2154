//! Flags that several subcommands share, and what their values may be.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use scrimp::DeviceSpec;
use scrimp::graph::Tiles;
use scrimp::plan::{
    Capacities, DeviceId, Joules, NoDevice, PerDevice, Problem, Watts, WattsError, parse_seconds,
};
use scrimp::run::Library;
use scrimp::solve::{Method, Objective, Options, Order};

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

/// What to plan.
#[derive(Clone, Debug, Args)]
pub struct TargetArgs {
    /// An ONNX file, a built-in network, an instance or a problem in JSON
    #[arg(value_name = "TARGET")]
    pub name: String,
    /// Where a model's seconds come from
    #[arg(long, value_enum, default_value_t = CostsArg::Static)]
    pub costs: CostsArg,
    /// Measure again what was measured before
    #[arg(long)]
    pub fresh_costs: bool,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub recipe: RecipeArgs,
}

/// What a training step does; decides what is in memory at all times.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Training")]
pub struct RecipeArgs {
    /// What is minimized (output if that is the model's only one and a single number, else cross-entropy)
    #[arg(long, value_enum)]
    pub loss: Option<LossArg>,
    /// How the parameters change
    #[arg(long, value_enum, default_value_t = OptimizerArg::Sgd)]
    pub optimizer: OptimizerArg,
    /// Momentum of --optimizer momentum
    #[arg(long, default_value_t = 0.9, value_parser = fraction)]
    pub momentum: f64,
    /// L2 penalty
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub weight_decay: f64,
    /// Run what can be cut, such as convolutions of images and losses of tokens, by so many tiles in each
    /// dimension: off or a number; for plan and train also auto for the fastest or, within a budget in bytes, sft:NUMBER for
    /// the segments that Xu et al., CC 2022, publish. Without it plan and train do as with auto where no plan without
    /// tiles meets the budget
    #[arg(long, value_parser = tiles, value_name = "TILES")]
    pub tile: Option<TileArg>,
    /// Whose kernels run
    #[arg(long, value_enum, default_value_t = LibraryArg::Auto)]
    pub library: LibraryArg,
}

/// The devices that compute.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Devices")]
pub struct DevicesArgs {
    /// Devices that compute side by side, separated by commas: NAME/THREADS, like cpu:0/1,cpu:1/1, each perhaps
    /// with its library, like cpu:0/1@onednn,cpu:1/1@native (else --library); cpu for one with --threads threads;
    /// cuda:0 or opencl:0 for the first GPU that `scrimp doctor` lists there. Each has a memory of its own, so --budget
    /// then is NAME=BUDGET,NAME=BUDGET. Without it, one device `cpu`
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    pub devices: Vec<DeviceSpec>,
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

/// Those of a command without these flags.
impl Default for SearchArgs {
    fn default() -> SearchArgs {
        SearchArgs {
            time_limit: Options::default().time_limit,
            seed: None,
            threads: None,
        }
    }
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
    /// What a plan costs where several devices compute: makespan, or serial, one run or copy at a time
    #[arg(long, default_value = "makespan", value_parser = |text: &str| text.parse::<Objective>())]
    pub objective: Objective,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub published: PublishedArgs,
}

/// What energy is worth, and how much of it there is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Energy")]
pub struct EnergyArgs {
    /// Seconds that one joule is worth: planners minimize seconds + ALPHA · joules
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub alpha: f64,
    /// Most joules that all runs together may take; for several devices NAME=JOULES,NAME=JOULES
    #[arg(long, value_name = "JOULES")]
    pub energy_cap: Option<PerDevice<Joules>>,
    #[command(flatten)]
    pub power: PowerArgs,
}

/// What things draw.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Energy")]
pub struct PowerArgs {
    /// Watts that devices and links draw while they work, like 15 or cpu=15,gpu=120,cpu-gpu=5; energy is
    /// watts · seconds. Without it, energies are those of a file
    #[arg(long, value_name = "WATTS")]
    pub watts: Option<PerDevice<Watts>>,
}

impl PowerArgs {
    /// The problem with the energy that follows.
    ///
    /// # Errors
    /// The errors of [`Problem::with_watts`].
    pub fn of(&self, problem: Problem) -> Result<Problem, WattsError> {
        match &self.watts {
            Some(watts) => problem.with_watts(watts),
            None => Ok(problem),
        }
    }
}

impl EnergyArgs {
    /// These capacities with the caps on energy.
    ///
    /// # Errors
    /// If there is no device for a cap.
    pub fn within(
        &self,
        problem: &Problem,
        capacities: Capacities,
    ) -> Result<Capacities, NoDevice> {
        let caps = match &self.energy_cap {
            Some(caps) => caps.of(problem)?,
            None => Vec::new(),
        };
        let with = |all: Capacities, (device, cap): (DeviceId, &Joules)| {
            all.with_joules(device, Some(cap.0))
        };
        Ok(caps.into_iter().fold(capacities, with))
    }
}

/// What only published planners take.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Published planners")]
pub struct PublishedArgs {
    /// How often moccasin may run a task, its first run included: C_v in its paper
    #[arg(long, default_value_t = 2, value_parser = runs, value_name = "RUNS")]
    pub c_v: usize,
    /// Most time of all runs in poet's program, as a multiple of running every task once
    #[arg(long, value_parser = positive, value_name = "FACTOR")]
    pub runtime_budget: Option<f64>,
    /// File or folder of the HiGHS library (else SCRIMP_HIGHS, the active Python environment, the
    /// system's libraries)
    #[arg(long, value_name = "PATH")]
    pub highs: Option<PathBuf>,
    /// File or folder of the OR-tools library (else SCRIMP_ORTOOLS, the active Python environment,
    /// the system's libraries)
    #[arg(long, value_name = "PATH")]
    pub ortools: Option<PathBuf>,
}

impl PublishedArgs {
    /// What the planners take.
    pub fn options(&self) -> Options {
        Options {
            runs_per_task: self.c_v,
            runtime_budget: self.runtime_budget,
            highs: self.highs.clone(),
            ortools: self.ortools.clone(),
            ..Options::default()
        }
    }
}

/// Where seconds come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostsArg {
    /// Counted operations and bytes at an assumed speed; the same on every machine
    Static,
    /// Every distinct operator and shape measured on this machine, once: times are kept in a cache
    #[value(alias = "profile")]
    Measured,
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

/// Kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LibraryArg {
    /// oneDNN's where it is installed, otherwise scrimp's own
    Auto,
    /// scrimp's own
    Native,
    /// oneDNN's where they are faster, from SCRIMP_ONEDNN or the active Python environment
    Onednn,
}

impl From<LibraryArg> for Library {
    fn from(library: LibraryArg) -> Library {
        match library {
            LibraryArg::Auto => Library::Auto,
            LibraryArg::Native => Library::Native,
            LibraryArg::Onednn => Library::OneDnn,
        }
    }
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
pub fn methods() -> impl TypedValueParser<Value = Method> {
    let value = |method: Method| PossibleValue::new(method.name()).aliases(method.alias());
    PossibleValuesParser::new(Method::ALL.map(value)).try_map(|name| name.parse::<Method>())
}

pub fn positive(text: &str) -> Result<f64, String> {
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

/// A number of runs of one task.
fn runs(text: &str) -> Result<usize, String> {
    let right = |x: &usize| (1..=100).contains(x);
    text.parse()
        .ok()
        .filter(right)
        .ok_or("give a whole number from 1 to 100".into())
}

fn size(text: &str) -> Result<usize, String> {
    let limit = 1 << 24;
    let right = |x: &usize| (1..=limit).contains(x);
    text.parse()
        .ok()
        .filter(right)
        .ok_or(format!("give a whole number from 1 to {limit}"))
}

/// What is run by tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileArg {
    /// What is fastest within the budget.
    Auto,
    /// As SFT does, with this many tiles in each dimension.
    Sft(usize),
    /// As asked.
    Given(Tiles),
}

/// `off`, `auto`, a number of tiles, or `sft:` and a number.
pub fn tiles(text: &str) -> Result<TileArg, String> {
    const MOST: usize = 1 << 12;
    let count = |text: &str| text.parse().ok().filter(|count| (1..=MOST).contains(count));
    let found = match (text, text.strip_prefix("sft:")) {
        ("off", _) => Some(TileArg::Given(Tiles::Off)),
        ("auto", _) => Some(TileArg::Auto),
        (_, Some(number)) => count(number).map(TileArg::Sft),
        (number, None) => count(number).map(|count| TileArg::Given(Tiles::Count(count))),
    };
    found.ok_or(format!(
        "give off, auto, a whole number from 1 to {MOST}, or sft: and such a number"
    ))
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
    use super::image;

    #[test]
    fn images() {
        assert_eq!(image("224"), Ok([224, 224]));
        assert_eq!(image("416x608"), Ok([416, 608]));
        for text in ["", "0", "-1", "2x", "x2", "1e3", "99999999999999999999"] {
            assert!(image(text).is_err(), "{text}");
        }
    }
}

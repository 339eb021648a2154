//! The methods by name, and the variants of the published methods.

use std::str::FromStr;

use scrimp_plan::CheckedPlan;
use scrimp_solvers::Library;
use thiserror::Error;

/// A way to plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The default search: repairs at the worst peak, then ruins and recreates.
    #[default]
    Search,
    /// Recompute nothing.
    KeepAll,
    /// Solves checkmate's program with only those recomputations that can be part of a better plan than the
    /// search's. It proves the same optimum as checkmate.
    Exact,
    /// A published planner.
    Published(Published),
}

impl Method {
    /// Every method; [`Method::Exact`] stands beside the published programs whose optimum it proves.
    pub const ALL: [Method; 3 + Published::ALL.len()] = {
        let mut all = [Method::Search; 3 + Published::ALL.len()];
        (all[1], all[4]) = (Method::KeepAll, Method::Exact);
        let mut i = 0;
        while i < Published::ALL.len() {
            all[if i < 2 { 2 + i } else { 3 + i }] = Method::Published(Published::ALL[i]);
            i += 1;
        }
        all
    };

    /// The name that [`FromStr`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Method::Search => "search",
            Method::KeepAll => "keep-all",
            Method::Exact => "exact",
            Method::Published(published) => published.name(),
        }
    }

    /// The solver library that it needs, if any.
    #[must_use]
    pub fn library(self) -> Option<Library> {
        match self {
            Method::Search | Method::KeepAll => None,
            Method::Exact => Some(Library::Highs),
            Method::Published(published) => published.library(),
        }
    }

    /// Another name that [`FromStr`] reads. Chen et al. planned chains, and the tasks of any graph in index
    /// order form a chain.
    pub fn alias(self) -> Option<&'static str> {
        match self {
            Method::Published(Published::ChenSqrtN(Candidates::Linearized)) => Some("chen-sqrt-n"),
            Method::Published(Published::ChenGreedy(Candidates::Linearized)) => Some("chen-greedy"),
            _ => None,
        }
    }
}

impl FromStr for Method {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Method, UnknownName> {
        Method::ALL
            .into_iter()
            .find(|m| m.name() == text || m.alias() == Some(text))
            .ok_or_else(|| UnknownName {
                what: "method",
                name: text.into(),
                known: Method::ALL.map(Method::name).join(", "),
            })
    }
}

/// Whether first runs keep the given order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First runs may be in any topological order.
    #[default]
    Free,
    /// First runs are in index order, as in checkmate and moccasin (2.3).
    Fixed,
}

impl Order {
    /// The name that [`FromStr`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::Free => "free",
            Order::Fixed => "fixed",
        }
    }
}

impl FromStr for Order {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Order, UnknownName> {
        match text {
            "free" => Ok(Order::Free),
            "fixed" => Ok(Order::Fixed),
            _ => Err(UnknownName {
                what: "order",
                name: text.into(),
                known: "free, fixed".into(),
            }),
        }
    }
}

/// What a plan costs, apart from the price of its joules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// The simulated makespan: devices and links work side by side.
    #[default]
    Makespan,
    /// The sum of the seconds of all runs and all copies: one at a time, as in XEngine (eq. 1).
    Serial,
}

impl Objective {
    /// Every objective.
    pub const ALL: [Objective; 2] = [Objective::Makespan, Objective::Serial];

    /// The name that [`FromStr`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Objective::Makespan => "makespan",
            Objective::Serial => "serial",
        }
    }

    /// The cost of a plan: its seconds by this objective plus `alpha` times its joules.
    #[must_use]
    pub fn cost(self, plan: &CheckedPlan, alpha: f64) -> f64 {
        match self {
            Objective::Makespan => plan.objective(alpha),
            Objective::Serial => plan.serial_seconds() + alpha * plan.total_joules(),
        }
    }
}

impl FromStr for Objective {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Objective, UnknownName> {
        let named = |objective: &Objective| objective.name() == text;
        Objective::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| UnknownName {
                what: "objective",
                name: text.into(),
                known: Objective::ALL.map(Objective::name).join(", "),
            })
    }
}

/// A name that isn't one of the choices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no {what} called {name:?}; choose one of {known}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

/// A published planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// Checkmate's mixed-integer program, equations 1–9.
    Checkmate(Formulation),
    /// Checkmate's linear relaxation, rounded in two phases (algorithm 2), with a search over ε.
    CheckmateRounding(Rounding),
    /// Moccasin's constraint program, in stages (domain 11).
    MoccasinStaged,
    /// Moccasin's constraint program in any order (domain 9).
    MoccasinUnstaged,
    /// Chen et al. 2016, with √n segments.
    ChenSqrtN(Candidates),
    /// Chen et al. 2016, with segments of a given size, which is searched.
    ChenGreedy(Candidates),
    /// Griewank & Walther 2000: binomial checkpointing, with the number of checkpoints searched.
    Griewank(Candidates),
    /// Rhu et al. 2016: swaps what layers read and waits for each copy out.
    Vdnn(Offload),
    /// Wang et al. 2018: swaps what convolutions write, makes cheap layers' outputs again.
    SuperNeurons,
    /// Peng et al. 2020: chooses to swap or make again, one feature map after another.
    Capuchin,
    /// Patil et al. 2022: an integer program of runs and paging for the least energy.
    Poet,
    /// He et al. 2023: searches over keeping, swapping and making again each feature map.
    Home(Reading),
    /// A planner for several devices.
    Devices(Placing),
}

impl Published {
    /// Every planner.
    pub const ALL: [Published; 28] = [
        Published::Checkmate(Formulation::Published),
        Published::Checkmate(Formulation::Disaggregated),
        Published::CheckmateRounding(Rounding::Deterministic),
        Published::CheckmateRounding(Rounding::Randomized),
        Published::MoccasinStaged,
        Published::MoccasinUnstaged,
        Published::ChenSqrtN(Candidates::Articulation),
        Published::ChenSqrtN(Candidates::Linearized),
        Published::ChenGreedy(Candidates::Articulation),
        Published::ChenGreedy(Candidates::Linearized),
        Published::Griewank(Candidates::Articulation),
        Published::Griewank(Candidates::Linearized),
        Published::Vdnn(Offload::All),
        Published::Vdnn(Offload::Convolutions),
        Published::SuperNeurons,
        Published::Capuchin,
        Published::Home(Reading::Literal),
        Published::Home(Reading::Table3),
        Published::Poet,
        Published::Devices(Placing::SingleDevice),
        Published::Devices(Placing::Heft),
        Published::Devices(Placing::Cpop),
        Published::Devices(Placing::MTopo),
        Published::Devices(Placing::MEtf),
        Published::Devices(Placing::MSct),
        Published::Devices(Placing::MinCut),
        Published::Devices(Placing::XEngine(Wording::Mended)),
        Published::Devices(Placing::XEngine(Wording::Printed)),
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        use Candidates::{Articulation, Linearized};
        match self {
            Published::Checkmate(Formulation::Published) => "checkmate",
            Published::Checkmate(Formulation::Disaggregated) => "checkmate-disaggregated",
            Published::CheckmateRounding(Rounding::Deterministic) => "checkmate-rounding",
            Published::CheckmateRounding(Rounding::Randomized) => "checkmate-rounding-randomized",
            Published::MoccasinStaged => "moccasin",
            Published::MoccasinUnstaged => "moccasin-unstaged",
            Published::ChenSqrtN(Articulation) => "ap-sqrt-n",
            Published::ChenSqrtN(Linearized) => "linearized-sqrt-n",
            Published::ChenGreedy(Articulation) => "ap-greedy",
            Published::ChenGreedy(Linearized) => "linearized-greedy",
            Published::Griewank(Articulation) => "ap-griewank",
            Published::Griewank(Linearized) => "linearized-griewank",
            Published::Vdnn(Offload::All) => "vdnn-all",
            Published::Vdnn(Offload::Convolutions) => "vdnn-conv",
            Published::SuperNeurons => "superneurons",
            Published::Capuchin => "capuchin",
            Published::Home(Reading::Literal) => "home",
            Published::Home(Reading::Table3) => "home-table3",
            Published::Poet => "poet",
            Published::Devices(placing) => placing.name(),
        }
    }

    /// The solver library that it needs, if any.
    #[must_use]
    pub fn library(self) -> Option<Library> {
        match self {
            Published::Checkmate(_)
            | Published::CheckmateRounding(_)
            | Published::Poet
            | Published::Devices(Placing::MSct | Placing::XEngine(_)) => Some(Library::Highs),
            Published::MoccasinStaged | Published::MoccasinUnstaged => Some(Library::OrTools),
            Published::ChenSqrtN(_)
            | Published::ChenGreedy(_)
            | Published::Griewank(_)
            | Published::Vdnn(_)
            | Published::SuperNeurons
            | Published::Capuchin
            | Published::Home(_)
            | Published::Devices(_) => None,
        }
    }

    /// Whether it plans for a second memory to which values are swapped.
    #[must_use]
    pub fn swaps(self) -> bool {
        use Published::{Capuchin, Home, Poet, SuperNeurons, Vdnn};
        matches!(self, Vdnn(_) | SuperNeurons | Capuchin | Home(_) | Poet)
    }

    /// Whether it plans for several devices that compute.
    #[must_use]
    pub fn places(self) -> bool {
        matches!(self, Published::Devices(_))
    }

    /// Whether it may change the order of first runs.
    #[must_use]
    pub fn reorders(self) -> bool {
        self == Published::MoccasinUnstaged || self.places()
    }
}

/// How a published planner for several devices decides where tasks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// All on the device where that costs the least.
    SingleDevice,
    /// Topcuoglu et al. 2002: each task, by decreasing length of its path, where it ends first.
    Heft,
    /// Topcuoglu et al. 2002: the critical path on one device.
    Cpop,
    /// Jeon et al. 2020: one device after another is filled in topological order.
    MTopo,
    /// Jeon et al. 2020: whatever can start first, where there is memory.
    MEtf,
    /// Jeon et al. 2020: the same, with favourite children.
    MSct,
    /// Stone 1977: a minimum cut between devices.
    MinCut,
    /// Schuler et al. 2022: an integer program of runs, copies and memory, one operator at a time.
    XEngine(Wording),
}

/// How XEngine's equations are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wording {
    /// With the holes of the print closed.
    Mended,
    /// As printed, where that makes sense.
    Printed,
}

impl Placing {
    fn name(self) -> &'static str {
        match self {
            Placing::SingleDevice => "single-device",
            Placing::Heft => "heft",
            Placing::Cpop => "cpop",
            Placing::MTopo => "m-topo",
            Placing::MEtf => "m-etf",
            Placing::MSct => "m-sct",
            Placing::MinCut => "min-cut",
            Placing::XEngine(Wording::Mended) => "xengine",
            Placing::XEngine(Wording::Printed) => "xengine-literal",
        }
    }
}

/// Which forward tasks may become checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// The articulation points of the undirected forward graph (B.1).
    Articulation,
    /// All forward tasks, as if each depended on its predecessor (B.2).
    Linearized,
}

/// Whose inputs vDNN sends to the other memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Every layer's before the classifier.
    All,
    /// Those of convolutions.
    Convolutions,
}

/// How HOME's update of a particle (algorithm 3) compares two actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// By evaluating the particle with either, as printed.
    Literal,
    /// By the overhead that the map has in the policies with these actions, which costs one evaluation per
    /// particle: the search times of the paper's table 3 allow no more.
    Table3,
}

/// How the program ties `FREE` to the hazards that prevent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Formulation {
    /// As published: bounds the number of hazards between `1 - FREE` and `κ (1 - FREE)` (7a–7c).
    #[default]
    Published,
    /// One row `FREE ≤ 1 - hazard` per hazard, and no lower bound: this gives the same integer optimum and a
    /// stronger relaxation, but has more rows.
    Disaggregated,
}

/// How the fractional `S` is rounded to 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// By a threshold: one half as in the paper, and other tenths as in its code.
    Deterministic,
    /// At random: each entry becomes 1 with its value as the probability.
    Randomized,
}

/// How the program states that inputs are in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precedence {
    /// A reservoir for each input of each run (10), as in the paper.
    #[default]
    Reservoir,
    /// A literal for each interval that may serve an input of a run: a direct form of (5).
    Choice,
}

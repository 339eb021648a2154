//! Pictures of what a plan does: an HTML file that opens offline, single pictures as SVG, and a trace for
//! Perfetto.
//!
//! | file | contents |
//! |---|---|
//! | `page` | the page of a plan: its sections in order |
//! | `tradeoff` | the page of a sweep: one curve per planner |
//! | `energy` | the page of a sweep of energy: one curve per budget |
//! | `memory`, `lanes`, `matrices`, `arena`, `losses` | one picture each |
//! | `search` | what the search had found and proven by when |
//! | `stages` | a plan cut into stages, for the matrices |
//! | `recomputed` | which tasks run again, for which readers, and what that frees |
//! | `devices` | what devices and links do, which task runs where, and why |
//! | `swapped` | which values wait in other memories, and what that takes |
//! | `frame` | what both pages share |
//! | `draw` | what the pictures share: scales, axes, escaping |
//! | `perfetto` | the trace |

mod arena;
mod devices;
mod draw;
mod energy;
mod frame;
mod lanes;
mod losses;
mod matrices;
mod memory;
mod page;
mod perfetto;
mod recomputed;
mod search;
mod stages;
mod swapped;
mod tiles;
mod tradeoff;

use scrimp_plan::{Capacities, CheckedLayout, CheckedPlan, DeviceId};

use crate::history::History;

pub use energy::{EnergyCurve, EnergyPoint, energy};
pub use memory::svg_memory;
pub use page::html;
pub use perfetto::{perfetto, perfetto_measured};
pub use tradeoff::{Curve, FoundPoint, Point, TradeOff, tradeoff};

/// Everything that a report shows. Texts are plain; they are escaped where they go into the page.
#[derive(Clone, Copy, Debug)]
pub struct ReportInput<'a> {
    /// The page's title, e.g. the model and its batch size.
    pub title: &'a str,
    /// The planner.
    pub method: &'a str,
    /// How the search ended, e.g. `optimal` or `time limit`.
    pub status: &'a str,
    /// The limits that the plan had to keep.
    pub capacities: &'a Capacities,
    /// Further rows for the table of numbers: name and value.
    pub numbers: &'a [(String, String)],
    /// The plan without recomputation, to compare with.
    pub base: &'a CheckedPlan,
    /// The plan, of the same problem.
    pub planned: &'a CheckedPlan,
    /// Whether parts run by tiles, which the picture of memory then marks.
    pub tiles: bool,
    /// The layout of the plan's buffers.
    pub layout: Option<&'a CheckedLayout>,
    /// How the search went, if that is known.
    pub history: Option<&'a History>,
    /// Training losses, if the plan was run.
    pub losses: Option<Losses<'a>>,
}

/// Losses per training step.
#[derive(Clone, Copy, Debug)]
pub struct Losses<'a> {
    /// With the plan.
    pub planned: &'a [f64],
    /// Without the plan; empty if training wasn't run without it.
    pub base: &'a [f64],
}

impl ReportInput<'_> {
    /// The device that the summary describes: the first one that computes.
    fn device(&self) -> DeviceId {
        let devices = self.planned.problem().devices();
        let computing = devices.iter().find(|(_, device)| device.computes);
        computing
            .map(|(id, _)| id)
            .expect("a problem has a computing device")
    }

    fn budget_of(&self, device: DeviceId) -> Option<u64> {
        self.capacities.bytes(device)
    }
}

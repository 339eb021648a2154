//! How many tiles: so many that a plan within the budget is fastest by the static model, none if that is as fast.

use scrimp_graph::{Graph, GraphError, Tiles};
use scrimp_plan::Budget;
use scrimp_run::{Compiled, Processor};
use scrimp_solve::{Options, SolveError, floor_bytes};

use super::{Fit, Recipe, budget, differentiate, estimate, find_plan, lower};
use crate::error::{Error, Result};

/// Each number of bytes for which tiles are chosen is this part of the one before, this often at most.
const PART: f64 = 0.8;
const MOST_CHOICES: i32 = 20;

/// A step of more tasks isn't planned.
const MOST_TASKS: usize = 200_000;

/// The tiles with which training is fastest within a budget of so many bytes: none, or those for a falling number
/// of bytes ([`Tiles::Within`]). Every plan runs each task at least once, and what tiles compute beyond the
/// untiled network grows as they become smaller. So the search ends where running each task once takes longer
/// than the best plan so far. If no plan meets the budget, the answer is the tiles with the least budget for which one
/// was found.
///
/// # Errors
/// As for [`differentiate`] and [`lower`].
pub fn choose_tiles(
    graph: &Graph,
    recipe: Recipe,
    device: Processor<'_>,
    bytes: u64,
    options: &Options,
) -> Result<Tiles> {
    let mut best: Option<(f64, Tiles)> = None;
    let mut nearest = (u64::MAX, Tiles::Off);
    let mut last = Vec::new();
    let within = |power: i32| Tiles::Within((bytes as f64 * PART.powi(power)) as u64);
    let choices = std::iter::once(Tiles::Off).chain((0..MOST_CHOICES).map(within));
    for tiles in choices {
        let training = match differentiate(graph, Recipe { tiles, ..recipe }) {
            Err(Error::Graph(
                GraphError::NothingToTile { .. } | GraphError::NotTileable { .. },
            )) if tiles != Tiles::Off => {
                break;
            }
            training => training?,
        };
        if training.graph.nodes().len() > MOST_TASKS {
            break;
        }
        if tiles != Tiles::Off && training.tiled == last {
            continue;
        }
        last.clone_from(&training.tiled);
        let costs = estimate(&Compiled::new(&training.graph, device));
        let problem = lower(&training, &costs)?.problem;
        let floor = floor_bytes(&problem)?;
        if floor > bytes {
            nearest = nearest.min((floor, tiles));
            continue;
        }
        let budgeted = budget(&problem, Budget::Bytes(bytes))?;
        if best.is_some_and(|(cost, _)| budgeted.base.cost() >= cost) {
            break;
        }
        match find_plan(&budgeted, Fit::Layout, options, &mut |_| {}) {
            Ok(planned) => {
                let cost = planned.plan().cost();
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, tiles));
                }
            }
            Err(
                Error::Solve(SolveError::Infeasible {
                    least_found: least, ..
                })
                | Error::NoLayout { needed: least, .. },
            ) => nearest = nearest.min((least, tiles)),
            Err(error) => return Err(error),
        }
    }
    Ok(best.map_or(nearest.1, |(_, tiles)| tiles))
}

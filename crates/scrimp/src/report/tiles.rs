//! Which tile runs when: a row of marks over the curve of memory. The names of a tile's tasks have its number after
//! an @, which the rewrite put there.

use super::draw::{Scale, put};
use scrimp_plan::{CheckedPlan, DeviceId, Step, Timeline};

/// Stretches shorter than this, in the picture's units, are drawn as one with their neighbours.
const LEAST: f64 = 1.0;

/// A stretch of time in which tiles run.
struct Stretch {
    /// The first and the last tile.
    tiles: [usize; 2],
    start: f64,
    end: f64,
}

/// The tile that a task belongs to.
fn tile_of(task: &str) -> Option<usize> {
    let after = task.rsplit_once('@')?.1;
    let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    after[..digits].parse().ok()
}

/// Draws the marks from `top` on, `height` high.
pub(super) fn marks(
    out: &mut String,
    (plan, timeline): (&CheckedPlan, &Timeline),
    device: DeviceId,
    x: Scale,
    [top, height]: [f64; 2],
) {
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut follows = false;
    for (step, span) in plan.steps().iter().zip(timeline.spans()) {
        let Step::Run { task, device: at } = *step else {
            continue;
        };
        if at != device {
            continue;
        }
        let tile = tile_of(&plan.problem().task(task).name);
        let (start, end) = (x.at(span.start), x.at(span.end));
        match (tile, stretches.last_mut().filter(|_| follows)) {
            (Some(tile), Some(last))
                if last.tiles == [tile; 2]
                    || last.end - last.start < LEAST
                    || end - start < LEAST && last.tiles[0] != last.tiles[1] =>
            {
                last.tiles[1] = tile;
                last.end = end;
            }
            (Some(tile), _) => stretches.push(Stretch {
                tiles: [tile; 2],
                start,
                end,
            }),
            (None, _) => {}
        }
        follows = tile.is_some();
    }
    for (number, stretch) in stretches.iter().enumerate() {
        let Stretch {
            tiles: [first, last],
            start,
            end,
        } = *stretch;
        let tip = match first == last {
            true => format!("tile {first}"),
            false => format!("tiles {first} to {last}"),
        };
        put!(
            out,
            r#"<rect class="tilemark t{}" x="{start:.1}" y="{top}" width="{:.1}" height="{height}" data-tip="{tip}"/>"#,
            number % 2,
            end - start
        );
    }
}

#[cfg(test)]
mod tests {
    use super::tile_of;

    #[test]
    fn numbers_in_names() {
        for (name, tile) in [
            ("conv1@12", Some(12)),
            ("grad(conv1@3.join)", Some(3)),
            ("conv1", None),
            ("a@b", None),
        ] {
            assert_eq!(tile_of(name), tile, "{name}");
        }
    }
}

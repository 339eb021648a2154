//! The matrices R and S of the checkmate paper. Row `t` is stage `t`, which ends with the first
//! execution of the `t`-th task; column `i` is task `i`. `R[t, i]`: task `i` runs in stage `t`.
//! `S[t, i]`: an output of task `i` is in memory when stage `t` begins.

use super::draw::put;
use scrimp_plan::{CheckedPlan, Step, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// Side of a matrix in the picture.
const SIDE: f64 = 520.0;
/// Most rows and columns that are told apart.
const CELLS: usize = 600;
/// Shades of cells that stand for several tasks.
const SHADES: usize = 4;

/// Per task, stages `[from, to)`.
type Ranges = BTreeMap<usize, Vec<(usize, usize)>>;

/// What happens in which stage.
pub(super) struct Stages {
    /// Tasks in the order of their first runs.
    order: Vec<TaskId>,
    /// `(stage, task)` of each run that isn't the task's first.
    again: Vec<(usize, usize)>,
    /// Per task, the stages `[from, to)` at whose beginning an output is in memory.
    kept: Ranges,
}

impl Stages {
    pub(super) fn new(plan: &CheckedPlan) -> Stages {
        let problem = plan.problem();
        let mut stages = Stages {
            order: Vec::new(),
            again: Vec::new(),
            kept: BTreeMap::new(),
        };
        let mut seen = BTreeSet::new();
        // Per task, how many of its outputs are on how many devices, and since which stage.
        let mut held: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let mut stage = 0;
        let mut over = false;
        let last = problem.tasks().len().saturating_sub(1);
        for &step in plan.steps() {
            // What is freed right after a first run still belongs to the stage that it ends.
            if over && !matches!(step, Step::Free { .. }) {
                stage = (stage + 1).min(last);
                over = false;
            }
            match step {
                Step::Run { task, .. } => {
                    let what = problem.task(task);
                    for pair in &what.overwrites {
                        if let Some(producer) = problem.producer(pair.input) {
                            stages.drop_one(&mut held, producer.as_u32() as usize, stage + 1);
                        }
                    }
                    if !what.outputs.is_empty() {
                        let entry = held.entry(task.as_u32() as usize).or_insert((0, stage + 1));
                        entry.0 += what.outputs.len();
                    }
                    if seen.insert(task) {
                        stages.order.push(task);
                        over = true;
                    } else {
                        stages.again.push((stage, task.as_u32() as usize));
                    }
                }
                Step::Free { value, .. } => {
                    if let Some(producer) = problem.producer(value) {
                        stages.drop_one(&mut held, producer.as_u32() as usize, stage + 1);
                    }
                }
                Step::Copy { value, .. } => {
                    if let Some(producer) = problem.producer(value) {
                        held.entry(producer.as_u32() as usize)
                            .or_insert((0, stage + 1))
                            .0 += 1;
                    }
                }
            }
        }
        for (task, (_, from)) in held {
            stages.keep(task, from, last + 1);
        }
        stages
    }

    fn drop_one(&mut self, held: &mut BTreeMap<usize, (usize, usize)>, task: usize, end: usize) {
        if let Some((count, from)) = held.get_mut(&task) {
            *count -= 1;
            let (count, from) = (*count, *from);
            if count == 0 {
                held.remove(&task);
                self.keep(task, from, end);
            }
        }
    }

    fn keep(&mut self, task: usize, from: usize, to: usize) {
        if from < to {
            self.kept.entry(task).or_default().push((from, to));
        }
    }

    /// What the other keeps and this doesn't, if both run first in the same order.
    fn dropped(&self, other: &Stages) -> Ranges {
        let mut dropped = BTreeMap::new();
        if self.order == other.order {
            for (&task, theirs) in &other.kept {
                let ours = self.kept.get(&task).map_or(&[][..], Vec::as_slice);
                let rest: Vec<_> = theirs
                    .iter()
                    .flat_map(|&range| without(range, ours))
                    .collect();
                if !rest.is_empty() {
                    dropped.insert(task, rest);
                }
            }
        }
        dropped
    }
}

/// A range without some sorted ranges.
fn without((mut from, to): (usize, usize), holes: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut rest = Vec::new();
    for &(start, end) in holes {
        if from < start.min(to) {
            rest.push((from, start.min(to)));
        }
        from = from.max(end);
    }
    if from < to {
        rest.push((from, to));
    }
    rest
}

/// Both matrices of a plan; what only the base keeps is shown in S as dropped.
pub(super) fn picture(
    base: &Stages,
    planned: &Stages,
    names: impl Fn(usize) -> &'static str,
) -> (String, String) {
    let grid = Grid::new(planned.order.len());
    let mut runs = grid.open("R: which task runs in which stage");
    let first = planned
        .order
        .iter()
        .enumerate()
        .map(|(stage, task)| (stage, task.as_u32() as usize));
    let mut classes: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for (stage, task) in first {
        classes.entry(names(task)).or_default().push((stage, task));
    }
    for (class, cells) in &classes {
        grid.cells(&mut runs, class, cells, grid.dot(1.6));
    }
    grid.cells(&mut runs, "again", &planned.again, grid.dot(3.2));
    runs.push_str("</svg>");
    let mut kept = grid.open("S: what is in memory when a stage begins");
    grid.columns(&mut kept, "kept", &planned.kept);
    grid.columns(&mut kept, "dropped", &planned.dropped(base));
    kept.push_str("</svg>");
    (runs, kept)
}

/// Says how many tasks one cell stands for; 1 if each has its own.
pub(super) fn tasks_per_cell(tasks: usize) -> usize {
    tasks.div_ceil(CELLS).max(1)
}

/// Rows and columns, several stages or tasks to one where there are too many.
struct Grid {
    per_cell: usize,
    rows: usize,
    cell: f64,
}

impl Grid {
    fn new(tasks: usize) -> Grid {
        let per_cell = tasks_per_cell(tasks);
        let rows = tasks.div_ceil(per_cell).max(1);
        Grid {
            per_cell,
            rows,
            cell: SIDE / rows as f64,
        }
    }

    /// The side of a dot that is drawn for one cell: larger than the cell if that is tiny.
    fn dot(&self, least: f64) -> f64 {
        self.cell.max(least)
    }

    fn open(&self, label: &str) -> String {
        let mut out = String::new();
        put!(
            out,
            r#"<svg viewBox="-22 -18 {} {}" role="img" aria-label="{label}">"#,
            SIDE + 24.0,
            SIDE + 20.0
        );
        put!(
            out,
            r#"<rect class="track" x="0" y="0" width="{SIDE}" height="{SIDE}"/>"#
        );
        put!(out, r#"<text class="tick" x="0" y="-6">task →</text>"#);
        put!(
            out,
            r#"<text class="tick" transform="translate(-14 0) rotate(90)">stage →</text>"#
        );
        out
    }

    fn cells(&self, out: &mut String, class: &str, cells: &[(usize, usize)], dot: f64) {
        let cells: BTreeSet<(usize, usize)> = cells
            .iter()
            .map(|(stage, task)| (stage / self.per_cell, task / self.per_cell))
            .collect();
        put!(out, r#"<path class="{class}" d=""#);
        for (row, column) in cells {
            let centre = |i: usize| (i as f64 + 0.5) * self.cell - dot / 2.0;
            put!(
                out,
                "M{:.1},{:.1}h{dot:.1}v{dot:.1}h-{dot:.1}z",
                centre(column),
                centre(row)
            );
        }
        out.push_str("\"/>");
    }

    /// Ranges of stages per task. Where a cell stands for several of both, it is drawn in one of
    /// four shades.
    fn columns(&self, out: &mut String, class: &str, ranges: &Ranges) {
        let mut columns: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (task, ranges) in ranges {
            let rows = columns
                .entry(task / self.per_cell)
                .or_insert_with(|| vec![0.0; self.rows]);
            for &(from, to) in ranges {
                for (row, count) in rows
                    .iter_mut()
                    .enumerate()
                    .take(to.div_ceil(self.per_cell))
                    .skip(from / self.per_cell)
                {
                    let (first, end) = (row * self.per_cell, (row + 1) * self.per_cell);
                    *count += (to.min(end) - from.max(first)) as f64;
                }
            }
        }
        let all = (self.per_cell * self.per_cell) as f64;
        let shade = |count: f64| (count / all * SHADES as f64).ceil() as usize;
        for level in 1..=SHADES {
            let mut path = String::new();
            for (column, rows) in &columns {
                let mut row = 0;
                while row < rows.len() {
                    let length = rows[row..]
                        .iter()
                        .take_while(|&&count| shade(count) == level)
                        .count();
                    if length > 0 {
                        self.bar(&mut path, *column, row, length);
                    }
                    row += length.max(1);
                }
            }
            if !path.is_empty() {
                let opacity = level as f64 / SHADES as f64;
                put!(
                    out,
                    r#"<path class="{class}" fill-opacity="{opacity}" d="{path}"/>"#
                );
            }
        }
    }

    fn bar(&self, path: &mut String, column: usize, row: usize, length: usize) {
        let (cell, height) = (self.cell, length as f64 * self.cell);
        let (x, y) = (column as f64 * cell, row as f64 * cell);
        put!(path, "M{x:.2},{y:.2}h{cell:.2}v{height:.2}h-{cell:.2}z");
    }
}

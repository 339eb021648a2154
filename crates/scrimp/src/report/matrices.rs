//! Drawings of the matrices R and S of the checkmate paper. Row `t` is stage `t`, column `i` the `i`-th task.
//! `R[t, i]` says that the task runs in the stage, `S[t, i]` that an output of the task is in memory when the
//! stage begins.

use super::draw::{phase, put};
use super::stages::{Ranges, Stages};
use scrimp_plan::Problem;
use std::collections::{BTreeMap, BTreeSet};

const SIDE: f64 = 520.0;
/// A matrix with more rows or columns is drawn with several of them in one.
const CELLS: usize = 600;
/// Shades of cells that stand for several tasks.
const SHADES: usize = 4;

pub(super) fn pictures(problem: &Problem, stages: &Stages) -> (String, String) {
    let grid = Grid::new(stages.order.len());
    let mut runs = grid.open("R: which task runs in which stage");
    let mut first: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for (stage, &task) in stages.order.iter().enumerate() {
        let (class, _) = phase(problem.task(task).phase);
        first.entry(class).or_default().push((stage, stage));
    }
    for (class, cells) in &first {
        grid.cells(&mut runs, class, cells, grid.dot(1.6));
    }
    grid.cells(&mut runs, "again", &stages.again, grid.dot(3.2));
    runs.push_str("</svg>");
    let mut kept = grid.open("S: what is in memory when a stage begins");
    grid.columns(&mut kept, "kept", &stages.kept);
    grid.columns(&mut kept, "dropped", &stages.dropped);
    kept.push_str("</svg>");
    (runs, kept)
}

pub(super) fn tasks_per_cell(tasks: usize) -> usize {
    tasks.div_ceil(CELLS).max(1)
}

/// The grid of rows and columns; where there are too many, one row or column stands for several stages or
/// tasks.
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

    /// Draws ranges of stages for each task. If a cell stands for several stages and tasks, it is drawn in
    /// one of four shades.
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

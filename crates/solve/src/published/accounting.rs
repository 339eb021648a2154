//! Memory as checkmate's published code counts it for stages, which differs from what a plan needs.

use super::graph::Graph;
use super::stages::Stages;

/// The largest sum of the values in memory, fixed memory not included, when stages are executed the
/// way checkmate's code does: a value is freed at the start of a stage, or after a run of the stage
/// that it or a reader of it has a place for, once neither a later run of the stage reads it nor the
/// next stage holds it. What a checkpoint policy holds without need is counted; a value that is
/// computed again while it is there is counted once. Workspace isn't counted.
pub(super) fn stage_peak(graph: &Graph<'_>, stages: &Stages) -> u64 {
    let n = graph.tasks.len();
    let mut live = vec![false; graph.values.len()];
    let (mut now, mut peak) = (0, 0);
    for stage in 0..n {
        let row = &stages.runs[stage];
        let needed_after = |value: usize, task: usize| {
            let readers = graph.values[value].consumers.iter();
            (stage + 1 < n && stages.held[stage + 1][value])
                || readers
                    .rev()
                    .take_while(|&&reader| reader > task)
                    .any(|&reader| row[reader])
        };
        for (value, (what, live)) in graph.values.iter().zip(&mut live).enumerate() {
            if *live && !needed_after(value, what.producer.unwrap_or(0)) {
                *live = false;
                now -= what.bytes;
            }
        }
        for (task, what) in graph.tasks.iter().enumerate().take(stage + 1) {
            if row[task] {
                for &value in &what.outputs {
                    if !live[value] {
                        live[value] = true;
                        now += graph.values[value].bytes;
                    }
                }
                peak = peak.max(now);
            }
            let touched = what.inputs.iter().chain(&what.outputs);
            for &value in touched {
                if live[value] && !needed_after(value, task) {
                    live[value] = false;
                    now -= graph.values[value].bytes;
                }
            }
        }
    }
    peak
}

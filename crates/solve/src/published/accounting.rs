//! Memory of stages as checkmate's published code counts it, which differs from what a plan needs.

use super::graph::Graph;
use super::stages::Stage;

/// The largest sum of the values in memory, without fixed memory, when stages are executed as in checkmate's
/// code. A value is freed at the start of a stage, or in task order at the place of its own task or of one of
/// its readers, once neither a later run of the stage reads it nor the next stage holds it. A value that a
/// checkpoint policy holds without need counts; a value that is computed again while it is present counts
/// once. Workspace doesn't count.
pub(super) struct Accounting<'g, 'p> {
    graph: &'g Graph<'p>,
    live: Vec<bool>,
    now: u64,
    /// The peak of the stages so far.
    pub(super) peak: u64,
    /// Seconds of the stages' runs.
    pub(super) seconds: f64,
}

impl<'g, 'p> Accounting<'g, 'p> {
    pub(super) fn new(graph: &'g Graph<'p>) -> Self {
        Accounting {
            graph,
            live: vec![false; graph.values.len()],
            now: 0,
            peak: 0,
            seconds: 0.0,
        }
    }

    /// Executes the next stage.
    pub(super) fn add(&mut self, stage: &Stage<'_>) {
        let graph = self.graph;
        let last = stage.number + 1 == graph.tasks.len();
        let needed_after = |value: usize, task: usize| {
            let readers = graph.values[value].consumers.iter();
            (!last && stage.next[value])
                || readers
                    .rev()
                    .take_while(|&&reader| reader > task)
                    .any(|&reader| stage.runs[reader])
        };
        for (value, what) in graph.values.iter().enumerate() {
            if self.live[value] && !needed_after(value, what.producer.unwrap_or(0)) {
                self.free(value);
            }
        }
        for (task, what) in graph.tasks.iter().enumerate().take(stage.number + 1) {
            if stage.runs[task] {
                self.seconds += what.seconds;
                for &value in &what.outputs {
                    if !self.live[value] {
                        self.live[value] = true;
                        self.now += graph.values[value].bytes;
                    }
                }
                self.peak = self.peak.max(self.now);
            }
            for &value in what.inputs.iter().chain(&what.outputs) {
                if self.live[value] && !needed_after(value, task) {
                    self.free(value);
                }
            }
        }
    }

    fn free(&mut self, value: usize) {
        self.live[value] = false;
        self.now -= self.graph.values[value].bytes;
    }
}

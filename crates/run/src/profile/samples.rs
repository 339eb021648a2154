//! Times of operators that are run by themselves: less exact than a profile of whole steps, but one measurement serves
//! all graphs that have the operator, and none of them is run.

use scrimp_graph::{Costs, DType, NodeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::alone::Alone;
use super::distinct::Distinct;
use crate::compiled::Compiled;
use crate::error::RunError;

/// An operator is run at most this often, and not again after this time.
const RUNS: usize = 3;
const LONG: Duration = Duration::from_millis(30);
/// No operator is run that is expected to take more than this part of the time that is left.
const PART: f64 = 0.1;

/// Measurements that last as long as their graphs are compared.
#[derive(Debug)]
pub struct Samples {
    seconds: HashMap<String, f64>,
    left: Duration,
}

/// The nodes that share a measurement.
struct Alike {
    key: usize,
    /// One of them.
    node: NodeId,
    /// What they are estimated to take together, and one of them.
    total: f64,
    each: f64,
}

impl Samples {
    /// Measurements that take about this time at most, however many graphs are compared.
    pub fn new(time: Duration) -> Samples {
        Samples {
            seconds: HashMap::new(),
            left: time,
        }
    }

    /// What nodes take: measured, where most time goes first, as long as there is time and an operator alone takes at
    /// most `room` bytes. The others are taken to be as far from their estimate as measured operators of their kind
    /// are, or as all measured ones.
    ///
    /// # Errors
    /// The graph can't be run.
    pub fn costs(
        &mut self,
        compiled: &Compiled<'_>,
        estimated: &Costs,
        room: u64,
        stop: &AtomicBool,
    ) -> Result<Costs, RunError> {
        let graph = compiled.graph();
        let distinct = Distinct::new(compiled)?;
        let mut alike: Vec<Option<Alike>> = distinct.keys.iter().map(|_| None).collect();
        for node in graph.nodes().keys() {
            if let Some(key) = distinct.of[node] {
                let each = estimated.nodes[node].seconds;
                let first = Alike {
                    key,
                    node,
                    total: 0.0,
                    each,
                };
                alike[key].get_or_insert(first).total += each;
            }
        }
        let mut alike: Vec<Alike> = alike.into_iter().flatten().collect();
        alike.sort_by(|a, b| b.total.total_cmp(&a.total).then(a.key.cmp(&b.key)));
        // Estimated and measured seconds, of each kind of operators and of all.
        let mut kinds: HashMap<&str, (f64, f64)> = HashMap::new();
        let mut all = (0.0, 0.0);
        for one in &alike {
            let key = &distinct.keys[one.key];
            if !self.seconds.contains_key(key) && !stop.load(Ordering::SeqCst) {
                let pairs = &distinct.overwritten[one.key];
                if let Some(seconds) = self.measured(compiled, one, pairs, room) {
                    self.seconds.insert(key.clone(), seconds);
                }
            }
            if let Some(seconds) = self.seconds.get(key) {
                let kind = kinds.entry(graph.node(one.node).op.kind()).or_default();
                for (estimated, measured) in [kind, &mut all] {
                    *estimated += one.total;
                    *measured += one.total * seconds / one.each;
                }
            }
        }
        let ratio = |(estimated, measured): (f64, f64)| match estimated > 0.0 {
            true => measured / estimated,
            false => 1.0,
        };
        let mut costs = estimated.clone();
        for (id, node) in graph.nodes().iter() {
            if let Some(key) = distinct.of[id] {
                let kind = kinds.get(node.op.kind()).copied().unwrap_or(all);
                let known = self.seconds.get(&distinct.keys[key]).copied();
                let cost = &mut costs.nodes[id];
                cost.seconds = known.unwrap_or(cost.seconds * ratio(kind));
            }
        }
        Ok(costs)
    }

    /// The least seconds of a few runs; `None` without time or room for them.
    fn measured(
        &mut self,
        compiled: &Compiled<'_>,
        one: &Alike,
        pairs: &[(usize, usize)],
        room: u64,
    ) -> Option<f64> {
        let (graph, node) = (compiled.graph(), compiled.graph().node(one.node));
        let tensors = || node.inputs.iter().chain(&node.outputs);
        let bytes: u64 = tensors().map(|&tensor| graph.tensor(tensor).bytes()).sum();
        let fits = bytes.saturating_add(compiled.workspace(one.node)) <= room;
        if !fits || one.each > PART * self.left.as_secs_f64() {
            return None;
        }
        let began = Instant::now();
        let shapes = node.inputs.iter().map(|&input| {
            let what = graph.tensor(input);
            (&what.shape[..], what.dtype)
        });
        let shapes: Vec<(&[usize], DType)> = shapes.collect();
        let mut alone = Alone::overwriting(compiled.processor(), &node.op, &shapes, pairs).ok()?;
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            let began = Instant::now();
            alone.run().ok()?;
            let taken = began.elapsed();
            least = least.min(taken.as_secs_f64());
            if taken > LONG {
                break;
            }
        }
        self.left = self.left.saturating_sub(began.elapsed());
        Some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Cpu;
    use crate::processor::Processor;
    use crate::profile::tests::training;
    use scrimp_graph::{Roofline, estimate};

    #[test]
    fn measured_once_for_all_graphs() {
        let cpu = Cpu::new(1).expect("threads start");
        let graph = training();
        let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
        let estimated = estimate(&graph, &Roofline::default(), &|node| {
            compiled.workspace(node)
        });
        let go = AtomicBool::new(false);
        let mut samples = Samples::new(Duration::from_secs(60));
        let mut costs = || {
            samples
                .costs(&compiled, &estimated, u64::MAX, &go)
                .expect("it runs")
        };
        let (first, second) = (costs(), costs());
        assert!(first.seconds(&graph) > 0.0);
        assert_eq!(
            first.nodes, second.nodes,
            "the second time nothing is measured"
        );
        let mut none = Samples::new(Duration::ZERO);
        let unmeasured = none
            .costs(&compiled, &estimated, u64::MAX, &go)
            .expect("it runs");
        assert_eq!(
            unmeasured.nodes, estimated.nodes,
            "without time estimates stay"
        );
    }
}

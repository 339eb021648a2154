//! How often a trained classifier is right, on samples that it wasn't trained with.

use cranelift_entity::SecondaryMap;
use scrimp_graph::data::{Contents, Feed, Samples};
use scrimp_graph::weights::{Require, Weights};
use scrimp_graph::{Graph, Role, inference};
use scrimp_plan::{Budget, Phase};
use scrimp_run::{Compiled, Data, Executor, ExecutorOptions, Processor};
use scrimp_solve::Options;

use crate::error::{Error, Result};
use crate::pipeline::{self, Fit};
use crate::session;

/// The share of samples whose largest logit is the label's, with the network in inference mode,
/// within `budget` bytes if that can be, else within the least that can.
///
/// # Errors
/// If the samples don't fit the graph, its output isn't `[batch, classes]`, or it can't be run.
pub fn accuracy(
    graph: &Graph,
    weights: &Weights,
    test: &Samples,
    processor: Processor<'_>,
    budget: u64,
) -> Result<f64> {
    let graph = inference(graph)?;
    let Contents::Ints(labels) = &test.y else {
        return Err(Error::NoAccuracy {
            reason: "its labels aren't integers".into(),
        });
    };
    let output = graph.outputs()[0];
    let &[batch, classes] = &graph.tensor(output).shape[..] else {
        return Err(Error::NoAccuracy {
            reason: "the output isn't one row of classes per sample".into(),
        });
    };
    let mut phases = SecondaryMap::with_default(Phase::Forward);
    phases.resize(graph.nodes().len());
    let compiled = Compiled::new(&graph, processor);
    let costs = pipeline::estimate(&compiled);
    let lowered = scrimp_graph::lower(&graph, &phases, &costs, "cpu")?;
    let budgeted = pipeline::budget(&lowered.problem, Budget::Bytes(budget))?;
    let planned = pipeline::find_plan(&budgeted, Fit::Layout, &Options::default(), &mut |_| {})?;
    let options = ExecutorOptions {
        arena_bytes: planned.reserved_bytes(),
        ..ExecutorOptions::default()
    };
    let mut executor = Executor::new(&compiled, &lowered, &planned.layout, options)?;
    let fitted = weights.fit(&graph, Require::Everything)?;
    for (tensor, values) in &fitted {
        executor.set(*tensor, Data::F32(values))?;
    }
    let feed = Feed::from_samples(&graph, test.clone(), 0)?;
    let (mut start, mut right) = (0, 0);
    while let Some((inputs, count)) = feed.test(start) {
        for (tensor, contents) in &inputs {
            session::set(&mut executor, *tensor, contents)?;
        }
        for (tensor, what) in graph.given() {
            if what.role == Role::Seed {
                executor.set(tensor, Data::I64(&[0]))?;
            }
        }
        executor.step(None)?;
        let logits = executor.read(output)?;
        let rows = logits.chunks(classes).take(count.min(batch));
        let guesses = rows.map(largest).zip(&labels[start..]);
        right += guesses
            .filter(|&(guess, &label)| guess as i64 == label)
            .count();
        start += count;
    }
    Ok(right as f64 / test.count as f64)
}

/// The index of the largest; of equals the first.
fn largest(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = index;
        }
    }
    best
}

//! `scrimp run`: runs a trained model on data inside a byte budget.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use scrimp::graph::data::{Arrays, Contents, Feed, Rows, Saved, Stream, save_npz};
use scrimp::graph::weights::WeightsFile;
use scrimp::graph::{Graph, Repeated, TensorId, Tiled, inference, repeated};
use scrimp::machine::{EnergyCounter, NoEnergyCounter, peak_resident};
use scrimp::plan::{Budget, Capacities, format_bytes, format_seconds};
use scrimp::run::{Processor, RunError, StepTrace};
use scrimp::solve::place;
use scrimp::{
    Budgeted, Devices, Error, Fit, Forward, Inference, ModelSource, PlanSummary, Planned,
    TiledStep, Work,
};
use serde_json::{Value, json};

use super::{plan, trained};
use crate::args::{CostsArg, RunArgs};
use crate::costing::{self, Costing};
use crate::failure::{Failure, Kind};
use crate::output::{OutputFile, Outputs};
use crate::progress::Line;
use crate::reports::Reports;
use crate::table::Table;
use crate::{Answer, interrupt, target};

/// Plans, streams all batches through, writes the outputs and summarizes.
pub fn run(args: &RunArgs, quiet: bool) -> Result<Answer> {
    let paths = [&args.inputs, &args.weights].into_iter().flatten();
    let paths = paths.map(PathBuf::as_path);
    let mut outputs = Outputs::beside(paths.chain([Path::new(&args.model)]));
    let output = outputs.claim(args.outputs.as_ref())?;
    let reports = Reports::claim(&args.reports, &mut outputs)?;
    // What there is to remark concerns training.
    let graph = target::import(&args.model, &args.shape, true)?;
    let graph = inference(&graph).map_err(Error::from)?;
    let weights = args.weights.as_deref().map(WeightsFile::open);
    let weights = weights.transpose().map_err(Error::from)?;
    let devices = &args.devices.devices;
    let devices = target::devices(devices, args.solve.search.threads(), args.library)?;
    let source = Source::new(args, &graph)?;
    let budget = args.budget.clone();
    let budget = budget.unwrap_or_else(|| devices.all(Budget::Percent(100.0)));
    let usual = match devices.iter().count() {
        1 => CostsArg::Static,
        // The static model knows no difference between devices.
        _ => CostsArg::Measured,
    };
    let costing = Costing {
        source: args.costs.unwrap_or(usual),
        afresh: args.fresh_costs,
        budget: &budget,
        search: &args.solve.search,
        swap: &args.swap,
    };
    // A GPU can't read files, and an array in a file has one batch at a time.
    let mut processors = devices.iter().map(|(_, processor)| processor);
    let streams = match processors.all(|processor| matches!(processor, Processor::Cpu(_))) {
        true if args.in_flight == 1 => source.streams(),
        _ => Vec::new(),
    };
    let work = Work::Run(&streams);
    let choice = target::tiles_within(args.tile, &graph, work, &devices, &costing, quiet)?;
    let costing = Costing {
        budget: &choice.budget,
        ..costing
    };
    let TiledStep { graph, tiled, .. } = work.tiled(&graph, choice.tiles)?;
    let source = source.moved(&graph);
    let flight = repeated(&graph, args.in_flight as usize).map_err(Error::from)?;
    let phases = scrimp::forward(&flight.graph);
    let compiled = devices.compiled(&flight.graph);
    let measured = costing::costs(&phases, &compiled, &devices, &costing, quiet)?;
    let lowered = devices.lower(&flight.graph, &phases, &measured.costs, &measured.crossing)?;
    let slowed = measured.slowed(&lowered);
    let network = Inference {
        compiled,
        lowered,
        swap: measured.swap,
    };
    let budgeted = Budgeted {
        slowed,
        ..network.budget(&choice.budget)?
    };
    // The choice is for one batch.
    let options = plan::options(&args.solve);
    let (budgeted, options) = match args.in_flight {
        1 => choice.within(budgeted, options)?,
        _ => (budgeted, options),
    };
    let planned = plan::solve(&budgeted, Fit::Layout, &options, Some(&choice), quiet)?;
    let start = |layout, bytes| -> Result<Forward<'_>> {
        let mut forward = network.start(layout, bytes, args.solve.search.seed.unwrap_or(0))?;
        if let Some(file) = &weights {
            forward.load(file)?;
        }
        Ok(forward)
    };
    let mut forward = start(&planned.layout, planned.reserved_bytes())?;
    let base = place(&planned.compared()?, &Capacities::unlimited()).map_err(Error::from)?;
    let mut without = match args.compare {
        true => Some(start(&base, base.arena_bytes(planned.budgeted.device))?),
        false => None,
    };
    let mut done = Done::new(&graph, &source, output.as_ref())?;
    let mut counter = EnergyCounter::start();
    let line = Line::bar(quiet, "running", source.batches());
    for first in (0..source.batches()).step_by(args.in_flight as usize) {
        if interrupt::requested() {
            let sentence = "interrupted before all batches were run; nothing was written";
            return Err(Failure::new(Kind::Interrupted, sentence).into());
        }
        let (inputs, counts) = source.batches_from(first, &flight);
        let before = joules(&mut counter);
        let (seconds, trace) = timed(&mut forward, &inputs)?;
        done.joules += joules(&mut counter) - before;
        done.seconds.push(seconds);
        done.trace = trace;
        if let Some(without) = &mut without {
            done.base_seconds.push(timed(without, &inputs)?.0);
            done.compare(&flight.graph, &forward, without)?;
        }
        for (tensors, &count) in flight.tensors.iter().zip(&counts) {
            let outputs = graph.outputs().iter();
            let outputs = outputs.filter_map(|&tensor| tensors[tensor].expand());
            done.take(&forward, outputs, count)?;
        }
        line.at(first + counts.len() as u64);
    }
    if let Some(output) = &output {
        output.write_with(|out| save_npz(out, &done.saved))?;
    }
    let summary = PlanSummary::new(&planned);
    reports.write(&planned, &summary, &tiled, None)?;
    let times = scrimp::predicted(&planned.layout, &network.lowered, &measured.profiles);
    let told = Told {
        args,
        planned: &planned,
        predicted: times.makespan(),
        source: &source,
        done: &done,
        tiled: &tiled,
        arena_bytes: forward.arena_bytes(),
        energy: counter.map(|_| done.joules / source.batches() as f64),
        devices: &devices,
    };
    told.answer(&summary)
}

/// Joules so far; 0 without a counter.
fn joules(counter: &mut Result<EnergyCounter, NoEnergyCounter>) -> f64 {
    let Ok(found) = counter else {
        return 0.0;
    };
    found.joules().unwrap_or_else(|error| {
        *counter = Err(error);
        0.0
    })
}

fn timed(forward: &mut Forward<'_>, inputs: &[(TensorId, Contents)]) -> Result<(f64, StepTrace)> {
    let began = Instant::now();
    let trace = forward.run(inputs)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok((seconds, trace.clone()))
}

/// Where batches come from.
enum Source {
    Rows(Rows),
    /// Made from this seed, so many batches.
    Random(Feed, u64, u64),
}

impl Source {
    fn new(args: &RunArgs, graph: &Graph) -> Result<Source> {
        let seed = args.solve.search.seed.unwrap_or(0);
        let Some(path) = &args.inputs else {
            let feed = Feed::synthetic(graph, seed);
            return Ok(Source::Random(feed, args.batches.unwrap_or(1), seed));
        };
        let room = scrimp::machine::memory().available.unwrap_or(u64::MAX);
        let arrays = Arrays::open(path, room).map_err(Error::from)?;
        let rows = Rows::new(graph, arrays, room).map_err(target::of_file(path))?;
        Ok(Source::Rows(rows))
    }

    /// Inputs whose arrays are in files.
    fn streams(&self) -> Vec<(String, Stream)> {
        match self {
            Source::Rows(rows) => rows.streams(),
            Source::Random(..) => Vec::new(),
        }
    }

    /// The source for the network as it runs.
    fn moved(self, graph: &Graph) -> Source {
        match self {
            Source::Rows(rows) => Source::Rows(rows.moved(graph)),
            Source::Random(_, batches, seed) => {
                Source::Random(Feed::synthetic(graph, seed), batches, seed)
            }
        }
    }

    fn batch_size(&self) -> usize {
        match self {
            Source::Rows(rows) => rows.batch(),
            Source::Random(feed, ..) => feed.batch(),
        }
    }

    fn batches(&self) -> u64 {
        match self {
            Source::Rows(rows) => rows.count().div_ceil(rows.batch()) as u64,
            Source::Random(_, batches, _) => *batches,
        }
    }

    fn samples(&self) -> usize {
        match self {
            Source::Rows(rows) => rows.count(),
            Source::Random(feed, batches, _) => feed.batch() * *batches as usize,
        }
    }

    /// The inputs of a batch, and how many of its samples count.
    fn batch(&self, index: u64) -> (Vec<(TensorId, Contents)>, usize) {
        match self {
            Source::Rows(rows) => {
                let start = index as usize * rows.batch();
                rows.from(start)
                    .expect("the index is below the number of batches")
            }
            Source::Random(feed, ..) => (feed.step(index), feed.batch()),
        }
    }

    /// The inputs of the batches from `first` on that are in flight together, and for each batch that there is how
    /// many of its samples count. The last batch fills the places after it.
    fn batches_from(
        &self,
        first: u64,
        flight: &Repeated,
    ) -> (Vec<(TensorId, Contents)>, Vec<usize>) {
        let (mut inputs, mut counts) = (Vec::new(), Vec::new());
        for (index, tensors) in (first..).zip(&flight.tensors) {
            let (batch, count) = self.batch(index.min(self.batches() - 1));
            let placed = batch.into_iter();
            inputs.extend(
                placed.filter_map(|(tensor, what)| Some((tensors[tensor].expand()?, what))),
            );
            if index < self.batches() {
                counts.push(count);
            }
        }
        (inputs, counts)
    }
}

/// What has been run so far.
struct Done {
    /// Samples per batch.
    batch: usize,
    /// The outputs of all samples; empty if nobody wants them.
    saved: Vec<Saved>,
    /// Of each run of the plan.
    seconds: Vec<f64>,
    base_seconds: Vec<f64>,
    /// The last run of the plan.
    trace: StepTrace,
    /// Of all batches.
    joules: f64,
    /// The first output that differs from the run without a plan.
    different: Option<String>,
}

impl Done {
    /// Reserves the memory of all outputs.
    fn new(graph: &Graph, source: &Source, output: Option<&OutputFile>) -> Result<Done> {
        let mut saved = Vec::new();
        for &tensor in graph.outputs().iter().filter(|_| output.is_some()) {
            let what = graph.tensor(tensor);
            let mut shape = what.shape.clone();
            match shape.first_mut() {
                Some(rows) if *rows == source.batch_size() => *rows = source.samples(),
                _ if source.batches() == 1 => {}
                _ => {
                    let sentence = format!(
                        "output {} has shape {:?}, whose first axis doesn't count the {} samples of a batch; give as many samples as one batch takes",
                        what.name,
                        what.shape,
                        source.batch_size()
                    );
                    return Err(Failure::new(Kind::Input, sentence).into());
                }
            }
            let count: usize = shape.iter().product();
            let bytes = count as u64 * what.dtype.bytes();
            let mut room = Vec::new();
            room.try_reserve_exact(bytes as usize)
                .map_err(|_| Error::from(RunError::OutOfMemory { bytes }))?;
            saved.push(Saved {
                name: what.name.clone(),
                dtype: what.dtype,
                shape,
                bytes: room,
            });
        }
        Ok(Done {
            batch: source.batch_size(),
            saved,
            seconds: Vec::new(),
            base_seconds: Vec::new(),
            trace: StepTrace::default(),
            joules: 0.0,
            different: None,
        })
    }

    /// Takes the first samples of the outputs of a batch.
    fn take(
        &mut self,
        forward: &Forward<'_>,
        outputs: impl Iterator<Item = TensorId>,
        count: usize,
    ) -> Result<()> {
        for (tensor, saved) in outputs.zip(&mut self.saved) {
            let bytes = forward.output(tensor)?;
            let left = saved.bytes.capacity() - saved.bytes.len();
            let share = bytes.len() / self.batch.max(1) * count;
            let wanted = if count == self.batch {
                bytes.len()
            } else {
                share
            };
            saved.bytes.extend_from_slice(&bytes[..wanted.min(left)]);
        }
        Ok(())
    }

    fn compare(
        &mut self,
        graph: &Graph,
        forward: &Forward<'_>,
        without: &Forward<'_>,
    ) -> Result<()> {
        for &tensor in graph.outputs() {
            if self.different.is_none() && forward.output(tensor)? != without.output(tensor)? {
                let (name, run) = (&graph.tensor(tensor).name, self.seconds.len());
                self.different = Some(format!("output {name} of run {run}"));
            }
        }
        Ok(())
    }
}

/// Everything that there is to tell.
struct Told<'a> {
    args: &'a RunArgs,
    planned: &'a Planned,
    /// Seconds of the plan.
    predicted: f64,
    source: &'a Source,
    done: &'a Done,
    tiled: &'a [Tiled],
    arena_bytes: u64,
    /// Joules per batch, of all that the machine did meanwhile.
    energy: Result<f64, NoEnergyCounter>,
    devices: &'a Devices,
}

impl Told<'_> {
    /// Whether nothing gave the model weights.
    fn random_weights(&self) -> bool {
        let built_in = matches!(
            ModelSource::find(&self.args.model),
            Ok(ModelSource::BuiltIn(_))
        );
        built_in && self.args.weights.is_none()
    }

    fn answer(&self, summary: &PlanSummary) -> Result<Answer> {
        let mut json = serde_json::to_value(summary)?;
        if let (Value::Object(all), Value::Object(run)) = (&mut json, self.object()) {
            all.extend(run);
        }
        plan::add_tiles(&mut json, self.tiled);
        let text = plan::describe(summary, &self.planned.budgeted) + &plan::tiles_text(self.tiled);
        let mut answer = Answer::new(json, format!("{text}\n{}", self.table()));
        if let Some(what) = &self.done.different {
            let sentence = format!(
                "the run under the plan is not the same as without: {what} differs; please report this"
            );
            answer.failure = Some(Failure::new(Kind::Differs, sentence));
        }
        Ok(answer)
    }

    /// Of runs of the plan, as seconds of one of their batches.
    fn per_batch(&self, seconds: &[f64]) -> Option<f64> {
        scrimp::median(seconds).map(|seconds| seconds / self.args.in_flight as f64)
    }

    fn object(&self) -> Value {
        let (source, done) = (self.source, self.done);
        let total: f64 = done.seconds.iter().sum();
        let shapes = done
            .saved
            .iter()
            .map(|saved| (saved.name.clone(), json!(saved.shape)));
        let compared = !done.base_seconds.is_empty();
        let threads: usize = self
            .devices
            .iter()
            .map(|(_, device)| device.threads())
            .sum();
        json!({
            "samples": source.samples(),
            "batches": source.batches(),
            "batch": source.batch_size(),
            "batches_in_flight": self.args.in_flight,
            "threads": threads,
            "device": self.devices.signature(),
            "synthetic_data": matches!(source, Source::Random(..)),
            "random_weights": self.random_weights(),
            "outputs": shapes.collect::<serde_json::Map<_, _>>(),
            "allocated_bytes": self.arena_bytes,
            "process_peak_bytes": peak_resident(),
            "measured_devices": trained::measured(&self.planned.layout, &done.trace),
            "batch_seconds": self.per_batch(&done.seconds),
            "predicted_batch_seconds": self.per_batch(&[self.predicted]),
            "batch_joules": self.energy.as_ref().ok(),
            "energy_note": self.energy.as_ref().err().map(ToString::to_string),
            "samples_per_second": source.samples() as f64 / total,
            "base_batch_seconds": self.per_batch(&done.base_seconds),
            "bit_identical": compared.then_some(done.different.is_none()),
            "first_difference": done.different,
            "interrupted": interrupt::requested(),
        })
    }

    fn table(&self) -> String {
        let (source, done) = (self.source, self.done);
        let mut table = Table::new("lrl");
        let data = match source {
            Source::Random(..) => "random data: measures only",
            Source::Rows(_) => "",
        };
        table.row(["samples", &source.samples().to_string(), data]);
        if self.random_weights() {
            table.row(["weights", "random", "give trained ones with --weights"]);
        }
        let note = match self.devices.iter().count() {
            1 => "one arena, before the first batch",
            _ => "an arena for each device, before the first batch",
        };
        table.row(["memory taken", &format_bytes(self.arena_bytes), note]);
        if let Some(bytes) = peak_resident() {
            let note = "measured: the most at a time, everything included";
            table.row(["whole process", &format_bytes(bytes), note]);
        }
        let runs = done.seconds.len();
        let note = match self.args.in_flight {
            1 => format!("measured, median of {runs}"),
            batches => format!("measured, median of {runs} runs of {batches} batches together"),
        };
        let of = |seconds| self.per_batch(seconds).map_or("–".into(), format_seconds);
        table.row(["seconds per batch", &of(&done.seconds), &note]);
        if let Ok(joules) = self.energy {
            let note = "measured: all that the processor did meanwhile";
            table.row(["energy per batch", &format!("{joules:.3} J"), note]);
        }
        if !done.base_seconds.is_empty() {
            table.row(["  without a plan", &of(&done.base_seconds), &note]);
            let (same, what) = match &done.different {
                None => ("yes", "every output of every batch compared"),
                Some(what) => ("NO", what.as_str()),
            };
            table.row(["same bits", same, what]);
        }
        for saved in &done.saved {
            let shape: Vec<String> = saved.shape.iter().map(ToString::to_string).collect();
            table.row([
                &format!("output {}", saved.name),
                &shape.join(" × "),
                "saved",
            ]);
        }
        table.to_string()
    }
}

//! Random small networks in families, forward only or as training graphs: problems like those that people
//! plan.

use std::ops::Range;

use crate::ids::{DeviceId, TaskId, ValueId};
use crate::problem::{
    Device, Keep, Mode, Origin, Overwrite, Phase, Problem, ProblemParts, Task, Value,
};

use super::splitmix;

/// What a network looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// A chain whose layers also read earlier ones.
    Skips,
    /// Two chains with an input each, joined before a third.
    Joined,
    /// Levels of shrinking layers and levels of growing ones, which read the former.
    EncoderDecoder,
    /// Blocks of parallel branches, or random layers side by side.
    Wide,
}

impl Family {
    /// Every family.
    pub const ALL: [Family; 4] = [
        Family::Skips,
        Family::Joined,
        Family::EncoderDecoder,
        Family::Wide,
    ];

    /// A short name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::Skips => "skips",
            Family::Joined => "joined",
            Family::EncoderDecoder => "encoder-decoder",
            Family::Wide => "wide",
        }
    }
}

/// A network of a family with about `tasks` tasks that depends only on the seed. In a third of the networks
/// all layers take the same time and bytes; in the others some or all differ. Half of the training graphs
/// are detailed: they have workspaces, activations that overwrite their inputs, and updates of weights.
///
/// # Panics
/// Never: every drawn problem is valid.
#[must_use]
pub fn network(family: Family, tasks: usize, training: bool, seed: u64) -> Problem {
    let mut draw = Draw(seed);
    let detailed = training && draw.below(2) == 0;
    let per_layer = match (training, detailed) {
        (false, _) => 1.0,
        (true, false) => 2.0,
        (true, true) => 3.0,
    };
    let count = ((tasks as f64 / per_layer) as usize).max(5);
    let mut net = Net {
        uneven: [0.0, 0.3, 1.0][draw.below(3)],
        draw,
        layers: Vec::new(),
    };
    match family {
        Family::Skips => net.skips(count),
        Family::Joined => net.joined(count),
        Family::EncoderDecoder => net.encoder_decoder(count),
        Family::Wide => net.wide(count),
    }
    net.gather();
    let name = format!("{}-{seed}", family.name());
    Lowering::new(name, &net.layers).problem(training, detailed)
}

/// Random numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(splitmix(&mut self.0)) * n as u128) >> 64) as usize
    }

    fn within(&mut self, range: Range<usize>) -> usize {
        range.start + self.below(range.len())
    }

    fn unit(&mut self) -> f64 {
        (splitmix(&mut self.0) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }
}

/// What a layer's backward pass reads besides gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saves {
    /// Like convolutions, which have weights.
    Inputs,
    /// Like activations.
    Output,
    /// Like sums.
    Nothing,
}

struct Layer {
    /// Earlier layers; none if it reads data.
    inputs: Vec<usize>,
    saves: Saves,
    bytes: u64,
    seconds: f64,
    /// Of detailed graphs.
    workspace: u64,
}

struct Net {
    draw: Draw,
    /// The share of layers whose time and bytes differ from others' of the same level; if 0, all are equal.
    uneven: f64,
    layers: Vec<Layer>,
}

impl Net {
    /// Adds a layer of about `size` bytes.
    fn layer(&mut self, inputs: &[usize], size: f64) -> usize {
        let saves = match inputs.len() {
            0 => Saves::Inputs,
            1 if self.draw.chance(0.6) => Saves::Inputs,
            1 => Saves::Output,
            _ => Saves::Nothing,
        };
        let nominal = if saves == Saves::Inputs { 400.0 } else { 60.0 };
        let (mut bytes, mut seconds) = (1000.0 * size, nominal * size);
        if self.uneven == 0.0 {
            (bytes, seconds) = (1000.0, 100.0);
        } else if self.draw.chance(self.uneven) {
            bytes *= 16f64.powf(self.draw.unit() - 0.5);
            seconds *= 100f64.powf(self.draw.unit() - 0.5);
        }
        let scratch = match saves {
            Saves::Inputs => 3.0 * self.draw.unit() * bytes,
            _ => 0.0,
        };
        self.layers.push(Layer {
            inputs: inputs.to_vec(),
            saves,
            bytes: match saves {
                Saves::Output => self.layers[inputs[0]].bytes,
                _ => bytes.max(1.0) as u64,
            },
            seconds: seconds.max(1.0).round(),
            workspace: scratch as u64,
        });
        self.layers.len() - 1
    }

    /// `count` layers one after another; the last one's index.
    fn chain(&mut self, mut from: usize, count: usize, size: f64) -> usize {
        for _ in 0..count {
            from = self.layer(&[from], size);
        }
        from
    }

    fn skips(&mut self, count: usize) {
        let (share, span) = (0.1 + 0.4 * self.draw.unit(), 2 + self.draw.below(count / 2));
        let mut size = 1.0;
        let mut last = self.layer(&[], size);
        while self.layers.len() < count {
            if self.draw.chance(0.1) {
                size *= 0.6;
            }
            let mut inputs = vec![last];
            if last >= 2 && self.draw.chance(share) {
                inputs.push(last - 1 - self.draw.below(span.min(last)));
            }
            last = self.layer(&inputs, size);
        }
    }

    fn joined(&mut self, count: usize) {
        let alternate = self.draw.chance(0.5);
        let towers = count * 3 / 4;
        let first = self.draw.within(towers / 4..towers * 3 / 4 + 1).max(1);
        let sizes = [1.0, 0.25 + 2.0 * self.draw.unit()];
        let mut ends: [Vec<usize>; 2] = [Vec::new(), Vec::new()];
        while ends[0].len() + ends[1].len() < towers {
            let done = [ends[0].len() >= first, ends[1].len() >= towers - first];
            let side = match done {
                [false, false] if alternate => self.draw.below(2),
                [false, _] => 0,
                _ => 1,
            };
            let tower = &ends[side];
            let mut inputs: Vec<usize> = tower.last().copied().into_iter().collect();
            if tower.len() > 3 && self.draw.chance(0.2) {
                inputs.push(tower[tower.len() - 2 - self.draw.below(2)]);
            }
            ends[side].push(self.layer(&inputs, sizes[side]));
        }
        let mut last = self.layer(
            &[ends[0][ends[0].len() - 1], ends[1][ends[1].len() - 1]],
            0.5,
        );
        while self.layers.len() < count {
            let mut inputs = vec![last];
            if self.draw.chance(0.15) {
                let tower = &ends[self.draw.below(2)];
                inputs.push(tower[self.draw.below(tower.len())]);
            }
            last = self.layer(&inputs, 0.5);
        }
    }

    fn encoder_decoder(&mut self, count: usize) {
        let depth = self.draw.within(2..6).min(count / 4).max(1);
        let each = (count / (2 * depth + 1)).max(2);
        let shrink = 0.25 + 0.5 * self.draw.unit();
        let mut last = self.layer(&[], 1.0);
        let (mut size, mut skips) = (1.0, Vec::new());
        for _ in 0..depth {
            let layers = self.draw.within(each - 1..each + 2).max(1);
            last = self.chain(last, layers, size);
            skips.push((last, size));
            size *= shrink;
            last = self.layer(&[last], size);
        }
        last = self.chain(last, each - 1, size);
        while let Some((skip, size)) = skips.pop() {
            let up = self.layer(&[last], size);
            last = self.layer(&[up, skip], 2.0 * size);
            last = self.chain(last, each.saturating_sub(2).max(1), size);
        }
    }

    fn wide(&mut self, count: usize) {
        let layered = self.draw.chance(0.5);
        let mut from = vec![self.layer(&[], 1.0)];
        let mut before = from.clone();
        let mut size = 1.0;
        while self.layers.len() < count {
            size *= 0.7 + 0.4 * self.draw.unit();
            let width = self.draw.within(2..6);
            let mut ends = Vec::new();
            for _ in 0..width {
                if layered {
                    let mut inputs = vec![from[self.draw.below(from.len())]];
                    for _ in 0..self.draw.below(3) {
                        let row = if self.draw.chance(0.7) {
                            &from
                        } else {
                            &before
                        };
                        let input = row[self.draw.below(row.len())];
                        if !inputs.contains(&input) {
                            inputs.push(input);
                        }
                    }
                    ends.push(self.layer(&inputs, size));
                } else {
                    let first = self.layer(&from, size / width as f64);
                    let more = self.draw.below(3);
                    ends.push(self.chain(first, more, size / width as f64));
                }
            }
            if !layered {
                ends = vec![self.layer(&ends, size)];
            }
            before = std::mem::replace(&mut from, ends);
        }
    }

    /// A last layer that reads all that no other does.
    fn gather(&mut self) {
        let mut unread = vec![true; self.layers.len()];
        for &input in self.layers.iter().flat_map(|layer| &layer.inputs) {
            unread[input] = false;
        }
        let unread: Vec<usize> = (0..unread.len()).filter(|&k| unread[k]).collect();
        self.layer(&unread, 0.05);
    }
}

struct Lowering<'a> {
    layers: &'a [Layer],
    parts: ProblemParts,
    device: DeviceId,
    /// Each layer's output.
    made: Vec<ValueId>,
    /// What each layer reads.
    read: Vec<Vec<ValueId>>,
}

impl<'a> Lowering<'a> {
    fn new(name: String, layers: &'a [Layer]) -> Lowering<'a> {
        let mut parts = ProblemParts {
            name,
            ..ProblemParts::default()
        };
        let device = parts.devices.push(Device::computing("cpu"));
        Lowering {
            layers,
            parts,
            device,
            made: Vec::new(),
            read: Vec::new(),
        }
    }

    fn problem(mut self, training: bool, detailed: bool) -> Problem {
        for (k, layer) in self.layers.iter().enumerate() {
            let mut inputs: Vec<ValueId> = layer.inputs.iter().map(|&i| self.made[i]).collect();
            if inputs.is_empty() {
                let given = Origin::Given(self.device);
                inputs.push(self.value(layer.bytes, given, Keep::No));
            }
            let outputs = self.task(k, Phase::Forward, layer.seconds, &inputs, &[layer.bytes]);
            if detailed && self.in_place(layer) {
                self.overwrite(inputs[0], outputs[0]);
            }
            if detailed {
                self.workspace(layer.workspace);
            }
            self.made.push(outputs[0]);
            self.read.push(inputs);
        }
        if training {
            self.backward(detailed);
        } else {
            let last = self.made[self.made.len() - 1];
            self.parts.values[last].keep = Keep::Anywhere;
        }
        Problem::new(self.parts).expect("the generator keeps the invariants")
    }

    fn backward(&mut self, detailed: bool) {
        // Each layer's gradients, one from each reader.
        let mut gradients: Vec<Vec<ValueId>> = vec![Vec::new(); self.layers.len()];
        for (k, layer) in self.layers.iter().enumerate().rev() {
            let mut inputs = gradients[k].clone();
            let weighted = layer.saves == Saves::Inputs;
            if weighted && detailed {
                let mut inputs = inputs.clone();
                inputs.extend(&self.read[k]);
                self.update(k, &inputs);
            } else {
                match layer.saves {
                    Saves::Inputs => inputs.extend(&self.read[k]),
                    Saves::Output => inputs.push(self.made[k]),
                    Saves::Nothing => {}
                }
            }
            if inputs.is_empty() {
                // The loss is a sum, whose gradient still has to start somewhere.
                inputs.push(self.made[k]);
            }
            let sizes: Vec<u64> = layer.inputs.iter().map(|&i| self.layers[i].bytes).collect();
            if sizes.is_empty() && detailed {
                continue;
            }
            let seconds = layer.seconds * if weighted && !detailed { 2.0 } else { 1.0 };
            let outputs = self.task(k, Phase::Backward, seconds, &inputs, &sizes);
            if detailed && layer.saves == Saves::Output && gradients[k].len() == 1 {
                self.overwrite(gradients[k][0], outputs[0]);
            } else if detailed {
                self.workspace(layer.workspace);
            }
            for (&input, output) in layer.inputs.iter().zip(outputs) {
                gradients[input].push(output);
            }
        }
    }

    /// The gradient of a layer's weights, and the weights' update, which overwrites them.
    fn update(&mut self, layer: usize, inputs: &[ValueId]) {
        let (bytes, seconds) = (self.layers[layer].bytes / 2 + 1, self.layers[layer].seconds);
        let weights = self.value(bytes, Origin::Given(self.device), Keep::No);
        let gradient = self.task(layer, Phase::Backward, seconds, inputs, &[bytes])[0];
        self.workspace(self.layers[layer].workspace);
        let cheap = (seconds / 20.0).max(1.0).round();
        let inputs = [weights, gradient];
        let updated = self.task(layer, Phase::Update, cheap, &inputs, &[bytes])[0];
        self.parts.values[updated].keep = Keep::On(self.device);
        self.last_task().rerunnable = false;
        self.overwrite(weights, updated);
    }

    /// Whether the layer is an activation whose input nothing else reads.
    fn in_place(&self, layer: &Layer) -> bool {
        let [input] = layer.inputs[..] else {
            return false;
        };
        let readers = self.layers.iter().filter(|l| l.inputs.contains(&input));
        layer.saves == Saves::Output
            && self.layers[input].saves != Saves::Output
            && readers.count() == 1
    }

    fn last_task(&mut self) -> &mut Task {
        let task = self.parts.tasks.values_mut().next_back();
        task.expect("a task was just added")
    }

    fn workspace(&mut self, bytes: u64) {
        self.last_task().modes[0].workspace = bytes;
    }

    fn overwrite(&mut self, input: ValueId, output: ValueId) {
        let pair = Overwrite { input, output };
        self.last_task().overwrites.push(pair);
    }

    fn value(&mut self, bytes: u64, origin: Origin, keep: Keep) -> ValueId {
        self.parts.values.push(Value {
            name: format!("v{}", self.parts.values.len()),
            bytes,
            origin,
            keep,
        })
    }

    /// Adds a task; returns its outputs.
    fn task(
        &mut self,
        layer: usize,
        phase: Phase,
        seconds: f64,
        inputs: &[ValueId],
        sizes: &[u64],
    ) -> Vec<ValueId> {
        let id = TaskId::from_u32(self.parts.tasks.len() as u32);
        let outputs = sizes
            .iter()
            .map(|&bytes| self.value(bytes, Origin::Task(id), Keep::No))
            .collect::<Vec<_>>();
        self.parts.tasks.push(Task {
            name: format!("{phase:?}{layer}").to_lowercase(),
            phase,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
            overwrites: Vec::new(),
            modes: vec![Mode {
                device: self.device,
                seconds,
                joules: 0.0,
                workspace: 0,
                resident: 0,
            }],
            rerunnable: true,
        });
        outputs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::plan::Plan;

    #[test]
    fn networks_can_be_planned() {
        for family in Family::ALL {
            for seed in 0..40 {
                let (tasks, training) = (20 + 3 * seed as usize, seed % 2 == 0);
                let problem = network(family, tasks, training, seed);
                let drawn = problem.tasks().len();
                assert!(
                    drawn > tasks / 3 && drawn < tasks * 2,
                    "{family:?} {seed}: {drawn} tasks of {tasks}"
                );
                let device = problem.sole_device().unwrap();
                check(&problem, Plan::keep_all(&problem, device).unwrap()).unwrap();
            }
        }
    }
}

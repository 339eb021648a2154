//! A case as a graph of one node. It is compiled for a processor and run there as the executor runs a node,
//! with a workspace of exactly the stated size that is full of NaN.

use scrimp_graph::{DType, Graph, GraphBuilder, Node, NodeId, Op, TensorId};

use crate::arena::Arena;
use crate::compiled::Compiled;
use crate::format::{Format, Formats};
use crate::job::Recipe;
use crate::memory::Memory;
use crate::processor::Processor;
use crate::random::mix;
use crate::span::{ALIGN, Span};

/// Bytes at least behind each argument.
const GUARD: u64 = 64;

/// An input of a case: shape and contents.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub shape: Vec<usize>,
    pub floats: Vec<f64>,
    pub ints: Option<Vec<i64>>,
}

/// Floats uniform in [−1, 1), exactly representable in 32 bits.
pub(super) fn floats(shape: &[usize], key: u64) -> Input {
    let count: usize = shape.iter().product();
    let draw = |i: u64| (mix(mix(key) ^ i) >> 44) as f64 / (1 << 19) as f64 - 1.0;
    Input {
        shape: shape.to_vec(),
        floats: (0..count as u64).map(draw).collect(),
        ints: None,
    }
}

pub(super) fn ints(shape: &[usize], below: i64, key: u64) -> Input {
    let count: usize = shape.iter().product();
    let draw = |i: u64| (mix(mix(key) ^ i) >> 1) as i64 % below;
    let ints: Vec<i64> = (0..count as u64).map(draw).collect();
    Input {
        shape: shape.to_vec(),
        floats: ints.iter().map(|&i| i as f64).collect(),
        ints: Some(ints),
    }
}

pub(super) struct Run {
    /// Bytes of each output, in its format.
    pub bits: Vec<Vec<u8>>,
    /// Elements of each output, in rows.
    pub values: Vec<Vec<f64>>,
}

/// An operator on tensors of these shapes.
pub(super) struct Case {
    graph: Graph,
    node: NodeId,
    formats: Formats,
}

impl Case {
    /// A case with floats of this type and images in this format.
    pub fn new(op: &Op, inputs: &[Input], float: DType, format: Format) -> Case {
        let mut b = GraphBuilder::new("case");
        let each = inputs.iter().map(|input| {
            let dtype = match input.ints {
                Some(_) => DType::I64,
                None => float,
            };
            b.input("input", &input.shape, dtype).expect("valid")
        });
        let each: Vec<TensorId> = each.collect();
        let outputs = b.add("output", op.clone(), &each);
        for output in outputs.expect("the case has valid shapes") {
            b.output(output);
        }
        let graph = b.finish().expect("valid");
        let node = graph.nodes().keys().next().expect("there is one");
        let mut formats = Formats::rows();
        for tensor in images(&graph, graph.node(node)) {
            formats.set(&[tensor], format);
        }
        Case {
            graph,
            node,
            formats,
        }
    }

    /// The recipe by which a processor runs the case.
    pub fn recipe(&self, processor: Processor<'_>) -> Option<Recipe> {
        let node = self.graph.node(self.node);
        processor.recipe(&self.graph, &self.formats, node)
    }

    /// Runs the case on these inputs; each (input, output) in the list shares its memory.
    pub fn run(
        &self,
        processor: Processor<'_>,
        inputs: &[Input],
        in_place: &[(usize, usize)],
    ) -> Run {
        let compiled = Compiled::with_formats(&self.graph, processor, self.formats.clone());
        let node = self.graph.node(self.node);
        // Each argument is followed by bytes that nothing may write.
        let (mut end, mut guards) = (0, Vec::new());
        let mut place = |bytes: u64| {
            let offset = end;
            end = (offset + bytes + GUARD).next_multiple_of(ALIGN as u64);
            guards.push(Span {
                offset: offset + bytes,
                bytes: end - offset - bytes,
            });
            Span { offset, bytes }
        };
        let mut placed = |&tensor: &TensorId| place(self.graph.tensor(tensor).bytes());
        let reads: Vec<Span> = node.inputs.iter().map(&mut placed).collect();
        let outputs = node.outputs.iter().enumerate();
        let writes: Vec<Span> = outputs
            .map(
                |(o, tensor)| match in_place.iter().find(|pair| pair.1 == o) {
                    Some(&(input, _)) => reads[input],
                    None => placed(tensor),
                },
            )
            .collect();
        let workspace = place(compiled.workspace(self.node));
        let mut arena = Arena::new(end).expect("tests are small");
        arena.bytes_at_mut(0, end).fill(0xff);
        for ((&tensor, input), &span) in node.inputs.iter().zip(inputs).zip(&reads) {
            self.store(tensor, input, arena.bytes_at_mut(span.offset, span.bytes));
        }
        let job = compiled
            .job(self.node, &reads, &writes, workspace)
            .expect("disjoint");
        let mut memory = Memory::holding(processor, arena).expect("tests are small");
        let ran = processor.enter(|| processor.run(&job, &mut memory));
        ran.unwrap_or_else(|error| panic!("{:?}: {error}", node.op));
        let arena = memory.into_arena().expect("it can be read");
        for &guard in &guards {
            let bytes = arena.bytes_at(guard.offset, guard.bytes);
            assert!(
                bytes.iter().all(|&byte| byte == 0xff),
                "{:?} writes beside its arguments",
                node.op
            );
        }
        let written = node.outputs.iter().zip(&writes);
        let (bits, values) = written
            .map(|(&tensor, &span)| {
                let bytes = arena.bytes_at(span.offset, span.bytes);
                (bytes.to_vec(), self.load(tensor, bytes))
            })
            .unzip();
        Run { bits, values }
    }

    /// Puts an input into a tensor's memory.
    fn store(&self, tensor: TensorId, input: &Input, memory: &mut [u8]) {
        let what = self.graph.tensor(tensor);
        let floats = match self.formats.of(tensor).change(&what.shape) {
            None => input.floats.clone(),
            Some(change) => change.of(&input.floats),
        };
        match (&input.ints, what.dtype) {
            (Some(ints), _) => bytemuck::cast_slice_mut(memory).copy_from_slice(ints),
            (None, DType::F32) => {
                let memory: &mut [f32] = bytemuck::cast_slice_mut(memory);
                let pairs = memory.iter_mut().zip(&floats);
                pairs.for_each(|(to, &x)| *to = x as f32);
            }
            (None, _) => bytemuck::cast_slice_mut(memory).copy_from_slice(&floats),
        }
    }

    /// A tensor's elements in rows.
    fn load(&self, tensor: TensorId, memory: &[u8]) -> Vec<f64> {
        let what = self.graph.tensor(tensor);
        let values: Vec<f64> = match what.dtype {
            DType::F32 => bytemuck::cast_slice::<u8, f32>(memory)
                .iter()
                .map(|&x| f64::from(x))
                .collect(),
            DType::F64 => bytemuck::cast_slice(memory).to_vec(),
            DType::I64 => bytemuck::cast_slice::<u8, i64>(memory)
                .iter()
                .map(|&x| x as f64)
                .collect(),
        };
        match self.formats.of(tensor).change(&what.shape) {
            None => values,
            Some(change) => change.back().of(&values),
        }
    }
}

/// The node's images. Weights aren't images, nor are integers.
fn images(graph: &Graph, node: &Node) -> Vec<TensorId> {
    let weights = match node.op {
        Op::Conv { .. } | Op::ConvInputGrad { .. } => Some(node.inputs[1]),
        Op::ConvWeightGrad { .. } => Some(node.outputs[0]),
        _ => None,
    };
    let image = |tensor: &TensorId| {
        let what = graph.tensor(*tensor);
        Some(*tensor) != weights && what.dtype != DType::I64 && Format::matters(&what.shape)
    };
    let tensors = node.inputs.iter().chain(&node.outputs);
    tensors.copied().filter(image).collect()
}

//! Costs per node: what a profiler measures, or a static model estimates.
//!
//! The model is a roofline. A node takes
//!
//! ```text
//! seconds = overhead + max(flops / flops_per_second, bytes / bytes_per_second)
//! ```
//!
//! * `flops`: 2 per multiply-add for convolutions and matrix products, otherwise a small number per
//!   element, which counts exp, erf and the like as about ten.
//! * `bytes`: every input read once and every output written once; slices and gathers read only
//!   what they copy, and adding to a slice touches only that. Views cost nothing at all.

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node, NodeId, TensorId};
use crate::op::{Binary, Op, Optimizer, Unary, Window};

/// Cost of one node on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeCost {
    /// Duration in a step that keeps everything.
    pub seconds: f64,
    /// Energy; zero where unknown.
    pub joules: f64,
    /// Scratch bytes in use only while the node runs.
    pub workspace: u64,
}

/// Costs of all nodes of a graph on one device.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// By node; nothing for views.
    pub nodes: SecondaryMap<NodeId, NodeCost>,
}

impl Costs {
    /// The sum of the seconds: a step without recomputation on one device.
    pub fn seconds(&self, graph: &Graph) -> f64 {
        graph
            .nodes()
            .keys()
            .map(|node| self.nodes[node].seconds)
            .sum()
    }
}

/// The rates that a device sustains, for the static model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Floating-point operations that dense kernels sustain.
    pub flops_per_second: f64,
    /// Bytes that streaming kernels sustain.
    pub bytes_per_second: f64,
    /// Seconds that a task takes however small it is.
    pub overhead: f64,
}

impl Default for Roofline {
    /// A laptop's CPU, a few cores: 100 GFLOP/s, 20 GB/s, 2 µs.
    fn default() -> Roofline {
        Roofline {
            flops_per_second: 100e9,
            bytes_per_second: 20e9,
            overhead: 2e-6,
        }
    }
}

/// The roofline of this module's documentation, with each node's workspace as the device says.
pub fn estimate(graph: &Graph, roofline: &Roofline, workspace: &dyn Fn(NodeId) -> u64) -> Costs {
    let mut costs = Costs::default();
    for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
        let compute = flops(graph, node) / roofline.flops_per_second;
        let memory = bytes_moved(graph, node) / roofline.bytes_per_second;
        let seconds = roofline.overhead + compute.max(memory);
        costs.nodes[id] = NodeCost {
            seconds,
            joules: 0.0,
            workspace: workspace(id),
        };
    }
    costs
}

/// Floating-point operations of one run of a node. Every operator is named here, so that a new one
/// can't be free by omission.
pub fn flops(graph: &Graph, node: &Node) -> f64 {
    let size = |tensor: TensorId| graph.tensor(tensor).elements() as f64;
    let input = |slot: usize| node.inputs.get(slot).map_or(0.0, |&tensor| size(tensor));
    let output: f64 = node.outputs.iter().map(|&tensor| size(tensor)).sum();
    let last = |tensor: TensorId, back: usize| {
        let shape = &graph.tensor(tensor).shape;
        shape
            .len()
            .checked_sub(back)
            .map_or(1.0, |axis| shape[axis] as f64)
    };
    let window_area = |window: &Window| (window.kernel[0] * window.kernel[1]) as f64;
    let per_filter = |weight: TensorId| size(weight) / graph.tensor(weight).shape[0] as f64;
    match &node.op {
        Op::Conv { .. } => 2.0 * output * per_filter(node.inputs[1]) + input(2).min(1.0) * output,
        Op::ConvInputGrad { .. } => 2.0 * input(0) * per_filter(node.inputs[1]),
        Op::ConvWeightGrad { .. } => 2.0 * input(1) * per_filter(node.outputs[0]) + input(2),
        Op::MatMul { trans_a, .. } => {
            let inner = last(node.inputs[0], if *trans_a { 2 } else { 1 });
            2.0 * output * inner + input(2).min(1.0) * output
        }
        Op::MaxPool { window } | Op::AvgPool { window, .. } => output * window_area(window),
        Op::MaxPoolGrad { window } => input(1) * window_area(window),
        Op::AvgPoolGrad { window, .. } => input(0) * window_area(window),
        Op::Unary(f) | Op::UnaryGrad(f) => output * per_element(*f),
        Op::Binary(Binary::Div) => output * 4.0,
        Op::Binary(Binary::Add | Binary::Sub | Binary::Mul) => output,
        Op::Reduce { .. } | Op::SumTo { .. } => input(0),
        Op::Expand { .. } => output,
        Op::BatchNorm { .. } => output * 6.0,
        Op::NormStats { .. } | Op::NormParamGrad { .. } => input(0) * 4.0,
        Op::NormApply { .. } => output * 2.0,
        Op::NormGrad { .. } => output * 10.0,
        Op::RunningStats { .. } => output * 3.0,
        Op::Softmax { .. } | Op::LogSoftmax { .. } => output * 12.0,
        Op::SoftmaxGrad { .. } => output * 4.0,
        Op::LogSoftmaxGrad { .. } | Op::CrossEntropyGrad => output * 12.0,
        Op::CrossEntropy => input(0) * 12.0,
        Op::MeanSquaredError => input(0) * 3.0,
        Op::MeanSquaredErrorGrad => output * 3.0,
        Op::Dropout { .. } => output * 10.0,
        Op::Update(Optimizer::Sgd { .. }) => output * 4.0,
        Op::Update(Optimizer::Adam { .. }) => output * 6.0,
        // Each element of the gradient is added to one that is there.
        Op::SliceGrad { .. } | Op::ResizeNearestGrad { .. } => input(0),
        Op::GatherGrad { .. } => input(1),
        // These move elements and compute nothing.
        Op::Fill { .. }
        | Op::Read { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::ResizeNearest { .. }
        | Op::Gather { .. } => 0.0,
    }
}

/// Operations that an elementwise function or its gradient takes for each element.
fn per_element(f: Unary) -> f64 {
    match f {
        Unary::Relu | Unary::LeakyRelu { .. } | Unary::Clip { .. } | Unary::Abs => 1.0,
        Unary::Affine { .. } => 2.0,
        Unary::Sqrt => 4.0,
        Unary::Gelu | Unary::GeluTanh | Unary::Silu | Unary::Pow { .. } => 15.0,
        Unary::Sigmoid | Unary::Tanh | Unary::Exp | Unary::Log | Unary::Erf => 10.0,
    }
}

/// Bytes that one run of a node reads and writes.
pub fn bytes_moved(graph: &Graph, node: &Node) -> f64 {
    let bytes = |tensors: &[TensorId]| -> f64 {
        tensors
            .iter()
            .map(|&tensor| graph.tensor(tensor).bytes() as f64)
            .sum()
    };
    let written = bytes(&node.outputs);
    match node.op {
        Op::Reshape { .. } => 0.0,
        Op::Slice { .. } => 2.0 * written,
        // In place, only the elements at the slice's places are read and written.
        Op::SliceGrad { .. } if node.inputs.len() > 1 => 3.0 * bytes(&node.inputs[..1]),
        Op::Gather { .. } => 2.0 * written + bytes(&node.inputs[1..]),
        _ => bytes(&node.inputs) + written,
    }
}

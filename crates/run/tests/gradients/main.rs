//! Gradients against central differences in 64 bits: every differentiable operator in several shapes,
//! then small whole networks. Gradients are built by `scrimp-graph`, evaluated by the interpreter, on the CPU and on an
//! OpenCL device if there is one; differences are the CPU's.

mod movement;
mod networks;
mod normalization;
mod onnx;
mod pointwise;
mod spatial;

use scrimp_graph::{
    Binary, DType, Graph, GraphBuilder, GraphError, Init, Loss, Op, Reduction, Role, TensorId,
    train,
};
use scrimp_run::{Compiled, Cpu, Data, Gpu, GpuError, Interface, Processor, RunError, interpret};
use std::error::Error;

/// What a case builds on.
struct Case {
    b: GraphBuilder,
    /// Number of parameters so far.
    parameters: usize,
}

impl Case {
    /// A parameter of normally distributed numbers.
    fn p(&mut self, shape: &[usize]) -> Result<TensorId, GraphError> {
        self.parameters += 1;
        let name = format!("p{}", self.parameters);
        self.b.parameter(&name, shape, Init::Normal { std: 1.0 })
    }

    /// A constant of normally distributed numbers.
    fn c(&mut self, shape: &[usize]) -> Result<TensorId, GraphError> {
        self.b.constant("c", shape, Init::Normal { std: 1.0 })
    }

    /// A constant of indices.
    fn ints(&mut self, shape: &[usize], values: &[i64]) -> Result<TensorId, GraphError> {
        self.b.constant("ints", shape, Init::Ints(values.into()))
    }

    /// An operator with one output.
    fn op(&mut self, op: Op, inputs: &[TensorId]) -> Result<TensorId, GraphError> {
        self.b.add1("op", op, inputs)
    }
}

type Built = Result<TensorId, GraphError>;

/// Σ of y's elements, each with a random weight of its own, so that no error cancels.
fn weighted_sum(case: &mut Case, y: TensorId) -> Built {
    let shape = case.b.shape(y).to_vec();
    let weights = case
        .b
        .constant("weights", &shape, Init::Normal { std: 1.0 })?;
    let weighted = case.b.binary("weighted", Binary::Mul, y, weights)?;
    let axes = (0..shape.len()).collect();
    let sum = Op::Reduce {
        kind: Reduction::Sum,
        axes,
        keep_dims: false,
    };
    case.b.add1("loss", sum, &[weighted])
}

/// Builds a function of its parameters and compares its gradients with differences.
#[track_caller]
fn check(build: impl FnOnce(&mut Case) -> Built) {
    let graph = || -> Result<Graph, GraphError> {
        let mut case = Case {
            b: GraphBuilder::new("case"),
            parameters: 0,
        };
        let y = build(&mut case)?;
        let loss = weighted_sum(&mut case, y)?;
        case.b.output(loss);
        case.b.finish()
    };
    check_loss(graph(), Loss::Output, &[]);
}

/// Compares the gradients of a network's loss with differences; `ints` are its integer inputs.
#[track_caller]
fn check_loss(graph: Result<Graph, GraphError>, loss: Loss, ints: &[(&str, &[i64])]) {
    if let Err(error) = graph
        .map_err(Into::into)
        .and_then(|graph| compare(&graph, loss, ints))
    {
        panic!("{error}");
    }
}

/// At most this many elements of each parameter are moved.
const MOVED: usize = 40;

/// How far. The error of a central difference is about STEP²·f‴/6 + 1e-16·f/STEP.
const STEP: f64 = 3e-5;

/// Difference allowed, relative to the larger of 1 and the gradient.
const TOLERANCE: f64 = 1e-6;

fn compare(graph: &Graph, loss: Loss, ints: &[(&str, &[i64])]) -> Result<(), Box<dyn Error>> {
    let training = train(graph, loss, None)?;
    let graph = training.graph.clone().with_float(DType::F64);
    let cpu = Cpu::new(1)?;
    let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
    let floats = random_inputs(&graph);
    let mut given: Vec<(TensorId, Data<'_>)> = floats
        .iter()
        .map(|(id, values)| (*id, Data::F64(values)))
        .collect();
    for &(name, values) in ints {
        let id = graph
            .find(name)
            .ok_or_else(|| format!("no input '{name}'"))?;
        given.push((id, Data::I64(values)));
    }
    let evaluate = |moved: Option<(TensorId, &[f64])>| -> Result<_, RunError> {
        let mut inputs = given.clone();
        inputs.extend(moved.map(|(id, values)| (id, Data::F64(values))));
        interpret(&compiled, &inputs, 1)
    };
    let base = evaluate(None)?;
    let devices = gpus()?;
    let elsewhere = devices.iter().map(|device| {
        let compiled = Compiled::new(&graph, Processor::Gpu(device));
        interpret(&compiled, &given, 1)
    });
    let elsewhere: Vec<_> = elsewhere.collect::<Result<_, _>>()?;
    assert!(
        !training.gradients.is_empty(),
        "there is nothing to compare"
    );
    for &(parameter, gradient) in &training.gradients {
        let name = &graph.tensor(parameter).name;
        let mut values = base.floats(&graph, parameter);
        let found = [&base].into_iter().chain(&elsewhere);
        let found: Vec<Vec<f64>> = found.map(|run| run.floats(&graph, gradient)).collect();
        for i in (0..values.len()).step_by(values.len().div_ceil(MOVED)) {
            let here = values[i];
            let mut loss = |value| -> Result<f64, RunError> {
                values[i] = value;
                let run = evaluate(Some((parameter, &values)))?;
                Ok(run.floats(&graph, training.loss)[0])
            };
            let difference = (loss(here + STEP)? - loss(here - STEP)?) / (2.0 * STEP);
            values[i] = here;
            for exact in found.iter().map(|gradient| gradient[i]) {
                let error = (exact - difference).abs() / exact.abs().max(1.0);
                // Written so that NaN fails.
                let close = error <= TOLERANCE;
                assert!(
                    close,
                    "gradient of {name}[{i}] is {exact}, differences give {difference}, in\n{graph}"
                );
            }
        }
    }
    Ok(())
}

/// The first device of each interface that computes in 64 bits. Its kernels are compiled once for all tests.
fn gpus() -> Result<Vec<Gpu>, GpuError> {
    let mut found = Vec::new();
    for interface in Interface::ALL {
        match Gpu::new(
            interface,
            0,
            Some(env!("CARGO_TARGET_TMPDIR").into()),
            false,
        ) {
            Ok(device) => found.extend(device.computes_in_64_bits().then_some(device)),
            Err(GpuError::NotFound { .. } | GpuError::NoDevice { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Numbers between −1 and 1 for every floating-point input, by a small generator of our own.
fn random_inputs(graph: &Graph) -> Vec<(TensorId, Vec<f64>)> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    let inputs = graph
        .given()
        .filter(|(_, t)| t.role == Role::Input && t.dtype != DType::I64);
    inputs
        .map(|(id, t)| (id, (0..t.elements()).map(|_| next()).collect()))
        .collect()
}

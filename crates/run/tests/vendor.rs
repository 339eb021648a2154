//! What a vendor's libraries are told, shown with ones that only do what they are told: a stub in C, compiled by the
//! test. It computes with the shapes, steps and places that it is given, which must give the CPU's results. Skipped, and
//! said so, where there is no C compiler.

#![allow(unsafe_code, reason = "the environment is set up")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../gpu/tests/stub/mod.rs"]
mod stub;

use scrimp_graph::{DType, Graph, GraphBuilder, Op, TensorId, Window};
use scrimp_run::{Compiled, Cpu, Data, Gpu, Interface, Processor, interpret};
use std::path::Path;

/// A device that has nothing but the libraries; `None` without a C compiler.
fn device(folder: &Path) -> Option<Gpu> {
    let file = stub::compiled("cuda_stub.c", "NOTHING_WRONG", folder)?;
    for library in ["CUDA", "NVRTC", "CUBLASLT", "CUDNN"] {
        // SAFETY: this is the only test of its process.
        unsafe { std::env::set_var(format!("SCRIMP_{library}"), &file) };
    }
    Some(Gpu::new(Interface::Cuda, 0, None, true).unwrap())
}

fn graph_of(op: &Op, shapes: &[&[usize]]) -> Graph {
    let mut b = GraphBuilder::new("one");
    let input = |(i, shape): (usize, &&[usize])| b.input(&format!("x{i}"), shape, DType::F32);
    let inputs: Vec<_> = shapes
        .iter()
        .enumerate()
        .map(input)
        .map(Result::unwrap)
        .collect();
    let outputs = b.add("op", op.clone(), &inputs).unwrap();
    outputs.into_iter().for_each(|output| b.output(output));
    b.finish().unwrap()
}

/// What an operator makes of some numbers; `None` if it has no kernel.
fn result(graph: &Graph, processor: Processor<'_>) -> Option<Vec<f64>> {
    let given: Vec<(TensorId, Vec<f32>)> = graph
        .given()
        .map(|(id, what)| {
            let value = |i: usize| ((i * 7919 + what.elements()) % 1009) as f32 / 1009.0 - 0.4;
            (id, (0..what.elements()).map(value).collect())
        })
        .collect();
    let data: Vec<_> = given.iter().map(|(id, x)| (*id, Data::F32(x))).collect();
    let run = interpret(&Compiled::new(graph, processor), &data, 1).ok()?;
    let output = *graph
        .nodes()
        .values()
        .next()
        .unwrap()
        .outputs
        .first()
        .unwrap();
    Some(run.floats(graph, output))
}

#[test]
fn libraries_are_told_what_operators_mean() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = device(folder.path()) else {
        return;
    };
    let cpu = Cpu::new(1).unwrap();
    let product = |trans_a, trans_b| Op::MatMul { trans_a, trans_b };
    let mut cases: Vec<(Op, Vec<&[usize]>)> = vec![
        (product(false, false), vec![&[3, 5], &[5, 7]]),
        (product(true, false), vec![&[5, 3], &[5, 7]]),
        (product(false, true), vec![&[3, 5], &[7, 5]]),
        (product(true, true), vec![&[5, 3], &[7, 5]]),
        (product(false, false), vec![&[3, 5], &[5, 7], &[7]]),
        (product(false, true), vec![&[3, 5], &[7, 5], &[3, 7]]),
        (product(false, true), vec![&[2, 4, 3, 5], &[2, 4, 7, 5]]),
        (product(true, false), vec![&[6, 5, 3], &[5, 7]]),
        (product(false, false), vec![&[6, 3, 5], &[5, 7], &[7]]),
        (product(false, false), vec![&[3, 5], &[6, 5, 7], &[6, 3, 7]]),
    ];
    let (one, three) = (Window::square(1), Window::square(3).pad(1));
    let wide = Window {
        stride: [2, 1],
        dilation: [1, 2],
        pad_begin: [0, 2],
        pad_end: [0, 2],
        ..Window::square(3)
    };
    let sizes = [
        (one, 1, 9, 8),
        (three, 1, 9, 8),
        (three, 2, 9, 8),
        (wide, 1, 4, 8),
    ];
    let shapes: Vec<_> = sizes
        .iter()
        .map(|&(window, groups, h, w)| {
            let weight = [6, 4 / groups, window.kernel[0], window.kernel[1]];
            (window, groups, [[3, 4, 9, 8], weight, [3, 6, h, w]], [6])
        })
        .collect();
    let mut ours: Vec<(Op, Vec<&[usize]>)> = Vec::new();
    for (window, groups, [x, w, y], b) in &shapes {
        let (window, groups, input_hw) = (*window, *groups, [9, 8]);
        let conv = Op::Conv { window, groups };
        let to = match window.kernel {
            [1, 1] => &mut ours,
            _ => &mut cases,
        };
        to.push((conv.clone(), vec![x, w]));
        to.push((conv, vec![x, w, b]));
        let gradient = Op::ConvInputGrad {
            window,
            groups,
            input_hw,
        };
        cases.push((gradient, vec![y, w]));
        let gradient = Op::ConvWeightGrad { window, groups };
        let to = match groups {
            1 => &mut cases,
            _ => &mut ours,
        };
        to.push((gradient.clone(), vec![x, y]));
        to.push((gradient, vec![x, y, w]));
    }
    for (op, shapes) in &cases {
        let graph = graph_of(op, shapes);
        let expected = result(&graph, Processor::Cpu(&cpu)).unwrap();
        let found = result(&graph, Processor::Gpu(&device));
        let found = found.unwrap_or_else(|| panic!("{op:?} of {shapes:?} isn't the libraries'"));
        assert_eq!(expected.len(), found.len());
        for (expected, found) in expected.iter().zip(&found) {
            let close = (expected - found).abs() <= 1e-5 * expected.abs().max(1.0);
            assert!(close, "{op:?} of {shapes:?}: {found} instead of {expected}");
        }
    }
    // What the libraries refuse, or are slow at, is ours, which this device can't run.
    ours.push((product(false, false), vec![&[3, 5], &[5, 1]]));
    for (op, shapes) in &ours {
        let graph = graph_of(op, shapes);
        assert!(result(&graph, Processor::Gpu(&device)).is_none(), "{op:?}");
    }
}

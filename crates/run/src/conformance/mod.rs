//! Tests of every kernel against plain loops in 64 bits (`naive`), on shapes of every class and on every
//! device (`device`): this crate's kernels, and oneDNN's if it is installed. Each case is a graph of one
//! node, compiled and run as the executor does it (`case`): in f32 and f64, on one thread and on three, out
//! of place and in place, and, for this crate's kernels, with every instruction set that the machine has. For
//! each device and number of threads the bits are the same every time. With oneDNN images are once in rows
//! and once with channels last. This crate's kernels give the same bits on any number of threads.

mod case;
mod cases;
pub(crate) mod device;
mod linear;
mod naive;
mod normalization;
mod onednn;

use scrimp_graph::{DType, Op};

use self::case::{Case, Input, Run, floats, ints};
use self::device::{DEVICES, Device};
use crate::data::{Data, Elements};
use crate::processor::Processor;

/// Errors allowed in f64 and f32, relative to the largest element of the result or to 1.
const TOLERANCES: [(DType, f64); 2] = [(DType::F64, 1e-11), (DType::F32, 2e-5)];

/// Runs a case in all ways and compares the results with plain loops.
fn check(op: &Op, inputs: &[Input]) {
    check_with(op, inputs, in_all_ways);
}

/// Like [`check`], but only for this crate's kernels, where oneDNN's result differs.
fn check_ours(op: &Op, inputs: &[Input]) {
    check_with(op, inputs, in_our_ways);
}

fn check_with(
    op: &Op,
    inputs: &[Input],
    ways: impl Fn(&Op, &[Input], DType, &mut dyn FnMut(&Run)),
) {
    let expected = naive::run(op, inputs);
    for (float, tolerance) in TOLERANCES {
        ways(op, inputs, float, &mut |run| {
            compare(op, &run.values, &expected, tolerance);
        });
    }
}

/// The first output in f32, after checking that it is the same however the operator runs.
fn same_in_all_ways(op: &Op, inputs: &[Input]) -> Vec<f64> {
    let mut first: Option<Vec<f64>> = None;
    in_all_ways(op, inputs, DType::F32, &mut |run| {
        let values = &run.values[0];
        assert_eq!(first.get_or_insert_with(|| values.clone()), values);
    });
    first.expect("there is a device")
}

/// Runs a case on every device, twice and in place with the same bits, and calls `f` with each result.
fn in_all_ways(op: &Op, inputs: &[Input], float: DType, f: &mut dyn FnMut(&Run)) {
    for device in DEVICES.iter() {
        on(device, op, inputs, float, f);
    }
}

/// Like [`in_all_ways`], but only with this crate's kernels.
fn in_our_ways(op: &Op, inputs: &[Input], float: DType, f: &mut dyn FnMut(&Run)) {
    for device in DEVICES.iter().filter(|device| device.ours) {
        on(device, op, inputs, float, f);
    }
}

fn on(device: &Device, op: &Op, inputs: &[Input], float: DType, f: &mut dyn FnMut(&Run)) {
    if float == DType::F64 && !device.double {
        return;
    }
    for &format in device.formats {
        let case = Case::new(op, inputs, float, format);
        let results = device
            .processors
            .map(|processor| in_place_too(processor, &case, op, inputs));
        if device.ours {
            let [one, three] = &results;
            assert_eq!(
                one.bits, three.bits,
                "{op:?} depends on the number of threads"
            );
        }
        results.iter().for_each(&mut *f);
    }
}

/// The result, after checking that it is the same in place.
fn in_place_too(processor: Processor<'_>, case: &Case, op: &Op, inputs: &[Input]) -> Run {
    let result = case.run(processor, inputs, &[]);
    let mut ways: Vec<&[(usize, usize)]> = vec![&[], op.overwrites()];
    ways.extend(op.in_place().chunks(1));
    for pairs in ways {
        let fits = |&(input, output): &(usize, usize)| {
            let elements = |shape: &[usize]| shape.iter().product::<usize>();
            inputs
                .get(input)
                .is_some_and(|input| elements(&input.shape) == result.values[output].len())
        };
        if pairs.iter().all(fits) {
            let again = case.run(processor, inputs, pairs);
            assert_eq!(
                result.bits,
                again.bits,
                "{op:?} differs again or in place {pairs:?} on {}",
                processor.signature()
            );
        }
    }
    result
}

fn compare(op: &Op, found: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{op:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{op:?}");
        // A sum of n terms of size 1 is about √n; errors are relative to the largest element.
        let scale = expected.iter().fold(1.0f64, |scale, x| scale.max(x.abs()));
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (found - expected).abs() <= tolerance * scale,
                "{op:?}: element {i} is {found}, not {expected}"
            );
        }
    }
}

#[test]
fn data_of_the_wrong_kind_is_refused() {
    let mut b = scrimp_graph::GraphBuilder::new("t");
    let x = b.input("x", &[2], DType::F32).expect("valid");
    b.output(x);
    let graph = b.finish().expect("valid");
    let mut memory = [0u8; 8];
    for data in [Data::F32(&[1.0]), Data::I64(&[1, 2])] {
        assert!(
            Elements::new(DType::F32, &mut memory)
                .set(&graph, x, data)
                .is_err()
        );
    }
    Elements::F32(&mut [0.0; 2])
        .set(&graph, x, Data::F64(&[1.0, 2.0]))
        .expect("rounded");
}

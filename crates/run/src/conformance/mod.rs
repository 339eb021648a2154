//! Tests of every kernel against plain loops in 64 bits (`naive.rs`), on shapes of every class, for
//! every library: this crate's kernels, and oneDNN's where it is installed.
//! Each case runs in f32 and f64, on one thread and on three, out of place and in place, with a
//! workspace of exactly the stated size that is full of NaN; this crate's with every instruction set that the
//! machine has. Within a library and a number of threads
//! the bits are the same each time; with oneDNN images are once in
//! rows and once with channels last; and this crate's kernels give the same on any number of threads.

mod cases;
mod linear;
mod naive;
mod normalization;
pub(crate) mod onednn;

use scrimp_graph::{DType, Op, infer};

use crate::arena::Arena;
use crate::cpu::Cpu;
use crate::data::{Data, Elements};
use crate::format::{Format, Operand};
use crate::job::Recipe;
use crate::random::mix;
use crate::simd::Isa;
use crate::span::{ALIGN, Span};

/// An input of a case: shape and contents.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub shape: Vec<usize>,
    pub floats: Vec<f64>,
    pub ints: Option<Vec<i64>>,
}

/// Uniform in [−1, 1), exactly representable in 32 bits.
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

struct Run {
    bits: Vec<Vec<u8>>,
    values: Vec<Vec<f64>>,
}

/// How a case is run: which input shares its memory with which output, and the format of its images.
#[derive(Clone, Copy, Debug)]
struct Setup<'a> {
    in_place: &'a [(usize, usize)],
    format: Format,
}

fn signatures(inputs: &[Input], float: DType) -> Vec<(&[usize], DType)> {
    let each = inputs.iter();
    each.map(|input| match input.ints {
        Some(_) => (&input.shape[..], DType::I64),
        None => (&input.shape[..], float),
    })
    .collect()
}

/// The operator's arguments, images in this format. Weights aren't images.
fn operands<'a>(
    op: &Op,
    inputs: &[(&'a [usize], DType)],
    outputs: &'a [(Vec<usize>, DType)],
    format: Format,
) -> (Vec<Operand<'a>>, Vec<Operand<'a>>) {
    let operand = |shape: &'a [usize], dtype: DType, weights: bool| Operand {
        shape,
        dtype,
        format: match !weights && dtype != DType::I64 && Format::matters(shape) {
            true => format,
            false => Format::Rows,
        },
    };
    let weighs = matches!(op, Op::Conv { .. } | Op::ConvInputGrad { .. });
    let inputs = (inputs.iter().enumerate())
        .map(|(i, &(shape, dtype))| operand(shape, dtype, weighs && i == 1))
        .collect();
    let weights = matches!(op, Op::ConvWeightGrad { .. });
    let outputs = outputs
        .iter()
        .map(|(shape, dtype)| operand(shape, *dtype, weights))
        .collect();
    (inputs, outputs)
}

/// Runs the operator.
fn run(cpu: &Cpu, op: &Op, inputs: &[Input], float: DType, setup: Setup<'_>) -> Run {
    let signatures = signatures(inputs, float);
    let outputs = infer(op, &signatures).expect("the case has valid shapes");
    let (operands, results) = operands(op, &signatures, &outputs, setup.format);
    let recipe = Recipe::new(cpu, op, &operands, &results);

    let bytes = |one: &Operand<'_>| one.shape.iter().product::<usize>() as u64 * one.dtype.bytes();
    let mut end = 0;
    let mut place = |bytes: u64| {
        let offset = end;
        end += bytes.next_multiple_of(ALIGN as u64);
        offset
    };
    let in_places: Vec<u64> = operands.iter().map(|one| place(bytes(one))).collect();
    let shared = |o| setup.in_place.iter().find(|pair| pair.1 == o);
    let out_places: Vec<u64> = (results.iter().enumerate())
        .map(|(o, one)| match shared(o) {
            Some(&(input, _)) => in_places[input],
            None => place(bytes(one)),
        })
        .collect();
    let (workspace, scratch) = (recipe.workspace(), place(recipe.workspace()));
    let mut arena = Arena::new(end).expect("tests are small");
    arena.bytes_at_mut(0, end).fill(0xff);
    for (input, (&offset, one)) in inputs.iter().zip(in_places.iter().zip(&operands)) {
        let memory = arena.bytes_at_mut(offset, bytes(one));
        let floats = match one.format.change(one.shape) {
            None => input.floats.clone(),
            Some(change) => change.of(&input.floats),
        };
        match (&input.ints, one.dtype) {
            (Some(ints), _) => bytemuck::cast_slice_mut(memory).copy_from_slice(ints),
            (None, DType::F32) => {
                let memory: &mut [f32] = bytemuck::cast_slice_mut(memory);
                let pairs = memory.iter_mut().zip(&floats);
                pairs.for_each(|(to, &x)| *to = x as f32);
            }
            (None, _) => bytemuck::cast_slice_mut(memory).copy_from_slice(&floats),
        }
    }
    let spans = |places: &[u64], operands: &[Operand<'_>]| -> Vec<Span> {
        let each = places.iter().zip(operands);
        each.map(|(&offset, one)| arena.span(offset, bytes(one), "test").expect("inside"))
            .collect()
    };
    let (reads, writes) = (spans(&in_places, &operands), spans(&out_places, &results));
    let scratch = match workspace {
        0 => Span::EMPTY,
        _ => arena.span(scratch, workspace, "test").expect("inside"),
    };
    let job = recipe
        .job(&reads, &writes, scratch, "test")
        .expect("disjoint");
    cpu.enter(|| job.run(cpu, &mut arena))
        .unwrap_or_else(|error| panic!("{op:?}: {error}"));
    let mut result = Run {
        bits: Vec::new(),
        values: Vec::new(),
    };
    for (one, &offset) in results.iter().zip(&out_places) {
        let memory = arena.bytes_at(offset, bytes(one));
        result.bits.push(memory.to_vec());
        let values: Vec<f64> = match one.dtype {
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
        result.values.push(match one.format.change(one.shape) {
            None => values,
            Some(change) => change.back().of(&values),
        });
    }
    result
}

/// Errors allowed in f64 and f32, relative to the largest element of the result or to 1.
const TOLERANCES: [(DType, f64); 2] = [(DType::F64, 1e-11), (DType::F32, 2e-5)];

/// One library on one thread and on three.
struct Devices {
    cpus: [Cpu; 2],
    /// Whether the number of threads has no influence on results.
    same_bits: bool,
    /// The formats that images can have.
    formats: &'static [Format],
}

thread_local! {
    /// With each instruction set that the machine has, the widest first.
    static NATIVE: Vec<Devices> = [Isa::Avx512, Isa::Avx2, Isa::Portable]
        .into_iter()
        .filter(|&isa| isa <= Isa::detect())
        .map(|isa| Devices {
            cpus: [1, 3].map(|threads| Cpu::narrowed(threads, isa).expect("threads start")),
            same_bits: true,
            formats: &[Format::Rows],
        })
        .collect();
    static ONEDNN: Option<Devices> = onednn::devices();
}

/// Runs a case in all ways and compares with plain loops.
pub(super) fn check(op: &Op, inputs: &[Input]) {
    check_with(op, inputs, in_all_ways);
}

/// Like [`check`] for this crate's kernels: where oneDNN's result is another.
pub(super) fn check_ours(op: &Op, inputs: &[Input]) {
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

/// The first output in f32, which is the same however the operator runs.
pub(super) fn same_in_all_ways(op: &Op, inputs: &[Input]) -> Vec<f64> {
    let mut first: Option<Vec<f64>> = None;
    in_all_ways(op, inputs, DType::F32, &mut |run| {
        let values = &run.values[0];
        assert_eq!(first.get_or_insert_with(|| values.clone()), values);
    });
    first.expect("there is a device")
}

/// With every library on one thread and on three, again and in place with the same bits; calls `f`
/// with the result of each.
fn in_all_ways(op: &Op, inputs: &[Input], float: DType, f: &mut dyn FnMut(&Run)) {
    in_our_ways(op, inputs, float, f);
    ONEDNN.with(|devices| {
        if let Some(devices) = devices {
            on(devices, op, inputs, float, f);
        }
    });
}

/// As [`in_all_ways`], with this crate's kernels alone.
fn in_our_ways(op: &Op, inputs: &[Input], float: DType, f: &mut dyn FnMut(&Run)) {
    NATIVE.with(|all| {
        for devices in all {
            on(devices, op, inputs, float, f);
        }
    });
}

fn on(devices: &Devices, op: &Op, inputs: &[Input], float: DType, f: &mut dyn FnMut(&Run)) {
    for &format in devices.formats {
        let results = devices
            .cpus
            .each_ref()
            .map(|cpu| in_place_too(cpu, op, inputs, float, format));
        if devices.same_bits {
            let [one, three] = &results;
            assert_eq!(
                one.bits, three.bits,
                "{op:?} depends on the number of threads"
            );
        }
        results.iter().for_each(&mut *f);
    }
}

/// The result, which is the same in place.
fn in_place_too(cpu: &Cpu, op: &Op, inputs: &[Input], float: DType, format: Format) -> Run {
    let setup = |in_place| Setup { in_place, format };
    let result = run(cpu, op, inputs, float, setup(&[]));
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
            let again = run(cpu, op, inputs, float, setup(pairs));
            assert_eq!(
                result.bits,
                again.bits,
                "{op:?} differs again or in place {pairs:?} on {}",
                cpu.signature()
            );
        }
    }
    result
}

fn compare(op: &Op, found: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{op:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{op:?}");
        // Sums of n terms of size 1 are as large as √n or so; errors are relative to the largest.
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

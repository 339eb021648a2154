//! Tests of every kernel against plain loops in 64 bits (`naive.rs`), on shapes of every class, for
//! every library: this crate's kernels, and oneDNN's where it is installed.
//! Each case runs in f32 and f64, on one thread and on three, out of place and in place, with a
//! workspace of exactly the stated size that is full of NaN. Within a library and a number of threads
//! the bits are the same each time, and this crate's kernels give the same on any number of threads.

mod cases;
mod naive;
mod onednn;

use scrimp_graph::{DType, Op, infer};

use crate::arena::{ALIGN, Arena, Arg, Args, Piece};
use crate::cpu::Cpu;
use crate::data::{Data, Memory};
use crate::kernels::elementwise::mix;

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

/// Runs the operator; with `in_place`, that input shares its memory with that output.
fn run(cpu: &Cpu, op: &Op, inputs: &[Input], float: DType, in_place: &[(usize, usize)]) -> Run {
    let dtype = |input: &Input| {
        if input.ints.is_some() {
            DType::I64
        } else {
            float
        }
    };
    let signatures: Vec<_> = inputs
        .iter()
        .map(|input| (&input.shape[..], dtype(input)))
        .collect();
    let outputs = infer(op, &signatures).expect("the case has valid shapes");
    let out_signatures: Vec<_> = outputs
        .iter()
        .map(|(shape, dtype)| (&shape[..], *dtype))
        .collect();
    let workspace = cpu.op_workspace(op, &signatures, &out_signatures);

    let bytes =
        |shape: &[usize], dtype: DType| shape.iter().product::<usize>() as u64 * dtype.bytes();
    let mut end = 0;
    let mut place = |bytes: u64| {
        let offset = end;
        end += bytes.next_multiple_of(ALIGN as u64);
        offset
    };
    let in_places: Vec<u64> = signatures
        .iter()
        .map(|&(shape, dtype)| place(bytes(shape, dtype)))
        .collect();
    let out_places: Vec<u64> = outputs
        .iter()
        .enumerate()
        .map(
            |(o, (shape, dtype))| match in_place.iter().find(|pair| pair.1 == o) {
                Some(&(input, _)) => in_places[input],
                None => place(bytes(shape, *dtype)),
            },
        )
        .collect();
    let scratch = place(workspace);
    let mut arena = Arena::new(end).expect("tests are small");
    arena.bytes_at_mut(0, end).fill(0xff);
    for (input, (&offset, &(shape, dtype))) in inputs.iter().zip(in_places.iter().zip(&signatures))
    {
        let memory = arena.bytes_at_mut(offset, bytes(shape, dtype));
        match (&input.ints, dtype) {
            (Some(ints), _) => bytemuck::cast_slice_mut(memory).copy_from_slice(ints),
            (None, DType::F32) => {
                let memory: &mut [f32] = bytemuck::cast_slice_mut(memory);
                memory
                    .iter_mut()
                    .zip(&input.floats)
                    .for_each(|(to, &x)| *to = x as f32);
            }
            (None, _) => bytemuck::cast_slice_mut(memory).copy_from_slice(&input.floats),
        }
    }
    let mut arg = |shape: &[usize], dtype: DType, offset: u64| {
        let piece = arena
            .piece(offset, bytes(shape, dtype), "test")
            .expect("inside");
        Arg::new(dtype, shape, piece, "test").expect("long enough")
    };
    let reads = signatures
        .iter()
        .zip(&in_places)
        .map(|(s, &offset)| arg(s.0, s.1, offset))
        .collect();
    let writes = outputs
        .iter()
        .zip(&out_places)
        .map(|(s, &offset)| arg(&s.0, s.1, offset))
        .collect();
    let scratch = if workspace == 0 {
        Piece::EMPTY
    } else {
        arena.piece(scratch, workspace, "test").expect("inside")
    };
    let args = Args::new(&arena, reads, writes, scratch).expect("disjoint");
    let kernel = cpu.kernel(op, &signatures, &out_signatures);
    cpu.enter(|| cpu.run(&kernel, op, &args, &mut arena))
        .unwrap_or_else(|error| panic!("{op:?}: {error}"));
    let mut result = Run {
        bits: Vec::new(),
        values: Vec::new(),
    };
    for ((shape, dtype), &offset) in outputs.iter().zip(&out_places) {
        let memory = arena.bytes_at(offset, bytes(shape, *dtype));
        result.bits.push(memory.to_vec());
        result.values.push(match dtype {
            DType::F32 => bytemuck::cast_slice::<u8, f32>(memory)
                .iter()
                .map(|&x| f64::from(x))
                .collect(),
            DType::F64 => bytemuck::cast_slice(memory).to_vec(),
            DType::I64 => bytemuck::cast_slice::<u8, i64>(memory)
                .iter()
                .map(|&x| x as f64)
                .collect(),
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
}

thread_local! {
    static NATIVE: Devices = Devices {
        cpus: [1, 3].map(|threads| Cpu::new(threads).expect("threads start")),
        same_bits: true,
    };
    static ONEDNN: Option<Devices> = onednn::devices();
}

/// Runs a case in all ways and compares with plain loops.
pub(super) fn check(op: &Op, inputs: &[Input]) {
    let expected = naive::run(op, inputs);
    for (float, tolerance) in TOLERANCES {
        in_all_ways(op, inputs, float, &mut |run| {
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
    let mut with = |devices: &Devices| {
        let results = devices
            .cpus
            .each_ref()
            .map(|cpu| in_place_too(cpu, op, inputs, float));
        if devices.same_bits {
            let [one, three] = &results;
            assert_eq!(
                one.bits, three.bits,
                "{op:?} depends on the number of threads"
            );
        }
        results.iter().for_each(&mut *f);
    };
    NATIVE.with(&mut with);
    ONEDNN.with(|devices| devices.iter().for_each(&mut with));
}

/// The result, which is the same in place.
fn in_place_too(cpu: &Cpu, op: &Op, inputs: &[Input], float: DType) -> Run {
    let result = run(cpu, op, inputs, float, &[]);
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
            let again = run(cpu, op, inputs, float, pairs);
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
            Memory::new(DType::F32, &mut memory)
                .set(&graph, x, data)
                .is_err()
        );
    }
    Memory::F32(&mut [0.0; 2])
        .set(&graph, x, Data::F64(&[1.0, 2.0]))
        .expect("rounded");
}

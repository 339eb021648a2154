//! Contents of tensors: data that a caller hands over, and initial values.

use bytemuck::Pod;
use scrimp_graph::{DType, Graph, Init, Role, Tensor, TensorId};
use std::ops::Range;

use crate::error::RunError;
use crate::format::Change;
use crate::par;
use crate::random::{GOLDEN, mix};

/// Contents for a tensor. Floats are converted to the tensor's type.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// For f32 and f64 tensors.
    F32(&'a [f32]),
    /// For f32 (rounded) and f64 tensors.
    F64(&'a [f64]),
    /// For i64 tensors.
    I64(&'a [i64]),
}

impl Data<'_> {
    fn len(&self) -> usize {
        match self {
            Data::F32(data) => data.len(),
            Data::F64(data) => data.len(),
            Data::I64(data) => data.len(),
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            Data::F32(_) => "f32",
            Data::F64(_) => "f64",
            Data::I64(_) => "i64",
        }
    }
}

pub(crate) enum Elements<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I64(&'a mut [i64]),
}

impl<'a> Elements<'a> {
    /// Views `bytes`, which are aligned and as long as the tensor, as elements.
    pub fn new(dtype: DType, bytes: &'a mut [u8]) -> Elements<'a> {
        match dtype {
            DType::F32 => Elements::F32(bytemuck::cast_slice_mut(bytes)),
            DType::F64 => Elements::F64(bytemuck::cast_slice_mut(bytes)),
            DType::I64 => Elements::I64(bytemuck::cast_slice_mut(bytes)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Elements::F32(memory) => memory.len(),
            Elements::F64(memory) => memory.len(),
            Elements::I64(memory) => memory.len(),
        }
    }

    pub fn set(self, graph: &Graph, tensor: TensorId, data: Data<'_>) -> Result<(), RunError> {
        let what = graph.tensor(tensor);
        let wrong = RunError::WrongData {
            tensor: what.name.clone(),
            expected: what.elements(),
            dtype: what.dtype,
            found: data.len(),
            given: data.type_name(),
        };
        if self.len() != data.len() {
            return Err(wrong);
        }
        match (self, data) {
            (Elements::F32(to), Data::F32(from)) => to.copy_from_slice(from),
            (Elements::F64(to), Data::F64(from)) => to.copy_from_slice(from),
            (Elements::I64(to), Data::I64(from)) => to.copy_from_slice(from),
            (Elements::F64(to), Data::F32(from)) => {
                to.iter_mut()
                    .zip(from)
                    .for_each(|(to, &x)| *to = f64::from(x));
            }
            (Elements::F32(to), Data::F64(from)) => {
                to.iter_mut().zip(from).for_each(|(to, &x)| *to = x as f32);
            }
            _ => return Err(wrong),
        }
        Ok(())
    }

    fn put(&mut self, floats: &[f32], at: impl Iterator<Item = usize>) {
        let pairs = floats.iter().zip(at);
        match self {
            Elements::F32(to) => pairs.for_each(|(&x, at)| to[at] = x),
            Elements::F64(to) => pairs.for_each(|(&x, at)| to[at] = f64::from(x)),
            Elements::I64(to) => pairs.for_each(|(&x, at)| to[at] = x as i64),
        }
    }

    /// Sets element i to `value(i)`, in parallel on the caller's threads.
    pub fn fill(self, value: impl Fn(usize) -> f64 + Sync) {
        match self {
            Elements::F32(to) => fill(to, |i| value(i) as f32),
            Elements::F64(to) => fill(to, &value),
            Elements::I64(to) => fill(to, |i| value(i) as i64),
        }
    }

    /// Writes the first contents of a parameter, state or constant. Element i of a random tensor
    /// depends on the seed, the tensor's name and i alone.
    pub fn initialize(self, graph: &Graph, tensor: TensorId, seed: u64) -> Result<(), RunError> {
        let what = graph.tensor(tensor);
        let (Role::Parameter(init) | Role::State(init) | Role::Constant(init)) = &what.role else {
            return Ok(());
        };
        let absorb = |key: u64, byte| mix(key.wrapping_add(GOLDEN) ^ u64::from(byte));
        let key = what.name.bytes().fold(mix(seed), absorb);
        match init {
            Init::Constant(value) => self.fill(|_| *value),
            Init::Normal { std } => self.fill(|i| std * normal(key, i as u64)),
            Init::Uniform { bound } => self.fill(|i| bound * (2.0 * uniform(key, i as u64) - 1.0)),
            Init::Floats(data) => return self.set(graph, tensor, Data::F32(data)),
            Init::Stored(data) => {
                let mut first = 0;
                return scatter(self, what, None, &mut |piece| {
                    let read = data.read(first, piece);
                    first += piece.len();
                    read.map_err(|error| RunError::Tensor {
                        tensor: what.name.clone(),
                        problem: format!("can't be read from its file: {error}"),
                    })
                });
            }
            Init::Ints(data) => return self.set(graph, tensor, Data::I64(data)),
        }
        Ok(())
    }
}

/// Elements of a tensor that are moved at a time, where moving all of them at once would take as much memory
/// again.
const PIECE: usize = 1 << 14;

/// Fills a tensor, in its format on the device, with floats that come in row order. `next` fills one piece of
/// them after another.
pub(crate) fn scatter<E: From<RunError>>(
    mut memory: Elements<'_>,
    what: &Tensor,
    change: Option<&Change>,
    next: &mut dyn FnMut(&mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    let count = memory.len();
    if matches!(memory, Elements::I64(_)) {
        let wrong = RunError::WrongData {
            tensor: what.name.clone(),
            expected: count,
            dtype: what.dtype,
            found: count,
            given: "f32",
        };
        return Err(wrong.into());
    }
    let mut piece = vec![0.0; PIECE.min(count)];
    for start in (0..count).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(count - start)];
        next(piece)?;
        match change {
            Some(change) => memory.put(piece, change.positions(start)),
            None => memory.put(piece, start..count),
        }
    }
    Ok(())
}

/// Hands out the elements of a tensor, stored in its format on the device, as floats in row order, one piece
/// after another.
pub(crate) fn gather<E>(
    stored: &[u8],
    dtype: DType,
    change: Option<&Change>,
    elements: Range<usize>,
    take: &mut dyn FnMut(&[f32]) -> Result<(), E>,
) -> Result<(), E> {
    let mut piece = Vec::with_capacity(PIECE.min(elements.len()));
    for start in elements.clone().step_by(PIECE) {
        let count = PIECE.min(elements.end - start);
        piece.clear();
        match change {
            Some(change) => collect(
                stored,
                dtype,
                change.positions(start).take(count),
                &mut piece,
            ),
            None => collect(stored, dtype, start..start + count, &mut piece),
        }
        take(&piece)?;
    }
    Ok(())
}

fn collect(stored: &[u8], dtype: DType, at: impl Iterator<Item = usize>, floats: &mut Vec<f32>) {
    match dtype {
        DType::F32 => floats.extend(at.map(|at| element::<f32>(stored, at))),
        DType::F64 => floats.extend(at.map(|at| element::<f64>(stored, at) as f32)),
        DType::I64 => floats.extend(at.map(|at| element::<i64>(stored, at) as f32)),
    }
}

/// An element of a tensor whose bytes needn't be aligned.
fn element<T: Pod>(bytes: &[u8], index: usize) -> T {
    let size = size_of::<T>();
    bytemuck::pod_read_unaligned(&bytes[index * size..(index + 1) * size])
}

/// A tensor's elements in another order.
pub(crate) fn arranged(change: &Change, dtype: DType, bytes: &[u8]) -> Vec<u8> {
    match dtype.bytes() {
        4 => change.of::<[u8; 4]>(bytemuck::cast_slice(bytes)).concat(),
        _ => change.of::<[u8; 8]>(bytemuck::cast_slice(bytes)).concat(),
    }
}

/// Puts a tensor that was filled in row order into its format on the device; `None` means that rows are that
/// format. This takes as much memory again, outside the arena, and is done between steps.
pub(crate) fn arrange(change: Option<&Change>, dtype: DType, memory: &mut [u8]) {
    if let Some(change) = change {
        memory.copy_from_slice(&arranged(change, dtype, memory));
    }
}

fn fill<T: Send>(to: &mut [T], value: impl Fn(usize) -> T + Sync) {
    par::pieces(par::threads(), to, 64 * 1024, |start, to| {
        for (i, to) in to.iter_mut().enumerate() {
            *to = value(start + i);
        }
    });
}

/// A number in (0, 1), made from 53 random bits.
fn uniform(key: u64, i: u64) -> f64 {
    let bits = mix(key.wrapping_add(i.wrapping_mul(GOLDEN))) >> 11;
    (bits as f64 + 0.5) / (1u64 << 53) as f64
}

/// Box–Muller: elements 2j and 2j + 1 are the cosine and sine of one pair of uniform draws.
fn normal(key: u64, i: u64) -> f64 {
    let pair = i & !1;
    let radius = (-2.0 * libm::log(uniform(key, pair))).sqrt();
    let angle = std::f64::consts::TAU * uniform(key, pair + 1);
    radius
        * if i & 1 == 0 {
            libm::cos(angle)
        } else {
            libm::sin(angle)
        }
}

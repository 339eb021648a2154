//! Contents of tensors: data that a caller hands over, and initial values.

use scrimp_graph::{DType, Graph, Init, Role, TensorId};

use crate::error::RunError;
use crate::format::Change;
use crate::par;
use crate::random::{GOLDEN, mix};

/// Contents of a tensor. Floats are stored as the tensor's type says.
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

/// Elements of a tensor, by its element type.
pub(crate) enum Elements<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I64(&'a mut [i64]),
}

impl<'a> Elements<'a> {
    /// `bytes` is aligned and as long as the tensor.
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

    /// Copies `data` into the memory of the tensor.
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

    /// Element i becomes `value(i)`. Parallel on the threads of the pool that calls it.
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
            Init::Ints(data) => return self.set(graph, tensor, Data::I64(data)),
        }
        Ok(())
    }
}

/// A tensor's elements in another order.
pub(crate) fn arranged(change: &Change, dtype: DType, bytes: &[u8]) -> Vec<u8> {
    match dtype.bytes() {
        4 => change.of::<[u8; 4]>(bytemuck::cast_slice(bytes)).concat(),
        _ => change.of::<[u8; 8]>(bytemuck::cast_slice(bytes)).concat(),
    }
}

/// Puts a tensor that was filled in rows into the format that it has on the device; `None` if that is
/// rows. Takes as much memory again, which isn't in the arena: it is done between steps.
pub(crate) fn arrange(change: Option<Change>, dtype: DType, memory: &mut [u8]) {
    if let Some(change) = change {
        memory.copy_from_slice(&arranged(&change, dtype, memory));
    }
}

fn fill<T: Send>(to: &mut [T], value: impl Fn(usize) -> T + Sync) {
    par::pieces(par::threads(), to, 64 * 1024, |start, to| {
        for (i, to) in to.iter_mut().enumerate() {
            *to = value(start + i);
        }
    });
}

/// In (0, 1), 53 bits.
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

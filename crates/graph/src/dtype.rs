//! Element types of tensors.

use std::fmt;

/// Element types. `F64` exists for checking gradients; `I64` holds labels, tokens and seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 64-bit IEEE float.
    F64,
    /// 64-bit signed integer.
    I64,
}

impl DType {
    /// Size of an element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I64 => "i64",
        })
    }
}

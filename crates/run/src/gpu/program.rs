//! What an operator runs on a GPU: launches of kernels, their arguments and the workspace they share.

use bytemuck::{NoUninit, bytes_of};
use scrimp_gpu::Call;
use scrimp_graph::shape::MAX_RANK;
use scrimp_graph::{DType, Op};

use std::sync::Arc;

use crate::error::RunError;
use crate::format::Operand;
use crate::kernels::strides::{Strided, broadcast_steps};
use crate::span::ALIGN;

/// Items of a group, as `kernels/common.cl` has it.
pub const ITEMS: usize = 256;

/// Rows and columns of the squares that groups may have of a product of matrices.
pub const TILES: [usize; 3] = [32, 64, 128];
/// Columns of the left factor and rows of the right one that are in local memory at a time, as `kernels/product.cl` has
/// it.
pub const DEPTH: usize = 16;

/// An argument of a kernel: the byte at which a tensor or a part of the workspace starts, or a constant.
#[derive(Clone, Debug)]
pub enum Argument {
    Input(usize),
    Output(usize),
    Workspace(u64),
    Constant(Vec<u8>),
}

impl Argument {
    /// The bytes of a constant.
    pub fn constant(&self) -> Option<&[u8]> {
        match self {
            Argument::Constant(bytes) => Some(bytes),
            Argument::Input(_) | Argument::Output(_) | Argument::Workspace(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Launch {
    pub what: What,
    pub arguments: Vec<Argument>,
}

#[derive(Clone, Debug)]
pub enum What {
    /// So many groups of a kernel of ours.
    Kernel { name: &'static str, groups: usize },
    /// A product of matrices: a kernel for each size of squares, and its groups.
    Product {
        names: [&'static str; TILES.len()],
        groups: [usize; TILES.len()],
    },
    /// A library's function. The arguments are its factors, what is added, the result and the workspace.
    Call(Arc<Call>),
}

/// An index or label that kernels can't use: where they say so, and what it must be below.
#[derive(Clone, Copy, Debug)]
pub struct Complaint {
    pub op: &'static str,
    pub length: usize,
}

/// The launches of one operator, in order.
#[derive(Clone, Debug)]
pub struct Program {
    /// The type of the elements that kernels are compiled for.
    pub dtype: DType,
    pub launches: Vec<Launch>,
    pub workspace: u64,
    /// With one, the workspace starts with two 64-bit integers: whether there is a complaint, and its index.
    pub complaint: Option<Complaint>,
}

/// A walk through a tensor, as `kernels/common.cl` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, NoUninit)]
pub struct Walk {
    base: u32,
    rank: u32,
    lengths: [u32; MAX_RANK],
    steps: [u32; MAX_RANK],
}

impl Walk {
    /// Through axes of these lengths with these steps.
    pub fn new(lengths: &[usize], steps: &[usize]) -> Walk {
        let merged = Strided::<1>::new(lengths, [&steps[..lengths.len()]]);
        let of = |value: &dyn Fn(usize) -> usize| {
            std::array::from_fn(|axis| {
                if axis < merged.rank() {
                    value(axis) as u32
                } else {
                    0
                }
            })
        };
        Walk {
            base: 0,
            rank: merged.rank() as u32,
            lengths: of(&|axis| merged.length(axis)),
            steps: of(&|axis| merged.step(0, axis)),
        }
    }

    /// Through a tensor as it lies.
    pub fn straight(count: usize) -> Walk {
        Walk::new(&[count], &[1])
    }

    /// Through a tensor of shape `small` that is broadcast to `large`.
    pub fn broadcast(small: &[usize], large: &[usize]) -> Walk {
        Walk::new(large, &broadcast_steps(small, large.len()))
    }

    /// The elements from one place to the next, if that is the same everywhere.
    pub fn step(&self) -> Option<usize> {
        (self.rank <= 1).then_some(self.steps[0] as usize)
    }

    /// The same from another element on.
    pub fn from(self, base: usize) -> Walk {
        Walk {
            base: base as u32,
            ..self
        }
    }
}

/// Makes a program.
pub struct Builder<'a> {
    pub op: &'a Op,
    pub inputs: &'a [Operand<'a>],
    pub outputs: &'a [Operand<'a>],
    program: Program,
}

impl<'a> Builder<'a> {
    /// For an operator on arguments in rows.
    ///
    /// # Errors
    /// An argument has more elements than kernels can count.
    pub fn new(
        op: &'a Op,
        inputs: &'a [Operand<'a>],
        outputs: &'a [Operand<'a>],
    ) -> Result<Builder<'a>, RunError> {
        let large = |one: &Operand<'_>| one.shape.iter().product::<usize>() >= 1 << 31;
        if inputs.iter().chain(outputs).any(large) {
            return Err(unsupported(
                op,
                "a tensor has 2³¹ elements or more, too many for a GPU",
            ));
        }
        let dtype = outputs.first().map_or(DType::F32, |output| output.dtype);
        let program = Program {
            dtype,
            launches: Vec::new(),
            workspace: 0,
            complaint: None,
        };
        Ok(Builder {
            op,
            inputs,
            outputs,
            program,
        })
    }

    pub fn finish(self) -> Program {
        self.program
    }

    pub fn shape(&self, input: usize) -> &'a [usize] {
        self.inputs[input].shape
    }

    /// The shape of output 0.
    pub fn to(&self) -> &'a [usize] {
        self.outputs[0].shape
    }

    /// Elements of output 0.
    pub fn count(&self) -> usize {
        self.to().iter().product()
    }

    /// Runs a kernel for so many items.
    pub fn items(&mut self, kernel: &'static str, items: usize, arguments: Vec<Argument>) {
        self.groups(kernel, items.div_ceil(ITEMS), arguments);
    }

    pub fn groups(&mut self, name: &'static str, groups: usize, arguments: Vec<Argument>) {
        if groups > 0 {
            let what = What::Kernel { name, groups };
            self.program.launches.push(Launch { what, arguments });
        }
    }

    /// Products of matrices of so many rows and columns; the kernels have a name for each size of squares.
    pub fn product(
        &mut self,
        names: [&'static str; TILES.len()],
        [rows, columns, products]: [usize; 3],
        arguments: Vec<Argument>,
    ) {
        let groups = TILES.map(|tile| squares(rows, columns, tile) * products);
        if groups[0] > 0 {
            let what = What::Product { names, groups };
            self.program.launches.push(Launch { what, arguments });
        }
    }

    /// Has a library multiply or convolve two inputs, add what is said and write output 0.
    pub fn call(&mut self, call: Call, factors: [usize; 2], added: Option<usize>) {
        let start = self.program.workspace;
        self.program.workspace += call.workspace().next_multiple_of(ALIGN as u64);
        let [first, second] = factors.map(Argument::Input);
        let added = added.map_or(Argument::Output(0), Argument::Input);
        let workspace = Argument::Workspace(start);
        let arguments = vec![first, second, added, Argument::Output(0), workspace];
        let what = What::Call(Arc::new(call));
        self.program.launches.push(Launch { what, arguments });
    }

    /// A quarter of the bytes of all arguments: what a library may use as workspace.
    pub fn fair_workspace(&self) -> u64 {
        let all = self.inputs.iter().chain(self.outputs);
        let bytes = all.map(|one| one.shape.iter().product::<usize>() as u64 * one.dtype.bytes());
        bytes.sum::<u64>() / 4
    }

    /// Workspace for so many elements.
    pub fn scratch(&mut self, elements: usize) -> Argument {
        let start = self.program.workspace;
        self.program.workspace +=
            (elements as u64 * self.program.dtype.bytes()).next_multiple_of(ALIGN as u64);
        Argument::Workspace(start)
    }

    /// Complains of indices in an input that aren't from `least` to below `length`. This comes first.
    pub fn check(&mut self, input: usize, least: i64, length: usize) {
        debug_assert_eq!(
            self.program.workspace, 0,
            "a complaint is at the start of the workspace"
        );
        self.program.workspace = ALIGN as u64;
        self.program.complaint = Some(Complaint {
            op: self.op.kind(),
            length,
        });
        let count: usize = self.shape(input).iter().product();
        let arguments = vec![
            Argument::Input(input),
            Argument::Workspace(0),
            word(count),
            constant(&least),
            word(length),
        ];
        self.groups("check", 1, arguments);
    }

    /// A number of the program's type.
    pub fn real(&self, x: f64) -> Argument {
        match self.program.dtype {
            DType::F32 => constant(&(x as f32)),
            DType::F64 => constant(&x),
            DType::I64 => constant(&(x as i64)),
        }
    }
}

/// A 32-bit number. Lengths and counts fit, as [`Builder::new`] found.
pub fn word(x: usize) -> Argument {
    constant(&(x as u32))
}

/// The bytes of a number or a structure.
pub fn constant<T: NoUninit>(x: &T) -> Argument {
    Argument::Constant(bytes_of(x).to_vec())
}

/// How many squares of this size cover a matrix.
pub fn squares(rows: usize, columns: usize, tile: usize) -> usize {
    rows.div_ceil(tile) * columns.div_ceil(tile)
}

/// The names of a kernel for each size of squares.
macro_rules! sized {
    ($name:literal) => {
        [
            concat!($name, "_0"),
            concat!($name, "_1"),
            concat!($name, "_2"),
        ]
    };
}
pub(super) use sized;

/// How many items sum a line of this length together: a power of two.
pub fn team(length: usize) -> usize {
    (length / 4).max(1).next_power_of_two().min(ITEMS)
}

pub fn unsupported(op: &Op, reason: &str) -> RunError {
    RunError::Unsupported {
        op: op.kind().into(),
        reason: reason.into(),
    }
}

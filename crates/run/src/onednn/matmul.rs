//! Products of matrices.

use scrimp_onednn::{Arg, Desc, Engine, OneDnnError};
use std::sync::Arc;

use super::program::{Builder, Program, Slot};

/// A product of tensors whose last two axes are matrices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatMul {
    a: Matrices,
    b: Matrices,
    /// Leading axes that broadcast, and the product's rows and columns.
    out: Vec<usize>,
    addend: Addend,
}

/// What is added to the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addend {
    None,
    /// A number per column.
    Bias,
    /// A number per element.
    Sum,
}

/// One factor: as many leading axes as the product has, and its matrices as they are multiplied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Matrices {
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Matrices {
    /// The matrices of a tensor. If `transposed` is set, the tensor holds them with rows and columns swapped.
    fn new(stored: &[usize], rank: usize, transposed: bool) -> Matrices {
        let mut shape = vec![1; rank - stored.len()];
        shape.extend(stored);
        let mut strides = vec![1; rank];
        for axis in (0..rank - 1).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        if transposed {
            shape.swap(rank - 2, rank - 1);
            strides.swap(rank - 2, rank - 1);
        }
        Matrices { shape, strides }
    }

    fn desc(&self, engine: &Engine) -> Result<Desc, OneDnnError> {
        engine.strided(&self.shape, &self.strides)
    }

    /// Whether there is only one matrix, whatever the leading axes.
    fn single(&self) -> bool {
        self.shape[..self.shape.len() - 2].iter().all(|&n| n == 1)
    }
}

impl MatMul {
    pub fn new(
        [trans_a, trans_b]: [bool; 2],
        [a, b, out]: [&[usize]; 3],
        addend: Addend,
    ) -> MatMul {
        let rank = out.len();
        let mut product = MatMul {
            a: Matrices::new(a, rank, trans_a),
            b: Matrices::new(b, rank, trans_b),
            out: out.to_vec(),
            addend,
        };
        // There is one b for all a's, so the rows of all a's form one matrix.
        if rank > 2
            && !trans_a
            && product.b.single()
            && product.a.shape[..rank - 2] == out[..rank - 2]
        {
            let rows = out[..rank - 1].iter().product();
            product.a = Matrices::new(&[rows, product.a.shape[rank - 1]], 2, false);
            product.b = Matrices::new(&b[b.len() - 2..], 2, trans_b);
            product.out = vec![rows, out[rank - 1]];
        }
        product
    }

    pub fn program(&self, engine: &Arc<Engine>) -> Result<Option<Program>, OneDnnError> {
        let (a, b, out) = (
            self.a.desc(engine)?,
            self.b.desc(engine)?,
            engine.dense(&self.out)?,
        );
        let mut row = vec![1; self.out.len()];
        row[self.out.len() - 1] = self.out[self.out.len() - 1];
        let bias = match self.addend {
            Addend::Bias => Some(engine.dense(&row)?),
            Addend::None | Addend::Sum => None,
        };
        let adds = self.addend == Addend::Sum;
        let Some(primitive) = engine.matmul([&a, &b, &out], bias.as_ref(), adds)? else {
            return Ok(None);
        };
        let mut arguments = vec![
            (Arg::Source, Slot::Input(0), &a),
            (Arg::Weights, Slot::Input(1), &b),
            (Arg::Destination, Slot::Output(0), &out),
        ];
        arguments.extend(bias.as_ref().map(|bias| (Arg::Bias, Slot::Input(2), bias)));
        let mut builder = Builder::new(engine);
        if adds {
            builder.start_from(2);
        }
        builder.add(primitive, &arguments)?;
        Ok(builder.finish())
    }
}

//! What the vendor's libraries compute: products of matrices and convolutions of 32-bit floats, where they have an
//! algorithm that gives the same bits each time.

use scrimp_gpu::cuda::{Added, Convolution, Pass, Product};
use scrimp_gpu::{Call, Libraries};
use scrimp_graph::{DType, Op, Window};

use super::lower::{batches, start_from};
use super::program::{Builder, Program};
use crate::error::RunError;
use crate::format::Operand;
use crate::kernels::shape::dims;
use crate::span::ALIGN;

/// What an operator on arguments in rows has a library do; `None` if it has an operator of ours.
pub fn lower(
    libraries: &Libraries,
    op: &Op,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> Result<Option<Program>, RunError> {
    let empty = |one: &Operand<'_>| one.dtype != DType::F32 || one.shape.contains(&0);
    if inputs.iter().chain(outputs).any(empty) {
        return Ok(None);
    }
    let mut b = Builder::new(op, inputs, outputs)?;
    let done = match op {
        Op::MatMul { trans_a, trans_b } => product(libraries, &mut b, [*trans_a, *trans_b])?,
        Op::Conv { window, groups } => {
            let biased = b.inputs.len() > 2;
            let shapes = [b.shape(0), b.shape(1), b.to()];
            let pass = Pass::Forward { biased };
            convolution(libraries, &mut b, pass, window, *groups, shapes)?
        }
        Op::ConvInputGrad { window, groups, .. } => {
            let shapes = [b.to(), b.shape(1), b.shape(0)];
            convolution(libraries, &mut b, Pass::Input, window, *groups, shapes)?
        }
        Op::ConvWeightGrad { window, groups } => {
            let added = b.inputs.len() > 2;
            let shapes = [b.shape(0), b.to(), b.shape(1)];
            let pass = Pass::Weight { added };
            convolution(libraries, &mut b, pass, window, *groups, shapes)?
        }
        _ => false,
    };
    Ok(done.then(|| b.finish()))
}

fn product(
    libraries: &Libraries,
    b: &mut Builder<'_>,
    transposed: [bool; 2],
) -> Result<bool, RunError> {
    let Some(products) = &libraries.products else {
        return Ok(false);
    };
    let (x, to) = (b.shape(0), b.to());
    let lead = to.len() - 2;
    let (rows, columns) = (to[lead], to[lead + 1]);
    let depth = x[x.len() - if transposed[0] { 2 } else { 1 }];
    let steps = [(0, rows * depth), (1, depth * columns)]
        .map(|(input, matrix)| batches(b.shape(input), to, matrix).step());
    let [Some(a_step), Some(b_step)] = steps else {
        return Ok(false);
    };
    let added = match b.inputs.get(2) {
        None => Added::Nothing,
        Some(bias) if bias.shape.len() == 1 => Added::PerColumn,
        Some(_) => Added::PerElement,
    };
    let mut product = Product {
        rows,
        columns,
        depth,
        transposed,
        batches: to[..lead].iter().product(),
        steps: [a_step, b_step],
        added,
    };
    // Batches that have the right factor in common are one product with more rows.
    if product.batches > 1 && !transposed[0] && product.steps == [rows * depth, 0] {
        product.rows *= product.batches;
        product.batches = 1;
    }
    let prepared = products.prepare(&product, b.fair_workspace(), ALIGN as u32)?;
    let Some(prepared) = prepared else {
        return Ok(false);
    };
    let added = (added != Added::Nothing).then_some(2);
    b.call(Call::Product(prepared), [0, 1], added);
    Ok(true)
}

fn convolution(
    libraries: &Libraries,
    b: &mut Builder<'_>,
    pass: Pass,
    window: &Window,
    groups: usize,
    [x, w, y]: [&[usize]; 3],
) -> Result<bool, RunError> {
    let Some(convolutions) = &libraries.convolutions else {
        return Ok(false);
    };
    if window.pad_begin != window.pad_end {
        return Ok(false);
    }
    // On an H100 cuDNN's deterministic weight gradients took 80 times as long as our kernels by groups, and its
    // forward convolutions 1×1 2.3 times as long.
    let ours = match pass {
        Pass::Forward { .. } => window.kernel == [1, 1],
        Pass::Input => false,
        Pass::Weight { .. } => groups > 1,
    };
    if ours {
        return Ok(false);
    }
    let convolution = Convolution {
        x: dims(x),
        w: dims(w),
        y: dims(y),
        pad: window.pad_begin,
        stride: window.stride,
        dilation: window.dilation,
        groups,
    };
    let prepared = convolutions.prepare(pass, &convolution, b.fair_workspace())?;
    let Some(prepared) = prepared else {
        return Ok(false);
    };
    let (factors, added) = match pass {
        Pass::Forward { biased } => ([0, 1], biased.then_some(2)),
        // The gradient of y is input 0, the weights are input 1.
        Pass::Input => ([1, 0], None),
        Pass::Weight { added } => {
            if added {
                start_from(b, 2);
            }
            ([0, 1], None)
        }
    };
    b.call(Call::Convolution(prepared), factors, added);
    Ok(true)
}

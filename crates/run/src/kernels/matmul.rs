//! Matrix products of tensors, with leading axes that broadcast.

use scrimp_graph::shape::MAX_RANK;

use super::gemm::{self, Bias, Block, Left, Sizes, Target};
use super::scratch::{self, Scratch};
use super::shape::start_from;
use super::strides::broadcast_steps;
use crate::args::Args;
use crate::error::RunError;
use crate::par::Shared;
use crate::real::Real;
use crate::simd::Isa;

/// A product of tensors, expressed as a batch of matrix products.
struct Plan {
    sizes: Sizes,
    lengths: [usize; MAX_RANK],
    rank: usize,
    /// For each leading axis, how many matrices lie between neighbours along it.
    a_steps: [usize; MAX_RANK],
    b_steps: [usize; MAX_RANK],
}

impl Plan {
    fn new(trans_a: bool, a: &[usize], b: &[usize], out: &[usize]) -> Plan {
        let rank = out.len() - 2;
        let (m, n) = (out[rank], out[rank + 1]);
        let k = if trans_a {
            a[a.len() - 2]
        } else {
            a[a.len() - 1]
        };
        let mut plan = Plan {
            sizes: Sizes {
                batches: out[..rank].iter().product(),
                m,
                n,
                k,
                splits: 1,
                whole: false,
            },
            lengths: [1; MAX_RANK],
            rank,
            a_steps: broadcast_steps(&a[..a.len() - 2], rank),
            b_steps: broadcast_steps(&b[..b.len() - 2], rank),
        };
        plan.lengths[..rank].copy_from_slice(&out[..rank]);
        let one_b = b[..b.len() - 2].iter().all(|&length| length == 1);
        let own_a = a[..a.len() - 2].iter().product::<usize>() == plan.sizes.batches;
        if one_b && own_a && !trans_a && plan.sizes.batches > 1 {
            // There is one b for all a's, so the rows of all a's form one matrix.
            plan.sizes.m *= plan.sizes.batches;
            plan.sizes.batches = 1;
            plan.rank = 0;
        }
        plan
    }

    /// Indices of the matrices of a and b that product `batch` reads.
    fn matrices(&self, mut batch: usize) -> (usize, usize) {
        let (mut a, mut b) = (0, 0);
        for axis in (0..self.rank).rev() {
            let i = batch % self.lengths[axis];
            batch /= self.lengths[axis];
            a += i * self.a_steps[axis];
            b += i * self.b_steps[axis];
        }
        (a, b)
    }
}

pub fn workspace<T: Real>(
    slots: usize,
    isa: Isa,
    trans: [bool; 2],
    a: &[usize],
    b: &[usize],
    out: &[usize],
) -> usize {
    let plan = Plan::new(trans[0], a, b, out);
    scratch::bytes::<T>(plan.sizes.scratch_elements::<T>(slots, isa))
}

/// `a, b[, addend] -> c`
pub fn matmul<T: Real>(
    slots: usize,
    isa: Isa,
    trans: [bool; 2],
    args: Args<'_>,
) -> Result<(), RunError> {
    let (a, b) = (args.inputs.get::<T>(0)?, args.inputs.get::<T>(1)?);
    let plan = Plan::new(
        trans[0],
        args.inputs.shape(0),
        args.inputs.shape(1),
        args.outputs.shape(0),
    );
    let Sizes { m, n, k, .. } = plan.sizes;
    let [c] = args.outputs.take::<T, _>()?;
    let elements = |shape: &[usize]| shape.iter().product::<usize>();
    let bias = match args.inputs.count() {
        2 => Bias::None,
        _ if elements(args.inputs.shape(2)) == c.len() => {
            start_from(slots, 2, args.inputs, c)?;
            Bias::Sum
        }
        _ => Bias::Columns(args.inputs.get(2)?),
    };
    let scratch =
        Scratch::new(args.workspace).take(plan.sizes.scratch_elements::<T>(slots, isa))?;
    let blocks = T::blocks(isa);
    let pack_a = |block: Block, out: &mut [T], _: &mut [T]| {
        let a = &a[plan.matrices(block.batch).0 * m * k..];
        if trans[0] {
            gemm::pack_across(block.count, block.depth, blocks.rows, true, out, |p| {
                &a[(block.from + p) * m + block.first..]
            });
        } else {
            gemm::pack_along_k(block.count, block.depth, blocks.rows, true, out, |r, p| {
                &a[(block.first + r) * k + block.from + p..]
            });
        }
    };
    let pack_b = |block: Block, out: &mut [T], _: &mut [T]| {
        let b = &b[plan.matrices(block.batch).1 * k * n..];
        if trans[1] {
            gemm::pack_along_k(
                block.count,
                block.depth,
                blocks.columns,
                false,
                out,
                |r, p| &b[(block.first + r) * k + block.from + p..],
            );
        } else {
            gemm::pack_across(block.count, block.depth, blocks.columns, false, out, |p| {
                &b[(block.from + p) * n + block.first..]
            });
        }
    };
    let target = Target {
        memory: Shared::new(c),
        base: &|batch| batch * m * n,
        row: n,
        segment: n,
        apart: n,
    };
    gemm::run(
        slots,
        isa,
        scratch,
        &plan.sizes,
        Left::Blocks(&pack_a),
        &pack_b,
        bias,
        &target,
    );
    Ok(())
}

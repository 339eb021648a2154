//! Operators that copy elements.

use scrimp_graph::{Binary, Op};

use super::check;

#[test]
fn concatenation() {
    for axis in 0..3 {
        check(|c| {
            let mut shapes = [[2, 3, 2]; 2];
            shapes[1][axis] = 4;
            let (a, b) = (c.p(&shapes[0])?, c.p(&shapes[1])?);
            let data = c.c(&shapes[0])?;
            c.op(Op::Concat { axis }, &[a, data, b, a])
        });
    }
    check(|c| {
        let a = c.p(&[2, 3])?;
        c.op(Op::Concat { axis: 1 }, &[a])
    });
}

fn slice(start: &[usize], end: &[usize], step: &[usize]) -> Op {
    Op::Slice {
        start: start.to_vec(),
        end: end.to_vec(),
        step: step.to_vec(),
    }
}

#[test]
fn slices() {
    let cases = [
        slice(&[0, 0], &[4, 7], &[1, 1]),
        slice(&[1, 2], &[3, 6], &[1, 1]),
        slice(&[0, 1], &[4, 7], &[2, 3]),
        slice(&[3, 0], &[4, 7], &[5, 6]),
    ];
    for op in cases {
        check(|c| {
            let x = c.p(&[4, 7])?;
            c.op(op, &[x])
        });
    }
}

/// Overlapping slices of a tensor that something else reads too: their gradients add up in place.
#[test]
fn several_slices_of_one_tensor() {
    check(|c| {
        let p = c.p(&[2, 6])?;
        let x = c.op(Op::Binary(Binary::Mul), &[p, p])?;
        let a = c.op(slice(&[0, 0], &[2, 4], &[1, 1]), &[x])?;
        let b = c.op(slice(&[0, 1], &[2, 6], &[1, 2]), &[x])?;
        let row = c.op(slice(&[1, 0], &[2, 6], &[1, 1]), &[x])?;
        let all = c.op(Op::Concat { axis: 1 }, &[a, b, x])?;
        let row = c.op(slice(&[0, 0], &[1, 1], &[1, 1]), &[row])?;
        c.op(Op::Binary(Binary::Mul), &[all, row])
    });
}

#[test]
fn slice_gradients_are_linear() {
    let op = Op::SliceGrad {
        start: vec![1, 0],
        step: vec![2, 1],
        shape: vec![5, 3],
    };
    for with_sum in [false, true] {
        check(|c| {
            let mut inputs = vec![c.p(&[2, 3])?];
            if with_sum {
                inputs.push(c.p(&[5, 3])?);
            }
            c.op(op.clone(), &inputs)
        });
    }
}

#[test]
fn padding() {
    for (begin, end) in [([0, 0], [0, 0]), ([1, 2], [0, 3]), ([0, 0], [2, 0])] {
        check(|c| {
            let x = c.p(&[2, 3])?;
            c.op(
                Op::Pad {
                    begin: begin.to_vec(),
                    end: end.to_vec(),
                    value: 1.5,
                },
                &[x],
            )
        });
    }
}

#[test]
fn reshapes_and_transpositions() {
    for perm in [
        [0, 1, 2],
        [2, 0, 1],
        [1, 2, 0],
        [2, 1, 0],
        [0, 2, 1],
        [1, 0, 2],
    ] {
        check(|c| {
            let x = c.p(&[2, 3, 4])?;
            let x = c.b.reshape("view", x, &[4, 2, 3])?;
            let x = c.b.transpose("t", x, &perm)?;
            c.b.reshape("view", x, &[24])
        });
    }
}

#[test]
fn gathers() {
    let indices = [3, 0, 3, 1, 0, 3];
    for axis in 0..3 {
        check(|c| {
            let mut shape = [2, 3, 2];
            shape[axis] = 4;
            let x = c.p(&shape)?;
            let indices = c.ints(&[2, 3], &indices)?;
            c.op(Op::Gather { axis }, &[x, indices])
        });
    }
    check(|c| {
        let x = c.p(&[4, 3])?;
        let indices = c.ints(&[], &[2])?;
        c.op(Op::Gather { axis: 0 }, &[x, indices])
    });
}

/// Two gathers and a product with one table: the gradients add up in place.
#[test]
fn a_table_with_several_readers() {
    check(|c| {
        let table = c.p(&[4, 3])?;
        let (one, two) = (c.ints(&[2], &[1, 3])?, c.ints(&[2], &[3, 3])?);
        let one = c.op(Op::Gather { axis: 0 }, &[table, one])?;
        let two = c.op(Op::Gather { axis: 0 }, &[table, two])?;
        let sum = c.op(Op::Binary(Binary::Mul), &[one, two])?;
        c.op(
            Op::MatMul {
                trans_a: false,
                trans_b: true,
            },
            &[sum, table],
        )
    });
}

#[test]
fn gather_gradients_are_linear() {
    for with_sum in [false, true] {
        check(|c| {
            let mut inputs = vec![c.ints(&[3], &[1, 0, 1])?, c.p(&[2, 3])?];
            if with_sum {
                inputs.push(c.p(&[2, 4])?);
            }
            c.op(
                Op::GatherGrad {
                    axis: 1,
                    shape: vec![2, 4],
                },
                &inputs,
            )
        });
    }
}

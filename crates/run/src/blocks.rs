//! Blocked layouts of weights, as a library wants them. Axes are split into an outer part and blocks, and
//! these parts are then put in another order.

use scrimp_onednn::Layout;
use std::fmt;

/// The most parts of all axes together: five axes, one of which is groups, and their blocks.
const MOST: usize = 9;

/// A permutation of the parts of a tensor's axes, without padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blocks {
    count: u8,
    /// Lengths of the parts: axis by axis, from the outermost part to the innermost one. Their product
    /// is the number of elements.
    lengths: [u32; MOST],
    /// The parts in the order of memory, from the outermost to the innermost.
    order: [u8; MOST],
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.order(), self.parts())
    }
}

impl Blocks {
    /// The blocks of a layout; `None` if the layout is plain rows, has padding or gaps, or has too many
    /// parts.
    pub(crate) fn new(layout: &Layout) -> Option<Blocks> {
        let rank = layout.shape.len();
        if layout.shape != layout.padded || rank + layout.inner.len() > MOST {
            return None;
        }
        let mut outer = layout.shape.clone();
        for &(axis, length) in &layout.inner {
            let left = outer.get_mut(axis)?;
            *left = left.checked_div(length)?;
        }
        // Indices of an axis' outer part and of its blocks among all parts.
        let inner_of = |axis: usize| {
            let inner = layout.inner.iter().enumerate();
            inner.filter(move |(_, block)| block.0 == axis)
        };
        let mut lengths = Vec::new();
        let mut starts = Vec::new();
        let mut blocks = vec![0; layout.inner.len()];
        for (axis, &left) in outer.iter().enumerate() {
            starts.push(lengths.len());
            lengths.push(left);
            for (index, &(_, length)) in inner_of(axis) {
                blocks[index] = lengths.len();
                lengths.push(length);
            }
        }
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.sort_by_key(|&axis| (std::cmp::Reverse(layout.strides[axis]), axis));
        let inner: usize = layout.inner.iter().map(|block| block.1).product();
        let mut step = inner;
        for &axis in axes.iter().rev().filter(|&&axis| outer[axis] > 1) {
            if layout.strides[axis] != step {
                return None;
            }
            step = step.checked_mul(outer[axis])?;
        }
        let order = axes.iter().map(|&axis| starts[axis]).chain(blocks);
        let order: Vec<usize> = order.collect();
        // A part of length 1 may be anywhere.
        let real: Vec<usize> = order.iter().copied().filter(|&i| lengths[i] > 1).collect();
        if real.is_sorted() {
            return None;
        }
        let mut all = Blocks {
            count: lengths.len() as u8,
            lengths: [1; MOST],
            order: [0; MOST],
        };
        for (to, &length) in all.lengths.iter_mut().zip(&lengths) {
            *to = u32::try_from(length).ok()?;
        }
        for (to, &part) in all.order.iter_mut().zip(&order) {
            *to = part as u8;
        }
        Some(all)
    }

    pub(crate) fn parts(&self) -> Vec<usize> {
        let parts = &self.lengths[..usize::from(self.count)];
        parts.iter().map(|&length| length as usize).collect()
    }

    /// For each part in memory, its index in row order.
    pub(crate) fn order(&self) -> Vec<usize> {
        let order = &self.order[..usize::from(self.count)];
        order.iter().map(|&part| usize::from(part)).collect()
    }
}

pub(crate) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut back = vec![0; order.len()];
    for (to, &from) in order.iter().enumerate() {
        back[from] = to;
    }
    back
}

/// The elements of a tensor of this shape with its axes reordered: the new axis k is the old axis `order[k]`.
pub(crate) fn permuted<T: Copy>(from: &[T], shape: &[usize], order: &[usize]) -> Vec<T> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let axes: Vec<(usize, usize)> = order
        .iter()
        .map(|&axis| (shape[axis], strides[axis]))
        .collect();
    let Some((&(length, stride), outer)) = axes.split_last() else {
        return from.to_vec();
    };
    let mut to = Vec::with_capacity(from.len());
    let mut index = vec![0; outer.len()];
    let mut start = 0;
    while to.len() < from.len() {
        to.extend((0..length).map(|i| from[start + i * stride]));
        for (i, &(length, stride)) in index.iter_mut().zip(outer).rev() {
            *i += 1;
            start += stride;
            if *i < length {
                break;
            }
            start -= length * stride;
            *i = 0;
        }
    }
    to
}

/// An iterator, in row order, over the positions in memory at which elements are stored.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    /// Length and stride in memory of each axis of the rows.
    axes: Vec<(usize, usize)>,
    index: Vec<usize>,
    at: usize,
}

impl Positions {
    /// Positions for a tensor of this shape that is stored with its axes in another order, from the element
    /// with index `start` on.
    pub fn new(shape: &[usize], order: &[usize], start: usize) -> Positions {
        let mut axes: Vec<(usize, usize)> = shape.iter().map(|&length| (length, 0)).collect();
        let mut stride = 1;
        for &axis in order.iter().rev() {
            axes[axis].1 = stride;
            stride *= axes[axis].0;
        }
        let mut left = start;
        let mut index = vec![0; shape.len()];
        for (i, &length) in index.iter_mut().zip(shape).rev() {
            *i = left % length.max(1);
            left /= length.max(1);
        }
        let at = index.iter().zip(&axes).map(|(i, axis)| i * axis.1).sum();
        Positions { axes, index, at }
    }
}

impl Iterator for Positions {
    type Item = usize;

    /// Never ends: the reader knows how many elements there are.
    fn next(&mut self) -> Option<usize> {
        let position = self.at;
        for (i, &(length, stride)) in self.index.iter_mut().zip(&self.axes).rev() {
            *i += 1;
            self.at += stride;
            if *i < length {
                break;
            }
            self.at -= length * stride;
            *i = 0;
        }
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;

    fn layout(shape: &[usize], strides: &[usize], inner: &[(usize, usize)]) -> Layout {
        Layout {
            shape: shape.to_vec(),
            padded: shape.to_vec(),
            strides: strides.to_vec(),
            inner: inner.to_vec(),
        }
    }

    #[test]
    fn elements_go_into_blocks_and_back() {
        // The layout [O/2][I/3][h][3 of i][2 of o] of the shape [4, 6, 2].
        let what = layout(&[4, 6, 2], &[24, 12, 6], &[(1, 3), (0, 2)]);
        let blocks = Blocks::new(&what).expect("whole blocks");
        assert_eq!(blocks.parts(), [2, 2, 2, 3, 2]);
        assert_eq!(blocks.order(), [0, 2, 4, 3, 1]);
        let rows: Vec<usize> = (0..48).collect();
        let change = Format::Blocks(blocks).change(&what.shape).expect("no rows");
        let stored = change.of(&rows);
        let place =
            |o: usize, i: usize, h: usize| o / 2 * 24 + i / 3 * 12 + h * 6 + i % 3 * 2 + o % 2;
        for (o, i, h) in [(0, 0, 0), (1, 0, 0), (3, 5, 1), (2, 4, 0)] {
            assert_eq!(stored[place(o, i, h)], (o * 6 + i) * 2 + h);
        }
        assert_eq!(change.stored(), [2, 2, 2, 3, 2]);
        assert_eq!(change.back().of(&stored), rows);
        for start in [0, 1, 17, 47] {
            let positions = change.positions(start).take(48 - start);
            let found: Vec<usize> = positions.map(|at| stored[at]).collect();
            assert_eq!(found, rows[start..], "from {start} on");
        }
    }

    #[test]
    fn rows_padding_and_gaps_are_no_blocks() {
        let rows = layout(&[4, 6, 1], &[6, 1, 1], &[]);
        assert_eq!(Blocks::new(&rows), None);
        let outer_blocks = layout(&[4, 1, 1], &[2, 2, 2], &[(0, 2)]);
        assert_eq!(Blocks::new(&outer_blocks), None);
        let gaps = layout(&[4, 6], &[1, 8], &[]);
        assert_eq!(Blocks::new(&gaps), None);
        let columns = layout(&[4, 6], &[1, 4], &[]);
        assert!(Blocks::new(&columns).is_some());
        let padded = Layout {
            padded: vec![4, 8],
            ..layout(&[4, 6], &[8, 4], &[(1, 4)])
        };
        assert_eq!(Blocks::new(&padded), None);
    }
}

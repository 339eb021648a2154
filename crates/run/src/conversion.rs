//! A change of format while a tensor is copied from one device to another that stores it differently.

use bytemuck::Pod;
use scrimp_graph::Tensor;
use std::cmp::Reverse;

use crate::format::{Change, Format};

/// Rows and columns of the piece of a matrix that is transposed at a time, so that what is read and what is
/// written stay in a core's own cache.
const TILE: usize = 16;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Conversion {
    /// Bytes of an element.
    word: usize,
    elements: usize,
    how: How,
}

#[derive(Clone, Debug, PartialEq)]
enum How {
    /// Each of a number of matrices of this many rows and columns is transposed.
    Transposed([usize; 2]),
    /// The axes' parts are in another order.
    Permuted(Vec<Axis>),
    /// The positions of the elements before and after.
    Moved([Change; 2]),
}

/// An axis, or a part of one: its length, and the distance of neighbours before and after.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    length: usize,
    from: usize,
    to: usize,
}

impl Conversion {
    /// The conversion of a tensor from one format to another; `None` if both store it alike.
    pub fn new(tensor: &Tensor, from: Format, to: Format) -> Option<Conversion> {
        let plain = |format: Format| match format {
            Format::ChannelsLast if !Format::matters(&tensor.shape) => Format::Rows,
            other => other,
        };
        let (from, to) = (plain(from), plain(to));
        if from == to {
            return None;
        }
        let how = match (from, to, &tensor.shape[..]) {
            (Format::Rows, Format::ChannelsLast, &[_, c, h, w]) => How::Transposed([c, h * w]),
            (Format::ChannelsLast, Format::Rows, &[_, c, h, w]) => How::Transposed([h * w, c]),
            _ => match [from, to].map(|format| format.change(&tensor.shape)) {
                [Some(before), None] => How::permuted(&before, |rows, stored| [stored, rows]),
                [None, Some(after)] => How::permuted(&after, |rows, stored| [rows, stored]),
                [Some(before), Some(after)] => How::Moved([before, after]),
                [None, None] => return None,
            },
        };
        Some(Conversion {
            word: tensor.dtype.bytes() as usize,
            elements: tensor.elements(),
            how,
        })
    }

    /// Copies the tensor at the start of `from` to the start of `to`.
    pub fn copy(&self, from: &[u8], to: &mut [u8]) {
        let bytes = self.elements * self.word;
        let (from, to) = (&from[..bytes], &mut to[..bytes]);
        match self.word {
            4 => self.words::<u32>(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to)),
            _ => self.words::<u64>(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to)),
        }
    }

    fn words<W: Pod>(&self, from: &[W], to: &mut [W]) {
        match &self.how {
            How::Transposed([rows, columns]) => {
                let size = (rows * columns).max(1);
                for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(size)) {
                    transpose(from, to, [*rows, *columns]);
                }
            }
            How::Permuted(axes) => permute(from, to, axes),
            How::Moved([before, after]) => {
                let places = before.positions(0).zip(after.positions(0));
                let places = places.take(self.elements);
                places.for_each(|(before, after)| to[after] = from[before]);
            }
        }
    }
}

impl How {
    /// The change between rows and another format. `ends` says which of the distances in rows and in the format are
    /// those before and after.
    fn permuted(change: &Change, ends: impl Fn(usize, usize) -> [usize; 2]) -> How {
        let mut stored = vec![0; change.rows.len()];
        let mut stride = 1;
        for &axis in change.order.iter().rev() {
            stored[axis] = stride;
            stride *= change.rows[axis];
        }
        let mut axes: Vec<Axis> = Vec::new();
        let mut rows = 1;
        for (&length, &stored) in change.rows.iter().zip(&stored).rev() {
            let [from, to] = ends(rows, stored);
            rows *= length;
            match axes.last_mut() {
                _ if length == 1 => {}
                // Neighbours that stay neighbours are one axis.
                Some(inner) if [inner.from, inner.to].map(|x| x * inner.length) == [from, to] => {
                    inner.length *= length;
                }
                _ => axes.push(Axis { length, from, to }),
            }
        }
        // The innermost two are those whose elements are next to each other before and after.
        axes.sort_by_key(|axis| (axis.to == 1, axis.from == 1, Reverse(axis.to)));
        How::Permuted(axes)
    }
}

/// Copies the elements of these axes, the last one innermost.
fn permute<W: Copy>(from: &[W], to: &mut [W], axes: &[Axis]) {
    match axes {
        [] => to[0] = from[0],
        [inner] => {
            for i in 0..inner.length {
                to[i * inner.to] = from[i * inner.from];
            }
        }
        [outer, rest @ ..] => {
            for i in 0..outer.length {
                permute(&from[i * outer.from..], &mut to[i * outer.to..], rest);
            }
        }
    }
}

fn transpose<W: Copy>(from: &[W], to: &mut [W], [rows, columns]: [usize; 2]) {
    for top in (0..rows).step_by(TILE) {
        let bottom = (top + TILE).min(rows);
        for left in (0..columns).step_by(TILE) {
            for column in left..(left + TILE).min(columns) {
                let written = &mut to[column * rows + top..column * rows + bottom];
                for (row, to) in (top..bottom).zip(written) {
                    *to = from[row * columns + column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Blocks;
    use scrimp_graph::{DType, Role};
    use scrimp_onednn::Layout;

    #[test]
    fn every_pair_of_formats_is_converted() {
        let shape = [2, 6, 5, 7];
        let blocks = Layout {
            shape: shape.to_vec(),
            padded: shape.to_vec(),
            strides: vec![210, 70, 14, 2],
            inner: vec![(1, 2)],
        };
        let blocks = Blocks::new(&blocks).expect("whole blocks");
        let formats = [Format::Rows, Format::ChannelsLast, Format::Blocks(blocks)];
        for dtype in [DType::F32, DType::F64] {
            let tensor = Tensor {
                name: "x".into(),
                shape: shape.to_vec(),
                dtype,
                role: Role::Activation,
            };
            let rows: Vec<u64> = (0..tensor.elements() as u64).collect();
            let stored = |format: Format| -> Vec<u8> {
                let change = format.change(&shape);
                let all = change.map_or(rows.clone(), |change| change.of(&rows));
                match dtype {
                    DType::F32 => all.iter().flat_map(|&x| (x as u32).to_ne_bytes()).collect(),
                    _ => all.iter().flat_map(|&x| x.to_ne_bytes()).collect(),
                }
            };
            for from in formats {
                for to in formats {
                    let Some(conversion) = Conversion::new(&tensor, from, to) else {
                        assert_eq!(from, to);
                        continue;
                    };
                    let mut found = vec![0u64; tensor.elements()];
                    let found: &mut [u8] = bytemuck::cast_slice_mut(&mut found);
                    let mut source = vec![0u64; tensor.elements()];
                    let bytes = stored(from);
                    bytemuck::cast_slice_mut::<u64, u8>(&mut source)[..bytes.len()]
                        .copy_from_slice(&bytes);
                    conversion.copy(bytemuck::cast_slice(&source), found);
                    let expected = stored(to);
                    assert_eq!(found[..expected.len()], expected, "{from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn an_image_of_one_pixel_is_stored_alike() {
        let tensor = Tensor {
            name: "x".into(),
            shape: vec![2, 6, 1, 1],
            dtype: DType::F32,
            role: Role::Activation,
        };
        assert_eq!(
            Conversion::new(&tensor, Format::Rows, Format::ChannelsLast),
            None
        );
    }
}

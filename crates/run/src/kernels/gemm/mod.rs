//! Matrix products cut into blocks: C = A·B (+ bias), for any way of reading A and B.
//!
//! Packing functions read the operands, so that a convolution can read its images directly and the matrix of
//! image patches never exists. The caller owns all scratch: for each thread one block of B, one block of A
//! unless A was packed as a whole before, and one panel for packing functions.

#![allow(
    unsafe_code,
    reason = "threads write disjoint blocks of C through a pointer"
)]

mod pack;

use crate::micro::{Blocks, Micro};
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::Isa;
pub use pack::{pack_across, pack_along_k};

/// Steps of k per block. At this depth a panel of A and one of B fit the first-level cache together.
pub const DEPTH: usize = 256;

/// Most columns of a block.
const COLUMNS: usize = 384;

/// Most rows of a block that is packed by the task that uses it.
const ROWS: usize = 252;

/// A block of an operand to pack: rows of A or columns of B, and steps of k.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub batch: usize,
    /// First row or column.
    pub first: usize,
    /// Number of rows or columns.
    pub count: usize,
    /// First step of k.
    pub from: usize,
    /// Number of steps.
    pub depth: usize,
}

/// Writes a block as panels `[depth][width]`. The last panel of A is as narrow as its rows; the last panel of
/// B is padded. The last argument is a panel of scratch.
pub type Pack<'a, T> = &'a (dyn Fn(Block, &mut [T], &mut [T]) + Sync);

#[derive(Clone, Copy)]
pub enum Left<'a, T> {
    /// Packed as a whole by [`pack_whole`].
    Whole(&'a [T]),
    Blocks(Pack<'a, T>),
}

#[derive(Clone, Copy)]
pub enum Bias<'a, T> {
    None,
    /// One number per row; the numbers of batch b start at b·m.
    Rows(&'a [T]),
    Columns(&'a [T]),
    /// C itself: the products are added to what it holds.
    Sum,
}

/// Sizes of a batch of products. They alone decide how the work is cut.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub batches: usize,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Each product's k is cut into this many parts, each with its own C: batch b of the packing
    /// functions and of C is product b / splits, part b % splits.
    pub splits: usize,
    pub whole: bool,
}

/// Where element (i, j) of batch b of C is: `base(b) + i·row + (j / segment)·apart + j % segment`.
pub struct Target<'a, T> {
    pub memory: Shared<'a, T>,
    /// First element of a batch.
    pub base: &'a (dyn Fn(usize) -> usize + Sync),
    /// Elements from row to row.
    pub row: usize,
    /// Columns that lie next to each other.
    pub segment: usize,
    /// Elements from segment to segment.
    pub apart: usize,
}

#[derive(Clone, Copy, Debug)]
struct Tiles {
    rows: usize,
    row_blocks: usize,
    columns: usize,
    column_blocks: usize,
}

impl Sizes {
    fn tiles<T: Micro>(&self, slots: usize, blocks: &Blocks<T>) -> Tiles {
        let most_rows = if self.whole {
            self.m
        } else {
            ROWS.next_multiple_of(blocks.rows)
        };
        let (mut row_blocks, mut column_blocks) =
            (self.m.div_ceil(most_rows), self.n.div_ceil(COLUMNS));
        // Make a few tasks per thread, so that no thread waits long for another; panels stay whole.
        let wanted = if slots == 1 { 1 } else { 3 * slots };
        let batches = self.batches * self.splits;
        while batches * row_blocks * column_blocks < wanted {
            let rows = self.m.div_ceil(row_blocks);
            let columns = self.n.div_ceil(column_blocks);
            if columns >= 4 * blocks.columns {
                column_blocks += 1;
            } else if rows >= 4 * blocks.rows {
                row_blocks += 1;
            } else {
                break;
            }
        }
        let rows = self.m.div_ceil(row_blocks).next_multiple_of(blocks.rows);
        let columns = self
            .n
            .div_ceil(column_blocks)
            .next_multiple_of(blocks.columns);
        Tiles {
            rows,
            row_blocks: self.m.div_ceil(rows),
            columns,
            column_blocks: self.n.div_ceil(columns),
        }
    }

    fn deepest(&self) -> usize {
        self.k.div_ceil(self.splits).min(DEPTH)
    }

    fn scratch<T: Micro>(&self, slots: usize, blocks: &Blocks<T>) -> [usize; 3] {
        let tiles = self.tiles(slots, blocks);
        let depth = self.deepest();
        let line = 64 / size_of::<T>();
        let a = if self.whole { 0 } else { tiles.rows * depth };
        [tiles.columns * depth, a, blocks.columns * depth].map(|n| n.next_multiple_of(line))
    }

    /// Elements of scratch for all threads, as [`run`] expects.
    pub fn scratch_elements<T: Micro>(&self, slots: usize, isa: Isa) -> usize {
        slots
            * self
                .scratch::<T>(slots, T::blocks(isa))
                .iter()
                .sum::<usize>()
    }

    pub fn whole_elements(&self) -> usize {
        self.batches * self.m * self.k
    }

    pub fn part(&self, part: usize) -> std::ops::Range<usize> {
        let length = self.k.div_ceil(self.splits);
        (part * length).min(self.k)..((part + 1) * length).min(self.k)
    }
}

/// Packs A as a whole, in parallel: for each batch and each block of k, the panels of all rows.
pub fn pack_whole<T: Real>(
    slots: usize,
    isa: Isa,
    sizes: &Sizes,
    pack: Pack<'_, T>,
    out: &mut [T],
) {
    let panel = T::blocks(isa).rows;
    let (m, k) = (sizes.m, sizes.k);
    let panels = m.div_ceil(panel);
    let shared = Shared::new(out);
    let slots = if m * k < par::SMALL { 1 } else { slots };
    par::tasks(slots, sizes.batches * panels, &|_, task| {
        let (batch, first) = (task / panels, task % panels * panel);
        let count = panel.min(m - first);
        for from in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - from);
            let at = batch * m * k + from * m + first * depth;
            // SAFETY: each panel belongs to one task.
            let out = unsafe { shared.piece(at, count * depth) };
            pack(
                Block {
                    batch,
                    first,
                    count,
                    from,
                    depth,
                },
                out,
                &mut [],
            );
        }
    });
}

/// Computes the products. `scratch` has [`Sizes::scratch_elements`] elements.
#[allow(
    clippy::too_many_arguments,
    reason = "one call per kernel; a struct would only rename them"
)]
pub fn run<T: Real>(
    slots: usize,
    isa: Isa,
    scratch: &mut [T],
    sizes: &Sizes,
    left: Left<'_, T>,
    right: Pack<'_, T>,
    bias: Bias<'_, T>,
    target: &Target<'_, T>,
) {
    let blocks = T::blocks(isa);
    let tiles = sizes.tiles(slots, blocks);
    let lengths = sizes.scratch(slots, blocks);
    let per_slot: usize = lengths.iter().sum();
    let scratch = Shared::new(scratch);
    let per_batch = tiles.row_blocks * tiles.column_blocks;
    par::tasks(
        slots,
        sizes.batches * sizes.splits * per_batch,
        &|slot, task| {
            let (batch, tile) = (task / per_batch, task % per_batch);
            // Tiles that follow each other share columns, so that B's source is still in the cache.
            let (column, row) = (tile / tiles.row_blocks, tile % tiles.row_blocks);
            // SAFETY: each slot has its own scratch and runs one task at a time.
            let scratch = unsafe { scratch.piece(slot * per_slot, per_slot) };
            let (b, rest) = scratch.split_at_mut(lengths[0]);
            let (a, spare) = rest.split_at_mut(lengths[1]);
            let tile = Tile {
                blocks,
                sizes,
                batch,
                row: row * tiles.rows,
                rows: tiles.rows.min(sizes.m - row * tiles.rows),
                column: column * tiles.columns,
                columns: tiles.columns.min(sizes.n - column * tiles.columns),
                target,
            };
            tile.run(left, right, matches!(bias, Bias::Sum), a, b, spare);
            tile.add(bias);
        },
    );
}

/// Columns of a block that one thread computes alone with [`single`].
pub fn single_columns<T: Micro>(n: usize, isa: Isa) -> usize {
    n.min(256).next_multiple_of(T::blocks(isa).columns)
}

/// Computes one product on this thread: all rows of `batch` and `columns` columns, into `c`, whose rows are
/// `row` elements apart. `b` is scratch for `columns` × [`DEPTH`] elements.
#[allow(
    clippy::too_many_arguments,
    reason = "one call; a struct would only rename them"
)]
pub fn single<T: Real>(
    isa: Isa,
    sizes: &Sizes,
    batch: usize,
    columns: usize,
    left: &[T],
    right: Pack<'_, T>,
    (c, row): (&mut [T], usize),
    b: &mut [T],
) {
    let target = Target {
        memory: Shared::new(c),
        base: &|_| 0,
        row,
        segment: usize::MAX,
        apart: 0,
    };
    let blocks = T::blocks(isa);
    let tile = Tile {
        blocks,
        sizes,
        batch,
        row: 0,
        rows: sizes.m,
        column: 0,
        columns,
        target: &target,
    };
    tile.run(Left::Whole(left), right, false, &mut [], b, &mut []);
}

struct Tile<'a, 'm, T: 'static> {
    blocks: &'static Blocks<T>,
    sizes: &'a Sizes,
    batch: usize,
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
    target: &'a Target<'m, T>,
}

/// Room for the largest block of any instruction set.
const BLOCK_ROOM: usize = 14 * 32;

impl<T: Real> Tile<'_, '_, T> {
    fn run(
        &self,
        left: Left<'_, T>,
        right: Pack<'_, T>,
        adds: bool,
        a: &mut [T],
        b: &mut [T],
        spare: &mut [T],
    ) {
        let (m, k) = (self.sizes.m, self.sizes.k);
        let steps = self.sizes.part(self.batch % self.sizes.splits);
        if steps.is_empty() && !adds {
            self.clear();
        }
        for from in steps.clone().step_by(DEPTH) {
            let depth = DEPTH.min(steps.end - from);
            let block = |first, count| Block {
                batch: self.batch,
                first,
                count,
                from,
                depth,
            };
            right(block(self.column, self.columns), b, spare);
            let a: &[T] = match left {
                Left::Whole(all) => &all[self.batch * m * k + from * m + self.row * depth..],
                Left::Blocks(pack) => {
                    pack(block(self.row, self.rows), a, spare);
                    a
                }
            };
            self.multiply(a, b, depth, adds || from > steps.start);
        }
    }

    /// Sets C to, or adds to it, panels of A · panels of B.
    fn multiply(&self, a: &[T], b: &[T], depth: usize, accumulate: bool) {
        let (height, width) = (self.blocks.rows, self.blocks.columns);
        let base = (self.target.base)(self.batch);
        let pointer = self.target.memory.pointer();
        let mut room = [T::ZERO; BLOCK_ROOM];
        for j in (0..self.columns).step_by(width) {
            let count = width.min(self.columns - j);
            let vectors = count.div_ceil(self.blocks.lanes);
            let column = self.column + j;
            let (segment, within) = (column / self.target.segment, column % self.target.segment);
            let direct =
                count == vectors * self.blocks.lanes && within + count <= self.target.segment;
            let at = base + segment * self.target.apart + within;
            for i in (0..self.rows).step_by(height) {
                let rows = height.min(self.rows - i);
                let block = self.blocks.table[rows - 1][vectors - 1];
                let (a, b) = (
                    &a[i * depth..(i + rows) * depth],
                    &b[j * depth..(j + width) * depth],
                );
                if direct {
                    let c = at + (self.row + i) * self.target.row;
                    // SAFETY: the panels hold `depth` steps, the block lies in this task's part of C, and the
                    // table belongs to an instruction set that was detected.
                    unsafe {
                        block(
                            depth,
                            a.as_ptr(),
                            b.as_ptr(),
                            pointer.add(c),
                            self.target.row,
                            accumulate,
                        )
                    };
                } else {
                    // SAFETY: as above, but the block goes to the local room, which holds any block.
                    unsafe {
                        block(
                            depth,
                            a.as_ptr(),
                            b.as_ptr(),
                            room.as_mut_ptr(),
                            width,
                            false,
                        )
                    };
                    self.scatter(&room, base, self.row + i, rows, column, count, accumulate);
                }
            }
        }
    }

    /// Sets C to, or adds to it, a block whose columns aren't all contiguous in C.
    #[allow(
        clippy::too_many_arguments,
        reason = "the block's place has two coordinates and two sizes"
    )]
    fn scatter(
        &self,
        room: &[T],
        base: usize,
        row: usize,
        rows: usize,
        column: usize,
        count: usize,
        accumulate: bool,
    ) {
        let width = self.blocks.columns;
        let mut done = 0;
        while done < count {
            let (segment, within) = (
                (column + done) / self.target.segment,
                (column + done) % self.target.segment,
            );
            let run = (self.target.segment - within).min(count - done);
            let at = base + segment * self.target.apart + within;
            for i in 0..rows {
                // SAFETY: these elements of C belong to this task.
                let c = unsafe {
                    self.target
                        .memory
                        .piece(at + (row + i) * self.target.row, run)
                };
                let sums = &room[i * width + done..i * width + done + run];
                if accumulate {
                    for (c, &sum) in c.iter_mut().zip(sums) {
                        *c += sum;
                    }
                } else {
                    c.copy_from_slice(sums);
                }
            }
            done += run;
        }
    }

    fn clear(&self) {
        self.each_run(|_, _, c| c.fill(T::ZERO));
    }

    fn add(&self, bias: Bias<'_, T>) {
        match bias {
            Bias::None | Bias::Sum => {}
            Bias::Rows(bias) => self.each_run(|row, _, c| {
                let bias = bias[self.batch * self.sizes.m + row];
                for c in c {
                    *c += bias;
                }
            }),
            Bias::Columns(bias) => self.each_run(|_, column, c| {
                for (c, &bias) in c.iter_mut().zip(&bias[column..]) {
                    *c += bias;
                }
            }),
        }
    }

    /// Calls `f(row, first column, elements)` for each contiguous run of elements of the tile.
    fn each_run(&self, f: impl Fn(usize, usize, &mut [T])) {
        let base = (self.target.base)(self.batch);
        for row in self.row..self.row + self.rows {
            let mut column = self.column;
            while column < self.column + self.columns {
                let (segment, within) =
                    (column / self.target.segment, column % self.target.segment);
                let run = (self.target.segment - within).min(self.column + self.columns - column);
                let at = base + row * self.target.row + segment * self.target.apart + within;
                // SAFETY: these elements of C belong to this task.
                f(row, column, unsafe { self.target.memory.piece(at, run) });
                column += run;
            }
        }
    }
}

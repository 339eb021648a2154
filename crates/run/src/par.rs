//! Loops over the threads of a pool, without allocating. The pool is rayon's, or oneDNN's where that
//! library's kernels run between ours, so that two pools never compete for the cores.
//!
//! Tasks are handed out by a counter, so a thread that is late costs little. Results may not depend on which
//! slot ran a task: tasks write disjoint pieces, and sums are cut by shape.

#![allow(unsafe_code, reason = "tasks write disjoint pieces of one slice")]

use scrimp_onednn::Library;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Loops over fewer elements aren't worth waking another thread.
pub const SMALL: usize = 16 * 1024;

/// Calls `f(slot, task)` once for every task below `tasks`. Slots are below `slots`, and each slot runs at
/// most one task at a time.
pub fn tasks(slots: usize, tasks: usize, f: &(dyn Fn(usize, usize) + Sync)) {
    let slots = slots.min(tasks);
    if slots <= 1 {
        for task in 0..tasks {
            f(0, task);
        }
        return;
    }
    let next = AtomicUsize::new(0);
    let work = |slot| {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            f(slot, task);
        }
    };
    match TEAM.get() {
        // Always use the whole team: OpenMP ends the threads that a smaller team wouldn't use.
        Some(team) => team.library.parallel(team.threads, &|slot| {
            if slot < slots {
                team.enter(|| work(slot));
            }
        }),
        None => fork(0, slots, &work),
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Team {
    pub library: &'static Library,
    pub threads: usize,
}

thread_local! {
    static TEAM: Cell<Option<Team>> = const { Cell::new(None) };
}

impl Team {
    /// Calls `f`, whose loops then run on this team.
    pub fn enter<R>(self, f: impl FnOnce() -> R) -> R {
        let before = Former(TEAM.replace(Some(self)));
        let result = f();
        drop(before);
        result
    }
}

/// Restores a thread's former team when dropped.
struct Former(Option<Team>);

impl Drop for Former {
    fn drop(&mut self) {
        TEAM.set(self.0);
    }
}

/// Number of threads that loops run on when called from here.
pub fn threads() -> usize {
    TEAM.get()
        .map_or_else(rayon::current_num_threads, |team| team.threads)
}

fn fork(first: usize, end: usize, f: &(dyn Fn(usize) + Sync)) {
    if end - first == 1 {
        return f(first);
    }
    let middle = first + (end - first) / 2;
    rayon::join(|| fork(first, middle, f), || fork(middle, end, f));
}

/// A slice of which tasks write disjoint pieces.
pub struct Shared<'a, T> {
    pointer: *mut T,
    length: usize,
    lifetime: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: the pieces handed out are disjoint (a condition of `piece`), so sharing the handle amounts to
// sending each piece to its task.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Borrows the slice for the duration of a parallel loop.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared {
            pointer: slice.as_mut_ptr(),
            length: slice.len(),
            lifetime: std::marker::PhantomData,
        }
    }

    /// The elements `[start, start + length)`.
    ///
    /// # Safety
    /// No two pieces that are alive at the same time overlap.
    pub unsafe fn piece(&self, start: usize, length: usize) -> &'a mut [T] {
        assert!(
            start <= self.length && length <= self.length - start,
            "piece outside its slice"
        );
        // SAFETY: in bounds by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), length) }
    }

    /// Pointer to the first element; the caller keeps accesses in bounds and disjoint.
    pub fn pointer(&self) -> *mut T {
        self.pointer
    }
}

/// Cuts `out` into pieces of `piece` elements (the last may be shorter) and calls
/// `f(start, piece)` for each, in parallel if there are enough elements.
pub fn pieces<T: Send>(
    slots: usize,
    out: &mut [T],
    piece: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let length = out.len();
    if length == 0 {
        return;
    }
    let piece = piece.clamp(1, length);
    let shared = Shared::new(out);
    let slots = if length < SMALL { 1 } else { slots };
    tasks(slots, length.div_ceil(piece), &|_, task| {
        let start = task * piece;
        // SAFETY: each task has its own range.
        let out = unsafe { shared.piece(start, piece.min(length - start)) };
        f(start, out);
    });
}

/// Calls `f(slot, range)` for ranges of several numbers each that together cover `0..count`. `work` is the
/// number of elements that the computation for one number touches.
pub fn ranges(
    slots: usize,
    count: usize,
    work: usize,
    f: &(dyn Fn(usize, std::ops::Range<usize>) + Sync),
) {
    let each = (SMALL / work.max(1)).clamp(1, count.max(1));
    let slots = if count.saturating_mul(work) < SMALL {
        1
    } else {
        slots
    };
    tasks(slots, count.div_ceil(each), &|slot, task| {
        f(slot, task * each..((task + 1) * each).min(count));
    });
}

/// Like [`pieces`] for rows of `row` elements: calls `f(index, row)` for each row, with several rows per
/// task. `work` is the number of elements that the computation of one row touches.
pub fn rows<T: Send>(
    slots: usize,
    out: &mut [T],
    row: usize,
    work: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    if out.is_empty() || row == 0 {
        return;
    }
    let count = out.len() / row;
    let per_task = (8 * 1024 / work.max(1)).clamp(1, count.max(1));
    let slots = if count.saturating_mul(work) < SMALL {
        1
    } else {
        slots
    };
    let shared = Shared::new(out);
    tasks(slots, count.div_ceil(per_task), &|_, task| {
        for index in task * per_task..((task + 1) * per_task).min(count) {
            // SAFETY: each row belongs to one task.
            f(index, unsafe { shared.piece(index * row, row) });
        }
    });
}

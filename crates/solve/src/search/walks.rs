//! Independent walks and other jobs. They don't see each other, so one thread and two give the same result.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The number of walks.
pub(super) const WALKS: usize = 2;

/// Does a job with every item, in parallel if there are threads for that.
pub(super) fn each<T: Send>(threads: usize, items: &mut [T], job: &(dyn Fn(usize, &mut T) + Sync)) {
    if threads < 2 {
        items
            .iter_mut()
            .enumerate()
            .for_each(|(k, item)| job(k, item));
        return;
    }
    std::thread::scope(|scope| {
        for (k, item) in items.iter_mut().enumerate() {
            scope.spawn(move || job(k, item));
        }
    });
}

/// A job; it may ask whether an earlier one has found something.
type Job<'a, J, T> = &'a (dyn Fn(&J, &dyn Fn() -> bool) -> Option<T> + Sync);

/// What the first of these jobs that finds something finds, in their order. A job may end as soon as an
/// earlier one has found something.
pub(super) fn first_found<J: Sync, T: Send>(
    threads: usize,
    jobs: &[J],
    job: Job<'_, J, T>,
) -> Option<T> {
    let next = AtomicUsize::new(0);
    let first = AtomicUsize::new(usize::MAX);
    let found = Mutex::new(None);
    let earlier = |k: usize| first.load(Ordering::Relaxed) < k;
    let work = || loop {
        let k = next.fetch_add(1, Ordering::Relaxed);
        if k >= jobs.len() || earlier(k) {
            break;
        }
        if let Some(new) = job(&jobs[k], &|| earlier(k)) {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            if first.fetch_min(k, Ordering::Relaxed) > k {
                *found = Some(new);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_job_that_finds_something_counts_however_many_threads_there_are() {
        for threads in [0, 1, 2, 5] {
            let found = |jobs: &[u64]| {
                first_found(threads, jobs, &|&job, over| {
                    // Later jobs wait until an earlier one has found something.
                    while job > 100 && !over() {
                        std::thread::yield_now();
                    }
                    (job % 2 == 0).then_some(job)
                })
            };
            assert_eq!(found(&[]), None);
            assert_eq!(found(&[1, 3, 5]), None);
            assert_eq!(found(&[1, 3, 6, 7, 8]), Some(6), "{threads} threads");
            assert_eq!(found(&[4, 102, 104]), Some(4), "{threads} threads");
        }
    }
}

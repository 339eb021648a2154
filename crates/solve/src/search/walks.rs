//! Independent walks and other jobs. They don't see each other, so one thread and two give the same result.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::search::anneal::Walk;

/// The number of walks.
pub(super) const WALKS: usize = 2;

/// Does a job with every walk, in parallel if there are threads for that.
pub(super) fn each<'w>(
    threads: usize,
    walks: &mut [Walk<'w>],
    job: &(dyn Fn(usize, &mut Walk<'w>) + Sync),
) {
    if threads < 2 {
        walks.iter_mut().enumerate().for_each(|(k, w)| job(k, w));
        return;
    }
    std::thread::scope(|scope| {
        for (k, walk) in walks.iter_mut().enumerate() {
            scope.spawn(move || job(k, walk));
        }
    });
}

/// What the first of these jobs that finds something finds, in their order. Each hears when an earlier one has found something,
/// and may end then.
pub(super) fn first_found<J: Sync, T: Send>(
    threads: usize,
    jobs: &[J],
    job: &(dyn Fn(&J, &dyn Fn() -> bool) -> Option<T> + Sync),
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

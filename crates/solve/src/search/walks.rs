//! Walks beside each other, which don't see each other: one thread or two give the same.

use crate::search::anneal::Walk;

/// Walks beside each other.
pub(super) const WALKS: usize = 2;

/// Does a job with every walk, beside each other if there are threads.
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

//! Independent walks. They don't see each other, so one thread and two give the same result.

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

//! First fit: items in some order, each at the lowest offset that is free.

use super::items::Items;
use super::packing::Packing;

/// Places the items in order, each at the lowest offset that is free of its neighbours.
pub(crate) fn first_fit(items: &Items, neighbours: &[Vec<u32>], order: &[u32]) -> Packing {
    let mut offsets = vec![u64::MAX; items.len()];
    let mut arena = 0;
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for &k in order {
        let k = k as usize;
        taken.clear();
        for &o in &neighbours[k] {
            let at = offsets[o as usize];
            if at != u64::MAX {
                taken.push((at, at.saturating_add(items.bytes[o as usize])));
            }
        }
        taken.sort_unstable();
        let mut at = 0;
        for &(from, to) in &taken {
            if from >= at && from - at >= items.bytes[k] {
                break;
            }
            at = at.max(to);
        }
        offsets[k] = at;
        arena = arena.max(at.saturating_add(items.bytes[k]));
    }
    Packing { offsets, arena }
}

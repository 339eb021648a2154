//! Greedy packing: items in some order, each at the lowest offset where it fits; then again with the
//! items that stuck out placed earlier.

use super::{Items, Packing};

/// Items placed before giving up improving, over all repetitions, weighted with their neighbours.
const WORK: usize = 4_000_000;

/// The best of several orders and their repetitions; stops at `goal`.
pub(crate) fn pack(items: &Items, goal: u64) -> Packing {
    let n = items.len();
    let keys: [Box<dyn Fn(usize) -> [u64; 2]>; 5] = [
        Box::new(|k| [items.bytes[k], items.width(k)]),
        Box::new(|k| [items.width(k), items.bytes[k]]),
        Box::new(|k| [items.bytes[k].saturating_mul(items.width(k)), 0]),
        Box::new(|k| {
            [
                items.crowd(k),
                items.bytes[k].saturating_mul(items.width(k)),
            ]
        }),
        Box::new(|k| [u64::from(u32::MAX - items.from[k]), items.bytes[k]]),
    ];
    let mut best: Option<Packing> = None;
    let pass: usize = items.neighbours.iter().map(Vec::len).sum::<usize>() + n + 1;
    let rounds = (WORK / pass / keys.len()).clamp(1, 400);
    for key in &keys {
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|&k| std::cmp::Reverse(key(k as usize)));
        for _ in 0..rounds {
            let packing = first_fit(items, &order);
            let better = best.as_ref().is_none_or(|b| packing.arena < b.arena);
            promote(items, &mut order, &packing, goal);
            if better {
                let done = packing.arena <= goal;
                best = Some(packing);
                if done {
                    break;
                }
            }
        }
        if best.as_ref().is_some_and(|b| b.arena <= goal) {
            break;
        }
    }
    best.unwrap_or(Packing {
        offsets: Vec::new(),
        arena: 0,
    })
}

/// Places the items in order, each at the lowest offset that is free of its neighbours.
fn first_fit(items: &Items, order: &[u32]) -> Packing {
    let mut offsets = vec![u64::MAX; items.len()];
    let mut arena = 0;
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for &k in order {
        let k = k as usize;
        taken.clear();
        for &o in &items.neighbours[k] {
            let at = offsets[o as usize];
            if at != u64::MAX {
                taken.push((at, at + items.bytes[o as usize]));
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
        arena = arena.max(at + items.bytes[k]);
    }
    Packing { offsets, arena }
}

/// Moves the items that end above the goal ahead by a part of their rank.
fn promote(items: &Items, order: &mut Vec<u32>, packing: &Packing, goal: u64) {
    let mut ranked: Vec<(f64, u32)> = order
        .iter()
        .enumerate()
        .map(|(rank, &k)| {
            let sticks_out = packing.offsets[k as usize] + items.bytes[k as usize] > goal;
            (
                if sticks_out {
                    rank as f64 * 0.6 - 1.0
                } else {
                    rank as f64
                },
                k,
            )
        })
        .collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    order.clear();
    order.extend(ranked.into_iter().map(|(_, k)| k));
}

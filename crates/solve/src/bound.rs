//! Lower bounds: on the bytes of any plan, and on the seconds of a plan within a budget.

use crate::model::Model;

/// Bytes without which no plan exists: the given values at the start, the kept ones at the end, and
/// for each task what it reads and writes, its workspace, and what can't leave memory.
pub(crate) fn floor(model: &Model) -> f64 {
    let pinned = pinned(model);
    let total: f64 = (0..model.bytes.len())
        .filter(|&v| pinned[v])
        .map(|v| model.bytes[v])
        .sum();
    (0..model.tasks + 2)
        .map(|t| {
            let mut own = model.grows[t as usize] + total;
            for i in model.inputs.of(t) {
                if !pinned[i.value as usize] {
                    own += model.bytes[i.value as usize];
                }
            }
            for &v in model.outputs.of(t) {
                if pinned[v as usize] {
                    own -= model.bytes[v as usize];
                }
            }
            own
        })
        .fold(0.0, f64::max)
        + model.resident
}

/// Values that are in memory throughout: given, kept, and overwritten by nobody.
fn pinned(model: &Model) -> Vec<bool> {
    (0..model.bytes.len() as u32)
        .map(|v| {
            model.producer[v as usize] == model.start()
                && model.consumers.of(v).contains(&model.end())
        })
        .collect()
}

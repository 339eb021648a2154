//! Lower bounds on the bytes of any plan.

use cranelift_entity::PrimaryMap;
use scrimp_plan::ValueId;

use super::order::Reach;
use crate::model::Model;

/// Bytes without which no plan exists in any order. Each task needs its inputs, its outputs, its workspace
/// and every value that can't leave memory while it runs.
///
/// A value that can't be made again can't leave before its last reader has run. So while task `t` runs for
/// the first time, every such value is in memory that was made before `t` (it is given, or `t` descends from
/// its producer) and is read after it (by `t`, by a descendant of `t`, or at the end).
pub(crate) fn floor(model: &Model) -> f64 {
    let lasting = lasting(model);
    let held = Reach::new(model).held(model, |v| lasting[v]);
    let inner = held.values().copied().fold(0.0, f64::max);
    let given = model.grows[model.start()];
    let kept: f64 = model
        .inputs
        .of(model.end())
        .iter()
        .map(|i| model.bytes[i.value])
        .sum();
    inner.max(given).max(kept) + model.resident
}

/// Values that can't be made again: given values, outputs of tasks that run once, and outputs of tasks that
/// overwrite a value which can't be made again.
pub(crate) fn lasting(model: &Model) -> PrimaryMap<ValueId, bool> {
    let mut lasting: PrimaryMap<ValueId, bool> = model.bytes.values().map(|_| false).collect();
    let tasks = std::iter::once(model.start()).chain(model.task_ids());
    for t in tasks {
        let once = !model.rerunnable[t]
            || model
                .inputs
                .of(t)
                .iter()
                .any(|i| i.overwritten && lasting[i.value]);
        for &v in model.outputs.of(t) {
            lasting[v] = once;
        }
    }
    lasting
}

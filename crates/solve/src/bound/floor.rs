//! Lower bounds on the bytes of any plan.

use cranelift_entity::PrimaryMap;
use scrimp_plan::ValueId;

use super::gather;
use super::order::Reach;
use crate::model::Model;

/// The number of values that can't be made again which the floor counts where they aren't read, if there are too many
/// tasks for a table of who comes after whom.
const LARGEST: usize = 16;

/// Bytes without which no plan exists in any order. Each task needs its inputs, its outputs, its workspace
/// and every value that can't leave memory while it runs.
///
/// A value that can't be made again can't leave before its last reader has run. So while task `t` runs for
/// the first time, every such value is in memory that was made before `t` (it is given, or `t` descends from
/// its producer) and is read after it (by `t`, by a descendant of `t`, or at the end).
///
/// Without other memories, gathering a task's inputs counts, too ([`gather`]).
///
/// Where other memories hold up to `elsewhere` bytes, such a value may be there while `t` runs, but it must be
/// somewhere. (If its producer overwrote a value that can't be made again, that value may be there in its
/// place; the two have the same size and are never both needed.)
pub(crate) fn floor_with(model: &Model, elsewhere: f64) -> f64 {
    let mut lasting = lasting(model);
    let reach = Reach::new(model);
    if reach.unknown() {
        let size = |&v: &ValueId| model.size(v);
        let mut values: Vec<ValueId> = lasting.keys().filter(|&v| lasting[v]).collect();
        values.sort_by(|a, b| size(b).total_cmp(&size(a)));
        values
            .iter()
            .skip(LARGEST)
            .for_each(|&v| lasting[v] = false);
    }
    let held = |crossing: &dyn Fn(ValueId) -> bool| {
        let held = reach.held(model, crossing);
        held.values().copied().fold(0.0, f64::max)
    };
    let inner = held(&|v| lasting[v]);
    let inner = match &model.outside {
        None => inner,
        Some(_) => held(&|_| false).max(inner - elsewhere),
    };
    let given = model.outputs.of(model.start()).iter();
    let given = given.filter(|&&v| !model.is_away(v));
    let given: f64 = given.map(|&v| model.bytes[v]).sum();
    let kept = model.inputs.of(model.end()).iter();
    let kept = kept.filter(|i| model.ends_here(i.value));
    let kept: f64 = kept.map(|i| model.bytes[i.value]).sum();
    inner.max(given).max(kept).max(gather::least(model)) + model.resident
}

/// [`floor_with`] other memories of any size, if there are some.
pub(crate) fn floor(model: &Model) -> f64 {
    floor_with(model, f64::INFINITY)
}

/// Values that can't be made again: given values, outputs of tasks that run once, and outputs of tasks that
/// overwrite a value which can't be made again.
pub(crate) fn lasting(model: &Model) -> PrimaryMap<ValueId, bool> {
    lasting_if(model, true)
}

/// Values that can't be made again even if another memory still holds what their producer overwrites.
pub(super) fn made_once(model: &Model) -> PrimaryMap<ValueId, bool> {
    lasting_if(model, model.outside.is_none())
}

/// `consumed`: whether an overwritten value that can't be made again is lost.
fn lasting_if(model: &Model, consumed: bool) -> PrimaryMap<ValueId, bool> {
    let mut lasting: PrimaryMap<ValueId, bool> = model.bytes.values().map(|_| false).collect();
    let tasks = std::iter::once(model.start()).chain(model.task_ids());
    for t in tasks {
        let once = !model.rerunnable[t]
            || model
                .inputs
                .of(t)
                .iter()
                .any(|i| i.overwritten && lasting[i.value] && consumed);
        for &v in model.outputs.of(t) {
            lasting[v] = once;
        }
    }
    lasting
}

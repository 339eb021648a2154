//! How long copies take that change the format of a tensor.

use scrimp_graph::TensorId;
use std::collections::BTreeMap;
use std::time::Instant;

use super::links::AREA;
use super::typical::typical;
use crate::arena::Arena;
use crate::compiled::Compiled;
use crate::conversion::Conversion;
use crate::error::RunError;
use crate::span::ALIGN;

/// How often each distinct conversion is done; the first time isn't measured.
const TIMES: usize = 4;

/// The tensors that two devices store differently.
pub fn converted(from: &Compiled<'_>, to: &Compiled<'_>) -> Vec<TensorId> {
    conversions(from, to).map(|(tensor, _)| tensor).collect()
}

fn conversions(
    from: &Compiled<'_>,
    to: &Compiled<'_>,
) -> impl Iterator<Item = (TensorId, Conversion)> {
    let tensors = from.graph().tensors().iter();
    tensors.filter_map(move |(id, what)| {
        let [from, to] = [from, to].map(|compiled| compiled.formats().of(id));
        Some((id, Conversion::new(what, from, to)?))
    })
}

/// Seconds of copying each tensor that two devices store differently. What `known` hasn't is measured and added to
/// it. On each side, measuring takes at most `room` bytes, or as many as the largest of these tensors has.
///
/// # Errors
/// There isn't enough memory.
pub fn conversion_seconds(
    from: &Compiled<'_>,
    to: &Compiled<'_>,
    room: u64,
    known: &mut BTreeMap<String, f64>,
) -> Result<Vec<(TensorId, f64)>, RunError> {
    let mut all = Vec::new();
    for (tensor, conversion) in conversions(from, to) {
        let key = format!("{conversion:?}");
        let seconds = match known.get(&key) {
            Some(&seconds) => seconds,
            None => {
                let seconds = measured(&conversion, from.graph().tensor(tensor).bytes(), room)?;
                known.insert(key, seconds);
                seconds
            }
        };
        all.push((tensor, seconds));
    }
    Ok(all)
}

/// Typical seconds of a conversion. As in a step, neither side is in a core's own cache: each time other memory is used.
fn measured(conversion: &Conversion, bytes: u64, room: u64) -> Result<f64, RunError> {
    let slot = bytes.next_multiple_of(ALIGN as u64).max(ALIGN as u64);
    let slots = (room.min(AREA) / slot).clamp(1, TIMES as u64);
    let (source, mut destination) = (Arena::new(slots * slot)?, Arena::new(slots * slot)?);
    let mut seconds = Vec::with_capacity(TIMES);
    for time in 0..TIMES as u64 {
        let at = time % slots * slot;
        let start = Instant::now();
        conversion.copy(
            source.bytes_at(at, bytes),
            destination.bytes_at_mut(at, bytes),
        );
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(typical(&seconds[1..]))
}

"""Graphs that were captured before, by this process or another, found by what they depend on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from scrimp._torch import serial, store
from scrimp._torch.capture import Call, Joint, Slot
from scrimp._torch.fingerprint import Unrecognizable, fingerprint
from scrimp._torch.plans import Batch, Structure
from scrimp._torch.reads import noted
from scrimp._torch.settings import Settings

KIND = "graph"
MOST_COURSES = 8
"""Graphs of one model and one shape of batch, by what the model sees in the batch."""
Captured = tuple[Joint, list[Slot]]


def captured(
    purpose: str,
    call: Call,
    loss_fn: Any,
    batch: Batch,
    settings: Settings,
    capture: Callable[[], Captured],
    *,
    accumulating: bool = False,
) -> Captured:
    """Find the graph of a call for some purpose, or capture it and keep it for the next time."""
    start = time.perf_counter()
    key = _key(purpose, call, loss_fn, batch, settings, accumulating)
    there = _kept(key)
    found = _found(key, there, call, loss_fn, batch)
    if found is not None:
        settings.say(f"found the captured graph in {time.perf_counter() - start:.1f} s")
        return found
    joint, accumulated = capture()
    settings.say(f"captured the graph in {time.perf_counter() - start:.1f} s")
    if key:
        try:
            courses = [*there, serial.dump(joint, accumulated)]
            store.save(KIND, key, {"courses": courses[-MOST_COURSES:]})
        except serial.NotKept as reason:
            settings.say(f"the captured graph can't be kept for the next time: {reason}")
    return joint, accumulated


def _key(
    purpose: str, call: Call, loss_fn: Any, batch: Batch, settings: Settings, accumulating: bool
) -> str | None:
    decided = Structure(call.model, loss_fn).mode(accumulating=accumulating)
    try:
        return fingerprint(call.model, [loss_fn], purpose, repr(batch.spec), batch.marks[1], decided)
    except Unrecognizable as reason:
        settings.say(f"the captured graph can't be kept for the next time: {reason}")
        return None


def _kept(key: str | None) -> list[dict[str, Any]]:
    """The graphs of a model and a shape of batch, one for each course that the model takes."""
    entry = store.load(KIND, key) if key else None
    courses = entry.get("courses") if entry else None
    return courses if isinstance(courses, list) else []


def _found(
    key: str | None, there: list[dict[str, Any]], call: Call, loss_fn: Any, batch: Batch
) -> Captured | None:
    for course in there:
        try:
            guard = serial.load_guard(course, call)
            if guard.holds(batch.tensors):
                joint, accumulated = serial.load(course, call, guard)
                joint.guards = noted(call, loss_fn, batch.tensors, guard)
                joint.operations.kept = KIND, str(key)
                return joint, accumulated
        # Whatever is wrong in a file, its graph is captured anew.
        except Exception as error:
            store.damaged(KIND, str(key), error)
            there.clear()
    return None

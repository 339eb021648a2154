"""Graphs that were captured before, by this process or another, found by what they depend on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from scrimp._torch import serial, store
from scrimp._torch.capture import Call, Joint, Slot
from scrimp._torch.fingerprint import Unrecognizable, fingerprint
from scrimp._torch.plans import Batch
from scrimp._torch.settings import Settings, mode

KIND = "graph"
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
    found = _found(key, call) if key else None
    if found is not None:
        settings.say(f"found the captured graph in {time.perf_counter() - start:.1f} s")
        return found
    joint, accumulated = capture()
    settings.say(f"captured the graph in {time.perf_counter() - start:.1f} s")
    if key:
        try:
            store.save(KIND, key, serial.dump(joint, accumulated))
        except serial.NotKept as reason:
            settings.say(f"the captured graph can't be kept for the next time: {reason}")
    return joint, accumulated


def _key(
    purpose: str, call: Call, loss_fn: Any, batch: Batch, settings: Settings, accumulating: bool
) -> str | None:
    decided = mode(call.model, loss_fn, accumulating=accumulating)
    try:
        return fingerprint(call.model, [loss_fn], purpose, repr(batch.spec), batch.marks[1], decided)
    except Unrecognizable as reason:
        settings.say(f"the captured graph can't be kept for the next time: {reason}")
        return None


def _found(key: str, call: Call) -> Captured | None:
    entry = store.load(KIND, key)
    if entry is None:
        return None
    try:
        return serial.load(entry, call)
    # Whatever is wrong in a file, its graph is captured anew.
    except Exception as error:
        store.damaged(KIND, key, error)
        return None

"""What ``swap="16GiB"`` means: the memory in which values wait, its speed, and where each lies in it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scrimp._native import parse_swap
from scrimp._torch import kept
from scrimp._torch.memories import PAGE, PROBE, File, Memory, Speed, Trip
from scrimp._torch.pinned import Pinned
from scrimp.errors import BadOption
from scrimp.planning import Plan, place
from scrimp.problem import Problem

NAMES = {"cpu": "disk", "cuda": "ram"}
"""What the memory beside a device is called where nothing else is said."""


@dataclass(frozen=True)
class Asked:
    """What a user asks for."""

    name: str | None
    folder: str | None
    bytes: int
    speed: Speed | None
    """Where it is stated."""

    @staticmethod
    def of(swap: int | str | None) -> Asked | None:
        """Read it: bytes, ``"16GiB"``, ``"disk:/scratch=16GiB"``, with a speed ``"ram=16GiB@12GB/s"``."""
        if swap is None:
            return None
        if isinstance(swap, bool) or not isinstance(swap, int | str):
            raise BadOption(f"swap is {swap!r}, but must be text like '16GiB' or 'disk:/scratch=16GiB'")
        text = str(swap)
        name, folder, size, rates = parse_swap(text if "=" in text else f"memory={text}")
        speed = None if rates is None else Speed(rates[0], rates[1], 0.0, rates[2])
        return Asked(name if "=" in text else None, folder, size, speed)


_memories: weakref.WeakValueDictionary[Any, Memory] = weakref.WeakValueDictionary()


def memory_of(asked: Asked, device: torch.device) -> Memory:
    """The memory beside a device; steps that ask for the same share it, each in an area of its own."""
    name = asked.name or NAMES[device.type]
    if device.type == "cuda" and asked.folder is not None:
        raise BadOption("beside a GPU values are swapped to RAM; say how much, like swap='16GiB'")
    if device.type == "cpu" and asked.name is not None and asked.folder is None:
        raise BadOption(
            f"beside a CPU values are swapped to a file; say where, like swap='{NAMES['cpu']}:/scratch=16GiB'"
        )
    folder = Path(asked.folder) if asked.folder is not None else kept.cache_path().parent / "swap"
    key = (name, asked.bytes, str(folder) if device.type == "cpu" else str(device), os.getpid())
    memory = _memories.get(key)
    if memory is None:
        made = Pinned(name, asked.bytes, device) if device.type == "cuda" else File(name, asked.bytes, folder)
        memory = _memories[key] = made
    return memory


def add_memory(problem: Problem, memory: Memory, asked: Asked) -> None:
    """Let a problem's values wait in a memory."""
    speed = asked.speed or _measured(memory)
    problem.memory(
        memory.name, memory.capacity, out=speed.out, back=speed.back, latency=speed.latency, half=speed.half
    )


def _measured(memory: Memory) -> Speed:
    """Measured once for each folder or GPU, and kept: plans are found again by the speed, too."""
    here = memory.place
    known = kept.load().get(here, {})
    rows = [known.get(what) for what in ("out", "back", "latency", "half")]
    if all(row is not None for row in rows):
        out, back, latency, half = (row[0] for row in rows if row is not None)
        return Speed(1.0 / out, 1.0 / back, latency, bool(half))
    if memory.capacity < 2 * PROBE:
        raise BadOption(
            f"swap is {memory.capacity} bytes, too few to measure copies in; give it {2 * PROBE} or more, or "
            "state the speed: swap='disk:/folder=1MiB@1GB/s'"
        )
    speed = memory.speed()
    numbers = {"out": 1.0 / speed.out, "back": 1.0 / speed.back, "latency": speed.latency}
    rows_of = {what: [number, 0, 0] for what, number in numbers.items()}
    kept.store(here, {**rows_of, "half": [float(speed.half), 0, 0]})
    return speed


@dataclass(repr=False)
class Away:
    """Where a plan's swapped values lie in a memory."""

    memory: Memory
    bytes: int
    """Of the area that one run needs."""
    offsets: list[int]
    """Per step, that of the value which it stores or brings; 0 for other steps."""

    def trip(self) -> Trip:
        """Begin a run."""
        return Trip(self.memory, self.bytes)

    def token(self) -> Tensor:
        """Begin a run; give a tensor that has it, to be saved for backward as any other."""
        token = torch.empty(0, dtype=torch.uint8)
        token.trip = self.trip()  # type: ignore[attr-defined]
        return token


def placed(plan: Plan, problem: Problem, memory: Memory, except_for: Collection[int] = ()) -> Away | None:
    """Find places for a plan's swapped values; nothing if there are none.

    The optimizer's state is ``except_for``: it has its own.
    """
    steps = [
        ("", 0) if number in except_for and kind != "run" else (kind, number) for kind, number in plan.steps
    ]
    spans = _spans(steps)
    if not spans:
        return None
    rows = [(start, end, _pages(problem.values[value]["bytes"])) for value, start, end in spans]
    found = place(rows)
    offsets = [0] * len(steps)
    at = {start: offset for (_, start, _), offset in zip(spans, found.offsets, strict=True)}
    current: dict[int, int] = {}
    for i, (kind, value) in enumerate(steps):
        if kind == "store":
            current[value] = at[i]
        if kind in ("store", "bring"):
            offsets[i] = current[value]
    return Away(memory, found.arena, offsets)


def _spans(steps: Sequence[tuple[str, int]]) -> list[tuple[int, int, int]]:
    """The steps during which each value is in the memory: value, first, one after the last."""
    since: dict[int, int] = {}
    found: list[tuple[int, int, int]] = []
    for i, (kind, value) in enumerate(steps):
        if kind == "store":
            since[value] = i
        elif kind == "forget" and value in since:
            found.append((value, since.pop(value), i + 1))
    return found + [(value, start, len(steps)) for value, start in since.items()]


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE

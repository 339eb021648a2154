"""Seconds of this program's own work, and whether others kept it from running.

On a busy machine an operator takes as long as the others let it: the clock on the wall tells how busy the
machine is. The system knows how long a thread was ready but waited for a processor; the processor's time
of the thread that asked for the work is then the better answer.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

import torch

WAITING = 0.05
"""Part of the time that threads may wait for a processor on a machine that counts as quiet."""


@dataclass(frozen=True)
class Span:
    """How long something took."""

    seconds: float
    busy: bool
    """Whether others kept it from running; the seconds are then the processor's."""


class Clock:
    """Times what runs between its creation and `read`."""

    def __init__(self) -> None:
        """Start."""
        self._waited = waited()
        self._own = time.thread_time()
        self._start = time.perf_counter()

    def read(self) -> Span:
        """Give the time since the start."""
        wall = time.perf_counter() - self._start
        own = time.thread_time() - self._own
        busy = waited() - self._waited > WAITING * wall
        return Span(min(own, wall) if busy else wall, busy)


def waited() -> float:
    """Seconds for which threads of this process were ready to run and didn't; 0 where nobody counts."""
    total = 0
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return 0.0
    for thread in threads:
        # A thread may end meanwhile, and some systems don't have the file.
        with (
            contextlib.suppress(OSError, ValueError, IndexError),
            open(f"/proc/self/task/{thread}/schedstat", "rb") as file,
        ):
            total += int(file.read().split()[1])
    return total * 1e-9


def is_quiet(seconds: float = 0.02) -> bool:
    """Whether the last minute's load and a little work on PyTorch's threads leave processors free."""
    with contextlib.suppress(OSError):
        if os.getloadavg()[0] > (os.cpu_count() or 1):
            return False
    work = torch.ones(256, 256)
    clock = Clock()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.mm(work, work)
    return not clock.read().busy

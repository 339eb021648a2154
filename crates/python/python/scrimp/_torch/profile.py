"""What operators cost: measured once per distinct operator, shapes and device, or estimated.

Measurements are kept on disk, keyed by everything they depend on: the operator and its arguments, the
tensors' shapes, strides and types, the device, the number of threads and PyTorch's version. Those made
while others kept this program from running are doubtful: they are made again when the machine is quiet.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from scrimp._torch import kept, runtime
from scrimp._torch.clock import Clock, is_quiet
from scrimp._torch.gpu import choices
from scrimp._torch.graph import Task, tensors_in
from scrimp._torch.memory import measured
from scrimp._torch.problem import Cost, allocated
from scrimp._torch.truth import aside, key_of, runner
from scrimp._torch.workspace import workspace_of
from scrimp.errors import Unsupported

REPEATS = 3
ENOUGH_SECONDS = 0.02
"""Short operators are repeated until they took this long together."""

Progress = Callable[[int, int], object]
"""Called with how many of how many distinct operators are done."""


def machine(device: torch.device) -> str:
    """What measurements depend on beside the operator."""
    if device.type == "cuda":
        name = f"{torch.cuda.get_device_name(device)} {choices()}"
    else:
        name = f"{_processor()} {torch.get_num_threads()} threads"
    return f"{device.type} {name} torch {torch.__version__}"


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measure(tasks: Sequence[Task], device: torch.device, progress: Progress | None = None) -> list[Cost]:
    """Measure each distinct operator once, or find it in the cache."""
    here = machine(device)
    known = kept.load().get(here, {})
    keys = [key_of(task.node) for task in tasks]
    distinct = {key: task for key, task in zip(keys, tasks, strict=True)}
    wanted = [key for key in distinct if key not in known]
    doubtful = [key for key in distinct if key in known and 0 < known[key][2] < SETTLED]
    if doubtful and is_quiet():
        wanted += doubtful
    try:
        with aside(device):
            for done, key in enumerate(wanted):
                if progress is not None:
                    progress(done, len(wanted))
                known[key] = _row(known.get(key), *_measured_once(distinct[key], device))
    finally:
        if wanted:
            kept.store(here, {key: known[key] for key in wanted if key in known})
    if progress is not None:
        progress(len(wanted), len(wanted))
    return [Cost(float(known[key][0]), int(known[key][1])) for key in keys]


SETTLED = 3
"""Doubts with which a measurement stays: as many were disturbed, or one was made again undisturbed."""
AGREEING = 1.25
"""Measurements that differ by less than this factor are the same, and so is what is planned from them."""


def _row(before: list[float] | None, cost: Cost, busy: bool) -> list[float]:
    """What is kept: seconds, workspace, and how often they were doubted."""
    if before is None:
        return [cost.seconds, cost.workspace, int(busy)]
    seconds, _, doubts = before
    if max(seconds, cost.seconds) > AGREEING * min(seconds, cost.seconds):
        seconds = min(seconds, cost.seconds) if busy else cost.seconds
    return [seconds, cost.workspace, doubts + 1 if busy else SETTLED]


def doubt(tasks: Sequence[Task], device: torch.device) -> None:
    """Have operators measured again the next time, but for those that were."""
    here = machine(device)
    known = kept.load().get(here, {})
    keys = {key_of(task.node) for task in tasks}
    rows = {key: [*known[key][:2], 1] for key in keys if key in known and known[key][2] == 0}
    kept.store(here, rows)


def _measured_once(task: Task, device: torch.device) -> tuple[Cost, bool]:
    """What it costs, and whether others disturbed the measurement."""
    node = task.node
    try:
        run = runner(node, device)
        run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise Unsupported(
            f"{node.target} ({node.name}) can't be measured on made-up numbers; use costs='estimate'. "
            f"PyTorch says: {error}"
        ) from error
    result, peak, _ = measured(run, device)
    outputs = sum(allocated(storage) for storage in task.makes)
    del result
    seconds, busy = seconds_of(run, device)
    return Cost(seconds, max(0, peak - outputs)), busy


def seconds_of(run: Callable[[], Any], device: torch.device) -> tuple[float, bool]:
    """Seconds of a run, and whether others disturbed the measurement."""
    return (_seconds_on_cuda(run, device), False) if device.type == "cuda" else _seconds(run)


def _seconds(run: Callable[[], Any]) -> tuple[float, bool]:
    """The best of some runs: on the wall's clock, or the processor's if others were in the way."""
    wall, own = float("inf"), float("inf")
    total, repeats = 0.0, 0
    whole = Clock()
    while repeats < REPEATS or (total < ENOUGH_SECONDS and repeats < 100):
        start, processor = time.perf_counter(), time.thread_time()
        run()
        own = min(own, time.thread_time() - processor)
        taken = time.perf_counter() - start
        wall = min(wall, taken)
        total, repeats = total + taken, repeats + 1
        if total > 1.0:
            break
    busy = whole.read().busy
    return min(own, wall) if busy else wall, busy


def _seconds_on_cuda(run: Callable[[], Any], device: torch.device) -> float:
    """The larger of the host's and the device's time: many runs one after another, as in a step."""
    best = float("inf")
    total, repeats = 0.0, 1
    while total < ENOUGH_SECONDS and repeats <= MOST_AT_ONCE:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize(device)
        total = start.elapsed_time(end) / 1000.0
        # The first launch waits for nothing, so a single run of a short operator isn't typical.
        best = total / repeats if repeats > 1 or total >= ENOUGH_SECONDS else best
        repeats *= 4
    return best


MOST_AT_ONCE = 64
"""Runs between two events."""


def estimate(tasks: Sequence[Task]) -> list[Cost]:
    """Seconds from counted operations and bytes on a made-up machine; workspaces by rules."""
    return [Cost(_estimated(task), workspace_of(task.node)) for task in tasks]


OPERATIONS_PER_SECOND = 1e11
BYTES_PER_SECOND = 1e10
SECONDS_PER_CALL = 2e-6


def _estimated(task: Task) -> float:
    from torch.utils.flop_counter import flop_registry

    node = task.node
    moved = sum(
        t.numel() * t.element_size()
        for n in [node, *node.all_input_nodes]
        for t in tensors_in(n.meta.get("val"))
    )
    operations = 0
    target = torch.ops.aten.addmm.default if node.target is runtime.add_product else node.target
    formula = flop_registry.get(getattr(target, "overloadpacket", None))
    if formula is not None:
        value: Callable[[Any], Any] = lambda n: n.meta.get("val") if isinstance(n, Node) else n  # noqa: E731
        args = torch.fx.node.map_aggregate(node.args, value)
        kwargs = torch.fx.node.map_aggregate(dict(node.kwargs), value)
        # Formulas know common cases; what they don't know counts by its bytes.
        with contextlib.suppress(Exception):
            operations = int(formula(*args, **kwargs, out_val=node.meta.get("val")))
    return SECONDS_PER_CALL + max(operations / OPERATIONS_PER_SECOND, moved / BYTES_PER_SECOND)

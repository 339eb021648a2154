"""A plan's memory over time, in the format that PyTorch's viewer reads (pytorch.org/memory_viz)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from scrimp._torch.modules import module_of
from scrimp._torch.problem import Lowered
from scrimp.planning import Plan, place

ALIGNMENT = 512
"""Offsets are multiples of this, as those of PyTorch's allocator are."""


@dataclass(repr=False)
class Block:
    """Bytes that are held during the steps from ``start`` until before ``end``."""

    start: int
    end: int
    bytes: int
    category: str
    frames: list[dict[str, Any]]

    def event(self, action: str, address: int, seconds: float) -> dict[str, Any]:
        """What PyTorch's allocator would have recorded."""
        return {
            "action": action,
            "addr": address,
            "size": self.bytes,
            "stream": 0,
            "time_us": int(seconds * 1e6),
            "frames": self.frames,
            "category": self.category,
        }


def snapshot(plan: Plan, lowered: Lowered, model: nn.Module) -> dict[str, Any]:
    """Give what ``torch.cuda.memory._snapshot()`` would, had a GPU run the plan in one segment."""
    blocks = [block for block in _blocks(plan, lowered, model) if block.bytes]
    placed = place((b.start, b.end, -(-b.bytes // ALIGNMENT) * ALIGNMENT) for b in blocks)
    begins, ends = defaultdict(list), defaultdict(list)
    for block, address in zip(blocks, placed.offsets, strict=True):
        begins[block.start].append((block, address))
        ends[block.end].append((block, address))
    trace: list[dict[str, Any]] = []
    seconds = 0.0
    for i, (kind, number) in enumerate(plan.steps):
        for block, address in ends[i]:
            trace += [block.event(free, address, seconds) for free in ("free_requested", "free_completed")]
        trace += [block.event("alloc", address, seconds) for block, address in begins[i]]
        seconds += lowered.problem.tasks[number]["modes"][0]["seconds"] if kind == "run" else 0.0
    kept = sorted(((address, block) for block, address in ends[len(plan.steps) + 1]), key=lambda at: at[0])
    return {"device_traces": [trace], "segments": [_segment(kept, placed.arena)]}


def _blocks(plan: Plan, lowered: Lowered, model: nn.Module) -> Iterator[Block]:
    """Each buffer of the plan; what is kept ends after the last step's workspace."""
    problem, end = lowered.problem, len(plan.steps) + 1
    always = [{"name": "parameters, buffers, the batch", "filename": "always there", "line": 0}]
    yield Block(0, end, plan.fixed, "always there", always)
    there = lowered.always(plan.homes)
    live: dict[int, Block] = {}
    times: Counter[int] = Counter()
    for i, (kind, number) in enumerate(plan.steps):
        if kind == "bring":
            frames = [{"name": "brought back", "filename": problem.values[number]["name"], "line": 0}]
            live[number] = Block(i, end, problem.values[number]["bytes"], "brought back", frames)
        elif kind == "free":
            block = live.pop(number)
            block.end = i
            yield block
        if kind != "run":
            continue
        task = problem.tasks[number]
        times[number] += 1
        frames = _frames(lowered, number, model, times[number])
        category = "computed again" if times[number] > 1 else str(task["phase"])
        for pair in task["overwrites"]:
            if pair["input"] in there:
                continue
            block = live.pop(pair["input"])
            block.end = i
            yield block
        for value in task["outputs"]:
            if value in there:
                continue
            live[value] = Block(i, end, problem.values[value]["bytes"], category, frames)
        yield Block(i, i + 1, task["modes"][0]["workspace"], "workspace", frames)
    yield from live.values()


def _frames(lowered: Lowered, number: int, model: nn.Module, run: int) -> list[dict[str, Any]]:
    """The operator, with which run of it this is as the line; then the modules around it, innermost first."""
    task = lowered.task_at[number]
    if task is None:
        return [{"name": lowered.problem.tasks[number]["name"], "filename": "", "line": run}]
    path = module_of(task.node)
    frames = [{"name": str(task.node.target), "filename": task.node.name, "line": run}]
    while path:
        frames.append({"name": _kind(model, path), "filename": path, "line": 0})
        path = path.rpartition(".")[0]
    return [*frames, {"name": type(model).__name__, "filename": "model", "line": 0}]


def _kind(model: nn.Module, path: str) -> str:
    try:
        return type(model.get_submodule(path)).__name__
    except AttributeError:
        return ""


def _segment(kept: list[tuple[int, Block]], arena: int) -> dict[str, Any]:
    """What is there in the end."""
    blocks: list[dict[str, Any]] = []
    end = 0
    for address, block in kept:
        if address > end:
            blocks.append({"address": end, "size": address - end, "state": "inactive", "requested_size": 0})
        blocks.append(
            {
                "address": address,
                "size": block.bytes,
                "requested_size": block.bytes,
                "state": "active_allocated",
                "frames": block.frames,
            }
        )
        end = address + block.bytes
    if arena > end:
        blocks.append({"address": end, "size": arena - end, "state": "inactive", "requested_size": 0})
    held = sum(block.bytes for _, block in kept)
    return {
        "device": 0,
        "address": 0,
        "total_size": arena,
        "allocated_size": held,
        "active_size": held,
        "requested_size": held,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }

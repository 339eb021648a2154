"""What inductor makes of a forward and a backward graph: which values its fused kernels write to memory.

Inductor computes pointwise operators inside of the kernels that read them. Computing one again there
costs next to nothing, and its result takes no memory of its own. This is a simple model of that, to
weigh one partition against another; inductor's fusing decides in the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from scrimp._torch.graph import Storage, Task, Tasks, analyse
from scrimp._torch.problem import Lowered, allocated
from scrimp._torch.settings import Settings, make_plans
from scrimp.planning import Plan

FUSED = 0.1
"""Of a pointwise operator's time alone, what it adds to a kernel that it is fused into."""
SURELY_LEANER = 0.85
"""Estimates are no better than this: a partition is leaner than another if it is by more."""
LEANER = (0.85, 0.7, 0.55)
"""Parts of a plan's peak that can change, for which leaner plans are tried."""
NEGLIGIBLE = 0.05
"""What a leaner plan may cost beside a plan; fused recomputation is that cheap."""
INLINED_USES = 2
"""A value with more readers than this is written to memory."""


def is_fused(task: Task) -> bool:
    """Whether inductor computes the task inside of other kernels."""
    target: Any = task.node.target
    return torch.Tag.pointwise in getattr(target, "tags", ()) and len(task.makes) == 1


def leaner(made: Plan, lowered: Lowered, settings: Settings) -> Plan:
    """Go below the budget as far as that costs next to nothing, since fused kernels' memory is a guess."""
    budgets = [made.fixed + int((made.peak - made.fixed) * part) for part in LEANER]
    if made.recomputed == 0:
        return made
    most = made.cost * (1.0 + NEGLIGIBLE)
    for other in make_plans(lowered, budgets, settings):
        if isinstance(other, Plan) and other.cost <= most:
            made = other
    return made


def peak_of(forward: Graph, backward: Graph) -> int:
    """Most bytes in use in the two graphs, run one after the other."""
    ahead, behind = analyse(forward), analyse(backward)
    (end,) = forward.find_nodes(op="output")
    held = _bytes(_given(forward, ahead))
    results = [node for node in _leaves(end) if node.op != "placeholder"]
    made = {storage for node in results for storage in ahead.storages_of[node]}
    first = held + _most(ahead, results, frees=False)
    (end,) = backward.find_nodes(op="output")
    gradients = [node for node in _leaves(end) if node.op != "placeholder"]
    saved = sum(allocated(storage) for storage in made if storage.producer is not None)
    inputs = _bytes(_given(backward, behind))
    # What backward reads is freed after its last use; the model's own tensors among it stay.
    stays = max(0, held + saved - inputs)
    return max(first, stays + _most(behind, gradients, frees=True))


def _given(graph: Graph, tasks: Tasks) -> set[Storage]:
    return {storage for node in graph.find_nodes(op="placeholder") for storage in tasks.storages_of[node]}


def _bytes(storages: set[Storage]) -> int:
    return sum(allocated(storage) for storage in storages)


def _leaves(end: Node) -> list[Node]:
    return [node for node in end.all_input_nodes]


def _most(tasks: Tasks, kept: list[Node], *, frees: bool) -> int:
    """The peak of one graph: of what it makes and, if it ``frees`` them, of its inputs."""
    ends = {storage for node in kept for storage in tasks.storages_of[node]}
    readers: dict[Storage, list[Task]] = {}
    for task in tasks.tasks:
        for storage in _reads(task, tasks):
            readers.setdefault(storage, []).append(task)
    behind: dict[Storage, frozenset[Storage]] = {}
    last: dict[Storage, int] = {}
    for place, task in enumerate(tasks.tasks):
        sources = frozenset(s for read in _reads(task, tasks) for s in behind.get(read, frozenset((read,))))
        for source in sources:
            last[source] = place
        uses = readers.get(task.makes[0], []) if task.makes else []
        inlined = (
            is_fused(task)
            and not any(storage in ends for storage in task.makes)
            and len(uses) <= INLINED_USES
            and all(is_fused(use) for use in uses)
        )
        for storage in task.makes:
            behind[storage] = sources if inlined else frozenset((storage,))
            if not inlined:
                last.setdefault(storage, place)
    end = len(tasks.tasks)
    for storage in ends:
        last[storage] = end
    return _peak(tasks, last, behind, frees=frees)


def _peak(
    tasks: Tasks, last: dict[Storage, int], behind: dict[Storage, frozenset[Storage]], *, frees: bool
) -> int:
    change = [0] * (len(tasks.tasks) + 2)
    for storage, place in last.items():
        if storage.producer is None and not frees:
            continue
        if storage.producer is not None and behind[storage] != frozenset((storage,)):
            continue
        start = 0 if storage.producer is None else storage.producer.index
        change[start] += allocated(storage)
        change[place + 1] -= allocated(storage)
    now = most = 0
    for step in change:
        now += step
        most = max(most, now)
    return most


def _reads(task: Task, tasks: Tasks) -> list[Storage]:
    """What a task reads, given storages included."""
    found = list(task.reads)
    found += [s for node in task.node.all_input_nodes for s in tasks.storages_of[node] if s.producer is None]
    return list(dict.fromkeys(found))

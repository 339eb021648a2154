"""Which tasks may write their result over what they read, as eager PyTorch does where it adds up gradients.

Capture makes the graph functional: every result is new memory. A sum whose first term nobody else reads may
as well be written over that term: the bits are the same, there is one buffer less, and nothing is taken anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

from scrimp._torch import runtime
from scrimp._torch.graph import Storage, Task, Tasks

aten: Any = torch.ops.aten
IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.relu.default: aten.relu_.default,
    runtime.add_lines: runtime.add_lines,
    runtime.add_product: runtime.add_product,
    runtime.join: runtime.join,
}
"""Operators whose form in place rounds alike, element by element."""
ALWAYS = (runtime.add_lines, runtime.add_product, runtime.join)
"""Those that have no other form."""


def mark(tasks: Tasks, kept: Iterable[Node]) -> None:
    """Mark tasks that may write over their first argument; what is ``kept`` is left alone."""
    readers = Counter(storage for task in tasks.tasks for storage in task.reads)
    wanted = {storage for node in kept for storage in tasks.storages_of[node]}
    for task in tasks.tasks:
        storage = _overwritten(task, tasks)
        if storage is not None and readers[storage] == 1 and storage not in wanted:
            task.overwrites = storage
        assert task.overwrites is not None or task.node.target not in ALWAYS


def _overwritten(task: Task, tasks: Tasks) -> Storage | None:
    """The storage behind the first argument, if it is just like the result's."""
    node = task.node
    if node.target not in IN_PLACE or node.kwargs or len(task.makes) != 1:
        return None
    first, *others = node.args
    if not isinstance(first, Node) or len(tasks.storages_of[first]) != 1:
        return None
    (storage,) = tasks.storages_of[first]
    mine, result = first.meta["val"], node.meta["val"]
    alike = (
        storage.producer is not None
        and mine.dtype == result.dtype
        and mine.shape == result.shape
        and mine.stride() == result.stride()
        and mine.device == result.device
        and storage.bytes == task.makes[0].bytes == mine.numel() * mine.element_size()
    )
    shared = any(storage in tasks.storages_of[other] for other in others if isinstance(other, Node))
    return storage if alike and not shared else None

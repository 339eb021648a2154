"""Gradients as autograd leaves them: added to what is there, else in memory of their own."""

from __future__ import annotations

from collections import Counter

import torch
from torch.fx import Node

from scrimp._torch import runtime
from scrimp._torch.capture import Joint, Slot, autocast_mode
from scrimp._torch.casts import share_casts
from scrimp._torch.graph import Storage, analyse
from scrimp.errors import BadOption


def slot_at(joint: Joint, position: int) -> Slot:
    """The parameter that is an input of the graph."""
    slot = joint.placeholders[position]
    if not isinstance(slot, Slot):
        raise BadOption(
            f"tensor {slot} of the batch needs gradients; detach it, or make it a parameter of the model. A "
            "model that differentiates its output by an input can say x = x.detach().requires_grad_() first"
        )
    return slot


def existing_gradient(slot: Slot) -> torch.Tensor:
    """The gradient that is there already."""
    gradient = slot.get().grad
    assert gradient is not None, "the plan is chosen by which gradients are there"
    return gradient.detach()


def add_gradient_nodes(joint: Joint, *, accumulating: bool = False) -> list[Slot]:
    """Give every gradient an end: added in place where there is one already, else its own memory.

    ``accumulating``: as if there were one for each.

    Returns the parameters of the former kind; their gradients become further inputs of the graph, and
    are no outputs any more.
    """
    add_shared(joint)
    graph = joint.module.graph
    storages = analyse(graph).storages_of
    kept = [*joint.results, *(n for _, n in joint.mutations), *(n for _, n in joint.gradients)]
    uses = Counter(storage for node in kept for storage in storages[node])
    accumulated: list[Slot] = []
    remaining: list[tuple[int, Node]] = []
    (output,) = graph.find_nodes(op="output")
    for position, node in joint.gradients:
        slot = slot_at(joint, position)
        parameter = slot.get()
        if parameter.grad is not None or accumulating:
            last = graph.find_nodes(op="placeholder")[-1]
            with graph.inserting_after(last):
                existing = graph.placeholder(f"gradient_{len(accumulated)}")
            existing.meta["val"] = _fake(node, parameter if parameter.grad is None else parameter.grad)
            with graph.inserting_before(output):
                graph.call_function(runtime.accumulate, (existing, node)).meta["val"] = None
            accumulated.append(slot)
            continue
        (storage,) = storages[node]
        if not _is_own(node, storage, uses[storage]) or not _obeys_layout(node.meta["val"], parameter):
            like = parameter if _is_dense(parameter) else torch.empty(parameter.shape, device="meta")
            with graph.inserting_before(output):
                arguments = (node, tuple(like.shape), tuple(like.stride()))
                own = graph.call_function(runtime.conform, arguments)
            value = node.meta["val"]
            with value.fake_mode:
                own.meta["val"] = value.new_empty_strided(like.shape, like.stride())
            node = own
        remaining.append((position, node))
    joint.gradients = remaining
    return accumulated


def add_shared(joint: Joint) -> None:
    """Add up the gradients of a parameter that the model has under several names.

    In the order in which they are computed, which is the order in which autograd adds them.
    """
    if autocast_mode() and torch.is_autocast_cache_enabled():
        share_casts(joint)
    graph = joint.module.graph
    order = {node: i for i, node in enumerate(graph.nodes)}
    groups: dict[int, list[tuple[int, Node]]] = {}
    for position, node in joint.gradients:
        what = joint.placeholders[position]
        key = id(what.get()) if isinstance(what, Slot) else -1 - position
        groups.setdefault(key, []).append((position, node))
    joint.gradients = []
    (output,) = graph.find_nodes(op="output")
    for group in groups.values():
        group.sort(key=lambda entry: order[entry[1]])
        position, total = group[0]
        for _, node in group[1:]:
            with graph.inserting_before(output):
                added = graph.call_function(torch.ops.aten.add.Tensor, (total, node))
            value = total.meta["val"]
            with value.fake_mode:
                added.meta["val"] = value + node.meta["val"]
            total = added
        joint.gradients.append((position, total))


def _fake(node: Node, like: torch.Tensor) -> torch.Tensor:
    mode = node.meta["val"].fake_mode
    with mode:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _is_own(node: Node, storage: Storage, uses: int) -> bool:
    value = node.meta["val"]
    whole = value.numel() * value.element_size() == storage.bytes
    return storage.producer is not None and uses == 1 and whole


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory, each once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _obeys_layout(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Autograd lays a gradient out like its parameter if that is dense, else row by row."""
    if not _is_dense(parameter):
        return gradient.is_contiguous()
    return all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(gradient.shape, gradient.stride(), parameter.stride(), strict=True)
    )

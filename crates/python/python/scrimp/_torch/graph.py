"""Storages and tasks of a captured graph.

Planning is about storages, not tensors: a view shares its base's, and the outputs of one operator have
one each. A node that makes a storage, or has an effect, is a task; a node that only looks at storages
is a view, and is made anew wherever it is needed. What the caller holds (parameters, buffers, the
batch) is given: it is there throughout and no plan can change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from scrimp.errors import Unsupported


@dataclass(eq=False, repr=False)
class Storage:
    """Bytes that one task writes, or that are given."""

    bytes: int
    producer: Task | None
    """None if it is given."""
    device: torch.device
    same: Storage | None = None
    """Of a given one: that which stands for this memory, if the model has it as several inputs."""
    state_of: int | None = None
    """The parameter whose optimizer's state it is, by its place among those that are updated."""


@dataclass(eq=False, repr=False)
class Task:
    """A node that makes storages or has an effect."""

    index: int
    node: Node
    reads: list[Storage]
    """Distinct, without given ones."""
    makes: list[Storage]
    random: bool
    rerunnable: bool
    backward: bool
    overwrites: Storage | None = None
    """What its result is written over: nothing else reads it."""
    given: list[Storage] = field(default_factory=list)
    """What it reads of the inputs."""
    writes: list[Storage] = field(default_factory=list)
    """What it changes in place: who reads what was there before must run earlier."""


@dataclass(repr=False)
class Tasks:
    """The tasks of a graph in its order, and what each node stands for."""

    tasks: list[Task] = field(default_factory=list)
    task_of: dict[Node, Task] = field(default_factory=dict)
    storages_of: dict[Node, list[Storage]] = field(default_factory=dict)
    """Per node, the storages of its tensors; for a view, those it looks at."""
    needs: dict[Node, list[Storage]] = field(default_factory=dict)
    """Per node, what must be in memory to have its value: its own storages, or a view's bases."""
    copies: list[Node] = field(default_factory=list)
    """Nodes that copy a new value into an input, such as running statistics. No tasks."""


def is_random(node: Node) -> bool:
    """Whether it draws from a generator."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    # Attention and recurrent operators are random only where they drop something out.
    probability = node.kwargs.get("dropout_p")
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        for argument, given in zip(schema.arguments, node.args, strict=False):
            if argument.name in ("dropout_p", "dropout"):
                probability = given
    return bool(probability != 0.0)


def copied_into(node: Node) -> Node:
    """What a copy writes to."""
    target = node.args[0]
    assert isinstance(target, Node)
    return target


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a node's value."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def readers(tasks: Tasks, starts: Iterable[Node]) -> set[Task]:
    """The tasks that read some inputs of the graph, through views or not."""
    views = set(starts)
    found: set[Task] = set()
    for node in tasks.storages_of:
        if any(above in views for above in node.all_input_nodes):
            if node in tasks.task_of:
                found.add(tasks.task_of[node])
            else:
                views.add(node)
    return found


def analyse(graph: Graph) -> Tasks:
    """Find storages and tasks of a functional graph whose nodes have fake values."""
    found = Tasks()
    storages: dict[int, Storage] = {}
    backward: set[Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        keys = [
            (tensor.untyped_storage()._cdata, tensor)
            for tensor in tensors_in(node.meta.get("val", node.meta.get("example")))
        ]
        if node.op in ("placeholder", "get_attr"):
            if node.op == "placeholder" and _is_tangent(node):
                backward.add(node)
            given = [storages.setdefault(key, _storage(tensor, None)) for key, tensor in keys]
            found.storages_of[node] = given
            found.needs[node] = []
            continue
        if node.target is torch.ops.aten.copy_.default and copied_into(node).op == "placeholder":
            found.copies.append(node)
            found.storages_of[node] = []
            found.needs[node] = []
            continue
        _refuse_unknown(node)
        if any(above in backward for above in node.all_input_nodes):
            backward.add(node)
        fresh = {key: tensor for key, tensor in keys if key not in storages}
        reads = _distinct(s for above in node.all_input_nodes for s in found.needs[above])
        if fresh or (not keys and not _is_plumbing(node)):
            task = Task(
                index=len(found.tasks),
                node=node,
                reads=reads,
                makes=[],
                random=is_random(node),
                rerunnable=bool(keys),
                backward=node in backward,
                given=_distinct(
                    s
                    for above in node.all_input_nodes
                    for s in found.storages_of[above]
                    if s.producer is None
                ),
            )
            for key, tensor in fresh.items():
                storages[key] = _storage(tensor, task)
                task.makes.append(storages[key])
            _refuse_mixed(node, [storages[key] for key, _ in keys], task)
            found.tasks.append(task)
            found.task_of[node] = task
            found.needs[node] = list(task.makes)
        else:
            found.needs[node] = _view_needs(node, found, reads)
        found.storages_of[node] = [storages[key] for key, _ in keys]
    if any(storage.device.type == "cuda" for storage in storages.values()):
        for storage in storages.values():
            # A GPU's budget is about its own memory: seeds and numbers that are on the CPU take none of it.
            storage.bytes = storage.bytes if storage.device.type == "cuda" else 0
    return found


def _view_needs(node: Node, found: Tasks, reads: list[Storage]) -> list[Storage]:
    """An item of a tuple needs its own storage only; any other view all it is made from."""
    if _is_item(node):
        tuple_node, position = node.args
        assert isinstance(tuple_node, Node) and isinstance(position, int)
        tensors = tensors_in(node.meta["val"])
        if tuple_node in found.task_of and tensors:
            # None among the items shifts positions, so the storage itself decides.
            keys = [t.untyped_storage()._cdata for t in tensors_in(tuple_node.meta["val"])]
            wanted = tensors[0].untyped_storage()._cdata
            return [found.storages_of[tuple_node][keys.index(wanted)]]
    return reads


def _is_item(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and getattr(node.target, "__module__", "") in (
        "_operator",
        "operator",
    )


def _is_plumbing(node: Node) -> bool:
    """An item that is no tensor."""
    return _is_item(node)


def _is_tangent(node: Node) -> bool:
    desc = node.meta.get("desc")
    return desc.is_tangent() if desc is not None else node.name.startswith("tangents")


def _storage(tensor: torch.Tensor, producer: Task | None) -> Storage:
    return Storage(tensor.untyped_storage().nbytes(), producer, tensor.device)


def _distinct(storages: Iterator[Storage]) -> list[Storage]:
    return list(dict.fromkeys(storages))


def _refuse_unknown(node: Node) -> None:
    """Only what is known to be a function of its inputs can be run again."""
    if node.op != "call_function":
        raise Unsupported(f"the captured graph has a node of kind {node.op} ({node.name})")
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise Unsupported(
            f"the model uses {target.name()}, which calls other graphs and can't be planned yet; "
            "if it comes from torch.utils.checkpoint, remove the checkpointing: the plan replaces it"
        )
    schema = getattr(target, "_schema", None)
    if schema is not None and schema.is_mutable:
        raise Unsupported(
            f"{target} ({node.name}) changes its inputs in place even after capture, so running it "
            "again isn't safe"
        )


def _refuse_mixed(node: Node, storages: list[Storage], task: Task) -> None:
    if any(storage not in task.makes for storage in storages):
        raise Unsupported(f"{node.target} ({node.name}) returns new memory and a view of old memory together")

"""What operators truly give, found by running each once on made-up numbers.

Capture asks PyTorch what results look like without computing them. For a GPU the answers aren't always what
its kernels return: seeds of attention are on the CPU in truth, and only cuDNN knows how large its reserves
are. With a wrong answer bytes are counted wrongly, and a kernel that is measured may read what isn't there.
So no list of such operators is kept: each one's results are looked at.
"""

from __future__ import annotations

import contextlib
import operator as operators
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from scrimp._torch import runtime
from scrimp._torch.graph import tensors_in

Look = tuple[torch.dtype, torch.device, tuple[int, ...], tuple[int, ...], int, int, int]
"""Type, device, shape, strides, offset and bytes of the storage, and which of the results' storages it is."""


@contextlib.contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Run captured operators on a device for their own sake: generators stay as they are."""
    cuda = [device] if device.type == "cuda" else []
    # Events are recorded on the current device's stream.
    there = torch.cuda.device(device) if cuda else contextlib.nullcontext()
    # What autocast does is part of the graph.
    uncast = torch.autocast(device.type, enabled=False)
    # Compilers ask for plans while tensors have no contents.
    with unset_fake_temporarily(), there, torch.no_grad(), uncast, torch.random.fork_rng(devices=cuda):
        yield


def runner(node: Node, device: torch.device) -> Callable[[], Any]:
    """A function that runs an operator for real.

    Numbers to compute with are made up. Whatever else an operator with several results has left (indices,
    masks, seeds, reserves) is what that operator returns: there is no telling what a kernel does with it.
    """
    made: dict[Node, Any] = {}

    def real(argument: Any) -> Any:
        if not isinstance(argument, Node):
            return argument
        source = _source(argument)
        if source is None:
            value = argument.meta.get("val")
            return tree_map(lambda v: _filled(v, device) if isinstance(v, Tensor) else v, value)
        above, place = source
        if above not in made:
            made[above] = runner(above, device)()
        return made[above][place]

    args, kwargs = _arguments(node, real)
    made.clear()
    target: Any = node.target
    return lambda: target(*args, **kwargs)


def _arguments(node: Node, value_of: Callable[[Any], Any]) -> tuple[Any, Any]:
    return map_aggregate(node.args, value_of), map_aggregate(dict(node.kwargs), value_of)


def _source(node: Node) -> tuple[Node, int] | None:
    """The operator among whose results this is, and its place there, if it is no number to compute with."""
    while node.target is torch.ops.aten.detach.default:
        (node,) = node.all_input_nodes
    value = node.meta.get("val")
    if node.target is not operators.getitem or not isinstance(value, Tensor):
        return None
    above, place = node.args
    if value.is_floating_point() or value.is_complex() or not isinstance(above, Node):
        return None
    assert isinstance(place, int)
    return above, place


def _filled(like: Tensor, device: torch.device) -> Tensor:
    """Real contents for a fake tensor: small numbers, and index 0, which is always valid."""
    where = device if like.device.type == device.type else like.device
    # Expanded tensors have elements that share memory, so the memory is filled, not the tensor.
    reach = sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    memory = torch.zeros(reach + 1 if like.numel() else 0, dtype=like.dtype, device=where)
    if memory.is_floating_point() or memory.is_complex():
        memory += 0.5
    return memory.as_strided(like.shape, like.stride())


def true_results(graph: Graph, device: torch.device) -> None:
    """Put right what a graph's nodes say of their values.

    An operator that can't run on made-up numbers keeps what capture says; to measure it is refused.
    """
    values = (t for node in graph.nodes for t in tensors_in(node.meta.get("val")))
    mode = next((t.fake_mode for t in values if isinstance(t, FakeTensor)), None)
    known: dict[str, list[Any] | None] = {}
    changed: set[Node] = set()
    with aside(device):
        for node in graph.nodes:
            if node.op != "call_function" or mode is None:
                continue
            if not changed.isdisjoint(node.all_input_nodes):
                _work_out(node, mode, changed)
            if not _makes(node):
                continue
            key = key_of(node)
            if key not in known:
                known[key] = _looks_of(node, device)
            if _put(node, known[key], mode):
                changed.add(node)


WRITING = (runtime.join, runtime.add_lines)


def key_of(node: Node) -> str:
    """The operator and all that its cost and the looks of its results depend on."""

    def shown(argument: Any) -> Any:
        if isinstance(argument, Node):
            return [_shape(t) for t in tensors_in(argument.meta.get("val"))]
        return repr(argument)

    args, kwargs = _arguments(node, shown)
    # A tile is written as fast to any place.
    arguments = [args[:-1] if node.target in WRITING else args, kwargs]
    name = str(node.target) if hasattr(node.target, "_schema") else node._pretty_print_target(node.target)
    return f"{name} {arguments}"


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}{list(tensor.stride())}"


def _makes(node: Node) -> bool:
    """Whether it makes storages, and changes none."""
    if getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        return False
    given = {_storage(t) for above in node.all_input_nodes for t in tensors_in(above.meta.get("val"))}
    return any(_storage(t) not in given for t in tensors_in(node.meta.get("val")))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _work_out(node: Node, mode: FakeTensorMode, changed: set[Node]) -> None:
    """Have PyTorch say anew what a value looks like whose arguments look otherwise."""
    target: Any = node.target
    args, kwargs = _arguments(node, lambda a: a.meta.get("val") if isinstance(a, Node) else a)
    before = node.meta.get("val")
    with mode:
        node.meta["val"] = target(*args, **kwargs)
    # Views are of other storages now.
    if not _makes(node) or _looks(node.meta["val"]) != _looks(before):
        changed.add(node)


def _looks_of(node: Node, device: torch.device) -> list[Any] | None:
    try:
        return _looks(runner(node, device)())
    except RuntimeError:
        return None


def _looks(value: Any) -> list[Any]:
    """What each of an operator's results looks like: a `Look` of tensors, all else as it is."""
    places: dict[int, int] = {}
    return [_look(leaf, places) if isinstance(leaf, Tensor) else leaf for leaf in tree_flatten(value)[0]]


def _look(tensor: Tensor, places: dict[int, int]) -> Look:
    place = places.setdefault(_storage(tensor), len(places))
    numbers = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
    return tensor.dtype, tensor.device, *numbers, tensor.untyped_storage().nbytes(), place


def _put(node: Node, looks: list[Any] | None, mode: FakeTensorMode) -> bool:
    """Let a node's value look as it truly does; say whether it didn't."""
    leaves, form = tree_flatten(node.meta["val"])
    if looks is None or looks == _looks(node.meta["val"]):
        return False
    storages: dict[int, Any] = {}
    for i, look in enumerate(looks):
        if isinstance(look, tuple):
            leaves[i] = _fake(look, storages, mode)
        elif look is None:
            leaves[i] = None
    node.meta["val"] = tree_unflatten(leaves, form)
    return True


def _fake(look: Look, storages: dict[int, Any], mode: FakeTensorMode) -> FakeTensor:
    dtype, device, shape, stride, offset, size, place = look
    if place not in storages:
        storages[place] = torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage()
    bare = torch.empty(0, dtype=dtype, device="meta").set_(storages[place], offset, shape, stride)
    return FakeTensor(mode, bare, device)

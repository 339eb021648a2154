"""Which module of the model a node of a captured graph is from."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections import OrderedDict
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

KEY = "scrimp_module"
"""Where a node's metadata has the module's path."""


@contextlib.contextmanager
def same_attributes(root: nn.Module) -> Iterator[None]:
    """Put all modules' attributes back as they are now, such as tensors that a pass leaves there."""
    modules = list(root.modules())
    states = [dict(vars(module)) for module in modules]
    lists = [{k: list(v) for k, v in state.items() if type(v) is list} for state in states]
    tables = [{k: dict(v) for k, v in state.items() if type(v) in (dict, OrderedDict)} for state in states]
    try:
        yield
    finally:
        for module, state, plain, named in zip(modules, states, lists, tables, strict=True):
            for key, items in plain.items():
                state[key][:] = items
            for key, entries in named.items():
                state[key].clear()
                state[key].update(entries)
            vars(module).clear()
            vars(module).update(state)


@contextlib.contextmanager
def same_tensors(*roots: Any) -> Iterator[None]:
    """Put parameters and buffers back as they are now.

    PyTorch puts others in their place while it captures, and leaves them in modules with several paths.
    """
    modules = [module for root in roots if isinstance(root, nn.Module) for module in root.modules()]
    tables: list[dict[str, Any]] = [t for module in modules for t in (module._parameters, module._buffers)]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)


def forget_cached(root: nn.Module) -> None:
    """Empty the caches of functions in the model and beside its classes, which may hold fake tensors."""
    modules = list(root.modules())
    classes = {base for module in modules for base in type(module).__mro__}
    beside = {sys.modules[base.__module__] for base in classes if base.__module__ in sys.modules}
    for holder in [*modules, *classes, *beside]:
        for value in list(vars(holder).values()):
            for cached in (value, *_closed_over(value)):
                if isinstance(cached, functools._lru_cache_wrapper):
                    cached.cache_clear()


def _closed_over(value: Any) -> Iterator[Any]:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    for cell in (function.__closure__ or ()) if isinstance(function, FunctionType) else ():
        with contextlib.suppress(ValueError):
            yield cell.cell_contents


class Spans:
    """Which modules ran when, by autograd's sequence numbers.

    A node of the forward pass has the number that autograd had reached; one of the backward pass has
    that of the operator whose gradient it works out.
    """

    def __init__(self, root: nn.Module) -> None:
        """Know the modules below ``root``, which itself has no name."""
        self.paths = {module: path for path, module in root.named_modules()}
        self.running: list[tuple[int, str]] = []
        self.done: list[tuple[int, int, str]] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Note what runs."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def here(self) -> str:
        """The innermost module that is running."""
        return next((path for _, path in reversed(self.running) if path), "")

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.running.append((torch._C._autograd._get_sequence_nr(), self.paths.get(module, "")))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        start, path = self.running.pop()
        if path:
            self.done.append((start, torch._C._autograd._get_sequence_nr(), path))

    def mark(self, graph: Graph) -> None:
        """Write paths into the nodes' metadata."""
        inner: dict[int, str] = {}
        # What is inside of another ends before it.
        for start, end, path in reversed(self.done):
            inner.update((number, path) for number in range(start, end))
        for node in graph.nodes:
            number = node.meta.get("seq_nr")
            if number in inner and node.op == "call_function":
                node.meta[KEY] = inner[number]


def module_of(node: Node) -> str:
    """The path of the module that a node is from, or nothing."""
    if KEY in node.meta:
        return str(node.meta[KEY])
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    # As torch.compile writes it: L['self'].blocks.0 or L['self']._modules['blocks'].
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", str(next(reversed(stack.values()))[0]))
    return re.sub(r"^L\['[^']*'\]\.?", "", path)

"""Which module of the model a node of a captured graph is from."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

KEY = "scrimp_module"
"""Where a node's metadata has the module's path."""


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

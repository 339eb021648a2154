"""New nodes of a graph that know what their results look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from scrimp._torch.graph import tensors_in
from scrimp._torch.modules import KEY, module_of


def emit(
    graph: Graph,
    of: Node,
    target: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    value: Any = None,
) -> Node:
    """Add an operator that stands for a part ``of`` another, with what its result looks like."""
    node = graph.call_function(target, tuple(args), kwargs)
    if module_of(of):
        node.meta[KEY] = module_of(of)
    node.meta["val"] = worked_out(of, node) if value is None else value
    return node


def worked_out(of: Node, node: Node) -> Any:
    target: Any = node.target
    value_of: Callable[[Node], Any] = lambda n: n.meta["val"]  # noqa: E731
    args, kwargs = map_arg((node.args, dict(node.kwargs)), value_of)
    values = [
        *tensors_in(of.meta["val"]),
        *(t for n in of.all_input_nodes for t in tensors_in(n.meta["val"])),
    ]
    kind = values[0].device.type
    with values[0].fake_mode, torch.no_grad(), torch.autocast(kind, enabled=False):  # type: ignore[attr-defined]
        return target(*args, **kwargs)

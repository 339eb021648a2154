"""Casts of parameters under autocast, as eager makes them: once each.

Eager keeps the cast of a parameter until autocast ends, so all uses share it and their gradients are added
up in the lower type. Capture casts at every use and adds up in the parameter's own type, which rounds
differently. Here the casts of one parameter become one again, and their gradients with them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from scrimp._torch.capture import Joint, Slot

CAST = torch.ops.aten._to_copy.default
ADD = torch.ops.aten.add.Tensor


def share_casts(joint: Joint) -> None:
    """Make one of the casts of each parameter."""
    graph = joint.module.graph
    placeholders = graph.find_nodes(op="placeholder")
    for i, (position, gradient) in enumerate(joint.gradients):
        parameter = placeholders[position]
        if not isinstance(joint.placeholders[position], Slot):
            continue
        every = graph.find_nodes(op="call_function", target=CAST)
        casts = [node for node in every if node.args[0] is parameter and node.users]
        if len(casts) < 2 or any(node.kwargs != casts[0].kwargs for node in casts):
            continue
        for node in casts[1:]:
            node.replace_all_uses_with(casts[0])
            graph.erase_node(node)
        joint.gradients[i] = (position, _summed_in_lower_type(graph, gradient, casts[0]))


def _summed_in_lower_type(graph: Graph, gradient: Node, cast: Node) -> Node:
    """Add up the gradients of a cast first, in their order, and then cast the sum."""
    lower = cast.meta["val"].dtype
    sums, terms = _terms(gradient)
    casted = [term for term in terms if _is_cast_from(term, lower)]
    if len(casted) < 2:
        return gradient
    first, last = casted[0], casted[-1]
    total: Any = first.args[0]
    whole: Node | None = None
    for term in terms:
        place = sums.get(term)
        new: Node | None = term
        if term in casted:
            if term is not first:
                assert place is not None
                total = _insert(graph, place, ADD, (total, term.args[0]), {})
            new = _insert(graph, place, CAST, (total,), dict(last.kwargs)) if term is last and place else None
        if whole is None:
            whole = new
        elif new is not None and place is not None:
            whole = _insert(graph, place, ADD, (whole, new), {})
    assert whole is not None
    gradient.replace_all_uses_with(whole)
    for node in [*reversed(list(sums.values())), *casted]:
        if not node.users:
            graph.erase_node(node)
    return whole


def _terms(total: Node) -> tuple[dict[Node, Node], list[Node]]:
    """The terms that autograd added up one after another, and for each but the first its sum."""
    sums: dict[Node, Node] = {}
    terms: list[Node] = []
    while total.target is ADD and not total.kwargs and (not terms or len(total.users) == 1):
        before, term = total.args
        if not isinstance(before, Node) or not isinstance(term, Node):
            break
        sums[term] = total
        terms.append(term)
        total = before
    return dict(reversed(sums.items())), [total, *reversed(terms)]


def _is_cast_from(node: Node, dtype: torch.dtype) -> bool:
    source = node.args[0] if node.target is CAST else None
    return isinstance(source, Node) and source.meta["val"].dtype == dtype and len(node.users) == 1


def _insert(graph: Graph, before: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    with graph.inserting_before(before):
        node = graph.call_function(target, args, kwargs)
    values = [arg.meta["val"] for arg in args]
    with values[0].fake_mode:
        node.meta["val"] = target(*values, **kwargs)
    return node

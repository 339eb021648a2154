"""Batch norm in training mode taken apart, so that tiles can run it.

Statistics are of all lines of an image: two sums, of which each tile adds up its own part, first for the
mean, then for the variance. The gradient takes two sums as well. With these it is what is linear in the
gradient behind it, and an affine function of the image, as the normalized image is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from scrimp._torch.capture import Joint
from scrimp._torch.nodes import emit
from scrimp._torch.places import aten, shape_of
from scrimp._torch.strips import HEIGHT, has_lines, strip_inputs
from scrimp._torch.tiles import place_of, results_of

FIXED = aten._native_batch_norm_legit_no_training.default
BACKWARD = aten.native_batch_norm_backward.default
TRAINING = (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)
OVER = [0, 2, 3]


def separated(joint: Joint, height: int, but: Collection[str]) -> dict[str, list[Node]]:
    """Take apart the batch norms of images of at least that height, but some; give the operators on images.

    They go by the names that the norms had.
    """
    graph, found = joint.module.graph, {}
    for node in [node for node in graph.nodes if node.target in TRAINING and node.name not in but]:
        image = node.args[0]
        if has_lines(image.meta["val"]) and shape_of(image)[HEIGHT] >= height:
            norm = _Norm(graph, node)
            norm.separate()
            joint.replace(norm.standing_for)
            found[node.name] = norm.wide
    return found


class _Norm:
    """A batch norm while it is taken apart."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        given: Any = node.args
        self.image, self.weight, self.bias, *self.running, _, self.momentum, self.eps = given
        shape = shape_of(self.image)
        self.channels, self.count = shape[1], math.prod(shape) // shape[1]
        self.now: dict[Node, Node] = {}
        """What stands for the norm's results."""
        self.wide: list[Node] = []
        """The operators that see images."""

    def separate(self) -> None:
        """Write the new operators, and let others read what they give."""
        results = {place_of(item): item for item in results_of(self.node)}
        kind = self.node.meta["val"][1].dtype
        with self.graph.inserting_before(self.node):
            whole = self.image.meta["val"].dtype in (torch.bfloat16, torch.float16)
            wide = {"dtype": torch.float32} if whole else {}
            mean = self.add(aten.mean.dim, self.image, OVER, True, **wide)
            apart = self.add(aten.sub.Tensor, self.image, mean)
            variance = self.add(aten.mean.dim, self.add(aten.mul.Tensor, apart, apart), OVER, True)
            self.mean, self.variance = self.flat(mean, kind), self.flat(variance, kind)
            spread = self.add(aten.rsqrt.default, self.add(aten.add.Scalar, self.variance, self.eps))
            norm = self.add(
                FIXED, self.image, self.weight, self.bias, self.mean, self.variance, 0.0, self.eps
            )
            given = [self.add(operator.getitem, norm, 0), self.mean, spread]
            if self.running:
                unbiased = self.count / max(self.count - 1, 1)
                given.append(self.average(self.running[0], self.mean, 1.0))
                given.append(self.average(self.running[1], self.variance, unbiased))
        users = dict.fromkeys(user for item in results.values() for user in item.users)
        for user in [user for user in users if user.target is BACKWARD]:
            self.separate_backward(user, spread)
        for place, item in results.items():
            item.replace_all_uses_with(given[place])
            self.now[item] = given[place]
            self.graph.erase_node(item)
        self.graph.erase_node(self.node)

    def standing_for(self, node: Node) -> Node:
        """What gives what a node gave."""
        return self.now.get(node, node)

    def add(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add an operator."""
        new = emit(self.graph, self.node, target, args, kwargs)
        if target is not operator.getitem and strip_inputs(new):
            self.wide.append(new)
        return new

    def flat(self, statistic: Node, kind: torch.dtype) -> Node:
        """A statistic per channel."""
        flat = self.add(aten.view.default, statistic, [self.channels])
        if flat.meta["val"].dtype == kind:
            return flat
        return self.add(aten._to_copy.default, flat, dtype=kind)

    def average(self, before: Node, now: Node, factor: float) -> Node:
        """A running average."""
        left = self.add(aten.mul.Scalar, before, 1 - self.momentum)
        return self.add(aten.add.Tensor, left, now, alpha=self.momentum * factor)

    def separate_backward(self, node: Node, spread: Node) -> None:
        """Write its gradient as what is linear in the one behind it, and an affine function of the image."""
        gradient, *_, mask = node.args
        results = results_of(node)
        with self.graph.inserting_before(node):
            fixed = self.mean, self.variance, self.mean, spread, False, self.eps
            linear = self.add(BACKWARD, gradient, self.image, self.weight, *fixed, [mask[0], True, True])  # type: ignore[index]
            made = {place: self.add(operator.getitem, linear, place) for place in (1, 2)}
            if any(place_of(item) == 0 for item in results):
                made[0] = self.gradient_of(self.add(operator.getitem, linear, 0), spread, made)
        for item in results:
            item.replace_all_uses_with(made[place_of(item)])
            self.now[item] = made[place_of(item)]
            self.graph.erase_node(item)
        self.graph.erase_node(node)

    def gradient_of(self, linear: Node, spread: Node, sums: dict[int, Node]) -> Node:
        """The image's gradient."""
        scale = self.add(aten.div.Scalar, spread, -self.count)
        if self.weight is not None:
            scale = self.add(aten.mul.Tensor, scale, self.weight)
        factor, offset = (self.add(aten.mul.Tensor, sums[place], scale) for place in (1, 2))
        rest = self.add(FIXED, self.image, factor, offset, self.mean, self.variance, 0.0, self.eps)
        return self.add(aten.add.Tensor, linear, self.add(operator.getitem, rest, 0))

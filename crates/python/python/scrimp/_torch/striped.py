"""One tile of a part that is run by strips: which lines of what it has, and its operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch.fx import Node

from scrimp._torch.places import aten, shape_of
from scrimp._torch.strips import HEIGHT, Made, Span, Strip, lines
from scrimp._torch.tiles import is_item, place_of, results_of


class Unreachable(Exception):
    """A tile has no line of what it would read: it lies wholly in padding."""


def hull(first: Span | None, second: Span) -> Span:
    """The lines from the first of either to the last."""
    return second if first is None else (min(first[0], second[0]), max(first[1], second[1]))


class Tile:
    """A tile while it is run; see `strips.Strips` for what operators ask of it."""

    def __init__(
        self,
        strips: Mapping[Node, Strip],
        order: Sequence[Node],
        leaving: Collection[Node],
        share: tuple[int, int],
    ) -> None:
        """Work out lines: ``order`` are the part's operators, ``leaving`` what is needed whole of them.

        ``share`` is the tile's number and how many there are.
        """
        self.strips = strips
        self.share = share
        self.given: dict[Node, Span] = {}
        """Lines of the gradient that each operator of the backward pass gets."""
        self.made: dict[Node, Span] = {}
        """Lines that each operator gives."""
        self.local: dict[Node, Node] = {}
        self.cut: dict[tuple[Node, Span], Node] = {}
        self._add: Callable[..., Node]
        self._now: Mapping[Node, Node]
        for node in order:
            own = strips[node].own
            if own is not None:
                self.made[node] = self.core(own)
            if strips[node].gradients:
                for gradient in strips[node].gradients:
                    above = _producer(gradient)
                    span = self.made[above] if self._is_part(above) else self.core(gradient)
                    self.given[node] = hull(self.given.get(node), span)
                self.made[node] = _checked(strips[node].spread(self.given[node]))
        for result in leaving:
            if not strips[_producer(result)].gradients:
                self._want(result, self.core(result))
        for node in order:
            if strips[node].gradients:
                self._want_all(strips[node].values(self.given[node]))
                for gradient in strips[node].gradients:
                    if not self._is_part(_producer(gradient)):
                        self._want(gradient, self.core(gradient))
        for node in reversed(order):
            if not strips[node].gradients and node in self.made:
                self._want_all(strips[node].values(self.made[node]))

    def _is_part(self, node: Node) -> bool:
        """Whether what it gives is a part of a gradient, and not lines of a value or a gradient."""
        return node in self.strips and bool(self.strips[node].gradients)

    def core(self, tensor: Node) -> Span:
        """The lines of a tensor that are this tile's and no other's."""
        number, count = self.share
        height = shape_of(tensor)[HEIGHT]
        return height * number // count, height * (number + 1) // count

    def _want_all(self, spans: Mapping[Node, Span]) -> None:
        for tensor, span in spans.items():
            self._want(tensor, _checked(span))

    def _want(self, tensor: Node, span: Span) -> None:
        node = _producer(tensor)
        if node in self.strips:
            self.made[node] = hull(self.made.get(node), span)

    def run(self, node: Node, add: Callable[..., Node], now: Mapping[Node, Node]) -> Made:
        """Run an operator, if the tile needs it; give its results by place."""
        self._add, self._now = add, now
        strip = self.strips[node]
        span = self.given[node] if strip.gradients else self.made.get(node)
        if span is None:
            return {}
        made = strip.run(self, span)
        for result in results_of(node):
            place = place_of(result)
            if place in made and place not in strip.sums:
                self.local[result] = made[place]
        return made

    def own(self, result: Node) -> Node:
        """The lines of a value that are this tile's and no other's."""
        start, end = self.core(result)
        first = self.made[_producer(result)][0]
        return lines(self, result, self.local[result], start - first, end - first)

    def value(self, tensor: Node, span: Span) -> Node:
        """Lines of a value."""
        if (tensor, span) not in self.cut:
            here = self.local.get(tensor)
            first = 0 if here is None else self.made[_producer(tensor)][0]
            whole = self._now[tensor] if here is None else here
            self.cut[tensor, span] = lines(self, tensor, whole, span[0] - first, span[1] - first)
        return self.cut[tensor, span]

    def gradient(self, tensor: Node, span: Span) -> Node:
        """Lines of the tile's part of a gradient, which is zero where it has none."""
        node = _producer(tensor)
        first, last = self.made[node] if self._is_part(node) else self.core(tensor)
        part = self.local[tensor] if self._is_part(node) else self.value(tensor, (first, last))
        if (first, last) == span:
            return part
        around = [0, 0, first - span[0], span[1] - last]
        return self.add(tensor, aten.constant_pad_nd.default, part, around, 0.0)

    def whole(self, tensor: Node) -> Node:
        """A tensor that has no lines."""
        return self.local[tensor] if tensor in self.local else self._now[tensor]

    def add(self, of: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Run an operator."""
        return self._add(of, target, args, kwargs)

    def span_of(self, node: Node) -> Span:
        """Lines of a value that the tile has."""
        return self.made[_producer(node)]


def _producer(tensor: Node) -> Node:
    above = tensor.args[0] if is_item(tensor) else tensor
    assert isinstance(above, Node)
    return above


def _checked(span: Span) -> Span:
    if span[0] >= span[1]:
        raise Unreachable
    return span

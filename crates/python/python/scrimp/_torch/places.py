"""Where the rows of tensors are, which `rows` says what operators do with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Picked:
    """Some rows of all: of ``size`` groups of ``inner`` rows, ``outer`` times over, those of a slice."""

    outer: int
    size: int
    inner: int
    start: int
    end: int
    step: int

    @staticmethod
    def of(shape: Sequence[int], dim: int, start: int | None, end: int | None, step: int) -> Picked:
        """Those of a slice along a dimension of rows of this shape."""
        first, last, _ = slice(start, end).indices(shape[dim])
        return Picked(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]), first, last, step)

    @property
    def count(self) -> int:
        """How many there are."""
        return self.outer * len(range(self.start, self.end, self.step)) * self.inner

    @property
    def slice(self) -> tuple[int, int, int]:
        """What a slice of groups takes."""
        return self.start, self.end, self.step


@dataclass(frozen=True)
class Rows:
    """Where the rows of a tensor are: in ``count`` dimensions from ``at`` on."""

    at: int
    count: int = 1
    picked: Picked | None = None
    """Those that count, if not all do: the others are never looked at, or zero."""

    @property
    def end(self) -> int:
        """The first dimension after them."""
        return self.at + self.count

    def moved_to(self, at: int, count: int | None = None) -> Rows:
        """The same in other dimensions."""
        return dataclasses.replace(self, at=at, count=self.count if count is None else count)

    def whole(self, shape: Sequence[int]) -> int:
        """How many there are."""
        return math.prod(shape[self.at : self.end])

    def of(self, shape: Sequence[int]) -> int:
        """How many count."""
        return self.whole(shape) if self.picked is None else self.picked.count

    def holds(self, dim: int) -> bool:
        """Whether a dimension is one of theirs."""
        return self.at <= dim < self.end

    def cut(self, shape: Sequence[int], *sizes: int) -> list[int]:
        """The shape with so many rows, which have one dimension then, or as many as there are sizes."""
        return [*shape[: self.at], *sizes, *shape[self.end :]]

    def moved(self, dim: int) -> int:
        """Where a dimension is in such a shape: the first of theirs, or none of them."""
        return dim if dim <= self.at else dim - self.count + 1


@dataclass(frozen=True)
class Alone(Rows):
    """A tensor that has one row for all: it is read whole, with one dimension in place of these."""


class Sum:
    """A tensor that is a sum over rows."""


SUM = Sum()
Place = Rows | Sum | None
"""How the rows show in a tensor; None: not at all, so it is read whole."""


def plain(rows: Rows, shape: Sequence[int]) -> Rows:
    """The same rows without dimensions of one element at their ends."""
    at, end = rows.at, rows.end
    while end - at > 1 and shape[at] == 1:
        at += 1
    while end - at > 1 and shape[end - 1] == 1:
        end -= 1
    return rows.moved_to(at, end - at)


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of a node's tensor."""
    return tuple(node.meta["val"].shape)


def tensor_inputs(node: Node) -> list[Node]:
    """The inputs that are tensors."""
    return [above for above in node.all_input_nodes if isinstance(above.meta.get("val"), Tensor)]

"""Where the rows of tensors are, which `rows` says what operators do with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
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
    """Where the rows of a tensor are: in these dimensions, in ascending order."""

    dims: tuple[int, ...]
    picked: Picked | None = None
    """Those that count, if not all do: the others are never looked at, or zero."""

    @property
    def last(self) -> int:
        """The last dimension, in which some rows are together."""
        return self.dims[-1]

    def moved(self, dims: Iterable[int]) -> Rows:
        """The same in other dimensions."""
        return dataclasses.replace(self, dims=tuple(dims))

    def sizes(self, shape: Sequence[int]) -> list[int]:
        """The sizes of their dimensions."""
        return [shape[dim] for dim in self.dims]

    def whole(self, shape: Sequence[int]) -> int:
        """How many there are."""
        return math.prod(self.sizes(shape))

    def of(self, shape: Sequence[int]) -> int:
        """How many count."""
        return self.whole(shape) if self.picked is None else self.picked.count

    def holds(self, dim: int) -> bool:
        """Whether a dimension is one of theirs."""
        return dim in self.dims

    def apart(self, shape: Sequence[int]) -> bool:
        """Whether other dimensions lie between them."""
        between = range(self.dims[0], self.last)
        return any(shape[dim] != 1 for dim in between if not self.holds(dim))

    def some(self, shape: Sequence[int], number: int) -> list[int]:
        """The shape of so many rows: they have the last dimension, and the others have one element."""
        return [number if d == self.last else 1 if self.holds(d) else size for d, size in enumerate(shape)]

    def split(self, shape: Sequence[int], *sizes: int) -> list[int]:
        """The shape with such dimensions in place of theirs, which are neighbours."""
        return [*shape[: self.dims[0]], *sizes, *shape[self.last + 1 :]]


class Sum:
    """A tensor that is a sum over rows."""


SUM = Sum()
Place = Rows | Sum | None
"""How the rows show in a tensor; None: not at all, so it is read whole."""


def plain(rows: Rows, shape: Sequence[int]) -> Rows:
    """The same rows without dimensions of one element."""
    return rows.moved([dim for dim in rows.dims if shape[dim] != 1] or rows.dims[-1:])


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of a node's tensor."""
    return tuple(node.meta["val"].shape)


def tensor_inputs(node: Node) -> list[Node]:
    """The inputs that are tensors."""
    return [above for above in node.all_input_nodes if isinstance(above.meta.get("val"), Tensor)]

"""From a batch to the plan that serves it: what decides the graph, and the plans made so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from scrimp._torch.questions import Guard
from scrimp._torch.settings import Settings, mark, mode
from scrimp.errors import BadOption


class Guarded(Protocol):
    """A plan that serves the batches for which its guard holds."""

    guard: Guard


Planned = TypeVar("Planned", bound=Guarded)


@dataclass(repr=False)
class Batch:
    """What a step or module is called with, taken apart: tensors are inputs, all else is constant."""

    leaves: list[Any]
    spec: TreeSpec
    tensors: list[Tensor]

    @staticmethod
    def of(whole: Any) -> Batch:
        """Take it apart."""
        leaves, spec = tree_flatten(whole)
        return Batch(leaves, spec, [leaf for leaf in leaves if isinstance(leaf, Tensor)])

    @property
    def marks(self) -> Any:
        """What of it decides the graph."""
        return self.spec, tuple(map(mark, self.leaves))

    def filler(self) -> Callable[[Sequence[Tensor]], Any]:
        """Give a function that puts other tensors in place of these; it holds none of these."""
        spec = self.spec
        constants = [None if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]

        def filled(tensors: Sequence[Tensor]) -> Any:
            leaves = list(constants)
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            return tree_unflatten(leaves, spec)

        return filled


class Plans(Generic[Planned]):
    """The plans of one model, made when a batch needs one that isn't there."""

    def __init__(self, model: nn.Module, loss_fn: Any, settings: Settings) -> None:
        """Start without plans."""
        self.model = model
        self.loss_fn = loss_fn
        self.settings = settings
        self._made: dict[Any, list[Planned]] = {}
        self._latest: Planned | None = None

    def find(self, batch: Batch, make: Callable[[], Planned], *, accumulating: bool = False) -> Planned:
        """Give the plan for a batch and the model as it is now; have it made on first sight.

        ``accumulating``: as if all gradients were there.
        """
        shapes = batch.marks
        key = (shapes, mode(self.model, self.loss_fn, accumulating=accumulating))
        there = self._made.get(key, [])
        planned = next((one for one in there if one.guard.holds(batch.tensors)), None)
        if planned is None:
            known = {planned_for for planned_for, _ in self._made}
            self.settings.may_plan(shapes, known, batch.tensors)
            if len(there) >= self.settings.max_shapes:
                raise BadOption(
                    f"plans for {len(there)} courses of the model were made for batches of this shape, the "
                    f"most allowed, and this batch would need another: {there[0].guard.about()}; keep that "
                    "out of the model, or raise max_shapes"
                )
            planned = make()
            self._made[key] = [*there, planned]
        self._latest = planned
        return planned

    @property
    def latest(self) -> Planned:
        """The one that was found or made last."""
        if self._latest is None:
            raise BadOption("nothing is planned yet; call prepare with a batch first")
        return self._latest

    def __len__(self) -> int:
        """How many there are."""
        return sum(map(len, self._made.values()))

    def __iter__(self) -> Iterator[Planned]:
        """Each of them."""
        return itertools.chain.from_iterable(self._made.values())

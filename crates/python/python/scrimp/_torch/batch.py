"""The largest batch that a budget allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from scrimp._torch.settings import Settings
from scrimp._torch.step import Step
from scrimp.errors import BadOption, Infeasible

LARGEST = 1 << 20


def largest_batch(
    made: Callable[[], Step],
    args: tuple[Any, ...],
    named: dict[str, Any],
    settings: Settings,
) -> int:
    """Double the number of samples until no plan is found for a step, then halve the interval."""
    samples = _samples(args, named)

    def fits(count: int) -> bool:
        settings.say(f"trying {count} samples")
        scaled_args, scaled_named = _scaled((args, named), samples, count)
        try:
            made().prepare(*scaled_args, **scaled_named)
        # Without memory for one operator by itself there is no plan either.
        except (Infeasible, torch.OutOfMemoryError):
            return False
        return True

    if not fits(1):
        raise BadOption("not even one sample fits the budget; `fit` with one says what is needed")
    low, high = 1, 2
    while high <= LARGEST and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _samples(args: Any, named: Any) -> int:
    leaves, _ = tree_flatten((args, named))
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return leaf.shape[0]
    raise BadOption("the example batch has no tensor whose first dimension counts samples")


def _scaled(batch: Any, samples: int, count: int) -> Any:
    """Every tensor with that many samples gets another number of them; contents don't matter."""
    leaves, spec = tree_flatten(batch)
    scaled = [
        leaf.new_zeros((count, *leaf.shape[1:]))
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == samples
        else leaf
        for leaf in leaves
    ]
    return tree_unflatten(scaled, spec)

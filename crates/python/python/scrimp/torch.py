"""PyTorch training in less memory than it needs, with exact gradients.

>>> step = scrimp.torch.fit(model, loss_fn, (inputs, targets), budget="4GiB")
>>> loss = step(inputs, targets)  # .grad is filled
>>> optimizer.step()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from scrimp._torch.settings import Settings
from scrimp._torch.step import Step
from scrimp.errors import BadOption

__all__ = ["Step", "fit"]


def fit(
    model: nn.Module,
    loss_fn: Callable[..., torch.Tensor] | None,
    example_batch: Any,
    budget: int | str,
    *,
    reserve: int = 0,
    costs: str = "measure",
    time_limit: float = 10.0,
    seed: int = 0,
    threads: int = 2,
    max_shapes: int = 8,
    progress: Callable[[str], object] | None = None,
) -> Step:
    """Plan a training step of a model and its loss: ``step(*batch)`` gives loss and gradients.

    The loss of a batch ``(*inputs, target)`` is ``loss_fn(model(*inputs), target)``; of a batch with
    one entry, ``loss_fn(model(input))``; of a dictionary, ``loss_fn(model(**batch))`` (call the step
    with the same names). Without a ``loss_fn`` the model gives the loss itself.

    ``budget`` is the most bytes of tensors in use at any moment of the step, parameters, buffers,
    gradients and the batch included: bytes, text such as ``"4GiB"``, ``"60%"`` of what a plan can
    change, ``"min"``, or on CUDA ``"auto"``: what is free now. ``reserve`` bytes of it are left to
    others, such as the optimizer's state.

    Every distinct operator is measured once and remembered on disk; ``costs="estimate"`` skips that,
    and then doesn't know operators' workspaces, which may exceed the budget. ``progress`` is called
    with lines of text.

    Raises `Infeasible` with the least budget found, and `Unsupported` or `BadOption` with a sentence.
    """
    settings = Settings(budget, reserve, costs, time_limit, seed, threads, max_shapes, progress)
    step = Step(model, loss_fn, settings)
    if isinstance(example_batch, Mapping):
        step.prepare(**example_batch)
    elif isinstance(example_batch, tuple | list):
        step.prepare(*example_batch)
    elif isinstance(example_batch, torch.Tensor):
        step.prepare(example_batch)
    else:
        raise BadOption(
            f"the example batch is a {type(example_batch).__name__}, but must be a tuple or list, a "
            "dictionary or a tensor"
        )
    return step

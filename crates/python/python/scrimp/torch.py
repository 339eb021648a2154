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

from scrimp._native import parse_budget
from scrimp._torch.backend import Backend, Partitioner
from scrimp._torch.batch import largest_batch
from scrimp._torch.settings import Settings
from scrimp._torch.step import Step
from scrimp._torch.wrapped import Wrapped
from scrimp.errors import BadOption

__all__ = ["Backend", "Partitioner", "Step", "Wrapped", "backend", "fit", "max_batch", "partitioner", "wrap"]


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
    args, kwargs = _arguments(example_batch)
    step.prepare(*args, **kwargs)
    return step


def wrap(
    model: nn.Module,
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
) -> Wrapped:
    """Make a module that is used like the model, for any loss and training loop.

    Forward and backward follow one plan: what backward needs is kept, or computed again then. The
    example batch is what the model is called with: a tuple or list, a dictionary of named arguments,
    or a tensor. The options are those of `fit`; the budget counts what the module itself holds, its
    outputs and their gradients included, and not what the loss adds in between.

    The model is ``wrapped.model``: save ``wrapped.model.state_dict()``.
    """
    settings = Settings(budget, reserve, costs, time_limit, seed, threads, max_shapes, progress)
    wrapped = Wrapped(model, settings)
    args, kwargs = _arguments(example_batch)
    wrapped.prepare(*args, **kwargs)
    return wrapped


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, tuple | list):
        return tuple(batch), {}
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    raise BadOption(
        f"the example batch is a {type(batch).__name__}, but must be a tuple or list, a dictionary or a "
        "tensor"
    )


def max_batch(
    model: nn.Module,
    loss_fn: Callable[..., torch.Tensor] | None,
    example_batch: Any,
    budget: int | str,
    *,
    time_limit: float = 2.0,
    **options: Any,
) -> int:
    """Find the largest number of samples for which a plan within the budget is found.

    The first dimension of the example batch's tensors counts samples; how many it has doesn't matter.
    Every size that is tried is captured, measured and planned as by `fit`, whose options these are.
    The budget must be bytes, or ``"auto"``: percentages mean other bytes for other batches.
    """
    kind = "auto" if budget == "auto" else parse_budget(str(budget))[0]
    if kind not in ("auto", "bytes"):
        raise BadOption(f"the budget is {budget!r}, but must be in bytes to compare batches")
    args, kwargs = _arguments(example_batch)
    settings = Settings(budget, time_limit=time_limit, **options)
    return largest_batch(model, loss_fn, args, kwargs, settings)


def backend(budget: int | str, *, graphs: int = 1, **options: Any) -> Backend:
    """Make a backend: ``torch.compile(model, backend=scrimp.torch.backend("4GiB"), dynamic=False)``.

    Every compiled graph is planned for itself. Of a budget in bytes each of ``graphs`` graphs gets an
    equal part; a percentage is of each graph's own. Random operators run once and their results are
    kept. The options are those of `fit`; ``backend.plans`` has the plans made so far.
    """
    return Backend(_for_graphs(budget, graphs, options))


def partitioner(budget: int | str, *, graphs: int = 1, **options: Any) -> Partitioner:
    """Make a partitioner for inductor, which then fuses what the plan leaves.

    >>> torch._inductor.config.custom_partitioner_fn = scrimp.torch.partitioner("60%")

    Costs and workspaces are those of PyTorch's own kernels, not of the fused ones.
    """
    return Partitioner(_for_graphs(budget, graphs, options))


def _for_graphs(budget: int | str, graphs: int, options: dict[str, Any]) -> Settings:
    if graphs < 1:
        raise BadOption(f"graphs is {graphs}, but must be 1 or more")
    kind, _, whole = parse_budget(str(budget)) if budget != "auto" else ("auto", None, None)
    if kind == "bytes" and whole is not None:
        budget = whole // graphs
    return Settings(budget, **options)

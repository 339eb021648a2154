"""PyTorch training in less memory than it needs, with exact gradients.

>>> step = scrimp.torch.fit(model, loss_fn, (inputs, targets), budget="4GiB")
>>> loss = step(inputs, targets)  # .grad is filled
>>> optimizer.step()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from scrimp._native import parse_budget
from scrimp._torch.backend import Backend, Partitioner
from scrimp._torch.batch import largest_batch
from scrimp._torch.face import Wrapped, refuse_planned, unwrapped, wrapped
from scrimp._torch.refusals import refuse_call
from scrimp._torch.settings import Progress, Settings
from scrimp._torch.slab import use_slab
from scrimp._torch.step import Step
from scrimp.errors import BadOption, Unsupported

__all__ = [
    "Backend",
    "Partitioner",
    "Step",
    "Wrapped",
    "backend",
    "fit",
    "max_batch",
    "partitioner",
    "sweep",
    "unwrap",
    "use_slab",
    "wrap",
]


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
    shapes: Sequence[Any] = (),
    on_new_shape: str = "plan",
    max_shapes: int = 64,
    accumulate: bool = False,
    progress: Progress = None,
    verify: bool = True,
    swap: int | str | None = None,
    tile: int | str = "off",
    optimizer: torch.optim.Optimizer | None = None,
    clip_norm: float | None = None,
) -> Step:
    """Plan a training step of a model and its loss: ``step(*batch)`` gives loss and gradients.

    The loss of a batch ``(*inputs, target)`` is ``loss_fn(model(*inputs), target)``; of a batch with
    one entry, ``loss_fn(model(input))``; of a dictionary, ``loss_fn(model(**batch))`` (call the step
    with the same names). Without a ``loss_fn`` the model gives the loss itself.

    ``budget`` is the most bytes of tensors in use at any moment of the step, parameters, buffers,
    gradients and the batch included: bytes, text such as ``"4GiB"``, ``"60%"`` of what a plan can
    change, ``"min"``, or on CUDA ``"auto"``: what is free now. ``reserve`` bytes of it are left to
    others, such as the optimizer's state.

    There is one plan per shape of batch. ``shapes`` are more example batches to plan for now, such as one
    for each length that texts are padded to. A shape that is new in the training loop is captured and
    measured then, and runs in the order of another shape's plan if that keeps to the budget, else in one
    that is searched for; with ``on_new_shape="eager"`` the model itself runs it, with a warning, and
    ``"error"`` refuses it.

    A step that finds gradients to add to has a plan of its own, made when the first such step comes;
    with ``accumulate`` it is made now, so that a budget which is too small for it is known at once.

    Every distinct operator is measured once and remembered on disk; ``costs="estimate"`` skips that:
    seconds are worked out, and workspaces by a rule that is meant to be above the true ones.
    ``progress`` is called with lines of text; by default they are shown in a terminal, by ``False``
    nowhere.

    The first step with a plan also runs the model once as eager does and compares operators, in the time of
    a forward pass; ``verify=False`` skips that. A difference raises `Mismatch`.

    With ``swap``, values may wait elsewhere while they aren't needed: on the CPU in a file
    (``"16GiB"``, or ``"disk:/scratch=16GiB"`` in another folder than that of the cache), beside a GPU in
    pinned RAM. The speed of copies is measured once, or stated: ``"disk:/scratch=16GiB@1GB/s"``.

    With ``tile``, layers that are wide inside run by so many tiles of their rows, such as tokens:
    perceptrons, and the scores for words with the loss, which are never whole then. Convolutions run by
    strips of images. The order of sums changes, and with it the last bits; ``"auto"`` does so only where
    plans without tiles are slower or there are none.

    With an ``optimizer`` of ``torch.optim`` the step updates the parameters too, each as soon as its
    gradient is there, which is freed then: don't call ``optimizer.step()``. Its state and its learning
    rate are where they always are, and counted; with ``swap`` the state may wait elsewhere, and
    ``optimizer.state_dict()`` brings it back. ``clip_norm`` clips the norm of all gradients before.

    Raises `Infeasible` with the least budget found, and `Unsupported` or `BadOption` with a sentence.
    """
    settings = Settings(
        budget=budget,
        reserve=reserve,
        costs=costs,
        time_limit=time_limit,
        seed=seed,
        threads=threads,
        max_shapes=max_shapes,
        on_new_shape=on_new_shape,
        progress=progress,
        verify=verify,
        swap=swap,
        tile=tile,
    )
    refuse_call(model, loss_fn)
    refuse_planned(model)
    if accumulate and optimizer is not None:
        raise BadOption(
            "accumulate adds up gradients of several batches, but with an optimizer each step updates; leave "
            "one of them out"
        )
    step = Step(model, loss_fn, settings, optimizer, clip_norm)
    for args, kwargs in _largest_first([*shapes, example_batch], settings):
        step.prepare(*args, **kwargs)
        if accumulate:
            step.prepare_accumulation(*args, **kwargs)
    args, kwargs = _arguments(example_batch)
    step.prepare(*args, **kwargs)
    return step


def sweep(
    model: nn.Module,
    loss_fn: Callable[..., torch.Tensor] | None,
    example_batch: Any,
    budgets: Sequence[int | str],
    *,
    time_limit: float = 10.0,
    optimizer: torch.optim.Optimizer | None = None,
    clip_norm: float | None = None,
    **options: Any,
) -> list[Step | Exception]:
    """Plan the step of `fit` for several budgets: per budget a step, or the exception of one without a plan.

    A larger budget never has a slower plan, nor one with a lower peak, than a smaller one. The model is
    captured and measured once; each budget (not ``"min"``) has the time limit for itself.
    """
    settings = Settings("100%", time_limit=time_limit, **options)
    refuse_planned(model)
    args, kwargs = _arguments(example_batch)
    return Step(model, loss_fn, settings, optimizer, clip_norm).sweep(kwargs or args, budgets)


def wrap(
    model: nn.Module,
    example_batch: Any = None,
    budget: int | str = "auto",
    *,
    loss_only: bool = True,
    reserve: int = 0,
    costs: str = "measure",
    time_limit: float = 10.0,
    seed: int = 0,
    threads: int = 2,
    shapes: Sequence[Any] = (),
    on_new_shape: str = "plan",
    max_shapes: int = 64,
    progress: Progress = None,
    verify: bool = True,
    swap: int | str | None = None,
    tile: int | str = "off",
    optimizer: torch.optim.Optimizer | None = None,
) -> Wrapped:
    """Plan a model for any loss and training loop, and give the same model back.

    >>> trainer = transformers.Trainer(model=scrimp.torch.wrap(model, budget="60%"), ...)

    Forward and backward follow one plan: what backward needs is kept, or computed again then. The
    example batch is what the model is called with: a tuple or list, a dictionary of named arguments,
    or a tensor; without one the first call plans. The options are those of `fit`; the budget counts
    what the model itself holds, its outputs and their gradients included, and not what the loss adds
    in between.

    A model that returns its loss (as ``output["loss"]``) is planned for gradients of this loss alone:
    to use others of its outputs for gradients too, say ``loss_only=False``.

    The model stays what it is, with all that it has: only its ``forward`` differs, and only where
    gradients are on. ``model.scrimp`` has the plan, as have ``model.plan``, ``model.explain()`` and so
    on, where the model has nothing of that name itself. `unwrap` undoes it.

    The update stays yours, because it may follow several backward passes: an ``optimizer`` is refused
    here, and a part of the step in `fit`.
    """
    if optimizer is not None:
        raise Unsupported(
            "wrap plans forward and backward for a loop that calls optimizer.step() itself, perhaps after "
            "several backward passes; call it there, or give the optimizer to scrimp.torch.fit, whose step "
            "has the update"
        )
    settings = Settings(
        budget=budget,
        reserve=reserve,
        costs=costs,
        time_limit=time_limit,
        seed=seed,
        threads=threads,
        max_shapes=max_shapes,
        on_new_shape=on_new_shape,
        progress=progress,
        verify=verify,
        swap=swap,
        tile=tile,
    )
    refuse_call(model, None)
    planned = wrapped(model, settings, loss_only=loss_only)
    examples = [*shapes] if example_batch is None else [*shapes, example_batch]
    if examples:
        try:
            for args, kwargs in _largest_first(examples, settings):
                planned.scrimp.prepare(*args, **kwargs)
            args, kwargs = _arguments(examples[-1])
            planned.scrimp.prepare(*args, **kwargs)
        except BaseException:
            unwrapped(model)
            raise
    return planned


def unwrap(model: nn.Module) -> nn.Module:
    """Undo `wrap`: the model's own ``forward`` runs again."""
    return unwrapped(model)


def _largest_first(
    batches: Sequence[Any], settings: Settings
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What to plan for: smaller batches get by with the bytes and often the order of larger ones."""
    examples = [_arguments(batch) for batch in batches]

    def tensors(example: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(example) if isinstance(leaf, torch.Tensor)]

    examples.sort(key=lambda example: -sum(tensor.numel() for tensor in tensors(example)))
    for place, example in enumerate(examples, 1):
        if len(examples) > 1:
            sizes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors(example))
            settings.say(f"batch {place} of {len(examples)}, with tensors of shapes {sizes}")
        yield example


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
    optimizer: torch.optim.Optimizer | None = None,
    clip_norm: float | None = None,
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
    return largest_batch(lambda: Step(model, loss_fn, settings, optimizer, clip_norm), args, kwargs, settings)


def backend(budget: int | str, *, graphs: int = 1, **options: Any) -> Backend:
    """Make a backend: ``torch.compile(model, backend=scrimp.torch.backend("4GiB"), dynamic=False)``.

    Every compiled graph is planned for itself, when it is compiled. A budget in bytes is for all
    ``graphs`` graphs of a step together: each gets what those before it don't keep, less equal parts for
    those to come, and more if it needs more; further graphs (for other shapes) begin another round. A
    percentage is of each graph's own. Random operators run once and their results are kept. The
    options are those of `fit`, but for the optimizer; ``tile="auto"`` doesn't go with several
    graphs that share bytes. ``backend.plans`` has the plans made so far.
    """
    return Backend(Settings(budget, **options), _at_least_one(graphs))


def partitioner(budget: int | str, *, graphs: int = 1, **options: Any) -> Partitioner:
    """Make a partitioner for inductor, which then fuses what the plan leaves.

    >>> torch._inductor.config.custom_partitioner_fn = scrimp.torch.partitioner("60%")

    Costs and workspaces are those of PyTorch's own kernels, not of the fused ones.
    """
    return Partitioner(Settings(budget, **options), _at_least_one(graphs))


def _at_least_one(graphs: int) -> int:
    if graphs < 1:
        raise BadOption(f"graphs is {graphs}, but must be 1 or more")
    return graphs

"""What a user asks for, and what decides which plan serves a call."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import nn

from scrimp._native import format_bytes, parse_budget
from scrimp._torch import profile, progress
from scrimp._torch.floors import explained
from scrimp._torch.gpu import kept_by_libraries, warn_of_choices
from scrimp._torch.graph import Task
from scrimp._torch.memory import unused
from scrimp._torch.problem import Cost, Lowered
from scrimp._torch.schedules import moved, planned, reused
from scrimp._torch.swap import Asked
from scrimp.errors import BadOption, Infeasible, Unsupported
from scrimp.planning import Plan, sweep
from scrimp.planning import Progress as News

AUTO_MARGIN = 0.05
"""Of a GPU's memory, what `auto` leaves alone: fragments and libraries' own scratch."""


Progress = Callable[[str], object] | Literal[False] | None
"""Takes lines of text; `None` shows them in a terminal, `False` nowhere."""


@dataclass(frozen=True)
class Settings:
    """How to plan."""

    budget: int | str
    reserve: int = 0
    """Bytes that something else holds during the step, such as optimizer state."""
    costs: str = "measure"
    """`measure` or `estimate`."""
    time_limit: float = 10.0
    seed: int = 0
    threads: int = 2
    max_shapes: int = 64
    on_new_shape: str = "plan"
    """What a shape of batch without a plan gets in a training loop: `plan`, `eager` or `error`."""
    progress: Progress = None
    verify: bool = True
    """Whether the first step with a plan compares its operators with eager's."""
    swap: int | str | None = None
    """Bytes of a memory in which values may wait, and which."""
    tile: int | str = "off"
    """How many tiles wide parts are run by: a number, `off`, or `auto`."""

    def __post_init__(self) -> None:
        """Refuse what means nothing, before any work."""
        if self.costs not in ("measure", "estimate"):
            raise BadOption(f"costs is {self.costs!r}, but must be 'measure' or 'estimate'")
        if self.budget == "auto" and not torch.cuda.is_available():
            raise BadOption("the budget 'auto' is what a GPU has free, but there is no CUDA device here")
        check_budget(self.budget)
        Asked.of(self.swap)
        number = isinstance(self.tile, int) and not isinstance(self.tile, bool) and self.tile >= 1
        if not number and self.tile not in ("off", "auto"):
            raise BadOption(f"tile is {self.tile!r}, but must be a number of tiles, 'auto' or 'off'")
        if not isinstance(self.reserve, int) or self.reserve < 0:
            raise BadOption(f"reserve is {self.reserve!r}, but must be a number of bytes, 0 or more")
        if self.on_new_shape not in ("plan", "eager", "error"):
            raise BadOption(f"on_new_shape is {self.on_new_shape!r}, but must be 'plan', 'eager' or 'error'")
        if not (self.progress is None or self.progress is False or callable(self.progress)):
            raise BadOption(
                f"progress is {self.progress!r}, but must be a function that takes lines of text, False, or "
                "None for lines in a terminal"
            )
        if not self.time_limit >= 0:
            raise BadOption(f"time_limit is {self.time_limit}, but must be seconds, 0 or more")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise BadOption(f"seed is {self.seed!r}, but must be a whole number, 0 or more")
        if self.max_shapes < 1:
            raise BadOption(f"max_shapes is {self.max_shapes}, but must be 1 or more")

    def within(self, budget: int) -> Settings:
        """The same for a budget in bytes; the least stays what it is."""
        return self if self.budget == "min" else dataclasses.replace(self, budget=budget)

    @property
    def asked_swap(self) -> Asked | None:
        """The memory in which values may wait."""
        return Asked.of(self.swap)

    def may_plan(self, shapes: Any, known: Collection[Any], tensors: Sequence[torch.Tensor]) -> None:
        """Refuse another shape of batch if there are enough."""
        if shapes not in known and len(known) >= self.max_shapes:
            new = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise BadOption(
                f"plans for {len(known)} shapes of batches were made, the most allowed, and this batch "
                f"(tensors of shapes {new}) would need another; use batches of the same shape (such as "
                "drop_last=True, or lengths padded to a few), raise max_shapes, or let the model itself run "
                "by on_new_shape='eager'"
            )

    @property
    def listens(self) -> bool:
        """Whether someone wants to know what is going on."""
        return progress.is_watched() if self.progress is None else callable(self.progress)

    def beside(self, device: torch.device) -> int:
        """Bytes of the budget that aren't the step's: the reserve, and what CUDA's libraries keep."""
        return self.reserve + kept_by_libraries(device)

    def say(self, text: str, *, passing: bool = False) -> None:
        """Tell what is going on, if someone listens; what is ``passing`` is soon outdated."""
        if callable(self.progress):
            self.progress(text)
        elif self.listens:
            progress.tell(text, passing=passing)


def check_budget(budget: Any) -> None:
    """Refuse a budget that means nothing."""
    if budget == "auto":
        return
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise BadOption(f"the budget is {budget!r}, but must be bytes, or text like '4GiB', '60%' or 'min'")
    parse_budget(str(budget))


def device_of(model: nn.Module, tensors: Sequence[torch.Tensor]) -> torch.device:
    """The one device of a model and its batch."""
    held = [*model.named_parameters(), *model.named_buffers()]
    held += [(f"tensor {i} of the batch", tensor) for i, tensor in enumerate(tensors)]
    devices = {tensor.device: name for name, tensor in held}
    if not devices:
        raise Unsupported("the model has no parameters and the batch no tensors")
    if len(devices) > 1:
        where = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise Unsupported(f"model and batch are on several devices: {where}; move them to one")
    (device,) = devices
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"the model is on {device.type}; the CPU and CUDA devices can be planned for")
    return device


def mark(leaf: Any) -> Any:
    """What of a part of the batch decides the graph."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout != torch.strided or leaf.is_nested:
            return (leaf.layout, id(leaf))  # It will be refused.
        return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
    try:
        hash(leaf)
    except TypeError:
        return repr(leaf)
    return (type(leaf), leaf)


def task_costs(tasks: Sequence[Task], device: torch.device, settings: Settings) -> list[Cost]:
    """Measure or estimate every task."""
    warn_of_choices(device)
    if settings.costs == "estimate":
        return profile.estimate(tasks)

    def tell(done: int, of: int) -> None:
        if of and (done % 10 == 0 or done == of):
            settings.say(f"measured {done} of {of} operators", passing=done < of)

    return profile.measure(tasks, device, tell if settings.listens else None)


class Made(Protocol):
    """A plan and what it is for."""

    plan: Plan
    lowered: Lowered


def make_plan(
    lowered: Lowered,
    settings: Settings,
    remark: str = "",
    others: Iterable[Made] = (),
    *,
    ahead: bool = True,
) -> Plan:
    """Plan; an infeasible budget also says which operator needs most, and the remark.

    ``others`` are the plans of the same model for other batches. In a training loop, when it isn't
    ``ahead``, one of their orders is taken without a search if it keeps to the budget.
    """
    try:
        budget, there = _budget(lowered, settings, others), list(others)
        made = (
            None if ahead else reused(lowered.problem, budget, [(o.lowered.problem, o.plan) for o in there])
        )
        if made is None:
            made = _planned(lowered, budget, settings)
        if lowered.swaps_incoming(made):
            lowered.hold_incoming()
            made = _planned(lowered, budget, settings)
        settings.say(f"planned a peak of {format_bytes(made.peak)}, {made.overhead:+.1%} seconds")
        return made
    except Infeasible as error:
        settings.say("no plan within the budget was found")
        raise explained(error, lowered, settings.budget, remark) from None


def _planned(lowered: Lowered, budget: int | str, settings: Settings) -> Plan:
    """Plan with the optimizer's state where the step is faster: in memory, or in the memory beside it.

    For the least budget it lives there.
    """
    problem, options = lowered.problem, _options(settings)
    states = [value for value in lowered.states if "given" in problem.values[value]["origin"]]
    if not states:
        return planned(problem, budget, **options)
    here: Plan | None = None
    if parse_budget(str(budget))[0] != "min":
        with contextlib.suppress(Infeasible):
            here = planned(problem, budget, **options)
    if here is not None and here.overhead <= FREE:
        return here
    try:
        there = planned(moved(problem, states), budget, **options)
    except Infeasible:
        if here is None:
            raise
        return here
    return there if here is None or there.cost < here.cost else here


FREE = 0.01
"""Added part of a step's seconds that isn't worth a second search."""


def _budget(lowered: Lowered, settings: Settings, others: Iterable[Made]) -> int | str:
    """What was asked for; of a percentage, at least the bytes that larger batches have anyway."""
    if settings.budget == "auto":
        return auto_budget(lowered, settings.reserve)
    if parse_budget(str(settings.budget))[0] == "bytes":
        return settings.budget
    larger = [other.plan.budget for other in others if other.lowered.whole >= lowered.whole]
    return max(larger) if larger else settings.budget


def make_plans(lowered: Lowered, budgets: Sequence[int | str], settings: Settings) -> list[Plan | Exception]:
    """Plan for each budget: a larger one's plan is neither slower nor leaner than a smaller one's."""
    made = sweep(lowered.problem, budgets, **_options(settings))
    known = [one for one in made if isinstance(one, Plan)]
    return [
        explained(one, lowered, budget, known=known) if isinstance(one, Infeasible) else one
        for one, budget in zip(made, budgets, strict=True)
    ]


def _options(settings: Settings) -> dict[str, Any]:
    told = 0.0

    def tell(news: News) -> None:
        nonlocal told
        if news.elapsed and news.elapsed < told:
            return
        told = news.elapsed + 1.0
        cost = "no plan yet" if news.cost is None else f"{news.cost * 1e3:.1f} ms"
        settings.say(f"planning for {news.elapsed:.1f} s: {cost}", passing=True)

    return {
        "time_limit": settings.time_limit,
        "seed": settings.seed,
        "threads": settings.threads,
        "progress": tell if settings.listens else None,
    }


def auto_budget(lowered: Lowered, reserve: int) -> int:
    """What the GPU has free now, and what of its memory the step's own tensors have, less a margin.

    What PyTorch has taken and isn't in use is free too; what else is in use, such as the optimizer's
    state, isn't.
    """
    device = next(task.makes[0].device for task in lowered.task_at if task is not None and task.makes)
    free, total = torch.cuda.mem_get_info(device)
    return int(free + unused(device) + lowered.given - lowered.to_come - reserve - AUTO_MARGIN * total)

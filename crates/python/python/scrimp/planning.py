"""Planning, checking and placing over plain Python data."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from scrimp import _native
from scrimp.errors import BadOption, BadProblem
from scrimp.problem import Problem

ProblemLike: TypeAlias = Problem | Mapping[str, Any] | str
"""A `Problem`, the project's problem JSON as a dictionary or text, or a published instance's."""

Budget: TypeAlias = int | str | None
"""Bytes, everything counted; or `'4GiB'`, `'60%'` of what planning can change, or `'min'`."""


@dataclass(frozen=True)
class Progress:
    """News from a running search."""

    elapsed: float
    """Seconds since the start."""
    cost: float | None
    """Seconds of the cheapest plan so far that fits; none yet if `None`."""
    lower_bound: float
    """No plan is cheaper than this."""


class Plan:
    """A plan that the checker has proven right, with its numbers.

    Bytes and seconds, or the units of a published instance. The lists are `array.array`s, which
    ``numpy.asarray`` takes without copying.
    """

    def __init__(self, native: _native.Planned) -> None:
        """Wrap what the planner made; use `scrimp.plan` to get one."""
        self._native = native
        self.name: str = native.name
        """The problem's name."""
        self.method: str = native.method
        """The planner, or `given`."""
        self.budget: int = native.budget
        """Most that may be in use at any time, everything counted."""
        self.peak: int = native.peak
        """Most in use at any time under the plan."""
        self.base_peak: int = native.base_peak
        """The same when every task runs once in the given order."""
        self.fixed: int = native.fixed
        """What is there at all times whatever the plan."""
        self.cost: float = native.cost
        """Seconds of all runs; with copies, those until all is done, as simulated."""
        self.base_cost: float = native.base_cost
        """Seconds of running every task once."""
        self.lower_bound: float = native.lower_bound
        """Proven: no plan within the budget takes fewer seconds."""
        self.optimal: bool = native.optimal
        """Whether `cost` is proven to be the least."""
        self.seconds: float = native.seconds
        """Time that planning took."""
        self.recomputed: int = native.recomputed
        """Runs of tasks beyond each task's first."""
        self.keeps_order: bool = native.keeps_order
        """Whether first runs are in the given order."""
        self.interrupted: bool = native.interrupted
        """Whether Ctrl-C ended the search early."""
        self.arena: int | None = native.arena
        """Extent of the placed buffers; `None` without a layout."""

    @property
    def overhead(self) -> float:
        """Added seconds as a part of `base_cost`: 0.05 is five percent more."""
        return self.cost / self.base_cost - 1.0 if self.base_cost > 0 else 0.0

    @cached_property
    def homes(self) -> array[int]:
        """The given values that live in a memory: they are there before and after the plan."""
        return _integers(self._native.homes())

    @cached_property
    def step_kinds(self) -> array[int]:
        """Per step a number: a task runs (0), or a value is freed (1), stored in a memory (2), brought back
        from it (3) or freed there (4)."""
        return _integers(self._native.step_kinds())

    @cached_property
    def step_ids(self) -> array[int]:
        """Per step, the number of the task or the value."""
        return _integers(self._native.step_ids())

    @cached_property
    def profile(self) -> array[int]:
        """Per step, the bytes in use during it."""
        return _integers(self._native.profile())

    @property
    def steps(self) -> list[tuple[str, int]]:
        """All steps in order: ``("run", task)``, and ``("free", value)`` or "store", "bring", "forget".

        "store" begins a copy to a memory, "bring" one back from it, and "forget" frees a value there.
        """
        return [(_KINDS[kind], id) for kind, id in zip(self.step_kinds, self.step_ids, strict=True)]

    @cached_property
    def runs(self) -> array[int]:
        """The tasks in the order of their runs, repeated runs included."""
        return self._of_kind(0)

    @cached_property
    def frees(self) -> array[int]:
        """The values in the order in which they are freed."""
        return self._of_kind(1)

    @cached_property
    def buffers(self) -> list[Buffer]:
        """Where each buffer lies; needs a plan made with ``layout=True``."""
        packed = self._native.buffers()
        if packed is None:
            raise BadOption("the plan has no offsets; plan with layout=True")
        flat = _integers(packed)
        return [Buffer(*flat[i : i + 5]) for i in range(0, len(flat), 5)]

    def _of_kind(self, wanted: int) -> array[int]:
        pairs = zip(self.step_kinds, self.step_ids, strict=True)
        return array("q", (id for kind, id in pairs if kind == wanted))

    def to_json(self) -> str:
        """Give the plan as the text of its file, which `scrimp.check` and the command read."""
        return self._native.to_json()

    def problem_json(self) -> str:
        """Give the problem it was made for, the budget being the device's capacity."""
        return self._native.problem_json()

    def perfetto(self) -> str:
        """Give the simulated timeline as a Perfetto trace."""
        return self._native.perfetto()

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        numbers: Mapping[str, str] | None = None,
    ) -> None:
        """Write one HTML page that opens offline: memory over time, what runs again and why."""
        rows = list((numbers or {}).items())
        page = self._native.report(title or self.name or "plan", rows)
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)

    def __repr__(self) -> str:
        """Give peak, budget and overhead."""
        unit = self._native.memory_unit
        peak, budget = (
            _native.format_bytes(n) if unit == "B" else f"{n} {unit}" for n in (self.peak, self.budget)
        )
        return f"<Plan {self.name!r}: peak {peak} of {budget}, {max(self.overhead, 0):+.2%}>"


_KINDS = ("run", "free", "store", "bring", "forget")


@dataclass(frozen=True)
class Buffer:
    """Bytes that are held during the steps from ``start`` until before ``end``."""

    value: int
    """The value it holds first; -1 for a run's workspace."""
    start: int
    end: int
    bytes: int
    offset: int
    """From the start of the arena, which lies beside the resident bytes."""


@dataclass(frozen=True)
class Placement:
    """Offsets for buffers with known lifetimes."""

    offsets: array[int]
    """One per buffer, in their order."""
    arena: int
    """End of the highest buffer."""
    live: int
    """Bytes held at the worst moment; no placement has a smaller arena."""


def plan(
    problem: ProblemLike,
    *,
    budget: Budget = None,
    order: str = "free",
    method: str = "search",
    time_limit: float = 5.0,
    seed: int = 0,
    threads: int = 2,
    layout: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> Plan:
    """Plan a problem under a budget; without one, under its device's capacity.

    ``order`` is ``"free"`` or ``"fixed"`` (first runs in the given order), ``method`` one of
    `methods`. With ``layout`` the plan has byte offsets too, and these fit the budget. The same seed
    gives the same plan, unless the time limit cuts the search off.

    Other Python threads run meanwhile. ``progress`` is called with the latest news; what it raises
    ends the planning. The first Ctrl-C ends it with the best plan so far, whose ``interrupted`` is
    true; if there is none yet, and for the second Ctrl-C, `KeyboardInterrupt` is raised.

    Raises `Infeasible` with the least budget found, `BadProblem`, `BadOption` or `Unsupported`.
    """
    options = _options(method, order, time_limit, seed, threads)
    native = _native.plan(_text(problem), _budget(budget), options, layout, _told(progress))
    return Plan(native)


def sweep(
    problem: ProblemLike,
    budgets: Iterable[int | str],
    *,
    order: str = "free",
    method: str = "search",
    time_limit: float = 5.0,
    seed: int = 0,
    threads: int = 2,
    progress: Callable[[Progress], object] | None = None,
) -> list[Plan | Exception]:
    """Plan under several budgets, such that a larger one never has a slower plan.

    Gives a plan, or the exception that says why there is none, for each budget in turn. Each has
    the time limit for itself; otherwise as `plan`.
    """
    options = _options(method, order, time_limit, seed, threads)
    asked = [text for text in map(_budget, budgets) if text is not None]
    found = _native.sweep(_text(problem), asked, options, _told(progress))
    return [Plan(one) if isinstance(one, _native.Planned) else one for one in found]


def check(
    problem: ProblemLike,
    plan: Plan | Mapping[str, Any] | str | Sequence[int],
    *,
    budget: Budget = None,
) -> Plan:
    """Check a plan and give its numbers: one from a file, or a list of tasks in order of runs.

    Checked against the budget, or the capacity of the problem's device if there is one.

    Raises `InvalidPlan` with every violation, or `BadProblem` if the plan can't be read or isn't
    for this problem.
    """
    given: str | list[int]
    if isinstance(plan, Plan):
        given = plan.to_json()
    elif isinstance(plan, str):
        given = plan
    elif isinstance(plan, Mapping):
        given = _dumped(plan, "the plan")
    else:
        given = _whole(plan, "the order of runs")
    return Plan(_native.check(_text(problem), given, _budget(budget)))


def place(buffers: Iterable[Sequence[int]], *, capacity: int | None = None) -> Placement:
    """Place buffers ``(start, end, bytes)``, held from start until before end, in one memory.

    Raises `Infeasible` if the best packing found is larger than the capacity.
    """
    rows = [_whole(row, f"buffer {i}") for i, row in enumerate(buffers)]
    for i, row in enumerate(rows):
        if len(row) != 3:
            raise BadProblem(f"buffer {i} has {len(row)} numbers, but needs start, end and bytes")
    starts, ends, sizes = ([row[k] for row in rows] for k in range(3))
    placed = _native.place(starts, ends, sizes, capacity)
    return Placement(_integers(placed.offsets()), placed.arena, placed.live)


def methods() -> list[str]:
    """Give the names of all planners; those that prove optima need a solver library."""
    return _native.methods()


def _integers(packed: bytes) -> array[int]:
    numbers = array("q")
    numbers.frombytes(packed)
    return numbers


def _options(method: str, order: str, time_limit: float, seed: int, threads: int) -> _native.Options:
    return {
        "method": method,
        "order": order,
        "time_limit": float(time_limit),
        "seed": seed,
        "threads": threads,
    }


def _told(progress: Callable[[Progress], object] | None) -> _native.ProgressCall | None:
    if progress is None:
        return None
    return lambda elapsed, cost, bound: progress(Progress(elapsed, cost, bound))


def _text(problem: ProblemLike) -> str:
    if isinstance(problem, str):
        return problem
    if isinstance(problem, Problem):
        return problem.to_json()
    if isinstance(problem, Mapping):
        return _dumped(problem, "the problem")
    raise BadProblem(
        f"the problem is a {type(problem).__name__}, but must be a scrimp.Problem, a dictionary or JSON text"
    )


def _dumped(data: Mapping[str, Any], what: str) -> str:
    try:
        return json.dumps(data)
    except (TypeError, ValueError) as error:
        raise BadProblem(f"{what} can't be written as JSON: {error}") from error


def _budget(budget: Budget) -> str | None:
    if budget is None or isinstance(budget, str):
        return budget
    if isinstance(budget, bool) or not hasattr(budget, "__index__") or budget < 0:
        raise BadOption(f"the budget is {budget!r}, but must be bytes, or text like '4GiB' or '60%'")
    return str(int(budget))


def _whole(numbers: Iterable[Any], what: str) -> list[int]:
    try:
        whole = [number.__index__() for number in numbers]
    except (AttributeError, TypeError) as error:
        raise BadProblem(f"{what} must be whole numbers: {error}") from error
    if any(number < 0 or number >= 1 << 63 for number in whole):
        raise BadProblem(f"{what} has a number below 0 or above 2**63 - 1")
    return whole

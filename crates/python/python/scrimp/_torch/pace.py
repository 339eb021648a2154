"""Whether steps take as long as their plan says."""

from __future__ import annotations

import contextlib
import statistics
import warnings
from collections.abc import Iterator

from scrimp._torch.clock import Clock
from scrimp._torch.graph import Tasks
from scrimp._torch.profile import doubt
from scrimp._torch.settings import Settings
from scrimp.planning import Plan

STEPS = 10
"""Steps that are compared; one before them warms up."""
DRIFT = 1.5
"""Factor between predicted and measured seconds that is worth a warning."""
PER_TASK = 5e-5
"""Seconds of a run that Python and PyTorch may take beside the operator."""


class Pace:
    """Times the first steps of a plan on the CPU, and tells if they are far from what was predicted."""

    def __init__(self, plan: Plan, tasks: Tasks, settings: Settings) -> None:
        """Know what is predicted, if it was measured."""
        self._predicted = plan.cost
        self._runs = len(plan.runs)
        self._tasks = tasks.tasks
        self._device = next(task.makes[0].device for task in self._tasks if task.makes)
        self._waits = settings.costs == "measure" and self._device.type == "cpu"
        self._steps: list[float] = []

    @contextlib.contextmanager
    def step(self, *, goes_on: bool = False) -> Iterator[None]:
        """Time a step, or what ``goes_on`` in the step that was timed last."""
        if not self._waits:
            yield
            return
        clock = Clock()
        yield
        seconds = clock.read().seconds
        if goes_on and self._steps:
            if len(self._steps) <= STEPS + 1:
                self._steps[-1] += seconds
            return
        # The steps before this one are whole.
        if len(self._steps) > STEPS:
            self._waits = False
            self._compare()
            return
        self._steps.append(seconds)

    def _compare(self) -> None:
        taken = statistics.median(self._steps[1:])
        low, high = sorted((taken, self._predicted))
        if high > DRIFT * low and high - low > PER_TASK * self._runs:
            doubt(self._tasks, self._device)
            warnings.warn(
                f"steps take {taken:.3g} s, but the plan predicts {self._predicted:.3g} s, from operators "
                "that were measured one by one; they are measured again when the program starts the next "
                "time and the machine is quiet",
                stacklevel=5,
            )

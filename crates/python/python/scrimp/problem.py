"""A builder for planning problems in plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from scrimp.errors import BadProblem

Phase = Literal["forward", "backward", "update"]
PHASES = ("forward", "backward", "update")


class Problem:
    """One device, values and the tasks that make them, in an executable order; and memories to swap to.

    Values and tasks are numbered from 0 in the order in which they are added; those numbers are what
    a plan speaks of. ``resident`` bytes are in use at all times.

    >>> problem = Problem("chain")
    >>> x = problem.given("x", 100)
    >>> a = problem.task("a", [x], 200, seconds=1.0)
    >>> b = problem.task("b", [a], 100, seconds=2.0)
    >>> problem.keep(b)
    """

    def __init__(self, name: str = "", *, resident: int = 0, device: str = "device") -> None:
        """Start an empty problem."""
        self.name = name
        self.resident = resident
        self.device = device
        self.values: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []
        self.memories: list[dict[str, Any]] = []
        self.links: list[dict[str, Any]] = []

    def memory(
        self, name: str, capacity: int, *, out: float, back: float, latency: float = 0.0, half: bool = False
    ) -> int:
        """Add a memory of ``capacity`` bytes in which values can wait, and return its number.

        Copies travel at ``out`` bytes per second into it and at ``back`` from it, after ``latency``
        seconds; with ``half`` both directions share one queue.
        """
        self.memories.append({"name": name, "capacity": capacity, "computes": False, "resident": 0})
        memory = len(self.memories)
        back_link = {"from": memory, "to": 0, "bandwidth": back, "latency": latency}
        self.links.append({"from": 0, "to": memory, "bandwidth": out, "latency": latency})
        self.links.append({**back_link, "queue": len(self.links) - 1} if half else back_link)
        return memory

    def given(self, name: str, size: int, *, memory: int = 0) -> int:
        """Add a value of ``size`` bytes that is there at the start, and return its number.

        It can't be computed again; it is freed after its last use unless it is kept. It is in a
        ``memory`` where one is named, else on the device.
        """
        return self._value(name, size, {"given": memory})

    def task(
        self,
        name: str,
        inputs: Iterable[int],
        output: int,
        *,
        seconds: float,
        workspace: int = 0,
        phase: Phase = "forward",
        rerunnable: bool = True,
        overwrites: int | None = None,
    ) -> int:
        """Add a task with one output of ``output`` bytes, and return the output's number.

        ``workspace`` bytes are in use while it runs. With ``overwrites`` the output takes the buffer
        of that input, which is gone afterwards.
        """
        pairs = {} if overwrites is None else {0: overwrites}
        return self.task_of_many(
            name,
            inputs,
            [output],
            seconds=seconds,
            workspace=workspace,
            phase=phase,
            rerunnable=rerunnable,
            overwrites=pairs,
        )[0]

    def task_of_many(
        self,
        name: str,
        inputs: Iterable[int],
        outputs: Sequence[int],
        *,
        seconds: float,
        workspace: int = 0,
        phase: Phase = "forward",
        rerunnable: bool = True,
        overwrites: Mapping[int, int] | None = None,
    ) -> list[int]:
        """Add a task with any number of outputs, given by their bytes, and return their numbers.

        ``overwrites`` maps positions in ``outputs`` to the inputs whose buffers they take.
        """
        if phase not in PHASES:
            raise BadProblem(f"task '{name}' has phase {phase!r}, but must have one of {PHASES}")
        read = list(dict.fromkeys(inputs))
        for value in [*read, *(overwrites or {}).values()]:
            self._known(value, f"task '{name}'")
        task = len(self.tasks)
        made = [
            self._value(name if len(outputs) == 1 else f"{name}.{i}", size, {"task": task})
            for i, size in enumerate(outputs)
        ]
        self.tasks.append(
            {
                "name": name,
                "phase": phase,
                "inputs": read,
                "outputs": made,
                "overwrites": [
                    {"input": value, "output": made[i]} for i, value in (overwrites or {}).items()
                ],
                "modes": [{"device": 0, "seconds": seconds, "workspace": workspace}],
                "rerunnable": rerunnable,
            }
        )
        return made

    def live_in(self, memory: int, *values: int) -> None:
        """Let given values live in a memory: each begins there, and the last to overwrite it ends there."""
        after = {pair["input"]: pair["output"] for task in self.tasks for pair in task["overwrites"]}
        for value in values:
            self._known(value, "live_in")
            self.values[value]["origin"] = {"given": memory}
            while value in after:
                value = after[value]
            self.keep(value, memory=memory)

    def keep(self, *values: int, memory: int = 0) -> None:
        """Say that values must be there at the end: on the device, or in a ``memory``."""
        for value in values:
            self._known(value, "keep")
            self.values[value]["keep"] = {"on": memory}

    def to_dict(self) -> dict[str, Any]:
        """Give the problem in the form of its JSON file."""
        device = {
            "name": self.device,
            "capacity": None,
            "computes": True,
            "resident": self.resident,
        }
        return {
            "format": "scrimp-problem",
            "version": 1,
            "name": self.name,
            "devices": [device, *self.memories],
            "links": self.links,
            "tasks": self.tasks,
            "values": self.values,
        }

    def to_json(self) -> str:
        """Give the problem as the text of its JSON file."""
        return json.dumps(self.to_dict())

    def _value(self, name: str, size: int, origin: dict[str, int]) -> int:
        self.values.append({"name": name, "bytes": size, "origin": origin, "keep": "no"})
        return len(self.values) - 1

    def _known(self, value: int, where: str) -> None:
        if not 0 <= value < len(self.values):
            raise BadProblem(
                f"{where} names value {value}, but there are {len(self.values)}, counted from 0; "
                "add a value before the tasks that read it"
            )

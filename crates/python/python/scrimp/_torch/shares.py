"""One budget for several graphs of a step, which are compiled and planned one after another.

While a graph runs, those before it hold what they keep for their backward passes; those after it have
nothing but their parameters and, in backward, gradients. So a graph may have what the budget leaves
beside what those before it keep, less equal parts for those that are still to come.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from scrimp._native import format_bytes, parse_budget
from scrimp._torch.problem import Lowered
from scrimp._torch.settings import Settings, make_plan
from scrimp.errors import Infeasible
from scrimp.planning import Plan


@dataclass(frozen=True)
class Held:
    """Bytes of one graph."""

    peak: int
    """While it runs."""
    kept: int
    """Between its forward and its backward pass."""
    rest: int
    """After its backward pass."""


@dataclass
class Shares:
    """What the graphs of a round have been given."""

    budget: int
    graphs: int
    round: list[Held] = field(default_factory=list)

    @staticmethod
    def of(budget: int | str, graphs: int) -> Shares | None:
        """Only bytes are shared, not percentages of something."""
        if graphs == 1 or budget == "auto":
            return None
        kind, _, whole = parse_budget(str(budget))
        return Shares(whole, graphs) if kind == "bytes" and whole is not None else None

    def plan(self, lowered: Lowered, settings: Settings) -> Plan:
        """Plan the next graph; after the last one of a round, another round begins (other shapes)."""
        if len(self.round) == self.graphs:
            self.round.clear()
        kept = sum(held.kept for held in self.round)
        left = self.budget - kept
        part = left // (self.graphs - len(self.round))
        remark = (
            f"Of {format_bytes(self.budget)} for {self.graphs} graphs, the {len(self.round)} before this one "
            f"keep {format_bytes(kept)}"
        )
        try:
            made = make_plan(lowered, dataclasses.replace(settings, budget=max(part, 0)), remark)
        except Infeasible as error:
            # A graph that needs more than its part gets it, if it is there.
            if error.least_found > left:
                raise
            made = make_plan(lowered, dataclasses.replace(settings, budget=error.least_found), remark)
        self.round.append(_held(made, lowered))
        self._check(remark)
        return made

    def _check(self, remark: str) -> None:
        """Graphs before the latest were planned without knowing its parameters and gradients."""
        for place, held in enumerate(self.round):
            before = sum(other.kept for other in self.round[:place])
            after = sum(other.rest for other in self.round[place + 1 :])
            need = before + held.peak + after
            if need > self.budget:
                raise Infeasible(
                    f"graph {place + 1} of {self.graphs} was planned before the parameters of graph "
                    f"{len(self.round)} were known, and together they need {format_bytes(need)}. {remark}. "
                    "Raise the budget to that or more",
                    self.budget,
                    need,
                    0,
                )


def _held(made: Plan, lowered: Lowered) -> Held:
    kept = next(
        bytes
        for kind, number, bytes in zip(made.step_kinds, made.step_ids, made.profile, strict=True)
        if kind == 0 and number == lowered.between
    )
    return Held(made.peak, kept, made.profile[-1])

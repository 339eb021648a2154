"""What can go wrong. Every message is a sentence that says what, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class ScrimpError(Exception):
    """The base of all errors of this package; raised itself only for defects of it."""


class BadProblem(ScrimpError, ValueError):
    """A problem, plan or list of buffers that can't be read or breaks a rule of its format."""


class BadOption(ScrimpError, ValueError):
    """An argument that means nothing."""


class Unsupported(ScrimpError):
    """Something that isn't built, or that needs a library which isn't installed."""


class Mismatch(Unsupported):
    """What was captured of a model isn't what eager PyTorch runs."""


class Infeasible(ScrimpError):
    """No plan within the budget was found.

    ``least_found`` is the least number of bytes for which a plan was found, ``floor`` a proven number
    below which there is none (0 where none was worked out).
    """

    def __init__(self, message: str, budget: int, least_found: int, floor: int) -> None:
        """Keep the numbers."""
        super().__init__(message, budget, least_found, floor)
        self.budget = budget
        self.least_found = least_found
        self.floor = floor

    def __str__(self) -> str:
        """Give the sentence alone."""
        return str(self.args[0])


class InvalidPlan(ScrimpError, ValueError):
    """A plan that breaks rules of its problem; ``violations`` has one sentence for each."""

    def __init__(self, violations: Sequence[str]) -> None:
        """Keep the sentences."""
        super().__init__(list(violations))
        self.violations = list(violations)

    def __str__(self) -> str:
        """Give the first few sentences."""
        shown = self.violations[:3]
        more = len(self.violations) - len(shown)
        return "the plan is wrong: " + "; ".join(shown) + (f"; and {more} more" if more else "")

"""What steps and planned models tell of the plan that was used or made last."""

from __future__ import annotations

import os
import pickle
from typing import Any, Protocol

from torch import nn

from scrimp._torch.explain import explanation
from scrimp._torch.graph import Tasks
from scrimp._torch.plans import Guarded, Plans
from scrimp._torch.policy import Policy
from scrimp._torch.problem import Lowered
from scrimp._torch.snapshot import snapshot
from scrimp.planning import Plan


class Told(Guarded, Protocol):
    """A plan with what it is a plan of."""

    plan: Plan
    lowered: Lowered
    tasks: Tasks


class Account:
    """Tells of a model's plans."""

    model: nn.Module
    _plans: Plans[Any]

    @property
    def _latest(self) -> Told:
        latest: Told = self._plans.latest
        return latest

    @property
    def plan(self) -> Plan:
        """The plan that was used or made last."""
        return self._latest.plan

    @property
    def peak(self) -> int:
        """The most bytes in use: parameters, buffers and batch included; of what is planned, nothing else."""
        return self.plan.peak

    def explain(self) -> str:
        """Say what is run again, what that frees, and what sets the peak."""
        return explanation(self.plan, self._latest.lowered, self._latest.tasks)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as one HTML page."""
        self.plan.report(path, title=type(self.model).__name__)

    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the plan's memory over time as a file for PyTorch's viewer, pytorch.org/memory_viz."""
        with open(path, "wb") as file:
            # The viewer reads no later protocol.
            pickle.dump(snapshot(self.plan, self._latest.lowered, self.model), file, protocol=4)

    def policy(self, module: str = "") -> Policy:
        """Give what the plan keeps of a module as a ``context_fn`` for ``torch.utils.checkpoint.checkpoint``.

        >>> checkpoint(block, x, use_reentrant=False, context_fn=step.policy("blocks.0"))

        The module is named as in ``named_modules()``. Checkpointing computes the module again at once,
        as soon as its backward pass begins: order, repeats and the recomputation of gradients are lost,
        and with them the budget. Random operators aren't kept, those of batch norm always are.
        """
        return Policy(self.plan, self._latest.lowered, module)

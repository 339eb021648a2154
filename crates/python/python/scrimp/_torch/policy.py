"""A plan as a policy for PyTorch's selective checkpointing: what to keep, and what to compute again.

``torch.utils.checkpoint`` computes a region again at once and in one order, so of a plan only the choice
of what is kept at the end of the forward pass is left. What is neither kept nor read again runs again
all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from scrimp._torch.graph import Task
from scrimp._torch.modules import module_of
from scrimp._torch.problem import Lowered
from scrimp.errors import BadOption
from scrimp.planning import Plan

Key = tuple[str, tuple[int, ...]]
RANDOM = torch.Tag.nondeterministic_seeded


class Policy:
    """A ``context_fn`` of ``torch.utils.checkpoint.checkpoint``, for one call of one module."""

    def __init__(self, plan: Plan, lowered: Lowered, module: str) -> None:
        """Read from a plan what of a module, or of the whole model, it keeps."""
        tasks = [task for task in lowered.task_at if task is not None]
        self.module = module
        self.saves: dict[Key, list[bool]] = defaultdict(list)
        """Per operator and shape of its first tensor, whether each call of it is kept, in order."""
        kept = _kept(plan, lowered)
        for task in tasks:
            if not task.backward and _is_within(module_of(task.node), module):
                values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in task.node.args]
                self.saves[_key(task.node.target, values)].append(task in kept)
        if not self.saves:
            raise BadOption(
                f"no operator of the plan is from a module '{module}'; name one as in named_modules"
            )

    def __call__(self) -> tuple[Any, Any]:
        """Begin a run of the module: the contexts of its forward pass and of the one for backward."""
        # Older versions of PyTorch ask again in the second pass.
        passes = [{key: iter(saves) for key, saves in self.saves.items()} for _ in range(2)]

        def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            # It changes running statistics, which must happen once.
            if "batch_norm" in operator._schema.name:
                return CheckpointPolicy.MUST_SAVE
            saved = next(passes[context.is_recompute].get(_key(operator, args), iter(())), False)
            # Draws must come in the order of the first run, and what changes in place can't be kept.
            if saved and not operator._schema.is_mutable and RANDOM not in operator.tags:
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        forward, again = create_selective_checkpoint_contexts(policy)
        return forward, _Again(again)


class _Again:
    """The context in which a region runs again, but for what counts its runs."""

    def __init__(self, inner: Any) -> None:
        self._contexts = (inner, _Uncounted())

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


class _Uncounted(TorchDispatchMode):
    """Batch norm's count of batches stays: an integer without dimensions."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add_.Tensor and args[0].dim() == 0 and not args[0].is_floating_point():
            return args[0]
        return func(*args, **(kwargs or {}))


def _key(operator: Any, args: Sequence[Any]) -> Key:
    """An operator's name, in place or not, and the shape of its first tensor."""
    name = str(getattr(operator, "__name__", operator)).partition(".")[0].rstrip("_")
    first = next((arg for arg in args if isinstance(arg, Tensor)), None)
    return name, () if first is None else tuple(first.shape)


def _is_within(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")


def _kept(plan: Plan, lowered: Lowered) -> set[Task]:
    """The tasks with something in memory when the backward pass begins."""
    live: dict[int, Task | None] = {}
    for kind, number in plan.steps:
        if kind == "free":
            live.pop(number)
        if kind != "run":
            continue
        task = lowered.task_at[number]
        if number == lowered.between or (task is not None and task.backward):
            break
        for pair in lowered.problem.tasks[number]["overwrites"]:
            live.pop(pair["input"], None)
        live.update(dict.fromkeys(lowered.problem.tasks[number]["outputs"], task))
    return {task for task in live.values() if task is not None}

"""From a batch to the plan that serves it: what decides the graph, and the plans made so far."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Size, Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from scrimp._native import format_bytes
from scrimp._torch import store
from scrimp._torch.capture import HOOKS, autocast_mode, has_surrounding_hooks, refuse_hooks
from scrimp._torch.guards import Change, Guards
from scrimp._torch.memories import Memory
from scrimp._torch.problem import Lowered
from scrimp._torch.refusals import refuse_inference_mode, refuse_modules, refuse_tensors
from scrimp._torch.settings import Settings, mark
from scrimp._torch.swap import Away, add_memory, memory_of, placed
from scrimp._torch.verify import Operations
from scrimp.errors import BadOption, Mismatch, Unsupported
from scrimp.planning import Plan
from scrimp.problem import Problem

OFTEN = 4
"""Plans for changed values that may be made within `WITHIN` calls."""
WITHIN = 32
KEPT = 8
"""Plans for different values that are kept, per shape of batch and mode; the latest are."""


class Structure:
    """The modules of a model and its loss, and what of them decides the graph."""

    def __init__(self, *roots: Any) -> None:
        """List them, with the places where each has its submodules."""
        self.roots = [root for root in roots if isinstance(root, nn.Module)]
        self.modules = list(dict.fromkeys(module for root in self.roots for module in root.modules()))
        self._children = [(module._modules, list(module._modules.values())) for module in self.modules]
        self._hooks = [getattr(module, attribute, None) for module in self.modules for attribute in HOOKS]

    def holds(self) -> bool:
        """Whether the model still has these modules and no others."""
        return all(list(places.values()) == children for places, children in self._children)

    def refuse_hooks(self, *, parameters: bool) -> None:
        """Refuse hooks, those of parameters only if asked to."""
        tensors = (
            [p for m in self.modules for p in m._parameters.values() if p is not None] if parameters else ()
        )
        if (
            any(self._hooks)
            or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in tensors)
            or has_surrounding_hooks()
        ):
            for root in self.roots:
                refuse_modules(root)
                refuse_hooks(root, parameters=parameters)

    def mode(self, *, accumulating: bool = False) -> Any:
        """What decides the graph: modes, and the kinds of parameters and buffers, shared ones told apart."""
        numbers: dict[int, int] = {}
        parameters = [
            (
                numbers.setdefault(id(p), len(numbers)),
                p.requires_grad,
                p.grad is not None or (accumulating and p.requires_grad),
                p.shape,
                p.stride(),
                p.dtype,
                p.device,
            )
            for module in self.modules
            for p in module._parameters.values()
            if p is not None
        ]
        buffers = [
            (numbers.setdefault(id(b), len(numbers)), b.requires_grad, b.shape, b.stride(), b.dtype, b.device)
            for module in self.modules
            for b in module._buffers.values()
            if b is not None
        ]
        training = tuple([module.training for module in self.modules])
        return training, tuple(parameters), tuple(buffers), surroundings()


def surroundings() -> Any:
    """What of PyTorch's settings decides which operators run."""
    return (
        autocast_mode(),
        torch.get_default_dtype(),
        torch._C._get_mkldnn_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_deterministic(),
        torch._C._get_deterministic_algorithms(),
    )


class Guarded(Protocol):
    """A plan that serves the batches and values of Python for which its guards hold."""

    guards: Guards
    plan: Plan
    operations: Operations


Planned = TypeVar("Planned", bound=Guarded)


@dataclass(repr=False)
class Batch:
    """What a step or module is called with, taken apart: tensors are inputs, all else is constant."""

    leaves: list[Any]
    spec: TreeSpec
    tensors: list[Tensor]

    @staticmethod
    def of(whole: Any) -> Batch:
        """Take it apart."""
        leaves, spec = tree_flatten(whole)
        return Batch(leaves, spec, [leaf for leaf in leaves if isinstance(leaf, Tensor)])

    @property
    def marks(self) -> Any:
        """What of it decides the graph."""
        return self.spec, tuple(map(mark, self.leaves))

    def filler(self) -> Callable[[Sequence[Tensor]], Any]:
        """Give a function that puts other tensors in place of these; it holds none of these."""
        spec = self.spec
        constants = [None if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]

        def filled(tensors: Sequence[Tensor]) -> Any:
            leaves = list(constants)
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            return tree_unflatten(leaves, spec)

        return filled


class Plans(Generic[Planned]):
    """The plans of one model, made when a batch needs one that isn't there."""

    def __init__(
        self, model: nn.Module, loss_fn: Any, settings: Settings, *, parameter_hooks: bool = False
    ) -> None:
        """Start without plans; ``parameter_hooks``: whether parameters may have hooks."""
        self.model = model
        self.loss_fn = loss_fn
        self.settings = settings
        self.parameter_hooks = parameter_hooks
        self._structure: Structure | None = None
        self._made: dict[Any, list[Planned]] = {}
        self._latest: Planned | None = None
        self._calls = 0
        self._changes: list[tuple[int, Change]] = []
        """What was planned anew for, and at which call."""
        self._without: set[Any] = set()
        self.memory: Memory | None = None

    def find(
        self, batch: Batch, make: Callable[[], Planned], *, accumulating: bool = False, beside: Any = None
    ) -> Planned:
        """Give the plan for a batch and the model as it is now; have it made on first sight.

        ``accumulating``: as if all gradients were there. ``beside`` is what else decides the plan.
        """
        refuse_inference_mode()
        structure = self._current_structure()
        structure.refuse_hooks(parameters=not self.parameter_hooks)
        self._calls += 1
        shapes = batch.marks
        key = (shapes, (structure.mode(accumulating=accumulating), repr(beside)))
        there = self._made.get(key, [])
        planned = self._serving(there, batch)
        if planned is None:
            known = {planned_for for planned_for, _ in self._made}
            self.settings.may_plan(shapes, known, batch.tensors)
            refuse_modules(self.model)
            refuse_tensors(self.model, batch.tensors)
            planned = make()
            self._made[key] = [*there, planned][-KEPT - self.settings.max_shapes :]
        self._latest = planned
        return planned

    def memory_beside(self, device: torch.device) -> Memory | None:
        """The memory in which values may wait, if one is asked for."""
        asked = self.settings.asked_swap
        if asked is not None and self.memory is None:
            self.memory = memory_of(asked, device)
        return self.memory

    def let_swap(self, problem: Problem, device: torch.device) -> None:
        """Let values of a problem wait in that memory."""
        memory, asked = self.memory_beside(device), self.settings.asked_swap
        if memory is not None and asked is not None:
            add_memory(problem, memory, asked)

    def away(self, plan: Plan, lowered: Lowered) -> Away | None:
        """Find and reserve places for what a plan swaps."""
        if self.memory is None:
            return None
        away = placed(plan, lowered.problem, self.memory, lowered.states)
        if away is not None:
            self.memory.reserve(away.bytes)
        return away

    def verified(self, find: Callable[[], Planned], verify: Callable[[Planned], str]) -> Planned:
        """Give a plan that was compared with eager PyTorch, if that is wanted, before its first step.

        A graph from disk that isn't what eager runs is captured anew.
        """
        planned = find()
        operations = planned.operations
        if not self.settings.verify or operations.verified:
            return planned
        try:
            self.settings.say(verify(planned))
        except Mismatch as mismatch:
            if operations.kept is None:
                raise
            self.settings.say(f"the graph that was found is captured anew: {mismatch}")
            store.forget(*operations.kept)
            for there in self._made.values():
                there[:] = [one for one in there if one.operations.kept != operations.kept]
            return self.verified(find, verify)
        return planned

    def _current_structure(self) -> Structure:
        if self._structure is None or not self._structure.holds():
            if self._structure is not None:
                self.settings.say("planning anew: the model has other modules")
            self._structure = Structure(self.model, self.loss_fn)
            self._made.clear()
        return self._structure

    def _serving(self, there: Sequence[Planned], batch: Batch) -> Planned | None:
        """The plan whose guards hold; if there is none, refuse to make too many."""
        change: Change | None = None
        courses: list[Planned] = []
        for planned in reversed(there):
            found = planned.guards.changed()
            change = change or found
            if found is None and planned.guards.contents.holds(batch.tensors):
                return planned
            courses += [planned] if found is None else []
        if len(courses) >= self.settings.max_shapes:
            raise BadOption(
                f"plans for {len(courses)} courses of the model were made for batches of this shape, the "
                f"most allowed, and this batch would need another: {courses[0].guards.contents.about()}; "
                "keep that out of the model, or raise max_shapes"
            )
        if change is not None and not courses:
            self._may_change(change)
        return None

    def _may_change(self, change: Change) -> None:
        """Refuse a value that changes again and again."""
        self.settings.say(f"planning anew: {change}")
        self._changes = [
            (call, other)
            for call, other in self._changes
            if call > self._calls - WITHIN and other.path == change.path
        ]
        if len(self._changes) >= OFTEN:
            raise Unsupported(
                f"{change}, after {OFTEN} other values in {self._calls - self._changes[0][0]} calls; a plan "
                "is for one value: make it a tensor (a buffer that is changed in place, or part of the "
                "batch), or change it less often"
            )
        self._changes.append((self._calls, change))

    def goes_without(self, batch: Batch) -> bool:
        """Whether the model itself is to run a batch of a shape that nothing was planned for."""
        settings = self.settings
        if settings.on_new_shape == "plan" or not self._made:
            return False
        shapes = batch.marks
        if any(planned_for == shapes for planned_for, _ in self._made):
            return False
        new = ", ".join(str(tuple(tensor.shape)) for tensor in batch.tensors)
        if settings.on_new_shape == "error":
            raise BadOption(
                f"there is no plan for a batch with tensors of shapes {new}, and on_new_shape is 'error'; "
                "name such a batch in shapes, or call prepare with it"
            )
        if shapes not in self._without:
            self._without.add(shapes)
            warnings.warn(
                f"there is no plan for batches with tensors of shapes {new}: the model itself runs, with a "
                f"peak of about {format_bytes(self._estimate(batch))}; name such a batch in shapes to have "
                "it planned",
                stacklevel=3,
            )
        return True

    def _estimate(self, batch: Batch) -> int:
        """What the model needs for a batch, from what it needs for the largest planned one."""
        sizes = {_elements(shapes): there[0].plan for (shapes, _), there in self._made.items()}
        most = max(sizes)
        plan = sizes[most]
        return plan.fixed + (plan.base_peak - plan.fixed) * _elements(batch.marks) // max(most, 1)

    @property
    def latest(self) -> Planned:
        """The one that was found or made last."""
        if self._latest is None:
            raise BadOption("nothing is planned yet; call prepare with a batch first")
        return self._latest

    def __len__(self) -> int:
        """How many there are."""
        return sum(map(len, self._made.values()))

    def __iter__(self) -> Iterator[Planned]:
        """Each of them."""
        return itertools.chain.from_iterable(self._made.values())


def _elements(marks: Any) -> int:
    """Of a batch's tensors."""
    _, leaves = marks
    return sum(leaf[0].numel() for leaf in leaves if isinstance(leaf, tuple) and isinstance(leaf[0], Size))

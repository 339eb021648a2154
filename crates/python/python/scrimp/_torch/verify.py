"""Whether what was captured is what eager PyTorch runs.

The operators of the forward pass are written down while a model is captured. Before the first step with a
plan the model runs once more, on the real batch and in eager mode, and each operator that comes is
compared with the one written down: its name, the types and shapes of its tensors, its other arguments.
Gradients follow from the same operators. Nothing is kept for a backward pass, and generators, buffers and
attributes are as if the model hadn't run.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from scrimp._torch.memory import storage_bytes
from scrimp._torch.modules import Spans, forget_cached, same_attributes
from scrimp._torch.problem import CPU_STATE_BYTES, Largest, Lowered
from scrimp._torch.workspace import workspace
from scrimp.errors import Mismatch
from scrimp.planning import Plan


@dataclass(frozen=True)
class Operation:
    """One operator of a forward pass, as text, and the module that ran it."""

    text: str
    where: str
    bytes: int
    """What it made."""
    workspace: int
    """What it needs beside that, by rules."""


@dataclass(repr=False)
class Operations:
    """The operators of a captured forward pass, in order."""

    calls: list[Operation] = field(default_factory=list)
    verified: bool = False
    kept: tuple[str, str] | None = None
    """The file that they are from, if they were found on disk."""


SILENT = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.lift_fresh.default,
}
"""Operators that aren't compared: a view and casts, which show in what others get; and Python's look at a
number, which it also takes to print one."""


class Recorder(TorchDispatchMode):
    """Writes operators down."""

    active: Recorder | None = None

    def __init__(self, where: Callable[[], str]) -> None:
        """``where`` says which module is running."""
        super().__init__()
        self.calls: list[Operation] = []
        self._where = where
        self._paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and write it down."""
        kwargs = kwargs or {}
        if self._paused or not _tells(func):
            return func(*args, **kwargs)
        text = shown(func, args, kwargs)
        result = func(*args, **kwargs)
        needed = workspace(func, args, kwargs, result)
        self.calls.append(Operation(text, self._where(), _made(func, result), needed))
        return result

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Write down what runs, from nothing."""
        self.calls.clear()
        before, Recorder.active = Recorder.active, self
        try:
            with self:
                yield
        finally:
            Recorder.active = before

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing down."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


@contextlib.contextmanager
def written_as(formula: Callable[..., Any], *args: Any) -> Iterator[None]:
    """Write down what eager runs for a formula, and not what is captured in its place."""
    recorder = Recorder.active
    if recorder is None:
        yield
        return
    with recorder.paused(), _disable_current_modes(), torch._C._DisablePythonDispatcher():
        bare = tree_map_only(Tensor, _on_meta, args)
        eager = Recorder(recorder._where)
        with eager:
            formula(*bare)
    recorder.calls += eager.calls
    with recorder.paused():
        yield


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _tells(operator: Any) -> bool:
    """Whether an operator computes something. Of views, capture takes more or fewer."""
    returned = operator._schema.returns
    view = bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
    return not view and operator not in SILENT and operator.namespace != "prim"


def shown(operator: Any, args: Any, kwargs: Any) -> str:
    """An operator with its arguments: of tensors their types, shapes and strides."""
    if operator is torch.ops.aten._native_batch_norm_legit.default:
        operator = torch.ops.aten.native_batch_norm.default
    elif operator is torch.ops.aten._native_batch_norm_legit_no_training.default:
        operator, args = torch.ops.aten.native_batch_norm.default, (*args[:5], False, *args[5:])
    elif operator is torch.ops.aten._native_batch_norm_legit.no_stats:
        operator, args = torch.ops.aten.native_batch_norm.default, (*args[:3], None, None, *args[3:])
    parts = [_shown(arg) for arg in args] + [f"{k}={_shown(v)}" for k, v in kwargs.items() if k != "device"]
    return f"{operator}({', '.join(parts)})"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        strides = [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1]
        return text if _is_packed(value) else f"{text} by {strides}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)


def _is_packed(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or tensor.numel() == 0


def _made(operator: Any, result: Any) -> int:
    """Bytes that an operator's results take, if they are no views."""
    if any(returned.alias_info is not None for returned in operator._schema.returns):
        return 0
    return sum(t.numel() * t.element_size() for t in tree_leaves(result) if isinstance(t, Tensor))


class _Stop(BaseException):
    """Ends the model's forward pass; models don't catch it."""


class _Wanted(BaseException):
    """The forward pass has a backward pass, for which nothing was kept; models don't catch it."""


class _Comparer(TorchDispatchMode):
    """Compares operators with those written down, before each runs."""

    def __init__(
        self, operations: Operations, where: Callable[[], str], room: int, largest: dict[str, Largest]
    ) -> None:
        """Within ``room`` bytes beside what is always there; ``largest`` are the plan's operators by name."""
        super().__init__()
        self.done = 0
        self.difference = ""
        self.changed: list[tuple[Tensor, Tensor]] = []
        """Tensors from before that an operator changes in place, and what they were."""
        self._calls = operations.calls
        self._where = where
        self._room = room
        self._largest = largest
        self._unknown = Largest(0, max((one.workspace for one in largest.values()), default=0))
        self._held: dict[StorageWeakRef, int] = {}
        self._in_use = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compare, and run it."""
        kwargs = kwargs or {}
        if _tells(func):
            call = self._compared(shown(func, args, kwargs))
            self._find_room(call.bytes + self._workspace(func, call))
            self.done += 1
        elif func is torch.ops.aten._to_copy.default:
            self._find_room(args[0].numel() * kwargs.get("dtype", args[0].dtype).itemsize)
        self._keep_changed(func, args, kwargs)
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def finish(self) -> None:
        """Compare the end."""
        if not self.difference and self.done < len(self._calls):
            missing = self._calls[self.done]
            self._differs("no further operator", missing.text, missing.where)

    def _workspace(self, func: Any, call: Operation) -> int:
        """What it needs while it runs: the plan may have only tiles of it, whose workspaces are smaller."""
        known = self._largest.get(str(func.overloadpacket).partition(".")[2].rstrip("_"), self._unknown)
        return max(known.workspace, call.workspace) if call.bytes > known.bytes else known.workspace

    def _compared(self, text: str) -> Operation:
        if self.done == len(self._calls):
            self._differs(text, "no further operator", self._where())
            raise _Stop
        call = self._calls[self.done]
        if call.text != text:
            self._differs(text, call.text, self._where())
            raise _Stop
        return call

    def _find_room(self, wanted: int) -> None:
        if self._in_use + wanted > self._room:
            self._held = {ref: size for ref, size in self._held.items() if not ref.expired()}
            self._in_use = sum(self._held.values())
            if self._in_use + wanted > self._room:
                raise _Stop

    def _differs(self, eager: str, captured: str, where: str) -> None:
        place = f"in {where}" if where else "outside of the model's modules"
        self.difference = (
            f"operator {self.done} of the forward pass isn't what was captured: {place}, eager PyTorch runs "
            f"{eager}, but the plan has {captured}. Some code asks whether it is being traced, or chooses by "
            "something that isn't part of the batch; plan without that part of the model, or pass "
            "verify=False if other operators are fine"
        )

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        ref = StorageWeakRef(storage)
        if ref not in self._held:
            self._held[ref] = storage.nbytes()
            self._in_use += storage.nbytes()

    def _keep_changed(self, func: Any, args: Any, kwargs: Any) -> None:
        """What was there before the pass is put back after it."""
        if not func._schema.is_mutable:
            return
        given = [*zip(func._schema.arguments, args, strict=False)]
        given += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
        for argument, value in given:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tree_leaves(value):
                    if isinstance(tensor, Tensor) and not self._is_new(tensor):
                        self.changed.append((tensor, tensor.clone()))

    def _is_new(self, tensor: Tensor) -> bool:
        return StorageWeakRef(tensor.untyped_storage()) in self._held


class Planned(Protocol):
    """What is verified."""

    plan: Plan
    lowered: Lowered
    operations: Operations


def verify(planned: Planned, model: nn.Module, run: Callable[[], Any], changed: Sequence[Tensor]) -> str:
    """Run the model once as eager does, and compare; say how far it came.

    ``changed`` are tensors that the model changes in place. Nothing is kept for a backward pass unless the
    forward pass has one of its own, as gradient penalties do. Where eager needs more than the plan's peak
    even so, the comparison ends.

    Raises `Mismatch` at the first operator that differs.
    """
    operations = planned.operations
    keeps = False
    try:
        comparer = _compared(planned, model, run, changed, keeps)
    except _Wanted:
        keeps = True
        comparer = _compared(planned, model, run, changed, keeps)
    if comparer.difference:
        raise Mismatch(comparer.difference)
    operations.verified = True
    count = len(operations.calls)
    rest = ""
    if comparer.done < count:
        rest = "; for the rest eager needs more than the plan"
        rest += "" if keeps else ", though it keeps nothing"
    return f"{comparer.done} of {count} operators of the forward pass are eager's{rest}"


def _compared(
    planned: Planned, model: nn.Module, run: Callable[[], Any], changed: Sequence[Tensor], keeps: bool
) -> _Comparer:
    """Run the model once, keeping what backward passes need or nothing of it; put back what that changes.

    Raises `_Wanted` if a backward pass in the forward pass needs what isn't kept.
    """
    operations, lowered = planned.operations, planned.lowered
    spans = Spans(model)
    forget_cached(model)
    with _as_before(model, changed) as copies, _uncached_casts():
        room = planned.plan.peak - planned.plan.fixed - copies
        comparer = _Comparer(operations, spans.here, room, lowered.largest())
        try:
            with (
                contextlib.suppress(_Stop),
                contextlib.nullcontext() if keeps else _dropped(),
                torch.enable_grad(),
                spans.watch(),
                comparer,
            ):
                run()
                comparer.finish()
        finally:
            with torch.no_grad():
                for tensor, before in reversed(comparer.changed):
                    tensor.copy_(before)
    return comparer


def _dropped() -> torch.autograd.graph.saved_tensors_hooks:
    """What a backward pass would need isn't kept."""

    def wanted(_: None) -> Tensor:
        raise _Wanted

    return torch.autograd.graph.saved_tensors_hooks(lambda _: None, wanted)


@contextlib.contextmanager
def _uncached_casts() -> Iterator[None]:
    """Autocast would keep casts of parameters until it ends."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


GENERATOR_STATES = 2
"""How many of them are in memory at once: to be put back, and while that is done."""


@contextlib.contextmanager
def _as_before(model: nn.Module, changed: Sequence[Tensor]) -> Iterator[int]:
    """Put generators, buffers and attributes back; give the bytes of what is kept for that."""
    numpy: Any = sys.modules.get("numpy")
    copies = [tensor.detach().clone() for tensor in changed]
    python, arrays = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        with same_attributes(model), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield storage_bytes(copies) + GENERATOR_STATES * CPU_STATE_BYTES
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(arrays)
        with torch.no_grad():
            for tensor, copy in zip(changed, copies, strict=True):
                tensor.copy_(copy)

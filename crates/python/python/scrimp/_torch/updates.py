"""The optimizer's update as a part of the step: each parameter's as soon as its gradient is there.

An update is run by the optimizer itself, for one parameter at a time, so its bits are those of a whole
``optimizer.step()``, whichever implementation that chooses; its state and its learning rate are where
they always are. A gradient is freed after its update.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)
from torch.optim import optimizer as of_all

from scrimp._torch import kept, runtime
from scrimp._torch.capture import Joint, Slot
from scrimp._torch.gradients import slot_at
from scrimp._torch.graph import Storage, Tasks
from scrimp._torch.homes import homes_of, moves
from scrimp._torch.memories import Memory
from scrimp._torch.memory import measured
from scrimp._torch.modules import KEY
from scrimp._torch.problem import Cost
from scrimp._torch.profile import BYTES_PER_SECOND, OPERATIONS_PER_SECOND, machine, seconds_of
from scrimp.errors import BadOption, Unsupported

POINTWISE = (SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Adagrad, Adadelta, ASGD, Rprop)
"""Their update of a number depends on nothing of other numbers."""
KNOWN = (*POINTWISE, Adafactor, Muon)
"""Their update of a parameter depends on nothing of other parameters."""
SAMPLE = 1 << 22
"""Elements of a parameter up to which an update is measured; of larger ones it takes as many times more."""
BUSY_BYTES = 12
"""How often an update reads or writes a parameter's bytes, where it isn't measured."""
PER_UPDATE = 5e-5
SCRATCH = 5
"""Tensors of a parameter's size that an update makes at most, where that depends on the shape."""
PROBE = 1 << 14
"""Elements of a parameter by whose update it is found out otherwise."""


class Updater:
    """Runs an optimizer's updates of single parameters."""

    def __init__(self, optimizer: Optimizer, model: nn.Module, clip_norm: float | None) -> None:
        """Refuse what isn't parameter by parameter."""
        if not isinstance(optimizer, Optimizer):
            raise BadOption(f"the optimizer is a {type(optimizer).__name__}, but must be one of torch.optim")
        if type(optimizer).step not in {known.step for known in KNOWN}:
            raise Unsupported(
                f"{type(optimizer).__name__} isn't known to update each parameter by itself; leave it out of "
                f"fit and call its step() yourself, or use one of {', '.join(k.__name__ for k in KNOWN)}"
            )
        if any(group.get("differentiable") for group in optimizer.param_groups):
            raise Unsupported("an optimizer with differentiable=True can't be part of the step; leave it out")
        if isinstance(optimizer, Adafactor):
            _refuse_mixed(optimizer)
        if clip_norm is not None and not clip_norm > 0:
            raise BadOption(f"clip_norm is {clip_norm!r}, but must be a norm above 0")
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        self._model = model
        self.homes = homes_of(optimizer)
        self.memory: Memory | None = None
        """Where state may wait."""
        self.parameters: list[nn.Parameter] = []
        self._group_of = self._grouped()
        self._probed: dict[Any, int] = {}
        """By group and type, bytes that the update of a small parameter makes."""

    @property
    def marks(self) -> Any:
        """What of it decides a plan."""
        return [[id(p) for p in group["params"]] for group in self.optimizer.param_groups]

    def begin(self) -> None:
        """Refuse what can't be part of a step."""
        optimizer = self.optimizer
        if (
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or of_all._global_optimizer_pre_hooks
            or of_all._global_optimizer_post_hooks
        ):
            raise Unsupported(
                "the optimizer has hooks before or after its step, which a planned step can't call, since it "
                "updates one parameter at a time; remove them, or leave the optimizer out of fit"
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    raise BadOption(
                        "a parameter has a gradient before the step, but with an optimizer a step has its "
                        "gradients for itself; drop them with zero_grad(set_to_none=True), or leave the "
                        "optimizer out of fit to add up gradients of several batches"
                    )

    def set_out(self, elsewhere: Iterable[Any]) -> None:
        """Have the state where a plan expects it, and in the order of ``optimizer.step()``."""
        self._group_of = self._grouped()
        updated = set(self.parameters)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in updated:
                    # An entry to be filled by its first update.
                    _ = self.optimizer.state[parameter]
        self.homes.settle([self.parameters[state.state_of] for state in elsewhere], self.memory)

    def end(self) -> None:
        """Let schedules know that there was a step."""
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def clip(self, gradients: Iterable[Tensor], places: Iterable[int]) -> None:
        """Clip all gradients as `torch.nn.utils.clip_grad_norm_` does."""
        assert self.clip_norm is not None
        owners = [self.parameters[place] for place in places]
        try:
            for parameter, gradient in zip(owners, gradients, strict=True):
                parameter.grad = gradient
            nn.utils.clip_grad_norm_(self._model.parameters(), self.clip_norm)
        finally:
            for parameter in owners:
                parameter.grad = None

    def update(self, place: int, gradient: Tensor) -> None:
        """Update one parameter as ``optimizer.step()`` would."""
        parameter = self.parameters[place]
        parameter.grad = gradient
        try:
            _step(self.optimizer, self._group(parameter), parameter)
        finally:
            parameter.grad = None

    def add(self, joint: Joint) -> None:
        """Let a graph end in updates in place of gradients."""
        graph = joint.module.graph
        owned = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        (output,) = graph.find_nodes(op="output")
        with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
            updater = graph.placeholder("updater")
        places = {position: self._place(slot_at(joint, position)) for position, _ in joint.gradients}
        with graph.inserting_before(output):
            if self.clip_norm is not None:
                nodes = [node for _, node in joint.gradients]
                clipped = graph.call_function(runtime.clip, (updater, nodes, list(places.values())))
                clipped.meta["val"] = None
            for position, node in joint.gradients:
                slot = slot_at(joint, position)
                if id(slot.get()) in owned:
                    made = graph.call_function(runtime.update, (updater, places[position], node))
                    made.meta["val"] = None
                    made.meta[KEY] = slot.path.removeprefix("model.").rpartition(".")[0]
        joint.gradients = [g for g in joint.gradients if id(slot_at(joint, g[0]).get()) not in owned]

    def changes(self, joint: Joint, tasks: Tasks, memory: Memory | None) -> None:
        """Say which storages the graph's updates change; inputs that share a parameter's memory are one.

        With a ``memory`` to wait in, so is state of a parameter's size.
        """
        self.memory = memory
        inputs = zip(joint.module.graph.find_nodes(op="placeholder"), joint.placeholders, strict=False)
        storage_of: dict[int, Any] = {}
        for node, slot in inputs:
            if isinstance(slot, Slot):
                (storage,) = tasks.storages_of[node]
                storage.same = storage_of.setdefault(slot.get().untyped_storage()._cdata, storage)
        for task in tasks.tasks:
            if task.node.target is runtime.update:
                parameter = self.parameters[task.node.args[1]]  # type: ignore[index]
                task.writes = [storage_of[parameter.untyped_storage()._cdata]]
                size = self._moving_bytes(parameter)
                if self.memory is not None and size:
                    place: Any = task.node.args[1]
                    task.writes.append(Storage(size, None, parameter.device, state_of=place))
            elif task.node.target is runtime.clip:
                task.writes = list(task.reads)

    def state_bytes(self) -> tuple[int, int]:
        """Bytes of the state of all parameters that this step updates, and of those that are yet to come."""
        owned = dict.fromkeys(self.parameters)
        sizes = {p: sum(size for _, size in self._state_sizes(p)) for p in owned}
        return sum(sizes.values()), sum(size for p, size in sizes.items() if not self.optimizer.state.get(p))

    def cost(self, node: Node, measures: bool) -> Cost:
        """Measure or estimate an update, or clipping."""
        if node.target is runtime.clip:
            gradients = [n.meta["val"] for n in node.all_input_nodes if "val" in n.meta]
            size = sum(g.numel() * g.element_size() for g in gradients)
            return Cost(PER_UPDATE * len(gradients) + 3 * size / BYTES_PER_SECOND, 1024 * len(gradients))
        parameter = self.parameters[node.args[1]]  # type: ignore[index]
        size = parameter.numel() * parameter.element_size()
        if not measures:
            seconds = PER_UPDATE + BUSY_BYTES * size / BYTES_PER_SECOND
            if isinstance(self.optimizer, Muon):
                rounds = self._group(parameter)["ns_steps"]
                seconds += rounds * _orthogonalizing(*parameter.shape) / OPERATIONS_PER_SECOND
            return Cost(seconds, self._scratch(parameter, size) + 1024)
        return self._measured(parameter)

    def _place(self, slot: Slot) -> int:
        parameter = slot.get()
        assert isinstance(parameter, nn.Parameter)
        self.parameters.append(parameter)
        return len(self.parameters) - 1

    def _grouped(self) -> dict[nn.Parameter, dict[str, Any]]:
        return {p: group for group in self.optimizer.param_groups for p in group["params"]}

    def _group(self, parameter: nn.Parameter) -> dict[str, Any]:
        group = self._group_of.get(parameter)
        if group is None:
            raise Unsupported("the optimizer no longer has a parameter that it had; plan anew with fit")
        return group

    def _moving_bytes(self, parameter: nn.Parameter) -> int:
        return sum(size for moves, size in self._state_sizes(parameter) if moves)

    def _state_sizes(self, parameter: nn.Parameter) -> list[tuple[bool, int]]:
        """For each tensor of a parameter's state, whether it can move, and its bytes."""
        try:
            group = self._group(parameter)
        except Unsupported:
            return []
        there = self.optimizer.state.get(parameter)
        if there:
            return [
                (moves(tensor, parameter), tensor.untyped_storage().nbytes())
                for tensor in there.values()
                if isinstance(tensor, Tensor)
            ]
        small = [min(size, 2) for size in parameter.shape]
        twin = _Twin(self.optimizer, group, parameter, small)
        twin.step()
        found: list[tuple[bool, int]] = []
        for tensor in twin.state.values():
            if isinstance(tensor, Tensor):
                sizes: list[int] = list(tensor.shape)
                if len(sizes) == len(small):
                    # Of each dimension it has all that the parameter has, or one.
                    pairs = zip(sizes, small, parameter.shape, strict=True)
                    sizes = [whole if size == least else size for size, least, whole in pairs]
                moved = bool(sizes) and list(parameter.shape) == sizes
                found.append((moved, math.prod(sizes) * tensor.element_size()))
        return found

    def _scratch(self, parameter: nn.Parameter, size: int) -> int:
        """Bytes that an update makes beside the state."""
        if not isinstance(self.optimizer, POINTWISE) or parameter.device.type != "cpu":
            return SCRATCH * size
        group = self._group(parameter)
        key = id(group), parameter.dtype
        if key not in self._probed:
            twin = _Twin(self.optimizer, group, parameter, [PROBE])
            twin.step()
            self._probed[key] = measured(twin.step, parameter.device)[1]
        return math.ceil(self._probed[key] * parameter.numel() / PROBE)

    def _measured(self, parameter: nn.Parameter) -> Cost:
        group = self._group(parameter)
        pointwise = isinstance(self.optimizer, POINTWISE)
        shape = [min(parameter.numel(), SAMPLE)] if pointwise else list(parameter.shape)
        options = {k: v for k, v in group.items() if k not in ("params", "lr", "initial_lr")}
        key = f"update {type(self.optimizer).__name__} {options} {parameter.dtype}{shape}"
        here = machine(parameter.device)
        row = kept.load().get(here, {}).get(key)
        if row is None:
            twin = _Twin(self.optimizer, group, parameter, shape)
            twin.step()
            _, peak, _ = measured(twin.step, parameter.device)
            seconds, busy = seconds_of(twin.step, parameter.device)
            row = [seconds, peak, int(busy)]
            kept.store(here, {key: row})
        times = parameter.numel() / max(math.prod(shape), 1)
        return Cost(float(row[0]) * times, math.ceil(row[1] * times))


class _Twin:
    """An optimizer like another one, with a parameter of its own."""

    def __init__(
        self, optimizer: Optimizer, group: dict[str, Any], like: nn.Parameter, shape: Sequence[int]
    ) -> None:
        self._optimizer: Any = object.__new__(type(optimizer))
        vars(self._optimizer).update(vars(optimizer))
        self._optimizer.state = defaultdict(dict)
        self._parameter = nn.Parameter(torch.zeros(shape, dtype=like.dtype, device=like.device))
        self._parameter.grad = torch.zeros_like(self._parameter)
        self._group = group
        if isinstance(optimizer, Adagrad):
            # Some versions of PyTorch make its state when it is made.
            for name, value in optimizer.state.get(like, {}).items():
                self.state[name] = value.clone() if value.dim() == 0 else torch.zeros_like(self._parameter)

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._optimizer.state[self._parameter]
        return found

    def step(self) -> None:
        _step(self._optimizer, self._group, self._parameter)


def _orthogonalizing(rows: int, columns: int) -> int:
    """Operations of one of Muon's rounds of three products."""
    short, long = sorted((rows, columns))
    return 2 * short * short * (2 * long + short)


def _refuse_mixed(optimizer: Optimizer) -> None:
    """Refuse groups for which the type of the first parameter decides how others are updated."""
    for group in optimizer.param_groups:
        types = {parameter.dtype for parameter in group["params"]}
        if group["eps"][0] is None and len(types) > 1:
            raise Unsupported(
                "Adafactor takes its first eps from the type of a group's first parameter, but a group has "
                f"parameters of several types ({', '.join(sorted(map(str, types)))}); say eps, or put each "
                "type in a group of its own"
            )


def _step(optimizer: Any, group: dict[str, Any], parameter: Tensor) -> None:
    """Let an optimizer step as if it had one parameter.

    What is around its method only calls hooks, which are refused, and turns gradients off.
    """
    groups = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": [parameter]}]
    try:
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)
    finally:
        optimizer.param_groups = groups

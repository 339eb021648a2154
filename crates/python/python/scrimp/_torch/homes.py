"""Where an optimizer's state waits between updates, if a plan sends it away.

What is away is a tensor without contents (on the device "meta") in ``optimizer.state``. ``state_dict()``
brings all of it back, and so does a step whose plan keeps it in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from scrimp._torch.memories import PAGE, Copy, Memory

_homes: weakref.WeakKeyDictionary[Optimizer, Homes] = weakref.WeakKeyDictionary()


def homes_of(optimizer: Optimizer) -> Homes:
    """The one of an optimizer: several steps may share it."""
    found = _homes.get(optimizer)
    if found is None:
        found = _homes[optimizer] = Homes(optimizer)
    return found


class Homes:
    """Brings the state of single parameters and sends it away."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Nothing is away."""
        self._optimizer = weakref.ref(optimizer)
        self._places: dict[tuple[nn.Parameter, str], _Place] = {}
        self._copies: dict[nn.Parameter, list[Copy]] = {}
        optimizer.register_state_dict_pre_hook(lambda _: self.settle(()))

    def settle(self, away: Collection[nn.Parameter], memory: Memory | None = None) -> None:
        """Have the state of these parameters away in a memory, and all other state here."""
        others = set(away)
        for parameter in list(self._state()):
            if parameter not in others:
                self.bring(parameter)
                self.arrive(parameter)
        for parameter in away:
            assert memory is not None
            self.store(parameter, memory)
            self.free(parameter)

    def bring(self, parameter: nn.Parameter) -> None:
        """Take memory for what is away of a parameter's state, and begin to fill it."""
        state = self._state().get(parameter, {})
        for name, tensor in state.items():
            if isinstance(tensor, Tensor) and tensor.is_meta:
                place = self._places[parameter, name]
                state[name] = here = _like(tensor, parameter.device)
                copy = place.memory.bring(here.untyped_storage(), place.address)
                self._copies.setdefault(parameter, []).append(copy)

    def store(self, parameter: nn.Parameter, memory: Memory) -> None:
        """Begin to send a parameter's state away; numbers such as the count of steps stay."""
        for name, tensor in self._state().get(parameter, {}).items():
            if moves(tensor, parameter) and not tensor.is_meta:
                place = self._place(parameter, name, tensor, memory)
                copy = place.memory.store(tensor.untyped_storage(), place.address)
                self._copies.setdefault(parameter, []).append(copy)

    def arrive(self, parameter: nn.Parameter) -> None:
        """Wait for the copies of a parameter's state."""
        for copy in self._copies.pop(parameter, ()):
            copy.wait()

    def free(self, parameter: nn.Parameter) -> None:
        """Give the bytes of a parameter's state back, which was sent away."""
        self.arrive(parameter)
        state = self._state().get(parameter, {})
        for name, tensor in state.items():
            if moves(tensor, parameter) and not tensor.is_meta:
                state[name] = _like(tensor, META)

    def _place(self, parameter: nn.Parameter, name: str, tensor: Tensor, memory: Memory) -> _Place:
        place = self._places.get((parameter, name))
        if place is None or place.memory is not memory or place.bytes < tensor.untyped_storage().nbytes():
            place = self._places[parameter, name] = _Place(memory, tensor.untyped_storage().nbytes())
        return place

    def _state(self) -> dict[Any, dict[str, Any]]:
        optimizer = self._optimizer()
        return {} if optimizer is None else optimizer.state


META = torch.device("meta")


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    """Laid out alike; `torch.empty_like` from one device to another goes through Python."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


class _Place:
    """An area of a memory for one tensor."""

    def __init__(self, memory: Memory, size: int) -> None:
        self.memory = memory
        self.bytes = -(-size // PAGE) * PAGE
        area = memory.take(self.bytes)
        self.address = area.address
        weakref.finalize(self, memory.give_back, area)


def moves(tensor: Any, parameter: Tensor) -> bool:
    """Whether it is state of a parameter's own size, which is worth moving."""
    return isinstance(tensor, Tensor) and tensor.shape == parameter.shape and tensor.dim() > 0

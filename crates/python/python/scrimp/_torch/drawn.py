"""Random generators that a forward pass draws from outside of tensors, which a plan can't follow."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from scrimp.errors import Unsupported


@dataclass(repr=False)
class Generator:
    """One of them, by functions that give and set its state, and that seed it."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[int], object] | None
    """None for one that must not be seeded either."""
    first: Any = None
    ends: list[Any] = field(default_factory=list)
    """States at the end of the runs that changed it."""


class Generators:
    """Python's and NumPy's generators, PyTorch's, and those that are found in attributes."""

    def __init__(self) -> None:
        """Know the global ones."""
        self.all = [_pythons("Python's random module", random._inst)]
        if "numpy" in sys.modules:
            self.all.append(_numpys("NumPy's global generator (numpy.random)", sys.modules["numpy"].random))
        self.all.append(_torchs())

    def meet(self, value: Any, path: str) -> bool:
        """Know one more, if it is one."""
        if isinstance(value, random.Random):
            self.all.append(_pythons(f"the generator {path}", value))
        elif "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].random.RandomState):
            self.all.append(_numpys(f"the generator {path}", value))
        elif "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].random.Generator):
            self.all.append(_new_numpys(f"the generator {path}", value))
        else:
            return False
        self.all[-1].first = self.all[-1].get()
        return True

    def remember(self) -> None:
        """Take their states."""
        for generator in self.all:
            generator.first = generator.get()

    def restore(self) -> None:
        """Give them back."""
        for generator in self.all:
            generator.put(generator.first)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Each run starts from other states, so that a run which seeds them itself can be told."""
        starts = {}
        for place, generator in enumerate(self.all):
            if generator.seed is not None:
                generator.seed(1000 + len(generator.ends))
            starts[place] = generator.get()
        try:
            yield
        finally:
            for place, generator in enumerate(self.all):
                end = generator.get()
                if end != starts.get(place, generator.first):
                    generator.ends.append(end)

    def refuse(self) -> None:
        """Refuse draws that were not seeded by the forward pass itself."""
        for generator in self.all:
            ends = generator.ends
            seeded = generator.seed is not None and len(ends) > 1 and all(end == ends[0] for end in ends)
            if ends and not seeded:
                raise Unsupported(
                    f"the forward pass draws numbers from {generator.name}, so each step may take another "
                    "course, and a plan is for one; draw tensors with torch (torch.rand(..., "
                    "device=x.device), torch.where), or turn off what draws (such as layerdrop=0.0)"
                )


def _pythons(name: str, generator: random.Random) -> Generator:
    return Generator(name, generator.getstate, generator.setstate, generator.seed)


def _numpys(name: str, generator: Any) -> Generator:
    def get() -> Any:
        kind, keys, *rest = generator.get_state()
        return kind, keys.tolist(), *rest

    return Generator(name, get, generator.set_state, generator.seed)


def _new_numpys(name: str, generator: Any) -> Generator:
    bits = generator.bit_generator

    def put(state: Any) -> None:
        bits.state = state

    # It can't be seeded in place; drawing that many numbers gives it another state too.
    return Generator(name, lambda: bits.state, put, generator.random)


def _torchs() -> Generator:
    """That of the CPU: operators draw from it at every step, the forward pass must not set it."""

    def get() -> Any:
        with _disable_current_modes(), unset_fake_temporarily():
            return torch.default_generator.get_state().numpy().tobytes()

    def put(state: bytes) -> None:
        torch.default_generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    return Generator("PyTorch's generator outside of operators (such as torch.manual_seed)", get, put, None)

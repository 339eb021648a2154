"""Pinned RAM beside a GPU, in which values wait."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from scrimp._native import format_bytes
from scrimp._torch.memories import PAGE, PROBE, Copy, Memory, Speed, seconds_of, speed_of
from scrimp.errors import Unsupported


class PinnedCopy(Copy):
    """A copy on a stream of its own."""

    event: Any = None

    def __init__(self, storage: UntypedStorage, address: int, *, writes: bool) -> None:
        """Not begun yet."""
        super().__init__(storage, address, writes=writes)
        self.device = storage.device

    def is_done(self) -> bool:
        """Whether it has ended."""
        done: bool = self.event.query()
        return done

    def wait(self) -> None:
        """Let the device's compute wait, not the host."""
        _current(self.device).wait_event(self.event)


@dataclass(repr=False)
class _Slab:
    start: int
    bytes: Tensor = field(repr=False)


class Pinned(Memory):
    """RAM that a GPU copies from and to by itself, and a stream for each direction.

    Each slab is as large as is needed and is pinned as a whole: PyTorch's own pinned allocator rounds up to
    powers of two.
    """

    def __init__(self, name: str, capacity: int, device: torch.device) -> None:
        """Make the streams."""
        super().__init__(name, capacity)
        self._device = device
        self._streams = (torch.cuda.Stream(device), torch.cuda.Stream(device))
        self._slabs: list[_Slab] = []

    @property
    def place(self) -> str:
        """The kind of GPU."""
        return f"swap beside {torch.cuda.get_device_name(self._device)}"

    def speed(self) -> Speed:
        """Measure copies out and back, alone and together."""
        area = self.take(2 * PROBE)
        there = area.address + PROBE
        a, b = (
            torch.zeros(PROBE, dtype=torch.uint8, device=self._device).untyped_storage() for _ in range(2)
        )

        def seconds(begin: Callable[[], list[Copy]]) -> float:
            def waited() -> list[Copy]:
                copies = begin()
                for copy in copies:
                    copy.wait()
                torch.cuda.synchronize(self._device)
                return []

            return seconds_of(waited, 3)

        try:
            out, back = (seconds(lambda: [self.store(a, there)]), seconds(lambda: [self.bring(b, there)]))
            both = seconds(lambda: [self.store(a, area.address), self.bring(b, there)])
            small = torch.zeros(PAGE, dtype=torch.uint8, device=self._device).untyped_storage()
            latency = seconds(lambda: [self.store(small, area.address)])
        finally:
            self.give_back(area)
        return speed_of(out, back, both, latency)

    def _extend(self, start: int, size: int) -> None:
        self._slabs = [slab for slab in self._slabs if slab.start < start]
        # Whole pages, none of which another slab has a part of: pages are what is pinned.
        whole = torch.empty(size + PAGE, dtype=torch.uint8)
        memory = whole.narrow(0, -whole.data_ptr() % PAGE, size)
        runtime: Any = torch.cuda.cudart()
        failed = int(runtime.cudaHostRegister(memory.data_ptr(), size, 0))
        if failed:
            raise Unsupported(
                f"CUDA can't pin {format_bytes(size)} of RAM (error {failed}); give swap less, or raise the "
                "limit of locked memory"
            )
        weakref.finalize(memory, _unpin, memory.data_ptr())
        self._slabs.append(_Slab(start, memory))

    def _copy(self, storage: UntypedStorage, address: int, writes: bool) -> PinnedCopy:
        return PinnedCopy(storage, address, writes=writes)

    def _begin(self, copy: PinnedCopy, after: PinnedCopy | None) -> None:
        slab = next(slab for slab in reversed(self._slabs) if slab.start <= copy.address)
        here = slab.bytes.narrow(0, copy.address - slab.start, copy.bytes)
        assert copy.storage is not None
        there = torch.empty(0, dtype=torch.uint8, device=self._device).set_(copy.storage)
        stream: Any = self._streams[copy.writes]
        current = _current(self._device)
        # What the device was told before: it made the value, or used the bytes until now.
        stream.wait_event(current.record_event())
        if after is not None:
            stream.wait_event(after.event)
        _copy_on(stream, current, *((here, there) if copy.writes else (there, here)))
        copy.event = stream.record_event()
        # The caching allocator gives bytes back in the order of the device's own stream, which waits for the
        # event before the plan frees them.
        copy.storage = None


def _current(device: torch.device) -> Any:
    """The stream of a GPU that computes; to be asked by number takes a tenth of the time."""
    return torch.cuda.current_stream(device.index)


def _copy_on(stream: Any, current: Any, target: Tensor, source: Tensor) -> None:
    """Copy on another stream than the current one, past the context for it, which takes longer."""
    device = torch.cuda.current_device()
    torch.cuda.set_stream(stream)
    try:
        target.copy_(source, non_blocking=True)
    finally:
        torch.cuda.set_stream(current)
        if device != stream.device_index:
            torch.cuda.set_device(device)


def _unpin(address: int) -> None:
    runtime: Any = torch.cuda.cudart()
    runtime.cudaHostUnregister(address)

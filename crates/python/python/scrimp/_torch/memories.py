"""Memories in which values wait, and the one beside a CPU: a file.

Copies run beside compute, those out of the device one after another and those back likewise. Two copies
that touch the same bytes of the memory, one of them writing, never overlap: the later one waits for the
earlier. So whatever a plan says, what is read is what was written before it.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from scrimp._native import format_bytes
from scrimp.errors import BadOption, Unsupported

PAGE = 4096
"""Direct input and output wants addresses, offsets and lengths that are multiples of this."""
PIECE = 2 << 20
"""Bytes of a file that are read or written at once."""
PROBE = 32 << 20
"""Bytes of the copies that measure a link."""


@dataclass(frozen=True)
class Speed:
    """Bytes per second to a memory and back, seconds before a copy's first byte, and whether both
    directions share one queue.
    """

    out: float
    back: float
    latency: float
    half: bool


@dataclass(eq=False, repr=False)
class Area:
    """Bytes of a memory that one step has for itself."""

    address: int
    bytes: int
    block: int
    """What was got from the system at once; areas of one block may be joined."""
    taken: bool = False


class Copy(abc.ABC):
    """A copy between a storage and a memory."""

    def __init__(self, storage: UntypedStorage, address: int, *, writes: bool) -> None:
        """Know what is copied; ``writes`` into the memory or reads from it."""
        self.storage: UntypedStorage | None = storage
        self.address = address
        self.bytes = storage.nbytes()
        self.writes = writes

    def touches(self, other: Copy) -> bool:
        """Whether the two have bytes of the memory in common."""
        return self.address < other.address + other.bytes and other.address < self.address + self.bytes

    @abc.abstractmethod
    def is_done(self) -> bool:
        """Whether it has ended."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Let what the device does from now on come after the copy."""


class Memory(abc.ABC):
    """A memory of limited size, in areas that steps take in turn."""

    def __init__(self, name: str, capacity: int) -> None:
        """Take nothing yet."""
        self.name = name
        self.capacity = capacity
        self._areas: list[Area] = []
        self._going_on: tuple[deque[Copy], deque[Copy]] = (deque(), deque())
        """Copies from the memory, and those to it, in order."""

    @property
    @abc.abstractmethod
    def place(self) -> str:
        """What its speed depends on."""

    @abc.abstractmethod
    def speed(self) -> Speed:
        """Measure copies out and back, alone and together."""

    @property
    def reserved(self) -> int:
        """Bytes that are taken from the system."""
        return sum(area.bytes for area in self._areas)

    def take(self, size: int) -> Area:
        """Give an area of at least ``size`` bytes; it is reserved if it isn't yet."""
        free = [area for area in self._areas if not area.taken and area.bytes >= size]
        if not free:
            free = [self._added(size)]
        area = min(free, key=lambda area: area.bytes)
        size = -(-size // PAGE) * PAGE
        if size < area.bytes:
            at = self._areas.index(area) + 1
            self._areas.insert(at, Area(area.address + size, area.bytes - size, area.block))
            area.bytes = size
        area.taken = True
        return area

    def give_back(self, area: Area) -> None:
        """Let others have an area. Copies that are going on there are waited for by later ones."""
        area.taken = False
        joined: list[Area] = []
        for one in self._areas:
            last = joined[-1] if joined else one
            if last is not one and not last.taken and not one.taken and last.block == one.block:
                last.bytes += one.bytes
            else:
                joined.append(one)
        self._areas = joined

    def reserve(self, size: int) -> None:
        """Have an area of this size ready."""
        self.give_back(self.take(size))

    def store(self, storage: UntypedStorage, address: int) -> Copy:
        """Begin to copy a storage to an address of the memory."""
        return self._begun(storage, address, writes=True)

    def bring(self, storage: UntypedStorage, address: int) -> Copy:
        """Begin to fill a storage with what is at an address of the memory."""
        return self._begun(storage, address, writes=False)

    def _begun(self, storage: UntypedStorage, address: int, *, writes: bool) -> Copy:
        copy = self._copy(storage, address, writes)
        for queue in self._going_on:
            while queue and queue[0].is_done():
                queue.popleft()
        # Copies in one direction come one after another anyway, so the latest in the other is enough.
        other = next((o for o in reversed(self._going_on[not writes]) if o.touches(copy)), None)
        self._begin(copy, other)
        self._going_on[writes].append(copy)
        return copy

    def _added(self, size: int) -> Area:
        if all(not area.taken for area in self._areas):
            self._areas.clear()
        start = max((area.address + area.bytes for area in self._areas), default=0)
        size = -(-size // PAGE) * PAGE
        if start + size > self.capacity:
            raise BadOption(
                f"a step needs {format_bytes(size)} of memory '{self.name}', and {format_bytes(start)} are "
                f"taken by others, but swap allows {format_bytes(self.capacity)}; give it more"
            )
        self._extend(start, size)
        self._areas.append(Area(start, size, start))
        return self._areas[-1]

    @abc.abstractmethod
    def _extend(self, start: int, size: int) -> None:
        """Get bytes from the system; all areas are below ``start``."""

    @abc.abstractmethod
    def _copy(self, storage: UntypedStorage, address: int, writes: bool) -> Any:
        """Describe a copy."""

    @abc.abstractmethod
    def _begin(self, copy: Any, after: Any) -> None:
        """Begin a copy that comes ``after`` another, if there is one."""


class FileCopy(Copy):
    """A copy that a thread makes."""

    def __init__(self, storage: UntypedStorage, address: int, *, writes: bool) -> None:
        """Not begun yet."""
        super().__init__(storage, address, writes=writes)
        self.after: FileCopy | None = None
        self.error: OSError | None = None
        self._done = threading.Event()

    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def wait(self) -> None:
        """Wait until it has ended, and tell if it failed."""
        self._done.wait()
        if self.error is not None:
            raise self.error

    def make(self, file: int, piece: mmap.mmap) -> None:
        """Copy, in pieces through an aligned buffer. Nothing holds the storage any more when it is done."""
        try:
            if self.after is not None:
                self.after.wait()
            self._transfer(file, piece)
        except OSError as error:
            self.error = _told(error, self.writes)
        self.after = self.storage = None
        self._done.set()

    def _transfer(self, file: int, piece: mmap.mmap) -> None:
        assert self.storage is not None
        start, here = self.storage.data_ptr(), ctypes.addressof(ctypes.c_char.from_buffer(piece))
        whole = memoryview(piece)
        for done in range(0, self.bytes, PIECE):
            size = min(PIECE, self.bytes - done)
            part = whole[: -(-size // PAGE) * PAGE]
            if self.writes:
                ctypes.memmove(here, start + done, size)
            _exactly(os.pwritev if self.writes else os.preadv, file, part, self.address + done)
            if not self.writes:
                ctypes.memmove(start + done, here, size)


def _exactly(call: Callable[[int, list[memoryview], int], int], file: int, part: memoryview, at: int) -> None:
    """Read or write all of it."""
    done = 0
    while done < len(part):
        count = call(file, [part[done:]], at + done)
        if count <= 0:
            raise OSError(errno.EIO, f"{done} of {len(part)} bytes at {at}, and then none")
        done += count


def _told(error: OSError, writes: bool) -> OSError:
    what = "stored in" if writes else "read back from"
    return OSError(
        error.errno,
        f"a value couldn't be {what} the file of swapped values, so the step has no result: "
        f"{error.strerror or error}; begin again from weights that were saved, with another folder in swap",
    )


class File(Memory):
    """A file without a name, which is gone when the process is; a thread for each direction."""

    def __init__(self, name: str, capacity: int, folder: Path) -> None:
        """Open it in a folder."""
        super().__init__(name, capacity)
        self.folder = folder
        self._file = _opened(folder)
        self._process = os.getpid()
        self._queues: tuple[SimpleQueue[FileCopy | None], ...] = (SimpleQueue(), SimpleQueue())
        threads = [
            threading.Thread(target=_work, args=(queue, self._file), daemon=True) for queue in self._queues
        ]
        for thread in threads:
            thread.start()
        weakref.finalize(self, _end, self._file, self._queues, threads)

    @property
    def place(self) -> str:
        """The file system of its folder."""
        return f"swap to disk {os.fstat(self._file).st_dev}"

    def speed(self) -> Speed:
        """Measure copies out and back, alone and together."""
        area = self.take(2 * PROBE)
        there = area.address + PROBE
        a, b = (torch.zeros(PROBE, dtype=torch.uint8).untyped_storage() for _ in range(2))
        try:
            first = seconds_of(lambda: [self.store(a, area.address)], 1)
            out = seconds_of(lambda: [self.store(a, area.address)])
            self.store(b, there).wait()
            back = seconds_of(lambda: [self.bring(b, there)])
            both = seconds_of(lambda: [self.store(a, area.address), self.bring(b, there)])
            small = torch.zeros(PAGE, dtype=torch.uint8).untyped_storage()
            latency = seconds_of(lambda: [self.store(small, area.address)])
        finally:
            self.give_back(area)
        return speed_of(min(first, out), back, both, latency)

    def _extend(self, start: int, size: int) -> None:
        free = os.fstatvfs(self._file)
        more = start + size - os.fstat(self._file).st_size
        there = free.f_bavail * free.f_frsize
        if more > there:
            raise BadOption(
                f"swapped values need {format_bytes(more)} more on the disk of {self.folder}, which has "
                f"{format_bytes(there)} free; make room, or name another folder: swap='disk:/folder=16GiB'"
            )
        try:
            os.posix_fallocate(self._file, start, size)
        except OSError as error:
            # Some file systems have taken part of it.
            os.ftruncate(self._file, start)
            raise Unsupported(
                f"{format_bytes(size)} can't be reserved in {self.folder}: {error.strerror}; name another "
                "folder: swap='disk:/folder=16GiB'"
            ) from error

    def _copy(self, storage: UntypedStorage, address: int, writes: bool) -> FileCopy:
        return FileCopy(storage, address, writes=writes)

    def _begin(self, copy: FileCopy, after: FileCopy | None) -> None:
        if os.getpid() != self._process:
            raise Unsupported(
                "this process was forked from one that swaps to a file, and has none of its threads; call "
                "fit or wrap in this process"
            )
        copy.after = after
        self._queues[copy.writes].put(copy)


def _opened(folder: Path) -> int:
    """A file that has no name: nothing is left of it when the process ends, however it does."""
    direct = getattr(os, "O_DIRECT", 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for flags in (direct, 0):
            # Not all file systems take direct input and output, or files without a name.
            with contextlib.suppress(OSError):
                return os.open(folder, os.O_RDWR | os.O_TMPFILE | flags, 0o600)
        file, path = tempfile.mkstemp(dir=folder)
        os.unlink(path)
    except OSError as error:
        raise BadOption(
            f"no file can be made in {folder} for swapped values: {error.strerror}; name another folder: "
            "swap='disk:/folder=16GiB'"
        ) from error
    return file


def _work(queue: SimpleQueue[FileCopy | None], file: int) -> None:
    piece = mmap.mmap(-1, PIECE)
    while (copy := queue.get()) is not None:
        copy.make(file, piece)


def _end(file: int, queues: tuple[SimpleQueue[Any], ...], threads: list[threading.Thread]) -> None:
    for queue in queues:
        queue.put(None)
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join()
    os.close(file)


def seconds_of(begin: Callable[[], list[Copy]], times: int = 2) -> float:
    """The best of some times."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        for copy in begin():
            copy.wait()
        best = min(best, time.perf_counter() - start)
    return best


SHARED = 0.8
"""Copies both ways that together take more than this part of one after the other share a queue."""


def speed_of(out: float, back: float, both: float, latency: float) -> Speed:
    """What copies of `PROBE` bytes tell: their seconds alone and together, and those of a small one.

    Rounded to two digits, since a plan is kept for the speed that it was made for.
    """
    half = both > SHARED * (out + back)
    slower = 1.0 if half else max(1.0, both / max(out, back))
    rates = (PROBE / (max(seconds - latency, seconds / 2) * slower) for seconds in (out, back))
    out_rate, back_rate = (float(f"{rate:.2g}") for rate in rates)
    return Speed(out_rate, back_rate, float(f"{latency:.2g}"), half)


class Trip:
    """The swapped values of one run of a plan, in an area of a memory."""

    def __init__(self, memory: Memory, size: int) -> None:
        """Take an area."""
        self._memory = memory
        self._area = memory.take(size)
        self._copies: dict[int, Copy] = {}
        self.has_ended = False

    def store(self, value: int, offset: int, tensor: Tensor) -> None:
        """Begin to copy a value's bytes away."""
        self._copies[value] = self._memory.store(tensor.untyped_storage(), self._area.address + offset)

    def bring(self, value: int, offset: int, tensor: Tensor) -> None:
        """Begin to bring them back."""
        self._copies[value] = self._memory.bring(tensor.untyped_storage(), self._area.address + offset)

    def wait(self, value: int) -> None:
        """Let what comes wait for a value's copy."""
        self._copies.pop(value).wait()

    def end(self) -> None:
        """Wait for all copies and give the area back."""
        if self.has_ended:
            return
        self.has_ended = True
        try:
            for copy in self._copies.values():
                copy.wait()
        finally:
            self._memory.give_back(self._area)

    def __del__(self) -> None:
        """A forward pass whose backward pass never came."""
        with contextlib.suppress(Exception):
            self.end()


@contextlib.contextmanager
def ended(trip: Trip | None) -> Iterator[None]:
    """End a trip, whatever happens."""
    try:
        yield
    finally:
        if trip is not None:
            trip.end()

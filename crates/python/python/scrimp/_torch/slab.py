"""A step's memory on a GPU from one slab, each request at the offset that was worked out for it.

PyTorch's caching allocator rounds and fragments: a GPU holds more than the tensors in use have bytes, by a
fifth to a half in steps that compute much again. A step asks for the same bytes in the same order every
time. So its first steps are watched, their requests are packed by the planner's own placement, and later
steps are served at those offsets. What was not expected, or whose place is taken, comes from CUDA's
stream-ordered allocator (`cudaMallocAsync`), as does all that isn't the step's.

Why the allocator of the whole process: inside of a `torch.cuda.MemPool` PyTorch asks an allocator of
ours for segments only, and splits them itself; only in place of the caching allocator does one see
tensors. Nothing is written where something is in use: a place that isn't free is not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections.abc import Iterator, Sequence

import torch

from scrimp import _native
from scrimp._native import format_bytes
from scrimp.errors import Unsupported
from scrimp.planning import place

ALIGNMENT = 512
"""Of addresses in the slab, as of those from CUDA."""
PATIENCE = 6
"""How many steps are watched for two in a row that ask alike."""

Request = tuple[int, int, int]
"""Bytes, and the events (requests and releases of the step) at which it began and ended."""

_on: torch.device | None = None
_running: Places | None = None


def device() -> torch.device | None:
    """The GPU whose steps are served from a slab, if there is one."""
    return _on


class Places:
    """Where the requests of one plan's steps go."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.table: list[tuple[int, int]] = []
        """Bytes and offset of each request in turn, once they are known."""
        self.arena = 0
        """Bytes of the slab that the table needs."""
        self.watched = 0
        self.outside = 0
        """Most bytes of the latest step that came from elsewhere."""
        self._seen: list[Request] = []
        self._there: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def step(self, device: torch.device) -> Iterator[None]:
        """Serve what runs inside, if the device's steps are served from a slab."""
        self.begin(device)
        try:
            yield
        finally:
            self.end()

    def begin(self, device: torch.device) -> None:
        """Serve, or watch, what comes until `end`."""
        global _running
        if _on is None or device != _on or self.watched > PATIENCE:
            return
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        ready = bool(self.table) and _native.slab_reserve(self.arena, stream)
        self._there = _native.slab_live()
        _running = self
        _native.slab_begin(self.table if ready else [])

    def end(self) -> None:
        """Learn from what came."""
        global _running
        if _running is not self:
            return
        _running = None
        (served, _, _, self.outside), seen = _native.slab_end()
        if served or self.table:
            return
        self.watched += 1
        if seen == self._seen:
            self.arena, offsets = packed(seen, self._there)
            self.table = [(size, offset) for (size, _, _), offset in zip(seen, offsets, strict=True)]
        elif self.watched > PATIENCE:
            warnings.warn(
                f"this step asked for other memory each of {self.watched} times, so it isn't served from the "
                "slab; torch.backends.cudnn.benchmark, or an operator whose result's shape depends on data, "
                "may be why",
                stacklevel=4,
            )
        self._seen = seen


def packed(seen: Sequence[Request], there: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
    """Give the bytes that requests need at least, and their offsets, beside what is there throughout."""
    rounded = [(start, end, -(-size // ALIGNMENT) * ALIGNMENT) for size, start, end in seen]
    if not there:
        placed = place(rounded)
        return placed.arena, list(placed.offsets)
    # The largest first, each as low as it can be.
    offsets = [0] * len(rounded)
    done: list[tuple[int, int, int, int]] = [(0, 1 << 62, at, at + size) for at, size in there]
    for i in sorted(range(len(rounded)), key=lambda i: -rounded[i][2]):
        start, end, size = rounded[i]
        at = 0
        for low, high in sorted((low, high) for s, e, low, high in done if s < end and start < e):
            if at + size <= low:
                break
            at = max(at, -(-high // ALIGNMENT) * ALIGNMENT)
        offsets[i] = at
        done.append((start, end, at, at + size))
    return max(high for *_, high in done), offsets


def use_slab(gpu: int = 0) -> None:
    """Let steps on a GPU take their memory from one slab, so that the GPU holds what the plan says.

    Call it before anything else uses CUDA: it replaces PyTorch's caching allocator for the whole process.
    With it PyTorch's own memory statistics, CUDA graphs and ``torch.backends.cudnn.benchmark`` don't
    work, and running out of memory can't be caught. It is tried out at once, and `Unsupported` says
    what isn't as it should be.
    """
    global _on
    if _on is not None:
        return
    if not torch.cuda.is_available():
        raise Unsupported("a slab is memory of a GPU, but there is no CUDA device here")
    if torch.cuda.is_initialized():
        raise Unsupported(
            "CUDA was used before, and PyTorch can't change its allocator any more; call "
            "scrimp.torch.use_slab() right after the imports"
        )
    if torch.backends.cudnn.benchmark:
        raise Unsupported(
            "torch.backends.cudnn.benchmark is on, which needs the caching allocator; turn it off"
        )
    functions = _cuda_functions()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        str(_native.__file__), "scrimp_slab_malloc", "scrimp_slab_free"
    )
    hears_streams = getattr(allocator._allocator, "set_record_stream_fn", None)
    if hears_streams is None:
        raise Unsupported(f"PyTorch {torch.__version__} can't tell an allocator about streams; use another")
    hears_streams(_address(ctypes.CDLL(str(_native.__file__)).scrimp_slab_record_stream))
    _native.slab_source(*functions, gpu)
    torch.cuda.memory.change_current_allocator(allocator)
    _try(torch.device("cuda", gpu))
    _on = torch.device("cuda", gpu)


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _cuda_functions() -> tuple[int, int, int]:
    major = (torch.version.cuda or "").partition(".")[0]
    try:
        # The one that PyTorch has loaded.
        runtime = ctypes.CDLL(f"libcudart.so.{major}")
        names = ("cudaMallocAsync", "cudaFreeAsync", "cudaDeviceSynchronize")
        first, second, third = (_address(getattr(runtime, name)) for name in names)
    except (OSError, AttributeError) as error:
        raise Unsupported(f"CUDA's runtime library isn't found, so there is no slab: {error}") from error
    return first, second, third


def _try(gpu: torch.device) -> None:
    """Ask for tensors, and see whether they come from the slab at their offsets, and hold what is written."""
    stream = torch.cuda.current_stream(gpu).cuda_stream
    table = [(4096, 0), (1000, 8192), (4096, 4096)]
    if not _native.slab_reserve(16384, stream):
        raise Unsupported("the GPU gave no memory for a slab")
    _native.slab_begin(table)
    made = [torch.full((size,), i + 1, dtype=torch.uint8, device=gpu) for i, (size, _) in enumerate(table)]
    (served, *_), _ = _native.slab_end()
    apart = [tensor.data_ptr() - made[0].data_ptr() for tensor in made]
    kept = all(bool((tensor == i + 1).all()) for i, tensor in enumerate(made))
    del made
    if served != len(table) or apart != [offset for _, offset in table] or not kept or _native.slab_live():
        raise Unsupported(
            f"tensors weren't served from the slab as expected ({served} of {len(table)}, at {apart}); start "
            f"the program again without use_slab, and please report this with PyTorch {torch.__version__}"
        )


def usage(*, reset: bool = False) -> tuple[int, int, int]:
    """Bytes in use now, at most, and of the slab; ``reset`` begins the most anew."""
    return _native.slab_usage(reset)


def used() -> int:
    """Bytes of the slab that tensors have."""
    return sum(size for _, size in _native.slab_live())


def described(places: Places) -> str:
    """Say what a plan's steps take from the slab."""
    if not places.table:
        return f"watched for {places.watched} steps, not served from a slab"
    return (
        f"served from a slab of {format_bytes(places.arena)}; {format_bytes(places.outside)} from elsewhere"
    )

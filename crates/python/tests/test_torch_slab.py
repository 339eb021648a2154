"""The allocator behind `scrimp.torch.use_slab`, on the CPU: memory from C's malloc stands for a GPU's."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from models import ConvNet  # noqa: E402
from scrimp import Unsupported, _native  # noqa: E402
from scrimp._torch import slab  # noqa: E402
from scrimp._torch.slab import Places, packed  # noqa: E402
from torch import nn  # noqa: E402

GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p)
GIVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
WAIT = ctypes.CFUNCTYPE(ctypes.c_int)
CPU = torch.device("cpu")


class Gpu:
    """What calls the allocator, and where it gets memory: PyTorch and CUDA in one."""

    def __init__(self) -> None:
        self.next = 1 << 20
        self.given: dict[int, int] = {}
        self.waited = 0
        self.left = 1 << 40
        self.calls = (GET(self.get), GIVE(self.give), WAIT(self.wait))
        library = ctypes.CDLL(str(_native.__file__))
        self.malloc: Any = library.scrimp_slab_malloc
        self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.malloc.restype = ctypes.c_void_p
        self.free: Any = library.scrimp_slab_free
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.record: Any = library.scrimp_slab_record_stream
        self.record.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.connect()

    def connect(self) -> None:
        get, give, wait = (ctypes.cast(call, ctypes.c_void_p).value or 0 for call in self.calls)
        _native.slab_source(get, give, wait, 0)

    def get(self, address: Any, size: int, stream: int | None) -> int:
        if size > self.left:
            return 2
        address[0] = self.next
        self.given[self.next] = size
        self.left -= size
        self.next += size + 4096
        return 0

    def give(self, address: int, stream: int | None) -> int:
        self.left += self.given.pop(address)
        return 0

    def wait(self) -> int:
        self.waited += 1
        return 0


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """A GPU of its own for each test."""
    made = Gpu()
    yield made
    made.connect()


def base_of(gpu: Gpu, size: int) -> int:
    """Where the slab begins."""
    return next(address for address, given in gpu.given.items() if given == size)


def test_requests_are_served_at_their_offsets(gpu: Gpu) -> None:
    """Also after a release."""
    assert _native.slab_reserve(10_000, 0)
    base = base_of(gpu, 10_000)
    _native.slab_begin([(100, 0), (200, 512), (100, 0)])
    first, second = gpu.malloc(100, 0, 0), gpu.malloc(200, 0, 0)
    gpu.free(first, 100, 0, 0)
    third = gpu.malloc(100, 0, 0)
    assert [first - base, second - base, third - base] == [0, 512, 0]
    assert _native.slab_end() == ((3, 0, 0, 0), [])
    assert _native.slab_live() == [(0, 100), (512, 200)]
    gpu.free(second, 200, 0, 0)
    gpu.free(third, 100, 0, 0)
    assert _native.slab_live() == []
    assert list(gpu.given) == [base], "nothing came from elsewhere"


@pytest.mark.parametrize(
    ("size", "device", "stream"), [(101, 0, 0), (100, 1, 0), (100, 0, 7)], ids=["size", "device", "stream"]
)
def test_what_is_not_expected_comes_from_elsewhere(gpu: Gpu, size: int, device: int, stream: int) -> None:
    """It is given back there, too."""
    assert _native.slab_reserve(10_000, 0)
    _native.slab_begin([(100, 0)])
    address = gpu.malloc(size, device, stream)
    assert gpu.given[address] == size
    assert gpu.malloc(100, 0, 0) == base_of(gpu, 10_000), "and the expected one is served all the same"
    (served, taken, elsewhere, outside), _ = _native.slab_end()
    assert (served, taken) == (1, 0)
    assert (elsewhere, outside) == ((1, size) if device == 0 else (0, 0))
    gpu.free(address, size, device, stream)
    assert address not in gpu.given


def test_a_place_that_is_taken_is_not_used(gpu: Gpu) -> None:
    """By something below, above, or the slab's end."""
    assert _native.slab_reserve(10_000, 0)
    base = base_of(gpu, 10_000)
    _native.slab_begin([(1000, 512), (600, 0), (600, 1400), (600, 1512), (600, 9_500)])
    assert gpu.malloc(1000, 0, 0) == base + 512
    for _ in range(2):
        assert not base <= gpu.malloc(600, 0, 0) < base + 10_000, "it would overlap"
    assert gpu.malloc(600, 0, 0) == base + 1512
    assert not base <= gpu.malloc(600, 0, 0) < base + 10_000, "it would reach beyond the end"
    assert _native.slab_end() == ((2, 3, 3, 1800), [])


def test_what_other_streams_use_is_waited_for(gpu: Gpu) -> None:
    """Before it is given back, and only then."""
    _native.slab_begin([])
    address = gpu.malloc(64, 0, 0)
    gpu.record(address, 5)
    gpu.free(address, 64, 0, 0)
    assert gpu.waited == 1
    gpu.free(gpu.malloc(64, 0, 0), 64, 0, 0)
    assert gpu.waited == 1


def test_a_slab_in_use_is_not_replaced(gpu: Gpu) -> None:
    """It grows when nothing is in it."""
    assert _native.slab_reserve(1000, 0)
    _native.slab_begin([(100, 0)])
    address = gpu.malloc(100, 0, 0)
    assert not _native.slab_reserve(2000, 0)
    gpu.free(address, 100, 0, 0)
    assert _native.slab_reserve(2000, 0)
    assert list(gpu.given.values()) == [2000], "the smaller one was given back"
    assert _native.slab_reserve(500, 0)
    assert not _native.slab_reserve(1 << 50, 0), "there isn't so much"


def test_memory_that_is_not_there_is_null(gpu: Gpu) -> None:
    """As C's malloc says it."""
    gpu.left = 100
    assert gpu.malloc(200, 0, 0) is None
    assert gpu.malloc(0, 0, 0) is None
    assert _native.slab_usage(False) == (0, 0, 0)


def test_usage_counts_what_tensors_have(gpu: Gpu) -> None:
    """Now and at most."""
    first, second = gpu.malloc(300, 0, 0), gpu.malloc(500, 0, 0)
    gpu.free(first, 300, 0, 0)
    assert _native.slab_usage(True) == (500, 800, 0)
    assert _native.slab_usage(False) == (500, 500, 0)
    gpu.free(second, 500, 0, 0)


def test_random_requests_never_overlap(gpu: Gpu) -> None:
    """Whatever the table says."""
    draw = random.Random(0)
    assert _native.slab_reserve(20_000, 0)
    for _ in range(200):
        table = [(draw.choice((100, 700, 1500)), 256 * draw.randrange(80)) for _ in range(40)]
        _native.slab_begin(table)
        live: dict[int, int] = {}
        for size, _ in draw.sample(table, 30):
            address = gpu.malloc(size, 0, 0)
            assert all(address + size <= at or at + other <= address for at, other in live.items())
            live[address] = size
            if draw.random() < 0.6:
                gone = draw.choice(list(live))
                gpu.free(gone, live.pop(gone), 0, 0)
        for address, size in live.items():
            gpu.free(address, size, 0, 0)
        _native.slab_end()
    assert _native.slab_live() == []
    assert len(gpu.given) == 1, "all else was given back"


def test_packing_keeps_clear_of_what_is_there() -> None:
    """And of each other."""
    seen = [(1000, 0, 4), (600, 1, 2), (600, 3, 5)]
    there = [(512, 700), (4096, 100)]
    bytes, offsets = packed(seen, there)
    ranges = [(at, at + size) for (size, _, _), at in zip(seen, offsets, strict=True)]
    ranges += [(at, at + size) for at, size in there]
    for i, (low, high) in enumerate(ranges):
        assert high <= bytes
        for j, (other, end) in enumerate(ranges[:i]):
            if {i, j} != {1, 2}:
                assert high <= other or end <= low
    assert offsets[1] == offsets[2], "they are not there at the same time"


Event = tuple[int, int]
"""Address, and bytes: below 0 for a release."""


def allocations(run: Any) -> list[Event]:
    """What a run asks PyTorch's allocator for."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True) as profile:
        run()
    found = []
    pending = list(profile.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending += event.children
        tag, fields = event.typed
        if tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
    return [(address, size) for _, address, size in sorted(found, key=lambda entry: entry[0])]


def test_a_step_is_served_from_a_slab_of_its_peak(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests are those of a planned step on the CPU."""
    monkeypatch.setattr(slab, "_on", CPU)
    torch.manual_seed(0)
    model = ConvNet()
    batch = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    step = scrimp.torch.fit(model, torch.nn.functional.cross_entropy, batch, "50%", time_limit=2)
    monkeypatch.setattr(slab, "_on", None)
    step(*batch)
    model.zero_grad()
    events = allocations(lambda: step(*batch))
    monkeypatch.setattr(slab, "_on", CPU)
    places = Places()
    for _ in range(4):
        now: dict[int, tuple[int, int]] = {}
        with places.step(CPU):
            for address, size in events:
                if size > 0:
                    now[address] = (gpu.malloc(size, 0, 0), size)
                elif address in now:
                    at, size = now.pop(address)
                    gpu.free(at, size, 0, 0)
        for at, size in now.values():
            gpu.free(at, size, 0, 0)
    assert places.watched == 2
    assert places.outside == 0
    most = live = 0
    open_: dict[int, int] = {}
    for address, size in events:
        live += size if size > 0 else -open_.pop(address, 0)
        open_.update({address: size} if size > 0 else {})
        most = max(most, live)
    assert most <= places.arena <= most * 1.02 + 512 * 100
    assert gpu.given == {base_of(gpu, places.arena): places.arena}
    assert "0 B from elsewhere" in slab.described(places)


def test_every_way_to_run_a_plan_is_watched(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step, and a module between its forward and the end of its backward pass, also if there is none."""
    monkeypatch.setattr(slab, "_on", CPU)
    begun: list[bool] = []
    monkeypatch.setattr(_native, "slab_begin", lambda table: begun.append(True))

    def end() -> tuple[tuple[int, int, int, int], list[Any]]:
        begun.append(False)
        return (0, 0, 0, 0), []

    monkeypatch.setattr(_native, "slab_end", end)
    model, batch = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(2, 4)
    step = scrimp.torch.fit(model, lambda y: y.sum(), (batch,), "100%", costs="estimate", time_limit=0.5)
    step(batch)
    assert begun == [True, False]
    wrapped = scrimp.torch.wrap(model, (batch,), "100%", costs="estimate", time_limit=0.5)
    wrapped(batch)
    loss = wrapped(batch).sum()
    assert begun == [True, False, True, True]
    loss.backward()
    assert begun == [True, False, True, True, False]


def test_steps_that_differ_are_left_alone(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sentence, once."""
    monkeypatch.setattr(slab, "_on", CPU)
    places = Places()
    with pytest.warns(UserWarning, match="other memory each of 7 times"):
        for size in range(1, 10):
            with places.step(CPU):
                gpu.free(gpu.malloc(size, 0, 0), size, 0, 0)
    assert not places.table


def test_without_a_gpu_there_is_no_slab() -> None:
    """And a sentence says so."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(Unsupported, match="no CUDA device"):
        scrimp.torch.use_slab()

"""Values that wait in a file: eager's bits, the computed peak, and what goes wrong with files."""

from __future__ import annotations

import copy
import errno
import gc
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp._torch.memories as memories  # noqa: E402
import scrimp._torch.pinned as pinned  # noqa: E402
import scrimp._torch.settings as settings  # noqa: E402
import scrimp.torch  # noqa: E402
from models import cases  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from scrimp._torch.problem import CPU_STATE_BYTES  # noqa: E402
from swaps import swapping  # noqa: E402
from torch import Tensor, nn  # noqa: E402

CPU = torch.device("cpu")
CASES = cases()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Plans that swap at random; the options of the next ones are in the list."""
    options: list[dict[str, Any]] = [{}]
    monkeypatch.setattr(settings, "FREE", float("inf"))
    monkeypatch.setattr(settings, "planned", lambda problem, budget, **_: swapping(problem, **options[-1]))
    yield options


def twins(name: str) -> tuple[nn.Module, nn.Module, Any, Any]:
    """Two equal models, a batch and a loss."""
    make, batch, loss_fn = CASES[name]
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model), batch, loss_fn


def same(model: nn.Module, twin: nn.Module) -> bool:
    """Whether all gradients and buffers are equal."""
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)]
    pairs += list(zip(model.buffers(), twin.buffers(), strict=True))
    return all(p is not None and q is not None and torch.equal(p, q) for p, q in pairs)


def drop_gradients(*models: nn.Module) -> None:
    """As ``zero_grad`` does."""
    for model in models:
        model.zero_grad()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["convnet", "unet", "gpt"])
def test_the_same_bits(name: str, again: bool, by_hand: list[dict[str, Any]], tmp_path: Path) -> None:
    """With copies at random steps, states of the generator among them; the peak is the computed one."""
    by_hand.append({"again": again})
    model, twin, batch, loss_fn = twins(name)
    step = scrimp.torch.fit(model, loss_fn, batch, "100%", swap=f"disk:{tmp_path}=1GiB@1GB/s")
    kinds = [kind for kind, _ in step.plan.steps]
    assert kinds.count("store") == kinds.count("bring") > 10
    held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
    for seed in range(2):
        drop_gradients(model, twin)
        torch.manual_seed(seed)
        loss, peak, _ = measured(lambda: step(*batch), CPU)
        torch.manual_seed(seed)
        wanted = loss_fn(twin(*batch[:-1]), batch[-1])
        wanted.backward()
        assert torch.equal(loss, wanted)
        assert same(model, twin)
        # The search that `again` begins with stops by the clock, so the peak may be where something is drawn:
        # there, room for two states of the generator is counted that this run may not take.
        assert 0 <= step.peak - (held + peak) <= (2 * CPU_STATE_BYTES if again else 0)


@pytest.mark.parametrize("name", ["convnet", "unet", "gpt"])
def test_a_backends_graphs(name: str, by_hand: list[dict[str, Any]], tmp_path: Path) -> None:
    """Copies cross the cut between forward and backward; the file's areas are given back."""
    model, twin, batch, loss_fn = twins(name)
    torch._dynamo.reset()
    backend = scrimp.torch.backend("100%", swap=f"disk:{tmp_path}=1GiB@1GB/s")
    compiled = torch.compile(model, backend=backend, dynamic=False)
    for seed in range(3):
        drop_gradients(model, twin)
        for one in (compiled, twin):
            torch.manual_seed(seed)
            loss_fn(one(*batch[:-1]), batch[-1]).backward()
        assert same(model, twin)
    (plan,) = backend.plans
    between = backend.partitioner._explanations[0][0].between
    at = next(i for i, step in enumerate(plan.steps) if step == ("run", between))
    kinds = [[kind for kind, _ in steps] for steps in (plan.steps[:at], plan.steps[at:])]
    assert "store" in kinds[0]
    assert "bring" in kinds[1]
    (memory,) = (memory for memory in _memories() if memory.folder == tmp_path)
    assert memory.reserved > 0
    assert not any(area.taken for area in memory._areas)
    # A forward pass without a backward pass holds an area until it is dropped, as inference does.
    loss = loss_fn(compiled(*batch[:-1]), batch[-1])
    assert any(area.taken for area in memory._areas)
    del loss
    gc.collect()
    assert not any(area.taken for area in memory._areas)


def test_a_second_backward_pass_gets_a_sentence(by_hand: list[dict[str, Any]], tmp_path: Path) -> None:
    """What waited elsewhere is gone."""
    model, _, batch, loss_fn = twins("convnet")
    torch._dynamo.reset()
    # The memory's speed is measured while the graph is compiled.
    backend = scrimp.torch.backend("100%", swap=f"disk:{tmp_path}=1GiB")
    loss = loss_fn(torch.compile(model, backend=backend, dynamic=False)(*batch[:-1]), batch[-1])
    loss.backward(retain_graph=True)
    with pytest.raises(scrimp.Unsupported, match="second time"):
        loss.backward()


@pytest.mark.parametrize("name", ["convnet", "gpt"])
def test_copies_at_any_pace(
    name: str, by_hand: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that sleep before, in and after copies change no bit."""
    draw = random.Random(0)

    def late(call: Any) -> Any:
        def slow(*args: Any) -> Any:
            time.sleep(draw.random() * 4e-3)
            done = call(*args)
            time.sleep(draw.random() * 2e-3)
            return done

        return slow

    by_hand.append({"share": 0.5})
    model, twin, batch, loss_fn = twins(name)
    step = scrimp.torch.fit(model, loss_fn, batch, "100%", swap=f"disk:{tmp_path}=1GiB@1GB/s")
    monkeypatch.setattr(memories, "_exactly", late(memories._exactly))
    monkeypatch.setattr(memories.FileCopy, "_transfer", late(memories.FileCopy._transfer))
    for seed in range(3):
        drop_gradients(model, twin)
        torch.manual_seed(seed)
        loss = step(*batch)
        torch.manual_seed(seed)
        wanted = loss_fn(twin(*batch[:-1]), batch[-1])
        wanted.backward()
        assert torch.equal(loss, wanted)
        assert same(model, twin)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["convnet", "gpt"])
def test_wrapped_models(name: str, again: bool, by_hand: list[dict[str, Any]], tmp_path: Path) -> None:
    """Two forward passes before their backward passes share no place; one without gives its place back."""
    by_hand.append({"again": again})
    model, twin, batch, loss_fn = twins(name)
    scrimp.torch.wrap(model, batch[:-1], "100%", swap=f"disk:{tmp_path}=1GiB@1GB/s")
    for one in (model, twin):
        torch.manual_seed(7)
        one(*batch[:-1])
    for seed in range(3):
        drop_gradients(model, twin)
        losses: list[list[Tensor]] = []
        for one in (model, twin):
            torch.manual_seed(seed)
            passes = [loss_fn(one(*batch[:-1]), batch[-1]) for _ in range(1 + seed % 2)]
            for loss in passes:
                loss.backward()
            losses.append([loss.detach() for loss in passes])
        assert all(torch.equal(a, b) for a, b in zip(*losses, strict=True))
        assert same(model, twin)
    gc.collect()
    (memory,) = (m for m in _memories() if m.folder == tmp_path)
    assert not any(area.taken for area in memory._areas)


def test_gradients_that_come_back_stay(tmp_path: Path) -> None:
    """To send them away would free nothing: who gave them holds them."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
    model = nn.Sequential(*layers)
    swap = f"disk:{tmp_path}=1GiB@1GB/s"
    x = torch.randn(4096, 64)
    wrapped = scrimp.torch.wrap(model, x, "min", swap=swap, costs="estimate", time_limit=1.0)
    wrapped(x).square().mean().backward()
    kinds = [kind for kind, _ in wrapped.plan.steps]
    assert "store" in kinds
    assert "between" not in str([line for line in wrapped.explain().splitlines() if "to bring" in line])


def _memories() -> list[Any]:
    from scrimp._torch.swap import _memories

    return list(_memories.values())


def test_the_optimizer_s_state(by_hand: list[dict[str, Any]], tmp_path: Path) -> None:
    """It is in the file between steps, comes back when it is asked for, and is eager's."""
    by_hand.append({"state": True})
    model, twin, batch, loss_fn = twins("gpt")
    mine, eagers = (torch.optim.AdamW(one.parameters(), lr=0.01) for one in (model, twin))
    place = f"disk:{tmp_path}=1GiB@1GB/s"
    step = scrimp.torch.fit(model, loss_fn, batch, "100%", swap=place, optimizer=mine)
    assert len(step.plan.homes) == len(list(model.parameters()))

    def train(seed: int) -> None:
        torch.manual_seed(seed)
        held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
        held += sum(s["step"].element_size() for s in mine.state.values())
        there = mine.state and all(s["exp_avg"].is_meta for s in mine.state.values())
        loss, peak, _ = measured(lambda: step(*batch), CPU)
        assert held + peak <= step.peak or not there
        torch.manual_seed(seed)
        wanted = loss_fn(twin(*batch[:-1]), batch[-1])
        wanted.backward()
        eagers.step()
        eagers.zero_grad()
        assert torch.equal(loss, wanted)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
        assert all(s["exp_avg"].is_meta and s["exp_avg_sq"].is_meta for s in mine.state.values())

    def same_state() -> None:
        a, b = mine.state_dict()["state"], eagers.state_dict()["state"]
        assert all(torch.equal(a[k][name], b[k][name]) for k in b for name in b[k])

    for seed in range(3):
        train(seed)
    same_state()
    assert not any(s["exp_avg"].is_meta for s in mine.state.values())
    train(3)
    train(4)
    # Loaded state goes to the file before the next step.
    saved = copy.deepcopy(eagers.state_dict())
    mine.load_state_dict(saved)
    train(5)
    # A step that keeps state in memory finds it there.
    by_hand.append({})
    step = scrimp.torch.fit(model, loss_fn, batch, "100%", swap=place, optimizer=mine)
    torch.manual_seed(6)
    step(*batch)
    torch.manual_seed(6)
    loss_fn(twin(*batch[:-1]), batch[-1]).backward()
    eagers.step()
    assert not any(s["exp_avg"].is_meta for s in mine.state.values())
    same_state()


def test_what_the_planner_does(tmp_path: Path) -> None:
    """Below what any plan without swap needs, the state of the optimizer included."""
    model, twin, batch, loss_fn = twins("gpt")
    mine, eagers = (torch.optim.AdamW(one.parameters(), lr=0.01) for one in (model, twin))
    alone = scrimp.torch.fit(model, loss_fn, batch, "min", optimizer=mine, time_limit=1.0)
    budget = alone.plan.fixed + (alone.peak - alone.plan.fixed) // 2
    place = f"disk:{tmp_path}=1GiB@10GB/s"
    with pytest.raises(scrimp.Infeasible):
        scrimp.torch.fit(model, loss_fn, batch, budget, optimizer=mine, time_limit=1.0)
    step = scrimp.torch.fit(model, loss_fn, batch, budget, optimizer=mine, swap=place, time_limit=1.0)
    assert "values wait in memory 'disk'" in step.explain()
    for seed in range(3):
        torch.manual_seed(seed)
        state = [t for s in mine.state.values() for t in s.values() if not t.is_meta]
        held = storage_bytes([*model.parameters(), *model.buffers(), *batch, *state])
        loss, peak, _ = measured(lambda: step(*batch), CPU)
        assert held + peak <= step.peak <= budget
        torch.manual_seed(seed)
        wanted = loss_fn(twin(*batch[:-1]), batch[-1])
        wanted.backward()
        eagers.step()
        eagers.zero_grad()
        assert torch.equal(loss, wanted)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    # A second start finds the plan.
    again = scrimp.torch.fit(model, loss_fn, batch, budget, optimizer=mine, swap=place, time_limit=1.0)
    assert again.plan.steps == step.plan.steps


def test_sweeps(tmp_path: Path) -> None:
    """Each of several budgets has a step that swaps or needn't; speeds can be measured."""
    model, twin, batch, loss_fn = twins("gpt")
    steps = scrimp.torch.sweep(
        model, loss_fn, batch, ["40%", "100%"], swap=f"disk:{tmp_path}=1GiB@10GB/s", time_limit=1.0
    )
    brought = []
    for step in steps:
        assert not isinstance(step, Exception)
        brought.append([kind for kind, _ in step.plan.steps].count("bring"))
        drop_gradients(model, twin)
        torch.manual_seed(1)
        step(*batch)
        torch.manual_seed(1)
        loss_fn(twin(*batch[:-1]), batch[-1]).backward()
        assert same(model, twin)
    assert brought[0] > brought[1] == 0

    speed = memories.File("disk", 1 << 30, tmp_path).speed()
    assert speed.out > 1e6
    assert speed.back > 1e6


def test_a_file_in_pieces(tmp_path: Path) -> None:
    """Sizes around pages and pieces come back as they were, and nothing has a name in the folder."""
    memory = memories.File("disk", 1 << 30, tmp_path)
    sizes = [1, 4095, 4096, 4097, memories.PIECE - 1, memories.PIECE, 2 * memories.PIECE + 5]
    area = memory.take(len(sizes) * 3 * memories.PIECE)
    stored = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    places = [area.address + i * 3 * memories.PIECE for i in range(len(sizes))]
    for tensor, place in zip(stored, places, strict=True):
        memory.store(tensor.untyped_storage(), place)
    # Reads wait for the writes of what they read, and the next writes for those reads.
    back = [torch.empty_like(tensor) for tensor in stored]
    copies = [memory.bring(b.untyped_storage(), p) for b, p in zip(back, places, strict=True)]
    for tensor, place in zip(stored, places, strict=True):
        memory.store((tensor + 1).untyped_storage(), place)
    for copy_ in copies:
        copy_.wait()
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))
    assert os.listdir(tmp_path) == []


def test_what_goes_wrong_with_files(
    by_hand: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little room is told before the first step; a copy that fails ends the step; the next one runs."""
    model, twin, batch, loss_fn = twins("convnet")

    def fit(swap: Any) -> Any:
        return scrimp.torch.fit(model, loss_fn, batch, "100%", swap=swap, verify=False)

    small = memories.File("disk", 8192, tmp_path)
    small.take(4096)
    with pytest.raises(scrimp.BadOption, match=r"needs 8\.00 KiB of .* 4\.00 KiB are taken by others, but"):
        small.take(4097)
    with pytest.raises(scrimp.BadOption, match="beside a CPU values are swapped to a file"):
        fit("ram=1GiB")
    with pytest.raises(scrimp.BadOption, match="swap is True"):
        fit(True)
    with pytest.raises(scrimp.BadOption, match="isn't"):
        fit("disk=lots")
    (tmp_path / "no folder").write_text("")
    with pytest.raises(scrimp.BadOption, match=r"no file can be made in .*no folder"):
        fit(f"disk:{tmp_path / 'no folder'}=1GiB@1GB/s")
    with monkeypatch.context() as patch:
        real = os.fstatvfs
        patch.setattr(os, "fstatvfs", lambda file: os.statvfs_result((*real(file)[:4], 1, *real(file)[5:])))
        with pytest.raises(scrimp.BadOption, match=r"swapped values need .* more on the disk"):
            fit(f"disk:{tmp_path}=2GiB@1GB/s")
    step = fit(f"disk:{tmp_path}=3GiB@1GB/s")
    for call, failing in (("preadv", _failing), ("pwritev", _failing), ("preadv", _short)):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            with pytest.raises(OSError, match="file of swapped values, so the step has no result"):
                step(*batch)
    drop_gradients(model, twin)
    twin.load_state_dict(model.state_dict())
    torch.manual_seed(5)
    step(*batch)
    torch.manual_seed(5)
    loss_fn(twin(*batch[:-1]), batch[-1]).backward()
    assert same(model, twin)


def _failing(*_: Any) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _short(*_: Any) -> int:
    return 0


def test_speeds() -> None:
    """Copies both ways at once that take as long as one after the other share a queue."""
    probe = memories.PROBE
    apart = memories.speed_of(1.0, 0.5, 1.0, 0.0)
    assert not apart.half
    assert (apart.out, apart.back) == (float(f"{probe:.2g}"), float(f"{2 * probe:.2g}"))
    assert memories.speed_of(1.0, 1.0, 1.9, 0.0).half
    slower = memories.speed_of(1.0, 1.0, 1.5, 0.0)
    assert not slower.half
    assert slower.out == float(f"{probe / 1.5:.2g}")


class FakeStream:
    """A queue of work that is done whenever the test wants, as on a GPU."""

    def __init__(self, *_: Any) -> None:
        self.queue: list[Any] = []

    def wait_stream(self, other: FakeStream) -> None:
        """As CUDA's."""
        self.wait_event(other.record_event())

    def wait_event(self, event: FakeEvent) -> None:
        """As CUDA's."""
        self.queue.append(event)

    def record_event(self) -> FakeEvent:
        """As CUDA's."""
        event = FakeEvent()
        self.queue.append(event.happen)
        return event

    def advance(self) -> bool:
        """Do what is first, if it needn't wait."""
        if not self.queue or (isinstance(self.queue[0], FakeEvent) and not self.queue[0].happened):
            return False
        first = self.queue.pop(0)
        if not isinstance(first, FakeEvent):
            first()
        return True


class FakeEvent:
    """As CUDA's."""

    happened = False

    def happen(self) -> None:
        """A stream has come to it."""
        self.happened = True

    def query(self) -> bool:
        """As CUDA's."""
        return self.happened


class FakeRuntime:
    """As CUDA's, which pins whole pages, and none twice."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        """As CUDA's."""
        pages = (address + size + memories.PAGE - 1) // memories.PAGE - address // memories.PAGE
        assert pages * memories.PAGE == size, "this pins a part of somebody else's page"
        self.pinned[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        """As CUDA's."""
        del self.pinned[address]
        return 0


@pytest.mark.parametrize("seed", range(20))
def test_streams_of_a_gpu(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However three streams' work interleaves, a step reads what it wrote, and what it frees is reused."""
    draw, compute = random.Random(seed), FakeStream()
    runtime = FakeRuntime()
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: compute)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(pinned, "_copy_on", lambda s, _, to, of: s.queue.append(lambda: to.copy_(of)))
    memory = pinned.Pinned("ram", 1 << 20, CPU)
    # Two buffers of the device for four values, whose places in the memory overlap in pairs.
    *buffers, spare = (torch.zeros(6000, dtype=torch.uint8) for _ in range(3))
    trips = [memories.Trip(memory, 16384), memories.Trip(memory, 8192)]
    streams: list[Any] = [compute, *memory._streams]
    wanted: list[int] = []
    read: list[int] = []
    for round_ in range(12):
        value, buffer = round_ % 4, draw.choice(buffers)
        trip, offset = trips[value % 2], (value // 2) * 2048
        contents = draw.randrange(256)
        compute.queue.append(lambda b=buffer, c=contents: b.fill_(c))
        trip.store(value, offset, buffer)
        if draw.random() < 0.5:
            compute.queue.append(lambda b=buffer: read.append(int(b.sum())))
            wanted.append(6000 * contents)
        trip.wait(value)
        # Freed: what comes next on the device's own stream may have the bytes.
        compute.queue.append(lambda b=buffer: b.fill_(1))
        other = draw.choice(buffers)
        trip.bring(value, offset, other)
        # What goes to the same place next may not come before that is read.
        trip.store(value + 4, offset, spare)
        trip.wait(value)
        trip.wait(value + 4)
        compute.queue.append(lambda b=other: read.append(int(b.sum())))
        wanted.append(6000 * contents)
        for _ in range(draw.randrange(12)):
            draw.choice(streams).advance()
    for trip in trips:
        trip.end()
    while any(stream.queue for stream in streams):
        draw.shuffle(streams)
        assert any([stream.advance() for stream in streams]), "the streams wait for each other"
    assert read == wanted
    assert not any(area.taken for area in memory._areas)
    assert sum(runtime.pinned.values()) == memory.reserved
    del memory, trips, trip
    gc.collect()
    assert not runtime.pinned, "memory that is gone is still pinned"

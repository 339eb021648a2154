"""What steps and planned models tell: memory snapshots and policies for PyTorch's own checkpointing."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from scrimp._torch.memory import measured  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.cuda import _memory_viz as viewer  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

OPTIONS: dict[str, Any] = {"costs": "estimate", "time_limit": 1.0}


class Block(nn.Module):
    """Convolutions with batch norm and dropout, around which the input is added."""

    def __init__(self, *, inplace: bool = False) -> None:
        super().__init__()
        self.a, self.norm, self.act = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace)
        self.b, self.drop = nn.Conv2d(8, 4, 3, padding=1), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.tanh(self.b(self.act(self.norm(self.a(x))))))


class Net(nn.Module):
    """Blocks, each of which may be checkpointed."""

    def __init__(self, *, inplace: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(inplace=inplace) for _ in range(4))
        self.contexts: list[Any] = []
        self.plain = True

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            if self.plain:
                x = block(x)
            elif self.contexts:
                x = checkpoint(block, x, use_reentrant=False, context_fn=self.contexts[i])
            else:
                x = checkpoint(block, x, use_reentrant=False)
        return x.square().mean()


class Counted(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it."""
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def made(inplace: bool = False) -> Net:
    """The same weights each time."""
    torch.manual_seed(0)
    return Net(inplace=inplace)


def trained(model: Net, x: Tensor) -> tuple[Tensor, int, Counter[str]]:
    """One step: its loss, the most bytes beyond those before, and how often each operator ran."""

    def run() -> Tensor:
        loss: Tensor = model(x)
        loss.backward()
        return loss.detach()

    torch.manual_seed(1)
    loss, peak, _ = measured(run, x.device)
    model.zero_grad()
    counted = Counted()
    again = copy.deepcopy(model)
    torch.manual_seed(1)
    with counted:
        again(x).backward()
    for parameter, other in zip(model.parameters(), again.parameters(), strict=True):
        parameter.grad = other.grad
    return loss, peak, counted.calls


def test_a_policy_for_selective_checkpointing() -> None:
    """Eager's bits and statistics, between keeping all and keeping nothing in bytes and in convolutions."""
    x = torch.randn(4, 4, 32, 32)
    plain, full, chosen = made(), made(), made()
    step = scrimp.torch.fit(made(), None, (x,), "60%", **OPTIONS)
    full.plain = chosen.plain = False
    chosen.contexts = [step.policy(f"blocks.{i}") for i in range(4)]
    loss, most, _ = trained(plain, x)
    _, least, all_again = trained(full, x)
    found, peak, some_again = trained(chosen, x)
    assert torch.equal(found, loss)
    pairs = zip(plain.named_parameters(), chosen.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for (_, p), q in pairs)
    # What checkpointing itself gets wrong: statistics of batch norm are updated once.
    for (name, here), there in zip(plain.named_buffers(), chosen.buffers(), strict=True):
        assert torch.equal(here, there), name
    assert not all(torch.equal(b, c) for b, c in zip(plain.buffers(), full.buffers(), strict=True))
    assert least <= peak < most
    operator = "aten.native_batch_norm.default"
    assert some_again[operator] < all_again[operator]
    saved = sum(sum(saves) for context in chosen.contexts for saves in context.saves.values())
    assert saved > 0


def test_policies_that_cant_be() -> None:
    """A sentence for a name that isn't there; PyTorch's own for what is changed in place."""
    x = torch.randn(4, 4, 8, 8)
    model = made(inplace=True)
    step = scrimp.torch.fit(copy.deepcopy(model), None, (x,), "100%", **OPTIONS)
    with pytest.raises(scrimp.BadOption, match=r"a module 'blocks\.9'"):
        step.policy("blocks.9")
    model.plain, model.contexts = False, [step.policy(f"blocks.{i}") for i in range(4)]
    with pytest.raises(RuntimeError, match="has been mutated"):
        model(x).backward()


@pytest.mark.parametrize("way", ["fit", "wrap"])
def test_a_snapshot_for_the_viewer(way: str, tmp_path: Path) -> None:
    """PyTorch reads it, and what is in use at most, and in the end, is what the plan says."""
    x, path = torch.randn(2, 4, 16, 16), tmp_path / "out.pickle"
    planned: Any
    if way == "fit":
        planned = scrimp.torch.fit(made(), None, (x,), "60%", **OPTIONS)
    else:
        planned = scrimp.torch.wrap(made(), x, "60%", **OPTIONS)
    planned.snapshot(path)
    # The viewer reads protocols 2 to 4.
    assert path.read_bytes()[:2] == b"\x80\x04"
    data = pickle.loads(path.read_bytes())
    (trace,), (segment,) = data["device_traces"], data["segments"]
    there: dict[int, int] = {}
    in_use = most = 0
    for event in trace:
        if event["action"] == "alloc":
            ends = event["addr"] + event["size"]
            assert all(ends <= start or start + size <= event["addr"] for start, size in there.items())
            there[event["addr"]] = event["size"]
            in_use += event["size"]
            most = max(most, in_use)
        elif event["action"] == "free_completed":
            in_use -= there.pop(event["addr"])
    assert most == planned.peak
    assert segment["allocated_size"] == sum(there.values()) == in_use
    assert segment["total_size"] >= most
    assert {event["category"] for event in trace} >= {"always there", "forward", "backward", "computed again"}
    convolution = next(e for e in trace if e["frames"][0]["name"] == "aten.convolution.default")
    assert [frame["name"] for frame in convolution["frames"][1:]] == ["Conv2d", "Block", "ModuleList", "Net"]
    shown = functools.partial(viewer.trace_plot, copy.deepcopy(data))
    assert "snapshot.pickle" in shown()
    assert "snapshot.pickle" in viewer.segment_plot(data)
    assert "total_allocated" in viewer.segsum(data)
    assert "entries" in viewer.trace(data)
    assert "Conv2d" in viewer.memory(data, format_flamegraph=str)

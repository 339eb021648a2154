"""Results that are written over what they are made from: the same bits, fewer bytes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import scrimp  # noqa: E402
import scrimp.torch  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from torch import Tensor, nn  # noqa: E402

aten = torch.ops.aten


class Shared(nn.Module):
    """One matrix used three times, whose gradients are added up, and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 128) / 12)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.relu(x @ self.weight)
        return x.square().mean()


def in_place(step: scrimp.torch.Step) -> list[str]:
    """The operators of a planned step that write over their first argument."""
    targets = [node.target for node in step._plans.latest.run.graph.nodes]
    return [str(target) for target in targets if target in (aten.add_.Tensor, aten.relu_.default)]


@pytest.mark.parametrize("budget", ["100%", "min"])
def test_sums_and_activations_are_written_over(budget: str) -> None:
    """No more is in memory than in eager, where gradients are added up in place, too."""
    torch.manual_seed(0)
    model = Shared()
    mine, batch = copy.deepcopy(model), (torch.randn(64, 128),)
    step = scrimp.torch.fit(mine, None, batch, budget, time_limit=1)
    assert in_place(step).count("aten.add_.Tensor") == 2
    assert "aten.relu_.default" in in_place(step)
    held = storage_bytes([*model.parameters(), *batch])
    step(*batch)
    mine.zero_grad()
    _, peak, _ = measured(lambda: step(*batch), torch.device("cpu"))
    assert peak + held <= step.peak
    model(*batch).backward()
    wanted = model.weight.grad
    model.zero_grad()
    _, eager, _ = measured(lambda: model(*batch).backward(), torch.device("cpu"))
    assert peak <= eager
    assert mine.weight.grad is not None and torch.equal(mine.weight.grad, wanted)


class Branching(nn.Module):
    """A sum whose first term is read again, and one that is a view of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        part = self.layer(y)[:, :8]
        return (y + 1.0).sigmoid().sum() + y.exp().sum() + (part + part.flip(1)).square().sum()


def test_what_is_read_again_is_left_alone() -> None:
    """Bits are eager's under any budget, and nothing of it is written over."""
    torch.manual_seed(0)
    model = Branching()
    mine, batch = copy.deepcopy(model), (torch.randn(4, 16),)
    model(*batch).backward()
    for budget in ("100%", "min"):
        mine.zero_grad()
        step = scrimp.torch.fit(mine, None, batch, budget, time_limit=0.5)
        step(*batch)
        forward = [
            task
            for task in step._plans.latest.tasks.tasks
            if task.overwrites is not None and not task.backward
        ]
        assert all(task.makes[0].bytes == 4 for task in forward), "only sums of losses"
        for left, right in zip(mine.parameters(), model.parameters(), strict=True):
            assert left.grad is not None and torch.equal(left.grad, right.grad)


class Filled(nn.Module):
    """A mask that is filled part by part, as shifted windows of attention have them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        mask = x.new_zeros((256, 256))
        for part in range(4):
            mask[192:, 64 * part : 64 * part + 64] = part
        return (x * self.scale * mask.sum()).mean()


def test_parts_that_are_filled_keep_the_memory_of_the_whole() -> None:
    """Such an operator gives a view of a copy of the whole."""
    model, batch = Filled(), (torch.randn(4),)
    step = scrimp.torch.fit(model, None, batch, "100%", time_limit=1)
    step(*batch)
    model.zero_grad()
    held = storage_bytes([*model.parameters(), *batch])
    _, peak, _ = measured(lambda: step(*batch), torch.device("cpu"))
    assert peak + held == step.peak

"""The first step with a plan compares what was captured with what eager PyTorch runs, and leaves no trace."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Looks(nn.Module):
    """Runs another operator if it isn't given an ordinary tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() if type(x) is Tensor else x.sigmoid()


class Longer(nn.Module):
    """Runs one operator more if it isn't given an ordinary tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() if type(x) is Tensor else x.tanh().sigmoid()


class Remembers(nn.Module):
    """Draws numbers, and changes buffers by operators of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.layer = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("total", torch.zeros(8))

    total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(self.layer(self.norm(x)))
        self.total += h.detach().sum(0)
        return h


class Reduces(nn.Module):
    """Takes rows for an image, and the image for rows again, as attention with fewer keys does."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))
        self.reduce = nn.Conv2d(8, 8, 2, 2)
        self.norm = nn.LayerNorm(8)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        image = self.wide(x).transpose(1, 2).reshape(len(x), 8, 32, 32)
        return self.layer(self.norm(self.reduce(image).flatten(2).transpose(1, 2)))


class Turns(nn.Module):
    """Normalizes channels of rows that are stored by rows, and gives its result turned."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.layer = nn.Linear(8, 8)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)
        x = self.last(self.layer(x).transpose(1, 2).reshape(-1, 16)).view(-1, 8, 4)
        return torch.sigmoid(x.transpose(1, 2))


def batch() -> tuple[Tensor, Tensor]:
    """Rows and targets."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(512, 8, generator=draw), torch.randn(512, 8, generator=draw)


@pytest.mark.parametrize(("kind", "eager"), [(Looks, "aten.tanh"), (Longer, "aten.mse_loss")])
def test_another_operator_is_named(kind: Callable[[], nn.Module], eager: str) -> None:
    """With its module and what eager runs; unless nobody wants to know."""
    model = nn.Sequential(nn.Linear(8, 8), kind())
    step = scrimp.torch.fit(model, F.mse_loss, batch(), "100%", time_limit=0.2)
    with pytest.raises(scrimp.Mismatch, match=f"{eager}.*aten.sigmoid") as caught:
        step(*batch())
    if kind is Looks:
        assert "in 1, eager" in str(caught.value)
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(scrimp.Mismatch):
        scrimp.torch.wrap(copy.deepcopy(model), batch()[:1], "100%", time_limit=0.2)(batch()[0])
    scrimp.torch.fit(model, F.mse_loss, batch(), "100%", time_limit=0.2, verify=False)(*batch())


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_image_has_the_layouts_of_eager(count: int, dtype: Any) -> None:
    """Which the strides of its batch dimension decide, though they reach no other number."""
    torch.manual_seed(0)
    model = Reduces().to(dtype)
    twin = copy.deepcopy(model)
    rows, target = torch.randn(count, 1024, 8, dtype=dtype), torch.randn(count, 256, 8, dtype=dtype)
    said: list[str] = []
    step = scrimp.torch.fit(model, F.mse_loss, (rows, target), "100%", time_limit=0.2, progress=said.append)
    loss = step(rows, target)
    assert any(line.startswith("7 of 7 operators of the forward pass are eager's") for line in said)
    expected = F.mse_loss(twin(rows), target)
    expected.backward()
    assert torch.equal(loss, expected.detach())
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None and torch.equal(mine.grad, theirs.grad)


def whole_losses(scores: Tensor, target: Tensor) -> Tensor:
    """A loss for each number, of which the mean is taken afterwards."""
    return F.binary_cross_entropy(scores, target, reduction="none").flatten(1).mean()


@pytest.mark.parametrize(
    "loss_fn", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, whole_losses]
)
def test_results_are_stored_as_eager_stores_them(loss_fn: Any) -> None:
    """Also where inputs aren't stored in the order of their dimensions."""
    torch.manual_seed(0)
    model = Turns()
    twin = copy.deepcopy(model)
    rows, target = torch.randn(3, 16, 8), torch.rand(3, 4, 8)
    step = scrimp.torch.fit(model, loss_fn, (rows, target), "100%", time_limit=0.2)
    loss = step(rows, target)
    expected = loss_fn(twin(rows), target)
    expected.backward()
    assert torch.equal(loss, expected.detach())
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None and torch.equal(mine.grad, theirs.grad)


def test_nothing_is_left_behind() -> None:
    """Buffers and the generator are as after a step that isn't verified."""
    after: list[list[Any]] = []
    for verify in (True, False):
        torch.manual_seed(0)
        model = Remembers()
        step = scrimp.torch.fit(model, F.mse_loss, batch(), "100%", time_limit=0.2, verify=verify)
        torch.manual_seed(1)
        step(*batch())
        after.append([torch.get_rng_state(), *model.buffers(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*after, strict=True))


class Sobolev(nn.Module):
    """A loss with the slope of the model by its input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return (slope.norm(dim=-1) - 1).square().mean()


@pytest.mark.parametrize("budget", ["100%", "min"])
def test_a_forward_pass_may_have_a_backward_pass(budget: str) -> None:
    """As gradient penalties do."""
    told: list[str] = []
    torch.manual_seed(0)
    model, x = Sobolev(), torch.randn(64, 4)
    twin = copy.deepcopy(model)
    step = scrimp.torch.fit(model, None, x, budget, costs="estimate", time_limit=0.5, progress=told.append)
    for run in (step, lambda x: twin(x).backward()):
        torch.manual_seed(1)
        for _ in range(2):
            run(x)
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs if b.grad is not None)
    assert any("operators of the forward pass are eager's" in line for line in told)


@pytest.mark.parametrize("lower", [False, True])
def test_verification_keeps_the_budget(lower: bool) -> None:
    """Eager's forward pass alone needs more than the least budget here: what fits is compared."""
    model = nn.Sequential(nn.Linear(8, 512), nn.GELU(), nn.Linear(512, 8))
    twin = copy.deepcopy(model)
    said: list[str] = []
    rows = batch()
    autocast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=lower)
    with autocast():
        step = scrimp.torch.fit(model, F.mse_loss, rows, "min", time_limit=0.2, progress=said.append)
        loss, peak, _ = measured(lambda: step(*rows), torch.device("cpu"))
        expected = F.mse_loss(twin(rows[0]), rows[1])
    assert storage_bytes([*model.parameters(), *rows]) + peak <= step.peak
    assert torch.equal(loss, expected.detach())
    assert sum("operators of the forward pass are eager's" in line for line in said) == 1
    assert step._plans.latest.operations.verified

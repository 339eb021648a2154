"""What Python decides: a planned step follows eager when it changes, or says why it can't."""

from __future__ import annotations

import argparse
import copy
import functools
import random
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

FACTOR = 2.0
OPTIONS: dict[str, Any] = {"costs": "estimate", "time_limit": 0.1}


class Scale:
    """A class as people write their configurations."""

    kind = "linear"

    def __init__(self) -> None:
        self.hidden = 3.0

    @property
    def value(self) -> float:
        return 2 * self.hidden


class Model(nn.Module):
    """Everything that Python may decide by, in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.dropout = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1)
        self.beta = 0.5
        self.unused = 0
        self.scale = Scale()
        self.options = {"gamma": [1.0, 2.0]}
        self.args = argparse.Namespace(rate=1.0)
        self.space = types.SimpleNamespace(rate=1.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.norm(self.layer(x)))
        kind = 1.0 if self.scale.kind == "linear" else 2.0
        rates = self.args.rate * self.space.rate * self.options["gamma"][1]
        return y * self.beta * self.scale.value * kind * rates + getattr(self, "shift", 0.0)


class Losses:
    """Ways for a loss to know a number."""

    def __init__(self) -> None:
        self.weight = 1.0

    def method(self, y: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(y, t) * self.weight * FACTOR


def changes() -> dict[str, Callable[[Model, Losses], None]]:
    """One change each."""

    def factor(model: Model, losses: Losses) -> None:
        global FACTOR
        FACTOR = 5.0

    def layer(model: Model, losses: Losses) -> None:
        model.layer = nn.Linear(8, 8)

    def added(model: Model, losses: Losses) -> None:
        model.add_module("dropout", nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 8)))

    def tied(model: Model, losses: Losses) -> None:
        model.norm.bias = model.layer.bias

    def setter(path: str, value: Any) -> Callable[[Model, Losses], None]:
        def change(model: Model, losses: Losses) -> None:
            owner, _, name = path.rpartition(".")
            setattr(
                losses
                if owner == "losses"
                else model.get_submodule("")
                if not owner
                else _found(model, owner),
                name,
                value,
            )

        return change

    def gamma(model: Model, losses: Losses) -> None:
        model.options["gamma"][1] = 7.0

    def frozen(model: Model, losses: Losses) -> None:
        model.layer.weight.requires_grad_(False)

    def double(model: Model, losses: Losses) -> None:
        model.double()

    return {
        "an attribute": setter("beta", 0.7),
        "one that wasn't there": setter("shift", 0.3),
        "of a submodule": setter("dropout.p", 0.4),
        "of batch norm": setter("norm.momentum", 0.5),
        "behind a property": setter("scale.hidden", 4.0),
        "of a class": setter("scale.kind", "other"),
        "of a namespace": setter("args.rate", 2.0),
        "of a simple namespace": setter("space.rate", 2.0),
        "in a list": gamma,
        "a global variable": factor,
        "of the loss's object": setter("losses.weight", 3.0),
        "another layer": layer,
        "one layer more": added,
        "a tie": tied,
        "a frozen parameter": frozen,
        "another type": double,
    }


def _found(model: nn.Module, path: str) -> Any:
    owner: Any = model
    for name in path.split(".") if path else ():
        owner = getattr(owner, name)
    return owner


def agrees(step: Any, model: nn.Module, loss_fn: Any, batch: Any) -> bool:
    """Whether a step has eager's bits."""
    twin = copy.deepcopy(model)
    for one in (model, twin):
        one.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = step(*batch)
    torch.manual_seed(1)
    output = twin(*batch[:-1]) if loss_fn else twin(*batch)
    expected = loss_fn(output, batch[-1]) if loss_fn else output
    expected.backward()
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)]
    pairs += list(zip(model.buffers(), twin.buffers(), strict=True))
    same = all((p is None and q is None) or torch.equal(p, q) for p, q in pairs)
    return same and torch.equal(loss, expected.detach())


@pytest.mark.parametrize("what", list(changes()))
def test_a_change_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned for anew, once, and another plan's values are found again."""
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    torch.manual_seed(0)
    model, losses = Model(), Losses()
    x, t = torch.randn(4, 8), torch.randn(4, 8)
    lines: list[str] = []
    step = scrimp.torch.fit(model, losses.method, (x, t), "100%", progress=lines.append, **OPTIONS)
    assert agrees(step, model, losses.method, (x, t))
    changes()[what](model, losses)
    if what == "another type":
        x, t = x.double(), t.double()
    before = sum("captured" in line for line in lines)
    for _ in range(2):
        assert agrees(step, model, losses.method, (x, t))
    assert sum("captured" in line for line in lines) == before + 1


def test_values_that_come_back_are_known() -> None:
    """And what nothing reads may change at will."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 8)
    weight = [1.0]

    def around() -> Any:
        factor = 1.0

        def loss(y: Tensor, t: Tensor, scale: list[float] = weight) -> Tensor:
            return F.mse_loss(y, t) * factor * scale[0]

        def change(value: float) -> None:
            nonlocal factor
            factor = value

        return loss, change

    loss, change = around()
    step = scrimp.torch.fit(model, loss, (x, x), "100%", **OPTIONS)
    for call in range(12):
        model.unused = call
        change(float(call % 2))
        assert agrees(step, model, loss, (x, x))
    assert len(step._plans) == 2


def test_a_decorated_loss_and_a_partial() -> None:
    """What decorators close over and what partials hold is seen."""
    state = {"weight": 1.0}

    def weighted(loss: Any) -> Any:
        @functools.wraps(loss)
        def inner(*args: Any) -> Tensor:
            result: Tensor = loss(*args) * state["weight"]
            return result

        return inner

    power = [2.0]

    @weighted
    def loss(power: list[float], y: Tensor, t: Tensor) -> Tensor:
        return (y - t).abs().pow(power[0]).mean()

    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 8)
    bound = functools.partial(loss, power)
    step = scrimp.torch.fit(model, bound, (x, x), "100%", **OPTIONS)
    for change in (lambda: None, lambda: state.update(weight=3.0), lambda: power.__setitem__(0, 3.0)):
        change()
        assert agrees(step, model, bound, (x, x))
    assert len(step._plans) == 3


def case(forward: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    """A model with this forward pass."""

    class Case(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.steps = 0
            self.first = True
            self.generator = random.Random(0)
            self.seen: list[Any] = []
            self.mask: Tensor | None = None
            self.average: Tensor
            self.register_buffer("average", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    torch.manual_seed(0)
    return Case()


def counter(self: Any, x: Tensor) -> Tensor:
    """Counts its calls."""
    self.steps += 1
    return (self.layer(x) * self.steps).sum()


def draws(self: Any, x: Tensor) -> Tensor:
    """Decides at random."""
    return self.layer(x).sum() * (2 if random.random() < 0.5 else 1)


def draws_from_its_own(self: Any, x: Tensor) -> Tensor:
    """Decides by its own generator."""
    return self.layer(x).sum() * self.generator.random()


def seeds(self: Any, x: Tensor) -> Tensor:
    """Seeds PyTorch."""
    torch.manual_seed(0)
    return F.dropout(self.layer(x)).sum()


def drops_layers(self: Any, x: Tensor) -> Tensor:
    """Decides by a random tensor."""
    return self.layer(x).sum() if torch.rand(()) < 0.5 else x.sum()


def another_buffer(self: Any, x: Tensor) -> Tensor:
    """Replaces a buffer."""
    self.average = 0.9 * self.average + x.mean(0)
    return self.layer(x + self.average).sum()


REFUSED = {
    counter: "changes steps at every call, from 0 to 1 to 2",
    draws: "Python's random module",
    draws_from_its_own: "the generator generator",
    seeds: "torch.manual_seed",
    drops_layers: "drawn at random",
    another_buffer: "another tensor in place of average",
}


@pytest.mark.parametrize("forward", REFUSED, ids=lambda forward: forward.__name__)
def test_what_changes_at_every_call_is_refused(forward: Any) -> None:
    """By name; and the model and the generators are as they were."""
    model, x = case(forward), torch.randn(4, 8)
    state, random_state, torch_state = copy.deepcopy(vars(model)), random.getstate(), torch.get_rng_state()
    with pytest.raises(scrimp.Unsupported, match=REFUSED[forward]):
        scrimp.torch.fit(model, None, (x,), "100%", **OPTIONS)
    assert model.steps == state["steps"]
    assert model.average is model.get_buffer("average")
    assert random.getstate() == random_state
    assert torch.equal(torch.get_rng_state(), torch_state)


def kept(model: Any) -> list[Any]:
    """What a case has seen."""
    seen: list[Any] = model.seen
    return seen


def first_call(self: Any, x: Tensor) -> Tensor:
    """Differs on its first call."""
    y = self.layer(x)
    if self.first:
        self.first = False
        y = 2 * y
    return y.sum()


def nothing_on_the_first_call(self: Any, x: Tensor) -> Tensor:
    """Notes its first call, and no more."""
    self.first = False if self.first else self.first
    return self.layer(x).sum()


def notes_shapes(self: Any, x: Tensor) -> Tensor:
    """Keeps something plain."""
    self.seen = [tuple(x.shape)]
    return self.layer(x).sum()


def keeps_a_mask(self: Any, x: Tensor) -> Tensor:
    """Keeps a tensor that is the same at each call."""
    if self.mask is None:
        self.mask = torch.tril(torch.ones(8, 8))
    return (self.layer(x) @ self.mask).sum()


def appends(self: Any, x: Tensor) -> Tensor:
    """Keeps its results."""
    y = self.layer(x).sum()
    self.seen.append(y)
    return y


@pytest.mark.parametrize(
    ("forward", "plans"),
    [(first_call, 2), (nothing_on_the_first_call, 1), (notes_shapes, 1), (keeps_a_mask, 1), (appends, 1)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_forward_pass_leaves(forward: Any, plans: int) -> None:
    """Plain values are left as eager leaves them, step by step; of tensors there is a warning."""
    model, x = case(forward), torch.randn(4, 8)
    twin = copy.deepcopy(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = scrimp.torch.fit(model, None, (x,), "100%", **OPTIONS)
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            assert torch.equal(step(x), twin(x).detach())
            assert model.first == twin.first
    keeps_tensors = any(isinstance(entry, Tensor) for entry in (twin.mask, *kept(twin)))
    assert any("stores tensors" in str(warning.message) for warning in caught) == keeps_tensors
    assert not any(isinstance(entry, Tensor) for entry in (model.mask, *kept(model)))
    assert keeps_tensors or kept(model) == kept(twin)
    assert len(step._plans) == plans


def test_a_schedule_outside_of_the_model_is_named() -> None:
    """A few values are planned for; then a sentence says what changes and what to do."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 8)
    step = scrimp.torch.fit(model, F.mse_loss, (x, x), "100%", **OPTIONS)
    with pytest.raises(scrimp.Unsupported, match=r"beta changed from 0\.4 to 0\.5, .* make it a tensor"):
        for call in range(10):
            model.beta = call / 10
            step(x, x)


def test_memory_format_after_planning() -> None:
    """Of the model, and of the batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1))
    x, t = torch.randn(4, 3, 8, 8), torch.randn(4, 1)
    step = scrimp.torch.fit(model, F.mse_loss, (x, t), "100%", **OPTIONS)
    assert agrees(step, model, F.mse_loss, (x, t))
    model.to(memory_format=torch.channels_last)
    assert agrees(step, model, F.mse_loss, (x, t))
    assert agrees(step, model, F.mse_loss, (x.to(memory_format=torch.channels_last), t))
    assert len(step._plans) == 3


def test_capture_itself_is_no_change() -> None:
    """Recurrent layers keep their weights in a list, too."""
    torch.manual_seed(0)
    model, x = nn.LSTM(4, 4), torch.randn(3, 2, 4)

    def loss(output: Any) -> Tensor:
        total: Tensor = output[0].sum()
        return total

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        step = scrimp.torch.fit(model, loss, (x,), "100%", **OPTIONS)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            step(x)
    assert len(step._plans) == 1


def test_a_wrapped_module_and_a_second_start() -> None:
    """The same guards, also where the graph was found on disk."""
    x = torch.randn(4, 8)
    for _ in range(2):
        torch.manual_seed(0)
        model = Model()
        twin = copy.deepcopy(model)
        lines: list[str] = []
        wrapped = scrimp.torch.wrap(model, x, "100%", progress=lines.append, **OPTIONS)
        for beta in (0.5, 0.25, 0.5):
            model.beta = twin.beta = beta
            torch.manual_seed(1)
            mine = wrapped(x)
            torch.manual_seed(1)
            assert torch.equal(mine, twin(x))
        assert len(wrapped.scrimp) == 2
    assert sum("found the captured graph" in line for line in lines) == 2

"""Batches of several shapes: planned ahead, in the order of another shape's plan, or not at all."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import scrimp  # noqa: E402
import scrimp.torch  # noqa: E402
from models import Gpt, token_loss  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from torch import Tensor, nn  # noqa: E402

CPU = torch.device("cpu")


def texts(length: int, count: int = 6) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    draw = torch.Generator().manual_seed(length)
    x, y = (torch.randint(0, 50, (count, length), generator=draw) for _ in range(2))
    return x, y


def twins() -> tuple[nn.Module, nn.Module]:
    """Two equal models."""
    torch.manual_seed(0)
    model = Gpt()
    return model, copy.deepcopy(model)


def eager(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A step as everyone writes it."""
    loss = token_loss(model(batch[0]), batch[1])
    loss.backward()
    return loss.detach()


def same_step(step: Any, model: nn.Module, twin: nn.Module, batch: tuple[Tensor, Tensor]) -> int:
    """Run both, compare bits, and give the step's peak as counted."""
    for one in (model, twin):
        one.zero_grad()
    held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
    torch.manual_seed(1)
    loss, peak, _ = measured(lambda: step(*batch), CPU)
    torch.manual_seed(1)
    assert torch.equal(loss, eager(twin, batch))
    assert all(
        torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    return held + peak


def fitted(model: nn.Module, length: int, budget: int | str, **options: Any) -> tuple[Any, list[str]]:
    """A step, and what is told."""
    said: list[str] = []
    options = {"costs": "estimate", "time_limit": 0.5, "progress": said.append, **options}
    return scrimp.torch.fit(model, token_loss, texts(length), budget, **options), said


def test_a_new_shape_runs_in_the_order_of_another(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller ones always fit, and no search is made for them; larger ones where the budget allows."""
    monkeypatch.setenv("SCRIMP_CACHE", str(tmp_path))
    model, twin = twins()
    step, said = fitted(model, 20, "70%")
    whole = step.plan
    assert whole.recomputed > 0
    for length in (18, 13):
        said.clear()
        peak = same_step(step, model, twin, texts(length))
        assert any("captured the graph" in text for text in said)
        assert not any("planning for" in text for text in said)
        assert step.plan.seconds == 0.0 < whole.seconds
        assert peak <= step.peak <= whole.budget == step.plan.budget
        assert step.plan.base_cost <= step.plan.lower_bound <= step.plan.cost
    step, said = fitted(model, 20, whole.budget)
    said.clear()
    assert same_step(step, model, twin, texts(24)) <= step.peak <= whole.budget


def test_a_shape_that_fits_as_it_is_repeats_nothing() -> None:
    """Though the larger shape's plan does."""
    model, twin = twins()
    step, _ = fitted(model, 24, "70%")
    same_step(step, model, twin, texts(6))
    assert step.plan.recomputed == 0 and step.plan.optimal


def test_shapes_are_planned_ahead() -> None:
    """With progress, the largest first; the example's plan is the latest."""
    model, twin = twins()
    shapes = [texts(length) for length in (8, 24)]
    step, said = fitted(model, 16, "70%", shapes=shapes, on_new_shape="error", accumulate=True)
    told = [text for text in said if text.startswith("batch ")]
    assert [text.partition("(6, ")[2][:2] for text in told] == ["24", "16", "8)"]
    example = step.plan
    assert step.prepare(*texts(16)) is example
    said.clear()
    for length in (8, 16, 24):
        same_step(step, model, twin, texts(length))
    assert not any("captured" in text or "planned" in text for text in said)
    with pytest.raises(scrimp.BadOption, match="on_new_shape is 'error'"):
        step(*texts(9))
    step.prepare(*texts(9))
    same_step(step, model, twin, texts(9))


def test_the_model_itself_runs_what_has_no_plan() -> None:
    """Said once for each shape; with its gradients, and their scale."""
    model, twin = twins()
    step, said = fitted(model, 16, "70%", on_new_shape="eager")
    said.clear()
    with pytest.warns(
        UserWarning, match=r"shapes \(6, 9\), \(6, 9\): the model itself runs, with a peak of about"
    ):
        same_step(step, model, twin, texts(9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_step(step, model, twin, texts(9))
        same_step(step, model, twin, texts(16))
    assert not any("captured" in text for text in said)
    step.loss_scale = 2.0
    model.zero_grad()
    torch.manual_seed(1)
    step(*texts(9))
    twin.zero_grad()
    torch.manual_seed(1)
    (token_loss(twin(texts(9)[0]), texts(9)[1]) * 2.0).backward()
    assert all(
        torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_modules_too() -> None:
    """Wrapped models plan ahead, take other shapes' orders, or run as they are."""
    model, twin = twins()
    said: list[str] = []
    options: dict[str, Any] = {"costs": "estimate", "time_limit": 0.5, "progress": said.append}
    inputs = [(texts(length)[0],) for length in (24, 12)]
    wrapped = scrimp.torch.wrap(model, inputs[0], "80%", shapes=inputs[1:], **options)
    assert sum(text.startswith("batch ") for text in said) == 2
    said.clear()

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = token_loss(wrapped(x), y)
        loss.backward()
        return loss.detach()

    for length in (24, 12, 17):
        same_step(step, model, twin, texts(length))
    assert not any("planning for" in text for text in said)
    wrapped = scrimp.torch.wrap(scrimp.torch.unwrap(model), inputs[0], "80%", on_new_shape="eager", **options)
    with pytest.warns(UserWarning, match="the model itself runs"):
        same_step(step, model, twin, texts(13))


def test_other_answers_are_refused() -> None:
    """By name."""
    with pytest.raises(scrimp.BadOption, match="on_new_shape is 'guess'"):
        fitted(twins()[0], 8, "70%", on_new_shape="guess")

"""Measurements of a busy machine, steps that take longer or shorter than planned, and what is told."""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import scrimp  # noqa: E402
import scrimp.torch  # noqa: E402
from scrimp._torch import kept, profile  # noqa: E402
from scrimp._torch.clock import Clock, waited  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

BATCH = (torch.ones(64, 256),)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("SCRIMP_CACHE", str(tmp_path))
    return tmp_path


def model() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))


def rows() -> dict[str, list[float]]:
    """All that is kept of the operators."""
    return {key: row for table in kept.load().values() for key, row in table.items()}


def as_if(monkeypatch: pytest.MonkeyPatch, *, busy: bool, seconds: float) -> None:
    """Let measurements come out like this."""
    monkeypatch.setattr(profile, "_seconds", lambda run: (seconds, busy))
    monkeypatch.setattr(profile, "is_quiet", lambda: not busy)


def planned(**options: Any) -> scrimp.torch.Step:
    """A step of the model."""
    return scrimp.torch.fit(model(), torch.sum, BATCH, "100%", time_limit=0.5, **options)


def spin(until: float) -> None:
    """Take a processor."""
    while time.monotonic() < until:
        pass


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or not waited(), reason="waiting isn't counted here")
def test_a_clock_on_a_busy_machine() -> None:
    """Others on the same processor don't count, and are noticed."""
    every = os.sched_getaffinity(0)
    one = {min(every)}
    others = [
        multiprocessing.get_context("fork").Process(target=spin, args=(time.monotonic() + 60,))
        for _ in range(3)
    ]
    os.sched_setaffinity(0, one)
    try:
        for other in others:
            other.start()
        clock, start, own = Clock(), time.perf_counter(), time.thread_time()
        while time.thread_time() < own + 0.2:
            pass
        wall, span = time.perf_counter() - start, clock.read()
    finally:
        os.sched_setaffinity(0, every)
        for other in others:
            other.kill()
            other.join()
    assert span.busy
    assert 0.2 <= span.seconds < 0.75 * wall


def test_what_was_measured_while_busy_is_measured_again_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then once and for all; not while it is busy still."""
    as_if(monkeypatch, busy=True, seconds=0.5)
    first = planned()
    assert {row[2] for row in rows().values()} == {1}
    again = planned()
    assert {row[2] for row in rows().values()} == {1} and again.plan.cost == first.plan.cost
    as_if(monkeypatch, busy=False, seconds=0.25)
    assert planned().plan.cost == pytest.approx(first.plan.cost / 2)
    assert {row[2] for row in rows().values()} == {profile.SETTLED}
    as_if(monkeypatch, busy=False, seconds=0.125)
    assert planned().plan.cost == pytest.approx(first.plan.cost / 2)


def test_measurements_that_agree_change_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A little more or less is no other problem, so the plan is found."""
    as_if(monkeypatch, busy=True, seconds=0.5)
    first = planned()
    as_if(monkeypatch, busy=False, seconds=0.45)
    said: list[str] = []
    assert planned(progress=said.append).plan.cost == first.plan.cost
    assert any("measured" in text for text in said) and not any("planning" in text for text in said)
    assert {row[2] for row in rows().values()} == {profile.SETTLED}


@pytest.mark.parametrize("wrapped", [False, True])
def test_steps_that_are_not_as_predicted(monkeypatch: pytest.MonkeyPatch, wrapped: bool) -> None:
    """Told once, and the operators are measured again the next time."""
    as_if(monkeypatch, busy=False, seconds=0.5)
    net = model()
    make: Any = scrimp.torch.wrap if wrapped else functools.partial(scrimp.torch.fit, loss_fn=torch.sum)
    step = make(net, example_batch=BATCH, budget="100%", time_limit=0.5)

    def run() -> None:
        net.zero_grad()
        loss = step(*BATCH)
        if wrapped:
            loss.sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(11):
            run()
    with pytest.warns(UserWarning, match="the plan predicts"):
        run()
    assert {row[2] for row in rows().values()} == {1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(15):
            run()


def test_nothing_is_told_of_what_was_estimated() -> None:
    """Seconds of a made-up machine aren't compared."""
    step = planned(costs="estimate")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(15):
            step(*BATCH)


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        """Yes."""
        return True


class Innermost(nn.Module):
    """A depthwise convolution before a norm over channels, and a loss over the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.head = (
            nn.Conv2d(64, 64, 7, padding=3, groups=64),
            nn.LayerNorm(64),
            nn.Linear(64, 99),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        inner = self.norm(self.wide(x).permute(0, 2, 3, 1))
        return F.cross_entropy(self.head(inner).flatten(1, 2).transpose(1, 2), y)


def test_estimated_peaks_are_not_below_measured_ones() -> None:
    """Where kernels copy what lies in another order, and pad the weights of groups."""
    images = torch.randn(2, 64, 8, 8).to(memory_format=torch.channels_last)
    given = images, torch.randint(99, (2, 64))
    step = scrimp.torch.fit(Innermost(), None, given, "100%", costs="estimate", time_limit=0.5)
    step(*given)
    step.model.zero_grad()
    held = storage_bytes([*step.model.parameters(), *given])
    _, peak, _ = measured(functools.partial(step, *given), torch.device("cpu"))
    assert held + peak <= step.peak


def test_progress_is_shown_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default; nowhere else, not in other processes of a group, and not if it isn't wanted."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    planned()
    lines = shown.getvalue().split("\n")
    assert lines[-1] == ""
    assert "captured the graph" in lines[0] and "planned a peak of" in lines[-2]
    assert any("\r" in line.strip("\r") and "measured" in line for line in lines)
    for quiet, rank, options in (
        (Terminal(), "0", {"progress": False}),
        (Terminal(), "1", {}),
        (io.StringIO(), "0", {}),
    ):
        monkeypatch.setattr(sys, "stderr", quiet)
        monkeypatch.setenv("RANK", rank)
        planned(**options)
        assert quiet.getvalue() == ""
    with pytest.raises(scrimp.BadOption, match="progress is 3"):
        planned(progress=3)

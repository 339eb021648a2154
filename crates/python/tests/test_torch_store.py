"""Captured graphs and plans that a second start finds on disk, and what makes them another's."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import scrimp  # noqa: E402
import scrimp.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from models import cases  # noqa: E402
from scrimp._torch import store  # noqa: E402
from scrimp._torch.fingerprint import fingerprint  # noqa: E402
from torch import Tensor, nn  # noqa: E402

PROGRAM = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import scrimp.torch
from models import cases
torch.manual_seed(0)
torch.set_num_threads(1)
make, batch, loss_fn = cases()["gpt"]
model = make()
said = []
step = scrimp.torch.fit(model, loss_fn, batch, "60%", costs="estimate", time_limit=1.0, progress=said.append)
loss = step(*batch)
words = ("captured the", "found the", "planning")
told = [word.split()[0] for word in words if any(word in text for text in said)]
print(*told, float(loss), sum(float(p.grad.double().sum()) for p in model.parameters()), step.plan.cost)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("SCRIMP_CACHE", str(tmp_path))
    return tmp_path


def start() -> subprocess.Popen[str]:
    """A program that plans and runs a step."""
    here = str(Path(__file__).parent)
    return subprocess.Popen([sys.executable, "-c", PROGRAM, here], stdout=subprocess.PIPE, text=True)


def said_by(process: subprocess.Popen[str]) -> list[str]:
    """What it printed."""
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return out.split()


def test_a_second_start_finds_what_the_first_made(folder: Path) -> None:
    """Two programs at the same time write the same; the third neither captures nor searches."""
    first, second = (said_by(process) for process in [start(), start()])
    third = said_by(start())
    assert "captured" in first and "captured" in second
    assert third[0] == "found" and len(third) == 4
    assert third[1:3] == first[-3:-1] == second[-3:-1]
    assert float(third[3]) in (float(first[-1]), float(second[-1]))
    assert not list(store.folder().glob("draft-*"))


class Scaled(nn.Module):
    """A model with things that Python decides."""

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)
        self.options = {"scale": scale}
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        """Two nodes or three."""
        return self.drop(self.linear(x) * self.options["scale"])


BATCH = (torch.ones(4, 8),)


def fitted(model: nn.Module, loss_fn: Any = torch.sum, **options: Any) -> tuple[scrimp.torch.Step, str]:
    """A step, and all that was told while it was planned."""
    said: list[str] = []
    options = {"budget": "100%", "costs": "estimate", "time_limit": 1.0, **options}
    step = scrimp.torch.fit(model, loss_fn, BATCH, progress=said.append, **options)
    return step, "\n".join(said)


def test_the_step_of_a_found_graph_is_the_same(folder: Path) -> None:
    """Bits, words and pages; for steps and for modules."""
    model = Scaled()
    twin = copy.deepcopy(model)
    first, told = fitted(model)
    second, retold = fitted(twin)
    assert "captured the graph" in told and "found the captured graph" in retold
    for step in (first, second):
        torch.manual_seed(1)
        step(*BATCH)
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for p, q in pairs)
    assert first.explain() == second.explain()
    assert first.plan.lower_bound == second.plan.lower_bound and first.plan.method == second.plan.method
    pages = [folder / "first.html", folder / "second.html"]
    for step, page in zip((first, second), pages, strict=True):
        step.report(page)
    texts = [page.read_text(encoding="utf-8") for page in pages]
    bound = "lower bound on the overhead"
    assert bound in texts[0]
    assert texts[0].partition(bound)[2][:100] == texts[1].partition(bound)[2][:100]
    said: list[str] = []
    for net in (copy.deepcopy(model), copy.deepcopy(model)):
        wrapped = scrimp.torch.wrap(net, BATCH, "100%", costs="estimate", progress=said.append)
        torch.manual_seed(1)
        wrapped(*BATCH).sum().backward()
        assert all(
            torch.equal(p.grad, q.grad) for p, q in zip(net.parameters(), model.parameters(), strict=True)
        )
    assert sum("found the captured graph" in text for text in said) == 1


CHANGES: dict[str, Callable[[Scaled], Any]] = {
    "an option": lambda model: model.options.update(scale=3.0),
    "a number of a submodule": lambda model: setattr(model.drop, "p", 0.2),
    "a function in place of a method": lambda model: setattr(model, "forward", lambda x: x),
    "a frozen parameter": lambda model: model.linear.weight.requires_grad_(False),
    "a layer": lambda model: setattr(model, "linear", nn.Linear(8, 8, bias=False)),
    "a type": lambda model: model.double(),
    "strides": lambda model: setattr(model.linear, "weight", nn.Parameter(torch.zeros(8, 8).t())),
    "tied parameters": lambda model: setattr(model, "seen", model.linear.bias.data),
    "a parametrization": lambda model: nn.utils.parametrizations.weight_norm(model.linear),
    "a tensor that is no buffer": lambda model: setattr(model, "shift", torch.zeros(1)),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_another_model(change: str) -> None:
    """Each change is another model; a model made anew isn't."""
    model, same = Scaled(), Scaled()
    CHANGES[change](model)
    assert fingerprint(same, [torch.sum]) == fingerprint(Scaled(), [torch.sum])
    assert fingerprint(same, [torch.sum]) != fingerprint(model, [torch.sum])


def weighted(weight: float) -> Callable[[Tensor], Tensor]:
    """A loss with a number in its closure."""
    return lambda out: weight * out.sum()


def test_another_loss() -> None:
    """By what it closes over, its parts, or a module's attribute."""

    def of(loss_fn: Any) -> str:
        return fingerprint(Scaled(), [loss_fn])

    assert of(weighted(1.0)) == of(weighted(1.0)) != of(weighted(2.0))
    once, twice = (functools.partial(F.cross_entropy, label_smoothing=s) for s in (0.1, 0.2))
    assert of(once) != of(twice)
    assert of(nn.CrossEntropyLoss()) != of(nn.CrossEntropyLoss(label_smoothing=0.1))
    assert of(nn.CrossEntropyLoss(torch.ones(3))) == of(nn.CrossEntropyLoss(torch.ones(3)))
    first, second = (types.SimpleNamespace(weights=torch.full((3,), w)) for w in (1.0, 2.0))
    assert of(lambda out: out @ first.weights) != of(lambda out: out @ second.weights)


SOURCE = """
import torch
FACTOR = {factor}
def helper(x):
    # {comment}
    return x * FACTOR {more}
class Net(torch.nn.Module):
    def forward(self, x):
        return helper(x)
"""


@pytest.mark.parametrize(
    ("second", "same"), [({"comment": "new"}, True), ({"more": "+ 1"}, False), ({"factor": 3}, False)]
)
def test_another_source(second: dict[str, Any], same: bool) -> None:
    """A line or a global of what the model's code calls; a comment changes nothing."""

    def of(**changes: Any) -> str:
        module = types.ModuleType("somebodys_model")
        text = SOURCE.format(**{"factor": 2, "comment": "old", "more": "", **changes})
        sys.modules[module.__name__] = module
        try:
            module.__file__ = "somebodys_model.py"
            exec(compile(text, "somebodys_model.py", "exec"), vars(module))
            return fingerprint(module.Net(), [])
        finally:
            del sys.modules[module.__name__]

    assert (of() == of(**second)) == same


def test_another_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, precision, determinism and versions choose kernels."""

    def now() -> str:
        return fingerprint(Scaled(), [])

    before = now()
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "SSE41")
    assert now() != before
    monkeypatch.undo()
    assert now() == before
    torch.use_deterministic_algorithms(True)
    assert now() != before
    torch.use_deterministic_algorithms(False)
    monkeypatch.setattr("scrimp._torch.fingerprint._versions", lambda: "another")
    assert now() != before


@pytest.mark.parametrize("damage", [b"", b"no archive", gzip.compress(b"[1]"), gzip.compress(b"{}")])
def test_damaged_files_are_made_anew(damage: bytes) -> None:
    """With one warning for each, and the next start finds them."""
    first, _ = fitted(Scaled())
    for path in store.folder().iterdir():
        path.write_bytes(damage)
    with pytest.warns(UserWarning, match="can't be used"):
        step, told = fitted(Scaled())
    assert "captured the graph" in told
    assert step.plan.cost == first.plan.cost
    assert "found the captured graph" in fitted(Scaled())[1]


class Cache:
    """An object around a tensor, as language models return one."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class Caching(Scaled):
    """Returns more than tensors."""

    def forward(self, x: Tensor) -> Any:
        """A dictionary."""
        h = self.linear(x)
        return {"out": super().forward(h), "cache": Cache(h), "name": "caching"}


def test_what_a_found_module_returns() -> None:
    """Objects around tensors, too; nothing of them is on disk."""
    said: list[str] = []
    for _ in range(2):
        torch.manual_seed(0)
        wrapped = scrimp.torch.wrap(Caching(), BATCH, "100%", costs="estimate", progress=said.append)
        output = wrapped(*BATCH)
        output["out"].sum().backward()
        assert output["name"] == "caching"
        assert torch.equal(output["cache"].keys, wrapped.linear(*BATCH))
    assert sum("found the captured graph" in text for text in said) == 1


class Masked(nn.Module):
    """A model that leaves a mask out if it hides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """As published models do."""
        return self.linear(x) if bool(mask.all()) else self.linear(x) * mask


def test_each_course_is_found_by_what_the_batch_holds() -> None:
    """A model that looks at its batch has a graph for each answer."""
    full, padded = torch.ones(4, 8), torch.ones(4, 8)
    padded[1, 4:] = 0
    told = []
    for mask in (full, padded, full, padded):
        said: list[str] = []
        model = Masked()
        options: dict[str, Any] = {"costs": "estimate", "progress": said.append}
        batch = {"x": torch.ones(4, 8), "mask": mask}
        step = scrimp.torch.fit(model, torch.sum, batch, "100%", **options)
        told.append("found the captured graph" in "".join(said))
        assert torch.equal(step(**batch), model(**batch).sum())
    assert told == [False, False, True, True]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_found_graph_of_another_model_is_captured_anew(
    monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    """Should a fingerprint overlook something, the first step notices."""
    monkeypatch.setattr("scrimp._torch.captures.fingerprint", lambda *args: "always the same")
    monkeypatch.setattr(store, "_forgotten", set())
    fit: Any = scrimp.torch.wrap if wrapped else functools.partial(scrimp.torch.fit, loss_fn=torch.sum)
    said: list[str] = []

    # Large enough for eager's forward pass to fit what the plan takes.
    batch = (torch.ones(4096, 8),)

    def run(dropped: float) -> None:
        said.clear()
        torch.manual_seed(0)
        model = Scaled()
        model.drop.p = dropped
        twin = copy.deepcopy(model)
        step = fit(model, example_batch=batch, budget="100%", costs="estimate", progress=said.append)
        torch.manual_seed(1)
        loss = step(*batch)
        if wrapped:
            loss.sum().backward()
        torch.manual_seed(1)
        twin(*batch).sum().backward()
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        assert all(torch.equal(p.grad, q.grad) for p, q in pairs)

    run(0.1)
    run(0.5)
    assert sum("captured anew" in text for text in said) == 1
    run(0.5)
    assert not any("found the captured graph" in text for text in said)
    store._forgotten.clear()
    run(0.5)
    assert any("found the captured graph" in text for text in said)
    assert not any("captured anew" in text for text in said)


def test_what_a_file_names_is_not_run() -> None:
    """Only registered operators are called."""
    fitted(Scaled())
    (path,) = store.folder().glob("graph-*")
    entry = json.loads(gzip.decompress(path.read_bytes()))
    for name in ("os.system", "torch.ops.load_library", "__class__.__init__.__globals__"):
        for node in entry["courses"][0]["graph"]["nodes"]:
            if node["op"] == "call_function":
                node["target"] = name
        path.write_bytes(gzip.compress(json.dumps(entry).encode()))
        with pytest.warns(UserWarning, match="can't be used"):
            assert "captured the graph" in fitted(Scaled())[1]


def test_more_time_plans_anew() -> None:
    """A plan whose search was cut isn't what a longer one finds."""
    make, batch, loss_fn = cases()["gpt"]
    torch.manual_seed(0)
    model = make()

    def plan(limit: float) -> tuple[str, Any]:
        said: list[str] = []
        options: dict[str, Any] = {"costs": "estimate", "time_limit": limit, "progress": said.append}
        step = scrimp.torch.fit(model, loss_fn, batch, "50%", **options)
        return "\n".join(said), step.plan

    told, first = plan(0.3)
    assert "planning" in told
    again, second = plan(0.3)
    assert "planning" not in again and (second.cost, second.peak) == (first.cost, first.peak)
    assert "planning" not in plan(0.2)[0]
    assert ("planning" in plan(1.0)[0]) == (first.seconds >= 0.9 * 0.3 and not first.optimal)


def test_the_oldest_files_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """All together stay below the limit."""
    monkeypatch.setattr(store, "MOST_BYTES", 2000)
    for place in range(6):
        store.save("graph", str(place), {"noise": os.urandom(300).hex()})
        path = store.folder() / f"graph-{place}.json.gz"
        os.utime(path, (place, place)) if path.exists() else None
    left = sorted(path.name for path in store.folder().iterdir())
    assert sum(path.stat().st_size for path in store.folder().iterdir()) <= 2000
    assert "graph-5.json.gz" in left and "graph-0.json.gz" not in left


def test_a_folder_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that can't be written to is no error."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SCRIMP_CACHE", str(tmp_path / "file" / "below"))
    assert "captured the graph" in fitted(Scaled())[1]
    assert "captured the graph" in fitted(Scaled())[1]


class Recurrent(nn.Module):
    """A layer that keeps its parameters in a list, too, which capture leaves changed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0].mean()


def test_recurrent_layers_are_found_again() -> None:
    """Within one program."""
    model, batch = Recurrent(), (torch.randn(2, 3, 16),)
    said: list[str] = []
    for _ in range(2):
        scrimp.torch.fit(model, None, batch, "100%", time_limit=0.5, progress=said.append)
    assert sum("found the" in line for line in said) == 1, said

"""What is different on a GPU, as far as it can be seen without one; and the command for one."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from scrimp._torch.gpu import is_unsettled, kept_by_libraries, warn_of_choices  # noqa: E402
from scrimp._torch.graph import analyse  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx import Graph, Node  # noqa: E402

aten = torch.ops.aten
BENCH = Path(__file__).parents[3] / "benches" / "gpu.py"


def node(target: object, device: str, *more: object) -> Node:
    """A call on a tensor of a device that needn't be there."""
    graph = Graph()
    with FakeTensorMode():
        value = torch.empty(4, 4, device=device)
    x = graph.placeholder("x")
    x.meta["val"] = value
    made = graph.call_function(target, (x, *more))  # type: ignore[arg-type]
    made.meta["val"] = value
    return made


def test_kernels_that_add_with_atomics() -> None:
    """They are told from those that don't, and from the same on the CPU."""
    assert is_unsettled(node(aten.index_add.default, "cuda", 0))
    assert not is_unsettled(node(aten.index_add.default, "cpu", 0))
    assert not is_unsettled(node(aten.relu.default, "cuda"))
    assert is_unsettled(node(aten.index_put.default, "cuda", [], 1, True))
    assert not is_unsettled(node(aten.index_put.default, "cuda", [], 1, False))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert is_unsettled(node(aten.index_add.default, "cuda", 0)), "PyTorch only warns"
    finally:
        torch.use_deterministic_algorithms(False)
    torch.use_deterministic_algorithms(True)
    try:
        assert not is_unsettled(node(aten.index_add.default, "cuda", 0))
    finally:
        torch.use_deterministic_algorithms(False)


def test_kernels_that_cudnn_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of convolutions may be added up with atomics, unless that is forbidden."""
    gradient = node(aten.convolution_backward.default, "cuda")
    assert is_unsettled(gradient)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    assert not is_unsettled(gradient)


def test_memory_of_the_cpu_beside_a_gpu() -> None:
    """A number or a seed on the CPU takes nothing of a GPU's budget, so it isn't swapped either."""
    made = node(aten.relu.default, "cuda")
    seed = made.graph.call_function(aten.randint.default, (5, [3]))
    with FakeTensorMode():
        seed.meta["val"], made.meta["val"] = torch.empty(3), torch.empty(4, 4, device="cuda")
    storages = analyse(made.graph).storages_of
    assert [storage.bytes for storage in storages[made]] == [64]
    assert [storage.bytes for storage in storages[seed]] == [0]


def test_the_names_are_operators() -> None:
    """A name that PyTorch doesn't have would never be found."""
    from scrimp._torch import gpu

    names = gpu.ATOMIC | gpu.ACCUMULATING | gpu.CHOSEN
    missing = [name for name in names if not hasattr(aten, name)]
    assert missing == []


def test_choices_by_timing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU only."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with pytest.warns(UserWarning, match="cuDNN chooses kernels by timing"):
        warn_of_choices(torch.device("cuda", 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_choices(torch.device("cpu"))


def test_libraries_of_the_cpu_keep_nothing() -> None:
    """Nothing is tried there."""
    assert kept_by_libraries(torch.device("cpu")) == 0


@pytest.mark.skipif(not BENCH.exists(), reason="the repository's benches aren't here")
def test_the_command_for_a_gpu() -> None:
    """Without a GPU it runs what can be run, and says what can't."""
    checks = "environment,libraries,peaks,slab,atomics"
    options = ["--device=cpu", "--size=tiny", f"--checks={checks}", "--time-limit=0.5", "--repeats=1"]
    command = [sys.executable, str(BENCH), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert told.count("\n## ") == 5, told
    assert "**" not in told, told
    assert "refused: a slab is memory of a GPU" in told
    assert told.count("bits same, eager itself same") == 2
    assert "| min |" in told


def test_a_gpu_must_be_there() -> None:
    """Or the command says how to try it without."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, str(BENCH)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode != 0
    assert "--device cpu" in done.stderr


def test_a_batch_too_large_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has no memory for an operator by itself has none for a step."""
    prepare = scrimp.torch.Step.prepare

    def short(step: Any, *batch: Any) -> Any:
        if len(batch[0]) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return prepare(step, *batch)

    monkeypatch.setattr(scrimp.torch.Step, "prepare", short)
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    largest = scrimp.torch.max_batch(model, torch.Tensor.sum, (x,), "1GiB", costs="estimate", time_limit=0.1)
    assert largest == 5


def test_new_values_go_where_the_old_ones_are() -> None:
    """All of a kind at once, whatever kinds there are."""
    from scrimp._torch.runtime import put

    targets = [torch.zeros(3), torch.zeros((), dtype=torch.int64), torch.zeros(2, 2).t(), torch.zeros(4)]
    values = [
        torch.ones(3),
        torch.tensor(7),
        torch.arange(4.0).view(2, 2),
        torch.ones(4, dtype=torch.float64),
    ]
    put(targets, values)
    assert all(
        torch.equal(target, value.to(target.dtype)) for target, value in zip(targets, values, strict=True)
    )

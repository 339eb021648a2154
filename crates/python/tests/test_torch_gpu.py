"""What is different on a GPU, as far as it can be seen without one; and the command for one."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from scrimp._torch.gpu import is_unsettled, kept_by_libraries, warn_of_choices  # noqa: E402
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
    torch.use_deterministic_algorithms(True)
    try:
        assert not is_unsettled(node(aten.index_add.default, "cuda", 0))
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_names_are_operators() -> None:
    """A name that PyTorch doesn't have would never be found."""
    from scrimp._torch import gpu

    missing = [name for name in gpu.ATOMIC | gpu.ACCUMULATING if not hasattr(aten, name)]
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

"""Two processes with gloo: gradients are equal with and without a plan, and the peak is lower."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch is built without gloo", allow_module_level=True)


@pytest.mark.parametrize("case", ["ddp-wrap", "ddp-compile", "compile-ddp", "fsdp2"])
def test_two_processes(case: str, tmp_path: Path) -> None:
    """Both end without complaint."""
    script = str(Path(__file__).with_name("distributed.py"))
    rendezvous = str(tmp_path / "rendezvous")
    processes = [
        subprocess.Popen(
            [sys.executable, script, case, str(rank), rendezvous],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)

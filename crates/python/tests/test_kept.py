"""Measurements on disk: what processes write at the same time, and what isn't as it should be; no PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scrimp._torch import kept

ADD = """
import sys
from scrimp._torch import kept
for k in range(20):
    kept.store("cpu", {f"{sys.argv[1]} {k}": [1.0, 8, 0]})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("SCRIMP_CACHE", str(tmp_path))
    return tmp_path


def test_what_processes_add_at_the_same_time_is_all_there(folder: Path) -> None:
    """Each waits for the other, and nothing else is left in the folder."""
    adding = [subprocess.Popen([sys.executable, "-c", ADD, str(k)]) for k in range(3)]
    assert [process.wait(timeout=300) for process in adding] == [0, 0, 0]
    assert len(kept.load()["cpu"]) == 60
    assert list(folder.iterdir()) == [kept.cache_path()]


@pytest.mark.parametrize("row", [[1e31, 8, 0], [-1.0, 8, 0], [1.0, 1 << 62, 0], [1.0, 8], "x"])
def test_a_damaged_cache_is_written_anew(row: object) -> None:
    """Numbers that no operator takes are damage too."""
    kept.cache_path().write_text(json.dumps({"cpu": {"good": [1.0, 8, 0], "bad": row}}), encoding="utf-8")
    assert kept.load() == {}
    kept.store("cpu", {"new": [2.0, 16, 0]})
    assert kept.load() == {"cpu": {"new": [2.0, 16, 0]}}


def test_a_pipe_is_not_waited_for() -> None:
    """Neither when the cache is read nor when it is written."""
    os.mkfifo(kept.cache_path())
    assert kept.load() == {}
    kept.store("cpu", {"new": [2.0, 16, 0]})

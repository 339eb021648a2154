"""Measurements on disk, in one file for all devices. Processes add to it one after the other.

A file that can't be read or has anything wrong in it is as good as none, and is written anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMAT = 3
MOST = (1e6, 1 << 60, 100)
"""Seconds, bytes and doubts that no operator has: a cache that has them is damaged."""
PATIENCE = 10.0
"""Seconds to wait for another process that stores its measurements."""


def cache_path() -> Path:
    """The file that keeps measurements; SCRIMP_CACHE names another folder."""
    folder = os.environ.get("SCRIMP_CACHE")
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = str(Path(base) / "scrimp")
    return Path(folder) / f"torch-operators-{FORMAT}.json"


def load() -> dict[str, dict[str, list[float]]]:
    """A cache that can't be read is as good as none; a pipe in its place is not waited for."""
    path = cache_path()
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if not path.is_file():
            return {}
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if isinstance(found, dict) and all(_is_table(table) for table in found.values()):
            return found
    return {}


def _is_table(table: Any) -> bool:
    return isinstance(table, dict) and all(
        isinstance(row, list)
        and len(row) == len(MOST)
        and all(isinstance(x, int | float) and 0 <= x < most for x, most in zip(row, MOST, strict=True))
        for row in table.values()
    )


def store(here: str, known: dict[str, list[float]]) -> None:
    """Add to what others stored meanwhile; a cache that can't be written is done without."""
    path = cache_path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            stored = load()
            stored.setdefault(here, {}).update(known)
            # Only the lock's holder writes here, so a killed process leaves one such file at most.
            draft = path.with_suffix(".tmp")
            draft.write_text(json.dumps(stored), encoding="utf-8")
            draft.replace(path)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from storing meanwhile, where folders can be locked; give up if they don't end."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield
    finally:
        os.close(held)

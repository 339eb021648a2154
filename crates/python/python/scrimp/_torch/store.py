"""Captured graphs and plans on disk: one compressed file each, named by what it depends on.

A file is written under another name and then renamed, so that processes may write at the same time. One
that can't be read is as good as none, and is written anew. The oldest go when all take too much.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

from scrimp._torch import kept

MOST_BYTES = 256 << 20
"""Of all files together."""
STALE_SECONDS = 3600.0
"""A draft of this age is of a process that was killed."""


def folder() -> Path:
    """Where they are, beside the measurements of operators."""
    return kept.cache_path().parent / "plans"


def load(kind: str, key: str) -> dict[str, Any] | None:
    """Find what was saved; nothing if there is none, or it is damaged."""
    path = _path(kind, key)
    if (kind, key) in _forgotten:
        return None
    try:
        if not path.is_file():
            return None
        found = json.loads(gzip.decompress(path.read_bytes()))
        if not isinstance(found, dict) or found.pop("key", None) != key:
            raise ValueError("it is of something else")
    except PermissionError:
        return None
    except (OSError, ValueError, EOFError, RecursionError, zlib.error) as error:
        damaged(kind, key, error)
        return None
    with contextlib.suppress(OSError):
        # What was used last goes last.
        os.utime(path)
    return found


def forget(kind: str, key: str) -> None:
    """Delete what was saved, and don't find it again in this process."""
    _forgotten.add((kind, key))
    with contextlib.suppress(OSError):
        _path(kind, key).unlink(missing_ok=True)


_forgotten: set[tuple[str, str]] = set()


def damaged(kind: str, key: str, error: Exception) -> None:
    """Say that a file is of no use."""
    warnings.warn(
        f"the kept {kind} in {_path(kind, key)} can't be used ({type(error).__name__}: {error}); it is "
        "made anew",
        stacklevel=2,
    )


def save(kind: str, key: str, content: dict[str, Any]) -> None:
    """Keep something; a folder that can't be written to is done without."""
    path = _path(kind, key)
    packed = gzip.compress(json.dumps({**content, "key": key}).encode(), compresslevel=1)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft, name = tempfile.mkstemp(prefix="draft-", dir=path.parent)
        try:
            with os.fdopen(draft, "wb") as file:
                file.write(packed)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
        _make_room(path.parent)


def _make_room(where: Path) -> None:
    """Delete the oldest files beyond the limit, and drafts that nobody finishes."""
    files = []
    for path in where.iterdir():
        # Another process may delete at the same time.
        with contextlib.suppress(FileNotFoundError):
            about = path.stat()
            files.append((about.st_mtime, about.st_size, path))
    total = sum(size for _, size, _ in files)
    for changed, size, path in sorted(files):
        if path.name.startswith("draft-"):
            if changed < time.time() - STALE_SECONDS:
                path.unlink(missing_ok=True)
        elif total > MOST_BYTES:
            path.unlink(missing_ok=True)
            total -= size


def _path(kind: str, key: str) -> Path:
    return folder() / f"{kind}-{key}.json.gz"

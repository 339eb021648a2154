"""What is going on, on a terminal: what lasts on lines of its own, the rest on one that changes."""

from __future__ import annotations

import os
import shutil
import sys


def is_watched() -> bool:
    """Whether someone may read it: in a terminal, and only one process of several writes."""
    stream = sys.stderr
    return stream is not None and stream.isatty() and os.environ.get("RANK", "0") == "0"


def tell(text: str, *, passing: bool) -> None:
    """Write a line; one that is ``passing`` is overwritten by the next."""
    width = shutil.get_terminal_size().columns
    line = f"scrimp: {text}"
    sys.stderr.write(f"\r\x1b[2K{line[: width - 1]}" if passing else f"\r\x1b[2K{line}\n")
    sys.stderr.flush()

"""Measurements of operators go to a folder of this run; one thread, since the models are small."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache() -> Iterator[None]:
    """Neither read nor write the user's cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SCRIMP_CACHE"] = folder
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small operators gain nothing from more."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)

"""How many bytes PyTorch's allocators hand out while something runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from scrimp.errors import Unsupported

T = TypeVar("T")


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages behind the tensors."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def measured(run: Callable[[], T], device: torch.device) -> tuple[T, int, int]:
    """Run something; give its result, the most bytes beyond those before, and how many stayed."""
    if device.type == "cuda":
        return _on_cuda(run, device)
    if device.type != "cpu":
        raise Unsupported(f"memory on {device.type} can't be measured")
    result, deltas = _on_cpu(run)
    in_use = peak = 0
    for delta in deltas:
        in_use += delta
        peak = max(peak, in_use)
    return result, peak, in_use


def _on_cuda(run: Callable[[], T], device: torch.device) -> tuple[T, int, int]:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = run()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return result, peak - before, torch.cuda.memory_allocated(device) - before


def _on_cpu(run: Callable[[], T]) -> tuple[T, list[int]]:
    """Every allocation and release in order, as PyTorch's profilers record them."""
    if hasattr(torch._C._autograd, "_enable_profiler_legacy"):
        return _by_legacy_profiler(run)
    return _by_kineto(run)


def _by_legacy_profiler(run: Callable[[], T]) -> tuple[T, list[int]]:
    # It costs a millisecond and prints nothing, unlike the newer one.
    autograd: Any = torch.autograd
    state = autograd.ProfilerState.CPU
    details = torch._C._profiler._ExperimentalConfig()
    config = autograd.ProfilerConfig(state, False, True, False, False, False, details)
    try:
        torch._C._autograd._enable_profiler_legacy(config)
    except RuntimeError as error:
        raise Unsupported(
            "operators can't be measured while another profiler is on; plan before starting it "
            "(step.prepare(*batch) plans without running)"
        ) from error
    try:
        result = run()
    finally:
        threads: Any = torch._C._autograd._disable_profiler_legacy()
    events = (event for thread in threads for event in thread)
    return result, [e.cpu_memory_usage() for e in events if e.kind() == "memory_alloc"]


def _by_kineto(run: Callable[[], T]) -> tuple[T, list[int]]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        result = run()
    recorder: Any = profile.profiler
    events = [e for e in recorder.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return result, [e.nbytes() for e in events]

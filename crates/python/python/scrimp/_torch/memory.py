"""How many bytes PyTorch's allocators hand out while something runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from scrimp._torch import slab
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
    before, _ = in_use(device, reset=True)
    result = run()
    torch.cuda.synchronize(device)
    after, peak = in_use(device)
    return result, peak - before, after - before


def in_use(device: torch.device, *, reset: bool = False) -> tuple[int, int]:
    """Bytes of a GPU that tensors have now, and had at most; ``reset`` begins the most anew."""
    if slab.device() == device:
        now, most, _ = slab.usage(reset=reset)
        return now, most
    torch.cuda.init()
    # What was asked for: the allocator counts up to 1 MiB more for a block that it doesn't split.
    asked = torch.cuda.memory_stats_as_nested_dict(device)["requested_bytes"]["all"]
    found = asked["current"], asked["peak"]
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return found


def unused(device: torch.device) -> int:
    """Bytes that the allocator has taken from a GPU and no tensor has."""
    if slab.device() == device:
        *_, whole = slab.usage()
        return whole - slab.used()
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


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

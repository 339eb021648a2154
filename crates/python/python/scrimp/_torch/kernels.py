"""The operators that eager PyTorch runs, during capture too.

Capture takes some operators apart by formulas written in Python, whose results differ from the eager
kernels' in the last bits, or, for dropout between recurrent layers, by more. While a model is captured
those formulas are set aside; PyTorch then takes the same way as in eager mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

FORMULAS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
PREFIXES = ("upsample_", "_upsample_")
NAMES = ("hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward")


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Set the formulas aside, and put them back."""
    saved: list[tuple[Any, dict[Any, Any]]] = []
    try:
        for operator in _taken_apart():
            mine = {key: operator.py_kernels.pop(key) for key in FORMULAS if key in operator.py_kernels}
            operator._dispatch_cache.clear()
            saved.append((operator, mine))
        operator = torch.ops.aten.dropout.default
        saved.append((operator, {key: operator.py_kernels[key] for key in FORMULAS}))
        operator.py_kernels.update({key: _dropout for key in FORMULAS})
        operator._dispatch_cache.clear()
        yield
    finally:
        for operator, mine in saved:
            operator.py_kernels.update(mine)
            operator._dispatch_cache.clear()


def _taken_apart() -> Iterator[Any]:
    names = [name for name in dir(torch.ops.aten) if name.startswith(PREFIXES) or name in NAMES]
    for name in names:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            if any(key in operator.py_kernels for key in FORMULAS):
                yield operator


def _dropout(input: Tensor, p: float, train: bool | None) -> Tensor:
    """Dropout with the bits of the eager kernel, and a mask of bytes where that gives the same."""
    if not train or p == 0 or input.numel() == 0:
        return input.clone() if train is None else input
    if p == 1:
        return input * torch.zeros_like(input)
    if input.device.type == "cuda" or _scales_alike(p, input.dtype):
        return torch.ops.aten.native_dropout.default(input, p, True)[0]
    return input * torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)


def _scales_alike(p: float, dtype: torch.dtype) -> bool:
    """Whether scaling by 1/(1-p), and by a number of this type divided by 1-p, are the same."""
    with _disable_current_modes(), unset_fake_temporarily():
        probe = torch.linspace(0.1, 3.0, 64, dtype=dtype)
        eager = probe * torch.ones_like(probe).div_(1 - p)
        return torch.equal(eager, probe.mul(torch.ones_like(probe, dtype=torch.bool)).mul_(1 / (1 - p)))

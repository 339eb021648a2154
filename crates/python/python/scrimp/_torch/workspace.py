"""Rules for what operators need beside what they read and write: above what is true on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from scrimp._torch.graph import tensors_in

BLOCK = 16
"""oneDNN lays channels out in blocks of this many."""
COPIES_ALL = {
    "convolution",
    "convolution_backward",
    "mkldnn_rnn_layer_backward",
    "recurrent_layer",
    "upsample_bilinear2d",
    "upsample_bilinear2d_backward",
}
"""Operators that may copy everything they read and write to another layout."""
COPIES_LARGEST = {
    "native_batch_norm_backward",
    "native_dropout",
    "native_dropout_backward",
    "_safe_softmax",
    "bmm",
    "cumsum",
}
"""Operators whose scratch is at most as large as the largest they read or write."""
READS_IN_ORDER = {
    *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
    *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
    *("nll_loss2d_forward", "nll_loss2d_backward"),
}
"""Operators that copy what isn't contiguous before they read it."""
SMALL_SCRATCH = 1 << 14
SMALL_PART = 64
"""What is allowed for an operator without a rule: these bytes, and this part of its largest tensor."""
LARGEST_KERNEL = 11


def workspace_of(node: Node) -> int:
    """What a captured operator needs."""

    def value(argument: Any) -> Any:
        return argument.meta.get("val") if isinstance(argument, Node) else argument

    args = map_aggregate(node.args, value)
    return workspace(node.target, args, map_aggregate(dict(node.kwargs), value), node.meta.get("val"))


def workspace(operator: Any, args: Any, kwargs: Any, result: Any) -> int:
    """What an operator needs with these arguments, for this result."""
    packet = getattr(operator, "overloadpacket", operator)
    name = getattr(packet, "__name__", "")
    read = list({id(tensor): tensor for tensor in tensors_in((args, kwargs))}.values())
    tensors = [*tensors_in(result), *read]
    sizes = [_in_blocks(tensor) for tensor in tensors]
    # In lower precision, operators of the CPU often work on copies in float32.
    shorter = [tensor for tensor in tensors if tensor.dtype in (torch.bfloat16, torch.float16)]
    scratch = SMALL_SCRATCH + sum(4 * tensor.numel() for tensor in shorter)
    if name in READS_IN_ORDER:
        scratch += sum(t.numel() * t.element_size() for t in read if not t.is_contiguous())
    if name in COPIES_ALL:
        again = _weights_again(operator, args, tensors) if name.startswith("convolution") else 0
        return scratch + sum(sizes) + again
    largest = max(sizes, default=0)
    return scratch + (largest if name in COPIES_LARGEST else largest // SMALL_PART)


def _weights_again(operator: Any, args: Any, tensors: Sequence[torch.Tensor]) -> int:
    """A second copy of a convolution's weights where channels are innermost; gradients pad groups."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return 0
    backward = operator is torch.ops.aten.convolution_backward.default
    weight, groups = args[1 + backward], args[8 + backward]
    size = int(weight.numel() * weight.element_size())
    if not backward or size == 0:
        return size
    rows, channels = weight.shape[0] // groups, weight.shape[1]
    return size // (rows * channels) * (-(-rows // BLOCK) * BLOCK) * (-(-channels // BLOCK) * BLOCK)


def _in_blocks(tensor: torch.Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    if tensor.dim() < 3 or tensor.numel() == 0:
        return size
    rows, channels, *places = tensor.shape
    # Of weights, which have few places, both the first dimensions are channels.
    blocks = -(-rows // BLOCK) * BLOCK if max(places) <= LARGEST_KERNEL else rows
    return size // (rows * channels) * blocks * (-(-channels // BLOCK) * BLOCK)

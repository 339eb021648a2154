"""What is different on a GPU: what libraries keep, and kernels whose sums depend on the order of threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch.fx import Node

from scrimp._torch.graph import Task, tensors_in
from scrimp._torch.memory import in_use
from scrimp._torch.modules import module_of

ATOMIC = {
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "_ctc_loss_backward",
    "_embedding_bag_dense_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
    "_upsample_bicubic2d_aa_backward",
    "_upsample_bilinear2d_aa_backward",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
    "avg_pool3d_backward",
    "bincount",
    "cumsum",
    "embedding_dense_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "histc",
    "index_add",
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "nll_loss2d_forward",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "replication_pad1d_backward",
    "replication_pad2d_backward",
    "replication_pad3d_backward",
    "scatter_add",
    "scatter_reduce",
    "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward",
    "upsample_linear1d_backward",
    "upsample_trilinear3d_backward",
}
"""What torch.use_deterministic_algorithms makes deterministic, or refuses, on CUDA."""
ACCUMULATING = {"index_put", "_unsafe_index_put", "put"}
"""Those that are among them if they accumulate."""
CHOSEN = {"convolution_backward", "_cudnn_rnn_backward"}
"""Those for which cuDNN may choose such a kernel, unless torch.backends.cudnn.deterministic is set."""
SHOWN = 3


def is_unsettled(node: Node) -> bool:
    """Whether running it twice may give other last bits."""
    if settled():
        return False
    values = [t for other in [node, *node.all_input_nodes] for t in tensors_in(other.meta.get("val"))]
    if not any(tensor.device.type == "cuda" for tensor in values):
        return False
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    accumulates = any(given is True for given in [*node.args, *node.kwargs.values()])
    chosen = name in CHOSEN and not torch.backends.cudnn.deterministic
    return chosen or name in ATOMIC or (name in ACCUMULATING and accumulates)


def settled() -> bool:
    """Whether every kernel must be deterministic; where PyTorch only warns, others run all the same."""
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled() and not only_warns


def unsettled(tasks: Iterable[Task]) -> str:
    """Name the operators for which even eager PyTorch doesn't give the same bits twice, if there are any."""
    found = [task.node for task in tasks if is_unsettled(task.node)]
    if not found:
        return ""
    places = [f"{node.target} in {module_of(node) or 'the model'}" for node in found]
    named = list(dict.fromkeys(places))
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return (
        "these kernels may add with atomics, so that even eager's bits vary: "
        f"{', '.join(named[:SHOWN])}{more}; "
        "torch.use_deterministic_algorithms(True) settles them. None of them runs again"
    )


def choices() -> str:
    """What decides which kernels run, beside the GPU."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    return (
        f"cudnn {cudnn.version()} {cudnn.enabled} {cudnn.deterministic} {cudnn.allow_tf32} "
        f"{torch.get_float32_matmul_precision()} {products.allow_bf16_reduced_precision_reduction} "
        f"{settled()}"
    )


def warn_of_choices(device: torch.device) -> None:
    """Say that cuDNN's choices may differ between a plan's measurements, its steps and eager's."""
    if device.type == "cuda" and torch.backends.cudnn.benchmark:
        warnings.warn(
            "torch.backends.cudnn.benchmark is on: cuDNN chooses kernels by timing them, so a planned step "
            "may get others than were measured, with another peak and other last bits; turn it off",
            stacklevel=2,
        )


def kept_by_libraries(device: torch.device) -> int:
    """Bytes that cuBLAS keeps from its first products on; they are taken now, if they weren't yet."""
    if device.type != "cuda":
        return 0
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    torch.cuda.synchronize(device)
    if clear is not None:
        clear()
    before, _ = in_use(device)
    with torch.no_grad(), torch.autocast("cuda", enabled=False):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.zeros(64, 64, dtype=dtype, device=device)
            y = torch.addmm(x[0], x, x) + torch.bmm(x[None], x[None])
            del x, y
    torch.cuda.synchronize(device)
    after, _ = in_use(device)
    return max(0, after - before)

"""PyTorch's side of `steps.py`: operators by groups, named as in `crates/run/examples/operators.rs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
Cases = Iterator[tuple[str, Callable[[], Any]]]


def convolution(name: str, kernel: int, x: list[int], out: int, stride: int = 1, groups: int = 1) -> Cases:
    """A convolution and its gradients."""
    pad, image = kernel // 2, torch.rand(x)
    weight = torch.rand(out, x[1] // groups, kernel, kernel)
    dy = torch.rand_like(F.conv2d(image, weight, None, stride, pad, 1, groups))

    def gradient(which: int) -> Any:
        mask = [i == which for i in range(3)]
        geometry = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)
        return aten.convolution_backward(dy, image, weight, None, *geometry, mask)

    yield f"{name} forward", lambda: F.conv2d(image, weight, None, stride, pad, 1, groups)
    yield f"{name} input gradient", lambda: gradient(0)
    yield f"{name} weight gradient", lambda: gradient(1)


def transposed(name: str) -> Cases:
    """A transposed convolution and its gradients."""
    x, weight = torch.rand(8, 240, 32, 32), torch.rand(240, 120, 2, 2)
    dy = torch.rand_like(F.conv_transpose2d(x, weight, stride=2))

    def gradient(which: int) -> Any:
        mask = [i == which for i in range(3)]
        geometry = ([2, 2], [0, 0], [1, 1], True, [0, 0], 1)
        return aten.convolution_backward(dy, x, weight, None, *geometry, mask)

    yield f"{name} forward", lambda: F.conv_transpose2d(x, weight, stride=2)
    yield f"{name} input gradient", lambda: gradient(0)
    yield f"{name} weight gradient", lambda: gradient(1)


def normalization(name: str, shape: list[int], instance: bool) -> Cases:
    """Batch or instance normalization and all its gradients."""
    if instance:
        # As PyTorch itself does it: a batch of one with all samples' channels.
        shape = [1, shape[0] * shape[1], *shape[2:]]
    x, dy = torch.rand(shape), torch.rand(shape)
    scale, shift = torch.rand(shape[1]), torch.rand(shape[1])
    _, mean, inverse = aten.native_batch_norm(x, scale, shift, None, None, True, 0.1, 1e-5)
    yield (
        f"{name} forward",
        lambda: aten.native_batch_norm(x, scale, shift, None, None, True, 0.1, 1e-5),
    )
    yield (
        f"{name} gradients",
        lambda: aten.native_batch_norm_backward(
            dy, x, scale, None, None, mean, inverse, True, 1e-5, [True] * 3
        ),
    )


def layer_normalization(name: str) -> Cases:
    """Layer normalization and its gradients."""
    x, dy, scale, shift = torch.rand(2048, 384), torch.rand(2048, 384), torch.rand(384), torch.rand(384)
    _, mean, inverse = aten.native_layer_norm(x, [384], scale, shift, 1e-5)
    yield f"{name} forward", lambda: aten.native_layer_norm(x, [384], scale, shift, 1e-5)
    yield (
        f"{name} gradients",
        lambda: aten.native_layer_norm_backward(dy, x, [384], mean, inverse, scale, shift, [True] * 3),
    )


def pooling(name: str, kernel: int, shape: list[int], pad: int) -> Cases:
    """Max pooling by steps of 2 and its gradient."""
    x, geometry = torch.rand(shape), ([kernel] * 2, [2, 2], [pad] * 2, [1, 1], False)
    y, places = aten.max_pool2d_with_indices(x, *geometry)
    yield f"{name} forward", lambda: aten.max_pool2d_with_indices(x, *geometry)
    yield (
        f"{name} gradient",
        lambda: aten.max_pool2d_with_indices_backward(y, x, *geometry, places),
    )


def average_pooling(name: str) -> Cases:
    """Average pooling and its gradient."""
    x, dy = torch.rand(8, 256, 28, 28), torch.rand(8, 256, 14, 14)
    geometry = ([2, 2], [2, 2], [0, 0], False, True, None)
    yield f"{name} forward", lambda: aten.avg_pool2d(x, *geometry)
    yield f"{name} gradient", lambda: aten.avg_pool2d_backward(dy, x, *geometry)


def gelu(name: str, approximate: str) -> Cases:
    """Gelu and its gradient."""
    x, dy = torch.rand(2048, 1536), torch.rand(2048, 1536)
    yield f"{name} forward", lambda: F.gelu(x, approximate=approximate)
    yield f"{name} gradient", lambda: aten.gelu_backward(dy, x, approximate=approximate)


def convolutions() -> Cases:
    """Ordinary convolutions."""
    yield from convolution("convolution 3×3, 64 channels of 56×56", 3, [8, 64, 56, 56], 64)
    yield from convolution("convolution 3×3, 256 channels of 14×14", 3, [8, 256, 14, 14], 256)
    yield from convolution(
        "convolution 3×3 by steps of 2, 128 channels of 56×56", 3, [8, 128, 56, 56], 128, 2
    )
    yield from convolution("convolution 1×1, 256 to 64 channels of 56×56", 1, [8, 256, 56, 56], 64)
    yield from convolution("convolution 1×1, 256 to 1024 channels of 14×14", 1, [8, 256, 14, 14], 1024)
    yield from convolution("convolution 7×7 of an image", 7, [8, 3, 224, 224], 64, 2)


def other_convolutions() -> Cases:
    """Depthwise and transposed ones."""
    yield from convolution("depthwise 3×3, 256 channels of 28×28", 3, [8, 256, 28, 28], 256, groups=256)
    yield from transposed("transposed convolution 2×2, 240 to 120 channels")


def normalizations() -> Cases:
    """Batch, instance and layer normalization."""
    yield from normalization("batch normalization, 64 channels of 56×56", [8, 64, 56, 56], False)
    yield from normalization("batch normalization, 512 channels of 14×14", [8, 512, 14, 14], False)
    yield from normalization("instance normalization, 120 channels of 64×64", [8, 120, 64, 64], True)
    yield from layer_normalization("layer normalization, 2048 rows of 384")


def poolings() -> Cases:
    """Maxima and means of windows."""
    yield from pooling("max pooling 3×3 by steps of 2, 64 channels of 112×112", 3, [8, 64, 112, 112], 1)
    yield from pooling("max pooling 2×2, 64 channels of 224×224", 2, [4, 64, 224, 224], 0)
    yield from average_pooling("average pooling 2×2, 256 channels of 28×28")


def products() -> Cases:
    """Products of matrices."""
    a, b, c = torch.rand(1024, 1024), torch.rand(1024, 1024), torch.rand(2048, 384)
    weight, bias, wide = torch.rand(384, 1536), torch.rand(1536), torch.rand(2048, 1536)
    yield "product 1024×1024×1024", lambda: a @ b
    yield "linear 2048×384×1536 with bias", lambda: torch.addmm(bias, c, weight)
    yield "linear 2048×384×1536 weight gradient", lambda: c.T @ wide
    q, k = torch.rand(8, 6, 256, 64), torch.rand(8, 6, 256, 64)
    yield "attention scores, 48 of 256×64×256", lambda: q @ k.transpose(2, 3)


def elementwise() -> Cases:
    """Functions of single elements."""
    yield from gelu("gelu, 3.1 million", "none")
    yield from gelu("gelu by tanh, 3.1 million", "tanh")
    x, dy = torch.rand(8, 64, 112, 112), torch.rand(8, 64, 112, 112)
    yield "relu, 6.4 million forward", lambda: torch.relu(x)
    yield "relu, 6.4 million gradient", lambda: aten.threshold_backward(dy, x, 0)
    yield "sum of two, 6.4 million", lambda: x + dy


def losses() -> Cases:
    """Softmax and cross-entropy."""
    scores, weights = torch.rand(12288, 256), torch.softmax(torch.rand(12288, 256), 1)
    yield "softmax, 12288 rows of 256 forward", lambda: torch.softmax(scores, 1)
    yield (
        "softmax, 12288 rows of 256 gradient",
        lambda: aten._softmax_backward_data(scores, weights, 1, torch.float32),
    )
    logits, labels = torch.rand(2048, 8192), torch.randint(0, 2, (2048,))
    logs, one = torch.log_softmax(logits, 1), torch.tensor(1.0)
    total = torch.tensor(2048.0)

    def loss_gradient() -> Any:
        d = aten.nll_loss_backward(one, logs, labels, None, 1, -100, total)
        return aten._log_softmax_backward_data(d, logs, 1, torch.float32)

    yield "cross-entropy, 2048 of 8192 forward", lambda: F.cross_entropy(logits, labels)
    yield "cross-entropy, 2048 of 8192 gradient", loss_gradient


def sums() -> Cases:
    """Sums, means, and the update of parameters."""
    maps, image, wide = torch.rand(8, 2048, 7, 7), torch.rand(8, 64, 56, 56), torch.rand(2048, 1536)
    yield "mean of maps, 2048 of 7×7", lambda: maps.mean((2, 3))
    yield "sum per channel, 64 of 56×56", lambda: image.sum((0, 2, 3))
    yield "sum of 2048 rows of 1536", lambda: wide.sum(0)
    parameter, gradient = torch.rand(4_194_304), torch.rand(4_194_304)
    yield "gradient descent, 4.2 million", lambda: parameter.add_(gradient, alpha=-1e-3)


GROUPS: dict[str, Callable[[], Cases]] = {
    "convolutions": convolutions,
    "other-convolutions": other_convolutions,
    "normalizations": normalizations,
    "poolings": poolings,
    "elementwise": elementwise,
    "products": products,
    "losses": losses,
    "sums": sums,
}

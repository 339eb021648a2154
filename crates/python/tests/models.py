"""Small models of the kinds that differ in what they ask of capture and planning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Convolutions with batch norm, in-place activations, dropout and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4))
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(self.dropout(x))), inplace=True)
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, width, 3, padding=1)
        self.b = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.c = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.d = nn.Conv2d(4 * width, 2 * width, 3, padding=1)
        self.e = nn.Conv2d(3 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.silu(self.a(x))
        b = F.silu(self.b(F.max_pool2d(a, 2)))
        c = F.silu(self.c(F.max_pool2d(b, 2)))
        d = F.silu(self.d(torch.cat([self.up(c), b], 1)))
        wide = F.interpolate(d, scale_factor=2.0, mode="bilinear")
        return self.out(F.silu(self.e(torch.cat([wide, a], 1))))


class Block(nn.Module):
    """Attention and a wide layer, with dropout everywhere."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        split = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        rate = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(n, t, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """A small language model whose head is its embedding."""

    def __init__(self, layers: int = 3, width: int = 32, words: int = 50, length: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Recurrent(nn.Module):
    """A recurrent net over letters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


def token_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean over all places."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


Case = tuple[Callable[[], nn.Module], tuple[Any, ...], Callable[..., Tensor]]


def resnet18() -> nn.Module:
    """The published network, with few classes."""
    from torchvision.models import resnet18 as published

    model: nn.Module = published(num_classes=10)
    return model


def cases() -> dict[str, Case]:
    """Each model with a batch and its loss."""
    draw = torch.Generator().manual_seed(0)

    def images(count: int, size: int) -> Tensor:
        return torch.randn(count, 3, size, size, generator=draw)

    def labels(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=draw)

    return {
        "convnet": (ConvNet, (images(8, 16), labels(10, 8)), F.cross_entropy),
        "unet": (UNet, (images(4, 32), labels(4, 4, 32, 32)), F.cross_entropy),
        "gpt": (Gpt, (labels(50, 6, 24), labels(50, 6, 24)), token_loss),
        "lstm": (Recurrent, (labels(20, 8, 12), labels(20, 8, 12)), token_loss),
        "resnet18": (resnet18, (images(8, 64), labels(10, 8)), F.cross_entropy),
    }


def skip_unless_eager_can(run: Callable[[], object]) -> None:
    """PyTorch has no LSTM under autocast to bfloat16 on processors without AVX-512."""
    try:
        run()
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("eager PyTorch has no such kernel for this processor")

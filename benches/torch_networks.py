"""PyTorch's side of `steps.py`: networks, layer for layer, data, and blocks to checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn


def mobilenet() -> nn.Module:
    """The first MobileNet, which torchvision doesn't have."""

    def unit(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))

    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    blocks += [(512, 1)] * 5 + [(1024, 2), (1024, 1)]
    layers, channels = [unit(3, 32, 3, 2, 1)], 32
    for outputs, stride in blocks:
        separable = unit(channels, channels, 3, stride, channels), unit(channels, outputs, 1, 1, 1)
        layers.append(nn.Sequential(*separable))
        channels = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers, *head)


class UNet(nn.Module):
    """XEngine's: scrimp's `unet`, layer for layer."""

    def __init__(self, width: int = 120, classes: int = 2) -> None:
        """Make the layers."""
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> nn.Module:
            layers: list[nn.Module] = []
            for i, s in ((inputs, stride), (outputs, 1)):
                layers += [nn.Conv2d(i, outputs, 3, s, 1), nn.InstanceNorm2d(outputs, affine=True)]
                layers.append(nn.LeakyReLU(0.01, inplace=True))
            return nn.Sequential(*layers)

        def up(inputs: int, outputs: int) -> nn.Module:
            return nn.ConvTranspose2d(inputs, outputs, 2, 2)

        w = width
        blocks = [(3, w, 2), (w, 2 * w, 2), (2 * w, 4 * w, 2), (4 * w, 2 * w, 1), (2 * w, w, 1)]
        self.blocks = nn.ModuleList(block(*sizes) for sizes in blocks)
        pairs = [(4 * width, 2 * width), (2 * width, width), (width, width // 2)]
        self.ups = nn.ModuleList(up(i, o) for i, o in pairs)
        self.out = nn.Conv2d(width // 2 + 3, classes, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        first = self.blocks[0](x)
        second = self.blocks[1](first)
        y = self.ups[0](self.blocks[2](second))
        y = self.ups[1](self.blocks[3](torch.cat([y, second], 1)))
        y = self.ups[2](self.blocks[4](torch.cat([y, first], 1)))
        return self.out(torch.cat([y, x], 1))


class Block(nn.Module):
    """Attention and a wide layer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        n, t, width = x.shape
        split = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (y.reshape(n, t, self.heads, -1).transpose(1, 2) for y in split)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(n, t, width)), self.dropout)
        y = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout)


class Transformer(nn.Module):
    """scrimp's `transformer`."""

    def __init__(self, layers: int = 6, width: int = 384, dropout: float = 0.1) -> None:
        """Make the layers."""
        super().__init__()
        self.dropout = dropout
        self.words = nn.Embedding(8192, width)
        self.places = nn.Parameter(torch.zeros(256, width))
        self.blocks = nn.ModuleList(Block(width, 6, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        y = F.dropout(self.words(x) + self.places, self.dropout)
        for block in self.blocks:
            y = block(y)
        return (self.norm(y) @ self.words.weight.T).flatten(0, 1)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": torchvision.models.resnet50,
    "vgg16": torchvision.models.vgg16,
    "mobilenet": mobilenet,
    "unet": UNet,
    "transformer": Transformer,
}


def data(network: str, batch: int) -> tuple[Tensor, Tensor]:
    """A batch and its labels."""
    if network == "unet":
        return torch.randn(batch, 3, 128, 128), torch.randint(0, 2, (batch, 128, 128))
    if network == "transformer":
        return torch.randint(0, 8192, (batch, 256)), torch.randint(0, 8192, (batch * 256,))
    return torch.randn(batch, 3, 224, 224), torch.arange(batch)


def checkpointed_blocks(network: str, model: Any) -> list[nn.Module]:
    """The blocks that people would checkpoint."""
    if network == "resnet50":
        stages = (model.layer1, model.layer2, model.layer3, model.layer4)
        return [block for stage in stages for block in stage]
    if network == "vgg16":
        # Each stage up to its pooling, as slices of one sequence.
        stages, stage = [], []
        for layer in model.features:
            stage.append(layer)
            if isinstance(layer, nn.MaxPool2d):
                stages.append(nn.Sequential(*stage))
                stage = []
        model.features = nn.Sequential(*stages)
        return stages
    if network == "mobilenet":
        return list(model[1:14])
    return list(model.blocks)

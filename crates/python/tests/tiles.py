"""Models that run by tiles, and how far results are from eager's."""

from __future__ import annotations

import copy
from typing import Any

import scrimp.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OPTIONS: dict[str, Any] = {"costs": "estimate", "time_limit": 1.0, "progress": False}
CPU = torch.device("cpu")
WORDS, LENGTH = 480, 23


class Block(nn.Module):
    """Attention, and a wide layer of one of two kinds."""

    def __init__(self, width: int, *, gated: bool, drop: float) -> None:
        super().__init__()
        self.gated, self.drop = gated, drop
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.RMSNorm(width) if gated else nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gate = nn.Linear(width, 4 * width, bias=False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])
        h = self.norm2(x)
        wide = F.gelu(self.up(h)) if self.gate is None else F.silu(self.gate(h)) * self.up(h)
        return x + self.down(F.dropout(wide, self.drop, self.training))


class Words(nn.Module):
    """A language model that gives its loss."""

    def __init__(
        self, *, width: int = 16, gated: bool = False, tied: bool = False, drop: float = 0.0, **loss: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, gated=gated, drop=drop) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self.loss = loss
        self.weight: Tensor | None
        self.register_buffer("weight", torch.rand(WORDS) if loss.pop("weighted", False) else None)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        scores = self.head(self.norm(h)).view(-1, WORDS)
        return F.cross_entropy(scores, y.view(-1), weight=self.weight, **self.loss)


def batch(samples: int = 3, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Words and labels, of which some samples have none for a stretch as long as a tile."""
    torch.manual_seed(1)
    x = torch.randint(WORDS, (samples, length))
    y = torch.randint(WORDS, (samples, length))
    y[0, :15] = -100
    return x, y


def eager(model: nn.Module, *args: Any, **named: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients without a plan."""
    plain = copy.deepcopy(model)
    torch.manual_seed(2)
    loss = plain(*args, **named)
    loss.backward()
    return loss.detach(), {k: p.grad for k, p in plain.named_parameters() if p.grad is not None}


def off_by(model: nn.Module, loss: Tensor, wanted: tuple[Tensor, dict[str, Tensor]]) -> float:
    """The largest difference of the loss or a gradient, over its largest element."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == wanted[1].keys()
    pairs = [(loss, wanted[0]), *((found[name], wanted[1][name]) for name in found)]
    return max(float((mine - theirs).abs().max() / theirs.abs().max()) for mine, theirs in pairs)


def tiled(
    model: nn.Module, given: tuple[Tensor, ...], tile: int | str, budget: Any = "100%", **more: Any
) -> Any:
    """A planned step with tiles."""
    return scrimp.torch.fit(model, None, given, budget, tile=tile, **{**OPTIONS, **more})

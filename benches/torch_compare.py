"""Peak and time of one training step: scrimp, eager, checkpointing per block, the compiler's knob.

    python benches/torch_compare.py --model gpt --svg gpt.svg

Same model, same batch, same step (loss, gradients), every method's gradients compared with eager's.
Peak is what PyTorch's allocator hands out at most, parameters, buffers and batch included; time is
processor time of the process, relative to eager, the least of some repeats. Where a model has dropout,
compilers draw other random numbers than eager, so their gradients differ and say nothing. Needs
torchvision, timm or transformers for their models; `unet` and `gpt` need nothing else. `--inductor` adds
the compiler's own code with and without our partitioner, which takes minutes to compile.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import scrimp
import scrimp.torch
import torch
import torch.nn.functional as F
from scrimp._torch.memory import measured, storage_bytes
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], Tensor]
MIB = 1 << 20
CPU = torch.device("cpu")


@dataclass
class Row:
    """One point."""

    method: str
    peak: int
    seconds: float


class Block(nn.Module):
    """Attention and a wide layer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        n, t, width = x.shape
        split = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(n, t, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """Six layers of width 256 with dropout."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.words = nn.Embedding(4096, 256)
        self.places = nn.Parameter(torch.zeros(256, 256))
        self.blocks = nn.ModuleList(Block(256, 4, 0.1) for _ in range(6))
        self.head = nn.Linear(256, 4096, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        h = self.words(x) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Double(nn.Sequential):
    """Two convolutions with batch norm."""

    def __init__(self, a: int, b: int) -> None:
        """Make the layers."""
        layers: list[nn.Module] = []
        for i, o in ((a, b), (b, b)):
            layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class UNet(nn.Module):
    """Four levels, 24 to 192 channels."""

    def __init__(self, width: int = 24) -> None:
        """Make the layers."""
        super().__init__()
        widths = [width << i for i in range(4)]
        below = list(pairwise(widths))
        self.down = nn.ModuleList(Double(a, b) for a, b in [(3, width), *below])
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in below)
        self.join = nn.ModuleList(Double(2 * a, a) for a, _ in below)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        skips: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for i in reversed(range(len(self.up))):
            x = self.join[i](torch.cat([self.up[i](x), skips[i]], 1))
        return self.out(x)


def token_loss(output: Any, target: Tensor) -> Tensor:
    """Mean over all places."""
    return F.cross_entropy(getattr(output, "logits", output).flatten(0, 1), target.flatten())


def make(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, Tensor], Any, list[nn.Module]]:
    """Give a model, a batch, a loss, and the blocks that people would checkpoint."""
    model: Any
    images = torch.randn(batch, 3, 224, 224)
    labels = torch.randint(0, 1000, (batch,))
    words = torch.randint(0, 4096, (batch, 256))
    if name in ("resnet18", "resnet50"):
        import torchvision  # type: ignore[import-untyped]

        model = getattr(torchvision.models, name)()
        stages = (model.layer1, model.layer2, model.layer3, model.layer4)
        return model, (images, labels), F.cross_entropy, [b for stage in stages for b in stage]
    if name == "vit":
        import timm

        model = timm.create_model("vit_small_patch16_224", drop_rate=0.1, proj_drop_rate=0.1)
        return model, (images, labels), F.cross_entropy, list(model.blocks)
    if name == "gpt2":
        import transformers

        config = transformers.GPT2Config(n_layer=6, vocab_size=8192, use_cache=False)
        model = transformers.GPT2LMHeadModel(config)
        return model, (words, words.roll(-1, 1)), token_loss, list(model.transformer.h)
    if name == "gpt":
        model = Gpt()
        return model, (words, words.roll(-1, 1)), token_loss, list(model.blocks)
    model = UNet()
    target = torch.randint(0, 2, (batch, 128, 128))
    small = images[..., :128, :128].contiguous()
    return model, (small, target), F.cross_entropy, [*model.down, *model.join]


class Bench:
    """A model, and what was measured of it; the first row is eager."""

    def __init__(self, name: str, batch: int, repeats: int) -> None:
        """Make the model."""
        torch.manual_seed(0)
        self.model, self.batch, self.loss_fn, self.blocks = make(name, batch)
        self.repeats = repeats
        self.start = copy.deepcopy(self.model.state_dict())
        self.reference: list[Tensor] = []
        self.rows: list[Row] = []

    def autograd_step(self, run: Callable[..., Any]) -> Tensor:
        """Forward and backward in the usual way."""
        loss = self.loss_fn(run(self.batch[0]), self.batch[1])
        loss.backward()
        return loss.detach()

    def add(self, method: str, setting: str, step: Step) -> None:
        """Measure a step: warm up, check gradients, peak, then time."""
        self.run(step)
        self.model.load_state_dict(self.start)
        self.clear()
        _, peak, _ = measured(partial(self.run, step), CPU)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        difference = self.difference(gradients)
        seconds = min(self.timed(step) for _ in range(self.repeats))
        held = storage_bytes([*self.model.parameters(), *self.model.buffers(), *self.batch])
        self.rows.append(Row(method, peak + held, seconds))
        relative = seconds / self.rows[0].seconds
        bits = "same bits" if difference == 0 else f"{difference:.0e} off"
        print(f"| {method} | {setting} | {(peak + held) / MIB:.1f} | {relative:.3f} | {bits} |", flush=True)

    def difference(self, gradients: list[Tensor]) -> float:
        """Give the largest difference from eager, relative to the gradient's largest entry."""
        if not self.reference:
            self.reference = [gradient.clone() for gradient in gradients]
        pairs = zip(gradients, self.reference, strict=True)
        return max(float((a - b).abs().max() / (b.abs().max() + 1e-30)) for a, b in pairs)

    def run(self, step: Step) -> Tensor:
        """One step from the same random state, without gradients there."""
        self.clear()
        torch.manual_seed(1)
        return step()

    def clear(self) -> None:
        """Drop the gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def timed(self, step: Step) -> float:
        """Give processor seconds of one step."""
        gc.collect()
        start = time.process_time()
        self.run(step)
        return time.process_time() - start


@contextlib.contextmanager
def checkpointed(blocks: list[nn.Module]) -> Iterator[None]:
    """Checkpoint each block."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def by_knob(bench: Bench, backend: str, knobs: list[float]) -> None:
    """The compiler's part of activations to keep."""
    for knob in knobs:
        torch._dynamo.reset()
        with torch._functorch.config.patch(activation_memory_budget=knob):
            compiled = torch.compile(bench.model, backend=backend, dynamic=False)
            step = partial(bench.autograd_step, compiled)
            bench.add(f"activation_memory_budget, {backend}", f"{knob}", step)


def by_our_partition(bench: Bench, budgets: list[str], limit: float) -> None:
    """The compiler's code with our partition."""
    for budget in budgets:
        torch._dynamo.reset()
        mine = scrimp.torch.partitioner(budget, time_limit=limit)
        with torch._inductor.config.patch(custom_partitioner_fn=mine):
            compiled = torch.compile(bench.model, dynamic=False)
            bench.add("inductor, scrimp's partition", budget, partial(bench.autograd_step, compiled))


def by_plan(bench: Bench, budgets: list[str], limit: float) -> None:
    """scrimp.torch.fit."""
    for budget in budgets:
        bench.clear()
        try:
            step = scrimp.torch.fit(bench.model, bench.loss_fn, bench.batch, budget, time_limit=limit)
        except scrimp.Infeasible as error:
            print(f"| scrimp | {budget}: infeasible | least found {error.least_found / MIB:.1f} | | |")
            continue
        setting = f"{budget}: {step.plan.budget / MIB:.1f} MiB, predicted {1 + step.plan.overhead:.3f}"
        bench.add("scrimp", setting, partial(step, *bench.batch))


COLOURS = ["#222222", "#d1495b", "#edae49", "#00798c", "#66a182", "#8d6a9f"]


def draw(rows: list[Row], title: str) -> str:
    """Peak against time as a picture."""
    base = rows[0].seconds
    wide, high, edge = 640, 400, 60
    right = max(row.peak for row in rows) / MIB * 1.05
    top = max(row.seconds for row in rows) / base * 1.05
    bottom = min(0.9, min(row.seconds for row in rows) / base)

    def at(x: float, y: float) -> tuple[float, float]:
        up = (y - bottom) / (top - bottom)
        return edge + x / right * (wide - 2 * edge), high - edge - up * (high - 2 * edge)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" '
        f'font-size="12"><rect width="{wide}" height="{high}" fill="white"/>',
        f'<text x="{wide / 2}" y="20" text-anchor="middle" font-size="14">{title}</text>',
        f'<text x="{wide / 2}" y="{high - 15}" text-anchor="middle">peak, MiB</text>',
        f'<text transform="translate(15 {high / 2}) rotate(-90)" text-anchor="middle">time over eager</text>',
    ]
    for k in range(5):
        mark, level = right * k / 4, bottom + (top - bottom) * k / 4
        (x, low), (left, y) = at(mark, bottom), at(0, level)
        parts.append(f'<path d="M{left} {y}H{wide - edge}M{x} {low}V{edge}" stroke="#dddddd" fill="none"/>')
        parts.append(f'<text x="{x}" y="{low + 18}" text-anchor="middle">{mark:.0f}</text>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{level:.2f}</text>')
    for k, method in enumerate(dict.fromkeys(row.method for row in rows)):
        points = sorted((row.peak / MIB, row.seconds / base) for row in rows if row.method == method)
        colour = COLOURS[k % len(COLOURS)]
        places = [at(*point) for point in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="M{path}" stroke="{colour}" fill="none"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places]
        where = f'x="{wide - edge}" y="{40 + 16 * k}" text-anchor="end"'
        parts.append(f'<text {where} fill="{colour}">{method}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Run what was asked for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    names = ["unet", "gpt", "resnet18", "resnet50", "vit", "gpt2"]
    parser.add_argument("--model", choices=names, default="gpt")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--budgets", default="100%,70%,50%,35%,25%,min")
    parser.add_argument("--knobs", default="1.0,0.8,0.5,0.2,0.0", help="empty: leave the knob out")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--svg")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    budgets = given.budgets.split(",")
    knobs = [float(knob) for knob in given.knobs.split(",") if knob]
    bench = Bench(given.model, given.batch, given.repeats)
    print(
        f"{given.model}, batch {given.batch}, torch {torch.__version__}, {torch.get_num_threads()} threads\n"
    )
    print("| method | setting | peak, MiB | time over eager | gradients |\n|---|---|---|---|---|")
    bench.add("eager", "", partial(bench.autograd_step, bench.model))
    with checkpointed(bench.blocks):
        bench.add("checkpoint per block", "", partial(bench.autograd_step, bench.model))
    by_knob(bench, "aot_eager_decomp_partition", knobs)
    by_plan(bench, budgets, given.time_limit)
    if given.inductor:
        by_knob(bench, "inductor", knobs)
        by_our_partition(bench, budgets, given.time_limit)
    if given.svg:
        with open(given.svg, "w", encoding="utf-8") as file:
            file.write(draw(bench.rows, f"{given.model}, batch {given.batch}"))


if __name__ == "__main__":
    main()

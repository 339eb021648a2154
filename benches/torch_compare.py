"""Peak and time of one training step: scrimp, eager, checkpointing per block, the compiler's knob, inductor.

    python benches/torch_compare.py --all --out pictures      # four models, tables on standard output
    python benches/torch_compare.py --model gpt --inductor
    python benches/torch_compare.py --all --sweep             # ten budgets of scrimp each instead
    python benches/torch_compare.py --tiles                   # a loss over many words by tiles
    python benches/torch_compare.py --largest 4GiB            # the longest text within a budget
    python benches/torch_compare.py --largest 1GiB --model vgg16   # the largest image

Same model, same batch, same step (loss, gradients), every method's gradients compared with eager's. Peak
is what PyTorch's allocator hands out at most, parameters, buffers and batch included. Time is processor time
of the process, all methods in turn, the median of some rounds, over eager's median. scrimp gets as budgets
the other methods' peaks, and parts of eager's. Where a model has dropout, compilers draw other random numbers
than eager, so their gradients differ and say nothing. Needs torchvision or timm for their models; `unet` and
`gpt` need nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import scrimp
import scrimp.torch
import torch
import torch.nn.functional as F
from scrimp._torch.memory import storage_bytes
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_models import Subject, token_loss

Step = Callable[[], Tensor]
MIB = 1 << 20
WORDS = 2048
CPU = torch.device("cpu")


@dataclass
class Row:
    """One point."""

    method: str
    setting: str
    step: Step
    peak: int
    difference: float
    times: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.times)


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
        rate = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(n, t, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """Six layers of width 256 with dropout, in attention too; or others."""

    def __init__(
        self, width: int = 256, layers: int = 6, words: int = WORDS, length: int = 256, dropout: float = 0.1
    ) -> None:
        """Make the layers."""
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, 8, dropout) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def states(self, x: Tensor) -> Tensor:
        """What scores are made of."""
        h = self.words(x) + self.places
        for block in self.blocks:
            h = block(h)
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        return self.head(self.states(x))


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


WIDE = {"wide gpt": (256, 4, 512)}
"""Width, layers and length of models with many words."""


SIDE = {"vgg16": 512}
"""Sides of images for networks of convolutions alone."""


def trunk() -> nn.Sequential:
    """VGG-16's convolutions, ReLU and pooling, in five stages."""
    stages, inputs = [], 3
    for count, outputs in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        layers: list[nn.Module] = []
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        stages.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
    return nn.Sequential(*stages)


def spread(output: Tensor, target: Tensor) -> Tensor:
    """A loss for it."""
    return (output - target).square().mean()


def make(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, Tensor], Any, list[nn.Module]]:
    """Give a model, a batch, a loss, and the blocks that people would checkpoint."""
    model: Any
    images = torch.randn(batch, 3, 224, 224)
    labels = torch.randint(0, 1000, (batch,))
    words = torch.randint(0, WORDS, (batch, 256))
    if name in ("resnet18", "resnet50"):
        import torchvision

        model = getattr(torchvision.models, name)()
        stages = (model.layer1, model.layer2, model.layer3, model.layer4)
        return model, (images, labels), F.cross_entropy, [b for stage in stages for b in stage]
    if name == "vit":
        import timm

        model = timm.create_model("vit_small_patch16_224", drop_rate=0.1, proj_drop_rate=0.1)
        return model, (images, labels), F.cross_entropy, list(model.blocks)
    if name == "gpt2":
        import transformers

        config = transformers.GPT2Config(n_layer=6, vocab_size=WORDS, use_cache=False)
        model = transformers.GPT2LMHeadModel(config)
        return model, (words, words.roll(-1, 1)), token_loss, list(model.transformer.h)
    if name == "gpt":
        model = Gpt()
        return model, (words, words.roll(-1, 1)), token_loss, list(model.blocks)
    if name in WIDE:
        width, layers, length = WIDE[name]
        # As many times more words as the model is wide, as small models have.
        model = Gpt(width, layers, 30 * width, length, 0.0)
        words = torch.randint(0, 30 * width, (batch, length))
        return model, (words, words.roll(-1, 1)), token_loss, list(model.blocks)
    if name in SIDE:
        model = trunk()
        return model, (torch.zeros(batch, 3, SIDE[name], SIDE[name]), torch.zeros(())), spread, list(model)
    model = UNet()
    target = torch.randint(0, 2, (batch, 128, 128))
    small = images[..., :128, :128].contiguous()
    return model, (small, target), F.cross_entropy, [*model.down, *model.join]


class Bench(Subject):
    """A model, and what was measured of it; the first row is eager."""

    def __init__(self, name: str, batch: int, device: torch.device = CPU) -> None:
        """Make the model."""
        torch.manual_seed(0)
        torch._dynamo.reset()
        self.name = name
        model, given, loss_fn, self.blocks = make(name, batch)
        super().__init__((model, given, loss_fn), device)
        self.held = storage_bytes(self.tensors())
        self.reference: list[Tensor] = []
        self.rows: list[Row] = []

    def eager(self, run: Callable[..., Any] | None = None) -> Tensor:
        """Forward and backward in the usual way, of the model or of what was made of it."""
        assert self.loss_fn is not None
        loss = self.loss_fn((self.model if run is None else run)(self.batch[0]), self.batch[1])
        loss.backward()
        return loss.detach()

    def checkpointed(self, step: Step | None = None) -> Tensor:
        """The same with each block checkpointed, or another step."""
        for block in self.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        try:
            return (step or self.eager)()
        finally:
            for block in self.blocks:
                del block.forward

    def both(self) -> Tensor:
        """Blocks checkpointed, and that loss."""
        return self.checkpointed(self.chunked)

    def chunked(self) -> Tensor:
        """With PyTorch's own loss by chunks of tokens, of the versions that have it."""
        assert isinstance(self.model, Gpt)
        x, y = self.batch
        options = torch.nn.LinearCrossEntropyOptions()
        states = self.model.states(x).flatten(0, 1)
        loss = F.linear_cross_entropy(states, self.model.head.weight, y.flatten(), options=options)
        loss.backward()
        return loss.detach()

    def add(self, method: str, setting: str, step: Step) -> None:
        """Measure the peak of a step, and compare its gradients; time comes later."""
        started = time.perf_counter()
        self.run(step)
        self.model.load_state_dict(self.start)
        peak = self.peak(step)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.rows.append(Row(method, setting, step, peak, self.difference(gradients)))
        told = f"{method} {setting}: {peak / MIB:.1f} MiB, {time.perf_counter() - started:.0f} s"
        print(told, file=sys.stderr, flush=True)

    def difference(self, gradients: list[Tensor]) -> float:
        """Give the largest difference from eager, relative to the gradient's largest entry."""
        if not self.reference:
            self.reference = [gradient.clone() for gradient in gradients]
        pairs = zip(gradients, self.reference, strict=True)
        return max(float((a - b).abs().max() / (b.abs().max() + 1e-30)) for a, b in pairs)

    def time(self, rounds: int) -> None:
        """Take the seconds of all steps in turn, some rounds."""
        for _ in range(rounds):
            for row in self.rows:
                row.times.append(self.seconds(row.step))

    def table(self) -> str:
        """Give all rows."""
        lines = [
            "| method | setting | peak, MiB | time over eager | gradients |",
            "|---|---|---|---|---|",
        ]
        for row in self.rows:
            bits = "same bits" if row.difference == 0 else f"{row.difference:.0e} off"
            relative = row.seconds / self.rows[0].seconds
            lines.append(f"| {row.method} | {row.setting} | {row.peak / MIB:.1f} | {relative:.3f} | {bits} |")
        return "\n".join(lines)


def compiled(bench: Bench, backend: str, **settings: Any) -> Step:
    """A step through a compiler of its own, with settings of functorch or inductor."""
    from torch._dynamo.backends.registry import lookup_backend

    partition = settings.pop("custom_partitioner_fn", None)
    compiler = lookup_backend(backend)

    def compile_here(graph: Any, inputs: Any) -> Any:
        with (
            torch._functorch.config.patch(**settings),
            torch._inductor.config.patch(custom_partitioner_fn=partition),
        ):
            return compiler(graph, inputs)

    return partial(bench.eager, torch.compile(bench.model, backend=compile_here, dynamic=False))


def rivals(bench: Bench, knobs: list[float]) -> None:
    """Eager, checkpointing, and the knob with PyTorch's own kernels."""
    bench.add("eager", "", bench.eager)
    bench.add("checkpoint per block", "", bench.checkpointed)
    for knob in knobs:
        step = compiled(bench, "aot_eager_decomp_partition", activation_memory_budget=knob)
        bench.add("`activation_memory_budget`", f"{knob}", step)


def by_inductor(bench: Bench, knobs: list[float], budgets: list[str], limit: float) -> None:
    """The compiler's code with its own partition and with ours."""
    bench.add("inductor", "", compiled(bench, "inductor"))
    for knob in knobs:
        step = compiled(bench, "inductor", activation_memory_budget=knob)
        bench.add("inductor, `activation_memory_budget`", f"{knob}", step)
    for budget in budgets:
        mine = scrimp.torch.partitioner(budget, time_limit=limit)
        bench.add(
            "inductor, scrimp's partition", budget, compiled(bench, "inductor", custom_partitioner_fn=mine)
        )


def by_plan(bench: Bench, parts: list[float], limit: float) -> None:
    """scrimp.torch.sweep, at the others' peaks, at parts of what eager can give up, and at the least."""
    whole = bench.rows[0].peak
    wanted = {row.peak: f"peak of {row.method} {row.setting}".rstrip() for row in reversed(bench.rows)}
    wanted.update({bench.held + int((whole - bench.held) * part): f"{part:.1%}" for part in parts})
    bench.clear()
    steps = scrimp.torch.sweep(bench.model, bench.loss_fn, bench.batch, list(wanted), time_limit=limit)
    least = scrimp.torch.fit(bench.model, bench.loss_fn, bench.batch, "min", time_limit=limit)
    for (budget, why), step in [
        *zip(wanted.items(), steps, strict=True),
        ((least.plan.budget, "min"), least),
    ]:
        if isinstance(step, scrimp.torch.Step):
            setting = f"{why}: {budget / MIB:.1f} MiB, predicted {1 + step.plan.overhead:.3f}"
            bench.add("scrimp", setting, partial(step, *bench.batch))
        else:
            print(f"{why}: {step}", file=sys.stderr)


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


@dataclass(frozen=True)
class Case:
    """What is measured of a model by default."""

    batch: int
    parts: tuple[float, ...]
    """Budgets: parts of what eager takes beyond parameters, buffers and batch."""
    inductor: bool


# The first two parts are those that a greedy planner reached; see docs/pytorch.md.
CASES = {
    "resnet50": Case(8, (0.696, 0.485), False),
    "unet": Case(8, (0.671, 0.449), True),
    "vit": Case(4, (0.6, 0.4), False),
    "gpt": Case(8, (0.416, 0.202), True),
    "resnet18": Case(8, (0.7, 0.5), True),
    "gpt2": Case(4, (0.6, 0.4), False),
}


def ten_budgets(name: str, given: argparse.Namespace) -> None:
    """Plan for ten budgets from what keeping everything takes to the least; say whether all is monotone."""
    bench = Bench(name, given.batch or CASES[name].batch)
    bench.add("eager", "", bench.eager)
    bench.clear()
    arguments = (bench.model, bench.loss_fn, bench.batch)
    least = scrimp.torch.fit(*arguments, "min", time_limit=given.time_limit).plan
    budgets = [least.base_peak - (least.base_peak - least.peak) * k // 9 for k in range(10)]
    steps = scrimp.torch.sweep(*arguments, budgets, time_limit=given.time_limit)
    planned = [step for step in steps if isinstance(step, scrimp.torch.Step)]
    for step in planned:
        bench.add("scrimp", "", partial(step, *bench.batch))
    bench.time(given.repeats)
    print(f"\n{name}, batch {given.batch or CASES[name].batch}, ten budgets\n")
    print(
        "| budget, MiB | computed peak | measured peak | predicted time | measured time |\n"
        "|---|---|---|---|---|"
    )
    for step, row in zip(planned, bench.rows[1:], strict=True):
        numbers = [step.plan.budget / MIB, step.peak / MIB, row.peak / MIB]
        times = [1 + step.plan.overhead, row.seconds / bench.rows[0].seconds]
        print("| " + " | ".join([f"{n:.2f}" for n in numbers] + [f"{t:.3f}" for t in times]) + " |")
    peaks = [row.peak for row in bench.rows[1:]]
    costs = [step.plan.cost for step in planned]
    falling = all(a >= b for a, b in pairwise(peaks))
    rising = all(a <= b for a, b in pairwise(costs))
    off = max(abs(step.peak / peak - 1) for step, peak in zip(planned, peaks, strict=True))
    told = f"{len(planned)} of 10 planned; measured peaks fall: {falling}; planned times rise: {rising}"
    print(f"\n{told}; computed and measured peaks differ by at most {off:.2%}", flush=True)


def by_tiles(given: argparse.Namespace) -> None:
    """A GPT with thirty times as many words as it is wide: eager, chunked losses, and tiles."""
    batch = given.batch or 2
    bench = Bench("wide gpt", batch)
    bench.add("eager", "", bench.eager)
    if hasattr(F, "linear_cross_entropy"):
        bench.add("`linear_cross_entropy` with options", "", bench.chunked)
    bench.add("checkpoint per block", "", bench.checkpointed)
    arguments = (bench.model, bench.loss_fn, bench.batch)
    for tile, budget in (("off", "min"), (8, "100%"), (8, "min"), ("auto", "60%"), ("auto", "40%")):
        bench.clear()
        step = scrimp.torch.fit(*arguments, budget, tile=tile, time_limit=given.time_limit)
        told = f"tile={tile!r}, {budget}: {step.peak / MIB:.1f} MiB, predicted {1 + step.plan.overhead:.3f}"
        bench.add("scrimp", told, partial(step, *bench.batch))
    bench.time(given.repeats)
    assert isinstance(bench.model, Gpt)
    words = bench.model.head.out_features
    scores = bench.batch[1].numel() * words * 4 / MIB
    print(f"\n{words} words, batch {batch} of {bench.batch[0].shape[1]}, scores of {scores:.1f} MiB\n")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n\n{bench.table()}\n")


def largest(given: argparse.Namespace) -> None:
    """The longest text, or the largest square image, of one sample within a budget."""
    budget = scrimp._native.parse_budget(given.largest)[2]
    assert budget is not None, "the budget must be in bytes"
    image = given.model == "vgg16"
    start = 256 if image else 1024

    def bench(size: int) -> Bench:
        if image:
            SIDE["vgg16"] = size
            return Bench("vgg16", 1)
        WIDE["wide gpt"] = (*given.shape, size)
        return Bench("wide gpt", 1)

    def measured(step: Callable[[Bench], Tensor]) -> int:
        """Bytes grow with tokens or pixels, so two measurements tell where the third is to be made."""
        power, known = 1 + image, {}
        size = start
        while size not in known:
            one = bench(size)
            known[size] = one.peak(partial(step, one))
            print(f"{size}: {known[size] / MIB:.1f} MiB", file=sys.stderr, flush=True)
            if len(known) == 1:
                size *= 2
                continue
            (low, less), (high, more) = sorted(known.items())[-2:]
            each = (more - less) / (high**power - low**power)
            size = min(2 * high, int((high**power + (budget - more) / each) ** (1 / power)))
        return max(size for size, peak in known.items() if peak <= budget)

    def planned(tile: int | str) -> int:
        low, high = start, 0
        while high == 0 or high - low > low // 32:
            size = 2 * low if high == 0 else (low + high) // 2
            one = bench(size)
            options = {"tile": tile, "costs": "estimate", "time_limit": given.time_limit}
            try:
                scrimp.torch.fit(one.model, one.loss_fn, one.batch, budget, **options)
                low = size
            except scrimp.Infeasible as error:
                high = size
                print(f"{size}: {error.least_found / MIB:.1f} MiB", file=sys.stderr, flush=True)
        return low

    print(f"| method | largest within {given.largest} |\n|---|---|")
    methods: dict[str, Callable[[Bench], Tensor]] = {
        "eager": Bench.eager,
        "checkpoint per block": Bench.checkpointed,
    }
    if hasattr(F, "linear_cross_entropy") and not image:
        methods["`linear_cross_entropy` with options"] = Bench.chunked
        methods["both"] = Bench.both
    for name, step in methods.items():
        print(f"| {name} | {measured(step)} |", flush=True)
    for tile in ("off", *given.counts):
        print(f"| scrimp, tile={tile!r} | {planned(tile)} |", flush=True)


def compare(name: str, given: argparse.Namespace) -> None:
    """Measure a model and print its table."""
    case = CASES[name]
    bench = Bench(name, given.batch or case.batch)
    knobs = [float(knob) for knob in given.knobs.split(",") if knob]
    rivals(bench, knobs)
    parts = [float(part) for part in given.parts.split(",")] if given.parts else list(case.parts)
    by_plan(bench, parts, given.time_limit)
    if given.inductor or (given.all and case.inductor):
        by_inductor(bench, knobs[:1], given.partitions.split(","), given.time_limit)
    bench.time(given.repeats)
    title = f"{name}, batch {given.batch or case.batch}"
    print(f"\n{title}, torch {torch.__version__}, {torch.get_num_threads()} threads\n\n{bench.table()}\n")
    if given.out:
        Path(given.out).mkdir(parents=True, exist_ok=True)
        Path(given.out, f"pytorch-{name}.svg").write_text(draw(bench.rows, title), encoding="utf-8")


def main() -> None:
    """Run what was asked for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--model", choices=[*CASES, *SIDE], default="gpt")
    parser.add_argument("--all", action="store_true", help="resnet50, unet, vit and gpt, one after another")
    parser.add_argument("--sweep", action="store_true", help="ten budgets of scrimp only")
    parser.add_argument("--tiles", action="store_true", help="a loss over many words by tiles")
    parser.add_argument("--largest", metavar="BUDGET", help="the longest text, or image, within a budget")
    parser.add_argument("--counts", type=int, nargs="+", default=(8, 32), help="numbers of tiles for it")
    parser.add_argument("--shape", type=int, nargs=2, default=(512, 4), help="width and layers for it")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--parts", help="budgets: parts of what eager takes beyond what is always there")
    parser.add_argument("--knobs", default="0.5,0.0", help="empty: leave the knob out")
    parser.add_argument("--partitions", default="60%,40%", help="budgets of inductor with our partition")
    parser.add_argument("--time-limit", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--out", help="a folder for pictures")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch._dynamo.config.recompile_limit = 64
    if given.tiles or given.largest:
        (by_tiles if given.tiles else largest)(given)
        return
    for name in ["resnet50", "unet", "vit", "gpt"] if given.all else [given.model]:
        (ten_budgets if given.sweep else compare)(name, given)


if __name__ == "__main__":
    main()

"""Times beside PyTorch's: whole training steps, single operators, and steps at the memory of checkpointing.

    cargo build --release -p scrimp-cli -p scrimp-run --examples --bins
    python benches/steps.py steps --target target/release --threads 2
    python benches/steps.py operators --target target/release --threads 2
    python benches/steps.py checkpoint --target target/release --threads 2

Prints Markdown. Contenders take turns, each in a process of its own; the tables have medians over rounds and
their ratio to PyTorch's. `--clock cpu` takes processor time instead of the wall clock's, which on a busy
machine is the only sensible one and with one thread is the same. Needs torchvision; oneDNN is looked for as
`scrimp doctor` says; `checkpoint` needs the scrimp package, which measures PyTorch's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

aten = torch.ops.aten
MIB = 1 << 20


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
CONTENDERS = ["torch", "torch channels_last", "native", "onednn"]


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


def clock_of(options: argparse.Namespace) -> Callable[[], float]:
    """What time is read from."""
    return time.process_time if options.clock == "cpu" else time.perf_counter


def torch_step(network: str, options: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a step of PyTorch's, and the most bytes in use."""
    torch.set_num_threads(options.threads)
    clock = clock_of(options)
    layout = torch.channels_last if "last" in options.only else torch.contiguous_format
    model, (inputs, labels) = NETWORKS[network]().train(), data(network, options.batch)
    model = model.to(memory_format=layout)
    inputs = inputs.to(memory_format=layout) if inputs.dim() == 4 else inputs
    if "checkpoint" in options.only:
        for block in checkpointed_blocks(network, model):
            forward = block.forward
            block.forward = lambda x, f=forward: checkpoint(f, x, use_reentrant=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    seconds = []
    for _ in range(options.steps):
        start = clock()
        step()
        seconds.append(clock() - start)
    result = {"step_seconds": statistics.median(seconds[1:])}
    if options.peak:
        from scrimp._torch.memory import measured, storage_bytes

        optimizer.zero_grad()
        tensors = [*model.parameters(), *model.buffers(), inputs, labels]
        result["peak"] = storage_bytes(tensors) + measured(step, torch.device("cpu"))[1]
    return result


def run(command: list[str]) -> str:
    """What it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def by_torch(
    contender: str, network: str, options: argparse.Namespace, peak: bool = False
) -> dict[str, float]:
    """PyTorch in a process of its own."""
    command = [sys.executable, __file__, "only", network, "--batch", str(options.batch)]
    command += ["--threads", str(options.threads), "--steps", str(options.steps)]
    command += ["--clock", options.clock, "--only", contender]
    result: dict[str, float] = json.loads(run(command + ["--peak"] * peak))
    return result


def step_seconds(contender: str, network: str, options: argparse.Namespace) -> float:
    """Seconds of a step, in a process of its own."""
    if contender.startswith("torch"):
        return by_torch(contender, network, options)["step_seconds"]
    sizes = [str(n) for n in (options.batch, options.threads, options.steps)]
    out = run([f"{options.target}/examples/step", network, *sizes, contender])
    found = re.search(rf"([\d.]+) ms of {'processor time' if options.clock == 'cpu' else 'time'}\b", out)
    if not found:
        raise SystemExit(f"no time in {out!r}")
    return float(found[1]) / 1e3


def cell(seconds: float, reference: float) -> str:
    """Milliseconds and the ratio."""
    digits = 1 if seconds >= 0.01 else 2
    return f"{seconds * 1e3:.{digits}f} ({seconds / reference:.2f})"


def steps(options: argparse.Namespace) -> None:
    """Print the table of whole steps."""
    print("| network | batch | " + " | ".join(f"{name}, ms" for name in CONTENDERS) + " |")
    print("|---|---|" + "---|" * len(CONTENDERS))
    for network in options.networks:
        contenders = [name for name in CONTENDERS if network != "transformer" or "last" not in name]
        rounds = [
            [step_seconds(name, network, options) for name in contenders] for _ in range(options.rounds)
        ]
        medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
        cells = [cell(seconds, medians[0]) for seconds in medians]
        if len(cells) < len(CONTENDERS):
            cells.insert(1, "–")
        print(f"| {network} | {options.batch} | " + " | ".join(cells) + " |", flush=True)


def at_checkpoints_memory(options: argparse.Namespace) -> None:
    """Print steps at the memory that checkpointing per block takes, and at half of ours."""
    print(
        "| network | PyTorch: peak, MiB | step, ms | checkpointed: peak, MiB | step, ms | scrimp: budget "
        "| peak, MiB | step, ms | step / checkpointed |\n|---|---|---|---|---|---|---|---|---|"
    )
    for network in options.networks:
        plain = by_torch("torch", network, options, peak=True)
        checkpointed = by_torch("torch checkpoint", network, options, peak=True)
        for budget in [str(int(checkpointed["peak"])), "50%"]:
            command = [f"{options.target}/scrimp", "train", network, "--batch", str(options.batch)]
            command += ["--threads", str(options.threads), "--steps", str(options.steps)]
            command += ["--library", options.library, "--budget", budget, "--json"]
            ours = []
            for _ in range(options.rounds):
                # In turn, so that both see the machine as it is then.
                theirs = by_torch("torch checkpoint", network, options)["step_seconds"]
                ours.append((json.loads(run(command)), theirs))
            seconds = statistics.median(one["step_seconds"] for one, _ in ours)
            theirs = statistics.median(theirs for _, theirs in ours)
            peak = ours[0][0]["measured_peak_bytes"]
            label = budget if budget.endswith("%") else "the same peak"
            print(
                f"| {network} | {plain['peak'] / MIB:.0f} | {plain['step_seconds'] * 1e3:.0f} "
                f"| {checkpointed['peak'] / MIB:.0f} | {theirs * 1e3:.0f} | {label} "
                f"| {peak / MIB:.0f} | {seconds * 1e3:.0f} | {seconds / theirs:.2f} |",
                flush=True,
            )


def convolution(
    name: str, kernel: int, x: list[int], out: int, stride: int = 1, groups: int = 1
) -> Iterator[tuple[str, Callable[[], Any]]]:
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


def transposed(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
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


def normalization(name: str, shape: list[int], instance: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
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


def layer_normalization(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Layer normalization and its gradients."""
    x, dy, scale, shift = torch.rand(2048, 384), torch.rand(2048, 384), torch.rand(384), torch.rand(384)
    _, mean, inverse = aten.native_layer_norm(x, [384], scale, shift, 1e-5)
    yield f"{name} forward", lambda: aten.native_layer_norm(x, [384], scale, shift, 1e-5)
    yield (
        f"{name} gradients",
        lambda: aten.native_layer_norm_backward(dy, x, [384], mean, inverse, scale, shift, [True] * 3),
    )


def pooling(name: str, kernel: int, shape: list[int], pad: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Max pooling by steps of 2 and its gradient."""
    x, geometry = torch.rand(shape), ([kernel] * 2, [2, 2], [pad] * 2, [1, 1], False)
    y, places = aten.max_pool2d_with_indices(x, *geometry)
    yield f"{name} forward", lambda: aten.max_pool2d_with_indices(x, *geometry)
    yield (
        f"{name} gradient",
        lambda: aten.max_pool2d_with_indices_backward(y, x, *geometry, places),
    )


def average_pooling(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Average pooling and its gradient."""
    x, dy = torch.rand(8, 256, 28, 28), torch.rand(8, 256, 14, 14)
    geometry = ([2, 2], [2, 2], [0, 0], False, True, None)
    yield f"{name} forward", lambda: aten.avg_pool2d(x, *geometry)
    yield f"{name} gradient", lambda: aten.avg_pool2d_backward(dy, x, *geometry)


def gelu(name: str, approximate: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Gelu and its gradient."""
    x, dy = torch.rand(2048, 1536), torch.rand(2048, 1536)
    yield f"{name} forward", lambda: F.gelu(x, approximate=approximate)
    yield f"{name} gradient", lambda: aten.gelu_backward(dy, x, approximate=approximate)


def other_operators() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Products of matrices, elementwise functions, softmax, losses, sums, the update."""
    a, b, c = torch.rand(1024, 1024), torch.rand(1024, 1024), torch.rand(2048, 384)
    weight, bias, wide = torch.rand(384, 1536), torch.rand(1536), torch.rand(2048, 1536)
    yield "product 1024×1024×1024", lambda: a @ b
    yield "linear 2048×384×1536 with bias", lambda: torch.addmm(bias, c, weight)
    yield "linear 2048×384×1536 weight gradient", lambda: c.T @ wide
    q, k = torch.rand(8, 6, 256, 64), torch.rand(8, 6, 256, 64)
    yield "attention scores, 48 of 256×64×256", lambda: q @ k.transpose(2, 3)
    x, dy = torch.rand(8, 64, 112, 112), torch.rand(8, 64, 112, 112)
    yield "relu, 6.4 million forward", lambda: torch.relu(x)
    yield "relu, 6.4 million gradient", lambda: aten.threshold_backward(dy, x, 0)
    yield "sum of two, 6.4 million", lambda: x + dy
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
    maps, image = torch.rand(8, 2048, 7, 7), torch.rand(8, 64, 56, 56)
    yield "mean of maps, 2048 of 7×7", lambda: maps.mean((2, 3))
    yield "sum per channel, 64 of 56×56", lambda: image.sum((0, 2, 3))
    yield "sum of 2048 rows of 1536", lambda: wide.sum(0)
    parameter, gradient = torch.rand(4_194_304), torch.rand(4_194_304)
    yield "gradient descent, 4.2 million", lambda: parameter.add_(gradient, alpha=-1e-3)


def torch_operators() -> Iterator[tuple[str, Callable[[], Any]]]:
    """PyTorch's operators under the names of `crates/run/examples/operators.rs`."""
    yield from convolution("convolution 3×3, 64 channels of 56×56", 3, [8, 64, 56, 56], 64)
    yield from convolution("convolution 3×3, 256 channels of 14×14", 3, [8, 256, 14, 14], 256)
    yield from convolution(
        "convolution 3×3 by steps of 2, 128 channels of 56×56", 3, [8, 128, 56, 56], 128, 2
    )
    yield from convolution("convolution 1×1, 256 to 64 channels of 56×56", 1, [8, 256, 56, 56], 64)
    yield from convolution("convolution 1×1, 256 to 1024 channels of 14×14", 1, [8, 256, 14, 14], 1024)
    yield from convolution("convolution 7×7 of an image", 7, [8, 3, 224, 224], 64, 2)
    yield from convolution("depthwise 3×3, 256 channels of 28×28", 3, [8, 256, 28, 28], 256, groups=256)
    yield from transposed("transposed convolution 2×2, 240 to 120 channels")
    yield from normalization("batch normalization, 64 channels of 56×56", [8, 64, 56, 56], False)
    yield from normalization("batch normalization, 512 channels of 14×14", [8, 512, 14, 14], False)
    yield from normalization("instance normalization, 120 channels of 64×64", [8, 120, 64, 64], True)
    yield from layer_normalization("layer normalization, 2048 rows of 384")
    yield from pooling("max pooling 3×3 by steps of 2, 64 channels of 112×112", 3, [8, 64, 112, 112], 1)
    yield from pooling("max pooling 2×2, 64 channels of 224×224", 2, [4, 64, 224, 224], 0)
    yield from average_pooling("average pooling 2×2, 256 channels of 28×28")
    yield from gelu("gelu, 3.1 million", "none")
    yield from gelu("gelu by tanh, 3.1 million", "tanh")
    yield from other_operators()


def time_operator(f: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Median seconds of enough runs to fill a twentieth of a second, after one that warms up."""
    times: list[float] = []
    while len(times) < 4 or sum(times) < 0.05:
        start = clock()
        f()
        times.append(clock() - start)
    return statistics.median(times[1:])


class Child:
    """A process that times operators by name."""

    def __init__(self, library: str, options: argparse.Namespace) -> None:
        """Start it."""
        command = [f"{options.target}/examples/operators", library, str(options.threads), options.clock]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> str:
        """One answer."""
        if self.process.stdin is None or self.process.stdout is None:
            raise SystemExit("no pipes")
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().rstrip("\n")


def operators(options: argparse.Namespace) -> None:
    """Print the table of operators."""
    torch.set_num_threads(options.threads)
    children = [Child("native", options), Child("onednn", options)]
    missing = set(children[0].ask("list").split("\t"))
    clock = clock_of(options)
    print("| operator | PyTorch, ms | native, ms | oneDNN, ms |\n|---|---|---|---|")
    for name, f in torch_operators():
        rounds = []
        for _ in range(options.rounds):
            theirs = time_operator(f, clock)
            rounds.append([theirs, *(float(child.ask(name).split()[1]) for child in children)])
        medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
        cells = " | ".join(cell(seconds, medians[0]) for seconds in medians)
        print(f"| {name} | {cells} |", flush=True)
        missing.discard(name)
    if missing:
        raise SystemExit(f"not compared: {sorted(missing)}")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    tables = {"steps": steps, "operators": operators, "checkpoint": at_checkpoints_memory}
    parser.add_argument("table", choices=[*tables, "only"])
    parser.add_argument("networks", nargs="*", metavar="network")
    parser.add_argument("--target", default="target/release", help="folder of the built binaries")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--library", default="auto", help="scrimp's, for `checkpoint`")
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.networks = options.networks or list(NETWORKS)
    if options.table == "only":
        print(json.dumps(torch_step(options.networks[0], options)))
        return
    load = os.getloadavg()[0]
    clock = "processor time" if options.clock == "cpu" else "wall-clock time"
    print(f"{options.threads} threads, {clock}, PyTorch {torch.__version__}, load before {load:.1f}\n")
    tables[options.table](options)


if __name__ == "__main__":
    main()

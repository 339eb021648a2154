"""Time of a whole training step: scrimp with its own kernels and with oneDNN's, and PyTorch.

    python benches/steps.py --scrimp target/release/scrimp resnet50 mobilenet

Same networks, batch and number of threads, SGD without momentum, no budget that binds. Each round runs
every contender once, in turn, in a process of its own; a contender's time is the median of its steps
after the first, and the table has medians over rounds and their ratio to PyTorch's contiguous tensors.
Needs torchvision. oneDNN is looked for as `scrimp doctor` says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
import torchvision
from torch import nn


def mobilenet() -> nn.Module:
    """The first MobileNet, which torchvision doesn't have."""

    def unit(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))

    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    blocks += [(512, 1)] * 5 + [(1024, 2), (1024, 1)]
    layers, channels = [unit(3, 32, 3, 2, 1)], 32
    for outputs, stride in blocks:
        layers += [unit(channels, channels, 3, stride, channels), unit(channels, outputs, 1, 1, 1)]
        channels = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers, *head)


NETWORKS = {
    "resnet50": torchvision.models.resnet50,
    "vgg16": torchvision.models.vgg16,
    "mobilenet": mobilenet,
}
CONTENDERS = ["torch", "torch channels_last", "native", "onednn"]


def torch_step(network: str, batch: int, threads: int, steps: int, channels_last: bool) -> float:
    """Median seconds of a step of PyTorch's."""
    torch.set_num_threads(threads)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = NETWORKS[network]().train().to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.randn(batch, 3, 224, 224).to(memory_format=layout)
    labels = torch.arange(batch)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def measure(contender: str, network: str, options: argparse.Namespace) -> float:
    """Seconds of a step, in a process of its own."""
    sizes = ["--batch", str(options.batch), "--threads", str(options.threads)]
    sizes += ["--steps", str(options.steps)]
    if contender.startswith("torch"):
        command = [sys.executable, __file__, network, *sizes, "--only", contender]
    else:
        command = [options.scrimp, "train", network, *sizes, "--budget", "100%", "--json"]
        command += ["--costs", "static", "--library", contender]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["step_seconds"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+", choices=NETWORKS)
    parser.add_argument("--scrimp", default="scrimp")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        sizes = (options.batch, options.threads, options.steps)
        seconds = torch_step(options.networks[0], *sizes, "last" in options.only)
        print(json.dumps({"step_seconds": seconds}))
        return
    load = os.getloadavg()[0]
    print(f"batch {options.batch}, {options.threads} threads, load before {load:.1f}\n")
    print("| network | " + " | ".join(f"{name}, s" for name in CONTENDERS) + " |")
    print("|---|" + "---|" * len(CONTENDERS))
    for network in options.networks:
        rounds = [[measure(name, network, options) for name in CONTENDERS] for _ in range(options.rounds)]
        medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
        cells = [f"{seconds:.3f} ({seconds / medians[0]:.2f})" for seconds in medians]
        print(f"| {network} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

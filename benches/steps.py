"""Times beside PyTorch's: whole training steps, single operators, and steps at the memory of checkpointing.

    cargo build --release -p scrimp-cli -p scrimp-run --examples --bins
    python benches/steps.py steps --target target/release --threads 2
    python benches/steps.py operators --target target/release --threads 2 [GROUP ...]
    python benches/steps.py checkpoint --target target/release --threads 2

    python benches/steps.py steps --device cuda --contenders cuda:0,cuda:0@vendor,opencl:0 --batch 32

Prints Markdown. With `--device cuda` PyTorch and the contenders named run on a GPU, all in 32-bit floats
(no TF32). Contenders take turns, each in a process of its own; the tables have medians over rounds and
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
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch_networks import NETWORKS, checkpointed_blocks, data
from torch_operators import GROUPS

MIB = 1 << 20


def clock_of(options: argparse.Namespace) -> Callable[[], float]:
    """What time is read from; on a GPU, once it has done what it was given."""
    if options.device == "cuda":

        def clock() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        return clock
    return time.process_time if options.clock == "cpu" else time.perf_counter


def set_up(options: argparse.Namespace) -> None:
    """Have PyTorch compute there, as exactly as we do."""
    torch.set_num_threads(options.threads)
    torch.set_default_device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def torch_step(network: str, options: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a step of PyTorch's, and the most bytes in use."""
    set_up(options)
    clock = clock_of(options)
    layout = torch.channels_last if "last" in options.only else torch.contiguous_format
    model, (inputs, labels) = NETWORKS[network]().train(), data(network, options.batch)
    model = model.to(options.device, memory_format=layout)
    inputs, labels = inputs.to(options.device), labels.to(options.device)
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
    command += ["--clock", options.clock, "--device", options.device, "--only", contender]
    result: dict[str, float] = json.loads(run(command + ["--peak"] * peak))
    return result


def step_seconds(contender: str, network: str, options: argparse.Namespace) -> float:
    """Seconds of a step, in a process of its own."""
    if contender.startswith("torch"):
        return by_torch(contender, network, options)["step_seconds"]
    sizes = [str(n) for n in (options.batch, options.threads, options.steps)]
    out = run([f"{options.target}/examples/step", network, *sizes, contender])
    found = re.search(rf"([\d.]+) ms {'busy' if options.clock == 'cpu' else 'of time'}\b", out)
    if not found:
        raise SystemExit(f"no time in {out!r}")
    return float(found[1]) / 1e3


def cell(seconds: float, reference: float) -> str:
    """Milliseconds and the ratio."""
    digits = 1 if seconds >= 0.01 else 2
    return f"{seconds * 1e3:.{digits}f} ({seconds / reference:.2f})"


def steps(options: argparse.Namespace) -> None:
    """Print the table of whole steps."""
    everyone = ["torch", "torch channels_last", *options.contenders.split(",")]
    print("| network | batch | " + " | ".join(f"{name}, ms" for name in everyone) + " |")
    print("|---|---|" + "---|" * len(everyone))
    for network in options.names or NETWORKS:
        contenders = [name for name in everyone if network != "transformer" or "last" not in name]
        rounds = [
            [step_seconds(name, network, options) for name in contenders] for _ in range(options.rounds)
        ]
        medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
        cells = [cell(seconds, medians[0]) for seconds in medians]
        if len(cells) < len(everyone):
            cells.insert(1, "–")
        print(f"| {network} | {options.batch} | " + " | ".join(cells) + " |", flush=True)


def at_checkpoints_memory(options: argparse.Namespace) -> None:
    """Print steps at the memory that checkpointing per block takes, and at half of ours."""
    print(
        "| network | PyTorch: peak, MiB | step, ms | checkpointed: peak, MiB | step, ms | scrimp: budget "
        "| peak, MiB | step, ms | step / checkpointed |\n|---|---|---|---|---|---|---|---|---|"
    )
    for network in options.names or NETWORKS:
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
            peak = ours[0][0]["planned_peak_bytes"]
            label = budget if budget.endswith("%") else "the same peak"
            print(
                f"| {network} | {plain['peak'] / MIB:.0f} | {plain['step_seconds'] * 1e3:.0f} "
                f"| {checkpointed['peak'] / MIB:.0f} | {theirs * 1e3:.0f} | {label} "
                f"| {peak / MIB:.0f} | {seconds * 1e3:.0f} | {seconds / theirs:.2f} |",
                flush=True,
            )


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
    set_up(options)
    contenders = options.contenders.split(",")
    children = [Child(contender, options) for contender in contenders]
    missing = set(children[0].ask("list").split("\t"))
    clock = clock_of(options)
    print("| operator | " + " | ".join(f"{name}, ms" for name in ["PyTorch", *contenders]) + " |")
    print("|---|---|" + "---|" * len(contenders))
    for group in options.names or GROUPS:
        for name, f in GROUPS[group]():
            rounds = []
            for _ in range(options.rounds):
                theirs = time_operator(f, clock)
                rounds.append([theirs, *(float(child.ask(name).split()[1]) for child in children)])
            medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
            cells = " | ".join(cell(seconds, medians[0]) for seconds in medians)
            print(f"| {name} | {cells} |", flush=True)
            missing.discard(name)
    if missing and not options.names:
        raise SystemExit(f"not compared: {sorted(missing)}")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    tables = {"steps": steps, "operators": operators, "checkpoint": at_checkpoints_memory}
    parser.add_argument("table", choices=[*tables, "only"])
    parser.add_argument(
        "names", nargs="*", help="networks; of `operators` groups; all without", metavar="name"
    )
    parser.add_argument("--target", default="target/release", help="folder of the built binaries")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="PyTorch's")
    parser.add_argument("--contenders", default="native,onednn", help="ours: libraries of a CPU, or GPUs")
    parser.add_argument("--library", default="auto", help="scrimp's, for `checkpoint`")
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    known = GROUPS if options.table == "operators" else NETWORKS
    for name in options.names:
        if name not in known:
            parser.error(f"{name} isn't one of {', '.join(known)}")
    if options.table == "only":
        print(json.dumps(torch_step(options.names[0], options)))
        return
    load = os.getloadavg()[0]
    clock = "processor time" if options.clock == "cpu" else "wall-clock time"
    print(f"{options.threads} threads, {clock}, PyTorch {torch.__version__}, load before {load:.1f}\n")
    tables[options.table](options)


if __name__ == "__main__":
    main()

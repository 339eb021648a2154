"""Every check and table of scrimp on a GPU, in one command of nine minutes; Markdown on standard output.

    pip install scrimp-*.whl && python benches/gpu.py > gpu.md
    python benches/gpu.py --device cpu --size tiny          # the same without a GPU, as far as it goes

It needs one NVIDIA GPU, PyTorch 2.11 or newer and no network; torchvision, transformers, peft and diffusers
are used where they are installed. Each check is a process of its own with a time limit of its own, so that
none can end the others or take their time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch_compare
import torch_models
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch_models import Made, Subject, device_of, differing, token_loss

MIB = 1 << 20
ROUNDS = 10


def mib(size: float) -> str:
    """Bytes for people."""
    return f"{size / MIB:.1f} MiB"


class Attention(nn.Module):
    """Blocks with dropout, inside of attention too."""

    def __init__(self, width: int, layers: int) -> None:
        """Make the layers."""
        super().__init__()
        heads = max(2, width // 64)
        self.blocks = nn.Sequential(*(torch_compare.Block(width, heads, 0.1) for _ in range(layers)))
        self.head = nn.Linear(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        return self.head(self.blocks(x))


def attention(given: argparse.Namespace) -> Made:
    """The model of checks that need one."""
    width, layers, length = (64, 2, 32) if given.size == "tiny" else (1024, 12, 1024)
    batch = torch.randn(4, length, width), torch.randint(0, 64, (4, length))
    return Attention(width, layers), batch, token_loss


def subject_of(make: Callable[[], Made], given: argparse.Namespace) -> Subject:
    """A model with the same weights each time, on the device."""
    torch.manual_seed(0)
    return Subject(make(), device_of(given.device))


def repeatable() -> None:
    """Let eager give the same bits twice: without it attention and convolutions may add with atomics."""
    torch.use_deterministic_algorithms(True)


def planned(subject: Subject, budget: str, given: argparse.Namespace) -> Any:
    """A step within a budget."""
    import scrimp.torch

    subject.clear()
    limit = given.time_limit
    return scrimp.torch.fit(subject.model, subject.loss_fn, subject.batch, budget, time_limit=limit)


def middle(subject: Subject, step: Callable[[], Tensor]) -> float:
    """Milliseconds of a step, the median."""
    return sorted(subject.seconds(step) for _ in range(ROUNDS))[ROUNDS // 2] * 1e3


def held(device: torch.device) -> int:
    """Bytes of the GPU that nobody has free, as nvidia-smi shows them."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def environment(given: argparse.Namespace) -> list[str]:
    """What all else depends on."""
    import scrimp

    lines = [f"scrimp {scrimp.__version__}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}"]
    if given.device == "cuda":
        device = device_of("cuda")
        lines.append(
            f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN "
            f"{torch.backends.cudnn.version()}, {mib(held(device))} held before the first tensor"
        )
    return lines


def libraries(given: argparse.Namespace) -> list[str]:
    """What CUDA's libraries keep from their first call on, and whether it is counted."""
    from scrimp._torch.gpu import kept_by_libraries

    device = torch.device("cuda", 0)
    x = torch.randn(64, 64, device=device)
    before = torch.cuda.memory_allocated(device)
    for _ in range(2):
        F.linear(x, x, x[0]).sum()
    left = torch.cuda.memory_allocated(device) - before
    counted = kept_by_libraries(device)
    return [f"products leave {mib(left)} in use; counted as always there: {mib(counted)}"]


def dropout_in_attention(given: argparse.Namespace) -> list[str]:
    """Attention that runs again needs the seed and offset of its first run."""
    repeatable()
    lines = []
    for dtype in (torch.float32, torch.bfloat16):
        subject = subject_of(partial(attention, given), given)
        subject.autocast = dtype
        reference = subject.outcome(subject.eager)
        itself = differing(subject.outcome(subject.eager), reference)
        with subject.casting():
            step = planned(subject, "min", given)
        bits = differing(subject.outcome(partial(subject.planned, step)), reference)
        told = step.explain().splitlines()
        again = [line.strip() for line in told if "attention" in line and "×" in line]
        lines.append(f"{dtype}: bits {bits}, eager itself {itself}; runs again: {again or 'no attention'}")
        lines.append(f"{dtype}: {replayed(subject.device, dtype)}")
    return lines


def replayed(device: torch.device, dtype: torch.dtype) -> str:
    """Whether attention that runs again as in a plan gives its first results, seed and offset included."""
    from scrimp._torch.runtime import replay, save_rng

    aten: Any = torch.ops.aten
    q, k, v = (torch.randn(2, 4, 64, 64, device=device, dtype=dtype) for _ in range(3))
    run: Callable[[], Any] = lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)  # noqa: E731
    if device.type == "cuda" and dtype == torch.bfloat16:
        run = lambda: aten._scaled_dot_product_flash_attention(q, k, v, 0.1, True)  # noqa: E731
    elif device.type == "cuda":
        run = lambda: aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.1)  # noqa: E731

    def results(run: Callable[[], Any]) -> list[Tensor]:
        """The result, the sums of its rows and the seed; what comes behind them has no contents."""
        return [leaf for leaf in tree_leaves(run()) if isinstance(leaf, Tensor)][:3]

    state = save_rng(device)
    first = results(run)
    torch.randn(5, device=device)
    second = results(lambda: replay(device, state, run))
    third = results(run)
    same = [torch.equal(a, b) for a, b in zip(first, second, strict=True)]
    return f"attention replayed: {sum(same)} of {len(same)} results are the first run's; drawn anew: " + (
        "the same, so nothing was tested" if torch.equal(first[0], third[0]) else "others"
    )


def peaks(given: argparse.Namespace) -> list[str]:
    """Promised and measured peaks, what PyTorch's allocator counts and reserves, and what the GPU holds."""
    subject = subject_of(partial(attention, given), given)
    subject.start = {}
    lines = ["| budget | promised | in use | allocated | reserved | held |", "|---|---|---|---|---|---|"]
    for budget in ("eager", "100%", "60%", "min"):
        step, promised = subject.eager, ""
        if budget != "eager":
            made = planned(subject, budget, given)
            step, promised = partial(subject.planned, made), mib(made.peak)
        if given.device == "cuda":
            torch.cuda.empty_cache()
        row = [budget, promised, mib(subject.peak(step)), "", "", ""]
        if given.device == "cuda":
            allocated = torch.cuda.max_memory_allocated(subject.device)
            reserved = torch.cuda.max_memory_reserved(subject.device)
            row[3:] = [mib(allocated), mib(reserved), mib(held(subject.device))]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def slab(given: argparse.Namespace) -> list[str]:
    """A step's memory from one slab: bits, what came from elsewhere, what the GPU holds, and the time."""
    import scrimp.torch
    from scrimp._torch.slab import described, usage

    repeatable()
    try:
        scrimp.torch.use_slab()
    except scrimp.Unsupported as error:
        return [f"refused: {error}"]
    subject = subject_of(partial(attention, given), given)
    reference = subject.outcome(subject.eager)
    step = planned(subject, "min", given)
    run = partial(subject.planned, step)
    subject.clear()
    torch.cuda.synchronize(subject.device)
    lines = [f"promised {mib(step.peak)}; {mib(held(subject.device))} held before the first step"]
    for turn in range(5):
        bits = differing(subject.outcome(run), reference)
        torch.cuda.synchronize(subject.device)
        told = described(step._plans.latest.places)
        lines.append(f"step {turn + 1}: bits {bits}; {told}; {mib(held(subject.device))} held")
    now, most, whole = usage()
    lines.append(f"in use now {mib(now)}, at most {mib(most)}; the slab has {mib(whole)}")
    lines.append(f"a step takes {middle(subject, run):.2f} ms, eager {middle(subject, subject.eager):.2f} ms")
    return lines


def many_small() -> Made:
    """A model whose operators are bound by the host."""
    layers = [layer for _ in range(100) for layer in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers), (torch.randn(4, 16), torch.randn(4, 16)), F.mse_loss


def times(given: argparse.Namespace) -> list[str]:
    """Predicted and real milliseconds, where the GPU is busy and where the host is."""
    lines = ["| model | predicted | real | predicted without a plan | eager |", "|---|---|---|---|---|"]
    for title, make in (("attention", partial(attention, given)), ("many small operators", many_small)):
        subject = subject_of(make, given)
        step = planned(subject, "min", given)
        run = partial(subject.planned, step)
        subject.run(run)
        row = [
            step.plan.cost * 1e3,
            middle(subject, run),
            step.plan.base_cost * 1e3,
            middle(subject, subject.eager),
        ]
        lines.append(f"| {title} | " + " | ".join(f"{number:.2f}" for number in row) + " |")
    return lines


class Atomic(nn.Module):
    """Operators whose kernels add with atomics on a GPU."""

    def __init__(self, deterministic: bool) -> None:
        """Make the layers; not all have a form whose sums are in order."""
        super().__init__()
        self.mode = "nearest" if deterministic else "linear"
        self.words = nn.Embedding(50, 64)
        self.mix = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Give a loss."""
        y = torch.tanh(self.mix(self.words(x))).transpose(1, 2)
        y = F.interpolate(y, scale_factor=2, mode=self.mode).transpose(1, 2).flatten(0, 1)
        return y.new_zeros(8, 64).index_add(0, x.flatten().repeat(2) % 8, y).square().mean()


def atomic(deterministic: bool) -> Made:
    """The model, and words with many that are the same."""
    return Atomic(deterministic), (torch.randint(0, 50, (16, 512)),), None


def atomics(given: argparse.Namespace) -> list[str]:
    """Eager may differ from itself there; with deterministic algorithms all must agree."""
    lines = []
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        subject = subject_of(partial(atomic, deterministic), given)
        reference = subject.outcome(subject.eager)
        itself = differing(subject.outcome(subject.eager), reference)
        losses = len({float(subject.run(subject.eager)) for _ in range(ROUNDS)})
        step = planned(subject, "min", given)
        bits = differing(subject.outcome(partial(subject.planned, step)), reference)
        named = [line for line in step.explain().splitlines() if "atomics" in line]
        way = "deterministic algorithms" if deterministic else "as it is"
        lines.append(
            f"{way}: bits {bits}, eager itself {itself}, {losses} losses in {ROUNDS} runs of eager; "
            f"{named or 'no operator is named'}"
        )
    return lines


def automatic(given: argparse.Namespace) -> list[str]:
    """What `auto` takes a GPU to have free."""
    subject = subject_of(partial(attention, given), given)
    step = planned(subject, "auto", given)
    free, total = torch.cuda.mem_get_info(subject.device)
    return [f"budget {mib(step.plan.budget)} of {mib(total)}, free {mib(free)}, peak {mib(step.peak)}"]


def rivals(model: str, given: argparse.Namespace) -> list[str]:
    """scrimp beside eager, checkpointing, the compiler's knob and inductor."""
    tiny = given.size == "tiny"
    batch = 1 if tiny else torch_compare.CASES[model].batch * (8 if given.device == "cuda" else 1)
    bench = torch_compare.Bench(model, batch, device_of(given.device))
    torch_compare.rivals(bench, [] if tiny else [0.5])
    torch_compare.by_plan(bench, [0.5], given.time_limit)
    if not tiny:
        torch_compare.by_inductor(bench, [0.5], ["50%"], given.time_limit)
    bench.time(given.repeats)
    return bench.table().splitlines()


def models(given: argparse.Namespace) -> list[str]:
    """Real models, as many as there is time for."""
    lines = list(torch_models.HEADER)
    end = time.monotonic() + given.seconds - 5
    for name in ["lstm"] if given.size == "tiny" else torch_models.MODELS:
        minutes = (end - time.monotonic()) / 60
        row: dict[str, Any] = {"failed": "no time was left"}
        if minutes > 0:
            row = torch_models.in_its_own_process(name, given, minutes)
        lines += torch_models.described(name, row)
    return lines


@dataclass(frozen=True)
class Check:
    """One part of the report."""

    title: str
    run: Callable[[argparse.Namespace], list[str]]
    seconds: int
    """At most."""
    without_gpu: bool = True
    """Whether it says something where there is no GPU."""


CHECKS = {
    "environment": Check("The machine", environment, 30),
    "libraries": Check("What libraries keep", libraries, 30, without_gpu=False),
    "attention": Check("Dropout in attention that runs again", dropout_in_attention, 60),
    "peaks": Check("Peaks", peaks, 60),
    "slab": Check("From one slab", slab, 60),
    "times": Check("Predicted and real milliseconds", times, 50),
    "atomics": Check("Kernels that add with atomics", atomics, 30),
    "auto": Check("The budget `auto`", automatic, 40, without_gpu=False),
    "gpt": Check("A GPT beside other methods", partial(rivals, "gpt"), 100),
    "unet": Check("A U-Net beside other methods", partial(rivals, "unet"), 100),
    "models": Check("Models that people fine-tune", models, 180),
}


def report(check: str, given: argparse.Namespace, seconds: float) -> list[str]:
    """Run one check in a process of its own."""
    if given.device == "cpu" and not CHECKS[check].without_gpu:
        return ["there is no GPU"]
    options = [f"--{key.replace('_', '-')}={getattr(given, key)}" for key in torch_models.PASSED]
    command = [sys.executable, __file__, "--one", check, f"--seconds={seconds:.0f}", *options]
    try:
        # Deterministic algorithms want it.
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return [f"**not done after {seconds:.0f} s**"]
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return [f"**ended with {done.returncode}**: {last}"]
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run everything, or what was asked for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--checks", default=",".join(CHECKS))
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything, at most")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    torch_models.options(parser)
    parser.set_defaults(device="cuda", time_limit=4.0, repeats=3)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu tries the command itself")
    if given.one:
        torch.set_num_threads(given.threads)
        print(json.dumps(CHECKS[given.one].run(given)))
        return
    end = time.monotonic() + 60 * given.minutes
    print("# scrimp on a GPU" if given.device == "cuda" else "# scrimp without a GPU", flush=True)
    for name in given.checks.split(","):
        start = time.monotonic()
        left = min(end - start, CHECKS[name].seconds)
        lines = report(name, given, left) if left > 1 else ["**no time was left**"]
        told = "\n".join(lines if lines[0].startswith("|") else [f"- {line}" for line in lines])
        print(f"\n## {CHECKS[name].title} ({time.monotonic() - start:.0f} s)\n\n{told}", flush=True)


if __name__ == "__main__":
    main()

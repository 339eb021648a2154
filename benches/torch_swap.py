"""Training steps whose values wait in a file, or beside a GPU in RAM: what is really held, bits, and time.

    OMP_NUM_THREADS=1 python benches/torch_swap.py                       # the table of docs/pytorch.md
    python benches/torch_swap.py --model gpt2 --budgets 60%,min --swap disk:/scratch=8GiB --size tiny
    python benches/torch_swap.py --device cuda --swap 16GiB --autocast   # larger batches, bfloat16

Each row is measured in a process of its own. "Process" is the most memory that it held, by `ru_maxrss`,
less what it held when everything was imported and nothing was made. "Planned" is the plan's peak. All rows
of a model end with the same bits of loss and parameters, or it is said. A first run of each row makes
captures, measurements and the plan, so that the one that counts finds them. The processes give freed
memory back to the system at once (`MALLOC_MMAP_THRESHOLD_`): glibc otherwise keeps some of it.

On a GPU "process" is the most bytes of tensors in use, by CUDA's counters, cuBLAS's workspace included; in
brackets, what the allocator reserves. Algorithms are deterministic there: eager's bits vary otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only
from torch_models import device_of

MIB = 1 << 20
STEPS = 3
THRESHOLD = 1 << 16
"""Bytes from which a request is a mapping of its own."""


def resnet50(tiny: bool, larger: bool) -> tuple[nn.Module, Any, Any, Any]:
    """A classifier of images, trained with momentum."""
    import torchvision

    model = torchvision.models.resnet50()
    count, side = 64 if larger and not tiny else 8, 64 if tiny else 224
    batch = torch.randn(count, 3, side, side), torch.randint(0, 1000, (count,))
    return model, batch, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def gpt2(tiny: bool, larger: bool) -> tuple[nn.Module, Any, Any, Any]:
    """GPT-2 of 124 million parameters (tiny: 3), trained with AdamW."""
    import transformers

    sizes: dict[str, Any] = {"n_embd": 192, "n_layer": 4, "n_head": 4, "vocab_size": 4096} if tiny else {}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False))
    shape = (4, 1024) if larger and not tiny else (1, 256)
    words = torch.randint(0, model.config.vocab_size, shape)
    batch = {"input_ids": words, "labels": words}
    return model, batch, lambda output: output.loss, torch.optim.AdamW(model.parameters(), lr=1e-4)


MODELS = {"resnet50": resnet50, "gpt2": gpt2}


def held(device: torch.device) -> int:
    """The most bytes that this process has held, or that tensors of a GPU had."""
    from scrimp._torch.memory import in_use

    if device.type == "cuda":
        return in_use(device)[1]
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def row(name: str, arguments: argparse.Namespace, budget: str | None, swap: str | None) -> dict[str, Any]:
    """Train some steps, by eager's without a budget."""
    import scrimp
    import scrimp.torch

    device = device_of(arguments.device)
    on_gpu = device.type == "cuda"
    torch.use_deterministic_algorithms(on_gpu)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    if name == "gpt2":
        importlib.import_module("transformers.models.gpt2.modeling_gpt2")
    before = held(device)
    torch.manual_seed(0)
    model, batch, loss_fn, optimizer = MODELS[name](arguments.size == "tiny", on_gpu)
    model.to(device)
    batch = tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)
    casting = torch.autocast(device.type, torch.bfloat16, enabled=arguments.autocast)
    found: dict[str, Any] = {}
    step: Any = None
    if budget is not None:
        try:
            with casting:
                step = scrimp.torch.fit(
                    model,
                    loss_fn,
                    batch,
                    budget,
                    optimizer=optimizer,
                    swap=swap,
                    time_limit=20,
                    progress=False,
                )
        except scrimp.Infeasible as error:
            return {"least": error.least_found}
        plan = step.plan
        found = {"planned": plan.peak, "predicted": plan.cost, "again": plan.recomputed}
        found["brought"] = sum(kind == "bring" for kind, _ in plan.steps)
    times = []
    for seed in range(STEPS):
        torch.manual_seed(seed)
        start = time.perf_counter()
        with casting:
            if step is not None:
                loss = step(**batch) if isinstance(batch, dict) else step(*batch)
            elif isinstance(batch, dict):
                loss = loss_fn(model(**batch))
            else:
                loss = loss_fn(model(batch[0]), batch[1])
        if step is None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    found |= {"process": held(device) - before, "seconds": min(times[1:])}
    found["reserved"] = torch.cuda.max_memory_reserved(device) if on_gpu else None
    digest = hashlib.sha256(loss.detach().cpu().numpy().tobytes())
    for tensor in [*model.parameters(), *model.buffers()]:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return {**found, "bits": digest.hexdigest()}


def measured(arguments: argparse.Namespace, *of: str | None) -> dict[str, Any]:
    """A row, from a process of its own."""
    command = [sys.executable, __file__, "--row", json.dumps(of), "--size", arguments.size]
    command += ["--device", arguments.device, *["--autocast"][: arguments.autocast]]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(THRESHOLD)}
    # Deterministic algorithms want it.
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    for _ in range(1 if of[1] is None else 2):
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def process(one: dict[str, Any]) -> str:
    """What a process held."""
    reserved = one["reserved"]
    return f"{one['process'] / MIB:.0f}" + (f" ({reserved / MIB:.0f})" if reserved else "")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="resnet50,gpt2", help="some of resnet50, gpt2")
    parser.add_argument("--budgets", default="100%,60%,min", help="as scrimp.torch.fit takes them")
    parser.add_argument("--swap", default="8GiB", help="as scrimp.torch.fit takes it")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--autocast", action="store_true", help="run forward in bfloat16")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        name, budget, swap = json.loads(arguments.row)
        print(json.dumps(row(name, arguments, budget, swap)))
        return
    print("| model | budget | swap | planned, MiB | process, MiB | seconds | predicted | again, brought |")
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.model.split(","):
        eager = measured(arguments, name, None, None)
        print(f"| {name} | eager | | | {process(eager)} | {eager['seconds']:.3f} | | |", flush=True)
        for budget in arguments.budgets.split(","):
            for swap in (None, arguments.swap):
                one = measured(arguments, name, budget, swap)
                start = f"| {name} | {budget} | {swap or ''} |"
                if "least" in one:
                    print(f"{start} no plan; least: {one['least'] / MIB:.0f} | | | | |", flush=True)
                    continue
                bits = "" if one["bits"] == eager["bits"] else ", OTHER BITS"
                numbers = f"{one['planned'] / MIB:.0f} | {process(one)} | {one['seconds']:.3f}"
                moves = f"{one['predicted']:.3f} | {one['again']}, {one['brought']}{bits}"
                print(f"{start} {numbers} | {moves} |", flush=True)


if __name__ == "__main__":
    main()

"""One of two processes that train together; `test_torch_distributed.py` starts them.

    python distributed.py CASE RANK RENDEZVOUS

Ends with an assertion if gradients differ from those without scrimp, or the peak isn't lower.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import scrimp.torch
import torch
import torch.distributed as dist
from models import Gpt, token_loss
from scrimp._torch.memory import measured
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

OPTIONS: dict[str, Any] = {"time_limit": 1.0}


def model_of(dropout: bool) -> Gpt:
    """The same on every process; FSDP is compared without dropout."""
    torch.manual_seed(0)
    model = Gpt(layers=4, width=64, length=32)
    # A tied head would need sharding by hand.
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    if not dropout:
        model.eval()
    return model


def step(model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor]) -> None:
    """Forward and backward."""
    token_loss(model(batch[0]), batch[1]).backward()


def gradients_and_peak(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[list[Tensor], int]:
    """Run twice, since the first run compiles and plans."""
    step(model, batch)
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1 + dist.get_rank())
    _, peak, _ = measured(partial(step, model, batch), torch.device("cpu"))
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [getattr(g, "full_tensor", lambda g=g: g)() for g in found], peak


def ddp_around_a_wrapped_module(model: nn.Module, x: Tensor) -> nn.Module:
    """DistributedDataParallel(wrap(model))."""
    return DistributedDataParallel(scrimp.torch.wrap(model, x, "50%", **OPTIONS))


def ddp_around_a_compiled_module(model: nn.Module, x: Tensor) -> nn.Module:
    """DistributedDataParallel(torch.compile(model))."""
    torch._dynamo.config.optimize_ddp = False
    backend = scrimp.torch.backend("50%", **OPTIONS)
    return DistributedDataParallel(torch.compile(model, backend=backend, dynamic=False))


def compiled_ddp(model: nn.Module, x: Tensor) -> nn.Module:
    """torch.compile(DistributedDataParallel(model))."""
    torch._dynamo.config.optimize_ddp = False
    backend = scrimp.torch.backend("50%", **OPTIONS)
    compiled: Any = torch.compile(DistributedDataParallel(model), backend=backend, dynamic=False)
    return compiled


def plain_ddp(model: nn.Module, x: Tensor) -> nn.Module:
    """What the three above are compared with."""
    return DistributedDataParallel(model)


def sharded(model: Any, x: Tensor) -> nn.Module:
    """FSDP2 with each block a unit."""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def sharded_and_compiled(model: Any, x: Tensor) -> nn.Module:
    """FSDP2, each block compiled with a plan."""
    for block in model.blocks:
        fully_shard(block)
        block.compile(backend=scrimp.torch.backend("60%", **OPTIONS), dynamic=False)
    fully_shard(model)
    return model


CASES = {
    "ddp-wrap": (plain_ddp, ddp_around_a_wrapped_module),
    "ddp-compile": (plain_ddp, ddp_around_a_compiled_module),
    "compile-ddp": (plain_ddp, compiled_ddp),
    "fsdp2": (sharded, sharded_and_compiled),
}


def main(case: str, rank: int, rendezvous: str) -> None:
    """Compare one case."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    plain, planned = CASES[case]
    generator = torch.Generator().manual_seed(rank)
    batch = torch.randint(0, 50, (8, 32), generator=generator), torch.randint(0, 50, (8, 32))
    model = model_of(dropout=case != "fsdp2")
    twin = copy.deepcopy(model)
    expected, before = gradients_and_peak(plain(twin, batch[0]), batch)
    found, after = gradients_and_peak(planned(model, batch[0]), batch)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)), "gradients differ"
    print(f"{case} on {rank}: peak {after} of {before} bytes")
    assert after < before, f"the peak is {after}, without a plan {before}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    # Some versions of PyTorch sometimes abort in their threads while the interpreter shuts down.
    os._exit(0)

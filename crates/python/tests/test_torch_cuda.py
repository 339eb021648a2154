"""scrimp.torch on a GPU against eager PyTorch: the same bits, in the bytes that were promised."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scrimp

# Products with a fixed order of additions want it before their first use.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

import scrimp.torch  # noqa: E402
from models import cases  # noqa: E402
from scrimp._torch.gpu import kept_by_libraries  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from torch import Tensor, nn  # noqa: E402

GPU = torch.device("cuda", 0)
CASES = cases()


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """Eager itself gives the same bits twice only without kernels that add with atomics."""
    gc.collect()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def twins(name: str) -> tuple[nn.Module, nn.Module, Any, Any]:
    """Two equal models, a batch and a loss."""
    make, batch, loss_fn = CASES[name]
    if name == "resnet18":
        pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = make().to(GPU)
    return model, copy.deepcopy(model), tuple(part.to(GPU) for part in batch), loss_fn


def eager(model: nn.Module, batch: Any, loss_fn: Any) -> Tensor:
    """A step as everyone writes it."""
    loss: Tensor = loss_fn(model(*batch[:-1]), batch[-1])
    loss.backward()
    return loss.detach()


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    """Whether all parameters, gradients and buffers are equal."""
    pairs = [(p.grad, q.grad) for p, q in zip(a.parameters(), b.parameters(), strict=True)]
    pairs += list(zip(a.parameters(), b.parameters(), strict=True))
    pairs += list(zip(a.buffers(), b.buffers(), strict=True))
    return all((p is None and q is None) or torch.equal(p, q) for p, q in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("budget", ["100%", "min"])
@pytest.mark.parametrize("name", ["convnet", "gpt", "resnet18"])
def test_the_same_bits_under_the_budget(name: str, budget: str, dtype: Any) -> None:
    """Loss, gradients and buffers are eager's, dropout in attention and cuDNN's batch norm included."""
    model, twin, batch, loss_fn = twins(name)
    casting = torch.autocast("cuda", dtype, enabled=dtype != torch.float32)
    with casting:
        step = scrimp.torch.fit(model, loss_fn, batch, budget, time_limit=1.0)
    held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
    for seed in range(2):
        for parameter in [*model.parameters(), *twin.parameters()]:
            parameter.grad = None
        libraries = kept_by_libraries(GPU)
        torch.manual_seed(seed)
        with casting:
            loss, peak, _ = measured(lambda: step(*batch), GPU)
        after = torch.cuda.get_rng_state()
        torch.manual_seed(seed)
        with casting:
            expected = loss_fn(twin(*batch[:-1]), batch[-1])
        expected.backward()
        assert torch.equal(loss, expected)
        assert torch.equal(after, torch.cuda.get_rng_state())
        assert same_bits(model, twin)
        # The first step compares with eager, within the same budget.
        assert held + libraries + peak <= step.peak
        assert step.peak - (held + libraries + peak) <= 0.03 * step.peak


@pytest.mark.parametrize("name", ["convnet", "gpt"])
def test_values_that_wait_in_ram(name: str) -> None:
    """With the optimizer in the step, whose state may wait too."""
    model, twin, batch, loss_fn = twins(name)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, twin))
    step = scrimp.torch.fit(
        model, loss_fn, batch, "min", optimizer=ours, swap="ram=64MiB@100GB/s", time_limit=1.0
    )
    assert any(kind == "bring" for kind, _ in step.plan.steps)
    for seed in range(4):
        torch.manual_seed(seed)
        loss, peak, _ = measured(lambda: step(*batch), GPU)
        torch.manual_seed(seed)
        assert torch.equal(loss, eager(twin, batch, loss_fn))
        theirs.step()
        theirs.zero_grad()
        assert same_bits(model, twin)
        assert peak <= step.peak


def test_a_wrapped_model() -> None:
    """Forward and backward apart, with a loss of one's own."""
    model, twin, batch, loss_fn = twins("gpt")
    wrapped = scrimp.torch.wrap(model, batch[:-1], budget="80%", time_limit=1.0)
    for seed in range(2):
        torch.manual_seed(seed)
        loss = loss_fn(wrapped(*batch[:-1]), batch[-1])
        loss.backward()
        torch.manual_seed(seed)
        assert torch.equal(loss, eager(twin, batch, loss_fn))
    assert same_bits(model, twin)


def test_budgets_and_batches() -> None:
    """A sweep's plans, and the largest batch."""
    model, twin, batch, loss_fn = twins("convnet")
    peaks = []
    for step in scrimp.torch.sweep(model, loss_fn, batch, ["100%", "80%"], time_limit=1.0):
        assert isinstance(step, scrimp.torch.Step)
        peaks.append(step.peak)
        model.load_state_dict(twin.state_dict())
        model.zero_grad()
        torch.manual_seed(1)
        loss = step(*batch)
        other = copy.deepcopy(twin)
        torch.manual_seed(1)
        assert torch.equal(loss, eager(other, batch, loss_fn))
        assert same_bits(model, other)
    samples = scrimp.torch.max_batch(model, loss_fn, batch, peaks[-1], time_limit=0.5)
    assert samples >= batch[0].shape[0]


def test_a_compiled_model() -> None:
    """PyTorch's own kernels in the order of a plan."""
    model, twin, batch, loss_fn = twins("resnet18")
    compiled = torch.compile(model, backend=scrimp.torch.backend("100%", time_limit=0.5), dynamic=False)
    assert torch.equal(eager(compiled, batch, loss_fn), eager(twin, batch, loss_fn))
    assert same_bits(model, twin)


def test_recurrent_layers_of_cudnn_are_refused() -> None:
    """Without cuDNN they run cell by cell, here as in eager."""
    model, twin, batch, loss_fn = twins("lstm")
    with pytest.raises(scrimp.Unsupported, match="kernel of cuDNN's"):
        scrimp.torch.fit(model, loss_fn, batch, "100%")
    with torch.backends.cudnn.flags(enabled=False):
        step = scrimp.torch.fit(model, loss_fn, batch, "100%", time_limit=0.5)
        assert torch.equal(step(*batch), eager(twin, batch, loss_fn))
        assert same_bits(model, twin)


SLAB = """
import copy, torch, scrimp.torch
scrimp.torch.use_slab()
from models import Gpt, token_loss
from scrimp._torch.slab import usage
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = Gpt().cuda()
twin = copy.deepcopy(model)
batch = torch.randint(0, 50, (6, 24), device="cuda"), torch.randint(0, 50, (6, 24), device="cuda")
step = scrimp.torch.fit(model, token_loss, batch, "min", time_limit=1.0)
for seed in range(4):
    model.zero_grad(), twin.zero_grad()
    torch.manual_seed(seed)
    loss = step(*batch)
    torch.manual_seed(seed)
    expected = token_loss(twin(batch[0]), batch[1])
    expected.backward()
    assert torch.equal(loss, expected)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters()))
assert usage()[2] > 0, "nothing came from the slab"
"""


def test_a_step_from_a_slab() -> None:
    """In a process of its own, since it replaces PyTorch's allocator."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    done = subprocess.run(
        [sys.executable, "-c", SLAB], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

"""Published models, where their packages are installed: eager's bits within what was promised."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from models import skip_unless_eager_can  # noqa: E402
from published import CASES, transformer, words  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from scrimp._torch.step import loss_of  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

CPU = torch.device("cpu")
LOWER = [
    "llama",
    "llama-lora",
    "gemma",
    "bert",
    "t5",
    "vit",
    "resnet50",
    "convnext",
    "lstm",
    "diffusion-unet",
]
ACCUMULATING = ["llama-padded", "mixtral", "swin", "regnet-channels-last", "gpt2"]
TABLE = [
    *((name, "float32") for name in CASES),
    *((name, "bfloat16") for name in LOWER),
    *((name, "accumulating") for name in ACCUMULATING),
]


@pytest.mark.parametrize(("name", "how"), TABLE)
def test_eagers_bits_in_fewer_bytes(name: str, how: str) -> None:
    """At the least budget that is found; the first step is verified, too."""
    torch.manual_seed(0)
    model, batch, loss_fn = CASES[name]()
    twin = copy.deepcopy(model)
    accumulate = how == "accumulating"
    autocast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=how == "bfloat16")
    if name == "lstm":
        with autocast():
            skip_unless_eager_can(lambda: loss_of(copy.deepcopy(model), loss_fn, batch))
    with autocast():
        step = scrimp.torch.fit(model, loss_fn, batch, "min", time_limit=1.0, accumulate=accumulate)
    assert step.peak < step.plan.base_peak
    for seed in range(1 + accumulate):
        given = [p.grad for p in model.parameters() if p.grad is not None]
        held = storage_bytes([*model.parameters(), *model.buffers(), *tensors(batch), *given])
        torch.manual_seed(seed)
        with autocast():
            loss, peak, _ = measured(functools.partial(run, step, batch), CPU)
        assert held + peak <= step.peak
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        with autocast():
            expected = loss_of(twin, loss_fn, batch)
        expected.backward()
        assert torch.equal(loss, expected.detach())
        assert torch.equal(after, torch.get_rng_state())
        pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)]
        pairs += zip(model.buffers(), twin.buffers(), strict=True)
        assert all((p is None and q is None) or torch.equal(p, q) for p, q in pairs)


def run(step: Any, batch: Any) -> Any:
    """A step on a batch of either kind."""
    return step(**batch) if isinstance(batch, dict) else step(*batch)


def tensors(batch: Any) -> list[Any]:
    """What of a batch takes memory."""
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def test_experts_in_a_loop_are_refused() -> None:
    """Which of them have tokens depends on weights that are trained."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 96}
    options = {**sizes, "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4}
    model = transformer("MixtralForCausalLM", "MixtralConfig", {**options, "experts_implementation": "eager"})
    with pytest.raises(scrimp.Unsupported, match=r"nonzero.* in model\.layers\.0\.mlp\.experts"):
        scrimp.torch.wrap(model, {"input_ids": words(2, 8)}, "100%")

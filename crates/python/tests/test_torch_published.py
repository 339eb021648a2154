"""Published models, where torchvision, timm and transformers are installed: the same bits as eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from models import token_loss  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def vision(name: str) -> nn.Module:
    """One of torchvision's."""
    models: Any = pytest.importorskip("torchvision").models
    if name == "densenet":
        return models.DenseNet(growth_rate=16, block_config=(3, 6, 4), num_init_features=32, num_classes=10)
    return getattr(models, name)(num_classes=10)


def transformer() -> nn.Module:
    """A vision transformer with every kind of dropout it has."""
    timm: Any = pytest.importorskip("timm")
    rates = {"drop_rate": 0.1, "proj_drop_rate": 0.1, "attn_drop_rate": 0.1, "drop_path_rate": 0.1}
    return timm.create_model("vit_tiny_patch16_224", img_size=64, depth=4, num_classes=10, **rates)


def language() -> nn.Module:
    """GPT-2 with random weights and dropout."""
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=3, n_embd=96, n_head=4, vocab_size=500, use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def language_loss(output: Any, target: Tensor) -> Tensor:
    """From what transformers' models return."""
    return token_loss(output.logits, target)


@pytest.mark.parametrize("name", ["resnet50", "vgg11_bn", "densenet", "vit", "gpt2"])
def test_published_models(name: str) -> None:
    """At the least budget that is found, and a little more."""
    torch.manual_seed(0)
    loss_fn: Any = F.cross_entropy
    batch = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
    if name == "gpt2":
        model, loss_fn = language(), language_loss
        batch = torch.randint(0, 500, (2, 64)), torch.randint(0, 500, (2, 64))
    else:
        model = transformer() if name == "vit" else vision(name)
    twin = copy.deepcopy(model)
    options: dict[str, Any] = {"costs": "estimate", "time_limit": 2.0}
    least = scrimp.torch.fit(model, loss_fn, batch, "min", **options)
    step = scrimp.torch.fit(model, loss_fn, batch, least.plan.budget * 21 // 20, **options)
    # In VGG, parameters and their gradients take more than all activations.
    assert least.plan.recomputed > 0 or name == "vgg11_bn"
    for run in (step, least):
        torch.manual_seed(1)
        model.zero_grad(set_to_none=True)
        loss = run(*batch)
        torch.manual_seed(1)
        twin.zero_grad(set_to_none=True)
        expected = loss_fn(twin(batch[0]), batch[1])
        expected.backward()
        assert torch.equal(loss, expected.detach())
        pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)]
        pairs += zip(model.buffers(), twin.buffers(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)

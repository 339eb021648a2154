"""Published models, where torchvision, timm and transformers are installed: the same bits as eager."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from models import token_loss  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def vision(name: str) -> nn.Module:
    """One of torchvision's."""
    models: Any = pytest.importorskip("torchvision").models
    if name == "densenet":
        return models.DenseNet(growth_rate=16, block_config=(3, 6, 4), num_init_features=32, num_classes=10)
    model = getattr(models, name)(num_classes=10)
    if name == "vgg11_bn":
        # Its own has ten times the parameters of all the rest.
        model.classifier = nn.Linear(512 * 7 * 7, 10)
    return model


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


NAMES = ["resnet18", "resnet50", "vgg11_bn", "densenet", "vit", "gpt2"]


@pytest.mark.parametrize("lower", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_published_models(name: str, lower: bool) -> None:
    """At the least budget that is found, in float32 and under autocast."""
    torch.manual_seed(0)
    loss_fn: Any = F.cross_entropy
    images = 16 if lower else 8
    batch = torch.randn(images, 3, 64, 64), torch.randint(0, 10, (images,))
    if name == "gpt2":
        model, loss_fn = language(), language_loss
        batch = torch.randint(0, 500, (2, 64)), torch.randint(0, 500, (2, 64))
    else:
        model = transformer() if name == "vit" else vision(name)
    twin = copy.deepcopy(model)
    autocast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=lower)
    with autocast():
        step = scrimp.torch.fit(model, loss_fn, batch, "min", time_limit=1.0)
        assert step.plan.recomputed > 0
        torch.manual_seed(1)
        loss, peak, _ = measured(lambda: step(*batch), torch.device("cpu"))
    held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
    assert held + peak <= step.peak
    torch.manual_seed(1)
    with autocast():
        expected = loss_fn(twin(batch[0]), batch[1])
    expected.backward()
    assert torch.equal(loss, expected.detach())
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)]
    pairs += zip(model.buffers(), twin.buffers(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)

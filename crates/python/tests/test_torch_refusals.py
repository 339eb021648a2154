"""What can't be planned ends in a sentence that says what to do, never in PyTorch's own words alone."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

OPTIONS: dict[str, Any] = {"costs": "estimate", "time_limit": 0.1}
X, T = torch.randn(4, 8), torch.randn(4, 8)
WORDS = torch.randint(0, 10, (4, 3))


def net() -> nn.Sequential:
    """A small one."""
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


class Words(nn.Module):
    """A mean of embeddings."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 8, **options), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.head(self.words(x).mean(1))
        return mixed


class Checkpointed(nn.Module):
    """By PyTorch's own function."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.net, self.reentrant = net(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        again: Tensor = checkpoint(self.net, x, use_reentrant=self.reentrant)
        return again


def fit(model: Any, *batch: Any, loss_fn: Any = F.mse_loss, budget: Any = "100%", **options: Any) -> Any:
    """As a user would."""
    return scrimp.torch.fit(model, loss_fn, batch or (X, T), budget, **{**OPTIONS, **options})


def inference(make: Callable[[], Any]) -> Any:
    """Under inference mode."""
    with torch.inference_mode():
        return make()


def pruned() -> nn.Module:
    """With PyTorch's hook."""
    layer = nn.Linear(8, 8)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


def old(norm: Callable[[nn.Linear], Any]) -> nn.Module:
    """With PyTorch's former way to parametrize."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(norm(nn.Linear(8, 8)))


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "inference mode": (lambda: inference(lambda: fit(net())), "inference_mode"),
    "parameters of inference mode": (lambda: fit(inference(net)), r"0\.weight was made under"),
    "a sparse embedding": (lambda: fit(Words(sparse=True), WORDS, T), "'words' has sparse gr.*sparse=False"),
    "an embedding with a norm": (lambda: fit(Words(max_norm=1.0), WORDS, T), "'words' scales its weights"),
    "a lazy layer": (
        lambda: fit(nn.Sequential(nn.LazyLinear(8))),
        "'0' has no sizes yet; call the model once",
    ),
    "old weight norm": (lambda: fit(old(weight_norm)), "parametrizations.weight_norm"),
    "old spectral norm": (lambda: fit(old(spectral_norm)), "parametrizations.spectral_norm"),
    "pruning": (lambda: fit(pruned()), "prune.remove"),
    "reentrant checkpoints": (lambda: fit(Checkpointed(True)), "torch.utils.checkpoint; the plan itself"),
    "checkpoints": (lambda: fit(Checkpointed(False)), "torch.utils.checkpoint; the plan itself"),
    "data parallel": (lambda: fit(nn.DataParallel(net())), "give its model.module"),
    "a wrapped one": (lambda: scrimp.torch.wrap(nn.DataParallel(net()), (X,), "100%"), "model.module"),
    "a compiled model": (lambda: fit(torch.compile(net(), backend="eager")), "_orig_mod"),
    "TorchScript": (lambda: fit(torch.jit.trace(net(), X)), "the model it was made from"),
    "a class": (lambda: fit(nn.Linear), "the class Linear"),
    "no model": (lambda: fit(lambda x: x), "a function, but must be a torch.nn.Module"),
    "a class of losses": (lambda: fit(net(), loss_fn=nn.MSELoss), r"MSELoss\(\)"),
    "no loss": (lambda: fit(net(), loss_fn="mse"), "the loss is 'mse'"),
    "two losses": (lambda: fit(net(), loss_fn=lambda y, t: (y.sum(), t.sum())), "of the 2 parts"),
    "a detached loss": (lambda: fit(net(), loss_fn=lambda y, t: y.detach().sum()), "doesn't depend on any"),
    "a complex loss": (lambda: fit(net(), loss_fn=lambda y, t: torch.fft.rfft(y).sum()), "complex number"),
    "a frozen model": (lambda: fit(net().requires_grad_(False)), "unfreeze some"),
    "an empty batch": (lambda: fit(net(), X[:0], T[:0]), "no samples"),
    "a sparse batch": (lambda: fit(net(), X.to_sparse(), T), "tensor 0 of the batch is a sparse_coo"),
    "another device": (lambda: fit(net(), X.to("meta"), T), "several devices"),
    "150%": (lambda: fit(net(), budget="150%"), "more than everything"),
    "150% of a module": (lambda: scrimp.torch.wrap(net(), (X,), "150%"), "more than everything"),
    "150% of a graph": (lambda: scrimp.torch.backend("150%"), "more than everything"),
    "150% in a sweep": (
        lambda: scrimp.torch.sweep(net(), F.mse_loss, (X, T), ["150%"], **OPTIONS),
        "more than everything",
    ),
    "one budget in a sweep": (
        lambda: scrimp.torch.sweep(net(), F.mse_loss, (X, T), "60%"),
        "a list of budgets",
    ),
    "no budget": (lambda: fit(net(), budget=None), "the budget is None"),
    "a fraction": (lambda: fit(net(), budget=0.6), "the budget is 0.6"),
    "a reserve in words": (lambda: fit(net(), reserve="1GiB"), "reserve is '1GiB'"),
    "a negative seed": (lambda: fit(net(), seed=-1), "seed is -1"),
}


@pytest.mark.parametrize("what", CASES)
def test_it_is_refused(what: str) -> None:
    """With a sentence of ours."""
    attempt, sentence = CASES[what]
    with pytest.raises((scrimp.Unsupported, scrimp.BadOption), match=sentence):
        attempt()


def test_the_remedies_work() -> None:
    """What the sentences advise instead."""
    fit(parametrizations.weight_norm(nn.Linear(8, 8)))
    layer = pruned()
    prune.remove(layer, "weight")
    fit(layer)
    lazy = nn.Sequential(nn.LazyLinear(8))
    lazy(X)
    step = fit(lazy)
    step(X, T)
    with pytest.raises(scrimp.Unsupported, match="inference_mode"):
        inference(lambda: step(X, T))


def test_checkpointing_of_transformers() -> None:
    """Turned on it is named, turned off again the model trains."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=32
    )
    model = transformers.LlamaForCausalLM(config).train()
    batch = {"input_ids": torch.randint(0, 32, (2, 8)), "labels": torch.randint(0, 32, (2, 8))}

    def attempt() -> Any:
        return scrimp.torch.fit(model, lambda output: output.loss, batch, "100%", **OPTIONS)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.gradient_checkpointing_enable()
        with pytest.raises(scrimp.Unsupported, match=r"'model' computes .*_disable\(\)"):
            attempt()
        model.gradient_checkpointing_disable()
    attempt()(**batch)


def test_evaluation_mode_is_said() -> None:
    """Where it makes a difference, once, and it is planned all the same."""
    with pytest.warns(UserWarning, match=r"evaluation mode, in which '1'.*model\.train\(\)"):
        fit(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(net().eval())


class Attention(nn.Module):
    """Without a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.into(x).chunk(3, -1)
        mixed: Tensor = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return mixed


FLOORS: dict[str, tuple[Callable[[], nn.Module], Any, Any, str]] = {
    "a vocabulary": (
        lambda: nn.Sequential(nn.Embedding(500, 8), nn.Linear(8, 500)),
        torch.randint(0, 500, (64,)),
        F.cross_entropy,
        "log_softmax.* in the loss, .* scores of 500 classes at each of 64 places",
    ),
    "a vocabulary in the second dimension": (
        lambda: nn.Sequential(nn.Embedding(500, 8), nn.Linear(8, 500)),
        torch.randint(0, 500, (2, 32)),
        lambda y, t: F.cross_entropy(y.transpose(1, 2), t),
        "log_softmax.* in the loss, .* scores of 500 classes at each of 64 places",
    ),
    "attention": (
        Attention,
        torch.randn(2, 128, 8),
        lambda y, t: y.square().mean(),
        "softmax.* in the loss, or in the model .*scaled_dot_product_attention",
    ),
    "gradients": (
        lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))),
        torch.randn(2, 64),
        F.mse_loss,
        "the end of the step: .* LoRA",
    ),
}


@pytest.mark.parametrize("what", FLOORS)
def test_a_floor_is_named(what: str) -> None:
    """With what would lower it; the least budget that is named works, in bytes and as a percentage."""
    make, x, loss_fn, sentence = FLOORS[what]
    model = make()
    with pytest.raises(scrimp.Infeasible, match=sentence) as caught:
        fit(model, x, x, loss_fn=loss_fn, budget="1%")
    error = caught.value
    named = re.search(r"is (\d+) bytes \(.*\), or '(\d+%)'", str(error))
    assert named is not None
    assert int(named[1]) == error.least_found
    assert fit(model, x, x, loss_fn=loss_fn, budget=error.least_found).peak <= error.least_found
    assert fit(model, x, x, loss_fn=loss_fn, budget=named[2]).peak <= fit(model, x, x, loss_fn=loss_fn).peak
    with pytest.raises(scrimp.Infeasible, match=r"if you mean percent, write '60%'"):
        fit(model, x, x, loss_fn=loss_fn, budget=60)


def test_a_sweep_names_no_more_than_it_found() -> None:
    """The least budget in a message is one of a plan that is known."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())))
    found = scrimp.torch.sweep(
        model, F.mse_loss, (torch.randn(64, 16),) * 2, ["60%", "1%", "100%"], **OPTIONS
    )
    least = min(step.peak for step in found if isinstance(step, scrimp.torch.Step))
    error = found[1]
    assert isinstance(error, scrimp.Infeasible)
    assert error.least_found <= least

"""What models ask about contents while they are captured: answered as eager would, and asked again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402


class Asks(nn.Module):
    """A layer, and a mask of places that count."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(()))


class Branches(Asks):
    """Takes another activation if nothing is masked."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.layer(x)
        return h.relu() if mask.all() else h.masked_fill(~mask[..., None], 0).sigmoid()


class Selects(Asks):
    """Goes on with what a mask selects, and with a number read from it."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.masked_select(self.layer(x), mask[..., None]) * mask.sum().item()


class Compares(Asks):
    """Asks about two tensors, at places that are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.least: Tensor
        self.register_buffer("least", torch.tensor([[[4.0]]]))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.layer(x)
        return h.relu() if (mask.sum(1)[[0, -1]] > self.least[0, 0, 0]).all() else h.sigmoid()


class Routes(Asks):
    """Takes a course that depends on its weights."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.layer(x)
        return h if (h > 0).all() else h * 2


class Tosses(Asks):
    """Takes a course at random."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x) * (2 if torch.rand(()).item() < 0.5 else 1)


class Counts(Asks):
    """Takes a course that its own steps change."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        self.seen.add_(1)
        return self.layer(x) * float(self.seen)


def batches() -> tuple[Tensor, list[Tensor]]:
    """An input, and masks: two that say the same of it, and one that doesn't."""
    draw = torch.Generator().manual_seed(0)
    full = torch.ones(3, 5, dtype=torch.bool)
    padded = full.clone()
    padded[0, 3:] = False
    return torch.randn(3, 5, 8, generator=draw), [full, padded, padded.flip(0)]


def total(output: Tensor, target: Tensor) -> Tensor:
    """A loss."""
    return output.sum() + 0 * target.sum()


@pytest.mark.parametrize("kind", [Branches, Selects, Compares])
def test_each_answer_has_its_plan(kind: type[nn.Module]) -> None:
    """A mask that hides something takes another course; the next such mask takes the same."""
    x, (full, padded, other) = batches()
    model = kind()
    twin = copy.deepcopy(model)
    step = scrimp.torch.fit(model, total, (x, full, x), "100%", time_limit=0.5)
    for mask, plans in ((full, 1), (padded, 2), (full, 2), (other, 2)):
        for parameter in [*model.parameters(), *twin.parameters()]:
            parameter.grad = None
        loss = step(x, mask, x)
        expected = total(twin(x, mask), x)
        expected.backward()
        assert torch.equal(loss, expected.detach())
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
        assert len(step._plans) == plans


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [(Routes, "come from parameters"), (Tosses, "drawn at random"), (Counts, "'seen', which every step")],
)
def test_courses_that_no_plan_can_follow(kind: type[nn.Module], sentence: str) -> None:
    """Refused, by the operator and why."""
    x, (full, *_) = batches()
    with pytest.raises(scrimp.Unsupported, match=sentence):
        scrimp.torch.wrap(kind(), (x, full), "100%", time_limit=0.5)


def test_more_answers_than_plans() -> None:
    """Refused, with what is asked."""
    x, masks = batches()
    step: Any = scrimp.torch.fit(Branches(), total, (x, masks[0], x), "100%", time_limit=0.5, max_shapes=1)
    with pytest.raises(scrimp.BadOption, match="_local_scalar_dense"):
        step(x, masks[1], x)


def test_grouped_heads_run_as_in_eager() -> None:
    """No mask is made where eager makes none, and keys aren't repeated."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 50}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config)
    x = torch.randint(0, 50, (2, 16))
    batch = {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x}
    step = scrimp.torch.fit(model, lambda output: output.loss, batch, "100%", time_limit=0.5)
    (attention,) = (
        t for t in step._plans.latest.tasks.tasks if "attention" in str(t.node.target) and not t.backward
    )
    query, key, *_ = attention.node.all_input_nodes
    assert query.meta["val"].shape[1] == 2 * key.meta["val"].shape[1]
    assert "attn_mask" not in attention.node.kwargs


def test_widths_that_round_otherwise_are_named() -> None:
    """Recurrent cells whose gradients differ from eager's in the last bits."""
    x = torch.randn(3, 2, 8)
    with pytest.warns(UserWarning, match="GRU '0' .* 48"):
        scrimp.torch.fit(
            nn.Sequential(nn.GRU(8, 48)), lambda o: o[0].sum(), (x,), "100%", costs="estimate", time_limit=0.2
        )


class Encoder(nn.Module):
    """Gives a distribution, from which the loss draws."""

    def __init__(self, check: bool | None) -> None:
        super().__init__()
        self.mean, self.scale = nn.Linear(4, 3), nn.Linear(4, 3)
        self.check = check

    def forward(self, x: Tensor) -> Tensor:
        made = torch.distributions.Normal(self.mean(x), self.scale(x).exp(), validate_args=self.check)
        draw = made.rsample()
        return (draw.square() - made.log_prob(draw)).mean()


def test_distributions_that_check_their_arguments() -> None:
    """They look at what comes from parameters; the sentence says how to turn that off."""
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    with pytest.raises(scrimp.Unsupported, match="validate_args=False"):
        scrimp.torch.fit(Encoder(None), None, x, "100%", costs="estimate")
    model = Encoder(False)
    twin = copy.deepcopy(model)
    step = scrimp.torch.fit(model, None, x, "100%", costs="estimate", time_limit=0.5)
    torch.manual_seed(1)
    loss = step(x)
    torch.manual_seed(1)
    expected = twin(x)
    expected.backward()
    assert torch.equal(loss, expected.detach())
    assert torch.equal(model.scale.weight.grad, twin.scale.weight.grad)

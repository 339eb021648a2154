"""scrimp.torch.wrap and the backend for torch.compile against eager PyTorch."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from models import cases  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from torch import Tensor, nn  # noqa: E402

CPU = torch.device("cpu")
CASES = cases()


def one_step(run: Callable[..., Any], batch: Any, loss_fn: Any) -> Tensor:
    """Forward and backward."""
    loss: Tensor = loss_fn(run(*batch[:-1]), batch[-1])
    loss.backward()
    return loss.detach()


def eager_against(
    model: nn.Module, twin: nn.Module, call: Callable[..., Any], batch: Any, loss_fn: Any
) -> int:
    """Check that two steps are the same bits; give the most bytes in use in the second."""
    peak = 0
    for seed in range(2):
        for parameter in [*model.parameters(), *twin.parameters()]:
            parameter.grad = None

        torch.manual_seed(seed)
        loss, peak, _ = measured(functools.partial(one_step, call, batch, loss_fn), CPU)
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(loss, one_step(twin, batch, loss_fn))
        assert torch.equal(after, torch.get_rng_state())
        pairs = [*zip(model.parameters(), twin.parameters(), strict=True)]
        assert all(torch.equal(p.grad, q.grad) for p, q in pairs)
        assert all(torch.equal(p, q) for p, q in zip(model.buffers(), twin.buffers(), strict=True))
    return peak + storage_bytes([*model.parameters(), *model.buffers(), *batch[:-1]])


def twins(name: str) -> tuple[nn.Module, nn.Module, Any, Any]:
    """Two equal models, a batch and a loss."""
    make, batch, loss_fn = CASES[name]
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model), batch, loss_fn


@pytest.mark.parametrize("budget", ["100%", "75%"])
@pytest.mark.parametrize("name", ["convnet", "unet", "gpt"])
def test_wrapped_modules(name: str, budget: str) -> None:
    """Any loss, ordinary autograd: the same bits, and less memory."""
    model, twin, batch, loss_fn = twins(name)
    wrapped = scrimp.torch.wrap(model, batch[:-1], budget, time_limit=1.0)
    peak = eager_against(model, twin, wrapped, batch, loss_fn)
    # The loss's own tensors are not the module's; here they are smaller than two outputs.
    with torch.no_grad():
        outputs = storage_bytes([wrapped(*batch[:-1])])
    assert peak <= wrapped.peak + 2 * outputs
    if budget != "100%":
        assert wrapped.plan.recomputed > 0
        assert "beyond each operator's first" in wrapped.explain()


@pytest.mark.parametrize("budget", ["100%", "75%"])
@pytest.mark.parametrize("name", ["convnet", "unet", "gpt"])
def test_the_backend(name: str, budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled regions follow a plan each, with eager's bits; operators are measured meanwhile."""
    monkeypatch.setenv("SCRIMP_CACHE", str(tmp_path))
    model, twin, batch, loss_fn = twins(name)
    torch._dynamo.reset()
    backend = scrimp.torch.backend(budget, time_limit=1.0)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    torch.manual_seed(0)
    loss_fn(compiled(*batch[:-1]), batch[-1]).backward()
    model.load_state_dict(twin.state_dict())
    peak = eager_against(model, twin, compiled, batch, loss_fn)
    (made,) = backend.plans
    with torch.no_grad():
        outputs = storage_bytes([twin(*batch[:-1])])
    assert peak <= made.peak + 2 * outputs
    if budget != "100%":
        assert made.recomputed > 0


def test_two_regions_share_a_budget() -> None:
    """A graph break makes two graphs, planned for themselves."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(torch.tanh(self.a(x)))
            torch._dynamo.graph_break()
            return torch.tanh(torch.tanh(self.b(x)))

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Broken()
    twin = copy.deepcopy(model)
    backend = scrimp.torch.backend("2MiB", graphs=2, costs="estimate", time_limit=0.5)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    x = torch.randn(64, 32)
    compiled(x).square().sum().backward()
    twin(x).square().sum().backward()
    first, second = backend.plans
    assert first.budget == 1 << 20
    # The second gets what the first doesn't keep.
    assert 1 << 20 < second.budget < 2 << 20
    assert first.peak + second.fixed <= 2 << 20
    assert backend.explain().count("the peak is at") == 2
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for p, q in pairs)


def test_sizes_that_vary_get_a_sentence() -> None:
    """A plan is for one size."""
    torch._dynamo.reset()
    backend = scrimp.torch.backend("80%", costs="estimate")
    compiled = torch.compile(nn.Linear(4, 4), backend=backend, dynamic=True)
    with pytest.raises(Exception, match="dynamic=False"):
        compiled(torch.randn(3, 4)).sum().backward()


def test_the_partitioner_can_be_pickled() -> None:
    """As caches of compiled code want; a callback stays behind."""
    made = scrimp.torch.partitioner("60%", progress=lambda line: None)
    again = pickle.loads(pickle.dumps(made))
    assert again.settings.budget == "60%"
    assert again.settings.progress is None


class Several(nn.Module):
    """Two outputs, one without gradients, one of them unused by the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        hidden = torch.relu(self.a(x)) * scale
        return {"out": self.b(hidden), "hidden": hidden, "best": hidden.argmax(1)}


def test_outputs_of_any_form() -> None:
    """A dictionary, an integer tensor, an output that the loss leaves out, a batch that needs gradients."""
    torch.manual_seed(0)
    model = Several()
    twin = copy.deepcopy(model)
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    y.copy_(x.detach()).requires_grad_()
    wrapped = scrimp.torch.wrap(model, {"x": x, "scale": 2.0}, "100%", costs="estimate")
    mine, theirs = wrapped(x=x, scale=2.0), twin(y, 2.0)
    assert mine.keys() == theirs.keys()
    assert torch.equal(mine["best"], theirs["best"])
    assert not mine["best"].requires_grad
    mine["out"].sum().backward()
    theirs["out"].sum().backward()
    assert torch.equal(x.grad, y.grad)
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for p, q in pairs)


class Tasks(nn.Module):
    """A trunk and a head for each of several tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 2) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return [head(hidden) for head in self.heads]


def test_unused_outputs_leave_their_parameters_alone() -> None:
    """As in eager they get no gradient, so that weight decay and momentum don't move them."""
    torch.manual_seed(0)
    model = Tasks()
    twin = copy.deepcopy(model)
    scrimp.torch.wrap(model, torch.randn(3, 4), "100%", costs="estimate", time_limit=0.5)
    mine, eagers = (torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.5) for m in (model, twin))
    for used in ([0], [1, 2], [0]):
        x = torch.randn(3, 4)
        for one, optimizer in ((model, mine), (twin, eagers)):
            outputs = one(x)
            sum(outputs[i].square().sum() for i in used).backward()
            assert [head.weight.grad is not None for head in one.heads] == [i in used for i in range(3)]
            optimizer.step()
            optimizer.zero_grad()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def test_in_a_larger_model() -> None:
    """Between other layers, used twice in one step, with gradient accumulation."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    twin = copy.deepcopy(inner)
    wrapped = scrimp.torch.wrap(inner, torch.randn(5, 8, requires_grad=True), "100%", costs="estimate")
    x = torch.randn(5, 8)

    def run(layer: nn.Module) -> None:
        for _ in range(2):
            layer(torch.tanh(layer(torch.sin(x * 1.5)) + x)).sum().backward()

    run(wrapped)
    run(twin)
    pairs = zip(inner.parameters(), twin.parameters(), strict=True)
    assert all(torch.allclose(p.grad, q.grad, rtol=1e-6, atol=1e-6) for p, q in pairs)


def test_without_gradients_the_model_itself_runs() -> None:
    """Evaluation needs no plan."""
    model, twin, batch, _ = twins("convnet")
    wrapped = scrimp.torch.wrap(model, batch[:-1], "100%", costs="estimate")
    wrapped.eval()
    twin.eval()
    with torch.no_grad():
        assert torch.equal(wrapped(batch[0]), twin(batch[0]))
        assert wrapped(batch[0][:2]).shape == (2, 10)
    assert len(wrapped.scrimp) == 1


class Actor(nn.Module):
    """Has names of its own that a plan has too, and Python values among its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.plan = nn.Linear(4, 8), nn.Linear(8, 2)
        self.temperature = 2.0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Any:
        """Layers, a tensor that comes twice, and what is no tensor."""
        hidden = torch.tanh(self.policy(x))
        return {"a": self.plan(torch.tanh(hidden)) * scale, "b": (hidden, hidden, None, 3)}

    def act(self, x: Tensor) -> Tensor:
        """Through itself."""
        return self(x)["a"].argmax(1)


def test_the_model_keeps_its_face() -> None:
    """The same object, with all that it has; then as before."""
    model, x = Actor(), torch.randn(3, 4)
    twin, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.1)
    seen: list[Any] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output))
    wrapped: Any = scrimp.torch.wrap(model, budget="100%", costs="estimate")
    assert id(wrapped) == id(model)
    assert type(model) is not Actor
    assert isinstance(model, Actor)
    assert (type(model).__name__, type(model).__module__) == ("Actor", __name__)
    assert inspect.signature(model.forward) == inspect.signature(twin.forward)
    assert str(model) == str(twin)
    assert list(model.state_dict()) == list(twin.state_dict())
    assert model.temperature == 2.0
    assert isinstance(wrapped.plan, nn.Linear)
    with pytest.raises(AttributeError, match="'Actor' object has no attribute 'nothing'"):
        wrapped.nothing  # noqa: B018
    with torch.no_grad():
        assert torch.equal(wrapped.act(x), twin.act(x))
    output = wrapped(x, scale=0.5)
    assert seen[-1] is output
    assert output["b"][0] is output["b"][1]
    assert output["b"][2:] == (None, 3)
    for result in (output, twin(x, scale=0.5)):
        result["a"].square().sum().backward()
    optimizer.step()
    torch.optim.SGD(twin.parameters(), 0.1).step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert wrapped.explain() == wrapped.scrimp.explain()
    assert scrimp.torch.unwrap(model) is model
    assert type(model) is Actor
    with pytest.raises(scrimp.BadOption, match="isn't planned"):
        scrimp.torch.unwrap(model)


@pytest.mark.filterwarnings("ignore")
def test_exported_and_traced_it_is_the_model_itself() -> None:
    """With gradients on, too; transforms of torch.func are refused."""
    model, twin, (x, y), loss_fn = twins("unet")
    scrimp.torch.wrap(model, (x,), "100%", costs="estimate", time_limit=0.5)
    expected = twin(x)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)
    assert torch.equal(torch.jit.trace(model, x, check_trace=False)(x), expected)
    parameters = dict(model.named_parameters())
    with pytest.raises(scrimp.Unsupported, match=r"torch\.func"):
        torch.func.grad(lambda p: loss_fn(torch.func.functional_call(model, p, (x,)), y))(parameters)


def test_copies_and_pickles_have_plans_of_their_own() -> None:
    """By every way that PyTorch's users take; also for averages of weights."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(3, 4)
    wrapped: Any = scrimp.torch.wrap(model, x, "100%", costs="estimate", progress=lambda line: None)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies: list[Any] = [
        *(copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))),
        *(torch.load(file, weights_only=False), torch.optim.swa_utils.AveragedModel(model).module),
    ]
    expected = torch.autograd.grad(wrapped(x).sum(), wrapped[0].weight)[0]
    for other in copies:
        assert type(other).__mro__ == type(model).__mro__
        assert torch.equal(torch.autograd.grad(other(x).sum(), other[0].weight)[0], expected)
        assert other.scrimp.model is other
        assert len(other.scrimp) == 1
    assert len(wrapped.scrimp) == 1


def test_what_is_compiled_around_a_planned_model() -> None:
    """The plan runs as it is; the same bits."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(3, 4)
    expected = torch.autograd.grad(model(x).sum(), model[0].weight)[0]
    wrapped = scrimp.torch.wrap(model, budget="100%", costs="estimate")
    compiled = torch.compile(wrapped, backend="eager")
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), model[0].weight)[0], expected)
    assert len(wrapped.scrimp) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0


def test_planned_twice_and_forwards_that_were_replaced() -> None:
    """Sentences for plans within plans; another budget for the same model is fine."""
    inner: Any = nn.Linear(4, 4)
    model, x = nn.Sequential(inner, nn.Tanh()), torch.randn(3, 4)
    scrimp.torch.wrap(inner, x, "100%", costs="estimate")
    with pytest.raises(scrimp.BadOption, match="its module '0' is planned"):
        scrimp.torch.wrap(model, x, "100%", costs="estimate")
    with pytest.raises(scrimp.BadOption, match="the model is planned"):
        scrimp.torch.fit(inner, torch.sum, (x,), "100%", costs="estimate")
    assert scrimp.torch.wrap(inner, x, "min", costs="estimate").plan.budget <= inner.scrimp.peak
    scrimp.torch.unwrap(inner)
    inner.forward = functools.partial(inner.forward)
    with pytest.raises(scrimp.Unsupported, match="forward was replaced on this Linear"):
        scrimp.torch.wrap(inner, x, "100%", costs="estimate")
    # What can't be planned stays as it was.
    frozen = nn.Linear(4, 4).requires_grad_(False)
    with pytest.raises(scrimp.BadOption, match="nothing to plan"):
        scrimp.torch.wrap(frozen, x, "100%", costs="estimate")
    assert type(frozen) is nn.Linear


class Scored(nn.Module):
    """Returns its loss, and what it is the loss of."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 16))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The loss comes last."""
        logits = self.body(x)
        return {"logits": logits, "loss": logits.logsumexp(1).mean()}


def test_the_update_stays_the_callers() -> None:
    """An optimizer is refused with the function that takes it, before the model is changed."""
    model = nn.Linear(3, 2)
    with pytest.raises(scrimp.Unsupported, match=r"scrimp\.torch\.fit"):
        scrimp.torch.wrap(model, budget="1GiB", optimizer=torch.optim.SGD(model.parameters()))
    assert type(model) is nn.Linear


def test_models_that_return_their_loss() -> None:
    """Gradients of the loss alone are planned, unless more are asked for; nothing is wrong silently."""
    model, x = Scored(), torch.randn(3, 4)
    twin = copy.deepcopy(model)
    wrapped = scrimp.torch.wrap(model, x, "100%", costs="estimate")
    alone = wrapped.peak
    output, expected = wrapped(x), twin(x)
    assert torch.equal(output["logits"], expected["logits"])
    output["loss"].backward()
    expected["loss"].backward()
    assert all(
        torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    output = wrapped(x)
    with pytest.raises(scrimp.Unsupported, match=r"shape \(3, 16\) was used .* loss_only=False"):
        (output["loss"] + output["logits"].sum()).backward()
    wrapped = scrimp.torch.wrap(model, x, "100%", costs="estimate", loss_only=False)
    assert wrapped.peak > alone
    for both in (model, twin):
        both.zero_grad()
        output = both(x)
        (output["loss"] + output["logits"].sum()).backward()
    assert all(
        torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_percentages_of_smaller_batches() -> None:
    """The last batch of an epoch is smaller; what the others take is there for it, too."""
    model, _, (x, _), _ = twins("convnet")
    wrapped = scrimp.torch.wrap(model, x[:4], "80%", costs="estimate", time_limit=0.3)
    middle = wrapped.plan.budget
    wrapped(x[:1])
    assert wrapped.plan.budget == middle
    wrapped(x)
    assert wrapped.plan.budget > middle
    wrapped(x[:2])
    assert wrapped.plan.budget > middle


def test_wrong_use() -> None:
    """Double backward, a second backward, a returned input, frozen models."""
    layer, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)
    wrapped = scrimp.torch.wrap(layer, x, "100%", costs="estimate")
    out = wrapped(x).sum()
    with pytest.raises(scrimp.Unsupported, match="create_graph"):
        torch.autograd.grad(out, list(layer.parameters()), create_graph=True)
    out = wrapped(x).sum()
    out.backward(retain_graph=True)
    with pytest.raises(scrimp.Unsupported, match="second time"):
        out.backward()

    class Echo(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    with pytest.raises(scrimp.Unsupported, match="one of its inputs"):
        scrimp.torch.wrap(Echo(3, 3), x, "100%", costs="estimate")
    frozen = nn.Linear(3, 3).requires_grad_(False)
    with pytest.raises(scrimp.BadOption, match="nothing to plan"):
        scrimp.torch.wrap(frozen, x, "100%", costs="estimate")


def test_hooks_of_parameters_are_called() -> None:
    """Gradients come to parameters through autograd, which calls them; those of modules get a sentence."""
    inner, x = nn.Linear(3, 3), torch.randn(2, 3)
    layer = nn.Sequential(inner, nn.Tanh())
    twin = copy.deepcopy(layer)
    expected = 2 * torch.autograd.grad(twin(x).sum(), twin.parameters())[0]
    called: list[str] = []
    inner.weight.register_hook(lambda g: g * 2)
    inner.bias.register_post_accumulate_grad_hook(lambda _: called.append("bias"))
    wrapped = scrimp.torch.wrap(layer, x, "100%", costs="estimate")
    wrapped(x).sum().backward()
    assert called == ["bias"]
    assert torch.equal(inner.weight.grad, expected)
    layer[1].register_forward_hook(lambda *_: None)
    with pytest.raises(scrimp.Unsupported, match="'1' has a forward hook"):
        wrapped(x)


def test_graphs_that_need_more_than_their_part() -> None:
    """A later graph takes what it needs if the budget has it; too small a budget gets a sentence."""
    torch._dynamo.reset()

    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 256)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.a(x))
            torch._dynamo.graph_break()
            return torch.tanh(torch.tanh(self.b(x)))

    x = torch.randn(64, 8)
    options: dict[str, Any] = {"graphs": 3, "costs": "estimate", "time_limit": 0.3}
    backend = scrimp.torch.backend("600KiB", **options)
    torch.compile(Uneven(), backend=backend, dynamic=False)(x).sum().backward()
    small, large = backend.plans
    assert small.budget == 200 << 10
    assert large.budget > 200 << 10
    torch._dynamo.reset()
    backend = scrimp.torch.backend("100KiB", **options)
    with pytest.raises(Exception, match="for 3 graphs, the 1 before this one"):
        torch.compile(Uneven(), backend=backend, dynamic=False)(x).sum().backward()


def test_a_parameter_changed_in_between_is_noticed() -> None:
    """Backward would compute with the new value; autograd's check is still there."""
    layer, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.randn(2, 3)
    wrapped = scrimp.torch.wrap(layer, x, "100%", costs="estimate")
    out = wrapped(x).sum()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_buffer_that_forward_reads_and_changes() -> None:
    """What backward computes again reads what was there before."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))
            self.count: Tensor
            self.register_buffer("count", torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            y = x
            for _ in range(6):
                y = torch.sin(y * self.weight + self.count)
            self.count.add_(1.0)
            return y

    x = torch.randn(16, 64)
    torch._dynamo.reset()
    for compiled in (False, True):
        model = Counting()
        twin = copy.deepcopy(model)
        backend = scrimp.torch.backend("min", costs="estimate", time_limit=0.5)
        if compiled:
            planned = torch.compile(model, backend=backend, dynamic=False)
        else:
            planned = scrimp.torch.wrap(model, x, "min", costs="estimate", time_limit=0.5)
        for _ in range(2):
            assert torch.equal(planned(x).sum(), twin(x).sum())
            model.weight.grad = twin.weight.grad = None
            planned(x).sum().backward()
            twin(x).sum().backward()
            assert torch.equal(model.weight.grad, twin.weight.grad)
            assert torch.equal(model.count, twin.count)
        plan = backend.plans[-1] if compiled else planned.plan
        assert plan.recomputed > 0

"""scrimp.torch.fit against eager PyTorch: the same bits, in the bytes that were promised."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import pickle
import weakref
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from models import Gpt, cases, skip_unless_eager_can, token_loss  # noqa: E402
from scrimp._torch.memory import measured, storage_bytes  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

CPU = torch.device("cpu")
CASES = cases()


def twins(name: str) -> tuple[nn.Module, nn.Module, Any, Any]:
    """Two equal models, a batch and a loss."""
    make, batch, loss_fn = CASES[name]
    if name == "resnet18":
        pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model), batch, loss_fn


def eager(model: nn.Module, batch: Any, loss_fn: Any) -> Tensor:
    """A step as everyone writes it."""
    loss: Tensor = loss_fn(model(*batch[:-1]), batch[-1])
    loss.backward()
    return loss.detach()


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    """Whether all gradients and buffers are equal."""
    pairs = [(p.grad, q.grad) for p, q in zip(a.parameters(), b.parameters(), strict=True)]
    pairs += list(zip(a.buffers(), b.buffers(), strict=True))
    return all((p is None and q is None) or torch.equal(p, q) for p, q in pairs)


@pytest.mark.parametrize("budget", ["100%", "70%"])
@pytest.mark.parametrize("name", ["convnet", "unet", "gpt", "resnet18"])
def test_the_same_bits_under_the_budget(name: str, budget: str) -> None:
    """Loss, gradients and buffers are eager's; so is the state of the generator afterwards."""
    model, twin, batch, loss_fn = twins(name)
    try:
        step = scrimp.torch.fit(model, loss_fn, batch, budget, time_limit=1.0)
    except scrimp.Infeasible as error:
        step = scrimp.torch.fit(
            model, loss_fn, batch, error.least_found + error.least_found // 50, time_limit=1.0
        )
    held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
    for seed in range(2):
        for parameter in [*model.parameters(), *twin.parameters()]:
            parameter.grad = None
        torch.manual_seed(seed)
        loss, peak, _ = measured(lambda: step(*batch), CPU)
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(loss, eager(twin, batch, loss_fn))
        assert torch.equal(after, torch.get_rng_state())
        assert same_bits(model, twin)
        assert held + peak <= step.peak <= step.plan.budget
        assert step.peak - (held + peak) <= 0.01 * step.peak
    if budget != "100%":
        assert step.plan.recomputed > 0
        assert step.peak < step.plan.base_peak


def test_the_least_budget() -> None:
    """Far below what keeping everything needs."""
    model, twin, batch, loss_fn = twins("gpt")
    step = scrimp.torch.fit(model, loss_fn, batch, "min", time_limit=1.0)
    torch.manual_seed(3)
    loss = step(*batch)
    torch.manual_seed(3)
    assert torch.equal(loss, eager(twin, batch, loss_fn))
    assert same_bits(model, twin)
    assert step.peak < 0.7 * step.plan.base_peak


class Over(nn.Module):
    """A recurrent net over letters."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.cells = getattr(nn, kind)(16, 32, **options)
        self.head = nn.LazyLinear(20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(self.embed(x))[0])


RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {"num_layers": 3, "dropout": 0.3, "batch_first": True}),
    "bidirectional": ("LSTM", {"num_layers": 2, "bidirectional": True, "bias": False}),
    "projected": ("LSTM", {"proj_size": 16}),
    "gru": ("GRU", {"num_layers": 2, "dropout": 0.2}),
    "rnn": ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
}


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("name", list(RECURRENT))
def test_recurrent_nets(name: str, lower: bool) -> None:
    """oneDNN's fused layers as in eager, or cell by cell; dropout between layers; autocast's shared casts."""
    kind, options = RECURRENT[name]
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, 20, (12, 6), generator=draw) for _ in range(2))
    torch.manual_seed(0)
    model = Over(kind, **options)
    model(x)
    twin = copy.deepcopy(model)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
        skip_unless_eager_can(lambda: model(x))
        step = scrimp.torch.fit(model, token_loss, (x, y), "85%", time_limit=1.0)
        torch.manual_seed(1)
        loss, peak, _ = measured(lambda: step(x, y), CPU)
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
        expected = token_loss(twin(x), y)
    expected.backward()
    assert torch.equal(loss, expected.detach())
    assert same_bits(model, twin)
    assert storage_bytes([*model.parameters(), x, y]) + peak <= step.peak


def test_without_onednn_cells_are_eagers_too() -> None:
    """Where its kernels are turned off."""
    model, twin, batch, loss_fn = twins("lstm")
    with torch.backends.mkldnn.flags(enabled=False):
        step = scrimp.torch.fit(model, loss_fn, batch, "85%", time_limit=1.0)
        assert torch.equal(step(*batch), eager(twin, batch, loss_fn))
        assert same_bits(model, twin)


def test_gradients_accumulate_in_place() -> None:
    """As autograd does: into the tensors that are there, and the plan knows that they are."""
    model, twin, batch, loss_fn = twins("convnet")
    step = scrimp.torch.fit(model, loss_fn, batch, "100%", time_limit=1.0)
    for seed in range(3):
        torch.manual_seed(seed)
        step.prepare(*batch)
        there = [parameter.grad for parameter in model.parameters()]
        held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
        held += storage_bytes([grad for grad in there if grad is not None])
        _, peak, _ = measured(lambda: step(*batch), CPU)
        assert held + peak <= step.peak
        torch.manual_seed(seed)
        eager(twin, batch, loss_fn)
        assert same_bits(model, twin)
        if seed:
            now = [parameter.grad for parameter in model.parameters()]
            assert all(a is b for a, b in zip(there, now, strict=True))


def test_an_optimizer_in_a_loop() -> None:
    """Ten steps of Adam with clipping leave the same weights."""
    model, twin, batch, loss_fn = twins("gpt")
    step = scrimp.torch.fit(model, loss_fn, batch, "60%", time_limit=1.0)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, twin)]
    losses: list[list[Tensor]] = [[], []]
    for k, run in enumerate([lambda: step(*batch), lambda: eager(twin, batch, loss_fn)]):
        torch.manual_seed(0)
        for _ in range(10):
            optimizers[k].zero_grad()
            losses[k].append(run())
            nn.utils.clip_grad_norm_((model, twin)[k].parameters(), 1.0)
            optimizers[k].step()
    assert torch.equal(torch.stack(losses[0]), torch.stack(losses[1]))
    assert losses[0][-1] < losses[0][0]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def test_copies_of_a_step_plan_anew() -> None:
    """Each with a model, and an optimizer, of its own."""
    model, twin, batch, loss_fn = twins("unet")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = scrimp.torch.fit(model, loss_fn, batch, "100%", costs="estimate", optimizer=optimizer)
    for other in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        loss = other(*batch)
        assert torch.equal(loss, eager(copy.deepcopy(twin), batch, loss_fn))
        changed = zip(other.model.parameters(), model.parameters(), strict=True)
        assert all(p is not q and not torch.equal(p, q) for p, q in changed)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_batch_that_is_not_taken_apart() -> None:
    """A sentence says how to call the step."""
    model, _, (x, y), loss_fn = twins("unet")
    step = scrimp.torch.fit(model, loss_fn, (x, y), "100%", costs="estimate")
    with pytest.raises(
        scrimp.Unsupported, match=r"given a list: if that is the whole batch, call step\(\*batch\)"
    ):
        step([x, y])
    with pytest.raises(
        scrimp.Unsupported, match=r"given a dict: if that is the whole batch, call step\(\*\*batch\)"
    ):
        step({"x": x, "y": y})


def test_loss_scaling() -> None:
    """The loss comes back unscaled, the gradients scaled."""
    model, twin, batch, loss_fn = twins("unet")
    step = scrimp.torch.fit(model, loss_fn, batch, "100%", costs="estimate")
    step.loss_scale = 1024.0
    loss = step(*batch)
    expected = loss_fn(twin(*batch[:-1]), batch[-1])
    (expected * 1024.0).backward()
    assert torch.equal(loss, expected.detach())
    assert same_bits(model, twin)


def test_bfloat16_autocast() -> None:
    """What autocast casts is captured; each mode has its own plan."""
    model, twin, batch, loss_fn = twins("gpt")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = scrimp.torch.fit(model, loss_fn, batch, "70%", time_limit=1.0)
        torch.manual_seed(0)
        loss = step(*batch)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = loss_fn(twin(*batch[:-1]), batch[-1])
    expected.backward()
    assert torch.equal(loss, expected.detach())
    assert same_bits(model, twin)


def test_evaluation_mode_and_frozen_parameters() -> None:
    """Running statistics stay, frozen parameters get no gradient."""
    model, twin, batch, loss_fn = twins("convnet")
    for m in (model, twin):
        m.eval()
        m.get_submodule("stem").requires_grad_(False)
    step = scrimp.torch.fit(model, loss_fn, batch, "80%", time_limit=1.0)
    assert torch.equal(step(*batch), eager(twin, batch, loss_fn))
    assert same_bits(model, twin)
    stem = model.get_submodule("stem")
    assert all(parameter.grad is None for parameter in stem.parameters())


def test_batches_of_other_forms() -> None:
    """A dictionary, a loss in the model, a loss that is a module with a buffer."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            return (self.layer(x) * scale).square().mean()

    x = torch.randn(5, 4)
    model = Own()
    step = scrimp.torch.fit(model, None, {"x": x, "scale": 2.0}, "100%", costs="estimate")
    assert torch.equal(step(x=x, scale=2.0), model(x, 2.0).detach())
    assert torch.equal(step(x=x, scale=3.0), model(x, 3.0).detach())
    assert torch.equal(scrimp.torch.fit(model, None, x, "100%", costs="estimate")(x), model(x).detach())

    layer = nn.Linear(4, 3)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    y = torch.randint(0, 3, (5,))
    step = scrimp.torch.fit(layer, criterion, (x, y), "100%", costs="estimate")
    assert torch.equal(step(x, y), criterion(layer(x), y).detach())


def test_gradients_that_share_memory_are_parted() -> None:
    """Two parameters with one gradient, or an expanded one, get memory of their own."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return (self.a + self.b + x).sum()

    model, x = Sum(), torch.ones(3, 4)
    scrimp.torch.fit(model, None, x, "100%", costs="estimate")(x)
    a, b = model.a.grad, model.b.grad
    assert a is not None and b is not None
    assert a.is_contiguous() and b.is_contiguous()
    a.mul_(2)
    assert torch.equal(b, torch.ones(3, 4))
    assert torch.equal(a, torch.full((3, 4), 2.0))


def test_one_plan_per_shape_up_to_a_limit() -> None:
    """The last, smaller batch gets its own plan; too many shapes get a sentence."""
    model, _, (x, y), loss_fn = twins("convnet")
    step = scrimp.torch.fit(model, loss_fn, (x, y), "90%", costs="estimate", max_shapes=2, time_limit=0.5)
    loss = step(x[:3], y[:3])
    # Dropout drew for the smaller batch only.
    assert loss.shape == ()
    with pytest.raises(scrimp.BadOption, match="max_shapes"):
        step(x[:2], y[:2])
    assert step.prepare(x, y).peak > step.prepare(x[:3], y[:3]).peak


def test_words_and_pages(tmp_path: Any) -> None:
    """What is run again is named, and the report is a page."""
    model, _, batch, loss_fn = twins("gpt")
    step = scrimp.torch.fit(model, loss_fn, batch, "60%", time_limit=1.0)
    text = step.explain()
    assert "aten." in text
    assert "beyond each operator's first" in text
    assert "in blocks." in text
    assert "the peak is at " in text
    step.report(tmp_path / "out.html")
    assert "Gpt" in (tmp_path / "out.html").read_text()


def test_measurements_are_remembered() -> None:
    """A second plan of the same model measures nothing."""
    model, _, batch, loss_fn = twins("unet")
    scrimp.torch.fit(model, loss_fn, batch, "100%")
    lines: list[str] = []
    scrimp.torch.fit(model, loss_fn, batch, "100%", progress=lines.append)
    assert any("captured" in line for line in lines)
    assert not any("measured" in line for line in lines)


def refused(model: nn.Module, *batch: Any, loss_fn: Any = None, **options: Any) -> str:
    """The sentence."""
    with pytest.raises((scrimp.Unsupported, scrimp.BadOption)) as caught:
        scrimp.torch.fit(model, loss_fn, batch, "100%", costs="estimate", **options)
    return str(caught.value)


def test_a_course_that_depends_on_data() -> None:
    """An `if` on a value, and a shape that depends on contents."""

    class Branch(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y.sum() if y.sum() > 0 else y.mean()

    class Mask(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y[y > 0].sum()

    for kind in (Branch, Mask):
        assert "depends on its data" in refused(kind(3, 3), torch.ones(2, 3))


def test_hooks() -> None:
    """On modules, on parameters, on all modules, on saved tensors."""
    layer, x = nn.Linear(3, 1), torch.ones(2, 3)
    model = nn.Sequential(layer)
    handle = layer.register_forward_hook(lambda *_: None)
    assert "'0' has a forward hook" in refused(model, x, loss_fn=Tensor.sum)
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert "a hook for all modules" in refused(model, x, loss_fn=Tensor.sum)
    handle.remove()
    with torch.autograd.graph.save_on_cpu():
        assert "hooks for saved tensors" in refused(model, x, loss_fn=Tensor.sum)
    layer.weight.register_hook(lambda g: g)
    assert "parameter '0.weight' has a gradient hook" in refused(model, x, loss_fn=Tensor.sum)


class Sharing(nn.Module):
    """Blocks that have one and the same part each, with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.blocks = nn.ModuleList(nn.Sequential(self.part, nn.Linear(8, 8), nn.ReLU()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("way", ["fit", "fit again", "optimizer", "wrap"])
def test_a_module_with_several_paths(way: str) -> None:
    """Its parameters and buffers are its own after capture, and after a look at a kept one."""
    torch.manual_seed(0)
    model, batch = Sharing(), (torch.randn(16, 8), torch.randint(0, 8, (16,)))
    twin = copy.deepcopy(model)
    own = [*model.parameters(), *model.buffers()]
    mine, eagers = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    options: dict[str, Any] = {"costs": "estimate", "time_limit": 0.5}
    if way == "wrap":
        step: Any = functools.partial(eager, scrimp.torch.wrap(model, batch[:1], "100%", **options))
        run = functools.partial(step, batch, F.cross_entropy)
    else:
        options["optimizer"] = mine if way == "optimizer" else None
        run = functools.partial(scrimp.torch.fit(model, F.cross_entropy, batch, "100%", **options), *batch)
    assert all(a is b for a, b in zip(own, [*model.parameters(), *model.buffers()], strict=True))
    for _ in range(2):
        assert torch.equal(run(), eager(twin, batch, F.cross_entropy))
        if way != "optimizer":
            assert same_bits(model, twin)
            mine.step()
            mine.zero_grad()
        eagers.step()
        eagers.zero_grad()
    pairs = zip(own, [*twin.parameters(), *twin.buffers()], strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_batch_norm_without_statistics() -> None:
    """Of the batch alone, in the model's training as in its evaluation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten())
    x = torch.randn(2, 3, 6, 6)
    expected = model(x).square().mean()
    step = scrimp.torch.fit(model, lambda y: y.square().mean(), (x,), "100%", time_limit=0.5)
    assert torch.equal(step(x), expected.detach())


def test_nothing_holds_a_model_that_is_gone() -> None:
    """Neither what capture leaves in PyTorch, nor caches of ours."""
    model = nn.Linear(8, 8)
    alive = weakref.ref(model.weight)
    step = scrimp.torch.fit(model, F.mse_loss, (torch.ones(2, 8), torch.ones(2, 8)), "100%", time_limit=0.5)
    step(torch.ones(2, 8), torch.ones(2, 8))
    del model, step
    gc.collect()
    assert alive() is None


def test_hooks_that_come_after_planning() -> None:
    """They are noticed at the next step, and forgotten when they are gone."""
    layer, x = nn.Linear(3, 1), torch.ones(2, 3)
    model = nn.Sequential(layer)
    step = scrimp.torch.fit(model, Tensor.sum, (x,), "100%", costs="estimate")
    handle = layer.register_full_backward_hook(lambda *_: None)
    with pytest.raises(scrimp.Unsupported, match="'0' has a backward hook"):
        step(x)
    handle.remove()
    handle = layer.weight.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(scrimp.Unsupported, match="hook after its gradient is accumulated"):
        step(x)
    handle.remove()
    step(x)


def test_what_else_is_refused() -> None:
    """Each with its own sentence."""
    linear, x = nn.Linear(3, 2), torch.ones(2, 3)
    assert "scalar" in refused(linear, x)
    assert "needs gradients" in refused(linear, x.clone().requires_grad_(), loss_fn=Tensor.sum)
    assert "no CUDA device" in refused_budget("auto") or torch.cuda.is_available()
    elsewhere = torch.ones(2, requires_grad=True)
    assert "neither a parameter" in refused(linear, x, loss_fn=lambda y: (y * elsewhere).sum())
    with pytest.raises(scrimp.BadOption, match="costs"):
        scrimp.torch.fit(linear, Tensor.sum, x, "100%", costs="guess")
    with pytest.raises(scrimp.BadOption, match="a lot"):
        scrimp.torch.fit(linear, Tensor.sum, x, "a lot")
    with pytest.raises(scrimp.BadOption, match="reserve"):
        scrimp.torch.fit(linear, Tensor.sum, x, "100%", reserve=-1)
    with pytest.raises(scrimp.BadOption, match="is a set"):
        scrimp.torch.fit(linear, Tensor.sum, {x}, "100%")


def refused_budget(budget: str) -> str:
    """The sentence for a budget."""
    try:
        scrimp.torch.fit(nn.Linear(3, 2), Tensor.sum, torch.ones(2, 3), budget)
    except scrimp.BadOption as error:
        return str(error)
    return ""


def test_an_infeasible_budget() -> None:
    """The least that was found works, and the operator that needs most is named."""
    model, _, batch, loss_fn = twins("unet")
    with pytest.raises(scrimp.Infeasible, match="needs most at once") as caught:
        scrimp.torch.fit(model, loss_fn, batch, 1000, time_limit=1.0)
    least = caught.value.least_found
    step = scrimp.torch.fit(model, loss_fn, batch, least, time_limit=1.0)
    held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
    _, peak, _ = measured(lambda: step(*batch), CPU)
    assert held + peak <= least


@pytest.mark.parametrize("name", ["convnet", "unet", "gpt"])
def test_ten_budgets_are_monotone(name: str) -> None:
    """In planned time and in what is measured, from all that keeping everything takes to the least."""
    model, _, batch, loss_fn = twins(name)
    least = scrimp.torch.fit(model, loss_fn, batch, "min", time_limit=0.5)
    full = least.plan.base_peak
    budgets = [full - (full - least.peak) * k // 9 for k in range(10)]
    held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
    costs, peaks = [], []
    for budget, step in zip(
        budgets, scrimp.torch.sweep(model, loss_fn, batch, budgets, time_limit=0.3), strict=True
    ):
        if isinstance(step, scrimp.Infeasible):
            # The least was found with more time; then all smaller budgets may fail, but no larger one.
            assert budget < full // 2
            continue
        assert isinstance(step, scrimp.torch.Step), step
        model.zero_grad(set_to_none=True)
        _, peak, _ = measured(functools.partial(step, *batch), CPU)
        assert held + peak <= step.peak <= budget == step.plan.budget
        assert step.peak <= 1.01 * (held + peak)
        costs.append(step.plan.cost)
        peaks.append(held + peak)
    assert len(costs) >= 6
    assert costs == sorted(costs)
    # Saved generator states count for a little more where they are saved than where they are not.
    assert all(lower <= 1.005 * higher for higher, lower in itertools.pairwise(peaks))
    assert peaks[-1] < 0.8 * peaks[0]


def test_accumulation_is_planned_ahead() -> None:
    """Asked for, a budget that is too small for it is refused at once, with a sentence."""
    model, twin, batch, loss_fn = twins("unet")
    step = scrimp.torch.fit(model, loss_fn, batch, "100%", costs="estimate", accumulate=True)
    assert len(step._plans) == 2
    for seed in range(2):
        torch.manual_seed(seed)
        step(*batch)
        torch.manual_seed(seed)
        eager(twin, batch, loss_fn)
    assert len(step._plans) == 2
    assert same_bits(model, twin)
    model.zero_grad(set_to_none=True)
    wide, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), torch.ones(2, 64)
    options: dict[str, Any] = {"costs": "estimate", "time_limit": 0.2}
    least = scrimp.torch.fit(wide, Tensor.sum, (x,), "min", **options).plan.peak
    with pytest.raises(scrimp.Infeasible, match="gradients that are there before the step"):
        scrimp.torch.fit(wide, Tensor.sum, (x,), least, accumulate=True, **options)


def test_estimated_costs_hold_the_budget() -> None:
    """Workspaces by rule are above those that are measured, so peaks stay under what was asked."""
    for name in ("convnet", "unet", "gpt", "lstm"):
        model, _, batch, loss_fn = twins(name)
        step = scrimp.torch.fit(model, loss_fn, batch, "90%", costs="estimate", time_limit=0.5)
        held = storage_bytes([*model.parameters(), *model.buffers(), *batch])
        _, peak, _ = measured(functools.partial(step, *batch), CPU)
        assert held + peak <= step.peak


def test_the_largest_batch() -> None:
    """More than without a plan, and one sample more has none."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
    options: dict[str, Any] = {"costs": "estimate", "time_limit": 0.2}
    x = torch.zeros(5, 64)
    budget = scrimp.torch.fit(model, Tensor.sum, (x,), "100%", **options).plan.base_peak
    largest = scrimp.torch.max_batch(model, Tensor.sum, (x[:2],), budget, **options)
    assert largest >= 5
    scrimp.torch.fit(model, Tensor.sum, (torch.zeros(largest, 64),), budget, **options)
    with pytest.raises(scrimp.Infeasible):
        scrimp.torch.fit(model, Tensor.sum, (torch.zeros(largest + 1, 64),), budget, **options)
    with pytest.raises(scrimp.BadOption, match="in bytes"):
        scrimp.torch.max_batch(model, Tensor.sum, (x,), "50%")
    with pytest.raises(scrimp.BadOption, match="not even one sample"):
        scrimp.torch.max_batch(model, Tensor.sum, (x,), 1000, **options)


def test_gpt_is_what_the_tests_think() -> None:
    """The head is the embedding, so that its gradient has two parts."""
    model = Gpt()
    assert model.head.weight is model.words.weight
    x = torch.randint(0, 50, (2, 8))
    assert F.softmax(model(x), -1).shape == (2, 8, 50)

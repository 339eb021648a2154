"""Wide parts of a step by tiles of rows: exact but for the order of sums, in the bytes that are promised."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from scrimp._torch import profile  # noqa: E402
from scrimp._torch.graph import Task, tensors_in  # noqa: E402
from scrimp._torch.memory import measured  # noqa: E402
from scrimp._torch.places import SUM, Place, Rows  # noqa: E402
from scrimp._torch.problem import Cost  # noqa: E402
from scrimp._torch.rows import cut  # noqa: E402
from tiles import CPU, OPTIONS, WORDS, Words, batch, eager, off_by, tiled  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.fx import Node  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.node import map_arg  # noqa: E402


@pytest.mark.parametrize(
    ("kind", "tile"),
    [
        ({}, 7),
        ({"gated": True, "reduction": "sum"}, 2),
        ({"tied": True, "label_smoothing": 0.1}, 1000),
        ({"weighted": True, "label_smoothing": 0.1}, 1),
        ({"weighted": True, "tied": True, "gated": True}, 13),
        ({"drop": 0.2, "ignore_index": 3}, 69),
    ],
    ids=str,
)
def test_is_exact_but_for_the_order_of_sums(kind: dict[str, Any], tile: int) -> None:
    """Loss and gradients against eager, with room and without."""
    model, given = Words(**kind).double(), batch()
    if kind.get("ignore_index"):
        given = given[0], given[1].clamp(min=3)
    wanted = eager(model, *given)
    step = tiled(model, given, tile)
    torch.manual_seed(2)
    assert off_by(model, step(*given), wanted) < 1e-12
    if tile > 13:
        return
    leaner = tiled(model, given, tile, "min")
    model.zero_grad()
    torch.manual_seed(2)
    assert leaner.peak <= step.peak
    assert off_by(model, leaner(*given), wanted) < 1e-12


def test_the_measured_peak_is_the_promised_one_and_scores_are_never_whole() -> None:
    """Bytes as counted and as measured."""
    model, given = Words(), batch()
    wanted = eager(model, *given)
    plain = tiled(model, given, "off")
    scores = given[0].numel() * WORDS * 4
    for budget in ("100%", "min"):
        step = tiled(model, given, 6, budget, costs="measure")
        held = {t.data_ptr(): t.untyped_storage().nbytes() for t in [*model.parameters(), *given]}
        model.zero_grad()
        step(*given)
        model.zero_grad()
        loss, peak, _ = measured(functools.partial(step, *given), CPU)
        assert off_by(model, loss, wanted) < 1e-5
        assert peak + sum(held.values()) == pytest.approx(step.peak, rel=0.01)
        assert step.peak <= plain.peak - 0.9 * scores
        # Each tile's gradients follow its scores, so nothing runs twice where there is room.
        assert budget == "min" or step.plan.recomputed == 0


def test_a_batch_of_one_row_after_others_runs_whole() -> None:
    """Such as the last of an epoch; by itself it is refused."""
    model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3)).double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,))
    step = scrimp.torch.fit(model, F.cross_entropy, (x, y), "100%", tile=2, **OPTIONS)
    for size in (5, 1):
        model.zero_grad()
        plain = copy.deepcopy(model)
        loss = F.cross_entropy(plain(x[:size]), y[:size])
        loss.backward()
        gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
        assert off_by(model, step(x[:size], y[:size]), (loss.detach(), gradients)) < 1e-12
    with pytest.raises(scrimp.Unsupported, match="gives several rows"):
        scrimp.torch.fit(model, F.cross_entropy, (x[:1], y[:1]), "100%", tile=2, **OPTIONS)


def test_labels_that_are_all_ignored_give_what_eager_gives() -> None:
    """Nothing to learn from: the mean of no losses."""
    model = Words().double()
    x, y = batch()
    y[:] = -100
    wanted = eager(model, x, y)
    step = tiled(model, (x, y), 4)
    assert torch.equal(step(x, y).isnan(), wanted[0].isnan())
    assert all(p.grad is not None and not p.grad.any() for p in model.head.parameters())


def test_lower_precision_adds_up_in_float32() -> None:
    """A model in bfloat16, and autocast."""
    given = batch()
    for model, mode in (
        (Words(gated=True).bfloat16(), contextlib.nullcontext()),
        (Words(gated=True), torch.autocast("cpu", dtype=torch.bfloat16)),
    ):
        with mode:
            wanted = eager(model, *given)
            step = tiled(model, given, 23)
            assert off_by(model, step(*given), wanted) < 0.02


def test_with_all_else_that_a_step_can_have() -> None:
    """Swap, gradients of several batches, batches of other shapes, an optimizer."""
    model, given = Words().double(), batch()
    wanted = eager(model, *given)
    lines: list[str] = []
    step = tiled(model, given, 5, "min", swap="1GiB@1GB/s", accumulate=True, progress=lines.append)
    step(*given)
    assert any("are eager's" in line for line in lines)
    assert off_by(model, step(*given), (wanted[0], {k: 2 * g for k, g in wanted[1].items()})) < 1e-12
    model.zero_grad()
    shorter = batch(2, 11)
    assert off_by(model, step(*shorter), eager(model, *shorter)) < 1e-12

    rates = {"lr": 0.1}
    other = copy.deepcopy(model)
    other.zero_grad()
    updated = tiled(other, given, 5, optimizer=torch.optim.SGD(other.parameters(), **rates))
    updated(*given)
    for name, parameter in model.named_parameters():
        expected = parameter - rates["lr"] * wanted[1][name]
        torch.testing.assert_close(other.get_parameter(name), expected, rtol=0, atol=1e-12)


def test_wrapped_models_keep_their_loss_outside() -> None:
    """Gradients come when the loss of all tiles is there."""
    model, given = Words().double(), batch()
    wanted = eager(model, *given)
    planned = scrimp.torch.wrap(model, given, "min", tile=5, **OPTIONS)
    loss = planned(*given)
    loss.backward()
    assert off_by(model, loss.detach(), wanted) < 1e-12


@pytest.mark.parametrize(("tile", "budget"), [(5, "100%"), (5, "min"), ("auto", "min")])
def test_compiled_regions_by_tiles(tile: int | str, budget: str) -> None:
    """With the loss inside."""
    model, given = Words(tied=True).double(), batch()
    torch._dynamo.reset()
    backend = scrimp.torch.backend(budget, tile=tile, **OPTIONS)
    loss = torch.compile(model, backend=backend, dynamic=False)(*given)
    loss.backward()
    assert off_by(model, loss.detach(), eager(copy.deepcopy(model), *given)) < 1e-12
    plain = scrimp.torch.fit(model, None, given, "min", **OPTIONS)
    assert budget == "100%" or backend.plans[0].peak < plain.peak - 0.5 * given[0].numel() * WORDS * 8


def test_graphs_of_compilers_that_are_not_tiled() -> None:
    """Said before any work."""
    with pytest.raises(scrimp.Unsupported, match="tiles aren't built for inductor"):
        scrimp.torch.partitioner("50%", tile=4)
    with pytest.raises(scrimp.Unsupported, match="planned once each"):
        scrimp.torch.backend("1GiB", graphs=2, tile="auto")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_published_language_models(name: str) -> None:
    """Their labels are moved by one place, and scores are returned beside the loss."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"vocab_size": WORDS, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **drops, **small)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=44, num_hidden_layers=2, num_attention_heads=2, **small
        )
        model = transformers.LlamaForCausalLM(config)
    x, _ = batch()
    given = {"input_ids": x, "labels": x}

    def loss_of(output: Any) -> Tensor:
        return output.loss

    wanted = eager(_Loss(model), **given)
    plain = scrimp.torch.fit(model, loss_of, given, "100%", **OPTIONS)
    step = scrimp.torch.fit(model, loss_of, given, "100%", tile=6, **OPTIONS)
    loss = step(**given)
    assert off_by(_Loss(model), loss, wanted) < 1e-5
    assert step.peak < plain.peak - 0.9 * x.numel() * WORDS * 4


class _Loss(nn.Module):
    """A model of which only the loss is wanted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> Tensor:
        return self.model(**given).loss


def test_auto_tiles_only_where_that_is_needed() -> None:
    """Else its steps are those without tiles."""
    model, given = Words(width=32), batch(4, 32)
    wanted = eager(model, *given)
    plain = tiled(model, given, "off")
    quick = {"time_limit": 0.3}
    roomy = tiled(model, given, "auto")
    assert len(roomy.plan.runs) == len(plain.plan.runs)
    model.zero_grad()
    assert off_by(model, roomy(*given), wanted) == 0.0  # eager's bits

    with pytest.raises(scrimp.Infeasible) as refused:
        tiled(model, given, "off", "45%")
    assert "tile='auto'" in str(refused.value)
    step = tiled(model, given, "auto", "45%", **quick)
    assert step.peak <= refused.value.budget < refused.value.least_found
    model.zero_grad()
    assert off_by(model, step(*given), wanted) < 1e-5
    # In a training loop, the same tiles serve other batches.
    model.zero_grad()
    shorter = batch(3, 32)
    assert off_by(model, step(*shorter), eager(model, *shorter)) < 1e-5

    with pytest.raises(scrimp.Infeasible, match="By tiles the least that was found is") as none:
        tiled(model, given, "auto", step.plan.fixed + 1, **quick)
    assert none.value.least_found < refused.value.least_found


def test_auto_measures_only_what_seems_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tiles that it tries have estimated costs."""
    asked = {"measure": 0, "estimate": 0}
    estimate = profile.estimate

    def counted(how: str) -> Callable[..., list[Cost]]:
        def costs(tasks: list[Task], *_: Any) -> list[Cost]:
            asked[how] += 1
            return estimate(tasks)

        return costs

    for how in asked:
        monkeypatch.setattr(profile, how, counted(how))
    step = tiled(Words(width=32), batch(4, 32), "auto", "45%", costs="measure", time_limit=0.3)
    assert step.peak <= step.plan.budget
    # No tiles, the best tiles, half as many, twice as many, and the chosen ones again.
    assert 3 <= asked["measure"] <= 5 < asked["estimate"]


def test_a_sweep_is_of_one_number_of_tiles() -> None:
    """Plans of a sweep are compared."""
    model, given = Words().double(), batch()
    steps = scrimp.torch.sweep(model, None, given, ["100%", "70%"], tile=4, **OPTIONS)
    assert all(isinstance(step, scrimp.torch.Step) for step in steps)
    assert off_by(model, steps[1](*given), eager(model, *given)) < 1e-12  # type: ignore[operator]
    with pytest.raises(scrimp.BadOption, match="a sweep takes a number of tiles"):
        scrimp.torch.sweep(model, None, given, ["100%"], tile="auto", **OPTIONS)


class Shifted(Words):
    """Scores of the words that have a next one, with its loss."""

    def __init__(self, loss_of: Callable[[Tensor, Tensor], Tensor], **kind: Any) -> None:
        super().__init__(**kind)
        self.loss_of = loss_of

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = block(h)
        return self.loss_of(self.head(h), y)


def of_copies(scores: Tensor, y: Tensor) -> Tensor:
    """As transformers did it."""
    shifted, labels = scores.to(torch.float64)[..., :-1, :].contiguous(), y[..., 1:].contiguous()
    return nn.CrossEntropyLoss()(shifted.view(-1, WORDS), labels.view(-1))


def of_middle(scores: Tensor, y: Tensor) -> Tensor:
    """Of a part of each text, with smoothing; scores are bounded, and every second one is left out."""
    scores = (torch.tanh(scores / 30) * 30)[:, 3:-2:2]
    weight = torch.linspace(0.1, 1, WORDS, dtype=scores.dtype)
    labels = y[:, 3:-2:2].flatten()
    return F.cross_entropy(scores.flatten(0, 1), labels, weight=weight, label_smoothing=0.1)


def of_texts(scores: Tensor, y: Tensor) -> Tensor:
    """A number per text, and what keeps scores small."""
    scores, labels = scores[:, :-1], y[:, 1:, None]
    each = scores.log_softmax(-1).gather(2, labels.clamp(min=0))[..., 0] * (labels[..., 0] >= 0)
    return 1e-3 * scores.logsumexp(-1).square().mean() - each.sum(-1).mean()


def of_all(scores: Tensor, y: Tensor) -> Tensor:
    """The last token of the last text has no next one."""
    return F.cross_entropy(scores.view(-1, WORDS).narrow(0, 0, y.numel() - 1), y.flatten()[1:])


def of_second(scores: Tensor, y: Tensor) -> Tensor:
    """With classes in the second dimension."""
    return F.cross_entropy(scores.transpose(1, 2), y)


def of_second_weighted(scores: Tensor, y: Tensor) -> Tensor:
    """By a module, with all that it takes."""
    weight = torch.linspace(0.1, 1, WORDS, dtype=scores.dtype)
    loss = nn.CrossEntropyLoss(weight, ignore_index=7, label_smoothing=0.1)
    return loss(scores.mT, y.clamp(min=7))


def of_second_added(scores: Tensor, y: Tensor) -> Tensor:
    """A sum over some tokens of each text, with weights; and what keeps scores small."""
    weight = torch.linspace(0.1, 1, WORDS, dtype=scores.dtype)
    scores = scores.permute(0, 2, 1)[:, :, :-1]
    loss = F.cross_entropy(scores, y[:, 1:], weight, reduction="sum")
    return loss + 1e-3 * scores.logsumexp(1).square().sum()


def of_second_each(scores: Tensor, y: Tensor) -> Tensor:
    """A loss for each token, of which some count more."""
    each = F.cross_entropy(scores[:, 1:].transpose(2, 1), y[:, :-1], reduction="none", label_smoothing=0.2)
    return (each * torch.linspace(0, 1, each.shape[1])).mean()


@pytest.mark.parametrize(
    "loss_of",
    [
        *(of_copies, of_middle, of_texts, of_all),
        *(of_second, of_second_weighted, of_second_added, of_second_each),
    ],
)
@pytest.mark.parametrize("samples", [1, 3])
def test_scores_of_some_tokens_are_never_whole(
    loss_of: Callable[[Tensor, Tensor], Tensor], samples: int
) -> None:
    """Slices along the tokens, and their gradients: zeros among others."""
    model, given = Shifted(loss_of, tied=samples > 1).double(), batch(samples)
    wanted = eager(model, *given)
    plain = tiled(model, given, "off")
    for tile, budget in ((5, "100%"), (1000, "min")):
        step = tiled(model, given, tile, budget)
        model.zero_grad()
        assert off_by(model, step(*given), wanted) < 1e-12
        assert step.peak < plain.peak - 0.9 * given[0].numel() * WORDS * 8


def test_rows_that_count_elsewhere_are_not_left_out() -> None:
    """Where all scores are seen as well, the slice is none."""
    model, given = Shifted(of_both).double(), batch(1)
    assert off_by(model, tiled(model, given, 5)(*given), eager(model, *given)) < 1e-12


def of_two(scores: Tensor, y: Tensor) -> Tensor:
    """Slices that take different tokens."""
    return F.cross_entropy(scores[0, :-1], y[0, 1:]) + scores[0, 1:].square().mean()


def of_both(scores: Tensor, y: Tensor) -> Tensor:
    """All tokens count somewhere."""
    return F.cross_entropy(scores[0, :-1], y[0, 1:]) + scores.logsumexp(-1).square().mean()


def test_what_cannot_be_tiled_is_named() -> None:
    """By the operator and the module."""
    with pytest.raises(scrimp.Unsupported, match="no layer of the model gives several rows that are longer"):
        scrimp.torch.fit(nn.Linear(5, 3), torch.sum, (torch.rand(2, 5),), "100%", tile=2, **OPTIONS)
    two = Shifted(of_two)
    two.blocks = nn.ModuleList()
    with pytest.raises(scrimp.Unsupported, match="slice needs what 'head' gives as a whole"):
        tiled(two, batch(1), 2)
    for wrong in (0, -3, True, "4", 2.0, None):
        with pytest.raises(scrimp.BadOption, match="must be a number of tiles, 'auto' or 'off'"):
            tiled(Words(), batch(), wrong)  # type: ignore[arg-type]


def rand(*shape: int) -> Tensor:
    """Numbers that aren't small."""
    return torch.rand(*shape, dtype=torch.float64) + 0.5


def losses(x: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Of scores whose classes are in the middle."""
    return F.cross_entropy(x.transpose(1, 2), y, **options)


LABELS = torch.tensor([3, 1, 0, 4, 1, 2])
OPERATORS: list[tuple[Callable[..., Any], tuple[Tensor, ...], Rows]] = [
    (lambda x, y: x * y, (rand(2, 3, 5), rand(5)), Rows((0, 1))),
    (lambda x, y: x + y, (rand(6, 5), rand(1, 5)), Rows((0,))),
    (lambda x, y: torch.where(x > 1, x, y), (rand(6, 5), rand(6, 1)), Rows((0,))),
    (lambda x: x.view(6, 5), (rand(2, 3, 5),), Rows((0, 1))),
    (lambda x: x.view(2, 3, 5, 1), (rand(6, 5),), Rows((0,))),
    (lambda x: x.view(2, 3, 5, 4), (rand(6, 20),), Rows((0,))),
    (lambda x: x.unsqueeze(1), (rand(6, 5),), Rows((0,))),
    (lambda x: x.permute(2, 0, 1, 3), (rand(2, 3, 4, 5),), Rows((0, 1))),
    (lambda x: x.t(), (rand(6, 5),), Rows((0,))),
    (lambda x: x.transpose(1, 2), (rand(6, 4, 5),), Rows((0,))),
    (lambda x: x.expand(6, 7), (rand(6, 1),), Rows((0,))),
    (lambda x: x.sum(-1), (rand(2, 3, 5),), Rows((0, 1))),
    (lambda x: x.mean((1, 2), True), (rand(6, 5, 2),), Rows((0,))),
    (lambda x: x.sum(), (rand(2, 3, 5),), Rows((0, 1))),
    (lambda x: x.mean(), (rand(6, 5),), Rows((0,))),
    (lambda x: x.sum((0, 1), True), (rand(2, 3, 5),), Rows((0, 1))),
    (lambda x: x.amax(1), (rand(6, 5),), Rows((0,))),
    (lambda x: torch.softmax(x, -1), (rand(2, 3, 5),), Rows((0, 1))),
    (lambda x: torch.log_softmax(x, 1), (rand(6, 5),), Rows((0,))),
    (lambda x: torch.cumsum(x, 1), (rand(6, 5),), Rows((0,))),
    (lambda x, y: x @ y, (rand(6, 5), rand(5, 4)), Rows((0,))),
    (lambda x, y: y @ x, (rand(5, 6), rand(4, 5)), Rows((1,))),
    (lambda x, y: y @ x, (rand(6, 5), rand(4, 6)), Rows((0,))),
    (lambda x, y, z: torch.addmm(z, x, y), (rand(6, 5), rand(5, 4), rand(4)), Rows((0,))),
    (lambda x, y, z: torch.addmm(z, x, y), (rand(6, 5), rand(5, 4), rand(6, 4)), Rows((0,))),
    (lambda x, y: torch.bmm(x, y), (rand(1, 6, 5), rand(1, 5, 4)), Rows((1,))),
    (lambda x: x.split(2, -1), (rand(2, 3, 5),), Rows((0, 1))),
    (lambda x, y: torch.cat([x, y], 1), (rand(6, 5), rand(6, 2)), Rows((0,))),
    (lambda x: x[..., 1:4], (rand(2, 3, 5),), Rows((0, 1))),
    (lambda x: x.select(1, 2), (rand(6, 5),), Rows((0,))),
    (lambda x: x.select(0, 1), (rand(4, 6, 5),), Rows((1,))),
    (lambda x: torch.ops.aten.slice_backward(x, [6, 9], 1, 2, 7, 1), (rand(6, 5),), Rows((0,))),
    (lambda x: torch.ops.aten.select_backward(x, [6, 9], 1, 2), (rand(6),), Rows((0,))),
    (lambda x: torch.ops.aten.select_backward(x, [9, 6], 0, 2), (rand(6),), Rows((0,))),
    (lambda x, y: x.gather(1, y[:, None]), (rand(6, 5), LABELS), Rows((0,))),
    (lambda x, y: torch.zeros_like(x).scatter(1, y[:, None], 1.0), (rand(6, 5), LABELS), Rows((0,))),
    (lambda x, y: F.layer_norm(x, (5,), y), (rand(2, 3, 5), rand(5)), Rows((0, 1))),
    (lambda x, y: F.nll_loss(x, y, reduction="sum"), (rand(6, 5), LABELS), Rows((0,))),
    (lambda x, y: F.nll_loss(x, y, reduction="none"), (rand(6, 5), LABELS), Rows((0,))),
    (lambda x, y: losses(x, y, reduction="sum"), (rand(2, 3, 5), LABELS.view(2, 3)), Rows((0, 1))),
    (lambda x, y: losses(x, y, reduction="none"), (rand(2, 3, 5), LABELS.view(2, 3)), Rows((0, 1))),
    (lambda x: x.transpose(1, 2)[:, None, ..., 0], (rand(2, 3, 5, 4),), Rows((0, 1))),
    (lambda x: x.permute(0, 2, 1, 3).reshape(2, 3, 20).amax(2), (rand(2, 4, 3, 5),), Rows((0, 2))),
]


@pytest.mark.parametrize("case", OPERATORS, ids=[str(place) for place in range(len(OPERATORS))])
@pytest.mark.parametrize("size", [1, 4])
def test_operators_on_some_rows(case: tuple[Callable[..., Any], tuple[Tensor, ...], Rows], size: int) -> None:
    """Each operator of a function on tiles of its first argument's rows, against the whole."""
    function, given, rows = case
    graph = make_fx(function, tracing_mode="fake")(*given).graph
    count = rows.of(given[0].shape)
    ends = [*range(0, count, size), count]
    inputs = graph.find_nodes(op="placeholder")
    places: dict[Node, Place] = {inputs[0]: rows}
    whole: dict[Node, Any] = dict(zip(inputs, given, strict=True))
    parts: list[dict[Node, Any]] = [{} for _ in ends[1:]]
    reached = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        whole[node] = node.target(*map_arg(node.args, whole.get), **map_arg(node.kwargs, whole.get))
        if getattr(node.target, "__name__", "") == "getitem":
            places[node] = _outputs[node.args[0]][node.args[1]] if node.args[0] in _outputs else None
            for part in parts:
                if node.args[0] in part:
                    part[node] = part[node.args[0]][node.args[1]]
            continue
        known = {n: place for n in node.all_input_nodes if isinstance(place := places.get(n), Rows)}
        if not known:
            # It reads nothing that has rows, as a view of labels; its own rows are found from the other side.
            continue
        found = cut(node, known)
        assert found is not None, node.target
        reached += 1
        _outputs[node] = found.outputs
        for (start, end), part in zip(itertools.pairwise(ends), parts, strict=True):

            def local(
                n: Node, part: Any = part, start: int = start, end: int = end, found: Any = found
            ) -> Any:
                return part[n] if n in part else _taken(whole[n], found.inputs.get(n), start, end)

            kwargs = {} if found.target else map_arg(node.kwargs, local)
            part[node] = (found.target or node.target)(
                *map_arg(tuple(found.args(end - start)), local), **kwargs
            )
        if isinstance(whole[node], Tensor):
            places[node] = found.outputs[0]
            _compare(whole[node], [part[node] for part in parts], found.outputs[0])
        else:
            for i, place in enumerate(found.outputs):
                _compare(whole[node][i], [part[node][i] for part in parts], place)
        results = tensors_in(node.meta["val"])
        assert len(results) == len(found.outputs)
    assert reached > 0


_outputs: dict[Any, list[Place]] = {}


def _taken(value: Any, place: Place, start: int, end: int) -> Any:
    if not isinstance(place, Rows):
        return value
    order = sorted(range(value.dim()), key=lambda dim: (dim > place.last, place.holds(dim), dim))
    flat = value.permute(order).reshape(place.some(value.shape, place.of(value.shape)))
    return flat.narrow(place.last, start, end - start)


def _compare(whole: Tensor, parts: list[Tensor], place: Place) -> None:
    if place is SUM:
        torch.testing.assert_close(sum(parts), whole)
        return
    assert isinstance(place, Rows)
    torch.testing.assert_close(torch.cat(parts, place.last), _taken(whole, place, 0, place.of(whole.shape)))

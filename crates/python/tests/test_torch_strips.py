"""Images by strips: exact but for the order of sums, in the bytes that are promised."""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any

import pytest
import scrimp

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from scrimp._torch.memory import measured  # noqa: E402
from tiles import CPU, OPTIONS, WORDS, Block, eager, off_by, tiled  # noqa: E402
from torch import Tensor, nn  # noqa: E402


class Skips(nn.Module):
    """A small U-Net, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.c, self.d = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
        self.places, self.scale = nn.Parameter(torch.rand(4, 46, 22)), nn.Parameter(torch.rand(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x), inplace=True)
        b = a + F.relu6(self.b(a)) * self.scale
        c = F.silu(self.c(F.max_pool2d(b, 2)))
        return self.d(torch.cat([F.interpolate(c * c, scale_factor=2), b], 1)).tanh() * self.places


class Normed(nn.Module):
    """A stem, a residual block with batch norm, and channels weighted by their means over places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(8)
        self.block = nn.Sequential(
            *(
                nn.Conv2d(8, 8, 3, padding=1, bias=False),
                nn.BatchNorm2d(8, momentum=0.3),
                nn.ReLU(inplace=True),
            ),
            *(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8, affine=False)),
        )
        self.narrow, self.wide = nn.Conv2d(8, 3, 1), nn.Conv2d(3, 8, 1)
        self.last, self.out = nn.BatchNorm2d(8, track_running_stats=False), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x)), inplace=True), 3, 2, 1)
        x = F.relu(self.block(x) + x)
        x = x * self.wide(F.silu(self.narrow(x.mean((2, 3), keepdim=True)))).sigmoid()
        return self.out(self.last(x) * x.mean(1, keepdim=True))


def images(kind: str) -> nn.Module:
    """A convolutional network that gives an image."""
    if kind == "decoder":
        return decoder()
    torch.manual_seed(0)
    if kind == "skips":
        return Skips()
    if kind == "normed":
        return Normed()
    if kind == "plain":
        layers: list[nn.Module] = []
        for narrow, wide in ((3, 8), (8, 8), (8, 12)):
            layers += [
                nn.Conv2d(narrow, wide, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2) if wide > 8 else nn.GELU(),
            ]
        return nn.Sequential(*layers)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False),
        nn.BatchNorm2d(8).eval(),
        nn.SiLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, dilation=2, padding=(3, 1)),
        nn.AvgPool2d(3, 1, 1),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, 4, (2, 3), groups=2),
    )


def decoder() -> nn.Module:
    """Transposed convolutions and bilinear upsampling."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 6, 2, stride=2),
        nn.SiLU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(6, 6, 3, stride=3),
        nn.ConvTranspose2d(6, 4, 5, stride=3, padding=2, output_padding=1, dilation=2),
        nn.Upsample(scale_factor=3, mode="bilinear"),
        nn.ConvTranspose2d(4, 2, 3, padding=1, bias=False),
    )


def score(output: Tensor, target: Tensor) -> Tensor:
    """A loss in which all of an image meets before its gradient is known."""
    return (output.flatten(1).logsumexp(1) - target).square().sum()


@pytest.mark.parametrize("kind", ["plain", "skips", "windows", "decoder", "normed"])
@pytest.mark.parametrize("tile", [2, 5, 10])
def test_convolutions_by_strips_are_exact_too(kind: str, tile: int) -> None:
    """Halos of strides, dilation, pooling, upsampling and skips; statistics of the whole image."""
    model = images(kind).double()
    x, target = torch.randn(2, 3, 46, 22, dtype=torch.float64) + 1, torch.rand(2, dtype=torch.float64)
    plain = copy.deepcopy(model)
    loss = score(plain(x), target)
    loss.backward()
    gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    for budget in ("100%", "min") if tile < 10 else ("100%",):
        other = copy.deepcopy(model)
        step = scrimp.torch.fit(other, score, (x, target), budget, tile=tile, **OPTIONS)
        assert off_by(other, step(x, target), (loss.detach(), gradients)) < 1e-12
        for mine, theirs in zip(other.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)


def deep(side: int) -> tuple[nn.Module, Tensor]:
    """Two levels of convolutions with batch norm."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for narrow, wide in ((3, 12), (12, 12), (12, 24), (24, 24)):
        layers += [
            nn.Conv2d(narrow, wide, 3, padding=1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(inplace=True),
        ]
        layers += [nn.MaxPool2d(2)] if narrow == wide else []
    return nn.Sequential(*layers), torch.randn(2, 3, side, side)


def test_batch_norm_by_strips_takes_less() -> None:
    """What is normalized needn't be whole: its strips are made again, for each of two sums."""
    model, x = deep(64)

    def loss_fn(output: Tensor) -> Tensor:
        return output.square().mean()

    least = scrimp.torch.fit(model, loss_fn, (x,), "min", **OPTIONS).peak
    step = scrimp.torch.fit(model, loss_fn, (x,), "min", tile=8, **{**OPTIONS, "costs": "measure"})
    plain = copy.deepcopy(model)
    loss_fn(plain(x)).backward()
    gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    held = sum(tensor.untyped_storage().nbytes() for tensor in [*model.parameters(), *model.buffers(), x])
    loss, peak, _ = measured(functools.partial(step, x), CPU)
    assert off_by(model, loss, (loss, gradients)) < 1e-4
    assert step.peak < 0.75 * least
    assert peak + held == pytest.approx(step.peak, rel=0.01)


def test_batch_norm_in_lower_precision_and_with_a_loss_outside() -> None:
    """Sums are of float32; the step may end in the middle."""
    model, x = deep(32)
    for kind, mode in (
        (model.bfloat16(), contextlib.nullcontext()),
        (model.float(), torch.autocast("cpu", dtype=torch.bfloat16)),
    ):
        given = x.to(next(kind.parameters()).dtype)
        with mode:
            plain, tiled_one = copy.deepcopy(kind), copy.deepcopy(kind)
            loss = plain(given).square().mean()
            planned = scrimp.torch.wrap(tiled_one, (given,), "min", tile=4, **OPTIONS)
            mine = planned(given).square().mean()
        loss.backward()
        mine.backward()
        gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
        assert off_by(tiled_one, mine.detach(), (loss.detach(), gradients)) < 0.05
        for own, theirs in zip(tiled_one.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(own, theirs, rtol=0.01, atol=0.01)


def test_strips_take_the_bytes_that_are_promised() -> None:
    """Where the loss is a sum over the image, each strip's gradients follow its values."""
    model, x = images("plain"), torch.randn(1, 3, 96, 96)

    def loss_fn(output: Tensor) -> Tensor:
        return output.square().mean()

    plain = scrimp.torch.fit(model, loss_fn, (x,), "min", **OPTIONS)
    for tile, budget in ((6, "100%"), (6, "min"), ("auto", "40%")):
        step = scrimp.torch.fit(model, loss_fn, (x,), budget, tile=tile, **{**OPTIONS, "costs": "measure"})
        assert step.peak < 0.7 * plain.peak
        model.zero_grad()
        step(x)
        model.zero_grad()
        _, peak, _ = measured(functools.partial(step, x), CPU)
        held = sum(tensor.untyped_storage().nbytes() for tensor in [*model.parameters(), x])
        assert peak + held == pytest.approx(step.peak, rel=0.01)


@pytest.mark.parametrize(
    "options", [{}, {"reduction": "sum", "ignore_index": 3}, {"weighted": True}], ids=str
)
def test_scores_of_places_are_never_whole(options: dict[str, Any]) -> None:
    """Each strip's cross entropy is taken at once, and its gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 32, 1)).double()
    x, y = torch.randn(2, 3, 32, 16, dtype=torch.float64), torch.randint(32, (2, 32, 16))
    y[0, :9] = options.get("ignore_index", -100)
    weight = torch.rand(32, dtype=torch.float64) if options.get("weighted") else None
    kind = {name: option for name, option in options.items() if name != "weighted"}
    loss_fn = nn.CrossEntropyLoss(weight, **kind)
    plain = copy.deepcopy(model)
    loss = loss_fn(plain(x), y)
    loss.backward()
    gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    whole = scrimp.torch.fit(model, loss_fn, (x, y), "100%", **OPTIONS).peak
    for tile in (3, 8, 32):
        other = copy.deepcopy(model)
        step = scrimp.torch.fit(other, loss_fn, (x, y), "100%", tile=tile, **OPTIONS)
        assert off_by(other, step(x, y), (loss.detach(), gradients)) < 1e-12
    assert step.peak < whole - 0.9 * 2 * 32 * 16 * 32 * 8


@pytest.mark.parametrize(("tile", "budget"), [(5, "100%"), (5, "min"), ("auto", "min")])
def test_compiled_regions_by_strips(tile: int | str, budget: str) -> None:
    """With the loss outside, behind batch norm, whose statistics change by copies."""
    torch._dynamo.reset()
    network, image = deep(16)
    network, image = network.double(), image.double()
    twin = copy.deepcopy(network)
    backend = scrimp.torch.backend(budget, tile=tile, **OPTIONS)
    loss = torch.compile(network, backend=backend, dynamic=False)(image).square().mean()
    loss.backward()
    wanted = twin(image).square().mean()
    wanted.backward()
    gradients = {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}
    assert off_by(network, loss.detach(), (wanted.detach(), gradients)) < 1e-12
    for mine, theirs in zip(network.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)


class Seen(nn.Module):
    """Images at the one end, and words at the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(
            *(nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.Conv2d(24, 24, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(24, 16, 4, stride=4)),
        )
        self.block, self.head = Block(16, gated=False, drop=0.0), nn.Linear(16, 4 * WORDS)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.head(self.block(self.stem(x).flatten(2).transpose(1, 2)))
        return F.cross_entropy(scores.flatten(0, 1), y.flatten())


def test_auto_takes_rows_and_strips_together() -> None:
    """Where either alone leaves the other whole."""
    model = Seen().double()
    given = torch.randn(1, 3, 64, 64, dtype=torch.float64), torch.randint(4 * WORDS, (1, 64))
    plain = tiled(model, given, "off", "min")
    # The least bytes of each choice are found in a tenth of the limit, which a busy machine needs.
    step = tiled(model, given, "auto", "min", time_limit=4.0)
    assert step.peak < 0.52 * plain.peak  # 0.56 by strips, 1.0 by rows
    assert off_by(model, step(*given), eager(model, *given)) < 1e-12


def test_what_cannot_be_run_by_strips_is_named() -> None:
    """By the operator and the module."""
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4))
    with pytest.raises(scrimp.Unsupported, match=r"group_norm\w* in '1' needs what '0' gives as a whole"):
        scrimp.torch.fit(normed, torch.sum, (torch.rand(2, 3, 8, 8),), "100%", tile=2, **OPTIONS)

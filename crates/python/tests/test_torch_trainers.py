"""Trainers of others with one more line: the same losses and weights, to the last bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import scrimp.torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

STEPS = 20
OPTIONS: dict[str, Any] = {"budget": "90%", "costs": "estimate", "time_limit": 0.5}


def language_model(kind: str) -> Any:
    """A tiny one of transformers, as its configuration is by default: with dropout, or a cache."""
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=60, n_positions=16)
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=60
    )
    return transformers.LlamaForCausalLM(config)


def texts(count: int) -> Any:
    """Texts with as many words each, of which some are no targets."""
    draw = torch.Generator().manual_seed(1)
    made = []
    for i in range(count):
        words = torch.randint(0, 60, (12,), generator=draw)
        labels = words.clone()
        labels[: i % 5] = -100
        made.append({"input_ids": words, "labels": labels, "attention_mask": torch.ones_like(words)})
    return made


def same(model: nn.Module, twin: nn.Module) -> bool:
    """Whether all parameters are the same bits."""
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


def trained(model: Any, folder: Path, **arguments: Any) -> tuple[Any, list[Any]]:
    """Train by transformers' Trainer; its last batch is smaller. Give it and what it logged."""
    transformers: Any = pytest.importorskip("transformers")
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_steps=STEPS // 2,
        eval_strategy="steps",
        eval_steps=STEPS // 2,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        **arguments,
    )
    trainer = transformers.Trainer(model, settings, train_dataset=texts(42), eval_dataset=texts(6))
    trainer.train()
    return trainer, logged(trainer)


def logged(trainer: Any) -> list[Any]:
    """Losses, norms of gradients and losses of evaluation."""
    history = trainer.state.log_history
    return [(entry.get("loss"), entry.get("grad_norm"), entry.get("eval_loss")) for entry in history]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("gpt2", {}),
        ("llama", {"bf16": True, "gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}),
    ],
    ids=["gpt2", "llama"],
)
def test_the_trainer_of_transformers(kind: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """Losses, clipped norms, evaluation and weights; then generation, saving, and a resumed run."""
    pytest.importorskip("accelerate")
    twin = language_model(kind)
    model = copy.deepcopy(twin)
    assert scrimp.torch.wrap(model, **OPTIONS) is model
    _, expected = trained(twin, tmp_path / "plain", **arguments)
    trainer, found = trained(model, tmp_path / "planned", **arguments)
    assert found == expected
    assert same(model, twin)
    assert model.plan.recomputed > 0
    # As with the plain model, 42 texts end in two; the two shapes, or with and without gradients.
    assert len(model.scrimp) >= 2
    words: dict[str, Any] = {"inputs": torch.tensor([[1, 2, 3]]), "max_new_tokens": 4, "do_sample": False}
    model.eval()
    twin.eval()
    assert torch.equal(model.generate(**words), twin.generate(**words))
    type(twin).from_pretrained(tmp_path / "planned" / f"checkpoint-{STEPS}")
    whole = logged(trainer)
    trainer.train(resume_from_checkpoint=str(tmp_path / "planned" / f"checkpoint-{STEPS // 2}"))
    assert logged(trainer)[: len(whole) - 1] == whole[:-1]
    assert same(model, twin)


def classifier() -> nn.Module:
    """Convolutions with batch norm and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Dropout()),
        *(nn.Flatten(), nn.LazyLinear(10)),
    )


def images() -> DataLoader[tuple[Tensor, ...]]:
    """Twenty batches, of which the last is smaller."""
    draw = torch.Generator().manual_seed(1)
    pictures = torch.randn(4 * STEPS - 1, 3, 12, 12, generator=draw)
    return DataLoader(TensorDataset(pictures, torch.randint(0, 10, (len(pictures),), generator=draw)), 4)


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    """A LightningModule whose network is planned from outside."""
    lightning: Any = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network
            self.losses: list[float] = []

        def training_step(self, batch: Any, place: int) -> Tensor:
            loss = F.cross_entropy(self.network(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, place: int) -> None:
            self.losses.append(F.cross_entropy(self.network(batch[0]), batch[1]).item())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def fitted(network: nn.Module, folder: str) -> Any:
        module = Classifier(network)
        torch.manual_seed(2)
        trainer = lightning.Trainer(
            max_epochs=1,
            precision="bf16-mixed",
            accumulate_grad_batches=2,
            gradient_clip_val=0.5,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path / folder,
        )
        trainer.fit(module, images(), images())
        return module

    network = classifier()
    network(next(iter(images()))[0])
    twin = copy.deepcopy(network)
    expected = fitted(twin, "plain")
    found = fitted(scrimp.torch.wrap(network, **OPTIONS), "planned")
    assert len(found.losses) > 2 * STEPS
    assert found.losses == expected.losses
    assert same(found, expected)
    assert list(found.state_dict()) == list(expected.state_dict())


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str) -> None:
    """Prepared, accumulated and clipped as its documentation shows."""
    accelerate: Any = pytest.importorskip("accelerate")
    # One precision for the whole process, unless it is forgotten.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    def fitted(model: Any) -> list[float]:
        accelerator = accelerate.Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=2
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, DataLoader(texts(4 * STEPS), batch_size=4)
        )
        torch.manual_seed(2)
        losses = []
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        assert accelerator.unwrap_model(model) is model
        return losses

    twin = language_model("gpt2")
    model = copy.deepcopy(twin)
    expected = fitted(twin)
    assert fitted(scrimp.torch.wrap(model, **OPTIONS)) == expected
    assert same(model, twin)
    assert model.plan.recomputed > 0

"""Training steps of models that people fine-tune: bits, promised and measured peaks, time over eager.

    OMP_NUM_THREADS=1 python benches/torch_models.py                # the table of docs/pytorch.md
    python benches/torch_models.py --models llama,bert --budgets 60% --size tiny

Each model is measured in a process of its own, whose end is waited for at most `--minutes`. Weights are
random; a model whose package isn't installed is left out, and said. A row compares loss, gradients and
buffers of one step with eager's. "Promised" is the plan's peak, "measured" PyTorch's own count of bytes in
use, the model and the batch included. Time is processor time on the CPU and wall time on a GPU: eager and
all plans in turn, medians, over eager's.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MIB = 1 << 20
Made = tuple[nn.Module, Any, Callable[..., Tensor] | None]
"""A model, a batch and a loss, as `scrimp.torch.fit` takes them."""


def images(batch: int, side: int) -> tuple[Tensor, Tensor]:
    """Pictures and their classes."""
    return torch.randn(batch, 3, side, side), torch.randint(0, 1000, (batch,))


def words(batch: int, length: int, vocabulary: int) -> Tensor:
    """Numbers of words."""
    return torch.randint(0, vocabulary, (batch, length))


def own_loss(output: Any) -> Tensor:
    """The loss that models of transformers work out themselves."""
    return output.loss


def of_torchvision(name: str, batch: int) -> Callable[[bool], Made]:
    """A classifier of images."""

    def make(tiny: bool) -> Made:
        import torchvision

        model = getattr(torchvision.models, name)()
        return model, images(2, 64) if tiny else images(batch, 224), F.cross_entropy

    return make


def causal(model: Any, batch: int, length: int) -> Made:
    """A language model that predicts its own input."""
    given = words(batch, length, model.config.vocab_size)
    return model, {"input_ids": given, "labels": given}, own_loss


def llama_of(tiny: bool) -> Any:
    """Grouped heads: fewer of keys and values than of queries."""
    import transformers as t

    config = t.LlamaConfig(
        vocab_size=512 if tiny else 8192,
        hidden_size=64 if tiny else 512,
        intermediate_size=128 if tiny else 1408,
        num_hidden_layers=2 if tiny else 12,
        num_attention_heads=8,
        num_key_value_heads=2,
        use_cache=False,
    )
    return t.LlamaForCausalLM(config)


def llama(tiny: bool) -> Made:
    """Twelve layers of 512."""
    return causal(llama_of(tiny), 2, 16 if tiny else 256)


def lora(tiny: bool) -> Made:
    """Small matrices beside the frozen ones of the same model."""
    import peft

    config = peft.LoraConfig(
        r=8, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    return causal(peft.get_peft_model(llama_of(tiny), config), 2, 16 if tiny else 256)


def bert(tiny: bool) -> Made:
    """Bert-base with dropout, two classes."""
    import transformers as t

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = t.BertForSequenceClassification(t.BertConfig(**small if tiny else {}))
    given = words(2, 16 if tiny else 128, 1000)
    return model, {"input_ids": given, "labels": torch.tensor([0, 1])}, own_loss


def t5(tiny: bool) -> Made:
    """T5-small."""
    import transformers as t

    small = {"d_model": 64, "d_kv": 16, "num_layers": 2, "num_heads": 4, "d_ff": 128, "vocab_size": 512}
    model = t.T5ForConditionalGeneration(
        t.T5Config(use_cache=False, decoder_start_token_id=0, **small if tiny else {})
    )
    source, target = words(2, 16 if tiny else 128, 500), words(2, 8 if tiny else 64, 500)
    return model, {"input_ids": source, "labels": target}, own_loss


def whisper(tiny: bool) -> Made:
    """Whisper-tiny on thirty seconds of sound."""
    import transformers as t

    width = 64 if tiny else 384
    config = t.WhisperConfig(
        d_model=width,
        encoder_layers=2 if tiny else 4,
        decoder_layers=2 if tiny else 4,
        encoder_attention_heads=width // 64 * 2,
        decoder_attention_heads=width // 64 * 2,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=50 if tiny else 1500,
        use_cache=False,
    )
    sound = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
    labels = words(2, 8 if tiny else 48, 50000)
    return t.WhisperForConditionalGeneration(config), {"input_features": sound, "labels": labels}, own_loss


def mamba(tiny: bool) -> Made:
    """State space layers, in PyTorch's own operators."""
    import transformers as t

    size = (
        {"hidden_size": 32, "num_hidden_layers": 2} if tiny else {"hidden_size": 256, "num_hidden_layers": 4}
    )
    return causal(
        t.MambaForCausalLM(t.MambaConfig(vocab_size=512, use_cache=False, **size)), 2, 8 if tiny else 48
    )


class LstmModel(nn.Module):
    """A recurrent language model with dropout."""

    def __init__(self, vocabulary: int, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        return self.head(self.lstm(self.words(x))[0])


def token_loss(output: Any, target: Tensor) -> Tensor:
    """Mean over all places."""
    return F.cross_entropy(getattr(output, "logits", output).flatten(0, 1), target.flatten())


def lstm(tiny: bool) -> Made:
    """Two layers of 512."""
    vocabulary, width = (100, 32) if tiny else (8192, 512)
    given = words(8, 8 if tiny else 64, vocabulary)
    return LstmModel(vocabulary, width), (given, given.roll(-1, 1)), token_loss


class Denoiser(nn.Module):
    """A diffusion model's network and its loss."""

    def __init__(self, network: nn.Module) -> None:
        """Keep the network."""
        super().__init__()
        self.network = network

    def forward(self, noisy: Tensor, when: Tensor, noise: Tensor) -> Tensor:
        """Give the loss."""
        return F.mse_loss(self.network(noisy, when).sample, noise)


def diffusion(tiny: bool) -> Made:
    """A U-Net with group norm, SiLU and attention."""
    import diffusers

    widths = (32, 64) if tiny else (64, 128, 256)
    side = 16 if tiny else 64
    inner = len(widths) - 1
    network = diffusers.UNet2DModel(
        sample_size=side,
        block_out_channels=widths,
        layers_per_block=1 if tiny else 2,
        down_block_types=("DownBlock2D",) * inner + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * inner,
        attention_head_dim=8,
    )
    noisy, noise = torch.randn(2, 3, side, side), torch.randn(2, 3, side, side)
    return Denoiser(network), {"noisy": noisy, "when": torch.tensor([3, 7]), "noise": noise}, None


MODELS: dict[str, tuple[str, str, Callable[[bool], Made]]] = {
    "resnet50": ("ResNet-50, batch 4 of 224×224", "torchvision", of_torchvision("resnet50", 4)),
    "convnext": ("ConvNeXt-tiny, batch 2 of 224×224", "torchvision", of_torchvision("convnext_tiny", 2)),
    "swin": ("Swin-tiny, batch 2 of 224×224", "torchvision", of_torchvision("swin_t", 2)),
    "llama": ("Llama, 12 layers of 512, grouped heads, 2×256", "transformers", llama),
    "lora": ("the same Llama with LoRA", "peft", lora),
    "bert": ("BERT-base, 2×128", "transformers", bert),
    "t5": ("T5-small, 2×128 to 64", "transformers", t5),
    "whisper": ("Whisper-tiny, 2 of 30 s", "transformers", whisper),
    "mamba": ("Mamba, 4 layers of 256, 2×48", "transformers", mamba),
    "lstm": ("LSTM language model, 2 layers of 512, 8×64", "torch", lstm),
    "diffusion": ("diffusion U-Net, 64 to 256 channels, 2 of 64×64", "diffusers", diffusion),
}


def device_of(name: str) -> torch.device:
    """The device that tensors say they are on."""
    return torch.device("cuda", 0) if name == "cuda" else torch.device(name)


class Subject:
    """A model on a device, and one step of it in eager mode."""

    def __init__(self, made: Made, device: torch.device) -> None:
        """Put it there."""
        self.model, batch, self.loss_fn = made
        self.device = device
        self.autocast: torch.dtype = torch.float32
        """The type of autocast; float32 is none."""
        self.model.to(device).train()
        named = isinstance(batch, dict)
        self.batch: Any = (
            {name: value.to(device) for name, value in batch.items()}
            if named
            else tuple(value.to(device) for value in batch)
        )
        self.start = copy.deepcopy(self.model.state_dict())

    def tensors(self) -> list[Tensor]:
        """What is there before the step."""
        batch = self.batch.values() if isinstance(self.batch, dict) else self.batch
        return [*self.model.parameters(), *self.model.buffers(), *batch]

    def casting(self) -> Any:
        """Autocast, where it is asked for."""
        return torch.autocast(self.device.type, self.autocast, enabled=self.autocast != torch.float32)

    def eager(self) -> Tensor:
        """Forward and backward in the usual way."""
        from scrimp._torch.step import loss_of

        with self.casting():
            loss = loss_of(self.model, self.loss_fn, self.batch)
        loss.backward()
        return loss.detach()

    def planned(self, step: Any) -> Tensor:
        """The same by a plan."""
        with self.casting():
            return step(**self.batch) if isinstance(self.batch, dict) else step(*self.batch)

    def clear(self) -> None:
        """Drop the gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def run(self, step: Callable[[], Tensor]) -> Tensor:
        """One step from the same random state, without gradients there."""
        self.clear()
        torch.manual_seed(1)
        return step()

    def outcome(self, step: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Loss, gradients and buffers after one step from the start."""
        self.model.load_state_dict(self.start)
        found = {"loss": self.run(step)}
        found |= {f"gradient of {n}": p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        found |= {n: b for n, b in self.model.named_buffers()}
        return {name: value.clone() for name, value in found.items()}

    def peak(self, step: Callable[[], Tensor]) -> int:
        """Most bytes of tensors in use during a step."""
        from scrimp._torch.gpu import kept_by_libraries
        from scrimp._torch.memory import measured, storage_bytes

        self.clear()
        libraries = kept_by_libraries(self.device)
        _, peak, _ = measured(lambda: self.run(step), self.device)
        return peak + storage_bytes(self.tensors()) + libraries

    def seconds(self, step: Callable[[], Tensor]) -> float:
        """Of one step: processor time on the CPU, wall time on a GPU."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            start = time.perf_counter()
            self.run(step)
            torch.cuda.synchronize(self.device)
            return time.perf_counter() - start
        start = time.process_time()
        self.run(step)
        return time.process_time() - start


def differing(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> str:
    """Say what isn't the same to the last bit."""
    off = sorted(mine.keys() ^ theirs.keys())
    off += [name for name in mine.keys() & theirs.keys() if not torch.equal(mine[name], theirs[name])]
    return f"{len(off)} of {len(theirs)} differ, such as {off[0]}" if off else "same"


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model."""
    import scrimp
    import scrimp.torch

    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    if given.slab:
        scrimp.torch.use_slab()
    subject = Subject(MODELS[name][2](given.size == "tiny"), device_of(given.device))
    reference = subject.outcome(subject.eager)
    itself = differing(subject.outcome(subject.eager), reference)
    row: dict[str, Any] = {"eager": subject.peak(subject.eager), "itself": itself, "plans": {}}
    steps: dict[str, Callable[[], Tensor]] = {"eager": subject.eager}
    for budget in given.budgets.split(","):
        subject.clear()
        start = time.perf_counter()
        try:
            step = scrimp.torch.fit(
                subject.model, subject.loss_fn, subject.batch, budget, time_limit=given.time_limit
            )
        except scrimp.Infeasible as error:
            row["plans"][budget] = {"refused": error.least_found}
            continue
        planned = lambda step=step: subject.planned(step)  # noqa: E731
        row["plans"][budget] = {
            "took": time.perf_counter() - start,
            "bits": differing(subject.outcome(planned), reference),
            "promised": step.peak,
            "measured": subject.peak(planned),
            "predicted": 1 + step.plan.overhead,
        }
        steps[budget] = planned
    times: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(given.repeats):
        for label, run in steps.items():
            times[label].append(subject.seconds(run))
    middle = {label: statistics.median(taken) for label, taken in times.items()}
    row["seconds"] = middle.pop("eager")
    for label, seconds in middle.items():
        row["plans"][label]["time"] = seconds / row["seconds"]
    return row


def described(name: str, row: dict[str, Any]) -> list[str]:
    """Lines of the table."""
    title = MODELS[name][0]
    if "failed" in row:
        return [f"| {title} | {row['failed']} | | | | |"]
    lines: list[str] = []
    for budget, plan in row["plans"].items():
        if "refused" in plan:
            lines.append(
                f"| {title} | {budget} | no plan; the least found: {plan['refused'] / MIB:.1f} MiB | | | |"
            )
            continue
        bits = plan["bits"] if row["itself"] == "same" else f"{plan['bits']}; eager itself: {row['itself']}"
        promised, measured = plan["promised"] / MIB, plan["measured"] / MIB
        time_over = f"{plan['time']:.3f} ({plan['predicted']:.3f})"
        lines.append(f"| {title} | {budget} | {bits} | {promised:.1f} | {measured:.1f} | {time_over} |")
        title = ""
    return [f"| {MODELS[name][0]} | eager | | | {row['eager'] / MIB:.1f} | 1 |", *lines]


HEADER = [
    "| model | budget | bits | promised, MiB | measured, MiB | time over eager (predicted) |",
    "|---|---|---|---|---|---|",
]


def in_its_own_process(name: str, given: argparse.Namespace, minutes: float) -> dict[str, Any]:
    """Measure a model where nothing else runs and nothing can be left behind."""
    package = MODELS[name][1]
    try:
        importlib.import_module(package)
    except ImportError:
        return {"failed": f"{package} isn't installed"}
    options = [f"--{key.replace('_', '-')}={getattr(given, key)}" for key in PASSED]
    options += ["--slab"] if given.slab else []
    command = [sys.executable, __file__, "--one", name, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * minutes, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {minutes:g} minutes"}
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return {"failed": f"ended with {done.returncode}: {last}"}
    return json.loads(done.stdout.splitlines()[-1])


PASSED = ("device", "size", "budgets", "repeats", "time_limit", "threads")


def options(parser: argparse.ArgumentParser) -> None:
    """What this and `gpu.py` have in common."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=("real", "tiny"), default="real")
    parser.add_argument("--budgets", default="100%,60%,min")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--slab", action="store_true", help="with scrimp.torch.use_slab()")


def main() -> None:
    """Run what was asked for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--minutes", type=float, default=15.0, help="for each model, at most")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options(parser)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given)))
        return
    print("\n".join(HEADER), flush=True)
    for name in given.models.split(","):
        row = in_its_own_process(name, given, given.minutes)
        print("\n".join(described(name, row)), flush=True)


if __name__ == "__main__":
    main()

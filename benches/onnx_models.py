#!/usr/bin/env python3
"""Exports models of torchvision, timm and transformers to ONNX, imports them, and trains three steps.

    benches/onnx_models.py [--scrimp target/release/scrimp] [MODEL ...]

Each model is exported by PyTorch's older exporter (TorchScript) and by the newer one (dynamo), the latter
also without its optimizations; all for training, with dropout and stochastic depth turned off. Then scrimp
and PyTorch train three steps on the same samples, from the same weights. The table says how many batch
normalizations are left in the file and how much losses differ: before the first update, which is the import's
doing, and after the second, which is also the gradients'. Written for torch 2.15 with torchvision 0.29,
timm 1.0 and transformers 5.23.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import subprocess
import tempfile
import warnings

import numpy
import torch

TORCHVISION = [
    "resnet18",
    "resnet50",
    "vgg11_bn",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "densenet121",
    "squeezenet1_1",
    "shufflenet_v2_x1_0",
    "efficientnet_b0",
    "convnext_tiny",
    "regnet_y_400mf",
    "mnasnet1_0",
    "swin_t",
]
TIMM = [
    "vit_tiny_patch16_224",
    "mixer_s32_224",
    "mobilenetv3_small_100",
    "ghostnet_100",
    "tf_efficientnetv2_b0",
    "levit_128s",
    "seresnet18",
    "nf_regnet_b0",
]
TRANSFORMERS = [
    "gpt2",
    "bert",
    "distilbert",
    "llama",
    "vit",
    "t5-encoder",
]
EXPORTERS = ("torchscript", "dynamo", "dynamo, optimize=False")
STEPS, RATE = 3, 0.01


class Call(torch.nn.Module):
    """A model that takes one tensor under a name and returns one."""

    def __init__(self, model, argument, result):
        """Of a model, the name of its argument and that of its result."""
        super().__init__()
        self.model, self.argument, self.result = model, argument, result

    def forward(self, x):
        """The result."""
        return getattr(self.model(**{self.argument: x}), self.result)


def vision(name):
    """A model of torchvision and a batch."""
    import torchvision

    return getattr(torchvision.models, name)(num_classes=10), torch.randn(2, 3, 224, 224)


def timm(name):
    """A model of timm and a batch."""
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=10)
    return model, torch.randn(2, *model.default_cfg["input_size"])


def language(name):
    """Two small layers; the structure is what matters."""
    import transformers as t

    usual = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=64, intermediate_size=128)
    words = dict(vocab_size=100, max_position_embeddings=64)
    tokens = torch.randint(0, 90, (2, 32))
    if name == "gpt2":
        config = t.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=100, n_positions=64, use_cache=False)
        return Call(t.GPT2LMHeadModel(config), "input_ids", "logits"), tokens
    if name == "bert":
        model = t.BertForSequenceClassification(t.BertConfig(**usual, **words))
        return Call(model, "input_ids", "logits"), tokens
    if name == "distilbert":
        config = t.DistilBertConfig(n_layers=2, n_heads=4, dim=64, hidden_dim=128, **words)
        return Call(t.DistilBertForSequenceClassification(config), "input_ids", "logits"), tokens
    if name == "llama":
        config = t.LlamaConfig(num_key_value_heads=2, use_cache=False, **usual, **words)
        return Call(t.LlamaForCausalLM(config), "input_ids", "logits"), tokens
    if name == "vit":
        config = t.ViTConfig(image_size=64, patch_size=16, num_labels=10, **usual)
        return Call(t.ViTForImageClassification(config), "pixel_values", "logits"), torch.randn(2, 3, 64, 64)
    config = t.T5Config(num_layers=2, num_heads=4, d_model=64, d_ff=128, d_kv=16, vocab_size=100)
    return Call(t.T5EncoderModel(config), "input_ids", "last_hidden_state"), tokens


def certain(model):
    """Turns off what is drawn at random, and trains."""
    model.train()
    names = ("p", "dropout", "drop_prob", "dropout_p", "attention_dropout", "dropout_prob")
    for module in model.modules():
        for name in names:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def export(model, x, path, exporter):
    """Writes the file."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if exporter == "torchscript":
            mode = torch.onnx.TrainingMode.TRAINING
            torch.onnx.export(
                model, (x,), path, dynamo=False, opset_version=17, training=mode, do_constant_folding=False
            )
        else:
            torch.onnx.export(
                model,
                (x,),
                path,
                dynamo=True,
                external_data=False,
                verbose=False,
                optimize=exporter == "dynamo",
            )


def scrimp(binary, *arguments):
    """What the command answers."""
    answer = subprocess.run([binary, *arguments, "--json"], capture_output=True, text=True).stdout
    answer = json.loads(answer)
    if "error" in answer:
        raise RuntimeError(answer["error"]["message"].split(": ", 1)[-1].split("; ")[0])
    return answer


def losses(model, x, y):
    """PyTorch's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss.item()


def compare(binary, make, name, exporter, folder):
    """Cells of the table."""
    torch.manual_seed(0)
    model, x = make(name)
    certain(model)
    # Normalized bits and running statistics change when a model is traced.
    state = {key: value.clone() for key, value in model.state_dict().items()}
    path = os.path.join(folder, "model.onnx")
    try:
        export(model, x, path, exporter)
    except Exception as error:
        return [f"isn't exported: {type(error).__name__}", "", "", ""]
    model.load_state_dict(state)
    with torch.no_grad():
        y = torch.randn_like(model(x))
    model.load_state_dict(state)
    data = os.path.join(folder, "data.npz")
    numpy.savez(data, x=x.numpy(), y=y.numpy())
    try:
        found = scrimp(binary, "inspect", path)
        run = f"train {path} --budget 100% --steps {STEPS} --lr {RATE} --loss mse --optimizer sgd"
        run += f" --data {data} --costs static --time-limit 1 --library native"
        ours = scrimp(binary, *run.split())["losses"]
    except RuntimeError as error:
        return [f"is refused: {error}", "", "", ""]
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)
    norms = sum(isinstance(module, kinds) for module in model.modules())
    kept = sum(item["count"] for item in found["operators"] if item["operator"] == "BatchNorm")
    theirs = list(losses(model, x, y))
    off = [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)]
    return ["trains", f"{kept} of {norms}" if norms else "", f"{off[0]:.0e}", f"{off[-1]:.0e}"]


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scrimp", default="target/release/scrimp")
    parser.add_argument("models", nargs="*")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    libraries = (
        ("torchvision", vision, TORCHVISION),
        ("timm", timm, TIMM),
        ("transformers", language, TRANSFORMERS),
    )
    print("| model | exporter | result | batch norms kept | first loss off by | third |")
    print("|---|---|---|---|---|---|")
    for library, make, names in libraries:
        for name in names:
            if arguments.models and name not in arguments.models:
                continue
            for exporter in EXPORTERS:
                with tempfile.TemporaryDirectory() as folder:
                    cells = compare(arguments.scrimp, make, name, exporter, folder)
                print(f"| {library} {name} | {exporter} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

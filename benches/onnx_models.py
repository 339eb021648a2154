#!/usr/bin/env python3
"""Exports models of torchvision, timm and transformers to ONNX, imports them, and trains three steps.

    benches/onnx_models.py [--scrimp target/release/scrimp] [MODEL ...]

Each model is exported by PyTorch's older exporter (TorchScript) and by the newer one (dynamo), the latter
also without its optimizations, and of opset 23, which has attention as an operator, with a batch size that is
open; all for training, with dropout and stochastic depth turned off. Then scrimp
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
    "swin_v2_t",
    "fcn_resnet50",
    "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
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
    "eva02_tiny_patch14_224",
    "convnextv2_atto",
    "mobilenetv4_conv_small",
    "poolformer_s12",
    "xcit_nano_12_p16_224",
    "edgenext_xx_small",
    "fastvit_t8",
    "efficientformer_l1",
    "mobilevitv2_050",
    "repvit_m0_9",
    "coat_tiny",
]
TRANSFORMERS = [
    "gpt2",
    "bert",
    "distilbert",
    "electra",
    "deberta",
    "roberta",
    "llama",
    "mistral",
    "qwen2",
    "gemma2",
    "phi",
    "gpt_neox",
    "opt",
    "vit",
    "dinov2",
    "swin",
    "convnext",
    "mobilevit",
    "segformer",
    "clip-text",
    "clip-vision",
    "whisper-encoder",
    "wav2vec2",
    "t5-encoder",
]
LATEST = "dynamo, optimize=False, opset 23"
EXPORTERS = ("torchscript", "dynamo", "dynamo, optimize=False", LATEST)
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


class Map(torch.nn.Module):
    """A segmentation model's map of classes."""

    def __init__(self, model):
        """Of the model."""
        super().__init__()
        self.model = model

    def forward(self, x):
        """The map."""
        return self.model(x)["out"]


def vision(name):
    """A model of torchvision and a batch."""
    import torchvision

    models = torchvision.models
    if hasattr(models.segmentation, name):
        model = getattr(models.segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
        return Map(model), torch.randn(2, 3, 64, 64)
    size = 64 if name == "swin_v2_t" else 224
    return getattr(models, name)(num_classes=10), torch.randn(2, 3, size, size)


def timm(name):
    """A model of timm and a batch."""
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=10)
    return model, torch.randn(2, *model.default_cfg["input_size"])


LAYERS = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=64, intermediate_size=128)
WORDS = dict(vocab_size=100, max_position_embeddings=64)


def language(name):
    """A model of transformers and a batch. Two small layers; the structure is what matters."""
    made = text(name) or image(name) or sound(name)
    if made is None:
        raise ValueError(f"no model {name}")
    return made


def text(name):
    """A model of words, if it is one."""
    import transformers as t

    both = LAYERS | WORDS
    decoder = both | dict(use_cache=False)
    grouped = decoder | dict(num_key_value_heads=2)
    small = dict(num_layers=2, num_heads=4, d_model=64, d_ff=128, d_kv=16, vocab_size=100)
    relative = dict(relative_attention=True, pos_att_type=["p2c", "c2p"])
    makers = {
        "gpt2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=100, n_positions=64, use_cache=False)
        ),
        "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**both)),
        "distilbert": lambda: t.DistilBertForSequenceClassification(
            t.DistilBertConfig(n_layers=2, n_heads=4, dim=64, hidden_dim=128, **WORDS)
        ),
        "electra": lambda: t.ElectraForSequenceClassification(t.ElectraConfig(embedding_size=32, **both)),
        "deberta": lambda: t.DebertaV2ForSequenceClassification(t.DebertaV2Config(**relative, **both)),
        "roberta": lambda: t.RobertaForSequenceClassification(t.RobertaConfig(**both)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**grouped)),
        "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(sliding_window=8, **grouped)),
        "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**grouped)),
        "gemma2": lambda: t.Gemma2ForCausalLM(t.Gemma2Config(head_dim=16, **grouped)),
        "phi": lambda: t.PhiForCausalLM(t.PhiConfig(**decoder)),
        "gpt_neox": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**decoder)),
        "opt": lambda: t.OPTForCausalLM(t.OPTConfig(ffn_dim=128, word_embed_proj_dim=64, **decoder)),
        "clip-text": lambda: t.CLIPTextModel(t.CLIPTextConfig(**both)),
        "t5-encoder": lambda: t.T5EncoderModel(t.T5Config(**small)),
    }
    if name not in makers:
        return None
    result = "last_hidden_state" if name in ("clip-text", "t5-encoder") else "logits"
    # PyTorch doesn't train the row of a padding word; the file doesn't say so.
    return Call(makers[name](), "input_ids", result), torch.randint(3, 90, (2, 32))


def image(name):
    """A model of images, if it is one."""
    import transformers as t

    patches = LAYERS | dict(image_size=64, patch_size=16)
    labels = dict(num_labels=10)
    stages = dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1])
    makers = {
        "vit": lambda: t.ViTForImageClassification(t.ViTConfig(**patches, **labels)),
        "dinov2": lambda: t.Dinov2ForImageClassification(t.Dinov2Config(**patches, **labels)),
        "swin": lambda: t.SwinForImageClassification(
            t.SwinConfig(
                image_size=64, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, **labels
            )
        ),
        "convnext": lambda: t.ConvNextForImageClassification(t.ConvNextConfig(**stages, **labels)),
        "mobilevit": lambda: t.MobileViTForImageClassification(
            t.MobileViTConfig(image_size=64, hidden_sizes=[16, 24, 32], num_attention_heads=2, **labels)
        ),
        "segformer": lambda: t.SegformerForSemanticSegmentation(
            t.SegformerConfig(num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=32, **stages, **labels)
        ),
        "clip-vision": lambda: t.CLIPVisionModel(t.CLIPVisionConfig(**patches)),
    }
    if name not in makers:
        return None
    result = "last_hidden_state" if name == "clip-vision" else "logits"
    return Call(makers[name](), "pixel_values", result), torch.randn(2, 3, 64, 64)


def sound(name):
    """A model of sound, if it is one."""
    import transformers as t
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    if name == "wav2vec2":
        features = dict(conv_dim=[16, 16], conv_stride=[5, 2], conv_kernel=[10, 3], apply_spec_augment=False)
        places = dict(num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4)
        model = t.Wav2Vec2Model(t.Wav2Vec2Config(**features, **places, **LAYERS))
        return Call(model, "input_values", "last_hidden_state"), torch.randn(2, 800)
    if name == "whisper-encoder":
        layers = dict(encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128)
        sizes = dict(d_model=64, num_mel_bins=16, max_source_positions=50)
        model = WhisperEncoder(t.WhisperConfig(**layers, **sizes))
        return Call(model, "input_features", "last_hidden_state"), torch.randn(2, 16, 100)
    return None


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
            return
        latest = exporter == LATEST
        torch.onnx.export(
            model,
            (x,),
            path,
            dynamo=True,
            external_data=False,
            verbose=False,
            optimize=exporter == "dynamo",
            opset_version=23 if latest else None,
            dynamic_shapes=({0: torch.export.Dim("batch")},) if latest else None,
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
        found = scrimp(binary, "inspect", path, "--batch", "2")
        run = f"train {path} --batch 2 --budget 100% --steps {STEPS} --lr {RATE} --loss mse --optimizer sgd"
        run += f" --data {data} --costs static --time-limit 1 --library native"
        ours = scrimp(binary, *run.split())["losses"]
    except RuntimeError as error:
        return [f"is refused: {error}", "", "", ""]
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)
    norms = sum(isinstance(module, kinds) for module in model.modules())
    kept = sum(item["count"] for item in found["operators"] if item["operator"] == "BatchNorm")
    theirs = list(losses(model, x, y))
    # What isn't finite is none.
    off = [abs(a - b) / abs(b) if a is not None else float("inf") for a, b in zip(ours, theirs, strict=True)]
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

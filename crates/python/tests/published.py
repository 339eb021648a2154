"""Published models at tiny sizes with random weights, each with a batch and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import token_loss
from torch import Tensor, nn
from torch.nn import functional as F

Case = tuple[nn.Module, Any, Callable[..., Tensor]]

TEXT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
PATCHES = {**TEXT, "image_size": 32, "patch_size": 8}


def words(*shape: int, seed: int = 0) -> Tensor:
    """Tokens that aren't special."""
    return torch.randint(3, 96, shape, generator=torch.Generator().manual_seed(seed))


def images(count: int, size: int) -> Tensor:
    """Noise in three channels."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def labels(*shape: int) -> Tensor:
    """One of ten classes."""
    return torch.randint(0, 10, shape, generator=torch.Generator().manual_seed(2))


def loss_of_output(output: Any) -> Tensor:
    """Transformers' models work it out themselves."""
    loss: Tensor = output.loss
    return loss


def transformer(kind: str, config: str, options: dict[str, Any]) -> Any:
    """One of transformers' models in training mode."""
    transformers: Any = pytest.importorskip("transformers")
    return getattr(transformers, kind)(getattr(transformers, config)(**options)).train()


def causal(name: str, *, padded: int = 0, **options: Any) -> Case:
    """A language model whose attention has fewer heads for keys than for queries."""
    model = transformer(f"{name}ForCausalLM", f"{name}Config", {**GROUPED, **options})
    tokens = words(2, 24)
    mask = torch.ones_like(tokens)
    mask[0, 24 - padded :] = 0
    return model, {"input_ids": tokens, "attention_mask": mask, "labels": tokens}, loss_of_output


def lora() -> Case:
    """A language model whose own weights are frozen."""
    peft: Any = pytest.importorskip("peft")
    model, batch, loss = causal("Llama")
    config = peft.LoraConfig(
        r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(model, config), batch, loss


def bert() -> Case:
    """Attention to both sides, with dropout everywhere and a padded batch."""
    model = transformer("BertForMaskedLM", "BertConfig", TEXT)
    tokens = words(2, 24)
    mask = torch.ones_like(tokens)
    mask[0, 20:] = 0
    return model, {"input_ids": tokens, "attention_mask": mask, "labels": tokens}, loss_of_output


def gpt2() -> Case:
    """With dropout."""
    options = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 96, "use_cache": False}
    model = transformer("GPT2LMHeadModel", "GPT2Config", {**options, "bos_token_id": 1, "eos_token_id": 2})
    return model, (words(2, 32), words(2, 32)), lambda output, target: token_loss(output.logits, target)


def t5() -> Case:
    """Encoder and decoder, with a bias for distances."""
    sizes = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8, "vocab_size": 96}
    options = {**sizes, "pad_token_id": 0, "decoder_start_token_id": 0}
    model = transformer("T5ForConditionalGeneration", "T5Config", options)
    tokens = words(2, 24)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": words(2, 12, seed=3)}
    return model, batch, loss_of_output


def whisper() -> Case:
    """Sound to text."""
    sizes = {"d_model": 32, "vocab_size": 96, "num_mel_bins": 8, "max_source_positions": 24}
    halves = {
        f"{half}_{name}": size
        for half in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    }
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    options = {**sizes, **halves, **special, "max_target_positions": 32, "dropout": 0.1}
    model = transformer("WhisperForConditionalGeneration", "WhisperConfig", options)
    sound = torch.randn(2, 8, 48, generator=torch.Generator().manual_seed(0))
    return model, {"input_features": sound, "labels": words(2, 12)}, loss_of_output


def mamba() -> Case:
    """A state-space model, step by step."""
    options = {"vocab_size": 96, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}
    model = transformer("MambaForCausalLM", "MambaConfig", {**options, "use_cache": False})
    tokens = words(2, 8)
    return model, {"input_ids": tokens, "labels": tokens}, loss_of_output


def masked_autoencoder() -> Case:
    """Most patches are left out, at random."""
    decoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    options = {**PATCHES, **{f"decoder_{name}": size for name, size in decoder.items()}}
    model = transformer("ViTMAEForPreTraining", "ViTMAEConfig", options)
    return model, {"pixel_values": images(2, 32)}, loss_of_output


def vision(name: str, size: int = 32, count: int = 4, **options: Any) -> Case:
    """One of torchvision's classifiers."""
    models: Any = pytest.importorskip("torchvision").models
    model = getattr(models, name)(num_classes=10, **options)
    if name == "vgg11_bn":
        # Its own has ten times the parameters of all the rest.
        model.classifier = nn.Linear(512 * 7 * 7, 10)
    return model, (images(count, size), labels(count)), F.cross_entropy


def densenet() -> Case:
    """Every layer reads all before it."""
    models: Any = pytest.importorskip("torchvision").models
    model = models.DenseNet(growth_rate=16, block_config=(3, 6, 4), num_init_features=32, num_classes=10)
    return model, (images(8, 64), labels(8)), F.cross_entropy


def convnext() -> Case:
    """Wide depthwise kernels, layer norm over channels, and layers that are left out at random."""
    module: Any = pytest.importorskip("torchvision").models.convnext
    sizes = [module.CNBlockConfig(8, 16, 2), module.CNBlockConfig(16, None, 2)]
    model = module.ConvNeXt(sizes, stochastic_depth_prob=0.2, num_classes=10)
    return model, (images(4, 64), labels(4)), F.cross_entropy


def swin() -> Case:
    """Attention in windows that are shifted by rolling."""
    models: Any = pytest.importorskip("torchvision").models
    options = {"stochastic_depth_prob": 0.2, "num_classes": 10}
    model = models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], **options)
    return model, (images(2, 64), labels(2)), F.cross_entropy


def channels_last() -> Case:
    """A network whose channels are innermost in memory."""
    model, (inputs, target), loss = vision("regnet_y_400mf", 64)
    last = torch.channels_last
    return model.to(memory_format=last), (inputs.contiguous(memory_format=last), target), loss


def deeplab() -> Case:
    """Segmentation with two heads and interpolation."""
    models: Any = pytest.importorskip("torchvision").models.segmentation
    options = {"weights": None, "weights_backbone": None, "num_classes": 10, "aux_loss": True}

    def loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(output["out"], target) + 0.5 * F.cross_entropy(output["aux"], target)

    model = models.deeplabv3_mobilenet_v3_large(**options)
    return model, (images(2, 64), labels(2, 64, 64)), loss


def vision_transformer() -> Case:
    """With every kind of dropout it has."""
    timm: Any = pytest.importorskip("timm")
    rates = {"drop_rate": 0.1, "proj_drop_rate": 0.1, "attn_drop_rate": 0.1, "drop_path_rate": 0.1}
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=4, num_classes=10, **rates)
    return model, (images(8, 64), labels(8)), F.cross_entropy


def efficientnet() -> Case:
    """Layers are left out at random."""
    timm: Any = pytest.importorskip("timm")
    model = timm.create_model("efficientnet_b0", num_classes=10, drop_path_rate=0.2, drop_rate=0.1)
    return model, (images(4, 64), labels(4)), F.cross_entropy


class Letters(nn.Module):
    """A language model of recurrent layers with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 16)
        self.lstm = nn.LSTM(16, 32, 2, dropout=0.2, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.lstm(self.dropout(self.embed(x)))[0]))


def letters() -> Case:
    """By oneDNN's fused layers."""
    return Letters(), (words(4, 16), words(4, 16)), token_loss


def diffusion() -> Case:
    """A U-Net with group norm, SiLU and attention."""
    diffusers: Any = pytest.importorskip("diffusers")
    model = diffusers.UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=4,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    batch = (images(2, 16), torch.tensor([3, 700]), images(2, 16))
    return model.train(), batch, lambda output, noise: F.mse_loss(output.sample, noise)


CASES: dict[str, Callable[[], Case]] = {
    "llama": lambda: causal("Llama"),
    "llama-padded": lambda: causal("Llama", padded=5),
    "llama-lora": lora,
    "mistral": lambda: causal("Mistral", sliding_window=8),
    "qwen2": lambda: causal("Qwen2"),
    "gemma": lambda: causal("Gemma", head_dim=8),
    "mixtral": lambda: causal("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "bert": bert,
    "gpt2": gpt2,
    "t5": t5,
    "whisper": whisper,
    "mamba": mamba,
    "vit-mae": masked_autoencoder,
    "vit": vision_transformer,
    "resnet18": lambda: vision("resnet18", 64, 8),
    "resnet50": lambda: vision("resnet50", 64, 8),
    "vgg11": lambda: vision("vgg11_bn", 64, 8),
    "densenet": densenet,
    "convnext": convnext,
    "swin": swin,
    "efficientnet": efficientnet,
    "regnet-channels-last": channels_last,
    "deeplab": deeplab,
    "lstm": letters,
    "diffusion-unet": diffusion,
}

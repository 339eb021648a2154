"""What can't be planned and is seen before capture, each with a sentence that says what to do."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.utils import checkpoint

from scrimp.errors import BadOption, Unsupported

PRE_HOOKS = {
    "WeightNorm": "use torch.nn.utils.parametrizations.weight_norm",
    "SpectralNorm": "use torch.nn.utils.parametrizations.spectral_norm",
    "BasePruningMethod": "make it permanent with torch.nn.utils.prune.remove, or mask gradients yourself",
}
"""Classes of PyTorch's whose pre-hooks make a weight anew at every call, and what to do instead."""
CHECKPOINTING = ("gradient_checkpointing", "grad_checkpointing")
"""Attributes by which transformers' and timm's modules remember that it is on."""
RECOMPUTES = (
    "the plan itself decides what is computed again, so turn checkpointing off "
    "(model.gradient_checkpointing_disable() in transformers, model.set_grad_checkpointing(False) in timm)"
)


def refuse_inference_mode() -> None:
    """Refuse a mode in which nothing has gradients."""
    if torch.is_inference_mode_enabled():
        raise Unsupported(
            "torch.inference_mode() is on, in which nothing gets gradients; leave it for training steps"
        )


def refuse_call(model: Any, loss_fn: Any) -> None:
    """Refuse what is no model or no loss."""
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise BadOption(f"the model is {what}, but must be a torch.nn.Module")
    if isinstance(loss_fn, type):
        raise BadOption(
            f"the loss is the class {loss_fn.__name__}, but must be one of its objects: {loss_fn.__name__}()"
        )
    if loss_fn is not None and not callable(loss_fn):
        raise BadOption(f"the loss is {loss_fn!r}, but must be a function of the model's output, or None")
    _refuse_container(model)


def _refuse_container(model: nn.Module) -> None:
    name = type(model).__name__
    if isinstance(model, nn.DataParallel):
        raise Unsupported(
            "DataParallel copies the model at every call; give its model.module, and for several devices "
            "use DistributedDataParallel(scrimp.torch.wrap(...))"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise Unsupported(
            "DistributedDataParallel averages gradients in a backward pass of its own; put it around the "
            "planned model: DistributedDataParallel(scrimp.torch.wrap(model.module, ...))"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise Unsupported(f"{name} is TorchScript, which can't be captured; give the model it was made from")
    if hasattr(model, "_orig_mod") and name == "OptimizedModule":
        raise Unsupported(
            "the model is compiled; give the model itself (model._orig_mod), or compile it with "
            "backend=scrimp.torch.backend(...)"
        )


def refuse_modules(model: nn.Module) -> None:
    """Refuse modules that can't be planned as they are."""
    for path, module in model.named_modules():
        name = f"{type(module).__name__} '{path}'" if path else type(module).__name__
        for attribute in CHECKPOINTING:
            if vars(module).get(attribute) is True:
                raise Unsupported(f"{name} computes activations again by checkpointing; {RECOMPUTES}")
        if any(nn.parameter.is_lazy(p) for p in [*module._parameters.values(), *module._buffers.values()]):
            raise Unsupported(
                f"{name} has no sizes yet; call the model once on a batch, before it is planned"
            )
        if type(module).__module__.startswith("torch.ao.nn.") and "quantized" in type(module).__module__:
            raise Unsupported(f"{name} is quantized and can't be trained; plan the model before quantization")
        _refuse_embedding(module, name)
        _refuse_recurrent(module, name)
        for hook in module._forward_pre_hooks.values():
            for kind in type(hook).__mro__:
                if kind.__name__ in PRE_HOOKS and kind.__module__.startswith("torch.nn.utils"):
                    raise Unsupported(
                        f"{name} makes its weight by the hook {type(hook).__name__}, which a planned step "
                        f"can't call; {PRE_HOOKS[kind.__name__]}"
                    )


def _refuse_recurrent(module: nn.Module, name: str) -> None:
    if isinstance(module, nn.RNNBase) and any(map(cudnn.is_acceptable, module.parameters())):
        raise Unsupported(
            f"{name} runs in a kernel of cuDNN's over weights that share one memory, which can't be "
            "captured; torch.backends.cudnn.enabled = False runs it cell by cell"
        )


def _refuse_embedding(module: nn.Module, name: str) -> None:
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or not module.weight.requires_grad:
        return
    if module.sparse:
        raise Unsupported(f"{name} has sparse gradients, which can't be planned; make it with sparse=False")
    if module.max_norm is not None:
        raise Unsupported(
            f"{name} scales its weights in place at every call (max_norm), which can't be planned; scale "
            "them after the optimizer's step"
        )


def refuse_tensors(model: nn.Module, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that can't be planned for, of the model and of the batch."""
    held = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in [*held, *((f"tensor {i} of the batch", tensor) for i, tensor in enumerate(tensors))]:
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise Unsupported(f"{name} is a {kind} tensor, which can't be planned; make it dense")
        if tensor.is_quantized:
            raise Unsupported(f"{name} is quantized, which can't be planned; dequantize it")
    for name, tensor in held:
        if tensor.is_inference():
            raise Unsupported(
                f"{name} was made under torch.inference_mode(), so it can't be trained; make the model "
                "outside of it"
            )
    if tensors and all(tensor.dim() > 0 and tensor.shape[0] == 0 for tensor in tensors):
        raise BadOption("the batch has no samples: the first dimension of each of its tensors is 0")


def refuse_frozen(model: nn.Module, loss_fn: Any) -> None:
    """Refuse a step in which nothing is to be learnt, and say what an evaluation mode means."""
    roots = [root for root in (model, loss_fn) if isinstance(root, nn.Module)]
    if not any(p.requires_grad for root in roots for p in root.parameters()):
        raise BadOption(
            "no parameter of the model needs gradients, so there is no training step to plan; unfreeze some "
            "(requires_grad_(True))"
        )
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    quiet = next((path for path, module in model.named_modules() if isinstance(module, kinds)), None)
    if not model.training and quiet is not None:
        warnings.warn(
            f"the model is in evaluation mode, in which '{quiet}' and its like draw nothing at random and "
            "learn no statistics; if that isn't meant, call model.train() first",
            stacklevel=2,
        )


@contextlib.contextmanager
def no_checkpoints() -> Iterator[None]:
    """Refuse `torch.utils.checkpoint`, however it is imported, while a model is captured."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(f"the forward pass uses torch.utils.checkpoint; {RECOMPUTES}")

    class Refused:
        apply: Callable[..., Any] = staticmethod(refuse)

    ways = {
        "CheckpointFunction": Refused,
        "_checkpoint_without_reentrant_generator": refuse,
        "_checkpoint_without_reentrant_generator_impl": refuse,
    }
    there = {name: getattr(checkpoint, name) for name in ways if hasattr(checkpoint, name)}
    try:
        for name in there:
            setattr(checkpoint, name, ways[name])
        yield
    finally:
        for name, value in there.items():
            setattr(checkpoint, name, value)

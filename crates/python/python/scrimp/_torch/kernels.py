"""The operators that eager PyTorch runs, during capture too.

Capture takes some operators apart by formulas written in Python, whose results differ from the eager
kernels' in the last bits, or, for dropout between recurrent layers, by more. While a model is captured
those formulas are set aside; PyTorch then takes the same way as in eager mode.
"""

from __future__ import annotations

import contextlib
import functools
import operator as operators
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes

from scrimp._torch import runtime
from scrimp._torch.graph import tensors_in
from scrimp._torch.truth import true_results
from scrimp._torch.verify import written_as

FORMULAS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
PREFIXES = ("upsample_", "_upsample_")
NAMES = ("hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward")
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Set the formulas aside, and put them back."""
    saved: list[tuple[Any, dict[Any, Any]]] = []
    try:
        for operator in _taken_apart():
            mine = {key: operator.py_kernels.pop(key) for key in FORMULAS if key in operator.py_kernels}
            operator._dispatch_cache.clear()
            saved.append((operator, mine))
        for operator, ours in (
            (torch.ops.aten.dropout.default, _dropout),
            (torch.ops.aten.lstm.input, _lstm),
        ):
            saved.append((operator, {k: f for k, f in operator.py_kernels.items() if k in FORMULAS}))
            operator.py_kernels.update({key: ours for key in FORMULAS})
            operator._dispatch_cache.clear()
        norm = torch.ops.aten.cudnn_batch_norm.default
        saved.append((norm, dict(norm.py_kernels)))
        norm.py_kernels[DispatchKey.Autograd] = _cudnn_batch_norm
        norm._dispatch_cache.clear()
        with _eager_views(), _eager_strides():
            yield
    finally:
        for operator, theirs in reversed(saved):
            for key in FORMULAS:
                operator.py_kernels.pop(key, None)
            operator.py_kernels.update(theirs)
            operator._dispatch_cache.clear()


@contextlib.contextmanager
def _eager_views() -> Iterator[None]:
    """Give views eager's strides: of dimensions of size one, formulas in Python give others.

    Convolutions choose their layout by those strides, and other operators follow from the layout. PyTorch
    caches results by their arguments alone, so its cache is emptied on both sides.
    """
    views: tuple[Any, ...] = torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default
    formulas: list[tuple[dict[Any, Any], Any, Any]] = []
    for view in views:
        for table, key in ((op_implementations_dict, view), (view.py_kernels, DispatchKey.Meta)):
            if key in table:
                formulas.append((table, key, table.pop(key)))
        view._dispatch_cache.clear()
    FakeTensorMode.cache_clear()
    try:
        yield
    finally:
        for table, key, formula in formulas:
            table[key] = formula
        for view in views:
            view._dispatch_cache.clear()
        FakeTensorMode.cache_clear()


@contextlib.contextmanager
def _eager_strides() -> Iterator[None]:
    """Give results eager's strides on the CPU where formulas in Python give others."""

    def strided(formula: Callable[..., Any], stored: Stored) -> Callable[..., Any]:
        @functools.wraps(formula)
        def operator(*args: Any, **kwargs: Any) -> Any:
            result = formula(*args, **kwargs)
            first, rest = (result[0], result[1:]) if isinstance(result, tuple) else (result, None)
            if first is None or first.device.type != "cpu":
                return result
            first = stored(first, args)
            return first if rest is None else (first, *rest)

        return operator

    formulas = {operator: decomposition_table[operator] for operator in STORED}
    for operator, formula in formulas.items():
        decomposition_table[operator] = strided(formula, STORED[operator])
    FakeTensorMode.cache_clear()
    try:
        yield
    finally:
        decomposition_table.update(formulas)
        FakeTensorMode.cache_clear()


Stored = Callable[[Tensor, Sequence[Any]], Tensor]
"""The first result of an operator, given that of its formula and its arguments."""


def _in_order(result: Tensor, _args: Sequence[Any]) -> Tensor:
    return torch.empty_like(result, memory_format=torch.contiguous_format)


def _by_layout_of(place: int) -> Stored:
    """In the order of dimensions, or channels last if this argument is."""
    return lambda result, args: torch.empty_like(result, memory_format=suggest_memory_format(args[place]))


def _like(place: int) -> Stored:
    """As this argument, unless it is reduced."""
    return lambda result, args: torch.empty_like(args[place]) if result.dim() else result


STORED: dict[Any, Stored] = {
    torch.ops.aten.native_batch_norm.default: _by_layout_of(0),
    torch.ops.aten._native_batch_norm_legit.default: _by_layout_of(0),
    torch.ops.aten._native_batch_norm_legit.no_stats: _by_layout_of(0),
    torch.ops.aten._native_batch_norm_legit_functional.default: _by_layout_of(0),
    torch.ops.aten._native_batch_norm_legit_no_training.default: _by_layout_of(0),
    torch.ops.aten.native_batch_norm_backward.default: _by_layout_of(1),
    torch.ops.aten.mse_loss_backward.default: _in_order,
    torch.ops.aten.smooth_l1_loss_backward.default: _in_order,
    torch.ops.aten.huber_loss_backward.default: _in_order,
    torch.ops.aten.binary_cross_entropy.default: _like(0),
    torch.ops.aten.binary_cross_entropy_backward.default: _like(1),
}
"""How eager stores what formulas store in another way."""


def _taken_apart() -> Iterator[Any]:
    names = [
        name for name in dir(torch.ops.aten) if name.startswith(PREFIXES) or name in (*NAMES, *RECURRENT)
    ]
    for name in names:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            if any(key in operator.py_kernels for key in FORMULAS):
                yield operator


def _dropout(input: Tensor, p: float, train: bool | None) -> Tensor:
    """Dropout with the bits of the eager kernel, and a mask of bytes where that gives the same."""
    if not train or p == 0 or input.numel() == 0:
        return input.clone() if train is None else input
    if input.device.type == "cuda" and p < 1:
        return torch.ops.aten.native_dropout.default(input, p, True)[0]
    with written_as(torch.dropout, input, p, True):
        if p == 1:
            return input * torch.zeros_like(input)
        if _scales_alike(p, input.dtype):
            return torch.ops.aten.native_dropout.default(input, p, True)[0]
        return input * torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)


def _cudnn_batch_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """cuDNN's batch norm. It changes running statistics without saying so; its other form does say so."""
    operator: Any = torch.ops.aten.cudnn_batch_norm.default
    given = input, weight, bias, running_mean, running_var
    if not training or running_mean is None:
        return operator._op_dk(DispatchKey.AutogradCUDA, *given, training, momentum, eps)
    with written_as(operator, *given, training, momentum, eps):
        return torch.ops.aten._batch_norm_with_update.default(*given, momentum, eps)


def _scales_alike(p: float, dtype: torch.dtype) -> bool:
    """Whether scaling by 1/(1-p), and by a number of this type divided by 1-p, are the same."""
    with _disable_current_modes(), unset_fake_temporarily():
        probe = torch.linspace(0.1, 3.0, 64, dtype=dtype)
        eager = probe * torch.ones_like(probe).div_(1 - p)
        return torch.equal(eager, probe.mul(torch.ones_like(probe, dtype=torch.bool)).mul_(1 / (1 - p)))


def _lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Recurrence by oneDNN's fused layers where eager takes them, else cell by cell, as eager does."""
    if not _is_fused(input, hx, params):
        plain: Any = torch.ops.aten.lstm.input
        return plain._op_dk(
            DispatchKey.CompositeImplicitAutograd,
            *(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first),
        )
    # The same calls as in PyTorch's own mkldnn_rnn.
    current = (input.transpose(0, 1) if batch_first else input).contiguous()
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    last: tuple[list[Tensor], list[Tensor]] = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            weights = list(params[place * each : (place + 1) * each])
            if not has_biases:
                # In the order in which PyTorch makes them.
                second, first = map(_zeros_for, reversed(weights))
                weights += [first, second]
            output, *states, _ = torch.ops.aten.mkldnn_rnn_layer.default(
                *(current, *weights, hx[0][place], hx[1][place], direction > 0, [], ONEDNN_LSTM),
                *(hx[1].size(2), num_layers, has_biases, bidirectional, batch_first, train),
            )
            outputs.append(output)
            for kept, state in zip(last, states, strict=True):
                kept.append(state)
        current = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            current = torch.dropout(current, dropout, True)
    hidden, cells = torch.stack(last[0], 0), torch.stack(last[1], 0)
    return current.transpose(0, 1) if batch_first else current, hidden, cells


def _zeros_for(weight: Tensor) -> Tensor:
    """Zeros in the shape of a weight, for oneDNN, which wants biases."""
    kind = {"dtype": weight.dtype, "layout": weight.layout, "device": weight.device}
    return torch.ops.aten.zeros.default(weight.shape, **kind)


VECTORS = 32
"""Numbers that PyTorch's loops take at once on processors with AVX-512; 16 on others."""


def warn_of_cells(root: nn.Module) -> None:
    """Say which recurrent layers may differ from eager in the last bits.

    Eager changes parts of a tensor in place there, for which loops round otherwise at their ends.
    """
    for path, module in root.named_modules():
        fused = isinstance(module, nn.LSTM) and not module.proj_size
        if isinstance(module, nn.RNNBase | nn.RNNCellBase) and not fused and module.hidden_size % VECTORS:
            warnings.warn(
                f"gradients of {type(module).__name__} '{path}' may differ from eager's in the last bits, "
                f"since its width of {module.hidden_size} is no multiple of {VECTORS}; choose another width "
                "if that matters",
                stacklevel=2,
            )


ONEDNN_LSTM = 2
"""oneDNN's number for this kind of recurrence."""


def _is_fused(input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor]) -> bool:
    """Whether eager PyTorch runs oneDNN's kernel for a recurrence."""
    tensors = [input, *hx, *params]
    return (
        torch.backends.mkldnn.is_available()
        and torch._C._get_mkldnn_enabled()
        and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
        and input.numel() > 0
        and hx[0].size(2) == hx[1].size(2)
    )


def true_values(graph: Graph) -> None:
    """Put right what capture gets wrong of operators' results: sizes and types that it doesn't know.

    On a GPU that is found out by running them; on the CPU these are all.
    """
    devices = (t.device for node in graph.nodes for t in tensors_in(node.meta.get("val")))
    gpu = next((device for device in devices if device.type == "cuda"), None)
    if gpu is not None:
        true_results(graph, gpu)
        return
    for node in graph.nodes:
        if node.target is torch.ops.aten.mkldnn_rnn_layer.default:
            _true_workspace(node)
        elif node.target is torch.ops.aten.mkldnn_rnn_layer_backward.default:
            # Some versions of PyTorch capture results of lower precision, which are float32 in truth.
            if node.meta["val"][0].dtype != torch.float32:
                node.target = runtime.rounded_recurrent_backward
        elif node.target in REDUCED_IN_PLACE and node.meta["val"].dim() == 0:
            whole = node.args[0].meta["val"]
            node.meta["val"] = node.meta["val"].new_empty(whole.shape).as_strided((), ())
        elif node.target in SCATTERED:
            whole = node.args[0].meta["val"].untyped_storage().nbytes()
            node.meta["val"].untyped_storage().resize_(whole)
        elif node.target is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            result, sums = node.meta["val"]
            if result.dtype == torch.float64:
                _set_items(
                    node, (result, sums.new_empty_strided(sums.shape, sums.stride(), dtype=result.dtype))
                )
        elif node.target in MIXED_NORMS:
            _true_statistics(node)
        elif node.target is torch.ops.aten.native_group_norm_backward.default:
            _true_gradient(node)


REDUCED_IN_PLACE = {torch.ops.aten.mse_loss.default, torch.ops.aten.smooth_l1_loss.default}
"""Losses whose result keeps the memory of what is reduced."""
SCATTERED = {
    torch.ops.aten.slice_scatter.default,
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
    torch.ops.aten.as_strided_scatter.default,
}
"""Operators that copy all the memory of their first argument, of which they may be given a view."""
MIXED_NORMS = {
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten.native_group_norm.default,
    torch.ops.aten.native_layer_norm.default,
}
"""Operators whose statistics are of their parameters' type if what they normalize has fewer bits."""


def _true_statistics(node: Node) -> None:
    value = node.meta["val"]
    types = [a.meta["val"].dtype for a in node.args if isinstance(a, Node)]
    if value[0].dtype in (torch.bfloat16, torch.float16) and torch.float32 in types:
        statistics = [value[i].new_empty(value[i].shape, dtype=torch.float32) for i in (1, 2)]
        _set_items(node, (value[0], *statistics, *value[3:]))


def _true_gradient(node: Any) -> None:
    """The gradient has the type of what was normalized, so it isn't cast."""
    wanted, value = node.args[1].meta["val"].dtype, node.meta["val"]
    if value[0] is None or value[0].dtype == wanted:
        return
    _set_items(node, (value[0].new_empty(value[0].shape, dtype=wanted), *value[1:]))
    for item in list(node.users):
        for cast in list(item.users):
            if item.args[1] == 0 and cast.target is torch.ops.aten._to_copy.default:
                cast.replace_all_uses_with(item)


def _true_workspace(node: Node) -> None:
    node.target = runtime.recurrent_layer
    value = node.meta["val"]
    with unset_fake_temporarily():
        real = [torch.zeros(a.meta["val"].shape) if isinstance(a, Node) else a for a in node.args]
        size = runtime.recurrent_layer(*real)[3].numel()
    _set_items(node, (*value[:3], value[0].new_empty((size,), dtype=torch.uint8)))


def _set_items(node: Node, value: tuple[Any, ...]) -> None:
    """Set the value of an operator with several results, and those of its items."""
    node.meta["val"] = value
    for item in node.users:
        if item.target is operators.getitem:
            (_, place) = item.args
            assert isinstance(place, int)
            aliases = [item]
            while aliases:
                alias = aliases.pop()
                alias.meta["val"] = value[place]
                aliases += [user for user in alias.users if user.target is torch.ops.aten.detach.default]

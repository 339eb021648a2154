"""Operators on some of their rows: which parts of their inputs they read then, and with which arguments.

The rows are what a model treats alike and apart from one another, such as the tokens of all samples: one
dimension of a matrix, or several of a larger tensor, which count as one. Some of them are together in the
last of these dimensions, and the others have one element then. For an operator and the rows of one of its
tensors there is at most one way to run it on some of them. Each tensor then has these rows, or is needed
whole, or comes out as a sum over rows.

A slice along the rows leaves some of them out (all but the last token, say). What is before it has all rows,
of which these are picked; so has the gradient, which is zero elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from scrimp._torch.graph import is_random
from scrimp._torch.places import SUM, Picked, Place, Rows, aten, plain, shape_of, tensor_inputs


@dataclass(frozen=True, repr=False)
class Cut:
    """An operator that can be run on some rows."""

    inputs: dict[Node, Place]
    outputs: list[Place]
    args: Callable[[int], Sequence[Any]]
    """The arguments for so many rows, with the nodes of the whole operator."""
    target: Any = None
    """The operator, if it is another one then."""


Known = dict[Node, Rows]
"""What is known of an operator's inputs, and of its result."""


def cut(node: Node, known: Known) -> Cut | None:
    """How an operator runs on some rows; None if it can't, or not with what is ``known``."""
    rule = _elementwise if is_elementwise(node) else RULES.get(node.target)
    if rule is None or is_random(node):
        return None
    found: Cut | None = rule(node, known)
    if found is None:
        return None
    agrees = all(found.inputs.get(tensor) == where for tensor, where in known.items() if tensor is not node)
    return found if agrees else None


def _result(node: Node, known: Known, shape: Sequence[int]) -> Rows | None:
    """The rows of a result of this shape, from its own or those of an input that is broadcast to it."""
    if node in known:
        return known[node]
    for tensor in tensor_inputs(node):
        if tensor in known:
            rows = known[tensor]
            ahead = len(shape) - len(shape_of(tensor))
            return plain(rows.moved(dim + ahead for dim in rows.dims), shape)
    return None


def _broadcast(tensor: Node, rows: Rows, shape: Sequence[int]) -> tuple[bool, Place]:
    """Where a result's rows are in what is broadcast to it, if it has all of them or none."""
    mine = shape_of(tensor)
    dims = [dim - (len(shape) - len(mine)) for dim in rows.dims]
    there = [mine[dim] if dim >= 0 else 1 for dim in dims]
    if dims[0] >= 0 and there == rows.sizes(shape):
        return True, rows.moved(dims)
    return all(size == 1 for size in there), None


def _spread(tensors: Sequence[Node], rows: Rows, shape: Sequence[int]) -> dict[Node, Place] | None:
    found: dict[Node, Place] = {}
    for tensor in tensors:
        fits, where = _broadcast(tensor, rows, shape)
        if not fits:
            return None
        found[tensor] = where
    return found


def _elementwise(node: Node, known: Known) -> Cut | None:
    shape = shape_of(node)
    rows = _result(node, known, shape)
    inputs = _spread(tensor_inputs(node), rows, shape) if rows is not None else None
    return None if inputs is None else Cut(inputs, [rows], lambda n: node.args)


def _expand(node: Node, known: Known) -> Cut | None:
    shape = shape_of(node)
    rows = _result(node, known, shape)
    inputs = _spread(tensor_inputs(node), rows, shape) if rows is not None else None
    if rows is None or inputs is None:
        return None
    return Cut(inputs, [rows], lambda n: (node.args[0], rows.some(shape, n)), aten.expand.default)


def _created(node: Node, known: Known) -> Cut | None:
    """What is made of numbers alone."""
    rows, shape = known.get(node), shape_of(node)
    if rows is None:
        return None
    size = 1 if node.target in (aten.new_zeros.default, aten.new_full.default) else 0
    before, after = node.args[:size], node.args[size + 1 :]
    inputs: dict[Node, Place] = {tensor: None for tensor in tensor_inputs(node)}
    return Cut(inputs, [rows], lambda n: (*before, rows.some(shape, n), *after))


def _view(node: Node, known: Known) -> Cut | None:
    (source, *_) = node.all_input_nodes
    before, after = shape_of(source), shape_of(node)
    if node in known:
        rows: Rows | None = known[node]
        mine = _regrouped(known[node], after, before)
    else:
        mine = known.get(source)
        rows = _regrouped(mine, before, after) if mine is not None else None
    if rows is None or mine is None:
        return None
    wanted = rows
    return Cut({source: mine}, [rows], lambda n: (source, wanted.some(after, n)), aten.reshape.default)


def _regrouped(rows: Rows, before: Sequence[int], after: Sequence[int]) -> Rows | None:
    """The same rows in another shape of the same elements, whose dimensions mustn't mix them with others."""
    dims: list[int] = []
    end = 0
    for is_rows, group in itertools.groupby(range(len(before)), rows.holds):
        wanted, size, start = math.prod(before[dim] for dim in group), 1, end
        while size < wanted and end < len(after):
            size *= after[end]
            end += 1
        if size != wanted:
            return None
        dims += range(start, end) if is_rows else ()
    return plain(rows.moved(dims), after) if dims else None


def _permuted(node: Node, known: Known) -> Cut | None:
    (source, *_) = node.all_input_nodes
    rank = len(shape_of(source))
    order = list(range(rank))
    given: Any = node.args[1:]
    if node.target is aten.permute.default:
        order = [dim % rank for dim in given[0]]
    elif rank > 1:
        first, second = (dim % rank for dim in given or (0, 1))
        order[first], order[second] = second, first
    if node in known:
        rows = known[node]
        mine = rows.moved(order[dim] for dim in rows.dims)
    else:
        mine = known[source]
        rows = mine.moved(order.index(dim) for dim in mine.dims)
    if sorted(mine.dims) != [*mine.dims] or sorted(rows.dims) != [*rows.dims]:
        return None  # They come in another order.
    return Cut({source: mine}, [rows], lambda n: node.args)


def _reduced(node: Node, known: Known) -> Cut | None:
    """Reductions over dimensions: of rows only sums and means."""
    source: Any = node.args[0]
    shape = shape_of(source)
    dims, keeps = reduction_of(node)
    left = [dim for dim in range(len(shape)) if keeps or dim not in dims]
    rows = known.get(source) or known[node].moved(left[dim] for dim in known[node].dims)
    over = [dim for dim in rows.dims if dim in dims]
    if not over:
        return Cut({source: rows}, [rows.moved(left.index(dim) for dim in rows.dims)], lambda n: node.args)
    if len(over) < len(rows.dims) or node.target not in SUMS or node.kwargs.get("dtype") is not None:
        return None
    of = math.prod(shape[dim] for dim in dims) if node.target in MEANS else 1
    return Cut({source: rows}, [SUM], lambda n: (source, dims, keeps, shape_of(node), of), partial_sum)


def reduction_of(node: Node) -> tuple[list[int], bool]:
    """The dimensions that a reduction is over, and whether they stay, with one element."""
    rank = len(shape_of(tensor_inputs(node)[0]))
    if node.target in WHOLE or len(node.args) == 1:
        return list(range(rank)), False
    given: Any = node.args[1]
    listed = [given] if isinstance(given, int) else list(given or range(rank))
    return sorted(dim % rank for dim in listed), len(node.args) > 2 and bool(node.args[2])


def partial_sum(
    part: Tensor,
    dims: list[int],
    keeps: bool,
    shape: Sequence[int],
    of: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Some rows' or lines' part of a sum over all of them, or of a mean of so many elements."""
    total = part.sum(dims, keepdim=keeps, dtype=dtype).reshape(shape)
    return total if of == 1 else total.div_(of)


WHOLE = {aten.sum.default, aten.mean.default}
MEANS = {aten.mean.default, aten.mean.dim}
SUMS = {*WHOLE, aten.sum.dim_IntList, aten.mean.dim}


def _along(at: int) -> Any:
    """Rules of operators that work along a dimension, which is an argument, and for each row apart."""

    def rule(node: Node, known: Known) -> Cut | None:
        shape = max((shape_of(tensor) for tensor in tensor_inputs(node)), key=math.prod)
        rows = _result(node, known, shape)
        if rows is None or len(node.args) <= at:
            return None
        dim = int(node.args[at]) % len(shape)  # type: ignore[arg-type]
        if rows.holds(dim):
            return None
        inputs: dict[Node, Place] = {tensor: rows for tensor in tensor_inputs(node)}
        if any(len(shape_of(tensor)) != len(shape) for tensor in inputs):
            return None
        if any(rows.sizes(shape_of(tensor)) != rows.sizes(shape) for tensor in inputs):
            return None
        value = node.meta["val"]
        count = 1 if isinstance(value, Tensor) else len(value)
        return Cut(inputs, [rows] * count, lambda n: node.args)

    return rule


def _part_backward(node: Node, known: Known) -> Cut | None:
    """The gradient of a slice or of one element, along a dimension."""
    (gradient,) = tensor_inputs(node)
    shape, dim = shape_of(node), int(node.args[2]) % len(shape_of(node))  # type: ignore[arg-type]
    lost = node.target is aten.select_backward.default
    if node in known:
        rows = known[node]
    else:
        mine = known[gradient]
        rows = mine.moved(other + (lost and dim <= other) for other in mine.dims)
    if rows.holds(dim):
        return None if lost else _picked(node, node, gradient, dim, node.args[3:], known)
    there = rows.moved(other - (lost and dim < other) for other in rows.dims)
    return Cut({gradient: there}, [rows], lambda n: (gradient, rows.some(shape, n), *node.args[2:]))


def _selected(node: Node, known: Known) -> Cut | None:
    """One element along a dimension."""
    (source,) = tensor_inputs(node)
    dim = int(node.args[1]) % len(shape_of(source))  # type: ignore[arg-type]
    if source in known:
        rows = known[source]
    else:
        out = known[node]
        rows = out.moved(other + (dim <= other) for other in out.dims)
    if rows.holds(dim):
        return None
    found = rows.moved(other - (dim < other) for other in rows.dims)
    return Cut({source: rows}, [found], lambda n: node.args)


def _sliced(node: Node, known: Known) -> Cut | None:
    (source,) = tensor_inputs(node)
    dim, *bounds = _slice(node)
    rows = known[source] if source in known else known[node]
    if not rows.holds(dim):
        return Cut({source: rows}, [rows], lambda n: node.args)
    if shape_of(source) == shape_of(node):
        return Cut({source: rows}, [rows], lambda n: (source,), aten.alias.default)
    return _picked(node, source, node, dim, bounds, known)


def _slice(node: Node) -> tuple[Any, ...]:
    """A slice's dimension, its ends and its step."""
    given: list[Any] = [*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :]]
    return given[0] % len(shape_of(node)), *given[1:]


def picked_by(node: Node, rows: Rows) -> Picked | None:
    """The rows that a slice along them takes."""
    if node.target is not aten.slice.Tensor or rows.picked is not None:
        return None
    dim, *bounds = _slice(node)
    sizes = rows.sizes(shape_of(tensor_inputs(node)[0]))
    return Picked.of(sizes, rows.dims.index(dim), *bounds) if rows.holds(dim) else None


def _picked(node: Node, whole: Node, part: Node, dim: int, bounds: Sequence[Any], known: Known) -> Cut | None:
    """A slice along the rows, or its gradient: of the whole its rows are picked, the part has no others."""
    rows = next(known[tensor] for tensor in (whole, part) if tensor in known)
    picked = Picked.of(rows.sizes(shape_of(whole)), rows.dims.index(dim), *bounds)
    places = {whole: Rows(rows.dims, picked), part: plain(Rows(rows.dims), shape_of(part))}
    if any(known.get(tensor, place) != place for tensor, place in places.items()):
        return None
    (source,) = tensor_inputs(node)
    return Cut({source: places[source]}, [places[node]], lambda n: (source,), aten.alias.default)


def _layer_norm(node: Node, known: Known) -> Cut | None:
    """Norms over the last dimensions, and their gradients: of parameters these are sums."""
    backward = node.target in NORMS_BACKWARD
    tensors = node.args[:2] if backward else node.args[:1]
    source = tensors[-1]
    over: Any = node.args[2 if backward else 1]
    assert isinstance(source, Node)
    shape = shape_of(source)
    rows = known.get(node) or next((known[t] for t in tensor_inputs(node) if t in known), None)
    if rows is None or rows.last >= len(shape) - len(over):
        return None
    inputs: dict[Node, Place] = {tensor: None for tensor in tensor_inputs(node)}
    statistics = [t for t in node.args if isinstance(t, Node) and len(shape_of(t)) == len(shape)]
    inputs.update((tensor, rows) for tensor in statistics)
    outputs: list[Place] = [rows] * len(node.meta["val"])
    if backward:
        outputs[1:] = [SUM] * (len(outputs) - 1)
    return Cut(inputs, outputs, lambda n: node.args)


NORMS_BACKWARD = {
    getattr(aten, name).default
    for name in ("native_layer_norm_backward", "_fused_rms_norm_backward")
    if hasattr(aten, name)
}
NORMS = {
    getattr(aten, name).default for name in ("native_layer_norm", "_fused_rms_norm") if hasattr(aten, name)
}


PRODUCTS = {aten.mm.default: ("ij", "jk", "ik"), aten.bmm.default: ("bij", "bjk", "bik")}


def _product(node: Node, known: Known) -> Cut | None:
    """Products of matrices: rows of either, or sums over them."""
    bias: list[Any] = []
    factors: list[Any] = list(node.args)
    if node.target is aten.addmm.default:
        bias, factors = factors[:1], factors[1:]
    names = PRODUCTS[aten.mm.default if bias else node.target]
    everything = [*zip([*factors, node], names, strict=True)]
    found = next(((known[t], name) for t, name in everything if t in known), None)
    if found is None and bias and bias[0] in known and (own := _result(node, known, shape_of(node))):
        found = own, names[2]
    if found is None or len(found[0].dims) > 1 or factors[0] is factors[1]:
        return None
    rows, letter = found[0], found[1][found[0].last]
    inputs: dict[Node, Place] = {}
    for factor, name in zip(factors, names[:2], strict=True):
        inputs[factor] = rows.moved([name.index(letter)]) if letter in name else None
    if letter not in names[2]:
        return None if bias or node.kwargs else Cut(inputs, [SUM], lambda n: node.args)
    result = rows.moved([names[2].index(letter)])
    if bias:
        fits, inputs[bias[0]] = _broadcast(bias[0], result, shape_of(node))
        if not fits:
            return None
    return Cut(inputs, [result], lambda n: node.args)


def _nll(node: Node, known: Known) -> Cut | None:
    """The loss of each row's class, or its sum, and the gradient; `tiled` makes sums of means.

    Scores have their classes in the second dimension, which labels and losses don't have.
    """
    backward = node.target in LOSSES_BACKWARD
    scores, labels, _, reduction = node.args[backward : backward + 4]
    assert isinstance(scores, Node) and isinstance(labels, Node)
    narrow = [labels, node.args[0] if backward else node] if reduction == 0 else [labels]
    found = [known[tensor] for tensor in (scores, node) if tensor in known and tensor not in narrow]
    for tensor in narrow:
        if isinstance(tensor, Node) and tensor in known:
            found.append(known[tensor].moved(dim + (dim > 0) for dim in known[tensor].dims))
    if not found or found[0].holds(1) or len(shape_of(scores)) < 2:
        return None
    rows = found[0]
    there = rows.moved(dim - (dim > 1) for dim in rows.dims)
    inputs: dict[Node, Place] = {tensor: None for tensor in tensor_inputs(node)}
    inputs[scores] = rows
    inputs.update((tensor, there) for tensor in narrow if isinstance(tensor, Node) and tensor is not node)
    outputs: list[Place] = [rows] if backward else [SUM if reduction else there, SUM]
    return Cut(inputs, outputs, lambda n: node.args)


LOSSES = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
LOSSES_BACKWARD = (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)


SOFTMAXES_BACKWARD = (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
ADDED = {aten.add.Tensor, aten.sub.Tensor, aten.cat.default}
SCALED = {
    *(aten.mul.Scalar, aten.div.Scalar, aten.neg.default, aten._to_copy.default, aten.clone.default),
    *(aten.detach.default, aten.alias.default, aten.slice.Tensor),
    *(aten.split.Tensor, aten.split_with_sizes.default),
}


def is_linear(node: Node, tensors: Sequence[Node], gradients: Sequence[Node]) -> bool:
    """Whether an operator that treats elements apart is linear in those of its inputs that are gradients."""
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    return bool(gradients) and (
        (node.target in ADDED and [*gradients] == [*tensors])
        or node.target in SCALED
        or (node.target is aten.mul.Tensor and len(gradients) == 1 and node.args[0] is not node.args[1])
        or (node.target in (aten.div.Tensor, *SOFTMAXES_BACKWARD) and [*gradients] == [node.args[0]])
        or (name.endswith("_backward") and is_elementwise(node) and [*gradients] == [node.args[0]])
    )


def keeps_zeros(node: Node, zeros: Collection[Node]) -> bool:
    """Whether rows that aren't picked are zero in what an operator gives, and so in sums over rows.

    ``zeros`` are the tensors of which that is known.
    """
    tensors = tensor_inputs(node)
    known = [tensor for tensor in tensors if tensor in zeros]
    if node.target in GRADIENT_FIRST or RULES.get(node.target) in (_view, _permuted, _expand):
        return node.args[0] in zeros
    if node.target in PRODUCTS:
        return bool(known)
    return is_linear(node, tensors, known)


GRADIENT_FIRST = {*NORMS_BACKWARD, *SUMS, *SOFTMAXES_BACKWARD}
"""Operators of whose results rows are zero where those of the gradient are, which comes first."""


ELEMENTWISE = (
    *("_to_copy", "lift_fresh_copy", "zeros_like", "ones_like", "full_like", "fill", "detach", "alias"),
    *("hardtanh_backward", "softplus_backward", "elu_backward", "leaky_relu_backward"),
    *("hardswish_backward", "hardsigmoid_backward", "log_sigmoid_backward", "logit_backward"),
)


def is_elementwise(node: Node) -> bool:
    """Whether it treats elements alike and apart."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or RULES.get(node.target) is _elementwise


def _rules() -> dict[Any, Any]:
    found: dict[Any, Any] = {}

    def add(rule: Any, *names: str) -> None:
        for name in names:
            for overload in getattr(aten, name).overloads():
                found[getattr(getattr(aten, name), overload)] = rule

    add(_elementwise, *ELEMENTWISE)
    add(_view, "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze")
    add(_permuted, "permute", "transpose", "t")
    add(_expand, "expand")
    for target in (*SUMS, aten.amax.default, aten.amin.default, aten.logsumexp.default):
        found[target] = _reduced
    add(_along(1), "_softmax", "_log_softmax", "cat", "gather")
    add(_along(1), "scatter", "scatter_add", "cumsum")
    add(_along(2), "_softmax_backward_data", "_log_softmax_backward_data", "split", "split_with_sizes")
    add(_part_backward, "slice_backward", "select_backward")
    add(_selected, "select")
    add(_sliced, "slice")
    found.update(dict.fromkeys(NORMS | NORMS_BACKWARD, _layer_norm))
    for target in (*PRODUCTS, aten.addmm.default):
        found[target] = _product
    for target in (aten.full.default, aten.zeros.default, aten.new_zeros.default, aten.new_full.default):
        found[target] = _created
    found.update(dict.fromkeys((*LOSSES, *LOSSES_BACKWARD), _nll))
    return found


RULES = _rules()

"""Operators on strips of images: tiles of their height, with what is read around them (halos).

For lines of its result, an operator reads lines of its input, more of them by its window. Padding is only at
an image's own borders. An operator of the backward pass gets a part of a gradient, which is zero outside of
some lines, and gives a part that is zero outside of the lines that were read for those. Gradients depend
linearly on those behind them, so parts of all strips add up to the whole.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from scrimp._torch.graph import is_random
from scrimp._torch.places import aten, shape_of, tensor_inputs
from scrimp._torch.rows import MEANS, SUMS, is_elementwise, is_linear, partial_sum, reduction_of

Span = tuple[int, int]
"""Lines of an image: the first, and that after the last."""
Made = dict[int, Node]
"""What was made of an operator's results, by their places."""
HEIGHT = 2
"""The dimension that lines are of."""


class Strips(Protocol):
    """Strips of one tile while it is run."""

    def value(self, tensor: Node, span: Span) -> Node:
        """Lines of a value."""

    def gradient(self, tensor: Node, span: Span) -> Node:
        """Lines of the tile's part of a gradient."""

    def whole(self, tensor: Node) -> Node:
        """A tensor that has no lines."""

    def add(self, of: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Run an operator."""

    def span_of(self, node: Node) -> Span:
        """Lines of an operator's result that the tile has."""


@dataclass(frozen=True, repr=False)
class Strip:
    """How an operator runs on strips."""

    values: Callable[[Span], dict[Node, Span]]
    """The lines of values that it reads: for lines of its result, or of the gradient that it gets."""
    run: Callable[[Strips, Span], Made]
    gradients: Sequence[Node] = ()
    """Inputs that are gradients."""
    spread: Callable[[Span], Span] = lambda span: span
    """The lines of the gradient that it gives, for those of that which it gets."""
    sums: Sequence[int] = ()
    """Results that are sums over lines."""
    own: Node | None = None
    """An image of which it reads the lines that are the tile's and no other's."""


@dataclass(frozen=True)
class Window:
    """Which lines of its input an operator reads for lines of its result."""

    height: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    def reach(self, span: Span) -> Span:
        """Beyond the image's borders too."""
        start, end = span
        first = start * self.stride - self.padding
        return first, (end - 1) * self.stride - self.padding + self.dilation * (self.kernel - 1) + 1

    def inside(self, span: Span) -> Span:
        """Those that the image has."""
        start, end = self.reach(span)
        return max(start, 0), min(end, self.height)

    def beyond(self, span: Span) -> Span:
        """How many are above and below the image: its padding."""
        start, end = self.reach(span)
        return max(-start, 0), max(end - self.height, 0)

    def padded(self, strips: Strips, of: Node, tensor: Node, span: Span, fill: float) -> tuple[Node, int]:
        """The lines that are read, and the padding that the operator is to add above and below."""
        part = strips.value(tensor, self.inside(span))
        above, below = self.beyond(span)
        if above == below:
            return part, above
        return strips.add(of, aten.constant_pad_nd.default, part, [0, 0, above, below], fill), 0

    def unpadded(self, strips: Strips, of: Node, part: Node, span: Span, wanted: Span) -> Node:
        """The wanted lines of a gradient of what was padded."""
        start = self.inside(span)[0]
        above, below = self.beyond(span)
        offset = (above if above != below else 0) - start
        return lines(strips, of, part, wanted[0] + offset, wanted[1] + offset)


def lines(strips: Strips, of: Node, part: Node, start: int, end: int) -> Node:
    """Some lines of a strip."""
    if (start, end) == (0, shape_of(part)[HEIGHT]):
        return part
    return strips.add(of, aten.slice.Tensor, part, HEIGHT, start, end)


def strip(node: Node, backward: Callable[[Node], bool]) -> Strip | None:
    """How an operator runs on strips, if it can; ``backward`` tells gradients from values."""
    if is_random(node):
        return None
    if node.target in SUMS:
        return _reduced(node, backward)
    rule = RULES.get(node.target)
    if rule is not None:
        found: Strip | None = rule(node)
        return found
    if backward(node):
        return _linear(node, backward)
    return _same(node, []) if is_elementwise(node) or node.target in APART else None


def has_lines(tensor: Any) -> bool:
    """Whether it is an image of more than one line."""
    return isinstance(tensor, Tensor) and tensor.dim() == 4 and tensor.shape[HEIGHT] > 1


def strip_inputs(node: Node) -> list[Node]:
    """The inputs that are images."""
    return [tensor for tensor in tensor_inputs(node) if has_lines(tensor.meta["val"])]


APART = {
    aten.cat.default: 1,
    aten.slice.Tensor: 1,
    aten.split.Tensor: 2,
    aten.split_with_sizes.default: 2,
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten._softmax_backward_data.default: 2,
    aten._log_softmax_backward_data.default: 2,
}
"""Operators that work along a dimension, which is this argument."""


def _same(node: Node, gradients: Sequence[Node]) -> Strip | None:
    """Each line of the result needs that line of the images."""
    results = node.meta["val"]
    first = results if isinstance(results, Tensor) else results[0]
    images = strip_inputs(node)
    if not images or not has_lines(first) or any(shape_of(i)[HEIGHT] != first.shape[HEIGHT] for i in images):
        return None
    others = [shape_of(tensor) for tensor in tensor_inputs(node) if tensor not in images]
    if any(len(shape) > 1 and shape[-2] > 1 for shape in others):
        return None  # Their lines aren't the images' third dimension.
    at = APART.get(node.target)
    if at is not None:
        dim: Any = node.args[at] if len(node.args) > at else 0
        if dim % 4 == HEIGHT:
            return None
    values = [image for image in images if image not in gradients]

    def run(strips: Strips, span: Span) -> Made:
        def local(tensor: Node) -> Node:
            if tensor in gradients:
                return strips.gradient(tensor, span)
            return strips.value(tensor, span) if tensor in images else strips.whole(tensor)

        args, kwargs = map_arg((node.args, dict(node.kwargs)), local)
        made = strips.add(node, node.target, *args, **kwargs)
        return results_of_strip(strips, node, made)

    return Strip(lambda span: dict.fromkeys(values, span), run, gradients)


def results_of_strip(strips: Strips, node: Node, made: Node) -> Made:
    """An operator's results, of which those that are None are left out."""
    value = node.meta["val"]
    if isinstance(value, Tensor):
        return {0: made}
    return {
        place: strips.add(node, operator.getitem, made, place)
        for place, result in enumerate(value)
        if isinstance(result, Tensor)
    }


def _linear(node: Node, backward: Callable[[Node], bool]) -> Strip | None:
    """An operator on gradients, if it is linear in them."""
    images = strip_inputs(node)
    gradients = [image for image in images if backward(image)]
    if any(backward(t) for t in tensor_inputs(node) if t not in images):
        return None
    return _same(node, gradients) if is_linear(node, images, gradients) else None


def _reduced(node: Node, backward: Callable[[Node], bool]) -> Strip | None:
    """Sums and means over lines, or within each."""
    source, shape = tensor_inputs(node)[0], shape_of(node)
    if not has_lines(source.meta["val"]):
        return None
    dims, keeps = reduction_of(node)
    gradients = [source] if backward(source) else []
    if HEIGHT not in dims:
        return _same(node, gradients) if keeps else None
    of = math.prod(shape_of(source)[dim] for dim in dims) if node.target in MEANS else 1

    def run(strips: Strips, span: Span) -> Made:
        part = strips.gradient(source, span) if gradients else strips.value(source, span)
        return {0: strips.add(node, partial_sum, part, dims, keeps, shape, of, node.kwargs.get("dtype"))}

    values = dict.fromkeys([] if gradients else [source])
    return Strip(
        lambda span: dict.fromkeys(values, span), run, gradients, sums=(0,), own=None if gradients else source
    )


def _args(node: Node) -> Any:
    return node.args


def _pair(given: Any, otherwise: Any = 0) -> list[int]:
    several = otherwise if given is None or given == [] else given
    several = [several] if isinstance(several, int) else list(several)
    return several * 2 if len(several) == 1 else several


def _convolution(node: Node) -> Strip | None:
    image, weight, bias, stride, padding, dilation, transposed, extra, groups = _args(node)
    if transposed:
        return _spread(node)
    window = _window_of(image, weight, stride, padding, dilation, transposed)
    if window is None:
        return None
    wide = _pair(padding)[1]

    def run(strips: Strips, span: Span) -> Made:
        part, pad = window.padded(strips, node, image, span, 0.0)
        rest = (stride, [pad, wide], dilation, transposed, extra, groups)
        others = [strips.whole(t) if isinstance(t, Node) else None for t in (weight, bias)]
        return {0: strips.add(node, node.target, part, *others, *rest)}

    return Strip(lambda span: {image: window.inside(span)}, run)


def _window_of(
    image: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: Any
) -> Window | None:
    if transposed or not has_lines(image.meta["val"]):
        return None
    sizes = (_pair(stride)[0], _pair(padding)[0], _pair(dilation)[0])
    return Window(shape_of(image)[HEIGHT], shape_of(weight)[HEIGHT], *sizes)


def _convolution_backward(node: Node) -> Strip | None:
    gradient, image, weight, bias, stride, padding, dilation, transposed, extra, groups, mask = _args(node)
    if transposed:
        return _spread_backward(node)
    window = _window_of(image, weight, stride, padding, dilation, transposed)
    if window is None or not has_lines(gradient.meta["val"]):
        return None
    wide = _pair(padding)[1]

    def run(strips: Strips, span: Span) -> Made:
        part, pad = window.padded(strips, node, image, span, 0.0)
        rest = (bias, stride, [pad, wide], dilation, transposed, extra, groups, mask)
        incoming = strips.gradient(gradient, span)
        made = strips.add(node, node.target, incoming, part, strips.whole(weight), *rest)
        results = results_of_strip(strips, node, made)
        if 0 in results:
            results[0] = window.unpadded(strips, node, results[0], span, window.inside(span))
        return results

    return Strip(lambda span: {image: window.inside(span)}, run, [gradient], window.inside, (1, 2))


@dataclass(frozen=True)
class Spread:
    """Which lines of its input a transposed convolution reads for lines of its result."""

    height: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    extra: int
    """Lines that are added at the end of the result."""

    def inside(self, span: Span) -> Span:
        """Those that the image has; beyond them nothing comes from it but the bias."""
        start, end = span
        first = -(-(start + self.padding - self.dilation * (self.kernel - 1)) // self.stride)
        first, last = max(first, 0), min((end - 1 + self.padding) // self.stride + 1, self.height)
        return min(first, self.height - 1), last

    def given(self, span: Span) -> Span:
        """The lines of the result that come of lines of the input, with no padding taken off."""
        start, end = span
        last = (end - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return start * self.stride - self.padding, last - self.padding + self.extra


def _spread_of(
    image: Any, weight: Any, stride: Any, padding: Any, dilation: Any, extra: Any
) -> Spread | None:
    if not has_lines(image.meta["val"]):
        return None
    sizes = (_pair(size)[0] for size in (stride, padding, dilation, extra))
    return Spread(shape_of(image)[HEIGHT], shape_of(weight)[HEIGHT], *sizes)


def _spread(node: Node) -> Strip | None:
    image, weight, bias, stride, padding, dilation, transposed, extra, groups = _args(node)
    spread = _spread_of(image, weight, stride, padding, dilation, extra)
    if spread is None:
        return None
    rest = (stride, [0, _pair(padding)[1]], dilation, transposed, extra, groups)

    def run(strips: Strips, span: Span) -> Made:
        read = spread.inside(span)
        others = [strips.whole(t) if isinstance(t, Node) else None for t in (weight, bias)]
        made = strips.add(node, node.target, strips.value(image, read), *others, *rest)
        first = spread.given(read)[0]
        return {0: lines(strips, node, made, span[0] - first, span[1] - first)}

    return Strip(lambda span: {image: spread.inside(span)}, run)


def _spread_backward(node: Node) -> Strip | None:
    gradient, image, weight, bias, stride, padding, dilation, transposed, extra, groups, mask = _args(node)
    spread = _spread_of(image, weight, stride, padding, dilation, extra)
    if spread is None or not has_lines(gradient.meta["val"]):
        return None
    rest = (bias, stride, [0, _pair(padding)[1]], dilation, transposed, extra, groups, mask)

    def run(strips: Strips, span: Span) -> Made:
        read = spread.inside(span)
        part, incoming = strips.value(image, read), strips.gradient(gradient, spread.given(read))
        made = strips.add(node, node.target, incoming, part, strips.whole(weight), *rest)
        return results_of_strip(strips, node, made)

    return Strip(lambda span: {image: spread.inside(span)}, run, [gradient], spread.inside, (1, 2))


def _pool_window(image: Any, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Window:
    height = _pair(kernel)[0]
    sizes = (_pair(stride, _pair(kernel))[0], _pair(padding)[0], _pair(dilation)[0])
    return Window(shape_of(image)[HEIGHT], height, *sizes)


def _given(args: Sequence[Any], *otherwise: Any) -> list[Any]:
    return [*args, *otherwise[len(args) :]]


def _max_pool(node: Node) -> Strip | None:
    image, kernel, stride, padding, dilation, ceil = _given(node.args, None, None, [], 0, 1, False)
    if not has_lines(image.meta["val"]):
        return None
    window = _pool_window(image, kernel, stride, padding, dilation)

    def run(strips: Strips, span: Span) -> Made:
        part, pad = window.padded(strips, node, image, span, -torch.inf)
        rest = (kernel, stride, [pad, _pair(padding)[1]], dilation, ceil)
        return results_of_strip(strips, node, strips.add(node, node.target, part, *rest))

    return Strip(lambda span: {image: window.inside(span)}, run)


def _max_pool_backward(node: Node) -> Strip | None:
    gradient, image, kernel, stride, padding, dilation, ceil, indices = _args(node)
    if not has_lines(image.meta["val"]) or not has_lines(gradient.meta["val"]):
        return None
    window = _pool_window(image, kernel, stride, padding, dilation)

    def run(strips: Strips, span: Span) -> Made:
        # Indices count from the first line of the strip that was pooled.
        pooled = strips.span_of(indices)
        part, pad = window.padded(strips, node, image, pooled, -torch.inf)
        rest = (kernel, stride, [pad, _pair(padding)[1]], dilation, ceil)
        incoming = strips.gradient(gradient, pooled)
        made = strips.add(node, node.target, incoming, part, *rest, strips.value(indices, pooled))
        return {0: window.unpadded(strips, node, made, pooled, window.inside(span))}

    return Strip(
        lambda span: {image: window.inside(span), indices: span},
        run,
        [gradient],
        window.inside,
    )


def _average_pool(node: Node) -> Strip | None:
    image, *rest = _given(_args(node), None, None, [], 0, False, True, None)
    return _averaged(node, image, None, *rest)


def _average_pool_backward(node: Node) -> Strip | None:
    gradient, image, *rest = _args(node)
    return _averaged(node, image, gradient, *rest)


def _averaged(
    node: Node,
    image: Node,
    gradient: Node | None,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    counted: bool,
    divisor: Any,
) -> Strip | None:
    if not has_lines(image.meta["val"]) or ceil or (_pair(padding)[0] and not counted):
        return None
    window = _pool_window(image, kernel, stride, padding)
    wide = _pair(padding)[1]

    def run(strips: Strips, span: Span) -> Made:
        part, pad = window.padded(strips, node, image, span, 0.0)
        rest = (part, kernel, stride, [pad, wide], ceil, counted, divisor)
        if gradient is None:
            return {0: strips.add(node, node.target, *rest)}
        made = strips.add(node, node.target, strips.gradient(gradient, span), *rest)
        return {0: window.unpadded(strips, node, made, span, window.inside(span))}

    behind = [] if gradient is None else [gradient]
    return Strip(lambda span: {image: window.inside(span)}, run, behind, window.inside)


@dataclass(frozen=True)
class Enlarged:
    """Which lines of its input an enlarged image reads for some of its own."""

    height: int
    times: int
    linear: bool
    """Whether lines in between are mixed of two."""

    def inside(self, span: Span) -> Span:
        """Those that the image has."""
        start, end = span
        if not self.linear:
            return start // self.times, -(-end // self.times)
        # The middle of a line is at half of its height.
        first, last = ((2 * line + 1 - self.times) // (2 * self.times) for line in (start, end - 1))
        return max(first, 0), min(last + 2, self.height)

    def given(self, span: Span) -> Span:
        """The lines that come of some."""
        return span[0] * self.times, span[1] * self.times


LINEAR = (aten.upsample_bilinear2d.default, aten.upsample_bilinear2d_backward.default)


def _enlarged_of(node: Node, small: Node, large: Node, corners: Any) -> Enlarged | None:
    low, high = shape_of(small)[HEIGHT], shape_of(large)[HEIGHT]
    if not has_lines(small.meta["val"]) or high % low or corners is True:
        return None
    return Enlarged(low, high // low, node.target in LINEAR)


def _enlarging(node: Node) -> Strip | None:
    image, _, *rest = _args(node)
    enlarged = _enlarged_of(node, image, node, rest[0] if rest else None)
    if enlarged is None:
        return None

    def run(strips: Strips, span: Span) -> Made:
        read = enlarged.inside(span)
        first, last = enlarged.given(read)
        size = [last - first, shape_of(node)[3]]
        made = strips.add(node, node.target, strips.value(image, read), size, *rest)
        return {0: lines(strips, node, made, span[0] - first, span[1] - first)}

    return Strip(lambda span: {image: enlarged.inside(span)}, run)


def _enlarging_backward(node: Node) -> Strip | None:
    gradient, _, _, *rest = _args(node)
    enlarged = _enlarged_of(node, node, gradient, rest[0] if rest else None)
    if enlarged is None:
        return None
    samples, channels, _, width = shape_of(node)

    def run(strips: Strips, span: Span) -> Made:
        first, last = enlarged.inside(span)
        incoming = strips.gradient(gradient, enlarged.given((first, last)))
        sizes = list(shape_of(incoming)[2:]), [samples, channels, last - first, width]
        return {0: strips.add(node, node.target, incoming, *sizes, *rest)}

    return Strip(lambda span: {}, run, [gradient], enlarged.inside)


def _fixed_norm(node: Node) -> Strip | None:
    """Batch norm by running statistics."""
    return _same(node, [])


def _norm_backward(node: Node) -> Strip | None:
    gradient, *_, training, _, _ = _args(node)
    found = None if training else _same(node, [gradient])
    return found and Strip(found.values, found.run, [gradient], found.spread, (1, 2))


def _loss(node: Node) -> Strip | None:
    """The sum of the losses of all places, or its gradient; `tiled` makes sums of means."""
    backward = node.target is aten.nll_loss2d_backward.default
    scores, *_, reduction, _ = node.args[backward : backward + 5]
    assert isinstance(scores, Node)
    if reduction == 0 or not has_lines(scores.meta["val"]):
        return None

    def run(strips: Strips, span: Span) -> Made:
        args = [
            strips.whole(arg) if isinstance(arg, Node) and arg is not scores else arg for arg in node.args
        ]
        args[backward] = strips.value(scores, span)
        args[backward + 1] = strips.add(node, aten.slice.Tensor, args[backward + 1], 1, *span)
        return results_of_strip(strips, node, strips.add(node, node.target, *args))

    if backward:
        return Strip(lambda span: {scores: span}, run)
    return Strip(lambda span: {scores: span}, run, sums=(0, 1), own=scores)


RULES: dict[Any, Callable[[Node], Strip | None]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.avg_pool2d.default: _average_pool,
    aten.avg_pool2d_backward.default: _average_pool_backward,
    aten.upsample_nearest2d.default: _enlarging,
    aten.upsample_nearest2d_backward.default: _enlarging_backward,
    aten.upsample_bilinear2d.default: _enlarging,
    aten.upsample_bilinear2d_backward.default: _enlarging_backward,
    aten._native_batch_norm_legit_no_training.default: _fixed_norm,
    aten.native_batch_norm_backward.default: _norm_backward,
    aten.nll_loss2d_forward.default: _loss,
    aten.nll_loss2d_backward.default: _loss,
}

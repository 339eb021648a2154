"""Which parts of a step are run by tiles of rows: those that are wide inside and narrow at their ends.

A part begins with a product that makes its rows longer, such as the first layer of a perceptron or the one
that gives scores for words, and has all operators, of the forward and the backward pass, that make or read
rows that long. What lies inside is never whole then. See `rows` for what an operator does with some rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from scrimp._torch.graph import Tasks, analyse
from scrimp._torch.modules import module_of
from scrimp._torch.places import SUM, Picked, Place, Rows, aten, shape_of, tensor_inputs
from scrimp._torch.rows import cut, keeps_zeros, picked_by
from scrimp._torch.strips import HEIGHT, has_lines, strip

STARTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)


@dataclass(repr=False)
class Part:
    """Operators that are run tile by tile."""

    first: Node
    """The product that makes rows longer."""
    count: int
    """How many rows there are."""
    cuts: dict[Node, Any] = field(default_factory=dict)
    places: dict[Node, Place] = field(default_factory=dict)
    """How rows show in what these operators read and make."""
    inside: int = 0
    """Bytes of the forward pass that aren't whole any more."""
    picks: set[Picked] = field(default_factory=set)
    """Rows that slices take."""
    apart: bool = False
    """Whether other dimensions may lie between those of rows."""
    obstacle: Node | None = None
    """An operator that reads long rows, or makes them, and can't be run by tiles."""

    @property
    def name(self) -> str:
        """The module that it begins in."""
        return module_of(self.first) or self.first.name


@dataclass(repr=False)
class StripPart(Part):
    """Operators on images that are run by strips of their height; the smallest has ``count`` lines."""

    heights: set[int] = field(default_factory=set)
    """Those of its images."""


@dataclass(repr=False)
class Parts:
    """What can be run by tiles, and what can't and why."""

    found: list[Part]
    refused: list[Part]

    @property
    def reason(self) -> str:
        """Why the largest of those that can't be is none."""
        if not self.refused:
            return "no layer of the model gives several rows that are longer than those that it takes"
        part = max(self.refused, key=lambda part: part.count * shape_of(part.first)[-1])
        if part.obstacle is None:
            return f"what '{part.name}' gives is used whole, such as by being returned or by attention"
        where = module_of(part.obstacle)
        packet = getattr(part.obstacle.target, "overloadpacket", part.obstacle.target)
        name = str(getattr(packet, "__name__", packet))
        inside = f" in '{where}'" if where else ""
        return f"{name}{inside} needs what '{part.name}' gives as a whole, and so do gradients"


def parts_of(graph: Graph, kept: Collection[Node], height: int | None = 2) -> Parts:
    """The parts of a graph that can be run by tiles; what is ``kept`` is whole at the end.

    Of images, those of at least that ``height``, or none.
    """
    tasks = analyse(graph)
    parts = Parts([], [])
    taken: set[Node] = set()
    behind = _behind_gradients(graph)
    for node in graph.nodes:
        if node.target is aten.convolution.default:
            seen = height is None or node in taken or node in behind
            images = None if seen else _grown_strips(node, behind, height or 0)
            if images is not None and taken.isdisjoint(images.cuts):
                images.inside = _inside(images, tasks, kept)
                (parts.found if images.inside else parts.refused).append(images)
                taken |= images.cuts.keys()
            continue
        if node.target not in STARTS or node in taken or tasks.task_of[node].backward:
            continue
        part = _grown(node, kept)
        if part is None:
            continue
        part.inside = _inside(part, tasks, kept)
        for picked in part.picks:
            other = _grown(node, kept, picked)
            assert other is not None
            other.inside = _inside(other, tasks, kept)
            if other.inside > part.inside and _zero_elsewhere(other, graph, kept):
                part = other
        narrow = math.prod(shape_of(_rows_of(node))) * node.meta["val"].element_size()
        if part.inside >= narrow and taken.isdisjoint(part.cuts):
            parts.found.append(part)
            taken |= part.cuts.keys()
        else:
            parts.refused.append(part)
    return parts


def _behind_gradients(graph: Graph) -> set[Node]:
    """What depends on gradients of the outputs."""
    found: set[Node] = set()
    for node in graph.nodes:
        if (node.op == "placeholder" and is_tangent(node)) or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def is_tangent(node: Node) -> bool:
    """Whether an input is the gradient of an output."""
    desc = node.meta.get("desc")
    return desc.is_tangent() if desc is not None else node.name.startswith("tangents")


def _grown_strips(first: Node, behind: Collection[Node], height: int) -> StripPart | None:
    """The part that has a convolution, and all that is connected to it by images and can be run by strips."""

    def backward(node: Node) -> bool:
        return node in behind

    def long(tensor: Node) -> bool:
        return has_lines(tensor.meta.get("val")) and shape_of(tensor)[HEIGHT] >= height

    part = StripPart(first, shape_of(first)[HEIGHT])
    pending, tried = [first], set[Node]()
    while pending:
        node = pending.pop()
        if is_item(node):
            pending += node.all_input_nodes
            continue
        if node in tried or node.op != "call_function":
            continue
        tried.add(node)
        found = strip(node, backward)
        if found is None:
            if node not in behind and part.obstacle is None:
                part.obstacle = node
            continue
        results = [result for result in results_of(node) if place_of(result) not in found.sums]
        images = [*found.values((0, 1)), *found.gradients, *(r for r in results if has_lines(r.meta["val"]))]
        if not all(map(long, images)):
            continue
        part.cuts[node] = found
        for result in results_of(node):
            part.places[result] = SUM if place_of(result) in found.sums else Rows((HEIGHT,))
        part.heights |= {shape_of(image)[HEIGHT] for image in images}
        for image in images:
            pending += [image, *image.users]
    part.count = min(part.heights, default=0)
    return part if part.cuts else None


def _rows_of(product: Node) -> Node:
    """The factor that has the rows."""
    factor = product.args[1 if product.target is aten.addmm.default else 0]
    assert isinstance(factor, Node)
    return factor


def _grown(first: Node, kept: Collection[Node], picked: Picked | None = None) -> Part | None:
    """The part that begins with a product, if that makes rows longer; of all its rows or of those picked.

    Other dimensions lie between those of rows only in tensors that nothing outside of the part makes or sees.
    """
    part = _spread(first, picked, apart=True)
    if part is None or not _shows_apart(part, kept):
        return part
    other = _spread(first, picked, apart=False)
    assert other is not None
    other.picks |= part.picks
    return other


def _shows_apart(part: Part, kept: Collection[Node]) -> bool:
    mine = {result for node in part.cuts for result in results_of(node)}
    return any(
        tensor not in mine or tensor in kept or any(_outside(user, part) for user in tensor.users)
        for tensor, place in part.places.items()
        if isinstance(place, Rows) and place.apart(shape_of(tensor))
    )


def _spread(first: Node, picked: Picked | None, *, apart: bool) -> Part | None:
    *_, count, width = shape_of(first)
    before = shape_of(_rows_of(first))[-1]
    if width <= before or count < 2 or (first.target is aten.bmm.default and shape_of(first)[0] != 1):
        return None
    rows = Rows((len(shape_of(first)) - 2,), picked)
    part = Part(first, rows.of(shape_of(first)), apart=apart)
    part.places[first] = rows
    pending = [first]
    tried: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in tried or node in part.cuts or node.op != "call_function":
            continue
        if is_item(node):
            pending += node.all_input_nodes
            continue
        if not _join(part, node):
            tried.add(node)
            part.obstacle = part.obstacle or node
            continue
        # What was tried without knowing this may be possible now.
        touching = [*tensor_inputs(node), *results_of(node)]
        for tensor in touching:
            place = part.places.get(tensor)
            if not isinstance(place, Rows):
                continue
            length = math.prod(shape_of(tensor)) // place.whole(shape_of(tensor))
            if length > before:
                pending += [tensor, *tensor.users]
            elif length == 1 and tensor not in tensor_inputs(node):
                pending += tensor.users
    return part


def _zero_elsewhere(part: Part, graph: Graph, kept: Collection[Node]) -> bool:
    """Whether rows that aren't picked are zero in all that a part gives."""
    zeros: set[Node] = set()
    for node in graph.nodes:
        if node not in part.cuts:
            continue
        inputs = [part.cuts[node].inputs.get(tensor) for tensor in tensor_inputs(node)]
        some = any(isinstance(place, Rows) and place.picked is not None for place in inputs)
        zero = keeps_zeros(node, zeros) if some else node.target is aten.slice_backward.default
        for result in results_of(node):
            place = part.places[result]
            picked = place.picked is not None if isinstance(place, Rows) else some
            if zero:
                zeros.add(result)
            elif picked and (result in kept or any(_outside(user, part) for user in result.users)):
                part.obstacle = node
                return False
    return True


def _outside(user: Node, part: Part) -> bool:
    return user not in part.cuts and user.op != "output" and not (is_item(user) and user.args[0] in part.cuts)


def is_item(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def results_of(node: Node) -> list[Node]:
    """The nodes of an operator's results, which are items if it has several."""
    if isinstance(node.meta.get("val"), Tensor):
        return [node]
    return [user for user in node.users if is_item(user)]


def place_of(result: Node) -> int:
    """Which of its operator's results it is."""
    place = result.args[1] if is_item(result) else 0
    assert isinstance(place, int)
    return place


def _join(part: Part, node: Node) -> bool:
    """Add an operator to a part, if it can be run on some rows as the others are."""
    known: dict[Node, Rows] = {}
    for tensor in [*tensor_inputs(node), *results_of(node)]:
        place = part.places.get(tensor)
        if isinstance(place, Rows):
            known[tensor if tensor in node.all_input_nodes else node] = place
    found = cut(node, known)
    if found is None:
        part.picks |= {picked for rows in known.values() if (picked := picked_by(node, rows))}
        return False
    results = {result: found.outputs[place_of(result)] for result in results_of(node)}
    places = {tensor: place for tensor, place in found.inputs.items() if isinstance(place, Rows)} | results
    if not part.apart and any(isinstance(p, Rows) and p.apart(shape_of(t)) for t, p in places.items()):
        return False
    if any(part.places.get(tensor, place) != place for tensor, place in places.items()):
        return False
    # A sum over rows is whole, and so is what is read whole.
    if any(place is None and isinstance(part.places.get(t), Rows) for t, place in found.inputs.items()):
        return False
    part.cuts[node] = found
    part.places.update(places)
    return True


def _inside(part: Part, tasks: Tasks, kept: Collection[Node]) -> int:
    """Bytes of storages of the forward pass that nothing outside of a part sees."""
    seen = {storage for node in kept for storage in tasks.storages_of[node]}
    mine = {s for node in part.cuts if node in tasks.task_of for s in tasks.task_of[node].makes}
    for node, storages in tasks.storages_of.items():
        if any(_outside(user, part) for user in node.users):
            seen.update(storages)
    return sum(s.bytes for s in mine - seen if s.producer is not None and not s.producer.backward)

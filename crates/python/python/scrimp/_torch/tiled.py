"""A step whose wide parts are run by tiles: slices of what comes in, the operators on some rows, and what
they give joined or added up.

A part's operators are run in levels: what needs a sum over all tiles, or anything that is made of what they
give, is run after that. So a tile's gradients follow its forward pass at once where tiles meet in the loss
alone, and elsewhere its forward operators are there to be kept or computed again, as the plan decides. Sums
over tiles go into one buffer, in the order of tiles.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from scrimp._torch import runtime
from scrimp._torch.capture import Joint
from scrimp._torch.graph import is_random, tensors_in
from scrimp._torch.nodes import emit, worked_out
from scrimp._torch.norms import separated
from scrimp._torch.places import SUM, Picked, Rows, aten, shape_of
from scrimp._torch.rows import LOSSES
from scrimp._torch.striped import Tile, Unreachable
from scrimp._torch.strips import HEIGHT
from scrimp._torch.tiles import Part, StripPart, is_item, is_tangent, parts_of, place_of, results_of

LOWER = (torch.bfloat16, torch.float16)
"""Sums of these types are added up in float32."""


class Tangled(Exception):
    """A part can't be run by tiles, since of what it needs some comes after what it gives."""

    def __init__(self, part: Part) -> None:
        """Of this part."""
        super().__init__(part.name)
        self.part = part


def tiled(
    joint: Joint,
    tiles: int,
    *,
    gated: bool = False,
    only: Collection[str] | None = None,
    height: int | None = 0,
) -> Tiled:
    """A captured graph whose parts are run by so many tiles, or one for each row; that given stays as it is.

    ``only`` names the products that parts by rows begin with. Parts by strips have images of at least that
    ``height`` and one line for each tile; None: there are none. ``gated``: gradients of the outputs come
    when all outputs are there.
    """
    tangled: set[str] = set()
    kept_whole: set[str] = set()
    least = None if height is None else max(height, tiles, 2)

    def asked(part: Part) -> bool:
        named = only is None or part.first.name in only or isinstance(part, StripPart)
        return named and part.first.name not in tangled

    while True:
        changed = _copied(joint)
        norms = {} if least is None else separated(changed, least, kept_whole)
        parts = parts_of(changed.module.graph, kept_nodes(changed), least)
        wanted = [part for part in parts.found if asked(part)]
        inside = {node for part in wanted for node in part.cuts}
        whole = {name for name, nodes in norms.items() if not inside.issuperset(nodes)}
        if whole:
            kept_whole |= whole
            continue
        try:
            if wanted:
                _run_by_tiles(changed, wanted, tiles, gated)
            return Tiled(changed, wanted, parts.reason)
        except Tangled as error:
            normed = {name for name, nodes in norms.items() if not error.part.cuts.keys().isdisjoint(nodes)}
            kept_whole |= normed
            if not normed:
                tangled.add(error.part.first.name)


def parts_in(joint: Joint) -> list[Part]:
    """What of a captured graph can be run by tiles."""
    copy = _copied(joint)
    separated(copy, 2, but=())
    return parts_of(copy.module.graph, kept_nodes(copy)).found


@dataclass(repr=False)
class Tiled:
    """A captured graph with tiles."""

    joint: Joint
    parts: list[Part]
    reason: str
    """Why nothing else is tiled."""


def _copied(joint: Joint) -> Joint:
    graph = Graph()
    now: dict[Node, Node] = {}
    for node in joint.module.graph.nodes:
        if node.op != "output":
            now[node] = graph.node_copy(node, now.__getitem__)
    graph.output(tuple(now[node] for node in kept_nodes(joint)))
    copy = dataclasses.replace(joint, module=GraphModule(joint.module, graph))
    copy.replace(now.__getitem__)
    return copy


def _run_by_tiles(joint: Joint, parts: Sequence[Part], tiles: int, gated: bool) -> None:
    graph = joint.module.graph
    for part in parts:
        _separate_means(joint, part)
    kept = kept_nodes(joint)
    states = [_State(graph, part, tiles, joint.results if gated else (), kept) for part in parts]
    tiler = _Tiler(graph, states)
    joint.module = GraphModule(joint.module, tiler.rewritten(kept), "Tiled")
    joint.replace(tiler.now.__getitem__)


def kept_nodes(joint: Joint) -> list[Node]:
    """What is there at the end of a step."""
    results = [node for node in joint.results if node is not None]
    return [*results, *(node for _, node in joint.mutations), *(node for _, node in joint.gradients)]


def _separate_means(joint: Joint, part: Part) -> None:
    """Make means of losses sums that are divided by the number of labels, or by the sum of their weights.

    Labels alone decide that number, so that each tile's gradients can follow its loss.
    """
    graph = joint.module.graph
    for node in [node for node in part.cuts if node.target in LOSSES]:
        scores, labels, weight, reduction, ignored = node.args
        if reduction != 1:
            continue
        kind = scores.meta["val"].dtype  # type: ignore[union-attr]
        with graph.inserting_before(node):
            labels = emit(graph, node, aten.reshape.default, (labels, [-1]))
            counts = emit(graph, node, aten.ne.Scalar, (labels, ignored))
            if weight is not None:
                known = emit(graph, node, aten.mul.Tensor, (labels, counts))
                weights = emit(graph, node, aten.index_select.default, (weight, 0, known))
                counts = emit(graph, node, aten.mul.Tensor, (weights, counts))
            number = emit(graph, node, aten.sum.default, (counts,))
            number = emit(graph, node, aten._to_copy.default, (number,), {"dtype": kind})
        node.args = (*node.args[:3], 2, ignored)
        for item in results_of(node):
            if item.args[1] == 1:
                new = number
            else:
                with graph.inserting_after(item):
                    new = emit(graph, node, aten.div.Tensor, (item, number))
            item.replace_all_uses_with(new)
            if new is not number:
                new.update_arg(0, item)
            joint.results = [new if result is item else result for result in joint.results]


class _State:
    """How far a part is."""

    def __init__(
        self, graph: Graph, part: Part, tiles: int, gates: Collection[Node], kept: Collection[Node]
    ) -> None:
        self.part = part
        self.mine = {result for node in part.cuts for result in [node, *results_of(node)]}
        self.level = self._levels(graph, gates)
        self.done = 0
        """Levels that were run."""
        self.busy = False
        number = min(tiles, part.count)
        ends = [part.count * i // number for i in range(number + 1)]
        self.tiles = list(itertools.pairwise(ends))
        self.locals: list[dict[Node, Node]] = [{} for _ in self.tiles]
        self.views: dict[tuple[Node, Rows], Node] = {}
        """Whole inputs with one dimension for rows."""
        self.order = {level: [] for level in self.level.values()}  # type: dict[int, list[Node]]
        for node in graph.nodes:
            if node in part.cuts:
                self.order[self.level[node]].append(node)
        self.wanted = {node for node in self.mine if self._leaves(node, kept)}
        self.strips = self._strips(graph, len(self.tiles)) if isinstance(part, StripPart) else []
        self.totals: dict[Node, Node] = {}
        """What was joined or added up so far."""

    def _strips(self, graph: Graph, count: int) -> list[Tile]:
        part = self.part
        order = [node for node in graph.nodes if node in part.cuts]
        leaving = [node for node in self.wanted if part.places[node] is not SUM]
        try:
            return [Tile(part.cuts, order, leaving, (number, count)) for number in range(count)]
        except Unreachable:
            raise Tangled(part) from None

    def _leaves(self, node: Node, kept: Collection[Node]) -> bool:
        """Whether a result is needed whole."""
        place = self.part.places.get(node)
        if place is None or (is_item(node) and not node.users and node not in kept):
            return False
        if place is SUM:
            return bool(node.users) or node in kept
        return node in kept or any(user not in self.mine and user.op != "output" for user in node.users)

    def _levels(self, graph: Graph, gates: Collection[Node]) -> dict[Node, int]:
        """Per node, how often tiles must have met before it can be run."""
        found: dict[Node, int] = {}
        gate = 0
        for _ in range(2 if gates else 1):
            for node in graph.nodes:
                is_gradient = node.op == "placeholder" and bool(gates) and is_tangent(node)
                found[node] = max(
                    [
                        gate if is_gradient else 0,
                        *(self._after(above, node, found) for above in node.all_input_nodes),
                    ]
                )
            gate = max((found[node] + (node in self.mine) for node in gates), default=0)
        return found

    def _after(self, above: Node, node: Node, found: dict[Node, int]) -> int:
        if above not in self.mine:
            return found[above]
        inside = node in self.mine and (is_item(node) or isinstance(self.part.places.get(above), Rows))
        return found[above] + (not inside)


class _Tiler:
    """Copies a graph; parts become tiles when something needs what they give."""

    def __init__(self, source: Graph, states: Sequence[_State]) -> None:
        self.source = source
        self.graph = Graph()
        self.now: dict[Node, Node] = {}
        self.owner = {node: state for state in states for node in state.mine}
        self.remade: set[Node] = set()
        """New nodes whose values lie in other memory than those that they stand for."""

    def rewritten(self, kept: Sequence[Node]) -> Graph:
        """The new graph, with what is kept as its outputs."""
        for node in self.source.nodes:
            if node.op == "output" or node in self.owner:
                continue
            self._need(node)
        for node in kept:
            self._need(node)
        self._check_draws()
        self.graph.output(tuple(self.now[node] for node in kept))
        return self.graph

    def _check_draws(self) -> None:
        """Random operators must draw in the order of the captured graph."""
        order = {node: place for place, node in enumerate(self.graph.nodes)}
        draws = [order[self.now[n]] for n in self.source.nodes if n in self.now and is_random(n)]
        if draws != sorted(draws):
            raise Tangled(next(iter(self.owner.values())).part)

    def _need(self, node: Node) -> None:
        """Make sure that a node is there."""
        pending = [node]
        while pending:
            top = pending[-1]
            owner = self.owner.get(top)
            if top in self.now:
                pending.pop()
            elif owner is not None:
                self._run(owner, owner.level[top])
                pending.pop()
            elif missing := [above for above in top.all_input_nodes if above not in self.now]:
                pending += missing
            else:
                self._copy(top)
                pending.pop()

    def _copy(self, node: Node) -> None:
        new = self.graph.node_copy(node, self.now.__getitem__)
        self.now[node] = new
        if any(above in self.remade for above in new.all_input_nodes) and _is_view(node):
            new.meta["val"] = worked_out(node, new)
            self.remade.add(new)

    def _run(self, state: _State, level: int) -> None:
        """Run a part's tiles up to a level."""
        while state.done <= level:
            if state.busy:
                raise Tangled(state.part)
            state.busy = True
            nodes = state.order[state.done]
            for node in nodes:
                for above in node.all_input_nodes:
                    if above not in state.mine or state.part.places[above] is SUM:
                        self._need(above)
            for number in range(len(state.tiles)):
                for node in nodes:
                    if state.strips:
                        self._run_on_strip(state, node, number)
                    else:
                        self._run_on_tile(state, node, number)
            for result in (
                result for node in nodes for result in [*results_of(node)] if result in state.wanted
            ):
                self._finish(state, result)
            state.busy = False
            state.done += 1

    def _run_on_tile(self, state: _State, node: Node, number: int) -> None:
        start, end = state.tiles[number]
        cut = state.part.cuts[node]
        here = state.locals[number]
        args = map_arg(tuple(cut.args(end - start)), lambda above: self._input(state, node, above, number))
        total = state.totals.get(node)
        if node.target is aten.mm.default and total is not None and state.part.places[node] is SUM:
            value = total.meta["val"]
            if value.dtype not in LOWER and value.dtype == node.meta["val"].dtype:
                state.totals[node] = self._changed(node, runtime.add_product, total, *args)
                return
        target, kwargs = (node.target, dict(node.kwargs)) if cut.target is None else (cut.target, {})
        new = emit(self.graph, node, target, args, kwargs)
        if not isinstance(node.meta["val"], torch.Tensor):
            for item in results_of(node):
                here[item] = emit(self.graph, node, item.target, (new, item.args[1]))
        else:
            here[node] = new
        for result in results_of(node):
            if result in state.wanted:
                self._gather(state, result, here[result], start)

    def _run_on_strip(self, state: _State, node: Node, number: int) -> None:
        tile = state.strips[number]

        def add(of: Node, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
            return emit(self.graph, of, target, args, kwargs)

        made = tile.run(node, add, self.now)
        for result in results_of(node):
            if result not in state.wanted or place_of(result) not in made:
                continue
            part = made[place_of(result)]
            if state.part.places[result] is SUM:
                self._gather(state, result, part, 0)
            elif tile.strips[node].gradients:
                self._add_lines(state, result, part, tile.made[node][0])
            else:
                self._gather(state, result, tile.own(result), tile.core(result)[0])

    def _add_lines(self, state: _State, result: Node, part: Node, start: int) -> None:
        """Add a tile's part of a gradient to those before, where they overlap."""
        before, whole = state.totals.get(result), result.meta["val"]
        if before is not None:
            state.totals[result] = self._changed(result, runtime.add_lines, before, part, HEIGHT, start)
            return
        order = sorted(range(whole.dim()), key=lambda dim: (-whole.stride(dim), dim))
        args = (part, list(whole.shape), order, HEIGHT, start)
        state.totals[result] = emit(self.graph, result, runtime.begin_added, args)

    def _input(self, state: _State, node: Node, above: Node, number: int) -> Node:
        """A tile's part of an operator's input."""
        here = state.locals[number]
        place = state.part.cuts[node].inputs.get(above)
        if above in state.mine and state.part.places[above] is not SUM:
            return here[above]
        if not isinstance(place, Rows):
            return self.now[above]
        whole = self._flattened(state, above, place)
        if above not in here:
            start, end = state.tiles[number]
            here[above] = emit(self.graph, above, aten.slice.Tensor, (whole, place.last, start, end))
        return here[above]

    def _flattened(self, state: _State, above: Node, place: Rows) -> Node:
        """An input with one dimension for rows."""
        if len(place.dims) == 1 and place.picked is None:
            return self.now[above]
        key = above, place
        if key not in state.views:
            shape, new, picked = shape_of(above), self.now[above], place.picked
            if picked is not None:
                groups = place.split(shape, picked.outer, picked.size, picked.inner)
                new = emit(self.graph, above, aten.reshape.default, (new, groups))
                new = emit(self.graph, above, aten.slice.Tensor, (new, place.dims[0] + 1, *picked.slice))
            flat = (new, place.some(shape, place.of(shape)))
            state.views[key] = emit(self.graph, above, aten.reshape.default, flat)
        return state.views[key]

    def _gather(self, state: _State, result: Node, part: Node, start: int) -> None:
        """Add a tile's result to those of tiles before."""
        place, before = state.part.places[result], state.totals.get(result)
        if isinstance(place, Rows):
            if before is None:
                whole = result.meta["val"]
                size = place.some(whole.shape, place.of(whole.shape))
                order = sorted(range(len(size)), key=lambda dim: (-whole.stride(dim), dim))
                new = emit(self.graph, result, runtime.begin_joined, (part, size, order, place.last))
            else:
                new = self._changed(result, runtime.join, before, part, place.last, start)
        elif before is None:
            lower = part.meta["val"].dtype in LOWER and len(state.tiles) > 1
            wide = {"dtype": torch.float32}
            new = emit(self.graph, result, aten._to_copy.default, (part,), wide) if lower else part
        else:
            new = emit(self.graph, result, aten.add.Tensor, (before, part))
        state.totals[result] = new

    def _changed(self, of: Node, target: Any, total: Node, *args: Any) -> Node:
        """Add an operator that writes over its first input."""
        value = total.meta["val"]
        with value.fake_mode:
            fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return emit(self.graph, of, target, (total, *args), value=fresh)

    def _finish(self, state: _State, result: Node) -> None:
        """Give what was joined or added up the form of the whole."""
        total, whole, place = state.totals.pop(result), result.meta["val"], state.part.places[result]
        if total.meta["val"].dtype != whole.dtype:
            total = emit(self.graph, result, aten._to_copy.default, (total,), {"dtype": whole.dtype})
        if isinstance(place, Rows) and place.picked is not None:
            total = self._among_zeros(result, total, place, place.picked)
        if total.meta["val"].shape != whole.shape:
            total = emit(self.graph, result, aten.reshape.default, (total, list(whole.shape)))
        if not _laid_out_alike(total.meta["val"], whole):
            raise Tangled(state.part)
        self.now[result] = total
        self.remade.add(total)

    def _among_zeros(self, of: Node, total: Node, place: Rows, picked: Picked) -> Node:
        """All rows of a result that is zero but for those that were picked."""
        shape, (start, end, step) = shape_of(of), picked.slice
        some = place.split(shape, picked.outer, len(range(start, end, step)), picked.inner)
        groups = place.split(shape, picked.outer, picked.size, picked.inner)
        total = emit(self.graph, of, aten.reshape.default, (total, some))
        return emit(
            self.graph, of, aten.slice_backward.default, (total, groups, place.dims[0] + 1, start, end, step)
        )


def _laid_out_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(second.shape, first.stride(), second.stride(), strict=True)
    )


def _is_view(node: Node) -> bool:
    """Whether a node only looks at memory that another has made."""
    above = {t.untyped_storage()._cdata for n in node.all_input_nodes for t in tensors_in(n.meta.get("val"))}
    mine = [t.untyped_storage()._cdata for t in tensors_in(node.meta.get("val"))]
    return bool(mine) and all(storage in above for storage in mine)

"""A module whose forward and backward passes follow one plan, under ordinary autograd.

What runs between them, a loss or more layers, is one task of the plan: it needs the module's outputs
and gives their gradients. The plan is cut there; what lives across is kept by the autograd node.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from scrimp._torch import inplace, runtime
from scrimp._torch.account import Account
from scrimp._torch.capture import Call, Joint, Slot, capture
from scrimp._torch.captures import captured
from scrimp._torch.gradients import add_shared
from scrimp._torch.graph import Tasks, analyse
from scrimp._torch.guards import Guards
from scrimp._torch.memories import ended
from scrimp._torch.memory import storage_bytes
from scrimp._torch.outputs import Outputs, loss_in, taken_apart
from scrimp._torch.pace import Pace
from scrimp._torch.plans import Batch, Plans
from scrimp._torch.problem import Between, Lowered, lower
from scrimp._torch.reads import guarded
from scrimp._torch.rewrite import Continuation, Rewriter
from scrimp._torch.settings import Settings, device_of, make_plan, task_costs
from scrimp._torch.slab import Places
from scrimp._torch.swap import Away
from scrimp._torch.tiling import Tiling
from scrimp._torch.verify import Operations, verify
from scrimp.errors import BadOption, Unsupported
from scrimp.planning import Plan


@dataclass(repr=False)
class Halves:
    """A plan cut in two."""

    plan: Plan
    lowered: Lowered
    tasks: Tasks
    forward: GraphModule
    backward: GraphModule
    inputs: list[Slot | int]
    results: int
    differentiable: list[int]
    """Results whose gradients backward takes, in its order."""
    mutated: list[int]
    """Inputs that get new values."""
    tangents: list[Tensor]
    """Those gradients without contents: their shapes and types."""
    passive: list[int]
    """Results that have none in the model either."""
    gradients: list[int]
    """Inputs that get gradients, in the order in which backward gives them."""
    reached: list[set[int]]
    """For each of these, the places in ``differentiable`` of the results that it leads to."""
    outputs: Outputs
    guards: Guards
    pace: Pace
    operations: Operations
    away: Away | None
    trips: tuple[bool, bool]
    """Whether forward and backward copy swapped values."""
    places: Places = field(default_factory=Places)


class Planner(Account):
    """Runs a model's forward and backward passes by plans; a planned model has one as ``model.scrimp``."""

    def __init__(
        self, model: nn.Module, base: type[nn.Module], settings: Settings, *, loss_only: bool = True
    ) -> None:
        """Start without plans; ``base`` is the class whose ``forward`` is planned.

        With ``loss_only``, a model that returns its loss is planned for gradients of nothing else.
        """
        self.model = model
        self.base = base
        self.settings = settings
        self.loss_only = loss_only
        self._plans: Plans[Halves] = Plans(model, None, settings, parameter_hooks=True)
        self._tiling = Tiling()

    def __reduce__(self) -> Any:
        """Plans and callbacks stay behind."""
        settings = dataclasses.replace(self.settings, progress=None)
        return functools.partial(Planner, loss_only=self.loss_only), (self.model, self.base, settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass so that the backward pass can follow."""
        batch = Batch.of((args, kwargs))
        if self._plans.goes_without(batch):
            return self.base.forward(self.model, *args, **kwargs)
        halves = self._plans.verified(
            lambda: self._planned(batch, ahead=False),
            lambda one: verify(
                one,
                self.model,
                functools.partial(self.base.forward, self.model, *args, **kwargs),
                [_inputs(one, batch)[i] for i in one.mutated],
            ),
        )
        inputs = _inputs(halves, batch)
        results = _Run.apply(halves, *inputs)
        halves.guards.leave()
        return halves.outputs.around(results)

    def __len__(self) -> int:
        """How many plans there are."""
        return len(self._plans)

    def prepare(self, *args: Any, **kwargs: Any) -> Plan:
        """Plan for a batch without running it."""
        return self._planned(Batch.of((args, kwargs))).plan

    def _planned(self, batch: Batch, *, ahead: bool = True) -> Halves:
        return self._plans.find(batch, lambda: self._make(batch, ahead))

    def _make(self, batch: Batch, ahead: bool) -> Halves:
        settings, model, tensors, filled = self.settings, self.model, batch.tensors, batch.filler()
        device = device_of(model, tensors)
        returned: list[Outputs] = []

        def run(given: Sequence[Tensor]) -> list[Tensor]:
            args, kwargs = filled(given)
            output = self.base.forward(model, *args, **kwargs)
            results, outputs = taken_apart(output)
            returned.append(outputs)
            loss = loss_in(output) if self.loss_only else None
            return [r if loss is None or r is loss else r.detach() for r in results]

        call = Call(model, run, None)
        purpose = f"module, loss_only={self.loss_only}"
        joint, _ = captured(purpose, call, None, batch, settings, lambda: (_captured(call, tensors), []))
        joint.outputs = returned[-1]

        def attempt(one: Joint, settings: Settings) -> tuple[_Lowered, Plan]:
            asked = self._lowered(one, tensors, device, settings)
            return asked, make_plan(asked.lowered, settings, others=self._plans, ahead=ahead)

        asked, made = self._tiling.best(joint, settings, attempt, ahead=ahead, gated=True)
        pace, away = Pace(made, asked.tasks, settings), self._plans.away(made, asked.lowered)
        return _cut(asked, made, away, pace)

    def _lowered(
        self, joint: Joint, tensors: Sequence[Tensor], device: torch.device, settings: Settings
    ) -> _Lowered:
        model = self.model
        tasks = analyse(joint.module.graph)
        costs = task_costs(tasks.tasks, device, settings)
        placeholders = joint.module.graph.find_nodes(op="placeholder")
        gradients = [
            node for node, what in zip(placeholders, joint.placeholders, strict=True) if what is None
        ]
        results = _results(joint, tasks)
        between = Between([*results, *(node for _, node in joint.mutations)], gradients)
        kept = [*results, *(node for _, node in joint.gradients)]
        inplace.mark(tasks, [*kept, *between.reads, *gradients])
        lowered = lower(
            type(model).__name__,
            tasks,
            lambda task: costs[task.index],
            kept,
            settings.beside(device) + _resident(model, joint, tensors),
            between=between,
        )
        self._plans.let_swap(lowered.problem, device)
        return _Lowered(joint, tasks, lowered, placeholders, results)


def _inputs(halves: Halves, batch: Batch) -> list[Tensor]:
    return [what.get() if isinstance(what, Slot) else batch.tensors[what] for what in halves.inputs]


def _captured(call: Call, tensors: Sequence[Tensor]) -> Joint:
    joint = guarded(call, None, lambda one: capture(one, tensors, one.model, keeps_parameter_hooks=True))
    if not joint.tangent_of:
        raise BadOption(
            "none of the model's outputs needs gradients, so there is nothing to plan; call it under "
            "torch.no_grad()"
        )
    add_shared(joint)
    return joint


def _tangents(joint: Joint, placeholders: Sequence[Node]) -> list[Node]:
    return [node for node, what in zip(placeholders, joint.placeholders, strict=True) if what is None]


def _results(joint: Joint, tasks: Tasks) -> list[Node]:
    """The output nodes; refuse those that are no tensors of their own."""
    for result in joint.results:
        if any(storage.producer is None for storage in tasks.storages_of[result]):
            raise Unsupported(
                "the model returns one of its inputs or parameters, or a view of one; leave it out or "
                "return a clone"
            )
    return list(joint.results)


def _resident(model: nn.Module, joint: Joint, tensors: Sequence[Tensor]) -> int:
    held = [slot.get() for slot in joint.placeholders if isinstance(slot, Slot)]
    held += [*model.parameters(), *model.buffers(), *tensors]
    held += [p.grad for p in model.parameters() if p.grad is not None]
    # Values that inputs had before they were changed are kept if backward needs them.
    changed = [joint.placeholders[position] for position, _ in joint.mutations]
    before = storage_bytes(slot.get() for slot in changed if isinstance(slot, Slot))
    return storage_bytes(held) + before


@dataclass(repr=False)
class _Lowered:
    """A model as a problem to plan."""

    joint: Joint
    tasks: Tasks
    lowered: Lowered
    placeholders: Sequence[Node]
    results: Sequence[Node]


def _cut(asked: _Lowered, made: Plan, away: Away | None, pace: Pace) -> Halves:
    joint, tasks, lowered = asked.joint, asked.tasks, asked.lowered
    placeholders, results = asked.placeholders, asked.results
    outputs = joint.outputs
    assert outputs is not None
    before, after = lowered.halves(made, away)
    positions = [i for i, what in enumerate(joint.placeholders) if what is not None]
    incoming = _tangents(joint, placeholders)
    first = Rewriter(tasks, [*before, *after])
    first.given(placeholders[i] for i in positions)
    first.follow(before)
    first.arrive()
    rest = Continuation(first, after, incoming)
    rest.follow(after)
    rest.output([node for _, node in joint.gradients])
    changed = {placeholders[position] for position, _ in joint.mutations}
    saved = [_as_it_was(first, node, changed) for node in rest.saved]
    first.finish(
        [
            [first.need(node) for node in results],
            [first.need(node) for _, node in joint.mutations],
            saved,
        ]
    )
    index_of = {position: i for i, position in enumerate(positions)}
    return Halves(
        plan=made,
        lowered=lowered,
        tasks=tasks,
        forward=GraphModule(joint.module, first.graph, "PlannedForward"),
        backward=GraphModule(joint.module, rest.graph, "PlannedBackward"),
        inputs=[what for what in joint.placeholders if what is not None],
        results=len(results),
        differentiable=joint.tangent_of,
        tangents=[node.meta["val"] for node in incoming],
        passive=[i for i, has_gradient in enumerate(outputs.differentiable) if not has_gradient],
        mutated=[index_of[position] for position, _ in joint.mutations],
        gradients=[index_of[position] for position, _ in joint.gradients],
        reached=_reached(incoming, [node for _, node in joint.gradients]),
        outputs=outputs,
        guards=joint.guards,
        pace=pace,
        operations=joint.operations,
        away=away,
        trips=(first.trip is not None, rest.trip is not None),
    )


def _reached(incoming: Sequence[Node], gradients: Sequence[Node]) -> list[set[int]]:
    """Which of the incoming gradients each of a graph's gradients is made of."""
    of: dict[Node, set[int]] = {node: {place} for place, node in enumerate(incoming)}
    for node in incoming[0].graph.nodes if incoming else ():
        if node not in of:
            of[node] = set().union(*(of[above] for above in node.all_input_nodes))
    return [of[node] for node in gradients]


def _as_it_was(first: Rewriter, node: Node, changed: set[Node]) -> Node:
    """An input that forward changes is kept as a copy for backward."""
    if node.op == "placeholder" and any(first.now[original] is node for original in changed):
        return first.graph.call_function(torch.ops.aten.clone.default, (node,))
    return node


class _Run(torch.autograd.Function):
    """Forward runs the plan up to the loss, backward the rest."""

    @staticmethod
    def forward(ctx: Any, halves: Halves, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.halves = halves
        ctx.inputs = len(inputs)
        kind = inputs[0].device.type
        detached = [tensor.detach() for tensor in inputs]
        ctx.trip = None if halves.away is None else halves.away.trip()
        halves.places.begin(inputs[0].device)
        with torch.no_grad(), torch.autocast(kind, enabled=False), halves.pace.step():
            results, changed, saved = halves.forward(*detached, *[ctx.trip][: halves.trips[0]])
            runtime.put([detached[position] for position in halves.mutated], changed)
        _keep(ctx, saved, detached, inputs, results)
        ctx.mark_non_differentiable(*(results[i] for i in halves.passive))
        # Outputs that nothing uses would get gradients of zeros, as large as they are.
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise Unsupported(
                "gradients of gradients (create_graph=True) aren't planned; use the model itself for them"
            )
        halves: Halves = ctx.halves
        box = _kept(ctx)
        incoming = _incoming(halves, gradients)
        autocast = torch.autocast(incoming[0].device.type, enabled=False)
        with autocast, halves.pace.step(goes_on=True), ended(ctx.trip):
            made = halves.backward(box, *incoming, *[ctx.trip][: halves.trips[1]])
        halves.places.end()
        answer: list[Tensor | None] = [None] * (1 + ctx.inputs)
        used = {place for place, i in enumerate(halves.differentiable) if gradients[i] is not None}
        for position, reached, gradient in zip(halves.gradients, halves.reached, made, strict=True):
            # What leads to unused outputs alone has no gradient in eager; optimizers leave it as it is.
            answer[1 + position] = gradient if used & reached else None
        return tuple(answer)


def _incoming(halves: Halves, gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradients that the plan takes; zeros for outputs that nothing used."""
    for i, gradient in enumerate(gradients):
        if gradient is not None and i not in halves.differentiable:
            raise Unsupported(
                f"an output of shape {tuple(gradient.shape)} was used for a gradient, but a model that "
                "returns its loss is planned for gradients of this loss alone; give scrimp.torch.wrap "
                "loss_only=False"
            )
    found = [gradients[i] for i in halves.differentiable]
    return [
        torch.zeros(like.shape, dtype=like.dtype, device=like.device) if gradient is None else gradient
        for gradient, like in zip(found, halves.tangents, strict=True)
    ]


def _keep(
    ctx: Any, saved: list[Any], detached: list[Tensor], inputs: Sequence[Tensor], results: list[Tensor]
) -> None:
    """Inputs and results go through autograd, which notices changes and makes no cycles."""
    places = {id(tensor): i for i, tensor in enumerate(detached)}
    places |= {id(tensor): len(inputs) + i for i, tensor in enumerate(results)}
    ctx.by_autograd = [places.get(id(value)) for value in saved]
    ctx.box = [
        None if place is not None else value for place, value in zip(ctx.by_autograd, saved, strict=True)
    ]
    wanted = {place for place in ctx.by_autograd if place is not None}
    everything = [*inputs, *results]
    ctx.order = sorted(wanted)
    ctx.save_for_backward(*(everything[place] for place in ctx.order))


def _kept(ctx: Any) -> list[Any]:
    if ctx.box is None:
        raise Unsupported(
            "backward was called a second time on one forward pass, but what it needs is gone; call the "
            "model again"
        )
    box, ctx.box = ctx.box, None
    saved = dict(zip(ctx.order, ctx.saved_tensors, strict=True))
    for i, place in enumerate(ctx.by_autograd):
        if place is not None:
            box[i] = saved[place].detach()
    return box

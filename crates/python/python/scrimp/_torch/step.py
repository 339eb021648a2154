"""A whole training step, loss and gradients, as one planned graph under one budget."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.optim import Optimizer

from scrimp._native import format_bytes
from scrimp._torch import inplace, runtime
from scrimp._torch.account import Account
from scrimp._torch.capture import Call, Joint, Slot, capture
from scrimp._torch.captures import captured
from scrimp._torch.gradients import add_gradient_nodes, existing_gradient, slot_at
from scrimp._torch.graph import Storage, Task, Tasks, analyse
from scrimp._torch.guards import Guards
from scrimp._torch.memories import ended
from scrimp._torch.memory import storage_bytes
from scrimp._torch.pace import Pace
from scrimp._torch.plans import Batch, Plans
from scrimp._torch.problem import Lowered, lower
from scrimp._torch.reads import guarded
from scrimp._torch.refusals import refuse_call, refuse_frozen
from scrimp._torch.rewrite import Rewriter
from scrimp._torch.settings import Settings, check_budget, device_of, make_plan, make_plans, task_costs
from scrimp._torch.slab import Places
from scrimp._torch.swap import Away
from scrimp._torch.tiling import Tiling
from scrimp._torch.updates import Updater
from scrimp._torch.verify import Operations, verify
from scrimp.errors import BadOption, Unsupported
from scrimp.planning import Plan


@dataclass(repr=False)
class Captured:
    """A step as a problem to plan."""

    joint: Joint
    accumulated: list[Slot]
    tasks: Tasks
    lowered: Lowered
    updater: Updater | None
    remark: str
    """What else to say if there is no plan."""


@dataclass(repr=False)
class Planned:
    """A plan for one shape of batch, ready to run."""

    plan: Plan
    lowered: Lowered
    tasks: Tasks
    run: GraphModule
    inputs: list[Slot | int | None]
    accumulated: list[Slot]
    """Parameters whose gradients are there before the step: the last inputs."""
    mutated: list[Slot | int]
    gradients: list[Slot]
    guards: Guards
    pace: Pace
    operations: Operations
    loss: torch.Tensor
    """Without contents: its shape, type and device."""
    away: Away | None
    updater: Updater | None
    elsewhere: list[Task | Storage]
    """The optimizer's state that isn't in memory between steps."""
    places: Places = field(default_factory=Places)


class Step(Account):
    """Computes a loss and its gradients as ``loss.backward()`` would, under a budget.

    Call it with a batch; it returns the loss, and has added to the parameters' ``.grad`` and changed
    buffers once, as the model does. One plan is made per shape of batch (and of what else decides the
    graph: training or evaluation mode, autocast, which gradients are there already), on first sight.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None,
        settings: Settings,
        optimizer: Optimizer | None = None,
        clip_norm: float | None = None,
    ) -> None:
        """Keep what is needed to plan; use `scrimp.torch.fit`."""
        refuse_call(model, loss_fn)
        if clip_norm is not None and optimizer is None:
            raise BadOption("clip_norm is given without an optimizer; clip gradients before your own update")
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        self.model = model
        self.loss_fn = loss_fn
        self.loss_scale: torch.Tensor | float = 1.0
        self._settings = settings
        self._plans: Plans[Planned] = Plans(model, loss_fn, settings)
        self._tiling = Tiling()

    def __reduce__(self) -> Any:
        """Plans and callbacks stay behind."""
        settings = dataclasses.replace(self._settings, progress=None)
        made_of = (self.model, self.loss_fn, settings, self.optimizer, self.clip_norm)
        return Step, made_of, {"loss_scale": self.loss_scale}

    def __call__(self, *batch: Any, **named: Any) -> torch.Tensor:
        """Run one step on a batch and return the loss, detached."""
        asked = _as_batch(batch, named)
        if self._plans.goes_without(asked):
            return self._eagerly(asked)
        planned = self._plans.verified(
            lambda: self._planned(asked, ahead=False),
            lambda one: verify(
                one,
                self.model,
                functools.partial(self._call(asked), *asked.tensors),
                _changed(one, asked.tensors),
            ),
        )
        with planned.pace.step():
            return self._run(planned, asked.tensors)

    def prepare(self, *batch: Any, **named: Any) -> Plan:
        """Plan for a batch without running it."""
        return self._planned(_as_batch(batch, named)).plan

    def prepare_accumulation(self, *batch: Any, **named: Any) -> Plan:
        """Plan for a batch whose gradients are added to those of batches before; without running it."""
        return self._planned(_as_batch(batch, named), accumulating=True).plan

    def _eagerly(self, batch: Batch) -> torch.Tensor:
        """Run the model itself."""
        loss = loss_of(self.model, self.loss_fn, batch.filler()(batch.tensors))
        loss.backward(self._scale(loss))
        return loss.detach()

    def _scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The gradient of a loss. A number is filled in: a copy to a GPU would wait for what was before."""
        scale, dtype, device = self.loss_scale, loss.dtype, loss.device
        if isinstance(scale, torch.Tensor):
            return scale.detach().to(device, dtype).reshape(loss.shape)
        return torch.full(loss.shape, scale, dtype=dtype, device=device)

    def _planned(self, batch: Batch, *, accumulating: bool = False, ahead: bool = True) -> Planned:
        def make() -> Planned:
            joint, accumulated = self._joint(batch, accumulating)

            def attempt(one: Joint, settings: Settings) -> tuple[Captured, Plan]:
                asked = self._captured(batch, one, accumulated, accumulating, settings)
                return asked, make_plan(asked.lowered, settings, asked.remark, self._plans, ahead=ahead)

            return self._rewritten(*self._tiling.best(joint, self._settings, attempt, ahead=ahead))

        updater = self._updater()
        if updater is not None:
            updater.begin()
            if not isinstance(self.loss_scale, float) or self.loss_scale != 1.0:
                raise BadOption(
                    "loss_scale is for a GradScaler, which looks at all gradients before the update; set it "
                    "to 1.0, or leave the optimizer out of fit"
                )
        beside = None if updater is None else updater.marks
        return self._plans.find(batch, make, accumulating=accumulating, beside=beside)

    def _updater(self) -> Updater | None:
        return Updater(self.optimizer, self.model, self.clip_norm) if self.optimizer is not None else None

    def sweep(self, batch: Any, budgets: Sequence[int | str]) -> list[Step | Exception]:
        """Capture and measure once, and give a step for each budget; or why there is none."""
        if isinstance(budgets, str):
            raise BadOption(f"the budgets are {budgets!r}, but must be a list of budgets")
        for budget in budgets:
            check_budget(budget)
            if budget == "auto":
                raise BadOption("a sweep takes budgets in bytes and percentages, not 'auto'")
        example = Batch.of(batch)
        joint, accumulated = self._joint(example, False)
        joint = self._tiling.fixed(joint, self._settings)
        asked = self._captured(example, joint, accumulated, False, self._settings)
        steps: list[Step | Exception] = []
        for budget, made in zip(budgets, make_plans(asked.lowered, budgets, self._settings), strict=True):
            if isinstance(made, Exception):
                steps.append(made)
                continue
            settings = dataclasses.replace(self._settings, budget=budget)
            step = Step(self.model, self.loss_fn, settings, self.optimizer, self.clip_norm)
            step._plans.memory = self._plans.memory
            step._plans.find(example, functools.partial(step._rewritten, asked, made))
            steps.append(step)
        return steps

    def _joint(self, batch: Batch, accumulating: bool) -> tuple[Joint, list[Slot]]:
        refuse_frozen(self.model, self.loss_fn)
        device_of(self.model, batch.tensors)
        call = self._call(batch)
        return captured(
            "step",
            call,
            self.loss_fn,
            batch,
            self._settings,
            lambda: self._capture(call, batch, accumulating),
            accumulating=accumulating,
        )

    def _captured(
        self, batch: Batch, joint: Joint, accumulated: list[Slot], accumulating: bool, settings: Settings
    ) -> Captured:
        device = device_of(self.model, batch.tensors)
        updater = self._updater()
        if updater is not None:
            updater.add(joint)
        tasks = analyse(joint.module.graph)
        if updater is not None:
            updater.changes(joint, tasks, self._plans.memory_beside(device))
        # Updates come last.
        costs = task_costs([task for task in tasks.tasks if not task.writes], device, settings)
        measures = settings.costs == "measure"
        for task in tasks.tasks[len(costs) :]:
            assert updater is not None
            costs.append(updater.cost(task.node, measures))
        there = self._gradients(accumulating)
        resident = settings.beside(device) + there + self._resident(joint, batch.tensors)
        state, to_come = updater.state_bytes() if updater is not None else (0, 0)
        kept = [*joint.results, *(n for _, n in joint.mutations), *(n for _, n in joint.gradients)]
        inplace.mark(tasks, kept)
        lowered = lower(type(self.model).__name__, tasks, lambda t: costs[t.index], kept, resident + state)
        lowered.to_come = to_come
        self._plans.let_swap(lowered.problem, device)
        return Captured(joint, accumulated, tasks, lowered, updater, _when_accumulating(there))

    def _capture(self, call: Call, batch: Batch, accumulating: bool) -> tuple[Joint, list[Slot]]:
        try:
            joint = guarded(call, self.loss_fn, lambda one: capture(one, batch.tensors, self.model))
        except Unsupported as error:
            raise Unsupported(f"{error}{_in_one(batch)}") from error
        if len(joint.results) != 1 or joint.results[0] is None:
            raise BadOption(
                f"the loss must be one tensor, but of the {len(joint.results)} parts of what the loss "
                f"function gives, {sum(r is not None for r in joint.results)} are tensors; give it alone"
            )
        if len(joint.tangent_of) != 1:
            raise BadOption(
                "the loss doesn't depend on any parameter that needs gradients: somewhere on the way it is "
                "detached, made an integer, or computed under torch.no_grad()"
            )
        if joint.results[0].meta["val"].is_complex():
            raise BadOption("the loss is a complex number, which has no gradient; take its absolute value")
        if joint.results[0].meta["val"].numel() != 1:
            shape = tuple(joint.results[0].meta["val"].shape)
            raise BadOption(f"the loss has shape {shape}, but must be a scalar; take its mean or sum")
        return joint, add_gradient_nodes(joint, accumulating=accumulating)

    def _call(self, batch: Batch) -> Call:
        model, loss_fn, filled = self.model, self.loss_fn, batch.filler()

        def run(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            return loss_of(model, loss_fn, filled(tensors))

        return Call(model, run, loss_fn)

    def _resident(self, joint: Joint, tensors: Sequence[torch.Tensor]) -> int:
        held = [slot.get() for slot in joint.placeholders if isinstance(slot, Slot)]
        # A parameter that the graph doesn't read takes its bytes all the same. So does the loss's own
        # gradient, one element.
        held += [*self.model.parameters(), *self.model.buffers(), *tensors]
        return storage_bytes(held) + joint.results[0].meta["val"].element_size()

    def _gradients(self, accumulating: bool) -> int:
        """Bytes of the gradients that are there before the step."""
        parameters = list(self.model.parameters())
        there = storage_bytes(p.grad for p in parameters if p.grad is not None)
        missing = [p for p in parameters if accumulating and p.requires_grad and p.grad is None]
        return there + sum(p.numel() * p.element_size() for p in missing)

    def _rewritten(self, captured: Captured, made: Plan) -> Planned:
        joint, tasks, lowered = captured.joint, captured.tasks, captured.lowered
        away = self._plans.away(made, lowered)
        moves = lowered.moves(made, away)
        rewriter = Rewriter(tasks, moves)
        rewriter.given(joint.module.graph.find_nodes(op="placeholder"))
        rewriter.follow(moves)
        gradients = [(slot_at(joint, i), node) for i, node in joint.gradients]
        mutations = [(joint.placeholders[i], node) for i, node in joint.mutations]
        rewriter.output([joint.results[0], [node for _, node in mutations], [node for _, node in gradients]])
        return Planned(
            plan=made,
            lowered=lowered,
            tasks=tasks,
            run=GraphModule(joint.module, rewriter.graph, "PlannedStep"),
            inputs=joint.placeholders,
            accumulated=captured.accumulated,
            mutated=[slot for slot, _ in mutations if slot is not None],
            gradients=[slot for slot, _ in gradients],
            guards=joint.guards,
            pace=Pace(made, tasks, self._settings),
            operations=joint.operations,
            loss=joint.results[0].meta["val"],
            away=away,
            updater=captured.updater,
            elsewhere=[lowered.subject_of[value] for value in made.homes],
        )

    def _run(self, planned: Planned, tensors: list[torch.Tensor]) -> torch.Tensor:
        inputs: list[Any] = [self._input(what, planned, tensors) for what in planned.inputs]
        inputs += [existing_gradient(slot) for slot in planned.accumulated]
        device = inputs[0].device
        inputs += [] if planned.updater is None else [planned.updater]
        if planned.updater is not None:
            planned.updater.set_out(planned.elsewhere)
        trip = None if planned.away is None else planned.away.trip()
        inputs += [] if trip is None else [trip]
        with (
            torch.no_grad(),
            torch.autocast(device.type, enabled=False),
            planned.places.step(device),
            ended(trip),
        ):
            loss, changed, gradients = planned.run(*inputs)
            runtime.put(_changed(planned, tensors), changed)
        for slot, gradient in zip(planned.gradients, gradients, strict=True):
            slot.get().grad = gradient
        if planned.updater is not None:
            planned.updater.end()
        planned.guards.leave()
        return loss

    def _input(self, what: Slot | int | None, planned: Planned, tensors: list[torch.Tensor]) -> torch.Tensor:
        if isinstance(what, Slot):
            return what.get().detach()
        if isinstance(what, int):
            return tensors[what].detach()
        return self._scale(planned.loss)


def _changed(planned: Planned, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the model changes in place."""
    return [tensors[what] if isinstance(what, int) else what.get() for what in planned.mutated]


def _when_accumulating(there: int) -> str:
    """What else to say if there is no plan."""
    if not there:
        return ""
    return (
        f"{format_bytes(there)} of them are gradients that are there before the step, to be added to: drop "
        "them with zero_grad(set_to_none=True); fit(..., accumulate=True) tells ahead of training whether a "
        "budget allows for them"
    )


def loss_of(model: nn.Module, loss_fn: Callable[..., torch.Tensor] | None, batch: Any) -> torch.Tensor:
    """The loss of a batch by the conventions of `scrimp.torch.fit`."""
    if isinstance(batch, Mapping):
        output = model(**batch)
        return output if loss_fn is None else loss_fn(output)
    if loss_fn is None:
        return model(*batch)
    if len(batch) == 1:
        return loss_fn(model(*batch))
    return loss_fn(model(*batch[:-1]), batch[-1])


def _in_one(batch: Batch) -> str:
    """What else to say of a batch that wasn't taken apart."""
    whole = batch.filler()(batch.tensors)
    if len(whole) != 1 or not isinstance(whole, tuple) or not isinstance(whole[0], tuple | list | Mapping):
        return ""
    call = "step(**batch)" if isinstance(whole[0], Mapping) else "step(*batch)"
    return f". The model was given a {type(whole[0]).__name__}: if that is the whole batch, call {call}"


def _as_batch(batch: tuple[Any, ...], named: dict[str, Any]) -> Batch:
    if batch and named:
        raise BadOption("give the batch either by position or by name, not both")
    return Batch.of(named or batch)

"""Plans for `torch.compile`: a backend, and a partitioner that inductor takes too.

Ahead-of-time autograd gives a joint graph per compiled region and asks a partitioner to cut it. Ours
plans the joint graph, writes it anew in the order of the plan with repeats, and saves what crosses the
boundary between forward and backward. Random operators run once: their results are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch import partitioners
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node, has_side_effect
from torch.utils._python_dispatch import _disable_current_modes

from scrimp._native import format_bytes
from scrimp._torch import runtime
from scrimp._torch.capture import Joint
from scrimp._torch.explain import explanation
from scrimp._torch.fused import FUSED, SURELY_LEANER, is_fused, leaner, peak_of
from scrimp._torch.graph import Task, Tasks, analyse, copied_into, tensors_in
from scrimp._torch.kernels import eager_kernels, true_values
from scrimp._torch.memories import Memory
from scrimp._torch.memory import storage_bytes
from scrimp._torch.problem import Between, Cost, Lowered, Move, lower
from scrimp._torch.rewrite import Rewriter, boxed
from scrimp._torch.settings import Settings, make_plan, task_costs
from scrimp._torch.shares import Shares
from scrimp._torch.swap import Away, add_memory, memory_of, placed
from scrimp._torch.tiled import kept_nodes
from scrimp._torch.tiles import is_tangent
from scrimp._torch.tiling import Tiling
from scrimp.errors import Infeasible, Unsupported
from scrimp.planning import Plan


class Partitioner(CustomPartitionerFn):
    """Cuts joint graphs by plans under a budget; set it as inductor's ``custom_partitioner_fn``."""

    def __init__(self, settings: Settings, graphs: int = 1, *, fused: bool = True) -> None:
        """Keep how to plan; ``fused``: for inductor. ``plans`` has what was planned, graph by graph."""
        if fused and settings.swap is not None:
            raise Unsupported(
                "inductor can't compile copies to another memory; use scrimp.torch.backend, fit or wrap"
            )
        if settings.tile != "off" and fused:
            raise Unsupported(
                "tiles aren't built for inductor, which fuses operators itself; use scrimp.torch.backend, "
                "fit or wrap"
            )
        self.settings = settings
        self.graphs = graphs
        self.fused = fused
        self.plans: list[Plan] = []
        self.shared = Shares.of(settings.budget, graphs)
        if settings.tile == "auto" and self.shared is not None:
            raise Unsupported(
                "tile='auto' plans a graph several times, and graphs that share a budget are planned once "
                "each; give a number of tiles, or a percentage of each graph's own"
            )
        self._explanations: list[tuple[Lowered, Tasks]] = []

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        """Cut one joint graph, by inductor's own partition if that is leaner or fits the budget."""
        forward_outputs, static = kwargs["num_fwd_outputs"], kwargs.get("static_lifetime_input_indices")
        if not self.fused:
            return self._cut(gm, forward_outputs, static)
        theirs = _inductors(gm, joint_inputs, kwargs)
        their_peak = peak_of(theirs[0].graph, theirs[1].graph)
        try:
            ours = self._cut(gm, forward_outputs, static)
        except Infeasible as error:
            # Operators by themselves need more than fused ones.
            if their_peak > error.budget:
                raise
            return theirs
        our_peak, budget = peak_of(ours[0].graph, ours[1].graph), self.plans[-1].budget
        keeps_theirs = their_peak <= budget or our_peak > SURELY_LEANER * their_peak
        self.settings.say(
            f"by estimate inductor's own partition peaks at {format_bytes(their_peak)}, the plan's at "
            f"{format_bytes(our_peak)}, of {format_bytes(budget)}: "
            f"{'the former' if keeps_theirs else 'the latter'} is taken"
        )
        return theirs if keeps_theirs else ours

    def uuid(self) -> Any:
        """Nothing: a graph's plan depends on measurements, so it isn't looked up in a code cache."""
        return None

    def _cut(
        self, joint: GraphModule, forward_outputs: int, static: Sequence[int] | None
    ) -> tuple[GraphModule, GraphModule]:
        _refuse_symbols(joint.graph, [n.meta.get("val") for n in joint.graph.find_nodes(op="placeholder")])
        if not self.fused:
            true_values(joint.graph)
        (output,) = joint.graph.find_nodes(op="output")
        outputs: Sequence[Any] = output.args[0]
        by_caller = _changed_by_caller(joint.graph, output)
        captured = _captured(joint, outputs, forward_outputs)
        attempt = partial(self._plan, by_caller)
        asked, made = Tiling().best(captured, self.settings, attempt, ahead=True, gated=True)
        if self.fused:
            made = leaner(made, asked.lowered, self.settings)
        self.plans.append(made)
        self._explanations.append((asked.lowered, asked.tasks))
        tasks, placeholders, changed = asked.tasks, asked.placeholders, asked.changed
        away = None if asked.memory is None else placed(made, asked.lowered.problem, asked.memory)
        if away is not None:
            away.memory.reserve(away.bytes)
        first, rest = asked.lowered.halves(made, away)
        now = dict(asked.captured.gradients) | dict(enumerate(asked.captured.results))
        outputs = [now.get(place) or constant for place, constant in enumerate(outputs)]
        rewriter = _Both(tasks, [*first, *rest], away)
        rewriter.given(placeholders)
        rewriter.follow(first)
        rewriter.arrive()
        ahead = [rewriter.need(o) if isinstance(o, Node) else o for o in outputs[:forward_outputs]]
        rewriter.change_inputs(changed)
        before = set(rewriter.graph.nodes)
        rewriter.trip = None
        rewriter.follow(rest)
        behind = [rewriter.need(o) if isinstance(o, Node) else o for o in outputs[forward_outputs:]]
        rewriter.finish([*ahead, *behind])
        for node in rewriter.graph.nodes:
            if node.target in SWAPPING or node is rewriter.token:
                half = "forward" if node in before else "backward"
                node.meta["partitioner_tag"] = f"must_be_in_{half}"
        written = GraphModule(joint, rewriter.graph)
        (new_output,) = rewriter.graph.find_nodes(op="output")
        new_output.meta = dict(output.meta)
        new_placeholders = rewriter.graph.find_nodes(op="placeholder")
        static_nodes = [new_placeholders[i] for i in static or ()]
        return _extracted(written, _crossing(before, rewriter, behind), forward_outputs, static_nodes)

    def _plan(self, by_caller: Sequence[int], captured: Joint, settings: Settings) -> tuple[_Asked, Plan]:
        """Plan a graph as it is, or with tiles."""
        placeholders = captured.module.graph.find_nodes(op="placeholder")
        tangents = [node for node in placeholders if is_tangent(node)]
        tasks = analyse(captured.module.graph)
        held = [t for n in placeholders if n not in tangents for t in tensors_in(n.meta["val"])]
        if not held:
            raise Unsupported("the compiled region reads no tensors")
        costs = task_costs(tasks.tasks, held[0].device, settings)
        inputs = (placeholders[place] for place in by_caller)
        changed = list(dict.fromkeys([*map(copied_into, tasks.copies), *inputs]))
        copied = [n for node in tasks.copies for n in node.args[1:2] if isinstance(n, Node)]
        lowered = lower(
            "compiled",
            tasks,
            lambda task: _fused_cost(costs[task.index], task) if self.fused else costs[task.index],
            kept_nodes(captured),
            settings.beside(held[0].device) + storage_bytes(held) + _bytes(changed),
            between=Between([*(node for node in captured.results if node is not None), *copied], tangents),
            again=lambda task: not task.random,
        )
        memory, asked = None, settings.asked_swap
        if asked is not None:
            # The compiler's tensors have no bytes; those whose copies are timed do.
            with _disable_current_modes(), unset_fake_temporarily():
                memory = memory_of(asked, held[0].device)
                add_memory(lowered.problem, memory, asked)
        made = make_plan(lowered, settings) if self.shared is None else self.shared.plan(lowered, settings)
        return _Asked(captured, tasks, lowered, placeholders, changed, memory), made

    def explain(self) -> str:
        """Say for each graph what is run again, what that frees, and what sets the peak."""
        every = zip(self.plans, self._explanations, strict=True)
        return "\n\n".join(explanation(made, lowered, tasks) for made, (lowered, tasks) in every)

    def __getstate__(self) -> dict[str, Any]:
        """Plans stay here; a callback may be anything."""
        return {"settings": dataclasses.replace(self.settings, progress=None), "graphs": self.graphs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without plans."""
        self.__init__(**state)  # type: ignore[misc]


SWAPPING = (
    runtime.store,
    runtime.bring,
    runtime.arrive,
    runtime.seen_as,
    runtime.trip_of,
    runtime.end_trip,
)
"""Nodes that swapped values need, each in its half of the graph."""

for _function in (runtime.store, runtime.bring, runtime.arrive, runtime.end_trip):
    has_side_effect(_function)


class _Both(Rewriter):
    """Forward and backward in one graph, to be cut. A tensor that is saved has the copies."""

    def __init__(self, tasks: Tasks, moves: Sequence[Move], away: Away | None) -> None:
        super().__init__(tasks, moves)
        self.keeps_meta = True
        self.token: Node | None = None
        self._away = away

    def _begin_trip(self) -> Node:
        assert self._away is not None
        if self.token is None:
            like = next(iter(self.now)).meta["val"]
            self.token = self.graph.call_function(self._away.token)
            self.token.meta["val"] = like.new_empty(0, dtype=torch.uint8, device="cpu")
        return self.graph.call_function(runtime.trip_of, (self.token,))

    def finish(self, values: Any) -> None:
        """End the graph, and what is swapped."""
        self.arrive()
        if self.trip is not None:
            self.graph.call_function(runtime.end_trip, (self.trip,))
        super().finish(values)


def _inductors(
    gm: GraphModule, joint_inputs: Sequence[object], options: dict[str, Any]
) -> tuple[GraphModule, GraphModule]:
    """Inductor's own partition, of a copy."""
    graph = Graph()
    values: dict[Node, Node] = {}
    result = graph.graph_copy(gm.graph, values)
    end = graph.output(result)
    (old_end,) = gm.graph.find_nodes(op="output")
    end.meta = dict(old_end.meta)
    cut: Callable[..., tuple[GraphModule, GraphModule]] = partitioners.min_cut_rematerialization_partition
    return cut(GraphModule(gm, graph), joint_inputs, **options)


def _fused_cost(cost: Cost, task: Task) -> Cost:
    """A pointwise operator costs little where it is computed inside of another kernel."""
    return Cost(cost.seconds * FUSED, 0) if is_fused(task) else cost


@dataclass(frozen=True, repr=False)
class _Asked:
    """What a plan was asked for."""

    captured: Joint
    tasks: Tasks
    lowered: Lowered
    placeholders: Sequence[Node]
    changed: Sequence[Node]
    """Inputs that get new values."""
    memory: Memory | None
    """Where values may wait."""


def _captured(joint: GraphModule, outputs: Sequence[Any], forward: int) -> Joint:
    """A joint graph as others capture it: what the forward pass gives, and the rest by its places."""
    nodes = [output if isinstance(output, Node) else None for output in outputs]
    behind = [(place, node) for place, node in enumerate(nodes) if place >= forward and node is not None]
    return Joint(joint, [], nodes[:forward], [], [], behind)


def _changed_by_caller(graph: Graph, output: Node) -> list[int]:
    """The inputs that get new values by whoever runs a graph; others get them by copies in it."""
    described = {node.meta.get("desc"): i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    return [
        described[desc.mutated_input]
        for desc in output.meta.get("desc") or ()
        if isinstance(desc, InputMutationAOTOutput)
    ]


def _bytes(nodes: Sequence[Node]) -> int:
    return storage_bytes(t for node in nodes for t in tensors_in(node.meta["val"]))


def _refuse_symbols(graph: Graph, inputs: Sequence[Any]) -> None:
    for node, value in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        sizes = [*value.shape, *value.stride()] if isinstance(value, Tensor) else [value]
        if any(isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) for size in sizes):
            raise Unsupported(
                f"input {node.name} of the compiled region has a size that may vary; a plan is for one "
                "size: use torch.compile(..., dynamic=False)"
            )


def _crossing(before: set[Node], rewriter: Rewriter, behind: Sequence[Any]) -> list[Node]:
    """What is made ahead of the cut and used behind it, gradients of inputs included."""
    used = {
        above: None
        for node in rewriter.graph.nodes
        if node not in before and node.op == "call_function"
        for above in node.all_input_nodes
    }
    used.update((node, None) for node in behind if isinstance(node, Node))
    return [
        node
        for node in used
        if node in before and not (node.op == "placeholder" and node.name.startswith("tangents"))
    ]


def _extracted(
    joint: GraphModule, saved: list[Node], forward_outputs: int, static: Sequence[Node]
) -> tuple[GraphModule, GraphModule]:
    from torch.utils._ordered_set import OrderedSet

    extract: Callable[..., tuple[GraphModule, GraphModule]] = partitioners._extract_fwd_bwd_modules
    return extract(
        joint,
        saved,
        saved_sym_nodes=[],
        num_fwd_outputs=forward_outputs,
        static_lifetime_input_nodes=OrderedSet(static),
    )


class Backend:
    """A backend of `torch.compile` that runs PyTorch's own kernels in the order of a plan."""

    def __init__(self, settings: Settings, graphs: int = 1) -> None:
        """Keep how to plan."""
        self.partitioner = Partitioner(settings, graphs, fused=False)

    @property
    def plans(self) -> list[Plan]:
        """What was planned, graph by graph, in the order of compilation."""
        return self.partitioner.plans

    def explain(self) -> str:
        """Say for each graph what is run again, what that frees, and what sets the peak."""
        return self.partitioner.explain()

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        """Compile one region."""
        from torch._dynamo.backends.common import aot_autograd

        _refuse_symbols(gm.graph, example_inputs)
        compiler = aot_autograd(fw_compiler=_as_it_is, partition_fn=self.partitioner)
        with eager_kernels():
            return compiler(gm, example_inputs)


def _as_it_is(module: GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    taken = boxed(module)

    def run(box: list[Any]) -> Any:
        return taken(box)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run

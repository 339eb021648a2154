"""Plans for `torch.compile`: a backend, and a partitioner that inductor takes too.

Ahead-of-time autograd gives a joint graph per compiled region and asks a partitioner to cut it. Ours
plans the joint graph, writes it anew in the order of the plan with repeats, and saves what crosses the
boundary between forward and backward. Random operators run once: their results are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch import partitioners
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx import GraphModule, Node

from scrimp._torch.graph import Task, Tasks, analyse, copied_into, tensors_in
from scrimp._torch.kernels import eager_kernels
from scrimp._torch.memory import storage_bytes
from scrimp._torch.problem import Between, lower
from scrimp._torch.rewrite import Rewriter, boxed
from scrimp._torch.settings import Settings, make_plan, task_costs
from scrimp.errors import Unsupported
from scrimp.planning import Plan


class Partitioner(CustomPartitionerFn):
    """Cuts joint graphs by plans under a budget; set it as inductor's ``custom_partitioner_fn``."""

    def __init__(self, settings: Settings) -> None:
        """Keep how to plan. ``plans`` has what was planned, graph by graph."""
        self.settings = settings
        self.plans: list[Plan] = []

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        """Cut one joint graph."""
        return self._cut(gm, kwargs["num_fwd_outputs"], kwargs.get("static_lifetime_input_indices"))

    def uuid(self) -> Any:
        """Nothing: a graph's plan depends on measurements, so it isn't looked up in a code cache."""
        return None

    def _cut(
        self, joint: GraphModule, forward_outputs: int, static: Sequence[int] | None
    ) -> tuple[GraphModule, GraphModule]:
        placeholders = joint.graph.find_nodes(op="placeholder")
        _refuse_symbols(placeholders)
        tangents = [node for node in placeholders if node.name.startswith("tangents")]
        tasks = analyse(joint.graph)
        (output,) = joint.graph.find_nodes(op="output")
        outputs: Sequence[Any] = output.args[0]
        changed = _changed(tasks, placeholders, output)
        runs, cut = self._plan(tasks, placeholders, tangents, changed, outputs, forward_outputs)
        rewriter = Rewriter(tasks, [task for task in runs if task is not None])
        rewriter.keeps_meta = True
        rewriter.given(placeholders)
        for task in runs[:cut]:
            assert task is not None
            rewriter.run(task)
        ahead = [rewriter.need(o) if isinstance(o, Node) else o for o in outputs[:forward_outputs]]
        rewriter.change_inputs(changed)
        before = set(rewriter.graph.nodes)
        for task in runs[cut + 1 :]:
            assert task is not None
            rewriter.run(task)
        behind = [rewriter.need(o) if isinstance(o, Node) else o for o in outputs[forward_outputs:]]
        rewriter.finish([*ahead, *behind])
        written = GraphModule(joint, rewriter.graph)
        (new_output,) = rewriter.graph.find_nodes(op="output")
        new_output.meta = dict(output.meta)
        new_placeholders = rewriter.graph.find_nodes(op="placeholder")
        static_nodes = [new_placeholders[i] for i in static or ()]
        return _extracted(written, _crossing(before, rewriter, behind), forward_outputs, static_nodes)

    def _plan(
        self,
        tasks: Tasks,
        placeholders: Sequence[Node],
        tangents: Sequence[Node],
        changed: Sequence[Node],
        outputs: Sequence[Any],
        forward_outputs: int,
    ) -> tuple[list[Task | None], int]:
        settings = self.settings
        held = [t for n in placeholders if n not in tangents for t in tensors_in(n.meta["val"])]
        if not held:
            raise Unsupported("the compiled region reads no tensors")
        costs = task_costs(tasks, held[0].device, settings)
        ahead = [o for o in outputs[:forward_outputs] if isinstance(o, Node)]
        copied = [n for node in tasks.copies for n in node.args[1:2] if isinstance(n, Node)]
        lowered = lower(
            "compiled",
            tasks,
            lambda task: costs[task.index],
            [o for o in outputs if isinstance(o, Node)],
            settings.reserve + storage_bytes(held) + _bytes(changed),
            between=Between([*ahead, *copied], tangents),
            again=lambda task: not task.random,
        )
        made = make_plan(lowered, settings)
        self.plans.append(made)
        runs = lowered.graph_runs(made.runs)
        return runs, runs.index(None)

    def __getstate__(self) -> dict[str, Any]:
        """Plans stay here; a callback may be anything."""
        return {"settings": dataclasses.replace(self.settings, progress=None), "plans": []}


def _changed(tasks: Tasks, placeholders: Sequence[Node], output: Node) -> list[Node]:
    """The inputs that get new values: by copies in the graph, or by whoever runs it."""
    described = {node.meta["desc"]: node for node in placeholders if "desc" in node.meta}
    by_caller = [
        described[desc.mutated_input]
        for desc in output.meta.get("desc") or ()
        if isinstance(desc, InputMutationAOTOutput)
    ]
    return list(dict.fromkeys([*map(copied_into, tasks.copies), *by_caller]))


def _bytes(nodes: Sequence[Node]) -> int:
    return storage_bytes(t for node in nodes for t in tensors_in(node.meta["val"]))


def _refuse_symbols(placeholders: Sequence[Node]) -> None:
    for node in placeholders:
        value = node.meta.get("val")
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

    def __init__(self, settings: Settings) -> None:
        """Keep how to plan."""
        self.partitioner = Partitioner(settings)

    @property
    def plans(self) -> list[Plan]:
        """What was planned, graph by graph, in the order of compilation."""
        return self.partitioner.plans

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        """Compile one region."""
        from torch._dynamo.backends.common import aot_autograd

        compiler = aot_autograd(fw_compiler=_as_it_is, partition_fn=self.partitioner)
        with eager_kernels():
            return compiler(gm, example_inputs)


def _as_it_is(module: GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    taken = boxed(module)

    def run(box: list[Any]) -> Any:
        return taken(box)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run

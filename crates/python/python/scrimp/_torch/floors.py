"""Why there is no plan: what a step needs whatever the plan, where, and what would lower it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from scrimp._native import format_bytes
from scrimp._torch.graph import tensors_in
from scrimp._torch.modules import module_of
from scrimp._torch.problem import Lowered
from scrimp.errors import Infeasible
from scrimp.planning import Plan, check

LOSS = {
    "_log_softmax": 1,
    "_log_softmax_backward_data": 2,
    "nll_loss_forward": None,
    "nll_loss_backward": None,
    "nll_loss2d_forward": None,
    "nll_loss2d_backward": None,
}
"""Per operator of losses, the argument that says which dimension has the classes; None: the second has."""
ATTENTION = (
    "_softmax",
    "_softmax_backward_data",
    "_safe_softmax",
    "bmm",
    "baddbmm",
    "native_dropout_backward",
)
MANY_CLASSES = 100


def explained(
    error: Infeasible, lowered: Lowered, asked: int | str, remark: str = "", known: Iterable[Plan] = ()
) -> Infeasible:
    """Say it in bytes and as a percentage, with what stands in the way.

    ``known`` are plans of the same problem for other budgets.
    """
    least = min([error.least_found, *(plan.peak for plan in known if plan.peak > error.budget)])
    there = check(lowered.problem, range(len(lowered.problem.tasks)))
    changeable = there.base_peak - there.fixed
    wanted = f" ({asked})" if isinstance(asked, str) and asked.endswith("%") else ""
    sentences = [f"no plan within {format_bytes(error.budget)}{wanted} was found"]
    if isinstance(asked, int) and 0 < asked <= 100:
        sentences.append(f"The budget is {asked} bytes; if you mean percent, write '{asked}%'")
    percent = math.ceil(100 * (least - there.fixed) / changeable) if changeable > 0 else 100
    sentences.append(
        f"The least budget that a plan was found for is {least} bytes ({format_bytes(least)}), or "
        f"'{percent}%'" + (f"; none is possible below {error.floor} bytes" if error.floor else "")
    )
    sentences += [in_the_way(lowered, there.fixed, there.base_peak), remark]
    return Infeasible(". ".join(part for part in sentences if part), error.budget, least, error.floor)


def in_the_way(lowered: Lowered, fixed: int, whole: int) -> str:
    """What needs most at once, and what would lower that."""
    problem = lowered.problem
    values = problem.values
    there = lowered.always()

    def needed(index: int) -> int:
        task = problem.tasks[index]
        mode = task["modes"][0]
        over = {pair["input"] for pair in task["overwrites"]} | there
        here = [v for v in [*task["inputs"], *task["outputs"]] if v not in over]
        return sum(values[v]["bytes"] for v in here) + int(mode["workspace"])

    always = f"the {format_bytes(fixed)} of parameters, buffers, batch and gradients that are there"
    end = sum(v["bytes"] for i, v in enumerate(values) if v["keep"] != "no" and i not in there)
    most = max(range(len(problem.tasks)), key=needed)
    if end >= needed(most):
        return (
            f"What needs most is the end of the step: {format_bytes(end)} of gradients and new values beside "
            f"{always}, {_part(end + fixed, whole)}; fewer parameters that are trained (such as "
            "LoRA), or parameters in lower precision, need less"
        )
    return (
        f"{_named(lowered, most)} needs most at once: its inputs, outputs and workspace have "
        f"{format_bytes(needed(most))} beside {always}, {_part(needed(most) + fixed, whole)}; "
        f"{_remedy(lowered, most)}"
    )


def _part(needed: int, whole: int) -> str:
    return f"{needed / max(whole, 1):.0%} of the peak without a plan"


def _named(lowered: Lowered, index: int) -> str:
    task = lowered.task_at[index]
    if task is None:
        return str(lowered.problem.tasks[index]["name"])
    where = module_of(task.node)
    return f"{_operator(task.node)} in {where or 'the loss, or in the model outside of its modules'}"


def _operator(node: Any) -> str:
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def _remedy(lowered: Lowered, index: int) -> str:
    task = lowered.task_at[index]
    if task is None:
        return "a smaller batch needs less"
    name = _operator(task.node)
    nodes = [task.node, *task.node.all_input_nodes]
    shapes = [tuple(t.shape) for node in nodes for t in tensors_in(node.meta.get("val"))]
    largest = max(shapes, key=math.prod, default=())
    at: Any = LOSS.get(name)
    classes = largest[1 if at is None else task.node.args[at]] if name in LOSS and len(largest) > 1 else 0
    if classes >= MANY_CLASSES:
        return (
            f"it works on scores of {classes} classes at each of {math.prod(largest) // classes} places; a "
            "smaller batch, shorter sequences, or tile='auto', which computes the loss by tiles of places, "
            "needs less"
        )
    if name in ATTENTION and len(largest) >= 3 and largest[-1] == largest[-2]:
        return (
            "attention holds a score for every pair of places; a fused kernel (attn_implementation='sdpa', "
            "torch.nn.functional.scaled_dot_product_attention), shorter sequences or a smaller batch needs "
            "less"
        )
    workspace = int(lowered.problem.tasks[index]["modes"][0]["workspace"])
    if task.makes and workspace > sum(storage.bytes for storage in task.makes):
        return f"{format_bytes(workspace)} of it are the kernel's workspace; a smaller batch needs less"
    return "a smaller batch, or a narrower layer, needs less"

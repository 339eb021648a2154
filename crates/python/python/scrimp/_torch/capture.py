"""A model's joint forward and backward graph, with what each input and output means.

The graph is captured by PyTorch's own ahead-of-time autograd on fake tensors: nothing is computed and
no memory is taken. It is functional: what the model changes in place (running statistics) comes out as
an output, to be copied back once.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx import Graph, GraphModule, Node
from torch.nn.modules.module import _has_any_global_hook

import scrimp
from scrimp._torch.guards import Guards
from scrimp._torch.kernels import eager_kernels, true_values, warn_of_cells
from scrimp._torch.modules import Spans, forget_cached
from scrimp._torch.outputs import Outputs
from scrimp._torch.questions import Course, Guard
from scrimp._torch.verify import Operations, Recorder
from scrimp.errors import Unsupported


@dataclass(frozen=True)
class Slot:
    """Where a tensor of the model lives, so that it is looked up anew at every step."""

    owner: nn.Module
    name: str
    path: str

    def get(self) -> torch.Tensor:
        """Give the tensor as it is now."""
        found = getattr(self.owner, self.name, None)
        if not isinstance(found, torch.Tensor):
            raise Unsupported(f"the model no longer has '{self.path}'; plan it anew")
        return found


@dataclass(repr=False)
class Joint:
    """A captured graph.

    ``placeholders`` has, for each input of the graph, a slot of the model, the index of a tensor of
    the batch, or None for a tangent. ``outputs`` are the graph's output nodes by meaning.
    """

    module: GraphModule
    placeholders: list[Slot | int | None]
    results: list[Any]
    """Outputs of the model: nodes, or None."""
    tangent_of: list[int]
    """Per tangent, the result it belongs to."""
    mutations: list[tuple[int, Node]]
    """Inputs (by position) that get a new value."""
    gradients: list[tuple[int, Node]]
    """Inputs (by position) that get a gradient."""
    outputs: Outputs | None = None
    """The form of what the model returns, if it isn't the results alone."""
    guard: Guard = field(default_factory=Guard)
    """What a batch must answer for the graph to be what eager runs."""
    guards: Guards = field(default_factory=Guards)
    """What must be as it was in Python, likewise."""
    operations: Operations = field(default_factory=Operations)
    """The operators that the model and the loss ran."""

    def replace(self, now: Callable[[Node], Node]) -> None:
        """Let other nodes stand for what the step gives."""
        self.results = [None if node is None else now(node) for node in self.results]
        self.mutations = [(position, now(node)) for position, node in self.mutations]
        self.gradients = [(position, now(node)) for position, node in self.gradients]


def capture(
    module: Call,
    tensors: Sequence[torch.Tensor],
    root: nn.Module,
    *,
    keeps_parameter_hooks: bool = False,
) -> Joint:
    """Capture ``module(*tensors)`` and its gradients; hooks are looked for in ``root``.

    Raises `Unsupported` where the model's course depends on its data, or it can't be captured.
    """
    refuse_hooks(root, parameters=not keeps_parameter_hooks)
    warn_of_cells(root)
    spans = Spans(root)
    course = Course(spans.here)
    recorder = module.recorder = Recorder(spans.here)
    try:
        return _captured(module, tensors, spans, course, recorder)
    finally:
        course.forget()


def _captured(
    module: Call, tensors: Sequence[torch.Tensor], spans: Spans, course: Course, recorder: Recorder
) -> Joint:
    try:
        exported = _exported(module, tensors, spans, course)
    except Exception as error:
        raise _explained(error) from error
    graph = exported.graph_module.graph
    _drop_questions(graph)
    true_values(graph)
    spans.mark(graph)
    joint = _sorted_out(exported.graph_module, exported.out_spec.num_leaves, module)
    joint.operations = Operations(recorder.calls)
    joint.guard = course.guard(lambda source: _place_of(source, joint, tensors))
    return joint


def _exported(module: nn.Module, tensors: Sequence[torch.Tensor], spans: Spans, course: Course) -> Any:
    # As documented for eager training: the backward pass runs outside of autocast.
    backward = functorch_config.patch(backward_pass_autocast="off")
    with (
        contextlib.ExitStack() as stack,
        torch.enable_grad(),
        eager_kernels(),
        backward,
        spans.watch(),
        course,
    ):
        return aot_export_joint_with_descriptors(stack, module, tuple(tensors))


def _drop_questions(graph: Graph) -> None:
    """Remove operators whose results Python has seen: the guard asks them."""
    for node in reversed(graph.nodes):
        asks = torch.Tag.data_dependent_output in getattr(node.target, "tags", ())
        if asks and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _place_of(source: torch.Tensor, joint: Joint, tensors: Sequence[torch.Tensor]) -> Slot | int:
    """Where a tensor that the model asks about is found at every step."""
    for index, tensor in enumerate(tensors):
        if tensor is source:
            return index
    changed = {position for position, _ in joint.mutations}
    for position, slot in enumerate(joint.placeholders):
        if isinstance(slot, Slot) and slot.get() is source:
            if position in changed:
                path = slot.path.removeprefix("model.")
                raise Unsupported(
                    f"the model's course depends on '{path}', which every step changes, so there is no one "
                    "graph to plan"
                )
            return slot
    raise Unsupported("the model's course depends on a tensor that is neither a buffer nor part of the batch")


def _sorted_out(graph_module: GraphModule, count: int, module: nn.Module) -> Joint:
    from torch._functorch._aot_autograd import descriptors as d

    placeholders: list[Slot | int | None] = []
    position_of: dict[Any, int] = {}
    tangents: list[Any] = []
    for position, node in enumerate(graph_module.graph.find_nodes(op="placeholder")):
        desc = node.meta["desc"]
        position_of[desc] = position
        if isinstance(desc, d.ParamAOTInput | d.BufferAOTInput):
            placeholders.append(slot_in(module, desc.target))
        elif isinstance(desc, d.PlainAOTInput):
            placeholders.append(desc.idx)
        elif isinstance(desc, d.TangentAOTInput):
            placeholders.append(None)
            tangents.append(desc.output)
        else:
            raise Unsupported(
                f"the model has an input of kind {type(desc).__name__} (tensor subclasses, or views of "
                "one another that are changed in place), which can't be planned yet"
            )
    (output,) = graph_module.graph.find_nodes(op="output")
    results: dict[int, Any] = {}
    joint = Joint(graph_module, placeholders, [], [], [], [])
    for node, desc in zip(output.args[0], output.meta["desc"], strict=True):
        if node is None or desc is None:
            continue
        if isinstance(desc, d.GradAOTOutput):
            joint.gradients.append((position_of[desc.grad_of], node))
        elif isinstance(desc, d.InputMutationAOTOutput):
            joint.mutations.append((position_of[desc.mutated_input], node))
        elif isinstance(desc, d.PlainAOTOutput):
            results[desc.idx] = node
        else:
            raise Unsupported(
                f"the model has an output of kind {type(desc).__name__} (such as two outputs that are "
                "views of one another), which can't be planned yet"
            )
    joint.results = [results.get(i) for i in range(count)]
    joint.tangent_of = [output.idx for output in tangents if isinstance(output, d.PlainAOTOutput)]
    if len(joint.tangent_of) != len(tangents):
        raise Unsupported("the model changes an input that needs gradients in place; copy it first")
    return joint


def autocast_mode() -> Any:
    """The types that operators cast to, where autocast is on."""
    return tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )


def slot_in(module: nn.Module, path: str) -> Slot:
    """The place of a tensor by its path."""
    owner_path, _, name = path.rpartition(".")
    return Slot(module.get_submodule(owner_path), name, path)


HOOKS = {
    "_forward_hooks": "a forward hook",
    "_forward_pre_hooks": "a forward pre-hook",
    "_backward_hooks": "a backward hook",
    "_backward_pre_hooks": "a backward pre-hook",
}
CAPTURED_HOOKS = ("transformers.utils.output_capturing",)
"""Hooks from here only hand tensors on to the model's outputs, which is captured."""
CAPTURED_NAMES = ("make_inputs_require_grads", "make_inputs_require_grad")
"""Hooks of transformers and peft that ask for gradients of embeddings' outputs, which is captured too."""
TENSOR_HOOKS = {
    "_backward_hooks": "a gradient hook",
    "_post_accumulate_grad_hooks": "a hook after its gradient is accumulated",
}


def refuse_hooks(model: nn.Module, *, parameters: bool = True) -> None:
    """Refuse hooks: they would run once, at capture, on tensors without contents.

    Without ``parameters`` (as with `wrap`) those of parameters and of the model itself are called by others.
    """
    if _has_any_global_hook():
        raise Unsupported(
            "a hook for all modules is registered (register_module_forward_hook and the like, or a tool that "
            "uses them, such as FlopCounterMode), which a planned step can't call; remove it first"
        )
    for module in model.modules():
        for attribute, what in HOOKS.items():
            hooks = getattr(module, attribute, {}).values()
            refused = any(not _is_captured(hook) for hook in hooks)
            if refused and (parameters or module is not model):
                path = next(path for path, other in model.named_modules() if other is module)
                raise Unsupported(
                    f"{type(module).__name__} '{path}' has {what}, which a planned step can't call; "
                    "remove it first"
                )
    for parameter in model.parameters() if parameters else ():
        for attribute, what in TENSOR_HOOKS.items():
            if getattr(parameter, attribute, None):
                path = next(path for path, other in model.named_parameters() if other is parameter)
                raise Unsupported(
                    f"parameter '{path}' has {what}, which a planned step can't call; remove it first, or "
                    "use scrimp.torch.wrap, under which it is called"
                )
    if _has_saved_tensors_hooks():
        raise Unsupported(
            "hooks for saved tensors are on (saved_tensors_hooks, save_on_cpu), which a planned step can't "
            "call: the plan decides what is kept; leave that context first"
        )


def _is_captured(hook: Any) -> bool:
    module = getattr(hook, "__module__", "")
    return module in CAPTURED_HOOKS or getattr(hook, "__name__", "") in CAPTURED_NAMES


def has_surrounding_hooks() -> bool:
    """Whether there are hooks that belong to no module or parameter."""
    return _has_any_global_hook() or _has_saved_tensors_hooks()


def _has_saved_tensors_hooks() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _explained(error: Exception) -> Exception:
    """Say what to do, for what is commonly wrong."""
    if isinstance(error, Unsupported):
        return error
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if any(type(cause).__name__ in DATA_DEPENDENT for cause in _causes(error)):
        return Unsupported(
            "the model's course depends on its data (an `if` on a tensor's value, .item(), or a result "
            "whose shape depends on contents such as nonzero or a boolean mask), so there is no one graph "
            f"to plan{_where(error)}; make it branch-free (torch.where) or plan the parts that are. PyTorch "
            f"says: {text}"
        )
    if "convert all Tensors to FakeTensors" in str(error):
        return Unsupported(
            "the model or the loss uses a tensor that is neither a parameter, a buffer nor part of the "
            f"batch; register it as a buffer or pass it in the batch. PyTorch says: {text}"
        )
    return Unsupported(f"the model can't be captured{_where(error)}. PyTorch says: {text}")


def _where(error: BaseException) -> str:
    """The line of the model's code that an error is from."""
    libraries = tuple(os.path.dirname(str(package.__file__)) for package in (torch, scrimp))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*libraries, "<")) and frame.line
    ]
    if not frames:
        return ""
    last = frames[-1]
    return f" ({os.path.basename(last.filename)}:{last.lineno}: `{last.line}`)"


DATA_DEPENDENT = {
    "DataDependentOutputException",
    "GuardOnDataDependentSymNode",
    "DynamicOutputShapeException",
}


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


class Call(nn.Module):
    """A module of tensors only: the rest of the batch is constant, the loss part of it."""

    def __init__(self, model: nn.Module, run: Callable[[Sequence[torch.Tensor]], Any], loss: Any) -> None:
        """Keep the model (and a loss that is a module) where their parameters are found."""
        super().__init__()
        self.model = model
        if isinstance(loss, nn.Module):
            self.loss = loss
        self.recorder: Recorder | None = None
        self.run = run

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run it, and write down its operators if they are asked for."""
        if self.recorder is None:
            return self.run(tensors)
        forget_cached(self)
        try:
            with self.recorder.watch():
                return self.run(tensors)
        finally:
            forget_cached(self)

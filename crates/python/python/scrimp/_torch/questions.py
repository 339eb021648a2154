"""What Python asks about the contents of tensors while a model is captured.

Whether an attention mask hides anything, how long the longest sequence is, which places a boolean mask
selects: eager PyTorch looks, and goes on by the answer. Capture works on tensors without contents, so it
notes how each of them came about. When the model asks, the answer is worked out from the real batch, by
just the operators that lead to it. Questions and answers become a guard: a plan serves the batches that
give the same answers.
"""

from __future__ import annotations

import contextlib
import operator as operators
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from scrimp.errors import Unsupported

CHECKS = ("__init__", "_validate_sample")
"""Methods of distributions that check arguments."""


@dataclass(frozen=True, repr=False)
class Call:
    """An operator and its arguments."""

    operator: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True, repr=False)
class Origin:
    """The call that made a tensor without contents."""

    call: Call
    place: int | None
    """Which of its results the tensor is, if there are several."""
    made: FakeTensor
    """Kept, so that no other tensor gets its identity."""


@dataclass(repr=False)
class Guard:
    """The questions that a captured graph depends on, as a graph that compares their answers."""

    module: GraphModule | None = None
    sources: list[Any] = field(default_factory=list)
    """What the questions are about: slots of the model, and places in the batch."""
    questions: list[str] = field(default_factory=list)
    """What is asked where, to be read."""

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a batch gives the answers that the graph was captured with."""
        if self.module is None:
            return True
        given = [tensors[what] if isinstance(what, int) else what.get() for what in self.sources]
        try:
            with _real():
                self.module(*given)
        except _OtherAnswer:
            return False
        return True

    def about(self) -> str:
        """What is asked, as part of a sentence."""
        return "the model looks at contents of its batch by " + ", ".join(self.questions)


class _OtherAnswer(Exception):
    """An operator gives something else than when the model was captured."""


def must_be(value: Any, answer: str) -> None:
    """Compare what Python sees of a result."""
    if _seen(value) != answer:
        raise _OtherAnswer


def _seen(value: Any) -> str:
    """Of a tensor Python sees the shape, of a number all."""
    return repr([tuple(v.shape) if isinstance(v, Tensor) else v for v in tree_leaves(value)])


@contextlib.contextmanager
def _real() -> Iterator[None]:
    """Operators as they are recorded: below autograd and autocast, on tensors with contents."""
    with (
        _disable_current_modes(),
        unset_fake_temporarily(),
        torch._C._DisablePythonDispatcher(),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


class Course(FakeTensorMode):
    """Makes tensors without contents, knows how each came about, and answers from the real inputs."""

    def __init__(self, where: Callable[[], str]) -> None:
        """``where`` says which module is running."""
        super().__init__()
        self.questions: list[tuple[Call, str, str]] = []
        self._where = where
        self._over = False
        self._origins: dict[int, Origin] = {}
        self._inputs: dict[int, tuple[FakeTensor, Tensor]] = {}

    def from_tensor(self, tensor: Tensor, **options: Any) -> FakeTensor:
        """Make a tensor without contents of a real one, which is remembered."""
        made = super().from_tensor(tensor, **options)
        if not isinstance(tensor, FakeTensor) and not self._over:
            self._inputs[id(made)] = made, tensor
        return made

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on tensors without contents."""
        kwargs = kwargs or {}
        try:
            result = super().dispatch(func, types, args, kwargs)
        except DataDependentOutputException:
            return self._answer(Call(func, args, kwargs))
        except DynamicOutputShapeException:
            if func is torch.ops.aten.masked_select.default:
                result = self._selected(*args)
            else:
                result = tree_map_only(Tensor, self._like, self._answer(Call(func, args, kwargs)))
        if not self._over:
            self._note(Call(func, args, kwargs), result)
        return result

    def _note(self, call: Call, result: Any) -> None:
        mutable = call.operator._schema.is_mutable
        single = isinstance(result, Tensor)
        for place, leaf in enumerate(tree_leaves(result)):
            if not isinstance(leaf, FakeTensor):
                continue
            if mutable:
                self._origins.pop(id(leaf), None)
            elif not any(leaf is given for given in tree_leaves((call.args, call.kwargs))):
                self._origins[id(leaf)] = Origin(call, None if single else place, leaf)

    def _like(self, real: Tensor) -> Tensor:
        with self:
            return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=real.device)

    def _selected(self, values: Tensor, mask: Tensor) -> Tensor:
        """How many elements a mask selects has nothing to do with what they are."""
        with self:
            count = mask.expand(torch.broadcast_shapes(values.shape, mask.shape)).sum()
            return values.new_empty((int(count),))

    def _answer(self, call: Call) -> Any:
        trail = Trail(self._origins, self._inputs)
        node = trail.follow(call)
        reason = trail.why_not()
        if reason:
            where = self._where()
            if _checks_distribution():
                raise Unsupported(
                    "a distribution of torch.distributions looks whether its arguments are valid"
                    f"{f', in {where}' if where else ''}, and they {reason}, so there is no one graph to "
                    "plan; make it with validate_args=False, or turn these checks off for all with "
                    "torch.distributions.Distribution.set_default_validate_args(False)"
                )
            raise Unsupported(
                f"the model's course depends on its data: {call.operator}"
                f"{f' in {where}' if where else ''} looks at contents that {reason}, so there is no one "
                "graph to plan; make it branch-free (torch.where), or wrap only the parts that are"
            )
        with _real():
            answer = trail.value(node)
        self.questions.append((call, _seen(answer), self._where()))
        return answer

    def guard(self, name: Callable[[Tensor], Any]) -> Guard:
        """The questions so far; ``name`` says where an input is found at each step."""
        trail = Trail(self._origins, self._inputs)
        asked = [
            f"{call.operator} in {where or 'its forward'}"
            for call, answer, where in self.questions
            if trail.check(trail.follow(call), answer)
        ]
        if not asked:
            return Guard()
        sources = [name(source) for source in trail.sources]
        return Guard(trail.finished(), sources, list(dict.fromkeys(asked)))

    def forget(self) -> None:
        """Let go of the model's tensors: PyTorch keeps fake ones, and by them this mode, after a capture."""
        self._over, self._where = True, str
        self._origins.clear()
        self._inputs.clear()


class Trail:
    """The operators that lead to some tensors, as a graph of real ones."""

    def __init__(self, origins: dict[int, Origin], inputs: dict[int, tuple[FakeTensor, Tensor]]) -> None:
        """Begin an empty graph."""
        self.graph = Graph()
        self.sources: list[Tensor] = []
        self._origins = origins
        self._inputs = inputs
        self._constants = nn.Module()
        self._nodes: dict[Any, Node] = {}
        self._varying: set[Node] = set()
        self._lost = False

    def follow(self, call: Call) -> Node:
        """Append an operator after all that leads to it."""
        pending = _fakes(call)
        while pending:
            top = pending[-1]
            if id(top) in self._nodes:
                pending.pop()
                continue
            origin = None if self._is_known(top) else self._origins.get(id(top))
            missing = [t for t in _fakes(origin.call) if id(t) not in self._nodes] if origin else []
            if missing:
                pending += missing
                continue
            self._nodes[id(top)] = self._node(top, origin)
        return self._called(call)

    def check(self, node: Node, answer: str) -> bool:
        """Append a comparison, unless the answer is always the same."""
        if node in self._varying:
            self._once(must_be, (node, answer), {})
        return node in self._varying

    def why_not(self) -> str:
        """Why the graph can't be run again for every batch, if so."""
        if self._lost:
            return "capture can't follow"
        if any(isinstance(source, nn.Parameter) or source.requires_grad for source in self.sources):
            return "come from parameters, or inputs that need gradients"
        tags = [tag for node in self.graph.nodes for tag in getattr(node.target, "tags", ())]
        drawn = "are drawn at random (LayerDrop does so: turn it off, layerdrop=0.0)"
        return drawn if torch.Tag.nondeterministic_seeded in tags else ""

    def value(self, node: Node) -> Any:
        """Work out a node."""
        self.graph.output(node)
        return Interpreter(GraphModule(self._constants, self.graph)).run(*self.sources)

    def finished(self) -> GraphModule:
        """Give the comparisons as a module."""
        self.graph.output(None)
        return GraphModule(self._constants, self.graph, "Guard")

    def _is_known(self, fake: FakeTensor) -> bool:
        return fake.constant is not None or id(fake) in self._inputs

    def _node(self, fake: FakeTensor, origin: Origin | None) -> Node:
        if fake.constant is not None:
            return self._constant(fake.constant)
        if id(fake) in self._inputs:
            # Inputs come first, in the order of the sources.
            behind = next((n for n in self.graph.nodes if n.op != "placeholder"), None)
            with self.graph.inserting_before(behind) if behind else contextlib.nullcontext():
                node = self.graph.placeholder(f"source_{len(self.sources)}")
            self.sources.append(self._inputs[id(fake)][1])
            self._varying.add(node)
            return node
        if origin is None:
            self._lost = True
            return self.graph.get_attr("lost")
        node = self._called(origin.call)
        return node if origin.place is None else self._once(operators.getitem, (node, origin.place), {})

    def _called(self, call: Call) -> Node:
        args, kwargs = tree_map_only(Tensor, self._given, (call.args, call.kwargs))
        return self._once(call.operator, tuple(args), dict(kwargs))

    def _given(self, tensor: Tensor) -> Node:
        """The node of an argument; one with contents, such as a list of places, is a constant."""
        if isinstance(tensor, FakeTensor):
            return self._nodes[id(tensor)]
        return self._constant(tensor)

    def _constant(self, value: Tensor) -> Node:
        name = f"constant_{len(self._nodes)}_{len(self.graph.nodes)}"
        self._constants.register_buffer(name, value)
        return self.graph.get_attr(name)

    def _once(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        key = target, repr(args), repr(kwargs)
        if key not in self._nodes:
            node = self._nodes[key] = self.graph.call_function(target, args, kwargs)
            if any(above in self._varying for above in node.all_input_nodes):
                self._varying.add(node)
        return self._nodes[key]


def _checks_distribution() -> bool:
    """Whether a distribution is checking its arguments."""
    frame: Any = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("torch.distributions.") and frame.f_code.co_name in CHECKS:
            return True
        frame = frame.f_back
    return False


def _fakes(call: Call) -> list[FakeTensor]:
    return [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, FakeTensor)]

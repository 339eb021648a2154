"""A captured graph as plain data for JSON, and back.

Reading runs nothing that the data names: operators are looked up among PyTorch's registered ones and
this package's own functions, modules of the model by their paths, and all else is numbers and text.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from scrimp._torch import runtime
from scrimp._torch.capture import Joint, Slot, slot_in
from scrimp._torch.modules import KEY
from scrimp._torch.questions import Guard, must_be
from scrimp._torch.verify import Operation, Operations

MOST_CONSTANTS = 16 << 20
"""Bytes of constants in a graph, above which it isn't kept."""

OWN: dict[str, Callable[..., Any]] = {
    f"scrimp.{name}": function
    for name, function in inspect.getmembers(runtime, inspect.isfunction)
    if function.__module__ == runtime.__name__
} | {"getitem": operator.getitem, "scrimp.must_be": must_be}
NAMES = {function: name for name, function in OWN.items()}


class NotKept(Exception):
    """Something in the graph has no form as data; the sentence says what."""


def dump(joint: Joint, accumulated: list[Slot]) -> dict[str, Any]:
    """Give a graph, what its inputs and outputs mean, and the parameters whose gradients it adds to."""
    graph, writer = _written(joint.module)
    place = writer.places.__getitem__
    return {
        "guard": _guard(joint.guard),
        "graph": graph,
        "placeholders": [_path(what) for what in joint.placeholders],
        "results": [writer.argument(result) for result in joint.results],
        "tangent_of": joint.tangent_of,
        "mutations": [[position, place(node)] for position, node in joint.mutations],
        "gradients": [[position, place(node)] for position, node in joint.gradients],
        "accumulated": [slot.path for slot in accumulated],
        "operations": [dataclasses.astuple(call) for call in joint.operations.calls],
    }


def load_guard(data: dict[str, Any], module: nn.Module) -> Guard:
    """Make the guard of `dump` again: what a batch must answer for the graph to serve it."""
    guard = data["guard"]
    if guard is None:
        return Guard()
    return Guard(
        _read(guard["graph"])[0],
        [_source(module, what) for what in guard["sources"]],
        guard["questions"],
    )


def load(data: dict[str, Any], module: nn.Module, guard: Guard) -> tuple[Joint, list[Slot]]:
    """Make the graph of `dump` again, for a module of the same structure."""
    graph_module, reader = _read(data["graph"], _Unrun)
    nodes = reader.nodes
    joint = Joint(
        graph_module,
        [_source(module, what) for what in data["placeholders"]],
        [reader.argument(result) for result in data["results"]],
        data["tangent_of"],
        [(position, nodes[place]) for position, place in data["mutations"]],
        [(position, nodes[place]) for position, place in data["gradients"]],
        guard=guard,
        operations=Operations([Operation(*call) for call in data["operations"]]),
    )
    return joint, [slot_in(module, path) for path in data["accumulated"]]


def _guard(guard: Guard) -> dict[str, Any] | None:
    if guard.module is None:
        return None
    return {
        "graph": _written(guard.module)[0],
        "sources": [_path(source) for source in guard.sources],
        "questions": guard.questions,
    }


def _path(what: Slot | int | None) -> str | int | None:
    return what.path if isinstance(what, Slot) else what


def _source(module: nn.Module, what: str | int | None) -> Slot | int | None:
    return slot_in(module, what) if isinstance(what, str) else what


def _written(module: GraphModule) -> tuple[dict[str, Any], _Writer]:
    writer = _Writer()
    nodes = [writer.node(node) for node in module.graph.nodes]
    return {"nodes": nodes, "storages": writer.storages, "constants": _constants(module)}, writer


class _Unrun(GraphModule):
    """A graph that is only looked at, so no code is made for it."""

    def recompile(self) -> Any:
        """Leave it."""


def _read(data: dict[str, Any], kind: type[GraphModule] = GraphModule) -> tuple[GraphModule, _Reader]:
    root = nn.Module()
    for name, entry in data["constants"].items():
        root.register_buffer(name, _tensor(entry))
    reader = _Reader(data["storages"])
    for entry in data["nodes"]:
        reader.node(entry)
    return kind(root, reader.graph), reader


def _constants(module: GraphModule) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        value: Any = getattr(module, str(node.target), None)
        if type(value) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            raise NotKept(f"{node.target} is a {type(value).__name__}, no plain tensor")
        if value.untyped_storage().nbytes() > MOST_CONSTANTS:
            raise NotKept(f"the graph has a constant of {value.untyped_storage().nbytes()} bytes")
        raw = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        found[node.target] = {
            "dtype": _name(value.dtype),
            "device": str(value.device),
            "shape": list(value.shape),
            "bytes": base64.b64encode(raw.numpy().tobytes()).decode(),
        }
    return found


def _tensor(entry: dict[str, Any]) -> torch.Tensor:
    raw = bytearray(base64.b64decode(entry["bytes"]))
    dtype = _of_torch(entry["dtype"], torch.dtype)
    whole = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return whole.reshape(entry["shape"]).to(entry["device"])


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _of_torch(name: str, kind: type) -> Any:
    value = getattr(torch, name, None)
    if not isinstance(value, kind):
        raise ValueError(f"torch.{name} is no {kind.__name__}")
    return value


class _Writer:
    def __init__(self) -> None:
        self.places: dict[Node, int] = {}
        self.storages: list[list[Any]] = []
        self.storage_of: dict[int, int] = {}

    def node(self, node: Node) -> dict[str, Any]:
        entry = {
            "op": node.op,
            "name": node.name,
            "target": self.target(node),
            "args": [self.argument(a) for a in node.args],
            "kwargs": {name: self.argument(a) for name, a in node.kwargs.items()},
            "val": self.value(node.meta.get("val")),
            "module": node.meta.get(KEY),
        }
        self.places[node] = len(self.places)
        return entry

    def target(self, node: Node) -> str:
        target: Any = node.target
        if node.op != "call_function":
            return str(target)
        if target in NAMES:
            return NAMES[target]
        if isinstance(target, torch._ops.OpOverload):
            return str(target)
        raise NotKept(f"{node.name} calls {target}, which is no registered operator")

    def argument(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Node):
            return {"node": self.places[value]}
        if type(value) in (int, float):
            return value
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if isinstance(value, tuple):
            return {"tuple": [self.argument(v) for v in value]}
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            return {"dict": {k: self.argument(v) for k, v in value.items()}}
        if isinstance(value, slice):
            return {"slice": [self.argument(v) for v in (value.start, value.stop, value.step)]}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        for kind in KINDS:
            if isinstance(value, kind):
                return {kind.__name__: _name(value)}
        raise NotKept(f"an operator's argument is a {type(value).__name__}")

    def value(self, value: Any) -> Any:
        """A node's result without contents."""
        if isinstance(value, torch.Tensor):
            return {"tensor": self.tensor(value)}
        if isinstance(value, list | tuple):
            return {"tuple": [self.value(v) for v in value]}
        return self.argument(value)

    def tensor(self, value: torch.Tensor) -> list[Any]:
        if (
            type(value) is not FakeTensor
            or value.layout != torch.strided
            or value.is_conj()
            or value.is_neg()
        ):
            raise NotKept(f"a value is a {type(value).__name__} of layout {value.layout}")
        storage = value.untyped_storage()
        if storage._cdata not in self.storage_of:
            self.storage_of[storage._cdata] = len(self.storages)
            self.storages.append([storage.nbytes(), str(value.device)])
        numbers = [list(value.shape), list(value.stride()), value.storage_offset()]
        if not all(type(n) is int for n in [*numbers[0], *numbers[1], numbers[2], storage.nbytes()]):  # type: ignore[misc]
            raise NotKept("a size isn't a fixed number")
        return [self.storage_of[storage._cdata], _name(value.dtype), *numbers]


KINDS = (torch.dtype, torch.layout, torch.memory_format)


class _Reader:
    def __init__(self, storages: list[list[Any]]) -> None:
        self.graph = Graph()
        self.nodes: list[Node] = []
        self.mode = FakeTensorMode()
        self.storages = [
            (torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage(), torch.device(device))
            for size, device in storages
        ]
        self.operators: dict[str, Any] = {}

    def node(self, entry: dict[str, Any]) -> None:
        args = tuple(self.argument(a) for a in entry["args"])
        kwargs = {name: self.argument(a) for name, a in entry["kwargs"].items()}
        node = self.graph.create_node(
            entry["op"], self.target(entry["op"], entry["target"]), args, kwargs, name=entry["name"]
        )
        if node.name != entry["name"]:
            raise ValueError(f"there are two nodes named {entry['name']}")
        if entry["op"] != "output":
            node.meta["val"] = self.value(entry["val"])
        if entry["module"] is not None:
            node.meta[KEY] = entry["module"]
        self.nodes.append(node)

    def target(self, op: str, name: str) -> Any:
        if op != "call_function":
            return name
        found = self.operators.get(name)
        if found is None:
            found = self.operators[name] = OWN.get(name) or _operator(name)
        return found

    def argument(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        if kind == "node":
            return self.nodes[inner]
        if kind == "tuple":
            return tuple(self.argument(v) for v in inner)
        if kind == "dict":
            return {k: self.argument(v) for k, v in inner.items()}
        if kind == "slice":
            return slice(*(self.argument(v) for v in inner))
        if kind == "complex":
            return complex(*inner)
        if kind == "device":
            return torch.device(inner)
        (of,) = (known for known in KINDS if known.__name__ == kind)
        return _of_torch(inner, of)

    def value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        if kind == "tuple":
            return tuple(self.value(v) for v in inner)
        if kind != "tensor":
            return self.argument(value)
        place, dtype, size, stride, offset = inner
        storage, device = self.storages[place]
        with torch.no_grad():
            bare = torch.empty(0, dtype=_of_torch(dtype, torch.dtype), device="meta")
            bare.set_(storage, offset, size, stride)
        return FakeTensor(self.mode, bare, device)


def _operator(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(found, torch._ops.OpOverload):
        raise ValueError(f"{name} is no operator")
    return found

"""Which Python values a forward pass reads and leaves, found while it is captured.

Attribute reads are recorded where they happen, of all modules and of every other object of a class
written in Python that the forward pass gets hold of. Global variables and those of closures are taken from
the code of the functions that are called, whether that code is reached or not.

Capture runs the forward pass more than once, and none of these runs is one of training. So each starts from
the values that were there before capture, and these are there again afterwards.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from scrimp._torch.capture import Call, Joint
from scrimp._torch.drawn import Generators
from scrimp._torch.guards import (
    CONTAINERS,
    MISSING,
    MUTABLE,
    PLAIN_TYPES,
    Attribute,
    Cell,
    Contents,
    Entry,
    Guards,
    Place,
    Read,
    Write,
    entries_of,
    frozen,
    identity,
    is_plain,
    shown,
)
from scrimp._torch.modules import same_tensors
from scrimp._torch.questions import Course, Guard
from scrimp._torch.refusals import no_checkpoints
from scrimp.errors import Unsupported

OWN = frozenset(vars(nn.Module()))
"""Attributes in which modules keep parameters, submodules and hooks: other checks look after these."""
LIBRARIES = sys.stdlib_module_names | {"numpy", "scrimp", "torch"}
"""Top-level packages whose code decides by nothing that changes."""
HEAP_TYPE = 1 << 9
"""The flag of classes that are written in Python."""


def guarded(call: Call, loss_fn: Any, capture: Callable[[Call], Joint]) -> Joint:
    """Capture a call, with what it depends on in Python.

    Raises `Unsupported` if the forward pass changes at every call what it reads.
    """
    joint = _once(call, loss_fn, capture)
    read = {identity(read.place) for read in joint.guards.reads}
    changed = {identity(write.place): write for write in joint.guards.writes}
    if not read & changed.keys():
        return joint
    # What is changed once, such as a flag for the first call, is none the second time.
    joint.guards.leave()
    stays = False
    try:
        then = _once(call, loss_fn, capture)
        for write in then.guards.writes:
            if identity(write.place) in changed:
                raise Unsupported(
                    f"the forward pass changes {write.place.path} at every call, from "
                    f"{shown(changed[identity(write.place)].before)} to {shown(write.before)} to "
                    f"{shown(write.after)}, and reads it; a plan is for one value: make it a tensor (a "
                    "buffer that is changed in place), or change it outside of the forward pass"
                )
        # If it makes no difference, the first call is over.
        stays = then.module.code == joint.module.code
    finally:
        if not stays:
            joint.guards.undo()
    return then if stays else joint


def _once(call: Call, loss_fn: Any, capture: Callable[[Call], Joint]) -> Joint:
    recorder = Recorder(call.model, loss_fn)
    with recorder, no_checkpoints(), same_tensors(call.model, loss_fn):
        joint = capture(Call(call.model, recorder.watched(call.run), loss_fn))
    joint.guards = recorder.guards(joint.guard)
    return joint


def noted(call: Call, loss_fn: Any, tensors: Sequence[torch.Tensor], contents: Guard) -> Guards:
    """Run a call on tensors without contents, only to see what it depends on in Python."""
    mode = Course(lambda: "")
    recorder = Recorder(call.model, loss_fn)
    watched = Call(call.model, recorder.watched(call.run), loss_fn)
    held = [
        *watched.named_parameters(remove_duplicate=False),
        *watched.named_buffers(remove_duplicate=False),
    ]
    fakes: dict[str, torch.Tensor] = {name: mode.from_tensor(tensor) for name, tensor in held}
    try:
        with recorder, mode, torch.enable_grad(), same_tensors(call.model, loss_fn):
            torch.func.functional_call(watched, fakes, tuple(map(mode.from_tensor, tensors)))
    finally:
        mode.forget()
    return recorder.guards(contents)


class Recorder:
    """Notes what is read and left while it is entered."""

    def __init__(self, model: nn.Module, loss_fn: Any) -> None:
        """Know the names of modules, and what the code of the loss and of every forward method names."""
        self.running = False
        self.thread = threading.get_ident()
        self.reads: dict[Any, Read] = {}
        self.attributes: dict[int, tuple[str, dict[str, Any], dict[str, Any]]] = {}
        """Of every object that is known: its path, its attributes, and a copy of them from before."""
        self.contents: dict[int, Contents] = {}
        """Containers that may be changed, as they were before."""
        self.writes: list[Write] = []
        self.lost: list[str] = []
        """Where the forward pass left tensors."""
        self.swapped: set[Any] = set()
        """Places where capture itself puts tensors without contents."""
        self.seen: dict[Any, tuple[Any, str]] = {}
        """Objects and functions that were looked at, kept alive so that none gets another's identity."""
        self.classes: dict[type, Any] = {}
        self.generators = Generators()
        self._meet(model, "")
        self._meet(loss_fn, "loss_fn")

    def __enter__(self) -> Recorder:
        """Begin to note."""
        self.generators.remember()
        self._watch(nn.Module)
        for known in [kind for kind in self.classes if kind is not nn.Module]:
            self._watch(known)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no trace."""
        for kind, own in self.classes.items():
            if own is None:
                del kind.__getattribute__
            else:
                kind.__getattribute__ = own  # type: ignore[method-assign]
        self.classes.clear()
        self._restore()
        self.generators.restore()

    def watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Give a function that does the same and is watched."""

        def watched(*args: Any) -> Any:
            self._begin()
            assigned = _Buffers(self.seen)
            with self.generators.watched():
                self.running = True
                try:
                    result = run(*args)
                finally:
                    self.running = False
                    self.writes = [write for write in self._written() if not self._is_swapped(write)]
            assigned.refuse()
            self.lost = [w.place.path for w in self.writes if assigned.others_in(w.after)]
            return result

        return watched

    def guards(self, contents: Guard) -> Guards:
        """What was noted, beside questions about contents."""
        self.generators.refuse()
        lost = self.lost
        if lost:
            warnings.warn(
                f"the forward pass stores tensors in {', '.join(lost[:3])}"
                f"{' and others' if len(lost) > 3 else ''}, which a planned step doesn't: what is kept for "
                "later calls is made at every step, and what is read elsewhere must be returned",
                stacklevel=2,
            )
        left = [write for write in self.writes if _can_be_left(write)]
        return Guards(list(self.reads.values()), left, contents)

    # What there is.

    def _meet(self, value: Any, path: str) -> None:
        """Look at something that the forward pass may use: watch objects, read functions' code."""
        if type(value) in PLAIN_TYPES or isinstance(value, torch.Tensor | enum.Enum | type | ModuleType):
            return
        if id(value) in self.seen:
            return
        self.seen[id(value)] = (value, path)
        if self.generators.meet(value, path):
            return
        if isinstance(value, CONTAINERS):
            if type(value) in MUTABLE:
                self.contents[id(value)] = Contents.of(path, value)
            for place, entry in enumerate(entries_of(value)[:MANY]):
                self._meet(entry, f"{path}[{place}]")
        elif isinstance(value, FunctionType):
            self._read_code(value)
        elif isinstance(value, MethodType):
            self._meet(value.__self__, path)
            self._read_code(value.__func__)
        elif isinstance(value, functools.partial):
            self._meet(value.func, path)
            for name in ("args", "keywords"):
                self._note(Attribute(f"{path}.{name}", value, name), getattr(value, name))
        elif isinstance(value, nn.Module):
            self._know_attributes(value, path)
            for kind in type(value).__mro__:
                self._read_code(vars(kind).get("forward"))
            for name, module in value.named_children():
                self._meet(module, _joined(path, name))
        elif type(value).__flags__ & HEAP_TYPE and not _is_library(type(value).__module__):
            self._know_attributes(value, path)
            self._watch(type(value))
            self._read_code(vars(type(value)).get("__call__"))
        elif isinstance(value, SimpleNamespace):
            self._note(Attribute(path, value, "__dict__"), value.__dict__)

    def _know_attributes(self, value: Any, path: str) -> None:
        with contextlib.suppress(AttributeError):
            attributes = object.__getattribute__(value, "__dict__")
            self.attributes[id(value)] = (path, attributes, dict(attributes))
            for name, entry in list(attributes.items()):
                if type(entry) in MUTABLE and name not in KINDS:
                    self.contents[id(entry)] = Contents.of(_joined(path, name), entry)

    def _read_code(self, function: Any) -> None:
        """Note the variables that a function's code names, and look at what they are."""
        if not isinstance(function, FunctionType) or (id(function), "code") in self.seen:
            return
        self.seen[id(function), "code"] = (function, "")
        self._read_code(getattr(function, "__wrapped__", None))
        variables = function.__globals__
        if _is_library(str(variables.get("__name__"))):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            variable = Cell(f"{name} (a variable around {function.__qualname__})", cell)
            self._note(variable, variable.get())
        for name in ("__defaults__", "__kwdefaults__"):
            self._meet(getattr(function, name), f"{name} of {function.__qualname__}")
        names = _names(function.__code__)
        self._read_variables(variables, names)
        for name in names:
            found = variables.get(name)
            if isinstance(found, ModuleType) and not _is_library(found.__name__):
                self._read_variables(vars(found), names)

    def _read_variables(self, variables: dict[str, Any], names: set[str]) -> None:
        for name in names & variables.keys():
            value = variables[name]
            if isinstance(value, type | ModuleType):
                continue
            place = Entry(f"{variables.get('__name__')}.{name}", variables, name)
            if is_plain(value) or isinstance(value, torch.Tensor):
                self._note(place, value)
            else:
                self._meet(value, place.path)

    # What happens.

    def _watch(self, kind: type) -> None:
        """Note which attributes of a class's objects are read."""
        if kind in self.classes or any(base in self.classes for base in kind.__mro__[1:]):
            return
        plain: Any = kind.__getattribute__
        read = self._read

        def noting(owner: Any, name: str) -> Any:
            try:
                value = plain(owner, name)
            except AttributeError:
                read(owner, name, MISSING)
                raise
            read(owner, name, value)
            return value

        own = vars(kind).get("__getattribute__")
        with contextlib.suppress(TypeError, AttributeError):
            kind.__getattribute__ = noting  # type: ignore[method-assign, assignment]
            self.classes[kind] = own

    def _read(self, owner: Any, name: str, value: Any) -> None:
        if not self.running or threading.get_ident() != self.thread or name in OWN or name[:2] == "__":
            return
        self.running = False
        try:
            self._note_attribute(owner, name, value)
        finally:
            self.running = True

    def _note_attribute(self, owner: Any, name: str, value: Any) -> None:
        if id(owner) not in self.attributes:
            # It was made by the forward pass, or has no dictionary.
            if id(owner) in self.seen and value is not MISSING:
                self._note(Attribute(_joined(self.seen[id(owner)][1], name), owner, name), value)
            return
        path, attributes, before = self.attributes[id(owner)]
        place = Entry(_joined(path, name), attributes, name)
        if attributes.get(name, MISSING) is not before.get(name, MISSING):
            return  # The forward pass itself has set it by now.
        if name in attributes:
            self._note(place, value if value is not MISSING else attributes[name])
            return
        if isinstance(owner, nn.Module) and any(name in attributes.get(k, ()) for k in KINDS):
            return
        on_class = getattr(type(owner), name, MISSING)
        if (
            on_class is getattr(nn.Module, name, None)
            and on_class is not MISSING
            and isinstance(owner, nn.Module)
        ):
            return
        if isinstance(on_class, property):
            self._read_code(on_class.fget)
        elif isinstance(on_class, cached_property):
            self._read_code(on_class.func)
        elif isinstance(on_class, FunctionType):
            self._note(place, MISSING)
            self._read_code(on_class)
        elif on_class is MISSING and value is not MISSING:
            self._note(Attribute(place.path, owner, name), value)
        else:
            self._note(place, MISSING)
            if is_plain(on_class) and on_class is not MISSING:
                self._note(Attribute(f"{type(owner).__name__}.{name}", type(owner), name), on_class)

    def _note(self, place: Place, value: Any) -> None:
        """Remember the first value that was read at a place."""
        key = identity(place)
        if key not in self.reads and not {key, (id(value),)} & self.swapped:
            self.reads[key] = Read.of(place, value)
            self._meet(value, place.path)

    # What is left.

    def _written(self) -> Iterator[Write]:
        known = set()
        for owner, (path, attributes, before) in self.attributes.items():
            known.add(id(attributes))
            kind = type(self.seen[owner][0])
            for name in [*before, *(name for name in attributes if name not in before)]:
                old, new = before.get(name, MISSING), attributes.get(name, MISSING)
                if old is new or name in OWN or isinstance(getattr(kind, name, None), cached_property):
                    continue
                if frozen(old) != frozen(new):
                    yield Write(Entry(_joined(path, name), attributes, name), old, new)
        for read in self.reads.values():
            place, value = read.place, read.value
            if not isinstance(place, Entry) or id(place.names) not in known:
                now = place.get()
                if now is not value and frozen(now) != read.copy:
                    yield Write(place, value, now)
        for contents in self.contents.values():
            if frozen(contents.get()) != frozen(contents.before):
                yield Write(contents, contents.before, contents.get())

    def _begin(self) -> None:
        """Begin a run from what was there before; only what it changes itself are its writes."""
        self._restore()
        self.swapped |= {identity(write.place) for write in self._written()}
        self.attributes = {
            owner: (path, attributes, dict(attributes))
            for owner, (path, attributes, _) in self.attributes.items()
        }
        self.contents = {
            key: Contents.of(contents.path, contents.container) for key, contents in self.contents.items()
        }

    def _is_swapped(self, write: Write) -> bool:
        return bool({identity(write.place), (id(write.before),)} & self.swapped)

    def _restore(self) -> None:
        for write in self.writes:
            write.place.put(write.before)


MANY = 200
"""Of a container, how many entries are looked at."""
KINDS = ("_parameters", "_buffers", "_modules")


def _can_be_left(write: Write) -> bool:
    """Whether a planned step can do it too: plain values, and hooks, which hold no tensors yet."""
    return is_plain(write.after) or write.place.path.rpartition(".")[2] in OWN


class _Buffers:
    """Which tensors are the buffers and parameters, to notice others in their place."""

    def __init__(self, seen: dict[Any, tuple[Any, str]]) -> None:
        self.before = [
            (path, tensors, dict(tensors))
            for value, path in list(seen.values())
            if isinstance(value, nn.Module)
            for tensors in (value._buffers, value._parameters)
            if tensors
        ]

    def others_in(self, value: Any, depth: int = 4) -> bool:
        """Whether a value holds tensors that are neither."""
        if isinstance(value, CONTAINERS) and depth:
            return any(self.others_in(entry, depth - 1) for entry in entries_of(value))
        own = (tensor for _, _, before in self.before for tensor in before.values())
        return isinstance(value, torch.Tensor) and not any(value is tensor for tensor in own)

    def refuse(self) -> None:
        """Refuse a forward pass that put others there."""
        for path, tensors, before in self.before:
            for name in {**before, **tensors}:
                if tensors.get(name) is not before.get(name):
                    raise Unsupported(
                        f"the forward pass puts another tensor in place of {_joined(path, name)}; change it "
                        f"in place (self.{name}.copy_(...)). If it does so on its first call only, call "
                        "the model once before planning"
                    )


def _names(code: Any) -> set[str]:
    """The names in a function's code, inner functions included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            found |= _names(constant)
    return found


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES and module != "argparse"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

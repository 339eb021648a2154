"""What Python values a captured graph depends on, and whether they are still the same.

A guard is a place (an attribute, a global variable, a variable of a closure) and the value that was read
there during capture. Plain values are compared by type and value, containers by what is in them, all else by
identity. What the forward pass writes there is a guard's business too: see `Guards.writes`.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from types import CellType
from typing import Any

import torch

from scrimp._torch.questions import Guard

MISSING: Any = enum.Enum("Missing", ["MISSING"]).MISSING  # type: ignore[attr-defined]
"""What a place has that isn't there."""

PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(MISSING),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
PLAIN_TYPES = frozenset(PLAIN)
CONTAINERS = (list, tuple, set, frozenset, dict)
MUTABLE = frozenset((list, set, dict, OrderedDict, defaultdict))
"""Containers that can be put back as they were. Others may do more than contain."""
LARGE = 1000
"""Containers of more entries than this are compared by identity and length."""


class Same:
    """An object that is compared by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        """Keep it alive, so that no other object gets its identity."""
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Whether it is that very object."""
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        """By identity too."""
        return id(self.value)


def frozen(value: Any, depth: int = 4) -> Any:
    """A copy of a value that can be compared later, whatever becomes of the value."""
    kind = type(value)
    if kind in PLAIN_TYPES or isinstance(value, enum.Enum):
        return kind, value
    if not depth or not isinstance(value, CONTAINERS):
        return Same(value)
    if len(value) > LARGE:
        return kind, len(value), Same(value)
    entries = [frozen(entry, depth - 1) for entry in entries_of(value)]
    return kind, frozenset(entries) if isinstance(value, set | frozenset) else tuple(entries)


def entries_of(value: Any) -> list[Any]:
    """What is in a container, past what its own class makes of it."""
    if isinstance(value, dict):
        return [entry for pair in dict.items(value) for entry in pair]
    return list(next(kind for kind in CONTAINERS if isinstance(value, kind)).__iter__(value))


def is_plain(value: Any, depth: int = 4) -> bool:
    """Whether a value is plain, or a container of nothing else."""
    if type(value) in PLAIN_TYPES or isinstance(value, enum.Enum):
        return True
    if not depth or not isinstance(value, CONTAINERS) or len(value) > LARGE:
        return False
    return all(is_plain(entry, depth - 1) for entry in entries_of(value))


@dataclass(frozen=True, eq=False)
class Entry:
    """A place in a dictionary: of an object's attributes, or of a module's global variables."""

    path: str
    names: dict[str, Any]
    name: str

    def get(self) -> Any:
        """What is there now."""
        return self.names.get(self.name, MISSING)

    def put(self, value: Any) -> None:
        """Put something there, or nothing."""
        if value is MISSING:
            self.names.pop(self.name, None)
        else:
            self.names[self.name] = value


@dataclass(frozen=True, eq=False)
class Cell:
    """A variable of a closure."""

    path: str
    cell: CellType

    def get(self) -> Any:
        """What is there now."""
        try:
            return self.cell.cell_contents
        except ValueError:
            return MISSING

    def put(self, value: Any) -> None:
        """Put something there."""
        self.cell.cell_contents = value


@dataclass(frozen=True, eq=False)
class Attribute:
    """What an object answers when it is asked for an attribute that it has no entry for."""

    path: str
    owner: Any
    name: str

    def get(self) -> Any:
        """What it answers now."""
        return getattr(self.owner, self.name, MISSING)

    def put(self, value: Any) -> None:
        """Set it."""
        setattr(self.owner, self.name, value)


@dataclass(frozen=True, eq=False)
class Contents:
    """What is in a container."""

    path: str
    container: Any
    before: Any

    @staticmethod
    def of(path: str, container: Any) -> Contents:
        """Remember what is in it."""
        return Contents(path, container, container.copy())

    def get(self) -> Any:
        """What is in it now."""
        return self.container.copy()

    def put(self, value: Any) -> None:
        """Have this in it."""
        self.container.clear()
        (self.container.extend if isinstance(self.container, list) else self.container.update)(value)


Place = Entry | Cell | Attribute | Contents


@dataclass(frozen=True)
class Change:
    """A place whose value isn't what it was."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        """Say it."""
        return f"{self.path} changed from {shown(self.before)} to {shown(self.after)}"


@dataclass(frozen=True, eq=False)
class Read:
    """What the forward pass found at a place."""

    place: Place
    value: Any
    copy: Any
    """As it was then, by `frozen`."""

    @staticmethod
    def of(place: Place, value: Any) -> Read:
        """Copy it."""
        return Read(place, value, frozen(value))

    @property
    def fixed(self) -> bool:
        """Whether the same object is the same value."""
        return not isinstance(self.value, CONTAINERS) or (
            type(self.value) is tuple and all(type(entry) in PLAIN_TYPES for entry in self.value)
        )


@dataclass(frozen=True)
class Write:
    """What the forward pass leaves at a place."""

    place: Place
    before: Any
    after: Any


@dataclass(repr=False)
class Guards:
    """What a graph depends on beside the batch and the parameters' and buffers' kinds."""

    reads: list[Read] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    """What the forward pass leaves in Python objects; a planned step leaves it too."""
    contents: Guard = field(default_factory=Guard)
    """What must be answered about contents of tensors, beside."""

    def __post_init__(self) -> None:
        """Look up what is in dictionaries without a call."""
        entries = [(read.place, read) for read in self.reads if read.fixed]
        self._quick = [
            (place.names, place.name, read.value, read) for place, read in entries if isinstance(place, Entry)
        ]
        quick = {id(read) for *_, read in self._quick}
        self._slow = [read for read in self.reads if id(read) not in quick]

    def changed(self) -> Change | None:
        """The first place whose value isn't what it was; None if all are."""
        for names, name, value, read in self._quick:
            now = names.get(name, MISSING)
            if now is not value and frozen(now) != read.copy:
                return Change(read.place.path, value, now)
        for read in self._slow:
            now = read.place.get()
            if (now is not read.value or not read.fixed) and frozen(now) != read.copy:
                return Change(read.place.path, thawed(read.copy), now)
        return None

    def leave(self) -> None:
        """Leave in Python objects what the forward pass would."""
        for write in self.writes:
            write.place.put(write.after)

    def undo(self) -> None:
        """Put back what was there before."""
        for write in self.writes:
            write.place.put(write.before)


def thawed(value: Any) -> Any:
    """What a copy was made of, near enough to be shown."""
    if isinstance(value, Same):
        return value.value
    kind, *entries = value
    if kind in PLAIN_TYPES or issubclass(kind, enum.Enum):
        return entries[0]
    if len(entries) > 1:
        return entries[1].value
    inside = [thawed(entry) for entry in entries[0]]
    return dict(zip(inside[::2], inside[1::2], strict=True)) if issubclass(kind, dict) else inside


def shown(value: Any) -> str:
    """A value in few words."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if not is_plain(value):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def identity(place: Place) -> Any:
    """What tells places apart."""
    if isinstance(place, Entry):
        return id(place.names), place.name
    if isinstance(place, Attribute):
        return id(place.owner), place.name, "attribute"
    return (id(place.cell if isinstance(place, Cell) else place.container),)

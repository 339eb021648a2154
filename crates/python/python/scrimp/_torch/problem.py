"""The planning problem of a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from scrimp._torch.gpu import is_unsettled
from scrimp._torch.graph import Storage, Task, Tasks, readers
from scrimp._torch.modules import module_of
from scrimp._torch.swap import Away
from scrimp.planning import Plan
from scrimp.problem import Problem

CUDA_BLOCK = 512
"""The caching allocator hands out multiples of this."""
CPU_STATE_BYTES = 5056
"""A saved state of the CPU's generator. Those of CUDA's are a few bytes, on the CPU."""


@dataclass(frozen=True)
class Cost:
    """What one run of a task takes."""

    seconds: float
    workspace: int
    """Bytes in use only while it runs."""


@dataclass(frozen=True)
class Largest:
    """The most that tasks of one operator make, and the most that they need beside that."""

    bytes: int
    workspace: int


@dataclass(frozen=True, repr=False)
class Move:
    """A step of a plan: a task runs, or the bytes of a storage or of a saved state of the generator go
    somewhere.
    """

    kind: str
    """`run`, `free`, `store` or `bring`."""
    subject: Task | Storage
    """For a saved state, the random task whose it is."""
    value: int = 0
    offset: int = 0


@dataclass(repr=False)
class Lowered:
    """A problem made from a graph."""

    problem: Problem
    task_at: list[Task | None]
    """Per task of the problem, that of the graph; None for those that aren't in it."""
    between: int | None = None
    """The task that stands for what runs between forward and backward."""
    subject_of: dict[int, Task | Storage] = field(default_factory=dict)
    """What values that have bytes stand for."""
    incoming: list[int] = field(default_factory=list)
    """The gradients that come back between forward and backward."""
    to_come: int = 0
    """Bytes that count as always there, but are taken in the first step: the optimizer's state."""

    @property
    def given(self) -> int:
        """Bytes that are in use at the start, whatever the plan."""
        values = self.problem.values
        return self.problem.resident + sum(v["bytes"] for v in values if v["origin"].get("given") == 0)

    @property
    def states(self) -> set[int]:
        """The values that are the optimizer's state."""
        return {
            value
            for value, subject in self.subject_of.items()
            if isinstance(subject, Storage) and subject.state_of is not None
        }

    def always(self, homes: Collection[int] = ()) -> set[int]:
        """The values that are in memory throughout, before and after their update, but for ``homes``."""
        given = {i for i, value in enumerate(self.problem.values) if "given" in value["origin"]}
        found = given - set(homes)
        for task in self.problem.tasks:
            found.update(pair["output"] for pair in task["overwrites"] if pair["input"] in found)
        return found

    @property
    def whole(self) -> int:
        """Bytes of everything together."""
        return self.problem.resident + sum(value["bytes"] for value in self.problem.values)

    def swaps_incoming(self, plan: Plan) -> bool:
        """Whether a plan sends gradients away that came back, which frees nothing: their owner holds them."""
        return any(kind == "store" and value in self.incoming for kind, value in plan.steps)

    def hold_incoming(self) -> None:
        """Count gradients that come back as always there, so that plans can't send them away."""
        for value in self.incoming:
            self.problem.resident += self.problem.values[value]["bytes"]
            self.problem.values[value]["bytes"] = 0

    def moves(self, plan: Plan, away: Away | None = None) -> list[Move]:
        """Give a plan's steps as those of the graph, with where swapped values lie."""
        return [move for _, move in self._numbered(plan, away)]

    def _numbered(self, plan: Plan, away: Away | None) -> list[tuple[int, Move]]:
        found: list[tuple[int, Move]] = []
        for i, (kind, number) in enumerate(plan.steps):
            subject = self.task_at[number] if kind == "run" else self.subject_of.get(number)
            if subject is not None and kind != "forget":
                found.append((i, Move(kind, subject, number, away.offsets[i] if away else 0)))
        return found

    def largest(self) -> dict[str, Largest]:
        """The largest operators of the forward pass, by their names."""
        found: dict[str, Largest] = {}
        for task, entry in zip(self.task_at, self.problem.tasks, strict=True):
            if task is not None and not task.backward:
                name = str(task.node.target).partition(".")[2].partition(".")[0]
                before = found.get(name, Largest(0, 0))
                made = sum(storage.bytes for storage in task.makes)
                workspace = int(entry["modes"][0]["workspace"])
                found[name] = Largest(max(before.bytes, made), max(before.workspace, workspace))
        return found

    def halves(self, plan: Plan, away: Away | None = None) -> tuple[list[Move], list[Move]]:
        """Give a plan's steps before and after what runs between forward and backward."""
        assert self.between is not None
        cut = plan.steps.index(("run", self.between))
        numbered = self._numbered(plan, away)
        return [move for i, move in numbered if i < cut], [move for i, move in numbered if i > cut]


def allocated(storage: Storage) -> int:
    """Bytes that the allocator takes for a storage."""
    if storage.device.type == "cuda":
        return -(-storage.bytes // CUDA_BLOCK) * CUDA_BLOCK
    return storage.bytes


def lower(
    name: str,
    tasks: Tasks,
    cost_of: Callable[[Task], Cost],
    kept: Iterable[Node],
    resident: int,
    *,
    between: Between | None = None,
    again: Callable[[Task], bool] | None = None,
) -> Lowered:
    """Make the problem: tasks and storages as they are, ``kept`` nodes there at the end.

    ``again`` says which tasks may run again, of those that can.

    Random tasks draw from one generator, so each waits for the one before it by a value of no bytes. One
    that may run again needs the generator's state of its first run.
    """
    problem = Problem(name, resident=resident)
    lowered = Lowered(problem, [])
    value_of: dict[Storage, int] = {}
    token: int | None = None
    gate: int | None = None
    for task in tasks.tasks:
        for storage in task.writes:
            if storage.producer is None and storage not in value_of:
                value_of[storage] = _add_given(lowered, storage, title(task.node))
    waiting = readers(tasks, between.gradients) if between is not None else set()
    for task in tasks.tasks:
        if between is not None and gate is None and task in waiting:
            gate = _add_between(lowered, tasks, between, value_of, tokens(token))
        cost = cost_of(task)
        workspace = cost.workspace
        may_repeat = task.rerunnable and not is_unsettled(task.node) and (again is None or again(task))
        inputs = [value_of[storage] for storage in task.reads]
        inputs += [value_of[s.same or s] for s in task.given if (s.same or s) in value_of]
        inputs += [value_of[s] for s in task.writes]
        inputs += [gate] if task in waiting and gate is not None else []
        if task.random and may_repeat:
            token = _add_state(lowered, task, tokens(token))
            workspace += problem.values[token]["bytes"]
        inputs += tokens(token) if task.random else []
        written = task.makes or task.writes
        sizes = [_moving(storage) for storage in written]
        overwrites = {i: value_of[storage] for i, storage in enumerate(task.writes)}
        if task.overwrites is not None:
            overwrites[0] = value_of[task.overwrites]
        makes = problem.task_of_many(
            title(task.node),
            inputs,
            [*sizes, 0] if task.random else sizes,
            seconds=cost.seconds,
            workspace=workspace,
            phase="update" if task.writes else "backward" if task.backward else "forward",
            rerunnable=may_repeat,
            overwrites=overwrites,
        )
        lowered.task_at.append(task)
        value_of.update(zip(written, makes, strict=False))
        lowered.subject_of.update(
            (value, storage) for storage, value in zip(written, makes, strict=False) if _moving(storage)
        )
        token = makes[-1] if task.random else token
    if between is not None and gate is None:
        _add_between(lowered, tasks, between, value_of, tokens(token))
    kept_storages = {storage for node in kept for storage in tasks.storages_of[node]}
    kept_storages.update(storage for storage in value_of if storage.producer is None)
    problem.keep(*(value_of[storage] for storage in kept_storages if storage in value_of))
    return lowered


def _moving(storage: Storage) -> int:
    """Bytes that a plan can move. Those of a parameter are always there: others read it between steps."""
    return 0 if storage.producer is None and storage.state_of is None else allocated(storage)


def _add_given(lowered: Lowered, storage: Storage, of: str) -> int:
    """Add what an update changes: the optimizer's state, or which of its values a parameter has."""
    problem, size = lowered.problem, _moving(storage)
    # It was counted among what is always there.
    problem.resident -= size
    value = problem.given(f"{of}, {'state' if size else 'version'}", size)
    if size:
        lowered.subject_of[value] = storage
    return value


def _add_state(lowered: Lowered, task: Task, before: Sequence[int]) -> int:
    """Add the task that saves the generator's state, which every run of a random task needs.

    While it is replayed, the state of that moment is put aside too.
    """
    size = CPU_STATE_BYTES if task.makes[0].device.type == "cpu" else 0
    name = f"state for {title(task.node)}"
    (state,) = lowered.problem.task_of_many(name, before, [size], seconds=0.0, rerunnable=False)
    lowered.task_at.append(None)
    if size:
        lowered.subject_of[state] = task
    return state


def title(node: Node) -> str:
    """A node's name, after the module that it is from."""
    where = module_of(node)
    return f"{where}: {node.name}" if where else node.name


def tokens(token: int | None) -> list[int]:
    """Nothing, before there is a token."""
    return [] if token is None else [token]


@dataclass(frozen=True, repr=False)
class Between:
    """What runs between forward and backward, such as a loss: outside the plan, at one moment."""

    reads: Sequence[Node]
    """What must be there: the model's outputs, and all else that forward must have done."""
    gradients: Sequence[Node]
    """What comes back; it stays until the end, since its owner holds it."""


def _add_between(
    lowered: Lowered,
    tasks: Tasks,
    between: Between,
    value_of: dict[Storage, int],
    done: Sequence[int],
) -> int:
    """Add the task that may run once and that backward waits for; give the value to wait for."""
    reads = {value_of[s] for node in between.reads for s in tasks.storages_of[node] if s in value_of}
    reads |= set(done)
    incoming = [allocated(s) for node in between.gradients for s in tasks.storages_of[node]]
    gate, *held = lowered.problem.task_of_many(
        "between forward and backward", sorted(reads), [0, *incoming], seconds=0.0, rerunnable=False
    )
    lowered.problem.keep(*held)
    lowered.incoming = held
    lowered.between = len(lowered.task_at)
    lowered.task_at.append(None)
    return gate

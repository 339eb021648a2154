"""A graph that runs tasks in the order of a plan, with repeats.

Nodes are copied in that order. A view is made where it is needed, from the latest instance of its
base; the items of an operator's several outputs are taken at once, so that each is freed by itself.
The generated code drops each name after its last use: that is when memory is given back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from scrimp._torch import runtime
from scrimp._torch.graph import Storage, Task, Tasks
from scrimp._torch.inplace import IN_PLACE
from scrimp._torch.problem import CPU_STATE_BYTES, Move

Subject = Task | Storage


class Rewriter:
    """Copies nodes of a captured graph into a new one, or into several, one after another."""

    def __init__(self, tasks: Tasks, moves: Sequence[Move]) -> None:
        """Prepare to follow the steps of a plan."""
        self.tasks = tasks
        self.times = Counter(move.subject for move in moves if move.kind == "run")
        self.graph = Graph()
        self.now: dict[Node, Node] = {}
        self.states: dict[Task, Node] = {}
        self.keeps_meta = False
        """Whether copies of nodes keep what compilers want to know about them."""
        self.trip: Node | None = None
        """What copies swapped values."""
        self.leaving: dict[Subject, int] = {}
        self.coming: dict[Subject, int] = {}
        """Values whose copies may still be going on, with their numbers in the plan."""
        self.views: dict[Storage, list[Node]] = {}
        self.items: dict[Node, list[Node]] = {}
        self.item_nodes: set[Node] = set()
        for node, needs in tasks.needs.items():
            if node in tasks.task_of or node in tasks.copies or node.op in ("placeholder", "get_attr"):
                continue
            (above, *_) = node.all_input_nodes
            if above in tasks.task_of and len(tasks.task_of[above].makes) > 0 and _takes_item(node):
                self.items.setdefault(above, []).append(node)
                self.item_nodes.add(node)
            for storage in needs:
                self.views.setdefault(storage, []).append(node)

    def given(self, nodes: Iterable[Node]) -> None:
        """Declare inputs of the graph, in order."""
        for node in nodes:
            self.now[node] = self.graph.node_copy(node)

    def follow(self, moves: Sequence[Move]) -> None:
        """Append the steps of a plan."""
        copied = (move for move in moves if move.kind in ("store", "bring"))
        if self.leaving or self.coming or any(_state_of(move.subject) is None for move in copied):
            self.trip = self._begin_trip()
        for move in moves:
            if isinstance(move.subject, Task) and move.kind == "run":
                self.run(move.subject)
            elif isinstance(move.subject, Task) and self.times[move.subject] <= 1:
                continue  # No state is saved for what never runs again.
            elif (place := _state_of(move.subject)) is not None:
                self._move_state(move, place)
            elif move.kind == "store":
                self._arrive(move.subject)
                self._swap(runtime.store, move.value, move.offset, self._held(move.subject))
                self.leaving[move.subject] = move.value
            elif move.kind == "bring":
                self._bring(move)
            else:
                self._free(move.subject)

    def _begin_trip(self) -> Node:
        """What copies swapped values: a last input of the graph."""
        return self.graph.placeholder("trip")

    def _move_state(self, move: Move, place: int) -> None:
        """Move the optimizer's state of a parameter, which the optimizer holds."""
        function = {
            "store": runtime.store_state,
            "bring": runtime.bring_state,
            "free": runtime.free_state,
        }[move.kind]
        self.graph.call_function(function, (self._updater(), place))
        if move.kind == "bring":
            self.coming[move.subject] = move.value

    def _updater(self) -> Node:
        (updater,) = (node for node in self.graph.find_nodes(op="placeholder") if node.name == "updater")
        return updater

    def _swap(self, function: Any, *args: Any) -> Node:
        return self.graph.call_function(function, (self.trip, *args))

    def _held(self, subject: Subject) -> Node:
        """A node whose tensor is in a subject's bytes."""
        if isinstance(subject, Task):
            return self._state(subject)
        return self.need(self._seers(subject)[0])

    def _seers(self, storage: Storage) -> list[Node]:
        """The nodes that give a storage to others: its operator, or items of that."""
        assert storage.producer is not None
        node = storage.producer.node
        return [n for n in [*self.items.get(node, ()), node] if self.tasks.storages_of[n] == [storage]]

    def _bring(self, move: Move) -> None:
        """Take new bytes for a value, and begin to fill them."""
        subject = move.subject
        self.coming[subject] = move.value
        if isinstance(subject, Task):
            size, device = CPU_STATE_BYTES, torch.device("cpu")
            state = self._swap(runtime.bring, move.value, move.offset, size, device)
            self._put_state(subject, state)
            return
        memory = self._swap(runtime.bring, move.value, move.offset, subject.bytes, subject.device)
        for view in self.views.get(subject, ()):
            self.now.pop(view, None)
        for node in self._seers(subject):
            value = node.meta["val"]
            seen = value.dtype, tuple(value.shape), tuple(value.stride()), value.storage_offset()
            self.now[node] = new = self.graph.call_function(runtime.seen_as, (memory, *seen))
            new.meta = {"val": value} if self.keeps_meta else {}

    def _free(self, subject: Subject) -> None:
        """Wait for copies that use a value's bytes; its names are dropped after that."""
        for copies in (self.leaving, self.coming):
            if subject in copies:
                self._swap(runtime.arrive, copies.pop(subject), self._held(subject))

    def arrive(self) -> None:
        """Wait until all that is on its way is there."""
        for subject in list(self.coming):
            self._arrive(subject)

    def _arrive(self, subject: Subject) -> None:
        """Wait until a value is there."""
        if subject in self.coming:
            value, place = self.coming.pop(subject), _state_of(subject)
            if place is None:
                self._swap(runtime.arrive, value)
            else:
                self.graph.call_function(runtime.arrive_state, (self._updater(), place))

    def run(self, task: Task) -> None:
        """Append one run of a task."""
        node = task.node
        for storage in [*task.reads, *task.writes] if self.coming else ():
            self._arrive(storage)
        for storage in [*task.writes, *([task.overwrites] if task.overwrites is not None else [])]:
            self._free(storage)
        for above in node.all_input_nodes:
            self.need(above)
        new = self._random_run(task) if task.random and self.times[task] > 1 else self._copy(node)
        if task.overwrites is not None:
            new.target = IN_PLACE[node.target]
        # Views of an earlier instance are not views of this one.
        for storage in task.makes:
            for view in self.views.get(storage, ()):
                self.now.pop(view, None)
        self.now[node] = new
        for item in self.items.get(node, ()):
            self.now[item] = self._copy(item)

    def need(self, node: Node) -> Node:
        """Make sure that a node has its value, by making views if it is one."""
        found = self.now.get(node)
        if found is not None:
            return found
        # A stack of our own: chains of views may be long.
        pending = [node]
        while pending:
            top = pending[-1]
            missing = [] if self._is_root(top) else [n for n in top.all_input_nodes if n not in self.now]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if top not in self.now:
                self.now[top] = self._root(top) if self._is_root(top) else self._copy(top)
        return self.now[node]

    def _is_root(self, node: Node) -> bool:
        """Whether it is no view, or can't be made from what it looks at."""
        return node.op != "call_function" or node in self.tasks.task_of or node in self.item_nodes

    def _root(self, node: Node) -> Node:
        """Get what no view leads to, and isn't there."""
        if node.op == "get_attr":
            return self._copy(node)
        raise AssertionError(f"the plan reads {node.name}, which isn't there")

    def output(self, values: Any) -> None:
        """End the graph: ``values`` are nodes of the captured graph, nested in tuples and lists."""
        self.finish(torch.fx.map_arg(values, self.need))

    def change_inputs(self, changed: Iterable[Node]) -> None:
        """Append the copies of new values into inputs, if there are any.

        Later runs read what was in the ``changed`` inputs before.
        """
        targets = {node: self.now[node] for node in changed}
        for node in self.tasks.copies:
            for above in node.all_input_nodes:
                self.need(above)
        values = dict(self.now)
        for target, now in targets.items():
            before = self.graph.call_function(torch.ops.aten.clone.default, (now,))
            before.meta["val"] = target.meta["val"]
            for view in _views_of(target, self.tasks):
                self.now.pop(view, None)
            self.now[target] = before
        for node in self.tasks.copies:
            self.graph.node_copy(node, values.__getitem__)

    def finish(self, values: Any) -> None:
        """End the graph: ``values`` are its own nodes."""
        self.arrive()
        self.graph.output(values)
        self._prune()

    def _copy(self, node: Node) -> Node:
        new = self.graph.node_copy(node, self.now.__getitem__)
        if not self.keeps_meta:
            new.meta = {}
        return new

    def _random_run(self, task: Task) -> Node:
        node = task.node
        device = random_device(task)
        if task not in self.states:
            self._put_state(task, self.graph.call_function(runtime.save_rng, (device,)))
            return self._copy(node)
        self._arrive(task)
        args = torch.fx.map_arg(node.args, self.now.__getitem__)
        kwargs = torch.fx.map_arg(node.kwargs, self.now.__getitem__)
        operator: Any = node.target
        return self.graph.call_function(runtime.replay, (device, self._state(task), operator, *args), kwargs)

    def _state(self, task: Task) -> Node:
        """The generator's state when the task ran first."""
        return self.states[task]

    def _put_state(self, task: Task, state: Node) -> None:
        self.states[task] = state

    def _prune(self) -> None:
        """Drop items and views that nothing uses."""
        for node in reversed(self.graph.nodes):
            if node.op == "call_function" and not node.users and _takes_item(node):
                self.graph.erase_node(node)


class Continuation(Rewriter):
    """The rest of a plan in a graph of its own: what it needs of the first part comes in a list.

    Each entry is taken out of the list at its first use, so that it is freed after its last one.
    """

    def __init__(self, first: Rewriter, moves: Sequence[Move], gradients: Sequence[Node]) -> None:
        """Go on after ``first``; the graph's other inputs are the ``gradients`` that come back."""
        super().__init__(first.tasks, moves)
        self.times = first.times
        self.first = first
        self.saved: list[Node] = []
        """Nodes of the first graph, in the order of the list."""
        self.states = dict(first.states)
        self.leaving = dict(first.leaving)
        self.taken: dict[Node, Node] = {}
        self.box = self.graph.placeholder("box")
        self.given(gradients)

    def _root(self, node: Node) -> Node:
        if node.op == "get_attr":
            return self._copy(node)
        return self._take(self.first.need(node))

    def _state(self, task: Task) -> Node:
        state = self.states[task]
        if state not in self.taken:
            self.taken[state] = self._take(state)
        return self.taken[state]

    def _put_state(self, task: Task, state: Node) -> None:
        self.states[task] = self.taken[state] = state

    def _take(self, node: Node) -> Node:
        """``node`` is of the first graph."""
        self.saved.append(node)
        return self.graph.call_function(runtime.take, (self.box, len(self.saved) - 1))


def _state_of(subject: Subject) -> int | None:
    """The parameter whose optimizer's state it is."""
    return subject.state_of if isinstance(subject, Storage) else None


def _views_of(node: Node, tasks: Tasks) -> list[Node]:
    """The views of an input, and views of those."""
    found: list[Node] = []
    pending = [node]
    while pending:
        views = [n for n in pending.pop().users if n not in tasks.task_of and n in tasks.needs]
        found += views
        pending += views
    return found


def random_device(task: Task) -> torch.device:
    """The device whose generator a random task uses."""
    return task.makes[0].device


def _takes_item(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def boxed(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph with one input: a list, from which each value is taken at its first use.

    So the caller doesn't hold what the graph could free.
    """
    graph = Graph()
    box = graph.placeholder("box")
    places = {node: i for i, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    now: dict[Node, Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            continue
        for above in node.all_input_nodes:
            if above in places and above not in now:
                now[above] = graph.call_function(runtime.take, (box, places[above]))
        now[node] = graph.node_copy(node, now.__getitem__)
    return torch.fx.GraphModule(module, graph, "Boxed")

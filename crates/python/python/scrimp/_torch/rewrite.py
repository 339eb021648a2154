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


class Rewriter:
    """Copies nodes of a captured graph into a new one, or into several, one after another."""

    def __init__(self, tasks: Tasks, runs: Sequence[Task]) -> None:
        """Prepare to run tasks in the order of ``runs``."""
        self.tasks = tasks
        self.times = Counter(runs)
        self.graph = Graph()
        self.now: dict[Node, Node] = {}
        self.states: dict[Task, Node] = {}
        self.views: dict[Storage, list[Node]] = {}
        self.items: dict[Node, list[Node]] = {}
        for node, needs in tasks.needs.items():
            if node in tasks.task_of or node.op in ("placeholder", "get_attr"):
                continue
            (above, *_) = node.all_input_nodes
            if above in tasks.task_of and len(tasks.task_of[above].makes) > 0 and _takes_item(node):
                self.items.setdefault(above, []).append(node)
            for storage in needs:
                self.views.setdefault(storage, []).append(node)

    def given(self, nodes: Iterable[Node]) -> None:
        """Declare inputs of the graph, in order."""
        for node in nodes:
            self.now[node] = self.graph.node_copy(node)

    def run(self, task: Task) -> None:
        """Append one run of a task."""
        node = task.node
        for above in node.all_input_nodes:
            self.need(above)
        new = self._random_run(task) if task.random and self.times[task] > 1 else self._copy(node)
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
        if node.op == "get_attr":
            self.now[node] = self._copy(node)
            return self.now[node]
        if node in self.tasks.task_of or node.op == "placeholder":
            raise AssertionError(f"the plan reads {node.name}, which isn't there")
        # Deep chains of views must not exhaust the stack.
        pending = [node]
        while pending:
            top = pending[-1]
            missing = [n for n in top.all_input_nodes if n not in self.now]
            for above in missing:
                if above in self.tasks.task_of:
                    raise AssertionError(f"the plan reads {above.name}, which isn't there")
            if missing:
                pending.extend(missing)
            else:
                self.now.setdefault(top, self._copy(top))
                pending.pop()
        return self.now[node]

    def output(self, values: Any) -> None:
        """End the graph: ``values`` are nodes of the captured graph, nested in tuples and lists."""
        made = torch.fx.map_arg(values, self.need)
        self.graph.output(made)
        self._prune()

    def _copy(self, node: Node) -> Node:
        new = self.graph.node_copy(node, self.now.__getitem__)
        new.meta = {}
        return new

    def _random_run(self, task: Task) -> Node:
        node = task.node
        device = random_device(task)
        state = self.states.get(task)
        if state is None:
            self.states[task] = self.graph.call_function(runtime.save_rng, (device,))
            return self._copy(node)
        args = torch.fx.map_arg(node.args, self.now.__getitem__)
        kwargs = torch.fx.map_arg(node.kwargs, self.now.__getitem__)
        operator: Any = node.target
        return self.graph.call_function(runtime.replay, (device, state, operator, *args), kwargs)

    def _prune(self) -> None:
        """Drop items and views that nothing uses."""
        for node in reversed(self.graph.nodes):
            if node.op == "call_function" and not node.users and _takes_item(node):
                self.graph.erase_node(node)


def random_device(task: Task) -> torch.device:
    """The device whose generator a random task uses."""
    return task.makes[0].device


def _takes_item(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"

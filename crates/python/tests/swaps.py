"""Plans that swap, written by hand: what a planner would do, without its search."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

from scrimp.errors import BadProblem
from scrimp.planning import Plan, check, plan
from scrimp.problem import Problem


def elsewhere(problem: Problem) -> Plan:
    """Keep everything, but let all given values that have bytes live in the memory.

    Each is brought some steps before its update, and stored some steps after it.
    """
    before = {pair["input"]: pair["output"] for task in problem.tasks for pair in task["overwrites"]}
    states = [v for v in before if "given" in problem.values[v]["origin"] and problem.values[v]["bytes"]]
    written = _alone(problem, "100%")
    steps: list[dict[str, Any]] = written["steps"]
    for state in states:
        (user,) = (i for i, task in enumerate(problem.tasks) if state in task["inputs"])
        at = steps.index({"run": {"task": user, "device": 0}})
        later, early = min(at + 5, len(steps)), max(at - 5, 0)
        steps[later:later] = [
            {"copy": {"value": before[state], "from": 0, "to": 1}},
            {"free": {"value": before[state], "device": 0}},
        ]
        steps[early:early] = [
            {"copy": {"value": state, "from": 1, "to": 0}},
            {"free": {"value": state, "device": 1}},
        ]
    moved = copy.deepcopy(problem)
    moved.live_in(1, *states)
    try:
        return check(moved, json.dumps(written))
    except BadProblem as other:
        # A plan names the problem that it is for.
        (written["problem"],) = set(re.findall("[0-9a-f]{32}", str(other))) - {written["problem"]}
    return check(moved, json.dumps(written))


def swapping(
    problem: Problem, *, share: float = 1.0, seed: int = 0, again: bool = False, state: bool = False
) -> Plan:
    """Keep everything, but let a share of the values wait elsewhere during their longest gap.

    Copies begin and bytes are given back at random steps of the gap. With ``again`` the plan is one that
    computes much again, at the least budget; with ``state`` see `elsewhere`.
    """
    if state:
        return elsewhere(problem)
    draw = random.Random(seed)
    written = _alone(problem, "min" if again else "100%")
    steps: list[dict[str, Any]] = written["steps"]
    before: list[list[dict[str, Any]]] = [[] for _ in range(len(steps) + 1)]
    for value, (start, end) in sorted(_gaps(problem, steps).items()):
        if end - start < 4 or not problem.values[value]["bytes"] or draw.random() > share:
            continue
        out, free, back = sorted(draw.sample(range(start + 1, end), 3))
        before[out].append({"copy": {"value": value, "from": 0, "to": 1}})
        before[free].append({"free": {"value": value, "device": 0}})
        before[back] += [
            {"copy": {"value": value, "from": 1, "to": 0}},
            {"free": {"value": value, "device": 1}},
        ]
    written["steps"] = [
        step for earlier, own in zip(before, [*steps, None], strict=True) for step in [*earlier, own] if step
    ]
    return check(problem, json.dumps(written))


def _alone(problem: Problem, budget: str) -> dict[str, Any]:
    """A plan that swaps nothing."""
    bare = copy.deepcopy(problem)
    bare.memories.clear()
    bare.links.clear()
    written: dict[str, Any] = json.loads(plan(problem, budget="100%", time_limit=0.0).to_json())
    written["steps"] = json.loads(plan(bare, budget=budget, time_limit=0.5).to_json())["steps"]
    return written


def _gaps(problem: Problem, steps: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """Per value, the two uses in one stay in memory that are furthest apart."""
    latest: dict[int, int] = {}
    gaps: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(steps):
        if "free" in step:
            latest.pop(step["free"]["value"], None)
            continue
        task = problem.tasks[step["run"]["task"]]
        for value in task["inputs"]:
            if value in latest:
                low, high = gaps.get(value, (0, 0))
                if i - latest[value] > high - low:
                    gaps[value] = latest[value], i
            latest[value] = i
        for pair in task["overwrites"]:
            latest.pop(pair["input"], None)
        latest.update(dict.fromkeys(task["outputs"], i))
    return gaps

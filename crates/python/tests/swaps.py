"""Plans that swap, written by hand: what a planner would do, without its search."""

from __future__ import annotations

import json
import random
from typing import Any

from scrimp.planning import Plan, check, plan
from scrimp.problem import Problem


def swapping(
    problem: Problem, *, share: float = 1.0, seed: int = 0, again: bool = False, **options: Any
) -> Plan:
    """Keep everything, but let a share of the values wait elsewhere during their longest gap.

    Copies begin and bytes are given back at random steps of the gap. With ``again`` the plan is one that
    computes much again, at the least budget.
    """
    draw = random.Random(seed)
    base = plan(problem, budget="min" if again else "100%", time_limit=0.5)
    written = json.loads(base.to_json())
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

"""Plans that were made before, by this process or another, found by their problem; each is checked anew."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
from collections.abc import Iterable
from typing import Any

from scrimp import _native
from scrimp._torch import store
from scrimp.errors import InvalidPlan, ScrimpError
from scrimp.planning import Plan, check, plan
from scrimp.problem import Problem

KIND = "plan"
DONE = 0.9
"""A search that took less than this part of its limit came to its end by itself."""


def planned(
    problem: Problem, budget: int | str, *, time_limit: float, seed: int, threads: int, progress: Any = None
) -> Plan:
    """Find the plan of a problem, or make it and keep it for the next time.

    One whose search was cut serves only those who don't allow more time.
    """
    text = problem.to_json()
    asked = "\n".join(map(str, (_planner(), budget, seed, threads, text)))
    key = hashlib.sha256(asked.encode()).hexdigest()
    found = _found(key, problem, time_limit)
    if found is not None:
        return found
    made = plan(text, budget=budget, time_limit=time_limit, seed=seed, threads=threads, progress=progress)
    ended = made.optimal or (not made.interrupted and made.seconds < DONE * time_limit)
    entry = {
        "plan": made.to_json(),
        "budget": made.budget,
        "said": [made.method, made.lower_bound, made.optimal, made.seconds],
        # Who ends a search early gets its plan again only by allowing as little.
        "limit": None if ended else made.seconds if made.interrupted else time_limit,
    }
    store.save(KIND, key, entry)
    return made


def reused(problem: Problem, budget: int | str, others: Iterable[tuple[Problem, Plan]]) -> Plan | None:
    """Find the cheapest plan among the orders of other batches' plans, if these have the same tasks.

    Each is checked with this problem's bytes. Where everything fits once, no other order is needed.
    """
    tasks = _tasks(problem)
    same = [(other, plan) for other, plan in others if _tasks(other) == tasks]
    if not same:
        return None
    nearest = sorted(same, key=lambda pair: abs(_bytes(pair[0]) - _bytes(problem)))[:NEAREST]
    text = problem.to_json()
    orders = dict.fromkeys([tuple(range(len(tasks))), *(tuple(plan.runs) for _, plan in nearest)])
    fitting: list[Plan] = []
    for order in orders:
        with contextlib.suppress(InvalidPlan):
            fitting.append(check(text, order, budget=budget))
    if not fitting:
        return None
    best = min(fitting, key=lambda plan: plan.cost)
    # Every task runs at least once.
    optimal = best.cost <= best.base_cost
    said = ("keep-all" if optimal else "search", best.base_cost, optimal, 0.0)
    return Plan(_native.check(text, best.to_json(), str(best.budget), said))


NEAREST = 4
"""Plans of other batches that are tried."""


def _tasks(problem: Problem) -> list[Any]:
    return [(task["name"], task["inputs"], task["outputs"]) for task in problem.tasks]


def _bytes(problem: Problem) -> int:
    return sum(value["bytes"] for value in problem.values)


def moved(problem: Problem, homes: Iterable[int]) -> Problem:
    """The problem with values that live in its memory."""
    other = copy.deepcopy(problem)
    other.live_in(1, *homes)
    return other


@functools.cache
def _planner() -> str:
    about = os.stat(str(_native.__file__))
    return f"{_native.__version__} {about.st_size} {about.st_mtime_ns}"


def _found(key: str, problem: Problem, time_limit: float) -> Plan | None:
    entry = store.load(KIND, key)
    if entry is None:
        return None
    try:
        if entry["limit"] is not None and time_limit > entry["limit"]:
            return None
        return _restored(problem, entry)
    except (ScrimpError, KeyError, TypeError, ValueError) as error:
        store.damaged(KIND, key, error)
        return None


def _restored(problem: Problem, entry: dict[str, Any]) -> Plan:
    method, bound, optimal, seconds = entry["said"]
    said = (str(method), float(bound), bool(optimal), float(seconds))
    return Plan(_native.check(problem.to_json(), str(entry["plan"]), str(int(entry["budget"])), said))

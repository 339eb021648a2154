"""Plans that were made before, by this process or another, found by their problem; each is checked anew."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

from scrimp import _native
from scrimp._torch import store
from scrimp.errors import ScrimpError
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
    found = _found(key, text, time_limit)
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


@functools.cache
def _planner() -> str:
    about = os.stat(str(_native.__file__))
    return f"{_native.__version__} {about.st_size} {about.st_mtime_ns}"


def _found(key: str, problem: str, time_limit: float) -> Plan | None:
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


def _restored(problem: str, entry: dict[str, Any]) -> Plan:
    found = check(problem, entry["plan"], budget=entry["budget"])
    found.method, found.lower_bound, found.optimal, found.seconds = entry["said"]
    return found

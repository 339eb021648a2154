"""A plan in words."""

from __future__ import annotations

from collections import Counter

from scrimp._native import format_bytes
from scrimp._torch.gpu import unsettled
from scrimp._torch.graph import Tasks
from scrimp._torch.modules import module_of
from scrimp._torch.problem import Lowered
from scrimp.planning import Plan

SHOWN = 10
MODULES = 3


def explanation(plan: Plan, lowered: Lowered, tasks: Tasks) -> str:
    """Say what a plan costs, what runs again, and what is in memory at the worst moment."""
    names = [task["name"] for task in lowered.problem.tasks]
    lines = [
        f"peak {format_bytes(plan.peak)} of {format_bytes(plan.budget)}; without a plan "
        f"{format_bytes(plan.base_peak)}, of which {format_bytes(plan.fixed)} are always there",
        f"predicted {plan.cost * 1e3:.1f} ms per step instead of {plan.base_cost * 1e3:.1f} ms "
        f"({plan.overhead:+.1%}); no plan within the budget is below "
        f"{plan.lower_bound / plan.base_cost - 1 if plan.base_cost else 0:+.1%}",
    ]
    lines += _again(plan, lowered, tasks)
    lines += _away(plan, lowered)
    lines += [line for line in [unsettled(tasks.tasks)] if line]
    worst = max(range(len(plan.profile)), key=plan.profile.__getitem__)
    at = next(i for i in range(worst, -1, -1) if plan.step_kinds[i] == 0)
    lines.append(f"the peak is at {names[plan.step_ids[at]]}, in memory then:")
    live = _live(plan, lowered, at)
    lines += [f"  {format_bytes(size):>12}  {name}" for size, name in live[:SHOWN]]
    if len(live) > SHOWN:
        rest = sum(size for size, _ in live[SHOWN:])
        lines.append(f"  {format_bytes(rest):>12}  {len(live) - SHOWN} more")
    return "\n".join(lines)


def _again(plan: Plan, lowered: Lowered, tasks: Tasks) -> list[str]:
    times = Counter(plan.runs)
    operators: dict[str, tuple[int, float]] = {}
    places: dict[str, Counter[str]] = {}
    for index, count in times.items():
        if count > 1:
            problem_task = lowered.problem.tasks[index]
            task = lowered.task_at[index]
            operator = str(task.node.target) if task is not None else problem_task["name"]
            runs, seconds = operators.get(operator, (0, 0.0))
            each = problem_task["modes"][0]["seconds"]
            operators[operator] = (runs + count - 1, seconds + (count - 1) * each)
            where = module_of(task.node) if task is not None else ""
            places.setdefault(operator, Counter())[where] += count - 1
    if not operators:
        return ["nothing runs again"]
    lines = [f"{plan.recomputed} runs beyond each operator's first:"]
    ranked = sorted(operators.items(), key=lambda item: -item[1][1])
    for operator, (runs, seconds) in ranked[:SHOWN]:
        lines.append(f"  {runs:>5} × {operator}, {seconds * 1e3:.2f} ms{_places(places[operator])}")
    if len(ranked) > SHOWN:
        lines.append(f"  and {len(ranked) - SHOWN} more operators")
    return lines


def _away(plan: Plan, lowered: Lowered) -> list[str]:
    """What waits elsewhere, and what it would take to make it again instead."""
    problem = lowered.problem
    trips = Counter(number for kind, number in plan.steps if kind == "bring")
    out = Counter(number for kind, number in plan.steps if kind == "store")
    if not trips and not out:
        return []

    def moved(times: Counter[int]) -> str:
        return format_bytes(sum(problem.values[v]["bytes"] * n for v, n in times.items()))

    back = problem.links[1]
    lines = [
        f"{len(trips | out)} values wait in memory '{problem.memories[0]['name']}' for a while; "
        f"{moved(out)} go there in a step, and {moved(trips)} come back:"
    ]
    ranked = sorted(trips | out, key=lambda value: -problem.values[value]["bytes"])
    for value in ranked[:SHOWN]:
        entry = problem.values[value]
        maker = entry["origin"].get("task")
        if maker is None or not problem.tasks[maker]["rerunnable"]:
            instead = "which can't be made again"
        else:
            seconds = problem.tasks[maker]["modes"][0]["seconds"]
            instead = f"{seconds * 1e3:.2f} ms to make it again from its inputs"
        copied = 1e3 * (entry["bytes"] / back["bandwidth"] + back["latency"])
        lines.append(
            f"  {format_bytes(entry['bytes']):>12}  {entry['name']}, {copied:.2f} ms to bring, {instead}"
        )
    if len(ranked) > SHOWN:
        lines.append(f"  and {len(ranked) - SHOWN} more")
    return lines


def _places(runs: Counter[str]) -> str:
    """The modules where most runs are."""
    named = [path for path, _ in runs.most_common() if path]
    if not named:
        return ""
    more = f" and {len(named) - MODULES} more" if len(named) > MODULES else ""
    return f", in {', '.join(named[:MODULES])}{more}"


def _live(plan: Plan, lowered: Lowered, at: int) -> list[tuple[int, str]]:
    """What is in memory during a run, largest first."""
    problem = lowered.problem
    live: set[int] = set()
    always = lowered.always(plan.homes)
    for kind, number in plan.steps[: at + 1]:
        if kind == "run":
            live.difference_update(pair["input"] for pair in problem.tasks[number]["overwrites"])
            live.update(problem.tasks[number]["outputs"])
        elif kind == "bring":
            live.add(number)
        elif kind == "free":
            live.discard(number)
    held = [(problem.values[v]["bytes"], problem.values[v]["name"]) for v in live - always]
    workspace = problem.tasks[plan.step_ids[at]]["modes"][0]["workspace"]
    held.append((workspace, "workspace"))
    held.append((plan.fixed, "always there: parameters, buffers, the batch"))
    return sorted(held, reverse=True)

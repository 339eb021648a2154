"""Planning, checking and placing through the package; no PyTorch."""

from __future__ import annotations

import _thread
import ast
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scrimp

SOURCE = Path(__file__).parents[1]


def training_chain(layers: int, resident: int = 0) -> scrimp.Problem:
    """Build a forward chain, then a backward chain that reads every forward value."""
    problem = scrimp.Problem("chain", resident=resident)
    forward = [problem.given("x", 100)]
    for i in range(layers):
        forward.append(problem.task(f"f{i}", [forward[-1]], 100, seconds=1.0))
    gradient = problem.task("loss", [forward[-1]], 100, seconds=1.0, phase="backward")
    for i in reversed(range(layers)):
        reads = [gradient, forward[i]]
        gradient = problem.task(f"b{i}", reads, 100, seconds=1.0, phase="backward")
    problem.keep(gradient)
    return problem


def random_graph(seed: int, tasks: int) -> scrimp.Problem:
    """Build a graph whose tasks read up to three random earlier values."""
    draw = random.Random(seed)
    problem = scrimp.Problem(f"random{seed}", resident=draw.randrange(1000))
    values = [problem.given("x", draw.randrange(1, 100))]
    for i in range(tasks):
        reads = draw.sample(values, min(len(values), draw.randint(1, 3)))
        made = problem.task_of_many(
            f"t{i}",
            reads,
            [draw.randrange(1, 1000) for _ in range(draw.randint(1, 2))],
            seconds=draw.uniform(0.5, 2.0),
            workspace=draw.randrange(200),
        )
        values.extend(made)
    problem.keep(values[-1])
    return problem


def simulate(problem: scrimp.Problem, plan: scrimp.Plan) -> tuple[int, float]:
    """Run a plan by the rules, in a dozen lines that share nothing with the checker."""
    live = {i for i, value in enumerate(problem.values) if "given" in value["origin"]}
    size = [value["bytes"] for value in problem.values]
    peak, cost = 0, 0.0
    for kind, number in plan.steps:
        if kind == "free":
            live.remove(number)
            continue
        task = problem.tasks[number]
        assert live.issuperset(task["inputs"])
        assert live.isdisjoint(task["outputs"])
        live.update(task["outputs"])
        mode = task["modes"][0]
        peak = max(peak, problem.resident + sum(size[v] for v in live) + mode["workspace"])
        cost += mode["seconds"]
    assert all(v in live for v, value in enumerate(problem.values) if value["keep"] != "no")
    return peak, cost


def test_a_memory_to_swap_to() -> None:
    """A plan with copies is checked against both capacities, and its cost is when all is done."""
    problem = training_chain(3)
    memory = problem.memory("disk", 100, out=100.0, back=50.0, latency=1.0)
    kept = scrimp.plan(problem, budget="100%")
    written = json.loads(kept.to_json())
    first = problem.tasks[0]["outputs"][0]
    runs = [i for i, step in enumerate(written["steps"]) if "run" in step]

    def copied(value: int) -> dict[str, Any]:
        steps = list(written["steps"])
        steps[runs[5] : runs[5]] = [{"copy": {"value": value, "from": memory, "to": 0}}]
        steps[runs[2] : runs[2]] = [
            {"copy": {"value": value, "from": 0, "to": memory}},
            {"free": {"value": value, "device": 0}},
        ]
        return {**written, "steps": steps}

    plan = scrimp.check(problem, copied(first))
    assert [kind for kind, value in plan.steps if value == first and kind not in ("run", "free")] == [
        "store",
        "bring",
    ]
    assert plan.cost > plan.base_cost == 7.0
    problem.memories[0]["capacity"] = 99
    with pytest.raises(scrimp.InvalidPlan, match="capacity is 99"):
        scrimp.check(problem, copied(first))


def test_a_plan_keeps_its_budget_and_says_what_it_costs() -> None:
    """Simulated by other rules, peak and cost are the plan's."""
    problem = training_chain(20, resident=50)
    plan = scrimp.plan(problem, budget="50%", time_limit=1.0)
    assert simulate(problem, plan) == (plan.peak, plan.cost)
    assert plan.peak <= plan.budget < plan.base_peak
    assert plan.lower_bound <= plan.cost
    assert plan.base_cost == len(problem.tasks)
    assert plan.recomputed == len(plan.runs) - len(problem.tasks) > 0
    assert plan.overhead == plan.cost / plan.base_cost - 1
    assert max(plan.profile) == plan.peak
    assert not plan.interrupted


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_under_random_budgets(seed: int) -> None:
    """Every plan obeys the rules, whatever the graph."""
    problem = random_graph(seed, 40)
    percent = random.Random(seed).randrange(30, 100)
    try:
        plan = scrimp.plan(problem, budget=f"{percent}%", time_limit=0.2)
    except scrimp.Infeasible as error:
        assert error.floor <= error.least_found
        assert error.least_found > error.budget
        return
    peak, cost = simulate(problem, plan)
    assert peak == plan.peak <= plan.budget
    assert cost == pytest.approx(plan.cost)


def test_the_same_problem_in_every_form() -> None:
    """A builder, a dictionary and text give the same plan."""
    problem = training_chain(8)
    forms: list[scrimp.planning.ProblemLike] = [problem, problem.to_dict(), problem.to_json()]
    plans = [scrimp.plan(form, budget=700) for form in forms]
    assert len({tuple(plan.runs) for plan in plans}) == 1


def test_budgets() -> None:
    """Bytes, text, percent and the least there is."""
    problem = training_chain(10)
    base = scrimp.plan(problem, budget="100%")
    assert base.peak == base.base_peak
    assert base.optimal
    least = scrimp.plan(problem, budget="min")
    assert least.peak <= least.budget < base.peak
    assert scrimp.plan(problem, budget="1KiB").budget == 1024
    bounded = problem.to_dict()
    bounded["devices"][0]["capacity"] = 800
    assert scrimp.plan(bounded).budget == 800


def test_what_is_infeasible_names_the_least() -> None:
    """The numbers are there, and the least that is named can be had."""
    problem = training_chain(10)
    with pytest.raises(scrimp.Infeasible, match="raise the budget") as caught:
        scrimp.plan(problem, budget=100)
    error = caught.value
    assert error.budget == 100
    assert 100 < error.floor <= error.least_found
    assert scrimp.plan(problem, budget=error.least_found).peak <= error.least_found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "many"}, "many"),
        ({"budget": -1}, "-1"),
        ({"budget": 1.5}, "1.5"),
        ({}, "no budget"),
        ({"budget": 900, "method": "magic"}, "magic"),
        ({"budget": 900, "order": "any"}, "any"),
        ({"budget": 900, "time_limit": float("nan")}, "time_limit"),
        ({"budget": 900, "threads": 0}, "threads"),
    ],
)
def test_wrong_options_get_a_sentence(options: dict[str, object], message: str) -> None:
    """It names what was given."""
    with pytest.raises(scrimp.BadOption, match=message):
        scrimp.plan(training_chain(4), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{", '{"format": "scrimp-problem"}', "nonsense"])
def test_wrong_problems_get_a_sentence(text: str) -> None:
    """Nothing but our own exception comes out."""
    with pytest.raises(scrimp.BadProblem):
        scrimp.plan(text, budget=100)


def test_a_wrong_builder_call_gets_a_sentence() -> None:
    """Values must be there before tasks read them."""
    problem = scrimp.Problem()
    with pytest.raises(scrimp.BadProblem, match="'t' names value 3"):
        problem.task("t", [3], 1, seconds=1.0)
    with pytest.raises(scrimp.BadProblem, match="phase"):
        problem.task("t", [], 1, seconds=1.0, phase="sideways")  # type: ignore[arg-type]
    with pytest.raises(scrimp.BadProblem, match="is a set"):
        scrimp.plan({1}, budget=1)  # type: ignore[arg-type]


def test_overwriting_counts_once() -> None:
    """A task that overwrites its input needs one buffer for both."""

    def peak(overwrites: bool) -> int:
        problem = scrimp.Problem()
        weight = problem.given("w", 1000)
        updated = problem.task(
            "update",
            [weight],
            1000,
            seconds=1.0,
            phase="update",
            rerunnable=False,
            overwrites=weight if overwrites else None,
        )
        problem.keep(updated)
        return scrimp.plan(problem, budget="100%").peak

    assert peak(True) == 1000
    assert peak(False) == 2000


def test_layouts() -> None:
    """Buffers that are held at the same time don't overlap, and all fit the budget."""
    plan = scrimp.plan(training_chain(12), budget="60%", layout=True)
    assert plan.arena is not None
    assert plan.arena <= plan.budget
    held = plan.buffers
    assert max(buffer.offset + buffer.bytes for buffer in held) == plan.arena
    for i, a in enumerate(held):
        for b in held[:i]:
            apart_in_time = a.end <= b.start or b.end <= a.start
            apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
            assert apart_in_time or apart
    with pytest.raises(scrimp.BadOption, match="layout=True"):
        _ = scrimp.plan(training_chain(12), budget="60%").buffers


def test_sweeps_are_monotone() -> None:
    """A larger budget never has a slower plan, and what can't be met is an exception in the list."""
    outcomes = scrimp.sweep(training_chain(16), ["90%", 150, "50%", "70%"], time_limit=0.5)
    assert isinstance(outcomes[1], scrimp.Infeasible)
    plans = [outcome for outcome in outcomes if isinstance(outcome, scrimp.Plan)]
    assert len(plans) == 3
    by_budget = sorted(plans, key=lambda plan: plan.budget)
    costs = [plan.cost for plan in by_budget]
    assert costs == sorted(costs, reverse=True)
    with pytest.raises(scrimp.BadOption, match="min"):
        scrimp.sweep(training_chain(4), ["min", "50%"])


def test_checking() -> None:
    """Plans come back from their files; wrong ones are refused with every violation."""
    problem = training_chain(8)
    plan = scrimp.plan(problem, budget="60%")
    forms: list[object] = [plan, plan.to_json(), json.loads(plan.to_json()), list(plan.runs)]
    for form in forms:
        checked = scrimp.check(problem, form, budget="60%")  # type: ignore[arg-type]
        assert (checked.peak, checked.cost) == (plan.peak, plan.cost)
    with pytest.raises(scrimp.InvalidPlan, match="in use") as caught:
        scrimp.check(problem, plan, budget=plan.peak - 1)
    assert caught.value.violations
    cut = json.loads(plan.to_json())
    cut["steps"] = cut["steps"][:-3]
    with pytest.raises(scrimp.InvalidPlan):
        scrimp.check(problem, cut)
    with pytest.raises(scrimp.BadProblem, match="fingerprint"):
        scrimp.check(training_chain(9), plan)
    with pytest.raises(scrimp.BadProblem, match="task 99"):
        scrimp.check(problem, [99])


def test_placing() -> None:
    """Bare intervals are packed, too small a memory is refused with the numbers."""
    placed = scrimp.place([(0, 3, 10), (2, 5, 10), (3, 6, 10)], capacity=20)
    assert (placed.arena, placed.live) == (20, 20)
    assert len(placed.offsets) == 3
    with pytest.raises(scrimp.Infeasible) as caught:
        scrimp.place([(0, 2, 10), (1, 3, 10)], capacity=15)
    assert (caught.value.least_found, caught.value.floor) == (20, 20)
    with pytest.raises(scrimp.BadProblem, match="buffer 0"):
        scrimp.place([(3, 2, 1)])
    with pytest.raises(scrimp.BadProblem, match="buffer 1"):
        scrimp.place([(0, 1, 1), (0, 1)])


def test_numpy_takes_the_lists() -> None:
    """Without copying them."""
    numpy = pytest.importorskip("numpy")
    plan = scrimp.plan(training_chain(8), budget="60%")
    profile = numpy.asarray(plan.profile)
    assert profile.dtype == numpy.int64
    assert int(profile.max()) == plan.peak
    assert numpy.shares_memory(profile, plan.profile)


def test_reports(tmp_path: Path) -> None:
    """The page holds the title and the rows given, escaped."""
    plan = scrimp.plan(training_chain(8), budget="60%")
    plan.report(tmp_path / "r.html", title="a <b>", numbers={"row": "value & more"})
    page = (tmp_path / "r.html").read_text()
    assert "a &lt;b&gt;" in page
    assert "value &amp; more" in page
    assert json.loads(plan.perfetto())


def test_progress_and_its_exceptions() -> None:
    """News come while planning; what the callback raises comes out."""
    news: list[scrimp.Progress] = []
    scrimp.plan(random_graph(1, 200), budget="60%", time_limit=0.5, progress=news.append)
    assert news
    assert all(n.elapsed >= 0 and n.lower_bound >= 0 for n in news)

    def refuse(_: scrimp.Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        scrimp.plan(random_graph(1, 200), budget="60%", time_limit=30, progress=refuse)


@contextlib.contextmanager
def sigint(handler: Any) -> Iterator[None]:
    """Handle Ctrl-C in this way, whatever this process was started with: in the background it is ignored."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_keeps_the_best_plan() -> None:
    """Long planning is stopped by the first interrupt, once there is a plan."""

    def interrupt(news: scrimp.Progress) -> None:
        if news.cost is not None and not sent:
            sent.append(True)
            _thread.interrupt_main()

    sent: list[bool] = []
    problem = random_graph(3, 400)
    with sigint(signal.default_int_handler):
        plan = scrimp.plan(problem, budget="70%", order="fixed", time_limit=300, progress=interrupt)
    assert plan.interrupted
    assert simulate(problem, plan)[0] <= plan.budget


def test_ctrl_c_is_ignored_where_python_ignores_it() -> None:
    """A process in the background of a script plans until its time is over."""

    def interrupt(news: scrimp.Progress) -> None:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGINT)

    sent: list[bool] = []
    with sigint(signal.SIG_IGN):
        plan = scrimp.plan(random_graph(3, 400), budget="70%", time_limit=1, progress=interrupt)
    assert sent
    assert not plan.interrupted


def test_other_threads_run_meanwhile() -> None:
    """The interpreter's lock is not held while planning."""
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        before = ticks
        scrimp.plan(random_graph(4, 300), budget="60%", time_limit=0.5)
        assert ticks > before
    finally:
        done.set()
        counter.join()


def test_importing_the_package_imports_no_framework() -> None:
    """Only torch.py and the folder _torch import torch; nothing imports numpy."""
    package = Path(scrimp.__file__).parent
    for file in package.rglob("*.py"):
        tree = ast.parse(file.read_text())
        names = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert "numpy" not in names
        where = file.relative_to(package)
        assert "torch" not in names or where == Path("torch.py") or where.parts[0] == "_torch"


def test_both_project_files_agree() -> None:
    """`pip install .` and `pip install ./crates/python` make the same package."""
    tomllib = pytest.importorskip("tomllib")
    root = SOURCE.parents[1] / "pyproject.toml"
    ours, above = (tomllib.loads(file.read_text()) for file in (SOURCE / "pyproject.toml", root))
    assert ours["project"] == above["project"]
    assert ours["build-system"] == above["build-system"]

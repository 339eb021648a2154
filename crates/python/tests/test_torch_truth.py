"""What operators truly give, where PyTorch says something else of them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from scrimp._torch.graph import analyse  # noqa: E402
from scrimp._torch.profile import measure  # noqa: E402
from scrimp._torch.truth import runner, true_results  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx import Graph, Node  # noqa: E402

CPU = torch.device("cpu")
SEED = 7
REAL, SAID = 5, 9
"""Bytes of a reserve."""


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    """Two operators, one of which reads what the other leaves."""
    library = torch.library.Library("scrimp_tests", "DEF")
    library.define("forward(Tensor x) -> (Tensor, Tensor, Tensor)")
    library.define("backward(Tensor y, Tensor seed, Tensor reserve) -> Tensor")

    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reserve = torch.full((REAL,), 3, dtype=torch.uint8)
        return x.double().t().contiguous().t(), torch.tensor(SEED), reserve

    def backward(y: Tensor, seed: Tensor, reserve: Tensor) -> Tensor:
        # As a kernel of a GPU that takes its seed from the CPU: with any other it reads what isn't there.
        if seed.is_meta or int(seed) != SEED or reserve.tolist() != [3] * REAL:
            raise AssertionError("this isn't what forward returned")
        return y + int(seed)

    library.impl("forward", forward, "CPU")
    library.impl("backward", backward, "CPU")

    def forward_said(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seed = torch.empty((), dtype=torch.int64, device="meta")
        return torch.empty_like(x), seed, x.new_empty((SAID,), dtype=torch.uint8)

    def backward_said(y: Tensor, seed: Tensor, reserve: Tensor) -> Tensor:
        return torch.empty_like(y)

    torch.library.register_fake("scrimp_tests::forward", forward_said, lib=library)
    torch.library.register_fake("scrimp_tests::backward", backward_said, lib=library)
    yield torch.ops.scrimp_tests
    library._destroy()


def graph_of(ops: Any) -> tuple[Graph, dict[str, Node]]:
    """Forward, a view of its result, and backward, with what PyTorch says of their values."""
    graph = Graph()
    mode = FakeTensorMode()

    def call(target: Any, *args: Any) -> Node:
        node = graph.call_function(target, args)
        with mode:
            node.meta["val"] = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]))
        return node

    x = graph.placeholder("x")
    with mode:
        x.meta["val"] = torch.empty(4, 6)
    made = call(ops.forward.default, x)
    y, seed, reserve = (call(operator.getitem, made, i) for i in range(3))
    kept = call(torch.ops.aten.detach.default, seed)
    view = call(torch.ops.aten.t.default, y)
    back = call(ops.backward.default, y, kept, reserve)
    graph.output((view, back))
    names = {"made": made, "y": y, "seed": seed, "reserve": reserve, "view": view, "back": back}
    return graph, names


def test_values_are_what_operators_return(ops: Any) -> None:
    """Types, strides, sizes and devices; and of all that is made from them."""
    graph, nodes = graph_of(ops)
    values = {name: node.meta["val"] for name, node in nodes.items()}
    assert values["seed"].device.type == "meta" and values["reserve"].numel() == SAID
    true_results(graph, CPU)
    values = {name: node.meta["val"] for name, node in nodes.items()}
    assert values["y"].dtype == torch.float64 and values["y"].stride() == (1, 4)
    assert values["view"].dtype == torch.float64 and values["view"].is_contiguous()
    assert values["view"].untyped_storage()._cdata == values["y"].untyped_storage()._cdata
    assert values["back"].dtype == torch.float64 and values["back"].stride() == (1, 4)
    assert values["seed"].device == CPU
    assert values["reserve"].untyped_storage().nbytes() == REAL
    tasks = analyse(graph)
    assert [len(task.makes) for task in tasks.tasks] == [3, 1]
    assert sorted(storage.bytes for storage in tasks.tasks[0].makes) == [REAL, 8, 192]


def test_what_an_operator_left_is_what_it_returned(ops: Any) -> None:
    """Nothing is made up that another operator alone knows; with made-up ones this operator fails."""
    graph, nodes = graph_of(ops)
    true_results(graph, CPU)
    assert runner(nodes["back"], CPU)().shape == (4, 6)
    costs = measure(analyse(graph).tasks, CPU)
    assert len(costs) == 2
    with pytest.raises(AssertionError, match="isn't what forward returned"):
        ops.backward(torch.zeros(4, 6), torch.tensor(0), torch.zeros(REAL, dtype=torch.uint8))


def test_true_values_stay(ops: Any) -> None:
    """What is true already isn't made anew."""
    graph, nodes = graph_of(ops)
    true_results(graph, CPU)
    before = [leaf for leaf in nodes["made"].meta["val"]]
    true_results(graph, CPU)
    assert all(a is b for a, b in zip(before, nodes["made"].meta["val"], strict=True))


def test_autocast_is_part_of_the_graph(ops: Any) -> None:
    """Captured operators run as they are, also where autocast would cast their arguments."""
    graph = Graph()
    mode = FakeTensorMode()
    x = graph.placeholder("x")
    product = graph.call_function(torch.ops.aten.mm.default, (x, x))
    with mode:
        x.meta["val"] = product.meta["val"] = torch.empty(4, 4)
        product.meta["val"] = torch.empty(4, 4)
    graph.output(product)
    with torch.autocast("cpu", torch.bfloat16):
        true_results(graph, CPU)
    assert product.meta["val"].dtype == torch.float32

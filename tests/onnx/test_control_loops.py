"""Loops and scans: unrolled where their trips are few, bodies with packed nodes where not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from models.graph import GraphBuilder
from pitc.ir import target as targets
from pitc.ir.graph import Graph
from pitc.passes.exprs import derive
from tests.branch_models import (
    BSD,
    Body,
    branch,
    inside,
    linear,
    loop,
    masked,
    model,
)
from tests.control_check import audited, compiled, lowerings, start


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack wherever it is sound, in small models too."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))


def _layers(
    trips: int, go_on: Any = None, condition: Any = None, lines: bool = True, last: str = "last"
) -> Callable[[GraphBuilder], None]:
    """The same layer a few times, and what it gave each time."""

    def make(g: GraphBuilder) -> None:
        x, mask, _ = start(g)

        def body(b: Body, i: str, states: list[str]) -> list[str]:
            y = linear(b, states[0], "w", "Tanh")
            scaled = b.op("Mul", y, b.op("Cast", i, to=TensorProto.FLOAT))
            return [b.op("Add", y, x), *[scaled] * lines]

        flag = "" if condition is None else g.const(condition, np.bool_)
        y, *written = loop(g, g.const(trips, np.int64), [x], body, go_on, flag)
        g.output(masked(g, linear(g, y, last), mask), "y", np.float32, ("b", 32))
        for slices in written if trips else ():
            first = g.op("Gather", slices, g.const(-1, np.int64), axis=0)
            g.output(masked(g, first, mask), "z", np.float32, ("b", 32))

    return make


def _in_a_row(g: GraphBuilder) -> None:
    """A loop that reads what a loop gives."""
    x, mask, _ = start(g)
    for trips in (0, 0, 1, 2):
        (x,) = loop(
            g, g.const(trips, np.int64), [x], lambda b, i, s: [b.op("Tanh", linear(b, s[0], "w"))]
        )
    g.output(masked(g, linear(g, x, "last"), mask), "y", np.float32, ("b", 32))


def _scanned(**attributes: Any) -> Callable[[GraphBuilder], None]:
    """Scan over three slices, with a state."""

    def make(g: GraphBuilder) -> None:
        x, mask, _ = start(g)
        parts = g.weight("parts", np.arange(96, dtype=np.float32).reshape(3, 32) / 96)
        axis = attributes.get("scan_input_axes", [0])[0]
        written = attributes.get("scan_output_axes", [0])[0]
        body = Body(g, "scan")
        y = linear(body, body.op("Add", "scan.state", "scan.part"), "w", "Tanh")
        graph = body.graph([y, body.op("Neg", y)])
        for name in ("scan.state", "scan.part"):
            graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        read = g.op("Transpose", parts, perm=[1, 0]) if axis in (1, -1) else parts
        g.op("Scan", x, read, body=graph, num_scan_inputs=1, **attributes)
        node = g._nodes[-1]
        node.output[:] = ["scanned", "lines"]
        g.output(masked(g, linear(g, "scanned", "last"), mask), "y", np.float32, ("b", 32))
        first = g.op("Gather", "lines", g.const(0, np.int64), axis=written)
        g.output(masked(g, first, mask), "z", np.float32, ("b", 32))

    return make


LOOPS: dict[str, tuple[Callable[[GraphBuilder], None], int]] = {
    "no trip": (_layers(0), 0),
    "one trip": (_layers(1), 1),
    "three trips": (_layers(3), 3),
    "stopped": (_layers(3, condition=False, lines=False), 0),
    "started": (_layers(2, condition=True), 2),
    "one trip, whatever follows": (_layers(1, go_on=lambda b: b.op("Not", "c")), 1),
    "two trips, perhaps": (_layers(2, lambda b: b.op("Not", "c"), True, False), -1),
    "two trips, a constant": (
        _layers(2, go_on=lambda b: b.op("Identity", b.const(1, np.bool_))),
        2,
    ),
    "one trip, stopped by a constant": (
        _layers(2, lambda b: b.op("Identity", b.const(0, np.bool_)), True, False),
        -1,
    ),
    "in a row": (_in_a_row, 3),
    "too many": (_layers(9, condition=True, lines=False), -1),
    "scan": (_scanned(), 3),
    "scan backwards": (_scanned(scan_input_directions=[1], scan_output_directions=[1]), 3),
    "scan axes": (_scanned(scan_input_axes=[-1], scan_output_axes=[2]), 3),
}


@pytest.mark.parametrize("case", LOOPS)
def test_a_loop_becomes_its_trips(case: str) -> None:
    make, trips = LOOPS[case]
    proto = model(make)
    lowered = compiled(proto)
    kinds = {n.op_type for n in lowered.model.graph}
    assert bool(kinds & {"Loop", "Scan"}) == (trips < 0)
    packed = lowerings(lowered, "MatMul").count("packed")
    assert packed == (1 if trips < 0 else trips + 1)
    assert audited(proto) == []


def refined(trips: int, mask_of: str = "mask") -> Callable[[GraphBuilder], None]:
    """A loop that keeps its state's shape and mixes in a sum over live tokens."""

    def make(g: GraphBuilder) -> None:
        x, mask, _ = start(g)
        scale = g.op("Sigmoid", x)

        def body(b: Body, i: str, states: list[str]) -> list[str]:
            h = linear(b, linear(b, states[0], "w", "Tanh"), "v")
            total = b.op("Unsqueeze", masked(b, b.op("Mul", h, scale), mask_of), b.ints(1))
            return [b.op("Tanh", b.op("Add", states[0], total))]

        (y,) = loop(g, g.const(trips, np.int64), [x], body, None, g.const(True, np.bool_))
        g.output(masked(g, linear(g, y, "last"), mask), "y", np.float32, ("b", 32))

    return make


def test_a_body_runs_packed() -> None:
    proto = model(refined(9))
    lowered = compiled(proto)
    assert [n.op_type for n in lowered.model.graph if n.op_type == "Loop"]
    # the first contraction of the body reads the state, which is read whole: it gathers live rows
    assert lowerings(lowered, "MatMul") == ["packed"] * 3
    assert inside(ir.to_proto(lowered.model))["MatMul"] == 0
    assert audited(proto) == []
    # nothing comes back: what is summed over tokens is added to the rows of their sequences
    assert {k.symbol.split("_k")[0] for k in lowered.kernels} == {"gather_gemm", "pack_b4"}


def _infinite(g: GraphBuilder) -> None:
    """A body that captures -inf: 0 times it is not 0."""
    x, mask, _ = start(g)
    bias = g.op("Log", g.op("Cast", mask, to=TensorProto.FLOAT))

    def body(b: Body, i: str, states: list[str]) -> list[str]:
        h = linear(b, linear(b, states[0], "w", "Tanh"), "v")
        h = b.op("Tanh", b.op("Add", h, b.op("Unsqueeze", bias, b.ints(2))))
        return [b.op("Add", states[0], b.op("Unsqueeze", masked(b, h, mask), b.ints(1)))]

    (y,) = loop(g, g.const(9, np.int64), [x], body, None, g.const(True, np.bool_))
    g.output(y, "y", np.float32, BSD)


def _unbounded(g: GraphBuilder) -> None:
    """A state that is finite at the start only."""
    x, mask, _ = start(g)

    def body(b: Body, i: str, states: list[str]) -> list[str]:
        h = linear(b, linear(b, states[0], "w", "Tanh"), "v")
        return [b.op("Log", b.op("Abs", b.op("Unsqueeze", masked(b, h, mask), b.ints(1))))]

    first = g.op("ReduceMax", x, axes=[1])
    (y,) = loop(g, g.const(9, np.int64), [first], body, None, g.const(True, np.bool_))
    g.output(y, "y", np.float32, ("b", 1, 32))


def _grows(g: GraphBuilder) -> None:
    """A state that gets longer in every trip, and one that does not."""
    x, mask, _ = start(g)

    def body(b: Body, i: str, states: list[str]) -> list[str]:
        total = masked(b, linear(b, states[0], "w", "Tanh"), mask)
        row = b.op("Mul", b.op("Unsqueeze", total, b.ints(1)), b.const(0.01))
        return [b.op("Tanh", b.op("Add", states[0], row)), b.op("Concat", states[1], row, axis=1)]

    y, z = loop(g, g.const(9, np.int64), [x, x], body, None, g.const(True, np.bool_))
    g.output(masked(g, linear(g, y, "last"), mask), "y", np.float32, ("b", 32))
    g.output(g.op("ReduceMax", linear(g, z, "z"), axes=[1], keepdims=0), "z", np.float32, ("b", 32))


def _looped_branch(g: GraphBuilder) -> None:
    """An If in a body, and a loop in the If."""
    x, mask, c = start(g)

    def inner(b: Body) -> str:
        def step(i: Body, trip: str, states: list[str]) -> list[str]:
            return [i.op("Tanh", linear(i, states[0], "deep"))]

        return loop(b, b.const(2, np.int64), [x], step, None, b.const(True, np.bool_))[0]

    def body(b: Body, i: str, states: list[str]) -> list[str]:
        h = branch(b, c, inner, lambda e: linear(e, linear(e, x, "flat", "Relu"), "more"))
        total = b.op("Unsqueeze", masked(b, h, mask), b.ints(1))
        return [b.op("Tanh", b.op("Mul", b.op("Add", x, total), b.const(0.01)))]

    (y,) = loop(g, g.const(9, np.int64), [x], body, None, g.const(True, np.bool_))
    g.output(masked(g, linear(g, y, "last"), mask), "y", np.float32, ("b", 32))


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("make", "packed"),
    [
        (_infinite, []),
        (_unbounded, []),
        (_grows, [True, False]),
        (_looped_branch, [True] * 5),
    ],
)
def test_bodies(make: Callable[[GraphBuilder], None], packed: list[bool]) -> None:
    proto = model(make)
    lowered = compiled(proto)
    assert [r == "packed" for r in lowerings(lowered, "MatMul")] == packed
    assert audited(proto) == []


def test_the_audit_finds_a_shape_that_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def starting(graph: Graph, node: ir.Node) -> list[Any]:
        return [(), *(graph[x.name or ""].shape for x in node.inputs[2:] if x is not None)]

    assert audited(model(_grows)) == []
    monkeypatch.setattr(derive, "carried_shapes", starting)
    assert any("shape" in line for line in audited(model(_grows)))

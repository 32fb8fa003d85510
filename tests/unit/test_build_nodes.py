"""What adds nodes to a graph: names, constants, lists of numbers, attributes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pitc.ir.build import Names, NodeBuilder, NodeMaker, names_of, take_over, takes_list
from pitc.ir.index import Digit, poly, sym
from pitc.ir.nodes import attribute, opset_of


def graph_of(opset: int, domain: str = "") -> ir.Graph:
    """y = Relu(x), by a node named `n`."""
    text = f"""<ir_version: 8, opset_import: ["{domain}": {opset}]>
        g (float[2, 3] x) => (float[2, 3] y) {{ [n] y = Relu (x) }}"""
    return ir.from_proto(onnx.parser.parse_model(text)).graph


def test_names_are_free() -> None:
    names = Names({"a", "a.2"}, {"b"})
    assert [names.value("a"), names.value("a"), names.value("b")] == ["a.3", "a.4", "b"]
    assert [names.node("a"), names.node("b")] == ["a", "b.2"]
    assert names.unique("b.2") == "b.2.2"  # a node has it
    assert [names.unique("c", 1), names.unique("c", 1)] == ["c", "c.1"]


def test_names_of_bodies_are_names() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { [m] a = Relu (x) },
                        else_branch = e () => (float[2] b) { b = Neg (x) }>
        }"""
    graph = ir.from_proto(onnx.parser.parse_model(text)).graph
    assert names_of(graph).values == {"c", "x", "y", "a", "b"} and names_of(graph).nodes == {"m"}
    assert names_of(graph, branches=False).values == {"c", "x", "y"}


def test_moved_nodes_have_names_of_their_own() -> None:
    graph, names = graph_of(17), Names({"y"}, {"n"})
    names.rename(graph)
    (node,) = graph
    assert (node.name, node.outputs[0].name) == ("n.2", "y.2")


def test_equal_constants_and_nodes_are_made_once() -> None:
    graph = graph_of(17)
    build = NodeBuilder(graph, "new")
    one = build.constant(np.ones(2, np.int64))
    assert one is build.constant(np.ones(2, np.int64))
    others = (np.ones(2, np.int32), np.ones((1, 2), np.int64), np.zeros(2, np.int64))
    assert all(build.constant(other) is not one for other in others)
    assert (one.name, one.dtype, one.shape) == ("new.const", ir.DataType.INT64, [2])
    assert len(graph.initializers) == 4
    x = graph.inputs[0]
    cast = build.op("Cast", [x], to=7)
    assert cast is build.op("Cast", [x], to=7) and cast is not build.op("Cast", [x], to=6)
    assert [n.name for n in graph] == ["n", "new.cast.node", "new.cast.node.1"]


def test_a_node_goes_in_front_of_another() -> None:
    graph = graph_of(17)
    relu = graph[0]
    made = NodeMaker(graph, before=relu)
    made.add("Neg", [graph.inputs[0]], {}, ["h"], "neg")
    assert [n.name for n in graph] == ["neg", "n"]


@pytest.mark.parametrize(
    ("op", "since"),
    [("Unsqueeze", 13), ("Split", 13), ("ReduceSum", 13), ("ReduceMax", 18), ("ReduceL1", 18)],
)
def test_lists_are_inputs_since(op: str, since: int) -> None:
    """As ONNX's own schemas say."""
    name = "split" if op == "Split" else "axes"
    for opset in (since - 1, since):
        schema = onnx.defs.get_schema(op, opset)
        assert takes_list(op, opset) == (name not in schema.attributes) == (opset == since)
        inputs, attributes = NodeMaker(graph_of(opset)).listed(op, [1], name)
        assert (len(inputs), attributes) == ((1, {}) if opset == since else (0, {name: [1]}))


def test_a_value_takes_over_from_another() -> None:
    graph = graph_of(17)
    old = graph.outputs[0]
    (new,) = NodeMaker(graph).add("Neg", [graph.inputs[0]], {}, ["new"])
    take_over(old, new)
    assert graph.outputs[0] is new and (new.name, old.name) == ("y", None)
    assert new.shape == [2, 3] and new.dtype == ir.DataType.FLOAT


def test_attributes_as_plain_values() -> None:
    found = {"i": 2, "s": "t", "l": [1, 2], "f": 0.5, "t": ir.tensor(np.arange(3))}
    node = ir.node("Any", [], found)
    assert [attribute(node, name) for name in "islf"] == [2, "t", [1, 2], 0.5]
    assert attribute(node, "t").tolist() == [0, 1, 2]
    assert attribute(node, "none") is None and attribute(node, "none", 7) == 7


def test_versions_of_the_standard_operators() -> None:
    assert opset_of(graph_of(14)) == 14
    assert opset_of(ir.Graph([], [], nodes=[], opset_imports={"other": 3})) == 1


def test_overlapping_digits() -> None:
    n = sym("n")
    low, high = Digit(0, poly(1), n), Digit(0, n, poly(4))
    assert not low.overlaps(high) and not high.overlaps(low)
    assert low.overlaps(low) and low.overlaps(Digit(0, poly(1), poly(4)))
    assert Digit(0, poly(2), n).overlaps(low) and low.overlaps(Digit(0, poly(2), n))
    assert not low.overlaps(Digit(1, poly(1), n))

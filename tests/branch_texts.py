"""Small models with If nodes as text, and their nodes as text."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import onnx
import onnx_ir as ir

from pitc.ir.branch import BRANCH, GROUP, NAME
from pitc.ir.nodes import bodies
from pitc.passes.control.branches import open_branches
from tests.guard_worlds import session

HEAD = """
<ir_version: 8, opset_import: ["": 18]>
g (float[n] x, bool c, bool d) => (RESULTS)
<float one = {1}, float two = {2}>
{ BODY }
"""


def model_of(body: str, results: str = "y") -> ir.Model:
    """The model of some lines; its results are vectors."""
    names = ", ".join(f"float[n] {name}" for name in results.split())
    text = HEAD.replace("RESULTS", names).replace("BODY", body)
    return ir.from_proto(onnx.parser.parse_model(text))


def either(then: str, other: str, results: str = "float[n] p") -> str:
    """The attributes of an If."""
    bodies = (("then", then), ("else", other))
    return f"<{', '.join(f'{k}_branch = {k} () => ({results}) {{ {b} }}' for k, b in bodies)}>"


def lines(graph: ir.Graph | ir.Function, depth: int = 0) -> Iterator[str]:
    """Nodes as text: the branch and the If that they are of, their names, their bodies."""
    for node in graph:
        about = node.metadata_props
        read = ", ".join("_" if x is None else x.name or "" for x in node.inputs)
        text = f"{', '.join(o.name or '_' for o in node.outputs)} = {node.op_type}({read})"
        text += f" in {about[BRANCH] or 'main'}" if BRANCH in about else ""
        text += f" of {about[GROUP]} {about[NAME]!r}" if GROUP in about else ""
        yield "  " * depth + text + (f" {node.name!r}" if node.name else "")
        for body in bodies(node):
            yield "  " * depth + f"  {body.name}: {', '.join(o.name or '' for o in body.outputs)}"
            yield from lines(body, depth + 2)


def texts(model: ir.Model) -> list[str]:
    """The same, without names and branches."""
    return [line.split(" '")[0].split(" in ")[0] for line in lines(model.graph)]


def answers(model: ir.Model) -> list[list[float]]:
    """Results for all conditions."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    run, x = session(proto), np.array([1.0, -2.0, 3.0], np.float32)
    choices = product((True, False), repeat=2)
    feeds = [{"x": x, "c": np.array(c), "d": np.array(d)} for c, d in choices]
    return [np.asarray(y).tolist() for feed in feeds for y in run.run(None, feed)]


def value(model: ir.Model, name: str) -> ir.Value:
    """A value of the main graph."""
    computed = (o for n in model.graph for o in n.outputs)
    return next(x for x in (*model.graph.inputs, *computed) if x.name == name)


def read(model: ir.Model, name: str, place: int, other: str) -> None:
    """Let the node of a value read another one."""
    node = value(model, name).producer()
    assert node is not None
    node.replace_input_with(place, value(model, other))


def add(model: ir.Model, op: str, of: str, name: str, *readers: tuple[str, int]) -> None:
    """A node at the start of the graph, without a branch, and its readers."""
    node = ir.node(op, [value(model, of)])
    node.outputs[0].name = name
    producer = value(model, of).producer()
    if producer is None:
        model.graph.insert_before(model.graph[0], node)
    else:
        model.graph.insert_after(producer, node)
    for reader, place in readers:
        read(model, reader, place, name)


ONE = "y = If (c) " + either("p = Neg (x)", "p = Abs (x)")
TWO = "[call] y, z = If (c) " + either(
    "[n] h = Neg (x) [e] p = Exp (h) [a] q = Abs (h)",
    "[n] h = Add (x, one) [b] p = Add (h, two) [t] q = Tanh (h)",
    "float[n] p, float[n] q",
)
NESTED = "[if] y = If (c) " + either(
    "[h] h = Neg (x) [p] p = If (d) " + either("[s] s = Exp (h)", "[t] s = Abs (x)", "float[n] s"),
    "[q] p = If (d) " + either("[u] s = Exp (x)", "[v] s = Tanh (x)", "float[n] s"),
)

RESULTS = {ONE: "y", TWO: "y z", NESTED: "y"}


def shown(model: ir.Model) -> str:
    return "\n".join(("", *lines(model.graph), ""))


def opened(body: str) -> ir.Model:
    model = model_of(body, RESULTS[body])
    open_branches(model)
    return model


def loop(result: str, start: str, body: str, trips: int) -> str:
    """A loop over vectors; each value of its body ends with the result's name."""
    y = result
    return (
        f"n{y} = Constant <value_int = {trips}> () {y} = Loop <body = b{y} (int64 i{y}, bool g{y},"
        f" float[m] s{y}) => (bool o{y}, float[m] p{y}) {{ o{y} = Identity (g{y}) {body} }}>"
        f" (n{y}, , {start})"
    )

"""Rows of values: the way of a product's rows through Reshapes that leave rows as they are, and all
rows of a value as one axis.

Exporters flatten [batch, sequence, k] to rows in front of a contraction and turn the result back
behind it. Row-wise steps do not see the difference. Values in between may be read by Shape as well:
their sizes can be computed from graph inputs.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, nonneg, poly
from pitc.ir.nodes import attribute
from pitc.ir.since import Since
from pitc.ir.sizes import sizes_known
from pitc.passes.lower.builder import Builder, declared
from pitc.passes.regions.matrix import dims_of


def only_reader(graph: Graph, value: ir.Value) -> ir.Node | None:
    """The one node that reads elements of a value; None where there are none or several, or where
    it stands in a body: it may run often, or not at all.
    """
    readers = [u.node for u in value.uses() if not reads_sizes(graph, value, u.node)]
    if len(readers) != 1 or value.is_graph_output() or not is_outside(graph, readers[0]):
        return None
    return readers[0]


def is_outside(graph: Graph, node: ir.Node) -> bool:
    """True for a node of the analysed graph itself, not of a body in it."""
    return node.graph is graph.model.graph


def reads_sizes(graph: Graph, value: ir.Value, node: ir.Node) -> bool:
    """True for a Shape node, when graph inputs have all the sizes of its operand."""
    shape = graph[value.name or ""].shape
    known = shape is not None and sizes_known(graph, shape) and is_outside(graph, node)
    return known and not node.domain and node.op_type == "Shape"


def ahead(graph: Graph, value: ir.Value) -> ir.Value:
    """The value behind all the Reshapes that keep rows and are the only readers."""
    reader = only_reader(graph, value)
    while reader is not None and keeps_rows(graph, reader):
        value = reader.outputs[0]
        reader = only_reader(graph, value)
    return value


def behind(graph: Graph, value: ir.Value) -> list[ir.Value]:
    """A value, and those in front of it that have the same rows."""
    found = [value]
    producer = value.producer()
    while producer is not None and keeps_rows(graph, producer):
        before = producer.inputs[0]
        assert before is not None
        found.append(before)
        producer = before.producer()
    return found


def keeps_rows(graph: Graph, node: ir.Node) -> bool:
    """A Reshape to a known shape that leaves the last dimension, and with it rows, as they are."""
    if node.domain or node.op_type != "Reshape" or node.inputs[0] is None:
        return False
    before, after = (graph[x.name or ""].shape for x in (node.inputs[0], node.outputs[0]))
    if not before or not after or not sizes_known(graph, after):
        return False
    width = after[-1].as_int()
    keeps = before[-1] == after[-1] and width is not None and width > 0
    return keeps and (graph.opset >= Since.ZERO_SIZES or len(_perhaps_empty(after)) < 2)


def _perhaps_empty(shape: Shape) -> list[int]:
    """Dimensions whose size may be 0."""
    return [d for d, e in enumerate(shape) if not nonneg(e - 1)]


def with_shape(graph: Graph, build: Builder, rows: ir.Value, like: ir.Value) -> ir.Value:
    """A value in the shape of another one that has the same rows (`ahead`, `behind`), which may be
    none: to older Reshapes a size of 0 is that of the operand.
    """
    shape = graph[like.name or ""].shape or ()
    named = graph.opset >= Since.ZERO_SIZES
    sizes = [build.size(e if named or nonneg(e - 1) else poly(-1)) for e in shape]
    out = build.reshape_to(rows, sizes)
    out.type, out.shape = like.type or rows.type, like.shape
    return out


def all_rows(
    graph: Graph, build: Builder, name: str, codes: Sequence[str], symbol: str, points: Shape
) -> ir.Value:
    """A value as rows of one packed axis, none of them left out (`dims=` of a pack plan).

    [b, h, s, d], codes c0, r, c1, r   ->   Transpose to [b, s, h, d]   ->   Reshape to [t, h, d]
    [b, d], codes c0, r, points b, s   ->   Expand to [b, s, d]         ->   Reshape to [t, d]
    """
    x, shape, order = build.value(name), graph[name].shape or (), rows_first(codes)
    rest = [shape[d] for d in order if codes[d] == "r"]
    out = x if order == sorted(order) else build.op("Transpose", [x], perm=order)
    absent = [k for k in range(len(points)) if f"c{k}" not in codes]
    if absent and "l" not in codes:
        ones = sum(c == "0" for c in codes)
        out = build.unsqueeze(out, *(ones + k for k in absent))
        sizes = build.sizes((*[ONE] * ones, *points, *rest))
        out = build.op("Expand", [out, build.concat(sizes)])
    numbers = [e.as_int() for e in rest]
    out = build.op("Reshape", [out, build.constant(np.asarray([-1, *numbers], np.int64))])
    out.type = ir.TensorType(ir.DataType.from_numpy(graph.dtype(name)))
    out.shape = ir.Shape([symbol, *numbers])
    return out


def from_all_rows(
    graph: Graph, build: Builder, name: str, codes: Sequence[str], rows: ir.Value
) -> ir.Value:
    """The value of that name from its rows: `all_rows`, backwards."""
    shape, order = graph[name].shape or (), rows_first(codes)
    if list(codes) == ["c0", *["r"] * (len(codes) - 1)]:  # they are the value: no copy of it
        return rows
    sizes = build.concat([build.size(shape[d]) for d in order])
    out = build.op("Reshape", [rows, sizes], allowzero=1)
    if order != sorted(order):
        out = build.op("Transpose", [out], perm=[order.index(d) for d in range(len(order))])
    out.type = ir.TensorType(ir.DataType.from_numpy(graph.dtype(name)))
    out.shape = declared(dims_of(graph, build.value(name)) or ())
    return out


def rows_first(codes: Sequence[str]) -> list[int]:
    """Dimensions of one place first, then coordinates in order, then what a row is made of."""
    return sorted(range(len(codes)), key=lambda d: (codes[d] == "r", codes[d], d))


def replace_sizes(graph: Graph, build: Builder, node: ir.Node) -> None:
    """Replace a Shape node by sizes of graph inputs."""
    operand = node.inputs[0]
    shape = graph[operand.name or "" if operand is not None else ""].shape or ()
    ends = [attribute(node, k) for k in ("start", "end")]
    sizes = build.sizes(shape)[slice(*ends)]
    whole = build.concat(sizes) if sizes else build.constant(np.zeros(0, np.int64))
    old = node.outputs[0]
    name = old.name or ""
    if old.is_graph_output():
        (whole,) = build.node("", "Identity", [whole], {}, [f"{name}.sizes"])
        whole.type, whole.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([len(sizes)])
        old.name, whole.name = whole.name, old.name
    ir.convenience.replace_all_uses_with(old, whole, replace_graph_outputs=True)
    build.rebind(name, whole)


def forget_sizes(graph: Graph, build: Builder, values: Sequence[ir.Value]) -> None:
    """Free values from the Shape nodes that read them."""
    for value in values:
        for use in list(value.uses()):
            if reads_sizes(graph, value, use.node):
                replace_sizes(graph, build, use.node)

"""Outputs are 0 at the points that the user gave up, unless an SWrite has left them 0."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import Graph
from pitc.ir.index import Coords, invert
from pitc.ir.nodes import input_names
from pitc.ir.quirks import SELECTED_AS
from pitc.ir.region import Region, pull
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import live_points
from pitc.passes.regions.choose import Regions
from pitc.passes.regions.domain import domain_of
from pitc.passes.regions.matrix import dims_of


def zero_given_up(
    graph: Graph, build: Builder, name: str, given: Sequence[Region], regions: Regions
) -> None:
    """Make an output 0 at the points that the user gave up, unless an SWrite has done so.

    Args:
        graph: The analysed graph.
        build: Where nodes go.
        name: The output.
        given: Where it is given up.
        regions: The chosen forms.
    """
    written = {build.value(n).name or "": n for n in regions.demand.exits}
    for where in given:
        found = domain_of(where)
        if found is None or _is_settled(graph, regions, name, where, written):
            continue
        domain, coords = found
        old = build.value(name)
        dims = dims_of(graph, old) or ()
        live = _in_place(build, live_points(build, graph, domain), coords, len(dims))
        new = _kept_where(build, live, old, graph.dtype(name), f"{name}.live")
        new.type, new.shape = old.type, old.shape
        for k, output in enumerate(graph.model.graph.outputs):
            if output is old:
                graph.model.graph.outputs[k] = new
        old.name, new.name = new.name, name
        graph.values[old.name or ""] = graph[name]  # it is what the analysis calls so
        build.rebind(name, new)


def _is_settled(
    graph: Graph, regions: Regions, name: str, where: Region, written: Mapping[str, str]
) -> bool:
    """True for a value that SWrite leaves 0 at some points, or that is moved from such ones and
    from what the caller gives: keys are those of the past, then new ones.

    Args:
        graph: The analysed graph.
        regions: The chosen forms.
        name: The value.
        where: The points.
        written: By the names that results of SWrite have, what the analysis calls them.
    """
    node = regions.demand.exits.get(name)
    if node is not None:
        packings = regions.forms[node].outputs
        return any(p and p.name == name and p.domain.at(p.coords) == where for p in packings)
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or expr.combine is not Combine.MOVE:
        return False
    operands, tokens = input_names(node), {c.dim for t in where for p in t.idx for c in p.digits()}
    for read in expr.reads:
        operand = written.get(operands[read.operand], operands[read.operand])
        shape = graph[operand].shape
        if shape is None:
            return False
        if operand in graph.inputs:  # other tokens than those of this call
            if len(shape) != len(expr.shape) or all(shape[d] == expr.shape[d] for d in tokens):
                return False
            continue
        solved = invert(read.index, expr.extents, shape)
        inside = pull(where, [solved.get(d) for d in range(len(expr.extents))], expr.extents)
        if inside is None or not _is_settled(graph, regions, operand, inside, written):
            return False
    return True


def _kept_where(
    build: Builder, live: ir.Value, x: ir.Value, dtype: np.dtype, stem: str
) -> ir.Value:
    """The value where it is live, else 0, by operators that ONNX Runtime has for its type."""
    if dtype == np.bool_:
        return build.node("", "And", [live, x], {}, [stem])[0]
    carrier = np.dtype(SELECTED_AS[dtype.name])
    zero = build.constant(np.zeros((), carrier))
    if carrier == dtype:
        return build.node("", "Where", [live, x, zero], {}, [stem])[0]
    x = build.op("Cast", [x], to=ir.DataType.from_numpy(carrier))
    chosen = build.op("Where", [live, x, zero])
    return build.node("", "Cast", [chosen], {"to": ir.DataType.from_numpy(dtype)}, [stem])[0]


def _in_place(build: Builder, live: ir.Value, coords: Coords, rank: int) -> ir.Value:
    """Live points with a mask's coordinates at their dimensions of a value, and 1 elsewhere.

    [b, s] of a value [b, h, s, d], coordinates (d0, d2)   ->   [b, 1, s, 1]
    """
    places = [c.dim for c in coords]
    order = sorted(range(len(places)), key=places.__getitem__)
    if order != sorted(order):
        live = build.op("Transpose", [live], perm=order)
    for d in range(rank):
        if d not in places:
            live = build.unsqueeze(live, d)
    return live

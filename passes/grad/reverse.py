"""The engine: reverse mode over the nodes of a graph.

    gradients of results  ->  the node's adjoint  ->  gradients of its operands, last node first

A value that several nodes read gets the sum of what they give, in the order of the nodes.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from pitc.errors import ModelError
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.nodes import node_name, output_names
from pitc.passes.grad.adjoints import adjoint
from pitc.passes.grad.site import Backward, Site

HINT = "leave out of wrt what is only reached through it, or rewrite that part of the model"


def differentiable(graph: Graph, name: str) -> bool:
    """True for a value of floats."""
    dtype = graph[name].dtype
    return dtype is not None and (dtype.kind == "f" or dtype.name == "bfloat16")


def reached_from(graph: Graph, names: Iterable[str]) -> set[str]:
    """The values that some are computed with, by way of floats only."""
    found = {name for name in names if differentiable(graph, name)}
    for node in graph.nodes:
        operands = {x.name or "" for x in node.inputs if x is not None}
        if operands & found:
            found.update(o for o in output_names(node) if differentiable(graph, o))
    return found


def gradients(
    graph: Graph, build: Backward, seeds: Mapping[str, ir.Value], wrt: Collection[str]
) -> dict[str, ir.Value]:
    """The gradients of a loss with respect to some values.

    Args:
        graph: The graph, derived.
        build: Takes the nodes of the backward way.
        seeds: The loss's gradients of some values, by their names.
        wrt: Names of values.

    Returns:
        The gradients, by the names of the values; those that are 0 are left out.

    Raises:
        ModelError: A node on the way has no derivative here.
    """
    needed = reached_from(graph, wrt)
    parts: dict[str, list[ir.Value]] = {name: [g] for name, g in seeds.items()}
    found: dict[str, ir.Value] = {}

    def total(name: str) -> ir.Value | None:
        if name in parts:
            found[name] = build.total(parts.pop(name)[::-1])  # readers came from the last one on
        return found.get(name)

    for node in reversed(graph.nodes):
        results = tuple(total(o.name) if o.name else None for o in node.outputs)
        wanted = tuple(
            i for i, x in enumerate(node.inputs) if x is not None and (x.name or "") in needed
        )
        if not wanted or all(g is None for g in results):
            continue
        for i, g in _adjoint(Site(NodeView(graph, node), build, results, wanted)).items():
            value = node.inputs[i]
            assert value is not None
            parts.setdefault(value.name or "", []).append(g)
    sums = {name: total(name) for name in wrt}
    return {name: g for name, g in sums.items() if g is not None}


def _adjoint(site: Site) -> dict[int, ir.Value]:
    """The gradients of a node's operands, the last one first, as they are collected."""
    try:
        found = adjoint(site)
    except NoRule as why:
        name, op = node_name(site.view.node), site.view.op
        raise ModelError(f"no gradient of {op}: {why}", node=name, hint=HINT) from None
    return {i: found[i] for i in sorted(found, reverse=True)}


def ones_like(build: Backward, x: ir.Value, dtype: np.dtype) -> ir.Value:
    """The gradient of a value with respect to itself."""
    return build.op("Expand", [build.number(1, dtype), build.shape(x)])

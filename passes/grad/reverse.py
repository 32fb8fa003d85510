"""The engine: reverse mode over the nodes of a graph.

    gradients of results  ->  the node's adjoint  ->  gradients of its operands, last node first

A value that several nodes read gets the sum of what they give, in the order of the nodes.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from pitc.errors import ModelError
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.metadata import ONCE
from pitc.ir.nodes import captures, node_name
from pitc.passes.grad.adjoints import adjoint
from pitc.passes.grad.backward import Backward
from pitc.passes.grad.control import CONTROL
from pitc.passes.grad.reach import reached_from
from pitc.passes.grad.site import NoOperand, Site, Wrt
from pitc.passes.rules.record import key_of

HINT = "leave out of wrt what is only reached through it, or rewrite that part of the model"


def gradients(
    graph: Graph,
    build: Backward,
    seeds: Mapping[str, ir.Value],
    wrt: Collection[str],
    spared: Collection[str] = (),
) -> dict[str, ir.Value]:
    """The gradients of a loss with respect to some values.

    Args:
        graph: The graph, derived.
        build: Takes the nodes of the backward way.
        seeds: The loss's gradients of some values, by their names.
        wrt: Names of values.
        spared: Those that are left out where they are an operand without a derivative, such as the
            bounds of Clip. No node computes them.

    Returns:
        The gradients, by the names of the values; those that are 0 are left out.

    Raises:
        ModelError: A node on the way has no derivative here.
    """
    needed = reached_from(graph, wrt)
    parts: dict[str, list[ir.Value]] = {name: [g] for name, g in seeds.items()}
    found: dict[str, ir.Value] = {}
    out: set[str] = set()

    def total(name: str) -> ir.Value | None:
        if name in parts:
            found[name] = build.total(parts.pop(name)[::-1])  # readers came from the last one on
        return found.get(name)

    for node in reversed(graph.nodes):
        results = tuple(total(o.name) if o.name else None for o in node.outputs)
        wanted = tuple(
            i for i, x in enumerate(node.inputs) if x is not None and (x.name or "") in needed
        )
        inside = tuple(name for name in dict.fromkeys(captures(node)) if name in needed)
        if not (wanted or inside) or all(g is None for g in results):
            continue
        site = Site(NodeView(graph, node), build, results, wanted, inside, gradients)
        for place, g in _adjoint(site, spared, out).items():
            parts.setdefault(_name(node, place), []).append(g)
    sums = {name: total(name) for name in wrt if name not in out}
    return {name: g for name, g in sums.items() if g is not None}


def _name(node: ir.Node, place: Wrt) -> str:
    """The value that a gradient is of."""
    value = node.inputs[place] if isinstance(place, int) else None
    return str(place) if value is None else value.name or ""


def _adjoint(site: Site, spared: Collection[str], out: set[str]) -> dict[Wrt, ir.Value]:
    """The gradients of what a node reads, the last one first, as they are collected.

    Args:
        site: The node.
        spared: As of `gradients`.
        out: Gets the names of those that are left out.
    """
    control = CONTROL.get(key_of(site.view.node))
    found: dict[Wrt, ir.Value] = {}
    try:
        if why := site.view.node.metadata_props.get(ONCE):
            raise NoRule(why)
        pairs = adjoint(site).items() if control is None else control(site).items()
        found.update((place, g) for place, g in pairs)
    except NoRule as why:
        if isinstance(why, NoOperand) and (value := _name(site.view.node, why.place)) in spared:
            out.add(value)
            wanted = tuple(i for i in site.wanted if i != why.place)
            fewer = replace(site, wanted=wanted)
            return _adjoint(fewer, spared, out) if wanted or site.captured else {}
        name, op = node_name(site.view.node), site.view.op
        raise ModelError(f"no gradient of {op}: {why}", node=name, hint=HINT) from None
    order: list[Wrt] = sorted(place for place in found if isinstance(place, int))
    order += [place for place in found if isinstance(place, str)]
    return {place: found[place] for place in reversed(order)}


def ones_like(build: Backward, x: ir.Value, dtype: np.dtype) -> ir.Value:
    """The gradient of a value with respect to itself."""
    return build.full(1, dtype, build.shape(x))

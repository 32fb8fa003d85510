"""Bodies of loops, lowered as models of their own (`bodies.py`).

What a body captures and carries is an input of that model, so it must be as inputs are: finite. For
carried values that is so by induction. Whatever the body gives is read whole.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from pitc.ir.build import names_of
from pitc.ir.graph import Graph
from pitc.ir.kernel import KernelRequest
from pitc.ir.nodes import FIXED
from pitc.ir.prices import Prices
from pitc.ir.report import NodeRecord, RegionRecord
from pitc.passes.control.bodies import captured, states_of
from pitc.passes.control.branches import close_branches
from pitc.passes.control.graft import detach
from pitc.passes.facts.dead import dead_facts
from pitc.passes.lower.panels import Panels
from pitc.passes.lower.steps import lower
from pitc.passes.records import node_records, rewritten, with_host_copies
from pitc.passes.regions.choose import choose_regions


@dataclass(slots=True)
class LoweredBodies:
    """What lowering the bodies of a graph has made.

    Args:
        kernels: Kernels needed.
        panels: Panels made.
        nodes: One record for each node of a body that has packed nodes.
        regions: Their regions.
        host_copies: As of `Report`, in one turn of each loop.
    """

    kernels: dict[KernelRequest, None] = field(default_factory=dict)
    panels: Panels = field(default_factory=Panels)
    nodes: list[NodeRecord] = field(default_factory=list)
    regions: list[RegionRecord] = field(default_factory=list)
    host_copies: int = 0


def lower_bodies(
    graph: Graph, prices: Prices | None, check: Callable[[ir.Model, str], None]
) -> LoweredBodies:
    """Lower the body of every loop of an analysed graph that has facts, in place.

    Args:
        graph: The graph after `fill_facts`. Its model is changed.
        prices: Of contractions that skip zeros.
        check: Called with a body as a model, and the name of each step of its lowering.
    """
    out = LoweredBodies()
    for number, (node, inner) in enumerate(graph.bodies.items()):
        dead_facts(inner)
        regions = choose_regions(inner)
        if not regions.forms:
            continue
        for text in inner.assumptions:
            graph.assume(text, node)
        records = node_records(inner, regions)
        low = lower(inner, regions, {}, prices=prices, prefix=f"pitc.body{number}", check=check)
        out.nodes += rewritten(records, inner.nodes, low.packed.log)
        out.regions += with_host_copies(regions, low.forms)
        out.host_copies += sum(map(low.forms.host_copies, low.forms.detected))
        close_branches(inner.model)
        out.kernels |= low.packed.kernels
        out.panels.add(low.packed.panels)
        _put_back(graph.model, node, inner.model.graph)
    return out


def _put_back(model: ir.Model, node: ir.Node, body: ir.Graph) -> None:
    """Make a lowered copy the body of its loop: inputs and weights are the graph's again."""
    states = len(states_of(node))
    outer = {x.name: x for _, _, x in captured(node.attributes["body"].as_graph())}
    original = node.attributes.pop("body").as_graph()
    detach(original)
    names, main = names_of(model.graph), model.graph
    for value in body.inputs[FIXED + states :]:
        value.replace_all_uses_with(outer[value.name])
    del body.inputs[FIXED + states :]
    for name, value in list(body.initializers.items()):
        del body.initializers[name]
        if name in outer:
            value.replace_all_uses_with(outer[name])
        else:
            value.name = names.value(name)
            main.register_initializer(value)
    for value, declared in zip(body.inputs, original.inputs, strict=True):
        value.name = names.value(value.name or "")
        value.shape = declared.shape  # it decides what ONNX Runtime hands over
    names.rename(ir.traversal.RecursiveGraphIterator(body))
    for domain, version in body.opset_imports.items():
        main.opset_imports.setdefault(domain, version)
    node.attributes["body"] = ir.AttrGraph("body", body)

"""Demand: which nodes still run once some have packed forms, and which values are wanted whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import captures
from pitc.ir.sizes import sizes_known
from pitc.passes.regions.form import Form, PackedOperand, operand_domain, operand_names

Forms = Mapping[ir.Node, Form]


@dataclass(slots=True)
class Demand:
    """What the graph outputs need.

    Args:
        forms: Nodes that run in packed form.
        nodes: Nodes that run as they were.
        whole: Values that somebody reads unpacked.
        exits: Those of them that a packed form computes: each needs an SWrite.
        makers: For nodes in packed form, those that compute their operands so.
        readers: The other way round.
    """

    forms: set[ir.Node] = field(default_factory=set)
    nodes: set[ir.Node] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    exits: dict[str, ir.Node] = field(default_factory=dict)
    makers: dict[ir.Node, list[ir.Node]] = field(default_factory=dict)
    readers: dict[ir.Node, list[ir.Node]] = field(default_factory=dict)


def packed_by(forms: Forms, graph: Graph, operand: PackedOperand) -> ir.Node | None:
    """The node whose form computes an operand in just that packed layout."""
    node = graph[operand.name].producer
    form = None if node is None else forms.get(node)
    if node is None or form is None or form.scatters:
        return None
    for out in form.outputs:
        if out is not None and (out.name, out.domain, out.coords) == (
            operand.name,
            operand.domain,
            operand.coords,
        ):
            return node
    return None


def demand(graph: Graph, forms: Forms) -> Demand:
    """Walk back from the graph outputs."""
    out = Demand()
    todo_whole = list(graph.outputs)
    todo_forms: list[ir.Node] = []

    def want_form(node: ir.Node) -> None:
        if node not in out.forms:
            out.forms.add(node)
            todo_forms.append(node)

    while todo_whole or todo_forms:
        while todo_forms:
            reader = todo_forms.pop()
            made, whole = _operands(forms[reader], forms, graph)
            for maker in made:
                out.makers.setdefault(reader, []).append(maker)
                out.readers.setdefault(maker, []).append(reader)
                want_form(maker)
            todo_whole += whole
        if not todo_whole:
            break
        name = todo_whole.pop()
        if name in out.whole:
            continue
        out.whole.add(name)
        node = graph[name].producer
        if node is None:
            continue
        if node in forms:
            if name not in forms[node].whole:
                out.exits[name] = node
            want_form(node)
        elif node not in out.nodes:
            out.nodes.add(node)
            if is_shape_of_packed(graph, forms, node):
                continue  # its sizes are known without the value
            todo_whole += [x.name or "" for x in node.inputs if x is not None]
            todo_whole += list(captures(node))
    return out


def is_shape_of_packed(graph: Graph, forms: Forms, node: ir.Node) -> bool:
    """True for a Shape node whose operand runs packed and has sizes that graph inputs have too."""
    operand = node.inputs[0] if node.inputs else None
    if node.domain or node.op_type != "Shape" or operand is None or operand.name is None:
        return False
    shape, producer = graph[operand.name].shape, graph[operand.name].producer
    return producer in forms and shape is not None and sizes_known(graph, shape)


def _operands(form: Form, forms: Forms, graph: Graph) -> tuple[list[ir.Node], list[str]]:
    """The packed nodes that compute operands of a form, and the values that it reads whole."""
    makers, whole = list[ir.Node](), [factor.name for factor in form.factors]
    for operand in form.operands:
        maker = packed_by(forms, graph, operand) if isinstance(operand, PackedOperand) else None
        if maker is not None:
            makers.append(maker)
        else:
            whole += operand_names(operand)
        domain = operand_domain(operand)
        whole += () if domain is None else domain.sources()
    return makers, whole

"""Attention of all rows to live keys: the rows stay in their own order, over a domain of which no
point is dead; keys and values are packed.

    q = x @ wq      k = x @ wk  at live tokens      y = attention(q, k, ..)

So keys and values of padding are not computed, though every row of the result is read. What turns
the operands and the result of such a node costs nothing in that order; other steps gain nothing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

import onnx_ir as ir

from pitc.ir.expr import Combine, Shape
from pitc.ir.graph import Graph
from pitc.ir.nodes import first_output, input_names
from pitc.ir.sizes import ZERO_SIZES, sizes_known
from pitc.passes.regions.attention import attention_form, row_coords
from pitc.passes.regions.contraction import packed_rows
from pitc.passes.regions.domain import Coords, all_live
from pitc.passes.regions.form import (
    Form,
    FormContext,
    GatheredOperand,
    PackedOperand,
    Packing,
    Site,
)
from pitc.passes.regions.layout import layout_of
from pitc.passes.regions.packed import packed_form

Keys = Callable[[str], Iterable[FormContext]]


def forms_of_all_rows(
    graph: Graph,
    taken: Collection[ir.Node],
    contexts: Keys,
) -> Iterator[tuple[ir.Node, Form]]:
    """Nodes that could run so.

    Args:
        graph: The analysed graph.
        taken: Nodes that have a form already.
        contexts: Domains to which a value may belong.
    """
    free = [n for n in graph.nodes if n not in taken and not graph[first_output(n)].captured]
    if graph.opset < ZERO_SIZES:
        return
    for context in _contexts(graph, free, contexts):
        for node in free:
            packings = context.packings(first_output(node))
            forms = (_form(context, contexts, node, p) for p in packings)
            yield from ((node, f) for f in forms if f is not None)


def _contexts(graph: Graph, nodes: Iterable[ir.Node], contexts: Keys) -> list[FormContext]:
    """Domains without dead points, of the rows of contractions with packed keys."""
    starts: dict[Shape, dict[str, list[Coords]]] = {}
    for node in nodes:
        name = first_output(node)
        expr = graph[name].expr
        if expr is None or expr.combine is not Combine.PRODUCT or len(node.inputs) != 2:
            continue
        keys = contexts(input_names(node)[-1])
        values = (v for k in keys for v in packed_rows(k.packings, expr, node, 1))
        for coords in filter(None, (row_coords(expr, v) for v in values)):
            extents = tuple(c.extent for c in coords)
            if sizes_known(graph, extents):
                starts.setdefault(extents, {}).setdefault(name, []).append(coords)
    return [FormContext(graph, all_live(e), named) for e, named in starts.items()]


def _form(context: FormContext, contexts: Keys, node: ir.Node, packing: Packing) -> Form | None:
    """Attention, or a movement of whole rows."""
    expr = context.graph[packing.name].expr
    if expr is None:
        return None
    site = Site(context, node, expr, packing)
    if expr.combine is Combine.PRODUCT:
        form = attention_form(site, contexts(input_names(node)[-1]))
    elif expr.combine is Combine.MOVE:
        form = packed_form(site)
    else:
        return None
    return form if isinstance(form, Form) and has_elements(context, form) else None


def has_elements(context: FormContext, form: Form) -> bool:
    """True where every row has a known number of elements, which is not 0: the number of rows is
    then that of all elements over it.
    """
    layouts = [p.layout for p in form.outputs if p is not None]
    for operand in form.operands:
        if isinstance(operand, PackedOperand) and operand.domain == context.domain:
            layout = layout_of(context.graph[operand.name].shape or (), operand.coords)
            layouts += [layout] if layout is not None else []
        elif isinstance(operand, GatheredOperand):
            return False
    return all((e.as_int() or 0) > 0 for layout in layouts for e in layout.rest_shape)

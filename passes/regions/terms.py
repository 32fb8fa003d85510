"""Sums over live points: contractions whose packed axis is the one that they sum over (k).

    y[m, n] = sum over t of a[:, t] * b[t, :]       dw = x^T @ dy, dy 0 at tokens that do not exist

The terms that are left out have to be 0: a fill fact of one operand says so, where the other one is
finite, or dead itself. The result is whole: its rows stay in their own order.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from math import prod

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import is_zero
from pitc.ir.expr import TensorExpr, is_contraction
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, bare_dim
from pitc.ir.nodes import first_output, input_names, node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import EVERYWHERE, Region
from pitc.ir.sizes import ZERO_SIZES, sizes_known
from pitc.passes.facts.finite import finite_if
from pitc.passes.regions.contraction import (
    Kind,
    Rows,
    axis_kinds,
    factor_reads,
    packed_rows,
    read_of,
    to_iteration,
    to_operand,
)
from pitc.passes.regions.domain import Coords, Domain, all_live, covering, domain_of
from pitc.passes.regions.form import Form, FormContext, PackedOperand, Packing
from pitc.passes.regions.layout import layout_of, wide
from pitc.passes.rules.record import Packs, operator_of


def term_domains(graph: Graph, node: ir.Node) -> Iterator[Domain]:
    """What is left out of the sum of a contraction where rows of an operand are 0."""
    expr = graph[first_output(node)].expr
    if expr is None or not is_contraction(expr):
        return
    reads = factor_reads(expr)
    for read in reads:
        kinds = axis_kinds(expr, read, [r for r in reads if r is not read])
        value = node.inputs[read.operand]
        fills = () if value is None else graph[value.name or ""].fills
        for where in (f.region for f in fills if is_zero(f.constant)):
            domain, coords = domain_of(where) or (None, ())
            axes = [p and bare_dim(p) for p in (read.index[c.dim] for c in coords)]
            summed = {a for a, kind in kinds.items() if kind is Kind.K}
            if domain is not None and not domain.rarely_dead and summed.issuperset(axes):
                yield domain


def forms_of_terms(
    graph: Graph,
    taken: Collection[ir.Node],
    contexts: Callable[[Iterable[str]], Iterable[FormContext]],
) -> Iterator[tuple[ir.Node, Form | Refusal]]:
    """Contractions that could sum over live points only, and why others may not.

    Args:
        graph: The analysed graph.
        taken: Nodes that have a form already.
        contexts: Domains in which one of some operands may be 0, or unread.
    """
    if graph.opset < ZERO_SIZES:
        return
    for node in graph.nodes:
        name = first_output(node)
        expr = graph[name].expr
        if node in taken or expr is None or graph[name].captured:
            continue
        factors = [r.operand for r in factor_reads(expr)]
        known = factors == [0, 1] and sizes_known(graph, expr.shape)
        if known and operator_of(node).packs is Packs.CONTRACTION:  # others scale their sums
            tried = contexts(input_names(node)[:2])
            often = (c for c in tried if not c.domain.rarely_dead)
            found = (terms_form(context, node, expr) for context in often)
            yield from ((node, form) for form in found)


def terms_form(context: FormContext, node: ir.Node, expr: TensorExpr) -> Form | Refusal:
    """k: the sum over live points of products of rows, where the other terms are 0.

    Such a form reads packed values; its result has all rows, in their own order.

    Args:
        context: The domain that the summed axes range over.
        node: The contraction.
        expr: How its output is computed.
    """
    for known in (0, 1):
        for side in packed_rows(context.rows, expr, node, known):
            other = _other_rows(context, node, expr, 1 - known, side.coords)
            if other is None or not _are_all_summed(expr, side.coords):
                continue
            left, right = (other, side) if known else (side, other)
            rests_on = _zero_terms(context.graph, left.packing, right.packing)
            if rests_on is None:
                return Refusal(
                    Code.NO_FACT,
                    node_name(node),
                    "no operand is 0 at dead points",
                    side.packing.name,
                )
            return _sum_of_rows(context, node, expr, left, right, rests_on)
    return Refusal(Code.AXIS_NOT_PIT, node_name(node), "the packed axis is not summed over")


def _other_rows(
    context: FormContext, node: ir.Node, expr: TensorExpr, operand: int, coords: Coords
) -> Rows | None:
    """The rows of an operand at axes that are coordinates of the other one: a constant, too."""
    read, value = read_of(expr, operand), node.inputs[operand]
    mine = None if read is None else to_operand(coords, read)
    if read is None or mine is None or value is None:
        return None
    packing = context.packing_at(value.name or "", mine)
    rest = None if packing is None else to_iteration(wide(packing.layout.rest), read)
    return None if packing is None or rest is None else Rows(packing, coords, rest)


def _are_all_summed(expr: TensorExpr, coords: Coords) -> bool:
    """True where the coordinates are all that is summed over."""
    whole = layout_of(expr.extents, coords)
    return whole is not None and all(d.dim < len(expr.shape) for d in wide(whole.rest))


def _zero_terms(graph: Graph, left: Packing, right: Packing) -> tuple[Region, ...] | None:
    """Facts which say that terms at dead points are 0: of a zero, and of a factor that is finite
    there or that nobody looks at; None without such facts.
    """
    for zero, other in ((left, right), (right, left)):
        facts = [f.region for f in graph[zero.name].fills if is_zero(f.constant)]
        proof = covering(zero.domain, zero.coords, facts)
        finite = finite_if(graph, other.name)
        finite = None if finite is None else covering(other.domain, other.coords, [finite])
        if proof is not None and finite is not None:
            return (proof,)
        if proof is not None and other.proof is not None:
            return (proof, other.proof)
    return None


def _sum_of_rows(
    context: FormContext,
    node: ir.Node,
    expr: TensorExpr,
    left: Rows,
    right: Rows,
    rests_on: tuple[Region, ...],
) -> Form | Refusal:
    name, graph = first_output(node), context.graph
    rows, columns = ([d.dim for d in side.rest] for side in (left, right))
    every = [a for a, e in enumerate(expr.shape) if e != ONE]
    plain = all(
        d.stride == ONE and d.extent == expr.extents[d.dim] for d in (*left.rest, *right.rest)
    )
    if [*rows, *columns] != every or not plain or not rows or not columns:
        return Refusal(Code.LAYOUT, node_name(node), "rows and columns of the result are mixed")
    shapes = []
    for side in (left, right):
        sizes = [e.as_int() for e in side.packing.layout.rest_shape]
        static = [n for n in sizes if n is not None]
        if len(sizes) > 1 and len(static) < len(sizes):
            text = "extents that are joined to one dimension are not numbers"
            return Refusal(Code.DYNAMIC_DIM, node_name(node), text)
        shapes.append(None if len(sizes) == 1 else (prod(static),))
    if any(graph[x].dtype != np.float32 for x in (left.packing.name, right.packing.name)):
        return Refusal(Code.NO_LOWERING, node_name(node), "sums are lowered for float32 only")
    coords = tuple(Digit(a, ONE, expr.extents[a]) for a in rows)
    layout = layout_of(expr.shape, coords)
    if layout is None or len(node.inputs) > 2:
        return Refusal(Code.LAYOUT, node_name(node), "a bias is added to the sum")
    out = Packing(name, all_live(tuple(c.extent for c in coords)), coords, layout, EVERYWHERE)
    operands = (
        PackedOperand(side.packing.name, context.domain, side.packing.coords, shape)
        for side, shape in zip((left, right), shapes, strict=True)
    )
    turned = {"transA": 1, "transB": 0}
    return Form(
        (out,),
        tuple(operands),
        "Gemm",
        turned,
        rests_on=rests_on,
        terms=context.domain,
        copies=True,
        rule="sum of live terms",
    )

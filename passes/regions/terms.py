"""Sums over live points: contractions whose packed axis is the one that they sum over (k), and sums
of rows.

    y[m, n] = sum over t of a[:, t] * b[t, :]       dw = x^T @ dy, dy 0 at tokens that do not exist
    y[n] = sum over t of a[t, :]                    db = sum of dy

The terms that are left out have to be 0: a fill fact of one operand says so, where the other one is
finite, or dead itself. The result is whole: its rows stay in their own order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import cast

import numpy as np
import onnx_ir as ir

from pitc.ir.build import takes_list
from pitc.ir.expr import Combine, Reducer, Shape, TensorExpr, is_contraction
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit, bare_dim, dim_index, poly, total_of
from pitc.ir.nodes import attribute, first_input, first_output
from pitc.ir.plans.whole import AddRows, OuterProducts
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import EVERYWHERE, Region
from pitc.ir.sizes import sizes_known
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
from pitc.passes.regions.domain import Domain, all_live, covering, domain_of
from pitc.passes.regions.form import (
    COORDINATES,
    ConstantOperand,
    Form,
    OffsetsOperand,
    Operand,
    PackCandidate,
    PackedOperand,
    Packing,
    WholeOperand,
    static_shape,
    zero_facts,
)
from pitc.passes.regions.layout import layout_of, wide
from pitc.passes.regions.live_share import asks_lines
from pitc.passes.rules.record import PackRule, operator_of


def term_domains(graph: Graph, node: ir.Node) -> Iterator[Domain]:
    """What is left out of the sum of a contraction where rows of an operand are 0."""
    expr = graph[first_output(node)].expr
    if expr is None or not is_contraction(expr):
        return
    reads = factor_reads(expr)
    for read in reads:
        kinds = axis_kinds(expr, read, [r for r in reads if r is not read])
        value = node.inputs[read.operand]
        for where in () if value is None else zero_facts(graph, value.name or ""):
            domain, coords = domain_of(where) or (None, ())
            axes = [p and bare_dim(p) for p in (read.index[c.dim] for c in coords)]
            summed = {a for a, kind in kinds.items() if kind is Kind.K}
            if domain is not None and not asks_lines(graph, domain) and summed.issuperset(axes):
                yield domain


@dataclass(frozen=True, slots=True)
class LiveTerms:
    """A sum over live points of products of rows, where the other terms are 0.

    Args:
        left: Rows of the left operand.
        right: Of the right one.
        rests_on: Facts which say that the other terms are 0.
    """

    left: Rows
    right: Rows
    rests_on: tuple[Region, ...]


def live_terms(site: PackCandidate) -> LiveTerms | Refusal:
    """The rows of both operands of a contraction that the domain's points number."""
    graph, expr = site.context.graph, site.expr
    for known in (0, 1):
        for side in packed_rows(site.context.rows, expr, site.node, known):
            other = _other_rows(site, 1 - known, side.coords)
            if other is None or not _are_all_summed(expr, side.coords):
                continue
            left, right = (other, side) if known else (side, other)
            rests_on = _zero_terms(graph, left.packing, right.packing)
            if rests_on is None:
                text = "no operand is 0 at dead points"
                return site.refuse(Code.NO_FACT, text, side.packing.name)
            return LiveTerms(left, right, rests_on)
    return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is not summed over")


def _other_rows(site: PackCandidate, operand: int, coords: Coords) -> Rows | None:
    """The rows of an operand at axes that are coordinates of the other one: a constant, too."""
    read = read_of(site.expr, operand)
    mine = None if read is None else to_operand(coords, read)
    if read is None or mine is None:
        return None
    packing = site.context.packing_at(site.input(operand), mine)
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
        proof = covering(zero.domain, zero.coords, zero_facts(graph, zero.name))
        finite = finite_if(graph, other.name)
        finite = None if finite is None else covering(other.domain, other.coords, [finite])
        if proof is not None and finite is not None:
            return (proof,)
        if proof is not None and other.proof is not None:
            return (proof, other.proof)
    return None


def operands_of_sum(site: PackCandidate, terms: LiveTerms) -> tuple[Operand, ...] | Refusal:
    """Both operands as matrices whose rows are summed over."""
    expr, graph = site.expr, site.context.graph
    sides = terms.left, terms.right
    rows, columns = ([d.dim for d in side.rest] for side in sides)
    every = [a for a, e in enumerate(expr.shape) if e != ONE]
    plain = all(
        d.stride == ONE and d.extent == expr.extents[d.dim] for side in sides for d in side.rest
    )
    if [*rows, *columns] != every or not plain or not rows or not columns:
        return site.refuse(Code.LAYOUT, "rows and columns of the result are mixed")
    operands = list[PackedOperand]()
    for side in (terms.left.packing, terms.right.packing):
        joined, sizes = len(side.layout.rest) != 1, static_shape(side.layout.rest_shape)
        if joined and sizes is None:
            text = "extents that are joined to one dimension are not numbers"
            return site.refuse(Code.DYNAMIC_DIM, text)
        operands.append(side.operand((prod(sizes or ()),) if joined else None))
    if any(graph[o.name].dtype != np.float32 for o in operands):
        return site.refuse(Code.NO_LOWERING, "sums are lowered for float32 only")
    return tuple(operands)


def reduction_packed_form(site: PackCandidate) -> Form | Refusal:
    """k: the sum over live points of products of rows, where the other terms are 0.

    Such a form reads packed values; its result has all rows, in their own order.
    """
    expr, terms = site.expr, live_terms(site)
    operands = terms if isinstance(terms, Refusal) else operands_of_sum(site, terms)
    if isinstance(terms, Refusal) or isinstance(operands, Refusal):
        return cast(Refusal, operands)
    coords = tuple(Digit(d.dim, ONE, expr.extents[d.dim]) for d in terms.left.rest)
    layout = layout_of(expr.shape, coords)
    if layout is None or len(site.node.inputs) > 2:
        return site.refuse(Code.LAYOUT, "a bias is added to the sum")
    whole = all_live(tuple(c.extent for c in coords))
    out = Packing(site.out.name, whole, coords, layout, EVERYWHERE)
    form = Form((out,), operands, "Gemm", rests_on=terms.rests_on, terms=site.context.domain)
    if _has_kernel(site, whole.extents, layout.rest_shape):
        return replace(form, op_type="EPContext", plan=OuterProducts(masked=False))
    turned = {"transA": 1, "transB": 0}
    return replace(form, attributes=turned, materialises_operands=True)


def _has_kernel(site: PackCandidate, *sides: Shape) -> bool:
    """True for a sum that a node of ours computes: that of a matrix which is not small."""
    target, sizes = site.context.graph.target, [total_of(side).as_int() for side in sides]
    least = min((n for n in sizes if n is not None), default=target.least_extent)
    return (
        target.skips_right
        and attribute(site.node, "alpha", 1.0) == 1
        and least >= target.least_extent
    )


def sum_of_live_rows(site: PackCandidate) -> Form | Refusal:
    """The sum of rows of a value, where the others are 0: over all that the rows are counted by."""
    graph, expr = site.context.graph, site.expr
    if expr.reducer is not Reducer.SUM or operator_of(site.node).packs is not PackRule.REDUCTION:
        return site.refuse(Code.NO_LOWERING, f"{site.node.op_type} sums no rows")
    (read,) = expr.reads
    for packing in site.context.rows(site.input(0)):
        coords = to_iteration(packing.coords, read)
        rest = to_iteration(wide(packing.layout.rest), read)
        summed = tuple(c for c in coords or () if c.dim >= len(expr.shape))
        if coords is None or rest is None or not _are_all_summed(expr, summed or coords):
            continue
        proof = covering(packing.domain, packing.coords, zero_facts(graph, packing.name))
        if proof is None:
            return site.refuse(Code.NO_FACT, "the operand is not 0 at dead points", packing.name)
        if summed != coords:
            return _added(site, packing, coords, rest, (proof,))
        return _summed(site, packing, rest, proof)
    return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is not summed over")


def sum_of_scaled_rows(site: PackCandidate) -> Form | Refusal:
    """The sum of rows that are each multiplied by a number, where the others are 0: a contraction
    of which one operand has all axes of the other one.

    y[t, :] = sum over e of gate[t, e] * a[t, e, :]
    """
    expr = site.expr
    for known in (0, 1) if expr.combine is Combine.PRODUCT and len(expr.reads) == 2 else ():
        for side in packed_rows(site.context.rows, expr, site.node, known):
            other = _other_rows(site, 1 - known, side.coords)
            summed = tuple(c for c in side.coords if c.dim >= len(expr.shape))
            if other is None or other.rest or not _are_all_summed(expr, summed):
                continue
            if summed == side.coords:  # rows of the result are what a sum of all terms has, too
                continue
            proof = _zero_terms(site.context.graph, side.packing, other.packing)
            if proof is None:
                text = "no operand is 0 at dead points"
                return site.refuse(Code.NO_FACT, text, side.packing.name)
            return _added(site, side.packing, side.coords, side.rest, proof, other.packing)
    return site.refuse(Code.AXIS_NOT_PIT, "it is no sum of rows times numbers")


def _added(
    site: PackCandidate,
    packing: Packing,
    points: Coords,
    rest: Sequence[Digit],
    proof: tuple[Region, ...],
    factor: Packing | None = None,
) -> Form | Refusal:
    """Rows that are added to those that some coordinates number: what experts give to a token.

    y[t, :] = sum over e of a[e, t, :]      live (e, t)  ->  row of (e, t) added to row t of zeros
    """
    expr, graph = site.expr, site.context.graph
    coords = tuple(c for c in points if c.dim < len(expr.shape))
    every = [Digit(a, ONE, e) for a, e in enumerate(expr.shape) if e != ONE]
    sizes = static_shape(packing.layout.rest_shape)
    if [*coords, *rest] != every or sizes is None or not rest:
        return site.refuse(Code.LAYOUT, "the dimensions of the sum are not those of rows")
    layout = layout_of(expr.shape, coords)
    if graph.target.kind != "cpu" or graph[site.out.name].dtype != np.float32 or layout is None:
        return site.refuse(Code.NO_LOWERING, "rows are added in float32, on CPUs")
    if not layout.in_order:
        return site.refuse(Code.LAYOUT, "rows of the sum are not its first dimension")
    extents = tuple(c.extent for c in coords)
    if not sizes_known(graph, extents):
        return site.refuse(Code.DYNAMIC_DIM, "sizes of the sum are not those of an input")
    out = Packing(site.out.name, all_live(extents), coords, layout, EVERYWHERE)
    rows = packing.operand((prod(sizes),) if len(sizes) != 1 else None)
    factors = () if factor is None else (factor.operand((1,)),)
    return Form(
        (out,),
        (OffsetsOperand(packing.domain, "coords"), rows, *factors),
        "EPContext",
        {COORDINATES: tuple(map(points.index, coords))},
        plan=AddRows(sized=True, scaled=factor is not None),
        rests_on=proof,
        terms=packing.domain,
    )


def _summed(
    site: PackCandidate, packing: Packing, rest: Sequence[Digit], proof: Region
) -> Form | Refusal:
    expr, graph = site.expr, site.context.graph
    every = [a for a, e in enumerate(expr.shape) if e != ONE]
    plain = all(d.stride == ONE and d.extent == expr.extents[d.dim] for d in rest)
    sizes = static_shape(packing.layout.rest_shape)
    if [d.dim for d in rest] != every or not plain or not every or sizes is None:
        return site.refuse(Code.LAYOUT, "the dimensions of the sum are not those of a row")
    operand = packing.operand(None if len(packing.layout.rest) == 1 else (prod(sizes),))
    coords = tuple(Digit(a, ONE, expr.extents[a]) for a in every)
    layout = layout_of(expr.shape, coords)
    if layout is None:
        return site.refuse(Code.LAYOUT, "the sum has no rows")
    whole = all_live(tuple(c.extent for c in coords))
    out = Packing(site.out.name, whole, coords, layout, EVERYWHERE)
    op, named = site.node.op_type, {"keepdims": 0}
    operands: list[Operand | None] = [operand]
    if takes_list(op, graph.opset):
        operands.append(ConstantOperand(np.zeros(1, np.int64)))
        return Form((out,), tuple(operands), op, named, rests_on=(proof,), terms=packing.domain)
    attributes = {**named, "axes": [0]}
    return Form((out,), tuple(operands), op, attributes, rests_on=(proof,), terms=packing.domain)


def scatter_of_live_rows(site: PackCandidate) -> Form | Refusal:
    """Rows that are added where index vectors say, where the others are 0.

    grad[ids[t], :] += dy[t, :]       dy is 0 at tokens that do not exist
    """
    graph, expr = site.context.graph, site.expr
    found = [r for r in expr.reads if r.operand == 2]
    if expr.reducer is not Reducer.SUM or len(site.node.inputs) != 3 or not found:
        return site.refuse(Code.NO_LOWERING, f"{site.node.op_type} adds no rows")
    updates, places = found[0], read_of(expr, 1)
    for packing in site.context.rows(site.input(2)):
        coords = to_iteration(packing.coords, updates)
        mine = None if coords is None or places is None else to_operand(coords, places)
        index = None if mine is None else site.context.packing_at(site.input(1), mine)
        if index is None or len(packing.layout.rest) != 1 or len(index.layout.rest) != 1:
            continue
        if not _are_all_summed(expr, coords or ()):  # rows stay in their own order
            continue
        place = _place_of_rows(site, mine or ())
        proof = covering(packing.domain, packing.coords, zero_facts(graph, packing.name))
        if proof is None:
            return site.refuse(Code.NO_FACT, "the operand is not 0 at dead points", packing.name)
        if not graph[site.out.name].sign_unseen:
            text = "it may hold -0.0, which adding 0 changes"
            return site.refuse(Code.NO_FACT, text, site.input(0))
        rows = (Digit(0, ONE, expr.shape[0]),)
        layout = layout_of(expr.shape, rows)
        if layout is None or len(expr.shape) != 2:
            return site.refuse(Code.LAYOUT, "the result is no matrix")
        out = Packing(site.out.name, all_live((expr.shape[0],)), rows, layout, EVERYWHERE)
        count = expr.shape[0].as_int()
        zeros = next((r for r in zero_facts(graph, site.input(0)) if not r), None)
        if place is not None and count and zeros is not None:
            return Form(
                (out,),
                (place.operand(), packing.operand()),
                "EPContext",
                plan=AddRows(n=count),
                rests_on=(proof, zeros),
                terms=packing.domain,
            )
        operands = (WholeOperand(site.input(0)), index.operand(), packing.operand())
        return Form((out,), operands, site.node.op_type, rests_on=(proof,), terms=packing.domain)
    return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is not that of index vectors")


def _place_of_rows(site: PackCandidate, coords: Coords) -> Packing | None:
    """Index vectors of one number, or indices that are the same along rows, as one number a row."""
    graph, name = site.context.graph, site.input(1)
    if graph.target.kind != "cpu" or graph[site.out.name].dtype != np.float32:
        return None
    expr, node = graph[name].expr, graph[name].producer
    spread = graph[name].shape != (*(graph[name].shape or ())[:-1], ONE)
    if spread:
        read = None if expr is None or expr.combine is not Combine.MOVE else read_of(expr, 0)
        if node is None or expr is None or read is None or len(expr.shape) != 2:
            return None
        rows = (dim_index(0, expr.shape[0]), poly(0))
        if read.index != rows or graph[first_input(node)].shape != (expr.shape[0], ONE):
            return None
        name = first_input(node)
    packing = site.context.packing_at(name, coords)
    return packing if packing is not None and graph[name].dtype == np.int64 else None

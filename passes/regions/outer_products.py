"""Sampled sums of outer products: gradients of weights under a mask.

    dw[m, n] = mask[m, n] * sum over t of x[t, m] * dy[t, n]       dw = x^T @ dy

Single elements (m x n) are left out, as of any sampled product, and both operands are read as they
lie: rows are what is summed over, however many there are. Rows that are packed already stay so,
where the terms of the others are 0 (`terms.py`): padding and a mask of weights meet here.
"""

from dataclasses import replace

import numpy as np

from pitc.ir.index import ONE, Digit, dim_index
from pitc.ir.nodes import attribute
from pitc.ir.plans.whole import OuterProducts
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region
from pitc.passes.regions.contraction import factor_reads
from pitc.passes.regions.form import Form, OffsetsOperand, Operand, PackCandidate, WholeOperand
from pitc.passes.regions.stored import origins
from pitc.passes.regions.terms import live_terms, operands_of_sum


def outer_products(site: PackCandidate) -> Form | Refusal:
    """Single elements (m x n) of a product of a transposed matrix and another one."""
    graph, expr = site.context.graph, site.expr
    every = tuple(Digit(d, ONE, e) for d, e in enumerate(expr.shape))
    if not graph.target.skips_right or len(every) != 2 or site.out.coords != every:
        return site.refuse(Code.NO_KERNEL, "a product of single elements (m x n) has no kernel")
    if attribute(site.node, "alpha", 1.0) != 1 or len(site.node.inputs) > 2:
        return site.refuse(Code.LAYOUT, "a bias is added to the product, or it is scaled")
    if graph[site.out.name].dtype != np.float32:
        return site.refuse(Code.NO_LOWERING, "elements are lowered for float32 only")
    sizes, least = (e.as_int() for e in (*expr.shape, *expr.reduced)), graph.target.least_extent
    if any(n is not None and n < least for n in sizes):
        return site.refuse(Code.NO_GAIN, "its operands have few rows or columns")
    live = OffsetsOperand(site.context.domain, "live")
    operands, facts = _live_rows(site) or (_as_they_lie(site), ())
    if operands is None:
        return site.refuse(Code.LAYOUT, "the left operand is not stored transposed", site.input(0))
    plan = OuterProducts(masked=True)
    return Form((site.out,), (*operands, live), "EPContext", plan=plan, rests_on=facts)


def _live_rows(site: PackCandidate) -> tuple[tuple[Operand, ...], tuple[Region, ...]] | None:
    """Operands that are packed along what is summed over, and what that rests on."""
    seen = {id(c): c for k in (0, 1) for c in site.beside(site.input(k))}
    for context in seen.values():
        if context.domain.lives_everywhere:
            continue
        found = live_terms(replace(site, context=context))
        if isinstance(found, Refusal):
            continue
        operands = operands_of_sum(replace(site, context=context), found)
        if not isinstance(operands, Refusal):
            return operands, found.rests_on
    return None


def _as_they_lie(site: PackCandidate) -> tuple[Operand, ...] | None:
    """The matrices `[k, m]` and `[k, n]` that the operands are made of, each all of it: a part of
    one has the same index.
    """
    graph, expr, found = site.context.graph, site.expr, list[Operand]()
    if len(expr.reduced) != 1:
        return None
    last, (terms,) = len(expr.shape), expr.reduced
    for read, axis in zip(factor_reads(expr), (0, 1), strict=True):
        shape = terms, expr.shape[axis]
        index = dim_index(last, shape[0]), dim_index(axis, shape[1])
        moved = origins(graph, site.input(read.operand), read.index, scaled=False)
        name = next((x.name for x in moved if (x.index, graph[x.name].shape) == (index, shape)), "")
        if not name:
            return None
        found.append(WholeOperand(name))
    return tuple(found)

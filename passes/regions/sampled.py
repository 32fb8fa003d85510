"""Sampled products: single elements of a product are left out (m x n).

    y[m, n] = mask[m, n] * sum over k of a[m, k] * b[k, n]        a masked weight gradient, scores

The elements that the mask hides are dead. The node computes the others in place: its result is
whole and holds 0 where it is dead, as behind an SWrite, so the same conditions hold for it.
"""

import numpy as np

from pitc.ir.index import ONE, Digit, dim_index
from pitc.ir.nodes import is_plain_product
from pitc.ir.plans.ops import Contract
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.contraction import factor_reads
from pitc.passes.regions.form import Form, OffsetsOperand, PackCandidate, WholeOperand
from pitc.passes.regions.live_tests import input_mask
from pitc.passes.regions.sparse import SparseOperand, sparse_operand


def sampled(site: PackCandidate) -> Form | Refusal:
    """Single elements (m x n) of a product of two matrices."""
    graph, expr = site.context.graph, site.expr
    every = tuple(Digit(d, ONE, e) for d, e in enumerate(expr.shape))
    if not graph.target.skips_right or len(every) != 2 or site.out.coords != every:
        return site.refuse(Code.NO_KERNEL, "a product of single elements (m x n) has no kernel")
    if not is_plain_product(site.node) or len(site.node.inputs) > 2:
        return site.refuse(Code.LAYOUT, "a bias is added to the product, or it is scaled")
    (_, n), (k,) = expr.shape, expr.reduced
    turned = factor_reads(expr)[1].index == (dim_index(1, n), dim_index(2, k))
    if graph[site.out.name].dtype != np.float32:
        return site.refuse(Code.NO_LOWERING, "elements are lowered for float32 only")
    terms, columns = k.as_int(), n.as_int()
    if terms is None or columns is None:
        return site.refuse(Code.DYNAMIC_DIM, f"it sums {k} products in each of {n} columns")
    if min(terms, columns) < graph.target.least_extent:
        return site.refuse(Code.NO_GAIN, f"it sums only {k} products in each of {n} columns")
    given = input_mask(graph, site.context.domain)
    if not given and isinstance(sparse_operand(site), SparseOperand):
        text = "zeros of an operand are skipped instead: they fall in blocks more often"
        return site.refuse(Code.NO_GAIN, text)
    plan = Contract(
        activation="none",
        bias=False,
        dtype="float32",
        k=terms,
        n=columns,
        residual=False,
        right="nk" if turned else "kn",
        skips=True,
        tiles=True,
    )
    left, right = (WholeOperand(site.input(i)) for i in (0, 1))
    live = OffsetsOperand(site.context.domain, "live")
    return Form((site.out,), (left, right, live), "EPContext", plan=plan)

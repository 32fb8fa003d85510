"""Operands of contractions that may hold zeros when the model runs.

    y[.., m, n] = sum over k of x[.., m, k] * w[.., k, n]

A term with x = 0 is 0 and may be left out, if w is finite. Whether an operand has zeros is seen in
its own elements when the model runs; a fill fact "x is 0 where this run-time value is 0" says only
where looking pays. It has to test along k, and along a dimension that is the operand's own: a mask
over whole rows, or over the keys of a batch, is what packed regions are for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Read, TensorExpr, is_contraction
from pitc.ir.graph import CHUNK, Graph, NodeView
from pitc.ir.index import ZERO, Poly, dim_index
from pitc.ir.nodes import is_plain_product, node_name
from pitc.ir.plans.whole import Grouped
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, Test, describe
from pitc.passes.regions.channels import is_convolution
from pitc.passes.regions.contraction import Kind, axis_kinds, factor_reads
from pitc.passes.regions.form import (
    Form,
    PackCandidate,
    Skip,
    operand_names,
    static_shape,
    zero_facts,
)
from pitc.passes.regions.matrix import bias_row, has_bias, has_kernels, is_large, right_matrix


@dataclass(frozen=True, slots=True)
class SparseOperand(Skip):
    """An operand of a contraction with zeros that are known only when the model runs.

    Args:
        operand: Which input of the node.
        name: The value.
        where: The fill facts that say so, as text in the coordinates of the operand.
    """

    lowering = "contract"
    operand: int
    name: str
    where: tuple[str, ...]

    def __str__(self) -> str:
        return f"operand {self.operand} is 0 where {' or '.join(self.where)}"


def sparse_operand(site: PackCandidate) -> SparseOperand | Refusal:
    """The operand of a contraction whose zeros are skipped: the right one, if it may hold some."""
    each = sparse_operands(site.context.graph, site.node)
    found = [x for x in each if isinstance(x, SparseOperand)]
    if not found:
        return next(iter(each), site.refuse(Code.NO_FACT, "no operand is known to hold zeros"))
    is_right = is_plain_product(site.node)
    operand = next((x for x in found if x.operand and is_right), found[0])
    why = _why_not_lowered(site, operand)
    return operand if why is None else site.refuse(*why, operand.name)


def sparse_operands(graph: Graph, node: ir.Node) -> list[SparseOperand | Refusal]:
    """The operands of a contraction that may hold zeros when the model runs, or why nothing may be
    skipped though one does.

    Args:
        graph: The graph after `fill_facts`.
        node: Any node.
    """
    view = NodeView(graph, node)
    expr = graph[view.out()].expr
    if expr is None or not is_contraction(expr):
        return []
    return [x for read in factor_reads(expr) if (x := _operand(view, expr, read)) is not None]


def _operand(view: NodeView, expr: TensorExpr, read: Read) -> SparseOperand | Refusal | None:
    """What one factor is; None where nothing says that it holds zeros."""
    graph, name = view.graph, view.name(read.operand)
    facts = [r for r in zero_facts(graph, name) if _looks_at_zeros(graph, r)]
    if not facts:
        return None
    others = [r for r in factor_reads(expr) if r is not read]
    kinds = axis_kinds(expr, read, others)
    if Kind.K not in kinds.values():
        text = f"'{name}' may hold zeros, but no axis that is summed over can be permuted"
        return Refusal(Code.AXIS_NOT_PIT, node_name(view.node), text, name)
    dims = _dim_kinds(expr, read, kinds)
    facts = [r for r in facts if _tells_elements_apart(r, dims)]
    if not facts:
        return None
    bad = next(filter(graph.exceptional, _weights(view, others)), None)
    if bad is not None:
        return _not_finite(graph, view, bad)
    where = tuple(dict.fromkeys(map(describe, _first(graph, facts))))
    return SparseOperand((view.node,), read.operand, name, where)


def sparse_rows(graph: Graph, node: ir.Node, form: Form) -> SparseOperand | None:
    """The rows of a grouped product, where they may hold zeros and a look at them may pay."""
    if not isinstance(form.plan, Grouped) or graph.target.kind != "cpu":
        return None
    plan, (rows, _, table) = form.plan, form.operands
    if plan.k * plan.n < graph.target.least_weight:
        return None
    if any(map(graph.exceptional, operand_names(table))):  # 0 times Inf is NaN
        return None
    found = (x for x in sparse_operands(graph, node) if isinstance(x, SparseOperand))
    return next((x for x in found if x.name in operand_names(rows)), None)


def _why_not_lowered(site: PackCandidate, operand: SparseOperand) -> tuple[Code, str] | None:
    """Why no kernel skips zeros of an operand, or none that is worth it."""
    graph, node, target = site.context.graph, site.node, site.context.graph.target
    if is_convolution(node):
        text = "zeros of single places are not skipped by a convolution, only those of channels"
        return Code.NO_LOWERING, text
    if not is_plain_product(node):
        return Code.NO_LOWERING, "kernels skip zeros of MatMul and of Gemm"
    if operand.operand and not target.skips_right:
        text = f"zeros of the right operand '{operand.name}' are skipped on CPUs only"
        return Code.NO_LOWERING, text
    matrix, constant = right_matrix(graph, node, node), not operand.operand
    if matrix is None or matrix.constant != constant or not has_kernels(graph, matrix.value):
        types = ", ".join(str(t.numpy()) for t in target.types)
        text = f"multiplied by no constant matrix of {types}"
        text = text if constant else "no float32 matrix of known extents"
        return Code.NO_LOWERING, f"'{operand.name}' is {text}"
    if has_bias(node) and bias_row(node, matrix.n) is None:
        return Code.NO_LOWERING, f"its bias is not a constant row of {matrix.n}"
    if not is_large(graph, matrix) or matrix.k * matrix.n < target.least_weight:
        return Code.NO_GAIN, f"the matrix has only {matrix.k} x {matrix.n} elements"
    sizes = static_shape(site.expr.extents)
    if sizes and prod(sizes) < target.least_products:
        text = f"it sums only {prod(sizes)} products in every run: too few for a node of its own"
        return Code.NO_GAIN, text
    return None


def _looks_at_zeros(graph: Graph, r: Region) -> bool:
    """True for "where this run-time value is 0", with tests of positions besides."""
    return any(t.src for t in r) and all(_is_zero_test(graph, t) for t in r)


def _is_zero_test(graph: Graph, t: Test) -> bool:
    if t.alls or t.somes or not t.src:
        return not (t.alls or t.somes)
    truth = graph[t.src].dtype == np.bool_  # a bool may as well say where to write 0
    return t.pred == "nz" and (not t.yes or truth) and not graph.is_constant(t.src)


def _first(graph: Graph, facts: list[Region]) -> list[Region]:
    """The facts without those about values that are computed from other sources: where the zeros
    come from.
    """
    above, bits = graph.ancestors(), 0
    for t in (t for r in facts for t in r if t.src):
        bits |= graph[t.src].bit
    return [r for r in facts if not any(above.get(x, 0) & bits for x in r.sources)] or facts


def _dim_kinds(expr: TensorExpr, read: Read, kinds: Mapping[int, Kind]) -> dict[int, Kind | None]:
    """What each dimension of the operand is, those of extent 1 left out; None where it is no axis
    that may be permuted.
    """
    by_index: dict[Poly | None, Kind] = {
        dim_index(a, expr.extents[a]): kind for a, kind in kinds.items()
    }
    return {d: by_index.get(p) for d, p in enumerate(read.index) if p != ZERO}


def _tells_elements_apart(r: Region, kinds: Mapping[int, Kind | None]) -> bool:
    """True where the tests tell elements of the operand apart: along k, and along what else it does
    not share with the other operands.
    """
    tested = {kinds[d] for t in r if t.src for d in t.dims() if d in kinds}
    own = {kind for kind in kinds.values() if kind in (Kind.M, None)}
    return Kind.K in tested and (not own or bool(tested & own))


def _weights(view: NodeView, others: Iterable[Read]) -> tuple[str, ...]:
    """The constants that the other operands are, or are made of; none where one is computed when
    the model runs: that is checked for Inf and NaN as it is packed.
    """
    matrix = right_matrix(view.graph, view.node, view.node)
    stored = {1: matrix.value.name or ""} if matrix is not None and matrix.constant else {}
    names = tuple(stored.get(r.operand) or view.name(r.operand) for r in others)
    return names if all(map(view.graph.is_constant, names)) else ()


def _not_finite(graph: Graph, view: NodeView, weight: str) -> Refusal:
    """Where the first Inf or NaN of a constant stands, and which it is."""
    x = graph.array(weight)
    assert x is not None
    flat, start = x.reshape(-1), 0
    while np.isfinite(part := flat[start : start + CHUNK].astype(np.complex128)).all():
        start += CHUNK
    at = start + int(np.isfinite(part).argmin())
    index = [int(i) for i in np.unravel_index(at, x.shape)]
    text = f"'{weight}' holds {flat[at]} at {index}; a product of 0 with it is NaN"
    return Refusal(Code.NON_FINITE_WEIGHT, node_name(view.node), text, weight)

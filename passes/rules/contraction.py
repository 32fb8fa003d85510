"""Contractions: sums of products.

    MatMul  y[.., m, n] = sum_k a[.., m, k] * b[.., k, n]
    Gemm    y[m, n] = sum_k a[m, k] * b[k, n] + c[m, n]
    Einsum  y[out] = sum over the labels that are not in out, of the product of all operands
    Conv    y[n, m, p] = sum_{c,i} x[n, c, p * stride + i * dilation - pad] * w[m, c, i] + b[m]

An operand is a tuple of labels, one per dimension. Labels that the output lacks are reduced.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import Poly, dim_index
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import (
    aligned,
    broadcast_extent,
    broadcast_read,
    check_finite,
    joint_extent,
    move,
)
from pitc.passes.rules.record import Adjoint, Items, Operator, PackRule
from pitc.passes.rules.registry import MICROSOFT, rule


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor of a contraction.

    Args:
        number: Which input of the node.
        labels: One label per dimension.
        shape: Its extents.
    """

    number: int
    labels: tuple[str, ...]
    shape: Shape


def contract(
    view: NodeView,
    out: Sequence[str],
    operands: Sequence[Operand],
    combine: Combine = Combine.PRODUCT,
    equal: frozenset[str] = frozenset(),
) -> TensorExpr:
    """The contraction of labelled operands.

    Args:
        view: The node.
        out: Labels of the output.
        operands: The factors.
        combine: PRODUCT, or what else a point does with its elements.
        equal: Labels whose extents must be equal; those of the others broadcast.
    """
    found: dict[str, list[Poly]] = {}
    for operand in operands:
        if len(set(operand.labels)) < len(operand.labels):
            raise NoRule(f"a label occurs twice in {''.join(operand.labels)}")
        if len(operand.labels) != len(operand.shape):
            raise NoRule(f"rank {len(operand.shape)} does not fit {''.join(operand.labels)}")
        for label, extent in zip(operand.labels, operand.shape, strict=True):
            found.setdefault(label, []).append(extent)
    extent_of = {
        label: joint_extent(es) if label in equal else broadcast_extent(es, view.joined)
        for label, es in found.items()
    }
    reduced = [label for label in extent_of if label not in out]
    axis = {label: a for a, label in enumerate([*out, *reduced])}

    def place(label: str, extent: Poly) -> Poly | None:
        size = extent_of[label]
        return (
            dim_index(axis[label], size) if label in equal else aligned(axis[label], extent, size)
        )

    reads = tuple(
        Read(o.number, tuple(place(n, e) for n, e in zip(o.labels, o.shape, strict=True)))
        for o in operands
    )
    return TensorExpr(
        tuple(extent_of[label] for label in out),
        reads,
        tuple(extent_of[label] for label in reduced),
        combine,
        Reducer.SUM if reduced else Reducer.NONE,
    )


def matrix_labels(rank: int, own: str, own_first: bool, batch: list[str]) -> tuple[str, ...]:
    """Labels of a matrix operand: (.., own, k) or (.., k, own); (k) for a vector."""
    if rank < 1:
        raise NoRule("a matrix product of a scalar")
    if rank == 1:
        return ("k",)
    mine = batch[len(batch) - (rank - 2) :]
    return (*mine, own, "k") if own_first else (*mine, "k", own)


def _batch_transposed(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Labels when the first dimension is moved behind the batch dimensions by the operator."""
    return (labels[-2], *labels[:-2], labels[-1]) if len(labels) > 2 else labels


def matrices(view: NodeView) -> tuple[list[str], list[Operand]]:
    """Output labels and operands of the matrix products of inputs 0 and 1."""
    ranks = [view.rank(0), view.rank(1)]
    batch = [f"b{k}" for k in range(max(*ranks, 2) - 2)]
    a = matrix_labels(ranks[0], "m", not view.attr("transA", 0), batch)
    b = matrix_labels(ranks[1], "n", bool(view.attr("transB", 0)), batch)
    if view.attr("transBatchA", 0):
        a = _batch_transposed(a)
    if view.attr("transBatchB", 0):
        b = _batch_transposed(b)
    out = [*batch, *(["m"] if "m" in a else []), *(["n"] if "n" in b else [])]
    return out, [Operand(0, a, view.shape(0)), Operand(1, b, view.shape(1))]


ROWS_AND_COLUMNS = frozenset({"m", "k", "n"})


@rule(
    "MatMul",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(
        packs=PackRule.CONTRACTION,
        kernels=("gather_gemm", "attention"),
        adjoint=Adjoint.PRODUCT,
    ),
)
@rule(
    "FusedMatMul",
    "TransposeMatMul",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(items=Items.ANY, adjoint=Adjoint.PRODUCT),
)
def matmul(view: NodeView) -> list[TensorExpr]:
    """Matrix product with broadcast batch dimensions; the fused form transposes and scales."""
    check_finite(view, "alpha")
    out, operands = matrices(view)
    return [contract(view, out, operands, equal=ROWS_AND_COLUMNS)]


@rule(
    "Gemm",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(
        packs=PackRule.CONTRACTION,
        items=Items.ANY,
        kernels=("gather_gemm",),
        adjoint=Adjoint.PRODUCT,
    ),
)
@rule(
    "FusedGemm", domain=MICROSOFT, assumes=(Assumes.FITTING_SIZES,), has=Operator(items=Items.ANY)
)
def gemm(view: NodeView) -> list[TensorExpr]:
    """Matrix product of matrices plus a broadcast bias; the fused form ends in an activation."""
    check_finite(view, "alpha", "beta")
    if view.rank(0) != 2 or view.rank(1) != 2:
        raise NoRule("operands are not matrices")
    out, operands = matrices(view)
    activation = view.op == "FusedGemm"
    combine = Combine.BIASED_PRODUCT if view.has(2) or activation else Combine.PRODUCT
    expr = contract(view, out, operands, combine, ROWS_AND_COLUMNS)
    if not view.has(2):
        return [expr]
    bias = broadcast_read(2, view.shape(2), expr.shape)
    return [TensorExpr(expr.shape, (*expr.reads, bias), expr.reduced, combine, expr.reducer)]


@rule(
    "Einsum",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(powers=(1,), adjoint=Adjoint.PRODUCT),
)
def einsum(view: NodeView) -> list[TensorExpr]:
    """Any product of operands by labels; the output may be implicit, and `...` is broadcast."""
    left, arrow, right = str(view.attr("equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != view.n_inputs:
        raise NoRule(f"equation {left} does not fit {view.n_inputs} operands")
    operands, spread = [], 0
    for i, term in enumerate(terms):
        ellipsis = view.rank(i) - len(term.replace("...", "")) if "..." in term else 0
        if ellipsis < 0:
            raise NoRule(f"rank {view.rank(i)} does not fit {term}")
        operands.append(Operand(i, _labels(term, ellipsis), view.shape(i)))
        spread = max(spread, ellipsis)
    if not arrow:
        letters = "".join(terms).replace("...", "")
        right = ("..." if "..." in left else "") + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    out = _labels(right, spread)
    known = {label for o in operands for label in o.labels}
    if len(set(out)) < len(out) or not known >= set(out):
        raise NoRule(f"output labels {right} are not different labels of the operands")
    (first, *others) = operands
    if not others and sorted(first.labels) == sorted(out):  # no factor, and no sum: a transposition
        if len(first.labels) != len(first.shape):
            raise NoRule(f"{len(first.labels)} labels of an operand of rank {len(first.shape)}")
        extents = dict(zip(first.labels, first.shape, strict=True))
        index = tuple(dim_index(out.index(label), e) for label, e in extents.items())
        return [move(tuple(extents[label] for label in out), index)]
    return [contract(view, out, operands)]


def _labels(term: str, ellipsis: int) -> tuple[str, ...]:
    """Letters of one einsum term, `...` as the last `ellipsis` broadcast labels."""
    before, dots, after = term.partition("...")
    spread = [f"...{k}" for k in range(ellipsis, 0, -1)] if dots else []
    return (*before, *spread, *after)

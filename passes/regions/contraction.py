"""Contractions with a packed axis: any axis of a sum of products that may be permuted.

    y[e, m, n] = sum over k of a[e, m, k] * b[e, k, n]

Which form a contraction has follows from the axes that the packed one ranges over, not from its
operator (`FORMS` in `forms.py`):

m       y[t, n] = a[t, :] @ b               rows of a, of b none
n       y[t, m] = b[:, t] @ a               columns of b, of a none
e       y[t, m, n] = a[t] @ b[t]            a product for every live point
k       y[m, n] = sum over t of a[:, t] * b[t, :], where the terms left out are 0 (`terms.py`)
m, n    elements of y: a sampled product (`sampled.py`), or a sum of outer products of rows
        (`outer_products.py`)
e, m    rows of y of one group: a grouped product, of which there is none either

To gather a live operand is exact, so only the output has to be dead where it is left out (m, n, e);
a term of a sum has to be 0 there (k).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine, Read, Shape, TensorExpr
from pitc.ir.index import ONE, Coords, Digit, bare_dim, digit, dim_index, invert
from pitc.ir.nodes import attribute, input_names
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.form import (
    Form,
    FormRule,
    GatheredOperand,
    Operand,
    PackCandidate,
    Packing,
    WholeOperand,
    broadcast_operand,
    static_shape,
)
from pitc.passes.regions.layout import coordinate_codes, read_along, wide


class Kind(Enum):
    """What an axis of a contraction is to one of its operands."""

    M = "m"  # of the output, and of no other operand
    N = "n"  # of the output, and of the others only
    K = "k"  # of all operands, summed over
    E = "e"  # of all operands and of the output


def axis_kinds(expr: TensorExpr, mine: Read, others: Iterable[Read]) -> dict[int, Kind]:
    """What each PIT axis of a contraction is to one factor, by number.

    Args:
        expr: The contraction.
        mine: How that factor is read.
        others: How the other factors are.
    """
    pit, found = set(expr.pit_axes()), dict[int, Kind]()
    own, theirs = _bare_axes(expr, mine), [_bare_axes(expr, r) for r in others]
    for a, axis in enumerate(expr.axes):
        shared = [a in x for x in theirs]
        if axis not in pit or (a in own and any(shared) and not all(shared)):
            continue
        if a in own and all(shared):
            found[a] = Kind.E if axis.spatial else Kind.K
        elif axis.spatial:
            found[a] = Kind.M if a in own else Kind.N
    return found


def _bare_axes(expr: TensorExpr, read: Read) -> list[int]:
    """Numbers of the axes that the operand has as a dimension, in its order."""
    return [a for p in read.index for a, e in enumerate(expr.extents) if p == dim_index(a, e)]


def factor_reads(expr: TensorExpr) -> list[Read]:
    """The reads that are multiplied; the others are added."""
    biased = expr.combine is Combine.BIASED_PRODUCT
    return [r for r in expr.reads if not biased or r.operand < 2]


def packed_axes(site: PackCandidate) -> frozenset[Kind]:
    """What the coordinates of the output are to the left operand; nothing where they are no axes of
    a product of two. Of one point, which is all of the output, both operands or the left one alone.
    """
    reads = factor_reads(site.expr)
    if [r.operand for r in reads] != [0, 1]:
        return frozenset()
    if not site.out.coords:
        return frozenset({Kind.M if site.aligned(1) is None else Kind.E})
    kinds = axis_kinds(site.expr, reads[0], reads[1:])
    found = {kinds.get(c.dim) for c in site.out.coords}
    return frozenset(kind for kind in found if kind is not None and None not in found)


def no_axes(site: PackCandidate) -> Refusal:
    """Of a product of which the packed axes are none."""
    if [r.operand for r in factor_reads(site.expr)] != [0, 1]:
        return site.refuse(Code.NO_LOWERING, "it is not a product of two operands")
    return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is not an axis of the product")


def rows(site: PackCandidate) -> Form | Refusal:
    """m: rows of the left operand by a whole matrix."""
    a = site.aligned(0)
    if a is None:
        return site.refuse(
            Code.AXIS_NOT_PIT,
            "the packed axis is not a row axis of the left operand",
            site.input(0),
        )
    (packing, index), extents = a, a[0].layout.rest_shape
    rows = _rest_dims(site)[:-1]
    whole = site.out.layout.rest and extents[:-1] == site.out.layout.rest_shape[:-1]
    if not whole or not read_along(index, extents, [*rows, _summed(site)]):
        return site.refuse(Code.LAYOUT, f"the left operand is read at {index}", site.input(0))
    matrix = _matrix(site, len(extents))
    return matrix if isinstance(matrix, Refusal) else _with_bias(site, packing.operand(), matrix)


def _matrix(site: PackCandidate, rows_rank: int) -> WholeOperand | Refusal:
    """A whole right operand whose columns are the last axis of the output: a matrix, with at most
    as many dimensions as the packed rows (a longer one would widen the product).
    """
    shape = site.context.shape(site.input(1))
    if any(e != ONE for e in shape[:-2]) or len(shape) < 2:
        return site.refuse(Code.LAYOUT, "the right operand is not a matrix", site.input(1))
    if len(shape) <= 1 + rows_rank:
        return WholeOperand(site.input(1))
    sizes, text = static_shape(shape[-2:]), "the right operand must be reshaped to a matrix"
    if sizes is None:
        return site.refuse(Code.DYNAMIC_DIM, text, site.input(1))
    return WholeOperand(site.input(1), sizes)


def _with_bias(site: PackCandidate, left: Operand, right: Operand) -> Form | Refusal:
    if site.node.op_type == "MatMul":
        return Form((site.out,), (left, right), "MatMul")
    if attribute(site.node, "transA", 0):
        return site.refuse(Code.LAYOUT, "the left operand is transposed", site.input(0))
    if len(site.out.layout.rest) != 1:  # several tokens of a sequence in each packed row
        return site.refuse(Code.LAYOUT, "Gemm takes rows of one dimension")
    operands = _and_bias(site, left, right)
    return operands if isinstance(operands, Refusal) else Form((site.out,), operands, "Gemm")


def _and_bias(site: PackCandidate, *factors: Operand) -> tuple[Operand, ...] | Refusal:
    if len(site.node.inputs) < 3 or site.node.inputs[2] is None:
        return factors
    bias = broadcast_operand(site, 2)
    return bias if isinstance(bias, Refusal) else (*factors, bias)


def groups(site: PackCandidate) -> Form | Refusal:
    """e: a product of matrices for every live point."""
    a, b = site.aligned(0), site.aligned(1)
    if a is None or b is None or site.node.op_type != "MatMul" or len(site.out.layout.rest) < 2:
        return site.refuse(
            Code.AXIS_NOT_PIT,
            "an operand is not packed like the output",
            site.input(int(a is not None)),
        )
    *lead, m_dim, n_dim = _rest_dims(site)
    k_dim = _summed(site)
    if not read_along(a[1], a[0].layout.rest_shape, [*lead, m_dim, k_dim]) or not read_along(
        b[1], b[0].layout.rest_shape, [*lead, k_dim, n_dim]
    ):
        return site.refuse(Code.LAYOUT, "the operands' packed dimensions are out of order")
    return Form((site.out,), (a[0].operand(), b[0].operand()), "MatMul")


def columns(site: PackCandidate) -> Form | Refusal:
    """n: columns of the right operand by a whole matrix, which is the left one."""
    right = _column_operand(site)
    if isinstance(right, Refusal):
        return right
    (index,), shape = site.reads(0), site.context.shape(site.input(0))
    dims = [None if p is None else bare_dim(p) for p in index[-2:]]
    matrix = len(index) > 1 and all(e == ONE for e in shape[:-2])
    if not matrix or len(site.out.layout.rest) != 1 or None in dims:
        return site.refuse(Code.LAYOUT, "the left operand is not a matrix", site.input(0))
    if any(site.context.graph[site.input(k)].dtype != np.float32 for k in (0, 1)):
        return site.refuse(Code.NO_LOWERING, "columns are lowered for float32 only")
    reshaped = static_shape(shape[-2:]) if len(shape) > 2 else None
    if len(shape) > 2 and reshaped is None:
        text = "the left operand must be reshaped to a matrix"
        return site.refuse(Code.DYNAMIC_DIM, text, site.input(0))
    turned = int(dims == [*_rest_dims(site), _summed(site)])
    operands = _and_bias(site, right, WholeOperand(site.input(0), reshaped))
    if isinstance(operands, Refusal):
        return operands
    return Form(
        (site.out,),
        operands,
        "Gemm",
        {"transA": 0, "transB": turned},
        materialises_operands=True,
    )


def _column_operand(site: PackCandidate) -> Operand | Refusal:
    """Columns of the right operand as rows, each along the summed axis."""
    b, domain = site.aligned(1), site.context.domain
    if b is not None and read_along(b[1], b[0].layout.rest_shape, [_summed(site)]):
        return b[0].operand()
    (index,), shape = site.reads(1), site.context.shape(site.input(1))
    codes = coordinate_codes(index, shape, domain)
    kept = (
        () if codes is None else tuple(e for c, e in zip(codes[0], shape, strict=True) if c == "r")
    )
    if codes is None or not read_along(codes[1], kept, [_summed(site)]):
        return site.refuse(
            Code.LAYOUT, "the columns of the right operand cannot be gathered", site.input(1)
        )
    return GatheredOperand(site.input(1), domain, codes[0])


def no_kernel(what: str) -> FormRule:
    """The packed axes are known, and so is their index; nothing computes over them yet."""
    return lambda site: site.refuse(Code.NO_KERNEL, f"{what} has no kernel")


@dataclass(frozen=True, slots=True)
class Rows:
    """A packed operand of one contraction, in that contraction's iteration space.

    Args:
        packing: The operand's packing.
        coords: Its coordinates as iteration digits.
        rest: Its other digits of more than one value as iteration digits.
    """

    packing: Packing
    coords: Coords
    rest: tuple[Digit, ...]


def packed_rows(
    packings: Callable[[str], Sequence[Packing]], expr: TensorExpr, node: ir.Node, operand: int
) -> Iterator[Rows]:
    """The packings of one operand of a contraction whose dimensions are bare iteration axes."""
    read = read_of(expr, operand)
    if read is None:
        return
    for packing in packings(input_names(node)[operand]):
        coords = to_iteration(packing.coords, read)
        rest = to_iteration(wide(packing.layout.rest), read)
        if coords is not None and rest is not None:
            yield Rows(packing, coords, rest)


def read_of(expr: TensorExpr, operand: int) -> Read | None:
    """The only read of an operand; None where there are none or several."""
    reads = [r for r in expr.reads if r.operand == operand]
    return reads[0] if len(reads) == 1 else None


def to_iteration(digits: tuple[Digit, ...], read: Read) -> tuple[Digit, ...] | None:
    """Digits of an operand as digits of iteration axes."""
    out = []
    for c in digits:
        p = read.index[c.dim]
        axis = None if p is None else bare_dim(p)
        if axis is None:
            return None
        out.append(Digit(axis, c.stride, c.extent))
    return tuple(out)


def to_operand(digits: tuple[Digit, ...], read: Read) -> tuple[Digit, ...] | None:
    """Digits of iteration axes as digits of an operand."""
    where = {
        a: d for d, p in enumerate(read.index) if p is not None and (a := bare_dim(p)) is not None
    }
    if any(c.dim not in where for c in digits):
        return None
    return tuple(Digit(where[c.dim], c.stride, c.extent) for c in digits)


def to_source(digits: Coords, expr: TensorExpr, shape: Shape) -> Coords | None:
    """Digits of a movement's result as digits of what is moved; None where one is mixed.

    d0 of x[b, h, s] -> y[b*h, s]   ->   None;      d0//h of it   ->   d0

    Args:
        digits: Digits of the result's dimensions.
        expr: The movement, of one read.
        shape: Extents of what is moved.
    """
    (read,), out = expr.reads, []
    solved = invert(read.index, expr.extents, shape)
    for c in digits:
        p = solved.get(c.dim)
        q = None if p is None else digit(p, c.stride, c.extent)
        match () if q is None else tuple(q.terms):
            case [[Digit(extent=c.extent) as place]]:
                out.append(place)
            case _:
                return None
    return tuple(out)


def _rest_dims(site: PackCandidate) -> list[int]:
    """Dimensions of the packed space that are the output's rest digits."""
    return [site.space.rest_dim(i) for i in range(len(site.out.layout.rest))]


def _summed(site: PackCandidate) -> int | None:
    return site.space.reduced_dim(0) if site.expr.reduced else None

"""Tensor expressions: how every point of an output reads its operands.

    Op        = output[Axis*]  <-  Reducer over reduction axes of Combine(input[Index*], ...)
    Index     = Axis | Affine(Axis, ...)             # a bare digit, or derived (conv: y*stride + i)
    Axis      = name, extent, spatial | reduction
    Reducer   = none | sum | max | min | prod | mean | normalise | ordered
    Combine   = product | select | map | move | opaque

The iteration space is the output's dimensions (spatial axes) followed by the reduction axes: axis
`a` of the space is dimension `a` of `Digit`. Everything else (PIT axes, how facts travel) is
derived from this one description.

Source: PIT (SOSP'23) section 3; `docs/theory.md`.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pitc.ir.index import ONE, Digit, Poly, atom, bare_dim, dim_index
from pitc.ir.region import Region, Test

Shape = tuple[Poly, ...]


class Reducer(Enum):
    """What happens along the reduction axes."""

    NONE = "none"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    POOLED = "pooled"  # max, but never less than the least finite number, and of NaN anything
    PROD = "prod"
    MEAN = "mean"
    SQUARE = "square"  # norms: sum of squares or of absolute values, then a map
    NORMALISE = "normalise"  # the result is spread back over the axis (softmax, layer norm)
    ORDERED = "ordered"  # looks at positions along the axis (cumsum, argmax, top-k)

    @property
    def commutes(self) -> bool:
        """True when the order of the terms does not matter, so the axis may be permuted."""
        return self not in (Reducer.NONE, Reducer.NORMALISE, Reducer.ORDERED)

    @property
    def keeps_zero(self) -> bool:
        """True when reducing only zeros gives zero."""
        return self in (Reducer.SUM, Reducer.MEAN, Reducer.SQUARE) or self.keeps_constant

    @property
    def keeps_constant(self) -> bool:
        """True when reducing copies of a finite constant gives exactly that (a mean rounds)."""
        return self in (Reducer.MAX, Reducer.MIN, Reducer.POOLED)


class Combine(Enum):
    """How one iteration point turns the elements it reads into a term."""

    MAP = "map"  # elementwise function of all operands
    MOVE = "move"  # the element itself
    PRODUCT = "product"  # product of all operands
    BIASED_PRODUCT = "biased-product"  # product of operands 0 and 1, plus operand 2 (Gemm)
    REDUCE = "reduce"  # the element itself, reduced
    SOFTMAX = "softmax"  # exp, normalised to sum 1 along the axis
    NORMALISE = "normalise"  # any other row normaliser
    SCATTER = "scatter"  # operand 0, overwritten at places read from operand 1
    OPAQUE = "opaque"  # unknown function of everything it reads


PRODUCTS = (Combine.PRODUCT, Combine.BIASED_PRODUCT)


class Axis(NamedTuple):
    """One iteration variable of an expression."""

    name: str
    extent: Poly
    spatial: bool


@dataclass(frozen=True, slots=True)
class Read:
    """How iteration points read one operand.

    Args:
        operand: Which input of the node.
        index: One index expression per operand dimension over the iteration axes; None where the
            place depends on data (Gather by a computed index) or is not described.
        computed: The None places of `index` follow from the values that the same point reads from
            other operands (Gather); without it they may depend on any axis.
        within: Tests that hold at the iteration points which read this operand at all (Concat). A
            test of a value looks at an operand, where the expression reads that operand as well.
        absent: Regions of the operand that no iteration point reads (Gather by a constant).
        sizing: Its elements decide how many points there are (Compress): they are read, whatever is
            read of the result.
    """

    operand: int
    index: tuple[Poly | None, ...]
    computed: bool = False
    within: Region = field(default_factory=Region)
    absent: tuple[Region, ...] = ()
    sizing: bool = False


@dataclass(frozen=True, slots=True)
class TensorExpr:
    """How one output of a node is computed.

    Args:
        shape: Extents of the output, which are the spatial axes.
        reads: How the operands are read.
        reduced: Extents of the reduction axes.
        combine: What one point does with the elements it reads.
        reducer: What happens along the reduction axes.
        normal: For SOFTMAX and NORMALISE: the output dimensions that are normalised.
        ordered: Axes whose *positions* matter (Range, Trilu, CumSum): never PIT.
    """

    shape: Shape
    reads: tuple[Read, ...] = ()
    reduced: Shape = ()
    combine: Combine = Combine.OPAQUE
    reducer: Reducer = Reducer.NONE
    normal: tuple[int, ...] = ()
    ordered: frozenset[int] = frozenset()

    @property
    def extents(self) -> Shape:
        """Extents of all iteration axes: the output's, then the reduced ones."""
        return self.shape + self.reduced

    @property
    def moving_reads(self) -> list[Read]:
        """Reads of a MOVE whose elements arrive in the output; the others are index operands, which
        there are where a place is computed, and sizes.
        """
        indexed = any(r.computed for r in self.reads)
        return [r for r in self.reads if r.operand == 0 or r.within or not (indexed or r.sizing)]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All iteration axes, named o0.. and r0.. by place."""
        spatial = [Axis(f"o{k}", e, True) for k, e in enumerate(self.shape)]
        return (*spatial, *(Axis(f"r{k}", e, False) for k, e in enumerate(self.reduced)))

    def pit_axes(self) -> tuple[Axis, ...]:
        """Axes along which iterations may be permuted without changing the result.

        An axis is PIT iff every index in which it occurs is bare, and it is spatial or its reducer
        commutes, and no position along it is looked at. An undescribed operand place (None) may
        depend on every axis, so it takes away each axis that the same read does not use bare,
        unless the place is computed from other operands. Reads of the same operand dimension must
        agree: to permute the operand permutes it for all of them. They do where another one goes
        all along the dimension by an axis that is reduced in any order, and nothing else is read
        by that axis (`x[o] / max over r of x[r]`).

        Returns:
            The PIT axes in iteration order. Axes of extent 1 are left out.

        Source: PIT (SOSP'23) section 3, theorem 1.
        """
        pit = (axis for a, axis in enumerate(self.axes) if self._is_pit(a, axis))
        return tuple(axis for axis in pit if axis.extent != ONE)

    def _is_pit(self, a: int, axis: Axis) -> bool:
        if a in self.ordered or a in self.normal or not (axis.spatial or self.reducer.commutes):
            return False
        bare = atom(Digit(a, ONE, axis.extent))
        for read in self.reads:
            used = [p for p in read.index if p is not None and any(d.dim == a for d in p.digits())]
            tested = [p for t in read.within for p in _looked_at(t, a)]
            if any(p != bare for p in (*used, *tested)):
                return False
            if None in read.index and not read.computed and not used:
                return False
            if not self._agree(read, bare):
                return False
        return bool(self.reads) or self.combine is Combine.MAP

    def _agree(self, read: Read, bare: Poly) -> bool:
        """True when every read of the operand has `bare` in the same dimensions as this one, or an
        axis that is of no other use.
        """
        same = [other for other in self.reads if other.operand == read.operand]
        places = {j for j, p in enumerate(read.index) if p == bare}
        return all(
            other.index[j] == bare or self._only_along(other.index[j], read.operand, j)
            for other in same
            for j in places
        )

    def _only_along(self, p: Poly | None, operand: int, dim: int) -> bool:
        """True for an axis that is reduced in any order, and is that one dimension only."""
        axis = None if p is None else bare_dim(p)
        if axis is None or axis < len(self.shape) or not self.reducer.commutes:
            return False
        if axis in self.ordered or p != dim_index(axis, self.extents[axis]):
            return False
        used = [
            (read.operand, j)
            for read in self.reads
            for j, q in enumerate(read.index)
            if q is not None and any(d.dim == axis for d in q.digits())
        ]
        tested = [t for read in self.reads for t in read.within if _looked_at(t, axis)]
        return set(used) == {(operand, dim)} and not tested


def _looked_at(test: Test, a: int) -> list[Poly | None]:
    """Index expressions of a test in which axis a occurs; None where it looks at the position."""
    used = [p for p in test.idx if any(d.dim == a for d in p.digits())]
    by_position = test.pred == "pos" or (test.pred == "below" and test.idx[-1] in used)
    return [None] if used and by_position else list(used)


def sums_products(expr: TensorExpr) -> bool:
    """True for a sum over products, even of a single one."""
    return expr.combine in PRODUCTS and expr.reducer is Reducer.SUM


def is_contraction(expr: TensorExpr) -> bool:
    """True for a sum over products, of more than one."""
    return sums_products(expr) and any(e != ONE for e in expr.reduced)

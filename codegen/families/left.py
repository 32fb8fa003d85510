"""The left operand of a dense contraction: what a register tile multiplies a vector by (SRead).

Rows of float32 are read where they are. Beside a right operand of bfloat16 a step multiplies two k.
Where the machine has an instruction for that, the rows of a block are rounded to words of two
numbers first, side by side, as they are read once for each column group; else their float32 numbers
are multiplied as they are.

    a[rows_a[i], 0..k]   ->   words[i][s] = bfloat16 (a[.., 2 s]), bfloat16 (a[.., 2 s + 1])
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from pitc.codegen import pairs, tir
from pitc.codegen.engines.cpu import DenseTile
from pitc.codegen.engines.pairs import PairTile, WideTile
from pitc.codegen.vector_math import relu
from pitc.ir.target import CpuLevel

Load = Callable[[int], tir.Expr]


class Left(Protocol):
    """A left operand."""

    unit: int
    """Numbers of a row that a step multiplies."""

    def bring(self, first: tir.Expr, count: tir.Expr) -> None:
        """Have some rows of the list there, from `first` on."""
        ...

    def rows(self, listed: Sequence[tir.Expr]) -> list[tir.Expr]:
        """Where rows of the list are."""
        ...

    def tile(self, rows: int, vectors: int) -> DenseTile:
        """Sums of these."""
        ...

    def step(self, tile: DenseTile, rows: Sequence[tir.Expr], k: tir.Expr, right: Load) -> None:
        """Add the products of step `k`."""
        ...


class Rows:
    """Rows of float32 in place.

    Args:
        a: f32 `[rows, k]`.
        listed: The list of rows.
        input_relu: Numbers below 0 stand for 0.
    """

    unit = 1

    def __init__(self, a: tir.Buffer, listed: tir.Buffer, *, input_relu: bool) -> None:
        self.a, self.listed, self.input_relu = a, listed, input_relu

    def bring(self, first: tir.Expr, count: tir.Expr) -> None:
        """All of them are there."""

    def rows(self, listed: Sequence[tir.Expr]) -> list[tir.Expr]:
        """Their numbers."""
        return [tir.index_of(self.listed, i) for i in listed]

    def tile(self, rows: int, vectors: int) -> DenseTile:
        """Sums."""
        return DenseTile(rows, vectors, input_relu=self.input_relu)

    def step(self, tile: DenseTile, rows: Sequence[tir.Expr], k: tir.Expr, right: Load) -> None:
        """One k."""
        tile.step((lambda r: self.a[rows[r], k], right))


class WideRows(Rows):
    """The same beside words of two numbers."""

    unit = 2

    def tile(self, rows: int, vectors: int) -> DenseTile:
        """Sums."""
        return WideTile(rows, vectors, input_relu=self.input_relu)

    def step(self, tile: DenseTile, rows: Sequence[tir.Expr], k: tir.Expr, right: Load) -> None:
        """Two k; behind the last one stands 0 in B, and in A whatever a row repeats: 0 as well."""
        assert isinstance(tile, WideTile)
        size = int(self.a.shape[1])

        def number(r: int, half: int) -> tir.Expr:
            at = k * 2 + half
            if half == 0 or size % 2 == 0:
                return self.a[rows[r], at]
            last = self.a[rows[r], tir.smaller(at, tir.int64(size - 1))]
            return tir.select(at < size, last, tir.float32(0))

        tile.add_pair(number, right)


class PairRows:
    """Rows of a block, rounded to bfloat16, as words of two numbers.

    Args:
        a: f32 `[rows, k]`.
        listed: The list of rows.
        most: Rows of a block.
        input_relu: Numbers below 0 stand for 0.
    """

    unit = 2

    def __init__(
        self, a: tir.Buffer, listed: tir.Buffer, most: tir.Expr, *, input_relu: bool
    ) -> None:
        self.a, self.listed, self.input_relu = a, listed, input_relu
        self.k = int(a.shape[1])
        words = -(-self.k // (2 * tir.LANES)) * tir.LANES
        # Rows a power of two apart would share few lines of the caches.
        self.stride = words + tir.LANES
        self.words = tir.workspace(most * self.stride)
        self.first: tir.Expr = None

    def bring(self, first: tir.Expr, count: tir.Expr) -> None:
        """Round them."""
        self.first = first
        step = 2 * tir.LANES
        whole, rest = divmod(self.k, step)
        with tir.serial(tir.int64(0), count) as i:
            row = tir.hold(tir.index_of(self.listed, first + i))
            place = tir.hold(i * self.stride)
            with tir.serial(tir.int64(0), tir.int64(whole)) as s:
                self.round(row, s * step, place + s * tir.LANES, step)
            if rest:
                end = tir.int64(whole)
                self.round(row, end * step, place + end * tir.LANES, rest)

    def round(self, row: tir.Expr, k: tir.Expr, place: tir.Expr, count: int) -> None:
        """A vector of words; behind the last number stands 0."""
        halves = []
        for half in range(2):
            lanes = min(max(count - half * tir.LANES, 0), tir.LANES)
            vector = tir.splat(0)
            if lanes:
                start = tir.bind(k + half * tir.LANES)
                vector = tir.first_lanes(tir.load(self.a, row, start, lanes=lanes), lanes)
            halves.append(tir.keep(relu(vector) if self.input_relu else vector))
        tir.store(self.words, pairs.as_pairs(*halves), place)

    def rows(self, listed: Sequence[tir.Expr]) -> list[tir.Expr]:
        """Where they begin."""
        return [tir.bind((i - self.first) * self.stride) for i in listed]

    def tile(self, rows: int, vectors: int) -> DenseTile:
        """Sums."""
        return PairTile(rows, vectors)

    def step(self, tile: DenseTile, rows: Sequence[tir.Expr], k: tir.Expr, right: Load) -> None:
        """Two k."""
        tile.step((lambda r: self.words[rows[r] + k], right))


def left_operand(
    a: tir.Buffer,
    listed: tir.Buffer,
    most: tir.Expr,
    target: CpuLevel,
    *,
    in_pairs: bool,
    input_relu: bool,
) -> Left:
    """The left operand of a kernel.

    Args:
        a: f32 `[rows, k]`.
        listed: The list of rows.
        most: Rows of a block.
        target: CPU level.
        in_pairs: The right operand is words of two numbers.
        input_relu: Numbers below 0 stand for 0.
    """
    if not in_pairs:
        return Rows(a, listed, input_relu=input_relu)
    if not target.multiplies_pairs:
        return WideRows(a, listed, input_relu=input_relu)
    return PairRows(a, listed, most, input_relu=input_relu)

"""The left operand of a dense contraction: what a register tile multiplies a vector by (SRead).

Rows of float32 are read where they are. Beside a right operand of bfloat16 a step multiplies two k,
which are words of two numbers where the machine has an instruction for them, else float32. Rows of
the one type that are stored as the other are converted first, those of a block side by side, as
they are read once for each column group.

    a[rows_a[i], 0..k]   ->   words[i][s] = bfloat16 (a[.., 2 s]), bfloat16 (a[.., 2 s + 1])
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from pitc.codegen import pairs, tir
from pitc.codegen.engines.cpu import DenseTile
from pitc.codegen.engines.pairs import HALVES, PairTile, WideTile
from pitc.codegen.vector_math import relu
from pitc.ir.target import CpuLevel

Load = Callable[[int, int], tir.Expr]
"""A vector of the right operand; of which k of a step, where it is numbers of words."""


class Left(Protocol):
    """A left operand."""

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

    def __init__(self, a: tir.Buffer, listed: tir.Buffer, *, input_relu: bool = False) -> None:
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
        tile.step((lambda r: self.a[rows[r], k], lambda v: right(v, 0)))


class Words(Rows):
    """Rows of words of two numbers in place."""

    def tile(self, rows: int, vectors: int) -> DenseTile:
        """Sums."""
        return PairTile(rows, vectors)


class WideRows(Rows):
    """Rows of float32 in place, beside words of two numbers."""

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
            # Kept, as TVM takes the bound for granted inside of the select, which reads both.
            last = tir.keep(self.a[rows[r], tir.smaller(at, tir.int64(size - 1))])
            return tir.select(at < size, last, tir.float32(0))

        tile.add_pair(number, right)


class Block:
    """Rows of a block, converted.

    Args:
        listed: The list of rows.
        stride: Floats from one row to the next.
        most: Rows of a block.
    """

    def __init__(self, listed: tir.Buffer, stride: int, most: tir.Expr | int) -> None:
        self.listed, self.stride = listed, stride
        self.converted = tir.workspace(most * stride)
        self.first: tir.Expr = None

    def bring(self, first: tir.Expr, count: tir.Expr) -> None:
        """Convert them."""
        self.first = first
        with tir.serial(tir.int64(0), count) as i:
            self.convert(tir.hold(tir.index_of(self.listed, first + i)), i)

    def convert(self, row: tir.Expr, i: tir.Expr) -> None:
        """Convert one, the `i`-th of the block."""
        raise NotImplementedError

    def place(self, i: tir.Expr, s: tir.Expr) -> tir.Expr:
        """Where vector `s` of the words of row `i` begins."""
        return i * self.stride + s * tir.LANES

    def rows(self, listed: Sequence[tir.Expr]) -> list[tir.Expr]:
        """Where they begin."""
        return [tir.bind((i - self.first) * self.stride) for i in listed]


class ReluRows(Block):
    """Rows of float32 with 0 for numbers below it, where a step multiplies each number by so few
    vectors that the comparison would take as long (`CpuLevel.relu_first`).

    Args:
        a: f32 `[rows, k]`.
        listed: The list of rows.
        most: Rows of a block.
        wide: A step multiplies two k, beside words of two numbers.
    """

    def __init__(self, a: tir.Buffer, listed: tir.Buffer, most: tir.Expr, *, wide: bool) -> None:
        self.a, self.k, self.wide = a, int(a.shape[1]), wide
        vectors = -(-self.k // tir.LANES) + 1  # one more: as `PairRows.gap`
        super().__init__(listed, vectors * tir.LANES, most)

    def convert(self, row: tir.Expr, i: tir.Expr) -> None:
        """Copy it, with 0 behind the last number."""
        place = tir.hold(i * self.stride)

        def part(start: tir.Expr, lanes: int) -> None:
            numbers = tir.keep(tir.load(self.a, row, start, lanes=lanes))
            tir.store(self.converted, relu(numbers), place + start)

        tir.chunks(self.k, part)

    def tile(self, rows: int, vectors: int) -> DenseTile:
        """Sums."""
        return WideTile(rows, vectors) if self.wide else DenseTile(rows, vectors)

    def step(self, tile: DenseTile, rows: Sequence[tir.Expr], k: tir.Expr, right: Load) -> None:
        """One k, or two."""
        if isinstance(tile, WideTile):
            tile.add_pair(lambda r, half: self.converted[rows[r] + k * 2 + half], right)
        else:
            tile.step((lambda r: self.converted[rows[r] + k], lambda v: right(v, 0)))


class PairRows(Block):
    """Rows of float32, rounded to words of two numbers.

    Args:
        a: f32 `[rows, k]`.
        listed: The list of rows.
        most: Rows of a block.
        input_relu: Numbers below 0 stand for 0.
    """

    gap = tir.LANES
    """Between two rows: a power of two apart they would share few lines of the caches."""

    def __init__(
        self, a: tir.Buffer, listed: tir.Buffer, most: tir.Expr | int, *, input_relu: bool
    ) -> None:
        self.a, self.k, self.input_relu = a, int(a.shape[1]), input_relu
        words = -(-self.k // (2 * tir.LANES)) * tir.LANES
        super().__init__(listed, words + self.gap, most)
        self.rest = tir.workspace(2 * tir.LANES)

    def convert(self, row: tir.Expr, i: tir.Expr) -> None:
        """Round it."""
        step = 2 * tir.LANES
        whole, rest = divmod(self.k, step)
        if whole:
            with tir.serial(tir.int64(0), tir.int64(whole)) as s:
                self.round(self.a, (row, s * step), self.place(i, s))
        if rest:
            self.copy_rest(row, rest)
            self.round(self.rest, (tir.int64(0),), self.place(i, tir.int64(whole)))

    def round(self, source: tir.Buffer, start: tuple[tir.Expr, ...], place: tir.Expr) -> None:
        """A vector of words, of 32 numbers from one on."""
        *lead, first = start
        halves = [tir.load(source, *lead, first + half * tir.LANES) for half in range(2)]
        kept = [tir.keep(relu(x) if self.input_relu else x) for x in halves]
        tir.store(self.converted, pairs.as_pairs(*kept), place)

    def copy_rest(self, row: tir.Expr, count: int) -> None:
        """The last numbers of a row, and 0 behind them."""
        for half in range(2):
            tir.store(self.rest, tir.splat(0), tir.int64(half * tir.LANES))
        for i in range(count):
            tir.assign(self.rest, self.a[row, self.k - count + i], tir.int64(i))

    def tile(self, rows: int, vectors: int) -> DenseTile:
        """Sums."""
        return PairTile(rows, vectors)

    def step(self, tile: DenseTile, rows: Sequence[tir.Expr], k: tir.Expr, right: Load) -> None:
        """Two k."""
        tile.step((lambda r: self.converted[rows[r] + k], lambda v: right(v, 0)))


class WideBlock(Block):
    """Rows of words of two numbers as float32: first those of even k, behind them those of odd k.

    Args:
        a: Words `[rows, k / 2]`.
        listed: The list of rows.
        most: Rows of a block.
    """

    def __init__(self, a: tir.Buffer, listed: tir.Buffer, most: tir.Expr) -> None:
        self.a, self.k = a, int(a.shape[1])
        self.apart = -(-self.k // tir.LANES) * tir.LANES
        super().__init__(listed, 2 * self.apart + tir.LANES, most)

    def convert(self, row: tir.Expr, i: tir.Expr) -> None:
        """Take it apart."""
        place = tir.hold(i * self.stride)

        def part(start: tir.Expr, lanes: int) -> None:
            words = tir.keep(tir.load(self.a, row, start, lanes=lanes))
            for half, take in enumerate(HALVES):
                tir.store(self.converted, take(words), place + half * self.apart + start)

        tir.chunks(self.k, part)

    def tile(self, rows: int, vectors: int) -> DenseTile:
        """Sums."""
        return WideTile(rows, vectors)

    def step(self, tile: DenseTile, rows: Sequence[tir.Expr], k: tir.Expr, right: Load) -> None:
        """Two k."""
        assert isinstance(tile, WideTile)
        tile.add_pair(lambda r, half: self.converted[rows[r] + half * self.apart + k], right)


def left_operand(
    a: tir.Buffer,
    listed: tir.Buffer,
    most: tir.Expr,
    target: CpuLevel,
    *,
    in_pairs: bool,
    words: bool,
    input_relu: bool,
) -> Left:
    """The left operand of a kernel.

    Args:
        a: f32 `[rows, k]`, or words `[rows, k / 2]`.
        listed: The list of rows.
        most: Rows of a block.
        target: CPU level.
        in_pairs: The right operand is words of two numbers.
        words: So is `a`.
        input_relu: Numbers below 0 of float32 stand for 0.
    """
    wide = in_pairs and not target.multiplies_pairs
    if words:
        return Words(a, listed) if target.multiplies_pairs else WideBlock(a, listed, most)
    if input_relu and target.relu_first:
        return ReluRows(a, listed, most, wide=wide)
    if wide:
        return WideRows(a, listed, input_relu=input_relu)
    if in_pairs:
        return PairRows(a, listed, most, input_relu=input_relu)
    return Rows(a, listed, input_relu=input_relu)

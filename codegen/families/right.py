"""The right operand of a dense contraction: where a register tile finds rows of a panel.

In panels it is read in place; words of two numbers that no instruction multiplies are taken apart,
a piece at a time for many row tiles. As it is stored, `[K, N]` (`kn`) or `[N, K]` (`nk`), perhaps
times a factor, a piece of a panel at a time is copied to scratch memory, of which all row tiles
make use: squares of `nk` are transposed in registers on the way. Few row tiles read `kn` in place,
and multiply squares of `nk` where they are transposed.

    nk, columns i..i + 16 of panel j, a square of rows k..k + 16:
        16 vectors S[64 j + i + r, k..k + 16]  ->  16 vectors panel[k + l, i..i + 16]
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pitc.codegen import tir
from pitc.codegen.engines.cpu import DenseTile
from pitc.codegen.engines.pairs import HALVES
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CpuLevel
from pitc.ir.variants import FOLD

NEAR_K = 128
"""Rows of a piece copied at a time: more would share few places of the first-level cache."""
AHEAD = 24
"""Rows between the one that is asked for and the one that is copied."""
MOST_PANELS = 64
"""That a few rows of A are multiplied by at a time: 16 KiB of each row of S."""
STREAMS = 8
"""Rows that are read side by side, which is foreseen."""


class Right(Protocol):
    """A right operand."""

    @property
    def block_tiles(self) -> int:
        """Row tiles that share one pass over it, or a copy of a piece."""
        ...

    @property
    def longest(self) -> int | None:
        """Rows that are there at the same time; None: all."""
        ...

    @property
    def group(self) -> int:
        """Panels that are."""
        ...

    @property
    def finishes_panels(self) -> bool:
        """All rows of a panel come before those of the next one."""
        ...

    @property
    def few_tiles(self) -> int:
        """Up to so many row tiles are few for it."""
        ...

    def bring(self, j: tir.Expr, count: tir.Expr, start: tir.Expr, length: tir.Expr) -> None:
        """Have rows start..start + length of panels j..j + count there."""
        ...

    def load(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, lanes: int, half: int) -> tir.Expr:
        """A vector of row `k` of panel `j` from column `at` on, whose first `lanes` are columns.

        Of words that are taken apart the numbers of the first or second row (0, 1).
        """
        ...

    def ask(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, *, far: bool = True) -> None:
        """Ask memory for it; it may lie beyond the end.

        With `far` into the second-level cache, where many lines may be on their way.
        """
        ...


class Panels:
    """`b`, in panels.

    Args:
        b: The argument.
        block_tiles: Row tiles that read it together.
    """

    longest = None
    group = 1
    finishes_panels = False  # but by blocks of k
    few_tiles = 6

    def __init__(self, b: tir.Buffer, block_tiles: int) -> None:
        self.b, self.block_tiles = b, block_tiles

    def bring(self, j: tir.Expr, count: tir.Expr, start: tir.Expr, length: tir.Expr) -> None:
        """All of it is there."""

    def load(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, lanes: int, half: int) -> tir.Expr:
        """A vector; behind the last column it is padded."""
        return tir.load(self.b, j, k, at)

    def ask(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, *, far: bool = True) -> None:
        """Ask for a line; `at` may be beyond the row, as rows lie one behind the other."""
        tir.prefetch(self.b, j, k, at, far=far)


class WordPanels(Panels):
    """Panels of words of two numbers, taken apart where a row tile reads them."""

    def load(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, lanes: int, half: int) -> tir.Expr:
        """A vector of one of the numbers."""
        return HALVES[half](super().load(j, k, at, lanes, half))


class WordPieces:
    """Panels of words of two numbers, of which a piece at a time is taken apart, for all row tiles.

    A piece lies column group by column group, as row tiles read it.

    Args:
        b: The argument.
        group: Columns of a group.
    """

    block_tiles = 16
    longest = 128
    group = 1
    finishes_panels = True
    few_tiles = 0

    def __init__(self, b: tir.Buffer, group: int) -> None:
        self.b, self.width = b, group
        self.start: tir.Expr = None
        self.piece: tir.Buffer = None

    def bring(self, j: tir.Expr, count: tir.Expr, start: tir.Expr, length: tir.Expr) -> None:
        """Take a piece apart."""
        self.start = start
        if self.piece is None:
            self.piece = tir.workspace(2 * self.longest * PANEL_WIDTH)
        with tir.serial(0, length) as i:
            for at in range(0, PANEL_WIDTH, tir.LANES):
                column = tir.int64(at)
                tir.prefetch(self.b, j, start + i + AHEAD, column, far=True)
                words = tir.keep(tir.load(self.b, j, start + i, column))
                for half, take in enumerate(HALVES):
                    tir.store(self.piece, take(words), self.place(i, column, half))

    def place(self, i: tir.Expr, at: tir.Expr, half: int) -> tir.Expr:
        """Where a vector of row `i` of the piece stands, of one of the numbers."""
        column = at % self.width
        first = (at - column) * (2 * self.longest)
        return first + (i * 2 + half) * self.width + column

    def load(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, lanes: int, half: int) -> tir.Expr:
        """A vector of the piece."""
        return tir.load(self.piece, self.place(k - self.start, at, half))

    def ask(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, *, far: bool = True) -> None:
        """Ask for words of the next piece."""
        tir.prefetch(self.b, j, k, at, far=True)


class Stored:
    """A matrix as it lies in memory, or a product of two, element by element."""

    def __init__(self, *sources: tir.Buffer) -> None:
        self.sources = sources

    def product(self, *index: tir.Expr, lanes: int = tir.LANES, width: int = tir.LANES) -> tir.Expr:
        """A vector of the matrix, as it is stored."""
        vectors = (tir.load(s, *index, lanes=lanes, width=width) for s in self.sources)
        first, *rest = vectors
        return first * rest[0] if rest else first

    def rows(self, first: tir.Expr, side: int) -> list[tir.Expr]:
        """Rows from one on; behind the last one it is repeated, as nobody reads what that gives."""
        last = self.sources[0].shape[0] - 1
        return [tir.hold(tir.smaller(first + i, last)) for i in range(side)]

    def square(self, rows: Sequence[tir.Expr], k: tir.Expr, lanes: int) -> list[tir.Expr]:
        """Columns k.. of some rows, each a vector; the first `lanes` are there."""
        side = len(rows)
        return tir.transpose([self.product(row, k, lanes=lanes, width=side) for row in rows])

    def prefetch(self, *index: tir.Expr, far: bool = False) -> None:
        """Ask for a line of each."""
        for source in self.sources:
            tir.prefetch(source, *index, far=far)


class StoredRight(Stored):
    """A right operand as it lies in memory: the next arguments, `s` and perhaps `factor`.

    Args:
        k: Rows of the matrix.
        n: Its columns.
        order: `kn` or `nk`.
        factor: There is one.
        finite: `s` is finite, so that the product is 0 where the factor is.
    """

    def __init__(self, k: int, n: int, order: str, *, factor: bool, finite: bool = False) -> None:
        self.k, self.n, self.order = k, n, order
        shape = (k, n) if order == "kn" else (n, k)
        super().__init__(*(tir.tensor(name, shape) for name in ("s", "factor")[: 1 + factor]))
        told = len(self.sources) - 1 if finite else 0
        #: What says where the product may live, and what need be read only there.
        self.telling, self.told = Stored(*self.sources[told:]), Stored(*self.sources[:told])


class InPlace:
    """A matrix that is stored as `kn`, read where it is: some whole rows at a time."""

    block_tiles = 64
    finishes_panels = False
    few_tiles = 3

    def __init__(self, stored: StoredRight) -> None:
        self.stored = stored
        self.longest = STREAMS
        self.group = min(panel_count(stored.n), MOST_PANELS)

    def bring(self, j: tir.Expr, count: tir.Expr, start: tir.Expr, length: tir.Expr) -> None:
        """All of it is there."""

    def load(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, lanes: int, half: int) -> tir.Expr:
        """A vector."""
        return self.stored.product(k, j * PANEL_WIDTH + at, lanes=lanes)

    def ask(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, *, far: bool = True) -> None:
        """Rows in one line are foreseen."""


class Turned:
    """A matrix that is stored as `nk`, no rows of which are made: squares are multiplied where they
    are transposed, for all of a panel.
    """

    few_tiles = 1

    def __init__(self, stored: StoredRight, side: int) -> None:
        self.stored, self.side = stored, side

    def add(
        self, a: tir.Buffer, rows_a: Sequence[tir.Expr], j: tir.Expr, sums: tir.Buffer, at: tir.Expr
    ) -> None:
        """Multiply some rows of A by panel `j`; row r has its sums in `sums` from at + 64 r on."""
        side, n, k_end = self.side, self.stored.n, self.stored.k
        with tir.serial(tir.int64(0), tir.int64(PANEL_WIDTH // side)) as v:
            column = tir.hold(v * side)
            first = tir.hold(j * PANEL_WIDTH + column)
            with tir.when(first < n):
                rows = self.stored.rows(first, side)
                tile = DenseTile(len(rows_a), 1, side)

                def add(k: tir.Expr, vector: tir.Expr) -> None:
                    tile.step((lambda r: a[rows_a[r], k], lambda _: vector))

                def square(k: tir.Expr, lanes: int) -> None:
                    for i, vector in enumerate(self.stored.square(rows, k, lanes)[:lanes]):
                        add(k + i, vector)

                kept = [at + column + r * PANEL_WIDTH for r in range(tile.rows)]
                blocks = -(-k_end // FOLD)
                with tir.serial(0, tir.int64(blocks)) as f:
                    begin = tir.hold(f * FOLD)
                    here = tir.hold(tir.smaller(tir.int64(FOLD), k_end - begin))
                    tile.clear()
                    with tir.serial(0, here // side) as q:
                        square(tir.hold(begin + q * side), side)
                    if k_end % side:
                        with tir.when(f == blocks - 1):
                            square(tir.int64(k_end // side * side), k_end % side)
                    with tir.when(f > 0):
                        tile.add(sums, kept)
                    tile.put(sums, kept)


class Pieces:
    """A matrix of which one piece of a panel at a time is copied to scratch memory.

    Args:
        stored: The matrix.
        side: Of a square that is transposed in registers.
        block_tiles: Row tiles that read a piece.
    """

    longest = FOLD
    group = 1
    finishes_panels = True
    few_tiles = 0

    def __init__(self, stored: StoredRight, side: int, block_tiles: int) -> None:
        self.stored, self.side, self.block_tiles = stored, side, block_tiles
        self.start: tir.Expr = None
        self.piece: tir.Buffer = None

    def bring(self, j: tir.Expr, count: tir.Expr, start: tir.Expr, length: tir.Expr) -> None:
        """Copy a piece."""
        self.start = start
        if self.piece is None:
            self.piece = tir.workspace(FOLD, PANEL_WIDTH)
        copy = self.copied if self.stored.order == "kn" else self.transposed
        copy(j, length)

    def load(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, lanes: int, half: int) -> tir.Expr:
        """A vector of the copy."""
        return tir.load(self.piece, k - self.start, at)

    def ask(self, j: tir.Expr, k: tir.Expr, at: tir.Expr, *, far: bool = True) -> None:
        """It is near."""

    def copied(self, j: tir.Expr, length: tir.Expr) -> None:
        """Pieces of rows of `kn`; of the last panel only vectors that hold columns are there."""
        n, last = self.stored.n, panel_count(self.stored.n) - 1

        def rows(columns: int) -> None:
            with tir.serial(0, length) as i:
                for at in range(0, columns, tir.LANES):
                    lanes = min(tir.LANES, columns - at)
                    column = tir.bind(j * PANEL_WIDTH + at)
                    self.stored.prefetch(self.start + i + AHEAD, column)
                    value = self.stored.product(self.start + i, column, lanes=lanes)
                    tir.store(self.piece, value, i, tir.int64(at))

        rest = n - last * PANEL_WIDTH
        if last == 0:
            rows(rest)
        elif rest == PANEL_WIDTH:
            rows(PANEL_WIDTH)
        else:
            tir.either(j == last, lambda: rows(rest), lambda: rows(PANEL_WIDTH))

    def transposed(self, j: tir.Expr, length: tir.Expr) -> None:
        """Squares of `nk`."""
        k_end, side = self.stored.k, self.side
        parts = tir.serial(0, (length + NEAR_K - 1) // NEAR_K)
        with parts as part, tir.serial(tir.int64(0), tir.int64(PANEL_WIDTH // side)) as v:
            rows = self.stored.rows(tir.bind(j * PANEL_WIDTH + v * side), side)
            begin = tir.hold(part * NEAR_K)
            here = tir.hold(tir.smaller(tir.int64(NEAR_K), length - begin))

            def square(at: tir.Expr, lanes: int) -> None:
                vectors = self.stored.square(rows, tir.bind(self.start + at), lanes)
                for i, vector in enumerate(vectors[:lanes]):
                    tir.store(self.piece, vector, at + i, tir.bind(v * side), width=side)

            with tir.serial(0, here // side) as q:
                square(tir.hold(begin + q * side), side)
            if k_end % side:
                with tir.when(self.start + begin + here == k_end):
                    square(tir.hold(begin + here // side * side), k_end % side)


def right_operand(params: Mapping[str, Any], target: CpuLevel) -> tuple[Right, Right | Turned]:
    """Declare the arguments of a right operand: `b`, or `s` and perhaps `factor`.

    Args:
        params: `k`, `n`, `dtype`; `stored`: `kn` or `nk`, absent for panels; `factor`: 0 or 1.
        target: CPU level.

    Returns:
        What many row tiles read, and what few do.
    """
    k, n, order = params["k"], params["n"], params.get("stored")
    if not order:
        b = tir.tensor("b", (panel_count(n), k, PANEL_WIDTH))
        if params["dtype"] == "bfloat16" and not target.multiplies_pairs:
            return WordPieces(b, target.gemm_tile[1]), WordPanels(b, target.block_tiles)
        return Panels(b, target.block_tiles), Panels(b, target.block_tiles)
    stored = StoredRight(k, n, order, factor=bool(params["factor"]))
    side = target.vector_lanes
    few = InPlace(stored) if order == "kn" else Turned(stored, side)
    return Pieces(stored, side, target.piece_tiles), few

"""contract_block of a right operand as it is stored, `kn` or `nk`: a *sampled* product.

    C[i, columns] = A[i] @ B[:, columns]        columns: those that are listed for a block of rows

PIT axis n inside each block of H rows of C: the micro-tile is H x 1, and H is an argument. SRead
gathers listed columns of B, SWrite puts a column of sums where the list says; columns side by side
are whole vectors.

    for each block of H rows, for each 64 columns of its list:
        for each stretch of k:
            panel[k, 0..64] = B[k, columns]         turned in registers, in the first-level cache
            for each tile of rows: scratch += A[rows, k] * panel
        C[rows, columns] = scratch

    H = 1, where nobody shares a panel:
        for each stretch of k:
            near = B[k, all columns]^T              in the second-level cache
            for each row, for each 8 columns of its list:
                scratch += A[row, k] * near[columns, k]^T, multiplied where it is turned

Eight columns are turned at a time, as vectors of 16 lanes measured slower:

    8 vectors near[column, k..k + 8]  ->  8 vectors [k + l, 8 columns]

Rows of `kn` are turned before columns are taken from them: for many rows all at once, for single
ones as a part of `near`. A short vector repeats its last column, and a short tile its last row:
they are stored twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import DenseTile, Read
from pitc.codegen.families.right import Stored, StoredRight
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.target import CpuLevel
from pitc.ir.variants import FOLD

UNROLL = 4
STRETCH = 96
"""k of listed columns that are near at the same time: a divisor of `FOLD`."""
SIDE = 8
"""Columns, and k, that are turned at a time."""
PAIR = 2
"""Squares of a row that are multiplied side by side, as a sum waits for itself."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`, `n`, and `stored`: `kn` or `nk`.
        target: CPU level.
    """
    return tir.prim_func(symbol, lambda: _Sampled(params, target.listed_tile).emit())


@dataclass(frozen=True, slots=True)
class _Lines:
    """Columns of B from `first` on, each in one line."""

    source: Stored
    first: tir.Expr


class _Sampled:
    """Emits the kernel over listed blocks of C: its arguments, and the loops around its tiles."""

    def __init__(self, params: Mapping[str, Any], tile: tuple[int, int]) -> None:
        k, n = params["k"], params["n"]
        plain = params["activation"] == "none" and not params["residual"] and not params["factor"]
        if k < 1 or n < 1 or params["stored"] not in ("kn", "nk") or not plain:
            raise ValueError(f"no contract_block kernel for {dict(params)}")
        self.k, (self.tile_rows, self.tile_columns) = k, tile
        self.rows, entries, boundaries = (tir.size() for _ in range(3))
        self.a = tir.tensor("a", (self.rows, k))
        self.s = StoredRight(k, n, params["stored"], factor=False)
        self.columns = tir.tensor("columns", (entries,), "int32")
        self.starts = tir.tensor("starts", (boundaries,), "int32")
        self.c = tir.tensor("c", (self.rows, n))
        self.height, self.n0, self.n1 = tir.scalars("h", "n0", "n1")
        self.blocks = boundaries - 1
        # Sums of the block of k in work, and behind them of those that are complete.
        single = entries + boundaries * (PAIR * SIDE)
        count = tir.select(self.height == 1, single, self.height * PANEL_WIDTH)
        self.behind = tir.bind(count)
        self.sums = tir.workspace(self.behind * 2)

    def emit(self) -> None:
        """Blocks of one row, or of several."""
        tir.either(self.height == 1, self.single_rows, self.many_rows)

    def bounds(self, block: tir.Expr) -> tuple[tir.Expr, tir.Expr]:
        """The first entry of a block, and the first one behind it."""
        return tir.index_of(self.starts, block), tir.index_of(self.starts, block + 1)

    def rows_of(self, block: tir.Expr) -> tuple[tir.Expr, tir.Expr]:
        """The first row of a block, and how many it has."""
        first = tir.hold(block * self.height)
        return first, tir.hold(tir.smaller(self.height, self.rows - first))

    def listed(
        self, z: tir.Expr, stop: tir.Expr, count: int, first: tir.Expr | int = 0
    ) -> list[tir.Expr]:
        """Columns from entry `z` on, counted from `first`; the last one below `stop` stands for
        those behind it.
        """
        places = (tir.smaller(z + i, stop - 1) for i in range(count))
        return [tir.hold(tir.index_of(self.columns, place) - first) for place in places]

    def stretches(self, body: Callable[[tir.Expr, tir.Expr], None]) -> None:
        """Run `body(begin, end)` for each stretch of k."""
        with tir.serial(tir.int64(0), tir.int64(-(-self.k // STRETCH))) as q:
            begin = tir.hold(q * STRETCH)
            body(begin, tir.hold(tir.smaller(begin + STRETCH, tir.int64(self.k))))

    def pieces(
        self, begin: tir.Expr, end: tir.Expr, side: int, piece: Callable[[tir.Expr, int], None]
    ) -> None:
        """Run `piece(k, lanes)` for each `side` k of a stretch; the last of all may be short."""
        with tir.serial(tir.int64(0), (end - begin) // side) as q:
            piece(tir.hold(begin + q * side), side)
        if rest := self.k % side:
            with tir.when(end == self.k):
                piece(tir.int64(self.k - rest), rest)

    def start(self, tile: DenseTile, rows: Sequence[tir.Expr], begin: tir.Expr) -> None:
        """Sums of a tile where a stretch begins; row r has its own at element rows[r]."""
        tir.either(begin % FOLD == 0, tile.clear, lambda: tile.take(self.sums, rows))

    def finish(self, tile: DenseTile, rows: Sequence[tir.Expr], end: tir.Expr) -> None:
        """Keep them where it ends: of complete blocks of k apart."""
        totals = [row + self.behind for row in rows]
        last = tir.bind(end == self.k)
        ends = tir.bind(tir.select(last, tir.int64(0), end % FOLD) == 0)
        if self.k > FOLD:
            with tir.when(tir.both(ends, end > FOLD)):
                tile.add(self.sums, totals)
        with tir.when(last):  # as the dense kernel adds its bias: no sum is -0.0
            zero = tir.keep(tir.splat(0, tile.lanes))
            tile.add_each(lambda _r, _v: zero)
        tir.either(ends, lambda: tile.put(self.sums, totals), lambda: tile.put(self.sums, rows))

    def many_rows(self) -> None:
        """Blocks of several rows, 64 columns at a time."""
        panel = tir.workspace(STRETCH, PANEL_WIDTH)
        lines = _Lines(self.s, tir.int64(0))
        if self.s.order == "kn":
            lines = self.near(-(-self.k // tir.LANES) * tir.LANES + tir.LANES)  # no power of two
            self.bring(lines, tir.int64(0), tir.int64(self.k))
        with tir.serial(tir.int64(0), self.blocks) as block:
            start, stop = self.bounds(block)
            panels = (stop - start + PANEL_WIDTH - 1) // PANEL_WIDTH
            with tir.serial(tir.int64(0), panels) as p:
                z = tir.hold(start + p * PANEL_WIDTH)
                count = tir.hold(tir.smaller(tir.int64(PANEL_WIDTH), stop - z))
                first, here = self.rows_of(block)

                def stretch(begin: tir.Expr, end: tir.Expr) -> None:
                    self.fill(panel, lines, z, stop, count, begin, end)
                    self.multiply(panel, first, here, count, begin, end)

                self.stretches(stretch)
                self.write(first, here, z, stop, count)

    def fill(
        self,
        panel: tir.Buffer,
        lines: _Lines,
        z: tir.Expr,
        stop: tir.Expr,
        count: tir.Expr,
        begin: tir.Expr,
        end: tir.Expr,
    ) -> None:
        """SRead of `count` columns from entry `z` on, in whole vectors."""
        groups = (count + tir.LANES - 1) // tir.LANES * (tir.LANES // SIDE)
        with tir.serial(tir.int64(0), groups) as v:
            listed = self.listed(tir.hold(z + v * SIDE), stop, SIDE, lines.first)

            def square(k: tir.Expr, lanes: int) -> None:
                for i, vector in enumerate(turned(lines.source, listed, k, lanes)):
                    tir.store(panel, vector, k - begin + i, tir.bind(v * SIDE), width=SIDE)

            self.pieces(begin, end, SIDE, square)

    def multiply(
        self,
        panel: tir.Buffer,
        first: tir.Expr,
        here: tir.Expr,
        count: tir.Expr,
        begin: tir.Expr,
        end: tir.Expr,
    ) -> None:
        """The tiles of `here` rows from `first` on; of few columns half a tile is enough."""
        height, width = self.tile_rows, self.tile_columns
        tiles = tir.serial(tir.int64(0), (here + height - 1) // height)
        with tiles as t, tir.serial(tir.int64(0), (count + width - 1) // width) as x:
            row, column = tir.hold(t * height), tir.hold(x * width)
            rows = [tir.hold(first + tir.smaller(row + r, here - 1)) for r in range(height)]
            kept = [tir.hold((row + r) * PANEL_WIDTH + column) for r in range(height)]

            def read(i: tir.Expr) -> Read:
                return (
                    lambda r: self.a[rows[r], begin + i],
                    lambda v: tir.load(panel, i, column + v * tir.LANES),
                )

            def some(vectors: int) -> None:
                tile = DenseTile(height, vectors)
                self.start(tile, kept, begin)
                tile.multiply(end - begin, UNROLL, read, rest=self.k % UNROLL > 0)
                self.finish(tile, kept, end)

            vectors = width // tir.LANES
            if vectors == 1:
                some(vectors)
            else:
                few = count - column <= width // 2
                tir.either(few, lambda: some(vectors // 2), lambda: some(vectors))

    def write(
        self, first: tir.Expr, here: tir.Expr, z: tir.Expr, stop: tir.Expr, count: tir.Expr
    ) -> None:
        """SWrite of the sums of `count` columns from entry `z` on."""
        lanes = tir.LANES
        with tir.serial(tir.int64(0), (count + lanes - 1) // lanes) as v:
            at = tir.hold(z + v * lanes)
            listed = self.listed(at, stop, lanes)

            def rows(put: Callable[[tir.Expr, tir.Expr], None]) -> None:
                with tir.serial(tir.int64(0), here) as r:
                    put(tir.bind(first + r), tir.bind(self.behind + r * PANEL_WIDTH + v * lanes))

            def beside(row: tir.Expr, place: tir.Expr) -> None:
                tir.store(self.c, tir.load(self.sums, place), row, listed[0])

            def apart(row: tir.Expr, place: tir.Expr) -> None:
                for i, column in enumerate(listed):
                    tir.assign(self.c, self.sums[place + i], row, column)

            whole = tir.both(at + lanes <= stop, listed[-1] - listed[0] == lanes - 1)
            tir.either(whole, lambda: rows(beside), lambda: rows(apart))

    def single_rows(self) -> None:
        """Blocks of one row: a row has room for a whole step behind its last sum."""
        zero, step = tir.int64(0), PAIR * SIDE
        near = self.near(STRETCH)

        def stretch(begin: tir.Expr, end: tir.Expr) -> None:
            self.bring(near, begin, end)
            with tir.serial(zero, self.blocks) as row:
                start, stop = self.bounds(row)
                with tir.serial(zero, (stop - start + step - 1) // step) as p:
                    z = tir.hold(start + p * step)

                    def some(squares: int) -> None:
                        self.row(near, row, z, stop, squares, begin, end)

                    tir.either(stop - z > SIDE, lambda: some(PAIR), lambda: some(1))

        self.stretches(stretch)
        with tir.serial(zero, self.blocks) as row:
            start, stop = self.bounds(row)
            with tir.serial(start, stop) as z:
                total = self.sums[self.behind + z + row * step]
                tir.assign(self.c, total, row, tir.index_of(self.columns, z))

    def near(self, stride: int) -> _Lines:
        """Room for columns n0..n1."""
        return _Lines(Stored(tir.workspace(self.n1 - self.n0, stride)), self.n0)

    def bring(self, near: _Lines, begin: tir.Expr, end: tir.Expr) -> None:
        """Have k begin..end of the columns there."""
        (to,), count = near.source.sources, self.n1 - self.n0

        def copy(column: tir.Expr, k: tir.Expr, lanes: int) -> None:
            vector = self.s.product(column, k, lanes=lanes)
            tir.store(to, vector, column - self.n0, k - begin, lanes=lanes)

        def turn(column: tir.Expr, k: tir.Expr, lanes: int) -> None:
            vectors = turned(self.s, self.s.rows(k, SIDE), column, lanes)
            for i, vector in enumerate(vectors):
                tir.store(to, vector, column - self.n0 + i, k - begin, width=SIDE)

        if self.s.order == "nk":
            with tir.serial(self.n0, self.n1) as column:
                self.pieces(begin, end, tir.LANES, lambda k, lanes: copy(column, k, lanes))
            return
        with tir.serial(tir.int64(0), (end - begin + SIDE - 1) // SIDE) as q:
            k = tir.hold(begin + q * SIDE)
            with tir.serial(tir.int64(0), count // SIDE) as i:
                turn(tir.hold(self.n0 + i * SIDE), k, SIDE)
            if rest := self.s.n % SIDE:
                with tir.when(self.n1 == self.s.n):
                    turn(tir.int64(self.s.n - rest), k, rest)

    def row(
        self,
        near: _Lines,
        row: tir.Expr,
        z: tir.Expr,
        stop: tir.Expr,
        squares: int,
        begin: tir.Expr,
        end: tir.Expr,
    ) -> None:
        """Up to `squares` times `SIDE` columns of a row from entry `z` on."""
        step = PAIR * SIDE
        tiles = [DenseTile(1, 1, SIDE) for _ in range(squares)]
        lists, kept = [], []
        for v in range(squares):
            lists.append(self.listed(tir.hold(z + v * SIDE), stop, SIDE, near.first))
            kept.append([tir.hold(z + row * step + v * SIDE)])

        def square(k: tir.Expr, lanes: int) -> None:
            for tile, listed in zip(tiles, lists, strict=True):
                for i, vector in enumerate(turned(near.source, listed, k - begin, lanes)):
                    tile.step(product(self.a[row, k + i], vector))

        for tile, rows in zip(tiles, kept, strict=True):
            self.start(tile, rows, begin)
        self.pieces(begin, end, SIDE, square)
        for tile, rows in zip(tiles, kept, strict=True):
            self.finish(tile, rows, end)


def product(number: tir.Expr, vector: tir.Expr) -> Read:
    """What one row and one vector read."""
    return lambda _: number, lambda _: vector


def turned(s: Stored, rows: Sequence[tir.Expr], k: tir.Expr, lanes: int) -> list[tir.Expr]:
    """Columns k.. of `SIDE` rows, each a vector; the first `lanes` are there.

    Halves of rows meet when they are loaded: what is left are squares of 4 x 4, side by side.
    """
    quarter, found = SIDE // 2, list[tir.Expr]()

    def mixed(a: tir.Expr, b: tir.Expr, *lane: int) -> tir.Expr:
        places = [i if i < quarter else i + quarter for i in lane]  # of b: 4 is its first lane
        return tir.keep(tir.shuffle(a, b, [*places, *(i + quarter for i in places)]))

    for at in range(0, lanes, quarter):
        here = min(quarter, lanes - at)
        halves = [s.product(row, k + at, lanes=here, width=quarter) for row in rows]
        ends = zip(halves[:quarter], halves[quarter:], strict=True)
        a, b, c, d = (tir.keep(tir.shuffle(x, y, range(SIDE))) for x, y in ends)
        ab, cd = mixed(a, b, 0, 4, 1, 5), mixed(c, d, 0, 4, 1, 5)
        found += [mixed(ab, cd, 0, 1, 4, 5), mixed(ab, cd, 2, 3, 6, 7)]
        ab, cd = mixed(a, b, 2, 6, 3, 7), mixed(c, d, 2, 6, 3, 7)
        found += [mixed(ab, cd, 0, 1, 4, 5), mixed(ab, cd, 2, 3, 6, 7)]
    return found[:lanes]

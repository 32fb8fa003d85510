"""contract_block: C[rows_c, :] = act(A @ B + bias) + residual; each k block has a list of rows.

PIT axis m inside each block of W k: the micro-tile is one row x W, and W is read from the shape of
the packed values. SRead is the address of a row of the accumulator: the sums of a panel lie in a
compact scratch array, because rows of C, a power of two apart, would share few lines of the caches.
The dense tile is rows x columns of accumulators in registers. A row gets its blocks in ascending k
and its products in blocks of `FOLD`, so its bits do not depend on W, which divides that, or on the
call.

    for each panel of B:
        scratch = 0
        for each k block:                           its rows of B stay in the first-level cache
            for each tile of listed rows, for each column group:
                accumulators = scratch; multiply-add over the k block; scratch = accumulators
        C = epilogue of scratch

A short last tile repeats its last row, which is harmless as a tile reads all rows before it writes
one; it has half of the rows if these are enough.

Of a B that is stored as `kn` or `nk`, blocks of C are listed and not those of A: a *sampled*
product, C[i, columns] = A[i] @ B[:, columns]. PIT axis n inside each block of H rows of C: the
micro-tile is H x 1, and H is an argument. SRead gathers listed columns of B, SWrite puts a column
of sums where the list says; columns that lie side by side are whole vectors.

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
from pitc.codegen.engines.cpu import FOLD, DenseTile, Read
from pitc.codegen.families.right import Stored, StoredRight
from pitc.codegen.families.swrite import SWrite
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.target import CpuLevel

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
        params: Of `SWrite`; or `stored`, `kn` or `nk`, and no epilogue.
        target: CPU level.
    """
    if "stored" in params:
        return tir.prim_func(symbol, lambda: _Sampled(params, target.listed_tile).emit())
    return tir.prim_func(symbol, lambda: _Kernel(params, target.listed_tile).emit())


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile."""

    def __init__(self, params: Mapping[str, Any], tile: tuple[int, int]) -> None:
        self.k = params["k"]
        self.height, self.columns = tile
        entries, self.width, boundaries = (tir.size() for _ in range(3))
        self.values = tir.tensor("values", (entries, self.width))
        self.rows = tir.tensor("rows", (entries,), "int32")
        self.starts = tir.tensor("starts", (boundaries,), "int32")
        self.blocks = boundaries - 1
        self.swrite = SWrite(params)
        self.folds = self.k > FOLD
        rows = tir.larger(self.swrite.rows, tir.int64(1))
        self.sums = tir.workspace(rows * (PANEL_WIDTH * (1 + self.folds)))

    def emit(self) -> None:
        """Panels, blocks of k, row tiles."""
        half = self.height // 2
        with self.swrite.panels() as j:
            vectors = self.swrite.rows * (PANEL_WIDTH // tir.LANES)
            with tir.serial(tir.int64(0), vectors * (1 + self.folds)) as i:
                tir.store(self.sums, tir.splat(0), i * tir.LANES)
            with tir.serial(tir.int64(0), self.blocks) as q:
                start = tir.index_of(self.starts, q)
                stop = tir.index_of(self.starts, q + 1)
                tiles = tir.bind((stop - start) // self.height)
                rest = tir.bind(stop - start - tiles * self.height)
                whole = tir.bind(tir.select(rest <= half, tiles, tiles + 1))
                with tir.serial(0, whole) as p:
                    self.tiles(j, q, tir.bind(start + p * self.height), stop, self.height)
                with tir.when(tir.both(rest > 0, rest <= half)):
                    self.tiles(j, q, tir.bind(stop - rest), stop, half)
                if self.folds:
                    with tir.when((q + 1) * self.width // FOLD > q * self.width // FOLD):
                        self.fold(vectors, start=False)
            if self.folds:
                self.fold(vectors, start=True)
            self.swrite.write(j, tir.int64(0), self.swrite.rows, self.sums, tir.int64(0))

    def fold(self, vectors: tir.Expr, *, start: bool) -> None:
        """Add the sums of a block of k to those of the blocks before, which lie behind them.

        Args:
            vectors: Vectors of sums.
            start: The result is where the sums start, complete; else these are 0 again.
        """
        with tir.serial(tir.int64(0), vectors) as i:
            at = tir.bind(i * tir.LANES)
            behind = tir.bind((vectors + i) * tir.LANES)
            total = tir.keep(tir.load(self.sums, behind) + tir.load(self.sums, at))
            tir.store(self.sums, total, at if start else behind)
            if not start:
                tir.store(self.sums, tir.splat(0), at)

    def tiles(self, j: tir.Expr, q: tir.Expr, first: tir.Expr, stop: tir.Expr, height: int) -> None:
        """The column groups of one row tile: entries `first`.. below `stop`, in k block `q`."""
        entries = [tir.bind(tir.smaller(first + r, stop - 1)) for r in range(height)]
        rows = [tir.bind(tir.index_of(self.rows, z) * PANEL_WIDTH) for z in entries]
        with tir.serial(0, tir.int64(PANEL_WIDTH // self.columns)) as x:
            self.tile(j, q, tir.bind(x * self.columns), entries, rows)

    def tile(
        self,
        j: tir.Expr,
        q: tir.Expr,
        column: tir.Expr,
        entries: list[tir.Expr],
        rows: list[tir.Expr],
    ) -> None:
        """One register tile over one k block; it asks for the k block after it.

        Args:
            j: Panel.
            q: Block of k.
            column: Where the column group starts in its panel.
            entries: Packed values of the rows of the tile.
            rows: Where their sums begin.
        """
        b, relu = self.swrite.b, self.swrite.input_relu
        tile = DenseTile(len(rows), self.columns // tir.LANES, input_relu=relu)
        start = tir.bind(q * self.width)
        length = tir.bind(tir.smaller(self.width, self.k - start))
        sums = [row + column for row in rows]
        offsets = [column + v * tir.LANES for v in range(tile.vectors)]

        def read(i: tir.Expr) -> Read:
            k = start + i
            later = tir.smaller(k + self.width, tir.int64(self.k - 1))
            for offset in offsets:
                tir.prefetch(b, j, later, offset)
            return lambda r: self.values[entries[r], i], lambda v: tir.load(b, j, k, offsets[v])

        tile.take(self.sums, sums)
        tile.multiply(length, UNROLL, read, rest=self.k % UNROLL > 0)
        tile.put(self.sums, sums)


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

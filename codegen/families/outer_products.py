"""outer_products: C[i, columns] += sum over k of A[k, i] * B[k, columns], of one block of k.

A sampled product whose operands lie as they are summed: a row of A and one of B make an outer
product, and the sum of these is a gradient of weights. Sizes are known when the kernel is called.

PIT axis n inside each block of H rows of C: the micro-tile is H x 1, and H is an argument. SRead
brings listed columns of B into a panel of 64, SWrite adds a column of sums where the list says.

    for each block of H rows, for each 64 columns of its list:
        for each 16 of them:
            panel[:, 16] = B[:, columns]            columns side by side: vectors of rows of B
                                                    else turned from lines, if there are any
        for each tile of rows: C[rows, columns] += A[:, rows]^T * panel

    H = 1, where nobody shares a panel:
        for each row, for each 8 columns of its list:
            C[row, columns] += A[:, row] * lines[columns]^T, multiplied where it is turned

Lines are B^T, with zeros behind the last k, so that squares of 8 x 8 of them are whole. A stands in
groups of 16 rows of C, [group, k, row], with as many zeros.

    columns 3..18 and 40 of a list   ->   one vector of each row of B, and 8 lines (the last one
                                          stands for those behind it)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import DenseTile, Read
from pitc.codegen.families.right import Stored
from pitc.codegen.families.sampled import PAIR, SIDE, product, turned
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.target import CpuLevel

UNROLL = 4
STRETCH = 96
"""k of a panel that are near at the same time; a multiple of `SIDE`."""
GROUP = 16
"""Rows of C whose A stands together, one line for each k: they divide blocks of rows."""
HEIGHTS = (6, 6, 4)
"""Rows of the register tiles of a group."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of the kernel (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: None that it looks at.
        target: CPU level.
    """
    del params
    return tir.prim_func(symbol, lambda: _Kernel(target.gemm_tile[1]).emit())


class _Kernel:
    """Emits the kernel: its arguments, and the loops around its tiles."""

    def __init__(self, tile_columns: int) -> None:
        self.tile_columns = tile_columns
        groups, self.depth, self.k, self.n = (tir.size() for _ in range(4))
        rows, entries, boundaries = (tir.size() for _ in range(3))
        self.rows = rows
        self.a = tir.tensor("a", (groups, self.depth, GROUP))
        self.b = tir.tensor("b", (self.k, self.n))
        self.columns = tir.tensor("columns", (entries,), "int32")
        self.starts = tir.tensor("starts", (boundaries,), "int32")
        self.c = tir.tensor("c", (rows, self.n))
        self.height, self.n0, self.n1, self.has_lines = tir.scalars("h", "n0", "n1", "lines")
        self.blocks = boundaries - 1
        self.width = tir.bind(self.n1 - self.n0)
        lines = tir.bind(tir.select(self.has_lines > 0, self.width, tir.int64(1)))
        self.lines = tir.workspace(lines, self.depth + tir.LANES)  # no power of two

    def emit(self) -> None:
        """Lines, then blocks of one row, or of several."""
        with tir.when(self.has_lines > 0):
            self.bring()
        tir.either(self.height == 1, self.single_rows, self.many_rows)

    def bring(self) -> None:
        """Turn columns n0..n1 of B into lines."""
        source, zero, whole = Stored(self.b), tir.int64(0), tir.bind(self.width // SIDE)
        with tir.serial(zero, self.depth // SIDE) as q:
            k = tir.hold(q * SIDE)
            rows = source.rows(k, SIDE)
            with tir.serial(zero, whole) as i:
                at = tir.hold(i * SIDE)
                for c, vector in enumerate(turned(source, rows, self.n0 + at, SIDE)):
                    tir.store(self.lines, vector, at + c, k, width=SIDE)
        with tir.serial(whole * SIDE, self.width) as at, tir.serial(zero, self.k) as k:
            tir.assign(self.lines, self.b[k, self.n0 + at], at, k)
        with tir.serial(zero, self.width) as at, tir.serial(self.k, self.depth) as k:
            tir.assign(self.lines, tir.float32(0), at, k)

    def bounds(self, block: tir.Expr) -> tuple[tir.Expr, tir.Expr]:
        """The first entry of a block, and the first one behind it."""
        return tir.index_of(self.starts, block), tir.index_of(self.starts, block + 1)

    def listed(self, z: tir.Expr, stop: tir.Expr, count: int) -> list[tir.Expr]:
        """Columns from entry `z` on; the last one below `stop` stands for those behind it."""
        places = (tir.smaller(z + i, stop - 1) for i in range(count))
        return [tir.hold(tir.index_of(self.columns, place)) for place in places]

    def lies_together(
        self, at: tir.Expr, stop: tir.Expr, width: int = tir.LANES
    ) -> tuple[tir.Expr, tir.Expr]:
        """The column of entry `at`, and whether `width` entries are columns side by side."""
        last = tir.index_of(self.columns, tir.smaller(at + width, stop) - 1)
        first = tir.hold(tir.index_of(self.columns, at))
        return first, tir.both(at + width <= stop, last - first == width - 1)

    def many_rows(self) -> None:
        """Blocks of several rows, 64 columns at a time."""
        zero = tir.int64(0)
        panel = tir.workspace(PANEL_WIDTH // self.tile_columns, STRETCH, self.tile_columns)
        sums = tir.workspace(self.height * PANEL_WIDTH)
        with tir.serial(zero, self.blocks) as block:
            start, stop = self.bounds(block)
            first = tir.hold(block * self.height)
            here = tir.hold(tir.smaller(self.height, self.rows - first))
            with tir.serial(zero, (stop - start + PANEL_WIDTH - 1) // PANEL_WIDTH) as p:
                z = tir.hold(start + p * PANEL_WIDTH)
                count = tir.hold(tir.smaller(tir.int64(PANEL_WIDTH), stop - z))
                vectors = tir.bind((count + tir.LANES - 1) // tir.LANES)
                column, whole = self.lies_together(z, stop, PANEL_WIDTH)

                def each(step: Callable[[tir.Expr, tir.Expr], None]) -> None:
                    with tir.serial(zero, vectors) as v:
                        to = tir.hold(v * tir.LANES)
                        step(tir.hold(z + to), to)

                with tir.serial(zero, (self.k + STRETCH - 1) // STRETCH) as q:
                    begin = tir.hold(q * STRETCH)
                    end = tir.hold(tir.smaller(begin + STRETCH, self.k))
                    tir.either(
                        whole,
                        lambda: self.copy(panel, column, begin, end),
                        lambda: each(lambda at, to: self.fill(panel, at, stop, to, begin, end)),
                    )
                    self.multiply(panel, sums, first, here, count, begin, end)
                tir.either(
                    whole,
                    lambda: self.add_rows(sums, first, here, column),
                    lambda: each(lambda at, to: self.write(sums, first, here, at, stop, to)),
                )

    def copy(self, panel: tir.Buffer, column: tir.Expr, begin: tir.Expr, end: tir.Expr) -> None:
        """SRead of a stretch of 64 columns side by side: each row of B in one go."""
        with tir.serial(tir.int64(0), end - begin) as i:
            for at in range(0, PANEL_WIDTH, tir.LANES):
                x, place = divmod(at, self.tile_columns)
                vector = tir.load(self.b, begin + i, column + at)
                tir.store(panel, vector, tir.int64(x), i, tir.int64(place))

    def add_rows(self, sums: tir.Buffer, first: tir.Expr, here: tir.Expr, column: tir.Expr) -> None:
        """SWrite of 64 columns side by side."""
        with tir.serial(tir.int64(0), here) as r:
            row = tir.hold(first + r)
            for at in range(0, PANEL_WIDTH, tir.LANES):
                kept = tir.load(sums, r * PANEL_WIDTH + at)
                tir.store(self.c, kept + tir.load(self.c, row, column + at), row, column + at)

    def fill(
        self,
        panel: tir.Buffer,
        at: tir.Expr,
        stop: tir.Expr,
        to: tir.Expr,
        begin: tir.Expr,
        end: tir.Expr,
    ) -> None:
        """SRead of a stretch of a vector of columns, from entry `at` on, to column `to` of the
        panel.
        """
        zero, count = tir.int64(0), tir.bind(end - begin)
        first, together = self.lies_together(at, stop)
        place = tir.bind(to // self.tile_columns), tir.bind(to % self.tile_columns)

        def put(vector: tir.Expr, i: tir.Expr, lane: int = 0, width: int = tir.LANES) -> None:
            tir.store(panel, vector, place[0], i, place[1] + lane, width=width)

        def copied() -> None:
            with tir.serial(zero, count) as i:
                put(tir.load(self.b, begin + i, first), i)

        def from_lines() -> None:
            for half in range(0, tir.LANES, SIDE):
                listed = self.listed(at + half, stop, SIDE)
                rows = [tir.hold(c - self.n0) for c in listed]
                with tir.serial(zero, (count + SIDE - 1) // SIDE) as q:
                    k = tir.hold(begin + q * SIDE)
                    for i, vector in enumerate(turned(Stored(self.lines), rows, k, SIDE)):
                        put(vector, q * SIDE + i, half, SIDE)

        def one_by_one() -> None:
            columns = self.listed(at, stop, tir.LANES)
            with tir.serial(zero, count) as i:
                for c, column in enumerate(columns):
                    tir.assign(panel, self.b[begin + i, column], place[0], i, place[1] + c)

        def apart() -> None:
            tir.either(self.has_lines > 0, from_lines, one_by_one)

        tir.either(together, copied, apart)

    def multiply(
        self,
        panel: tir.Buffer,
        sums: tir.Buffer,
        first: tir.Expr,
        here: tir.Expr,
        count: tir.Expr,
        begin: tir.Expr,
        end: tir.Expr,
    ) -> None:
        """The tiles of `here` rows from `first` on, over a stretch; rows of a group that are not
        there are computed and not read.
        """
        width, zero = self.tile_columns, tir.int64(0)

        def rows(group: tir.Expr, row: int, height: int) -> None:
            with tir.serial(zero, (count + width - 1) // width) as x:
                column = tir.hold(x * width)
                first_sum = tir.hold((group * GROUP + row) * PANEL_WIDTH + column)
                kept = [first_sum + r * PANEL_WIDTH for r in range(height)]

                def read(i: tir.Expr) -> Read:
                    return (
                        lambda r: self.a[first // GROUP + group, begin + i, row + r],
                        lambda v: tir.load(panel, x, i, tir.int64(v * tir.LANES)),
                    )

                def some(vectors: int) -> None:
                    tile = DenseTile(height, vectors)
                    tir.either(begin == 0, tile.clear, lambda: tile.take(sums, kept))
                    tile.multiply(end - begin, UNROLL, read)
                    tile.put(sums, kept)

                def upto(vectors: int) -> None:
                    half = vectors // 2
                    if half:
                        few = count - column <= half * tir.LANES
                        tir.either(few, lambda: upto(half), lambda: some(vectors))
                    else:
                        some(vectors)

                upto(width // tir.LANES)

        with tir.serial(zero, (here + GROUP - 1) // GROUP) as group:
            row = 0
            for height in HEIGHTS:
                with tir.when(group * GROUP + row < here):
                    rows(group, row, height)
                row += height

    def write(
        self,
        sums: tir.Buffer,
        first: tir.Expr,
        here: tir.Expr,
        at: tir.Expr,
        stop: tir.Expr,
        source: tir.Expr,
    ) -> None:
        """SWrite of a vector of columns, from column `source` of the sums."""
        column, together = self.lies_together(at, stop)
        count = tir.bind(tir.smaller(tir.int64(tir.LANES), stop - at))

        def beside() -> None:
            with tir.serial(tir.int64(0), here) as r:
                total = tir.load(sums, r * PANEL_WIDTH + source) + tir.load(
                    self.c, first + r, column
                )
                tir.store(self.c, total, first + r, column)

        def apart() -> None:
            with tir.serial(tir.int64(0), here) as r, tir.serial(tir.int64(0), count) as i:
                self.add(first + r, at + i, sums[r * PANEL_WIDTH + source + i])

        tir.either(together, beside, apart)

    def add(self, row: tir.Expr, entry: tir.Expr, total: tir.Expr) -> None:
        """Add a sum to one element of C."""
        column = tir.hold(tir.index_of(self.columns, entry))
        tir.assign(self.c, self.c[row, column] + total, row, column)

    def single_rows(self) -> None:
        """Blocks of one row."""
        zero, step = tir.int64(0), PAIR * SIDE
        sums = tir.workspace(step)
        with tir.serial(zero, self.blocks) as row:
            start, stop = self.bounds(row)
            with tir.serial(zero, (stop - start + step - 1) // step) as p:
                z = tir.hold(start + p * step)

                def some(squares: int) -> None:
                    self.row(sums, row, z, stop, squares)

                tir.either(stop - z > SIDE, lambda: some(PAIR), lambda: some(1))
                with tir.serial(zero, tir.smaller(tir.int64(step), stop - z)) as i:
                    self.add(row, z + i, sums[i])

    def row(
        self, sums: tir.Buffer, row: tir.Expr, z: tir.Expr, stop: tir.Expr, squares: int
    ) -> None:
        """Sums of up to `squares` times `SIDE` columns of a row, from entry `z` on."""
        place, line = tir.hold(row // GROUP), tir.hold(row % GROUP)
        tiles = [DenseTile(1, 1, SIDE) for _ in range(squares)]
        lists: list[Sequence[tir.Expr]] = []
        for v, tile in enumerate(tiles):
            lists.append([tir.hold(c - self.n0) for c in self.listed(z + v * SIDE, stop, SIDE)])
            tile.clear()
        with tir.serial(tir.int64(0), self.depth // SIDE) as q:
            for tile, listed in zip(tiles, lists, strict=True):
                for i, vector in enumerate(turned(Stored(self.lines), listed, q * SIDE, SIDE)):
                    tile.step(product(self.a[place, q * SIDE + i, line], vector))
        for v, tile in enumerate(tiles):
            tile.put(sums, [tir.int64(v * SIDE)])

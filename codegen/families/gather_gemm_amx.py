"""gather_gemm of bfloat16 by a matrix unit: C[rows_c[i], :] = act(A[rows_a[i], :] @ B + bias) + ..

PIT axis m, as in `gather_gemm.py`, and the same arguments. SRead puts the rows of a block side by
side as words of two numbers, in tiles of 16 x 16 words. The unit is fed by the caches: A comes from
the second-level one (`far`), a chunk of B, in tiles as well, stays in the first-level one.

    for each block of rows, for each group of columns, for each stretch of k:
                                                    words of A stay in the second-level cache
        for each half of a panel of B, for each chunk of k:
            copy 32 columns of B
            for each two tiles of rows:             32 rows
                sums = 0, or what they were; add the products of a chunk
                meanwhile: C = epilogue of some rows of the columns before, ask for B's next chunk

The unit and vectors compute at the same time, so an epilogue costs little; that of the last columns
of a block comes behind the loops. Behind the last row of a block tiles hold whatever was there,
which gives rows that nobody stores. Behind the last k stand zeros, in A and in the copy of B.

Up to 16 rows take as long as memory takes to give B. For these, B is read panel by panel, where it
is, in the order in which it is stored:

    for each panel:                                 16 rows x 64 columns
        sums = 0; add the products of all k, ask for B some steps ahead; C = epilogue of the sums
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.amx import SIDE, TILE, Square, tiles_of
from pitc.codegen.engines.pairs import instructions, step_count
from pitc.codegen.families.epilogue import ACTIVATIONS, Epilogue
from pitc.codegen.families.left_tiles import Copied, Rounded
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CpuLevel

CHUNK = 12
"""Steps of 16 words: 24 KiB of B, half of a first-level cache of 48 KiB."""
WHOLE = 3
"""Chunks up to which all k are one stretch; of longer ones stretches have `STRETCH` chunks."""
STRETCH = 2
BLOCK, BLOCK_OF_STRETCHES = 512, 256
"""Rows of a block: a stretch of them and sums of a group are half of a cache of 2 MiB, or less."""
GROUP = 24
"""Halves of panels in a group, where there are several stretches: their sums stand in memory."""
AHEAD = 2
"""Steps that B is asked for ahead, where rows are few: 8 KiB."""
ROWS_AHEAD = 8
"""Rows of C that are asked for ahead, where a half is one line of them."""
AREA, SQUARE = TILE * TILE, SIDE * SIDE


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`, `n`, `activation`, `residual`; `input_relu`, `left_words` and `rounds_result`,
            0 if not there.
        target: A CPU level with a matrix unit.
    """
    if params["k"] < 1 or params["n"] < 1 or params["activation"] not in ACTIVATIONS:
        raise ValueError(f"no gather_gemm kernel for {dict(params)}")

    def emit() -> None:
        kernel = _Kernel(params, target)
        with instructions(params, target), kernel.tiles.used():
            kernel.emit()

    return tir.prim_func(symbol, emit)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A block of rows: the place of the first one in the row list, how many, tiles of 32."""

    first: tir.Expr
    count: tir.Expr
    tiles: tir.Expr


class _Kernel:
    """Emits one kernel.

    Columns are counted in halves of panels, from the first one of the call on.
    """

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        k, self.n = params["k"], params["n"]
        self.k, words = step_count(params), bool(params.get("left_words"))
        rows_of_a, listed, rows_of_c = (tir.size() for _ in range(3))
        panels = panel_count(self.n)
        a = tir.tensor("a", (rows_of_a, self.k if words else k))
        rows_a = tir.tensor("rows_a", (listed,), "int32")
        self.b = tir.tensor("b", (panels, self.k, PANEL_WIDTH))
        bias = tir.tensor("bias", (panels * PANEL_WIDTH,))
        residual = tir.tensor("residual", (listed, self.n)) if params["residual"] else None
        self.rows_c = tir.tensor("rows_c", (listed,), "int32")
        self.rounds = bool(params.get("rounds_result"))
        self.c = tir.tensor("c", (rows_of_c, self.n), "uint16" if self.rounds else "float32")
        self.i0, self.i1, j0, j1 = tir.scalars("i0", "i1", "j0", "j1")
        self.epilogue = Epilogue(params["activation"], self.n, bias, residual)

        self.steps = -(-self.k // TILE)
        self.behind = self.k % TILE
        self.chunks = -(-self.steps // CHUNK)
        stretches = 1 if self.chunks <= WHOLE else -(-self.chunks // STRETCH)
        self.stretch = -(-self.chunks // stretches)
        self.stretches = -(-self.chunks // self.stretch)
        self.group = 1 if self.stretches == 1 else min(GROUP, -(-self.n // SIDE))
        self.block = BLOCK if self.stretches == 1 else BLOCK_OF_STRETCHES

        self.j0, self.j1 = j0, j1
        self.column0 = tir.bind(j0 * PANEL_WIDTH)
        columns = tir.smaller(tir.int64(self.n), j1 * PANEL_WIDTH) - self.column0
        self.halves = tir.bind((columns + SIDE - 1) // SIDE)
        listed_tiles = tir.larger(tir.int64(1), self.tile_count(self.i1 - self.i0))
        most = tir.bind(tir.smaller(listed_tiles, tir.int64(self.block // SIDE)) * SIDE)
        relu = bool(params.get("input_relu"))
        self.left = Copied(a, rows_a, most) if words else Rounded(a, rows_a, most, input_relu=relu)
        self.slot = tir.bind(most * SIDE)
        self.sums = tir.workspace(self.slot * (self.group + 1))
        self.near = tir.workspace(CHUNK * SIDE * TILE)
        self.tiles = tiles_of(target)

    @staticmethod
    def tile_count(rows: tir.Expr) -> tir.Expr:
        """Tiles of 32 rows."""
        return (rows + SIDE - 1) // SIDE

    def place(self, half: tir.Expr, tile: tir.Expr) -> tir.Expr:
        """Where a square of sums begins: those of a group and of the half before it are kept."""
        return half % (self.group + 1) * self.slot + tile * SQUARE

    def square(self, half: tir.Expr, tile: tir.Expr) -> Square:
        """A square of sums: four tiles of 16 x 16, of the first rows, left and right, then of the
        last.
        """
        place = tir.hold(self.place(half, tile))
        tiles = [[(self.sums, (place + (i * 2 + j) * AREA,)) for j in range(2)] for i in range(2)]
        return Square(tiles, TILE)

    def emit(self) -> None:
        """Blocks of rows of about the same size, groups of columns, stretches of k, halves."""
        zero, one = tir.int64(0), tir.int64(1)
        tiles = tir.bind(self.tile_count(self.i1 - self.i0))
        blocks = tir.bind((tiles + self.block // SIDE - 1) // (self.block // SIDE))
        size = tir.bind(tir.quotient(tiles + blocks - 1, tir.larger(one, blocks)) * SIDE)
        with tir.serial(zero, blocks) as b:
            first = tir.bind(self.i0 + b * size)
            count = tir.bind(tir.larger(zero, tir.smaller(size, self.i1 - first)))
            rows = _Rows(first, count, tir.bind(self.tile_count(count)))
            self.left.bring(first, count)
            tir.either(count <= TILE, lambda: self.few(rows), lambda: self.many(rows))

    def few(self, rows: _Rows) -> None:
        """All columns of up to 16 rows, panel by panel."""
        zero = tir.int64(0)
        starts = range(0, PANEL_WIDTH, TILE)
        sums = Square([[(self.sums, (tir.int64(v * TILE),)) for v in starts]], TILE)
        whole = tir.int64(self.k // TILE)
        with tir.serial(self.j0, self.j1) as j:
            self.tiles.clear(sums)
            with tir.serial(zero, whole) as s:
                for w in range(TILE):
                    row = tir.smaller((s + AHEAD) * TILE + w, tir.int64(self.k - 1))
                    for v in starts:
                        tir.prefetch(self.b, j, row, tir.int64(v))
                a = [(self.left.converted, (self.left.place(zero, s),))]
                b = [(self.b, (j, s * TILE, tir.int64(v))) for v in starts]
                self.tiles.step(sums, a, b)
            if self.behind:
                self.copy(j * PANEL_WIDTH, whole, whole + 1, PANEL_WIDTH)
                rest = [(self.near, (tir.int64(v * TILE),)) for v in starts]
                a = [(self.left.converted, (self.left.place(zero, whole),))]
                self.tiles.step(sums, a, rest)
            self.tiles.store(sums)
            column = tir.hold(j * PANEL_WIDTH)
            with tir.serial(zero, rows.count) as r:
                row = tir.hold(rows.first + r)
                row_c = tir.hold(tir.index_of(self.rows_c, row))
                for v in range(0, PANEL_WIDTH, SIDE):
                    at = tir.hold(r * TILE + v * TILE)
                    self.put_there(at, row, row_c, tir.hold(column + v))

    def many(self, rows: _Rows) -> None:
        """All columns of a block of rows."""
        zero, group = tir.int64(0), tir.int64(self.group)
        with (
            tir.serial(zero, (self.halves + group - 1) // group) as g,
            tir.serial(zero, tir.int64(self.stretches)) as stretch,
            tir.serial(g * group, tir.smaller(self.halves, (g + 1) * group)) as half,
        ):
            last = stretch == self.stretches - 1
            starts = half == g * group
            waits = tir.select(starts, tir.both(stretch == 0, half > 0), last)
            lines = tir.hold(tir.select(waits, rows.count, zero))
            self.columns(rows, half, stretch, lines)
        there = tir.select(self.halves > 0, rows.count, zero)
        self.finish(rows, self.halves - 1, zero, there, ends=True)

    def columns(self, rows: _Rows, half: tir.Expr, stretch: tir.Expr, lines: tir.Expr) -> None:
        """A stretch of k of 32 columns for all rows of a block.

        Args:
            rows: The block.
            half: The columns.
            stretch: Number of the stretch.
            lines: Rows of the half before that are to be finished.
        """
        zero, chunk = tir.int64(0), tir.int64(CHUNK)
        column = tir.hold(self.column0 + half * SIDE)
        begin = tir.hold(stretch * self.stretch)
        end = tir.hold(tir.smaller(begin + self.stretch, tir.int64(self.chunks)))
        shortest = self.chunks - (self.stretches - 1) * self.stretch
        each = -(-SIDE // shortest)  # rows to finish beside a chunk of 32 rows
        with tir.serial(begin, end) as c:
            at = tir.hold(c * chunk)
            length = tir.hold(tir.smaller(chunk, self.steps - at)) if self.steps % CHUNK else chunk
            self.copy(column, at, at + length, SIDE)
            with tir.serial(zero, rows.tiles) as t:
                start = tir.hold(((c - begin) * rows.tiles + t) * each)
                sums = self.square(half, t)
                tir.either(c == 0, lambda: self.tiles.clear(sums), lambda: self.tiles.load(sums))
                short = rows.count - t * SIDE <= TILE
                with tir.serial(zero, length) as s:
                    self.ask(column, at + chunk, t * CHUNK + s, rows.tiles)
                    self.step(sums, t, at + s, s, short)
                    done = [start + tir.quotient(i * each, length) for i in (s, s + 1)]
                    cut = [tir.smaller(lines, count) for count in done]
                    self.finish(rows, half - 1, *cut)
                self.tiles.store(sums)

    def step(self, sums: Square, t: tir.Expr, s: tir.Expr, near: tir.Expr, short: tir.Expr) -> None:
        """16 words of k of 32 rows, or of 16, if there are no more."""
        left = [(self.left.converted, (self.left.place(t * SIDE + i, s),)) for i in (0, TILE)]
        right = [(self.near, (near * (SIDE * TILE) + v * AREA,)) for v in range(2)]
        tir.either(
            short,
            lambda: self.tiles.step(sums, left[:1], right, far=True),
            lambda: self.tiles.step(sums, left, right, far=True),
        )

    def ask(self, column: tir.Expr, at: tir.Expr, number: tir.Expr, tiles: tir.Expr) -> None:
        """Ask for rows of the chunk that comes next, in all steps of this one.

        Args:
            column: The columns.
            at: The step that the next chunk of k starts with, or the end.
            number: Of the step, among those of this chunk for all rows.
            tiles: Tiles of 32 rows.
        """
        ends = at >= self.steps
        column = tir.hold(tir.select(ends, column + SIDE, column))
        word = tir.hold(tir.select(ends, tir.int64(0), at * TILE))
        share = tir.quotient(tiles + TILE - 1, tiles)
        with tir.serial(tir.int64(0), share) as line:
            row = tir.hold(number * share + line)
            with tir.when(tir.both(row < CHUNK * TILE, column < self.n)):
                place = (column // PANEL_WIDTH, tir.smaller(word + row, tir.int64(self.k - 1)))
                for v in (0, TILE):
                    tir.prefetch(self.b, *place, column % PANEL_WIDTH + v, far=True)

    def copy(self, column: tir.Expr, start: tir.Expr, stop: tir.Expr, width: int) -> None:
        """Copy some steps of B into tiles that lie in one piece, with 0 behind the last row.

        Where they are in a panel they would share few lines of the first-level cache.
        """
        panel, first = tir.hold(column // PANEL_WIDTH), tir.hold(column % PANEL_WIDTH)
        begin = tir.hold(start * TILE)
        there = tir.hold(tir.smaller(stop * TILE, tir.int64(self.k)) - begin)

        def put(row: tir.Expr, vector: Callable[[int], tir.Expr]) -> None:
            place = tir.hold(row // TILE * (width * TILE) + row % TILE * TILE)
            for v in range(width // TILE):
                tir.store(self.near, vector(v), place + v * AREA)

        with tir.serial(tir.int64(0), there) as row:
            put(row, lambda v: tir.load(self.b, panel, begin + row, first + v * TILE))
        if self.behind:
            with tir.serial(there, (stop - start) * TILE) as row:
                put(row, lambda v: tir.splat(0))

    def finish(
        self, rows: _Rows, half: tir.Expr, start: tir.Expr, stop: tir.Expr, *, ends: bool = False
    ) -> None:
        """Finish and store some rows of 32 columns.

        Args:
            rows: The block.
            half: The columns.
            start: The first row, in the block.
            stop: The one behind the last.
            ends: These may be the last columns, of which not all are there.
        """
        column = tir.hold(self.column0 + half * SIDE)
        with tir.serial(start, stop) as r:
            row = tir.hold(rows.first + r)
            row_c = tir.hold(tir.index_of(self.rows_c, row))
            if self.rounds:  # lines of C come from far, one by one, where it was not used before
                later = tir.hold(tir.smaller(row + ROWS_AHEAD, self.i1 - 1))
                tir.prefetch(self.c, tir.index_of(self.rows_c, later), column, far=True)
            place = tir.hold(self.place(half, r // SIDE) + self.place_of(r % SIDE))
            if ends:
                self.put_there(place, row, row_c, column)
            else:
                self.put(place, row, row_c, column, [tir.LANES] * 2)

    @staticmethod
    def place_of(row: tir.Expr) -> tir.Expr:
        """Where a row begins in its square; its last 16 sums are `AREA` further on."""
        return row // TILE * (2 * AREA) + row % TILE * TILE

    def put_there(self, place: tir.Expr, row: tir.Expr, row_c: tir.Expr, column: tir.Expr) -> None:
        """The same of 32 columns of which not all need be there."""
        left, rest = tir.hold(self.n - column), self.n % SIDE
        with tir.when(left >= SIDE):
            self.put(place, row, row_c, column, [tir.LANES] * 2)
        if rest:
            cut = [min(tir.LANES, rest - v) for v in range(0, rest, tir.LANES)]
            with tir.when(left == rest):
                self.put(place, row, row_c, column, cut)

    def put(
        self, place: tir.Expr, row: tir.Expr, row_c: tir.Expr, column: tir.Expr, lanes: list[int]
    ) -> None:
        """Finish and store the vectors of a row, whose sums begin at a place."""
        values = []
        for v, count in enumerate(lanes):
            at = column + v * tir.LANES
            sums = tir.load(self.sums, place + v * AREA)
            value = tir.keep(self.epilogue.finish(tir.keep(sums), row, at, count))
            values.append((value, at, count))
        if self.rounds and sum(lanes) == SIDE:
            pairs.store_both(self.c, *(value for value, *_ in values), row_c, column)
            return
        for value, at, count in values:
            if self.rounds:
                pairs.store_halves(self.c, value, row_c, at, lanes=count)
            else:
                tir.store(self.c, value, row_c, at, lanes=count)

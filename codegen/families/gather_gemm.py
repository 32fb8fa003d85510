"""gather_gemm: C[rows_c[i], :] = act(A[rows_a[i], :] @ B + bias) + residual[i, :].

PIT axis m: the micro-tile is one row. SRead is the address of a row: A is read in place, because
packing it first did not measure faster. SWrite is the address of the stored row. The dense tile is
rows x columns of accumulators in registers. Each sums blocks of k in ascending order (`FOLD`), so
the bits of a row do not depend on the tile that it falls into.

    for each block of rows, for each block of k:    rows of A stay in the second-level cache
        for each stretch of a panel of B:           it stays in the cache that the row tiles need
            for each column group of the panel, for each row tile:
                accumulators = 0, or the partial sums in C
                multiply-add over the stretch, and ask memory for a part of the next one
                C = partial sums, or the epilogue after the last k

A stretch is a k block of a panel. For few rows it is much shorter: B comes from memory then, row
tiles after the first one read it from the first-level cache, and all of them ask for a share of the
next one, so that memory never rests. A short row tile repeats its last row and drops the copies.

Rows that all fit into one register tile, or that follow one row, read B in order
(`gather_gemm_few`).

A matrix that is computed when the model runs is read as it is stored (`right.py`): a stretch is a
piece of it then.

With `bits`, the kernel also says which stored values are not zero: words of 64 columns, taken from
the registers of the epilogue.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.pairs import instructions, step_count
from pitc.codegen.families import gather_gemm_amx
from pitc.codegen.families import gather_gemm_few as few_rows
from pitc.codegen.families.epilogue import ACTIVATIONS, Epilogue
from pitc.codegen.families.gather_gemm_tile import PAIR, QUAD, Columns, RegisterTile, Stretch
from pitc.codegen.families.left import Left, left_operand
from pitc.codegen.families.right import Right, Turned, right_operand
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CpuLevel
from pitc.ir.variants import FOLD

WORD_ROWS = 12
"""Highest lone row tile beside words that are taken apart: with 14 rows sums, words and numbers of
two vectors do not fit into 32 registers."""

#: Rows that a way of few rows takes, and the function that emits it.
_Way = tuple[int, Callable[[Any, tir.Expr, tir.Expr], None]]


def k_block(k: int, most: int) -> int:
    """Length of the k blocks: all of k, or equal multiples of `FOLD`, the last maybe shorter; at
    most `most`.
    """
    blocks = -(-k // most)
    if blocks == 1:
        return k
    return -(-k // (FOLD * blocks)) * FOLD


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`, `n`, `activation`, `residual`, `dtype`; `bits`, `input_relu`, `left_words` and
            `rounds_result`, 0 if not there; `stored` and `factor`, where B is not in panels.
        target: CPU level.
    """
    if params["k"] < 1 or params["n"] < 1 or params["activation"] not in ACTIVATIONS:
        raise ValueError(f"no gather_gemm kernel for {dict(params)}")
    if target.multiplies_tiles:
        return gather_gemm_amx.prim_func(symbol, params, target)

    def emit() -> None:
        kernel = _Kernel(params, target)
        with instructions(params, target), tir.numbers_in_memory():
            kernel.emit()

    return tir.prim_func(symbol, emit)


@dataclass(frozen=True, slots=True)
class _RowTiles:
    """Row tiles of a block of rows: its first row, full and padded ones, up to two pairs, or a tile
    of four rows, all.
    """

    first: tir.Expr
    full: tir.Expr
    pair: tir.Expr
    quad: tir.Expr
    count: tir.Expr


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile.

    Beside words of two numbers, k, `FOLD` and lengths of stretches count words.
    """

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        k, self.n, self.target = params["k"], params["n"], target
        self.input_relu = bool(params.get("input_relu"))
        self.in_pairs = params["dtype"] == "bfloat16"
        self.k = step_count(params)
        self.tile_rows, self.group = target.gemm_tile
        self.lone_tiles = target.lone_tiles
        if self.in_pairs and not target.multiplies_pairs:
            self.lone_tiles = tuple(tile for tile in self.lone_tiles if tile[0] <= WORD_ROWS)
        self.pair = target.pair_columns
        panels = panel_count(self.n)
        rows_of_a, listed, rows_of_c = (tir.size() for _ in range(3))
        self.left_words = bool(params.get("left_words"))
        self.rounds_result = bool(params.get("rounds_result"))
        self.a = tir.tensor("a", (rows_of_a, self.k if self.left_words else k))
        self.rows_a = tir.tensor("rows_a", (listed,), "int32")
        self.right = right_operand({**params, "k": self.k}, target)
        in_pieces = self.right[0].longest is not None
        self.k_block = self.k if in_pieces else k_block(self.k, target.block_k)
        self.in_blocks = self.k_block < self.k
        if self.rounds_result and self.in_blocks:
            raise ValueError(f"sums of {k} terms stand in C, which is bfloat16")
        self.stored = bool(params.get("stored"))
        self.left: Left
        bias = tir.tensor("bias", (panels * PANEL_WIDTH,))
        residual = tir.tensor("residual", (listed, self.n)) if params["residual"] else None
        self.rows_c = tir.tensor("rows_c", (listed,), "int32")
        stored = "uint16" if self.rounds_result else "float32"
        self.c = tir.tensor("c", (rows_of_c, self.n), stored)
        bits = tir.tensor("bits", (listed, panels), "int64") if params.get("bits") else None
        self.i0, self.i1, self.j0, self.j1 = tir.scalars("i0", "i1", "j0", "j1")
        pieces = None if bits is None else tir.bit_pieces(bits)
        self.epilogue = Epilogue(params["activation"], self.n, bias, residual, pieces)
        self.sums: tir.Buffer = None
        self.totals: tir.Buffer = None
        self.done: tir.Buffer = None  # sums of a row tile that are ready for the epilogue
        self.behind = 0  # where sums of blocks of k that are complete stand, behind the others
        self.apart = 0  # and how far those of a panel from the next one's, if there are several

    def emit(self) -> None:
        """Blocks of rows."""
        block = self.tile_rows * self.right[0].block_tiles
        most = tir.larger(tir.int64(1), tir.smaller(tir.int64(block), self.i1 - self.i0))
        kinds = {
            **{"in_pairs": self.in_pairs, "words": self.left_words},
            "input_relu": self.input_relu,
        }
        lone = self.lone_tiles[-1][0]
        largest = max(lone, self.tile_rows) * PANEL_WIDTH  # sums of a register tile
        self.done = tir.workspace(largest)
        self.left = left_operand(self.a, self.rows_a, tir.bind(most), self.target, **kinds)
        with tir.serial(0, (self.i1 - self.i0 + block - 1) // block) as ib:
            first = tir.bind(self.i0 + ib * block)
            count = tir.bind(tir.smaller(tir.int64(block), self.i1 - first))
            self.left.bring(first, count)
            tiles = self.cut_rows(first, count)
            many, few = self.right
            if many.finishes_panels or self.k > FOLD or self.rounds_result:
                kept = block if many.finishes_panels else few.few_tiles * self.tile_rows
                if not isinstance(few, Turned):
                    self.apart = few.few_tiles * self.tile_rows * PANEL_WIDTH
                    kept = max(kept, few.group * few.few_tiles * self.tile_rows)
                self.behind = kept * PANEL_WIDTH
                self.sums = tir.workspace(2 * self.behind)
                self.totals = tir.workspace(largest)
            ways = [] if self.stored else [(lone, few_rows.lone_tile)]
            if ways and self.target.led_k:
                ways.append((few_rows.MOST_LED, few_rows.led_rows))
            self.lowest_way(first, count, ways, tiles)

    def lowest_way(
        self, first: tir.Expr, count: tir.Expr, ways: Sequence[_Way], tiles: _RowTiles
    ) -> None:
        """The first of some ways that take so many rows; else row tiles."""
        if not ways:
            self.some_tiles(tiles)
            return
        (most, way), *others = ways
        tir.either(
            count <= most,
            lambda: way(self, first, count),
            lambda: self.lowest_way(first, count, others, tiles),
        )

    def some_tiles(self, tiles: _RowTiles) -> None:
        """Few row tiles, or many."""
        many, few = self.right
        tir.either(
            tiles.count <= few.few_tiles,
            lambda: self.few(tiles, few),
            lambda: self.stretches(tiles, many),
        )

    def few(self, tiles: _RowTiles, right: Right | Turned) -> None:
        """Few row tiles."""
        if not isinstance(right, Turned):
            self.stretches(tiles, right)
            return
        zero, height = tir.int64(0), self.tile_rows

        def add(j: tir.Expr, number: tir.Expr, first: tir.Expr, rows: int) -> None:
            listed = [tir.smaller(first + r, self.i1 - 1) for r in range(rows)]
            rows_a = [tir.hold(tir.index_of(self.rows_a, i)) for i in listed]
            right.add(self.a, rows_a, j, self.sums, tir.hold(number * (height * PANEL_WIDTH)))

        with tir.serial(self.j0, self.j1) as j:
            with tir.serial(zero, tiles.full) as p:
                add(j, p, tir.bind(tiles.first + p * height), height)
            with tir.serial(zero, tiles.pair) as p:
                first = tiles.first + tiles.full * height + p * PAIR
                add(j, tir.bind(tiles.full + p), tir.bind(first), PAIR)
            self.panel(Stretch(None, j, zero, zero, tir.int64(self.k), zero, zero), tiles)

    def stretches(self, tiles: _RowTiles, right: Right) -> None:
        """Blocks of k, groups of panels, stretches, panels."""
        block_k = whole = tir.int64(self.k)
        if right.longest is not None:
            longest = ahead = tir.int64(right.longest)
        elif right is self.right[0]:
            longest = block_k = tir.int64(self.k_block)
            ahead = whole
        else:
            longest = ahead = tir.int64(self.target.stream_k)
        share = tir.hold(tir.quotient(PANEL_WIDTH - 1 + tiles.count, tiles.count))
        blocks = tir.serial(0, (self.k + block_k - 1) // block_k)
        groups = tir.serial(0, (self.j1 - self.j0 + right.group - 1) // right.group)
        with blocks as kb, groups as g:
            j = tir.hold(self.j0 + g * right.group)
            count = tir.hold(tir.smaller(tir.int64(right.group), self.j1 - j))
            begin = tir.hold(kb * block_k)
            here = tir.hold(tir.smaller(block_k, self.k - begin))
            with tir.serial(0, (here + longest - 1) // longest) as s:
                start = tir.hold(begin + s * longest)
                length = tir.hold(tir.smaller(longest, begin + here - start))
                right.bring(j, count, start, length)
                with tir.serial(tir.int64(0), count) as p:
                    panel = tir.bind(j + p)
                    self.panel(Stretch(right, panel, p, start, length, ahead, share), tiles)

    def cut_rows(self, first: tir.Expr, count: tir.Expr) -> _RowTiles:
        """Full row tiles; a few rows that are left make pairs, more of them a padded tile.

        8 rows, tiles of 6   ->   one full, one pair
        10                   ->   one full, two pairs, or one tile of four rows
        """
        height = self.tile_rows
        full = tir.hold(count // height)
        rest = tir.bind(count - full * height)
        # Where B is not in panels, a tile makes vectors of it by itself: one is faster than two.
        pairs = 1 if self.stored else self.target.most_pairs
        none, one = tir.int64(0), tir.int64(1)
        as_pair = tir.bind(rest <= pairs * PAIR)
        pair = tir.hold(tir.select(as_pair, (rest + 1) // PAIR, none))
        if self.stored or not self.target.quad_columns:
            full = tir.hold(tir.select(as_pair, full, full + 1))
            return _RowTiles(first, full, pair, none, tir.hold(full + pair))
        as_quad = tir.both(rest > pairs * PAIR, rest <= QUAD)
        quad = tir.hold(tir.select(as_quad, one, none))
        full = tir.hold(tir.select(rest > QUAD, full + 1, full))
        return _RowTiles(first, full, pair, quad, tir.hold(full + pair + quad))

    def panel(self, stretch: Stretch, tiles: _RowTiles) -> None:
        """All row tiles of a block of rows against one panel: pairs come last, or a single row."""
        height = self.tile_rows
        last = tir.bind(tiles.first + tiles.full * height)
        each = [(height, self.group, tiles.first, tiles.full), (PAIR, self.pair, last, tiles.pair)]
        if self.target.quad_columns and not self.stored:
            each.append((QUAD, self.target.quad_columns, last, tiles.quad))
        if self.stored:  # a row by itself takes no more than its own time
            lone = tir.both(tiles.pair > 0, self.i1 - last == 1)
            one = tir.bind(tir.select(lone, tir.int64(1), tir.int64(0)))
            each = [each[0], (PAIR, self.pair, last, tir.bind(tiles.pair - one))]
            each.append((1, self.pair, last, one))
        for rows, group, start, count in each:
            for columns in self.column_groups(stretch, group):
                with tir.serial(0, count) as p:
                    number = p if rows == height else tir.bind(tiles.full + p)
                    first = tir.bind(start + p * rows)
                    RegisterTile(self, stretch, columns, first, rows).emit(number)

    def column_groups(self, stretch: Stretch, group: int) -> Iterator[Columns]:
        """Statements for whole column groups of a panel, and for the last one of all."""
        per_panel = PANEL_WIDTH // group
        full, rest = divmod(self.n, group)
        if full:
            here = tir.smaller(tir.int64(per_panel), full - stretch.j * per_panel)
            with tir.serial(0, here) as g:
                yield Columns(tir.bind(g * group), group // tir.LANES, tir.LANES)
        if rest:
            start = tir.int64(full % per_panel * group)
            with tir.when(stretch.j == full // per_panel):
                yield Columns(start, -(-rest // tir.LANES), (rest - 1) % tir.LANES + 1)

    def write(
        self,
        first: tir.Expr,
        rows: tir.Expr,
        j: tir.Expr,
        columns: Columns,
        epilogue: Epilogue | None,
        width: int | None = None,
    ) -> None:
        """Store rows `first`.. of the list, whose sums of some columns of panel `j` are ready.

        Loops over rows and vectors, of sums in scratch memory: an activation is a lot of code.
        `width` is how far apart rows stand there, if not as many numbers as there are columns.
        """
        width = width or columns.vectors * tir.LANES

        def put(r: tir.Expr, row: tir.Expr, row_c: tir.Expr, v: tir.Expr, lanes: int) -> None:
            at = tir.bind(j * PANEL_WIDTH + columns.start + v * tir.LANES)
            x = tir.keep(tir.load(self.done, r * width + v * tir.LANES))
            value = tir.keep(epilogue.finish(x, row, at, lanes) if epilogue else x)
            if self.rounds_result:
                pairs.store_halves(self.c, value, row_c, at, lanes=lanes)
            else:
                tir.store(self.c, value, row_c, at, lanes=lanes)
            if epilogue:
                epilogue.note(value, row, at, lanes)

        full = columns.vectors - (columns.last_lanes < tir.LANES)
        with tir.serial(0, rows) as r:
            row = tir.bind(first + r)
            row_c = tir.index_of(self.rows_c, row)
            if full:
                with tir.serial(0, tir.int64(full)) as v:
                    put(r, row, row_c, v, tir.LANES)
            if full < columns.vectors:
                put(r, row, row_c, tir.int64(full), columns.last_lanes)

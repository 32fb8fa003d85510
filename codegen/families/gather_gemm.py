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

Rows that all fit into one register tile (`CpuLevel.lone_tiles`) multiply each number of B once, on
its way from memory, for all of k at a time. Whole rows of a panel are read in order, which the
processor foresees: asking for all lines made it slower. For one or two rows, which are done soon, a
line of each page ahead is asked for. Parts of rows are asked for.

    AVX-512:   1..6 rows   ->   tiles of 1, 2, 4, 6 rows x 64 columns    7..14   ->   8..14 x 32

A matrix that is computed when the model runs is read as it is stored (`right.py`): a stretch is a
piece of it then.

With `bits`, the kernel also says which stored values are not zero: words of 64 columns, taken from
the registers of the epilogue.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.pairs import instructions, step_count
from pitc.codegen.families import gather_gemm_amx
from pitc.codegen.families.epilogue import ACTIVATIONS, Epilogue
from pitc.codegen.families.left import Left, left_operand
from pitc.codegen.families.right import Right, Turned, right_operand
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CpuLevel
from pitc.ir.variants import FOLD

SPLIT_K = 1536
"""Longest k block: longer ones lose the rows of A or the panel of B from the second-level cache."""
UNROLL_K = 4
PAIR = 2
"""Rows of the low row tile: as fast as a single row, which waits for its own sums."""
STREAM_K = 48
"""Length of a short stretch: two of them are three quarters of a first-level cache of 32 KiB."""
LONE_K = 128
"""How far ahead a lone row tile asks for B: 32 KiB, the best of 8 to 64 KiB (Zen 4)."""
PAGE_K = 4096 // (4 * PANEL_WIDTH)
"""Rows of a panel in a page of memory, 4 KiB."""


def k_block(k: int) -> int:
    """Length of the k blocks: all of k, or equal multiples of `FOLD`, the last maybe shorter."""
    blocks = -(-k // SPLIT_K)
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
        with instructions(params, target):
            kernel.emit()

    return tir.prim_func(symbol, emit)


@dataclass(frozen=True, slots=True)
class _Columns:
    """A column group: where it starts in its panel, its vectors, the valid lanes of the last."""

    start: tir.Expr
    vectors: int
    last_lanes: int

    def lanes(self, v: int) -> int:
        """Valid lanes of vector `v`."""
        return self.last_lanes if v == self.vectors - 1 else tir.LANES


@dataclass(frozen=True, slots=True)
class _RowTiles:
    """Row tiles of a block of rows: its first row, full and padded ones, up to two pairs, all."""

    first: tir.Expr
    full: tir.Expr
    pair: tir.Expr
    count: tir.Expr


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Rows `start`.. of panel `j`; `ahead` of them starts what the row tiles share to prefetch."""

    right: Right | None
    """None: the sums of the panel are made already."""
    j: tir.Expr
    place: tir.Expr
    """Of the panel, among those whose sums are kept at the same time."""
    start: tir.Expr
    length: tir.Expr
    ahead: tir.Expr
    share: tir.Expr
    """Elements of a row that each of the row tiles asks for, rounded up."""
    lone: bool = False
    """There is one row tile."""


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile.

    Beside words of two numbers, k, `FOLD` and lengths of stretches count words.
    """

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        k, self.n, self.target = params["k"], params["n"], target
        self.input_relu = bool(params.get("input_relu"))
        self.in_pairs = params["dtype"] == "bfloat16"
        self.k = step_count(params)
        self.k_block = k_block(self.k)
        self.in_blocks = self.k_block < self.k
        self.tile_rows, self.group = target.gemm_tile
        self.pair = target.pair_columns
        panels = panel_count(self.n)
        rows_of_a, listed, rows_of_c = (tir.size() for _ in range(3))
        self.left_words = bool(params.get("left_words"))
        self.rounds_result = bool(params.get("rounds_result"))
        if self.rounds_result and self.in_blocks:
            raise ValueError(f"sums of {k} terms stand in C, which is bfloat16")
        self.a = tir.tensor("a", (rows_of_a, self.k if self.left_words else k))
        self.rows_a = tir.tensor("rows_a", (listed,), "int32")
        self.right = right_operand({**params, "k": self.k}, target)
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
        lone = self.target.lone_tiles[-1][0]
        self.done = tir.workspace(max(lone, self.tile_rows) * PANEL_WIDTH)
        self.left = left_operand(self.a, self.rows_a, tir.bind(most), self.target, **kinds)
        with tir.serial(0, (self.i1 - self.i0 + block - 1) // block) as ib:
            first = tir.bind(self.i0 + ib * block)
            count = tir.bind(tir.smaller(tir.int64(block), self.i1 - first))
            self.left.bring(first, count)
            tiles = self.cut_rows(first, count)
            many, few = self.right
            if many.finishes_panels or self.k > FOLD or self.rounds_result:
                kept = max(block if many.finishes_panels else few.few_tiles * self.tile_rows, lone)
                if not isinstance(few, Turned):
                    self.apart = few.few_tiles * self.tile_rows * PANEL_WIDTH
                    kept = max(kept, few.group * few.few_tiles * self.tile_rows)
                self.behind = kept * PANEL_WIDTH
                self.sums = tir.workspace(2 * self.behind)
                self.totals = tir.workspace(self.tile_rows * PANEL_WIDTH)
            if self.stored:
                self.some_tiles(tiles)
            else:
                fits = count <= lone
                tir.either(
                    fits, lambda: self.lone_tile(first, count), lambda: self.some_tiles(tiles)
                )

    def lone_tile(self, first: tir.Expr, count: tir.Expr) -> None:
        """The lowest row tile that holds all rows of a block."""
        right = self.right[1]
        assert not isinstance(right, Turned)
        zero, whole, lower = tir.int64(0), tir.int64(self.k), 0
        for rows, columns in self.target.lone_tiles:
            holds = tir.both(count > lower, count <= rows)
            with tir.when(holds), tir.serial(self.j0, self.j1) as j:
                ahead, share = tir.int64(LONE_K), tir.int64(PANEL_WIDTH)
                stretch = _Stretch(right, j, zero, zero, whole, ahead, share, lone=True)
                for group in self.column_groups(stretch, columns):
                    _RegisterTile(self, stretch, group, first, rows).emit(zero)
            lower = rows

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
            self.panel(_Stretch(None, j, zero, zero, tir.int64(self.k), zero, zero), tiles)

    def stretches(self, tiles: _RowTiles, right: Right) -> None:
        """Blocks of k, groups of panels, stretches, panels."""
        block_k = whole = tir.int64(self.k)
        if right.longest is not None:
            longest = ahead = tir.int64(right.longest)
        elif right is self.right[0]:
            longest = block_k = tir.int64(self.k_block)
            ahead = whole
        else:
            longest = ahead = tir.int64(STREAM_K)
        share = tir.hold((PANEL_WIDTH - 1 + tiles.count) // tiles.count)
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
                    self.panel(_Stretch(right, panel, p, start, length, ahead, share), tiles)

    def cut_rows(self, first: tir.Expr, count: tir.Expr) -> _RowTiles:
        """Full row tiles; a few rows that are left make pairs, more of them a padded tile.

        8 rows, tiles of 6   ->   one full, one pair            10   ->   one full, two pairs
        """
        height = self.tile_rows
        full = tir.hold(count // height)
        rest = tir.bind(count - full * height)
        # Where B is not in panels, a tile makes vectors of it by itself: one is faster than two.
        pairs = 1 if self.stored else 2
        as_pair = tir.bind(rest <= pairs * PAIR)
        pair = tir.hold(tir.select(as_pair, (rest + 1) // PAIR, tir.int64(0)))
        full = tir.hold(tir.select(as_pair, full, full + 1))
        return _RowTiles(first, full, pair, tir.hold(full + pair))

    def panel(self, stretch: _Stretch, tiles: _RowTiles) -> None:
        """All row tiles of a block of rows against one panel: pairs come last, or a single row."""
        height = self.tile_rows
        last = tir.bind(tiles.first + tiles.full * height)
        each = [(height, self.group, tiles.first, tiles.full), (PAIR, self.pair, last, tiles.pair)]
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
                    _RegisterTile(self, stretch, columns, first, rows).emit(number)

    def column_groups(self, stretch: _Stretch, group: int) -> Iterator[_Columns]:
        """Statements for whole column groups of a panel, and for the last one of all."""
        per_panel = PANEL_WIDTH // group
        full, rest = divmod(self.n, group)
        if full:
            here = tir.smaller(tir.int64(per_panel), full - stretch.j * per_panel)
            with tir.serial(0, here) as g:
                yield _Columns(tir.bind(g * group), group // tir.LANES, tir.LANES)
        if rest:
            start = tir.int64(full % per_panel * group)
            with tir.when(stretch.j == full // per_panel):
                yield _Columns(start, -(-rest // tir.LANES), (rest - 1) % tir.LANES + 1)


class _RegisterTile:
    """Emits one register tile: rows `first`.. of the row list x one column group of a panel."""

    def __init__(
        self, kernel: _Kernel, stretch: _Stretch, columns: _Columns, first: tir.Expr, rows: int
    ) -> None:
        self.kernel, self.stretch, self.columns = kernel, stretch, columns
        self.first = first
        self.listed = [tir.bind(tir.smaller(first + r, kernel.i1 - 1)) for r in range(rows)]
        self.column = tir.bind(stretch.j * PANEL_WIDTH + columns.start)
        self.tile = kernel.left.tile(rows, columns.vectors)

    def emit(self, number: tir.Expr) -> None:
        """One stretch of the tile, the `number`-th of its row tiles."""
        kernel, stretch = self.kernel, self.stretch
        if stretch.right is None:
            self.fetch()
            self.take(number)
            self.write(kernel.epilogue)
            return
        in_one = stretch.lone or (self.is_far and not kernel.in_blocks)
        if kernel.k <= (stretch.right.longest or STREAM_K) or (in_one and kernel.k <= FOLD):
            self.fetch()
            self.tile.clear()
            self.multiply(number)
            self.write(kernel.epilogue)
            return
        last = tir.bind(stretch.start + stretch.length == kernel.k)
        if kernel.epilogue.residual is not None:
            with tir.when(last):
                self.fetch()
        if kernel.k > FOLD:
            self.fold(number)
            return
        apart = stretch.right.finishes_panels or kernel.rounds_result
        tir.either(
            stretch.start == 0,
            self.tile.clear,
            lambda: self.take(number) if apart else self.resume(),
        )
        self.multiply(number)
        tir.either(
            last,
            lambda: self.write(kernel.epilogue),
            lambda: self.put(number) if apart else self.write(None),
        )

    @property
    def is_far(self) -> bool:
        """There are many row tiles: between blocks of k only C lasts so long."""
        right, kernel = self.stretch.right, self.kernel
        return right is not None and right.longest is None and right is kernel.right[0]

    def fold(self, number: tir.Expr) -> None:
        """Add up the stretch in blocks of k; a short one is a part of a block."""
        kernel, stretch = self.kernel, self.stretch
        right, size = stretch.right, FOLD
        assert right is not None
        stop = tir.hold(stretch.start + stretch.length)
        last = tir.bind(stop == kernel.k)
        far = self.is_far
        with tir.serial(0, (stretch.length + size - 1) // size) as f:
            begin = tir.hold(stretch.start + f * size)
            length = tir.hold(tir.smaller(tir.int64(size), stop - begin))
            if far:
                self.fold_far(number, f, begin, length, stop)
            else:
                self.fold_near(number, begin, length)
        if far and kernel.in_blocks:
            tir.either(last, lambda: self.write(kernel.epilogue), lambda: self.write(None))
        else:
            with tir.when(last):
                self.write(kernel.epilogue)

    def fold_far(
        self, number: tir.Expr, f: tir.Expr, begin: tir.Expr, length: tir.Expr, stop: tir.Expr
    ) -> None:
        """A whole block; sums of those before are in C, then near."""
        totals = self.kernel.totals
        rows = [tir.int64(r * PANEL_WIDTH) for r in range(self.tile.rows)]
        self.tile.clear()
        self.multiply(number, begin, length)

        with tir.when(f > 0):
            self.tile.add(totals, rows)
        if self.kernel.in_blocks:
            with tir.when(tir.both(f == 0, begin > 0)):
                self.tile.add_each(self.partial())
        with tir.when(begin + length < stop):
            self.tile.put(totals, rows)

    def fold_near(self, number: tir.Expr, begin: tir.Expr, length: tir.Expr) -> None:
        """A block, or a part of one."""
        kernel, end = self.kernel, tir.hold(begin + length)
        size = FOLD
        rest = tir.select(end == kernel.k, tir.int64(0), end % size)
        ends = tir.bind(rest == 0)
        tir.either(begin % size == 0, self.tile.clear, lambda: self.take(number))
        self.multiply(number, begin, length)
        totals = [row + kernel.behind for row in self.kept(number)]
        with tir.when(tir.both(ends, end > size)):
            self.tile.add(kernel.sums, totals)
        with tir.when(end < kernel.k):
            tir.either(ends, lambda: self.tile.put(kernel.sums, totals), lambda: self.put(number))

    def take(self, number: tir.Expr) -> None:
        """Start from the sums of the stretch before."""
        self.tile.take(self.kernel.sums, self.kept(number))

    def put(self, number: tir.Expr) -> None:
        """Keep the sums for the next stretch."""
        self.tile.put(self.kernel.sums, self.kept(number))

    def kept(self, number: tir.Expr) -> list[tir.Expr]:
        """Where the rows' sums of a stretch stand until the next one."""
        kernel, right = self.kernel, self.stretch.right
        first = number * (kernel.tile_rows * PANEL_WIDTH) + self.columns.start
        if right is not None and right.group > 1:
            first = first + self.stretch.place * kernel.apart
        first = tir.hold(first)
        return [first + r * PANEL_WIDTH for r in range(self.tile.rows)]

    def resume(self) -> None:
        """Start from the partial sums of the k block before."""
        self.tile.start(self.partial())

    def partial(self) -> Callable[[int, int], tir.Expr]:
        """The partial sums of the k block before, by row and vector."""
        rows_c = [tir.index_of(self.kernel.rows_c, i) for i in self.listed]

        def vector(r: int, v: int) -> tir.Expr:
            at = self.column + v * tir.LANES
            return tir.load(self.kernel.c, rows_c[r], at, lanes=self.columns.lanes(v))

        return vector

    def fetch(self) -> None:
        """Ask for the residual: it arrives while the products are added."""
        if self.kernel.epilogue.residual is not None:
            for row in self.listed:
                for v in range(self.tile.vectors):
                    at = self.column + v * tir.LANES
                    tir.prefetch(self.kernel.epilogue.residual, row, at)

    def multiply(
        self, number: tir.Expr, begin: tir.Expr | None = None, length: tir.Expr | None = None
    ) -> None:
        """Add the products of the stretch or of a part of it, and ask for this tile's part of the
        next stretch.
        """
        kernel, columns, stretch = self.kernel, self.columns, self.stretch
        right = stretch.right
        assert right is not None
        rows = kernel.left.rows(self.listed)
        first = stretch.start if begin is None else begin
        before = tir.hold(number * stretch.length + (first - stretch.start))
        next_start = tir.hold(stretch.start + stretch.ahead)
        starts = [columns.start + v * tir.LANES for v in range(columns.vectors)]
        in_order = stretch.lone and columns.vectors * tir.LANES == PANEL_WIDTH

        def ask(i: tir.Expr) -> None:
            if in_order:
                if self.tile.rows <= PAIR:
                    page = (first + i) // PAGE_K * PAGE_K
                    right.ask(stretch.j, tir.bind(page + stretch.ahead), tir.int64(0))
                return
            # A share is shorter than a row, so lines are named several times: that is free.
            part = tir.hold((before + i) * stretch.share)
            for start in starts:
                right.ask(stretch.j, next_start, part + start)

        def step(i: tir.Expr) -> None:
            k = first + i
            ask(i)

            def vector(v: int, half: int) -> tir.Expr:
                return right.load(stretch.j, k, starts[v], columns.lanes(v), half)

            kernel.left.step(self.tile, rows, k, vector)

        count = stretch.length if length is None else length
        by = 1 if stretch.lone else UNROLL_K  # it waits for memory
        tir.unrolled(count, by, step, rest=kernel.k % by > 0)

    def write(self, epilogue: Epilogue | None) -> None:
        """Store every vector, but not of repeated rows; without an epilogue the sums as they are,
        before the last k block.

        Loops over rows and vectors, of sums in scratch memory: an activation is a lot of code.
        """
        kernel, width = self.kernel, self.columns.vectors * tir.LANES
        self.tile.put(kernel.done, [tir.int64(r * width) for r in range(self.tile.rows)])
        rows = tir.bind(tir.smaller(tir.int64(self.tile.rows), kernel.i1 - self.first))
        with tir.serial(0, rows) as r:
            self.write_row(tir.bind(self.first + r), r * width, epilogue)

    def write_row(self, row: tir.Expr, start: tir.Expr, epilogue: Epilogue | None) -> None:
        """Store a row of the list, whose sums are in scratch memory."""
        columns, kernel = self.columns, self.kernel
        row_c = tir.index_of(kernel.rows_c, row)

        def put(v: tir.Expr, lanes: int) -> None:
            at = tir.bind(self.column + v * tir.LANES)
            x = tir.keep(tir.load(kernel.done, start + v * tir.LANES))
            value = tir.keep(epilogue.finish(x, row, at, lanes) if epilogue else x)
            if kernel.rounds_result:
                pairs.store_halves(kernel.c, value, row_c, at, lanes=lanes)
            else:
                tir.store(kernel.c, value, row_c, at, lanes=lanes)
            if epilogue:
                epilogue.note(value, row, at, lanes)

        full = columns.vectors - (columns.last_lanes < tir.LANES)
        if full:
            with tir.serial(0, tir.int64(full)) as v:
                put(v, tir.LANES)
        if full < columns.vectors:
            put(tir.int64(full), columns.last_lanes)

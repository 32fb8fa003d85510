"""The register tile of gather_gemm: some rows x one column group of a panel of B.

Sums of blocks of k are chains of their own (`FOLD`), added up in their order:

    for each block of k in a stretch:   sums = 0; add products; sums = sums of blocks before + sums
    after the last k:                   sums to scratch memory, from which an epilogue stores them
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pitc.codegen import tir
from pitc.codegen.families.epilogue import Epilogue
from pitc.codegen.families.right import Right
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.variants import FOLD

TURN = 48
"""Multiply-adds of lane groups in a turn of the innermost loop: more are more code, no faster."""
PAIR = 2
"""Rows of the low row tile: as fast as a single row, which waits for its own sums."""
QUAD = 4
"""Rows of a row tile that some levels have beside it."""
PAGE_K = 4096 // (4 * PANEL_WIDTH)
"""Rows of a panel in a page of memory, 4 KiB."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A column group: where it starts in its panel, its vectors, the valid lanes of the last."""

    start: tir.Expr
    vectors: int
    last_lanes: int

    def lanes(self, v: int) -> int:
        """Valid lanes of vector `v`."""
        return self.last_lanes if v == self.vectors - 1 else tir.LANES


@dataclass(frozen=True, slots=True)
class Stretch:
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
    led: bool = False
    """The first row tile reads it from memory, the others ask for the next one."""


class RegisterTile:
    """Emits one register tile: rows `first`.. of the row list x one column group of a panel."""

    def __init__(
        self, kernel: Any, stretch: Stretch, columns: Columns, first: tir.Expr, rows: int
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
        in_one = self.is_far and not kernel.in_blocks and kernel.k <= FOLD
        if in_one or kernel.k <= (stretch.right.longest or kernel.target.stream_k):
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

    def add_all(self) -> None:
        """All of k of a lone tile."""
        self.fetch()
        if self.kernel.k <= FOLD:
            self.tile.clear()
            self.multiply(tir.int64(0))
        else:
            self.add_blocks(tir.int64(0))

    def add_part(self, row: tir.Expr, *, asks: bool) -> None:
        """A stretch of rows that follow a leading row, or of that one.

        Sums of a panel stand row by row in `done`, those of blocks of k before in `totals`.

        Args:
            row: The first row's place there.
            asks: Ask for the next stretch.
        """
        kernel, stretch = self.kernel, self.stretch
        first = tir.hold(row * PANEL_WIDTH + self.columns.start)
        rows = [first + r * PANEL_WIDTH for r in range(self.tile.rows)]
        begins = stretch.start % FOLD == 0
        tir.either(begins, self.tile.clear, lambda: self.tile.take(kernel.done, rows))
        self.multiply(tir.int64(0), asks=asks)
        if kernel.k > FOLD:
            end = tir.hold(stretch.start + stretch.length)
            rest = tir.select(end == kernel.k, tir.int64(0), end % FOLD)
            with tir.when(tir.bind(rest == 0)):
                with tir.when(stretch.start >= FOLD):
                    self.tile.add(kernel.totals, rows)
                self.tile.put(kernel.totals, rows)
        self.tile.put(kernel.done, rows)

    @property
    def is_far(self) -> bool:
        """There are many row tiles: between blocks of k only C lasts so long."""
        right, kernel = self.stretch.right, self.kernel
        return right is not None and right.longest is None and right is kernel.right[0]

    def fold(self, number: tir.Expr) -> None:
        """Add up the stretch in blocks of k; a short one is a part of a block."""
        kernel, stretch = self.kernel, self.stretch
        last = tir.bind(stretch.start + stretch.length == kernel.k)
        if self.is_far:
            self.add_blocks(number)
        else:
            for begin, length, _ in self.blocks():
                self.fold_part(number, begin, length)
        if self.is_far and kernel.in_blocks:
            tir.either(last, lambda: self.write(kernel.epilogue), lambda: self.write(None))
        else:
            with tir.when(last):
                self.write(kernel.epilogue)

    def blocks(self) -> Iterator[tuple[tir.Expr, tir.Expr, tir.Expr]]:
        """Statements for each block of k in the stretch: its first k, its length, its number."""
        stretch = self.stretch
        stop = tir.hold(stretch.start + stretch.length)
        with tir.serial(0, (stretch.length + FOLD - 1) // FOLD) as f:
            begin = tir.hold(stretch.start + f * FOLD)
            yield begin, tir.hold(tir.smaller(tir.int64(FOLD), stop - begin)), f

    def add_blocks(self, number: tir.Expr) -> None:
        """Whole blocks; sums of those of earlier stretches are in C, of this one near."""
        totals, stretch = self.kernel.totals, self.stretch
        rows = [tir.int64(r * PANEL_WIDTH) for r in range(self.tile.rows)]
        for begin, length, f in self.blocks():
            self.tile.clear()
            self.multiply(number, begin, length)
            with tir.when(f > 0):
                self.tile.add(totals, rows)
            if self.kernel.in_blocks and not stretch.lone:
                with tir.when(tir.both(f == 0, begin > 0)):
                    self.tile.add_each(self.partial())
            with tir.when(begin + length < stretch.start + stretch.length):
                self.tile.put(totals, rows)

    def fold_part(self, number: tir.Expr, begin: tir.Expr, length: tir.Expr) -> None:
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
        self,
        number: tir.Expr,
        begin: tir.Expr | None = None,
        length: tir.Expr | None = None,
        *,
        asks: bool = True,
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
        sparing = kernel.target.asks_sparingly and not kernel.stored and right.longest is None
        asks = asks and not (sparing and self.is_far)
        by_turns = asks and sparing and not stretch.lone and not stretch.led

        def ask(i: tir.Expr) -> None:
            if in_order:
                if self.tile.rows <= PAIR and not sparing:
                    page = (first + i) // PAGE_K * PAGE_K
                    right.ask(stretch.j, tir.bind(page + stretch.ahead), tir.int64(0))
                return
            if stretch.led:  # in order, whichever columns the tile has
                part = tir.hold(columns.start * stretch.length + i * (columns.vectors * tir.LANES))
                for v in range(columns.vectors):
                    at = tir.bind(part + v * tir.LANES)
                    right.ask(stretch.j, next_start, at, far=False)
                return
            # A share is shorter than a row, so lines are named several times: that is free.
            part = tir.hold((before + i) * stretch.share)
            for start in starts:
                right.ask(stretch.j, next_start, part + start)

        def step(i: tir.Expr) -> None:
            k = first + i
            if asks and not by_turns:
                ask(i)

            def vector(v: int, half: int) -> tir.Expr:
                return right.load(stretch.j, k, starts[v], columns.lanes(v), half)

            kernel.left.step(self.tile, rows, k, vector)

        count = stretch.length if length is None else length
        by = 4 if 4 * self.tile.rows * self.tile.vectors <= TURN else 2
        by = 1 if stretch.lone or stretch.led else by  # it waits for memory

        def turn(i: tir.Expr) -> None:
            with tir.when(stretch.share < PANEL_WIDTH):
                for later in range(by):
                    ask(i + later)

        rest = kernel.k % by > 0
        tir.unrolled(count, by, step, rest=rest, turn=turn if by_turns else None)

    def finish(self) -> None:
        """Put the sums where `_Kernel.write` reads them."""
        width = self.columns.vectors * tir.LANES
        self.tile.put(self.kernel.done, [tir.int64(r * width) for r in range(self.tile.rows)])

    def write(self, epilogue: Epilogue | None) -> None:
        """Store the rows, but not repeated ones; without an epilogue the sums as they are, before
        the last k block.
        """
        kernel = self.kernel
        self.finish()
        rows = tir.bind(tir.smaller(tir.int64(self.tile.rows), kernel.i1 - self.first))
        kernel.write(self.first, rows, self.stretch.j, self.columns, epilogue)

"""contract_tile: C[rows_c, :] = act(A @ B + bias) + residual; groups of G rows share a k list.

PIT axis k: the micro-tile is G rows x one k, and G is read from the shape of the packed values.
SRead is the address of a row of B; A comes packed, [entry, row of the group]. The dense tile is
rows x columns of accumulators in registers, and every strip of so many rows of a group walks the
same list. Each accumulator sums blocks of k in ascending order (`FOLD`), so the bits of a row do
not depend on G or on the call.

    for each panel of B, for each group:
        for each chunk of the list:                 its rows of B stay in the first-level cache
            for each strip of rows, for each column group:
                accumulators = 0, or the sums of the chunks before
                multiply-add over the chunk
                scratch = sums; after the last chunk C = epilogue

Where lists are short, C is what takes time: its lines are asked for ahead, as no prefetcher
foresees strips of rows.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import Blocks, Read, Scratch
from pitc.codegen.engines.pairs import instructions, tiles
from pitc.codegen.families.swrite import SWrite
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.target import CpuLevel
from pitc.ir.variants import FOLD

CHUNK = 64
"""Entries of a list whose rows of B are read by all strips before the next are."""
AHEAD = 32
"""Entries between the row of B that is asked for and the one that is read."""
UNROLL = 4
ASKED_ROWS = 32
"""Rows of C between the one that is asked for and the one that is written."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: Of `SWrite`.
        target: CPU level; G must be a multiple of the rows of its `listed_tile`.
    """

    def emit() -> None:
        kernel = _Kernel(params, target)
        with instructions(params, target):
            kernel.emit()

    return tir.prim_func(symbol, emit)


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile."""

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        self.height, self.columns = target.listed_tile
        self.sums_of = tiles(params, target)
        self.entries, self.group, boundaries = (tir.size() for _ in range(3))
        self.values = tir.tensor("values", (self.entries, self.group))
        self.ks = tir.tensor("ks", (self.entries,), "int32")
        self.starts = tir.tensor("starts", (boundaries,), "int32")
        self.groups = boundaries - 1
        self.swrite = SWrite(params)
        self.asks = tir.bind(self.swrite.stores.are_far())
        self.folds = self.swrite.steps > FOLD
        rows = tir.larger(self.group, tir.int64(1))
        self.behind = tir.bind(rows * PANEL_WIDTH)  # sums of complete blocks of k lie there
        self.sums = tir.workspace(rows * (PANEL_WIDTH * (1 + self.folds)))

    def emit(self) -> None:
        """Panels, groups, chunks, strips."""
        with self.swrite.panels() as j, tir.serial(tir.int64(0), self.groups) as g:
            first = tir.bind(g * self.group)
            rows = tir.bind(tir.smaller(self.group, self.swrite.rows - first))
            start = tir.index_of(self.starts, g)
            stop = tir.index_of(self.starts, g + 1)
            chunks = tir.bind(tir.larger((stop - start + CHUNK - 1) // CHUNK, tir.int64(1)))
            strips = (rows + self.height - 1) // self.height
            with tir.serial(0, chunks) as q, tir.serial(0, strips) as s:
                begin = tir.bind(start + q * CHUNK)
                count = tir.bind(tir.smaller(tir.int64(CHUNK), stop - begin))
                row = tir.bind(s * self.height)
                with tir.serial(0, tir.int64(PANEL_WIDTH // self.columns)) as x:
                    column = tir.bind(x * self.columns)
                    self.tile(j, row, column, (start, begin), count, q == chunks - 1)
                with tir.when(q == chunks - 1):
                    with tir.when(self.asks):
                        self.ask(j, tir.bind(first + row + ASKED_ROWS))
                    here = tir.smaller(tir.int64(self.height), rows - row)
                    self.swrite.write(j, first + row, here, self.sums, row * PANEL_WIDTH)

    def ask(self, j: tir.Expr, later: tir.Expr) -> None:
        """Ask for a strip of C from row `later` on; behind the last row, for the call's next panel.

        A line that another call's panel begins with is not asked for: it may be another thread's.
        """
        rows, panels = self.swrite.rows, self.swrite.j1
        wraps = tir.bind(later >= rows)
        panel = tir.select(wraps, tir.smaller(j + 1, panels - 1), j)
        column = tir.bind(panel * PANEL_WIDTH)
        own = panels * PANEL_WIDTH - tir.LANES
        last = tir.bind(tir.smaller(own, tir.int64(self.swrite.n - 1)))
        start = tir.bind(tir.select(wraps, later - rows, later))
        for r in range(self.height):
            row = tir.bind(tir.smaller(start + r, rows - 1))
            self.swrite.stores.ask(tir.index_of(self.swrite.rows_c, row), column, last)

    def tile(
        self,
        j: tir.Expr,
        row: tir.Expr,
        column: tir.Expr,
        starts: tuple[tir.Expr, tir.Expr],
        count: tir.Expr,
        is_last: tir.Expr,
    ) -> None:
        """One register tile over `count` entries.

        Args:
            j: Panel.
            row: Where the strip starts in its group.
            column: Where the column group starts in its panel.
            starts: The first entry of the group, and the first of these.
            count: Entries.
            is_last: These are its last ones.
        """
        b = self.swrite.b
        start, begin = starts
        is_first = begin == start
        tile = self.sums_of(self.height, self.columns // tir.LANES)
        rows = [(row + r) * PANEL_WIDTH + column for r in range(self.height)]
        offsets = [column + v * tir.LANES for v in range(tile.vectors)]

        behind = Scratch(self.sums, [row + self.behind for row in rows])
        blocks = Blocks(tile, behind, tir.int64(0)) if self.folds else None
        if blocks is not None:
            with tir.when(count > 0):
                first = tir.index_of(self.ks, start)
                last = tir.index_of(self.ks, tir.larger(begin - 1, start))
                complete = tir.select(first // FOLD < last // FOLD, tir.int64(1), tir.int64(0))
                blocks.state.set(blocks.state_at(last, complete))

        def read(i: tir.Expr) -> Read:
            z = begin + i
            later = tir.index_of(self.ks, tir.smaller(z + AHEAD, self.entries - 1))
            for offset in offsets:
                tir.prefetch(b, j, later, offset)
            k = tir.index_of(self.ks, z)
            if blocks is not None:
                blocks.before(k)
            return lambda r: self.values[z, row + r], lambda v: tir.load(b, j, k, offsets[v])

        tir.either(is_first, tile.clear, lambda: tile.take(self.sums, rows))
        tile.multiply(count, UNROLL, read)
        if blocks is not None:
            with tir.when(is_last):
                blocks.end()
        tile.put(self.sums, rows)

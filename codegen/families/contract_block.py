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
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import Read
from pitc.codegen.engines.pairs import instructions, step_count, tiles
from pitc.codegen.families import sampled
from pitc.codegen.families.swrite import SWrite
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.target import CpuLevel
from pitc.ir.variants import FOLD

UNROLL = 4


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: Of `SWrite`; or `stored`, `kn` or `nk`, and no epilogue.
        target: CPU level.
    """
    if "stored" in params:
        return sampled.prim_func(symbol, params, target)

    def emit() -> None:
        kernel = _Kernel(params, target)
        with instructions(params, target):
            kernel.emit()

    return tir.prim_func(symbol, emit)


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile."""

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        self.k = step_count(params)
        self.height, self.columns = target.listed_tile
        self.sums_of = tiles(params, target)
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
        b = self.swrite.b
        tile = self.sums_of(len(rows), self.columns // tir.LANES)
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

"""contract_row: C[rows_c, :] = act(A @ B + bias) + residual; each row of A lists its live elements.

PIT axis k: the micro-tile is one element. SRead is the address of a row of B. The dense tile is one
row x columns of accumulators in registers, over as many panels as the target has registers for. A
row gets its elements in ascending k, added up per column in blocks of `FOLD` k, so its bits do not
depend on the blocks of lists or on the call.

    for each group of panels of B:
        for each k block:                           its rows of B stay in a near cache
            for each row, which has a run of entries in this block:
                accumulators = the sums of the k blocks before, 0 where a block of sums begins
                multiply-add over the run
                scratch = accumulators; where a block of sums ends complete ones are added, and
                after the last one C = epilogue

`ns` k blocks are a block of sums. Where all of k is one k block each entry is asked whether it is
behind the end of a block of sums.

The entries lie in that order, so that they are read in one ascending stream. The sums lie in a
compact scratch array, because rows of C, a power of two apart, would share few lines of the caches.
Where all of k is one block a row is finished at once, and its rows of B, which come from further
away, are asked for ahead.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import Blocks, DenseTile, Read, Registers
from pitc.codegen.engines.pairs import instructions, tiles
from pitc.codegen.families.swrite import PANEL_VECTORS, SWrite
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CpuLevel
from pitc.ir.variants import FOLD

AHEAD = 8
"""Entries between the row of B that is asked for and the one that is read."""


def panels_at_once(n: int, target: CpuLevel) -> int:
    """Panels of B that one step over a list computes with."""
    return min(target.row_columns // PANEL_WIDTH, panel_count(n))


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: Of `SWrite`.
        target: CPU level.
    """

    def emit() -> None:
        kernel = _Kernel(params, target)
        with instructions(params, target):
            kernel.emit()

    return tir.prim_func(symbol, emit)


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile."""

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        self.count, boundaries = tir.size(), tir.size()
        self.values = tir.tensor("values", (self.count,))
        self.ks = tir.tensor("ks", (self.count,), "int32")
        self.starts = tir.tensor("starts", (boundaries,), "int32")
        self.swrite = SWrite(params, "nb", "ns")
        self.blocks, self.of_sums = self.swrite.scalars
        self.rows = self.swrite.rows
        self.panels = panels_at_once(params["n"], target)
        held = tir.select(self.blocks == 1, tir.int64(0), self.rows)
        # the row that is being finished lies in front of those that wait
        self.folds = self.swrite.steps > FOLD
        self.tile = tiles(params, target)
        width = PANEL_WIDTH * self.panels
        self.behind = tir.bind((held + 1) * width)  # sums of complete blocks of sums lie there
        self.sums = tir.workspace((held + 1) * (width * (1 + self.folds)))

    def emit(self) -> None:
        """Groups of panels, and the panels of a short one."""
        with self.swrite.panels(self.panels) as j:
            here = tir.bind(tir.smaller(tir.int64(self.panels), self.swrite.j1 - j))

            def each() -> None:
                with tir.serial(tir.int64(0), here) as p:
                    self.group(tir.bind(j + p), 1)

            if self.panels == 1:
                self.group(j, 1)
            else:
                tir.either(here == self.panels, lambda: self.group(j, self.panels), each)

    def group(self, j: tir.Expr, panels: int) -> None:
        """All rows of `panels` panels from `j` on."""

        def whole() -> None:
            with tir.serial(tir.int64(0), self.rows) as r:
                self.whole_run(j, r, panels)
                self.finish(j, r, panels)

        def in_blocks() -> None:
            of_sums = self.of_sums if self.folds else self.blocks
            width, last = panels * PANEL_WIDTH, tir.bind(self.blocks - 1)
            with tir.serial(tir.int64(0), last) as q:
                part = Part(q, of_sums)
                with tir.serial(tir.int64(0), self.rows) as r:
                    self.run(
                        j, tir.bind(q * self.rows + r), panels, part, tir.bind((r + 1) * width)
                    )
            part = Part(last, of_sums, is_last=True)
            with tir.serial(tir.int64(0), self.rows) as r:
                self.run(j, tir.bind(last * self.rows + r), panels, part, tir.bind((r + 1) * width))
                self.finish(j, r, panels)

        tir.either(self.blocks == 1, whole, in_blocks)

    def finish(self, j: tir.Expr, r: tir.Expr, panels: int) -> None:
        """Write one row, whose sums are complete."""
        for p in range(panels):
            at = tir.int64(p * PANEL_WIDTH)
            self.swrite.write(tir.bind(j + p), r, tir.int64(1), self.sums, at)

    def whole_run(self, j: tir.Expr, r: tir.Expr, panels: int) -> None:
        """Add up all of a row, in front of those that wait; rows of B are asked for ahead."""
        tile = self.tile(1, panels * PANEL_VECTORS)
        tile.clear()
        start, stop = self.bounds(r)
        if not self.folds:
            self.entries(tile, j, start, stop, ahead=True)
        else:
            blocks = Blocks(tile, Registers(tile), tir.int64(2 * FOLD))
            with tir.when(start < stop):
                blocks.state.set(blocks.state_at(tir.index_of(self.ks, start)))
            self.entries(tile, j, start, stop, blocks, ahead=True)
            blocks.end()
        tile.put(self.sums, [tir.int64(0)])

    def run(self, j: tir.Expr, run: tir.Expr, panels: int, part: "Part", at: tir.Expr) -> None:
        """Add one run of entries to its row.

        Args:
            j: The first panel.
            run: Place of the run in `starts`.
            panels: How many panels.
            part: Which part of the row's sums it is.
            at: Where the sums of the row lie that are not complete.
        """
        tile = self.tile(1, panels * PANEL_VECTORS)
        tir.either(part.begins, tile.clear, lambda: tile.take(self.sums, [at]))
        start, stop = self.bounds(run)
        kept = tir.int64(0) if part.is_last else at
        self.entries(tile, j, start, stop)
        if self.folds:
            behind = tir.bind(at + self.behind)
            with tir.when(part.completes):
                tile.add(self.sums, [behind])
            if not part.is_last:
                kept = tir.bind(tir.select(part.ends, behind, at))
        tile.put(self.sums, [kept])

    def bounds(self, run: tir.Expr) -> tuple[tir.Expr, tir.Expr]:
        """The first entry of a run, and the first one behind it."""
        return tir.index_of(self.starts, run), tir.index_of(self.starts, run + 1)

    def entries(
        self,
        tile: DenseTile,
        j: tir.Expr,
        start: tir.Expr,
        stop: tir.Expr,
        blocks: Blocks | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Multiply-add entries; with `blocks` they may be of several blocks of sums."""
        b = self.swrite.b

        def at_panel(v: int) -> tuple[tir.Expr, int]:
            return j + v // PANEL_VECTORS, v % PANEL_VECTORS * tir.LANES

        def read(z: tir.Expr) -> Read:
            if ahead:
                later = tir.index_of(self.ks, tir.smaller(z + AHEAD, self.count - 1))
                for v in range(tile.vectors):
                    panel, offset = at_panel(v)
                    tir.prefetch(b, panel, later, offset)
            k = tir.index_of(self.ks, z)
            if blocks is not None:
                blocks.before(k)

            def vector(v: int) -> tir.Expr:
                panel, offset = at_panel(v)
                return tir.load(b, panel, k, offset)

            return lambda _: self.values[z], vector

        with tir.serial(start, stop) as z:
            tile.step(read(z))


class Part:
    """Which part of the sums of a row a block of k is.

    Args:
        q: Number of the block.
        of_sums: How many share a block of sums.
        is_last: It is the last one.
    """

    def __init__(self, q: tir.Expr, of_sums: tir.Expr, *, is_last: bool = False) -> None:
        self.is_last = is_last
        self.begins = tir.bind(q % of_sums == 0)
        self.ends = tir.bind((q + 1) % of_sums == 0)
        behind_others = q >= of_sums
        self.completes = behind_others if is_last else tir.both(self.ends, behind_others)

"""contract_row: C[rows_c, :] = act(A @ B + bias) + residual; each row of A lists its live elements.

PIT axis k: the micro-tile is one element. SRead is the address of a row of B. The dense tile is one
row x columns of accumulators in registers, over as many panels as the target has registers for. A
row gets its elements in ascending k, as one chain of fused multiply-adds per column, so its bits do
not depend on the blocks of k or on the call.

    for each group of panels of B:
        scratch = 0
        for each k block:                           its rows of B stay in the first-level cache
            for each row, which has a run of entries in this block:
                accumulators = scratch; multiply-add over the run; scratch = accumulators
        C = epilogue of scratch

The entries lie in that order, so that they are read in one ascending stream. The sums lie in a
compact scratch array, because rows of C, a power of two apart, would share few lines of the caches.
Where all of k is one block a row is finished at once, and its rows of B, which come from further
away, are asked for ahead.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.families.swrite import SWrite
from pitc.codegen.targets import Target
from pitc.codegen.variant import Tile, Variant
from pitc.ir.panels import PANEL_WIDTH, panel_count

AHEAD = 8
"""Entries between the row of B that is asked for and the one that is read."""


def variant(params: Mapping[str, Any], target: Target) -> Variant:
    """The family at the target's register tile; elements of A come packed: no line is too short."""
    dense = Tile.of(m=1, k=1, n=min(target.row_columns, panel_count(params["n"]) * PANEL_WIDTH))
    return Variant("contract_row", dense, Tile.of(m=1, k=1), "float32", target)


def prim_func(symbol: str, params: Mapping[str, Any], target: Target) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`, `n`, `activation`, `residual`.
        target: CPU level.
    """
    return tir.prim_func(symbol, lambda: _Kernel(params, target).emit())


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile."""

    def __init__(self, params: Mapping[str, Any], target: Target) -> None:
        self.entries, boundaries = tir.size(), tir.size()
        self.values = tir.tensor("values", (self.entries,))
        self.ks = tir.tensor("ks", (self.entries,), "int32")
        self.starts = tir.tensor("starts", (boundaries,), "int32")
        self.swrite = SWrite(params, "nb")
        (self.blocks,) = self.swrite.scalars
        self.rows = self.swrite.rows
        self.panels = variant(params, target).dense_tile["n"] // PANEL_WIDTH
        self.plane = tir.bind(self.rows * PANEL_WIDTH)
        many = tir.choose(self.blocks == 1, tir.int64(1), tir.larger(self.plane, tir.int64(1)))
        self.sums = tir.workspace(many * self.panels)
        self.row_sums = tir.workspace(PANEL_WIDTH * self.panels)

    def emit(self) -> None:
        """Groups of panels."""
        with self.swrite.panels(self.panels) as j:
            here = tir.bind(tir.smaller(tir.int64(self.panels), self.swrite.j1 - j))
            tir.either(
                self.blocks == 1,
                lambda: self.split(here, lambda p, n: self.finish_rows(j + p, n)),
                lambda: self.in_blocks(j, here),
            )

    def split(self, here: tir.Expr, emit: Callable[[tir.Expr, int], None]) -> None:
        """Emit code for a whole group of panels, and for the panels of a short one."""

        def each() -> None:
            with tir.serial(tir.int64(0), here) as p:
                emit(p, 1)

        if self.panels == 1:
            emit(tir.int64(0), 1)
        else:
            whole = here == self.panels
            tir.either(whole, lambda: emit(tir.int64(0), self.panels), each)

    def finish_rows(self, j: tir.Expr, panels: int) -> None:
        """Rows of `panels` panels from `j` on, one by one."""
        j = tir.bind(j)
        with tir.serial(tir.int64(0), self.rows) as r:
            self.run(j, r, tir.int64(0), panels, whole=True)
            for p in range(panels):
                at = tir.int64(p * PANEL_WIDTH)
                self.swrite.write(tir.bind(j + p), r, tir.int64(1), self.row_sums, at)

    def in_blocks(self, j: tir.Expr, here: tir.Expr) -> None:
        """All rows of `here` panels from `j` on, block after block."""
        with tir.serial(tir.int64(0), here * (self.plane // tir.LANES)) as i:
            tir.store(self.sums, tir.splat(0), i * tir.LANES)
        self.split(here, lambda p, n: self.add(tir.bind(j + p), p, n))
        with tir.serial(tir.int64(0), here) as p:
            self.swrite.write(tir.bind(j + p), tir.int64(0), self.rows, self.sums, p * self.plane)

    def add(self, j: tir.Expr, plane: tir.Expr, panels: int) -> None:
        """The products of panels `j`.. at once, whose sums begin with plane `plane`."""
        rows = tir.serial(tir.int64(0), self.rows)
        with tir.serial(tir.int64(0), self.blocks) as q, rows as r:
            at = tir.bind(plane * self.plane + r * PANEL_WIDTH)
            self.run(j, tir.bind(q * self.rows + r), at, panels, whole=False)

    def run(self, j: tir.Expr, run: tir.Expr, at: tir.Expr, panels: int, *, whole: bool) -> None:
        """Add one run of entries to its row.

        Args:
            j: The first panel.
            run: Place of the run in `starts`.
            at: Where the sums of the row begin, for the first panel.
            panels: How many panels.
            whole: It is the row's only run: its sums begin with 0, and go to the scratch of one
                row. The rows of B of later entries are asked for.
        """
        sums, plane = (self.row_sums, PANEL_WIDTH) if whole else (self.sums, self.plane)
        places = [
            (tir.Variable(), panel, offset)
            for panel in range(panels)
            for offset in range(0, PANEL_WIDTH, tir.LANES)
        ]
        b = self.swrite.b
        for variable, panel, offset in places:
            start_value = tir.splat(0) if whole else tir.load(sums, at + panel * plane + offset)
            variable.set(start_value)
        start = tir.index_of(self.starts, run)
        stop = tir.index_of(self.starts, run + 1)
        with tir.serial(start, stop) as z:
            if whole:
                later = tir.index_of(self.ks, tir.smaller(z + AHEAD, self.entries - 1))
                for _, panel, offset in places:
                    tir.prefetch(b, j + panel, later, offset)
            a = tir.keep(tir.splat(self.values[z]))
            k = tir.index_of(self.ks, z)
            for variable, panel, offset in places:
                vector = tir.load(b, j + panel, k, offset)
                variable.set(tir.fma(a, vector, variable.value))
        for variable, panel, offset in places:
            tir.store(sums, variable.value, at + panel * plane + offset)

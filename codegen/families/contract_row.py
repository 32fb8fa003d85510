"""contract_row: C[rows_c, :] = act(A @ B + bias) + residual; each row of A lists its live elements.

PIT axis k: the micro-tile is one element. SRead is the address of a row of B. The dense tile is one
row x columns of accumulators in registers, over as many panels as the target has registers for. A
row gets its elements in ascending k, added up per column in blocks of `FOLD` k, so its bits do not
depend on the blocks of lists or on the call.

    for each group of panels of B:
        for each k block:                           its rows of B stay in a near cache
            for each row, which has a run of entries in this block:
                accumulators = 0, or the sums of the blocks before
                multiply-add over the run
                scratch = accumulators; after the last block C = epilogue

The entries lie in that order, so that they are read in one ascending stream. The sums lie in a
compact scratch array, because rows of C, a power of two apart, would share few lines of the caches.
Where all of k is one block a row is finished at once, and its rows of B, which come from further
away, are asked for ahead.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import FOLD, Blocks, DenseTile, Read
from pitc.codegen.families.swrite import PANEL_VECTORS, SWrite
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CpuLevel

AHEAD = 8
"""Entries between the row of B that is asked for and the one that is read."""


def panels_at_once(n: int, target: CpuLevel) -> int:
    """Panels of B that one step over a list computes with."""
    return min(target.row_columns // PANEL_WIDTH, panel_count(n))


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: Of `SWrite`; no listed element is below 0 where `input_relu` is set.
        target: CPU level.
    """
    return tir.prim_func(symbol, lambda: _Kernel(params, target).emit())


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile."""

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        self.entries, boundaries = tir.size(), tir.size()
        self.values = tir.tensor("values", (self.entries,))
        self.ks = tir.tensor("ks", (self.entries,), "int32")
        self.starts = tir.tensor("starts", (boundaries,), "int32")
        self.swrite = SWrite(params, "nb")
        (self.blocks,) = self.swrite.scalars
        self.rows = self.swrite.rows
        self.panels = panels_at_once(params["n"], target)
        held = tir.choose(self.blocks == 1, tir.int64(0), self.rows)
        # the row that is being finished lies in front of those that wait
        self.folds = params["k"] > FOLD
        width = PANEL_WIDTH * self.panels
        self.behind = tir.bind((held + 1) * width)  # sums of complete blocks of k lie there
        self.sums = tir.workspace((held + 1) * (width * (1 + self.folds)))
        self.states = tir.workspace(held + 1, dtype="int64") if self.folds else None

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
                self.run(j, r, tir.int64(0), panels, ahead=True, last=True)
                self.finish(j, r, panels)

        def in_blocks() -> None:
            width, last = panels * PANEL_WIDTH, tir.bind(self.blocks - 1)
            with tir.serial(tir.int64(0), self.rows) as r:
                self.run(j, r, tir.bind((r + 1) * width), panels)
            rows = tir.serial(tir.int64(0), self.rows)
            with tir.serial(tir.int64(1), last) as q, rows as r:
                at = tir.bind((r + 1) * width)
                self.run(j, tir.bind(q * self.rows + r), at, panels, at)
            with tir.serial(tir.int64(0), self.rows) as r:
                run, at = tir.bind(last * self.rows + r), tir.bind((r + 1) * width)
                self.run(j, run, tir.int64(0), panels, at, last=True)
                self.finish(j, r, panels)

        tir.either(self.blocks == 1, whole, in_blocks)

    def finish(self, j: tir.Expr, r: tir.Expr, panels: int) -> None:
        """Write one row, whose sums are complete."""
        for p in range(panels):
            at = tir.int64(p * PANEL_WIDTH)
            self.swrite.write(tir.bind(j + p), r, tir.int64(1), self.sums, at)

    def run(
        self,
        j: tir.Expr,
        run: tir.Expr,
        at: tir.Expr,
        panels: int,
        before: tir.Expr | None = None,
        *,
        ahead: bool = False,
        last: bool = False,
    ) -> None:
        """Add one run of entries to its row.

        Args:
            j: The first panel.
            run: Place of the run in `starts`.
            at: Where the sums of the row go.
            panels: How many panels.
            before: Where the sums of the runs before are; None: there are none.
            ahead: The rows of B of later entries are asked for.
            last: The row's sums are complete then.
        """
        tile = DenseTile(1, panels * PANEL_VECTORS)
        kept = at if before is None else before
        slot = tir.bind(kept // (panels * PANEL_WIDTH))
        behind = [kept + self.behind]
        if before is None:
            tile.clear()
        else:
            tile.take(self.sums, [before])
        start, stop = tir.index_of(self.starts, run), tir.index_of(self.starts, run + 1)
        blocks = Blocks(tile, self.sums, behind, tir.int64(2 * FOLD)) if self.folds else None
        if blocks is not None and before is not None:
            blocks.state.set(tir.index_of(self.states, slot))
        b = self.swrite.b

        def at_panel(v: int) -> tuple[tir.Expr, int]:
            return j + v // PANEL_VECTORS, v % PANEL_VECTORS * tir.LANES

        def read(z: tir.Expr, *, ends: bool = False) -> Read:
            if ahead:
                later = tir.index_of(self.ks, tir.smaller(z + AHEAD, self.entries - 1))
                for v in range(tile.vectors):
                    panel, offset = at_panel(v)
                    tir.prefetch(b, panel, later, offset)
            k = tir.index_of(self.ks, z)
            if blocks is not None and ends:
                blocks.before(k)

            def vector(v: int) -> tir.Expr:
                panel, offset = at_panel(v)
                return tir.load(b, panel, k, offset)

            return lambda _: self.values[z], vector

        def entries(*, ends: bool = False) -> None:
            with tir.serial(start, stop) as z:
                tile.step(read(z, ends=ends))

        if blocks is None:
            entries()
        else:
            with tir.when(start < stop):
                first = tir.index_of(self.ks, start)
                if before is None:
                    blocks.state.set(blocks.state_at(first))
                else:
                    blocks.before(first)
                # most runs lie in one block: their entries are not asked
                ends = blocks.ends_before(tir.index_of(self.ks, stop - 1))
                tir.either(ends, lambda: entries(ends=True), entries)
        if blocks is not None and last:
            blocks.end()
        elif blocks is not None:
            tir.assign(self.states, blocks.state.value, slot)
        tile.put(self.sums, [at])

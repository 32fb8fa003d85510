"""outer_products_dense: C[:, n0..n1] = (C +) A^T @ B, of one block of k.

A product whose operands lie as they are summed, rows of A by rows of B, whose sizes are known when
the kernel is called: a gradient of weights. `outer_products` leaves out what a mask hides.

PIT axes m and n. SRead is a panel of 64 columns of B, copied once for all rows of C; A stands in
groups of 6 rows of C, [group, k, row], the rows of a register tile.

    for each 64 columns:
        panel = B[:, columns]
        for each column group of the panel, for each group of 6 rows:
            C[rows, columns] = sums, or C + sums            at an edge by way of a scratch tile
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import DenseTile, Read
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.target import CpuLevel

UNROLL = 4
GROUP = 6
"""Rows of a register tile, on every CPU level."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of the kernel (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: None that it looks at.
        target: CPU level.
    """
    del params
    rows, columns = target.gemm_tile
    assert rows == GROUP
    return tir.prim_func(symbol, lambda: _Kernel(columns).emit())


class _Kernel:
    """Emits the kernel: its arguments, and the loops around its tiles."""

    def __init__(self, width: int) -> None:
        self.width, self.vectors = width, width // tir.LANES
        groups, depth, self.k, n, self.rows = (tir.size() for _ in range(5))
        self.a = tir.tensor("a", (groups, depth, GROUP))
        self.b = tir.tensor("b", (self.k, n))
        self.c = tir.tensor("c", (self.rows, n))
        self.n0, self.n1, self.adds = tir.scalars("n0", "n1", "adds")
        self.panel = tir.workspace(PANEL_WIDTH // width, self.k, width)
        self.edge = tir.workspace(GROUP * width)

    def emit(self) -> None:
        """Panel by panel."""
        zero = tir.int64(0)
        with tir.serial(zero, (self.n1 - self.n0 + PANEL_WIDTH - 1) // PANEL_WIDTH) as p:
            first = tir.hold(self.n0 + p * PANEL_WIDTH)
            count = tir.hold(tir.smaller(tir.int64(PANEL_WIDTH), self.n1 - first))
            tir.either(
                count == PANEL_WIDTH,
                lambda: self.copy(first),
                lambda: self.copy_some(first, count),
            )
            with tir.serial(zero, (count + self.width - 1) // self.width) as x:
                column = tir.hold(first + x * self.width)
                with tir.serial(zero, (self.rows + GROUP - 1) // GROUP) as group:
                    self.multiply(x, column, group)

    def copy(self, first: tir.Expr) -> None:
        """SRead of a whole panel."""
        with tir.serial(tir.int64(0), self.k) as k:
            for at in range(0, PANEL_WIDTH, tir.LANES):
                x, place = divmod(at, self.width)
                vector = tir.load(self.b, k, first + at)
                tir.store(self.panel, vector, tir.int64(x), k, tir.int64(place))

    def copy_some(self, first: tir.Expr, count: tir.Expr) -> None:
        """SRead of the last columns; the very last one stands for those behind it."""
        whole = (count + self.width - 1) // self.width * self.width
        with tir.serial(tir.int64(0), self.k) as k, tir.serial(tir.int64(0), whole) as i:
            at = i // self.width, k, i % self.width
            tir.assign(self.panel, self.b[k, first + tir.smaller(i, count - 1)], *at)

    def multiply(self, x: tir.Expr, column: tir.Expr, group: tir.Expr) -> None:
        """One tile of C."""
        row, tile = tir.hold(group * GROUP), DenseTile(GROUP, self.vectors)
        tile.clear()

        def read(k: tir.Expr) -> Read:
            return (
                lambda r: self.a[group, k, tir.int64(r)],
                lambda v: tir.load(self.panel, x, k, tir.int64(v * tir.LANES)),
            )

        tile.multiply(self.k, UNROLL, read)
        inside = tir.both(row + GROUP <= self.rows, column + self.width <= self.n1)
        tir.either(
            inside,
            lambda: self.write(tile, row, column),
            lambda: self.write_some(tile, row, column),
        )

    def write(self, tile: DenseTile, row: tir.Expr, column: tir.Expr) -> None:
        """SWrite of a whole tile. A sum of -0.0 is 0, as where it is added to 0."""

        def put(*, adds: bool) -> None:
            for r in range(GROUP):
                for v, total in enumerate(tile.row(r)):
                    at = row + r, column + v * tir.LANES
                    before = tir.load(self.c, *at) if adds else tir.splat(0)
                    tir.store(self.c, total + before, *at)

        tir.either(self.adds != 0, lambda: put(adds=True), lambda: put(adds=False))

    def write_some(self, tile: DenseTile, row: tir.Expr, column: tir.Expr) -> None:
        """SWrite of what lies in C."""
        tile.put(self.edge, [tir.int64(r * self.width) for r in range(GROUP)])
        here = tir.smaller(tir.int64(GROUP), self.rows - row)
        count = tir.smaller(tir.int64(self.width), self.n1 - column)
        with tir.serial(tir.int64(0), here) as r, tir.serial(tir.int64(0), count) as i:
            at = row + r, column + i
            before = tir.select(self.adds != 0, self.c[at], tir.float32(0))
            tir.assign(self.c, self.edge[r * self.width + i] + before, *at)

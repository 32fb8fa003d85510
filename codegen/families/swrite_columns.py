"""swrite_columns: C[t0+j, n0+i] = act(sums[i, j] + bias[n0+i]) + residual[t0+j, n0+i].

SWrite of a contraction whose right operand S is sparse: that runs as C^T = S^T A^T, so its sums
have a row for each column of C. Blocks of 16 x 16 sums are transposed in registers. A strip of 16
rows of C gathers `WIDE` columns in a scratch array, so that each row is written in one long piece:
rows of C, a power of two apart, share few lines of the caches.

    for each strip of 16 rows of C, for each `WIDE` columns:
        scratch = transposed blocks of sums
        rows of C = epilogue of scratch
"""

from collections.abc import Callable, Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.families.epilogue import ACTIVATIONS, Epilogue
from pitc.codegen.families.swrite import Stores
from pitc.ir.panels import PANEL_WIDTH, TURNED_COLUMNS, panel_count
from pitc.ir.target import CpuLevel

WIDE = 128
"""Columns of a piece: 16 and 32 measured slower, 64 and 256 about the same."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `n`, `activation`, `residual`.
        target: CPU level.
    """
    if params["n"] < 1 or params["activation"] not in ACTIVATIONS:
        raise ValueError(f"no swrite_columns kernel for {dict(params)}")
    return tir.prim_func(symbol, lambda: _Kernel(params).emit())


class _Kernel:
    """Emits one kernel: its arguments, and the loops around a block of sums."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        n = params["n"]
        self.last_lanes = n % tir.LANES
        self.columns, self.rows = tir.size(), tir.size()
        self.sums = tir.tensor("sums", (self.columns, TURNED_COLUMNS))
        self.bias = tir.tensor("bias", (panel_count(n) * PANEL_WIDTH,))
        residual = tir.tensor("residual", (self.rows, n)) if params["residual"] else None
        c = tir.tensor("c", (self.rows, n))
        self.n0, self.t0 = tir.scalars("n0", "t0")
        self.stores = Stores(Epilogue(params["activation"], n, residual=residual), c)
        self.scratch = tir.workspace(tir.LANES * WIDE)

    def emit(self) -> None:
        """Strips of rows of C, pieces of these rows."""
        rows = tir.bind(tir.smaller(tir.int64(TURNED_COLUMNS), self.rows - self.t0))
        strips = tir.serial(tir.int64(0), (rows + tir.LANES - 1) // tir.LANES)
        pieces = tir.serial(tir.int64(0), (self.columns + WIDE - 1) // WIDE)
        with self.stores.used(), strips as s, pieces as p:
            self.piece(tir.bind(s * tir.LANES), rows, tir.bind(p * WIDE))

    def piece(self, first: tir.Expr, rows: tir.Expr, column: tir.Expr) -> None:
        """Up to 16 of the call's `rows` from `first` on, up to `WIDE` columns from `column` on."""
        width = tir.bind(tir.smaller(tir.int64(WIDE), self.columns - column))

        def transpose(start: tir.Expr, lanes: int) -> None:
            vectors = []
            for i in range(lanes):
                place = column + start + i
                bias = tir.splat(self.bias[self.n0 + place])
                vectors.append(tir.load(self.sums, place, first) + bias)
            vectors += [tir.splat(0)] * (tir.LANES - lanes)
            for r, vector in enumerate(tir.transpose(vectors)):
                tir.store(self.scratch, vector, start + r * WIDE)

        self.blocks(width, transpose)
        with tir.serial(tir.int64(0), tir.smaller(tir.int64(tir.LANES), rows - first)) as r:
            row = tir.bind(self.t0 + first + r)

            def put(start: tir.Expr, lanes: int) -> None:
                sums = tir.load(self.scratch, r * WIDE + start)
                self.stores.put(sums, row, row, tir.bind(self.n0 + column + start), lanes)

            self.blocks(width, put)

    def blocks(self, width: tir.Expr, block: Callable[[tir.Expr, int], None]) -> None:
        """Run `block(start, lanes)` for each vector of a piece; only the last of C may be short."""
        full = tir.bind(width // tir.LANES)
        with tir.serial(tir.int64(0), full) as b:
            block(tir.bind(b * tir.LANES), tir.LANES)
        if self.last_lanes:
            with tir.when(full * tir.LANES < width):
                block(tir.bind(full * tir.LANES), self.last_lanes)

"""gather_gemm of bfloat16 by a matrix unit: C[rows_c[i], :] = act(A[rows_a[i], :] @ B + bias) + ..

PIT axis m, as in `gather_gemm.py`, and the same arguments. SRead puts the rows of a block side by
side as words of two numbers, in tiles of 16 x 16 words, each in one piece: rows a power of two
apart would share few lines of the caches. B is read where it is.

    for each block of rows:                         its words stay in the second-level cache
        for each panel of B, for each half of it:   32 columns
            for each two tiles of rows:             32 rows
                sums = 0; add the products of 16 words after 16 words of k
                C = epilogue of the sums

Behind the last row of a block tiles hold whatever was there, which gives rows that nobody stores.
Behind the last k stand zeros, in A and in a copy of the last rows of B.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.amx import SIDE, TILE, ModelTiles, Place, Tiles, UnitTiles
from pitc.codegen.engines.pairs import instructions, step_count
from pitc.codegen.families.epilogue import ACTIVATIONS, Epilogue
from pitc.codegen.families.left import Block, PairRows
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CpuLevel

BLOCK = 128
"""Rows that share a pass over B."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`, `n`, `activation`, `residual`; `input_relu`, `left_words` and `rounds_result`,
            0 if not there.
        target: A CPU level with a matrix unit.
    """
    if params["k"] < 1 or params["n"] < 1 or params["activation"] not in ACTIVATIONS:
        raise ValueError(f"no gather_gemm kernel for {dict(params)}")

    def emit() -> None:
        kernel = _Kernel(params, native=bool(target.features))
        with instructions(params, target), kernel.tiles.used():
            kernel.emit()

    return tir.prim_func(symbol, emit)


class _Placed(Block):
    """Words of a block in tiles of 16 rows x 16 words; those of the same rows follow each other."""

    gap = 0

    def place(self, i: tir.Expr, s: tir.Expr) -> tir.Expr:
        """Where vector `s` of row `i` begins."""
        return (i // TILE * (self.stride // TILE) + s) * (TILE * TILE) + i % TILE * TILE


class _Rounded(_Placed, PairRows):
    """Rows of float32."""


class _Copied(_Placed):
    """Rows of words."""

    def __init__(self, a: tir.Buffer, listed: tir.Buffer, most: int) -> None:
        super().__init__(listed, -(-int(a.shape[1]) // TILE) * TILE, most)
        self.a, self.rest = a, tir.workspace(TILE)

    def convert(self, row: tir.Expr, i: tir.Expr) -> None:
        """Copy it, with 0 behind the last word."""
        whole, rest = divmod(int(self.a.shape[1]), TILE)
        if whole:
            with tir.serial(tir.int64(0), tir.int64(whole)) as s:
                vector = tir.load(self.a, row, s * TILE)
                tir.store(self.converted, vector, self.place(i, s))
        if rest:
            tir.store(self.rest, tir.splat(0), tir.int64(0))
            for w in range(rest):
                tir.assign(self.rest, self.a[row, whole * TILE + w], tir.int64(w))
            vector = tir.load(self.rest, tir.int64(0))
            tir.store(self.converted, vector, self.place(i, tir.int64(whole)))


class _Kernel:
    """Emits one kernel."""

    def __init__(self, params: Mapping[str, Any], *, native: bool) -> None:
        k, self.n = params["k"], params["n"]
        self.k, words = step_count(params), bool(params.get("left_words"))
        rows_of_a, listed, rows_of_c = (tir.size() for _ in range(3))
        panels = panel_count(self.n)
        a = tir.tensor("a", (rows_of_a, self.k if words else k))
        rows_a = tir.tensor("rows_a", (listed,), "int32")
        self.b = tir.tensor("b", (panels, self.k, PANEL_WIDTH))
        bias = tir.tensor("bias", (panels * PANEL_WIDTH,))
        residual = tir.tensor("residual", (listed, self.n)) if params["residual"] else None
        self.rows_c = tir.tensor("rows_c", (listed,), "int32")
        self.rounds = bool(params.get("rounds_result"))
        self.c = tir.tensor("c", (rows_of_c, self.n), "uint16" if self.rounds else "float32")
        self.i0, self.i1, self.j0, self.j1 = tir.scalars("i0", "i1", "j0", "j1")
        self.epilogue = Epilogue(params["activation"], self.n, bias, residual)
        self.whole, self.behind = divmod(self.k, TILE)
        relu = bool(params.get("input_relu"))
        self.left = (
            _Copied(a, rows_a, BLOCK) if words else _Rounded(a, rows_a, BLOCK, input_relu=relu)
        )
        self.rest = tir.workspace(TILE, PANEL_WIDTH)
        self.tiles: Tiles = UnitTiles() if native else ModelTiles()

    def emit(self) -> None:
        """Blocks of rows, panels, halves of them, tiles of rows."""
        zero, side = tir.int64(0), tir.int64(SIDE)
        with tir.serial(zero, (self.i1 - self.i0 + BLOCK - 1) // BLOCK) as block:
            first = tir.bind(self.i0 + block * BLOCK)
            count = tir.bind(tir.smaller(tir.int64(BLOCK), self.i1 - first))
            self.left.bring(first, count)
            with tir.serial(self.j0, self.j1) as j:
                if self.behind:
                    self.copy_rest(j)
                left = tir.bind(self.n - j * PANEL_WIDTH)
                halves = tir.smaller(tir.int64(PANEL_WIDTH), left) + (SIDE - 1)
                with tir.serial(zero, halves // SIDE) as half:
                    column = tir.bind(half * side)
                    with tir.serial(zero, (count + SIDE - 1) // SIDE) as t:
                        self.tile(j, column, first, tir.bind(t * side), count)

    def copy_rest(self, j: tir.Expr) -> None:
        """The last rows of a panel, and 0 behind them."""
        for w in range(TILE):
            for v in range(PANEL_WIDTH // tir.LANES):
                at = tir.int64(v * tir.LANES)
                row = tir.int64(self.whole * TILE + w)
                vector = tir.load(self.b, j, row, at) if w < self.behind else tir.splat(0)
                tir.store(self.rest, vector, tir.int64(w), at)

    def tile(
        self, j: tir.Expr, column: tir.Expr, first: tir.Expr, row: tir.Expr, count: tir.Expr
    ) -> None:
        """32 rows x 32 columns.

        Args:
            j: Panel.
            column: The first column, in the panel.
            first: Place of the block in the row list.
            row: The first row, in the block.
            count: Rows of the block.
        """
        self.tiles.clear()
        zero = tir.int64(0)
        if self.whole:
            with tir.serial(zero, tir.int64(self.whole)) as s:
                self.step(row, s, (self.b, (j, s * TILE)), column)
        if self.behind:
            self.step(row, tir.int64(self.whole), (self.rest, (zero,)), column)
        sums = self.tiles.store()
        here = tir.smaller(tir.int64(SIDE), count - row)
        with tir.serial(zero, here) as r:
            at = tir.bind(first + row + r)
            row_c = tir.index_of(self.rows_c, at)
            for v in range(SIDE // tir.LANES):
                self.put(sums, r, v, at, row_c, tir.bind(j * PANEL_WIDTH + column + v * tir.LANES))

    def step(self, row: tir.Expr, s: tir.Expr, b: Place, column: tir.Expr) -> None:
        """16 words of k."""
        panel, lead = b
        left = [(self.left.converted, (self.left.place(row + i, s),)) for i in (0, TILE)]
        right = [(panel, (*lead, column + v)) for v in (0, TILE)]
        self.tiles.step(left, right)

    def put(
        self, sums: tir.Buffer, r: tir.Expr, v: int, row: tir.Expr, row_c: tir.Expr, at: tir.Expr
    ) -> None:
        """Finish and store a vector, as far as there are columns."""

        def store(lanes: int) -> None:
            x = tir.keep(tir.load(sums, r, tir.int64(v * tir.LANES)))
            value = tir.keep(self.epilogue.finish(x, row, at, lanes))
            if self.rounds:
                pairs.store_halves(self.c, value, row_c, at, lanes=lanes)
            else:
                tir.store(self.c, value, row_c, at, lanes=lanes)

        with tir.when(at + tir.LANES <= self.n):
            store(tir.LANES)
        rest = self.n % tir.LANES
        if rest:
            with tir.when(at == self.n - rest):
                store(rest)

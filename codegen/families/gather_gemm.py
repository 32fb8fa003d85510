"""gather_gemm: C[rows_c[i], :] = act(A[rows_a[i], :] @ B + bias) + residual[i, :].

PIT axis m: the micro-tile is one row. SRead is the address of a row: A is read in place, because
packing it first did not measure faster. SWrite is the address of the stored row. The dense tile is
rows x columns of accumulators in registers. Each accumulator is one chain of fused multiply-adds in
ascending k, so the bits of a row do not depend on the tile that it falls into.

    for each block of rows, for each block of k:    rows of A stay in the second-level cache
        for each column group of a panel of B:      the k block of the panel stays there too
            for each row tile:
                accumulators = 0, or the partial sums in C
                multiply-add over the k block
                C = partial sums, or the epilogue after the last k block

A short last row tile repeats its last row and drops the copies; one or two left-over rows run one
by one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pitc.codegen import tir
from pitc.codegen.targets import Target
from pitc.codegen.variant import Tile, Variant, derive_micro_tile
from pitc.codegen.vector_math import gelu, gelu_quick, gelu_tanh, relu, silu
from pitc.ir.panels import PANEL_WIDTH, panel_count

BLOCK_TILES = 16
"""Row tiles that share one pass over B."""
SPLIT_K = 1536
"""Longest k block: longer ones lose the rows of A or the panel of B from the second-level cache."""
UNROLL_K = 4
SINGLE_ROWS = 2
"""So many left-over rows run one by one; more of them fill a padded row tile in less time."""

ACTIVATIONS: Mapping[str, Callable[[tir.Expr], tir.Expr]] = {
    "none": lambda x: x,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_quick": gelu_quick,
    "silu": silu,
}


def k_block(k: int) -> int:
    """Length of the k blocks: all of k, or equal multiples of 16, the last maybe shorter."""
    blocks = -(-k // SPLIT_K)
    if blocks == 1:
        return k
    return -(-k // (tir.LANES * blocks)) * tir.LANES


def variant(params: Mapping[str, Any], target: Target) -> Variant:
    """The family at the target's register tile."""
    rows, columns = target.gemm_tile
    dense = Tile.of(m=rows, k=k_block(params["k"]), n=columns)
    return Variant(
        "gather_gemm", dense, derive_micro_tile(dense, ("m", "k"), "m"), "float32", target
    )


def prim_func(symbol: str, params: Mapping[str, Any], target: Target) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`, `n`, `activation`, `residual`.
        target: CPU level.
    """
    if params["k"] < 1 or params["n"] < 1 or params["activation"] not in ACTIVATIONS:
        raise ValueError(f"no gather_gemm kernel for {dict(params)}")
    chosen = variant(params, target)
    return tir.prim_func(symbol, lambda: _Kernel(params, chosen).emit())


@dataclass(frozen=True, slots=True)
class _Columns:
    """A column group: where it starts in its panel, its vectors, the valid lanes of the last."""

    start: tir.Expr
    vectors: int
    last_lanes: int

    def lanes(self, v: int) -> int:
        """Valid lanes of vector `v`."""
        return self.last_lanes if v == self.vectors - 1 else tir.LANES


class _Kernel:
    """Emits one kernel: its arguments, and the loops around the register tile."""

    def __init__(self, params: Mapping[str, Any], chosen: Variant) -> None:
        k, self.n = params["k"], params["n"]
        self.k, self.k_block = k, chosen.dense_tile["k"]
        self.k_blocks = -(-k // self.k_block)
        self.tile_rows, self.group = chosen.dense_tile["m"], chosen.dense_tile["n"]
        self.activation = ACTIVATIONS[params["activation"]]
        panels = panel_count(self.n)
        rows_of_a, listed, rows_of_c = (tir.size() for _ in range(3))
        self.a = tir.tensor("a", (rows_of_a, k))
        self.rows_a = tir.tensor("rows_a", (listed,), "int32")
        self.b = tir.tensor("b", (panels, k, PANEL_WIDTH))
        self.bias = tir.tensor("bias", (panels * PANEL_WIDTH,))
        self.residual = tir.tensor("residual", (listed, self.n)) if params["residual"] else None
        self.rows_c = tir.tensor("rows_c", (listed,), "int32")
        self.c = tir.tensor("c", (rows_of_c, self.n))
        self.i0, self.i1, self.j0, self.j1 = tir.scalars("i0", "i1", "j0", "j1")

    def emit(self) -> None:
        """Blocks of rows, blocks of k, panels."""
        block = BLOCK_TILES * self.tile_rows
        with tir.serial(0, (self.i1 - self.i0 + block - 1) // block) as ib:
            first = tir.bind(self.i0 + ib * block)
            count = tir.bind(tir.smaller(tir.int64(block), self.i1 - first))
            blocks = tir.serial(0, tir.int64(self.k_blocks))
            with blocks as kb, tir.serial(self.j0, self.j1) as j:
                self.panel(kb, j, first, count)

    def panel(self, kb: tir.Expr, j: tir.Expr, first: tir.Expr, count: tir.Expr) -> None:
        """All row tiles of a block of rows against the column groups of one panel."""
        per_panel = PANEL_WIDTH // self.group
        full, rest = divmod(self.n, self.group)
        if full:
            here = tir.smaller(tir.int64(per_panel), full - j * per_panel)
            with tir.serial(0, here) as g:
                columns = _Columns(tir.bind(g * self.group), self.group // tir.LANES, tir.LANES)
                self.row_tiles(kb, j, columns, first, count)
        if rest:
            start = tir.int64(full % per_panel * self.group)
            columns = _Columns(start, -(-rest // tir.LANES), (rest - 1) % tir.LANES + 1)
            with tir.when(j == full // per_panel):
                self.row_tiles(kb, j, columns, first, count)

    def row_tiles(
        self, kb: tir.Expr, j: tir.Expr, columns: _Columns, first: tir.Expr, count: tir.Expr
    ) -> None:
        """Full and padded row tiles, then single rows."""
        height = self.tile_rows
        tiles = tir.bind(count // height)
        rest = tir.bind(count - tiles * height)
        single = tir.bind(tir.choose(rest <= SINGLE_ROWS, rest, tir.int64(0)))
        whole = tir.bind(tir.choose(rest > SINGLE_ROWS, tiles + 1, tiles))
        with tir.serial(0, whole) as p:
            _RegisterTile(self, columns, j, tir.bind(first + p * height), height).emit(kb)
        with tir.serial(0, single) as r:
            _RegisterTile(self, columns, j, tir.bind(first + tiles * height + r), 1).emit(kb)


class _RegisterTile:
    """Emits one register tile: rows `first`.. of the row list x one column group of panel `j`."""

    def __init__(
        self, kernel: _Kernel, columns: _Columns, j: tir.Expr, first: tir.Expr, rows: int
    ) -> None:
        self.kernel, self.columns, self.j, self.first, self.rows = kernel, columns, j, first, rows
        self.listed = [tir.bind(tir.smaller(first + r, kernel.i1 - 1)) for r in range(rows)]
        self.column = tir.bind(j * PANEL_WIDTH + columns.start)
        self.acc = tir.grid(rows, columns.vectors)
        self.places = [(r, v) for r in range(rows) for v in range(columns.vectors)]

    def emit(self, kb: tir.Expr) -> None:
        """One k block of the tile."""
        kernel = self.kernel
        if kernel.k_blocks == 1:
            self.fetch()
            self.clear()
            self.multiply(kb)
            self.write(self.epilogue)
        else:
            last = kb == kernel.k_blocks - 1
            if kernel.residual is not None:
                with tir.when(last):
                    self.fetch()
            tir.either(kb == 0, self.clear, self.resume)
            self.multiply(kb)
            tir.either(last, lambda: self.write(self.epilogue), lambda: self.write(self.partial))

    def clear(self) -> None:
        """Start the sums at 0."""
        for r, v in self.places:
            self.acc[r][v].set(tir.splat(0))

    def resume(self) -> None:
        """Start from the partial sums of the k block before."""
        rows_c = [tir.index_of(self.kernel.rows_c, i) for i in self.listed]
        for r, v in self.places:
            lanes = self.columns.lanes(v)
            at = self.column + v * tir.LANES
            self.acc[r][v].set(tir.load(self.kernel.c, rows_c[r], at, lanes=lanes))

    def fetch(self) -> None:
        """Ask for the residual: it arrives while the products are added."""
        if self.kernel.residual is not None:
            for r, v in self.places:
                at = self.column + v * tir.LANES
                tir.prefetch(self.kernel.residual, self.listed[r], at)

    def multiply(self, kb: tir.Expr) -> None:
        """Add the products of one k block."""
        kernel, columns = self.kernel, self.columns
        rows_a = [tir.index_of(kernel.rows_a, i) for i in self.listed]
        start = tir.bind(kb * kernel.k_block)
        length = tir.bind(tir.smaller(tir.int64(kernel.k_block), kernel.k - start))

        def step(i: tir.Expr) -> None:
            k = start + i
            b = [
                tir.keep(tir.load(kernel.b, self.j, k, columns.start + v * tir.LANES))
                for v in range(columns.vectors)
            ]
            for r in range(self.rows):
                a = tir.keep(tir.splat(kernel.a[rows_a[r], k]))
                for v in range(columns.vectors):
                    self.acc[r][v].set(tir.fma(a, b[v], self.acc[r][v].value))

        tir.unrolled(length, UNROLL_K, step, rest=kernel.k % UNROLL_K > 0)

    def write(self, finish: Callable[[int, tir.Expr, tir.Expr, int], tir.Expr]) -> None:
        """Store `finish(row, sums, column, lanes)` of every vector, but not of repeated rows."""
        for r in range(self.rows):
            with tir.when(self.first + r < self.kernel.i1):
                self.write_row(r, finish)

    def write_row(self, r: int, finish: Callable[[int, tir.Expr, tir.Expr, int], tir.Expr]) -> None:
        """Store one row; a run-time loop over its vectors keeps the code of an activation short."""
        columns, kernel = self.columns, self.kernel
        sums = tir.stack(columns.vectors)
        for v in range(columns.vectors):
            tir.assign(sums, self.acc[r][v].value, v)
        row_c = tir.index_of(kernel.rows_c, self.listed[r])

        def put(v: tir.Expr, lanes: int) -> None:
            at = tir.bind(self.column + v * tir.LANES)
            value = finish(r, tir.keep(sums[v]), at, lanes)
            tir.store(kernel.c, value, row_c, at, lanes=lanes)

        full = columns.vectors - (columns.last_lanes < tir.LANES)
        if full:
            with tir.serial(0, tir.int64(full)) as v:
                put(v, tir.LANES)
        if full < columns.vectors:
            put(tir.int64(full), columns.last_lanes)

    def partial(self, _row: int, x: tir.Expr, _at: tir.Expr, _lanes: int) -> tir.Expr:
        """Before the last k block: the sums as they are."""
        return x

    def epilogue(self, row: int, x: tir.Expr, at: tir.Expr, lanes: int) -> tir.Expr:
        """After the last k block: bias, activation, residual."""
        kernel = self.kernel
        x = kernel.activation(tir.keep(x + tir.load(kernel.bias, at)))
        if kernel.residual is None:
            return x
        return x + tir.load(kernel.residual, self.listed[row], at, lanes=lanes)

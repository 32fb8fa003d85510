"""gather_gemm: C[rows_c[i], :] = act(A[rows_a[i], :] @ B + bias) + residual[i, :].

PIT axis m: the micro-tile is one row. SRead is the address of a row: A is read in place, because packing it first did not
measure faster. SWrite is the address of the stored row. The dense tile is rows x columns of accumulators in registers,
every accumulator is one chain of fused multiply-adds in ascending k, and so a row's bits do not depend on its tile.

    for each block of rows, for each block of k:            rows of A stay in the second-level cache
        for each column group of a panel of B:              the panel's k block stays there too
            for each row tile: accumulators = 0 or C; multiply-add over k; C = partial sum, or the epilogue

A short last row tile computes its last row again and drops the copies; one or two left-over rows run one by one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pitc.codegen import tir
from pitc.codegen.panels import PANEL_WIDTH, panel_count
from pitc.codegen.targets import Target
from pitc.codegen.variant import Tile, Variant, derive_micro_tile
from pitc.codegen.vector_math import gelu

BLOCK_TILES = 16
"""Row tiles that share one pass over B."""
UNSPLIT_K = 3072
"""Up to here one pass over k measured fastest; larger k runs in blocks of at most SPLIT_K."""
SPLIT_K = 2048
UNROLL_K = 4
SINGLE_ROWS = 2
"""Up to so many left-over rows run one by one; more fill a padded row tile in less time."""

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: tir.keep(tir.select(x < tir.splat(0), tir.splat(0), x)),
    "gelu": gelu,
}


def k_block(k: int) -> int:
    """Length of the k blocks: all of k, or equal multiples of 16 of which the last may be shorter."""
    if k <= UNSPLIT_K:
        return k
    blocks = -(-k // SPLIT_K)
    return -(-k // (16 * blocks)) * 16


def variant(params: Mapping[str, Any], target: Target) -> Variant:
    """The family at the target's register tile."""
    rows, columns = target.gemm_tile
    dense = Tile.of(m=rows, k=k_block(params["k"]), n=columns)
    return Variant("gather_gemm", dense, derive_micro_tile(dense, ("m", "k"), "m"), "float32", target)


@dataclass(frozen=True, slots=True)
class _Columns:
    """A column group: `groups` per panel, `vectors` in use, `lanes` valid in the last of them."""

    vectors: int
    lanes: int


def prim_func(symbol: str, params: Mapping[str, Any], target: Target) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`, `n`, `activation`, `residual`.
        target: CPU level.
    """
    return tir.prim_func(symbol, lambda: _GatherGemm(params, variant(params, target)).emit())


class _GatherGemm:
    """Emits one kernel; the attributes are its arguments and the loop variables of the tile at hand."""

    def __init__(self, params: Mapping[str, Any], chosen: Variant) -> None:
        self.k, self.n, self.activation = params["k"], params["n"], params["activation"]
        self.tile_rows = chosen.dense_tile["m"]
        self.k_block = chosen.dense_tile["k"]
        self.k_blocks = -(-self.k // self.k_block)
        self.group = chosen.dense_tile["n"]
        self.vectors = self.group // tir.LANES
        rows_of_a, listed, panels, rows_of_c = (tir.size() for _ in range(4))
        self.a = tir.tensor("a", (rows_of_a, self.k))
        self.rows_a = tir.tensor("rows_a", (listed,), "int32")
        self.b = tir.tensor("b", (panels, self.k, PANEL_WIDTH))
        self.bias = tir.tensor("bias", (panel_count(self.n) * PANEL_WIDTH,))
        self.residual = tir.tensor("residual", (listed, self.n)) if params["residual"] else None
        self.rows_c = tir.tensor("rows_c", (listed,), "int32")
        self.c = tir.tensor("c", (rows_of_c, self.n))
        self.i0, self.i1, self.j0, self.j1 = tir.scalars("i0", "i1", "j0", "j1")

    def emit(self) -> None:
        """The loops around the register tile."""
        block = BLOCK_TILES * self.tile_rows
        with tir.serial(0, (self.i1 - self.i0 + block - 1) // block) as ib:
            first = tir.bind(self.i0 + ib * block)
            count = tir.bind(tir.smaller(tir.int64(block), self.i1 - first))
            with tir.serial(0, tir.int64(self.k_blocks)) as kb:
                self.kb = kb
                with tir.serial(self.j0, self.j1) as j:
                    self.panel(j, first, count)

    def panel(self, j: tir.Expr, first: tir.Expr, count: tir.Expr) -> None:
        """All row tiles of a block against the column groups of one panel."""
        per_panel = PANEL_WIDTH // self.group
        full, rest = divmod(self.n, self.group)
        if full:
            here = tir.smaller(tir.int64(per_panel), full - j * per_panel)
            with tir.serial(0, here) as g:
                self.row_tiles(j, g * self.group, _Columns(self.vectors, tir.LANES), first, count)
        if rest:
            columns = _Columns(-(-rest // tir.LANES), (rest - 1) % tir.LANES + 1)
            with tir.when(j == full // per_panel):
                start = tir.int64(full % per_panel * self.group)
                self.row_tiles(j, start, columns, first, count)

    def row_tiles(
        self, j: tir.Expr, column: tir.Expr, columns: _Columns, first: tir.Expr, count: tir.Expr
    ) -> None:
        """Full and padded row tiles, then single rows."""
        tiles = tir.bind(count // self.tile_rows)
        rest = tir.bind(count - tiles * self.tile_rows)
        single = tir.bind(tir.choose(rest <= SINGLE_ROWS, rest, tir.int64(0)))
        whole = tir.bind(tir.choose(rest > SINGLE_ROWS, tiles + 1, tiles))
        with tir.serial(0, whole) as p:
            self.tile(j, column, columns, tir.bind(first + p * self.tile_rows), self.tile_rows)
        with tir.serial(0, single) as r:
            self.tile(j, column, columns, tir.bind(first + tiles * self.tile_rows + r), 1)

    def tile(
        self, j: tir.Expr, column: tir.Expr, columns: _Columns, first: tir.Expr, rows: int
    ) -> None:
        """One register tile: `rows` x `columns` accumulators over one k block."""
        listed = [tir.bind(tir.smaller(first + r, self.i1 - 1)) for r in range(rows)]
        rows_a = [tir.index_of(self.rows_a, i) for i in listed]
        acc = [tir.Variable() for _ in range(rows * columns.vectors)]
        out = tir.bind(j * PANEL_WIDTH + column)
        places = [(r, v, r * columns.vectors + v) for r in range(rows) for v in range(columns.vectors)]

        def lanes(v: int) -> int:
            return columns.lanes if v == columns.vectors - 1 else tir.LANES

        def clear() -> None:
            for _, _, at in places:
                acc[at].set(tir.splat(0))

        def resume() -> None:
            rows_c = [tir.index_of(self.rows_c, i) for i in listed]
            for r, v, at in places:
                acc[at].set(tir.load(self.c, rows_c[r], out + v * tir.LANES, lanes=lanes(v)))

        def step(k: tir.Expr) -> None:
            b = [
                tir.keep(tir.load(self.b, j, k, column + v * tir.LANES))
                for v in range(columns.vectors)
            ]
            for r in range(rows):
                a = tir.keep(tir.splat(self.a[rows_a[r], k]))
                for v in range(columns.vectors):
                    at = r * columns.vectors + v
                    acc[at].set(tir.fma(a, b[v], acc[at].value))

        if self.k_blocks == 1:
            clear()
        else:
            tir.either(self.kb == 0, clear, resume)
        start = tir.bind(self.kb * self.k_block)
        length = tir.bind(tir.smaller(tir.int64(self.k_block), self.k - start))
        with tir.serial(0, length // UNROLL_K) as q:
            for u in range(UNROLL_K):
                step(start + q * UNROLL_K + u)
        if self.k % UNROLL_K:
            with tir.serial(length // UNROLL_K * UNROLL_K, length) as k:
                step(start + k)

        def write(r: int, finish: Callable[[tir.Expr, tir.Expr, int], tir.Expr]) -> None:
            # A run-time loop over vectors keeps the code of an activation short; it needs the row in memory.
            sums = tir.stack(columns.vectors)
            for v in range(columns.vectors):
                tir.assign(sums, acc[r * columns.vectors + v].value, v)
            row_c = tir.index_of(self.rows_c, listed[r])

            def put(v: tir.Expr, lanes: int) -> None:
                at = tir.bind(v * tir.LANES)
                value = finish(tir.keep(sums[v]), tir.bind(out + at), lanes)
                tir.store(self.c, value, row_c, out + at, lanes=lanes)

            full = columns.vectors - (columns.lanes < tir.LANES)
            if full:
                with tir.serial(0, tir.int64(full)) as v:
                    put(v, tir.LANES)
            if full < columns.vectors:
                put(tir.int64(full), columns.lanes)

        def partial(x: tir.Expr, _at: tir.Expr, _lanes: int) -> tir.Expr:
            return x

        for r in range(rows):

            def epilogue(x: tir.Expr, at: tir.Expr, lanes: int, r: int = r) -> tir.Expr:
                x = ACTIVATIONS[self.activation](tir.keep(x + tir.load(self.bias, at)))
                if self.residual is None:
                    return x
                return x + tir.load(self.residual, listed[r], at, lanes=lanes)

            with tir.when(first + r < self.i1):
                if self.k_blocks == 1:
                    write(r, epilogue)
                else:
                    last = self.kb == self.k_blocks - 1
                    tir.either(last, lambda: write(r, epilogue), lambda: write(r, partial))

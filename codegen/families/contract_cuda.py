"""Contractions on a multiprocessor: C[rows_c[i], :] = act(sums + bias) + residual[i, :].

    gather_gemm        sums = A[rows_a[i], :] @ B             PIT axis m: micro-tiles 1 x K
     .. grouped        B is the matrix that a dense tile names
    contract_tile      sums = A[i, listed k] @ B[listed k]    PIT axis k: micro-tiles rows x 1
    contract_square    the same, A in place, 32 k together    PIT axis k: micro-tiles rows x 32

SRead is where the chunks of a dense tile lie (`sread`), SWrite the row of C that a sum goes to. The
grid is as large as the machine, and blocks take tiles in turns, those of one panel of B first. How
many rows there are, and whether this kernel was chosen, it reads from device memory (`gate`): the
host need not know.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pitc.codegen import ptx, tir
from pitc.codegen.engines import ring
from pitc.codegen.engines.mma import Fragments
from pitc.codegen.engines.multiprocessor import Engine, Load
from pitc.codegen.engines.simt import ThreadTiles
from pitc.codegen.families import sread
from pitc.codegen.families.swrite_cuda import SWrite
from pitc.codegen.tir import Expr, T
from pitc.ir.cuda_target import CudaTile
from pitc.ir.panels import PANEL_WIDTH

ENGINES: Mapping[str, type[Engine]] = {"mma": Fragments, "simt": ThreadTiles}


@dataclass(frozen=True, slots=True)
class Place:
    """A dense tile of C.

    Args:
        first: Its first row, a place in the list of rows, int32.
        count: Rows of the list, int32.
        j: Its first panel, int32.
    """

    first: Expr
    count: Expr
    j: Expr


@dataclass(frozen=True, slots=True)
class Steps:
    """What a dense tile is computed from.

    Args:
        feeds: What is copied into a slot of the ring.
        count: Steps, int32.
        load_a: Loads a of a slot.
        load_b: Loads b of a slot.
    """

    feeds: tuple[ring.Feed, ...]
    count: Expr
    load_a: Load
    load_b: Load


def gather_gemm(symbol: str, params: Mapping[str, Any], tile: CudaTile) -> Any:
    """The TIR function of a dense contraction over listed rows (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `dtype`, `activation`, `residual`; `bits`, `loose`, `stored` and `grouped`, 0 if
            not there.
        tile: The dense tile.
    """
    return tir.prim_func(symbol, lambda: _gather_gemm(params, tile))


def contract_tile(symbol: str, params: Mapping[str, Any], tile: CudaTile) -> Any:
    """The TIR function of a contraction over listed k (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `dtype`, `activation`, `residual`; `loose`, 0 if not there.
        tile: The dense tile; its rows are those of a group.
    """
    return tir.prim_func(symbol, lambda: _contract_tile(params, tile))


def contract_square(symbol: str, params: Mapping[str, Any], tile: CudaTile) -> Any:
    """The TIR function of a contraction over listed blocks of 32 k (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `dtype`, `activation`, `residual`; `loose`, 0 if not there.
        tile: The dense tile; its rows are those of a group.
    """
    return tir.prim_func(symbol, lambda: _contract_square(params, tile))


def _gather_gemm(params: Mapping[str, Any], tile: CudaTile) -> None:
    dtype, stored, loose = params["dtype"], params.get("stored"), bool(params.get("loose"))
    stored_rows, k, listed, n = (tir.size(name) for name in ("stored_rows", "k", "listed", "n"))
    a = tir.device_tensor("a", (stored_rows, k), dtype)
    rows_a = tir.device_tensor("rows_a", (listed,), "int32")
    if stored:
        b = tir.device_tensor("s", (k, n) if stored == "kn" else (n, k), dtype)
    else:
        b = tir.device_tensor("b", (tir.size("panels"), k, PANEL_WIDTH), dtype)
    of_tile = None
    if params.get("grouped"):
        of_tile = tir.device_tensor("of_tile", (tir.size("row_tiles"),), "int32")
    swrite = SWrite(params, listed, n)

    def steps(engine: Engine, block: ring.Block, place: Place) -> Steps:
        width, columns = ptx.int32(k), ptx.int32(n)
        step_k = engine.step_k

        def row_of_a(row: Expr) -> Expr:
            i = T.min(place.first + row, place.count - 1)
            return T.Cast("int64", rows_a[i]) * k

        def column_of_b(row: Expr) -> Expr:
            column = T.min(place.j * PANEL_WIDTH + row, columns - 1)
            return T.Cast("int64", column) * k

        left, load_a = engine.rows_of_a()
        right, load_b = engine.columns_of_b() if stored == "nk" else engine.rows_of_b()
        source_b: ring.Source
        if stored == "nk":
            source_b = sread.Rows(tir.flat(b), width, step_k, column_of_b)
        elif stored == "kn":
            source_b = sread.StoredRows(tir.flat(b), columns, width, step_k, place.j)
        else:
            panels, j = ptx.int32(b.shape[0]), place.j
            if of_tile is not None:  # the matrices lie one behind the other
                each = ptx.steps(columns, PANEL_WIDTH)
                group = ptx.held(of_tile[T.truncdiv(place.first, tile.m)] * each, "int32")
                panels, j = group + each, group + j
            source_b = sread.PanelRows(tir.flat(b), panels, width, step_k, j)
        source_a = sread.Rows(tir.flat(a), width, step_k, row_of_a)
        feeds = (
            ring.Feed(block, left, source_a, loose=loose),
            ring.Feed(block, right, source_b, loose=loose and bool(stored)),
        )
        return Steps(feeds, ptx.steps(width, step_k), load_a, load_b)

    _emit(params, tile, swrite, steps)


def _contract_tile(params: Mapping[str, Any], tile: CudaTile) -> None:
    dtype = params["dtype"]
    names = ("entries", "boundaries", "panels", "k", "rows", "n")
    entries, boundaries, panels, k, rows, n = (tir.size(name) for name in names)
    values = tir.device_tensor("values", (entries, tile.m), dtype)
    ks = tir.device_tensor("ks", (entries,), "int32")
    starts = tir.device_tensor("starts", (boundaries,), "int32")
    b = tir.device_tensor("b", (panels, k, PANEL_WIDTH), dtype)
    swrite = SWrite(params, rows, n)

    def steps(engine: Engine, block: ring.Block, place: Place) -> Steps:
        group = place.first // tile.m
        begin = ptx.held(starts[group], "int32")
        count = ptx.held(starts[group + 1] - begin, "int32")
        step_k = engine.step_k
        left, load_a = engine.columns_of_a()
        right, load_b = engine.rows_of_b()
        source_a = sread.Columns(tir.flat(values), tile.m, step_k, begin, count)
        source_b = sread.ListedRows(
            tir.flat(b), ptx.int32(panels), ptx.int32(k), step_k, place.j, ks, begin, count
        )
        feeds = (ring.Feed(block, left, source_a), ring.Feed(block, right, source_b))
        return Steps(feeds, ptx.steps(count, step_k), load_a, load_b)

    _emit(params, tile, swrite, steps)


def _contract_square(params: Mapping[str, Any], tile: CudaTile) -> None:
    dtype, loose = params["dtype"], bool(params.get("loose"))
    names = ("stored_rows", "k", "listed", "entries", "boundaries", "panels", "n")
    stored_rows, k, listed, entries, boundaries, panels, n = (tir.size(name) for name in names)
    a = tir.device_tensor("a", (stored_rows, k), dtype)
    rows_a = tir.device_tensor("rows_a", (listed,), "int32")
    ks = tir.device_tensor("ks", (entries,), "int32")
    starts = tir.device_tensor("starts", (boundaries,), "int32")
    b = tir.device_tensor("b", (panels, k, PANEL_WIDTH), dtype)
    swrite = SWrite(params, listed, n)

    def steps(engine: Engine, block: ring.Block, place: Place) -> Steps:
        group, step_k = place.first // tile.m, engine.step_k
        begin = ptx.held(starts[group], "int32")
        count = ptx.held(starts[group + 1] - begin, "int32")
        squares = sread.Squares(ks, begin, count, step_k)

        def row_of_a(row: Expr) -> Expr:
            i = T.min(place.first + row, place.count - 1)
            return T.Cast("int64", rows_a[i]) * k

        left, load_a = engine.rows_of_a()
        right, load_b = engine.rows_of_b()
        width = ptx.int32(k)
        source_a = sread.SquareRows(tir.flat(a), width, step_k, row_of_a, squares)
        source_b = sread.SquarePanels(
            tir.flat(b), ptx.int32(panels), width, step_k, place.j, squares
        )
        feeds = (ring.Feed(block, left, source_a, loose=loose), ring.Feed(block, right, source_b))
        return Steps(feeds, squares.steps, load_a, load_b)

    _emit(params, tile, swrite, steps)


def _emit(
    params: Mapping[str, Any],
    tile: CudaTile,
    swrite: SWrite,
    steps_of: Callable[[Engine, ring.Block, Place], Steps],
) -> None:
    """The loop over dense tiles: blocks take them in turns."""
    with ptx.launch(swrite.blocks, tile.threads, tile.together) as (number, thread):
        block = ring.Block(tile.threads, thread, ptx.Window(tile.slot_bytes * tile.stages))
        engine = ENGINES[tile.engine](tile, params["dtype"], block)
        count = swrite.count()
        down = ptx.held(ptx.steps(count, tile.m), "int32")
        across = ptx.held(ptx.steps(ptx.int32(swrite.n), tile.n), "int32")
        with ptx.turns(number, swrite.blocks, down * across) as turn:
            first = ptx.held(T.truncmod(turn, down) * tile.m, "int32")
            j = ptx.held(T.truncdiv(turn, down) * (tile.n // PANEL_WIDTH), "int32")
            steps = steps_of(engine, block, Place(first, count, j))
            engine.clear()

            def compute(slot: Expr) -> None:
                engine.step(slot, steps.load_a, steps.load_b)

            ring.run(steps.feeds, tile.slot_bytes, tile.stages, steps.count, compute)
            swrite.write(engine, first, count, j)

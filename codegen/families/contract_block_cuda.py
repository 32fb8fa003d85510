"""The contraction over listed 1 x W micro-tiles on a multiprocessor, PIT axis m.

    C[i, :] = act(sum over k blocks q in which row i is listed of A[i, q] @ B[q] + bias) + residual

A thread block has the float32 sums of R rows and one panel of 64 columns in shared memory. It goes
through the blocks of k in ascending order, and of each through the listed ones of its rows in
pieces of 64: their micro-tiles are a dense tile [64, W], whose product with [W, 64] of the panel is
added to the rows that it belongs to. Blocks without an entry cost a look.

    rows 128 .. 255, W = 64:  block 0 lists 130, 140    1 lists nothing    2 lists 130, 131, .. 201
    pieces:                   (0: 130, 140)             (2: 130 .. 193)    (2: 194 .. 201)

A row stands at most once in a piece, and pieces are a barrier apart, so no two threads add to one
number, and each sum has one order: ascending blocks of k, whatever is listed beside it. Engines
hand out what they have so that rows never meet in a bank, whichever they are (`Engine.product`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines import ring
from pitc.codegen.engines.multiprocessor import Run
from pitc.codegen.families.contract_cuda import ENGINES
from pitc.codegen.families.swrite_cuda import SWrite
from pitc.codegen.ptx import CHUNK_BYTES, Window
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.cuda_target import CudaTile
from pitc.ir.cuda_variants import GROUP
from pitc.ir.panels import PANEL_WIDTH

_FOUR = 4
"""Sums that a thread takes to their row of C at a time."""
_WORD = 32
_GROUP = 16
"""Rows of a piece that an engine skips or computes."""


def contract_block(symbol: str, params: Mapping[str, Any], tile: CudaTile, rows: int) -> Any:
    """The TIR function of a contraction over blocks of k (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `dtype`, `activation`, `residual`; `bits` and `loose`, 0 if not there.
        tile: 64 listed rows x a panel; its k are those of a micro-tile.
        rows: Of C that a thread block sums up, a multiple of 32.
    """
    return tir.prim_func(symbol, lambda: _contract_block(params, tile, rows))


def shared_bytes(tile: CudaTile, rows: int) -> int:
    """Shared memory of a thread block."""
    return tile.stages * _slot_bytes(tile) + rows * PANEL_WIDTH * 4


def _slot_bytes(tile: CudaTile) -> int:
    return tile.slot_bytes + tile.m * ptx.WORD_BYTES


def _contract_block(params: Mapping[str, Any], tile: CudaTile, rows: int) -> None:
    width = tile.k_bytes // tir.item_bytes(params["dtype"])
    names = ("entries", "lists", "panels", "k", "listed", "n")
    entries, lists, panels, k, listed, n = (tir.size(name) for name in names)
    values = tir.device_tensor("values", (entries, width), params["dtype"])
    index = tir.device_tensor("rows", (entries,), "int32")
    places = tir.device_tensor("places", (lists,), "int32")
    b = tir.device_tensor("b", (panels, k, PANEL_WIDTH), params["dtype"])
    swrite = SWrite(params, listed, n)

    with ptx.launch(swrite.blocks, tile.threads, 2) as (number, thread):
        block = ring.Block(tile.threads, thread, Window(shared_bytes(tile, rows)))
        engine = ENGINES[tile.engine](tile, params["dtype"], block)
        left, load_a = engine.rows_of_a()
        right, load_b = engine.rows_of_b()
        count = swrite.count()
        groups = ptx.held(ptx.steps(ptx.int32(listed), GROUP), "int32")
        blocks_of_k = ptx.held(ptx.steps(ptx.int32(k), width), "int32")
        down = ptx.held(ptx.steps(count, rows), "int32")
        with ptx.turns(number, swrite.blocks, down * ptx.int32(panels)) as turn:
            first = ptx.held(T.truncmod(turn, down) * rows, "int32")
            j = ptx.held(T.truncdiv(turn, down), "int32")
            walk = _Walk(places, groups, first // GROUP, rows // GROUP, tile.m)
            feeds = (
                _Values(block, left, values, walk, width),
                ring.Feed(block, right, _PanelBlock(b, walk, k, j, width)),
                _RowFeed(block, tile.slot_bytes, index, walk),
            )

            height = ptx.held(T.min(count - first, rows), "int32")
            sums = _Sums(block, tile.stages * _slot_bytes(tile), height)

            def add(slot: Expr) -> None:
                listed_rows = block.window.view("int32")
                start = ptx.held((slot + tile.slot_bytes) // 4, "int32")

                def visit(at: Expr, runs: list[Run]) -> None:
                    row = ptx.held(listed_rows[start + at], "int32")
                    with tir.when(row >= 0):
                        sums.add(row - first, runs)

                engine.product(slot, load_a, load_b, lambda at: listed_rows[start + at] >= 0, visit)

            sums.clear()
            steps = walk.steps(blocks_of_k, thread % 32)
            ring.run(feeds, _slot_bytes(tile), tile.stages, steps, add)
            ptx.barrier()
            swrite.write(sums, first, count, j)


class _Walk:
    """Where in the lists the next step is: pieces of the entries of one block of k after the other.

    Args:
        places: Where the entries of a block of k and a group of rows begin, and where all end.
        groups: Of rows.
        group: The first one.
        height: Groups of a thread block.
        piece: Entries of a step, at most.
    """

    def __init__(self, places: Buffer, groups: Expr, group: Expr, height: int, piece: int) -> None:
        self._places, self._groups, self.piece = places, groups, piece
        self._group = ptx.held(group, "int32")
        self._behind = ptx.held(T.min(self._group + height, groups), "int32")
        self._now = ptx.registers(3, "int32")
        self.restart()

    def restart(self) -> None:
        """Go to before the first piece."""
        for i, value in enumerate((-1, 0, 0)):
            tir.assign(self._now, T.int32(value), i)

    def _ends(self, block: Expr) -> tuple[Expr, Expr]:
        """Where the entries of a block of k begin and end."""
        first = block * self._groups
        return self._places[first + self._group], self._places[first + self._behind]

    def steps(self, blocks: Expr, lane: Expr) -> Expr:
        """How many there are; lanes look at blocks of k in turns."""
        mine = ptx.counter()
        with tir.serial(T.int32(0), ptx.steps(blocks, 32)) as turn:
            block = ptx.held(turn * 32 + lane, "int32")
            with tir.when(block < blocks):
                begin, end = self._ends(block)
                mine.add(ptx.steps(end - begin, self.piece))
        return ptx.held(collective.total(mine.value), "int32")

    def advance(self) -> None:
        """Go to the next piece, of which there is one."""
        tir.assign(self._now, self._now[1] + self.piece, 1)
        with ptx.repeated(self._now[1] >= self._now[2]):
            block = self._now[0] + 1
            tir.assign(self._now, block, 0)
            begin, end = self._ends(self._now[0])
            tir.assign(self._now, begin, 1)
            tir.assign(self._now, end, 2)

    @property
    def block(self) -> Expr:
        """The block of k."""
        return self._now[0]

    @property
    def entry(self) -> Expr:
        """The first entry."""
        return self._now[1]

    @property
    def end(self) -> Expr:
        """Where the entries of the block of k end."""
        return self._now[2]


class _Values:
    """The micro-tiles of a piece, one in each row; goes on with the walk (`ring.Copies`).

    Groups of 16 rows without an entry are left as they are: no engine looks at them.

    Args:
        block: Who copies.
        piece: Where to.
        values: `[entries, width]`.
        walk: Which.
        width: k of each.
    """

    def __init__(
        self, block: ring.Block, piece: ring.Piece, values: Buffer, walk: _Walk, width: int
    ) -> None:
        self._block, self._piece, self._walk, self._width = block, piece, walk, width
        self._values = tir.flat(values)
        self._per_chunk = CHUNK_BYTES // tir.item_bytes(values.dtype)

    def start(self) -> None:
        """Begin a dense tile."""
        self._walk.restart()

    def look_up(self, step: Expr) -> None:
        """Go to the piece of a step."""
        self._walk.advance()

    def copy(self, slot: Expr, step: Expr) -> None:
        """Start the copies of a step to the slot that begins at byte `slot`."""
        piece, walk, threads = self._piece, self._walk, self._block.threads
        for first in range(0, piece.rows * piece.chunks, threads):
            number = self._block.thread + first
            row, chunk = number // piece.chunks, number % piece.chunks
            with tir.when(walk.entry + row // _GROUP * _GROUP < walk.end):
                z = ptx.held(walk.entry + row, "int32")
                element = T.Cast("int64", z) * self._width
                element = element + T.Cast("int64", chunk * self._per_chunk)
                size = T.Select(z < walk.end, ptx.uint32(CHUNK_BYTES), ptx.uint32(0))
                to = self._block.window.address(slot + piece.at(row, chunk))
                ptx.copy_chunk(to, self._values, element, size)


class _PanelBlock:
    """Rows of a panel at the block of k where a walk is.

    Args:
        b: `[panels, k, PANEL_WIDTH]`.
        walk: Where.
        k: Rows of a panel.
        j: The panel.
        width: k of a block.
    """

    def __init__(self, b: Buffer, walk: _Walk, k: Expr, j: Expr, width: int) -> None:
        self._b, self._walk, self._k, self._width = tir.flat(b), walk, k, width
        self._start = ptx.held(T.Cast("int64", j) * k * PANEL_WIDTH, "int64")
        self._per_chunk = CHUNK_BYTES // tir.item_bytes(b.dtype)

    def start(self, copies: int, place: ring.Place) -> None:
        """Begin a dense tile."""
        self._place = place

    def look_up(self, step: Expr) -> None:
        """Nothing to do."""

    def chunk(self, i: int, step: Expr) -> ring.Chunk:
        """The `i`-th chunk of this thread."""
        row, chunk = self._place(i)
        k = self._walk.block * self._width + row
        column = T.Cast("int64", chunk * self._per_chunk)
        element = self._start + T.Cast("int64", k) * PANEL_WIDTH + column
        valid = T.Select(k < ptx.int32(self._k), T.int32(self._per_chunk), T.int32(0))
        return ring.Chunk(self._b, element, valid)


class _RowFeed:
    """The row numbers of a piece, behind the operands in a slot; -1 where there is no entry.

    Args:
        block: Who copies.
        offset: Bytes of a slot before them.
        rows: `[entries]`.
        walk: Which.
    """

    def __init__(self, block: ring.Block, offset: int, rows: Buffer, walk: _Walk) -> None:
        self._block, self._offset, self._rows, self._walk = block, offset, rows, walk

    def start(self) -> None:
        """Nothing to do."""

    def look_up(self, step: Expr) -> None:
        """Nothing to do."""

    def copy(self, slot: Expr, step: Expr) -> None:
        """Start the copies of a step to the slot that begins at byte `slot`."""
        window, thread, walk = self._block.window, self._block.thread, self._walk
        with tir.when(thread < walk.piece):
            to = ptx.held(slot + self._offset + thread * ptx.WORD_BYTES, "int32")
            z = walk.entry + thread
            tir.either(
                z < walk.end,
                lambda: ptx.copy_word(window.address(to), self._rows, T.Cast("int64", z)),
                lambda: tir.assign(window.view("int32"), T.int32(-1), to // ptx.WORD_BYTES),
            )


class _Sums:
    """The sums of all rows of a thread block in shared memory (`multiprocessor.Sums`).

    Args:
        block: Who computes.
        offset: Bytes of shared memory before them.
        height: Rows that are in use, int32.
    """

    words = 1

    def __init__(self, block: ring.Block, offset: int, height: Expr) -> None:
        self._window, self._first, self._threads = block.window, offset // 4, block.threads
        per_row = PANEL_WIDTH // _FOUR
        self._row = ptx.held(block.thread // per_row, "int32")
        self._column = ptx.held(block.thread % per_row * _FOUR, "int32")
        self.column = self._column // _WORD * _WORD
        self.leads = self._column % _WORD == 0
        self._per_turn = block.threads // per_row
        self._turns = ptx.steps(height, self._per_turn)

    def _at(self, row: Expr, column: Expr, count: int) -> Expr:
        """Which run of `count` numbers of shared memory begins there."""
        return (row * PANEL_WIDTH + column + self._first) // count

    def clear(self) -> None:
        """Start at 0."""
        runs = self._window.view("float32x4")
        with tir.serial(T.int32(0), self._turns) as turn:
            row = turn * self._per_turn + self._row
            tir.assign(runs, T.broadcast(T.float32(0), _FOUR), self._at(row, self._column, _FOUR))

    def add(self, row: Expr, runs: list[Run]) -> None:
        """Add to the sums of a row."""
        row = ptx.held(row, "int32")
        for run in runs:
            count = len(run.sums)
            view = self._window.view(f"float32x{count}")
            at = ptx.held(self._at(row, run.column, count), "int32")
            sums = _lanes(view[at], count)
            new = [x + y for x, y in zip(sums, run.sums, strict=True)]
            tir.assign(view, T.Shuffle(new, [T.int32(i) for i in range(count)]), at)

    def rows(self, visit: Callable[[Expr, list[Run]], None]) -> None:
        """Visit this thread's rows: place in the tile, and its sums there."""
        view = self._window.view("float32x4")
        with tir.serial(T.int32(0), self._turns) as turn:
            row = ptx.held(turn * self._per_turn + self._row, "int32")
            sums = _lanes(view[self._at(row, self._column, _FOUR)], _FOUR)
            visit(row, [Run(self._column, tuple(sums), 0, self._column % _WORD)])

    def joined(self, word: Expr) -> Expr:
        """The bits of all eight lanes that share a word."""
        for lanes in (1, 2, 4):
            word = ptx.held(word | collective.exchanged(word, lanes, "uint32"), "uint32")
        return word


def _lanes(run: Expr, count: int) -> list[Expr]:
    """The numbers of a run."""
    held = ptx.held(run, f"float32x{count}")
    return [T.Shuffle([held], [T.int32(i)]) for i in range(count)]

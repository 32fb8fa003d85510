"""The engine without tensor cores: a dense tile of float32 sums in the registers of threads.

    for each k of a slot:          sums[row][column] = fma(a[row], b[column], sums[row][column])

Each sum is one chain of fused multiply-adds in ascending k, as on a CPU up to `engines.cpu.FOLD` k,
so a row of so many has the same bits there and here. Of a warp's piece lane 8 y + x has rows
4 y + 16 q and the three behind each, columns 4 x and the three behind it, and those 32 further on:
eight lanes that share rows read the same chunks of a, and of b eight chunks side by side, so no two
meet in a bank.
"""

from collections.abc import Callable

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.multiprocessor import Load, Run
from pitc.codegen.engines.ring import Block, Piece
from pitc.codegen.tir import Expr, T
from pitc.ir.cuda_target import CudaTile
from pitc.ir.panels import PANEL_WIDTH

_ITEM, _FOUR = 4, 4
_ROWS, _COLUMNS = 16, 32
"""Of a warp's piece, that its lanes have four each of."""
_WORD = 32


class ThreadTiles:
    """Sums of one block, and the steps that add to them (`multiprocessor.Engine`).

    Args:
        tile: The dense tile; a warp's rows are a multiple of 16, its columns of 32.
        dtype: float32.
        block: Who computes.
    """

    def __init__(self, tile: CudaTile, dtype: str, block: Block) -> None:
        self._tile, self._window = tile, block.window
        self.step_k = tile.k_bytes // _ITEM
        m, n = tile.m // tile.warps_m, tile.n // tile.warps_n
        self._down, self._across = m // _ROWS, n // _COLUMNS
        self.words = n // _WORD
        warp, lane = block.thread // 32, block.thread % 32
        self._row = ptx.held(warp // tile.warps_n * m + lane // 8 * _FOUR, "int32")
        self.column = ptx.held(warp % tile.warps_n * n, "int32")
        self._lane = ptx.held(lane % 8 * _FOUR, "int32")
        self.leads = lane % 8 == 0
        self._height, self._width = self._down * _FOUR, self._across * _FOUR
        self._sums = ptx.registers(self._height * self._width, "float32")
        self._a = ptx.registers(self._height * _FOUR, "float32")
        self._b = ptx.registers(self._width * _FOUR, "float32")
        self._view = block.window.view("float32x4")

    def clear(self) -> None:
        """Start at 0."""
        for i in range(self._height * self._width):
            tir.assign(self._sums, T.float32(0), i)

    def step(self, slot: Expr, load_a: Load, load_b: Load) -> None:
        """Add the products of a slot, which starts at byte `slot`."""
        for chunk in range(self.step_k // _FOUR):
            load_a(slot, chunk)
            load_b(slot, chunk)
            for k in range(_FOUR):
                for r in range(self._height):
                    for c in range(self._width):
                        a, b = self._a[r * _FOUR + k], self._b[c * _FOUR + k]
                        at = r * self._width + c
                        tir.assign(self._sums, tir.fma(a, b, self._sums[at]), at)

    def product(
        self,
        slot: Expr,
        load_a: Load,
        load_b: Load,
        there: Callable[[Expr], Expr],
        visit: Callable[[Expr, list[Run]], None],
    ) -> None:
        """Visit the products of a slot alone (`multiprocessor.Engine`); for warps of 16 rows."""
        with tir.when(there(self._row - self._row % _ROWS)):
            self.clear()
            self.step(slot, load_a, load_b)
            self.rows(visit)

    def rows(self, visit: Callable[[Expr, list[Run]], None]) -> None:
        """Visit this thread's rows: place in the tile, and its sums there."""
        for r in range(self._height):
            runs = []
            for q in range(self._across):
                at = r * self._width + q * _FOUR
                sums = tuple(self._sums[at + c] for c in range(_FOUR))
                column = self.column + q * _COLUMNS + self._lane
                runs.append(Run(column, sums, q, self._lane))
            row = self._row + r // _FOUR * _ROWS + r % _FOUR
            visit(ptx.held(row, "int32"), runs)

    def joined(self, word: Expr) -> Expr:
        """The bits of all eight lanes that share a row."""
        for lanes in (1, 2, 4):
            word = ptx.held(word | collective.exchanged(word, lanes, "uint32"), "uint32")
        return word

    def rows_of_a(self) -> tuple[Piece, Load]:
        """A piece with a row of a in each row."""
        piece = Piece(0, self._tile.m, self._tile.k_bytes, turn=_FOUR)

        def load(slot: Expr, chunk: int) -> None:
            for r in range(self._height):
                row = self._row + r // _FOUR * _ROWS + r % _FOUR
                self._take(self._a, r * _FOUR, 1, slot, piece.at(row, T.int32(chunk)))

        return piece, load

    def columns_of_a(self) -> tuple[Piece, Load]:
        """A piece with a k of a in each row."""
        piece = Piece(0, self.step_k, self._tile.m * _ITEM)

        def load(slot: Expr, chunk: int) -> None:
            for k in range(_FOUR):
                for q in range(self._down):
                    row = T.int32(chunk * _FOUR + k)
                    at = piece.at(row, (self._row + q * _ROWS) // _FOUR)
                    self._take(self._a, q * _FOUR * _FOUR + k, _FOUR, slot, at)

        return piece, load

    def rows_of_b(self) -> tuple[Piece, Load]:
        """A piece with a k of a panel of b in each row, one panel below the other."""
        rows = self._tile.n // PANEL_WIDTH * self.step_k
        piece = Piece(self._tile.m * self._tile.k_bytes, rows, PANEL_WIDTH * _ITEM)

        def load(slot: Expr, chunk: int) -> None:
            for k in range(_FOUR):
                for q in range(self._across):
                    column = self.column + q * _COLUMNS
                    row = column // PANEL_WIDTH * self.step_k + (chunk * _FOUR + k)
                    at = piece.at(row, (column % PANEL_WIDTH + self._lane) // _FOUR)
                    self._take(self._b, q * _FOUR * _FOUR + k, _FOUR, slot, at)

        return piece, load

    def columns_of_b(self) -> tuple[Piece, Load]:
        """A piece with a column of b in each row."""
        offset = self._tile.m * self._tile.k_bytes
        # Eight lanes read columns four apart: of 64 bytes, all would lie in half of the banks.
        piece = Piece(offset, self._tile.n, self._tile.k_bytes, turn=_FOUR, pairs=4 * _FOUR)

        def load(slot: Expr, chunk: int) -> None:
            for c in range(self._width):
                column = self.column + c // _FOUR * _COLUMNS + self._lane + c % _FOUR
                self._take(self._b, c * _FOUR, 1, slot, piece.at(column, T.int32(chunk)))

        return piece, load

    def _take(self, to: tir.Buffer, first: int, step: int, slot: Expr, at: Expr) -> None:
        """Load the four numbers of a chunk into registers first, first + step, .."""
        four = ptx.registers(1, "float32x4")
        tir.assign(four, self._view[(slot + at) // 16], 0)
        for i in range(_FOUR):
            tir.assign(to, T.Shuffle([four[0]], [T.int32(i)]), first + step * i)

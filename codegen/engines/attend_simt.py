"""Attention without tensor cores: float32, each score one chain of fused multiply-adds.

Lane 8 y + x of a warp has rows 4 y (and 16 further on) and the three behind each. Of the keys of a
step it has 4 x and the three behind it, and those 32 further on (of 16 keys: 2 x and 2 x + 1); of
the columns of v, 4 x and those behind it, and those 32 further on. A weight goes from the lane that
made it to the eight lanes of its row by a shuffle: no shared memory, no barrier.
"""

from collections.abc import Sequence

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.attend import Columns, Pieces, Words
from pitc.codegen.engines.ring import BANK_CHUNKS, Block, Piece
from pitc.codegen.ptx import CHUNK_BYTES
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import AttentionTile

_FOUR = 4
_ROWS, _SIDE, _COLUMNS = 16, 8, 32
"""Rows of a warp's piece; lanes that share a row; columns that they have four each of."""


class ThreadAttention:
    """Scores and sums in the registers of threads (`attend.Attender`).

    Args:
        tile: Queries of the block, keys of a step.
        pieces: Shared memory.
        block: Who computes.
    """

    lanes: Sequence[int] = (1, 2, 4)

    @classmethod
    def plan(cls, dtype: str, d: int, dv: int, *, bias: bool) -> tuple[AttentionTile, Pieces]:
        """The tile and the shared memory for operands of some type and width."""
        tile = AttentionTile("simt", dtype, d, dv, bias)
        # Eight lanes read a chunk each, of rows that lie apart: there are banks for all of them.
        row_bytes = max(BANK_CHUNKS * CHUNK_BYTES, tile.row_bytes(tile.width))
        q = Piece(0, tile.m, row_bytes, turn=_FOUR)
        k = Piece(q.end, tile.n, row_bytes, turn=_keys_beside(tile))
        return tile, Pieces(q, k, Piece(k.end, tile.n, tile.row_bytes(tile.columns)))

    def __init__(self, tile: AttentionTile, pieces: Pieces, block: Block) -> None:
        self.tile, self.pieces = tile, pieces
        lane = block.thread % 32
        self._x = ptx.held(lane % _SIDE, "int32")
        self._group = ptx.held(lane // _SIDE * _SIDE, "int32")
        self.first = ptx.held(block.thread // 32 * tile.rows, "int32")
        self._row = ptx.held(self.first + lane // _SIDE * _FOUR, "int32")
        height = tile.down * _FOUR
        self.rows: Sequence[Expr] = [self.row(T.int32(r)) for r in range(height)]
        self._beside = _keys_beside(tile)
        width = tile.n // _SIDE
        self.key = ptx.held(self._x * self._beside, "int32")
        self.keys: Sequence[int] = [
            c // self._beside * _SIDE * self._beside + c % self._beside for c in range(width)
        ]
        self._across = tile.columns // _COLUMNS
        self.scores = ptx.registers(height * width, "float32")
        self.sums = ptx.registers(height * self._across * _FOUR, "float32")
        self._a = ptx.registers(height * _FOUR, "float32")
        self._b = ptx.registers(max(width, self._across) * _FOUR, "float32")
        self._view = block.window.view("float32x4")

    def row(self, number: Expr) -> Expr:
        """Row of the tile that is `number` among those that this thread has, int32."""
        return self._row + number // _FOUR * _ROWS + number % _FOUR

    def score(self, row: int, key: int) -> int:
        """Where the score of the thread's `row` and `key` is."""
        return row * len(self.keys) + key

    def columns(self, row: int) -> list[Columns]:
        """Where the sums of the thread's `row` are."""
        first = row * self._across * _FOUR
        return [
            Columns(
                q * _COLUMNS + self._x * _FOUR,
                tuple(range(first + q * _FOUR, first + q * _FOUR + _FOUR)),
            )
            for q in range(self._across)
        ]

    def words(self, values: Sequence[Expr]) -> list[Words]:
        """Values of a row as they are best stored: as they are."""
        return [
            Words(q * _COLUMNS + self._x * _FOUR, tuple(values[q * _FOUR : q * _FOUR + _FOUR]))
            for q in range(self._across)
        ]

    def load_queries(self) -> None:
        """Registers hold no queries."""

    def multiply_keys(self, slot: Expr) -> None:
        """Make scores of a slot, which starts at byte `slot`."""
        height, width = len(self.rows), len(self.keys)
        for i in range(height * width):
            tir.assign(self.scores, T.float32(0), i)
        with tir.serial(T.int32(0), T.int32(self.tile.width // _FOUR)) as chunk:
            for r in range(height):
                self._take(self._a, r * _FOUR, self.pieces.q.at(self.rows[r], chunk))
            for c in range(width):
                self._take(
                    self._b, c * _FOUR, slot + self.pieces.k.at(self.key + self.keys[c], chunk)
                )
            for k in range(_FOUR):
                for r in range(height):
                    for c in range(width):
                        a, b = self._a[r * _FOUR + k], self._b[c * _FOUR + k]
                        at = r * width + c
                        tir.assign(self.scores, tir.fma(a, b, self.scores[at]), at)

    def multiply_values(self, slot: Expr) -> None:
        """Add what the scores, now weights, make of the values of a slot."""
        height = len(self.rows)
        with tir.serial(T.int32(0), T.int32(_SIDE)) as x:
            for c in range(len(self.keys)):
                for q in range(self._across):
                    at = self.pieces.v.at(x * self._beside + self.keys[c], q * _SIDE + self._x)
                    self._take(self._b, q * _FOUR, slot + at)
                for r in range(height):
                    own = self.scores[self.score(r, c)]
                    weight = collective.value_of(own, self._group + x, "float32")
                    for i in range(self._across * _FOUR):
                        at_sum = r * self._across * _FOUR + i
                        total = tir.fma(weight, self._b[i], self.sums[at_sum])
                        tir.assign(self.sums, total, at_sum)

    def _take(self, to: Buffer, first: int, at: Expr) -> None:
        """Load the four numbers of a chunk."""
        four = ptx.registers(1, "float32x4")
        tir.assign(four, self._view[at // 16], 0)
        for i in range(_FOUR):
            tir.assign(to, T.Shuffle([four[0]], [T.int32(i)]), first + i)


def _keys_beside(tile: AttentionTile) -> int:
    """Keys side by side that a lane has."""
    return min(_FOUR, tile.n // _SIDE)

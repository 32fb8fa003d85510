"""Attention without tensor cores: float32, each score one chain of fused multiply-adds.

Lane 8 y + x of a warp has rows 4 y (and 16 further on) and the three behind each. Of the keys of a
step it has 4 x and the three behind it, and those 32 further on (of 16 keys: 2 x and 2 x + 1); of
the columns of v, 4 x and those behind it, and those 32 further on. A weight goes from the lane that
made it to the eight lanes of its row by a shuffle: no shared memory, no barrier.
"""

from collections.abc import Sequence

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.attend import Columns, Pieces, TileSize, Words
from pitc.codegen.engines.ring import BANK_CHUNKS, Block, Piece
from pitc.codegen.ptx import CHUNK_BYTES
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import AttentionTile

_FOUR = 4
_DOWN, _SIDE, _COLUMNS = 4, 8, 32
"""Groups of lanes, one below the other; lanes of one, which share rows; columns that these have
four each of.
"""


class ThreadTile:
    """Rows and keys of threads, and the products of these.

    Args:
        tile: Extents of the tile.
        block: Who computes.
        height: Rows that a thread has.
        across: Most columns of sums of a row, in pieces of `_COLUMNS`.
    """

    lanes: Sequence[int] = (1, 2, 4)

    def __init__(self, tile: TileSize, block: Block, height: int, across: int) -> None:
        lane = block.thread % 32
        self._x = ptx.held(lane % _SIDE, "int32")
        self._group = ptx.held(lane // _SIDE * _SIDE, "int32")
        self._below = min(_FOUR, height)
        self.first = ptx.held(block.thread // 32 * tile.rows, "int32")
        self._row = ptx.held(self.first + lane // _SIDE * self._below, "int32")
        self.rows: Sequence[Expr] = [self.row(T.int32(r)) for r in range(height)]
        self._beside = keys_beside(tile.n)
        width = tile.n // _SIDE
        self.key = ptx.held(self._x * self._beside, "int32")
        self.keys: Sequence[int] = [
            c // self._beside * _SIDE * self._beside + c % self._beside for c in range(width)
        ]
        self.scores = ptx.registers(height * width, "float32")
        self._a = ptx.registers(height * _FOUR, "float32")
        self._b = ptx.registers(max(width, across) * _FOUR, "float32")
        self._view = block.window.view("float32x4")

    def row(self, number: Expr) -> Expr:
        """Row of the tile that is `number` among those that this thread has, int32."""
        below = self._below
        return self._row + number // below * (_DOWN * below) + number % below

    def score(self, row: int, key: int) -> int:
        """Where the score of the thread's `row` and `key` is."""
        return row * len(self.keys) + key

    def columns_of(self, row: int, across: int) -> list[Columns]:
        """Where sums of the thread's `row` are, of so many pieces of columns."""
        first = row * across * _FOUR
        return [
            Columns(
                q * _COLUMNS + self._x * _FOUR,
                tuple(range(first + q * _FOUR, first + q * _FOUR + _FOUR)),
            )
            for q in range(across)
        ]

    def multiply(self, scores: Buffer, a: Piece, b: Piece, width: int, slot: Expr) -> None:
        """Make scores of rows of `a` and, in a slot, of `b`, of so many columns."""
        height, keys = len(self.rows), len(self.keys)
        for i in range(height * keys):
            tir.assign(scores, T.float32(0), i)
        with tir.serial(T.int32(0), T.int32(width // _FOUR)) as chunk:
            for r in range(height):
                self._take(self._a, r * _FOUR, a.at(self.rows[r], chunk))
            for c in range(keys):
                self._take(self._b, c * _FOUR, slot + b.at(self.key + self.keys[c], chunk))
            for k in range(_FOUR):
                for r in range(height):
                    for c in range(keys):
                        left, right = self._a[r * _FOUR + k], self._b[c * _FOUR + k]
                        at = r * keys + c
                        tir.assign(scores, tir.fma(left, right, scores[at]), at)

    def add(self, sums: Buffer, weights: Buffer, piece: Piece, across: int, slot: Expr) -> None:
        """Add to sums what weights make of the rows of a piece of a slot."""
        height = len(self.rows)
        with tir.serial(T.int32(0), T.int32(_SIDE)) as x:
            for c in range(len(self.keys)):
                for q in range(across):
                    at = piece.at(x * self._beside + self.keys[c], q * _SIDE + self._x)
                    self._take(self._b, q * _FOUR, slot + at)
                for r in range(height):
                    own = weights[self.score(r, c)]
                    weight = collective.value_of(own, self._group + x, "float32")
                    for i in range(across * _FOUR):
                        at_sum = r * across * _FOUR + i
                        total = tir.fma(weight, self._b[i], sums[at_sum])
                        tir.assign(sums, total, at_sum)

    def _take(self, to: Buffer, first: int, at: Expr) -> None:
        """Load the four numbers of a chunk."""
        four = ptx.registers(1, "float32x4")
        tir.assign(four, self._view[at // 16], 0)
        for i in range(_FOUR):
            tir.assign(to, T.Shuffle([four[0]], [T.int32(i)]), first + i)


class ThreadAttention(ThreadTile):
    """Scores and sums in the registers of threads (`attend.Attender`).

    Args:
        tile: Queries of the block, keys of a step.
        pieces: Shared memory.
        block: Who computes.
    """

    @classmethod
    def plan(cls, dtype: str, d: int, dv: int, *, bias: bool) -> tuple[AttentionTile, Pieces]:
        """The tile and the shared memory for operands of some type and width."""
        tile = AttentionTile("simt", dtype, d, dv, bias)
        # Eight lanes read a chunk each, of rows that lie apart: there are banks for all of them.
        row_bytes = max(BANK_CHUNKS * CHUNK_BYTES, tile.row_bytes(tile.width))
        q = Piece(0, tile.m, row_bytes, turn=_FOUR)
        k = Piece(q.end, tile.n, row_bytes, turn=keys_beside(tile.n))
        return tile, Pieces(q, k, Piece(k.end, tile.n, tile.row_bytes(tile.columns)))

    def __init__(self, tile: AttentionTile, pieces: Pieces, block: Block) -> None:
        height, self._across = tile.down * _FOUR, tile.columns // _COLUMNS
        super().__init__(tile, block, height, self._across)
        self.tile, self.pieces = tile, pieces
        self.sums = ptx.registers(height * self._across * _FOUR, "float32")

    def columns(self, row: int) -> list[Columns]:
        """Where the sums of the thread's `row` are."""
        return self.columns_of(row, self._across)

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
        self.multiply(self.scores, self.pieces.q, self.pieces.k, self.tile.width, slot)

    def multiply_values(self, slot: Expr) -> None:
        """Add what the scores, now weights, make of the values of a slot."""
        self.add(self.sums, self.scores, self.pieces.v, self._across, slot)


def keys_beside(keys: int) -> int:
    """Keys side by side that a lane has, of so many of a step."""
    return min(_FOUR, keys // _SIDE)

"""What attention has in common on the engines of a multiprocessor: a tile, and softmax in passing.

A warp has some rows of queries for itself and sees all keys of a step, so a row's numbers lie in a
few lanes side by side. What a step does, with the scores s of its keys:

    above = max(top, all s);  decay = e^(top - above);  top = above
    p = e^(s - above);  total = total * decay + all p;  sums = sums * decay + p V

    keys (1 a step)   scores 3, 5, 4       V 1, 2, 3
    top 3             total 1              sums 1
    top 5             total e^-2 + 1       sums e^-2 + 2
    top 5             .. + e^-1            .. + 3 e^-1          attention = sums / total

`top` starts at -inf. While all keys of a row were -inf, 0 stands for it: then total stays 0. Where
a score is NaN, or the highest is +inf, total is NaN; both are known at the end by `total > 0`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.ring import Block, Piece
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import AttentionTile

LOG2_E = 1.4426950216293335
"""As float32."""
STAGES = 2
"""Steps of keys in shared memory or on their way there."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Shared memory: queries, and behind them slots with K and V.

    Args:
        q: Rows of queries, once.
        k: Rows of keys, in each slot.
        v: Rows of values, in each slot.
    """

    q: Piece
    k: Piece
    v: Piece

    @property
    def slot_bytes(self) -> int:
        """Of K and V."""
        return self.v.end - self.q.end

    @property
    def size(self) -> int:
        """All of it."""
        return self.q.end + STAGES * self.slot_bytes


@dataclass(frozen=True, slots=True)
class Columns:
    """Sums of a row that lie side by side.

    Args:
        column: The first one's, in v.
        places: Where they are in the sums.
    """

    column: Expr
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """Values of a row that lie side by side, as words of 32 bits.

    Args:
        column: The first one's, in v.
        words: Two, or four; the first one lies at a multiple of so many.
    """

    column: Expr
    words: tuple[Expr, ...]


class TileSize(Protocol):
    """Extents of a tile: rows of the block and of a warp, keys of a step, columns of sums."""

    @property
    def m(self) -> int:
        """Rows of the block."""
        ...

    @property
    def n(self) -> int:
        """Keys of a step."""
        ...

    @property
    def rows(self) -> int:
        """Rows of a warp."""
        ...

    @property
    def down(self) -> int:
        """In how many parts softmax takes them."""
        ...

    @property
    def columns(self) -> int:
        """Columns of which registers hold sums."""
        ...


class Scored(Protocol):
    """Scores of a block, and whose they are.

    Attributes:
        first: The first row of the warp.
        rows: Rows of the tile that this thread has, int32.
        key: The first key of a step of which it has the scores, int32.
        keys: How far behind it they are.
        lanes: Lanes that share a row, as bits of their numbers.
        scores: Registers.
    """

    first: Expr
    rows: Sequence[Expr]
    key: Expr
    keys: Sequence[int]
    lanes: Sequence[int]
    scores: Buffer

    @property
    def tile(self) -> TileSize:
        """Its extents."""
        ...

    def row(self, number: Expr) -> Expr:
        """Row of the tile that is `number` among those that this thread has, int32."""
        ...

    def score(self, row: int, key: int) -> int:
        """Where the score of the thread's `row` and `key` is."""
        ...


class Summed(Scored, Protocol):
    """The same, and sums of rows.

    Attributes:
        sums: Registers.
    """

    sums: Buffer

    def columns(self, row: int) -> list[Columns]:
        """Where the sums of the thread's `row` are."""
        ...


class Attender(Summed, Protocol):
    """Scores and sums of a block.

    Attributes:
        pieces: Shared memory.
    """

    pieces: Pieces

    @property
    def tile(self) -> AttentionTile:
        """Extents of scores and sums."""
        ...

    @classmethod
    def plan(cls, dtype: str, d: int, dv: int, *, bias: bool) -> tuple[AttentionTile, Pieces]:
        """The tile and the shared memory for operands of some type and width."""
        ...

    def __init__(self, tile: AttentionTile, pieces: Pieces, block: Block) -> None: ...

    def words(self, values: Sequence[Expr]) -> list[Words]:
        """Values of a row, in the order of its `columns`, in the type of the operands.

        They are as they are best stored: by the lane that has them, or by another one of the row.
        All lanes ask at once.
        """
        ...

    def load_queries(self) -> None:
        """Read the queries, if registers hold them."""
        ...

    def multiply_keys(self, slot: Expr) -> None:
        """Make scores of a slot, which starts at byte `slot`."""
        ...

    def multiply_values(self, slot: Expr) -> None:
        """Add what the scores, now weights, make of the values of a slot."""
        ...


class Softmax:
    """The running state of softmax in passing.

    Args:
        engine: Has scores and sums.
        base: What the scores are powers of: `2`, or `e`.
    """

    def __init__(self, engine: Summed, base: str) -> None:
        self._engine, self._base = engine, base
        self._height, self._width = len(engine.rows), len(engine.keys)
        self._top = ptx.registers(self._height, "float32")
        self._total = ptx.registers(self._height, "float32")
        self._decay = ptx.registers(self._height, "float32")

    def clear(self) -> None:
        """No keys yet."""
        for r in range(self._height):
            tir.assign(self._top, ptx.lowest(), r)
            tir.assign(self._total, T.float32(0), r)
            for columns in self._engine.columns(r):
                for place in columns.places:
                    tir.assign(self._engine.sums, T.float32(0), place)

    def step(self) -> None:
        """Make weights of the scores of a step, and let the sums decay."""
        part = self._height // self._engine.tile.down
        for first in range(0, self._height, part):
            self._rows(range(first, first + part))

    def _rows(self, rows: range) -> None:
        moved = ptx.registers(1, "int32")
        tir.assign(moved, T.int32(0), 0)
        for r in rows:
            self._row(r, moved)
        # Most steps have no new highest score: then decay is 1 in these rows of all lanes.
        with tir.when(collective.ballot(moved[0] != 0) != ptx.uint32(0)):
            for r in rows:
                decay = self._decay[r]
                for columns in self._engine.columns(r):
                    for place in columns.places:
                        tir.assign(self._engine.sums, self._engine.sums[place] * decay, place)

    def _row(self, r: int, moved: Buffer) -> None:
        engine, lowest = self._engine, ptx.lowest()
        places = [engine.score(r, c) for c in range(self._width)]
        high = ptx.registers(1, "float32")
        tir.assign(high, engine.scores[places[0]], 0)
        for place in places[1:]:
            tir.assign(high, T.max(high[0], engine.scores[place]), 0)
        for lane in engine.lanes:
            tir.assign(high, T.max(high[0], collective.exchanged(high[0], lane, "float32")), 0)
        tir.assign(high, T.max(high[0], self._top[r]), 0)
        pivot = tir.keep(T.Select(high[0] == lowest, T.float32(0), high[0]))
        tir.assign(self._decay, self._power(self._top[r] - pivot), r)
        tir.assign(moved, moved[0] | T.Cast("int32", self._top[r] != high[0]), 0)
        tir.assign(self._top, high[0], r)
        tir.assign(self._total, self._total[r] * self._decay[r], r)
        for place in places:
            weight = self._power(engine.scores[place] - pivot)
            tir.assign(engine.scores, weight, place)
            tir.assign(self._total, self._total[r] + weight, r)

    def _power(self, below: Expr) -> Expr:
        return ptx.exp2(below if self._base == "2" else below * T.float32(LOG2_E))

    def total(self, r: int) -> Expr:
        """The sum of all weights of the thread's row; all lanes that share it ask at once."""
        return collective.float_sum(self._total[r], self._engine.lanes)

    def top(self, r: int) -> Expr:
        """The highest score of the thread's row."""
        return self._top[r]


def hide_behind(engine: Scored, after: Expr) -> None:
    """Give keys of a step behind the last one no weight.

    Args:
        engine: Has the scores.
        after: Keys from the step on, int32.
    """
    lowest = ptx.lowest()
    left = ptx.held(after - engine.key, "int32")
    for c, key in enumerate(engine.keys):
        there = ptx.held(T.Cast("int32", left > key), "int32")
        for r in range(len(engine.rows)):
            at = engine.score(r, c)
            hidden = T.Select(there != 0, engine.scores[at], lowest)
            tir.assign(engine.scores, hidden, at)

"""Gradients of attention without tensor cores: what threads have of a tile, and its shared memory.

Two products have the shape of a tile, the scores `q k^T` and the weights' gradients `g v^T`, and
each step's rows are multiplied twice: as the right operand of a product, and by weights. Where rows
are queries, a step has K and V; where they are keys, it has Q, G and four numbers of each query.
"""

from dataclasses import dataclass

from pitc.codegen import ptx, tir
from pitc.codegen.engines.attend import STAGES, Columns
from pitc.codegen.engines.attend_simt import ThreadTile, keys_beside
from pitc.codegen.engines.ring import Block, Chunk, Piece, Place, Source
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import GradientTile, filled

NUMBERS = 4
"""What is kept of a query: `pivot`, `inverse`, `mean`, and 1 where it has a gradient, else 0."""
_ITEM, _UNIT, _ACROSS = 4, 4, 32
"""Bytes of a number; columns that products take at once, and that lanes of a row have."""
_SIDE = 8
"""Lanes that share rows."""


@dataclass(frozen=True, slots=True)
class GradientPieces:
    """Shared memory: rows of the tile, and behind them slots with those of steps.

    Args:
        rows: Of the tile, once: those of q and of g, or of k and of v.
        steps: Of each slot: the same of the other side.
        numbers: Of each slot, where steps are queries: four numbers of each.
    """

    rows: tuple[Piece, Piece]
    steps: tuple[Piece, Piece]
    numbers: Piece

    @classmethod
    def of(cls, tile: GradientTile) -> "GradientPieces":
        """Pieces of a tile: lanes of a warp that read at a time meet in no bank."""
        bytes_d, bytes_dv = (_row_bytes(columns) for columns in (tile.d, tile.dv))
        scored = Piece(0, tile.m, bytes_d, turn=tile.height)
        weighed = Piece(scored.end, tile.m, bytes_dv, turn=tile.height)
        beside = keys_beside(tile.n)
        of_scored = Piece(weighed.end, tile.n, bytes_d, turn=beside)
        of_weighed = Piece(of_scored.end, tile.n, bytes_dv, turn=beside)
        numbers = Piece(of_weighed.end, tile.n, NUMBERS * _ITEM)
        return cls((scored, weighed), (of_scored, of_weighed), numbers)

    def slot_bytes(self, *, numbers: bool) -> int:
        """Of a slot, with numbers of queries or without."""
        return (self.numbers if numbers else self.steps[1]).end - self.rows[1].end

    def size(self, *, numbers: bool) -> int:
        """All of it."""
        return self.rows[1].end + STAGES * self.slot_bytes(numbers=numbers)


def _row_bytes(columns: int) -> int:
    """Of a row in shared memory, a power of two."""
    return 1 << (filled(columns) * _ITEM - 1).bit_length()


class Spread:
    """A source whose rows lie apart, so that lanes which read neighbours' numbers meet in no bank:
    eight lanes have `n // 8` rows side by side each.

    Args:
        source: The rows.
        n: Of a step.
    """

    def __init__(self, source: Source, n: int) -> None:
        self._source, self._beside = source, n // _SIDE

    def start(self, copies: int, place: Place) -> None:
        """Begin a dense tile."""

        def turned(i: int) -> tuple[Expr, Expr]:
            row, chunk = place(i)
            return row % _SIDE * self._beside + row // _SIDE, chunk

        self._source.start(copies, turned)

    def look_up(self, step: Expr) -> None:
        """Read from lists what `chunk` needs to know of a step."""
        self._source.look_up(step)

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        return self._source.chunk(i, step)


class ThreadGradients(ThreadTile):
    """Scores, weights' gradients and sums in the registers of threads (`attend.Summed`).

    Args:
        tile: Extents of the tile.
        pieces: Shared memory.
        block: Who computes.
        of_keys: Rows are keys: there are sums of two kinds.
    """

    def __init__(
        self, tile: GradientTile, pieces: GradientPieces, block: Block, *, of_keys: bool
    ) -> None:
        self.tile, self.pieces = tile, pieces
        self._across = [filled(width) // _ACROSS for width in (tile.d, tile.dv)]
        super().__init__(tile, block, tile.height, max(self._across))
        counts = [tile.height * across * _UNIT for across in self._across]
        self.others = ptx.registers(int(self.scores.shape[0]), "float32")
        self.of_scored = ptx.registers(counts[0], "float32")
        self.of_weighed = ptx.registers(counts[1], "float32") if of_keys else None
        self.sums = ptx.registers(tile.height, "float32")

    def columns(self, row: int) -> list[Columns]:
        """What decays where scores grow: one sum of each row."""
        return [Columns(self.key, (row,))]

    @property
    def leads(self) -> Expr:
        """Whether this thread is the first one of its rows."""
        return self._x == 0

    def clear(self) -> None:
        """Make the sums of columns 0."""
        for sums in (self.of_scored, self.of_weighed):
            if sums is not None:
                for i in range(int(sums.shape[0])):
                    tir.assign(sums, T.float32(0), i)

    def both_products(self, slot: Expr) -> None:
        """Make scores and weights' gradients of a slot, which starts at byte `slot`."""
        rows, steps = self.pieces.rows, self.pieces.steps
        for i, width in enumerate((self.tile.d, self.tile.dv)):
            made = self.others if i else self.scores
            self.multiply(made, rows[i], steps[i], -(-width // _UNIT) * _UNIT, slot)

    def add_scored(self, weights: Buffer, slot: Expr) -> None:
        """Add what weights make of the rows of q or k of a slot."""
        self.add(self.of_scored, weights, self.pieces.steps[0], self._across[0], slot)

    def add_weighed(self, weights: Buffer, slot: Expr) -> None:
        """Add what weights make of the rows of g of a slot."""
        assert self.of_weighed is not None
        self.add(self.of_weighed, weights, self.pieces.steps[1], self._across[1], slot)

    def numbers(self, key: int, slot: Expr) -> list[Expr]:
        """The numbers of the query of a slot that is the thread's `key`-th one."""
        found = ptx.registers(NUMBERS, "float32")
        self._take(found, 0, slot + self.pieces.numbers.at(self._x + key * _SIDE, T.int32(0)))
        return [found[i] for i in range(NUMBERS)]

    def columns_of_sums(self, row: int, sums: Buffer) -> list[Columns]:
        """Where sums of the thread's `row` are, and of which columns."""
        return self.columns_of(row, int(sums.shape[0]) // (len(self.rows) * _UNIT))

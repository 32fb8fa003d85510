"""Rows of A as tiles of a matrix unit (SRead): 16 rows x 16 words of two numbers, in one piece.

    a[rows_a[i], 0..k]   ->   tiles[i // 32][s][i % 32][0..15]: words 16 s .. 16 s + 15 of row i

with 0 behind the last number of a row. Rows a power of two apart would share few lines of the
caches.
"""

from pitc.codegen import tir
from pitc.codegen.engines.amx import SIDE, TILE
from pitc.codegen.families.left import Block, PairRows


class Placed(Block):
    """Words of a block in tiles of 16 rows x 16 words; those of 32 rows follow each other."""

    gap = 0

    def place(self, i: tir.Expr, s: tir.Expr) -> tir.Expr:
        """Where vector `s` of row `i` begins."""
        square = i // SIDE * (self.stride // TILE) + s
        return square * (SIDE * TILE) + i % SIDE * TILE


class Rounded(Placed, PairRows):
    """Rows of float32."""


class Copied(Placed):
    """Rows of words."""

    def __init__(self, a: tir.Buffer, listed: tir.Buffer, most: tir.Expr) -> None:
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

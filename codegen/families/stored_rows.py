"""stored_rows: out[i, k - k0] = S[k, r0 + i], rows of a right operand's transpose, and their bits.

S is computed when the model runs, and lies as `kn` ([K, N]) or `nk` ([N, K]), perhaps times a
factor. Where all of S is finite (`MASK`), the factor alone tells what may live, and S is read there
only. Of `kn` squares are transposed in registers:

    16 vectors S[k + i, r..r + 16]   ->   16 vectors out[r + l, k..k + 16], 16 bits of each row

A piece of 16 rows and 64 k in which nothing lives is not written, as no live micro-tile reaches
into it: these are at most 64 wide, or a divisor of 16 high, and stand at multiples of their size.

Rows of `out` are a little more than K apart: a power of two apart they would share few lines of the
caches.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.families.right import Stored, StoredRight
from pitc.ir.kernel import MASK
from pitc.ir.target import CpuLevel

STRIP = 512
"""Rows of `out` that are made together: so much of a row of S is read at a time."""
AHEAD = 16
"""Rows of S between those that are asked for and those that are read."""
WORD = 64
"""Bits of one."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`, `n`, `stored`, `factor`.
        target: CPU level.
    """
    if params["k"] < 1 or params["n"] < 1 or params["stored"] not in ("kn", "nk"):
        raise ValueError(f"no stored_rows kernel for {dict(params)}")
    return tir.prim_func(symbol, _StoredRows(params, target.vector_lanes).emit)


class _StoredRows:
    """The kernel's body.

    Args:
        params: As for `prim_func`.
        side: Of a square that is transposed in registers.
    """

    def __init__(self, params: Mapping[str, Any], side: int) -> None:
        self.params, self.side = params, side

    def emit(self) -> None:
        """Declare the arguments, make the rows."""
        p = self.params
        turned = p["stored"] == "kn"
        finite = p["factor"] == MASK
        order, factor = p["stored"], bool(p["factor"])
        self.stored = StoredRight(p["k"], p["n"], order, factor=factor, finite=finite)
        rows, stride, words = tir.size(), tir.size(), tir.size()
        self.out = tir.tensor("out", (rows, stride))
        bits = tir.tensor("bits", (rows, words), "int64")
        self.first, self.count, self.begin, self.end = tir.scalars("r0", "rows", "k0", "k1")
        if not turned:
            self.side = tir.LANES
        self.pieces = tir.bit_pieces(bits, self.side)
        if turned:
            self.turn()
        else:
            self.copy()
        self.clear_tail()

    def store(self, vector: tir.Expr, row: tir.Expr, k: tir.Expr, lanes: int) -> None:
        """A vector of a row, and its bits."""
        side, at = self.side, tir.bind(k - self.begin)
        tir.store(self.out, vector, row, at, lanes=lanes, width=side)
        tir.assign(self.pieces, tir.nonzero_mask(vector, lanes, side), row, at // side)

    def clear_tail(self) -> None:
        """Bits behind K are 0."""
        k, side = self.stored.k, self.side
        behind = range(-(-k // side), -(-k // WORD) * WORD // side)
        if not behind:
            return
        with tir.when(self.end == k), tir.serial(tir.int64(0), self.count) as i:
            for piece in behind:
                tir.assign(self.pieces, tir.no_bits(side), i, piece - self.begin // side)

    def copy(self) -> None:
        """Rows of `nk` as they are, times the factor."""
        k, side = self.stored.k, self.side

        def vector(i: tir.Expr, at: tir.Expr, lanes: int) -> None:
            value = self.stored.product(tir.bind(self.first + i), at, lanes=lanes)
            self.store(tir.keep(value), i, at, lanes)

        with tir.serial(tir.int64(0), self.count) as i:
            with tir.serial(tir.int64(0), (self.end - self.begin) // side) as q:
                vector(i, tir.bind(self.begin + q * side), side)
            if k % side:
                with tir.when(self.end == k):
                    vector(i, tir.int64(k // side * side), k % side)

    def turn(self) -> None:
        """Columns of `kn`: of a strip, word by word, some rows of S at a time."""
        zero, k, side = tir.int64(0), self.stored.k, self.side
        lives = tir.workspace(STRIP // tir.LANES, dtype="int16")  # what of a word does, so far
        with tir.serial(zero, (self.count + STRIP - 1) // STRIP) as s:
            start = tir.bind(s * STRIP)
            rows = tir.bind(tir.smaller(tir.int64(STRIP), self.count - start))
            with tir.serial(zero, (self.end - self.begin + WORD - 1) // WORD) as w:
                word = tir.hold(self.begin + w * WORD)
                with tir.serial(zero, (rows + tir.LANES - 1) // tir.LANES) as v:
                    tir.assign(lives, tir.no_bits(), v)
                here = tir.smaller(tir.int64(WORD), self.end - word)
                with tir.serial(zero, here // side) as q:
                    self.squares(lives, word, tir.hold(word + q * side), side, start, rows)
                if k % side:
                    with tir.when(word + WORD > k):
                        last = tir.int64(k // side * side)
                        self.squares(lives, word, last, k % side, start, rows)

    def squares(
        self,
        lives: tir.Buffer,
        word: tir.Expr,
        k: tir.Expr,
        ks: int,
        start: tir.Expr,
        rows: tir.Expr,
    ) -> None:
        """Columns k..k + ks of `out`, 16 of its rows from `start` on at a time."""
        zero, side, dead = tir.int64(0), self.side, tir.no_bits()
        read = self.stored.rows(k, side)

        def vectors(stored: Stored, column: tir.Expr, columns: int, width: int) -> list[tir.Expr]:
            return [stored.product(r, column, lanes=columns, width=width) for r in read]

        def piece(v: tir.Expr, columns: int) -> None:
            at = tir.hold(start + v * tir.LANES)
            column = tir.hold(self.first + at)

            def ask(stored: Stored) -> None:
                for i in range(side):
                    later = tir.smaller(k + (AHEAD + i), tir.int64(self.stored.k - 1))
                    stored.prefetch(later, column, far=True)

            ask(self.stored.telling)

            def write() -> None:
                ask(self.stored.told)
                with tir.when(lives[v] == dead), tir.serial(zero, (k - word) // side) as q:
                    for i in range(columns):
                        place = tir.bind(word - self.begin + q * side)
                        tir.store(self.out, tir.splat(0.0, side), at + i, place, width=side)
                tir.assign(lives, live, v)
                for part in range(0, columns, side):
                    there = min(side, columns - part)
                    square = tir.transpose(vectors(self.stored, column + part, there, side))
                    for i, vector in enumerate(square[:there]):
                        self.store(vector, at + (part + i), k, ks)

            def skip() -> None:
                for i in range(columns):
                    tir.assign(self.pieces, tir.no_bits(side), at + i, (k - self.begin) // side)

            seen = tir.all_bits(vectors(self.stored.telling, column, columns, tir.LANES))
            live = tir.nonzero_mask(seen, columns) | lives[v]
            tir.either(live != dead, write, skip)

        with tir.serial(zero, rows // tir.LANES) as v:
            piece(v, tir.LANES)
        if self.stored.n % tir.LANES:
            with tir.when(rows % tir.LANES > 0):
                piece(tir.hold(rows // tir.LANES), self.stored.n % tir.LANES)

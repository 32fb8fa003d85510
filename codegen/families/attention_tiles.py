"""Both products of attention by a matrix unit (AMX), where operands are rounded to bfloat16.

As in `attention.py` queries lie in lanes. Words of two numbers are put into tiles of 16 x 16 words:

    scores   p[key, lane]  = K[key, words of two d] . qt[words of two d, lane]
    values   o[dv, lane]   = V^T[dv, words of two keys] . p[words of two keys, lane]

so K is copied into tiles of A as it is, and V with rows and columns exchanged, a block of keys at a
time. Behind the last words of a row of A, and behind the last words of weights, stands 0: 0 times
what was there before might be NaN. Rows behind the last key give scores that nobody reads.

The sums of a block of keys are chains of their own, as everywhere in attention; those of its 16
words follow the unit (`engines/amx.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.amx import SIDE, TILE, Place, Square, tiles_of
from pitc.codegen.families.attention_numbers import Pairs
from pitc.codegen.families.attention_operands import InPlace, halves
from pitc.ir.target import CpuLevel

AREA = TILE * TILE


class TileProducts(Pairs):
    """What is multiplied, and by what.

    Args:
        kernel: The arguments, as `attention.py` has them.
        params: Those of the kernel.
        target: A CPU level with a matrix unit.
    """

    def __init__(self, kernel: Any, params: Mapping[str, Any], target: CpuLevel) -> None:
        super().__init__(kernel, params)
        self.keys = InPlace(kernel, kernel.k, "hk")
        self.key_words = bool(params.get("k_words"))
        self.tiles = tiles_of(target)
        self.lanes = int(kernel.p.shape[1])
        self.d_steps = -(-kernel.d // SIDE)
        self.key_steps = kernel.keys // SIDE
        self.dv_tiles = -(-kernel.dv // SIDE) * 2
        self.k = tir.workspace(kernel.keys // TILE * self.d_steps * AREA)
        self.v = tir.workspace(self.dv_tiles * self.key_steps * AREA)

    def bring(self, k0: tir.Expr, keys: tir.Expr) -> None:
        """Copy a block of keys and values into tiles."""
        zero = tir.int64(0)
        with tir.serial(zero, keys) as i:
            self.bring_key(tir.bind(self.kernel.key(k0 + i)), i)
        self.zipped.bring(k0, keys)
        pieces = tir.bind(self.steps(keys))
        blocks = tir.bind((pieces + TILE - 1) // TILE)
        zipped = self.zipped.copy
        tiles = tir.int64(self.dv_tiles)
        with tir.serial(pieces, blocks * TILE) as i, tir.serial(zero, tiles) as t:
            tir.store(zipped, tir.splat(0), i, t * TILE)
        with tir.serial(zero, blocks) as s, tir.serial(zero, tiles) as t:
            rows = [tir.load(zipped, s * TILE + i, t * TILE) for i in range(TILE)]
            place = tir.bind(self.value_tile(t, s))
            for i, row in enumerate(tir.transpose(rows)):
                tir.store(self.v, row, place + i * TILE)

    def bring_key(self, row: tir.Expr, i: tir.Expr) -> None:
        """The words of a key, with 0 behind the last one."""
        place = tir.bind(self.key_tile(i // TILE, tir.int64(0)) + i % TILE * TILE)
        with tir.serial(tir.int64(0), tir.int64(self.depth // TILE)) as s:
            tir.store(self.k, self.key_vector(row, s * TILE, TILE), place + s * AREA)
        rest = self.depth % TILE
        if rest:
            start = self.depth - rest
            words = self.key_vector(row, tir.int64(start), rest)
            there = tir.select(tir.first_lanes(rest), words, tir.splat(0))
            tir.store(self.k, there, place + start // TILE * AREA)

    def key_vector(self, row: tir.Expr, word: tir.Expr, count: int) -> tir.Expr:
        """Up to 16 words of a key."""
        if self.key_words:
            return self.keys.vector(row, word, count)
        numbers = halves(lambda at, n: self.keys.vector(row, word * 2 + at, n), 2 * count)
        return tir.keep(pairs.as_pairs(*numbers))

    def key_tile(self, t: tir.Expr, s: tir.Expr) -> tir.Expr:
        """Where a tile of 16 keys begins, of step `s` over d."""
        return (t * self.d_steps + s) * AREA

    def value_tile(self, t: tir.Expr, s: tir.Expr) -> tir.Expr:
        """Where a tile of 16 columns of V begins, of step `s` over keys."""
        return (t * self.key_steps + s) * AREA

    def put_queries(self, queries: list[tir.Expr], lane: tir.Expr) -> None:
        """qt[d / 2, lane] = words of queries, and 0 behind the last one."""
        super().put_queries(queries, lane)
        for word in range(self.depth, self.d_steps * TILE):
            tir.store(self.kernel.qt, tir.splat(0), tir.int64(word), lane)

    def put_weights(
        self, keys: tir.Expr, groups: range, weight: Callable[[tir.Expr, int], tir.Expr]
    ) -> None:
        """p[key / 2, lane] = words of the weights of two keys, and 0 behind the last one."""
        super().put_weights(keys, groups, weight)
        pieces = tir.bind(self.steps(keys))
        with tir.serial(pieces, (pieces + TILE - 1) // TILE * TILE) as i:
            for g in groups:
                tir.store(self.kernel.p, tir.splat(0), i, g * tir.LANES)

    def multiply_keys(self, keys: tir.Expr, groups: range) -> None:
        """p[key, lane] = products of a block of keys and the queries, not yet scaled."""
        p, qt = self.kernel.p, self.kernel.qt
        with tir.serial(tir.int64(0), (keys + SIDE - 1) // SIDE) as t:
            sums = self.square(p, t * SIDE, groups)
            self.tiles.clear(sums)
            with tir.serial(tir.int64(0), tir.int64(self.d_steps)) as s:
                a = [(self.k, (tir.hold(self.key_tile(t * 2 + i, s)),)) for i in range(2)]
                self.tiles.step(sums, a, self.right(qt, s, groups))
            self.tiles.store(sums)

    def multiply_values(
        self, first: tir.Expr, keys: tir.Expr, groups: range, decay: Sequence[tir.Expr]
    ) -> None:
        """o[dv, lane] = o * decay + products of values and weights of a block of keys."""
        kernel, o = self.kernel, self.kernel.o
        half = int(o.shape[0]) // 2
        start = tir.hold(tir.select(first, tir.int64(0), tir.int64(half)))
        blocks = tir.hold((self.steps(keys) + TILE - 1) // TILE)
        with tir.serial(tir.int64(0), tir.int64(self.dv_tiles // 2)) as t:
            sums = self.square(o, start + t * SIDE, groups)
            self.tiles.clear(sums)
            with tir.serial(tir.int64(0), blocks) as s:
                a = [(self.v, (tir.hold(self.value_tile(t * 2 + i, s)),)) for i in range(2)]
                self.tiles.step(sums, a, self.right(kernel.p, s, groups))
            self.tiles.store(sums)
        with tir.when(tir.negated(first)), tir.serial(tir.int64(0), tir.int64(kernel.dv)) as dv:
            for g in groups:
                before, more = (tir.load(o, dv + i, g * tir.LANES) for i in (0, half))
                tir.store(o, tir.keep(before * decay[g]) + more, dv, g * tir.LANES)

    def square(self, buffer: tir.Buffer, row: tir.Expr, groups: range) -> Square:
        """32 rows of some groups of lanes."""
        rows = [tir.hold(row + i) for i in (0, TILE)]
        return Square(
            [[(buffer, (r, tir.int64(g * TILE))) for g in groups] for r in rows], self.lanes
        )

    @staticmethod
    def right(buffer: tir.Buffer, s: tir.Expr, groups: range) -> list[Place]:
        """16 rows of words, of some groups of lanes."""
        return [(buffer, (s * TILE, tir.int64(g * TILE))) for g in groups]

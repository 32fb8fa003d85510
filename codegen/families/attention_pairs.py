"""attention of a single query whose operands are words of two bfloat16 numbers.

The values of two keys are brought together as for queries among others, and their weights likewise.
Every sum is the chain that `attention.py` has for a query among others, so its bits are the same.
"""

from pitc.codegen import pairs, tir
from pitc.codegen.engines.cpu import DenseTile, Read
from pitc.codegen.engines.pairs import PairTile
from pitc.codegen.families.attention_operands import WORD
from pitc.codegen.families.attention_query import VECTORS, OneQuery


class PairQuery(OneQuery):
    """Emits one query against all keys."""

    def values(self, first: tir.Expr, k0: tir.Expr, keys: tir.Expr, decay: tir.Expr) -> None:
        """o[dv] = o * decay + sum over keys of p[key] * v[k0 + key, dv]; total likewise, of ones.

        In the first key block o is undefined and counts as 0.
        """
        kernel, operands = self.kernel, self.kernel.operands
        self.add_weights(first, keys, decay)
        with tir.serial(tir.int64(0), (keys + WORD - 1) // WORD) as i:
            vectors = [tir.keep(tir.load(self.p, i * WORD + h)) for h in (0, tir.LANES)]
            tir.store(self.p, pairs.as_pairs(*vectors), i * tir.LANES)

        def columns(dv: int, count: int) -> None:
            tile = PairTile(1, count)

            def before(_r: int, g: int) -> tir.Expr:
                return tir.keep(tir.load(self.o, tir.int64(dv + g * tir.LANES)) * decay)

            def read(i: tir.Expr) -> Read:
                vector = operands.values.lanes_at(k0, i)
                return (
                    lambda _r: self.p[i],
                    lambda g: vector(tir.int64(dv + g * tir.LANES), tir.LANES),
                )

            tile.clear()
            tile.multiply(operands.steps(keys), self.unroll, read)
            with tir.when(tir.negated(first)):
                tile.add_each(before)
            for g, sums in enumerate(tile.row(0)):
                tir.store(self.o, sums, tir.int64(dv + g * tir.LANES))

        for dv in range(0, kernel.dv, VECTORS * tir.LANES):
            columns(dv, min(VECTORS, -(-(kernel.dv - dv) // tir.LANES)))

    def add_weights(self, first: tir.Expr, keys: tir.Expr, decay: tir.Expr) -> None:
        """Total = total * decay + the sum of p over the keys."""
        tile = DenseTile(1, 1)
        tile.clear()
        ones = tir.splat(1)
        tile.multiply(keys, self.unroll, lambda key: (lambda _r: self.p[key], lambda _g: ones))
        with tir.when(tir.negated(first)):
            tile.add_each(lambda _r, _g: tir.keep(self.total.value * decay))
        self.total.set(tile.row(0)[0])

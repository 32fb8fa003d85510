"""attention of a single query, as decoders have it for each token they write.

With queries in lanes all but one of them would be idle, and keys are read once whatever is done. So
*keys lie in lanes* while scores are computed, squares of 16 keys x 16 numbers transposed as they
are read, and columns of the values while these are summed:

    p[key] = k[key] . (scale * q) + bias, 16 keys at a time;    m = max p
    p = exp(p - m);    o[dv] = o * exp(m before - m) + sum over keys of p[key] * v[key, dv]

Every sum is the chain of multiply-adds that `attention.py` has for a query among others, so its
bits are the same. With `pairs` the keys are those of a list: bit 0 says which of them the query
sees.
"""

from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import DenseTile, Read
from pitc.codegen.families.attention_operands import WORD
from pitc.codegen.vector_math import exp

VECTORS = 4
"""Columns of the values that are summed at a time, in vectors: more sums than an add is long."""


class OneQuery:
    """Emits one query against all keys.

    Args:
        kernel: The arguments, as `attention.py` has them.
        query: Its number: a row, or a place in the order.
        key_block: Keys per online step, a multiple of 16.
        unroll: Keys per turn of the loop over values.
    """

    def __init__(self, kernel: Any, query: tir.Expr, key_block: int, unroll: int) -> None:
        self.kernel, self.query = kernel, query
        self.key_block, self.unroll = key_block, unroll
        self.q, self.o = (tir.workspace(-(-size // WORD) * WORD) for size in (kernel.d, kernel.dv))
        self.p = tir.workspace(key_block)
        self.top, self.total = tir.Variable(), tir.Variable()

    def emit(self) -> None:
        """The loop over key blocks."""
        kernel, top = self.kernel, self.top
        self.query = tir.bind(kernel.query(self.query))
        kernel.operands.put_query(self.query, self.q)
        top.set(kernel.least())
        self.total.set(tir.splat(0))
        first, stop = kernel.at["k0"], kernel.at["k1"]
        with tir.serial(0, (stop - first + self.key_block - 1) // self.key_block) as kb:
            k0 = tir.bind(first + kb * self.key_block)
            keys = tir.bind(tir.smaller(tir.int64(self.key_block), stop - k0))
            before = tir.keep(top.value)
            self.scores(k0, keys)
            pivot = self.pivot()
            decay = exp(tir.keep(before - pivot), nonpositive=True)
            self.exponentials(keys, pivot)
            kernel.operands.values.bring(k0, keys)
            self.values(kb == 0, k0, keys, decay)
        if kernel.sink is not None:
            with tir.when(stop == first):
                self.clear()
            self.total.set(kernel.with_sink(self.total.value, self.pivot()))
        self.store_out()

    def pivot(self) -> tir.Expr:
        """What to subtract from scores: the maximum so far; 0 and not -inf while all keys were
        -inf, as the sum must stay 0.
        """
        lowest = tir.splat(float("-inf"))
        return tir.keep(tir.select(self.top.value == lowest, tir.splat(0), self.top.value))

    def clear(self) -> None:
        """Make o 0: without keys it is undefined, but a sink has weight."""
        for dv in range(0, self.kernel.dv, tir.LANES):
            tir.store(self.o, tir.splat(0), tir.int64(dv))

    def scores(self, k0: tir.Expr, keys: tir.Expr) -> None:
        """p[key] = k[k0 + key] . q + bias; every lane of top = max(top, all p).

        The last 16 keys repeat the last one: no maximum changes, and later steps stop before it.
        """
        kernel, score = self.kernel, tir.Variable()
        with tir.serial(0, (keys + tir.LANES - 1) // tir.LANES) as t:
            first = tir.bind(t * tir.LANES)
            numbers = [tir.bind(k0 + tir.smaller(first + i, keys - 1)) for i in range(tir.LANES)]
            key = [tir.bind(kernel.key(n)) for n in numbers]
            score.set(tir.splat(0))
            kernel.operands.add_products(key, self.q, score)
            score.set(kernel.capped(kernel.operands.scaled(score.value)))
            if kernel.bias is not None:
                score.set(score.value + self.bias_of(first, key))
            if kernel.pairs is not None:
                score.set(self.seen(first, numbers, score.value))
            tir.store(self.p, score.value, first)
            self.top.set(tir.maximum(score.value, self.top.value))
        for distance in (1, 2, 4, 8):
            turned = [i ^ distance for i in range(tir.LANES)]
            other = tir.keep(tir.shuffle(self.top.value, self.top.value, turned))
            self.top.set(tir.maximum(other, self.top.value))

    def bias_of(self, first: tir.Expr, key: list[tir.Expr]) -> tir.Expr:
        """The bias of 16 keys, by way of where their scores go."""
        kernel, at = self.kernel, self.kernel.at
        query = tir.bind(at["bias_base"] + tir.index_of(kernel.qpos, self.query) * at["bias_sq"])
        for i, k in enumerate(key):
            place = tir.bind(query + tir.index_of(kernel.kpos, k) * at["bias_sk"])
            tir.assign(self.p, kernel.bias[place], first + i)
        return tir.keep(tir.load(self.p, first))

    def seen(self, first: tir.Expr, numbers: list[tir.Expr], score: tir.Expr) -> tir.Expr:
        """The scores of keys of a list that the query sees, and -inf, by way of where they go."""
        zero, lowest = tir.splat(0), tir.splat(float("-inf"))
        for i, number in enumerate(numbers):
            bit = tir.bind(tir.index_of(self.kernel.pairs[1], number) % 2)
            tir.assign(self.p, tir.float_of(bit), first + i)
        return tir.keep(tir.select(tir.keep(tir.load(self.p, first)) == zero, lowest, score))

    def exponentials(self, keys: tir.Expr, pivot: tir.Expr) -> None:
        """Make p = exp(p - pivot)."""
        with tir.serial(0, (keys + tir.LANES - 1) // tir.LANES) as t:
            first = tir.bind(t * tir.LANES)
            difference = tir.keep(tir.load(self.p, first) - pivot)
            tir.store(self.p, exp(difference, nonpositive=True), first)

    def values(self, first: tir.Expr, k0: tir.Expr, keys: tir.Expr, decay: tir.Expr) -> None:
        """o[dv] = o * decay + sum over keys of p[key] * v[k0 + key, dv]; total likewise, of ones.

        In the first key block o is undefined and counts as 0.
        """
        kernel = self.kernel

        def columns(dv: int, sizes: list[int], ones: bool) -> None:
            tile = DenseTile(1, len(sizes) + ones)

            def before(_r: int, g: int) -> tir.Expr:
                place = tir.int64(dv + g * tir.LANES)
                sums = self.total.value if g == len(sizes) else tir.load(self.o, place)
                return tir.keep(sums * decay)

            def read(key: tir.Expr) -> Read:
                row = kernel.operands.values.lanes_at(k0, key)

                def value(g: int) -> tir.Expr:
                    if g == len(sizes):
                        return tir.splat(1)
                    return row(tir.int64(dv + g * tir.LANES), sizes[g])

                return lambda _r: self.p[key], value

            tile.clear()
            tile.multiply(keys, self.unroll, read)
            with tir.when(tir.negated(first)):
                tile.add_each(before)
            sums = tile.row(0)
            for g in range(len(sizes)):
                tir.store(self.o, sums[g], tir.int64(dv + g * tir.LANES))
            if ones:
                self.total.set(sums[-1])

        for dv in range(0, kernel.dv, VECTORS * tir.LANES):
            starts = range(dv, min(kernel.dv, dv + VECTORS * tir.LANES), tir.LANES)
            columns(dv, [min(tir.LANES, kernel.dv - start) for start in starts], ones=dv == 0)

    def store_out(self) -> None:
        """out[query, ho, dv] = o[dv] / total, or the fill where total is not above 0."""
        kernel = self.kernel
        zero, nan = tir.splat(0), tir.splat(float("nan"))
        to_zero = tir.splat_condition(kernel.at["nan_to_zero"] != 0)
        fill = tir.keep(tir.select(to_zero, zero, nan))
        total = tir.keep(self.total.value)
        inverse = tir.keep(tir.splat(1) / total)

        def part(dv: tir.Expr, lanes: int) -> None:
            row = tir.select(total > zero, tir.load(self.o, dv) * inverse, fill)
            kernel.store(row, self.query, kernel.at["ho"], dv, lanes=lanes)

        tir.chunks(kernel.dv, part)

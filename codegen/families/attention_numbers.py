"""What attention multiplies: numbers of float32, or words of two numbers of bfloat16.

                        queries          keys               values               weights
float32                 [d, lane]        [key, d]           [key, dv]            [key, lane]
bfloat16                words of two d   words of two d     words of two keys    words of two keys
bfloat16 without unit   as float32: what is stored as words is taken apart
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.cpu import DenseTile
from pitc.codegen.engines.pairs import HALVES, PairTile
from pitc.codegen.families.attention_operands import (
    Copied,
    InPlace,
    Rounded,
    Widened,
    Zipped,
    ZippedWords,
    halves,
    word_chunks,
)
from pitc.ir.target import CpuLevel

Weight = Callable[[tir.Expr, int], tir.Expr]
"""Key of a block, group of lanes -> weights."""


class Numbers:
    """Float32 is multiplied.

    Args:
        kernel: The arguments, as `attention.py` has them.
        params: Those of the kernel.
    """

    tile: type[DenseTile] = DenseTile

    def __init__(self, kernel: Any, params: Mapping[str, Any]) -> None:
        self.kernel, self.depth = kernel, kernel.d
        self.query_words = bool(params.get("q_words"))
        self.keys: InPlace = InPlace(kernel, kernel.k, "hk")
        self.values: InPlace = InPlace(kernel, kernel.v, "hv")
        if params.get("k_words"):
            self.keys = Widened(kernel, kernel.k, "hk", kernel.keys, kernel.d)
        if params.get("v_words"):
            self.values = Widened(kernel, kernel.v, "hv", kernel.keys, kernel.dv)

    @property
    def copies(self) -> bool:
        """True where `bring` does anything."""
        return any(isinstance(rows, Copied) for rows in (self.keys, self.values))

    def bring(self, k0: tir.Expr, keys: tir.Expr) -> None:
        """Copy a block of keys and values."""
        for rows in (self.keys, self.values):
            rows.bring(k0, keys)

    def put_queries(self, queries: list[tir.Expr], lane: tir.Expr) -> None:
        """qt[d, lane] = scale * q[queries, hq, d]."""
        kernel = self.kernel
        scale = tir.keep(tir.splat(kernel.scale))

        def square(d: tir.Expr, lanes: int) -> None:
            rows = self.query_rows(queries, d, lanes)
            if self.query_words:
                for i, words in enumerate(tir.transpose(rows)):
                    for half, take in enumerate(HALVES):
                        numbers = tir.keep(take(words)) * scale
                        tir.store(kernel.qt, numbers, (d + i) * 2 + half, lane)
                return
            for i, column in enumerate(tir.transpose([row * scale for row in rows])):
                tir.store(kernel.qt, column, d + i, lane)

        tir.chunks(int(kernel.q.shape[2]), square)

    def query_rows(self, queries: list[tir.Expr], d: tir.Expr, lanes: int) -> list[tir.Expr]:
        """Up to 16 columns of 16 queries."""
        kernel = self.kernel
        return [tir.load(kernel.q, row, kernel.at["hq"], d, lanes=lanes) for row in queries]

    def put_query(self, query: tir.Expr, q: tir.Buffer) -> None:
        """q[d] = scale * q[query, hq, d]."""
        scale = tir.keep(tir.splat(self.kernel.scale))

        def part(d: tir.Expr, lanes: int) -> None:
            (row,) = self.query_rows([query], d, lanes)
            if not self.query_words:
                tir.store(q, row * scale, d)
                return
            for half, numbers in enumerate(pairs.spread(tir.keep(row))):
                tir.store(q, numbers * scale, d * 2 + half * tir.LANES)

        tir.chunks(int(self.kernel.q.shape[2]), part)

    def add_products(self, keys: Sequence[tir.Expr], q: tir.Buffer, score: tir.Variable) -> None:
        """Add the products of 16 keys and a query to their scores, which are 0."""
        in_words = isinstance(self.keys, Widened)

        def square(d: tir.Expr, lanes: int) -> None:
            rows = [self.keys.vector(key, d, lanes) for key in keys]
            for i, column in enumerate(tir.transpose(rows)[:lanes]):
                parts = [take(column) for take in HALVES] if in_words else [column]
                for half, numbers in enumerate(parts):
                    number = tir.keep(tir.splat(q[(d + i) * len(parts) + half]))
                    score.set(tir.fma(numbers, number, score.value))

        tir.chunks(int(self.kernel.k.shape[2]), square)

    def scaled(self, score: tir.Expr) -> tir.Expr:
        """A sum of products of scaled queries as a score."""
        return score

    def steps(self, keys: tir.Expr) -> tir.Expr:
        """Steps over a block of so many keys."""
        return keys

    def put_weights(self, keys: tir.Expr, groups: range, weight: Weight) -> None:
        """p[key, lane] = weight of each key."""
        with tir.serial(0, keys) as key:
            for g in groups:
                tir.store(self.kernel.p, weight(key, g), key, g * tir.LANES)


class Pairs(Numbers):
    """Words of two numbers of bfloat16 are multiplied: of two d, or of two keys."""

    tile = PairTile

    def __init__(self, kernel: Any, params: Mapping[str, Any]) -> None:
        super().__init__(kernel, {})
        self.query_words = bool(params.get("q_words"))
        self.depth = kernel.d // 2
        if not params.get("k_words"):
            self.keys = Rounded(kernel, kernel.k, "hk", kernel.keys, self.depth)
        zipped: type[Zipped] = ZippedWords if params.get("v_words") else Zipped
        self.values = self.zipped = zipped(kernel, kernel.v, "hv", kernel.keys // 2, kernel.dv)

    def put_queries(self, queries: list[tir.Expr], lane: tir.Expr) -> None:
        """qt[d / 2, lane] = words of q[queries, hq, d], which are not scaled."""
        qt = self.kernel.qt

        def square(d: tir.Expr, lanes: int) -> None:
            columns = tir.transpose(self.query_rows(queries, d, lanes))
            if self.query_words:
                for i, words in enumerate(columns):
                    tir.store(qt, words, d + i, lane)
                return
            for i in range(0, tir.LANES, 2):
                words = pairs.lane_pairs(tir.keep(columns[i]), tir.keep(columns[i + 1]))
                tir.store(qt, words, d // 2 + i // 2, lane)

        tir.chunks(int(self.kernel.q.shape[2]), square)

    def put_query(self, query: tir.Expr, q: tir.Buffer) -> None:
        """Words of q[query, hq, d], which are not scaled."""

        def load(d: tir.Expr, lanes: int) -> tir.Expr:
            return tir.keep(self.query_rows([query], d, lanes)[0])

        def words(d: tir.Expr, numbers: int) -> None:
            vectors = halves(lambda at, n: load(d + at, n), numbers)
            tir.store(q, pairs.as_pairs(*vectors), d // 2)

        if self.query_words:
            tir.chunks(self.depth, lambda d, n: tir.store(q, load(d, n), d))
        else:
            word_chunks(self.kernel.d, words)

    def add_products(self, keys: Sequence[tir.Expr], q: tir.Buffer, score: tir.Variable) -> None:
        """Add the products of 16 keys and a query to their scores, which are 0."""
        rounds = isinstance(self.keys, Rounded)

        def words(key: tir.Expr, w: tir.Expr, lanes: int) -> tir.Expr:
            if not rounds:
                return self.keys.vector(key, w, lanes)
            vectors = halves(lambda at, n: self.keys.vector(key, w * 2 + at, n), 2 * lanes)
            return tir.keep(pairs.as_pairs(*vectors))

        def square(w: tir.Expr, lanes: int) -> None:
            rows = [words(key, w, lanes) for key in keys]
            for i, column in enumerate(tir.transpose(rows)[:lanes]):
                score.set(pairs.dot_pairs(column, tir.keep(tir.splat(q[w + i])), score.value))

        tir.chunks(self.depth, square)

    def scaled(self, score: tir.Expr) -> tir.Expr:
        """A sum of products as a score."""
        return tir.keep(score * tir.splat(self.kernel.scale))

    def steps(self, keys: tir.Expr) -> tir.Expr:
        """Two keys each."""
        return (keys + 1) // 2

    def put_weights(self, keys: tir.Expr, groups: range, weight: Weight) -> None:
        """p[key / 2, lane] = words of the weights of two keys.

        They are where scores were, which are read before: those of keys 2 i and 2 i + 1 at i.
        """
        p = self.kernel.p
        with tir.serial(tir.int64(0), keys // 2) as i:
            for g in groups:
                both = (tir.keep(weight(i * 2 + odd, g)) for odd in range(2))
                tir.store(p, pairs.lane_pairs(*both), i, g * tir.LANES)
        with tir.when(keys % 2 == 1):
            for g in groups:
                last = tir.keep(weight(keys - 1, g))
                tir.store(p, pairs.lane_pairs(last, tir.splat(0)), keys // 2, g * tir.LANES)


def operands_of(kernel: Any, params: Mapping[str, Any], target: CpuLevel) -> Numbers:
    """What a kernel multiplies on a target."""
    in_pairs = params.get("dtype") == "bfloat16" and target.multiplies_pairs
    return (Pairs if in_pairs else Numbers)(kernel, params)

"""attention: softmax(scale * q K^T + bias) V for one head, one block of queries and one contiguous range of live keys.

PIT axis: queries and keys, both packed; the micro-tile is one row of either. *Queries lie in lanes*: a block of queries is
transposed once, and then both contractions have the shape of `gather_gemm` with K and V read in place, row by row, as
broadcast operands, and the softmax works lane by lane without a horizontal step.

    for each block of at most 64 queries:                    qt[d, lane] = scale * q
        for each block of keys:                              online softmax: nothing grows with the key range
            s[key, lane] = k[key] . qt (+ bias), running maximum m
            p = exp(s - m), running sum l
            o[dv, lane] = o * exp(m_before - m) + sum over keys of v[key, dv] * p[key, lane]
        out = o / l

Every lane runs the same operations in the same order whatever its neighbours are, so a query's bits do not depend on the
block it is in. Short blocks use narrower tiles; lanes without a query repeat the last one and are dropped.
A sum that is not above 0 is the sign of a row without keys or with a NaN softmax.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pitc.codegen import tir
from pitc.codegen.targets import Target
from pitc.codegen.variant import Tile, Variant, derive_micro_tile
from pitc.codegen.vector_math import exp

KEY_BLOCK = 192
"""Keys per step of the online softmax: a multiple of 16 and of every tile height; from 96 to 384 it measured equal."""
UNROLL = 4


def variant(params: Mapping[str, Any], target: Target) -> Variant:
    """The family at the target's widest register tile."""
    dense = Tile.of(query=target.attention_lanes[0], key=KEY_BLOCK, d=params["d"], dv=params["dv"])
    micro = derive_micro_tile(dense, ("key", "d"), "key")
    return Variant("attention", dense, micro, "float32", target)


def prim_func(symbol: str, params: Mapping[str, Any], target: Target) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `d`, `dv`, `bias`.
        target: CPU level.
    """
    return tir.prim_func(symbol, lambda: _Attention(params, target).emit())


class _Attention:
    """Emits one kernel; the attributes are its arguments and scratch arrays."""

    def __init__(self, params: Mapping[str, Any], target: Target) -> None:
        self.d, self.dv, self.bias = params["d"], params["dv"], None
        self.shapes = list(zip(target.attention_lanes, target.attention_rows, strict=True))
        self.width = width = target.attention_lanes[0]
        tq, tk, xq, xk, xv, heads = (tir.size() for _ in range(6))
        self.q = tir.tensor("q", (tq, xq, self.d))
        self.k = tir.tensor("k", (tk, xk, self.d))
        self.v = tir.tensor("v", (tk, xv, self.dv))
        if params["bias"]:
            self.bias = tir.tensor("bias", (tir.size(),))
            self.qpos = tir.tensor("qpos", (tq,), "int32")
            self.kpos = tir.tensor("kpos", (tk,), "int32")
        self.out = tir.tensor("out", (tq, heads, self.dv))
        self.scale = tir.float_scalar("scale")
        names = ["nan_to_zero", "hq", "hk", "hv", "ho", "q0", "q1", "k0", "k1"]
        names += ["bias_base", "bias_sq", "bias_sk"] if params["bias"] else []
        self.at = dict(zip(names, tir.scalars(*names), strict=True))
        padded_d, padded_dv = (-(-x // tir.LANES) * tir.LANES for x in (self.d, self.dv))
        self.qt = tir.workspace(padded_d, width)
        self.p = tir.workspace(KEY_BLOCK, width)
        self.o = tir.workspace(padded_dv, width)

    def emit(self) -> None:
        """Query blocks, widest register tile first."""
        q0, q1 = self.at["q0"], self.at["q1"]
        for lanes, rows in self.shapes:
            last = (lanes, rows) == self.shapes[-1]
            count = q1 - q0
            blocks = tir.bind((count + lanes - 1) // lanes if last else count // lanes)
            with tir.serial(0, blocks) as b:
                start = tir.bind(q0 + b * lanes)
                self.query_block(start, tir.smaller(tir.int64(lanes), q1 - start), lanes, rows)
            q0 = tir.bind(q0 + blocks * lanes)

    def query_block(self, q0: tir.Expr, count: tir.Expr, lanes: int, rows: int) -> None:
        """All keys for `count` <= `lanes` queries from row q0 on."""
        groups = range(lanes // tir.LANES)
        last_query = tir.bind(q0 + count - 1)
        self.load_queries(q0, last_query, len(groups))
        top, total = [tir.Variable() for _ in groups], [tir.Variable() for _ in groups]
        for g in groups:
            top[g].set(tir.splat(float("-inf")))
            total[g].set(tir.splat(0))
        k0, keys = self.at["k0"], tir.bind(self.at["k1"] - self.at["k0"])
        with tir.serial(0, (keys + KEY_BLOCK - 1) // KEY_BLOCK) as kb:
            start = tir.bind(k0 + kb * KEY_BLOCK)
            here = tir.bind(tir.smaller(tir.int64(KEY_BLOCK), self.at["k1"] - start))
            before = [tir.keep(top[g].value) for g in groups]
            if self.bias is not None:
                self.load_bias(q0, last_query, start, here, rows, len(groups))
            self.scores(start, here, rows, top)
            # A row whose keys so far are all -inf keeps the sum 0: subtract 0 and not -inf from its scores.
            low = tir.splat(float("-inf"))
            pivot = [tir.keep(tir.select(t.value == low, tir.splat(0), t.value)) for t in top]
            decay = [tir.keep(exp(tir.keep(before[g] - pivot[g]), nonpositive=True)) for g in groups]
            for g in groups:
                total[g].set(total[g].value * decay[g])
            with tir.serial(0, here) as key:
                for g in groups:
                    s = tir.load(self.p, key, g * tir.LANES)
                    p = exp(tir.keep(s - pivot[g]), nonpositive=True)
                    tir.store(self.p, p, key, g * tir.LANES)
                    total[g].set(total[g].value + p)
            self.values(kb == 0, start, here, rows, decay)
        self.store_out(q0, count, [t.value for t in total])

    def load_queries(self, q0: tir.Expr, last: tir.Expr, groups: int) -> None:
        """qt[d, lane] = scale * q[q0 + lane, hq, d]."""
        scale = tir.keep(tir.splat(self.scale))
        with tir.serial(0, tir.int64(groups)) as g:
            row = [tir.bind(tir.smaller(q0 + g * tir.LANES + i, last)) for i in range(tir.LANES)]

            def block(d: tir.Expr, lanes: int) -> None:
                rows = [tir.load(self.q, r, self.at["hq"], d, lanes=lanes) * scale for r in row]
                for i, column in enumerate(tir.transpose(rows)):
                    tir.store(self.qt, column, d + i, g * tir.LANES)

            tir.chunks(self.d, block)

    def scores(
        self, k0: tir.Expr, count: tir.Expr, rows: int, top: Sequence[tir.Variable]
    ) -> None:
        """p[key, lane] = k[k0 + key] . qt (+ p); top = max(top, p). The last row tile repeats its last key."""
        groups = range(len(top))
        with tir.serial(0, (count + rows - 1) // rows) as t:
            first = tir.bind(t * rows)
            key = [tir.bind(k0 + tir.smaller(first + r, count - 1)) for r in range(rows)]
            acc = [[tir.Variable() for _ in groups] for _ in range(rows)]

            def step(d: tir.Expr) -> None:
                q = [tir.keep(tir.load(self.qt, d, g * tir.LANES)) for g in groups]
                for r in range(rows):
                    k = tir.keep(tir.splat(self.k[key[r], self.at["hk"], d]))
                    for g in groups:
                        acc[r][g].set(tir.fma(k, q[g], acc[r][g].value))

            for r in range(rows):
                for g in groups:
                    acc[r][g].set(tir.splat(0))
            tir.unrolled(tir.int64(self.d), UNROLL, step, self.d % UNROLL)
            for r in range(rows):
                for g in groups:
                    at = (first + r, g * tir.LANES)
                    s = acc[r][g].value
                    if self.bias is not None:
                        s = tir.keep(s + tir.load(self.p, *at))
                    tir.store(self.p, s, *at)
                    top[g].set(tir.maximum(s, top[g].value))

    def values(
        self, first: tir.Expr, k0: tir.Expr, count: tir.Expr, rows: int, decay: Sequence[tir.Expr]
    ) -> None:
        """o[dv, lane] = o * decay + sum over keys of v[k0 + key, dv] * p[key, lane]."""
        groups = range(len(decay))

        def tile(dv: tir.Expr, height: int) -> None:
            acc = [[tir.Variable() for _ in groups] for _ in range(height)]
            places = [(r, g) for r in range(height) for g in groups]

            def clear() -> None:
                for r, g in places:
                    acc[r][g].set(tir.splat(0))

            def resume() -> None:
                for r, g in places:
                    acc[r][g].set(tir.load(self.o, dv + r, g * tir.LANES) * decay[g])

            def step(key: tir.Expr) -> None:
                p = [tir.keep(tir.load(self.p, key, g * tir.LANES)) for g in groups]
                for r in range(height):
                    v = tir.keep(tir.splat(self.v[k0 + key, self.at["hv"], dv + r]))
                    for g in groups:
                        acc[r][g].set(tir.fma(v, p[g], acc[r][g].value))

            tir.either(first, clear, resume)
            tir.unrolled(count, UNROLL, step, 1)
            for r, g in places:
                tir.store(self.o, acc[r][g].value, dv + r, g * tir.LANES)

        full, rest = divmod(self.dv, rows)
        if full:
            with tir.serial(0, tir.int64(full)) as t:
                tile(tir.bind(t * rows), rows)
        if rest:
            tile(tir.int64(full * rows), rest)

    def store_out(self, q0: tir.Expr, count: tir.Expr, total: Sequence[tir.Expr]) -> None:
        """out[q0 + lane, ho, dv] = o[dv, lane] / total."""
        nan, zero = tir.splat(float("nan")), tir.splat(0)
        fill = tir.keep(tir.choose(tir.splat_bool(self.at["nan_to_zero"] != 0), zero, nan))
        for g, sum_ in enumerate(total):
            inverse = tir.keep(tir.splat(1) / sum_)
            # Loops over lanes stop at `count`, which may lie before this lane group.
            live = tir.bind(tir.smaller(count - g * tir.LANES, tir.int64(tir.LANES)))

            def block(dv: tir.Expr, lanes: int, g: int = g, inverse: tir.Expr = inverse, sum_: tir.Expr = sum_, live: tir.Expr = live) -> None:
                rows = []
                for i in range(tir.LANES):
                    o = tir.load(self.o, dv + i, g * tir.LANES) * inverse
                    rows.append(tir.select(sum_ > zero, o, fill))
                for i, row in enumerate(tir.transpose(rows)):
                    with tir.when(live > i):
                        tir.store(self.out, row, q0 + g * tir.LANES + i, self.at["ho"], dv, lanes=lanes)

            tir.chunks(self.dv, block)

    def load_bias(
        self,
        q0: tir.Expr,
        last: tir.Expr,
        k0: tir.Expr,
        count: tir.Expr,
        rows: int,
        groups: int,
    ) -> None:
        """p[key, lane] = the bias of query q0 + lane and key k0 + key; short row tiles repeat the last key.

        Bias memory is contiguous along keys and p along queries, hence squares of 16 x 16 are transposed.
        """
        if self.bias is None:
            return
        bias, at = self.bias, self.at
        end = tir.bind((count + rows - 1) // rows * rows)

        def offset(lane: tir.Expr, key: tir.Expr) -> tir.Expr:
            query = tir.index_of(self.qpos, tir.smaller(q0 + lane, last))
            return at["bias_base"] + query * at["bias_sq"] + key * at["bias_sk"]

        with tir.serial(0, (end + tir.LANES - 1) // tir.LANES) as t:
            first = tir.bind(t * tir.LANES)
            start = tir.index_of(self.kpos, k0 + first)
            stop = tir.index_of(self.kpos, k0 + tir.smaller(first + tir.LANES, count) - 1)

            def square() -> None:
                with tir.serial(0, tir.int64(groups)) as g:
                    lane = tir.bind(g * tir.LANES)
                    queries = [
                        tir.load(bias, tir.bind(offset(lane + i, start))) for i in range(tir.LANES)
                    ]
                    for i, row in enumerate(tir.transpose(queries)):
                        tir.store(self.p, row, first + i, lane)

            def single() -> None:
                with tir.serial(0, tir.int64(tir.LANES)) as i:
                    at_key = tir.bind(k0 + tir.smaller(first + i, count - 1))
                    key = tir.index_of(self.kpos, at_key)
                    with tir.serial(0, tir.int64(groups * tir.LANES)) as lane:
                        value = bias[tir.bind(offset(lane, key))]
                        tir.assign(self.p, value, first + i, lane)

            # Positions ascend, so 16 keys that span 16 positions have no gap between them.
            dense = tir.both(stop - start == tir.LANES - 1, at["bias_sk"] == 1)
            tir.either(dense, square, single)

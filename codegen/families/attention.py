"""attention: softmax(scale * q K^T + bias) V of one head, for a range of queries and live keys.

PIT axes: query and key, both packed; the micro-tile is one row of either. *Queries lie in lanes*: a
block of queries is transposed once; then both contractions have the shape of `gather_gemm`, K and V
are read in place, row by row, as broadcast operands, and softmax needs no horizontal step.

    for each block of queries:              qt[d, lane] = scale * q
        for each block of keys:             (online softmax: no scratch grows with the keys)
            p[key, lane] = k[key] . qt (capped: cap * tanh of it) + bias;  running maximum m
            p = exp(p - m);  running sum l
            o[dv, lane] = o * exp(m before - m) + sum over keys of v[key, dv] * p[key, lane]
        out = o / l                         (with a sink: m starts as it, l has exp(sink - m) more)

Sums over the keys of a block are chains of their own, so that long ones lose no digits. Every lane
runs the same operations in the same order whatever its neighbours are, so the bits of a query do
not depend on its block. Short blocks use a narrower tile; lanes without a query repeat the
last one and are dropped; one query alone has another way (`attention_query.py`) to the same bits. A
sum l not above 0 marks a row without keys or with a NaN softmax.

With `pairs` the keys of a call are those of a list, each with 32 bits: which of the call's at most
32 queries see it. To the others its score is -inf. The queries are those of a list, too. As K and V
are broadcast, a micro-tile of one key costs no more than one of many.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.cpu import Read
from pitc.codegen.engines.pairs import instructions
from pitc.codegen.families.attention_numbers import Pairs, operands_of
from pitc.codegen.families.attention_operands import WORD
from pitc.codegen.families.attention_pairs import PairQuery
from pitc.codegen.families.attention_query import OneQuery
from pitc.codegen.families.attention_steps import ScoreSteps, WeightSteps, add_rounded
from pitc.codegen.families.attention_tiles import TileProducts
from pitc.codegen.vector_math import exp, tanh
from pitc.ir.target import CpuLevel

KEY_BLOCK = 192
"""Keys per online step, a multiple of 16 and of all tile heights; 96 to 384 measured equal."""
ROUNDED_KEY_BLOCK = 576
"""The same where weights are rounded: up to it, no score is computed twice."""
UNROLL = 2
MAX_WIDTH = 256
"""Largest head width: it bounds the workspace, (d + dv + keys of a block) * lanes floats."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one kernel (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `d`, `dv`, `bias`; perhaps `pairs`, `sink`, `score_cap`, `score_steps`,
            `weight_steps`; of bfloat16, whose widths are even, `q_words`, `k_words`, `v_words` and
            `rounds_result`.
        target: CPU level.
    """
    widths = params["d"], params["dv"]
    if not all(1 <= width <= MAX_WIDTH for width in widths):
        raise ValueError(f"no attention kernel for {dict(params)}: widths are 1 to {MAX_WIDTH}")
    if params.get("dtype") == "bfloat16" and any(width % 2 for width in widths):
        raise ValueError(f"no attention kernel for {dict(params)}: words are of two numbers")

    def emit() -> None:
        kernel = Kernel(params, target)
        with instructions(params, target), kernel.unit():
            kernel.emit()

    return tir.prim_func(symbol, emit)


class Kernel:
    """Emits one kernel: its arguments, scratch arrays and query blocks."""

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        self.d, self.dv, self.bias = params["d"], params["dv"], None
        self.shapes = list(zip(target.attention_lanes, target.attention_rows, strict=True))
        tq, tk, xq, xk, xv, heads = (tir.size() for _ in range(6))
        widths = {"q": self.d, "k": self.d, "v": self.dv}
        widths = {x: n // 2 if params.get(f"{x}_words") else n for x, n in widths.items()}
        self.q = tir.tensor("q", (tq, xq, widths["q"]))
        self.k = tir.tensor("k", (tk, xk, widths["k"]))
        self.v = tir.tensor("v", (tk, xv, widths["v"]))
        if params["bias"]:
            self.bias = tir.tensor("bias", (tir.size(),))
            self.qpos = tir.tensor("qpos", (tq,), "int32")
            self.kpos = tir.tensor("kpos", (tk,), "int32")
        self.pairs = self.order = None
        if params.get("pairs"):
            entries = tir.size()
            self.pairs = tuple(tir.tensor(n, (entries,), "int32") for n in ("keys", "seen_by"))
            self.order = tir.tensor("order", (tq,), "int32")
        self.rounds_result = bool(params.get("rounds_result"))
        stored = "uint16" if self.rounds_result else "float32"
        self.out = tir.tensor("out", (tq, heads, self.dv), stored)
        self.scale = tir.float_scalar("scale")
        self.sink = tir.float_scalar("sink") if params.get("sink") else None
        self.cap = tir.float_scalar("cap") if params.get("score_cap") else None
        self.score_steps = self.weight_steps = None
        if params.get("score_steps"):
            self.score_steps = ScoreSteps(*map(tir.float_scalar, ("lowest", "highest", "unit")))
        if params.get("weight_steps"):
            self.weight_steps = WeightSteps(*map(tir.float_scalar, ("step", "most")))
        self.keys = KEY_BLOCK if self.weight_steps is None else ROUNDED_KEY_BLOCK
        names = ["nan_to_zero", "hq", "hk", "hv", "ho", "q0", "q1", "k0", "k1"]
        names += ["bias_base", "bias_sq", "bias_sk"] if params["bias"] else []
        self.at = dict(zip(names, tir.scalars(*names), strict=True))
        lanes = target.attention_lanes[0]
        unit = target.multiplies_tiles
        if unit and (self.pairs or self.score_steps or self.weight_steps):
            raise ValueError(f"no attention kernel of tiles for {dict(params)}")
        padded_d, padded_dv = (-(-x // WORD) * WORD for x in (self.d, self.dv))
        self.qt = tir.workspace(padded_d, lanes)
        self.p = tir.workspace(self.keys, lanes)
        self.o = tir.workspace(padded_dv * (2 if unit else 1), lanes)
        self.biases = tir.workspace(self.keys, lanes) if unit and params["bias"] else self.p
        self.products = TileProducts(self, params, target) if unit else None
        self.operands = self.products or operands_of(self, params, target)

    def unit(self) -> AbstractContextManager[None]:
        """Statements that may use a matrix unit, if the kernel does."""
        return nullcontext() if self.products is None else self.products.tiles.used()

    def emit(self) -> None:
        """One query by itself, or blocks of them; what is rounded to steps, and tiles, have blocks
        only.
        """
        if self.score_steps or self.weight_steps or self.products:
            self.emit_blocks()
            return
        start = self.at["q0"]
        alone = PairQuery if isinstance(self.operands, Pairs) else OneQuery
        one = alone(self, start, KEY_BLOCK, UNROLL)
        tir.either(self.at["q1"] - start == 1, one.emit, self.emit_blocks)

    def least(self) -> tir.Expr:
        """What maxima of scores start at."""
        return tir.splat(float("-inf") if self.sink is None else self.sink)

    def with_sink(self, total: tir.Expr, pivot: tir.Expr) -> tir.Expr:
        """A sum of weights, and the sink's, which has no value; an infinite one gives NaN."""
        if self.sink is None:
            return total
        score = tir.keep(tir.splat(self.sink) - pivot)
        return tir.keep(total + exp(score, nonpositive=True))

    def capped(self, score: tir.Expr) -> tir.Expr:
        """A vector of scores: cap * tanh(score), where there is a cap."""
        return score if self.cap is None else tir.keep(tanh(score) * tir.splat(self.cap))

    def key(self, number: tir.Expr) -> tir.Expr:
        """The row of a key in K and V: it is that of the list, if there is one."""
        return number if self.pairs is None else tir.index_of(self.pairs[0], number)

    def store(self, row: tir.Expr, *at: tir.Expr, lanes: int) -> None:
        """Store numbers of the result."""
        put = pairs.store_halves if self.rounds_result else tir.store
        put(self.out, row, *at, lanes=lanes)

    def query(self, number: tir.Expr) -> tir.Expr:
        """The row of a query: it is that of the order, if there is one."""
        return number if self.order is None else tir.index_of(self.order, number)

    def emit_blocks(self) -> None:
        """Query blocks, those of the widest register tile first."""
        start, stop = self.at["q0"], self.at["q1"]
        keys = tir.hold(self.at["k1"] - self.at["k0"])
        if self.operands.copies:  # once, where all keys are one block
            with tir.when(keys <= self.keys):
                self.operands.bring(self.at["k0"], keys)
        for lanes, rows in self.shapes:
            left = stop - start
            last = (lanes, rows) == self.shapes[-1]
            blocks = tir.bind((left + lanes - 1) // lanes if last else left // lanes)
            with tir.serial(0, blocks) as b:
                q0 = tir.bind(start + b * lanes)
                count = tir.bind(tir.smaller(tir.int64(lanes), stop - q0))
                QueryBlock(self, q0, count, lanes, rows).emit()
            start = tir.bind(start + blocks * lanes)


class QueryBlock:
    """Emits `count` queries from row `q0` on, in `lanes` lanes, against all keys."""

    def __init__(
        self, kernel: Kernel, q0: tir.Expr, count: tir.Expr, lanes: int, rows: int
    ) -> None:
        self.kernel, self.q0, self.count, self.rows = kernel, q0, count, rows
        self.groups = range(lanes // tir.LANES)
        self.last = tir.bind(q0 + count - 1)
        self.top, self.total = ([tir.Variable() for _ in self.groups] for _ in range(2))

    def emit(self) -> None:
        """The loop over key blocks."""
        kernel, top, total = self.kernel, self.top, self.total
        self.load_queries()
        for g in self.groups:
            top[g].set(kernel.least())
            total[g].set(tir.splat(0))
        count = kernel.at["k1"] - kernel.at["k0"]
        blocks = tir.bind((count + kernel.keys - 1) // kernel.keys)
        with tir.serial(0, blocks) as kb:
            k0, keys = self.key_block(kb)
            if kernel.operands.copies:
                with tir.when(count > kernel.keys):
                    kernel.operands.bring(k0, keys)
            before = [tir.keep(t.value) for t in top]
            self.scores(k0, keys)
            pivot = self.pivot()
            decay = [exp(tir.keep(before[g] - pivot[g]), nonpositive=True) for g in self.groups]
            self.exponentials(keys, pivot, decay)
            if kernel.weight_steps is None:
                self.values(kb == 0, k0, keys, decay)
        if kernel.sink is not None:
            with tir.when(blocks == 0):
                self.clear()
            for t, pivot in zip(total, self.pivot(), strict=True):
                t.set(kernel.with_sink(t.value, pivot))
        if kernel.weight_steps is None:
            self.store_out([tir.keep(tir.splat(1) / t.value) for t in total])
        else:
            self.store_out(add_rounded(self, kernel.weight_steps, blocks, self.pivot()))

    def key_block(self, number: tir.Expr) -> tuple[tir.Expr, tir.Expr]:
        """First key of a block, and how many it has."""
        size = self.kernel.keys
        k0 = tir.bind(self.kernel.at["k0"] + number * size)
        return k0, tir.bind(tir.smaller(tir.int64(size), self.kernel.at["k1"] - k0))

    def pivot(self) -> list[tir.Expr]:
        """What to subtract from scores: the maxima so far; 0 and not -inf while all keys of a row
        were -inf, as its sum must stay 0.
        """
        lowest, zero = tir.splat(float("-inf")), tir.splat(0)
        return [tir.keep(tir.select(t.value == lowest, zero, t.value)) for t in self.top]

    def clear(self) -> None:
        """Make o 0: without keys it is undefined, but a sink has weight."""
        with tir.serial(0, tir.int64(self.kernel.dv)) as dv:
            for g in self.groups:
                tir.store(self.kernel.o, tir.splat(0), dv, g * tir.LANES)

    def load_queries(self) -> None:
        """Put queries into lanes."""
        kernel = self.kernel
        with tir.serial(0, tir.int64(len(self.groups))) as g:
            lane = tir.bind(g * tir.LANES)
            numbers = (tir.smaller(self.q0 + lane + i, self.last) for i in range(tir.LANES))
            queries = [tir.bind(kernel.query(number)) for number in numbers]
            kernel.operands.put_queries(queries, lane)

    def scores(self, k0: tir.Expr, keys: tir.Expr) -> None:
        """p[key, lane] = k[k0 + key] . qt (+ bias); top = max(top, p).

        The last row tile repeats its last key: no maximum changes, and later steps stop before it.
        """
        kernel, rows, operands = self.kernel, self.rows, self.kernel.operands
        if kernel.bias is not None:
            self.load_bias(k0, keys, kernel.bias)
        if kernel.products is not None:
            kernel.products.multiply_keys(keys, self.groups)
            with tir.serial(0, keys) as key:
                for g in self.groups:
                    s = tir.keep(tir.load(kernel.p, key, g * tir.LANES))
                    self.put_score(s, key, g)
            return
        with tir.serial(0, (keys + rows - 1) // rows) as t:
            first = tir.bind(t * rows)
            number = [tir.bind(tir.smaller(first + r, keys - 1)) for r in range(rows)]
            key = [operands.keys.at(k0, n) for n in number]
            tile = operands.tile(rows, len(self.groups))

            def read(d: tir.Expr) -> Read:
                return lambda r: key[r](d), lambda g: tir.load(kernel.qt, d, g * tir.LANES)

            tile.clear()
            depth = operands.depth
            tile.multiply(tir.int64(depth), UNROLL, read, rest=depth % UNROLL > 0)
            for r in range(rows):
                for g, s in enumerate(tile.row(r)):
                    seen = None
                    if kernel.pairs is not None:
                        seen = self.seen_by(kernel.pairs[1][k0 + number[r]], g)
                    self.put_score(s, first + r, g, seen)

    def put_score(
        self, products: tir.Expr, key: tir.Expr, g: int, seen: tir.Expr | None = None
    ) -> None:
        """Make scores of sums of products, and keep them."""
        kernel = self.kernel
        s = kernel.capped(kernel.operands.scaled(products))
        if kernel.score_steps is not None:
            s = kernel.score_steps.rounded(s)
        if kernel.bias is not None:
            s = tir.keep(s + tir.load(kernel.biases, key, g * tir.LANES))
        if seen is not None:
            s = tir.keep(tir.select(seen, s, tir.splat(float("-inf"))))
        tir.store(kernel.p, s, key, g * tir.LANES)
        self.top[g].set(tir.maximum(s, self.top[g].value))

    def seen_by(self, bits: tir.Expr, g: int) -> tir.Expr:
        """Which queries of a lane group see a key."""
        first = tir.hold(self.q0 - self.kernel.at["q0"]) + g * tir.LANES
        return tir.lanes_with_bit(bits, first)

    def exponentials(
        self, keys: tir.Expr, pivot: Sequence[tir.Expr], decay: Sequence[tir.Expr]
    ) -> None:
        """Make p = exp(p - pivot) and total = total * decay + the sum of p over the keys."""
        p, total = self.kernel.p, self.total
        here = [tir.Variable() for _ in self.groups]
        for g in self.groups:
            here[g].set(tir.splat(0))

        def weight(key: tir.Expr, g: int) -> tir.Expr:
            s = tir.load(p, key, g * tir.LANES)
            found = tir.keep(exp(tir.keep(s - pivot[g]), nonpositive=True))
            here[g].set(here[g].value + found)
            return found

        self.kernel.operands.put_weights(keys, self.groups, weight)
        for g in self.groups:
            total[g].set(tir.keep(total[g].value * decay[g]) + here[g].value)

    def values(
        self,
        first: tir.Expr,
        k0: tir.Expr,
        keys: tir.Expr,
        decay: Sequence[tir.Expr] | None = None,
    ) -> None:
        """o[dv, lane] = o (* decay) + sum over keys of v[k0 + key, dv] * p[key, lane].

        In the first key block o is undefined and counts as 0.
        """
        kernel, operands = self.kernel, self.kernel.operands
        if kernel.products is not None:
            assert decay is not None, "weights that are rounded to steps"
            kernel.products.multiply_values(first, keys, self.groups, decay)
            return

        def columns(dv: tir.Expr, height: int) -> None:
            tile = operands.tile(height, len(self.groups))

            def before(r: int, g: int) -> tir.Expr:
                sums = tir.load(kernel.o, dv + r, g * tir.LANES)
                return sums if decay is None else tir.keep(sums * decay[g])

            def read(number: tir.Expr) -> Read:
                value = operands.values.at(k0, number)
                return (
                    lambda r: value(dv + r),
                    lambda g: tir.load(kernel.p, number, g * tir.LANES),
                )

            tile.clear()
            tile.multiply(operands.steps(keys), UNROLL, read)
            with tir.when(tir.negated(first)):
                tile.add_each(before)
            for r in range(height):
                for g, total in enumerate(tile.row(r)):
                    tir.store(kernel.o, total, dv + r, g * tir.LANES)

        full, rest = divmod(kernel.dv, self.rows)
        if full:
            with tir.serial(0, tir.int64(full)) as t:
                columns(tir.bind(t * self.rows), self.rows)
        if rest:
            columns(tir.int64(full * self.rows), rest)

    def store_out(self, factor: Sequence[tir.Expr]) -> None:
        """out[q0 + lane, ho, dv] = o[dv, lane] * factor, or the fill where total is not above 0."""
        kernel = self.kernel
        zero, nan = tir.splat(0), tir.splat(float("nan"))
        to_zero = tir.splat_condition(kernel.at["nan_to_zero"] != 0)
        fill = tir.keep(tir.select(to_zero, zero, nan))
        for g in self.groups:
            self.store_group(g, tir.keep(self.total[g].value) > zero, factor[g], fill)

    def store_group(self, g: int, alive: tir.Expr, factor: tir.Expr, fill: tir.Expr) -> None:
        """Write the queries of one lane group."""
        kernel, lane = self.kernel, g * tir.LANES

        def square(dv: tir.Expr, lanes: int) -> None:
            sums = [tir.load(kernel.o, dv + i, lane) for i in range(tir.LANES)]
            columns = [tir.select(alive, o * factor, fill) for o in sums]
            for i, row in enumerate(tir.transpose(columns)):
                with tir.when(self.count > lane + i):
                    at = (kernel.query(self.q0 + lane + i), kernel.at["ho"], dv)
                    kernel.store(row, *at, lanes=lanes)

        tir.chunks(kernel.dv, square)

    def load_bias(self, k0: tir.Expr, keys: tir.Expr, bias: tir.Buffer) -> None:
        """p[key, lane] = bias of query q0 + lane and key k0 + key, the last key repeated.

        Memory is contiguous along keys and p along queries: squares of 16 x 16 are transposed.
        """
        kernel, at, rows = self.kernel, self.kernel.at, self.rows

        def place(lane: tir.Expr, key_position: tir.Expr) -> tir.Expr:
            row = kernel.query(tir.smaller(self.q0 + lane, self.last))
            query = tir.index_of(kernel.qpos, row)
            place = at["bias_base"] + query * at["bias_sq"] + key_position * at["bias_sk"]
            return tir.bind(place)

        used = tir.bind((keys + rows - 1) // rows * rows)
        with tir.serial(0, (used + tir.LANES - 1) // tir.LANES) as t:
            first = tir.bind(t * tir.LANES)
            head, tail = (
                tir.index_of(kernel.kpos, kernel.key(k0 + number))
                for number in (
                    tir.smaller(first, keys - 1),
                    tir.smaller(first + tir.LANES, keys) - 1,
                )
            )

            def square() -> None:
                with tir.serial(0, tir.int64(len(self.groups))) as g:
                    lane = tir.bind(g * tir.LANES)
                    queries = [tir.load(bias, place(lane + i, head)) for i in range(tir.LANES)]
                    for i, row in enumerate(tir.transpose(queries)):
                        tir.store(kernel.biases, row, first + i, lane)

            def single() -> None:
                with tir.serial(0, tir.int64(tir.LANES)) as i:
                    key = kernel.key(tir.bind(k0 + tir.smaller(first + i, keys - 1)))
                    position = tir.index_of(kernel.kpos, key)
                    with tir.serial(0, tir.int64(len(self.groups) * tir.LANES)) as lane:
                        tir.assign(kernel.biases, bias[place(lane, position)], first + i, lane)

            # Positions ascend, so 16 keys that span 16 positions have no gap between them.
            ascending = tir.both(first + tir.LANES <= keys, tail - head == tir.LANES - 1)
            dense = tir.both(ascending, at["bias_sk"] == 1)
            tir.either(dense, square, single)

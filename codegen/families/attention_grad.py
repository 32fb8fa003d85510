"""attention_grad: gradients of `attention` by queries, keys and values, of one head of a sequence.

    s = scale * q K^T + bias     p = softmax(s)     y = p V          g: the gradient of y
    dv = p^T g      w = p * (g V^T - sum over keys of p * (g V^T))
    dq = scale * w K                                  dk = scale * w^T q

PIT axes: query and key, both packed. Probabilities are computed anew, for one block of queries
after the other, so no array of queries x keys is there: scratch is two numbers for each key and
lane. Queries lie in lanes, as in `attention`:

    for each block of queries:      qt[d, lane] = scale * q, gt[dv, lane] = g
        p[key, lane] = exp(k[key] . qt - maximum);  total = the sum over keys
        w[key, lane] = v[key] . gt;  p = p / total;  mean = sum over keys of p * w
        w = p * (w - mean)
        dq[lane, d]   = scale * sum over keys of w[key, lane] * k[key, d]
        dv[key, dv]  += sum over lanes of p[key, lane] * g[lane, dv]
        dk[key, d]   += scale * sum over lanes of w[key, lane] * q[lane, d]

Blocks of queries are of a fixed size and run in their order, so the bits of dk and dv do not depend
on threads. The caller has set dk and dv to 0. Sums over keys are chains of `KEY_BLOCK` keys.

With `pairs` keys and queries are those of a list, as of `attention`: pairs that are not seen have
p = 0. A row that sees no key is NaN, as its softmax is.

With `zero`, all weights of a row that sees no key are 0.

With a `floor`, a row whose scores are all below it has w = 0: a mask has replaced them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.cpu import DenseTile, Read
from pitc.codegen.families.attention import KEY_BLOCK, MAX_WIDTH, UNROLL, Kernel, QueryBlock
from pitc.codegen.families.attention_numbers import Numbers
from pitc.codegen.families.attention_operands import InPlace
from pitc.codegen.vector_math import exp
from pitc.ir.target import CpuLevel


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one kernel (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `d`, `dv`, `bias`; perhaps `pairs`, `floor`, `zero`.
        target: CPU level.
    """
    if not all(1 <= params[width] <= MAX_WIDTH for width in ("d", "dv")):
        raise ValueError(f"no attention kernel for {dict(params)}: widths are 1 to {MAX_WIDTH}")
    return tir.prim_func(symbol, lambda: _Kernel(params, target).emit())


class _Kernel(Kernel):
    """Emits one kernel: its arguments, scratch arrays and query blocks."""

    def __init__(self, params: Mapping[str, Any], target: CpuLevel) -> None:
        self.sink = self.cap = self.score_steps = self.weight_steps = None
        self.d, self.dv, self.bias = params["d"], params["dv"], None
        self.shapes = list(zip(target.attention_lanes, target.attention_rows, strict=True))
        tq, tk, xq, xk, xv, xg, heads = (tir.size() for _ in range(7))
        self.q = tir.tensor("q", (tq, xq, self.d))
        self.k = tir.tensor("k", (tk, xk, self.d))
        self.v = tir.tensor("v", (tk, xv, self.dv))
        self.g = tir.tensor("g", (tq, xg, self.dv))
        if params["bias"]:
            self.bias = tir.tensor("bias", (tir.size(),))
            self.qpos = tir.tensor("qpos", (tq,), "int32")
            self.kpos = tir.tensor("kpos", (tk,), "int32")
        self.pairs = self.order = None
        if params.get("pairs"):
            entries = tir.size()
            self.pairs = tuple(tir.tensor(n, (entries,), "int32") for n in ("keys", "seen_by"))
            self.order = tir.tensor("order", (tq,), "int32")
        self.dq = tir.tensor("dq", (tq, heads, self.d))
        self.dk = tir.tensor("dk", (tk, heads, self.d))
        self.dvalues = tir.tensor("dv", (tk, heads, self.dv))
        self.scale = tir.float_scalar("scale")
        self.floor = tir.float_scalar("floor") if params.get("floor") else None
        self.of_no_key = 0 if params.get("zero") else float("nan")
        names = ["hq", "hk", "hv", "hg", "ho", "q0", "q1", "k0", "k1"]
        names += ["bias_base", "bias_sq", "bias_sk"] if params["bias"] else []
        self.at = dict(zip(names, tir.scalars(*names), strict=True))
        lanes, rows = target.attention_lanes[0], max(target.attention_rows)
        self.count = tir.bind(self.at["k1"] - self.at["k0"])
        padded_d, padded_dv = (-(-x // tir.LANES) * tir.LANES for x in (self.d, self.dv))
        self.qt = tir.workspace(padded_d, lanes)
        self.gt = tir.workspace(padded_dv, lanes)
        self.o = tir.workspace(padded_d, lanes)
        self.p = tir.workspace(self.count + rows + tir.LANES, lanes)  # the last tile has more rows
        self.w = tir.workspace(self.count + rows, lanes)
        self.biases, self.products = self.p, None
        self.operands = Numbers(self, params)

    def emit(self) -> None:
        """Blocks of queries, those of the widest register tile first."""
        start, stop = self.at["q0"], self.at["q1"]
        for lanes, rows in self.shapes:
            left, is_last = stop - start, (lanes, rows) == self.shapes[-1]
            blocks = tir.bind((left + lanes - 1) // lanes if is_last else left // lanes)
            with tir.serial(0, blocks) as b:
                q0 = tir.bind(start + b * lanes)
                count = tir.bind(tir.smaller(tir.int64(lanes), stop - q0))
                _Block(self, q0, count, lanes, rows).emit()
            start = tir.bind(start + blocks * lanes)


class _Block(QueryBlock):
    """Emits the gradients that `count` queries from `q0` on give, in `lanes` lanes."""

    kernel: _Kernel

    def emit(self) -> None:
        """The steps, each over all keys."""
        kernel = self.kernel
        self.load_queries()
        self.load_gradients()
        for g in self.groups:
            self.top[g].set(kernel.least())
            self.total[g].set(tir.splat(0))
        self.scores(kernel.at["k0"], kernel.count)
        self.probabilities()
        self.score_gradients()
        self.query_gradients()
        self.add_rows(kernel.p, kernel.g, "hg", kernel.dvalues, tir.splat(1))
        self.add_rows(kernel.w, kernel.q, "hq", kernel.dk, tir.keep(tir.splat(kernel.scale)))

    def key_blocks(self, emit: Callable[[tir.Expr, tir.Expr], None]) -> None:
        """Emit what is done with the keys first..stop-1 of each block, numbered from 0."""
        count = self.kernel.count
        with tir.serial(0, (count + KEY_BLOCK - 1) // KEY_BLOCK) as b:
            first = tir.bind(b * KEY_BLOCK)
            emit(first, tir.bind(tir.smaller(first + KEY_BLOCK, count)))

    def load_gradients(self) -> None:
        """gt[dv, lane] = g[query, hg, dv]."""
        kernel = self.kernel
        with tir.serial(0, tir.int64(len(self.groups))) as group:
            lane = tir.bind(group * tir.LANES)
            numbers = (tir.smaller(self.q0 + lane + i, self.last) for i in range(tir.LANES))
            queries = [tir.bind(kernel.query(number)) for number in numbers]

            def square(dv: tir.Expr, lanes: int) -> None:
                head = kernel.at["hg"]
                rows = [tir.load(kernel.g, row, head, dv, lanes=lanes) for row in queries]
                for i, column in enumerate(tir.transpose(rows)):
                    tir.store(kernel.gt, column, dv + i, lane)

            tir.chunks(kernel.dv, square)

    def probabilities(self) -> None:
        """Make p = exp(p - maximum), and their sums."""
        p, total, pivot = self.kernel.p, self.total, self.pivot()

        def block(first: tir.Expr, stop: tir.Expr) -> None:
            here = [tir.Variable() for _ in self.groups]
            for g in self.groups:
                here[g].set(tir.splat(0))
            with tir.serial(first, stop) as key:
                for g in self.groups:
                    score = tir.load(p, key, g * tir.LANES)
                    weight = tir.keep(exp(tir.keep(score - pivot[g]), nonpositive=True))
                    tir.store(p, weight, key, g * tir.LANES)
                    here[g].set(here[g].value + weight)
            for g in self.groups:
                total[g].set(total[g].value + here[g].value)

        self.key_blocks(block)

    def score_gradients(self) -> None:
        """Make w = p * (v . gt - sum over keys of p * (v . gt)), of p / total."""
        kernel, rows, means = self.kernel, self.rows, [tir.Variable() for _ in self.groups]
        none, values = tir.splat(kernel.of_no_key), InPlace(kernel, kernel.v, "hv")
        factors = [
            tir.keep(tir.select(t.value > tir.splat(0), tir.splat(1) / t.value, none))
            for t in self.total
        ]
        for g in self.groups:
            means[g].set(tir.splat(0))

        def tile_of(first: tir.Expr, stop: tir.Expr, here: list[tir.Variable]) -> None:
            numbers = [tir.bind(tir.smaller(first + r, stop - 1)) for r in range(rows)]
            value = [values.at(kernel.at["k0"], n) for n in numbers]
            tile = DenseTile(rows, len(self.groups))

            def read(dv: tir.Expr) -> Read:
                return (
                    lambda r: value[r](dv),
                    lambda g: tir.load(kernel.gt, dv, g * tir.LANES),
                )

            tile.clear()
            tile.multiply(tir.int64(kernel.dv), UNROLL, read, rest=kernel.dv % UNROLL > 0)
            for r in range(rows):
                with tir.when(first + r < stop):
                    for g, product in enumerate(tile.row(r)):
                        at = first + r, g * tir.LANES
                        weight = tir.keep(tir.load(kernel.p, *at) * factors[g])
                        tir.store(kernel.p, weight, *at)
                        tir.store(kernel.w, product, *at)
                        here[g].set(tir.fma(weight, product, here[g].value))

        def block(first: tir.Expr, stop: tir.Expr) -> None:
            here = [tir.Variable() for _ in self.groups]
            for g in self.groups:
                here[g].set(tir.splat(0))
            with tir.serial(0, (stop - first + rows - 1) // rows) as t:
                tile_of(tir.bind(first + t * rows), stop, here)
            for g in self.groups:
                means[g].set(means[g].value + here[g].value)

        self.key_blocks(block)
        one, zero, kept = tir.splat(1), tir.splat(0), list[tir.Expr]()
        if kernel.floor is not None:
            tops = (tir.keep(top.value) for top in self.top)
            kept = [tir.keep(tir.select(t > tir.splat(kernel.floor), one, zero)) for t in tops]
        with tir.serial(tir.int64(0), kernel.count) as key:
            for g in self.groups:
                at = key, g * tir.LANES
                apart = tir.keep(tir.load(kernel.w, *at) - means[g].value)
                found = tir.keep(tir.load(kernel.p, *at) * apart)
                if kept:
                    found = tir.select(kept[g] > zero, found, zero)
                tir.store(kernel.w, found, *at)

    def query_gradients(self) -> None:
        """dq[lane, d] = scale * sum over keys of w[key, lane] * k[key, d]."""
        kernel = self.kernel

        def columns(first: tir.Expr, height: int) -> None:
            tile = DenseTile(height, len(self.groups))
            for r in range(height):
                for g in self.groups:
                    tir.store(kernel.o, tir.splat(0), first + r, g * tir.LANES)

            def block(begin: tir.Expr, stop: tir.Expr) -> None:
                def read(number: tir.Expr) -> Read:
                    key = kernel.operands.keys.at(kernel.at["k0"] + begin, number)
                    return (
                        lambda r: key(first + r),
                        lambda g: tir.load(kernel.w, begin + number, g * tir.LANES),
                    )

                tile.clear()
                tile.multiply(tir.bind(stop - begin), UNROLL, read)
                tile.add_each(lambda r, g: tir.load(kernel.o, first + r, g * tir.LANES))
                for r in range(height):
                    for g, total in enumerate(tile.row(r)):
                        tir.store(kernel.o, total, first + r, g * tir.LANES)

            self.key_blocks(block)

        full, rest = divmod(kernel.d, self.rows)
        if full:
            with tir.serial(0, tir.int64(full)) as t:
                columns(tir.bind(t * self.rows), self.rows)
        if rest:
            columns(tir.int64(full * self.rows), rest)
        for g in self.groups:
            self.store_queries(g)

    def store_queries(self, g: int) -> None:
        """Write dq of the queries of one lane group."""
        kernel, lane, scale = self.kernel, g * tir.LANES, tir.keep(tir.splat(self.kernel.scale))

        def square(d: tir.Expr, lanes: int) -> None:
            columns = [tir.load(kernel.o, d + i, lane) * scale for i in range(tir.LANES)]
            for i, row in enumerate(tir.transpose(columns)):
                with tir.when(self.count > lane + i):
                    at = kernel.query(self.q0 + lane + i), kernel.at["ho"], d
                    tir.store(kernel.dq, row, *at, lanes=lanes)

        tir.chunks(kernel.d, square)

    def add_rows(
        self, weights: tir.Buffer, rows: tir.Buffer, head: str, to: tir.Buffer, factor: tir.Expr
    ) -> None:
        """to[key, ho] += factor * sum over queries of weights[key, query] * rows[query, head]."""
        width = int(to.shape[2])
        wide = len(self.groups) * tir.LANES
        with tir.serial(0, (self.kernel.count + self.rows - 1) // self.rows) as t:
            first = tir.bind(t * self.rows)
            if width >= wide:
                with tir.serial(0, tir.int64(width // wide)) as c:
                    self.add_tile(weights, rows, head, to, factor, first, tir.bind(c * wide), wide)
            if rest := width % wide:
                at = tir.int64(width - rest)
                self.add_tile(weights, rows, head, to, factor, first, at, rest)

    def add_tile(
        self,
        weights: tir.Buffer,
        rows: tir.Buffer,
        head: str,
        to: tir.Buffer,
        factor: tir.Expr,
        first: tir.Expr,
        column: tir.Expr,
        width: int,
    ) -> None:
        """Some keys and columns of it."""
        kernel, height = self.kernel, self.rows
        starts = range(0, width, tir.LANES)
        lanes = [min(tir.LANES, width - start) for start in starts]
        numbers = [tir.bind(tir.smaller(first + r, kernel.count - 1)) for r in range(height)]
        tile = DenseTile(height, len(starts))

        def read(i: tir.Expr) -> Read:
            row = tir.hold(kernel.query(self.q0 + i))
            return (
                lambda r: weights[numbers[r], i],
                lambda v: tir.load(rows, row, kernel.at[head], column + starts[v], lanes=lanes[v]),
            )

        tile.clear()
        tile.multiply(self.count, UNROLL, read)
        for r in range(height):
            with tir.when(first + r < kernel.count):
                key = tir.bind(kernel.key(kernel.at["k0"] + first + r))
                for v, total in enumerate(tile.row(r)):
                    at = key, kernel.at["ho"], column + starts[v]
                    before = tir.load(to, *at, lanes=lanes[v])
                    tir.store(to, tir.fma(total, factor, before), *at, lanes=lanes[v])

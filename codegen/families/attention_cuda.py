"""attention on a multiprocessor: softmax(scale * q K^T + bias) V, by sequences and heads.

PIT axes: query and key, both packed; the micro-tile is one row of either. A block takes a tile of
queries of one sequence and head, and goes over the sequence's keys once (`engines.attend`): nothing
of the size queries x keys is stored. Rows of queries stay in shared memory or in registers, K and V
come through a ring of slots.

The host knows neither how many rows are live nor where sequences begin (`sequences_cuda`).
The grid
is as large as the machine, and blocks take (tile, head) in turns, heads of one tile first.

With a formula of pairs (`sight_cuda`) it goes over the steps of keys that some query of the tile
sees. Then the last tiles come first: under a causal mask they see the most.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines import ring
from pitc.codegen.engines.attend import LOG2_E, STAGES, Attender, Softmax, hide_behind
from pitc.codegen.engines.attend_mma import FragmentAttention
from pitc.codegen.engines.attend_simt import ThreadAttention
from pitc.codegen.families import pair_tests_cuda, sight_cuda, sread
from pitc.codegen.families.bias_cuda import Bias, Places
from pitc.codegen.families.pair_tests_cuda import NOWHERE, SOMEWHERE
from pitc.codegen.families.sequences_cuda import Order, Rows, each_tile, part
from pitc.codegen.ptx import CHUNK_BYTES
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import TOGETHER, WARPS
from pitc.ir.seen import NO_PAIRS

ENGINES: Mapping[str, type[Attender]] = {"mma": FragmentAttention, "simt": ThreadAttention}

MAX_WIDTH = 256
"""Largest head width: it bounds registers and shared memory."""

_KINDS = (("mma", "float16"), ("mma", "bfloat16"), ("mma", "float32"), ("simt", "float32"))


def attention(name: str, params: Mapping[str, Any], engine: str) -> Any:
    """The TIR function of one kernel (arguments: `docs/plans.md`).

    Args:
        name: Its symbol.
        params: `dtype`, `d`, `dv`, `bias`, perhaps `sees`: which keys a query sees.
        engine: `mma` (float16, bfloat16, float32 as tf32), or `simt` (float32).

    Raises:
        ValueError: There is no such kernel.
    """
    widths = range(1, MAX_WIDTH + 1)
    known = (engine, params["dtype"]) in _KINDS
    if not (known and params["d"] in widths and params["dv"] in widths):
        raise ValueError(f"no {engine} attention kernel for {dict(params)}")
    return tir.prim_func(name, lambda: _Kernel(params).emit(ENGINES[engine]))


def _is_loose(dtype: str, columns: int) -> bool:
    """Whether rows of so many columns start anywhere."""
    return columns * tir.item_bytes(dtype) % CHUNK_BYTES != 0


class _Kernel:
    """Emits one kernel: its arguments, and the loop over tiles."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.dtype, self.d, self.dv = params["dtype"], params["d"], params["dv"]
        names = ("tq", "tk", "xq", "xk", "xv", "boundaries", "heads")
        tq, tk, xq, xk, xv, boundaries, heads = (tir.size(name) for name in names)
        self.q = tir.device_tensor("q", (tq, xq, self.d), self.dtype)
        self.k = tir.device_tensor("k", (tk, xk, self.d), self.dtype)
        self.v = tir.device_tensor("v", (tk, xv, self.dv), self.dtype)
        self.q_offsets = tir.device_tensor("q_offsets", (boundaries,), "int32")
        self.k_offsets = tir.device_tensor("k_offsets", (boundaries,), "int32")
        self.bias: Buffer | None = None
        self.tests: pair_tests_cuda.Tests | None = None
        if params["bias"]:
            self.bias = tir.device_tensor("bias", (tir.size("elements"),), "float32")
        if params["bias"] or params.get("sees"):
            self.qpos = tir.device_tensor("qpos", (tq,), "int32")
            self.kpos = tir.device_tensor("kpos", (tk,), "int32")
        if params.get("sees"):
            self.tests = pair_tests_cuda.Tests(params["sees"], boundaries - 1)
        self.out = tir.device_tensor("out", (tq, heads, self.dv), self.dtype)
        self.scale = tir.float_scalar("scale")
        scalars = ["nan_to_zero", "no_keys_to_zero", "hq", "hk", "hv"]
        if params["bias"]:
            scalars += ["bias_sequence", "bias_head", "bias_query", "bias_key"]
        if self.tests is not None:
            scalars += ["no_pairs"]
        self.at = {name: T.arg(name, T.int32()) for name in scalars}
        self.gate = tir.device_tensor("gate", (2,), "int32")
        self.number, self.blocks = T.arg("number", T.int32()), T.arg("blocks", T.int32())
        self.heads = heads
        self.out_words = self.out
        if tir.item_bytes(self.dtype) == 2:
            self.out_words = ptx.seen_as(self.out, "uint32")

    def emit(self, kind: type[Attender]) -> None:
        """Blocks take tiles in turns."""
        tile, pieces = kind.plan(self.dtype, self.d, self.dv, bias=self.bias is not None)
        with ptx.launch(self.blocks, WARPS * 32, TOGETHER) as (number, thread):
            looks = 0
            if self.tests is not None:
                looks = self.tests.places(pieces.size, tile.m).size
            block = ring.Block(WARPS * 32, thread, ptx.Window(pieces.size + looks))
            engine = kind(tile, pieces, block)
            order = Order.ANY if self.tests is None else Order.LAST_FIRST
            rows = Rows(self.q_offsets, self.q.shape[0], self.heads, tile.m, order)
            chosen = self.gate[0] == self.number
            with each_tile(rows, (number, self.blocks), thread, chosen) as at:
                made = Tile(self, engine, block, at.s, at.head, at.first, at.left)
                if self.tests is None:
                    made.emit()
                else:
                    made.emit_seen(self.tests)


class Tile:
    """Emits one tile of queries of a head against all keys of their sequence.

    Args:
        kernel: Its arguments.
        engine: Computes.
        block: Who copies.
        s: The sequence, int32.
        head: The head, int32.
        first: The first query, a row of q, int32.
        left: Queries of the sequence from there on, int32.
    """

    def __init__(
        self,
        kernel: _Kernel,
        engine: Attender,
        block: ring.Block,
        s: Expr,
        head: Expr,
        first: Expr,
        left: Expr,
    ) -> None:
        self.kernel, self.engine, self.block = kernel, engine, block
        self.s, self.head, self.first, self.left = s, head, first, left
        self.softmax = Softmax(engine, "2" if kernel.bias is None else "e")

    def emit(self) -> None:
        """Copy, go over all keys, and store."""
        kernel, engine, softmax = self.kernel, self.engine, self.softmax
        tile, pieces = engine.tile, engine.pieces
        k0, keys = part(kernel.k_offsets, self.s, kernel.k.shape[0])
        feed_q = self._feed(kernel.q, "hq", pieces.q, tile.m, self.first, self.left)
        feed_k = self._feed(kernel.k, "hk", pieces.k, tile.n, k0, keys)
        feed_v = self._feed(kernel.v, "hv", pieces.v, tile.n, k0, keys)
        after = ptx.registers(1, "int32")  # keys from a step on
        tir.assign(after, keys, 0)
        here = ptx.held(T.Cast("int32", engine.first < self.left), "int32")
        softmax.clear()
        bias = self._bias(k0)

        def compute(slot: Expr) -> None:
            with tir.when(here != 0):  # of the whole warp
                with tir.when(after[0] == keys):
                    engine.load_queries()
                engine.multiply_keys(slot)
                if bias is None:
                    self._scale()
                else:
                    bias.add(keys - after[0], after[0])
                with tir.when(after[0] < tile.n):
                    hide_behind(engine, after[0])
                softmax.step()
                engine.multiply_values(slot)
            tir.assign(after, after[0] - tile.n, 0)

        steps = ptx.held(ptx.steps(keys, tile.n), "int32")
        ring.run((feed_k, feed_v), pieces.slot_bytes, STAGES, steps, compute, once=feed_q)
        with tir.when(here != 0):
            self._store(keys)

    def emit_seen(self, tests: pair_tests_cuda.Tests) -> None:
        """Copy, go over the steps that some query sees, and store.

        Where rows that see none of some keys are the mean of all values, there is a second turn, if
        the block has such a row: over all steps, with scores of 0 in these rows alone.
        """
        kernel, engine, softmax = self.kernel, self.engine, self.softmax
        tile, pieces = engine.tile, engine.pieces
        k0, keys = part(kernel.k_offsets, self.s, kernel.k.shape[0])
        places = tests.places(pieces.size, tile.m)
        sight = sight_cuda.Sight(tests, engine, self.block, places, (kernel.kpos, k0, keys))
        sight.rows.prepare(self.s, kernel.qpos, self.first, self.left)
        feed_q = self._feed(kernel.q, "hq", pieces.q, tile.m, self.first, self.left)
        feed_k = self._feed(kernel.k, "hk", pieces.k, tile.n, k0, keys, sight)
        feed_v = self._feed(kernel.v, "hv", pieces.v, tile.n, k0, keys, sight)
        # Once, out of the loops: the compiler would keep the addresses of all copies.
        feed_q.start()
        feed_q.copy(T.int32(0), T.int32(0))
        ptx.commit()
        here = ptx.held(T.Cast("int32", engine.first < self.left), "int32")
        bias = self._bias(k0)
        softmax.clear()
        none = T.uint32(0)
        steps = ptx.held(ptx.steps(keys, tile.n), "int32")
        turns = 1 + T.Cast("int32", kernel.at["no_pairs"] == NO_PAIRS.index("mean"))
        with tir.serial(T.int32(0), ptx.held(turns, "int32")) as turn:
            again = turn > 0
            left = ptx.Register("int32", steps)
            with tir.when(again):
                asked = sight.find_blind(here != 0)
                left.set(T.Select(asked != 0, steps, T.int32(0)))
            with tir.serial(T.int32(0), ptx.steps(left.value, pair_tests_cuda.CHUNK)) as chunk:
                done = ptx.counter()
                listed = sight.steps.fill(chunk * pair_tests_cuda.CHUNK, steps, again)

                def compute(slot: Expr) -> None:
                    seen = ptx.held(sight.steps.seen(done.value), "int32")
                    with tir.when(tir.both(here != 0, done.value == 0)):
                        engine.load_queries()
                    with tir.when(tir.both(here != 0, seen != NOWHERE)):  # of the whole warp
                        step = ptx.held(sight.steps.step_of(done.value), "int32")
                        word = ptx.Register("uint32", ptx.uint32(sight_cuda.ALL))
                        with tir.when(seen == SOMEWHERE):
                            word.set(sight.bits(step))
                        with tir.when(again):
                            word.set(sight.blind)
                        sight.meet(word.value)
                        lanes = collective.ballot(word.value != none)
                        with tir.when(lanes != none):
                            hides = T.Or(seen == SOMEWHERE, again)
                            attend(slot, step, hides, word.value)
                    done.add(T.int32(1))

                def attend(slot: Expr, step: Expr, hides: Expr, word: Expr) -> None:
                    before = ptx.held(step * tile.n, "int32")
                    after = ptx.held(sight.rows.keys()[1] - before, "int32")
                    engine.multiply_keys(slot)
                    if bias is None:
                        self._scale()
                    else:
                        bias.add(before, after)
                    with tir.when(hides):
                        sight.hide(word, again)
                    with tir.when(after < tile.n):
                        hide_behind(engine, after)
                    softmax.step()
                    engine.multiply_values(slot)

                feeds = feed_k, feed_v
                ring.run(feeds, pieces.slot_bytes, STAGES, listed, compute)
        ptx.wait(0)  # queries of a tile that sees nothing are still on their way
        with tir.when(here != 0):
            self._store(keys)

    def _feed(
        self,
        tensor: Buffer,
        head: str,
        piece: ring.Piece,
        step: int,
        first: Expr,
        count: Expr,
        sight: sight_cuda.Sight | None = None,
    ) -> ring.Feed:
        """The copies of rows of a head; in the steps that are seen."""
        columns, tile = int(tensor.shape[2]), self.engine.tile
        filled = tile.columns if head == "hv" else tile.width
        number = self.kernel.at[head] + self.head
        heads = tensor.shape[1]
        rows = tir.flat(tensor), heads, columns, step, number, first, count
        source: ring.Source = (
            sread.HeadRows(*rows) if sight is None else sread.SeenRows(*rows, sight.steps.step_of)
        )
        loose = _is_loose(self.kernel.dtype, columns)
        return ring.Feed(self.block, piece, source, loose=loose, chunks=tile.chunks(filled))

    def _bias(self, k0: Expr) -> Bias | None:
        kernel, at = self.kernel, self.kernel.at
        if kernel.bias is None:
            return None
        queries = Places(kernel.qpos, self.first, at["bias_query"])
        keys = Places(kernel.kpos, k0, at["bias_key"])
        base = self.s * at["bias_sequence"] + self.head * at["bias_head"]
        return Bias(self.engine, kernel.bias, base, (queries, self.left), keys, kernel.scale)

    def _scale(self) -> None:
        """Scores in powers of 2."""
        scores = self.engine.scores
        factor = ptx.held(self.kernel.scale * T.float32(LOG2_E), "float32")
        for i in range(int(scores.shape[0])):
            tir.assign(scores, scores[i] * factor, i)

    def _store(self, keys: Expr) -> None:
        """Store sums / total, or the fill where total is not above 0."""
        kernel, engine = self.kernel, self.engine
        no_keys = tir.both(kernel.at["no_keys_to_zero"] != 0, keys == 0)
        to_zero = T.Or(kernel.at["nan_to_zero"] != 0, no_keys)
        blind: Expr | None = None
        if kernel.tests is not None:  # the total of a row that sees none is 0, and no NaN
            blind = tir.both(kernel.at["no_pairs"] == NO_PAIRS.index("zero"), keys > 0)
        for r, row in enumerate(engine.rows):
            total = self.softmax.total(r)
            none = to_zero
            if blind is not None:
                none = T.Or(none, tir.both(blind, total == T.float32(0)))
            fill = tir.keep(T.Select(none, T.float32(0), ptx.not_a_number()))
            inverse = tir.keep(T.float32(1) / total)
            places = (place for columns in engine.columns(r) for place in columns.places)
            alive = ptx.held(T.Cast("int32", total > T.float32(0)), "int32")
            values = [T.Select(alive != 0, engine.sums[x] * inverse, fill) for x in places]
            start = T.Cast("int64", self.first + row) * kernel.heads
            start = ptx.held((start + T.Cast("int64", self.head)) * kernel.dv, "int64")
            if _is_loose(kernel.dtype, kernel.dv):
                with tir.when(row < self.left):
                    self._put_elements(r, values, start)
            else:
                self._put_words(values, start, row < self.left)

    def _put_elements(self, r: int, values: list[Expr], start: Expr) -> None:
        """Store a row one by one."""
        kernel, left = self.kernel, iter(values)
        for columns in self.engine.columns(r):
            stored = [ptx.from_float(next(left), kernel.dtype) for _ in columns.places]
            there = ptx.held(kernel.dv - columns.column, "int32")
            element = start + T.Cast("int64", columns.column)
            ptx.store_run(kernel.out, stored, element, there)

    def _put_words(self, values: list[Expr], start: Expr, here: Expr) -> None:
        """Store a row by words of 32 bits."""
        kernel, tile = self.kernel, self.engine.tile
        per_word = 4 // tile.item
        for run in self.engine.words(values):
            inside = here if tile.columns == kernel.dv else tir.both(here, run.column < kernel.dv)
            with tir.when(inside):
                element = start + T.Cast("int64", run.column)
                ptx.store_run(kernel.out_words, run.words, element // per_word)

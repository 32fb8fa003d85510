"""Which keys the queries of a tile see, found where attention runs: no lists, no wait for a host.

    p0        what of 128 queries see steps of 32 keys (positions: query - key >= 0)
    step      0   1   2   3   4   5   6   7          queries 128..255
    sees      all all all all ?   ?   ?   ?          then none: these steps are not read

A formula of tests (`pitc.ir.seen`) is evaluated twice. Over a step of keys in three values, NOWHERE,
SOMEWHERE and EVERYWHERE, each thread for a step of its own: by the ends of positions and of numbers
in tables, and by flags of keys. Steps that are seen go into a list in shared memory, `CHUNK` of them
at a time, in order. Where a step is seen SOMEWHERE, each thread makes a word of bits of its rows and
keys, a formula of words. A warp that sees nothing of a step leaves it to the others.
"""

import operator
from collections.abc import Callable, Sequence

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.attend import Attender
from pitc.codegen.engines.ring import Block
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import WARPS
from pitc.ir.seen import (
    BOTH,
    EITHER,
    KEYS,
    NEGATE,
    PAIRS,
    POSITIONS,
    QUERIES,
    TABLES,
    Step,
    steps_of,
)

CHUNK = WARPS * 32
"""Steps that are looked at together: one for each thread."""
NOWHERE, SOMEWHERE, EVERYWHERE = 0, 1, 2
BYTES = (CHUNK + 2 * WARPS) * 4
"""Of shared memory: the list, how many steps each warp adds to it, and what each warp asks for."""
ALL = 0xFFFFFFFF


def _int64(value: Expr) -> Expr:
    return T.Cast("int64", value)


class Tests:
    """The arguments that tests look at, in the order of a call.

    Args:
        text: The formula.
        sequences: How many there are, int64.
    """

    def __init__(self, text: str, sequences: Expr) -> None:
        self.steps, self.sequences = steps_of(text), sequences
        ops = {"t" if step.op in TABLES else step.op for step in self.steps}
        eq, ek = tir.size("query_extent"), tir.size("key_extent")

        def declared(op: str, name: str, dtype: str, *shape: Expr) -> Buffer | None:
            lead = () if op == POSITIONS else (tir.size(f"{name}_rows"),)
            return tir.device_tensor(name, (*lead, *shape), dtype) if op in ops else None

        shape = tir.size("tests"), tir.int64(3)
        self.positions = declared(POSITIONS, "position_tests", "int64", *shape)
        self.of_queries = declared("t", "q_tables", "int64", eq)
        self.of_keys = declared("t", "k_tables", "int64", ek)
        self.keys = declared(KEYS, "key_flags", "int8", ek)
        self.queries = declared(QUERIES, "query_flags", "int8", eq)
        self.pairs = declared(PAIRS, "pair_flags", "int8", eq, ek)

    def position(self, number: int) -> tuple[Expr, Expr, Expr]:
        """The factors of the query's position and of the key's, and what is added, int64."""
        assert self.positions is not None
        x, y, z = (ptx.held(self.positions[number, i], "int64") for i in range(3))
        return x, y, z

    def row(self, number: int, s: Expr) -> Expr:
        """Of a test's numbers, or flags, those of a sequence: a row, int64."""
        return _int64(s) + self.sequences * number

    def element(self, buffer: Buffer | None, number: int, s: Expr, *places: Expr) -> Expr:
        """A number, or a flag; in bounds whatever places say."""
        assert buffer is not None
        inside = (
            _int64(T.max(T.min(place, ptx.int32(extent) - 1), T.int32(0)))
            for place, extent in zip(places, buffer.shape[1:], strict=True)
        )
        return buffer[(self.row(number, s), *inside)]


def _evaluated(
    steps: Sequence[Step],
    test: Callable[[Step], Expr],
    both: Callable[[Expr, Expr], Expr],
    either: Callable[[Expr, Expr], Expr],
    negated: Callable[[Expr], Expr],
    dtype: str,
) -> Expr:
    """Run a formula on values of some kind."""
    stack: list[Expr] = []
    met: dict[Step, Expr] = {}
    for step in steps:
        if step.op == NEGATE:
            stack.append(ptx.held(negated(stack.pop()), dtype))
        elif step.op in (BOTH, EITHER):
            y, x = stack.pop(), stack.pop()
            stack.append(ptx.held((both if step.op == BOTH else either)(x, y), dtype))
        else:
            if step not in met:
                met[step] = test(step)
            stack.append(met[step])
    return stack[0]


def _three_valued(nowhere: Expr, everywhere: Expr) -> Expr:
    """What two conditions say, int32."""
    some = T.Select(nowhere, T.int32(NOWHERE), T.int32(SOMEWHERE))
    return ptx.held(T.Select(everywhere, T.int32(EVERYWHERE), some), "int32")


class _Ends:
    """The least and the greatest of some int64 numbers, one at least."""

    def __init__(self, first: Expr) -> None:
        self._least, self._most = (ptx.Register("int64", first) for _ in range(2))

    @property
    def least(self) -> Expr:
        return self._least.value

    @property
    def most(self) -> Expr:
        return self._most.value

    def add(self, number: Expr) -> None:
        """Take in one more."""
        self._least.set(T.min(self.least, number))
        self._most.set(T.max(self.most, number))

    def join_lanes(self) -> None:
        """Take in those of all lanes."""
        for lane in (1, 2, 4, 8, 16):
            least, most = (collective.exchanged(x, lane, "int64") for x in (self.least, self.most))
            self._least.set(T.min(self.least, least))
            self._most.set(T.max(self.most, most))


class Sight:
    """What the queries of a tile see.

    Args:
        tests: What tests look at.
        engine: Whose rows and keys they are.
        block: Who looks.
        first_byte: Of shared memory, where `BYTES` are free.
        s: The sequence, int32.
        queries: Positions of queries, their first row of the tile and how many there are, int32.
        keys: The same of keys, of the whole sequence.
    """

    def __init__(
        self,
        tests: Tests,
        engine: Attender,
        block: Block,
        first_byte: int,
        s: Expr,
        queries: tuple[Buffer, Expr, Expr],
        keys: tuple[Buffer, Expr, Expr],
    ) -> None:
        self._tests, self._engine, self._block, self._s = tests, engine, block, s
        self._kpos, self._k0, self._keys = keys
        self.list, self.first = block.window.view("int32"), first_byte // 4
        self._lane = ptx.held(block.thread % 32, "int32")
        self._warp = ptx.held(block.thread // 32, "int32")
        qpos, first, left = queries
        self._width = len(engine.keys)
        self._rows = ptx.registers(len(engine.rows), "int32")
        for r, row in enumerate(engine.rows):
            tir.assign(self._rows, qpos[first + T.min(row, left - 1)], r)
        count = ptx.held(T.min(left, T.int32(engine.tile.m)), "int32")
        self._least = ptx.held(_int64(qpos[first]), "int64")
        self._most = ptx.held(_int64(qpos[first + count - 1]), "int64")
        self._place = ptx.registers(self._width, "int32")
        # What each lane looks at stands for all rows of the tile.
        rows = [
            ptx.held(qpos[first + T.min(self._lane + i, count - 1)], "int32")
            for i in range(0, engine.tile.m, 32)
        ]
        self._ends = {
            step: self._numbers_of(step, rows) for step in tests.steps if step.op in TABLES
        }
        self._flags = {
            step: self._flags_of(step, rows) for step in tests.steps if step.op == QUERIES
        }

    def _numbers_of(self, step: Step, rows: Sequence[Expr]) -> _Ends:
        tests, s = self._tests, self._s
        numbers = (tests.element(tests.of_queries, step.number, s, row) for row in rows)
        ends = _Ends(next(numbers))
        for number in numbers:
            ends.add(ptx.held(number, "int64"))
        ends.join_lanes()
        return ends

    def _flags_of(self, step: Step, rows: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Where a test of queries holds: over the tile, and the bits of this thread's rows."""
        tests, s = self._tests, self._s
        zeros, others = ptx.Register("int32", T.int32(0)), ptx.Register("int32", T.int32(0))
        for row in rows:
            flag = ptx.held(tests.element(tests.queries, step.number, s, row), "int8")
            zeros.set(zeros.value | T.Cast("int32", flag == 0))
            others.set(others.value | T.Cast("int32", flag != 0))
        zero, other = (collective.ballot(x.value != 0) for x in (zeros, others))
        none = T.uint32(0)
        bits = self._word()
        for r in range(len(self._engine.rows)):
            flag = ptx.held(tests.element(tests.queries, step.number, s, self._rows[r]), "int8")
            self._set(bits, flag == 0, self._row_bits(r))
        return _three_valued(zero == none, other == none), bits[0]

    # ---- steps

    def list_steps(self, first: Expr, count: Expr, everything: Expr) -> Expr:
        """List the seen ones of `CHUNK` steps; all threads of the block come here.

        Args:
            first: The first step, int32.
            count: Steps of the sequence, int32.
            everything: All of them are listed, as seen everywhere; a condition.

        Returns:
            How many, int32. An entry of the list is twice a step, and 1 more where it is seen
            everywhere.
        """
        step = ptx.held(first + self._block.thread, "int32")
        seen = ptx.counter()
        with tir.when(step < count):
            tir.either(
                everything,
                lambda: seen.set(T.int32(EVERYWHERE)),
                lambda: seen.set(self._over(step)),
            )
        lanes = collective.ballot(seen.value != NOWHERE)
        counts = self.first + CHUNK
        ptx.barrier()  # whoever read the list before has done so
        with tir.when(self._lane == 0):
            tir.assign(self.list, collective.population(lanes), counts + self._warp)
        ptx.barrier()
        before, total = ptx.counter(), ptx.counter()
        for warp in range(WARPS):
            found = ptx.held(self.list[counts + warp], "int32")
            before.add(T.Select(self._warp > warp, found, T.int32(0)))
            total.add(found)
        with tir.when(seen.value != NOWHERE):
            place = before.value + collective.before(lanes, self._lane)
            entry = step * 2 + T.Cast("int32", seen.value == EVERYWHERE)
            tir.assign(self.list, entry, self.first + place)
        ptx.barrier()
        return total.value

    def _over(self, step: Expr) -> Expr:
        """What the tile sees of a step that there is, int32."""
        n = self._engine.tile.n
        first = ptx.held(self._k0 + step * n, "int32")
        count = ptx.held(T.min(self._keys - step * n, T.int32(n)), "int32")
        ends = [ptx.held(_int64(self._kpos[k]), "int64") for k in (first, first + count - 1)]

        def test(leaf: Step) -> Expr:
            if leaf.op == POSITIONS:
                return self._over_line(leaf, *ends)
            if leaf.op in TABLES:
                return self._over_table(leaf, first, count)
            if leaf.op == KEYS:
                return self._over_keys(leaf, first, count)
            return self._flags[leaf][0] if leaf.op == QUERIES else T.int32(SOMEWHERE)

        steps, last = self._tests.steps, T.int32(EVERYWHERE)
        return _evaluated(steps, test, T.min, T.max, lambda x: last - x, "int32")

    def _over_line(self, leaf: Step, k0: Expr, k1: Expr) -> Expr:
        x, y, z = self._tests.position(leaf.number)
        of_q = [ptx.held(x * q, "int64") for q in (self._least, self._most)]
        of_k = [ptx.held(y * k, "int64") for k in (k0, k1)]
        most = T.max(*of_q) + T.max(*of_k) + z
        return _three_valued(most < 0, T.min(*of_q) + T.min(*of_k) + z >= 0)

    def _over_table(self, leaf: Step, first: Expr, count: Expr) -> Expr:
        tests, s = self._tests, self._s

        def number(at: Expr) -> Expr:
            return tests.element(tests.of_keys, leaf.number, s, self._kpos[first + at])

        k, q = _Ends(number(T.int32(0))), self._ends[leaf]
        with tir.serial(T.int32(1), count) as at:
            k.add(ptx.held(number(at), "int64"))
        if TABLES[leaf.op] == 0:
            nowhere = T.Or(q.most < k.least, k.most < q.least)
            one = tir.both(q.least == q.most, k.least == k.most)
            return _three_valued(nowhere, tir.both(one, q.least == k.least))
        if TABLES[leaf.op] == 1:
            return _three_valued(q.least >= k.most, q.most < k.least)
        return _three_valued(q.least > k.most, q.most <= k.least)

    def _over_keys(self, leaf: Step, first: Expr, count: Expr) -> Expr:
        tests, s = self._tests, self._s
        zeros, others = ptx.counter(), ptx.counter()
        with tir.serial(T.int32(0), count) as at:
            place = self._kpos[first + at]
            flag = ptx.held(tests.element(tests.keys, leaf.number, s, place), "int8")
            zeros.set(zeros.value | T.Cast("int32", flag == 0))
            others.set(others.value | T.Cast("int32", flag != 0))
        return _three_valued(zeros.value == 0, others.value == 0)

    def step_of(self, entry: Expr) -> Expr:
        """The step that an entry of the list names, int32."""
        return self.list[self.first + entry] >> T.int32(1)

    def is_partly(self, entry: Expr) -> Expr:
        """1 where it is not seen everywhere, else 0: int32."""
        return (self.list[self.first + entry] & T.int32(1)) ^ T.int32(1)

    # ---- words

    def _bit(self, row: int, key: int) -> int:
        return row * self._width + key

    def _row_bits(self, row: int) -> int:
        return ((1 << self._width) - 1) << self._bit(row, 0)

    def _column_bits(self, key: int) -> int:
        return sum(1 << self._bit(row, key) for row in range(len(self._engine.rows)))

    @staticmethod
    def _word(bits: int = 0) -> Buffer:
        word = ptx.registers(1, "uint32")
        tir.assign(word, ptx.uint32(bits), 0)
        return word

    @staticmethod
    def _set(word: Buffer, condition: Expr, bits: int) -> None:
        tir.assign(word, word[0] | T.Select(condition, ptx.uint32(bits), ptx.uint32(0)), 0)

    def bits(self, step: Expr) -> Expr:
        """Which of this thread's rows and keys of a step see each other, as a uint32."""
        last = self._keys - 1 - step * self._engine.tile.n
        for c, key in enumerate(self._engine.keys):
            at = self._k0 + step * self._engine.tile.n + T.min(self._engine.key + key, last)
            tir.assign(self._place, self._kpos[at], c)
        steps, turned = self._tests.steps, ptx.uint32(ALL)
        joins = operator.and_, operator.or_
        return _evaluated(steps, self._in, *joins, lambda x: x ^ turned, "uint32")

    def _in(self, leaf: Step) -> Expr:
        """The pairs of this thread at which a test holds."""
        if leaf.op == QUERIES:
            return self._flags[leaf][1]
        tests, s, word = self._tests, self._s, self._word()
        keys, rows = range(self._width), range(len(self._engine.rows))
        if leaf.op == KEYS:
            for c in keys:
                flag = tests.element(tests.keys, leaf.number, s, self._place[c])
                self._set(word, flag == 0, self._column_bits(c))
        elif leaf.op == PAIRS:
            for r in rows:
                for c in keys:
                    at = self._rows[r], self._place[c]
                    flag = tests.element(tests.pairs, leaf.number, s, *at)
                    self._set(word, flag == 0, 1 << self._bit(r, c))
        else:
            line = leaf.op == POSITIONS
            x, y, z = tests.position(leaf.number) if line else (None, None, None)
            of_keys = ptx.registers(self._width, "int64")
            for c in keys:
                place = self._place[c]
                number = _int64(place) * y if line else tests.element(
                    tests.of_keys, leaf.number, s, place
                )
                tir.assign(of_keys, number, c)
            for r in rows:
                place = self._rows[r]
                number = _int64(place) * x + z if line else tests.element(
                    tests.of_queries, leaf.number, s, place
                )
                q = ptx.held(number, "int64")
                for c in keys:
                    holds = q + of_keys[c] >= 0 if line else _ordered(leaf, q, of_keys[c])
                    self._set(word, holds, 1 << self._bit(r, c))
        return word[0]

    # ---- rows that see nothing

    def blind_rows(self, met: Expr) -> Expr:
        """The bits of those of this thread's rows that have met no key; all lanes ask at once.

        Args:
            met: Bits of the pairs that have seen each other, uint32.
        """
        blind = self._word()
        for r in range(len(self._engine.rows)):
            bits = self._row_bits(r)
            some = ptx.held(met & ptx.uint32(bits), "uint32")
            for lane in self._engine.lanes:
                some = ptx.held(some | collective.exchanged(some, lane, "uint32"), "uint32")
            self._set(blind, some == ptx.uint32(0), bits)
        return blind[0]

    def of_some_warp(self, condition: Expr) -> Expr:
        """Whether a condition holds in some thread of the block, int32; all threads come here."""
        lanes, first = collective.ballot(condition), self.first + CHUNK + WARPS
        ptx.barrier()
        with tir.when(self._lane == 0):
            asked = T.Cast("int32", lanes != T.uint32(0))
            tir.assign(self.list, asked, first + self._warp)
        ptx.barrier()
        found = ptx.counter()
        for warp in range(WARPS):
            found.set(found.value | self.list[first + warp])
        return found.value

    def hide(self, bits: Expr, blank: Expr) -> None:
        """Give pairs without a bit no weight; scores of the others are 0 where `blank` holds."""
        engine, lowest = self._engine, ptx.lowest()
        for r in range(len(engine.rows)):
            for c in range(self._width):
                at = engine.score(r, c)
                seen = bits & ptx.uint32(1 << self._bit(r, c)) != ptx.uint32(0)
                score = T.Select(blank, T.float32(0), engine.scores[at])
                tir.assign(engine.scores, T.Select(seen, score, lowest), at)


def _ordered(leaf: Step, q: Expr, k: Expr) -> Expr:
    if TABLES[leaf.op] == 0:
        return q == k
    return q < k if TABLES[leaf.op] == 1 else q <= k

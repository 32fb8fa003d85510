"""Which keys the queries of a tile see, found where attention runs: no lists, no wait for a host.

    p0        what of 128 queries see steps of 32 keys (positions: query - key >= 0)
    step      0   1   2   3   4   5   6   7          queries 128..255
    sees      all all all all ?   ?   ?   ?          then none: these steps are not read

A formula of tests (`pitc.ir.seen`) is evaluated twice. Over a step of keys in three values,
NOWHERE, SOMEWHERE and EVERYWHERE, each thread for a step of its own: by the ends of positions and
of numbers in tables, and by flags of keys. Steps that are seen go into a list in shared memory,
`CHUNK` of them at a time, in order. Where a step is seen SOMEWHERE, each thread makes a word of
bits of its rows and keys, a formula of words. A warp that sees nothing of a step leaves it to the
others.

What does not change from step to step stays in shared memory, that of rows, too: registers are full
of sums, and what is computed of other registers the compiler would keep there.
"""

import operator
from collections.abc import Callable, Sequence

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.attend import Attender
from pitc.codegen.engines.ring import Block
from pitc.codegen.families.pair_tests_cuda import (
    EVERYWHERE,
    NOWHERE,
    SOMEWHERE,
    Ends,
    Flags,
    Places,
    Tests,
    three_valued,
    to_int64,
)
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import WARPS
from pitc.ir.seen import BOTH, EITHER, KEYS, NEGATE, PAIRS, POSITIONS, QUERIES, TABLES, Step

ALL = 0xFFFFFFFF
"""Every bit of a word."""


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


class Sight:
    """What the queries of a tile see.

    Args:
        tests: What tests look at.
        engine: Whose rows and keys they are.
        block: Who looks.
        places: Where in its shared memory.
        keys: Positions of keys, the first row of the sequence and how many it has, int32.
    """

    def __init__(
        self,
        tests: Tests,
        engine: Attender,
        block: Block,
        places: Places,
        keys: tuple[Buffer, Expr, Expr],
    ) -> None:
        self._tests, self._engine, self._block, self._at = tests, engine, block, places
        self._kpos, self._of_sequence = keys[0], keys[1:]
        self._words = block.window.view("int32")
        self._numbers = block.window.view("int64")
        self._bits = block.window.view("uint32")
        self._width = len(engine.keys)

    def prepare(self, s: Expr, qpos: Buffer, first: Expr, left: Expr) -> None:
        """Look at the rows of the tile; all threads of the block come here.

        Args:
            s: The sequence, int32.
            qpos: Positions of queries.
            first: The first row, int32.
            left: How many the sequence has from there on, int32.
        """
        tests, at, thread, m = self._tests, self._at, self._block.thread, self._engine.tile.m
        lane, count = ptx.held(thread % 32, "int32"), ptx.held(T.min(left, T.int32(m)), "int32")
        # What each lane looks at stands for all rows of the tile.
        rows = [
            ptx.held(qpos[first + T.min(lane + i, count - 1)], "int32") for i in range(0, m, 32)
        ]
        ends = {}
        for step in dict.fromkeys(step for step in tests.steps if step.op in TABLES):
            numbers = (tests.element(tests.of_queries, step.number, s, row) for row in rows)
            found = ends[step.number] = Ends(next(numbers))
            for number in numbers:
                found.add(ptx.held(number, "int64"))
            found.join_lanes()
        flags = {}
        for step in dict.fromkeys(step for step in tests.steps if step.op == QUERIES):
            found_flags = Flags()
            for row in rows:
                found_flags.add(tests.element(tests.queries, step.number, s, row))
            flags[step.number] = found_flags.of_warp()
        ptx.barrier()  # whoever looked at the tile before has done so
        tir.assign(self._words, T.int32(0), at.met + thread)
        with tir.when(thread < m):
            row = ptx.held(qpos[first + T.min(thread, count - 1)], "int32")
            tir.assign(self._words, row, at.positions + thread)
            if at.queries:
                bits = ptx.counter()
                for number in range(at.queries):
                    flag = tests.element(tests.queries, number, s, row)
                    bits.add(T.Select(flag == 0, T.int32(1 << number), T.int32(0)))
                tir.assign(self._words, bits.value, at.of_rows + thread)
        with tir.when(thread == 0):
            for i, number in enumerate((s, *self._of_sequence)):
                tir.assign(self._words, number, at.sequence + i)
            tir.assign(self._words, T.int32(len(self._engine.rows)), at.height)
            for number, found in ends.items():
                tir.assign(self._numbers, found.least, at.ends // 2 + 2 * number)
                tir.assign(self._numbers, found.most, at.ends // 2 + 2 * number + 1)
            for number, holds in flags.items():
                tir.assign(self._words, holds, at.flags + number)
        if at.lines:
            assert tests.positions is not None
            with tir.when(thread < 3 * at.lines):
                factor = tests.positions[T.truncdiv(thread, 3), T.truncmod(thread, 3)]
                tir.assign(self._numbers, factor, at.factors // 2 + thread)
        ptx.barrier()

    def _factors(self, number: int) -> tuple[Expr, Expr, Expr]:
        """Of the query's position and of the key's, and what is added, int64."""
        first = self._at.factors // 2 + 3 * number
        x, y, z = (ptx.held(self._numbers[first + i], "int64") for i in range(3))
        return x, y, z

    def _row(self, row: Expr) -> Expr:
        """The position of a row of the tile, int32."""
        return ptx.held(self._words[self._at.positions + row], "int32")

    def _sequence(self) -> Expr:
        return ptx.held(self._words[self._at.sequence], "int32")

    def keys(self) -> tuple[Expr, Expr]:
        """The first row of the sequence's keys, and how many it has, int32."""
        first = self._at.sequence + 1
        k0, count = (ptx.held(self._words[first + i], "int32") for i in range(2))
        return k0, count

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
        thread, at = self._block.thread, self._at
        lane, warp_number = (ptx.held(x, "int32") for x in (thread % 32, thread // 32))
        with tir.when(lane == 0):
            tir.assign(self._words, collective.population(lanes), at.counts + warp_number)
        ptx.barrier()  # and whoever read the list before has done so
        before, total = ptx.counter(), ptx.counter()
        for warp in range(WARPS):
            found = ptx.held(self._words[at.counts + warp], "int32")
            before.add(T.Select(warp_number > warp, found, T.int32(0)))
            total.add(found)
        with tir.when(seen.value != NOWHERE):
            place = before.value + collective.before(lanes, lane)
            entry = step * 2 + T.Cast("int32", seen.value == EVERYWHERE)
            tir.assign(self._words, entry, at.steps + place)
        ptx.barrier()
        return total.value

    def _over(self, step: Expr) -> Expr:
        """What the tile sees of a step that there is, int32."""
        n, (k0, keys) = self._engine.tile.n, self.keys()
        first = ptx.held(k0 + step * n, "int32")
        count = ptx.held(T.min(keys - step * n, T.int32(n)), "int32")
        ends = [ptx.held(to_int64(self._kpos[k]), "int64") for k in (first, first + count - 1)]

        def test(leaf: Step) -> Expr:
            if leaf.op == POSITIONS:
                return self._over_line(leaf, *ends)
            if leaf.op in TABLES:
                return self._over_table(leaf, first, count)
            if leaf.op == KEYS:
                return self._over_keys(leaf, first, count)
            if leaf.op == QUERIES:
                return ptx.held(self._words[self._at.flags + leaf.number], "int32")
            return T.int32(SOMEWHERE)

        steps, last = self._tests.steps, T.int32(EVERYWHERE)
        return _evaluated(steps, test, T.min, T.max, lambda x: last - x, "int32")

    def _over_line(self, leaf: Step, k0: Expr, k1: Expr) -> Expr:
        x, y, z = self._factors(leaf.number)
        rows = (self._row(row) for row in (T.int32(0), T.int32(self._engine.tile.m - 1)))
        of_q = [ptx.held(x * to_int64(row), "int64") for row in rows]
        of_k = [ptx.held(y * k, "int64") for k in (k0, k1)]
        most = T.max(*of_q) + T.max(*of_k) + z
        return three_valued(most < 0, T.min(*of_q) + T.min(*of_k) + z >= 0)

    def _over_table(self, leaf: Step, first: Expr, count: Expr) -> Expr:
        tests, s = self._tests, self._sequence()

        def number(at: Expr) -> Expr:
            return tests.element(tests.of_keys, leaf.number, s, self._kpos[first + at])

        k, ends = Ends(number(T.int32(0))), self._at.ends // 2 + 2 * leaf.number
        with tir.serial(T.int32(1), count) as at:
            k.add(ptx.held(number(at), "int64"))
        least, most = (ptx.held(self._numbers[ends + i], "int64") for i in range(2))
        if TABLES[leaf.op] == 0:
            nowhere = T.Or(most < k.least, k.most < least)
            one = tir.both(least == most, k.least == k.most)
            return three_valued(nowhere, tir.both(one, least == k.least))
        if TABLES[leaf.op] == 1:
            return three_valued(least >= k.most, most < k.least)
        return three_valued(least > k.most, most <= k.least)

    def _over_keys(self, leaf: Step, first: Expr, count: Expr) -> Expr:
        tests, s, flags = self._tests, self._sequence(), Flags()
        with tir.serial(T.int32(0), count) as at:
            place = self._kpos[first + at]
            flags.add(tests.element(tests.keys, leaf.number, s, place))
        return flags.hold

    def step_of(self, entry: Expr) -> Expr:
        """The step that an entry of the list names, int32."""
        return self._words[self._at.steps + entry] >> T.int32(1)

    def is_partly(self, entry: Expr) -> Expr:
        """Whether it is not seen everywhere."""
        return self._words[self._at.steps + entry] & T.int32(1) == T.int32(0)

    # ---- words

    def _bit(self, row: int, key: int) -> int:
        return row * self._width + key

    def _row_bits(self, row: int) -> int:
        return ((1 << self._width) - 1) << self._bit(row, 0)

    def _column_bits(self, key: int) -> int:
        return sum(1 << self._bit(row, key) for row in range(len(self._engine.rows)))

    @staticmethod
    def _set(word: ptx.Register, condition: Expr, bits: int) -> None:
        word.set(word.value | T.Select(condition, ptx.uint32(bits), ptx.uint32(0)))

    def bits(self, step: Expr) -> Expr:
        """Which of this thread's rows and keys of a step see each other, as a uint32."""
        n, steps, turned = self._engine.tile.n, self._tests.steps, ptx.uint32(ALL)
        k0, count = self.keys()
        last = count - 1 - step * n
        places = []
        for key in self._engine.keys:
            at = k0 + step * n + T.min(self._engine.key + key, last)
            places.append(ptx.held(self._kpos[at], "int32"))

        def test(leaf: Step) -> Expr:
            word = ptx.Register("uint32", ptx.uint32(0))
            self._add(word, leaf, places)
            return word.value

        joins = operator.and_, operator.or_
        return _evaluated(steps, test, *joins, lambda x: x ^ turned, "uint32")

    def _add(self, word: ptx.Register, leaf: Step, places: Sequence[Expr]) -> None:
        """Set the bits of the pairs of this thread at which a test holds."""
        tests, number, s = self._tests, leaf.number, self._sequence()
        if leaf.op == KEYS:
            for c, place in enumerate(places):
                flag = tests.element(tests.keys, number, s, place)
                self._set(word, flag == 0, self._column_bits(c))
            return
        # A loop of a length that the compiler does not know: it would compute all rows at once,
        # and registers are full of sums.
        height = ptx.held(self._words[self._at.height], "int32")
        of_row = self._of_row(leaf, s, places)
        with tir.serial(T.int32(0), height) as r:
            part = ptx.Register("uint32", ptx.uint32(0))
            of_row(part, ptx.held(self._engine.row(r), "int32"))
            word.set(word.value | part.value << T.Cast("uint32", r * self._width))

    def _of_row(
        self, leaf: Step, s: Expr, places: Sequence[Expr]
    ) -> Callable[[ptx.Register, Expr], None]:
        """What sets the bits of a row, from its first key on."""
        tests, number = self._tests, leaf.number

        def of_flags(part: ptx.Register, row: Expr) -> None:
            holds = self._words[self._at.of_rows + row] & T.int32(1 << number)
            self._set(part, holds != T.int32(0), self._row_bits(0))

        def of_pairs(part: ptx.Register, row: Expr) -> None:
            query = self._row(row)
            for c, place in enumerate(places):
                flag = tests.element(tests.pairs, number, s, query, place)
                self._set(part, flag == 0, 1 << c)

        def of_numbers(part: ptx.Register, row: Expr) -> None:
            place = self._row(row)
            if x is None or z is None:
                number_of = tests.element(tests.of_queries, number, s, place)
            else:
                number_of = to_int64(place) * x + z
            q = ptx.held(number_of, "int64")
            for c, k in enumerate(of_keys):
                holds = q + k >= 0 if leaf.op == POSITIONS else _ordered(leaf, q, k)
                self._set(part, holds, 1 << c)

        if leaf.op in (QUERIES, PAIRS):
            return of_flags if leaf.op == QUERIES else of_pairs
        x, y, z = self._factors(number) if leaf.op == POSITIONS else (None, None, None)
        numbers = (
            tests.element(tests.of_keys, number, s, place) if y is None else to_int64(place) * y
            for place in places
        )
        of_keys = [ptx.held(number_of, "int64") for number_of in numbers]
        return of_numbers

    # ---- rows that see nothing

    def meet(self, bits: Expr) -> None:
        """Remember which pairs of this thread have seen each other."""
        at = self._at.met + self._block.thread
        tir.assign(self._bits, self._bits[at] | bits, at)

    @property
    def blind(self) -> Expr:
        """The bits of this thread's rows that have met no key, once they are found, uint32."""
        return self._bits[self._at.blind + self._block.thread]

    def find_blind(self, here: Expr) -> Expr:
        """Find those rows; all threads of the block come here.

        Args:
            here: Whether the thread's warp has rows.

        Returns:
            Whether some thread of the block has one, int32: not 0.
        """
        thread, at = self._block.thread, self._at
        met = ptx.held(self._bits[at.met + thread], "uint32")
        blind = ptx.Register("uint32", ptx.uint32(0))
        for r in range(len(self._engine.rows)):
            some = ptx.held(met & ptx.uint32(self._row_bits(r)), "uint32")
            for lane in self._engine.lanes:
                some = ptx.held(some | collective.exchanged(some, lane, "uint32"), "uint32")
            self._set(blind, some == ptx.uint32(0), self._row_bits(r))
        tir.assign(self._bits, blind.value, at.blind + thread)
        lanes = collective.ballot(tir.both(here, blind.value != ptx.uint32(0)))
        with tir.when(thread % 32 == 0):
            tir.assign(self._bits, lanes, at.asked + thread // 32)
        ptx.barrier()
        found = ptx.counter()
        for warp in range(WARPS):
            found.set(found.value | self._words[at.asked + warp])
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

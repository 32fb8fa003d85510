"""Which keys the queries of a tile see, found where attention runs: no lists, no wait for a host.

A formula of tests (`pitc.ir.seen`) is evaluated twice. Over a step of keys in three values, for the
rows of each warp (`seen_steps_cuda`): a warp leaves steps that its rows see NOWHERE to the others,
and looks at no pairs of those that they see EVERYWHERE. Where they see a step SOMEWHERE, each
thread makes a word of bits of its rows and keys, a formula of words. A lane reads what tests look
at of one key, once, and the others have it from there.

What does not change from step to step stays in shared memory (`seen_rows_cuda`): registers are full
of sums, and what is computed of other registers the compiler would keep there.
"""

import operator
from collections.abc import Callable

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.attend import Scored
from pitc.codegen.engines.ring import Block
from pitc.codegen.families.pair_tests_cuda import (
    EVERYWHERE,
    SOMEWHERE,
    Places,
    Tests,
)
from pitc.codegen.families.seen_rows_cuda import SeenRows
from pitc.codegen.families.seen_steps_cuda import SeenSteps, evaluated
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import WARPS
from pitc.ir.seen import KEYS, PAIRS, POSITIONS, QUERIES, TABLES, Step

ALL = 0xFFFFFFFF
"""Every bit of a word."""


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
        engine: Scored,
        block: Block,
        places: Places,
        keys: tuple[Buffer, Expr, Expr],
    ) -> None:
        self._tests, self._engine, self._block, self._at = tests, engine, block, places
        self._kpos = keys[0]
        self.rows = SeenRows(tests, engine, block, places, keys[1:])
        self.steps = SeenSteps(tests, engine, block, places, self.rows, self._kpos)
        self._words = block.window.view("int32")
        self._bits = block.window.view("uint32")
        self._width = len(engine.keys)

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
        """Which of this thread's rows and keys of a step see each other, as a uint32.

        All lanes of the warp come here.
        """
        n, turned = self._engine.tile.n, ptx.uint32(ALL)
        k0, count = self.rows.keys()
        at = k0 + step * n + T.min(self._block.thread % 32, count - 1 - step * n)
        own = ptx.held(self._kpos[at], "int32")  # of the lane's key

        def test(leaf: Step) -> Expr:
            word = ptx.Register("uint32", ptx.uint32(0))
            add[leaf.op](word, leaf, own)
            return word.value

        add = {KEYS: self._add_keys, QUERIES: self._add_queries, PAIRS: self._add_pairs}
        add |= {POSITIONS: self._add_line, **dict.fromkeys(TABLES, self._add_table)}
        joins = operator.and_, operator.or_
        return evaluated(self._tests.steps, test, *joins, lambda x: x ^ turned, "uint32")

    def _of_keys(self, own: Expr, dtype: str) -> list[Expr]:
        """What lanes have of their keys: that of the keys of this thread."""
        key = self._engine.key
        return [collective.value_of(own, key + c, dtype) for c in self._engine.keys]

    def _add_keys(self, word: ptx.Register, leaf: Step, own: Expr) -> None:
        """Set the bits of the pairs of this thread at which a test holds; so do those below."""
        tests, s = self._tests, self.rows.sequence()
        lanes = collective.ballot(tests.element(tests.keys, leaf.number, s, own) == 0)
        holds = ptx.held(lanes >> ptx.uint32(self._engine.key), "uint32")
        for c, key in enumerate(self._engine.keys):
            there = holds & ptx.uint32(1 << key) != ptx.uint32(0)
            self._set(word, there, self._column_bits(c))

    def _add_queries(self, word: ptx.Register, leaf: Step, own: Expr) -> None:
        for r, row in enumerate(self._engine.rows):
            self._set(word, self.rows.is_flagged(leaf.number, row), self._row_bits(r))

    def _add_line(self, word: ptx.Register, leaf: Step, own: Expr) -> None:
        number, engine = leaf.number, self._engine
        first, last = (
            collective.value_of(own, T.int32(i), "int32") for i in (0, engine.tile.n - 1)
        )
        warp = self._block.thread // 32
        over = self.steps.over_bounds(number, warp, first, last)
        with tir.when(over == SOMEWHERE):
            of_keys = self._of_keys(own, "int32")

            def look(part: ptx.Register, row: Expr) -> None:
                bound = ptx.held(self.rows.bound(number, row), "int32")
                for c, key in enumerate(of_keys):
                    self._set(part, key >= bound, 1 << c)

            self._each_row(word, look)
        with tir.when(over == EVERYWHERE):
            word.set(ptx.uint32(ALL))
        word.set(word.value ^ T.reinterpret("uint32", self.rows.turned(number)))

    def _add_table(self, word: ptx.Register, leaf: Step, own: Expr) -> None:
        tests, number, s = self._tests, leaf.number, self.rows.sequence()
        own = ptx.held(tests.element(tests.of_keys, number, s, own), "int64")
        of_keys = self._of_keys(own, "int64")

        def look(part: ptx.Register, row: Expr) -> None:
            q = ptx.held(self.rows.number(number, row), "int64")
            for c, k in enumerate(of_keys):
                self._set(part, _ordered(leaf, q, k), 1 << c)

        self._each_row(word, look)

    def _add_pairs(self, word: ptx.Register, leaf: Step, own: Expr) -> None:
        tests, number, s = self._tests, leaf.number, self.rows.sequence()
        assert tests.pairs is not None
        flags = tir.flat(tests.pairs)
        of_keys = self._of_keys(ptx.held(tests.key_of_pairs(own), "int32"), "int32")

        def look(part: ptx.Register, row: Expr) -> None:
            start = ptx.held(tests.row_of_pairs(number, s, self.rows.position(row)), "int64")
            for c, key in enumerate(of_keys):
                self._set(part, flags[start + tests.after_row(key)] == 0, 1 << c)

        self._each_row(word, look)

    def _each_row(self, word: ptx.Register, look: Callable[[ptx.Register, Expr], None]) -> None:
        """Set the bits of each row, which `look` sets from the row's first key on."""
        # A loop of a length that the compiler does not know: it would compute all rows at once,
        # and registers are full of sums.
        with tir.serial(T.int32(0), self.rows.height()) as r:
            part = ptx.Register("uint32", ptx.uint32(0))
            look(part, ptx.held(self._engine.row(r), "int32"))
            word.set(word.value | part.value << ptx.uint32(r * self._width))

    # ---- rows that see nothing

    def meet(self, bits: Expr) -> None:
        """Remember which pairs of this thread have seen each other."""
        at = self._at.met + self._block.thread
        tir.assign(self._bits, self._bits[at] | bits, at)

    @property
    def blind(self) -> Expr:
        """The bits of this thread's rows that have met no key, once they are found, uint32."""
        return self._bits[self._at.met + self._block.thread]

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
        tir.assign(self._bits, blind.value, at.met + thread)
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

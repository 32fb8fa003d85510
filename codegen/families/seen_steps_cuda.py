"""Which steps of keys the rows of each warp see: the list that a tile goes over.

    p0        positions: query - key >= 0, 64 queries from 128 on, 16 rows a warp, steps of 32 keys
    step      0   1   2   3   4   5   6   7
    warp 0    all all all all ?   -   -   -
    warp 1    all all all all ?   -   -   -
    warp 2    all all all all all ?   -   -
    warp 3    all all all all all ?   -   -          steps 6 and 7 are not in the list

The formula is evaluated in three values, NOWHERE, SOMEWHERE and EVERYWHERE: each thread does it for
a step of its own and the rows of each warp, by the ends of positions and of numbers in tables, and
by flags of keys. Flags of pairs are looked at before that, by warps: 16 of a row at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.attend import Scored
from pitc.codegen.engines.ring import Block
from pitc.codegen.families.pair_tests_cuda import (
    EVERYWHERE,
    SOMEWHERE,
    Ends,
    Flags,
    Places,
    Tests,
    three_valued,
    to_int64,
)
from pitc.codegen.families.seen_rows_cuda import SeenRows
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import WARPS
from pitc.ir.seen import BOTH, EITHER, KEYS, NEGATE, PAIRS, POSITIONS, QUERIES, TABLES, Step

_BITS, _MASK = 2, 3
"""Of a value in an entry."""
_WORDS, _LANES = 4, 4
"""A lane looks at 16 flags of a row; four lanes do, as a step may begin anywhere in 16 bytes."""
_FEW = 96
"""Columns of v whose sums leave registers for flags of more than one step."""
_KEYS, _TOGETHER = 4, 2
"""Keys whose numbers a thread asks for at once; steps whose flags of pairs a warp asks for."""


def evaluated(
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


@dataclass(frozen=True, slots=True)
class _Chunk:
    """16 flags of pairs.

    Args:
        there: Whether some of them are asked for, int32.
        whole: Whether they were read, as all of them lie in memory, int32.
        words: They.
    """

    there: Expr
    whole: Expr
    words: Buffer


class SeenSteps:
    """The list of steps.

    Args:
        tests: What tests look at.
        engine: Whose rows and keys they are.
        block: Who looks.
        places: Where in its shared memory.
        rows: Rows of the tile.
        kpos: Positions of keys.
    """

    def __init__(
        self,
        tests: Tests,
        engine: Scored,
        block: Block,
        places: Places,
        rows: SeenRows,
        kpos: Buffer,
    ) -> None:
        self._tests, self._engine, self._block, self._at = tests, engine, block, places
        self._rows, self._kpos = rows, kpos
        self._words = block.window.view("int32")
        self._bytes = block.window.view("int8")

    def fill(self, first: Expr, count: Expr, everything: Expr) -> Expr:
        """List the seen ones of `CHUNK` steps; all threads of the block come here.

        Args:
            first: The first step, int32.
            count: Steps of the sequence, int32.
            everything: All of them are listed, as seen everywhere; a condition.

        Returns:
            How many, int32. An entry of the list is how far a step is behind the first one, and
            below that two bits for each warp: where its rows see the step.
        """
        asked = ptx.held(T.Select(everything, T.int32(0), count), "int32")
        flags = {x: self._over_pairs(x, first, asked) for x in self._tests.numbers(PAIRS)}
        step = ptx.held(first + self._block.thread, "int32")
        seen = ptx.counter()
        with tir.when(step < count):
            every = sum(EVERYWHERE << _BITS * warp for warp in range(WARPS))
            tir.either(
                everything,
                lambda: seen.set(T.int32(every)),
                lambda: self._over(step, flags, seen),
            )
        lanes = collective.ballot(seen.value != 0)
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
        with tir.when(seen.value != 0):
            place = before.value + collective.before(lanes, lane)
            tir.assign(self._words, thread * (1 << _BITS * WARPS) + seen.value, at.steps + place)
        with tir.when(thread == 0):
            tir.assign(self._words, first, at.first)
        ptx.barrier()
        return total.value

    def step_of(self, entry: Expr) -> Expr:
        """The step that an entry of the list names, int32."""
        first = self._words[self._at.first]
        return first + (self._words[self._at.steps + entry] >> T.int32(_BITS * WARPS))

    def seen(self, entry: Expr) -> Expr:
        """Where the rows of this thread's warp see it, int32."""
        shift = self._block.thread // 32 * _BITS
        return self._words[self._at.steps + entry] >> shift & T.int32(_MASK)

    def over_bounds(self, number: int, warp: Expr, first: Expr, last: Expr) -> Expr:
        """Where keys between two positions reach the bounds of a warp's rows, int32."""
        least, most = self._rows.bound_ends(number, warp)
        return three_valued(last < least, first >= most)

    # ---- what is not of pairs

    def _over(self, step: Expr, flags: dict[int, Expr], seen: ptx.Register) -> None:
        """What each warp sees of a step that there is."""
        n, (k0, keys), kpos = self._engine.tile.n, self._rows.keys(), self._kpos
        first = ptx.held(k0 + step * n, "int32")
        count = ptx.held(T.min(keys - step * n, T.int32(n)), "int32")
        p0, p1 = (ptx.held(kpos[k], "int32") for k in (first, first + count - 1))
        tables = {x: self._of_table(x, first, count) for x in self._tests.numbers(*TABLES)}
        of_keys = {x: self._of_keys(x, first, count) for x in self._tests.numbers(KEYS)}
        last = T.int32(EVERYWHERE)
        with tir.serial(T.int32(0), T.int32(WARPS)) as warp:

            def test(leaf: Step) -> Expr:
                number = leaf.number
                if leaf.op == POSITIONS:
                    above = self.over_bounds(number, warp, p0, p1)
                    turned = self._rows.turned(number) != 0
                    return ptx.held(T.Select(turned, last - above, above), "int32")
                if leaf.op in TABLES:
                    return self._over_table(leaf, warp, tables[number])
                if leaf.op == KEYS:
                    return of_keys[number]
                if leaf.op == QUERIES:
                    return self._rows.flags(number, warp)
                return ptx.held(flags[number] >> warp * 8 & T.int32(_MASK), "int32")

            value = evaluated(self._tests.steps, test, T.min, T.max, lambda x: last - x, "int32")
            seen.set(seen.value | value << warp * _BITS)

    def _over_table(self, leaf: Step, warp: Expr, k: Ends) -> Expr:
        least, most = self._rows.ends(leaf.number, warp)
        if TABLES[leaf.op] == 0:
            nowhere = T.Or(most < k.least, k.most < least)
            one = tir.both(least == most, k.least == k.most)
            return three_valued(nowhere, tir.both(one, least == k.least))
        if TABLES[leaf.op] == 1:
            return three_valued(least >= k.most, most < k.least)
        return three_valued(least > k.most, most <= k.least)

    def _each(self, first: Expr, count: Expr, look: Callable[[list[Expr]], None]) -> None:
        """Look at some keys' positions at a time; the last key stands for those behind it."""
        with tir.serial(T.int32(0), ptx.steps(count, _KEYS)) as i:
            keys = [first + T.min(i * _KEYS + u, count - 1) for u in range(_KEYS)]
            look([ptx.held(self._kpos[key], "int32") for key in keys])

    def _of_table(self, number: int, first: Expr, count: Expr) -> Ends:
        tests, s = self._tests, self._rows.sequence()

        def number_of(place: Expr) -> Expr:
            return ptx.held(tests.element(tests.of_keys, number, s, place), "int64")

        ends = Ends(number_of(self._kpos[first]))

        def look(places: list[Expr]) -> None:
            for x in [number_of(place) for place in places]:
                ends.add(x)

        self._each(first, count, look)
        return ends

    def _of_keys(self, number: int, first: Expr, count: Expr) -> Expr:
        tests, s, flags = self._tests, self._rows.sequence(), Flags()

        def look(places: list[Expr]) -> None:
            found = (tests.element(tests.keys, number, s, place) for place in places)
            for flag in [ptx.held(x, "int8") for x in found]:
                flags.add(flag)

        self._each(first, count, look)
        return flags.hold

    # ---- flags of pairs

    def _over_pairs(self, number: int, first: Expr, count: Expr) -> Expr:
        """Where a test of pairs holds in this thread's step: a byte for each warp, int32.

        Each warp looks at its rows, at one step after the other; not where flags that lie side by
        side are of one step: such steps are seen somewhere.
        """
        if self._tests.are_turned:
            return T.int32(sum(SOMEWHERE << 8 * warp for warp in range(WARPS)))
        at, lane = self._at, ptx.held(self._block.thread % 32, "int32")
        warp, n = ptx.held(self._block.thread // 32, "int32"), self._engine.tile.n
        together = _TOGETHER if self._engine.tile.columns <= _FEW else 1
        starts = self._row_starts(number, lane)
        k0, keys = self._rows.keys()
        ptx.barrier()  # whoever read the list before has done so
        with tir.serial(T.int32(0), T.int32(WARPS)) as group:
            base = ptx.held(first + group * 32, "int32")
            here = T.max(T.min(base + lane, count - 1), T.int32(0)) * n  # of the lane's step
            ends = [
                self._tests.key_of_pairs(self._kpos[k0 + T.min(here + i, keys - 1)])
                for i in (0, n - 1)
            ]
            ends = [ptx.held(end, "int32") for end in ends]
            mine = ptx.counter()
            many = T.max(T.min(count - base, T.int32(32)), T.int32(0))
            with tir.serial(T.int32(0), ptx.steps(many, together)) as i:
                steps = [ptx.held(i * together + u, "int32") for u in range(together)]
                places = [[collective.value_of(x, step, "int32") for x in ends] for step in steps]
                looks = [Flags() for _ in steps]
                asked = [self._asked(starts, lane, *place) for place in places]
                for flags, found in zip(looks, asked, strict=True):
                    self._add_chunks(flags, found)
                for step, (p0, p1), flags in zip(steps, places, looks, strict=True):
                    value = T.Select(p1 - p0 < n, flags.of_warp(), T.int32(SOMEWHERE))
                    mine.set(T.Select(lane == step, value, mine.value))
            place = (at.steps + group * 32 + lane) * 4 + warp
            tir.assign(self._bytes, T.Cast("int8", mine.value), place)
        ptx.barrier()
        return ptx.held(self._words[at.steps + self._block.thread], "int32")

    def _row_starts(self, number: int, lane: Expr) -> list[Expr]:
        """Where the flags of rows of the warp begin that a lane looks at, int64."""
        s, engine, apart = self._rows.sequence(), self._engine, 32 // _LANES
        starts = []
        for i in range(engine.tile.rows // apart):
            query = self._rows.position(engine.first + i * apart + lane // _LANES)
            starts.append(ptx.held(self._tests.row_of_pairs(number, s, query), "int64"))
        return starts

    def _asked(self, starts: list[Expr], lane: Expr, p0: Expr, p1: Expr) -> list[_Chunk]:
        """Ask for the flags between two positions, with those beside them in 16 bytes."""
        assert self._tests.pairs is not None
        chunks, found = ptx.seen_as(self._tests.pairs, f"uint32x{_WORDS}"), []
        for start in starts:
            at = ptx.held((start + to_int64(p0) >> T.int64(4)) + to_int64(lane % _LANES), "int64")
            there = at <= start + to_int64(p1) >> T.int64(4)
            whole = tir.both(there, at < chunks.shape[0])  # no bytes behind the last flag
            words = ptx.registers(1, f"uint32x{_WORDS}")
            none = T.broadcast(T.uint32(0), _WORDS)
            tir.assign(words, T.if_then_else(whole, chunks[at], none), 0)
            here, read = (ptx.held(T.Cast("int32", x), "int32") for x in (there, whole))
            found.append(_Chunk(here, read, words))
        return found

    @staticmethod
    def _add_chunks(flags: Flags, found: list[_Chunk]) -> None:
        """Take in flags; of what is not whole nothing is known."""
        for chunk in found:
            with tir.when(chunk.whole != 0):
                for i in range(_WORDS):
                    flags.add_four(T.Shuffle([chunk.words[0]], [T.int32(i)]))
            with tir.when(chunk.whole != chunk.there):
                flags.add_any()

"""What tests look at of the rows of a tile: read once, kept in shared memory.

Of each row its position, and of each test what its pairs are compared with: a number of a table, or
a bound, from which position of a key on a test of positions holds. Of the rows of each warp their
ends: a step of keys is compared with these first.
"""

from dataclasses import dataclass

from pitc.codegen import ptx, tir
from pitc.codegen.engines.attend import Scored
from pitc.codegen.engines.ring import Block
from pitc.codegen.families.pair_tests_cuda import Ends, Flags, Places, Tests
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import WARPS
from pitc.ir.seen import POSITIONS, QUERIES, TABLES


@dataclass(slots=True)
class _Found:
    """What a lane's row, and all rows of its warp, are compared with."""

    numbers: dict[int, tuple[Expr, Ends]]
    bounds: dict[int, tuple[Expr, Expr, Ends]]
    flags: dict[int, Expr]


class SeenRows:
    """Rows of a tile.

    Args:
        tests: What tests look at.
        engine: Whose rows they are.
        block: Who looks.
        places: Where in its shared memory.
        keys: The first row of the sequence's keys, and how many it has, int32.
    """

    def __init__(
        self,
        tests: Tests,
        engine: Scored,
        block: Block,
        places: Places,
        keys: tuple[Expr, Expr],
    ) -> None:
        self._tests, self._engine, self._block, self._at = tests, engine, block, places
        self._of_sequence = keys
        self._words = block.window.view("int32")
        self._numbers = block.window.view("int64")

    def prepare(self, s: Expr, qpos: Buffer, first: Expr, left: Expr) -> None:
        """Look at them; all threads of the block come here. A lane looks at a row of its warp.

        Args:
            s: The sequence, int32.
            qpos: Positions of queries.
            first: The first row, int32.
            left: How many the sequence has from there on, int32.
        """
        tests, at, thread = self._tests, self._at, self._block.thread
        tile = self._engine.tile
        lane, count = ptx.held(thread % 32, "int32"), T.min(left, T.int32(tile.m))
        row = ptx.held(self._engine.first + lane % tile.rows, "int32")
        query = ptx.held(qpos[first + T.min(row, count - 1)], "int32")
        found = self._find(s, query)
        ptx.barrier()  # whoever looked at the tile before has done so
        tir.assign(self._words, T.int32(0), at.met + thread)
        with tir.when(lane < tile.rows):
            tir.assign(self._words, query, at.positions + row)
            if at.queries:
                bits = ptx.counter()
                for number in range(at.queries):
                    flag = tests.element(tests.queries, number, s, query)
                    bits.add(T.Select(flag == 0, T.int32(1 << number), T.int32(0)))
                tir.assign(self._words, bits.value, at.of_rows + row)
            if at.kept:
                for number, (own, _) in found.numbers.items():
                    tir.assign(self._numbers, own, at.numbers // 2 + number * tile.m + row)
                for number, (own, *_) in found.bounds.items():
                    tir.assign(self._words, own, at.bounds + number * tile.m + row)
        with tir.when(lane == 0):
            self._store_ends(found)
        with tir.when(thread == 0):
            for i, word in enumerate((s, *self._of_sequence)):
                tir.assign(self._words, word, at.sequence + i)
            tir.assign(self._words, T.int32(len(self._engine.rows)), at.height)
            for number, (_, turned, _) in found.bounds.items():
                tir.assign(
                    self._words, T.Select(turned, T.int32(-1), T.int32(0)), at.turned + number
                )
        ptx.barrier()

    def _find(self, s: Expr, query: Expr) -> _Found:
        tests, found = self._tests, _Found({}, {}, {})
        for number in tests.numbers(*TABLES):
            own = ptx.held(tests.element(tests.of_queries, number, s, query), "int64")
            found.numbers[number] = own, Ends(own)
            found.numbers[number][1].join_lanes()
        for number in tests.numbers(POSITIONS):
            bound, below = tests.bound(number, query)
            own, turned = ptx.held(bound, "int32"), ptx.held(T.Cast("int32", below), "int32")
            found.bounds[number] = own, turned != 0, Ends(own, "int32")
            found.bounds[number][2].join_lanes()
        for number in tests.numbers(QUERIES):
            flags = Flags()
            flags.add(tests.element(tests.queries, number, s, query))
            found.flags[number] = flags.of_warp()
        return found

    def _store_ends(self, found: _Found) -> None:
        """Those of a warp, by one of its lanes."""
        at, warp = self._at, ptx.held(self._block.thread // 32, "int32")
        for number, (_, numbers) in found.numbers.items():
            place = at.ends // 2 + self._pair_at(number, warp)
            tir.assign(self._numbers, numbers.least, place)
            tir.assign(self._numbers, numbers.most, place + 1)
        for number, (*_, bounds) in found.bounds.items():
            place = at.bound_ends + self._pair_at(number, warp)
            tir.assign(self._words, bounds.least, place)
            tir.assign(self._words, bounds.most, place + 1)
        for number, holds in found.flags.items():
            tir.assign(self._words, holds, at.flags + number * WARPS + warp)

    @staticmethod
    def _pair_at(number: int, warp: Expr) -> Expr:
        return (number * WARPS + warp) * 2

    # ---- what is kept

    def sequence(self) -> Expr:
        """Its number, int32."""
        return ptx.held(self._words[self._at.sequence], "int32")

    def keys(self) -> tuple[Expr, Expr]:
        """The first row of the sequence's keys, and how many it has, int32."""
        first = self._at.sequence + 1
        k0, count = (ptx.held(self._words[first + i], "int32") for i in range(2))
        return k0, count

    def height(self) -> Expr:
        """How many rows a thread has, int32: the compiler does not know."""
        return ptx.held(self._words[self._at.height], "int32")

    def position(self, row: Expr) -> Expr:
        """Of a row of the tile, int32."""
        return ptx.held(self._words[self._at.positions + row], "int32")

    def number(self, number: int, row: Expr) -> Expr:
        """What a table says of a row, int64."""
        at, tests = self._at, self._tests
        if at.kept:
            return self._numbers[at.numbers // 2 + number * self._engine.tile.m + row]
        query = self.position(row)
        return tests.element(tests.of_queries, number, self.sequence(), query)

    def bound(self, number: int, row: Expr) -> Expr:
        """Of a test of positions for a row, int32."""
        if self._at.kept:
            return self._words[self._at.bounds + number * self._engine.tile.m + row]
        return self._tests.bound(number, self.position(row))[0]

    def turned(self, number: int) -> Expr:
        """Whether a test of positions holds below its bound: all bits, or none, int32."""
        return ptx.held(self._words[self._at.turned + number], "int32")

    def ends(self, number: int, warp: Expr) -> tuple[Expr, Expr]:
        """The least and the greatest number of a warp's rows in a table, int64."""
        place = self._at.ends // 2 + self._pair_at(number, warp)
        least, most = (ptx.held(self._numbers[place + i], "int64") for i in range(2))
        return least, most

    def bound_ends(self, number: int, warp: Expr) -> tuple[Expr, Expr]:
        """The least and the greatest bound of a warp's rows, int32."""
        place = self._at.bound_ends + self._pair_at(number, warp)
        least, most = (ptx.held(self._words[place + i], "int32") for i in range(2))
        return least, most

    def flags(self, number: int, warp: Expr) -> Expr:
        """Where a test of queries holds over a warp's rows, in three values, int32."""
        return ptx.held(self._words[self._at.flags + number * WARPS + warp], "int32")

    def is_flagged(self, number: int, row: Expr) -> Expr:
        """Whether a test of queries holds at a row."""
        return self._words[self._at.of_rows + row] & T.int32(1 << number) != T.int32(0)

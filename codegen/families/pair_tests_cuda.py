"""Tests of pairs on a multiprocessor: what they look at, and where a tile's part of it is kept."""

from collections.abc import Iterable
from dataclasses import dataclass

from pitc.codegen import collective, ptx, tir
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import WARPS
from pitc.ir.seen import KEYS, PAIRS, POSITIONS, QUERIES, TABLES, steps_of

CHUNK = WARPS * 32
"""Steps that are looked at together: one for each thread."""
NOWHERE, SOMEWHERE, EVERYWHERE = 0, 1, 2
_THREADS = WARPS * 32


def to_int64(value: Expr) -> Expr:
    """A number, widened."""
    return T.Cast("int64", value)


@dataclass(frozen=True, slots=True)
class Places:
    """Where in shared memory what lies, in words of 32 bits from its first byte.

    Args:
        start: The first word; even.
        rows: Of a tile.
        lines: Tests of positions.
        tables: Tests of tables.
        queries: Tests of queries.
    """

    start: int
    rows: int
    lines: int
    tables: int
    queries: int

    @property
    def factors(self) -> int:
        """Three int64 numbers of each test of positions."""
        return self.start

    @property
    def ends(self) -> int:
        """Two int64 numbers of each table."""
        return self.factors + 6 * self.lines

    @property
    def steps(self) -> int:
        """The list."""
        return self.ends + 4 * self.tables

    @property
    def counts(self) -> int:
        """How many steps each warp adds to it."""
        return self.steps + CHUNK

    @property
    def asked(self) -> int:
        """What each warp asks for."""
        return self.counts + WARPS

    @property
    def positions(self) -> int:
        """Of rows."""
        return self.asked + WARPS

    @property
    def met(self) -> int:
        """What rows of each thread have met a key, as bits of pairs."""
        return self.positions + self.rows

    @property
    def blind(self) -> int:
        """What rows have met none."""
        return self.met + _THREADS

    @property
    def sequence(self) -> int:
        """Its number, its first key and how many it has."""
        return self.blind + _THREADS

    @property
    def height(self) -> int:
        """How many rows a thread has."""
        return self.sequence + 3

    @property
    def flags(self) -> int:
        """Where each test of queries holds over the tile."""
        return self.height + 1

    @property
    def of_rows(self) -> int:
        """At which rows they hold: a bit of each test."""
        return self.flags + self.queries

    @property
    def size(self) -> int:
        """Bytes, all of it."""
        words = self.of_rows + self.rows * (self.queries > 0) - self.start
        return -(-words // 4) * 16


class Tests:
    """The arguments that tests look at, in the order of a call.

    Args:
        text: The formula.
        sequences: How many there are, int64.
    """

    def __init__(self, text: str, sequences: Expr) -> None:
        self.steps, self.sequences = steps_of(text), sequences
        eq, ek = tir.size("query_extent"), tir.size("key_extent")

        def declared(ops: Iterable[str], name: str, dtype: str, *shape: Expr) -> Buffer | None:
            lead = () if name == "position_tests" else (tir.size(f"{name}_rows"),)
            return tir.device_tensor(name, (*lead, *shape), dtype) if self.count(*ops) else None

        shape = tir.size("tests"), tir.int64(3)
        self.positions = declared(POSITIONS, "position_tests", "int64", *shape)
        self.of_queries = declared(TABLES, "q_tables", "int64", eq)
        self.of_keys = declared(TABLES, "k_tables", "int64", ek)
        self.keys = declared(KEYS, "key_flags", "int8", ek)
        self.queries = declared(QUERIES, "query_flags", "int8", eq)
        self.pairs = declared(PAIRS, "pair_flags", "int8", eq, ek)

    def count(self, *ops: str) -> int:
        """How many tests of some kinds there are."""
        return max((step.number + 1 for step in self.steps if step.op in ops), default=0)

    def places(self, first_byte: int, rows: int) -> Places:
        """Where in shared memory what lies, from a multiple of 16 bytes on."""
        counts = self.count(POSITIONS), self.count(*TABLES), self.count(QUERIES)
        return Places(first_byte // 4, rows, *counts)

    def element(self, buffer: Buffer | None, number: int, s: Expr, *places: Expr) -> Expr:
        """A number, or a flag, of a sequence; in bounds whatever places say."""
        assert buffer is not None
        inside = (
            to_int64(T.max(T.min(place, ptx.int32(extent) - 1), T.int32(0)))
            for place, extent in zip(places, buffer.shape[1:], strict=True)
        )
        return buffer[(to_int64(s) + self.sequences * number, *inside)]


def three_valued(nowhere: Expr, everywhere: Expr) -> Expr:
    """What two conditions say, int32."""
    some = T.Select(nowhere, T.int32(NOWHERE), T.int32(SOMEWHERE))
    return ptx.held(T.Select(everywhere, T.int32(EVERYWHERE), some), "int32")


class Ends:
    """The least and the greatest of some int64 numbers, one at least."""

    def __init__(self, first: Expr) -> None:
        self._least, self._most = (ptx.Register("int64", first) for _ in range(2))

    @property
    def least(self) -> Expr:
        """The least one."""
        return self._least.value

    @property
    def most(self) -> Expr:
        """The greatest one."""
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


class Flags:
    """Whether some flags are 0, and whether some are not."""

    def __init__(self) -> None:
        self._zeros, self._others = ptx.counter(), ptx.counter()

    def add(self, value: Expr) -> None:
        """Take in one more."""
        flag = ptx.held(value, "int8")
        self._zeros.set(self._zeros.value | T.Cast("int32", flag == 0))
        self._others.set(self._others.value | T.Cast("int32", flag != 0))

    @property
    def hold(self) -> Expr:
        """Where a test holds that flags be 0, int32."""
        return three_valued(self._zeros.value == 0, self._others.value == 0)

    def of_warp(self) -> Expr:
        """The same of the flags of all lanes, which ask at once."""
        found = (collective.ballot(x.value != 0) for x in (self._zeros, self._others))
        zeros, others = found
        return three_valued(zeros == T.uint32(0), others == T.uint32(0))

"""Tests of pairs on a multiprocessor: what they look at, and where a tile's part of it is kept."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pitc.codegen import collective, ptx, tir
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.attention_tile import WARPS
from pitc.ir.cuda_target import CUDA_ARCHS
from pitc.ir.seen import KEYS, PAIRS, POSITIONS, QUERIES, TABLES, steps_of, turned

CHUNK = WARPS * 32
"""Steps that are looked at together: one for each thread."""
NOWHERE, SOMEWHERE, EVERYWHERE = 0, 1, 2
NEVER = (1 << 31) - 1
"""A bound that no position reaches."""
_THREADS = WARPS * 32
_MOST_BYTES = min(arch.shared_bytes for arch in CUDA_ARCHS.values())


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
        kept: Whether there is room for a number of each row and test of positions or tables.
    """

    start: int
    rows: int
    lines: int
    tables: int
    queries: int
    kept: bool = True

    @property
    def ends(self) -> int:
        """Two int64 numbers of each table and warp."""
        return self.start

    @property
    def numbers(self) -> int:
        """An int64 number of each table and row."""
        return self.ends + 4 * WARPS * self.tables

    @property
    def bound_ends(self) -> int:
        """The least and the greatest bound of each test of positions and warp."""
        return self.numbers + 2 * self.kept * self.rows * self.tables

    @property
    def bounds(self) -> int:
        """A bound of each test of positions and row."""
        return self.bound_ends + 2 * WARPS * self.lines

    @property
    def turned(self) -> int:
        """Of each test of positions: all bits, where it holds below the bound."""
        return self.bounds + self.kept * self.rows * self.lines

    @property
    def steps(self) -> int:
        """The list."""
        return self.turned + self.lines

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
        """What rows of each thread have met a key, as bits of pairs; then, what rows met none."""
        return self.positions + self.rows

    @property
    def sequence(self) -> int:
        """Its number, its first key and how many it has."""
        return self.met + _THREADS

    @property
    def height(self) -> int:
        """How many rows a thread has."""
        return self.sequence + 3

    @property
    def first(self) -> int:
        """The first step that the list is about."""
        return self.height + 1

    @property
    def flags(self) -> int:
        """Where each test of queries holds over the rows of each warp."""
        return self.first + 1

    @property
    def of_rows(self) -> int:
        """At which rows they hold: a bit of each test."""
        return self.flags + self.queries * WARPS

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
        of_keys: Keys look at queries: what is called a query here is a key, and the other way.
    """

    def __init__(self, text: str, sequences: Expr, *, of_keys: bool = False) -> None:
        self.steps, self.sequences, self.are_turned = steps_of(text), sequences, of_keys
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
        if of_keys:
            self.steps = turned(self.steps)
            self.of_queries, self.of_keys = self.of_keys, self.of_queries
            self.keys, self.queries = self.queries, self.keys

    def count(self, *ops: str) -> int:
        """How many tests of some kinds there are."""
        return max((step.number + 1 for step in self.steps if step.op in ops), default=0)

    def numbers(self, *ops: str) -> list[int]:
        """The tests of some kinds that the formula names."""
        return sorted({step.number for step in self.steps if step.op in ops})

    def places(self, first_byte: int, rows: int) -> Places:
        """Where in shared memory what lies, from a multiple of 16 bytes on."""
        counts = self.count(POSITIONS), self.count(*TABLES), self.count(QUERIES)
        places = Places(first_byte // 4, rows, *counts)
        fits = first_byte + places.size <= _MOST_BYTES
        return places if fits else replace(places, kept=False)

    def element(self, buffer: Buffer | None, number: int, s: Expr, *places: Expr) -> Expr:
        """A number, or a flag, of a sequence; in bounds whatever places say."""
        assert buffer is not None
        inside = (
            to_int64(_inside(place, extent))
            for place, extent in zip(places, buffer.shape[1:], strict=True)
        )
        return buffer[(to_int64(s) + self.sequences * number, *inside)]

    def bound(self, number: int, query: Expr) -> tuple[Expr, Expr]:
        """From which position of a key on a test of positions holds for a query.

            x * query + y * key + z >= 0 where, with f = floor((x * query + z) / |y|),
            key >= -f if y > 0, key < f + 1 if y < 0

        Args:
            number: Of the test.
            query: Its position, int32.

        Returns:
            The bound, int32 from 0 to NEVER, and whether it holds below the bound.
        """
        assert self.positions is not None
        places = (1, 0, 2) if self.are_turned else (0, 1, 2)
        x, y, z = (ptx.held(self.positions[number, i], "int64") for i in places)
        rest, zero, one = ptx.held(x * to_int64(query) + z, "int64"), T.int64(0), T.int64(1)
        size = ptx.held(T.max(T.max(y, zero - y), one), "int64")
        # Most factors of keys are 1 or -1, and a division takes a hundred instructions.
        quotient = ptx.held(T.if_then_else(size == one, rest, T.truncdiv(rest, size)), "int64")
        floor = ptx.held(quotient - T.Cast("int64", rest < quotient * size), "int64")
        always = T.Select(rest >= 0, zero, T.int64(NEVER))
        bound = T.Select(y == 0, always, T.Select(y < 0, floor + one, zero - floor))
        return ptx.int32(T.max(T.min(bound, T.int64(NEVER)), zero)), y < 0

    def row_of_pairs(self, number: int, s: Expr, query: Expr) -> Expr:
        """The number of the first flag of a row of pairs, int64; in bounds whatever it says."""
        assert self.pairs is not None
        _, queries, keys = self.pairs.shape
        row = to_int64(s) + self.sequences * number
        if self.are_turned:
            return row * queries * keys + to_int64(_inside(query, keys))
        return (row * queries + to_int64(_inside(query, queries))) * keys

    def key_of_pairs(self, key: Expr) -> Expr:
        """A key's number in it, int32."""
        assert self.pairs is not None
        return _inside(key, self.pairs.shape[1 if self.are_turned else 2])

    def after_row(self, key: Expr) -> Expr:
        """How far behind a row's first flag that of a key's number is, int64."""
        assert self.pairs is not None
        return to_int64(key) * self.pairs.shape[2] if self.are_turned else to_int64(key)


def _inside(place: Expr, extent: Expr) -> Expr:
    """A place, int32; the last or the first one for those behind or before."""
    return T.max(T.min(place, ptx.int32(extent) - 1), T.int32(0))


def three_valued(nowhere: Expr, everywhere: Expr) -> Expr:
    """What two conditions say, int32."""
    some = T.Select(nowhere, T.int32(NOWHERE), T.int32(SOMEWHERE))
    return ptx.held(T.Select(everywhere, T.int32(EVERYWHERE), some), "int32")


class Ends:
    """The least and the greatest of some numbers, one at least."""

    def __init__(self, first: Expr, dtype: str = "int64") -> None:
        self._dtype = dtype
        self._least, self._most = (ptx.Register(dtype, first) for _ in range(2))

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
            both = self.least, self.most
            least, most = (collective.exchanged(x, lane, self._dtype) for x in both)
            self._least.set(T.min(self.least, least))
            self._most.set(T.max(self.most, most))


class Flags:
    """Whether some flags are 0, and whether some are not."""

    def __init__(self) -> None:
        self._zeros, self._others = (ptx.Register("uint32", T.uint32(0)) for _ in range(2))

    def add(self, value: Expr) -> None:
        """Take in one more."""
        flag = ptx.held(value, "int8")
        self._zeros.set(self._zeros.value | T.Cast("uint32", flag == 0))
        self._others.set(self._others.value | T.Cast("uint32", flag != 0))

    def add_four(self, word: Expr) -> None:
        """Take in the four bytes of a uint32: of each that is 0 the uppermost bit counts."""
        flags = ptx.held(word, "uint32")
        zeros = (flags - T.uint32(0x01010101)) & (flags ^ T.uint32(0xFFFFFFFF))
        self._zeros.set(self._zeros.value | zeros & T.uint32(0x80808080))
        self._others.set(self._others.value | flags)

    def add_any(self) -> None:
        """Take in some of both kinds."""
        for some in (self._zeros, self._others):
            some.set(T.uint32(1))

    @property
    def hold(self) -> Expr:
        """Where a test holds that flags be 0, int32."""
        return three_valued(self._zeros.value == 0, self._others.value == 0)

    def of_warp(self) -> Expr:
        """The same of the flags of all lanes, which ask at once."""
        found = (collective.ballot(x.value != 0) for x in (self._zeros, self._others))
        zeros, others = found
        return three_valued(zeros == T.uint32(0), others == T.uint32(0))

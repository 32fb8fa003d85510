"""Tiles of packed sequences on a multiprocessor: which rows of which sequence are a tile's.

Where sequences begin is known on the device only. Tiles are numbered so that no list of them is
needed: those of sequence s begin at offsets[s] // m + s, and there are enough numbers before those
of the next one. With m = 64 and sequences of 10, 0, 130 and 64 rows:

    sequence             0     1     2     3
    offsets              0    10    10   140   204
    first number         0     1     2     5     7
    tiles                0         2 3 4   5           (numbers 1 and 6 are of no tile)

A warp finds the sequence of a number by looking at 32 at a time: in two looks among 1024.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from pitc.codegen import collective, ptx, tir
from pitc.codegen.tir import Buffer, Expr, T

_FAN, _FAN_BITS, _MOST_ROUNDS = 32, 5, 6
"""Sequences that a warp looks at; looks that find one of any number that int32 has, 2^30."""


class Search:
    """Finds the sequence of a number.

    Args:
        offsets: Of sequences, ascending.
        sequences: How many there are, int32, at least one.
        m: Rows of a tile, a power of two.
        lane: Number of the lane, int32.
    """

    def __init__(self, offsets: Buffer, sequences: Expr, m: int, lane: Expr) -> None:
        self._offsets, self._sequences, self._bits = offsets, sequences, m.bit_length() - 1
        self._lane = lane

    def numbers(self, rows: Expr) -> Expr:
        """How many numbers there are, int32.

        Args:
            rows: That there is room for, int64.
        """
        end = T.max(T.min(self._offsets[self._sequences], ptx.int32(rows)), T.int32(0))
        return (end >> T.int32(self._bits)) + self._sequences

    def first_number(self, s: Expr) -> Expr:
        """The first number of a sequence, int32."""
        return (self._offsets[s] >> T.int32(self._bits)) + s

    def sequence_of(self, number: Expr) -> Expr:
        """The last sequence whose first number is not above this one; 0 if there is none."""
        found, reach, rounds = (ptx.registers(1, "int32") for _ in range(3))
        tir.assign(found, T.int32(0), 0)
        tir.assign(reach, T.int32(1), 0)
        tir.assign(rounds, T.int32(1), 0)
        for _ in range(_MOST_ROUNDS - 1):
            with tir.when(reach[0] * _FAN < self._sequences):
                tir.assign(reach, reach[0] * _FAN, 0)
                tir.assign(rounds, rounds[0] + 1, 0)
        with tir.serial(T.int32(0), rounds[0]):
            s = ptx.held(found[0] + (self._lane + 1) * reach[0], "int32")
            there = s < self._sequences
            begins = T.if_then_else(there, self.first_number(s), T.int32(0))
            begun = tir.both(there, ptx.held(begins, "int32") <= number)
            lanes = collective.population(collective.ballot(begun))
            tir.assign(found, found[0] + lanes * reach[0], 0)
            tir.assign(reach, reach[0] >> T.int32(_FAN_BITS), 0)
        return ptx.held(found[0], "int32")


def part(offsets: Buffer, s: Expr, rows: Expr) -> tuple[Expr, Expr]:
    """The first row of a sequence and how many it has, int32; in bounds whatever offsets say."""
    end = ptx.int32(rows)
    begin = ptx.held(T.max(T.min(offsets[s], end), T.int32(0)), "int32")
    return begin, ptx.held(T.max(T.min(offsets[s + 1], end) - begin, T.int32(0)), "int32")


class Order(Enum):
    """In which order blocks take tiles, the most work first where that is known."""

    ANY = 0
    FIRST_FIRST = 1
    LAST_FIRST = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of which tiles are made.

    Args:
        offsets: Where sequences begin.
        count: Rows that there is room for, int64.
        heads: How many, int64.
        m: Rows of a tile.
        order: Of tiles.
    """

    offsets: Buffer
    count: Expr
    heads: Expr
    m: int
    order: Order


@dataclass(frozen=True, slots=True)
class TileRows:
    """Rows of a tile.

    Args:
        s: The sequence, int32.
        head: The head, int32.
        first: The first row, int32.
        left: Rows of the sequence from there on, int32, at least one.
    """

    s: Expr
    head: Expr
    first: Expr
    left: Expr


@contextmanager
def each_tile(
    rows: Rows, blocks: tuple[Expr, Expr], thread: Expr, chosen: Expr
) -> Iterator[TileRows]:
    """Open a loop over tiles and heads, heads of one tile first, in which blocks take turns.

    Args:
        rows: Of which tiles are made.
        blocks: Number of the block, and how many there are, int32.
        thread: Number of the thread, int32.
        chosen: Whether the kernel has anything to do.
    """
    sequences = ptx.held(ptx.int32(rows.offsets.shape[0] - 1), "int32")
    search = Search(rows.offsets, sequences, rows.m, thread % 32)
    heads = ptx.held(ptx.int32(rows.heads), "int32")
    count = ptx.registers(1, "int32")
    tir.assign(count, T.int32(0), 0)
    with tir.when(tir.both(chosen, sequences > 0)):
        tir.assign(count, search.numbers(rows.count) * heads, 0)
    turns = ptx.turns if rows.order is Order.ANY else ptx.returns
    with turns(*blocks, count[0]) as turn:
        if rows.order is Order.LAST_FIRST:
            turn = ptx.held(count[0] - 1 - turn, "int32")
        numbered = ptx.held(T.truncdiv(turn, heads), "int32")
        s = search.sequence_of(numbered)
        first, there = part(rows.offsets, s, rows.count)
        before = (numbered - search.first_number(s)) * rows.m
        left = ptx.held(T.Select(before >= 0, there - before, T.int32(0)), "int32")
        with tir.when(left > 0):
            first = ptx.held(first + before, "int32")
            yield TileRows(s, ptx.held(T.truncmod(turn, heads), "int32"), first, left)

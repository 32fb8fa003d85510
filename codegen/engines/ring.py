"""SRead of a multiprocessor: pieces of the operands in a ring of shared memory.

    for step s:   wait until the copies of step s have landed; barrier
                  start the copies of step s + stages - 1, into the slot that step s - 1 has left
                  compute from the slot of step s

A piece is a matrix of rows that are whole chunks of 16 bytes. Chunks of a row change places with
the row's number (*swizzle*), so that neither a copy nor a load of eight rows of one column meets in
a bank of shared memory. Rows of 4 chunks:

    row                  0 1 2 3 4 5 6 7
    chunk 0 stands at    0 0 1 1 2 2 3 3        chunk xor (row // 2 % 4)
    chunk 1 stands at    1 1 0 0 3 3 2 2
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pitc.codegen import ptx, tir
from pitc.codegen.ptx import CHUNK_BYTES, Window
from pitc.codegen.tir import Buffer, Expr, T

BANK_CHUNKS = 8
"""Chunks that shared memory serves at a time."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A matrix in each slot of the ring.

    Args:
        offset: Bytes of a slot before it.
        rows: How many.
        row_bytes: Of a row; a power of two, at least 32.
        turn: Rows after which chunks change places; 0: as many as share the banks.
        stride: By how many places they do.
        pairs: Rows after which every two rows change places, 0: none do.
    """

    offset: int
    rows: int
    row_bytes: int
    turn: int = 0
    stride: int = 1
    pairs: int = 0

    @property
    def chunks(self) -> int:
        """Of a row."""
        return self.row_bytes // CHUNK_BYTES

    @property
    def end(self) -> int:
        """Bytes of a slot up to its end."""
        return self.offset + self.rows * self.row_bytes

    def at(self, row: Expr, chunk: Expr) -> Expr:
        """Where a chunk lies in its slot, in bytes."""
        turn = self.turn or max(1, BANK_CHUNKS // self.chunks)
        places = min(self.chunks, BANK_CHUNKS) // self.stride
        if self.pairs:
            row = row ^ (row // self.pairs % 2)
        swizzled = chunk ^ (row // turn % places * self.stride)
        return self.offset + row * self.row_bytes + swizzled * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an operand in memory.

    Args:
        operand: The operand, as a vector.
        element: Its first element, int64.
        valid: Elements from there on that are read, int32: none if it is not above 0; the others
            are 0.
    """

    operand: Buffer
    element: Expr
    valid: Expr


Place = Callable[[int], tuple[Expr, Expr]]
"""The row and chunk of a piece where the i-th copy of this thread goes."""


class Source(Protocol):
    """An operand: which chunk of it stands where in a piece."""

    def start(self, copies: int, place: Place) -> None:
        """Begin a dense tile, of each of whose pieces this thread copies so many chunks."""
        ...

    def look_up(self, step: Expr) -> None:
        """Read from lists what `chunk` needs to know of a step."""
        ...

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """A thread block.

    Args:
        threads: How many.
        thread: Number of this one, int32.
        window: Its shared memory.
    """

    threads: int
    thread: Expr
    window: Window


class Copies(Protocol):
    """What is copied to a part of each slot."""

    def start(self) -> None:
        """Begin a dense tile."""
        ...

    def look_up(self, step: Expr) -> None:
        """Read from lists what `copy` needs to know of a step."""
        ...

    def copy(self, slot: Expr, step: Expr) -> None:
        """Start the copies of a step to the slot that begins at byte `slot`."""
        ...


class Feed:
    """The copies of one operand.

    Args:
        block: Who copies.
        piece: Where to.
        source: Where from.
        loose: Rows may start anywhere: elements are read one by one.
        chunks: Of a row that are copied, from its first one on; 0: all.
    """

    def __init__(
        self, block: Block, piece: Piece, source: Source, *, loose: bool = False, chunks: int = 0
    ) -> None:
        self.source = source
        self._block, self._piece, self._loose = block, piece, loose
        self._all = piece.rows * piece.chunks
        self._chunks = chunks or piece.chunks
        self._copies = -(-self._all // block.threads)

    def _number(self, i: int) -> Expr:
        return self._block.thread + i * self._block.threads

    def _place(self, i: int) -> tuple[Expr, Expr]:
        return self._number(i) // self._piece.chunks, self._number(i) % self._piece.chunks

    def start(self) -> None:
        """Begin a dense tile."""
        self.source.start(self._copies, self._place)

    def look_up(self, step: Expr) -> None:
        """Read from lists what `copy` needs to know of a step."""
        self.source.look_up(step)

    def copy(self, slot: Expr, step: Expr) -> None:
        """Start the copies of a step to the slot that begins at byte `slot`."""
        for i in range(self._copies):
            conditions = []
            if (i + 1) * self._block.threads > self._all:
                conditions.append(self._number(i) < self._all)
            if self._chunks < self._piece.chunks:
                conditions.append(self._place(i)[1] < self._chunks)
            if conditions:
                with tir.when(functools.reduce(tir.both, conditions)):
                    self._move(i, slot, step)
            else:
                self._move(i, slot, step)

    def _move(self, i: int, slot: Expr, step: Expr) -> None:
        chunk = self.source.chunk(i, step)
        to = slot + self._piece.at(*self._place(i))
        if self._loose:
            ptx.move_elements(self._block.window, to, chunk.operand, chunk.element, chunk.valid)
        else:
            size = T.Select(chunk.valid > 0, ptx.uint32(CHUNK_BYTES), ptx.uint32(0))
            ptx.copy_chunk(self._block.window.address(to), chunk.operand, chunk.element, size)


def run(
    feeds: Sequence[Copies],
    slot_bytes: int,
    stages: int,
    steps: Expr,
    compute: Callable[[Expr], None],
    once: Feed | None = None,
) -> None:
    """Copy and compute all steps of a dense tile.

    Args:
        feeds: What is copied into a slot.
        slot_bytes: Size of a slot.
        stages: How many slots there are, at least two.
        steps: How many, int32.
        compute: Emits a step from the first byte of its slot.
        once: What is copied with the first step, and stays for all of them.
    """

    def look_up(step: Expr) -> None:
        with tir.when(step < steps):
            for feed in feeds:
                feed.look_up(step)

    def copy(slot: Expr, step: Expr) -> None:
        with tir.when(step < steps):
            for feed in feeds:
                feed.copy(slot, step)
        ptx.commit()
        look_up(step + 1)  # it is there when the next copies start

    for feed in feeds:
        feed.start()
    look_up(T.int32(0))
    ptx.barrier()  # whoever used the slots before has done so
    if once is not None:
        once.start()
        with tir.when(steps > 0):
            once.copy(T.int32(0), T.int32(0))
    for s in range(stages - 1):
        copy(T.int32(s * slot_bytes), T.int32(s))
    end = stages * slot_bytes
    slot = ptx.registers(1, "int32")
    tir.assign(slot, T.int32(0), 0)
    with tir.serial(T.int32(0), steps) as step:
        ptx.wait(stages - 2)
        ptx.barrier()
        before = T.Select(slot[0] == 0, T.int32(end), slot[0]) - slot_bytes
        copy(ptx.held(before, "int32"), step + (stages - 1))
        compute(slot[0])
        after = slot[0] + slot_bytes
        tir.assign(slot, T.Select(after == end, T.int32(0), after), 0)

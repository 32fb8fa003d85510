"""Live points of a mask on a multiprocessor: their numbers, ascending, and how many there are.

A mask is cut into parts of equally many turns, of 4096 points each: 16 for each of 256 threads. One
launch counts what lives in each part. In the next one a thread block sums up what lives in front of
its part, goes through that again and writes; of a single part nobody has to count. For example in
two parts of four points:

    live    0 1 1 0   0 0 0 1
    counts  2         1
    rows    1 2       7              gate  0 3       (number 0 is chosen, for three rows)

In a turn lane l has bits of points 16 l .. 16 l + 15 of its warp. Two lanes make a word of 32
points, which all lanes get: they write neighbours. There is no atomic, and no order that matters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pitc.codegen import collective, ptx, tir
from pitc.codegen.ptx import CHUNK_BYTES
from pitc.codegen.tir import Buffer, Expr, T

_WARPS = collective.BlockSums.WARPS
_THREADS = 32 * _WARPS
_WARP_POINTS = 32 * CHUNK_BYTES
POINTS = _WARPS * _WARP_POINTS
"""That a thread block looks at in a turn."""
_TOGETHER = 4
"""Thread blocks of a multiprocessor."""


def live_counts(symbol: str) -> Any:
    """The TIR function that counts the live points of each part (arguments: `docs/plans.md`)."""
    return tir.prim_func(symbol, _live_counts)


def live_points(symbol: str) -> Any:
    """The TIR function that lists live points (arguments: `docs/plans.md`)."""
    return tir.prim_func(symbol, _live_points)


def _live_counts() -> None:
    live = tir.device_tensor("live", (tir.size("points"),), "int8")
    counts = tir.device_tensor("counts", (tir.size("parts"),), "int32")
    blocks = T.arg("blocks", T.int32())
    with ptx.launch(blocks, _THREADS, _TOGETHER) as (number, thread):
        walk = _Walk(live, counts, thread)
        with ptx.turns(number, blocks, walk.parts) as part:
            mine = ptx.counter()
            with walk.turns_of(part) as turn:
                mine.add(collective.population(walk.bits(turn)))
            _, total = walk.sums(mine.value)
            with tir.when(thread == 0):
                tir.assign(counts, total, part)


def _live_points() -> None:
    points = tir.size("points")
    live = tir.device_tensor("live", (points,), "int8")
    counts = tir.device_tensor("counts", (tir.size("parts"),), "int32")
    rows = tir.device_tensor("rows", (points,), "int32")
    gate = tir.device_tensor("gate", (2,), "int32")
    blocks = T.arg("blocks", T.int32())
    with ptx.launch(blocks, _THREADS, _TOGETHER) as (number, thread):
        walk = _Walk(live, counts, thread)
        with ptx.turns(number, blocks, walk.parts) as part:
            in_front = ptx.counter()
            with tir.serial(T.int32(0), ptx.steps(part, _THREADS)) as turn:
                i = turn * _THREADS + thread
                with tir.when(i < part):
                    in_front.add(counts[i])
            _, begin = walk.sums(in_front.value)
            place = ptx.Register("int32", begin)
            with walk.turns_of(part) as turn:
                bits = walk.bits(turn)
                before, total = walk.sums(collective.population(bits))
                walk.write(rows, turn, bits, place.value + before)
                place.add(total)
            with tir.when(tir.both(part == walk.parts - 1, thread == 0)):
                tir.assign(gate, T.int32(0), 0)
                tir.assign(gate, place.value, 1)


class _Walk:
    """The way of a thread block through a mask.

    Args:
        live: The mask; a point lives where its byte is not 0.
        counts: As long as there are parts.
        thread: Number of the thread.
    """

    def __init__(self, live: Buffer, counts: Buffer, thread: Expr) -> None:
        self._live, self._chunks = live, ptx.seen_as(live, "uint32x4")
        self._block = collective.BlockSums(thread)
        self._warp, self._lane = self._block.warp, self._block.lane
        self.parts = ptx.held(ptx.int32(counts.shape[0]), "int32")
        points = live.shape[0]
        turns = T.truncdiv(points + tir.int64(POINTS - 1), tir.int64(POINTS))
        self._turns = ptx.held(ptx.int32(turns), "int32")
        self._each = ptx.held(
            T.truncdiv(self._turns + self.parts - 1, T.max(self.parts, T.int32(1))), "int32"
        )

    @contextmanager
    def turns_of(self, part: Expr) -> Iterator[Expr]:
        """Open a loop over the turns of a part; the context value is int32."""
        first = ptx.held(T.min(part * self._each, self._turns), "int32")
        count = T.min(self._each, self._turns - first)
        with tir.serial(T.int32(0), count) as turn:
            yield ptx.held(first + turn, "int32")

    def _first(self, turn: Expr) -> Expr:
        """The first point of the warp in a turn, int64."""
        return T.Cast("int64", turn) * POINTS + T.Cast("int64", self._warp * _WARP_POINTS)

    def bits(self, turn: Expr) -> Expr:
        """Which of this lane's points live."""
        own = T.Cast("int64", self._lane * CHUNK_BYTES)
        at = ptx.held(self._first(turn) + own, "int64")
        left = ptx.held(self._live.shape[0] - at, "int64")
        found = ptx.Register("uint32", ptx.uint32(0))
        with tir.when(left >= CHUNK_BYTES):
            chunk = ptx.registers(1, "uint32x4")
            tir.assign(chunk, self._chunks[at >> tir.int64(4)], 0)
            for i in range(4):
                word = ptx.held(T.Shuffle([chunk[0]], [T.int32(i)]), "uint32")
                found.set(found.value | _nonzero_bytes(word) << ptx.uint32(4 * i))
        with tir.when(left < CHUNK_BYTES):
            for i in range(CHUNK_BYTES - 1):
                with tir.when(left > i):
                    alive = T.Cast("uint32", self._live[at + i] != T.int8(0))
                    found.set(found.value | alive << ptx.uint32(i))
        return found.value

    def sums(self, mine: Expr) -> tuple[Expr, Expr]:
        """A number of each thread: its sums over the warps in front, and over all; int32."""
        return self._block.of(mine)

    def write(self, rows: Buffer, turn: Expr, bits: Expr, place: Expr) -> None:
        """Write the live points of the warp in a turn, from a place on."""
        first, at = ptx.held(self._first(turn), "int64"), ptx.Register("int32", place)
        for word in range(_WARP_POINTS // 32):
            low, high = (
                collective.value_of(bits, T.int32(2 * word + half), "uint32") for half in (0, 1)
            )
            both = ptx.held(low | high << ptx.uint32(16), "uint32")
            with tir.when(collective.bit(both, self._lane)):
                point = first + T.Cast("int64", self._lane + 32 * word)
                tir.assign(rows, ptx.int32(point), at.value + collective.before(both, self._lane))
            at.add(collective.population(both))


def _nonzero_bytes(word: Expr) -> Expr:
    """Bit i is set where byte i of a word is not 0.

    Seven bits of each byte, and as many ones added: the eighth is set where they were not all 0.
    A product then moves the four bits side by side.
    """
    low = ptx.uint32(0x7F7F7F7F)
    eighth = ((word & low) + low | word) >> ptx.uint32(7) & ptx.uint32(0x01010101)
    return eighth * ptx.uint32(0x01020408) >> ptx.uint32(24) & ptx.uint32(0xF)

"""Lists of live micro-tiles on a multiprocessor, of the variant that was chosen, in one launch.

    tile      groups of 32 (16) rows:  values [entries, 32], ks [entries]       PIT axis k
    block     blocks of 64 (32) k:     values [entries, 64], rows [entries]     PIT axis m
    square    groups of 32 rows:       ks [entries], in units of 32 k           A stays where it is

A thread block makes what one segment of one group of rows adds to the lists. Where that belongs is
known beforehand (`choose_cuda`), so entries stand in ascending order of k, or of rows, whoever is
first. Chunks of A without a live element are not read, their elements count as 0.

For `tile` a segment is turned round in shared memory: chunks of 16 bytes change places with their
rows, so that the 8 (4) rows which one thread packs to 16 bytes lie in other banks than those which
its neighbours do. Columns are of 32 / chunks *classes* by the banks that theirs lie in, and at a
time a warp takes one of each class: two never meet in a bank, whichever are live.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pitc.codegen import collective, ptx, tir
from pitc.codegen.families.detect_cuda import THREADS, TOGETHER, WORD, WORDS, Words
from pitc.codegen.ptx import CHUNK_BYTES, Window
from pitc.codegen.tir import Expr, T
from pitc.ir.cuda_variants import COLUMNS, GROUP, KINDS, SEGMENT

_TABLE = Words.size
"""Bytes of shared memory before a table: columns of the entries, or places of pieces."""
_LIST = GROUP + 1
"""Numbers of a block of k in that table: those of one row lie in different banks."""
_UNIONS = _TABLE + WORDS * _LIST * 4
_TURNED = _UNIONS + WORDS * 4
_WARPS = THREADS // 32
_TOGETHER = 8
"""Elements that a thread reads before it stores one."""


def lists(symbol: str, params: Mapping[str, Any]) -> Any:
    """The TIR function that makes lists (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `dtype` of A; `height` of a group of `tile`; `width` of a block of k; `loose`, 0 if
            not there: rows of A start anywhere.
    """
    return tir.prim_func(symbol, lambda: _Lists(params).emit())


class _Lists:
    """The arguments, and what all kinds of lists start from."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._loose = bool(params.get("loose"))
        self._height, self._width = params["height"], params["width"]
        listed, words, self._k = tir.size("listed"), tir.size("words"), tir.size("k")
        self._a = tir.device_tensor("a", (tir.size("stored_rows"), self._k), params["dtype"])
        self._dtype = str(self._a.dtype)
        self._item = tir.item_bytes(self._dtype)
        self._per_chunk = CHUNK_BYTES // self._item
        self._rows = tir.device_tensor("rows", (listed,), "int32")
        self._bits = tir.device_tensor("bits", (listed, words), "uint32")
        self._gate = tir.device_tensor("gate", (2,), "int32")
        shape = tir.size("variants"), len(COLUMNS)
        self._kinds = tir.device_tensor("table", shape, "int32")
        self._places = tir.device_tensor("places", (tir.size("lists"),), "int32")
        self._values = tir.device_tensor("values", (tir.size("elements"),), params["dtype"])
        self._index = tir.device_tensor("index", (tir.size("entries"),), "int32")
        self._blocks = T.arg("blocks", T.int32())
        self._listed, self._words = ptx.int32(listed), ptx.int32(words)

    def emit(self) -> None:
        """The loop over segments of groups."""
        with ptx.launch(self._blocks, THREADS, TOGETHER) as (number, thread):
            self._thread = thread
            self._warp, self._lane = ptx.held(thread // 32, "int32"), ptx.held(thread % 32, "int32")
            self._window = Window(_TURNED + GROUP * SEGMENT * self._item, addressed=not self._loose)
            self._found = Words(self._window)
            self._table = self._window.view("int32")
            kind = ptx.held(self._kinds[self._gate[0], 0], "int32")
            self._there = ptx.held(T.min(self._gate[1], self._listed), "int32")
            self._groups = ptx.held(ptx.steps(self._listed, GROUP), "int32")
            segments = ptx.held(ptx.steps(self._words, WORDS), "int32")
            live_groups = ptx.steps(self._there, GROUP)
            jobs = T.Select(kind == 0, T.int32(0), live_groups * segments)
            with ptx.turns(number, self._blocks, ptx.held(jobs, "int32")) as part:
                self._part = part
                self._group = ptx.held(T.truncdiv(part, segments), "int32")
                self._first = ptx.held(self._group * GROUP, "int32")
                self._segment = ptx.held(T.truncmod(part, segments), "int32")
                self._take_bits()
                for name, make in (
                    ("tile", self._tile),
                    ("block", self._block),
                    ("square", self._square),
                ):
                    with tir.when(kind == KINDS.index(name)):
                        make()

    def _take_bits(self) -> None:
        """The group's bits to shared memory; no list reads them behind its last barrier."""
        row, word = self._thread // WORDS, self._thread % WORDS
        at = self._segment * WORDS + word
        here = tir.both(self._first + row < self._there, at < self._words)
        own = self._bits[T.Cast("int64", self._first + row), T.Cast("int64", at)]
        self._found.put(row, word, T.if_then_else(here, own, ptx.uint32(0)))
        ptx.barrier()

    def _start_of(self, row: Expr) -> Expr:
        """The element of A where a row of the group starts."""
        return T.Cast("int64", self._rows[self._first + row]) * self._k

    def _live(self, row: Expr, column: Expr) -> Expr:
        """Whether an element of the segment is live."""
        return collective.bit(self._found.word(row, column // WORD), column % WORD)

    def _live_chunk(self, row: Expr, chunk: Expr) -> Expr:
        """Whether some element of a chunk is live."""
        if self._per_chunk == 8:
            return self._found.byte(row, chunk) != ptx.uint32(0)
        bits = self._found.byte(row, chunk // 2) >> ptx.uint32(chunk % 2 * 4)
        return (bits & ptx.uint32(15)) != ptx.uint32(0)

    def _united(self) -> None:
        """The bits that some row of the group has, word by word, to shared memory."""
        united = collective.union(self._found.word(self._lane, self._warp))
        with tir.when(self._lane == 0):
            tir.assign(self._window.view("uint32"), united, _UNIONS // 4 + self._warp)
        ptx.barrier()

    def _counts(self, live: Callable[[Expr], Expr], words: int = WORDS) -> list[Expr]:
        """How many live places each of the first words of the segment has."""
        united = self._window.view("uint32")
        counts = [live(united[_UNIONS // 4 + w]) for w in range(words)]
        return [ptx.held(count, "int32") for count in counts]

    def _square(self) -> None:
        """Words of the group with a bit."""
        self._united()
        place = _before(self._counts(_one, WORDS - 1), self._thread)
        with tir.when(self._thread < WORDS):
            united = self._window.view("uint32")[_UNIONS // 4 + self._thread]
            with tir.when(united != ptx.uint32(0)):
                at = self._places[self._part] + place
                tir.assign(self._index, self._segment * WORDS + self._thread, at)

    def _tile(self) -> None:
        """Columns of the group with a bit, turned round."""
        (self._move_elements if self._loose else self._copy_chunks)()
        self._united()
        chunks = self._height // self._per_chunk
        classes, shared = 32 // chunks, 4 // self._item  # columns of a bank's word
        first = sum(1 << c for c in range(WORD) if c // shared % classes == 0)

        def of_class(word: Expr, number: Expr) -> Expr:
            return word & ptx.uint32(first) << ptx.uint32(number * shared)

        def counts_of(number: Expr) -> list[Expr]:
            return self._counts(lambda word: collective.population(of_class(word, number)))

        lane, word = self._lane, self._warp
        united = ptx.held(self._window.view("uint32")[_UNIONS // 4 + word], "uint32")
        before = _before(self._counts(collective.population), word)
        place = ptx.held(before + collective.before(united, lane), "int32")
        own = ptx.held(lane // shared % classes, "int32")
        turn = _before(counts_of(own), word) + collective.before(of_class(united, own), lane)
        begin = ptx.held(self._places[self._part], "int32")
        with tir.when(collective.bit(united, lane)):
            tir.assign(self._index, self._segment * SEGMENT + self._thread, begin + place)
            entry = place * SEGMENT + self._thread
            tir.assign(self._table, entry, _TABLE // 4 + turn * classes + own)
        if not self._loose:
            ptx.wait(0)
        ptx.barrier()
        values = ptx.seen_as(self._values, "uint32x4")
        own, chunk = ptx.held(lane // chunks, "int32"), ptx.held(lane % chunks, "int32")
        total = ptx.held(functools.reduce(operator.add, counts_of(own)), "int32")
        with ptx.turns(self._warp, T.int32(_WARPS), total) as i:
            entry = ptx.held(self._table[_TABLE // 4 + i * classes + own], "int32")
            column = ptx.held(entry % SEGMENT, "int32")
            words = [self._packed(chunk, column, w) for w in range(4)]
            at = T.Cast("int64", begin + entry // SEGMENT) * chunks + T.Cast("int64", chunk)
            tir.assign(values, T.Shuffle(words, [T.int32(w) for w in range(4)]), at)

    def _packed(self, chunk: Expr, column: Expr, word: int) -> Expr:
        """A word of a chunk of rows of a column."""
        patterns = self._window.view(f"uint{8 * self._item}")
        numbers = 4 // self._item
        packed = ptx.uint32(0)
        for u in range(numbers):
            row = chunk * self._per_chunk + (word * numbers + u)
            pattern = T.Cast("uint32", patterns[self._turned(row, column)])
            packed = packed | pattern << ptx.uint32(8 * self._item * u)
        return ptx.held(packed, "uint32")

    def _turned(self, row: Expr, column: Expr) -> Expr:
        """Where an element of the segment lies in shared memory."""
        chunks = self._height // self._per_chunk
        turn = row // self._per_chunk * (8 // chunks)
        chunk = (column // self._per_chunk) ^ turn
        at = row * SEGMENT + chunk * self._per_chunk + column % self._per_chunk
        return at + _TURNED // self._item

    def _copy_chunks(self) -> None:
        """Start copies of live chunks of A; others are zeros."""
        per_row = SEGMENT // self._per_chunk
        a = tir.flat(self._a)
        for i in range(self._height * per_row // THREADS):
            number = self._thread + i * THREADS
            row, chunk = number // per_row, number % per_row
            live = ptx.held(T.Cast("int32", self._live_chunk(row, chunk)), "int32")
            column = T.Cast("int64", self._segment * SEGMENT + chunk * self._per_chunk)
            start = T.if_then_else(live != 0, self._start_of(row) + column, T.int64(0))
            to = self._window.address(self._turned(row, chunk * self._per_chunk) * self._item)
            size = T.Select(live != 0, ptx.uint32(CHUNK_BYTES), ptx.uint32(0))
            ptx.copy_chunk(to, a, ptx.held(start, "int64"), size)
        ptx.commit()

    def _move_elements(self) -> None:
        """Live elements of A, one by one."""
        a, turned = tir.flat(self._a), self._window.view(self._dtype)
        column = T.Cast("int64", self._segment * SEGMENT + self._thread)
        zero = T.Cast(self._dtype, T.float32(0))
        with tir.serial(T.int32(0), T.int32(self._height // _TOGETHER)) as turn:
            values = ptx.registers(_TOGETHER, self._dtype)
            rows = [turn * _TOGETHER + u for u in range(_TOGETHER)]
            for u, row in enumerate(rows):
                tir.assign(values, zero, u)
                with tir.when(self._live(row, self._thread)):
                    tir.assign(values, a[self._start_of(row) + column], u)
            for u, row in enumerate(rows):
                tir.assign(turned, values[u], self._turned(row, self._thread))

    def _block(self) -> None:
        """Pieces of rows with a bit."""
        per_segment, words = SEGMENT // self._width, self._width // WORD
        with tir.when(self._warp < per_segment):
            word = self._found.word(self._lane, self._warp * words)
            for w in range(1, words):
                word = word | self._found.word(self._lane, self._warp * words + w)
            word = ptx.held(word, "uint32")
            rows = collective.ballot(word != ptx.uint32(0))
            place = ptx.Register("int32", T.int32(-1))
            with tir.when(word != ptx.uint32(0)):
                block = self._segment * per_segment + self._warp
                begin = self._places[block * self._groups + self._group]
                place.set(begin + collective.before(rows, self._lane))
                tir.assign(self._index, self._first + self._lane, place.value)
            tir.assign(self._table, place.value, _TABLE // 4 + self._warp * _LIST + self._lane)
        ptx.barrier()
        if self._loose:
            self._pieces_of_elements()
        else:
            self._pieces_of_chunks()

    def _place_of(self, row: Expr, column: Expr) -> Expr:
        """The entry of the piece that an element of the segment is of, or -1."""
        return self._table[_TABLE // 4 + column // self._width * _LIST + row]

    def _pieces_of_chunks(self) -> None:
        """A warp copies rows, all loads of four before their stores."""
        a, values = (ptx.seen_as(x, "uint32x4") for x in (self._a, self._values))
        shift = tir.int64(self._per_chunk.bit_length() - 1)
        loads = SEGMENT // self._per_chunk // 32
        with tir.serial(T.int32(0), T.int32(loads)) as h:
            column = ptx.held((h * 32 + self._lane) * self._per_chunk, "int32")
            k = ptx.held(self._segment * SEGMENT + column, "int32")
            here = k < ptx.int32(self._k)
            places = ptx.registers(_WARPS, "int32")
            chunks = ptx.registers(_WARPS, "uint32x4")
            count = GROUP // _WARPS
            for r in range(count):
                row = self._warp * count + r
                tir.assign(places, self._place_of(row, column), r)
                tir.assign(chunks, T.broadcast(ptx.uint32(0), 4), r)
                with tir.when(tir.both(places[r] >= 0, here)):
                    element = self._start_of(row) + T.Cast("int64", k)
                    tir.assign(chunks, a[element >> shift], r)
            for r in range(count):
                with tir.when(places[r] >= 0):
                    element = T.Cast("int64", places[r]) * self._width
                    element = element + T.Cast("int64", column % self._width)
                    tir.assign(values, chunks[r], element >> shift)

    def _pieces_of_elements(self) -> None:
        """A thread block copies rows, an element per thread."""
        a, values, column = tir.flat(self._a), tir.flat(self._values), self._thread
        k = ptx.held(self._segment * SEGMENT + column, "int32")
        zero = T.Cast(self._dtype, T.float32(0))
        with tir.serial(T.int32(0), T.int32(GROUP // _TOGETHER)) as turn:
            read = ptx.registers(_TOGETHER, self._dtype)
            places = ptx.registers(_TOGETHER, "int32")
            for u in range(_TOGETHER):
                row = turn * _TOGETHER + u
                tir.assign(places, self._place_of(row, column), u)
                tir.assign(read, zero, u)
                with tir.when(tir.both(places[u] >= 0, k < ptx.int32(self._k))):
                    tir.assign(read, a[self._start_of(row) + T.Cast("int64", k)], u)
            for u in range(_TOGETHER):
                with tir.when(places[u] >= 0):
                    element = T.Cast("int64", places[u]) * self._width
                    at = element + T.Cast("int64", column % self._width)
                    tir.assign(values, read[u], at)


def _before(counts: Sequence[Expr], word: Expr) -> Expr:
    """How many come before a word."""
    before = T.int32(0)
    for w, count in enumerate(counts):
        before = before + T.Select(word > w, count, T.int32(0))
    return before


def _one(word: Expr) -> Expr:
    return T.Cast("int32", word != ptx.uint32(0))

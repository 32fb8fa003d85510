"""The detector of a contraction on a multiprocessor: what of A is not zero, and how much.

    y[i, :] = sum over k of A[rows[i], k] * B[k, :]

A group of 32 rows is cut into segments of 256 k. A thread block reads a group's segment once: each
lane tells of 16 bytes which elements are not 0, and 8 words of bits for each of 32 rows meet in
shared memory. There warp w has word w of all rows, lane r that of row r, so that every count is one
vote or sum of a warp. Integers decide what is live, so NaN and denormals are, and -0 is not. Each
count is written by one owner; there is no atomic, and no order that matters.

    counts int32: five numbers of each segment of each group of the list (`TOTALS`), then `pieces`

        elements      live ones
        strips        32 x 1 micro-tiles: k at which one of the group's rows lives
        segments32    1 x 32 micro-tiles
        segments      1 x width micro-tiles, width 64 or 32
        squares       32 x 32 micro-tiles

    pieces[q, g]: the rows of group g that live somewhere in block q of `width` k; blocks cover all
    words of bits, so a last one of 32 k may lie behind K

For example, 32 x 256 elements, of which row 3 lives at k = 0, 1 and 70, row 9 at k = 1:

    elements 4    strips 3    segments32 3    segments 3    squares 2    pieces 2, 1, 0, 0
"""

from collections.abc import Callable, Mapping
from typing import Any

from pitc.codegen import collective, ptx, tir
from pitc.codegen.ptx import CHUNK_BYTES, Window
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.cuda_variants import GROUP, SEGMENT, TOTALS

WORD = 32
"""k of a word of bits."""
WORDS = SEGMENT // WORD
"""Words of a segment of a row: a sector of memory."""
THREADS = 32 * WORDS
TOGETHER = 4
"""Thread blocks of a multiprocessor: 64 registers for each thread."""
_WARP_ROWS = GROUP // WORDS
"""Rows that a warp reads."""
_BYTES = GROUP * WORDS * 4


class Words:
    """The bits of a group's segment in shared memory: 8 words of 32 rows.

    Words of a row change places every four rows: neither a word of all rows nor all words of four
    rows meet in a bank.

    Args:
        window: Shared memory; its first KiB is taken.
    """

    size = _BYTES

    def __init__(self, window: Window) -> None:
        self._words, self._bytes = window.view("uint32"), window.view("uint8")

    @staticmethod
    def _at(row: Expr, word: Expr) -> Expr:
        return row * WORDS + (word ^ (row // _WARP_ROWS))

    def word(self, row: Expr, word: Expr) -> Expr:
        """A word."""
        return self._words[self._at(row, word)]

    def byte(self, row: Expr, byte: Expr) -> Expr:
        """A byte of a row, as uint32."""
        return T.Cast("uint32", self._bytes[self._at(row, byte // 4) * 4 + byte % 4])

    def put(self, row: Expr, word: Expr, value: Expr) -> None:
        """Store a word."""
        tir.assign(self._words, value, self._at(row, word))

    def put_byte(self, row: Expr, byte: Expr, value: Expr) -> None:
        """Store a byte, given as uint32."""
        at = self._at(row, byte // 4) * 4 + byte % 4
        tir.assign(self._bytes, T.Cast("uint8", value), at)


def detect(symbol: str, params: Mapping[str, Any]) -> Any:
    """The TIR function that reads A, or bits that a kernel wrote (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `dtype` of A, or `bits`, which are given; `width` of a block of k; `loose`, 0 if not
            there: rows of A start anywhere.
    """
    return tir.prim_func(symbol, lambda: _detect(params))


def _detect(params: Mapping[str, Any]) -> None:
    given = params["dtype"] == "bits"
    listed, words = tir.size("listed"), tir.size("words")
    a: Buffer = None
    rows: Buffer = None
    if not given:
        a = tir.device_tensor("a", (tir.size("stored_rows"), tir.size("k")), params["dtype"])
        rows = tir.device_tensor("rows", (listed,), "int32")
    count = tir.device_tensor("count", (1,), "int32")
    bits = tir.device_tensor("bits", (listed, words), "uint32")
    counts = tir.device_tensor("counts", (tir.size("counted"),), "int32")
    blocks = T.arg("blocks", T.int32())

    with ptx.launch(blocks, THREADS, TOGETHER) as (number, thread):
        window = Window(_BYTES + WORDS * len(TOTALS) * 4, addressed=False)
        found, sums = Words(window), window.view("int32")
        there = ptx.held(T.min(count[0], ptx.int32(listed)), "int32")
        groups = ptx.held(ptx.steps(ptx.int32(listed), GROUP), "int32")
        segments = ptx.held(ptx.steps(ptx.int32(words), WORDS), "int32")
        parts = ptx.held(groups * segments, "int32")
        warp, lane = ptx.held(thread // 32, "int32"), ptx.held(thread % 32, "int32")
        row, word = thread // WORDS, thread % WORDS
        with ptx.turns(number, blocks, parts) as part:
            first = ptx.held(T.truncdiv(part, segments) * GROUP, "int32")
            segment = ptx.held(T.truncmod(part, segments), "int32")
            here = tir.both(first + row < there, segment * WORDS + word < ptx.int32(words))
            own = bits[T.Cast("int64", first + row), T.Cast("int64", segment * WORDS + word)]
            if given:
                found.put(row, word, T.if_then_else(here, own, ptx.uint32(0)))
            else:
                read = _read_loose if params.get("loose") else _read
                read(a, rows, found, (first, there), segment * SEGMENT, warp, lane)
            ptx.barrier()
            if not given:
                with tir.when(here):
                    at = T.Cast("int64", first + row), T.Cast("int64", segment * WORDS + word)
                    tir.assign(bits, found.word(row, word), *at)

            def store_pieces(block: Expr, rows: Expr) -> None:
                piece = segment * (SEGMENT // params["width"]) + block
                with tir.when(
                    tir.both(lane == 0, piece * params["width"] < ptx.int32(words) * WORD)
                ):
                    at = parts * len(TOTALS) + piece * groups + T.truncdiv(part, segments)
                    tir.assign(counts, rows, at)

            _count(found, params["width"], warp, lane, sums, store_pieces)
            ptx.barrier()
            with tir.when(thread < len(TOTALS)):
                total = T.int32(0)
                for w in range(WORDS):
                    total = total + sums[_BYTES // 4 + w * len(TOTALS) + thread]
                tir.assign(counts, total, thread * parts + part)


def _read(
    a: Buffer,
    rows: Buffer,
    found: Words,
    listed: tuple[Expr, Expr],
    begin: Expr,
    warp: Expr,
    lane: Expr,
) -> None:
    """A warp reads 16 bytes per lane of each of its rows, all before it looks at any."""
    item = tir.item_bytes(a.dtype)
    per_chunk = CHUNK_BYTES // item
    loads = SEGMENT // per_chunk // 32
    k = a.shape[1]
    chunks, nothing = ptx.seen_as(a, "uint32x4"), T.broadcast(ptx.uint32(0), 4)
    read = ptx.registers(_WARP_ROWS * loads, "uint32x4")
    for r in range(_WARP_ROWS):
        i = listed[0] + warp * _WARP_ROWS + r
        for h in range(loads):
            at = begin + (h * 32 + lane) * per_chunk
            tir.assign(read, nothing, r * loads + h)
            with tir.when(tir.both(i < listed[1], at < ptx.int32(k))):
                element = T.Cast("int64", rows[i]) * k + T.Cast("int64", at)
                tir.assign(
                    read, chunks[element >> tir.int64(per_chunk.bit_length() - 1)], r * loads + h
                )
    for r in range(_WARP_ROWS):
        row = warp * _WARP_ROWS + r
        for h in range(loads):
            live = ptx.held(_live(read[r * loads + h], item), "uint32")
            if item == 2:
                found.put_byte(row, lane, live)
            else:
                byte = live | collective.exchanged(live, 1, "uint32") << ptx.uint32(4)
                with tir.when(lane % 2 == 0):
                    found.put_byte(row, h * 16 + lane // 2, byte)


def _live(chunk: Expr, item: int) -> Expr:
    """One bit for each element of a chunk.

    A number without its sign, and the largest such number added to it: the sign is set where it was
    not 0. So two of 16 bits are looked at together.
    """
    numbers = 4 // item
    rest = ptx.uint32(0x7FFFFFFF if numbers == 1 else 0x7FFF7FFF)
    live = ptx.uint32(0)
    for i in range(4):
        sum_ = ptx.held((T.Shuffle([chunk], [T.int32(i)]) & rest) + rest, "uint32")
        bits = sum_ >> ptx.uint32(31)
        if numbers == 2:
            bits = (sum_ >> ptx.uint32(30)) & ptx.uint32(2) | (sum_ >> ptx.uint32(15)) & ptx.uint32(
                1
            )
        live = live | bits << ptx.uint32(i * numbers)
    return live


def _read_loose(
    a: Buffer,
    rows: Buffer,
    found: Words,
    listed: tuple[Expr, Expr],
    begin: Expr,
    warp: Expr,
    lane: Expr,
) -> None:
    """A warp reads neighbours, an element per lane."""
    item, k = tir.item_bytes(a.dtype), a.shape[1]
    dtype = f"uint{item * 8}"
    patterns = ptx.seen_as(a, dtype)
    with tir.serial(T.int32(0), T.int32(_WARP_ROWS)) as r:
        row = warp * _WARP_ROWS + r
        i = ptx.held(listed[0] + row, "int32")
        start = ptx.Register("int64", T.int64(0))
        with tir.when(i < listed[1]):
            start.set(T.Cast("int64", rows[i]) * k)
        read = ptx.registers(WORDS, "uint32")
        for w in range(WORDS):
            at = begin + w * WORD + lane
            here = tir.both(i < listed[1], at < ptx.int32(k))
            pattern = T.if_then_else(
                here, patterns[start.value + T.Cast("int64", at)], T.IntImm(dtype, 0)
            )
            tir.assign(read, T.Cast("uint32", pattern), w)
        mine = ptx.Register("uint32", ptx.uint32(0))
        rest = ptx.uint32(0x7FFFFFFF >> 8 * (4 - item))
        for w in range(WORDS):
            word = collective.ballot((read[w] & rest) != ptx.uint32(0))
            mine.set(T.Select(lane == w, word, mine.value))
        with tir.when(lane < WORDS):
            found.put(row, lane, mine.value)


def _count(
    found: Words,
    width: int,
    warp: Expr,
    lane: Expr,
    sums: Buffer,
    store_pieces: Callable[[Expr, Expr], None],
) -> None:
    """Warp w counts in word w of all rows."""
    none = ptx.uint32(0)
    word = ptx.held(found.word(lane, warp), "uint32")
    united = collective.union(word)
    rows = collective.population(collective.ballot(word != none))
    if width == WORD:
        segments = ptx.held(rows, "int32")
        store_pieces(warp, segments)
    else:
        both = word | found.word(lane, warp ^ 1)
        of_pair = ptx.held(collective.population(collective.ballot(both != none)), "int32")
        segments = T.Select(warp % 2 == 0, of_pair, T.int32(0))
        with tir.when(warp % 2 == 0):
            store_pieces(warp // 2, of_pair)
    elements = collective.total(collective.population(word))
    strips, squares = collective.population(united), T.Cast("int32", united != none)
    counted = (elements, strips, rows, segments, squares)
    with tir.when(lane == 0):
        for f, value in enumerate(counted):
            tir.assign(sums, value, _BYTES // 4 + warp * len(TOTALS) + f)

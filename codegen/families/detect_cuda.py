"""The detector of contractions for CUDA: bits, counts and lists, in the formats of the CPU's.

A lane has one element, one k block or one row. The order of a list is fixed by counts, their
exclusive scan, and the place of a bit in its word; there is no atomic: the same values give the
same lists. Integers decide what is live, so NaN and denormals are.

    detect_bits                  a, rows, bits: what is not 0
    detect_bits_positive         a, rows, bits: what ReLU would leave, NaN among it
    detect_counts                bits, row_counts, segment_counts, parts, totals
    detect_scan                  counts, sums, starts: of row_counts, or of segment_counts
    detect_row_lists             a, rows, bits, starts, values, ks: for contract_row, nb = 1
    detect_block_lists           a, rows, bits, places, values, live, starts: for contract_block

A has T rows of K elements; B = ceil(K / 32) k blocks, G = ceil(T / 32) groups of rows.

    a f32 [M, K], rows int32 [T]   row r of A stands at a[rows[r]]
    bits uint32 [T, H]             H = 2 ceil(K / 64): the halves, lower first, of 64-bit words
    row_counts int32 [T]           live elements
    segment_counts int32 [B, G]    live 1x32 micro-tiles
    totals int32 [5]               live rows, elements, 32x1, 1x32 and 32x32 micro-tiles
    counts int32 [n], starts int32 [n + 1]
    places int32 [B G + 1]         starts of segment_counts
    ks, live int32 [Z]; values f32 [Z], or [Z, 32]; starts int32 [T + 1], or [B + 1]
    parts int32 [G, 5]; sums int32 [max(1, ceil(n / 1024))]: workspace
"""

from collections.abc import Callable
from typing import Any

from pitc.codegen import cuda, tir
from pitc.codegen.cuda import WARP, Register, counter, put, strided, warps
from pitc.codegen.tir import Buffer, Expr, T

SCAN_CHUNK = 1024
"""Counts that one warp scans."""

BATCH = 8
"""Half-words of bits that a warp reads at once: 1 KiB of a row; they fill one memory sector."""

TOTALS = ("rows", "elements", "strips", "segments", "squares")


def prim_funcs() -> list[Any]:
    """All kernels; shapes are known when they are called."""
    bodies: dict[str, Callable[[], None]] = {
        "detect_bits": lambda: _bits(_not_zero),
        "detect_bits_positive": lambda: _bits(_positive),
        "detect_counts": _counts,
        "detect_scan": _scan,
        "detect_row_lists": _row_lists,
        "detect_block_lists": _block_lists,
    }
    return [tir.prim_func(symbol, body) for symbol, body in bodies.items()]


def _not_zero(pattern: Expr) -> Expr:
    return pattern & T.int32(0x7FFFFFFF) != T.int32(0)


def _positive(pattern: Expr) -> Expr:
    minus_infinity = T.uint32(0xFF800000)  # above it, as an unsigned number: NaN
    return T.Or(pattern > T.int32(0), T.reinterpret("uint32", pattern) > minus_infinity)


class _Rows:
    """The arguments that name rows of A and their bits."""

    def __init__(self) -> None:
        stored, self.k, self.count, self.halves = (tir.size() for _ in range(4))
        self.a = tir.tensor("a", (stored, self.k))
        self.rows = tir.tensor("rows", (self.count,), "int32")
        self.bits = tir.tensor("bits", (self.count, self.halves), "uint32")

    def element(self, row: Expr, k: Expr) -> Expr:
        """An element of a row, 0 beyond its end."""
        return T.if_then_else(k < self.k, self.a[row, k], T.float32(0))


def _bits(live: Callable[[Expr], Expr]) -> None:
    """A warp per row: lanes read consecutive elements, integers decide which are live."""
    given = _Rows()
    with warps(given.count) as (r, lane):
        row = tir.index_of(given.rows, r)
        with tir.serial(tir.int64(0), (given.halves + BATCH - 1) // BATCH) as batch:
            first = tir.bind(batch * BATCH)
            # All reads come first: each waits for memory, none for a ballot.
            values = [
                Register("float32", given.element(row, (first + i) * WARP + lane))
                for i in range(BATCH)
            ]
            mine = Register("uint32", T.uint32(0))
            for i, value in enumerate(values):
                word = cuda.ballot(live(T.reinterpret("int32", value.value)))
                mine.set(T.Select(lane == i, word, mine.value))
            with tir.when(tir.both(lane < BATCH, first + lane < given.halves)):
                tir.assign(given.bits, mine.value, r, first + lane)


def _one(condition: Expr) -> Expr:
    return T.Cast("int32", condition)


def _counts() -> None:
    """Rows, then groups of 32 rows, then their sum."""
    count, halves, blocks, groups = (tir.size() for _ in range(4))
    bits = tir.tensor("bits", (count, halves), "uint32")
    row_counts = tir.tensor("row_counts", (count,), "int32")
    segment_counts = tir.tensor("segment_counts", (blocks, groups), "int32")
    parts = tir.tensor("parts", (groups, len(TOTALS)), "int32")
    totals = tir.tensor("totals", (len(TOTALS),), "int32")

    with warps(count) as (r, lane):
        found = counter()
        with strided(tir.int64(0), halves, lane) as (h, here), tir.when(here):
            found.add(cuda.population(bits[r, h]))
        put(row_counts, cuda.total(found.value), lane, r)

    with warps(groups) as (g, lane):
        first = tir.bind(g * WARP)
        height = tir.smaller(count - first, tir.int64(WARP))
        rows, elements, strips, segments, squares = sums = [counter() for _ in TOTALS]
        with tir.when(lane < height):
            elements.set(row_counts[first + lane])
        rows.set(_one(elements.value > 0))
        # A lane has a k block: rows follow each other, so 32 words are one line of memory.
        with strided(tir.int64(0), blocks, lane) as (h, here), tir.when(here):
            union, live = Register("uint32", T.uint32(0)), counter()
            with tir.serial(tir.int64(0), height) as i:
                word = Register("uint32", bits[first + i, h])
                union.set(union.value | word.value)
                live.add(_one(word.value != T.uint32(0)))
            tir.assign(segment_counts, live.value, h, g)
            strips.add(cuda.population(union.value))
            segments.add(live.value)
            squares.add(_one(live.value > 0))
        for place, part in enumerate(sums):
            put(parts, cuda.total(part.value), lane, g, place)

    with warps(tir.int64(1)) as (_, lane):
        for place in range(len(TOTALS)):
            part = counter()
            with strided(tir.int64(0), groups, lane) as (g, here), tir.when(here):
                part.add(parts[g, place])
            put(totals, cuda.total(part.value), lane, place)


def _scan() -> None:
    """Sums of chunks; their scan; the scan of each chunk from there."""
    size, chunks, boundaries = (tir.size() for _ in range(3))
    counts = tir.tensor("counts", (size,), "int32")
    sums = tir.tensor("sums", (chunks,), "int32")
    starts = tir.tensor("starts", (boundaries,), "int32")

    def end(chunk: Expr) -> Expr:
        return tir.smaller(size, (chunk + 1) * SCAN_CHUNK)

    with warps(chunks) as (chunk, lane):
        part = counter()
        with strided(chunk * SCAN_CHUNK, end(chunk), lane) as (i, here), tir.when(here):
            part.add(counts[i])
        put(sums, cuda.total(part.value), lane, chunk)

    with warps(tir.int64(1)) as (_, lane):
        _running(sums, sums, tir.int64(0), chunks, lane, counter())

    with warps(chunks) as (chunk, lane):
        so_far = Register("int32", sums[chunk])
        _running(counts, starts, chunk * SCAN_CHUNK, end(chunk), lane, so_far)
        with tir.when(chunk == chunks - 1):
            put(starts, so_far.value, lane, size)


def _running(
    counts: Buffer, starts: Buffer, first: Expr, stop: Expr, lane: Expr, so_far: Register
) -> None:
    """Write to `starts` the sum of what comes before each count; `so_far` is added and kept."""
    with strided(first, stop, lane) as (i, here):
        count = counter()
        with tir.when(here):
            count.set(counts[i])
        up_to = cuda.inclusive(count.value, lane)
        with tir.when(here):
            tir.assign(starts, so_far.value + up_to - count.value, i)
        so_far.add(cuda.total(count.value))


def _row_lists() -> None:
    """A warp per row: a live element's place is how many live ones its row has before it."""
    given = _Rows()
    entries, boundaries = tir.size(), tir.size()
    starts = tir.tensor("starts", (boundaries,), "int32")
    values = tir.tensor("values", (entries,))
    ks = tir.tensor("ks", (entries,), "int32")
    with warps(given.count) as (r, lane):
        row = tir.index_of(given.rows, r)
        place = Register("int32", starts[r])
        with tir.serial(tir.int64(0), given.halves) as h:
            word = Register("uint32", given.bits[r, h]).value
            with tir.when(cuda.bit(word, lane)):
                z = tir.bind(T.Cast("int64", place.value + cuda.before(word, lane)))
                k = tir.bind(h * WARP + lane)
                tir.assign(ks, T.Cast("int32", k), z)
                tir.assign(values, given.a[row, k], z)
            place.add(cuda.population(word))


def _block_lists() -> None:
    """A warp per k block and 32 rows: a row's place is how many live ones come before it."""
    given = _Rows()
    entries, counted, boundaries = (tir.size() for _ in range(3))
    places = tir.tensor("places", (counted,), "int32")
    values = tir.tensor("values", (entries, WARP))
    live = tir.tensor("live", (entries,), "int32")
    starts = tir.tensor("starts", (boundaries,), "int32")
    groups = tir.bind((given.count + WARP - 1) // WARP)

    with warps((boundaries + WARP - 1) // WARP) as (job, lane):
        h = tir.bind(job * WARP + lane)
        with tir.when(h < boundaries):
            tir.assign(starts, places[h * groups], h)

    with warps((boundaries - 1) * groups) as (job, lane):
        h, first = tir.bind(job // groups), tir.bind(job % groups * WARP)
        place = tir.index_of(places, job)
        word = Register("uint32", T.uint32(0))
        with tir.when(first + lane < given.count):
            word.set(given.bits[first + lane, h])
        listed = cuda.ballot(word.value != T.uint32(0))
        with tir.when(cuda.bit(listed, lane)):
            z = place + cuda.before(listed, lane)
            tir.assign(live, T.Cast("int32", first + lane), z)
        with tir.serial(tir.int64(0), tir.int64(WARP)) as i, tir.when(cuda.bit(listed, i)):
            row = tir.index_of(given.rows, first + i)
            z = place + cuda.before(listed, i)
            tir.assign(values, given.element(row, h * WARP + lane), z, lane)

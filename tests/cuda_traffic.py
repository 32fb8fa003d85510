"""Sectors of memory that each kernel of GPUs is planned to touch, as expressions of shape.

A plan is unique bytes times how often they are meant to be read, piece by piece: a piece that does
not begin at a sector touches one more. Looks into lists are sectors of their own, as small caches
serve them. Numbers are those that the emulator counts: a sector for each request of a warp.
"""

from dataclasses import dataclass

import numpy as np

from pitc.ir.cuda_target import CudaTile
from pitc.ir.cuda_variants import GROUP, SEGMENT, TOTALS
from pitc.ir.formula import Formula
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.variants import ITEM_BYTES, LINE_BYTES, SQUARE

CHUNK, WARP_ROWS, WORD = 16, 8, 4
SECTOR_BYTES = LINE_BYTES["cuda"]


@dataclass(frozen=True, slots=True)
class Lists:
    """Of blocks of k: micro-tiles, pieces of up to 64 of them, thread blocks above each other."""

    entries: int
    pieces: int
    down: int


def touched(rows: int, width: int, piece: int, item: int = 0) -> float:
    """Sectors of rows of `width` bytes behind one another, in pieces of `piece` bytes.

    Args:
        rows: How many.
        width: Bytes of a row.
        piece: Bytes of a request in a row.
        item: Bytes that are asked for one by one, 0 if they are asked for at once.
    """
    inside = np.arange(0, width, item or piece)
    starts = (np.arange(rows)[:, None] * width + inside).ravel()
    ends = starts + np.minimum(item or piece, np.tile(width - inside, rows))
    return float(((ends - 1) // SECTOR_BYTES - starts // SECTOR_BYTES + 1).sum())


def _run_bytes(tile: CudaTile, item: int) -> int:
    """What lanes side by side store of a row of C."""
    return 128 if tile.engine == "simt" else 64 if item == 2 else 32


def _written(
    tile: CudaTile, rows: int, n: int, item: int, *, loose: bool = False
) -> dict[str, float]:
    """C, and what each of its stores looks up: the rows' numbers, and the bias."""
    run = _run_bytes(tile, item)
    per_lane = run // item // (8 if tile.engine == "simt" else 4)  # one by one, where loose
    warps = -(-n // (tile.n // tile.warps_n))
    spread = 2 if tile.engine == "simt" else 1  # four rows are four apart
    visits = -(-rows // WARP_ROWS) * spread
    # In two requests, where a lane has eight of 16 bits.
    bias = visits * -(-n // 8) * (2 if item == 2 else 1)
    return {
        "c": touched(rows, n * item, run) * (per_lane if loose else 1),
        "rows_c": visits * warps * spread,
        "bias": bias,
    }


def _looked_up(tile: CudaTile, b: float) -> float:
    """Looks into a list of k: one for each request of B, which panels of a dense tile share."""
    return b * SECTOR_BYTES / CHUNK / 32 / (tile.n // PANEL_WIDTH)


def dense(
    tile: CudaTile, dtype: str, rows: int, k: int, n: int, stored: str = ""
) -> dict[str, float]:
    """gather_gemm: A once for each dense tile beside another, B for each one below another."""
    item = ITEM_BYTES[dtype]
    down, across = -(-rows // tile.m), -(-n // tile.n)
    behind = (down * tile.m - rows) * tile.k_bytes // CHUNK // 32  # requests of the last row alone
    look = tile.m * tile.k_bytes // CHUNK // 32
    a = touched(rows, k * item, tile.k_bytes) + behind * k * item / SECTOR_BYTES
    b = {
        "": panel_count(n) * k * PANEL_WIDTH * item / SECTOR_BYTES,
        "kn": touched(k, n * item, PANEL_WIDTH * item),
        "nk": touched(n, k * item, tile.k_bytes),
    }[stored]
    plan = {"a": across * a, "b": down * b, "rows_a": down * across * look}
    return plan | _written(tile, rows, n, item)


def listed_k(
    tile: CudaTile, dtype: str, rows: int, k: int, n: int, entries: int
) -> dict[str, float]:
    """contract_tile: values at listed k, and B there, once for a dense tile beside another."""
    item, across = ITEM_BYTES[dtype], -(-n // tile.n)
    b = entries * panel_count(n) * PANEL_WIDTH * item / SECTOR_BYTES
    plan = {
        "values": across * entries * tile.m * item / SECTOR_BYTES,
        "b": b,
        "ks": _looked_up(tile, b),
    }
    return plan | _written(tile, rows, n, item)


def squares(
    tile: CudaTile, dtype: str, rows: int, k: int, n: int, entries: int, *, loose: bool
) -> dict[str, float]:
    """contract_square: rows of A and of B in listed blocks of 32 k, as in `listed_k`."""
    item, across = ITEM_BYTES[dtype], -(-n // tile.n)
    piece = min(tile.k_bytes, SQUARE * item)
    down = -(-rows // tile.m)
    filled = entries * SQUARE * k / (-(-k // SQUARE) * SQUARE)  # the last one is cut off
    b = filled * panel_count(n) * PANEL_WIDTH * item / SECTOR_BYTES
    a = touched(rows, k * item, piece) * filled / (down * k)
    plan = {
        "a": across * a * (CHUNK // item if loose else 1),  # elements are read one by one
        "b": b,
        "ks": _looked_up(tile, b),
        "rows_a": down * across * tile.m * tile.k_bytes // CHUNK // 32,
    }
    return plan | _written(tile, rows, n, item, loose=loose)


def blocks_of_k(
    tile: CudaTile, dtype: str, rows: int, k: int, n: int, lists: Lists, *, loose: bool
) -> dict[str, float]:
    """contract_block, with a residual and bits: each panel reads all values, B for each piece."""
    item, panels = ITEM_BYTES[dtype], panel_count(n)
    width = tile.k_bytes // item
    c = touched(rows, n * item, PANEL_WIDTH * item) * (4 if loose else 1)
    return {
        "values": panels * lists.entries * tile.k_bytes / SECTOR_BYTES,
        "b": panels * lists.pieces * width * PANEL_WIDTH * item / SECTOR_BYTES,
        "rows": panels * lists.entries / WARP_ROWS,
        # Each warp looks where a list begins and ends.
        "places": panels * lists.down * -(-k // width) * tile.threads // 32 * 4,
        "c": c,
        "residual": c,
        "bits": rows * panels,
        "rows_c": rows * panels / 2,
        "bias": rows * panels * PANEL_WIDTH * 4 / SECTOR_BYTES / 2,
    }


def detector(dtype: str, rows: int, k: int, width: int, *, loose: bool) -> dict[str, float]:
    """detect: A once, its bits and counts."""
    item, groups = ITEM_BYTES[dtype], -(-rows // GROUP)
    words, parts = 2 * -(-k // 64), groups * -(-k // SEGMENT)
    return {
        "a": touched(rows, k * item, 32 * item if loose else 512),
        "rows": rows * (-(-k // SEGMENT) if loose else -(-k * item // 512)),
        "bits": rows * words * WORD / SECTOR_BYTES,
        "counts": parts * (len(TOTALS) + SEGMENT // width),
        "count": 8,
    }


def listing(
    dtype: str, rows: int, k: int, entry_bytes: int, entries: int, *, loose: bool
) -> dict[str, float]:
    """lists, of A all of which lives: A once, and each list once."""
    item, parts = ITEM_BYTES[dtype], -(-rows // GROUP) * -(-k // SEGMENT)
    request = 32 * item if loose else 512
    return {
        "a": touched(rows, k * item, request) if entry_bytes else 0,
        "rows": rows * -(-k * item // request) if entry_bytes else 0,
        "bits": rows * -(-k // SEGMENT),
        "places": parts * 8,
        "values": entries * entry_bytes / SECTOR_BYTES,
        "index": entries * WORD / SECTOR_BYTES,
    }


def moved(rows: int, width: int, word: int) -> dict[str, float]:
    """pack, unpack: each row read and written, and its number with each request."""
    here = rows * width / SECTOR_BYTES
    return {
        "rows": touched(rows, width, 32 * word),
        "packed": here,
        "index": rows * width / (32 * word),
    }


def elementwise(
    formula: Formula, rows: int, n: int, warps: int = 0, passes: int = 1
) -> dict[str, float]:
    """elementwise: operands and results once; what is of a place, or of a row, for each row.

    Args:
        formula: What is computed.
        rows: How many rows; 1 where all elements are one.
        n: Elements of each.
        warps: Of a row, where there are several.
        passes: Over a row in which one number for each place is read.
    """
    request = 32 if n % 4 and formula.by_rows else 128  # elements

    def large(item: int) -> float:
        return touched(rows, n * item, request * item)

    whole, of_row = large(WORD), passes * rows * touched(1, n * WORD, request * WORD)
    of_kinds = {"whole": whole, "flags": large(1), "row": of_row}
    of_kinds |= {"column": rows * warps, "number": 0}
    plan = {f"x{i}": of_kinds[kind] for i, kind in enumerate(formula.kinds)}
    columns = formula.column_results
    return plan | {f"y{i}": rows if column else whole for i, column in enumerate(columns)}


def attending(
    engine: str, m: int, dtype: str, queries: int, keys: int, d: int, dv: int, *, bias: bool
) -> dict[str, float]:
    """attention, of one sequence and head: K and V once for each tile of queries."""
    item = ITEM_BYTES[dtype]
    plan = {
        "q": queries * d * item / SECTOR_BYTES,
        "kv": -(-queries // m) * keys * (d + dv) * item / SECTOR_BYTES,
        "out": queries * dv * item / SECTOR_BYTES,
    }
    if bias:  # a lane takes the elements of its two, or four, keys one by one
        beside = 2 if engine == "mma" else 4
        plan["bias"] = queries * keys * 4 / SECTOR_BYTES * beside
        plan["positions"] = queries / 32 * keys / 8 * beside
    return plan


def attending_backwards(
    m: int, queries: int, keys: int, d: int, dv: int, *, bias: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """attention_grad, of one sequence and head: by kernel.

    K and V twice for each tile of queries; Q and G, and the numbers of queries, once for each tile
    of keys.
    """
    row = (d + dv) * WORD / SECTOR_BYTES
    tiles_q, tiles_k = -(-queries // m), -(-keys // m)
    of_queries = {
        "qg": queries * row,
        "kv": 2 * tiles_q * keys * row,
        "dq": queries * d * WORD / SECTOR_BYTES,
        "numbers": queries,
    }
    of_keys = {
        "kv": keys * row,
        "qg": tiles_k * queries * row,
        "numbers": tiles_k * queries / 2,
        "dk dv": keys * row,
    }
    if bias:  # a lane takes the elements of its four keys, or queries, one by one
        beside, requests = 4, queries / 32 * keys
        of_queries["bias"] = 2 * requests * 4 * beside
        of_keys["bias"] = requests * 8 * 2
        of_queries["positions"] = 2 * queries / 32 * keys / 8 * beside
        of_keys["positions"] = queries / 8 * keys / 32 * beside
    return of_queries, of_keys

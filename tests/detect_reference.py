"""What the detector, the choice and the lists of CUDA give, in NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from pitc.codegen.families.detect_cuda import WORD
from pitc.ir.cuda_variants import GROUP, SEGMENT, TOTALS

Array = NDArray[Any]
BFLOAT16 = ir.DataType.BFLOAT16.numpy()
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": BFLOAT16, "float32": np.dtype(np.float32)}


def words_of(x: Array) -> Array:
    """An array as kernels take it: numbers of bfloat16 as uint16."""
    return x.view(np.uint16) if x.dtype == BFLOAT16 else x


@dataclass(frozen=True, slots=True)
class Detected:
    """Bits of the listed rows, and all counts as they lie in memory."""

    bits: Array
    counts: Array

    def totals(self, parts: int) -> dict[str, int]:
        """The sums of all counts but the pieces."""
        sums = self.counts[: len(TOTALS) * parts].reshape(len(TOTALS), parts).sum(axis=1)
        return dict(zip(TOTALS, map(int, sums), strict=True))


@dataclass(frozen=True, slots=True)
class Lists:
    """Entries, and where each list begins."""

    places: Array
    starts: Array
    values: Array
    index: Array


def parts_of(rows: int, k: int) -> int:
    """Segments of all groups."""
    return -(-rows // GROUP) * -(-k // SEGMENT)


def _padded(a: Array, width: int) -> Array:
    """A as groups x rows x pieces x width, zeros behind its ends."""
    groups, segments = -(-a.shape[0] // GROUP), -(-a.shape[1] // SEGMENT)
    full = np.zeros((groups * GROUP, segments * SEGMENT), a.dtype)
    full[: a.shape[0], : a.shape[1]] = a
    return full.reshape(groups, GROUP, segments * SEGMENT // width, width)


def detected(a: Array, width: int) -> Detected:
    """Of the rows of the list."""
    count, k = a.shape
    words = 2 * -(-k // 64)
    live = a != 0
    wide = np.zeros((count, words * WORD), bool)
    wide[:, :k] = live
    packed = np.packbits(wide, axis=1, bitorder="little")
    groups, segments = -(-count // GROUP), -(-k // SEGMENT)

    def per_segment(found: Array) -> Array:
        per = found.shape[1] // max(1, segments)
        return found.reshape(groups, segments, per).sum(axis=2)

    elements, pieces, wider = (_padded(live, w) for w in (1, WORD, width))
    of_rows = np.asarray(pieces.any(axis=3))
    of_wider = np.asarray(wider.any(axis=3).sum(axis=1))
    counts = (
        per_segment(elements.sum(axis=(1, 3))),
        per_segment(np.asarray(elements.any(axis=(1, 3)))),
        per_segment(of_rows.sum(axis=1)),
        per_segment(of_wider),
        per_segment(np.asarray(of_rows.any(axis=1))),
        of_wider[:, : words * WORD // width].T,
    )
    flat = np.concatenate([c.ravel() for c in counts]).astype(np.int32)
    return Detected(packed.reshape(count, words * 4).view(np.uint32).reshape(count, words), flat)


def listed(a: Array, kind: str, height: int, width: int) -> Lists:
    """The lists of the rows of a list."""
    count, k = a.shape
    groups, segments = -(-count // GROUP), -(-k // SEGMENT)
    none = np.zeros(0, np.int32)
    if kind == "block":
        pieces = _padded(a, width)
        live = (pieces != 0).any(axis=3)[:, :, : 2 * -(-k // 64) * WORD // width]
        by_block = live.transpose(2, 0, 1)
        group, row, block = np.nonzero(live)
        order = np.lexsort((row, group, block))
        group, row, block = group[order], row[order], block[order]
        places = np.append(0, by_block.sum(axis=2).ravel().cumsum())
        return Lists(places, none, pieces[group, row, block], group * GROUP + row)
    per = 1 if kind == "tile" else WORD
    pieces = _padded(a, per)
    live = (pieces != 0).any(axis=(1, 3))
    group, column = np.nonzero(live)
    per_part = live.reshape(groups * segments, SEGMENT // per).sum(axis=1)
    places = np.append(0, per_part.cumsum())
    values = pieces[group, :height, column, 0] if kind == "tile" else none
    return Lists(places, places[:: max(1, segments)], values, column)

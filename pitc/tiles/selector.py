"""What the run-time selector goes by, from the plug-in itself: one model of times, in one place."""

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pitc.ir.tiles import FACTORS, Work
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.runtime.library import library_path

Array = npt.NDArray[np.float64]

_SIZES = ("rows", "k", "panels", "row_block", "k_blocks", "scanned")


def _count_names() -> tuple[str, ...]:
    """The counts of `Work`, in the order of the plug-in."""
    names = ["elements", "columns", "runs"]
    for variant in VARIANTS.values():
        names += [variant.name] if variant.height else []
        if width := variant.width:
            names += [variant.name, f"columns{width}", f"runs{width}"]
    return tuple(names)


def features_of(points: Sequence[Work]) -> tuple[Mapping[str, Array], Array]:
    """How much of each of `FEATURES` the variants have, and how much each factor counts.

    Args:
        points: Contractions.

    Returns:
        By variant f64 [points, features], and f64 [points, factors].
    """
    call = ctypes.CDLL(str(library_path())).PitcFeatures
    call.restype = None
    names = _count_names()
    amounts = np.zeros((len(points), len(VARIANTS), len(FEATURES)))
    shares = np.zeros((len(points), FACTORS))
    for i, work in enumerate(points):
        sizes = [getattr(work, name) for name in _SIZES]
        numbers = np.array([*sizes, *(work.counts[name] for name in names)], np.int64)
        arrays = (numbers, amounts[i], shares[i])
        call(*(x.ctypes.data_as(ctypes.c_void_p) for x in arrays))
    return {v: amounts[:, j] for j, v in enumerate(VARIANTS)}, shares

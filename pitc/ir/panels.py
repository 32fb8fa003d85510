"""The layout in which the right-hand side of a contraction is stored in a compiled model."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the runtime is built where there is no numpy
    from numpy.typing import DTypeLike, NDArray

PANEL_WIDTH = 64
"""Columns per panel (NR): one register tile on AVX-512, four on AVX2."""
TURNED_COLUMNS = 2 * PANEL_WIDTH
"""Columns of a turned product in one call: what contract_row computes at once on AVX-512."""


def panel_count(n: int) -> int:
    """Panels that hold `n` columns."""
    return -(-n // PANEL_WIDTH)


def pack_panels(w: "NDArray[Any]", dtype: "DTypeLike" = "float32") -> "NDArray[Any]":
    """Store a weight by column panels, so that a kernel reads it in one ascending stream.

    Args:
        w: `[K, N]`.
        dtype: Of the result, to which it is converted.

    Returns:
        `[P, K, NR]`, C-contiguous, columns N.. of the last panel 0.
    """
    import numpy as np

    if w.ndim != 2:
        raise ValueError(f"expected a matrix [K, N], got shape {w.shape}")
    k, n = w.shape
    panels = np.zeros((panel_count(n), k, PANEL_WIDTH), dtype)
    full = n // PANEL_WIDTH
    split = full * PANEL_WIDTH
    panels[:full] = w[:, :split].reshape(k, full, PANEL_WIDTH).transpose(1, 0, 2)
    if split < n:
        panels[full, :, : n - split] = w[:, split:]
    return panels


def pair_panels(w: "NDArray[Any]") -> "NDArray[Any]":
    """Store a weight by column panels of bfloat16, two rows in each word.

    Args:
        w: float32 `[K, N]`.

    Returns:
        bfloat16 `[P, ceil(K / 2), 2 * NR]`, C-contiguous: of each column rows 2 i and 2 i + 1 side
        by side; columns N.., and row K of an odd K, are 0.
    """
    import ml_dtypes
    import numpy as np

    near = np.zeros((-(-len(w) // 2) * 2, *w.shape[1:]), np.uint16)
    near[: len(w)] = w.astype(ml_dtypes.bfloat16).view(np.uint16)
    words = near[::2] | near[1::2].astype(np.uint32) << 16
    return pack_panels(words, np.uint32).view(ml_dtypes.bfloat16)

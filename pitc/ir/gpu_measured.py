"""What kernels were seen to take on GPUs, where one was at hand: it takes the model's place.

Of `benchmarks/results/gpu` (steps `gemm` and `prices` of `docs/gpu-run.md`), float16, H100 SXM at
1980 MHz. An operand of another type takes as long per byte: a step is one of bytes.
"""

from collections.abc import Mapping

STEP_NS: Mapping[str, Mapping[str, int]] = {
    "sm_90": {"mma128x128": 335, "mma64x128": 225, "mma32x128": 265, "mma16x128": 220}
}
"""By architecture and dense tile: a step, where two blocks stand on a multiprocessor and each turn
of it is one of both: 4096 x 4096 x 4096 takes 8 turns of 128 steps of 128 x 128, 343 us of 370."""

TURN_NS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "sm_90": {
        **{f"dense_{tile}": (2000, step) for tile, step in STEP_NS["sm_90"].items()},
        "tile32_mma32x128": (12600, 170),
        "square32_mma32x128": (12600, 170),
        "block64_mma64x64": (4000, 1050),
    }
}
"""By architecture and `cuda_variants.CudaOffer.name`: the launches of lists and product with what
the first tiles wait for, and a turn. A device that is full takes turns, so steps have no price of
their own. Of blocks it is a turn where they are as fast as dense; of fewer it is more."""


def measured_prices(arch: str, offer: str) -> tuple[int, int, int, int] | None:
    """Femtoseconds for each of `cuda_variants.FEATURES`; None where nothing was measured.

    Args:
        arch: Name of an architecture.
        offer: Name of a variant in a dense tile.
    """
    found = TURN_NS.get(arch, {}).get(offer)
    return found and (found[0] * 10**6, 0, 0, found[1] * 10**6)

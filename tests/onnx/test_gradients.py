"""Gradients of every operator against central differences: the columns `derivative`, `adjoint`."""

from functools import cache

import numpy as np
import pytest

from pitc.errors import ModelError, UsageError
from pitc.passes.rules.registry import MICROSOFT
from tests.gradient_check import (
    NEAR,
    NEAR_32,
    STEP,
    WIDE_STEPS,
    Array,
    Differentiated,
    float_operands,
    in_float64,
    reference,
    runtime,
)
from tests.rule_proof import Sample
from tests.rule_samples import SAMPLES

BY_RUNTIME = frozenset(
    "Attention AveragePool Conv ConvTranspose Erf GatherElements Gelu GlobalLpPool GlobalMaxPool "
    "GroupNormalization LRN LpNormalization LpPool MaxPool MeanVarianceNormalization Pad Resize "
    "RotaryEmbedding ScatterElements SimplifiedLayerNormalization Slice Squeeze Upsample".split()
)
"""What ONNX's reference computes otherwise than ONNX Runtime, or in float32 only."""
STEPS = frozenset({"Ceil", "Floor", "Round", "Sign", "Hardmax"})
"""They are constant between steps: a loss does not depend on their operands."""
REFUSED = frozenset(
    {
        # bounds, a ratio, a number around: refused as operands of their own
        *(("", "Clip", 1), ("", "Clip", 2), ("", "Dropout", 1), ("", "Pad", 2)),
    }
)


def titles() -> list[tuple[str, Sample, bool]]:
    """Every sample with an operand of floats, with sizes as numbers and as symbols."""
    found = []
    for sample in SAMPLES:
        if sample.opset >= 13 and float_operands(sample):
            found.append((sample.title, sample, False))
            found += [(f"{sample.title} symbolic", sample, True)] * sample.symbolic
    return found


def near(got: Array, want: Array, tolerance: float) -> bool:
    size = max(1.0, float(np.nanmax(np.abs(want), initial=0.0)))
    return got.shape == want.shape and np.allclose(
        got, want, rtol=tolerance, atol=tolerance * size, equal_nan=True
    )


def outcome(sample: Sample, symbolic: bool, place: int) -> str:
    """`right`, `no floats`, or why the gradient of an operand is refused.

    Raises:
        AssertionError: It is wrong.
    """
    exact = not (sample.domain or sample.op in BY_RUNTIME)
    single = Differentiated(sample, symbolic, runtime)
    found = Differentiated(in_float64(sample), symbolic, reference) if exact else single
    if not found.terms:
        return "no floats"
    try:
        got = [found.gradient(place), single.gradient(place)]
    except (ModelError, UsageError) as error:
        return str(error)
    wants = [found.differences(place, step) for step in ((STEP,) if exact else WIDE_STEPS)]
    assert any(near(got[0], want, NEAR if exact else NEAR_32) for want in wants), (got, wants)
    assert any(near(got[1], want, NEAR_32) for want in wants), (got, wants)
    return "right"

"""Gradients of every operator against central differences: the columns `derivative`, `adjoint`."""

from functools import cache

import numpy as np
import pytest

from pitc.errors import ModelError, UsageError
from tests.gradient_check import (
    NEAR,
    NEAR_32,
    STEP,
    WIDE_STEP,
    Differentiated,
    float_operands,
    in_float64,
    reference,
    runtime,
)
from tests.rule_proof import Sample
from tests.rule_samples import SAMPLES

IN_FLOAT32 = frozenset(
    "Attention AveragePool Conv ConvTranspose Erf GatherElements Gelu GlobalLpPool GlobalMaxPool "
    "GroupNormalization LRN LpNormalization LpPool MaxPool MeanVarianceNormalization Pad Resize "
    "RotaryEmbedding ScatterElements SimplifiedLayerNormalization Slice Squeeze Upsample".split()
)
"""What ONNX's reference computes otherwise than ONNX Runtime, or in float32 only."""


def result(sample: Sample, symbolic: bool, place: int) -> str:
    """What the gradient of an operand is: `right`, `wrong: ..` or `refused: ..`."""
    exact = not (sample.domain or sample.op in IN_FLOAT32)
    found = of_sample(sample, symbolic, exact)
    if not found.terms:
        return "no floats"
    try:
        gradient = found.gradient(place)
        want = found.differences(place, STEP if exact else WIDE_STEP)
        if gradient.shape != want.shape:
            return f"wrong: {gradient.shape} {want.shape}"
        if not near(gradient, want, NEAR if exact else NEAR_32):
            return f"wrong: {np.abs(gradient - want).max()}"
        if exact:
            single = of_sample(sample, symbolic, False).gradient(place)
            if not near(single, want, NEAR_32):
                return f"wrong in float32: {np.abs(single - want).max()}"
    except UsageError as error:
        return f"refused: {error.message}"
    except ModelError as error:
        assert error.node
        return f"refused: {error.message}"
    return "right"

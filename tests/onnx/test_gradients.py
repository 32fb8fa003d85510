"""Gradients of every operator against central differences: the columns `derivative`, `adjoint`."""

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
    [
        "Attention",
        "AveragePool",
        "Conv",
        "ConvTranspose",
        "Erf",
        "GatherElements",
        "Gelu",
        "GlobalLpPool",
        "GlobalMaxPool",
        "GroupNormalization",
        "LRN",
        "LpNormalization",
        "LpPool",
        "MaxPool",
        "MeanVarianceNormalization",
        "Pad",
        "Resize",
        "RotaryEmbedding",
        "ScatterElements",
        "SimplifiedLayerNormalization",
        "Slice",
        "Squeeze",
        "Upsample",
    ]
)
"""What ONNX's reference computes otherwise than ONNX Runtime, or in float32 only."""
STEPS = frozenset({"Ceil", "Floor", "Round", "Sign", "Hardmax"})
"""They are constant between steps: a loss does not depend on their operands."""
MS = MICROSOFT
REFUSED = frozenset(
    {
        # operands that change a node otherwise than its elements do
        *(("", "Clip", 1), ("", "Clip", 2), ("", "Dropout", 1), ("", "Pad", 2), ("", "Resize", 2)),
        # whole operators
        *(
            ("", op)
            for op in ["CumProd", "OneHot", "EyeLike", "DynamicQuantizeLinear", "TensorScatter"]
        ),
        *(("", op) for op in ["Det", "GridSample", "RoiAlign", "DFT", "STFT", "RotaryEmbedding"]),
        *((MS, op) for op in ["MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulNBits"]),
        *(
            (MS, op)
            for op in ["FusedConv", "MoE", "MoEGroupRouter", "RotaryEmbedding", "DequantizeLinear"]
        ),
        ("", "DequantizeLinear"),
    }
)
FORMS = {
    "ConvTranspose": ("padding by auto_pad or output_shape that is below 0 or not known",),
    "LayerNormalization": ("the loss depends on its output 1",),
    "LpPool": ("windows may lie behind the image",),
    "MaxPool": ("windows may lie behind the image",),
    "AveragePool": ("windows may lie behind the image",),
    "MultiHeadAttention": ("no gradient of MultiHeadAttention",),  # sizes that are symbols
    "GroupNormalization": ("deprecated in domain_version of 18",),
    "Resize": ("scales that are not constant",),
    "ScatterElements": ("reduction 'mul'", "reduction 'max'", "reduction 'min'"),
}
"""Forms of operators that are refused, and why."""
UNTYPED = frozenset(
    [
        "Attention",
        "AveragePool",
        "DynamicQuantizeMatMul",
        "LpPool",
        "MatMulIntegerToFloat",
        "MaxPool",
        "QGemm",
        "STFT",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "Slice",
    ]
)
SKIPPED = frozenset({"EmbedLayerNormalization symbolic", "BitCast", "BitCast symbolic"})
"""What ONNX Runtime, or the reference, does not run in this form."""
EMPTY = "MaxPool([1,2,1]){kernel_shape=[3],strides=[3],dilations=[2],auto_pad=SAME_UPPER}@22"
"""Its window is in the padding only: the largest number of none is -inf."""


def titles() -> list[tuple[str, Sample, bool]]:
    """Every sample with an operand of floats, with sizes as numbers and as symbols."""
    found = []
    for sample in SAMPLES:
        for symbolic in (False, True)[: 1 + sample.symbolic]:
            name = f"{sample.op} symbolic" if symbolic else sample.op
            if (
                sample.opset >= 13
                and float_operands(sample)
                and name not in SKIPPED
                and sample.title != EMPTY
            ):
                found.append((f"{sample.title}{' symbolic' * symbolic}", sample, symbolic))
    return found


TITLES = titles()


def near(got: Array, want: Array, tolerance: float) -> bool:
    size = max(1.0, float(np.max(np.nan_to_num(np.abs(want)), initial=0.0)))
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


@pytest.mark.parametrize(
    ("sample", "symbolic"), [t[1:] for t in TITLES], ids=[t[0] for t in TITLES]
)
def test_an_operator(sample: Sample, symbolic: bool) -> None:
    for place in float_operands(sample):
        found, key = outcome(sample, symbolic, place), (sample.domain, sample.op)
        if found in ("right", "no floats"):
            assert not {key, (*key, place)} & REFUSED
        elif sample.op in STEPS:
            assert "does not depend on" in found
        elif found.startswith(("the loss", "node 't")):
            assert sample.op in UNTYPED, found  # of a sum that ONNX's inference knows no type of
        elif not {key, (*key, place)} & REFUSED:
            assert any(text in found for text in FORMS.get(sample.op, ())), found
        else:
            assert "no gradient of" in found

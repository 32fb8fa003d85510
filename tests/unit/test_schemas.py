"""What ONNX Runtime's own schemas say of its operators (pitc/ir/schemas.py)."""

import onnx.parser
import onnx_ir as ir
import pytest

from pitc.ir.inference import infer
from pitc.ir.schemas import places_of_types

MICROSOFT = "com.microsoft"


@pytest.mark.parametrize(
    ("domain", "op", "places"),
    [
        (MICROSOFT, "FastGelu", (0,)),
        (MICROSOFT, "DequantizeLinear", (1,)),
        (MICROSOFT, "QuantizeLinear", (2,)),
        (MICROSOFT, "EmbedLayerNormalization", (2, 0, 2)),
        (MICROSOFT, "SkipLayerNormalization", (0, None, None, 0)),
        (MICROSOFT, "QGemm", (8,)),
        ("", "SimplifiedLayerNormalization", (1, None)),
        ("", "NonMaxSuppression", (2,)),
        ("", "SequenceInsert", (None,)),
        (MICROSOFT, "EPContext", (None,)),  # each of its operands has a type of its own
        ("mine", "Op", ()),
    ],
)
def test_which_input_has_the_type_of_an_output(
    domain: str, op: str, places: tuple[int | None, ...]
) -> None:
    assert places_of_types(domain, op, 1 if domain else 17) == places


def test_types_of_what_onnx_does_not_know() -> None:
    """A normalisation in float32 of float16 gives what its scale is; what is behind has a type."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "{MICROSOFT}": 1]> m
    (float[b, 4] x, float16[4] scale, float[4] bias) => (y, z, w) {{
        y = SimplifiedLayerNormalization <axis = -1> (x, scale)
        g = {MICROSOFT}.FastGelu (x, bias) z = Neg (g)
        w = {MICROSOFT}.NoSuchOperator (x)
    }}"""
    types = infer(ir.serde.deserialize_model(onnx.parser.parse_model(text)))
    assert (types["y"].dtype, types["z"].dtype) == (ir.DataType.FLOAT16, ir.DataType.FLOAT)
    assert types["z"].dims is None and "w" not in types

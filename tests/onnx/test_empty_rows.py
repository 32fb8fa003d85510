"""Contractions on rows that a Reshape flattens or turns back, where there are none."""

from typing import Any

import numpy as np
import onnx
import pytest

from tests.random_check import check_model, lowering_everything

FLAT, WHOLE = "float[n, 4] y", "float[b, s, 4] y"
BODIES = {
    "c = Relu (x) rows = Reshape (c, columns) m = MatMul (rows, w) y = Tanh (m)": FLAT,
    """m = MatMul (x, w) c = Relu (m) rows = Reshape (c, columns) p = MatMul (rows, w)
    y = Neg (p)""": FLAT,
    "c = Relu (x) rows = Reshape (c, columns) m = MatMul (rows, w) y = Reshape (m, one)": WHOLE,
    """rows = Reshape (x, columns) c = Relu (rows) sizes = Shape (x) t = Reshape (c, sizes)
    y = MatMul (t, w)""": WHOLE,
    """c = Relu (x) sizes = Shape (c) rows = Reshape (c, columns) m = MatMul (rows, w)
    t = Reshape (m, sizes) y = Tanh (t)""": WHOLE,
    """rows = Reshape (x, columns) m = MatMul (rows, w) c = Relu (m) p = MatMul (c, w)
    sizes = Shape (x) t = Reshape (p, sizes) y = Add (t, x)""": WHOLE,
    """m = MatMul (x, w) c = Relu (m) rows = Reshape (c, columns) p = MatMul (rows, w)
    sizes = Shape (x) t = Reshape (p, sizes) y = Add (t, x)""": WHOLE,
}
SIZES = ((2, 3), (2, 0), (0, 3), (1, 1))


def model_of(body: str, opset: int) -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["": {opset}]>
        g (float[b, s, 4] x) => ({BODIES[body]})
        <int64[2] columns = {{-1, 4}}, int64[3] one = {{1, -1, 4}}> {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(drawn(4, 4), "w"))
    return model


def drawn(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("opset", [13, 14])
@pytest.mark.parametrize("body", BODIES)
def test_no_rows(body: str, opset: int) -> None:
    """Older Reshapes take a size of 0 for that of the operand."""
    feeds = [{"x": drawn(b, s, 4)} for b, s in SIZES]
    with lowering_everything():
        found = check_model(model_of(body, opset), feeds, 0, (None,))
    assert found.failures == []
    assert found.counts["runs"] >= len(SIZES) - 1  # ONNX Runtime's own Reshape refuses the others
    assert found.counts["sparse"] == 1


def test_rows_are_followed_through_reshapes() -> None:
    """What a newer operator set packs together, an older one does where one size may be 0 only."""
    nodes = {}
    for opset in (13, 14):
        for body in BODIES:
            with lowering_everything():
                counts = check_model(
                    model_of(body, opset), [{"x": drawn(2, 3, 4)}], 0, (None,)
                ).counts
            nodes[opset, body] = counts["packed nodes"]
    flat = [b for b, outputs in BODIES.items() if outputs == FLAT]
    assert all(nodes[13, b] == nodes[14, b] for b in flat)
    assert all(nodes[13, b] <= nodes[14, b] for b in BODIES)

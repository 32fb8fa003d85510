"""Packed forms of what routes tokens to experts, and of repetition, against ONNX Runtime."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir import target as targets
from pitc.ir.refusal import Code
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.plan_reference import run_lowered

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.normal(size=(8, 8)),
    "experts": RNG.normal(size=(8, 8, 4)),
    "grid": RNG.normal(size=(8, 8, 4)),
    "thin": RNG.normal(size=(1, 8)),
    "narrow": RNG.normal(size=(8, 4)),
    "long": RNG.normal(size=(16, 8)),
}
MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
model (float[b, s, 8] x, bool[b, s] mask) => ({outputs})
<int64[1] last = {{-1}}, int64[1] third = {{2}}, int64[1] fourth = {{3}}, int64[1] two = {{2}},
 int64[1] one = {{1}}, int64[4] wide = {{1, 1, 3, 1}}, int64[4] halves = {{0, 0, 2, 4}}>
{{
    h = MatMul (x, w)
    live = Cast <to = 1> (mask)
    {body}
    row = Unsqueeze (live, last)
    y = Mul (found, row)
}}
"""
BODIES = {
    "TopK": """values, places = TopK <axis = -1> (h, two)
        numbers = Cast <to = 1> (places)
        found = Add (values, numbers)""",
    "TopK of two axes": """split = Reshape (h, halves)
        values, places = TopK <axis = 2> (split, one)
        numbers = Cast <to = 1> (places)
        both = Add (values, numbers)
        found = ReduceMean <keepdims = 0> (both, third)""",
    "ArgMax": """place = ArgMax <axis = 2, keepdims = 0> (h)
        number = Cast <to = 1> (place)
        found = Unsqueeze (number, last)""",
    "ArgMin": """place = ArgMin <axis = -1> (h)
        found = Cast <to = 1> (place)""",
    "GatherND": """place = ArgMax <axis = 2> (h)
        own = GatherND (experts, place)
        token = Unsqueeze (h, third)
        product = MatMul (token, own)
        found = Squeeze (product, third)""",
    "GatherND of pairs": """values, places = TopK <axis = -1> (h, two)
        found = GatherND (grid, places)""",
    "Expand": """token = Unsqueeze (h, third)
        copies = Expand (token, wide)
        again = MatMul (copies, w)
        found = ReduceMean <keepdims = 0> (again, third)""",
    "Tile": """token = Unsqueeze (h, third)
        copies = Tile (token, wide)
        again = MatMul (copies, w)
        found = ReduceMean <keepdims = 0> (again, third)""",
    "MatMul": """left = Unsqueeze (h, third)
        right = Unsqueeze (h, fourth)
        square = MatMul (left, right)
        found = Squeeze (square, third)""",
}
REFUSED = {  # why: body, other outputs, the refused operator, the code
    "searched along the packed axis": (
        "p, q = TopK <axis = 1> (h, one)\nsum = Add (p, h)\nfound = MatMul (sum, w)",
        "",
        "TopK",
        Code.NOT_NEEDED,
    ),
    "places are an output": (
        "p, places = TopK <axis = -1> (h, one)\nfound = MatMul (p, thin)",
        ", int64[b, s, k] places",
        "TopK",
        Code.NO_FACT,
    ),
    "looked up by position": (
        """few = MatMul (x, narrow)
        place = ArgMax <axis = -1> (few)
        rows = GatherND <batch_dims = 1> (h, place)
        found = MatMul (rows, w)""",
        "",
        "GatherND",
        Code.AXIS_NOT_PIT,
    ),
    "repeated in turn": (
        "twice = Tile (h, pair)\nfound = MatMul (twice, long)",
        "",
        "Tile",
        Code.LAYOUT,
    ),
}


def build(body: str, more: str = "") -> onnx.ModelProto:
    text = MODEL.format(outputs=f"float[b, s, n] y{more}", body=body)
    model = onnx.parser.parse_model(text)
    arrays = {**WEIGHTS, "pair": np.array([1, 1, 2])}
    for name, x in arrays.items():
        dtype = np.float32 if x.dtype.kind == "f" else np.int64
        model.graph.initializer.append(onnx.numpy_helper.from_array(x.astype(dtype), name))
    return model


def lower(model: onnx.ModelProto) -> Lowered:
    return run_passes(ir.serde.deserialize_model(model), LowerOptions())


def lowering_of(lowered: Lowered, op: str) -> list[str]:
    return [r.lowering for r in lowered.report.nodes if r.op_type == op]


def masks(rng: np.random.Generator) -> list[np.ndarray]:
    holes = rng.random((3, 7)) < 0.5
    holes[1] = False
    return [holes, ~holes, holes & False, holes | True]


def check(model: onnx.ModelProto, lowered: Lowered) -> None:
    rng = np.random.default_rng(1)
    run = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    proto = ir.serde.serialize_model(lowered.model)
    for mask in masks(rng):
        feeds = {"x": rng.normal(size=(3, 7, 8)).astype(np.float32), "mask": mask}
        for want, got in zip(run.run(None, feeds), run_lowered(proto, feeds), strict=True):
            np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def every_region_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))


@pytest.mark.parametrize("name", BODIES)
def test_rows_that_are_read_are_packed(name: str) -> None:
    model = build(BODIES[name])
    lowered = lower(model)
    op = name.split()[0]
    assert set(lowering_of(lowered, op)) == {"packed"}
    assert set(lowering_of(lowered, "MatMul")) == {"packed"}
    check(model, lowered)


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str) -> None:
    body, more, op, code = REFUSED[name]
    model = build(body, more)
    lowered = lower(model)
    record = next(r for r in lowered.report.nodes if r.op_type == op)
    assert record.refusal is not None and record.refusal.code is code
    check(model, lowered)

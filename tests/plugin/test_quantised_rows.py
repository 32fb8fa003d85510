"""Products of few bits on packed rows, and dynamic scales of tokens that exist, against ONNX
Runtime. Inputs and weights are small integers, so that all sums are exact and results equal.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.quantised import packed_int4
from pitc.check.reference import reference_session
from pitc.ir import target as targets
from pitc.ir.expr import TensorExpr
from pitc.ir.graph import NodeView
from pitc.ir.refusal import Code
from pitc.ir.region import EVERYWHERE
from pitc.passes.live_scales import scale_by_live_tokens
from pitc.passes.pipeline import Lowered, LowerOptions, analyse, run_passes
from pitc.passes.regions import extremes
from pitc.passes.rules.record import OPERATORS
from tests.fact_check import probed
from tests.plan_reference import run_lowered
from tests.record_twin import twin

Array = np.ndarray
DYNAMIC_EXPORT = Path(__file__).parents[2] / "models/export/fixtures/bert-eager-dynamo-dynamic.onnx"
CPU = targets.CPU
K, N = 32, 6
RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (K, N)).astype(np.uint8)
NUMBERS: dict[str, Array] = {
    "w0": RNG.integers(-2, 3, (K, K)).astype(np.float32),
    "wq": BYTES,
    "ws": np.full(N, 0.5, np.float32),
    "wz": RNG.integers(100, 140, N).astype(np.uint8),
    "one": np.asarray(0.25, np.float32),
    "two": np.asarray(2, np.float32),
    "middle": np.asarray(128, np.uint8),
    "bias": RNG.integers(-9, 9, N).astype(np.float32),
    "bias32": RNG.integers(-9, 9, N).astype(np.int32),
    "row": RNG.integers(0, 256, N).astype(np.uint8),
    "axis": np.asarray([2]),
    "every": np.asarray([-1, K]),
    "rows": np.asarray([0, -1, N]),
    "w4": packed_int4(RNG.normal(size=(K, N)).astype(np.float32), 16)[0],
    "s4": np.full((N, 2), 0.5, np.float32),
    "s4flat": np.full(N * 2, 0.5, np.float32),
    "z4": RNG.integers(0, 256, (N, 1)).astype(np.uint8),
    "w8": RNG.integers(0, 256, (N, 2, 16)).astype(np.uint8),
}
HEAD = """
<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>
model (float[b, s, 32] h, {dtype}[b, s] mask) => (float[b, s, 6] y{outputs})
{{
    x = MatMul (h, w0)
    {body}
}}
"""
NBITS = "com.microsoft.MatMulNBits <K = 32, N = 6, block_size = 16, bits ="
DYNAMIC = """q, s, z = DynamicQuantizeLinear (x)
    c = MatMulInteger (q, wq, z, wz)
    f = Cast <to = 1> (c)
    y = Mul (f, s)"""
FUSED = """q, s, z = DynamicQuantizeLinear (x)
    y = com.microsoft.MatMulIntegerToFloat (q, wq, s, ws, z, wz, bias)"""
WHOLE = "y = com.microsoft.DynamicQuantizeMatMul (x, wq, ws, wz, bias)"
JOINED = """flat = Reshape (x, every)
    q, s, z = DynamicQuantizeLinear (flat)
    c = MatMulInteger (q, wq, z, wz)
    f = Cast <to = 1> (c)
    r = Mul (f, s)
    shape = Shape (h)
    two_sizes = Slice (shape, zero, two_i)
    shape3 = Concat <axis = 0> (two_sizes, six)
    y = Reshape (r, shape3)"""
QUANTISED = "q = QuantizeLinear (x, one, middle) "
BODIES = {
    "int4": f"y = {NBITS} 4> (x, w4, s4)",
    "int4, flat scales": f"y = {NBITS} 4> (x, w4, s4flat)",
    "int4, zero points": f"y = {NBITS} 4> (x, w4, s4, z4)",
    "int4, bias": f"y = {NBITS} 4> (x, w4, s4, , , bias)",
    "int8 in blocks": f"y = {NBITS} 8> (x, w8, s4)",
    "MatMulInteger": QUANTISED + "c = MatMulInteger (q, wq, middle, wz) y = Cast <to = 1> (c)",
    "QLinearMatMul": QUANTISED
    + """p = QLinearMatMul (q, one, middle, wq, one, middle, two, middle)
    y = DequantizeLinear (p, two, middle)""",
    "QLinearAdd": QUANTISED
    + """p = QLinearMatMul (q, one, middle, wq, one, middle, two, middle)
    a = com.microsoft.QLinearAdd (p, two, middle, row, one, middle, two, middle)
    m = com.microsoft.QLinearMul (a, two, middle, p, two, middle, two, middle)
    g = com.microsoft.QLinearSigmoid (m, two, middle, one, middle)
    r = com.microsoft.QLinearLeakyRelu (g, one, middle, one, middle)
    t = com.microsoft.QLinearSoftmax <opset = 13> (r, one, middle, one, middle)
    y = DequantizeLinear (t, one, middle)""",
}
DYNAMIC_BODIES = {"parts": DYNAMIC, "fused": FUSED, "whole": WHOLE, "joined": JOINED}
MORE: dict[str, Array] = {
    "zero": np.asarray([0]),
    "two_i": np.asarray([2]),
    "six": np.asarray([N]),
}
MASKS: dict[str, Callable[[int, int], Array]] = {
    "right": lambda b, s: np.arange(s) < RNG.integers(1, s + 1, (b, 1)),
    "left": lambda b, s: np.arange(s) >= RNG.integers(0, s, (b, 1)),
    "holes": lambda b, s: RNG.random((b, s)) < 0.5,
    "one": lambda b, s: np.arange(b * s).reshape(b, s) == b * s // 2,
    "none": lambda b, s: np.zeros((b, s)),
    "all": lambda b, s: np.ones((b, s)),
}


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))


def model_of(
    body: str, outputs: str = "", opset: int = 17, dtype: str = "int64", head: str = HEAD
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        head.format(body=body, outputs=outputs, opset=opset, dtype=dtype)
    )
    used = {name for node in model.graph.node for name in node.input}
    for name, array in (NUMBERS | MORE).items():
        if name in used:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def lower(model: onnx.ModelProto, padding: str | None = "mask") -> Lowered:
    return run_passes(ir.serde.deserialize_model(model), LowerOptions(padding=padding, check=True))


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def answers(run: ort.InferenceSession, feeds: dict[str, Array]) -> list[Array]:
    return [np.asarray(x) for x in run.run(None, feeds)]


def feeds_of(mask: Array, dtype: str = "int64") -> dict[str, Array]:
    """Small integers, and much larger ones where the mask is 0."""
    h = RNG.integers(-3, 4, (*mask.shape, K)).astype(np.float32)
    h[mask == 0] *= 50
    return {"h": h, "mask": mask.astype("float32" if dtype == "float" else dtype)}


def live_only(feeds: dict[str, Array]) -> dict[str, Array]:
    """The tokens that exist as one sequence without padding."""
    live = feeds["mask"] != 0
    h = feeds["h"][live][None]
    return {"h": h, "mask": np.ones(h.shape[:2], feeds["mask"].dtype)}


def packed(lowered: Lowered) -> Counter[str]:
    found = (r for r in lowered.report.nodes if r.lowering == "packed")
    return Counter(r.op_type.removeprefix("com.microsoft::") for r in found)


@pytest.mark.parametrize("name", BODIES)
def test_products_run_on_packed_rows(name: str) -> None:
    model = model_of(BODIES[name])
    lowered, run = lower(model), session(model)
    operators = {n.op_type for n in model.graph.node}
    assert packed(lowered).keys() == operators
    assert len(lowered.report.regions) == 1 and not lowered.report.notes
    proto = ir.serde.serialize_model(lowered.model)
    for b, s in ((3, 7), (1, 5), (2, 1)):
        for kind, make in MASKS.items():
            feeds = feeds_of(np.asarray(make(b, s), np.int64))
            (got,), (want,) = run_lowered(proto, feeds), answers(run, feeds)
            live = feeds["mask"] != 0
            np.testing.assert_array_equal(got[live], want[live], kind)
            assert not got[~live].any()


@pytest.mark.parametrize("dtype", ["int64", "bool", "float"])
@pytest.mark.parametrize("name", DYNAMIC_BODIES)
def test_a_dynamic_scale_is_that_of_live_tokens(name: str, dtype: str) -> None:
    """ONNX Runtime says the same of the live tokens alone, without padding, bit by bit."""
    model = model_of(DYNAMIC_BODIES[name], dtype=dtype)
    lowered, run = lower(model), session(model)
    assert packed(lowered)["DynamicQuantizeLinear"] == 1
    assert packed(lowered)["MatMul"] == 1 and len(lowered.report.regions) == 1
    (note,) = lowered.report.notes
    assert note.startswith("dynamic scales are computed from real tokens only, at 1 nodes from ")
    proto, moved = ir.serde.serialize_model(lowered.model), 0
    for b, s in ((3, 7), (1, 5), (2, 1)):
        for kind, make in MASKS.items():
            feeds = feeds_of(np.asarray(make(b, s), np.int64), dtype)
            (got,) = run_lowered(proto, feeds)
            live = feeds["mask"] != 0
            assert not got[~live].any()
            if live.any():  # a Reshape to [-1, 32] refuses nothing
                (want,) = answers(run, live_only(feeds))
                np.testing.assert_array_equal(got[live], want[0], kind)
            (padded,) = answers(run, feeds)
            moved += not np.array_equal(got[live], padded[live])
    assert moved > 6  # padding has another scale: its numbers are larger
    feeds = feeds_of(np.asarray([[1, 1, 0], [0, 1, 0]]), dtype)
    feeds["h"][feeds["mask"] == 0] = [[np.nan], [np.inf], [-np.inf]]
    (got,), (want,) = run_lowered(proto, feeds), answers(run, live_only(feeds))
    np.testing.assert_array_equal(got[feeds["mask"] != 0], want[0])


def test_another_reader_sees_the_same_scale() -> None:
    """Scale and zero point are whole values: as outputs of the model, too. Of no token at all they
    are 1 and 0, as ONNX Runtime says of nothing.
    """
    model = model_of(DYNAMIC, ", float s, uint8 z, float t")
    model.graph.node.append(onnx.helper.make_node("Add", ["s", "s"], ["t"]))
    lowered, run = lower(model), session(model)
    assert packed(lowered)["DynamicQuantizeLinear"] == 1
    proto = ir.serde.serialize_model(lowered.model)
    onnx.checker.check_model(proto)
    for make in MASKS.values():
        feeds = feeds_of(np.asarray(make(3, 5), np.int64))
        got, want = run_lowered(proto, feeds), answers(run, live_only(feeds))
        for x, y in zip(got[1:], want[1:], strict=True):
            np.testing.assert_array_equal(x, y)
    feeds = feeds_of(np.zeros((2, 3), np.int64))
    assert [x.item() for x in run_lowered(proto, feeds)[1:]] == [1, 0, 2]


def test_without_padding_all_rows_count() -> None:
    """A scale over everything reads everything; nothing in front of it is packed."""
    model = model_of(DYNAMIC)
    lowered = lower(model, None)
    assert not lowered.report.regions and not lowered.report.notes
    feeds = feeds_of(np.asarray(MASKS["right"](3, 7), np.int64))
    proto = ir.serde.serialize_model(lowered.model)
    np.testing.assert_array_equal(run_lowered(proto, feeds)[0], answers(session(model), feeds)[0])


MASKED = """flag = Cast <to = 1> (mask)
    flags = Unsqueeze (flag, axis)
    xm = Mul (x, flags)
    q, s, z = DynamicQuantizeLinear ({of})
    c = MatMulInteger (q, wq, z, wz)
    f = Cast <to = 1> (c)
    g = Mul (f, s)
    y = Mul (g, flags)"""


def test_rows_that_are_zero_need_no_contract() -> None:
    """Where a model itself makes padding 0 in front of a dynamic scale, leaving it out is exact at
    every element; where it does not, dead results are no reason to leave rows out.
    """
    exact, wrong = (model_of(MASKED.format(of=of)) for of in ("xm", "x"))
    lowered = lower(exact, None)
    assert packed(lowered)["DynamicQuantizeLinear"] == 1
    assert packed(lower(wrong, None))["DynamicQuantizeLinear"] == 0
    (refusal,) = [
        r.refusal for r in lower(wrong, None).report.nodes if r.op_type == "DynamicQuantizeLinear"
    ]
    assert refusal is not None and refusal.code is Code.NO_FACT
    for model in (exact, wrong):
        proto, run = ir.serde.serialize_model(lower(model, None).model), session(model)
        for make in MASKS.values():
            feeds = feeds_of(np.asarray(make(3, 7), np.int64))
            np.testing.assert_array_equal(run_lowered(proto, feeds)[0], answers(run, feeds)[0])


def test_rows_that_are_not_zero_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong twin of the form that asks for no zeros: the scale is another one."""
    model = model_of(MASKED.format(of="x"))
    monkeypatch.setattr(extremes, "covering", lambda *_: EVERYWHERE)
    lowered, run = lower(model, None), session(model)
    assert packed(lowered)["DynamicQuantizeLinear"] == 1
    feeds = feeds_of(np.asarray([[1, 1, 0], [1, 0, 0]], np.int64))
    (got,) = run_lowered(ir.serde.serialize_model(lowered.model), feeds)
    assert not np.array_equal(got, answers(run, feeds)[0])


def test_the_audit_finds_a_rule_that_forgets_the_extremes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By it no line of x is read where nobody reads q; noise there moves the scale."""
    rule = OPERATORS["", "DynamicQuantizeLinear"].rule
    model = model_of(MASKED.format(of="x"))
    feeds = [feeds_of(np.asarray(MASKS["right"](3, 7), np.int64))]

    def forgetful(view: NodeView) -> list[TensorExpr]:
        assert rule is not None
        points, *scales = (e for e in rule(view) if e is not None)
        unread = [replace(r, absent=(EVERYWHERE,)) for e in scales for r in e.reads]
        made = [replace(e, reads=(r,)) for e, r in zip(scales, unread, strict=True)]
        return [replace(points, reads=points.reads[:1]), *made]

    def failures() -> list[str]:
        graph, given_up = analyse(ir.serde.deserialize_model(model), None)
        return probed(model, graph, given_up, None, feeds).failures

    assert failures() == []
    twin(monkeypatch, "DynamicQuantizeLinear", rule=forgetful)
    assert failures()


@pytest.mark.parametrize("name", [*BODIES, *DYNAMIC_BODIES])
def test_facts_hold(name: str) -> None:
    model = model_of((BODIES | DYNAMIC_BODIES)[name])
    source = ir.serde.deserialize_model(model)
    scale_by_live_tokens(source, "mask")
    rewritten = ir.serde.serialize_model(source)
    graph, given_up = analyse(source, "mask")
    feeds = [feeds_of(np.asarray(make(2, 5), np.int64)) for make in MASKS.values()]
    result = probed(rewritten, graph, given_up, "mask", feeds, every=4)
    assert result.failures == [] and result.dead_checks


SHAPED = """
<ir_version: 10, opset_import: ["": {opset}]>
model ({ty}[{first}, {second}, 4] x, int64[{mask}] mask) => (uint8[{first}, {second}, 4] q, float s)
{{
    {body}
    q, s, z = DynamicQuantizeLinear (x)
}}
"""
ALONG = """turned = Cast <to = 1> (mask)
    {turn}
    w = Add (x, flags)"""


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize(("first", "turn"), [("b", "same = Identity (turned)"), ("s", "")])
def test_tokens_lie_as_the_mask_says(opset: int, first: str, turn: str) -> None:
    """Batch first or time first; a Transpose of the mask tells which it is."""
    second = "s" if first == "b" else "b"
    lines = [turn or "same = Transpose (turned)"]
    lines += (
        ["flags = Unsqueeze <axes = [2]> (same)"]
        if opset < 13
        else ["flags = Unsqueeze (same, axis)"]
    )
    body = ALONG.format(turn=" ".join(lines))
    text = SHAPED.format(
        opset=opset, ty="float", first=first, second=second, mask="b, s", body=body
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([2]), "axis"))
    source = ir.serde.deserialize_model(model)
    assert len(scale_by_live_tokens(source, "mask")) == 1
    run = session(ir.serde.serialize_model(source))
    mask = np.asarray([[1, 1, 0], [1, 0, 0]])
    x = np.ones((2, 3, 4) if first == "b" else (3, 2, 4), np.float32)
    x[(mask if first == "b" else mask.T) == 0] = 100
    assert answers(run, {"x": x, "mask": mask})[1] == np.float32(1 / 255)


def test_what_is_not_of_tokens_keeps_its_scale() -> None:
    """Nothing shows that x is of tokens: sizes of the same name are no axis of the mask."""
    text = SHAPED.format(opset=17, ty="float", first="s", second="b", mask="b, s", body="")
    source = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    assert scale_by_live_tokens(source, "mask") == []
    assert scale_by_live_tokens(source, None) == []
    assert [n.op_type for n in source.graph] == ["DynamicQuantizeLinear"]


@pytest.mark.parametrize("packs", [True, False])
def test_verify_compares_with_live_tokens(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[int, str, str]], packs: bool
) -> None:
    """Where nothing pays to be packed, the source runs, with the scales that it has."""
    if not packs:
        monkeypatch.setattr(targets, "CPU", CPU)
    words = ("verify", DYNAMIC_EXPORT, "--padding", "attention_mask", "-q", "--tolerance", "1e-2")
    code, out, err = run(*words)
    assert code == 0, out + err
    text = "compared with ONNX Runtime with 8 dynamic scales of real tokens only"
    assert (text in out) == packs
    plain = session(onnx.load(DYNAMIC_EXPORT))
    named, nodes = reference_session(DYNAMIC_EXPORT, "attention_mask")
    mask = np.asarray([[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]])
    feeds = {"input_ids": np.arange(12).reshape(2, 6), "attention_mask": mask}
    x, y = (answers(one, feeds)[0][mask != 0] for one in (plain, named))
    assert len(nodes) == 8 and not np.allclose(x, y, 1e-5, 1e-5)

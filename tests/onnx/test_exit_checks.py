"""Graphs that are lowered wrongly when one of the checks is taken away."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from pitc.ir.refusal import Code
from pitc.passes.analysis import analyse
from pitc.passes.audit import stages
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from pitc.passes.regions import legal
from pitc.passes.regions.domain import domain_of
from pitc.passes.regions.form import Packing
from pitc.passes.regions.layout import layout_of
from tests.random_check import check_model, lowering_everything
from tests.random_nodes import run_nodes, session_of

# Where the mask is 0, `a` is true, so `b` is not read; and `b` and `c` are both 5, so `a` is not
# read. Each is right alone. As zeros both at once they would make y 0 there, and not 5.
CIRCULAR = """
<ir_version: 10, opset_import: ["": 20]>
circular (float[n, s, 8] x, bool[n, s] mask) => (float[n, s, 8] y)
<int64[1] last = {-1}, float five = {5}, float zero = {0}>
{
    live = Unsqueeze (mask, last)
    dead = Not (live)
    q = MatMul (x, w1)
    positive = Greater (q, zero)
    a = Or (dead, positive)
    b = Where (live, q, five)
    c = Where (live, x, five)
    y = Where (a, c, b)
}
"""
# Where g is 0, o is not read, and so v is not either, but where h is 1: keys of that kind are left
# out. A query that stays there would be left without keys, and NaN * g is not 0.
STARVED = """
<ir_version: 10, opset_import: ["": 20]>
starved (float[n, s, 8] x, bool[n, s] mask, bool[n, s] h, float[n, 1, 1] g)
=> (float[n, s, 8] y, float[n, s, 8] hv)
<int64[1] last = {-1}, float zero = {0}>
{
    rows = Unsqueeze (mask, last)
    shown = Unsqueeze (h, last)
    q = MatMul (x, w1)
    k = MatMul (x, w2)
    v = MatMul (x, w3)
    hv = Where (shown, v, zero)
    turned = Transpose <perm = [0, 2, 1]> (k)
    s = MatMul (q, turned)
    p = Softmax <axis = -1> (s)
    o = MatMul (p, v)
    t = Mul (o, g)
    z1 = MatMul (t, w4)
    z2 = MatMul (z1, w5)
    z3 = MatMul (z2, w6)
    y = Where (rows, z3, zero)
}
"""


# Where c holds, a row of z is -inf and p NaN; a 0 in the place of c would let that through.
GUARDED = """
<ir_version: 10, opset_import: ["": 20]>
guarded (float[n, s, 8] x, bool[n, s] mask, bool[n, s] h) => (float[n, s, 8] y)
<int64[1] last = {-1}, int64[1] middle = {1}, float zero = {0}, float low = {-inf}>
{
    turned = Transpose <perm = [0, 2, 1]> (x)
    a = MatMul (x, turned)
    keys = Unsqueeze (h, middle)
    hide = Where (keys, zero, low)
    z = Add (a, hide)
    p = Softmax <axis = -1> (z)
    e = Equal (z, low)
    i = Cast <to = 6> (e)
    all = ReduceMin (i, last)
    c = Cast <to = 9> (all)
    w = Where (c, zero, p)
    o = MatMul (w, x)
    rows = Unsqueeze (mask, last)
    g = Cast <to = 1> (rows)
    y = Mul (o, g)
}
"""


def parsed(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    weights = {x for n in model.graph.node for x in n.input if x[:1] == "w" and x[1:].isdigit()}
    for name in sorted(weights):
        x = rng.normal(size=(8, 8)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(x, name))
    return model


def lower(model: onnx.ModelProto) -> Lowered:
    with lowering_everything():
        return run_passes(ir.serde.deserialize_model(model), LowerOptions())


def deviation(model: onnx.ModelProto, lowered: Lowered) -> float:
    """The largest difference from ONNX Runtime in the first output; NaN where only one is NaN."""
    feeds = {
        "x": np.random.default_rng(1).normal(size=(2, 5, 8)).astype(np.float32),
        "mask": np.asarray([[1, 1, 0, 0, 0], [1, 0, 1, 1, 1]], bool),
        "h": np.asarray([[0, 0, 0, 0, 0], [1, 1, 0, 0, 1]], bool),
        "g": np.asarray([0, 1], np.float32).reshape(2, 1, 1),
    }
    feeds = {i.name: feeds[i.name] for i in model.graph.input}
    want, *_ = session_of(model).run(None, feeds)
    got, *_ = run_nodes(ir.serde.serialize_model(lowered.model), feeds)
    return float(np.abs(np.asarray(want) - got).max())


def test_facts_that_rest_on_each_other_are_not_used_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = parsed(CIRCULAR)
    lowered = lower(model)
    assert {r.refusal.code for r in lowered.report.nodes if r.node in "ab" and r.refusal} == {
        Code.JOINT
    }
    assert deviation(model, lowered) < 1e-4
    monkeypatch.setattr(legal, "_overwritten", lambda *_: [])
    with pytest.raises(stages.StageError, match="overwritten"):
        lower(model)
    monkeypatch.setattr(stages, "ALWAYS", False)
    assert deviation(model, lower(model)) > 1  # the check is needed


def test_no_query_is_left_without_keys() -> None:
    model = parsed(STARVED)
    lowered = lower(model)
    (record,) = [r for r in lowered.report.nodes if r.node == "o"]
    assert record.lowering == "attention"
    assert deviation(model, lowered) < 1e-4


def test_what_a_guard_is_made_of_does_not_come_back() -> None:
    graph = analyse(ir.serde.deserialize_model(parsed(GUARDED)), None)[0]
    assert {n for n, x in graph.values.items() if x.guards_softmax} == {"e", "i", "all", "c"}
    for name, code in (("c", Code.JOINT), ("w", None)):
        node, dead = graph[name].producer, next(r for r in graph[name].dead if r)
        domain, coords = domain_of(dead) or (None, ())
        layout = layout_of(graph[name].shape or (), coords)
        assert node is not None and domain is not None and layout is not None
        found = legal._at_exit(graph, Packing(name, domain, coords, layout, dead), node, 0)
        assert (found and found.code) == code


# y is given up where the mask is 0, and read as packed images; its declaration has no rank.
READ_ON = """
<ir_version: 10, opset_import: ["": 21]>
read_on (int64[n, s] mask, float[n, s, 4] x, float[n, 1] images) => (float[] z, float[] y)
{
    y = MatMul (x, w)
    c = Conv <pads = [1, 1]> (y, f)
    flat = Flatten (c)
    z = Mul (flat, images)
}
"""


def test_an_output_that_is_given_up_and_read_keeps_its_shape() -> None:
    rng = np.random.default_rng(5)
    proto = onnx.parser.parse_model(READ_ON)
    for name, shape in (("w", (4, 4)), ("f", (4, 4, 3))):
        weight = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    feed = {
        "mask": rng.integers(0, 2, (3, 4)),
        "x": rng.standard_normal((3, 4, 4)).astype(np.float32),
        "images": np.array([[1], [0], [1]], np.float32),
    }
    with lowering_everything():
        assert check_model(proto, [feed], ways=["mask"]).failures == []

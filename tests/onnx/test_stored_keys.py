"""Attention reads keys and values where they are stored: a cache as it lies, and a head of it for
all heads of queries that share it.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.attention import StepConfig, attention_step, draw_step
from pitc.ir import target as targets
from pitc.ir.target import CUDA, Target
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.lower_support import plans
from tests.plan_reference import run_lowered

SIZES = [*product((1, 3), (1, 2, 5), (0, 1, 63, 200)), (0, 1, 3), (2, 0, 5)]
WHOLE, ROWS = ("attention", "1"), ("attention", "0")
HEAD = """<ir_version: 10, opset_import: ["": 18]>
step (float[%(b)s, 4, s, 8] q, %(inputs)s) => (float[%(b)s, 4, s, 8] y, %(outputs)s)
<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3}, int64[1] second = {1},
int64[1] third = {2}, int64[1] four = {4}, int64[1] eight = {8}, int64[1] pair = {2},
int64[1] first = {0}, int64[4] by_two = {0, 0, 1, 1}, int64[4] in_turn = {0, 1, 0, 1},
int64[4] odd = {0, 1, 1, 1}, int64[4] doubled = {1, 2, 1, 1}, int64[5] wide = {1, 1, 2, 1, 1},
int64[4] all_wide = {1, 4, 1, 1}, float scale = {0.35}, float half = {0.5}, float none = {0},
float low = {-1e30}, int64 window = {7}> {
    %(present)s
    sizes = Shape (q) b1 = Gather (sizes, first) s0 = Gather (sizes, two)
    past_sizes = Shape (past_k) p0 = Gather (past_sizes, %(place)s)
    t0 = Add (p0, s0) t1 = Unsqueeze (t0, first)
    rows = Range (p0, t0, one) q_at = Unsqueeze (rows, second)
    columns = Range (zero, t0, one) k_at = Unsqueeze (columns, first)
    after = Greater (k_at, q_at) distance = Sub (q_at, k_at)
    far = GreaterOrEqual (distance, window) beside = Or (after, far)
    %(mask)s
    bias = Where (hidden, low, none)
    %(keys)s
    raw = MatMul (queries, keys) scores = Mul (raw, scale) biased = Add (scores, bias)
    weights = Softmax <axis = -1> (biased) found = MatMul (weights, values)
    %(end)s
}"""
CACHE = "float[{b}, {g}, p, 8] past_k, float[{b}, {g}, p, 8] past_v, "
CACHE += "float[{b}, {g}, s, 8] k, float[{b}, {g}, s, 8] v"
OUT = "float[{b}, {g}, t, 8] present_k, float[{b}, {g}, t, 8] present_v"
APPEND = "present_k = Concat <axis = 2> (past_k, k) present_v = Concat <axis = 2> (past_v, v)"
USUAL = {"b": "b", "g": "2", "place": "two", "present": APPEND, "end": "y = Identity (found)"}
USUAL |= {"inputs": CACHE, "outputs": OUT, "mask": "hidden = Identity (beside)"}
TURN = "keys = Transpose <perm = [0, 1, 3, 2]> (each_k) queries = Identity (q)"


def _each(text: str) -> str:
    """A step for keys, and for values."""
    return " ".join(text.replace("#", x) for x in "kv") + " values = Identity (each_v) "


def _expanded(heads: str) -> str:
    return _each(
        f"#_shape = Concat <axis = 0> (b1, {heads}, t1, eight) "
        "#_apart = Unsqueeze (present_#, third) "
        "#_wide = Expand (#_apart, #_shape) #_four = Concat <axis = 0> (b1, four, t1, eight) "
        "each_# = Reshape (#_wide, #_four)"
    )


CASES: dict[str, tuple[dict[str, str], tuple[str, str, str | None]]] = {
    "each head": (
        {"g": "4", "keys": _each("each_# = Identity (present_#)") + TURN},
        (*WHOLE, None),
    ),
    "expanded": ({"keys": _expanded("pair, pair") + TURN}, (*WHOLE, "2")),
    "one head expanded": ({"g": "1", "keys": _expanded("second, four") + TURN}, (*WHOLE, "4")),
    "one head widened": (
        {"g": "1", "keys": _each("each_# = Tile (present_#, all_wide)") + TURN},
        (*WHOLE, "4"),
    ),
    "side by side": (
        {
            "keys": _each(
                "#_apart = Unsqueeze (present_#, third) #_wide = Tile (#_apart, wide) "
                "#_four = Concat <axis = 0> (b1, four, t1, eight) each_# = Reshape (#_wide, #_four)"
            )
            + TURN
        },
        (*WHOLE, "2"),
    ),
    "in turn": ({"keys": _each("each_# = Tile (present_#, doubled)") + TURN}, (*WHOLE, None)),
    "looked up": (
        {"keys": _each("each_# = Gather <axis = 1> (present_#, by_two)") + TURN},
        (*WHOLE, "2"),
    ),
    "looked up in turn": (
        {"keys": _each("each_# = Gather <axis = 1> (present_#, in_turn)") + TURN},
        (*WHOLE, None),
    ),
    "looked up in no order": (
        {"keys": _each("each_# = Gather <axis = 1> (present_#, odd)") + TURN},
        (*WHOLE, None),
    ),
    "keys by two, values in turn": (
        {
            "keys": "each_k = Gather <axis = 1> (present_k, by_two) "
            "each_v = Gather <axis = 1> (present_v, in_turn) values = Identity (each_v) " + TURN
        },
        (*WHOLE, None),
    ),
    "scaled keys": (
        {
            "keys": _expanded("pair, pair")
            + "turned = Transpose <perm = [0, 1, 3, 2]> (each_k) "
            + "keys = Mul (turned, half) queries = Mul (q, half)"
        },
        (*WHOLE, "2"),
    ),
    "a batch of one": (
        {"b": "1", "keys": _expanded("pair, pair") + TURN},
        (*WHOLE, "2"),
    ),
    "rows in their order": (
        {
            "inputs": "float[b, p, 2, 8] past_k, float[b, p, 2, 8] past_v, "
            "float[b, s, 2, 8] k, float[b, s, 2, 8] v",
            "outputs": "float[b, t, 2, 8] present_k, float[b, t, 2, 8] present_v",
            "present": APPEND.replace("axis = 2", "axis = 1"),
            "place": "one",
            "keys": _each(
                "#_heads = Transpose <perm = [0, 2, 1, 3]> (present_#) "
                "#_shape = Concat <axis = 0> (b1, pair, pair, t1, eight) "
                "#_apart = Unsqueeze (#_heads, third) #_wide = Expand (#_apart, #_shape) "
                "#_four = Concat <axis = 0> (b1, four, t1, eight) each_# = Reshape (#_wide, #_four)"
            )
            + TURN,
        },
        (*ROWS, "2"),
    ),
    "turned keys": (
        {
            "inputs": "float[b, 2, 8, p] past_k, float[b, 2, p, 8] past_v, "
            "float[b, 2, 8, s] k, float[b, 2, s, 8] v",
            "outputs": "float[b, 2, 8, t] present_k, float[b, 2, t, 8] present_v",
            "present": APPEND.replace("axis = 2", "axis = 3", 1),
            "place": "three",
            "keys": "keys = Gather <axis = 1> (present_k, by_two) queries = Identity (q) "
            "values = Gather <axis = 1> (present_v, by_two)",
        },
        (*ROWS, "2"),
    ),
    "turned cache": (
        {
            "inputs": "float[b, 2, 8, p] past_k, float[b, 2, p, 8] past_v, "
            "float[b, 2, 8, s] k, float[b, 2, s, 8] v",
            "outputs": "float[b, 2, 8, t] present_k, float[b, 2, t, 8] present_v",
            "present": APPEND.replace("axis = 2", "axis = 3", 1),
            "place": "three",
            "keys": "lie_k = Transpose <perm = [0, 1, 3, 2]> (present_k) "
            "each_k = Gather <axis = 1> (lie_k, by_two) "
            "values = Gather <axis = 1> (present_v, by_two) " + TURN,
        },
        (*WHOLE, "2"),
    ),
    "groups apart": (
        {
            "keys": "s1 = Unsqueeze (s0, first) "
            "q_shape = Concat <axis = 0> (b1, pair, pair, s1, eight) "
            "queries = Reshape <allowzero = 1> (q, q_shape) "
            "k_apart = Unsqueeze (present_k, third) values = Unsqueeze (present_v, third) "
            "keys = Transpose <perm = [0, 1, 2, 4, 3]> (k_apart)",
            "end": "y = Reshape <allowzero = 1> (found, sizes)",
        },
        (*WHOLE, "2"),
    ),
}


def model(case: str, **other: str) -> onnx.ModelProto:
    """A step of a decoder with a cache."""
    words = USUAL | CASES[case][0] | other
    words |= {n: words[n].format(**words) for n in ("inputs", "outputs")}
    proto = onnx.parser.parse_model(HEAD % words)
    onnx.checker.check_model(proto)
    return proto


def check(
    proto: onnx.ModelProto, target: Target | None = None, padding: str | None = None
) -> Lowered:
    """Lower, and compare with ONNX Runtime."""
    options = LowerOptions(target=target, padding=padding, check=True)
    lowered = run_passes(ir.serde.deserialize_model(proto), options)
    found = ir.serde.serialize_model(lowered.model)
    onnx.checker.check_model(found)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s, p in SIZES:
        known = {"b": b, "s": s, "p": p, "p + s": p + s}
        shapes = {
            x.name: [known.get(d.dim_param, d.dim_value) for d in x.type.tensor_type.shape.dim]
            for x in proto.graph.input
        }
        if b > 1 and shapes["q"][0] == 1:
            continue
        rng = np.random.default_rng(p)
        feed: dict[str, np.ndarray] = {
            n: rng.standard_normal(shape, np.float32) for n, shape in shapes.items()
        }
        if "mask" in feed:  # each query sees its own key
            feed["mask"] = (rng.random((b, p + s)) < 0.6) | (np.arange(p + s) >= p)
        for got, want in zip(run_lowered(found, feed), session.run(None, feed), strict=True):
            np.testing.assert_allclose(
                got, np.asarray(want), rtol=1e-4, atol=1e-5, err_msg=str(known)
            )
    return lowered


@pytest.fixture(name="all_pays")
def _all_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0, least_extent=1))


@pytest.mark.usefixtures("all_pays")
@pytest.mark.parametrize("case", CASES)
def test_keys_are_read_where_they_are_stored(case: str) -> None:
    lowered = check(model(case))
    found = [p for p in plans(lowered) if p["op"] == "attention"]
    assert [(p["op"], p["whole"], p.get("group")) for p in found] == [CASES[case][1]]
    names = {x.name for n in lowered.model.graph for x in n.inputs if x is not None}
    (node,) = [n for n in lowered.model.graph if n.name and n.name.endswith("[packed attention]")]
    if found[0].get("group") and case != "turned keys":
        assert not [n for n in lowered.model.graph if n.op_type in ("Expand", "Tile")]
        assert {"present_k", "present_v"} <= names
    if found[0]["whole"] == "1" and found[0].get("group") and case != "turned cache":
        assert [x.name for x in node.inputs[1:3] if x] == ["present_k", "present_v"]


MASKED = {
    "inputs": f"{CACHE}, bool[b, t] mask",
    "mask": "pads = Not (mask) of_heads = Unsqueeze (pads, second) "
    "wide_pads = Unsqueeze (of_heads, second) hidden = Or (beside, wide_pads)",
}


def masked(case: str) -> onnx.ModelProto:
    """The same under a mask of padding."""
    words = dict(MASKED)
    if case == "groups apart":  # scores have five dimensions
        words["mask"] = "pads = Not (mask) of_heads = Unsqueeze (pads, second) " + (
            "of_groups = Unsqueeze (of_heads, second) wide_pads = Unsqueeze (of_groups, second) "
            "hidden = Or (beside, wide_pads)"
        )
    proto = model(case, **words)
    (mask,) = [x for x in proto.graph.input if x.name == "mask"]
    mask.type.tensor_type.shape.dim[1].dim_param = "p + s"
    return proto


@pytest.mark.usefixtures("all_pays")
@pytest.mark.parametrize("padding", [None, "mask"])
@pytest.mark.parametrize("case", ["each head", "expanded", "one head expanded", "groups apart"])
def test_live_keys_of_a_cache_have_gaps(case: str, padding: str | None) -> None:
    """Under a mask of padding, too, one head is read for all that share it, and none is moved."""
    proto = masked(case)
    lowered = check(proto, padding=padding)
    found = [p for p in plans(lowered) if p["op"] == "attention"]
    wanted = CASES[case][1]
    assert [(p["op"], p["whole"], p.get("group")) for p in found] == [wanted]
    assert found[0]["pairs"] == "1"
    assert not [p for p in plans(lowered) if p["op"] == "pack" and p["dims"].count("r") > 1]


@pytest.mark.parametrize(("heads", "groups"), [(8, 4), (8, 2), (8, 1)])
def test_a_step_pays(heads: int, groups: int) -> None:
    """With the prices of a machine, as no element of the cache is moved."""
    config = StepConfig(16, heads, groups, 8)
    proto = attention_step(config)
    lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions())
    found = ir.serde.serialize_model(lowered.model)
    (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
    group = None if heads == groups else str(heads // groups)
    assert (plan["whole"], plan["pairs"], plan.get("group")) == ("1", "1", group)
    assert not [n for n in lowered.model.graph if n.op_type in ("Expand", "Softmax", "MatMul")]
    longer = [n for n in lowered.model.graph if "present" in str(n.outputs[0].name)]
    assert [n.op_type for n in longer] == ["Concat"] * 2
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s, p in SIZES:
        feeds = draw_step(config, np.random.default_rng(p), b, s, p)
        for got, want in zip(run_lowered(found, feeds), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)


JOINT = """<ir_version: 10, opset_import: ["": 18]>
layer (float[b, s, 16] x, bool[b, s] mask) => (float[b, s, 4, 8] y)
<int64 zero = {0}, int64 one = {1}, int64[1] second = {1}, int64[1] third = {2},
int64[4] q_split = {0, 0, 4, 8}, int64[4] k_split = {0, 0, 2, 8}, int64[3] parts = {32, 16, 16},
int64[1] pair = {2}, int64[1] four = {4}, int64[1] eight = {8}, int64[1] first = {0},
float scale = {0.35}, float none = {0}, float low = {-1e30}> {
    joint = MatMul (x, w) q0, k0, v0 = Split <axis = 2> (joint, parts)
    q4 = Reshape (q0, q_split) k4 = Reshape (k0, k_split) v4 = Reshape (v0, k_split)
    q = Transpose <perm = [0, 2, 1, 3]> (q4) k = Transpose <perm = [0, 2, 1, 3]> (k4)
    v = Transpose <perm = [0, 2, 1, 3]> (v4)
    sizes = Shape (x) b1 = Gather (sizes, first) s1 = Gather (sizes, second)
    wide = Concat <axis = 0> (b1, pair, pair, s1, eight)
    joined = Concat <axis = 0> (b1, four, s1, eight)
    k_apart = Unsqueeze (k, third) k_wide = Expand (k_apart, wide) keys = Reshape (k_wide, joined)
    v_apart = Unsqueeze (v, third) v_wide = Expand (v_apart, wide)
    values = Reshape (v_wide, joined) turned = Transpose <perm = [0, 1, 3, 2]> (keys)
    m1 = Unsqueeze (mask, second) m2 = Unsqueeze (m1, second) bias = Where (m2, none, low)
    raw = MatMul (q, turned) scores = Mul (raw, scale) biased = Add (scores, bias)
    weights = Softmax <axis = -1> (biased) found = MatMul (weights, values)
    y = Transpose <perm = [0, 2, 1, 3]> (found)
}"""


@pytest.mark.usefixtures("all_pays")
def test_heads_of_a_joint_projection_are_shared() -> None:
    """Packed rows hold four heads of queries, then two of keys and two of values."""
    proto = onnx.parser.parse_model(JOINT)
    rng = np.random.default_rng(4)
    w = rng.normal(0, 0.25, (16, 64)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    lowered = run_passes(
        ir.serde.deserialize_model(proto), LowerOptions(padding="mask", check=True)
    )
    (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
    wanted = {"q_head": "0", "k_head": "4", "v_head": "6", "group": "2", "whole": "0"}
    assert {name: plan[name] for name in wanted} == wanted
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s in ((1, 1), (3, 7), (2, 40)):
        feed = {"x": rng.standard_normal((b, s, 16), np.float32)}
        live = (rng.random((b, s)) < 0.6) | (np.arange(s) == 0)
        (got,) = run_lowered(ir.serde.serialize_model(lowered.model), feed | {"mask": live})
        (want,) = session.run(None, feed | {"mask": live})
        np.testing.assert_allclose(got[live], np.asarray(want)[live], rtol=1e-4, atol=1e-5)


def test_gpus_repeat_heads() -> None:
    """Their kernel reads rows, of as many heads of keys as of queries."""
    proto = onnx.parser.parse_model(JOINT)
    w = np.ones((16, 64), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    options = LowerOptions(target=replace(CUDA, flops_per_byte=0, least_extent=1), padding="mask")
    lowered = run_passes(ir.serde.deserialize_model(proto), options)
    (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
    assert (plan["whole"], plan.get("group")) == ("0", None)

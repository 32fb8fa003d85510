"""Models that few people write and ONNX allows: they compile, and answer as ONNX Runtime does."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper, parser

import pitc
from pitc.errors import UsageError
from pitc.session import plain_session, run_session
from tests.lower_support import lower

MASK = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])


def weights(**arrays: Any) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]


def overridable() -> onnx.ModelProto:
    """A block whose second matrix and scale a caller may give."""
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
    g (float[B,S,64] x, float[320,64] w2, float scale) => (float[B,S,64] y) {
      h = MatMul (x, w1) r = Relu (h) p = MatMul (r, w2) y = Mul (p, scale) }""")
    rng = np.random.default_rng(0)
    w1, w2 = (rng.normal(size=s).astype(np.float32) for s in ((64, 320), (320, 64)))
    proto.graph.initializer.extend(weights(w1=w1, w2=w2, scale=np.float32(2)))
    return proto


@pytest.mark.parametrize("given", [[], ["scale"], ["w2"], ["w2", "scale"]])
def test_a_caller_may_give_initializers_or_leave_them_out(given):
    proto = overridable()
    rng = np.random.default_rng(1)
    feeds = {"x": rng.normal(size=(2, 4, 64)).astype(np.float32)}
    more = {"scale": np.float32(-3), "w2": rng.normal(size=(320, 64)).astype(np.float32)}
    feeds |= {name: np.asarray(more[name]) for name in given}
    want = plain_session(proto.SerializeToString()).run(None, feeds)[0]
    got = pitc.compile(proto).run(feeds)["y"]
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


def test_what_is_given_for_an_initializer_must_fit():
    session = plain_session(overridable().SerializeToString())
    x = np.zeros((2, 4, 64), np.float32)
    with pytest.raises(UsageError, match="'scale': expected float32, got float64"):
        run_session(session, {"x": x, "scale": np.float64(1)})
    with pytest.raises(UsageError, match="'w1' is not of the model"):
        run_session(session, {"x": x, "w1": x})
    with pytest.raises(UsageError, match="inputs are missing: x"):
        run_session(session, {"scale": np.float32(1)})


SUM = "u = ReduceSum <keepdims=0> (h, last)"
OUTPUTS = {
    "strings": (TensorProto.STRING, "t = Gather (labels, best)"),
    "numbers": (TensorProto.INT64, "t = Identity (best)"),
    "float8": (TensorProto.FLOAT8E4M3FN, f"{SUM} t = Cast <to=17> (u)"),
    "float8e5m2": (TensorProto.FLOAT8E5M2, f"{SUM} t = Cast <to=19> (u)"),
    "bfloat16": (TensorProto.BFLOAT16, f"{SUM} t = Cast <to=16> (u)"),
    "float16": (TensorProto.FLOAT16, f"{SUM} t = Cast <to=10> (u)"),
    "int4": (TensorProto.INT4, f"{SUM} v = Clip (u, one, seven) t = Cast <to=22> (v)"),
}
NO_ZERO = ("strings", "float8", "float8e5m2", "int4")


def tokens(kind: str) -> onnx.ModelProto:
    """Labels of tokens, and something of another type."""
    dtype, nodes = OUTPUTS[kind]
    proto = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[B,S,64] x, int64[B,S] mask) => (float[B,S,64] h, int64[B,S] t) {{
      a = MatMul (x, w) r = Relu (a) h = MatMul (r, w2)
      best = ArgMax <axis=-1,keepdims=0> (h) {nodes} }}""")
    proto.graph.output[1].type.tensor_type.elem_type = dtype
    rng = np.random.default_rng(0)
    w, w2 = (rng.normal(size=s).astype(np.float32) for s in ((64, 320), (320, 64)))
    made = weights(w=w, w2=w2, last=np.array([-1]), one=np.float32(1), seven=np.float32(7))
    labels = numpy_helper.from_array(np.array([f"l{i}" for i in range(64)], object), "labels")
    proto.graph.initializer.extend([*made, labels])
    return proto


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_without_a_zero_are_not_given_up(kind):
    lowered = lower(tokens(kind), "mask")
    onnx.checker.check_model(ir.to_proto(lowered.model))
    before = lowered.model.graph.outputs[1].producer()
    while before is not None and before.op_type == "Cast":
        (operand,) = before.inputs
        before = None if operand is None else operand.producer()
    zeroed = before is not None and before.op_type in ("Where", "EPContext")
    assert zeroed == (kind not in NO_ZERO)


def test_labels_of_padded_tokens_are_those_of_the_model():
    proto = tokens("strings")
    x = np.random.default_rng(1).normal(size=(2, 4, 64)).astype(np.float32)
    feeds = {"x": x, "mask": MASK}
    want = plain_session(proto.SerializeToString()).run(None, feeds)
    got = pitc.compile(proto, padding="mask").run(feeds)
    np.testing.assert_array_equal(got["t"], want[1])
    live = MASK > 0
    np.testing.assert_allclose(got["h"][live], want[0][live], rtol=1e-4, atol=1e-4)
    assert not got["h"][~live].any()


def test_padding_of_an_old_model_is_refused():
    proto = parser.parse_model("""<ir_version: 4, opset_import: ["" : 6]>
    g (float[B,S] x, float[B,S] mask) => (float[B,S] y) { h = Relu (x) y = Mul (h, mask) }""")
    with pytest.raises(UsageError, match="padding needs operator set 9 or newer"):
        lower(proto, "mask")
    onnx.checker.check_model(ir.to_proto(lower(proto).model))


RANKS = {
    "standard": """t = InstanceNormalization (h, scale, scale)""",
    "attention": """t = com.microsoft.Attention <num_heads=4> (h, line)""",
    "embedding": """t, u = com.microsoft.EmbedLayerNormalization (ids, ids, scale)""",
}


@pytest.mark.parametrize("case", RANKS)
def test_operands_of_other_ranks_have_no_rule(case):
    """What the operator does then is its own affair; the compiler says that it does not know."""
    proto = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[B,S,64] x, int64[B,S] mask) => (float[B,S,64] y) {{
      m = Cast <to=1> (mask) u = Unsqueeze (m, last) h = Mul (x, u) ids = Cast <to=6> (mask)
      {RANKS[case]} z = ReduceSum <keepdims=0> (t) y = Add (h, z) }}""".replace("t, u", "t, v")
    )
    line = np.ones(64, np.float32)
    made = weights(last=np.array([2]), scale=np.float32(1), line=line)
    proto.graph.initializer.extend(made)
    for padding in (None, "mask"):
        graph = lower(proto, padding).model.graph
        assert any(n.op_type in RANKS[case] for n in graph)

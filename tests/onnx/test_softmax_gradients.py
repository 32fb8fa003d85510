"""Which steps are the gradient of a softmax, by what they compute."""

import onnx.parser
import pytest

from pitc.passes.regions.softmax_grad import gradients_of, softmax_gradient
from tests.fact_check import analysed

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[b, 4, 6] s, float[b, 4, 6] t, float[b, 4, 3] g, float[b, 3, 6] v) => (float[b, 4, 6] w)
<int64[1] last = {-1}, int64[1] first = {1}, float two = {2}>
{
    p = Softmax <axis = -1> (s) q = Softmax <axis = -1> (t) d = MatMul (g, v)
    m = Mul (d, p) total = ReduceSum <keepdims = 1> (m, last)
    BODY
}
"""


def found(body: str) -> tuple[str, str, float] | None:
    graph = analysed(onnx.parser.parse_model(MODEL.replace("BODY", body)))[0]
    gradient = softmax_gradient(graph, "w", 2)
    named = [x for x in gradients_of(graph, "p", 2) if x.weights == "p"]
    assert (gradient is not None and gradient.weights == "p") <= bool(named)
    return None if gradient is None else (gradient.weights, gradient.by_weights, gradient.scale)


@pytest.mark.parametrize(
    ("body", "scale"),
    [
        ("n = Mul (p, total) w = Sub (m, n)", 1),
        ("n = Sub (d, total) w = Mul (n, p)", 1),
        ("n = Sub (total, d) o = Mul (n, p) w = Neg (o)", 1),
        ("n = Sub (d, total) o = Mul (n, p) w = Div (o, two)", 0.5),
        ("n = Mul (p, total) o = Neg (n) u = Add (o, m) w = Mul (two, u)", 2),
        ("m2 = Mul (m, two) s2 = ReduceSum (m2, last) n = Mul (p, s2) w = Sub (m2, n)", 2),
    ],
)
def test_gradients_in_any_order(body: str, scale: float) -> None:
    assert found(body) == ("p", "d", scale)


@pytest.mark.parametrize(
    "body",
    [
        "n = Mul (p, total) w = Add (m, n)",
        "n = Mul (q, total) w = Sub (m, n)",
        "n = Mul (p, total) o = Mul (n, two) w = Sub (m, o)",
        "o = ReduceSum (d, last) n = Mul (p, o) w = Sub (m, n)",
        "o = ReduceSum (m, first) n = Mul (p, o) w = Sub (m, n)",
        "o = ReduceMean (m, last) n = Mul (p, o) w = Sub (m, n)",
        "o = ReduceSumSquare (m, last) n = Mul (p, o) w = Sub (m, n)",
        "n = Mul (p, total) o = Sub (m, n) w = Div (o, total)",
        "n = Mul (s, total) u = Mul (d, s) w = Sub (u, n)",
        "w = Mul (p, total)",
    ],
    ids=["sum", "others", "twice", "no weight", "axis", "mean", "squares", "divided", "s", "half"],
)
def test_what_is_none(body: str) -> None:
    assert found(body) is None

"""Padding crosses lists of places (NonZero, Gather, Scatter) whose rows are of one entry each."""

import numpy as np
import onnx
import onnx.reference
import pytest

from tests.fact_check import analysed, dead, probed
from tests.fact_feeds import random_feeds

MASK = "m[d0] == 0"
# which tokens an expert takes, at most one entry each; or the first or second choice, or both
ONE = "s = MatMul (x, router) c = Gather <axis = 1> (s, first) p = Greater (c, nought)"
TWO = "s = MatMul (x, router) p = Greater (s, nought)"
PLACES = "n = NonZero (p) v = Transpose (n) i = Squeeze (v, one)"
PAIRS = "n = NonZero (p) v = Transpose (n) i, j = Split <num_outputs = 2, axis = 1> (v)"
ROWS = "r = Gather (x, i) u = MatMul (r, w)"
ADDED = "y = ScatterND <reduction = 'add'> (z, v, u)".replace("'", '"')
FLAT = "a = Squeeze (i, one) b = Squeeze (j, one)"
GATED = (
    f"{FLAT} t = Gather (x, a) h = MatMul (t, w) f = Reshape (s, all) k = Mul (a, pair)"
    " q = Add (k, b) g = Gather (f, q) e = Unsqueeze (g, one) u = Mul (h, e)"
)
EACH = "e1 = Shape (u) d = Expand (i, e1)"
BY_ELEMENT = '{} y = ScatterElements <axis = 0, reduction = "add"> (z, d, u)'
INDEX_ADD = (  # as torch writes it
    "o0 = Shape (x) z0 = Slice (z, none, one1, none) o1 = Shape (z0) u1 = Expand (u, o1)"
    ' o2 = Shape (u1) d = Expand (i, o2) y = ScatterElements <reduction = "add"> (z, d, u1)'
)

ANY = "a0 = Cast <to = 6> (p) a1 = ReduceMax <keepdims = 0> (a0) e = Cast <to = 9> (a1)"
ELSE = "y1 = Identity (z)"
TURNED = "p = Transpose"

FOLLOWED = {
    f"{ONE} {PLACES} {ROWS} {ADDED}",
    f"{ONE} {PLACES} {ROWS} {ADDED.replace('add', 'max')}",
    f"{ONE} {PLACES} {ROWS} y = ScatterND (z, v, u)",
    f"{ONE} {PLACES} {ROWS} l = Softmax <axis = 1> (u) {ADDED.replace(', u)', ', l)')}",
    f"{ONE} {PLACES} r = GatherND (x, v) u = MatMul (r, w) {ADDED}",
    # several entries of one token, the gate of each by its place in a flat table
    f"{TWO} {PAIRS} {GATED} {ADDED.replace('v, u', 'i, u')}",
    f"{TWO} {PAIRS} {FLAT} r = Gather (x, a) u = MatMul (r, w) y = ScatterND (z, i, u)",
    f"{TWO} {PAIRS} {GATED} {BY_ELEMENT.format(EACH)}",
    f"{TWO} {PAIRS} {GATED} {INDEX_ADD}",
    f"{TWO} {PAIRS} {FLAT} r = Gather (x, a) h = MatMul (r, w) g = GatherND (s, v)"
    f" e = Unsqueeze (g, one) u = Mul (h, e) {ADDED.replace('v, u', 'i, u')}",
    # choices before tokens
    f"{TWO.replace('p =', 'p0 =')} {TURNED} (p0) {PAIRS} b = Squeeze (j, one)"
    f" r = Gather (x, b) u = MatMul (r, w) {ADDED.replace('v, u', 'j, u')}",
}

LOST = {
    # of another list
    f"{ONE} {PLACES} {ROWS} p1 = Less (c, nought) n1 = NonZero (p1) v1 = Transpose (n1)"
    f" {ADDED.replace('v, u', 'v1, u')}",
    # how many entries there are, as a number and as a result
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} k = Shape <end = 1> (i) k1 = Cast <to = 1> (k)"
    f" u = Mul (u0, k1) {ADDED}",
    f"{ONE} {PLACES} {ROWS} {ADDED} o = Shape (i)",
    f"{ONE} {PLACES} {ROWS} {ADDED} o = Identity (i)",
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} k = Shape <end = 1> (i) k0 = Expand (k, k)"
    f" k1 = Cast <to = 1> (k0) k2 = Unsqueeze (k1, one) u = Add (u0, k2) {ADDED}",
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} k = Shape <end = 1> (i) k0 = Squeeze (k)"
    f" k1 = Gather <axis = 1> (u0, k0) k2 = Unsqueeze (k1, one) u = Add (u0, k2) {ADDED}",
    # at what position an entry is
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} k = Shape <end = 1> (i) k0 = Squeeze (k)"
    f" k1 = Range (nil, k0, step) k2 = Cast <to = 1> (k1) k3 = Unsqueeze (k2, one)"
    f" u = Add (u0, k3) {ADDED}",
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} u = Slice (u0, last, least, none, back) {ADDED}",
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} u = CumSum (u0, nil) {ADDED}",
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} u = Transpose (u0) {ADDED}",
    # all rows at once
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} k = ReduceMax (u0, none) u = Sub (u0, k)"
    f" {ADDED}",
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} u = Softmax <axis = 0> (u0) {ADDED}",
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} k = Transpose (u0) g = MatMul (u0, k)"
    f" l = ReduceSum (g, one) u = Add (u0, l) {ADDED}",
    # other places than those of the list: one less, of a product
    f"{ONE} {PLACES} {ROWS} v1 = Sub (v, step) {ADDED.replace('v, u', 'v1, u')}",
    f"{ONE} {PLACES} {ROWS} v1 = Mul (v, nil) {ADDED.replace('v, u', 'v1, u')}",
    f"{ONE} {PLACES} {ROWS} v1 = ArgMax <axis = 1> (u) {ADDED.replace('v, u', 'v1, u')}",
    # along another axis, where the position is the place
    f"{ONE} {PLACES} {ROWS} i0 = Mul (v, nil) {EACH.replace('(i', '(i0')}"
    ' y = ScatterElements <axis = 1, reduction = "add"> (z, d, u)',
    # what is written to knows the list
    f"{ONE} {PLACES} {ROWS} k = Shape <end = 1> (i) k1 = Cast <to = 1> (k)"
    f" z1 = Add (z, k1) {ADDED.replace('(z', '(z1')}",
    # a row that may be NaN
    f"{ONE} {PLACES} {ROWS.replace('u =', 'u0 =')} u = Log (u0) {ADDED}",
    # a table with fewer places than there are tokens
    f"{ONE} {PLACES} r = Gather (router, i) u = MatMul (r, v0) {ADDED}",
}


def model(body: str) -> onnx.ModelProto:
    """Tokens x, their padding mask m; y, where the tokens are put that the list names."""
    second = ", int64[q] o" if " o = " in body else ""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[t, 4] x, int64[t] m) => (float[t, 4] y{second})
        <float nought = {{0}}, int64 first = {{0}}, int64[1] one = {{1}}, int64[1] one1 = {{1}},
         int64[1] all = {{-1}}, int64 pair = {{2}}, int64[1] none = {{0}}, int64 nil = {{0}},
         int64 step = {{1}}, int64[1] last = {{-1}}, int64[1] least = {{-9223372036854775808}},
         int64[1] back = {{-1}}>
        {{ z = Mul (x, nought) {body} }}""")
    rng = np.random.default_rng(1)
    for name, shape in {"router": (4, 2), "w": (4, 4), "v0": (2, 4)}.items():
        numbers = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    return proto


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", sorted(FOLLOWED))
def test_who_is_on_the_list_matters_where_its_rows_go(body: str) -> None:
    proto = model(body)
    graph, given_up = analysed(proto, "m", ["y"])
    assert dead(graph, "p") == {"m[d1] == 0" if TURNED in body else MASK}
    assert MASK in dead(graph, "s")
    assert dead(graph, "x") == {MASK}
    result = probed(proto, graph, given_up, "m", random_feeds(graph, "m"))
    assert result.failures == []
    assert result.feeds


@pytest.mark.parametrize("body", sorted(LOST))
def test_other_questions_to_a_list_are_not_followed(body: str) -> None:
    graph, _ = analysed(model(body), "m", ["y"])
    assert not dead(graph, "p")
    assert not graph.lists.sinks


def test_a_list_of_a_branch_is_not_followed() -> None:
    body = f"{PLACES} {ROWS} y0 = ScatterND (z, v, u)"
    branches = f"then_branch = a () => (y0) {{ {body} }}, else_branch = b () => (y1) {{ {ELSE} }}"
    graph, _ = analysed(model(f"{ONE} {ANY} y = If (e) <{branches}>"), "m", ["y"])
    assert not graph.lists.sinks


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("seed", range(3))
def test_live_rows_do_not_see_padded_ones(reduction: str, seed: int) -> None:
    """What the rule says, of the operators themselves in double precision: other padded tokens,
    which join and leave the list, change padded rows only.
    """
    rng = np.random.default_rng(seed)
    live = rng.random(9) < 0.5
    x, w, router = rng.normal(size=(9, 4)), rng.normal(size=(4, 4)), rng.normal(size=(4, 2))
    other = np.where(live[:, None], x, rng.normal(size=x.shape))
    y, changed = (_scattered(t, w, router, reduction) for t in (x, other))
    assert (y[live] == changed[live]).all()
    assert not (y[~live] == changed[~live]).all()


def _scattered(x: np.ndarray, w: np.ndarray, router: np.ndarray, reduction: str) -> np.ndarray:
    take = x @ router > 0
    tokens, choices = take.nonzero()
    update = np.einsum("nk,kf->nf", x[tokens], w) * (x @ router)[tokens, choices, None]
    node = onnx.helper.make_node("ScatterND", ["z", "i", "u"], ["y"], reduction=reduction)
    shapes = {"z": x.shape, "i": (len(tokens), 1), "u": update.shape}
    types = {"z": onnx.TensorProto.DOUBLE, "i": onnx.TensorProto.INT64}
    values = [
        onnx.helper.make_tensor_value_info(n, types.get(n, onnx.TensorProto.DOUBLE), s)
        for n, s in shapes.items()
    ]
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, x.shape)
    proto = onnx.helper.make_graph([node], "g", values, [out])
    made = onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", 18)])
    run = onnx.reference.ReferenceEvaluator(made)
    (y,) = run.run(None, {"z": np.ones_like(x), "i": tokens[:, None], "u": update})
    return np.asarray(y)

"""Values that bodies of Loop, Scan and If read: nobody takes them in, and no name is hidden."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from pitc.passes.control.scopes import distinct_names
from pitc.passes.normalise import normalise
from tests.lower_support import check, lower

K, H = 64, 320
Wrap = Callable[[str], str]

# values of the main graph that a body may read, with their width
VALUES = {
    "product": "h",
    "biased": "hb",
    "activated": "r",
    "gelu inside": "e",
    "gelu": "ge",
    "second product": "p",
    "residual": "res",
    "input": "x",
    "mask": "wide",
}
# y_k = f(s): a body whose state is f32 [b, s, 1] and that reads one value more
READ = "m = ReduceMean <axes=[-1], keepdims=1> (VALUE) t = Add (s, m)"


def loop(reads: str, name: str = "l") -> str:
    """`out = Loop` of 9 trips over state `start`, whose body runs `reads`."""
    return f"""{name}_out = Loop (trips, yes, start) <body = {name}
      (int64 {name}_i, bool {name}_c, float[B,S,1] s) => (bool {name}_go, float[B,S,1] t) {{
        {name}_go = Identity ({name}_c) {reads} }}>"""


def scan(reads: str, name: str = "s") -> str:
    """The same as Scan over as many slices as there are."""
    return f"""{name}_out, {name}_lines = Scan <num_scan_inputs = 1, body = {name}
      (float[B,S,1] s, float[1] {name}_slice) => (float[B,S,1] t, float[1] {name}_line) {{
        {name}_line = Neg ({name}_slice) {reads} }}> (start, slices)"""


def branch(reads: str, name: str = "b") -> str:
    """The same once, if a flag is set."""
    reads = reads.replace("(s, ", "(start, ").replace("(s)", "(start)")
    return f"""{name}_out = If (flag) <
      then_branch = {name}_then () => (float[B,S,1] t) {{ {reads} }},
      else_branch = {name}_else () => (float[B,S,1] {name}_e) {{ {name}_e = Neg (start) }}>"""


def nested(reads: str, name: str = "n") -> str:
    """A loop in a branch of a loop."""
    inner = loop(reads, f"{name}_inner").replace("start", "s0")
    inside = f"""m0 = If (flag) <
      then_branch = {name}_then () => (float[B,S,1] {name}_t) {{
        {inner} {name}_t = Identity ({name}_inner_out) }},
      else_branch = {name}_else () => (float[B,S,1] {name}_e) {{ {name}_e = Neg (s0) }}>
      t0 = Add (s0, m0)"""
    return f"""{name}_out = Loop (trips, yes, start) <body = {name}
      (int64 {name}_i, bool {name}_c, float[B,S,1] s0) => (bool {name}_go, float[B,S,1] t0) {{
        {name}_go = Identity ({name}_c) {inside} }}>"""


BODIES = {"loop": loop, "scan": scan, "if": branch, "nested": nested}
PLACES = [("loop", None), ("loop", "mask"), ("scan", "mask"), ("if", None), ("nested", "mask")]


def feed_forward(value: str, wrap: Wrap, reads: str = READ) -> onnx.ModelProto:
    """GELU and ReLU blocks with a residual; a body reads one of their values."""
    body = wrap(reads.replace("VALUE", value))
    name = body.split("_out", 1)[0].split()[-1]
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[B,S,{K}] x, int64[B,S] mask, bool flag) => (float[B,S,{K}] y, float[B,S,1] z) {{
      mask3 = Unsqueeze (mask, two) wide = Cast <to=1> (mask3)
      zeros = Mul (wide, zero) start = Add (zeros, half)
      x0 = Relu (x) h = MatMul (x0, w1) hb = Add (h, b1) r = Relu (hb)
      p = MatMul (r, w2) pb = Add (p, b2) res = Add (pb, x)
      a = MatMul (res, w3) ga = Div (a, root) e = Erf (ga) g1 = Add (e, one)
      g2 = Mul (a, g1) ge = Mul (g2, half)
      flat = Reshape (ge, rows) q = MatMul (flat, w4)
      shape = Shape (x) y = Reshape (q, shape) flat3 = Unsqueeze (flat, zeroth)
      {body}
      z = Identity ({name}_out)
    }}""")
    rng = np.random.default_rng(0)
    sizes = {"w1": (K, H), "b1": (H,), "w2": (H, K), "b2": (K,), "w3": (K, H), "w4": (H, K)}
    made = {n: rng.normal(0, s[0] ** -0.5, s).astype(np.float32) for n, s in sizes.items()}
    made |= {n: np.float32(v) for n, v in {"one": 1, "half": 0.5, "zero": 0}.items()}
    made |= {"root": np.float32(2**0.5), "two": np.array([2]), "rows": np.array([-1, H])}
    made |= {"zeroth": np.array([0])}
    made |= {"trips": np.array(9), "yes": np.array(True), "slices": np.ones((9, 1), np.float32)}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), n) for n, v in made.items()
    )
    return proto


def feeds(flag: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    mask = np.array([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
    x = rng.normal(size=(2, 5, K)).astype(np.float32)
    return {"x": x, "mask": mask, "flag": np.array(flag)}


@pytest.mark.parametrize(("body", "padding"), PLACES)
@pytest.mark.parametrize("value", VALUES)
def test_a_body_may_read_what_others_take_in(value, body, padding):
    proto = feed_forward(VALUES[value], BODIES[body])
    lowered = lower(proto, padding)
    for flag in (True, False):
        given = feeds(flag)
        if padding is not None:  # what padded rows hold is given up
            given["mask"] = np.ones((2, 5), np.int64)
        check(proto, lowered, given)


# what a body does with a product that nothing else reads: (nodes of the body, nodes of the graph)
ALONE = {
    "add": ("t = Add (s, h)", ""),
    "bias": ("hb = Add (h, b1) t = Add (s, hb)", ""),
    "activation": ("r = Relu (h) t = Add (s, r)", ""),
    "half an activation": ("r = Mul (h, g) t = Add (s, r)", "g = Sigmoid (h)"),
    "reshape": ("k = Shape (s) r = Reshape (h, k) t = Add (s, r)", ""),
    "sizes": ("k = Shape (h) r = Expand (half, k) t = Add (s, r)", "hr = Relu (h)"),
    "product": ("r = MatMul (h, w5) t = Add (s, r)", ""),
    "product of zeros": ("r = Relu (h) o = MatMul (r, w5) t = Add (s, o)", ""),
    "weight": ("k = MatMul (s, w5) r = Mul (k, half) t = Add (h, r)", ""),
    "transposed weight": ("w = Transpose (w5) r = MatMul (s, w) t = Add (h, r)", "v = Relu (w5)"),
}


def alone(nodes: str, more: str, wrap: Wrap) -> onnx.ModelProto:
    """A product that a body reads; so does perhaps something else, which is an output too."""
    body = wrap(nodes).replace("B,S,1", f"B,S,{H}")
    name = body.split("_out", 1)[0].split()[-1]
    output = more.split(" ", 1)[0] or "e"
    shape = f"{H},{H}" if output == "v" else f"B,S,{H}"
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[B,S,{K}] x, int64[B,S] mask, bool flag)
      => (float[{shape}] {output}, float[B,S,{H}] z) {{
      x0 = Relu (x) h = MatMul (x0, w1) d = MatMul (x, w2) rd = Relu (d) start = MatMul (rd, w5)
      {more or "e = Neg (start)"}
      {body}
      z = Identity ({name}_out)
    }}""")
    rng = np.random.default_rng(0)
    sizes = {"w1": (K, H), "w2": (K, H), "w5": (H, H), "b1": (H,)}
    made = {n: rng.normal(0, 0.01 * s[0] ** -0.5, s).astype(np.float32) for n, s in sizes.items()}
    made |= {"half": np.float32(0.5), "trips": np.array(9), "yes": np.array(True)}
    made |= {"slices": np.ones((9, 1), np.float32)}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), n) for n, v in made.items()
    )
    return proto


@pytest.mark.parametrize(("body", "padding"), PLACES)
@pytest.mark.parametrize("case", ALONE)
def test_what_only_a_body_reads_stays_in_front_of_it(case, body, padding):
    proto = alone(*ALONE[case], BODIES[body])
    lowered = lower(proto, padding)
    for flag in (True, False):
        check(proto, lowered, feeds(flag) | {"mask": np.ones((2, 5), np.int64)})


HIDING = {
    "input": "x_c = Identity (c) t = Mul (x, h)",
    "constant": "x_c = Identity (c) k = Mul (s, h) t = Add (k, x)",
}


@pytest.mark.parametrize("kind", HIDING)
@pytest.mark.parametrize("trips", [2, 12])
def test_a_body_may_call_its_own_values_like_outer_ones(kind, trips):
    """The Identity goes, and the body reads the outer x beside its own."""
    state, own = ("x", "") if kind == "input" else ("s", "<float x = {2}>")
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] y) <int64 trips = {{{trips}}}, bool yes = {{1}}> {{
      h = Identity (x)
      y = Loop (trips, yes, x) <body = b (int64 i, bool c, float[N] {state})
        => (bool x_c, float[N] t) {own} {{ {HIDING[kind]} }}>
    }}""")
    x = np.array([0.9, 0.5], np.float32)
    want, model = run(proto, {"x": x}), ir.from_proto(proto)
    normalise(model)
    np.testing.assert_array_equal(run(ir.to_proto(model), {"x": x}), want)


def run(proto: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    """The first output by ONNX Runtime."""
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, given)[0])


def test_names_of_bodies_become_their_own():
    """At every depth, and only those that hide something."""
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] y) <int64 trips = {9}, bool yes = {1}> {
      y = Loop (trips, yes, x) <body = b (int64 i, bool c, float[N] x) => (bool go, float[N] t) {
        go = Identity (c)
        u = Loop (trips, yes, x) <body = d (int64 j, bool d, float[N] s)
          => (bool inner, float[N] v) <float x = {2}> { inner = Identity (d) v = Mul (s, x) }>
        t = Neg (u) }>
      z = Neg (y)
    }""")
    x = np.array([0.9, 0.5], np.float32)
    want, model = run(proto, {"x": x}), ir.from_proto(proto)
    assert distinct_names(model) == 2
    (outer,) = (n.attributes["body"].as_graph() for n in model.graph if n.op_type == "Loop")
    (inner,) = (n.attributes["body"].as_graph() for n in outer if n.op_type == "Loop")
    names = [[x.name for x in g.inputs] for g in (outer, inner)]
    assert names == [["i", "c", "x.2"], ["j", "d", "s"]]
    assert list(inner.initializers) == ["x.3"]
    assert distinct_names(model) == 0
    np.testing.assert_array_equal(run(ir.to_proto(model), {"x": x}), want)


def test_a_closed_branch_takes_no_name_twice():
    """Results of a branch that are computed outside get a name; that one may be taken."""
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
    g (float[N] x, bool flag) => (float[N] y, float[N] w) {
      "y.then" = Exp (x)
      w = Neg ("y.then")
      y = If (flag) <
        then_branch = a () => (float[N] p) { p = Identity (w) },
        else_branch = b () => (float[N] q) { q = Identity ("y.then") }>
    }""")
    given = {"x": np.array([0.9, 0.5], np.float32), "flag": np.array(False)}
    check(proto, lower(proto), given)

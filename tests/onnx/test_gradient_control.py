"""Gradients through If, Loop and Scan, against central differences in float64."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from pitc.errors import ModelError, UsageError
from tests.gradient_check import STEP, gradient_model

Array = Any
TOLERANCE = 1e-7
OPSET = 17


def text_model(text: str, opset: int = OPSET) -> onnx.ModelProto:
    """A model of text: the graph, without its head."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    onnx.checker.check_model(model)
    return model


def session(model: onnx.ModelProto) -> Any:
    """ONNX Runtime on the model as it is."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def differences(model: onnx.ModelProto, feeds: dict[str, Array], name: str) -> Array:
    """The gradient of `loss` by central differences."""
    run, x = session(model), feeds[name]
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        sides = []
        for step in (STEP, -STEP):
            moved = x.copy()
            moved[place] += step
            sides.append(run.run(["loss"], {**feeds, name: moved})[0])
        found[place] = (sides[0] - sides[1]) / (2 * STEP)
    return found


def gradients(
    model: onnx.ModelProto, feeds: dict[str, Array], wrt: list[str]
) -> tuple[dict[str, Array], onnx.ModelProto]:
    """What the model with gradients gives, and it."""
    made, found = gradient_model(model, "loss", wrt)
    onnx.checker.check_model(made, full_check=True)
    assert {o.domain for o in made.opset_import} == {""}
    names = [found.of[name] for name in wrt]
    loss, *values = session(made).run(["loss", *names], feeds)
    want = session(model).run(["loss"], feeds)[0]
    assert loss == pytest.approx(want, rel=1e-12)
    return dict(zip(wrt, values, strict=True)), made


def check(
    model: onnx.ModelProto, feeds: dict[str, Array], wrt: list[str]
) -> tuple[dict[str, Array], onnx.ModelProto]:
    """The gradients are those by central differences."""
    found, made = gradients(model, feeds, wrt)
    for name, g in found.items():
        want = differences(model, feeds, name)
        assert g.dtype == feeds[name].dtype and g.shape == want.shape, name
        assert np.abs(g - want).max(initial=0) <= TOLERANCE, name
    return found, made


def numbers(*shape: int, seed: int = 0) -> Array:
    """Random numbers in float64."""
    return np.random.default_rng([seed, *shape]).normal(0, 0.7, shape)


def operators(graph: onnx.GraphProto) -> list[str]:
    """Of all nodes, in bodies too."""
    found = []
    for node in graph.node:
        found.append(node.op_type)
        for a in node.attribute:
            found += operators(a.g) if a.type == onnx.AttributeProto.GRAPH else []
    return found


BRANCHES = """
g (bool c, double[n, 3] x, double[3, 3] w, double[3] b) => (double loss) {
    y, z = If (c) <
        then_branch = t () => (double[n, 3] ty, double[n, 3] tz) {
            tm = MatMul (x, w)  ty = Tanh (tm)  tz = Mul (ty, x)
        },
        else_branch = e () => (double[n, 3] ey, double[n, 3] ez) {
            ey = Add (x, b)  ez = Sin (ey)
        }
    >
    p = Mul (y, z)
    q = Mul (p, b)
    loss = ReduceSum <keepdims = 0> (q)
}
"""


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_branches(c: bool, n: int) -> None:
    feeds = {"c": np.array(c), "x": numbers(n, 3), "w": numbers(3, 3), "b": numbers(3)}
    found, made = check(text_model(BRANCHES), feeds, ["x", "w", "b"])
    assert found["w"].any() == (c and n > 0)
    assert operators(made.graph).count("Sin") == 1  # not again on the way back


NESTED = """
g (bool c, bool d, double[2, 3] x, double[3] w) => (double loss) {
    y = If (c) <
        then_branch = t () => (double[2, 3] ty) {
            ta = Mul (x, w)
            ty = If (d) <
                then_branch = tt () => (double[2, 3] tty) { tty = Mul (ta, x) },
                else_branch = te () => (double[2, 3] tey) { tes = Sin (w)  tey = Add (ta, tes) }
            >
        },
        else_branch = e () => (double[2, 3] ey) { ey = Exp (x) }
    >
    loss = ReduceSum <keepdims = 0> (y)
}
"""


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("d", [True, False])
def test_branches_in_branches(c: bool, d: bool) -> None:
    feeds = {"c": np.array(c), "d": np.array(d), "x": numbers(2, 3), "w": numbers(3)}
    check(text_model(NESTED), feeds, ["x", "w"])


RNN = """
g (int64 trips, bool start, double[n, 3] h, double[3, 3] w, double[3] b, double[n, 3] c)
        => (double loss) {
    last, lines = Loop (trips, start, h) <
        body = step (int64 i, bool go, double[n, 3] s)
                => (bool again, double[n, 3] t, double[n, 3] y) {
            again = Identity (go)
            m = MatMul (s, w)  a = Add (m, b)  t = Tanh (a)
            k = Cast <to = 11> (i)
            scaled = Mul (t, k)
            y = Sin (scaled)
        }
    >
    wide = MatMul (last, w)
    p = Mul (wide, c)
    q = Mul (lines, c)
    ps = ReduceSum <keepdims = 0> (p)
    qs = ReduceSum <keepdims = 0> (q)
    loss = Add (ps, qs)
}
"""


def rnn_feeds(trips: int, start: bool = True, n: int = 2) -> dict[str, Array]:
    return {
        "trips": np.array(trips),
        "start": np.array(start),
        "h": numbers(n, 3),
        "w": numbers(3, 3),
        "b": numbers(3),
        "c": numbers(n, 3, seed=1),
    }


@pytest.mark.parametrize(("trips", "n"), [(1, 2), (2, 1), (5, 2), (2, 0)])
def test_a_loop(trips: int, n: int) -> None:
    check(text_model(RNN), rnn_feeds(trips, n=n), ["h", "w", "b", "c"])


@pytest.mark.parametrize(("trips", "start"), [(0, True), (3, False)])
def test_no_trip(trips: int, start: bool) -> None:
    feeds = rnn_feeds(trips, start)
    text = RNN.replace("[n, ", "[2, ")  # else ONNX Runtime does not know the shape of no lines
    found, _ = check(text_model(text), feeds, ["h", "w", "b"])
    assert not found["b"].any() and found["w"].any()  # w is read outside, too
    assert np.allclose(found["h"], feeds["c"] @ feeds["w"].T)


STOPPED = """
g (double[3] x, double w, double limit) => (double loss) {
    last, total = Loop (, start, x, zero) <
        body = step (int64 i, bool go, double[3] s, double sum)
                => (bool again, double[3] t, double after) {
            t = Mul (s, w)
            n = ReduceSum <keepdims = 0> (t)
            after = Add (sum, n)
            again = Less (after, limit)
        }
    >
    sq = Mul (last, last)
    a = ReduceSum <keepdims = 0> (sq)
    loss = Add (a, total)
}
"""


@pytest.mark.parametrize(("limit", "trips"), [(0.0, 1), (3.0, 2), (30.0, 6)])
def test_a_loop_that_stops_itself(limit: float, trips: int) -> None:
    text = STOPPED.replace("{\n    last", "<bool start = {1}, double zero = {0}> {\n    last", 1)
    feeds = {"x": np.array([0.5, 0.25, 0.5]), "w": np.array(1.5), "limit": np.array(limit)}
    found, _ = check(text_model(text), feeds, ["x", "w"])
    sums = np.cumsum([1.25 * 1.5 ** (k + 1) for k in range(9)])
    assert np.argmax(sums >= limit) + 1 == trips
    grown = 2 * feeds["x"] * 1.5 ** (2 * trips)
    assert np.allclose(found["x"], grown + sum(1.5 ** (k + 1) for k in range(trips)))


CHOOSING = """
g (bool c, int64 trips, double[2, 3] x, double[3, 3] w) => (double loss) {
    y = If (c) <
        then_branch = t () => (double[2, 3] ty) {
            go = Constant <value = bool {1}> ()
            s0 = Mul (x, x)
            sn = Loop (trips, go, s0) <
                body = step (int64 i, bool on, double[2, 3] s) => (bool again, double[2, 3] t) {
                    again = Identity (on)
                    m = MatMul (s, w)  a = Add (m, s0)  t = Tanh (a)
                }
            >
            ty = Mul (sn, x)
        },
        else_branch = e () => (double[2, 3] ey) { ey = MatMul (x, w) }
    >
    q = Mul (y, y)
    loss = ReduceSum <keepdims = 0> (q)
}
"""


@pytest.mark.parametrize(("c", "trips"), [(True, 0), (True, 1), (True, 3), (False, 3)])
def test_a_loop_in_a_branch(c: bool, trips: int) -> None:
    x, w = numbers(2, 3), numbers(3, 3)
    feeds = {"c": np.array(c), "trips": np.array(trips), "x": x, "w": w}
    found, _ = check(text_model(CHOOSING), feeds, ["x", "w"])
    assert found["w"].any() == (trips > 0 or not c)


# every other trip takes another branch; the inner loop runs as often as the trip's number says
INSIDE = """
g (int64 trips, double[2, 3] x, double[3, 3] w, double[3] v) => (double loss)
        <bool go = {1}, int64 two = {2}, int64 zero = {0}> {
    y, lines = Loop (trips, go, x) <
        body = step (int64 i, bool on, double[2, 3] s)
                => (bool again, double[2, 3] t, double[2, 3] line) {
            again = Identity (on)
            rest = Mod (i, two)
            even = Equal (rest, zero)
            u = If (even) <
                then_branch = t () => (double[2, 3] tu) { tm = MatMul (s, w)  tu = Tanh (tm) },
                else_branch = e () => (double[2, 3] eu) { em = Mul (s, v)  eu = Sin (em) }
            >
            t = Loop (i, on, u) <
                body = each (int64 j, bool on2, double[2, 3] r)
                        => (bool again2, double[2, 3] r2) {
                    again2 = Identity (on2)
                    rv = Mul (r, v)  rs = Add (rv, s)  r2 = Tanh (rs)
                }
            >
            line = Mul (t, s)
        }
    >
    a = ReduceSum <keepdims = 0> (y)
    b = ReduceSum <keepdims = 0> (lines)
    loss = Mul (a, b)
}
"""


@pytest.mark.parametrize("trips", [1, 2, 4])
def test_a_branch_and_a_loop_in_a_loop(trips: int) -> None:
    feeds = {"trips": np.array(trips), "x": numbers(2, 3), "w": numbers(3, 3), "v": numbers(3)}
    check(text_model(INSIDE), feeds, ["x", "w", "v"])


def scan_text(axes: str = "", shape: str = "t, n, 3", lines: str = "t, n, 4") -> str:
    return f"""
g (double[n, 4] h, double[{shape}] x, double[3, 4] w, double[4, 4] u, double[4] c,
        double[{lines}] d) => (double loss) {{
    last, kept, line = Scan (h, h, x) <
        num_scan_inputs = 1, {axes}
        body = step (double[n, 4] s, double[n, 4] k, double[n, 3] p)
                => (double[n, 4] t, double[n, 4] k2, double[n, 4] y) {{
            pw = MatMul (p, w)  su = MatMul (s, u)  a = Add (pw, su)
            t = Tanh (a)  k2 = Add (k, s)  y = Mul (t, c)
        }}
    >
    e = Mul (last, c)
    es = ReduceSum <keepdims = 0> (e)
    f = Mul (line, d)
    fs = ReduceSum <keepdims = 0> (f)
    ks = ReduceSum <keepdims = 0> (kept)
    ef = Add (es, fs)
    loss = Add (ef, ks)
}}
"""


SCANS = {
    "plain": ("", (0, 1, 2), (0, 1, 2)),
    "back": ("scan_input_directions = [1], scan_output_directions = [1],", (0, 1, 2), (0, 1, 2)),
    "mixed": ("scan_input_directions = [1],", (0, 1, 2), (0, 1, 2)),
    "axes": ("scan_input_axes = [1], scan_output_axes = [-1],", (1, 0, 2), (1, 2, 0)),
    "both": (
        "scan_input_axes = [-1], scan_input_directions = [1], scan_output_axes = [1],"
        "scan_output_directions = [0],",
        (1, 2, 0),
        (1, 0, 2),
    ),
}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("case", SCANS)
def test_a_scan(case: str, steps: int) -> None:
    axes, read, written = SCANS[case]
    names = [[["t", "n", k][d] for d in order] for k, order in (("3", read), ("4", written))]
    text = scan_text(axes, *(", ".join(each) for each in names))
    feeds = {
        "h": numbers(2, 4),
        "x": numbers(steps, 2, 3).transpose(read).copy(),
        "w": numbers(3, 4),
        "u": numbers(4, 4),
        "c": numbers(4),
        "d": numbers(steps, 2, 4).transpose(written).copy(),
    }
    check(text_model(text), feeds, ["h", "x", "w", "u", "c", "d"])


def test_an_rnn_as_pytorch_has_it() -> None:
    torch = pytest.importorskip("torch")
    feeds = {
        "h": numbers(2, 4),
        "x": numbers(5, 2, 3),
        "w": numbers(3, 4),
        "u": numbers(4, 4),
        "c": numbers(4),
        "d": numbers(5, 2, 4),
    }
    found, _ = gradients(text_model(scan_text()), feeds, list(feeds))
    h, x, w, u, c, d = (torch.tensor(v, requires_grad=True) for v in feeds.values())
    s, kept, lines = h, h, []
    for part in x:
        kept = kept + s
        s = torch.tanh(part @ w + s @ u)
        lines.append(s * c)
    loss = (s * c).sum() + (torch.stack(lines) * d).sum() + kept.sum()
    loss.backward()
    for name, value in zip(feeds, (h, x, w, u, c, d), strict=True):
        assert np.allclose(found[name], value.grad.numpy(), rtol=1e-12, atol=1e-12), name


# a result that is what the body takes, one that comes twice, states that change places, and one
# that only a loop without a trip hands on
ROUND = """
g (int64 trips, double[2] x, double[2] y, double[2] z, double[2] w) => (double loss)
        <bool go = {1}> {
    a, b, c, k, l, m = Loop (trips, go, x, y, z, w) <
        body = step (int64 i, bool on, double[2] s, double[2] t, double[2] u, double[2] v)
                => (bool on, double[2] t, double[2] t2, double[2] u2, double[2] v, double[2] t2,
                    double[2] s) { t2 = Mul (s, v)  u2 = Identity (w) }
    >
    ab = Mul (a, b)
    abc = Mul (ab, c)
    abck = Mul (abc, k)
    p = ReduceSum <keepdims = 0> (abck)
    q = ReduceSum <keepdims = 0> (l)
    r = ReduceSum <keepdims = 0> (m)
    loss = Sum (p, q, r)
}
"""


@pytest.mark.parametrize("trips", range(4))
def test_what_goes_through_a_body(trips: int) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {OPSET}]> {ROUND}')
    feeds = {"trips": np.array(trips)} | {n: numbers(2, seed=ord(n)) for n in "xyzw"}
    found, _ = check(model, feeds, ["x", "y", "z", "w"])
    assert found["z"].any() == (trips == 0)


# the loss reads neither what the second state becomes nor the third one, which goes into nothing
THROUGH = """
g (int64 trips, double[2] x, double[2] y, double[2] z) => (double loss) <bool go = {1}> {
    a, unused, other = Loop (trips, go, x, y, z) <
        body = step (int64 i, bool on, double[2] s, double[2] t, double[2] u)
                => (bool again, double[2] s2, double[2] t2, double[2] u2) {
            again = Identity (on)
            s2 = Mul (s, t)  t2 = Sin (t)  u2 = Mul (u, s)
        }
    >
    loss = ReduceSum <keepdims = 0> (a)
}
"""


@pytest.mark.parametrize("trips", range(4))
def test_states_that_the_loss_reads_through_others(trips: int) -> None:
    feeds = {"trips": np.array(trips)} | {n: numbers(2, seed=ord(n)) for n in "xyz"}
    check(text_model(THROUGH), feeds, ["x", "y"])
    with pytest.raises(UsageError, match="does not depend on 'z'"):
        gradient_model(text_model(THROUGH), "loss", ["z"])


# the number of a trip, its condition, and a state of integers, are needed on the way back
COUNTED = """
g (int64 trips, double[n] x, double[n] w, int64 first) => (double loss) <bool go = {1}> {
    y, k = Loop (trips, go, x, first) <
        body = step (int64[1] i, bool on, double[n] s, int64 j)
                => (bool again, double[n] t, int64 j2) {
            again = Identity (on)
            a = Cast <to = 11> (i)  b = Cast <to = 11> (j)  c = Cast <to = 11> (on)
            d = Sum (a, b, c)
            e = Mul (s, d)  f = Add (e, w)  t = Tanh (f)
            j2 = Sub (j, i0)
        }
    >
    loss = ReduceSum <keepdims = 0> (y)
}
"""


@pytest.mark.parametrize("trips", range(4))
def test_integers_of_a_trip(trips: int) -> None:
    text = COUNTED.replace("<bool go = {1}>", "<bool go = {1}, int64 i0 = {3}>")
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {OPSET}]> {text}')
    feeds = {
        "trips": np.array(trips),
        "x": numbers(2),
        "w": numbers(2, seed=1),
        "first": np.array(2),
    }
    made, found = gradient_model(model, "loss", ["x", "w"])
    got = session(made).run([found.of["x"], found.of["w"]], feeds)
    for name, g in zip("xw", got, strict=True):
        assert np.abs(g - differences(model, feeds, name)).max() <= TOLERANCE


# ONNX's inference knows the rank of neither `lines` nor `kept`: bodies tell
NESTED_SCAN = """
g (int64 trips, double[n, 3] x, double[3, 3] w) => (double loss)
        <bool go = {1}, int64[1] zero = {0}, int64 one = {1}> {
    y = Loop (trips, go, x) <
        body = step (int64 i, bool on, double[n, 3] s) => (bool again, double[n, 3] t) {
            again = Identity (on)
            wide = Unsqueeze (s, zero)
            both = Concat <axis = 0> (wide, wide, wide)
            lines = Scan (both) <
                num_scan_inputs = 1,
                body = each (double[n, 3] p) => (double[n, 3] q) { m = MatMul (p, w)  q = Sin (m) }
            >
            kept = Gather <axis = 0> (lines, one)
            t = Add (kept, s)
        }
    >
    z = Mul (y, y)
    loss = ReduceSum <keepdims = 0> (z)
}
"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_scan_in_a_loop(trips: int) -> None:
    feeds = {"trips": np.array(trips), "x": numbers(2, 3), "w": numbers(3, 3)}
    check(text_model(NESTED_SCAN), feeds, ["x", "w"])


@pytest.mark.parametrize(("name", "kind"), [("float", np.float32), ("float16", np.float16)])
def test_types_stay(name: str, kind: Any) -> None:
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    text = RNN.replace("double", name).replace("to = 11", f"to = {code}")
    wide = rnn_feeds(3)
    feeds = {k: v.astype(kind) if v.dtype == np.float64 else v for k, v in wide.items()}
    made, found = gradient_model(text_model(text), "loss", ["h", "w", "b"])
    want, _ = gradients(text_model(RNN), wide, ["h", "w", "b"])
    for name, output in found.of.items():
        g = session(made).run([output], feeds)[0]
        assert g.dtype == kind
        assert np.allclose(
            g, want[name], atol=50 * np.finfo(kind).eps, rtol=50 * np.finfo(kind).eps
        )


FUSED = """
g (int64 trips, bool c, float[2, 4] x, float[4] w, float[4] b) => (float loss) <bool go = {1}> {
    y = Loop (trips, go, x) <
        body = step (int64 i, bool on, float[2, 4] s) => (bool again, float[2, 4] t) {
            again = Identity (on)
            a = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (s, x, w, b)
            t = If (c) <
                then_branch = t_ () => (float[2, 4] u) { u = com.microsoft.FastGelu (a, b) },
                else_branch = e_ () => (float[2, 4] v) { v = com.microsoft.BiasGelu (a, w) }
            >
        }
    >
    z = Mul (y, y)
    loss = ReduceSum <keepdims = 0> (z)
}
"""


@pytest.mark.parametrize("c", [True, False])
def test_fused_nodes_in_bodies(c: bool) -> None:
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {OPSET}, "com.microsoft": 1]> {FUSED}'
    )
    feeds = {"x": numbers(2, 4), "w": numbers(4), "b": numbers(4, seed=3)}
    feeds = {k: v.astype(np.float32) for k, v in feeds.items()}
    feeds |= {"trips": np.array(2), "c": np.array(c)}
    made, found = gradient_model(model, "loss", ["x", "w", "b"])
    run = session(model)
    for name, output in found.of.items():
        g = session(made).run([output], feeds)[0]
        direction = numbers(*g.shape, seed=9).astype(np.float32)
        sides = [
            run.run(["loss"], {**feeds, name: feeds[name] + step * direction})[0]
            for step in (np.float32(1e-2), np.float32(-1e-2))
        ]
        assert (sides[0] - sides[1]) / 2e-2 == pytest.approx(np.sum(g * direction), rel=5e-3)


WEIGHTS = """
g (bool c, double[2, 3] x) => (double loss) {
    y = If (c) <
        then_branch = t () => (double[2, 3] ty) <double[3] w = {1, 2, 3}> { ty = Mul (x, w) },
        else_branch = e () => (double[2, 3] ey) <double[3] v = {1, 2, 4}, double s = {2}> {
            ea = Mul (x, v)  ey = Mul (ea, s)
        }
    >
    loss = ReduceSum <keepdims = 0> (y)
}
"""


@pytest.mark.parametrize("c", [True, False])
def test_weights_in_bodies(c: bool) -> None:
    made, found = gradient_model(text_model(WEIGHTS), "loss", None)
    assert found.of == {"w": "grad.w", "v": "grad.v"}
    feeds = {"c": np.array(c), "x": numbers(2, 3)}
    w, v = session(made).run(["grad.w", "grad.v"], feeds)
    total = feeds["x"].sum(0)
    assert np.allclose(w, total * c) and np.allclose(v, 2 * total * (not c))


REFUSED = {
    "shapes that change": (
        """g (int64 trips, double[4] x, int64[2] f) => (double loss) <bool go = {1}> {
        y, k = Loop (trips, go, x, f) < body = step (int64 i, bool on, double[4] s, int64[n] j)
            => (bool again, double[4] t, int64[m] j2) {
            again = Identity (on)  a = Size (j)  b = Cast <to = 11> (a)
            t = Mul (s, b)  j2 = Concat <axis = 0> (j, j) } >
        loss = ReduceSum <keepdims = 0> (y) }""",
        "no gradient of Loop: its backward way needs 'j' of each trip, whose shape may change",
    ),
    "random numbers": (
        """g (int64 trips, double[2] x) => (double loss) <bool go = {1}> {
        y = Loop (trips, go, x) < body = step (int64 i, bool on, double[2] s)
            => (bool again, double[2] t) { again = Identity (on)
            r = RandomNormal <shape = [2], dtype = 11> ()  t = Mul (s, r) } >
        loss = ReduceSum <keepdims = 0> (y) }""",
        "no gradient of Loop: its backward way would compute 'r' again, with other random numbers",
    ),
    "dropout": (
        """g (bool c, double[2] x) => (double loss) <double part = {0.5}, bool train = {1}> {
        y = If (c) < then_branch = t () => (double[2] ty) { ty = Dropout (x, part, train) },
            else_branch = e () => (double[2] ey) { ey = Identity (x) } >
        loss = ReduceSum <keepdims = 0> (y) }""",
        "no gradient of If: its backward way would compute 'ty' again",
    ),
    "sequences": (
        """g (int64 trips, double[4] x) => (double loss) <bool go = {1}, int64 one = {1}> {
        first = SequenceConstruct (x)
        q = Loop (trips, go, first) < body = step (int64 i, bool on, seq(double[4]) s)
            => (bool again, seq(double[4]) t) { again = Identity (on)
            a = SequenceAt (s, i)  t = SequenceInsert (s, a) } >
        y = SequenceAt (q, one)
        z = Mul (x, y)
        loss = ReduceSum <keepdims = 0> (z) }""",
        "no gradient of SequenceAt",
    ),
    "sequences, without a loop": (
        """g (double[4] x) => (double loss) <int64 zero = {0}> {
        s = SequenceConstruct (x)  y = SequenceAt (s, zero)  z = Mul (x, y)
        loss = ReduceSum <keepdims = 0> (z) }""",
        "no gradient of SequenceAt",
    ),
    "in a body": (
        """g (bool c, double[2, 2] x) => (double loss) {
        y = If (c) < then_branch = t () => (double ty) { ty = Det (x) },
            else_branch = e () => (double ey) { ey = ReduceSum <keepdims = 0> (x) } >
        loss = Identity (y) }""",
        "node 'ty': no gradient of Det",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    text, why = REFUSED[case]
    with pytest.raises(ModelError) as error:
        gradient_model(text_model(text), "loss", ["x"])
    assert why in str(error.value)


def test_random_numbers_that_are_not_needed_again() -> None:
    text = REFUSED["random numbers"][0].replace("Mul (s, r)", "Add (s, r)")
    made, _ = gradient_model(text_model(text), "loss", ["x"])
    got = session(made).run(["grad.x"], {"trips": np.array(2), "x": numbers(2)})[0]
    assert got.tolist() == [1, 1]

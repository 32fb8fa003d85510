"""Propagation of a permutation, checked by permuting everything it names in ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit
from pitc.ir.refusal import Code
from pitc.passes.exprs.axes import Stop, across, neighbours
from pitc.passes.exprs.coordinates import follow
from pitc.passes.exprs.derive import derive

SIZES = {"b": 2, "s": 3, "t": 5}
HEADER = '<ir_version: 10, opset_import: ["": 21]>\n'


def model(text: str) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(HEADER + text)
    return parsed


def derived(parsed: onnx.ModelProto) -> Graph:
    graph = Graph(ir.serde.deserialize_model(parsed))
    derive(graph)
    return graph


def propagate(graph: Graph, name: str, dim: int) -> tuple[dict[str, set[Digit]], list[Stop]]:
    """Every digit that moves when a dimension does, and where the permutation stops."""
    shape = graph[name].shape
    assert shape is not None
    places: dict[str, set[Digit]] = {}
    stops: list[Stop] = []
    todo = [(name, Digit(dim, ONE, shape[dim]))]
    while todo:
        value, place = todo.pop()
        if place in places.setdefault(value, set()):
            continue
        places[value].add(place)
        for node in neighbours(graph, value):
            try:
                todo += across(graph, node, value, place)
            except Stop as stop:
                stops.append(stop)
    return places, stops


def run(parsed: onnx.ModelProto, feed: dict[str, Any]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(parsed.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [o.name for o in parsed.graph.output]
    return dict(zip(names, session.run(names, feed), strict=True))


def feeds(parsed: onnx.ModelProto, rng: np.random.Generator) -> dict[str, Any]:
    out = {}
    for value in parsed.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or SIZES[d.dim_param] for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        draw = rng.integers(0, 3, shape) if dtype.kind == "i" else rng.normal(size=shape)
        out[value.name] = draw.astype(dtype)
    return out


def permuted(x: Any, places: set[Digit], order: Any) -> Any:
    """The array with some digits of its index permuted."""
    for place in places:
        stride, extent = (int(p.evaluate(SIZES, {})) for p in (place.stride, place.extent))
        index = np.arange(x.shape[place.dim])
        value = index // stride % extent
        x = np.take(x, index + (order[value] - value) * stride, axis=place.dim)
    return x


def holds(text: str, start: str, dim: int, seed: int = 0) -> bool:
    """Do the outputs move as the propagation says when the inputs move?"""
    parsed, rng = model(text), np.random.default_rng(seed)
    graph = derived(parsed)
    found, stops = propagate(graph, start, dim)
    assert not stops
    feed = feeds(parsed, rng)
    extent = next(iter(found[start])).extent
    order = rng.permutation(int(extent.evaluate(SIZES, {})))
    moved = {name: permuted(x, found.get(name, set()), order) for name, x in feed.items()}
    before, after = run(parsed, feed), run(parsed, moved)
    return all(
        np.allclose(after[k], permuted(y, found.get(k, set()), order), atol=1e-5)
        for k, y in before.items()
    )


FFN = """
ffn (float[b, s, 8] x, float[8, 12] w, float[12] c, float[12, 8] v, float[8] g) => (y)
{
    u = MatMul (x, w)
    a = Add (u, c)
    r = Relu (a)
    d = MatMul (r, v)
    e = Add (d, x)
    y = LayerNormalization (e, g)
}
"""
HEADS = """
heads (float[b, s, 8] x, float[b, t, 8] z) => (float[b, 2, s, t] p)
<int64[4] split = {0, 0, 2, 4}>
{
    q = Reshape (x, split)
    k = Reshape (z, split)
    qt = Transpose <perm = [0, 2, 1, 3]> (q)
    kt = Transpose <perm = [0, 2, 3, 1]> (k)
    p = MatMul (qt, kt)
}
"""
ROWS = """
rows (float[b, s, 8] x, float[8, 8] w) => (float[b, s, 8] y)
<int64[2] flat = {-1, 8}>
{
    r = Reshape (x, flat)
    m = MatMul (r, w)
    size = Shape (x)
    h = Reshape (m, size)
    y = Add (h, x)
}
"""
EMBED = """
embed (int64[b, s] ids, float[9, 8] table) => (float[s, b, 8] y)
{
    e = Gather (table, ids)
    y = Transpose <perm = [1, 0, 2]> (e)
}
"""


@pytest.mark.parametrize(
    ("text", "start", "dim"),
    [
        (FFN, "x", 0),
        (FFN, "x", 1),
        (FFN, "w", 1),
        (FFN, "r", 2),
        (FFN, "y", 1),
        (HEADS, "x", 0),
        (HEADS, "x", 1),
        (HEADS, "z", 1),
        (HEADS, "p", 1),
        (HEADS, "p", 3),
        (HEADS, "q", 3),
        (ROWS, "x", 0),
        (ROWS, "x", 1),
        (ROWS, "m", 1),
        (EMBED, "ids", 1),
        (EMBED, "y", 2),
    ],
)
def test_outputs_move_as_propagated(text: str, start: str, dim: int) -> None:
    assert holds(text, start, dim)


def test_digits_follow_merged_dimensions() -> None:
    graph = derived(model(ROWS))
    places, _ = propagate(graph, "x", 1)
    assert {k: sorted(map(str, v)) for k, v in places.items()} == {
        "x": ["d1"],
        "r": ["d0"],
        "m": ["d0"],
        "h": ["d1"],
        "y": ["d1"],
    }
    (outer,) = propagate(graph, "x", 0)[0]["m"]
    assert (str(outer.stride), str(outer.extent)) == ("s", "b")


REFUSED = [
    ("(float[b, s] x) => (y) { y = Softmax (x) }", 1, Code.AXIS_NOT_PIT, "is normalised"),
    ("(float[b, s] x) => (y) { y = ArgMax <axis = 1> (x) }", 1, Code.ORDERED, "positions along r0"),
    (
        "(float[b, s] x) => (y) <int64 a = {1}> { y = CumSum (x, a) }",
        1,
        Code.ORDERED,
        "positions along r0",
    ),
    ("(float[b, s] x) => (y) { y = Concat <axis = 1> (x, x) }", 1, Code.AXIS_NOT_PIT, "a range"),
    (
        "(float[b, 6] x) => (y) <int64[3] f = {0, 2, 3}> { y = Reshape (x, f) }",
        1,
        Code.LAYOUT,
        "split into parts",
    ),
    (
        "(float[b, 6] x) => (y) <int64[1] o = {1}, int64[1] n = {4}> { y = Slice (x, o, n, o) }",
        1,
        Code.AXIS_NOT_PIT,
        "derived",
    ),
    ("(float[b, s] x, int64[t] i) => (y) { y = Gather (x, i) }", 0, Code.AXIS_NOT_PIT, "on data"),
    ("(float[s, 4] x) => (y) { y = Multinomial (x) }", 0, Code.NO_RULE, "random"),
    (
        "(float[b, s] x, int64[b] n) => (y) { y = OneHot (n, n, x) }",
        0,
        Code.NO_RULE,
        "not known",
    ),
]


@pytest.mark.parametrize(("text", "dim", "code", "reason"), REFUSED)
def test_refusals_are_coded(text: str, dim: int, code: Code, reason: str) -> None:
    graph = derived(onnx.parser.parse_model(HEADER + "refused " + text))
    found, stops = propagate(graph, "x", dim)
    assert {stop.code for stop in stops} == {code}
    assert reason in stops[0].reason
    assert set(found) == {"x"}


def test_sizes_stop_nothing() -> None:
    graph = derived(model("sizes (float[b, s] x) => (int64[2] n) { n = Shape (x) }"))
    assert propagate(graph, "x", 0)[1] == []


STEPS = ["relu", "transpose", "merge", "split", "matmul", "sum", "add"]


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_random_chains(data: st.DataObject, seed: int) -> None:
    """Chains of layers on [4, 6, 2]: whatever propagates without refusal is true."""
    shape, lines, constants, inputs = [4, 6, 2], [], [], ["float[4, 6, 2] x0"]
    for n in range(data.draw(st.integers(1, 5))):
        step, y = data.draw(st.sampled_from(STEPS)), f"x{n + 1}"
        if step == "relu":
            lines.append(f"{y} = Relu (x{n})")
        elif step == "transpose":
            perm = data.draw(st.permutations(range(len(shape))))
            shape = [shape[p] for p in perm]
            lines.append(f"{y} = Transpose <perm = {list(perm)}> (x{n})")
        elif step == "merge" and len(shape) > 1:
            at = data.draw(st.integers(0, len(shape) - 2))
            shape = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
        elif step == "split":
            at = data.draw(st.integers(0, len(shape) - 1))
            shape = [
                *shape[:at],
                *([2, shape[at] // 2] if shape[at] % 2 == 0 else [shape[at]]),
                *shape[at + 1 :],
            ]
        elif step == "matmul" and len(shape) > 1:
            inputs.append(f"float[{shape[-1]}, 3] w{n}")
            shape = [*shape[:-1], 3]
            lines.append(f"{y} = MatMul (x{n}, w{n})")
        elif step == "sum" and len(shape) > 1:
            constants.append(f"int64[1] a{n} = {{{len(shape) - 1}}}")
            shape = shape[:-1]
            lines.append(f"{y} = ReduceSum <keepdims = 0> (x{n}, a{n})")
        else:
            inputs.append(f"float[{', '.join(map(str, shape))}] z{n}")
            lines.append(f"{y} = Add (x{n}, z{n})")
        if len(lines) == n:
            sizes = ", ".join(map(str, shape))
            constants.append(f"int64[{len(shape)}] f{n} = {{{sizes}}}")
            lines.append(f"{y} = Reshape (x{n}, f{n})")
    body = "\n".join(lines)
    listed = f"<{', '.join(constants)}>" if constants else ""
    last = f"float[{', '.join(map(str, shape))}] x{len(lines)}"
    text = f"chain ({', '.join(inputs)}) => ({last}) {listed} {{ {body} }}"
    dim = data.draw(st.integers(0, 2))
    if not propagate(derived(model(text)), "x0", dim)[1]:
        assert holds(text, "x0", dim, seed)


def test_steps_are_those_of_the_expressions_and_of_the_way_through_softmaxes() -> None:
    """They are kept with the graph, and looked at from other starts."""
    parsed = model("g (float[s, t] x) => (float[s, t] z) { y = Softmax (x) z = Relu (y) }")
    graph = derived(parsed)
    shape = graph["x"].shape
    assert shape is not None
    line = {"x": [(Digit(1, ONE, shape[1]),)]}
    for _ in range(2):
        assert follow(graph, line).keys() == {"x"}
        assert follow(graph, line, softmax=True).keys() == {"x", "y", "z"}
    softmax = graph.nodes[0]
    softmax.attributes.add(ir.AttrInt64("axis", 0))
    derive(graph)
    assert follow(graph, line).keys() == {"x", "y", "z"}

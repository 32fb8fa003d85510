"""Each quirk of ONNX Runtime (pitc/ir/quirks.py) is still there, in the versions that it names."""

import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph

from pitc.ir.quirks import QUIRKS, SELECTED_AS, Quirk

Array = np.ndarray
NAN = float("nan")


def parsed(opset: int, body: str, functions: str = "") -> onnx.ModelProto:
    sets = f'"": {opset}, "com.microsoft": 1'
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{sets}]> m {body} {functions}")


def session(model: onnx.ModelProto, optimised: str = "") -> ort.InferenceSession:
    """A session on the CPU, its graph as it is, or optimised and written to a file."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = optimised
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def run(opset: int, body: str, *feeds: Array, functions: str = "") -> list[Array]:
    made = session(parsed(opset, body, functions))
    names = [i.name for i in made.get_inputs()]
    return [np.asarray(y) for y in made.run(None, dict(zip(names, feeds, strict=True)))]


def fails(opset: int, body: str, *feeds: Array) -> bool:
    try:
        run(opset, body, *feeds)
    except Exception:  # the runtime's exception classes are not public
        return True
    return False


def inferred(opset: int, body: str) -> tuple[int, ...]:
    """The shape of the first output by ONNX's inference."""
    model = onnx.shape_inference.infer_shapes(parsed(opset, body), data_prop=True)
    return tuple(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim)


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def flags(_: Path) -> bool:
    (y,) = run(13, "(float[2, 3] x) => (y) { y = ReduceSum <keepdims = 2> (x) }", ones(2, 3))
    return y.ndim == 0


def range_of_vectors(_: Path) -> bool:
    known = "(float[2] x) => (y) <int64[1] one = {1}> { y = Range (one, one, one) }"
    given = "(int64[n] x) => (y) { y = Range (x, x, x) }"
    return fails(13, known, ones(2)) and not fails(13, given, np.array([1]))


def early_quantisation(folder: Path) -> bool:
    file = str(folder / "optimised.onnx")
    body = """(float[4, 6] x) => (y) <float s = {0.1}, uint8 z = {0}, int64[2] k = {2, 12}>
    { p = Tanh (x) r = Reshape (p, k)
      q = QuantizeLinear (r, s, z) y = DequantizeLinear (q, s, z) }"""
    session(parsed(13, body), file)
    return [n.op_type for n in onnx.load(file).graph.node][1] == "QuantizeLinear"


def has_where(dtype: str) -> bool:
    names = {"float32": "float", "float64": "double"}
    kind = names.get(dtype, dtype)
    body = f"(bool[2] c, {kind}[2] a, {kind}[2] b) => ({kind}[2] y) {{ y = Where (c, a, b) }}"
    try:
        session(parsed(16, body))
    except Exception:  # the runtime's exception classes are not public
        return False
    return True


def no_where(_: Path) -> bool:
    return not any(map(has_where, ("bfloat16", "int16", "uint16", "uint64")))


def no_where_of_int8(_: Path) -> bool:
    return not any(map(has_where, ("int8", "uint32")))


def windows(_: Path) -> bool:
    settings = "kernel_shape = [2], strides = [3], ceil_mode = 1"
    body = f"(float[1, 1, 6] x) => (y) {{ y = AveragePool <{settings}> (x) }}"
    return run(19, body, ones(1, 1, 6))[0].shape != inferred(19, body)


def range_of_floats(_: Path) -> bool:
    body = "() => (y) <float a = {0.1}, float b = {0.4}> { y = Range (a, b, a) }"
    return run(13, body)[0].shape != inferred(13, body)


def squeeze_of_none(_: Path) -> bool:
    body = "(float[1, 3] x) => (y) <int64[0] none = {}> { y = Squeeze (x, none) }"
    return run(13, body, ones(1, 3))[0].shape == (3,)


def rest_beside_0(_: Path) -> bool:
    body = "(float[b, 6] x, int64[3] s) => (y) { y = Reshape <allowzero = 1> (x, s) }"
    feeds = ones(0, 6), np.array([0, 2, -1])
    return not fails(14, body, *feeds) and run(14, body, *feeds)[0].shape == (0, 2, 3)


def ends_of_slices(_: Path) -> bool:
    body = """(float[n] x, int64[1] a, int64[1] b, int64[1] d, int64[1] t) => (y)
    { y = Slice (x, a, b, d, t) }"""
    largest = (1 << 63) - 1
    found = [
        run(13, body, ones(4), *np.array([[5], [e], [0], [-1]])) for e in (largest, largest - 1)
    ]
    return [y.size for (y,) in found] == [4, 0]


def joined_with_nothing(_: Path) -> bool:
    body = "(float[a, b] x, float[c, d] z) => (y) { y = Concat <axis = 0> (x, z) }"
    return run(13, body, ones(0, 3), ones(2, 4))[0].shape == (2, 4)


def batches_of_places(_: Path) -> bool:
    body = "(float[b, 6] x, int64[c, 1] at) => (y) { y = GatherND <batch_dims = 1> (x, at) }"
    return run(13, body, ones(2, 6), np.zeros((4, 1), np.int64))[0].shape == (4,)


def beta_of_0(_: Path) -> bool:
    body = "(float[1, 2] x, float[2, 1] w, float[1] c) => (y) { y = Gemm <beta = 0.0> (x, w, c) }"
    return bool(np.isfinite(run(13, body, ones(1, 2), ones(2, 1), ones(1) * NAN)[0]).all())


def groups_of_nothing(_: Path) -> bool:
    body = """(float[n, 4, 2] x, float[4] w, float[4] c) => (y)
    { y = GroupNormalization <num_groups = 2> (x, w, c) }"""
    weights = ones(4), ones(4)
    return fails(21, body, ones(0, 4, 2), *weights) and not fails(21, body, ones(1, 4, 2), *weights)


def masked_scores(_: Path) -> bool:
    body = """(float[1, 1, 2, 4] q, bool[2, 2] m) => (y, s)
    { y, , , s = Attention <qk_matmul_output_mode = 2> (q, q, q, m) }"""
    return bool(np.isfinite(run(23, body, ones(1, 1, 2, 4), np.eye(2) > 0)[1]).all())


def trips_of_loops(_: Path) -> bool:
    body = """(float[2] x) => (y, t) <int64 n = {2}, bool c = {1}> { y, t = Loop (n, c, x) <body =
    b (int64[1] i, bool k, float[2] v) => (bool l, float[2] w, int64[1] j)
    { l = Identity (k) w = Neg (v) j = Identity (i) }> }"""
    return run(13, body, ones(2))[1].shape == (2, 1)


def own_operators(_: Path) -> bool:
    body = "(float[1] x) => (y) { y = com.microsoft.Gelu (x) }"
    own = '<domain: "com.microsoft", opset_import: ["": 17]> Gelu (a) => (b) { b = Identity (a) }'
    return bool(run(17, body, ones(1), functions=own)[0] != 1)


def halves(_: Path) -> bool:
    body = "(float16[1] x, float16[1] o) => (y) { a = Add (x, o) y = Add (a, o) }"
    model, feeds = (
        parsed(13, body),
        {"x": np.array([2048], np.float16), "o": np.array([1], np.float16)},
    )
    options = ort.SessionOptions()
    made = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return bool(np.asarray(made.run(None, feeds)[0]) == 2050)


def halves_of_groups(folder: Path) -> bool:
    body = """(float16[1, 2, 8] q, int32[1] n, int32 t) => (y)
        {
            y = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1>
                (q, q, q, , , n, t)
        }"""
    file = folder / "optimised.onnx"
    try:
        session(parsed(17, body), str(file))
    except InvalidGraph:  # it had no float16
        return False
    return [n.op_type for n in onnx.load(file).graph.node] == ["GroupQueryAttention"]


SHOWN: tuple[Callable[[Path], bool], ...] = (
    *(flags, range_of_vectors, early_quantisation, no_where, no_where_of_int8, windows),
    *(range_of_floats, squeeze_of_none, rest_beside_0, ends_of_slices, joined_with_nothing),
    *(batches_of_places, beta_of_0, groups_of_nothing, masked_scores, trips_of_loops),
    *(own_operators, halves, halves_of_groups),
)


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:3]))


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.name)
def test_it_is_still_so(quirk: Quirk, tmp_path: Path) -> None:
    shows = {f.__name__: f for f in SHOWN}[quirk.name.lower().replace(" ", "_")]
    now = number(ort.__version__)
    wanted = number(quirk.since or "0") <= now and (not quirk.until or now < number(quirk.until))
    assert shows(tmp_path) == wanted


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.name)
def test_who_follows_it_is_there(quirk: Quirk) -> None:
    module, name = quirk.follows.split(":")
    assert hasattr(importlib.import_module(f"pitc.{module}"), name)


def test_each_is_shown_once() -> None:
    assert len({q.name for q in QUIRKS}) == len(QUIRKS) == len(SHOWN)


def test_what_holds_a_type_has_a_where() -> None:
    assert all(t == "bool" or has_where(t) for t in set(SELECTED_AS.values()))

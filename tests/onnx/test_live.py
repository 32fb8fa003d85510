"""Live points computed by ordinary nodes, in ONNX Runtime against numpy: every predicate, every
quantifier, sizes 0 and 1.
"""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, Poly, atom, dim_index, poly, sym
from pitc.ir.region import SOME, Test
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import PREDICATES, detected_mask, live_points
from pitc.passes.pipeline import LowerOptions, run_passes
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.live_tests import can_compute
from tests.plan_reference import run_lowered
from tests.random_check import lowering_everything

Array = np.ndarray
B, S, Q = sym("b"), sym("s"), sym("q")
ALL_S, SOME_S = Digit(-1, ONE, S), Digit(SOME - 1, ONE, S)
BS, S1 = (B, S), (S,)
b, s = dim_index(0, B), dim_index(1, S)
SIZES = [(2, 3, 4), (1, 1, 1), (3, 0, 2), (0, 4, 2), (2, 3, 0), (1, 5, 1)]
NUMBERS = [0.0, -0.0, 1.0, 999.5, 1000.0, -1000.0, -9984.0, -1e4, -5e4, np.inf, -np.inf, np.nan]

# declared inputs, extents of the domain, tests, and where the points are dead
CASES: dict[str, tuple[str, tuple[Poly, ...], list[Test], Callable[..., Array]]] = {
    "as it is": ("int64[b, s] m", BS, [Test("m", (b, s), "nz", False)], lambda m: m == 0),
    "turned": (
        "int64[s, b] m",
        BS,
        [Test("m", (s, b), "nz", False)],
        lambda m: (m == 0).T,
    ),
    "extents of 1": (
        "float[b, 1, 1, s] m",
        BS,
        [Test("m", (b, poly(0), poly(0), s), "neg", True)],
        lambda m: m[:, 0, 0] <= -1e4,
    ),
    "batch of one": (
        "bool[1, s] m",
        S1,
        [Test("m", (poly(0), dim_index(0, S)), "nz", False)],
        lambda m: ~m[0],
    ),
    "one point": (
        "bool[1, 1] m",
        (),
        [Test("m", (poly(0), poly(0)), "nz", False)],
        lambda m: ~m[0, 0],
    ),
    "all": (
        "int64[b, s] m",
        (B,),
        [Test("m", (b, atom(ALL_S)), "nz", False)],
        lambda m: ~(m != 0).any(1),
    ),
    "some": (
        "int64[b, s] m",
        (B,),
        [Test("m", (b, atom(SOME_S)), "nz", True)],
        lambda m: (m != 0).any(1),
    ),
    "all of a batch of one": (
        "int64[1, s] m",
        (),
        [Test("m", (poly(0), atom(ALL_S)), "nz", False)],
        lambda m: ~(m[0] != 0).any(),
    ),
    "a key that no query sees": (
        "float[b, 1, q, s] m",
        BS,
        [Test("m", (b, poly(0), atom(Digit(-1, ONE, Q)), s), "neg", True)],
        lambda m: (m[:, 0] <= -1e4).all(1),
    ),
    "some in all": (
        "float[b, q, s] m",
        (B,),
        [Test("m", (b, atom(Digit(-1, ONE, Q)), atom(SOME_S)), "neg", True)],
        lambda m: (m <= -1e4).any(2).all(1),
    ),
    "several": (
        "float[b, s] m, float[b, q] n, int64[q, s] k",
        (B, S, Q),
        [
            Test("m", (b, s), "neg", True),
            Test("n", (b, atom(Digit(SOME - 1, ONE, Q))), "nz", True),
            Test("k", (dim_index(2, Q), s), "nz", False),
        ],
        lambda m, n, k: (m <= -1e4)[:, :, None] & (n != 0).any(1)[:, None, None] & (k == 0).T[None],
    ),
    "looked up": (
        "float[b, s] m",
        (B,),
        [Test("m", (b, atom(Digit(-1, ONE, S)) * -1 + S - 1), "neg", True)],
        lambda m: (m <= -1e4).all(1),
    ),
    "a position for all": (
        "float[b, s] m",
        (B,),
        [Test("m", (b, atom(SOME_S)), "neg", False), Test("", (b - atom(ALL_S),), "pos", True)],
        lambda m: (~(m <= -1e4)).any(1) & (np.arange(len(m)) >= m.shape[1] - 1),
    ),
}


def model_of(inputs: str, opset: int) -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (bool[n] y)'
    return ir.from_proto(onnx.parser.parse_model(text + " { y = Constant <value_int = 1> () }"))


def live_of(
    inputs: str, opset: int, extents: tuple[Poly, ...], tests: list[Test]
) -> onnx.ModelProto:
    """A model that computes the live points of a domain."""
    model = model_of(inputs, opset)
    graph, domain = Graph(model), Domain(extents, frozenset(tests))
    assert can_compute(graph, domain)
    live = live_points(Builder(graph), graph, domain)
    live.name, live.type = "live", ir.TensorType(ir.DataType.BOOL)
    live.shape = ir.Shape([None] * len(extents))
    model.graph.outputs[:] = [live]
    model.graph.sort()
    return ir.to_proto(model)


def fed(
    model: onnx.ModelProto, sizes: dict[str, int], rng: np.random.Generator
) -> dict[str, Array]:
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        kept = NUMBERS if np.dtype(dtype).kind == "f" else [0, 1, 2]
        share = rng.choice([0.1, 0.5, 0.95])  # of the numbers that most predicates say yes to
        low = rng.choice([x for x in kept if x <= 0], shape)
        feeds[value.name] = np.where(
            rng.random(shape) < share, low, rng.choice(kept, shape)
        ).astype(dtype)
    return feeds


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("opset", [12, 17, 21])
@pytest.mark.parametrize("case", CASES)
def test_live_points(case: str, opset: int) -> None:
    inputs, extents, tests, dead = CASES[case]
    model, rng = live_of(inputs, opset, extents, tests), np.random.default_rng(4)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for sizes in SIZES:
        known = dict(zip("bsq", sizes, strict=True))
        for _ in range(4):
            feeds = fed(model, known, rng)
            want = ~dead(*feeds.values())
            got = np.asarray(session.run(None, feeds)[0])
            assert got.shape == tuple(e.evaluate(known, {}) for e in extents)
            np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))


def test_whole_dimensions_are_not_looked_up() -> None:
    """No grid of [b, q, k] indices is made."""
    for case in ("a key that no query sees", "several", "some in all", "turned"):
        inputs, extents, tests, _ = CASES[case]
        assert "GatherND" not in {n.op_type for n in live_of(inputs, 17, extents, tests).graph.node}


@pytest.mark.parametrize(
    ("inputs", "idx", "given"),
    [
        ("int64[b, s] m", (b, s), True),
        ("float[b, s] m", (b, s), True),
        ("bool[b, s] m", (b, s), True),
        ("int64[s, b] m", (s, b), False),  # detectors list row-major
        ("int64[b, 1, s] m", (b, poly(0), s), False),
        ("int64[b, s] m", (b, s - 1), False),
    ],
)
def test_what_a_detector_reads(inputs: str, idx: tuple[Poly, ...], given: bool) -> None:
    """An input as it is, where it is one number for each point in order; else flags."""
    graph = Graph(model_of(inputs, 17))
    domain = Domain(BS, frozenset([Test("m", idx, "nz", False)]))
    mask = detected_mask(Builder(graph), graph, domain)
    assert (mask is graph.model.graph.inputs[0]) == given


def test_what_is_reduced_lies_side_by_side(tmp_path: Path) -> None:
    """ONNX Runtime moves a Transpose behind a reduction that follows it, which takes 30 times as
    long; not so behind a Flatten.
    """
    inputs, extents, tests, _ = CASES["a key that no query sees"]
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    model = live_of(inputs, 17, extents, tests)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    (reduced,) = (n for n in nodes if n.op_type.startswith("Reduce"))
    (maker,) = (n for n in nodes if reduced.input[0] in n.output)
    assert maker.op_type == "Flatten"
    assert [list(a.ints) for a in reduced.attribute if a.name == "axes"] == [[1]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float", "double"])
@pytest.mark.parametrize("pred", PREDICATES)
def test_predicates(pred: str, dtype: str) -> None:
    """Limits hold in the value's own type; NaN is not small, nor very negative, but not 0."""
    near = np.array([*NUMBERS, -9999.0, -10008.0, -9984.0, 1004.0, 999.0, 1e-8, 65504.0])
    kinds = {"float": np.float32, "double": np.float64, "bfloat16": ml_dtypes.bfloat16}
    with np.errstate(over="ignore"):
        x = near.astype(kinds.get(dtype, np.float16))
    exact = x.astype(np.float64)
    said = {"nz": ~(exact == 0), "neg": exact <= -1e4, "small": np.abs(exact) < 1e3}[pred]
    model = model_of(f"{dtype}[b] m", 21)
    build = Builder(Graph(model))
    found = PREDICATES[pred](build, build.value("m"), x.dtype)
    found.name, found.type, found.shape = "said", ir.TensorType(ir.DataType.BOOL), ir.Shape([None])
    model.graph.outputs[:] = [found]
    proto = ir.to_proto(model)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
        x.view(np.uint16) if dtype == "bfloat16" else x,
        proto.graph.input[0].type.tensor_type.elem_type,
    )
    np.testing.assert_array_equal(session.run_with_ort_values(None, {"m": value})[0].numpy(), said)


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_that_no_reader_takes_are_not_computed(sizes: tuple[int, int, int]) -> None:
    """A row of y is dead where every row of the gate leaves it out."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[b, s, 4] x, bool[b, q, s] gate, float[4, 6] w, float[6, 4] v) => (float[b, q, 4] z)
    { h = MatMul (x, w) r = Relu (h) y = MatMul (r, v) g = Cast <to = 1> (gate)
      z = MatMul (g, y) }"""
    proto, rng = onnx.parser.parse_model(text), np.random.default_rng(3)
    for name, shape in (("w", (4, 6)), ("v", (6, 4))):
        array = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        proto.graph.input.remove(next(i for i in proto.graph.input if i.name == name))
    with lowering_everything():
        lowered = run_passes(ir.from_proto(proto), LowerOptions())
    packed = [r for r in lowered.report.nodes if r.lowering == "packed"]
    assert [r.node for r in packed] == ["h", "r", "y"]
    assert packed[0].dead == ("all j: gate[d0, j, d1] == 0",)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    b, s, q = sizes
    for share in (0.0, 0.3, 1.0):
        x = rng.normal(size=(b, s, 4)).astype(np.float32)
        feeds = {"x": x, "gate": rng.random((b, q, s)) < share}
        (want,), (got,) = session.run(None, feeds), run_lowered(ir.to_proto(lowered.model), feeds)
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)

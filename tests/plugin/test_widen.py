"""Models in float16 on CPUs: float32 from the first contraction on, as ONNX Runtime does it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, parser

import pitc
from models.bert import BertConfig, bert_graph, random_weights
from models.half import half
from models.reference import forward
from pitc.check.verify import audit_facts
from pitc.importer import load_model
from pitc.ir.inference import infer
from pitc.ir.target import CPU, CUDA
from pitc.ir.widened import Widened, mentions_float16
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.lower_support import plans
from tests.plan_reference import parse, run_lowered
from tests.plugin.test_cached_exports import AUDITED, feeds_of
from tests.plugin.test_exports import CACHED, name
from tests.runtime_support import quiet_options
from tests.tile_prices import PRICES

TURN = "t = Transpose <perm = [0, 2, 1]> (z)"
LIMIT = 4e-3  # norm-wise, of float16
HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
Feeds = dict[str, np.ndarray]


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model from its text; weights are added as initializers."""
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 17]> ' + text)
    for label, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, label))
    onnx.checker.check_model(model)
    return model


def plain(model: onnx.ModelProto) -> Any:
    return ort.InferenceSession(
        model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )


def widened(model: onnx.ModelProto) -> ir.Model:
    made = ir.from_proto(model)
    normalise(made, CPU)
    return made


def types_of(model: ir.Model) -> dict[str, int]:
    """Element types by name, as ONNX infers them."""
    graph = onnx.shape_inference.infer_shapes(ir.to_proto(model), strict_mode=True).graph
    known = [*graph.value_info, *graph.input, *graph.output]
    types = {v.name: v.type.tensor_type.elem_type for v in known}
    return types | {t.name: t.data_type for t in graph.initializer}


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, shape[0] ** -0.5, shape).astype(np.float16)


def assert_same(model: onnx.ModelProto, feeds: Feeds, limit: float = LIMIT) -> None:
    """What is widened answers as the model does, in the same types."""
    want = plain(model).run(None, feeds)
    got = plain(ir.to_proto(widened(model))).run(None, feeds)
    for x, y in zip(want, got, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        x, y = (np.asarray(v, np.float64) for v in (x, y))
        assert np.linalg.norm(x - y) <= limit * np.linalg.norm(x)


SAYS = {
    "input": "g (float16[n] x) => (float16[n] y) { y = Neg(x) }",
    "unread input": "g (float[n] x, float16[n] z) => (float[n] y) { y = Neg(x) }",
    "weight": "g (float[n] x) => (float16[2] y) <float16[2] w = {1, 2}> { y = Neg(w) }",
    "type": "g (float[n] x) => (float16[n] y) { y = Cast <to = 10> (x) }",
    "tensor": """g (int64[1] x) => (float16[n] y) {
        y = ConstantOfShape <value = float16[1] {1}> (x) }""",
    "body": """g (float[n] x, bool c) => (float16[n] y) {
        y = If (c) <then_branch = t () => (float16[n] a) { a = Cast <to = 10> (x) },
                    else_branch = e () => (float16[n] b) { b = Cast <to = 10> (x) }> }""",
    "nothing": "g (float[n] x) => (float[n] y) { y = Cast <to = 1> (x) }",
}


@pytest.mark.parametrize("where", SAYS)
def test_what_is_float16_is_said_to_be(where: str) -> None:
    model = ir.from_proto(model_of(SAYS[where]))
    halves = {x.numpy_dtype == np.float16 for x in infer(model).values()}
    assert mentions_float16(model) == (True in halves) == (where != "nothing")


MLP = """g (float16[n, 64] x) => (float16[n, 64] y, float16[n, 96] h) {
    t = Mul(x, s)
    a = MatMul(t, v)
    h = Relu(a)
    b = MatMul(h, w)
    y = Add(b, x)
}"""


def mlp() -> onnx.ModelProto:
    scale = np.full(64, 0.5, np.float16)
    return model_of(MLP, s=scale, v=weight(64, 96), w=weight(96, 64, seed=1))


def test_float32_begins_at_the_first_contraction() -> None:
    model = widened(mlp())
    types = types_of(model)
    assert types["t"] == HALF  # in front of it
    assert [types[n] for n in "abvw"] == [FLOAT] * 4
    assert [types[n] for n in "xyh"] == [HALF] * 3  # what callers give and get
    by_output = {n.outputs[0].name: n for n in model.graph}
    assert by_output["h"].op_type == by_output["y"].op_type == "Cast"
    assert by_output["b"].inputs[0] is by_output["h"].inputs[0]  # h is not rounded on its way
    assert isinstance(model.graph.initializers["w"].const_value, Widened)
    assert sum(n.op_type == "Cast" for n in model.graph) == 4  # t, x, h, y: each once
    assert_same(mlp(), {"x": weight(5, 64, seed=2)})


def test_zeros_behind_relu_are_skipped() -> None:
    """Not only rows: products over zeros are float32 between conversions, too."""
    wide = {"v": weight(512, 512), "w": weight(512, 512, seed=1), "s": np.ones(512, np.float16)}
    model = model_of(MLP.replace("64]", "512]").replace("96]", "512]"), **wide)
    lowered = run_passes(ir.from_proto(model), LowerOptions(prices=PRICES, check=True))
    found = ir.to_proto(lowered.model)
    assert [(p["kind"], p["dtype"]) for p in plans(lowered)] == [("sparse", "float32")]
    assert all(t.data_type != FLOAT or len(t.raw_data) < 4096 for t in found.graph.initializer)
    feeds = {"x": weight(5, 512)}
    for x, y in zip(plain(model).run(None, feeds), run_lowered(found, feeds), strict=True):
        np.testing.assert_allclose(x.astype(float), y.astype(float), rtol=LIMIT, atol=LIMIT)


def test_models_without_float16_and_gpus_are_left_alone() -> None:
    single = onnx.version_converter.convert_version(mlp(), 17)
    for tensor in single.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*single.graph.input, *single.graph.output):
        value.type.tensor_type.elem_type = FLOAT
    assert "widen" not in normalise(ir.from_proto(single), CPU)
    assert "widen" not in normalise(ir.from_proto(mlp()), CUDA)
    assert normalise(ir.from_proto(mlp()), CPU)["widen"] == 4


def test_a_past_is_appended_to_in_float16() -> None:
    """The past is not converted and back: what is appended is rounded, as the model says."""
    model = model_of(
        """g (float16[b, p, 32] past, float16[b, n, 32] x)
            => (float16[b, m, 32] present, float16[b, n, m] y) {
            k = MatMul(x, w)
            present = Concat <axis = 1> (past, k)
            t = Transpose <perm = [0, 2, 1]> (present)
            y = MatMul(x, t)
        }""",
        w=weight(32, 32),
    )
    types = types_of(widened(model))
    assert types["k"] == types["t.float32"] == FLOAT and types["present"] == HALF
    for past in (0, 3):
        feeds = {"past": np.ones((2, past, 32), np.float16), "x": weight(2, 4, 32)}
        assert_same(model, feeds)
        got = plain(ir.to_proto(widened(model))).run(["present"], feeds)[0]
        np.testing.assert_array_equal(got[:, :past], feeds["past"])


def test_what_moves_computed_values_moves_float32() -> None:
    model = model_of(
        """g (float16[n, 64] x) => (float16[64, m] y) {
            a = MatMul(x, w)
            c = Concat <axis = 0> (a, token)
            y = Transpose <perm = [1, 0]> (c)
        }""",
        w=weight(64, 64),
        token=weight(1, 64),
    )
    types = types_of(widened(model))
    assert types["c"] == FLOAT
    assert_same(model, {"x": weight(3, 64)})


def test_a_table_is_looked_up_in_float16() -> None:
    model = model_of(
        """g (int64[n] ids) => (float16[n, 64] y) {
            e = Gather(table, ids)
            y = MatMul(e, w)
        }""",
        table=weight(100, 64),
        w=weight(64, 64),
    )
    found = widened(model)
    assert not isinstance(found.graph.initializers["table"].const_value, Widened)
    assert types_of(found)["e"] == HALF
    assert_same(model, {"ids": np.arange(7)})


@pytest.mark.parametrize("moved", ["", "Transpose <perm = [0, 2, 1]>"], ids=["", "turned"])
def test_matrices_are_looked_up_in_float32(moved: str) -> None:
    """So a product by matrices of a table is one; embeddings stay as they are (above)."""
    model = model_of(
        f"""g (float16[n, 1, 64] x, int64[n] ids) => (float16[n, 1, 64] y) {{
            e = Gather(table, ids)
            t = {moved or "Identity"} (e)
            y = MatMul(x, t)
        }}""",
        table=weight(16, 64, 64),
    )
    found = widened(model)
    assert isinstance(found.graph.initializers["table"].const_value, Widened)
    types, nodes = types_of(found), ir.to_proto(found).graph.node
    assert [types[n.output[0]] for n in nodes if n.op_type == "Gather"] == [FLOAT]
    made = run_passes(ir.from_proto(model), LowerOptions(prices=PRICES, check=True))
    assert [p["op"] for p in plans(made)] == ["grouped"]
    assert_same(model, {"x": weight(9, 1, 64), "ids": np.arange(9) % 7})


@pytest.mark.parametrize(
    ("moved", "before"),
    [
        ("t = Transpose <perm = [0, 2, 1]> (k)", True),
        ("r = Unsqueeze (k, one) e = Expand (r, sizes) z = Squeeze (e, one) " + TURN, True),
        ("z = Slice (k, one, two, one) " + TURN, False),
        ("z = Gather <axis = 1> (k, one) " + TURN, False),
        ("z = Concat <axis = 1> (k, k) " + TURN, False),
    ],
)
def test_what_is_moved_as_it_is_is_converted_first(moved: str, before: bool) -> None:
    """So a cache is read as it lies; of a part no more is converted than that."""
    model = model_of(
        f"""g (float16[b, n, 32] q, float16[b, n, 32] k, float16[b, n, m] bias)
            => (float16[b, n, m] y) <int64[1] one = {{1}}, int64[1] two = {{2}},
            int64[4] sizes = {{1, 1, 1, 1}}> {{ {moved} s = MatMul(q, t) y = Add(s, bias) }}"""
    )
    found = widened(model)
    casts = [node.inputs[0] for node in found.graph if node.op_type == "Cast"]
    assert ("k" in {x.name for x in casts if x is not None}) is before
    assert ("z" in {x.name for x in casts if x is not None}) is not before
    assert "t" not in {x.name for node in found.graph for x in node.outputs}  # nothing reads it
    feeds = {"q": weight(2, 5, 32), "k": weight(2, 5, 32, seed=1), "bias": weight(2, 5, 1)}
    assert_same(model, feeds)


SOFTMAX = """g (float16[b, n, 32] q, float16[b, n, 32] k) => (float16[b, n, 32] y) {
    t = Transpose <perm = [0, 2, 1]> (k)
    s = MatMul(q, t)
    f = Cast <to = 1> (s)
    p = Softmax <axis = -1> (f)
    h = Cast <to = 10> (p)
    y = MatMul(h, k)
}"""


def test_roundings_between_float32_steps_are_left_out_as_onnx_runtime_does(tmp_path: Path) -> None:
    model = model_of(SOFTMAX)
    kept = [n.op_type for n in widened(model).graph]
    assert kept.count("Cast") == 3  # q, k and y
    feeds = {x: weight(2, 9, 32, seed=i) for i, x in enumerate("qk")}
    assert_same(model, feeds)
    options = quiet_options()
    options.optimized_model_filepath = str(tmp_path / "own.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    own = onnx.load(options.optimized_model_filepath).graph
    (softmax,) = [n for n in own.node if n.op_type == "Softmax"]
    (product,) = [n for n in own.node if softmax.output[0] in n.input]
    assert product.op_type in ("MatMul", "FusedMatMul")  # no rounding in its graph either


def test_what_wants_either_type_gets_it() -> None:
    """A float32 step behind a conversion, and a float16 step beside one, keep their types."""
    model = model_of(
        """g (float16[n, 16] x) => (float[n, 16] y, float16[n, 16] z, float16[n, 16] r) {
            a = MatMul(x, w)
            f = Cast <to = 1> (a)
            h = Cast <to = 10> (f)
            z = Mul(h, s)
            y = Mul(f, t)
            r = Where(c, h, a)
        }""",
        w=weight(16, 16),
        s=weight(16),
        t=weight(16).astype(np.float32),
        c=np.arange(16) % 2 == 0,
    )
    types = types_of(widened(model))
    assert [types[n] for n in "ayzr"] == [FLOAT, FLOAT, HALF, HALF]
    assert_same(model, {"x": weight(5, 16)})


def test_a_mask_that_overflows_stays_float16() -> None:
    """-1e9 is -inf in float16: a rounding in front of every contraction is not left out."""
    model = model_of(
        """g (float[b, n] mask, float16[b, n, n] s) => (float16[b, n, n] y) {
            one = Constant <value_float = -1000000000.0> ()
            m = Mul(mask, one)
            h = Cast <to = 10> (m)
            axes = Constant <value_ints = [1]> ()
            u = Unsqueeze(h, axes)
            t = MatMul(s, s)
            z = Add(t, u)
            y = Softmax <axis = -1> (z)
        }"""
    )
    assert types_of(widened(model))["h"] == HALF
    mask = np.array([[0, 1, 1], [1, 1, 1]], np.float32)  # a row of -inf alone is NaN in both
    feeds = {"mask": mask, "s": weight(2, 3, 3)}
    want = plain(model).run(None, feeds)[0]
    got = plain(ir.to_proto(widened(model))).run(None, feeds)[0]
    np.testing.assert_array_equal(np.isnan(want), np.isnan(got))
    assert np.isnan(want[1]).all() and not np.isnan(want[0]).any()


def test_bodies_of_loops_get_what_they_capture_in_float16() -> None:
    model = model_of(
        """g (float16[n, 16] x, int64 trips) => (float16[n, 16] y) {
            a = MatMul(x, w)
            y = Loop(trips, , a) <body = b (int64 i, bool c, float16[n, 16] v)
                => (bool d, float16[n, 16] r) {
                d = Identity(c)
                q = Relu(a)
                r = Add(v, q)
            }>
        }""",
        w=weight(16, 16),
    )
    feeds = {"x": weight(3, 16), "trips": np.asarray(2)}
    assert_same(model, feeds)


# ---- a whole encoder


CONFIG = BertConfig(layers=2, hidden=64, heads=4, ffn=128)
SIZES = ((1, 1), (3, 7), (4, 33), (0, 5), (2, 0))


WEIGHTS = random_weights(CONFIG, np.random.default_rng(5))


def encoder() -> onnx.ModelProto:
    return half(bert_graph(CONFIG, WEIGHTS))


def feeds_with(kind: str, size: tuple[int, int]) -> Feeds:
    """Ids, and a mask whose last sequence has no token, one, holes or padding on one side."""
    rng = np.random.default_rng(3)
    batch, length = size
    places, lengths = np.arange(length), rng.integers(0, length + 1, (batch, 1))
    masks = {
        "none": places < np.zeros((batch, 1)),
        "one": np.broadcast_to(places == length // 2, size),
        "holes": rng.random(size) < 0.5,
        "right": places < lengths,
        "left": places >= length - lengths,
        "full": np.ones(size),
    }
    ids = rng.integers(1, CONFIG.vocab, size)
    mask = masks[kind].astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


KINDS = ("none", "one", "holes", "right", "left", "full")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> pitc.CompiledModel:
    folder = tmp_path_factory.mktemp("half")
    return pitc.compile(encoder(), "cpu", "attention_mask", output=folder / "m.pitc", check=True)


def test_an_encoder_runs_packed_from_end_to_end(compiled: pitc.CompiledModel) -> None:
    counts = [n.lowering for n in compiled.report.nodes if n.op_type == "MatMul"]
    assert counts.count("packed") == 12 and counts.count("attention") == 2
    model = onnx.load(compiled.path / "model.onnx")
    texts = (a.s for n in model.graph.node for a in n.attribute if a.name == "ep_cache_context")
    found = [parse(text.decode()) for text in texts]
    assert {p["dtype"] for p in found if p["kind"] in ("attention", "dense")} == {"float32"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_answers_as_onnx_runtime_does(compiled: pitc.CompiledModel, kind: str) -> None:
    """No farther from float64 than ONNX Runtime is, and within the tolerance of it."""
    own, ours = plain(encoder()), compiled.session(quiet_options())
    drawn = {k: x.astype(np.float16).astype(np.float64) for k, x in WEIGHTS.items()}
    for size in SIZES:
        feeds = feeds_with(kind, size)
        (want,), (got,) = own.run(None, feeds), ours.run(None, feeds)
        live = feeds["attention_mask"] != 0
        assert got.dtype == want.dtype == np.float16 and got.shape == want.shape
        assert not got[~live].any()
        if not live.any():
            continue
        exact = forward(CONFIG, drawn, feeds)["last_hidden_state"][live]
        want, got = (x[live].astype(np.float64) for x in (want, got))
        assert np.linalg.norm(got - want) <= LIMIT * np.linalg.norm(want)
        assert np.linalg.norm(got - exact) <= 1.5 * np.linalg.norm(want - exact) + 1e-9


def test_weights_of_an_artifact_stay_float16(compiled: pitc.CompiledModel) -> None:
    """Once, in either graph, and what it falls back on is the model."""
    source = encoder()
    largest = sum(len(t.raw_data) for t in source.graph.initializer)
    assert (compiled.path / "weights.bin").stat().st_size <= 1.2 * largest
    feeds = feeds_with("right", (3, 7))
    path = compiled.path / "fallback.onnx"
    session = ort.InferenceSession(path, quiet_options(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feeds)[0], plain(source).run(None, feeds)[0])


def test_facts_of_an_encoder_hold(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(encoder(), path)
    feeds = [feeds_with(kind, (3, 7)) for kind in KINDS]
    result = audit_facts(load_model(path), "attention_mask", feeds)
    assert not result.failures and result.dead_checks and result.fill_checks


# ---- decoders with a cache


def has_branches(file: Path) -> bool:
    """The converter does not look into them."""
    return any(n.op_type == "If" for n in onnx.load(file).graph.node)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", [f for f in CACHED if not has_branches(f)], ids=name)
def test_decoders_with_a_cache(file: Path) -> None:
    """From no past and from one: keys and values as ONNX Runtime gives them."""
    model = half(onnx.load(file))
    lowered = run_passes(ir.from_proto(model), LowerOptions(prices=PRICES, check=True))
    proto, session = ir.to_proto(lowered.model), plain(model)
    types = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    for feeds in feeds_of(file, AUDITED):
        feeds = {k: x.astype(np.float16) if types[k] == HALF else x for k, x in feeds.items()}
        for x, y in zip(session.run(None, feeds), run_lowered(proto, feeds), strict=True):
            assert np.asarray(y).dtype == x.dtype == np.float16
            x, y = (np.asarray(v, np.float64) for v in (x, y))
            assert np.linalg.norm(x - y) <= LIMIT * np.linalg.norm(x)

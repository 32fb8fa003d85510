"""Norms that rounding products read: which are nodes of ours, what they write, and the answers."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import pitc
from tests.plan_reference import parse
from tests.plugin.test_bf16 import LEVELS, at_level, error
from tests.runtime_support import quiet_options, use_built_provider

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

LAYER = "LayerNormalization <axis = -1, epsilon = 0.001>"


@dataclass(frozen=True)
class Form:
    """A graph of x `[b, s, 64]`.

    Args:
        body: Its nodes; y is its output, perhaps z another one.
        norms: How many norms are packed nodes.
        stored: What the products read or store as bfloat16.
        outputs: Declarations.
    """

    body: str
    norms: int
    stored: tuple[str | None, ...]
    outputs: str = "float[b, s, m] y"


FORMS = {
    "only products read it": Form(f"h = {LAYER} (x, g, d) y = MatMul (h, u)", 1, ("a",)),
    "a residual reads it, too": Form(
        f"h = {LAYER} (x, g, d) w = MatMul (h, u) q = MatMul (w, v) y = Add (q, h)",
        1,
        ("a,result", "a"),
    ),
    "no bias": Form(f"h = {LAYER} (x, g) y = MatMul (h, u)", 1, ("a",)),
    "no mean": Form(
        "h = SimplifiedLayerNormalization <axis = -1, epsilon = 0.001> (x, g) y = MatMul (h, u)",
        1,
        ("a",),
    ),
    "rows that are flattened": Form(
        f"h = {LAYER} (x, g, d) f = Reshape (h, rows) w = MatMul (f, u) y = Reshape (w, back)",
        1,
        ("a",),
    ),
    "it is an output, too": Form(
        f"h = {LAYER} (x, g, d) y = MatMul (h, u) z = Identity (h)",
        1,
        ("a",),
        "float[b, s, m] y, float[b, s, l] z",
    ),
    "one behind the other": Form(
        f"h = {LAYER} (x, g, d) w = MatMul (h, u) q = MatMul (w, v) r = Add (q, x)"
        f" k = {LAYER} (r, g, d) y = MatMul (k, u)",
        2,
        ("a,result", "a", "a"),
    ),
    "no product reads it": Form(f"h = {LAYER} (x, g, d) a = Sin (h) y = MatMul (a, u)", 0, (None,)),
    "of two dimensions": Form(
        "h = LayerNormalization <axis = 1> (x, gs, ds) y = MatMul (h, u)", 0, (None,)
    ),
    "its statistics are read": Form(
        "h, n, r = LayerNormalization (x, g, d) w = MatMul (h, u) y = Mul (w, r)", 0, (None,)
    ),
    "beside a node without inputs": Form(
        "r = RandomUniform <low = 1.0, high = 1.0, shape = [1]> ()"
        f" h = {LAYER} (x, g, d) w = MatMul (h, u) y = Mul (w, r)",
        1,
        ("a",),
    ),
    "a factor for all": Form("h = LayerNormalization (x, one) y = MatMul (h, u)", 0, (None,)),
}


def model(form: Form) -> onnx.ModelProto:
    rows = "50" if "gs" in form.body else "s"
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]>'
        f"g (float[b, {rows}, 64] x) => ({form.outputs}) {{ {form.body} }}"
    )
    rng = np.random.default_rng(0)
    shapes = {"u": (64, 96), "v": (96, 64), "g": (64,), "d": (64,), "gs": (50, 64), "ds": (50, 64)}
    for name, shape in {**shapes, "one": (1,)}.items():
        w = rng.normal(size=shape) / (np.sqrt(shape[0]) if name in "uv" else 1)
        proto.graph.initializer.append(numpy_helper.from_array(w.astype(np.float32), name))
    for name, dims in {"rows": [-1, 64], "back": [1, -1, 96]}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(dims), name))
    return proto


@pytest.mark.parametrize("name", FORMS)
def test_which_are_packed_nodes(name: str) -> None:
    """Answers are those of the source, and do not depend on threads."""
    form = FORMS[name]
    proto = model(form)
    made = pitc.compile(proto, precision="bf16", suggest=False)
    graph = onnx.load(made.path / "model.onnx", load_external_data=False).graph
    texts = [a.s.decode() for n in graph.node for a in n.attribute if a.name == "ep_cache_context"]
    plans = list(map(parse, texts))
    assert sum(p["op"] == "norm" for p in plans) == form.norms
    assert tuple(p.get("stored") for p in plans if p["op"] == "contract") == form.stored
    ours = [r for r in made.report.nodes if r.kernel is not None and r.kernel.operation == "norm"]
    assert len(ours) == form.norms and {r.engine for r in ours} <= {"cpu"}
    source = ort.InferenceSession(
        proto.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )
    batches = [1] if "flattened" in name else [0, 1, 3]
    sizes = [(b, s) for b in batches for s in ((50,) if "gs" in form.body else (0, 1, 50))]
    for level in LEVELS:
        session, threads = at_level(made, level), at_level(made, level, threads=3)
        for size in sizes:
            x = np.random.default_rng(size[1]).normal(size=(*size, 64)).astype(np.float32)
            found, others, wanted = (
                [np.asarray(y) for y in s.run(None, {"x": x})] for s in (session, threads, source)
            )
            for y, other, want in zip(found, others, wanted, strict=True):
                assert y.shape == want.shape
                assert not y.size or error(y, want) <= 9e-3
                np.testing.assert_array_equal(y, other)
            for y, want in zip(found[1:], wanted[1:], strict=True):  # no product: float32
                np.testing.assert_allclose(y, want, atol=1e-5)


def test_without_the_option_norms_stay() -> None:
    made = pitc.compile(model(FORMS["only products read it"]), suggest=False)
    graph = onnx.load(made.path / "model.onnx", load_external_data=False).graph
    assert [n.op_type for n in graph.node] == ["LayerNormalization", "MatMul"]

"""Which values between rounding products are stored as bfloat16: answers do not show it."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import pitc
from pitc.host.machine import bfloat16_unit
from pitc.passes.lower import steps
from tests.plan_reference import parse
from tests.runtime_support import Array, quiet_options, use_built_provider

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)


@dataclass(frozen=True)
class Form:
    """A graph of x `[b, s, 64]` and what its products store.

    Args:
        body: Its nodes; y is its output, perhaps z another one.
        stored: Of each product, in order.
        weights: Shapes by name.
        outputs: Declarations.
    """

    body: str
    stored: tuple[str | None, ...]
    weights: tuple[tuple[str, tuple[int, int]], ...] = (("u", (64, 96)), ("v", (96, 64)))
    outputs: str = "float[b, s, m] y"


LONG = 3074
FORMS = {
    "a chain": Form("h = MatMul (x, u) y = MatMul (h, v)", ("result", "a")),
    "an activation": Form("g = MatMul (x, u) h = Relu (g) y = MatMul (h, v)", ("result", "a")),
    "rows that are flattened": Form(
        "h = MatMul (x, u) f = Reshape (h, rows) w = MatMul (f, v) y = Reshape (w, back)",
        ("result", "a"),
    ),
    "three one behind the other": Form(
        "h = MatMul (x, u) g = MatMul (h, v) y = MatMul (g, u)", ("result", "a,result", "a")
    ),
    "two readers": Form(
        "h = MatMul (x, u) p = MatMul (h, v) q = MatMul (h, v) y = Add (p, q)",
        ("result", "a", "a"),
    ),
    "its sizes are read": Form(
        "h = MatMul (x, u) n = Shape (h) p = MatMul (h, v) m = Shape (p) k = Mul (n, m)"
        " z = Cast <to = 1> (k) y = Identity (p)",
        ("result", "a"),
        outputs="float[b, s, m] y, float[t] z",
    ),
    "it is an output": Form(
        "h = MatMul (x, u) y = MatMul (h, v) z = Identity (h)",
        (None, None),
        outputs="float[b, s, m] y, float[b, s, l] z",
    ),
    "it is a residual": Form(
        "h = MatMul (x, u) w = MatMul (h, v) g = MatMul (w, u) y = Add (g, h)",
        (None, "result", "a"),
    ),
    "a step that is no product": Form(
        "h = MatMul (x, u) g = Softmax (h) y = MatMul (g, v)", (None, None)
    ),
    "an odd number of columns": Form(
        "h = MatMul (x, u) y = MatMul (h, v)", (None, None), (("u", (64, 97)), ("v", (97, 64)))
    ),
    "one of several columns": Form(
        "h = MatMul (x, u) y = MatMul (h, v)",
        ("result", "a"),
        (("u", (64, 98)), ("v", (98, 17))),
    ),
    "sums that wait in the result": Form(
        "w = MatMul (x, t) h = MatMul (w, u) y = MatMul (h, v)",
        ("result", "a", None),
        (("t", (64, LONG)), ("u", (LONG, 96)), ("v", (96, 64))),
    ),
    "a product of two values": Form(
        "h = MatMul (x, u) t = Transpose <perm = [0, 2, 1]> (h) y = MatMul (h, t)", (None,)
    ),
}


def model(form: Form) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]>'
        f"g (float[b, s, 64] x) => ({form.outputs}) {{ {form.body} }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in form.weights:
        w = (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(w, name))
    for name, dims in {"rows": [-1, 96], "back": [1, -1, 64]}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(dims), name))
    return proto


def plans_of(compiled: pitc.CompiledModel) -> list[dict[str, str]]:
    graph = onnx.load(compiled.path / "model.onnx", load_external_data=False).graph
    texts = [a.s.decode() for n in graph.node for a in n.attribute if a.name == "ep_cache_context"]
    return [parse(text) for text in texts]


def answers(compiled: pitc.CompiledModel, x: Array, threads: int = 1) -> list[Array]:
    options = quiet_options()
    options.intra_op_num_threads = threads
    return [np.asarray(y) for y in compiled.session(options).run(None, {"x": x})]


@pytest.mark.parametrize("name", FORMS)
def test_what_is_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are those of a graph that stores nothing so, where kernels round what they read."""
    form = FORMS[name]
    proto = model(form)
    made = pitc.compile(proto, precision="bf16", suggest=False)
    plans = [p for p in plans_of(made) if p["op"] == "contract"]
    assert tuple(p.get("stored") for p in plans) == form.stored
    kept = [s for s in steps.STEPS if s.name != "rounded values"]
    monkeypatch.setattr(steps, "STEPS", kept)
    plain = pitc.compile(proto, precision="bf16", suggest=False)
    source = ort.InferenceSession(
        proto.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )
    batches = [1] if "flattened" in name else [0, 1, 3]
    for b in batches:
        for s in (0, 1, 7, 50):
            x = np.random.default_rng(s).normal(size=(b, s, 64)).astype(np.float32)
            found, others = answers(made, x), answers(plain, x)
            for y, other, wanted in zip(found, others, source.run(None, {"x": x}), strict=True):
                wanted = np.asarray(wanted)
                if bfloat16_unit():
                    np.testing.assert_array_equal(y, other)
                assert y.shape == wanted.shape and y.dtype == wanted.dtype
                assert not y.size or np.linalg.norm(y - wanted) <= 9e-3 * np.linalg.norm(wanted)
            for y, other in zip(found, answers(made, x, threads=3), strict=True):
                np.testing.assert_array_equal(y, other)


def test_packed_rows_are_stored_so() -> None:
    """Rows that a mask leaves, gathered in front and scattered behind."""
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]>'
        "g (float[b, s, 64] x, int64[b, s] mask) => (float[b, s, 64] y) {"
        " f = Cast <to = 1> (mask) axes = Constant <value_ints = [2]> () e = Unsqueeze (f, axes)"
        " h = MatMul (x, u) g = Relu (h) w = MatMul (g, v) y = Mul (w, e) }"
    )
    for initializer in model(FORMS["a chain"]).graph.initializer:
        proto.graph.initializer.append(initializer)
    made = pitc.compile(proto, padding="mask", precision="bf16", suggest=False)
    stored = [p.get("stored") for p in plans_of(made) if p["op"] == "contract"]
    assert stored == ["result", "a"]
    session = made.session(quiet_options())
    source = ort.InferenceSession(
        proto.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    for b, s in ((1, 1), (3, 40), (2, 0)):
        mask = (rng.random((b, s)) < 0.4).astype(np.int64)
        feeds = {"x": rng.normal(size=(b, s, 64)).astype(np.float32), "mask": mask}
        found, wanted = (np.asarray(x.run(None, feeds)[0]) for x in (session, source))
        assert np.linalg.norm(found - wanted) <= 9e-3 * np.linalg.norm(wanted) + 1e-9

"""Attention of rounded numbers: which is, what is stored, and what the answers are."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import pitc
from pitc.host.machine import runs_level
from pitc.passes.lower import steps
from tests.plan_reference import parse
from tests.plugin.test_bf16 import LEVELS, at_level, error
from tests.runtime_support import Array, use_built_provider

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

HEADS = 4
PARTS = {
    "q": "q0 = MatMul (x, wq) q1 = Reshape (q0, heads) q = Transpose <perm = [0, 2, 1, 3]> (q1)",
    "k": "k0 = MatMul (x, wk) k1 = Reshape (k0, heads) k = Transpose <perm = [0, 2, 3, 1]> (k1)",
    "v": "v0 = MatMul (x, wv) v1 = Reshape (v0, heads) v = Transpose <perm = [0, 2, 1, 3]> (v1)",
    "scores": "s0 = MatMul (q, k) s1 = Mul (s0, scale)",
    "mask": "f = Cast <to = 1> (mask) n = Sub (one, f) i = Mul (n, low) j = Unsqueeze (i, places)"
    " s2 = Add (s1, j)",
    "values": "p = Softmax <axis = -1> (s2) c0 = MatMul (p, v)",
    "out": "c1 = Transpose <perm = [0, 2, 1, 3]> (c0) c = Reshape (c1, back) y0 = MatMul (c, wo)",
    "end": "e = Unsqueeze (f, last) y = Mul (y0, e)",
}
ALL = "q,k,v,result"


@dataclass(frozen=True)
class Form:
    """A layer of attention.

    Args:
        stored: Of the attention.
        parts: Other nodes instead of some.
        size: Of a head.
        rounded: The attention rounds.
    """

    stored: str | None = ALL
    parts: tuple[tuple[str, str], ...] = ()
    size: int = 16
    rounded: bool = True


FORMS = {
    "a layer": Form(),
    "queries that are turned": Form(
        "k,v,result",
        (("q", PARTS["q"].replace("(q1)", "(q2)").replace("q =", "q2 = Sin (q1) q =")),),
    ),
    "values that are a residual": Form(
        "q,k,result", (("end", "y1 = Add (y0, v0) e = Unsqueeze (f, last) y = Mul (y1, e)"),)
    ),
    "a result that is one": Form(
        "q,k,v", (("end", "y1 = Add (y0, c) e = Unsqueeze (f, last) y = Mul (y1, e)"),)
    ),
    "heads of an odd size": Form(None, size=17, rounded=False),
    "heads of no multiple of a vector": Form(size=18),
    "scores that are capped": Form(
        parts=(("scores", "s0 = MatMul (q, k) t = Tanh (s0) s1 = Mul (t, two)"),)
    ),
}


def model(form: Form) -> onnx.ModelProto:
    body = " ".join((PARTS | dict(form.parts)).values())
    width = HEADS * form.size
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]>'
        f"g (float[b, s, 64] x, int64[b, s] mask) => (float[b, s, {width}] y) {{ {body} }}"
    )
    rng = np.random.default_rng(0)
    for name in ("wq", "wk", "wv", "wo"):
        rows = width if name == "wo" else 64
        w = (rng.normal(size=(rows, width)) * 1.5 / np.sqrt(rows)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(w, name))
    numbers = {"scale": form.size**-0.5, "one": 1, "low": -1e9, "two": 2}
    lists = {
        "heads": [0, 0, HEADS, form.size],
        "back": [0, 0, width],
        "places": [1, 2],
        "last": [2],
    }
    for name, x in numbers.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(x, np.float32), name))
    for name, dims in lists.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(dims), name))
    return proto


def compiled(proto: onnx.ModelProto, precision: str = "bf16") -> pitc.CompiledModel:
    return pitc.compile(proto, padding="mask", precision=precision, suggest=False)


def attention_of(made: pitc.CompiledModel) -> dict[str, str]:
    """The plan of its attention."""
    graph = onnx.load(made.path / "model.onnx", load_external_data=False).graph
    texts = [a.s.decode() for n in graph.node for a in n.attribute if a.name == "ep_cache_context"]
    (found,) = [p for p in map(parse, texts) if p["op"] == "attention"]
    return found


def feeds(sizes: tuple[int, int]) -> dict[str, Array]:
    rng = np.random.default_rng(sizes[1])
    lengths = rng.integers(1, sizes[1] + 1, sizes[0]) if sizes[1] else np.zeros(sizes[0])
    mask = (np.arange(sizes[1]) < lengths[:, None]).astype(np.int64)
    return {"x": rng.normal(size=(*sizes, 64)).astype(np.float32), "mask": mask}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_rounded_and_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are those of a graph that stores nothing so, on one thread or three."""
    form = FORMS[name]
    proto = model(form)
    made, exact = compiled(proto), compiled(proto, "float32")
    plan = attention_of(made)
    assert (plan.get("rounded"), plan.get("stored")) == (
        "bfloat16" if form.rounded else None,
        form.stored,
    )
    kept = [s for s in steps.STEPS if s.name != "rounded values"]
    monkeypatch.setattr(steps, "STEPS", kept)
    others = compiled(proto)
    assert attention_of(others).get("stored") is None
    for level in LEVELS:
        runs = [at_level(x, level) for x in (made, exact, others)]
        threads = at_level(made, level, threads=3)
        for sizes in ((1, 1), (3, 40), (2, 0), (0, 4), (2, 250)):
            given = feeds(sizes)
            y, wanted, plain = (np.asarray(s.run(None, given)[0]) for s in runs)
            assert y.shape == wanted.shape
            assert not y.size or error(y, wanted) <= 1.5e-2
            np.testing.assert_array_equal(y, np.asarray(threads.run(None, given)[0]))
            if level not in ("v4", "v3"):  # there only what is stored is rounded
                np.testing.assert_array_equal(y, plain)


def test_a_model_of_steps_keeps_them() -> None:
    """Scores that are quantised are rounded as the graph says, and by nothing else."""
    quantised = (
        "s0 = MatMul (q, k) r = Mul (s0, scale) t = QuantizeLinear (r, step, zero)"
        " s1 = DequantizeLinear (t, step, zero)"
    )
    proto = model(Form(parts=(("scores", quantised),)))
    for name, x in {"step": np.float32(0.05), "zero": np.int8(0)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(x), name))
    plan = attention_of(compiled(proto))
    assert "score_step" in plan and "rounded" not in plan


@pytest.mark.skipif(not runs_level("v4_bf16"), reason="this machine has no AVX512-BF16")
def test_weights_are_rounded_too() -> None:
    """The answer differs from that of rounded queries, keys and values alone."""
    made = compiled(model(FORMS["a layer"]))
    given = feeds((3, 40))
    native, wide = (
        np.asarray(at_level(made, level).run(None, given)[0]) for level in ("v4_bf16", "v4")
    )
    assert 1e-4 < error(native, wide) < 1e-2


def test_answers_verify(tmp_path: Path) -> None:
    """Within the tolerance of rounded numbers."""
    made = compiled(model(FORMS["a layer"]))
    made.save(tmp_path / "layer.pitc")
    assert pitc.verify(tmp_path / "layer.pitc").ok

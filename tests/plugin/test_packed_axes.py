"""Contractions by the axes that are packed (`regions/contraction.py`): one model for each row of
the table, lowered or refused, and the same numbers for every mask and size.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from pitc import api
from pitc.ir import target as targets
from pitc.ir.refusal import Code
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.lower_support import plans
from tests.plan_reference import run_lowered

HEAD = '<ir_version: 9, opset_import: ["" : 17]> g '
K, N = 24, 20
INTEGERS = {"last": [-1], "one": [1], "rows": [-1, K], "columns": [-1, N]}

# dw = x^T dy, where dy is 0 at tokens that do not exist
MASKED = "m3 = Unsqueeze (m, last) d = Mul (dy, m3)"
FLAT = "d2 = Reshape (d, columns) x2 = Reshape (x, rows)"
SUMS = {
    "MatMul": f"{MASKED} {FLAT} t = Transpose <perm = [1, 0]> (x2) y = MatMul (t, d2)",
    "Gemm": f"{MASKED} {FLAT} y = Gemm <transA = 1> (x2, d2)",
    "scaled": f"{MASKED} {FLAT} y = Gemm <transA = 1, alpha = 0.5> (x2, d2)",
    "Einsum": f'{MASKED} y = Einsum <equation = "bsk,bsn->kn"> (x, d)',
    "the other operand is 0": """m3 = Unsqueeze (m, last) z = Mul (x, m3)
        d2 = Reshape (dy, columns) z2 = Reshape (z, rows) y = Gemm <transA = 1> (z2, d2)""",
}
TOKENS = f"(float[b, s, {K}] x, float[b, s, {N}] dy, float[b, s] m) => (float[{K}, {N}] y)"


def parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model with the constants that it reads."""
    model = onnx.parser.parse_model(HEAD + text)
    arrays: dict[str, Any] = {k: np.asarray(v, np.int64) for k, v in INTEGERS.items()} | weights
    read = {name for node in model.graph.node for name in node.input}
    for name in sorted(read & set(arrays)):
        model.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
    return model


def lower(model: onnx.ModelProto) -> Lowered:
    return run_passes(ir.serde.deserialize_model(model), LowerOptions(check=True))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).normal(size=shape).astype(np.float32)


def masks(*shape: int) -> list[np.ndarray]:
    """None live, all, one, some."""
    one = np.zeros(shape, np.float32)
    one[(-1,) * len(shape)] = 1
    some = (np.arange(one.size).reshape(shape) % 3 != 1).astype(np.float32)
    return [one * 0, one * 0 + 1, one, some]


def arrays(session: ort.InferenceSession, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(y) for y in session.run(None, dict(feeds))]


def check(model: onnx.ModelProto, lowered: Lowered, feeds: Mapping[str, np.ndarray]) -> None:
    want = arrays(ort.InferenceSession(model.SerializeToString()), feeds)
    got = run_lowered(ir.serde.serialize_model(lowered.model), dict(feeds))
    for w, g in zip(want, got, strict=True):
        assert w.shape == g.shape
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5)


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = replace(targets.CPU, flops_per_byte=0, least_extent=1)
    monkeypatch.setattr(targets, "CPU", eager)


def became(lowered: Lowered, op_type: str) -> list[str]:
    return [r.lowering for r in lowered.report.nodes if r.op_type == op_type]


@pytest.mark.parametrize("case", SUMS)
def test_sums_over_live_tokens(case: str) -> None:
    """k: terms of dead tokens are 0; rows of both operands are gathered, the sum is whole."""
    model = parsed(f"{TOKENS} {{ {SUMS[case]} }}")
    lowered = lower(model)
    (region,) = lowered.report.regions
    assert region.flops_per_row == 2 * K * N and "dead where m[d0, d1] == 0" in region.domain
    assert [p["op"] for p in plans(lowered)].count("outer_products") == 1
    for b, s in ((2, 5), (1, 1), (3, 1)):
        for mask in masks(b, s):
            check(model, lowered, {"x": normal(b, s, K), "dy": normal(b, s, N), "m": mask})


@pytest.mark.parametrize(("b", "s"), [(0, 3), (2, 0), (2, 5)])
def test_sums_of_nothing_are_zero_in_onnx_runtime(
    b: int, s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token at all, or none that lives: a Gemm with nothing to sum gives 0. It runs where sums
    are small.
    """
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, least_extent=N + 1))
    model = parsed(f"{TOKENS} {{ {SUMS['Gemm']} }}")
    lowered = lower(model)
    gemm = next(n for n in lowered.model.graph if n.op_type == "Gemm")
    assert {k: v.value for k, v in gemm.attributes.items()} == {"transA": 1, "transB": 0}
    sums = parsed(
        f"(float[t, {K}] x, float[t, {N}] d) => (float[k, n] y) {{ y = Gemm <transA = 1> (x, d) }}"
    )
    session = ort.InferenceSession(sums.SerializeToString())
    (y,) = arrays(session, {"x": normal(0, K), "d": normal(0, N)})
    assert y.shape == (K, N) and (y == 0).all()
    mask = np.zeros((b, s), np.float32)
    check(model, lowered, {"x": normal(b, s, K), "dy": normal(b, s, N), "m": mask})


@pytest.mark.parametrize(
    ("text", "x"),
    [
        # what it is multiplied by may be infinite where 0 stands
        ("m3 = Unsqueeze (m, last) d = Mul (dy, m3) r = Reciprocal (x)", "r"),
        # 1 is not 0
        ("m3 = Unsqueeze (m, last) d0 = Mul (dy, m3) d = Exp (d0)", "x"),
    ],
)
def test_terms_that_may_not_be_zero_stay(text: str, x: str) -> None:
    flat = FLAT.replace("(x,", f"({x},")
    model = parsed(f"{TOKENS} {{ {text} {flat} y = Gemm <transA = 1> (x2, d2) }}")
    lowered = lower(model)
    assert not lowered.report.regions and "Gemm" in [n.op_type for n in lowered.model.graph]


def test_a_sum_over_more_than_the_packed_axis_stays() -> None:
    """Of [b, s, c, k] only the tokens are known: places of a channel are summed, too."""
    model = parsed(
        f"""(float[b, s, 3, {K}] x, float[b, s, 3, {N}] dy, float[b, s] m) => (float[{K}, {N}] y) {{
        m4 = Reshape (m, shape) d = Mul (dy, m4) d2 = Reshape (d, columns) x2 = Reshape (x, rows)
        y = Gemm <transA = 1> (x2, d2) }}""".replace(
            "m4 = Reshape (m, shape)", "m3 = Unsqueeze (m, last) m4 = Unsqueeze (m3, last)"
        )
    )
    assert not lower(model).report.regions


def test_a_sum_of_which_only_the_run_knows_the_extents_stays() -> None:
    tokens = TOKENS.replace("float[b, s] m)", f"float[b, s] m, bool[{K}] f)").replace(
        f"[{K}, {N}] y", f"[u, {N}] y"
    )
    model = parsed(
        f"{tokens} {{ {MASKED} {FLAT} kept = Compress <axis = 1> (x2, f)"
        " y = Gemm <transA = 1> (kept, d2) }"
    )
    lowered = lower(model)
    assert not lowered.report.regions
    feeds = {"x": normal(2, 5, K), "dy": normal(2, 5, N), "m": masks(2, 5)[3]}
    check(model, lowered, {**feeds, "f": np.arange(K) % 2 == 0})


COLUMNS = {
    "constant": """(float[r, 24] x, float[20] m) => (float[r, 20] y)
        { h = MatMul (x, w) y = Mul (h, m) }""",
    "computed": """(float[r, 24] x, float[24, 20] v, float[20] m) => (float[r, 20] y)
        { e = Tanh (v) h = MatMul (x, e) y = Mul (h, m) }""",
    "with a bias": """(float[r, 24] x, float[20] m) => (float[r, 20] y)
        { h = Gemm (x, w, c) y = Mul (h, m) }""",
    "transposed": """(float[r, 24] x, float[20] m) => (float[r, 20] y)
        { h = Gemm <transB = 1> (x, wt) y = Mul (h, m) }""",
    "one in front": """(float[1, 7, 24] x, float[20] m) => (float[1, 7, 20] y)
        { h = MatMul (x, w) y = Mul (h, m) }""",
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_of_the_right_operand(case: str) -> None:
    """n: columns that are multiplied by 0 are not computed."""
    w = normal(K, N)
    model = parsed(COLUMNS[case], w=w, wt=np.ascontiguousarray(w.T), c=normal(N))
    lowered = lower(model)
    product = "Gemm" if case in ("with a bias", "transposed") else "MatMul"
    assert became(lowered, product) == ["packed"], [str(r.refusal) for r in lowered.report.nodes]
    (region,) = lowered.report.regions
    assert "rows over ['20']" in region.domain
    lead = (1,) if case == "one in front" else ()
    for r in (7,) if lead else (0, 1, 7):
        for mask in masks(N):
            feeds = {"x": normal(*lead, r, K), "m": mask, "v": normal(K, N)}
            check(model, lowered, {i.name: feeds[i.name] for i in model.graph.input})


def test_both_sides_of_a_hidden_layer() -> None:
    """n, then k: columns that a mask leaves out are computed by no product and summed by none."""
    model = parsed(
        """(float[r, 24] x, float[20] m) => (float[r, 24] y)
        { h = MatMul (x, w) g = Mul (h, m) y = MatMul (g, wt) }""",
        w=normal(K, N),
        wt=normal(N, K),
    )
    lowered = lower(model)
    assert became(lowered, "MatMul") == ["packed", "outer_products"]
    made = [n.op_type for n in lowered.model.graph if n.op_type == "EPContext"]
    assert became(lowered, "Mul") == ["packed"], "it lives elsewhere too, where nobody reads it"
    assert len(made) == 5, (
        "a detector, columns of w, their part of the mask, rows of wt, the sum; no SWrite"
    )
    for r in (0, 1, 6):
        for mask in masks(N):
            check(model, lowered, {"x": normal(r, K), "m": mask})


REFUSED = {
    "m x n": (
        """(float[2, q, 24] x, float[24, 20] v, float[2, q, 20] m) => (float[2, q, 20] y)
        { e = Tanh (v) h = MatMul (x, e) y = Mul (h, m) }""",
        "a product of single elements (m x n) has no kernel",
    ),
    "e x m": (
        """(float[4, r, 24] x, float[4, 24, 20] v, float[4, r] m) => (float[4, r, 20] y)
        { e = Tanh (v) h = MatMul (x, e) m3 = Unsqueeze (m, last) y = Mul (h, m3) }""",
        "a product by groups of rows (e x m) has no kernel",
    ),
    "e x n": (
        """(float[4, 7, 24] x, float[4, 24, c] v, float[4, c] m) => (float[4, 7, c] y)
        { e = Tanh (v) h = MatMul (x, e) m3 = Unsqueeze (m, one) y = Mul (h, m3) }""",
        "a product by groups of columns (e x n) has no kernel",
    ),
    "e x m x n": (
        """(float[4, r, 24] x, float[4, 24, c] v, float[4, r, c] m) => (float[4, r, c] y)
        { e = Tanh (v) h = MatMul (x, e) y = Mul (h, m) }""",
        "a product of single elements of groups (e x m x n) has no kernel",
    ),
}


@pytest.mark.parametrize("axes", REFUSED)
def test_domains_that_have_no_kernel_yet(axes: str) -> None:
    """What is dead is known, and by which index; the refusal says which product is missing."""
    text, reason = REFUSED[axes]
    lowered = lower(parsed(text))
    (record,) = (r for r in lowered.report.nodes if r.op_type == "MatMul")
    assert record.refusal is not None and record.refusal.code is Code.NO_KERNEL
    assert record.refusal.reason == reason
    assert any("== 0" in fact for fact in record.dead)


def test_a_product_for_every_live_group() -> None:
    """e: groups that a mask leaves out have no product."""
    model = parsed(
        """(float[g, 5, 24] x, float[g, 24, 20] v, float[g] m) => (float[g, 5, 20] y)
        { e = Tanh (v) h = MatMul (x, e) a = Unsqueeze (m, last) c = Unsqueeze (a, last)
        y = Mul (h, c) }"""
    )
    lowered = lower(model)
    assert became(lowered, "MatMul") == ["packed"]
    for g in (0, 1, 4):
        for mask in masks(g) if g else [np.zeros(0, np.float32)]:
            check(model, lowered, {"x": normal(g, 5, K), "v": normal(g, K, N), "m": mask})


@pytest.mark.parametrize("text", [f"{TOKENS} {{ {SUMS['MatMul']} }}", COLUMNS["computed"]])
def test_compiled_models(text: str) -> None:
    """The same with the kernels, in ONNX Runtime."""
    model = parsed(text)
    compiled = api.compile(model)
    assert "packed" in [r.lowering for r in compiled.report.nodes]
    shape = {"b": 3, "s": 50, "r": 9}
    for density in (0.0, 0.4, 1.0):
        rng, feeds = np.random.default_rng(1), dict[str, np.ndarray]()
        for value in model.graph.input:
            dims = [shape.get(d.dim_param, d.dim_value) for d in value.type.tensor_type.shape.dim]
            feeds[value.name] = rng.normal(size=dims).astype(np.float32)
        feeds["m"] = (rng.random(feeds["m"].shape) < density).astype(np.float32)
        want = arrays(ort.InferenceSession(model.SerializeToString()), feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], want[0], rtol=2e-5, atol=5e-5)

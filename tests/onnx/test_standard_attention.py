"""Attention of the standard operator set is its function's body, and what that hides is known."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper as h

from pitc.ir import target as targets
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.fact_check import analysed, dead, only, proven
from tests.fact_texts import fills_of
from tests.fused_models import Array, random, run
from tests.plan_reference import run_lowered

B, H, S, D = 2, 4, 5, 8
PLACES = ("q", "k", "v", "mask", "past_k", "past_v", "lengths")
MASKS = ("", "float", "bool")


def operands(
    keys: int = S,
    mask: str = "",
    past: int | None = None,
    lengths: list[int] | None = None,
    groups: int = H,
) -> tuple[dict[str, Array], dict[str, list[Any]]]:
    """What is fed, and the declared sizes."""
    fed = {"q": random(B, H, S, D)}
    fed |= {x: random(B, groups, keys, D, seed=n) for n, x in enumerate("kv", 1)}
    own = "s" if keys == S else "t"
    dims: dict[str, list[Any]] = {"q": ["b", H, "s", D], "lengths": ["b"]}
    dims |= {x: ["b", groups, own, D] for x in "kv"}
    total, whole = keys, own
    if past is not None:
        total, whole = keys + past, f"p + {own}"
        fed |= {x: random(B, groups, past, D, seed=n) for n, x in enumerate(("past_k", "past_v"))}
        dims |= {x: ["b", groups, "p", D] for x in ("past_k", "past_v")}
    if mask:
        terms = random(B, 1, S, total, seed=9)
        fed["mask"] = terms > 0 if mask == "bool" else terms
        dims["mask"] = ["b", 1, "s", whole]
    if lengths is not None:
        fed["lengths"] = np.asarray(lengths, np.int64)
    return fed, dims


def compare(
    fed: dict[str, Array],
    dims: dict[str, list[Any]],
    opset: int,
    outputs: tuple[str, ...] = ("y",),
    **rest: Any,
) -> None:
    """The body computes what ONNX Runtime's kernel does."""
    names = [x if x in fed else "" for x in PLACES if opset > 23 or x != "lengths"]
    inputs = [
        h.make_tensor_value_info(x, h.np_dtype_to_tensor_dtype(a.dtype), dims[x])
        for x, a in fed.items()
    ]
    results = [h.make_empty_tensor_value_info(x) for x in outputs if x]
    graph = h.make_graph([h.make_node("Attention", names, outputs, **rest)], "g", inputs, results)
    opsets = [h.make_opsetid("", opset)]
    proto = h.make_model(graph, opset_imports=opsets, ir_version=10)
    parts = ir.from_proto(proto)
    assert normalise(parts)["expand_fused"] == 1
    for want, got in zip(run(proto, fed), run(ir.to_proto(parts), fed), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("opset", [23, 24])
def test_past_keys(opset: int, mask: str, causal: int) -> None:
    outputs = ("y", "present_k", "present_v")
    for past, groups, cap in product((0, 3), (H, 2), (0.0, 2.0)):
        fed, dims = operands(S, mask, past, groups=groups)
        compare(fed, dims, opset, outputs, is_causal=causal, softcap=cap)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", [1, 3, S, 7])
def test_lengths(keys: int, mask: str, causal: int) -> None:
    for lengths in ([min(2, keys), keys], [0, keys], [keys, keys]):
        fed, dims = operands(keys, mask, lengths=lengths)
        compare(fed, dims, 24, is_causal=causal)


@pytest.mark.parametrize("mode", [0, 1, 3])
def test_scores_beside_lengths(mode: int) -> None:
    fed, dims = operands(lengths=[2, S])
    compare(fed, dims, 24, ("y", "", "", "scores"), qk_matmul_output_mode=mode)


TEXT = """<ir_version: 10, opset_import: ["" : OPSET]>
g (float[b, 4, s, 8] q, float[b, 4, s, 8] k, float[b, 4, s, 8] v, float[b, 1, s, s] m,
   bool[b, 1, s, s] f, int64[b] n) => (float[b, 4, s, 8] y) { y = Attention ATTRIBUTES (INPUTS) }"""
LOW = "m[d0, 0, d2, d3] <= -1e4"
BEHIND, OFF, SHORT = "-d2+d3-1 >= 0", "f[d0, 0, d2, d3] == 0", "d3 >= n[d0]"
HIDDEN: dict[tuple[str, str], set[str]] = {
    ("q, k, v, m", ""): {f"{LOW} and some j: m[d0, 0, d2, j] within 1e3"},
    ("q, k, v, f", ""): {OFF},
    ("q, k, v", "<is_causal = 1>"): {BEHIND},
    ("q, k, v, f", "<is_causal = 1>"): {BEHIND, OFF},
    ("q, k, v, m", "<is_causal = 1>"): {BEHIND, f"m[d0, 0, d2, d2] within 1e3 and {LOW}"},
    ("q, k, v, , , , n", ""): {SHORT},
    ("q, k, v, f, , , n", ""): {SHORT, OFF},
}


@pytest.mark.parametrize("cap", ["", "softcap = 2.0"])
@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("call", HIDDEN, ids=str)
def test_scores_of_what_is_hidden_are_dead(call: tuple[str, str], opset: int, cap: str) -> None:
    inputs, attributes = call
    if "n" in inputs.split(", ") and opset < 24:
        return
    said = ", ".join(filter(None, (attributes.strip("<>"), cap)))
    text = TEXT.replace("OPSET", str(opset)).replace("INPUTS", inputs)
    proto = onnx.parser.parse_model(text.replace("ATTRIBUTES", f"<{said}>" if said else ""))
    graph = proven(proto, sizes={"b": 2, "s": 4}, top_index=5)
    # of what is hidden by its place something else may be left out
    found = {t.removeprefix("d2-d3 >= 0 and ") for t in dead(graph, only(graph, "MatMul"))}
    assert HIDDEN[call] <= found


ROWS = "float[b, s, 32] q, float[b, s, WIDE] k, float[b, s, WIDE] v"
LAYERS = {
    "causal": (ROWS.replace("WIDE", "32"), "is_causal = 1, kv_num_heads = 4", "q, k, v", "q >= k"),
    "grouped": (ROWS.replace("WIDE", "16"), "is_causal = 1, kv_num_heads = 2", "q, k, v", "q >= k"),
    "capped": (
        *(ROWS.replace("WIDE", "32"), "is_causal = 1, kv_num_heads = 4, softcap = 2.0"),
        *("q, k, v", "q >= k"),
    ),
    "masked": (
        *(ROWS.replace("WIDE", "32") + ", bool[b, 1, s, s] m", "kv_num_heads = 4"),
        *("q, k, v, m", "m[q, k] != 0"),
    ),
    "causal, masked and capped": (
        ROWS.replace("WIDE", "32") + ", bool[b, 1, s, s] m",
        "is_causal = 1, kv_num_heads = 4, softcap = 0.5",
        *("q, k, v, m", "m[q, k] != 0 and q >= k"),
    ),
}


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("case", LAYERS)
def test_it_runs_by_lists(case: str, opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of which all is masked are 0."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0, least_extent=1))
    inputs, attributes, names, seen = LAYERS[case]
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g ({inputs}) => (float[b, s, 32] y)
        {{ y = Attention <q_num_heads = 4, {attributes}> ({names}) }}""")
    lowered = run_passes(ir.from_proto(proto), LowerOptions())
    (record,) = [r for r in lowered.report.nodes if r.lowering == "attention"]
    assert record.rule == f"softmax over live keys: {seen}"
    found, rng = ir.to_proto(lowered.model), np.random.default_rng(1)
    wide = proto.graph.input[1].type.tensor_type.shape.dim[2].dim_value
    for b, s in ((1, 1), (2, 2), (1, 33), (2, 70)):
        fed: dict[str, Array] = {
            "q": rng.normal(0, 2, (b, s, 32)).astype(np.float32),
            **{x: rng.normal(0, 1, (b, s, wide)).astype(np.float32) for x in "kv"},
        }
        if "m" in names.split(", "):
            fed["m"] = np.asarray(rng.random((b, 1, s, s)) < 0.4)
        (want,), (got,) = run(proto, fed), run_lowered(found, fed)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


BESIDE = """<ir_version: 10, opset_import: ["": 21]> g (float[b, s, s] x, bool[b, s, s] flag) => (o)
<int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}, int64[1] last = {2}, float low = {-1e4},
float nought = {0}> { sizes = Shape (x) size = Gather (sizes, one) at = Range (zero, size, one)
q_at = Unsqueeze (at, axis) seen = GreaterOrEqual (q_at, at) later = Less (q_at, at) NODES }"""


@pytest.mark.parametrize(
    ("nodes", "fact"),
    [
        # of a causal row the key at its place; it is there wherever a row is
        ("v = Where (seen, nought, low) o = ReduceMax (v, axis)", "0.0 where "),
        # of rows of flags one that is set
        ("v = Where (flag, nought, low) o = ReduceMax (v, last)", "0.0 where some d-101: flag"),
        ("v = Where (seen, low, nought) o = ReduceMin (v, axis)", ""),
        # nothing is known of the others
        ("v = Where (flag, nought, x) o = ReduceMax (v, last)", ""),
        # the last row has no later key
        ("v = Where (later, nought, low) o = ReduceMax (v, axis)", "0.0 where -d0+s-2 >= 0"),
    ],
)
def test_the_largest_of_known_numbers(nodes: str, fact: str) -> None:
    proto = onnx.parser.parse_model(BESIDE.replace("NODES", nodes))
    facts = [f for f in fills_of(analysed(proto)[0], "o") if f.startswith("0.0") and "s-1" not in f]
    assert len(facts) == bool(fact) and all(f.startswith(fact) for f in facts), facts

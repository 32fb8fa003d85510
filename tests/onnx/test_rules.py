"""Every operator's tensor expression, proven on sample nodes in ONNX Runtime."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.expr import Reducer, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import dim_index, poly
from pitc.ir.region import Region, position
from pitc.passes.exprs.derive import derive
from pitc.passes.rules import OPERATORS
from tests.record_twin import twin
from tests.rule_proof import Const, Proof, Sample, analysed
from tests.rule_samples import SAMPLES

CASES = [
    pytest.param(s, symbolic, id=f"{s.title}{'-symbolic' * symbolic}")
    for s in SAMPLES
    for symbolic in (False, True)
    if s.symbolic or not symbolic
]

# rules without samples: other names of a proven one
UNPROVEN = {
    ("com.microsoft", "TransposeMatMul"): "old name of FusedMatMul",
    ("com.microsoft", "SimplifiedLayerNormalization"): "registered in the standard domain",
    ("com.microsoft", "QMoE"): "as MoE, with quantised weights, which no expression lists",
}


@pytest.mark.parametrize(("sample", "symbolic"), CASES)
def test_expression_is_proven(sample: Sample, symbolic: bool) -> None:
    proof = Proof(sample, symbolic)

    @settings(max_examples=2, deadline=None, derandomize=True, database=None)
    @given(seed=st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        assert proof.failures(seed) == []

    holds()


def test_every_rule_has_two_samples() -> None:
    count = Counter((s.domain, s.op) for s in SAMPLES)
    assert {key for key in OPERATORS if count[key] < 2} == set(UNPROVEN)


def values(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


# --- wrong rules fail ---


def _shifted(expr: TensorExpr) -> TensorExpr:
    """Reads one element further along the last dimension."""
    first, *others = expr.reads
    last = first.index[-1]
    assert last is not None
    return replace(expr, reads=(replace(first, index=(*first.index[:-1], last + 1)), *others))


def _blind(expr: TensorExpr) -> TensorExpr:
    """Reads only the diagonal of the reduced axis."""
    a, n = len(expr.shape) - 1, len(expr.shape)
    same = dim_index(n, expr.reduced[0]) - dim_index(a, expr.shape[a])
    tests = Region({position(same), position(-same)})
    first, *others = expr.reads
    return replace(expr, reads=(replace(first, within=tests), *others))


def _all_absent(expr: TensorExpr) -> TensorExpr:
    """Claims that nobody reads anything."""
    return replace(expr, reads=(replace(expr.reads[0], absent=(Region(),)),))


WRONG: list[tuple[Sample, Callable[[TensorExpr], TensorExpr], str]] = [
    (
        Sample("Transpose", (values(3, 3),)),
        lambda e: replace(e, reads=(replace(e.reads[0], index=e.reads[0].index[::-1]),)),
        "is not PIT",
    ),
    (
        Sample("CumSum", (values(4), Const(np.int64(0)))),
        lambda e: replace(e, ordered=frozenset(), reads=(replace(e.reads[0], within=Region()),)),
        "is not PIT",
    ),
    (Sample("Softmax", (values(2, 4),)), lambda e: replace(e, normal=()), "is not PIT"),
    (
        Sample("Softmax", (values(2, 4),)),
        lambda e: replace(e, reducer=Reducer.SUM),
        "r0 is not PIT",
    ),
    (
        Sample("ArgMax", (values(3, 4),), {"axis": 1}),
        lambda e: replace(e, reducer=Reducer.MAX),
        "r0 is not PIT",
    ),
    (
        Sample("MatMul", (values(3, 4), values(4, 5))),
        lambda e: replace(e, reducer=Reducer.ORDERED),
        "r0 looks PIT",
    ),
    (
        Sample("Add", (values(3, 4), values(4))),
        lambda e: replace(e, ordered=frozenset({0})),
        "o0 looks PIT",
    ),
    (
        Sample("Add", (values(3, 4), values(4))),
        lambda e: replace(e, reads=e.reads[:1]),
        "o1 is not",
    ),
    (Sample("Neg", (values(3, 4),)), _shifted, "out of range"),
    (
        Sample("Slice", (values(3, 6), *(Const(np.array([k])) for k in (0, 3, 1)))),
        _shifted,
        "does not read",
    ),
    (Sample("Softmax", (values(2, 4),)), _blind, "does not read"),
    (Sample("Gather", (values(5, 3), Const(np.int64(2)))), _all_absent, "an absent element"),
    (
        Sample("ReduceSum", (values(3, 4), Const(np.array([1]))), {"keepdims": 0}),
        lambda e: replace(e, shape=e.shape[::-1] * 2),
        "rank 2 is 1",
    ),
]


@pytest.mark.parametrize(("sample", "damage", "text"), WRONG)
def test_a_wrong_rule_fails(
    sample: Sample,
    damage: Callable[[TensorExpr], TensorExpr],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = OPERATORS[sample.domain, sample.op].rule
    assert right is not None
    assert Proof(sample).failures(0) == []

    def wrong(view: NodeView) -> list[TensorExpr | None]:
        return [e and damage(e) for e in right(view)]

    twin(monkeypatch, sample.op, sample.domain, rule=wrong)
    failures = Proof(sample).failures(0)
    assert any(text in failure for failure in failures), failures


# --- refusals ---

X, M = values(3, 4), values(4, 4)
DATA = np.array([2, 6], np.int64)
REFUSED = [
    (Sample("Einsum", (M,), {"equation": "ii->i"}), "a label occurs twice"),
    (Sample("Dropout", (X, Const(np.float32(0.5)), Const(np.array(True)))), "training"),
    (Sample("Dropout", (X, Const(np.float32(0.5)), np.array(False))), "training"),
    (Sample("Reshape", (X, DATA)), "the values of input 1 (x1) are not known"),
    (Sample("Tile", (X, DATA)), "not known"),
    (Sample("TopK", (X, np.array([2])), outputs=2), "not known"),
    (Sample("ReduceSum", (X, np.array([1]))), "not known"),
    (Sample("Slice", (X, DATA[:1], DATA[:1])), "not known"),
    (Sample("CumSum", (X, np.array(1))), "not known"),
    (Sample("Gemm", (X, M), {"alpha": float("inf")}), "alpha is inf"),
    (Sample("Add", (X, values(3)), {"axis": 0, "broadcast": 1}, opset=6), "given axis"),
    (Sample("ReduceL2", (X,), {"noop_with_empty_axes": 1}), "disagree"),
    (Sample("Multinomial", (X,), {"sample_size": 3}), "Multinomial: random: the result"),
    (Sample("Add", (X, M), domain="nobody"), "no rule for operator nobody::Add"),
    (Sample("Add", (values(3, 4), values(3, 5))), "do not broadcast"),
    (Sample("MatMul", (values(3, 4), values(5, 6))), "extents 4 and 5 differ"),
    (Sample("Transpose", (X,), {"perm": [0, 0]}), "perm [0, 0] does not fit rank 2"),
    (Sample("Softmax", (X,), {"axis": 2}), "axis 2 is out of range for rank 2"),
    (Sample("Conv", (values(1, 2, 5), values(2, 2, 3)), {"auto_pad": "SAME"}), "auto_pad"),
]


@pytest.mark.parametrize(("sample", "reason"), REFUSED, ids=[s.title for s, _ in REFUSED])
def test_a_node_without_rule_says_why(sample: Sample, reason: str) -> None:
    graph = analysed(sample)
    assert graph["y0"].expr is None
    assert reason in graph["y0"].unruled


def test_grids_are_as_many_as_images() -> None:
    """Older versions of ONNX Runtime do not ask for as many matrices."""
    graph = analysed(Sample("AffineGrid", (values(3, 2, 3), Const(np.array([2, 1, 3, 4])))))
    assert graph["y0"].shape == (poly(2), poly(3), poly(4), poly(2))


def test_symbols_that_may_differ_are_not_joined() -> None:
    """Extents n3 and n5 may be equal, or one of them 1: the operands' places stay open."""
    graph = analysed(Sample("Add", (values(3, 4), values(5, 4))), symbolic=True)
    expr = graph["y0"].expr
    assert expr is not None
    assert [r.index[0] for r in expr.reads] == [None, None]
    assert [a.name for a in expr.pit_axes()] == ["o1"]


SLICED_TABLE = """
<ir_version: 10, opset_import: ["": 21]>
sliced (int64[b, s] tokens, float[512, 4] table) => (y)
<int64[1] zero = {0}, int64[1] one = {1}>
{
    size = Shape <start = 1> (tokens)
    y = Slice (table, zero, size, zero)
}
"""


def test_a_slice_up_to_a_computed_size_may_be_clamped() -> None:
    graph = Graph(ir.serde.deserialize_model(onnx.parser.parse_model(SLICED_TABLE)))
    derive(graph)
    expr = graph["y"].expr
    assert expr is not None
    assert [str(e) for e in expr.shape] == ["?1", "4"] and not graph.assumptions

"""Shapes, index maps, PIT axes and regions of reads on all sizes 0..4 of every symbol."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import onnx
import pytest

from pitc.ir.branch import CHOOSE, DOMAIN
from pitc.passes.rules import elementwise, movement
from pitc.passes.rules.registry import MICROSOFT
from tests.exhaustive_sizes import Outcome, SizedNode, prove, sized_sample
from tests.rule_proof import OPSET, Sample
from tests.rule_samples import SAMPLES, c, f
from tools.specimens import SPECIMENS, specimen_model

MOST, MOST_OF_SAMPLE = 625, 40  # assignments of four symbols; of a sample
STATIC = 8  # assignments that are derived again with sizes as numbers
SKIPS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
# operators whose specimens have more symbols
CAPPED = {
    *(("", op) for op in ("Attention", "Conv", "ConvInteger", "Einsum", "GridSample")),
    *(("", op) for op in ("QLinearConv", "RoiAlign", "RotaryEmbedding", "TensorScatter")),
    *((MICROSOFT, op) for op in ("FusedConv", "MultiHeadAttention")),
}
# operators whose specimens ONNX Runtime refuses with small or with unknown sizes
REFUSED = {
    (DOMAIN, CHOOSE): "a function that it does not inline without types",
    ("", "Col2Im"): "49 blocks",
    (MICROSOFT, "SimplifiedLayerNormalization"): "registered in the standard domain",
    (MICROSOFT, "MultiHeadAttention"): "8 heads",
    (MICROSOFT, "RotaryEmbedding"): "8 heads",
    (MICROSOFT, "EmbedLayerNormalization"): "tables of unknown size",
    (MICROSOFT, "MoE"): "no weights",
    (MICROSOFT, "QMoE"): "no weights",
}
UNSIZED = {"EmbedLayerNormalization"}  # tables of unknown size
INT8 = ("MatMulIntegerToFloat", "DynamicQuantizeMatMul")
EQUAL = {("", "RotaryEmbedding"), *((MICROSOFT, op) for op in (*SKIPS, "Attention", *INT8))}
SUMS = {("", "Einsum")}  # how many terms it has is not known
# one size or the same one: the axis that is summed over is shared
BROADCAST = (
    Sample("MatMul", (f(2, 3, 4), f(5, 4, 6))),
    Sample("Einsum", (f(3, 4), f(5, 6)), {"equation": "ij,ij->ij"}),
)
# ONNX Runtime divides by an extent that may be 0, or inlines no function without types
UNRUN = (
    *(Sample(op, (f(2, 3, 4), f(5, 3, 4), f(4)), domain=MICROSOFT) for op in SKIPS),
    Sample(CHOOSE, (f(1) > 0, f(3, 4), f(5, 4)), domain=DOMAIN),
)


def opset_of(domain: str, op: str) -> int:
    """The operator set of an operator's samples."""
    return max((s.opset for s in SAMPLES if (s.domain, s.op) == (domain, op)), default=OPSET)


SIZED = [key for key in SPECIMENS if key not in REFUSED]
BY_OPERATOR: dict[tuple[str, str], list[Sample]] = defaultdict(list)
for _sample in SAMPLES:
    if _sample.symbolic:
        BY_OPERATOR[_sample.domain, _sample.op].append(_sample)


def title(key: tuple[str, str]) -> str:
    """An operator in the ids of tests."""
    return f"{key[0][:3]}{key[1]}"


@pytest.mark.parametrize("key", SIZED, ids=title)
def test_a_specimen_holds_for_all_sizes(key: tuple[str, str]) -> None:
    out = prove(SizedNode(specimen_model(*key, opset_of(*key))), MOST, STATIC)
    assert out.wrong == []
    assert out.proven
    assert bool(out.left_out) == (key in CAPPED), out


@pytest.mark.parametrize("sample", BROADCAST, ids=lambda s: s.title)
def test_an_extent_that_may_be_one(sample: Sample) -> None:
    out = prove(sized_sample(sample), MOST_OF_SAMPLE)
    assert out.wrong == []
    assert out.proven


@pytest.mark.parametrize("sample", UNRUN, ids=lambda s: s.title)
def test_the_place_in_an_extent_that_may_be_one_is_not_known(sample: Sample) -> None:
    expr = sized_sample(sample).graph({})["y0"].expr
    assert expr is not None
    other = 1 if sample.op in SKIPS else 2
    assert [r.index[0] for r in expr.reads if r.operand == other] == [None]


@pytest.mark.parametrize("key", [k for k in SIZED if k not in SUMS], ids=title)
def test_sizes_that_nobody_says_are_equal(key: tuple[str, str]) -> None:
    """Each operand has symbols of its own: any two may be equal, and any may be 1."""
    node = SizedNode(_apart(specimen_model(*key, opset_of(*key))))
    known = node.graph({})
    exprs = [known[name].expr for name in node.node.output]
    if None in exprs:
        assert key in EQUAL  # the rule needs equal sizes
        return
    out = prove(node, MOST_OF_SAMPLE)
    assert out.wrong == []
    assert out.proven


def _apart(model: onnx.ModelProto) -> onnx.ModelProto:
    for k, value in enumerate(model.graph.input):
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param:
                d.dim_param += f"_{k}"
    return model


SEVERAL = {
    key: found
    for key, samples in BY_OPERATOR.items()
    if key not in SUMS and (found := [s for s in samples if len(s.operands) > 1])
}


@pytest.mark.parametrize("key", SEVERAL, ids=title)
def test_samples_of_sizes_that_nobody_says_are_equal(key: tuple[str, str]) -> None:
    wrong = []
    for sample in SEVERAL[key]:
        same = sized_sample(sample)
        node = SizedNode(_apart(same.model), same.given)
        known = node.graph({})
        if all(known[name].expr is not None for name in node.node.output):
            wrong += [f"{sample.title}: {w}" for w in prove(node, MOST_OF_SAMPLE).wrong]
    assert wrong == []


@pytest.mark.parametrize("key", BY_OPERATOR, ids=title)
def test_samples_hold_for_small_sizes(key: tuple[str, str]) -> None:
    wrong = []
    for sample in BY_OPERATOR[key]:
        out = prove(sized_sample(sample), MOST_OF_SAMPLE, 2)
        wrong += [f"{sample.title}: {w}" for w in out.wrong]
        if not out.proven and sample.op not in UNSIZED:
            wrong.append(f"{sample.title} is refused with all sizes")
    assert wrong == []


# --- wrong twins that only some sizes show ---


def _sliced(first: bool) -> Outcome:
    return prove(sized_sample(Sample("Slice", (f(4, 5), c(1), c(3)))), MOST, MOST, first)


def _expanded(first: bool) -> Outcome:
    node = SizedNode(specimen_model("", "Expand", OPSET))
    return prove(node, MOST, STATIC, first)


def _added(first: bool) -> Outcome:
    """Only with sizes as numbers, 1 among them, do the operands' extents differ."""
    return prove(sized_sample(Sample("Add", (f(3, 4), f(5, 4)))), MOST, MOST, first)


def _joined(first: bool) -> Outcome:
    return prove(SizedNode(specimen_model("", "Concat", OPSET)), MOST, first=first)


TWINS: list[tuple[Callable[[bool], Outcome], Any, str, Any]] = [
    (_sliced, movement, "nonneg", lambda p: True),
    (_sliced, movement, "_places", lambda size, start, end, step: range(start, end, step)),
    (_expanded, movement, "broadcast_index", lambda shape, out: elementwise_index(shape, out)),
    (_added, elementwise, "broadcast_shape", lambda shapes, fresh: shapes[0]),
    (_joined, movement, "inside", lambda index, size: movement.union([])),
]


def elementwise_index(shape: Any, out: Any) -> Any:
    """An index that takes an extent of 1 for any other."""
    return tuple(movement.dim_index(d, e) for d, e in enumerate(out[len(out) - len(shape) :]))


@pytest.mark.parametrize(("proof", "module", "name", "twin"), TWINS)
def test_a_wrong_rule_is_found(
    proof: Callable[[bool], Outcome],
    module: Any,
    name: str,
    twin: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, name, twin)
    assert proof(True).wrong


@pytest.mark.parametrize("proof", [_sliced, _expanded, _added, _joined])
def test_the_right_rules_hold(proof: Callable[[bool], Outcome]) -> None:
    assert proof(False).wrong == []

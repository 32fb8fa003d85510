"""Shapes, index maps, PIT axes and regions of reads on all sizes 0..4 of every symbol."""

from collections.abc import Callable
from typing import Any

import pytest

from pitc.ir.branch import CHOOSE, DOMAIN
from pitc.passes.rules import elementwise, movement
from pitc.passes.rules.registry import MICROSOFT
from pitc.passes.rules.specimens import SPECIMENS, specimen_model
from tests.exhaustive_sizes import Outcome, SizedNode, prove, sized_sample
from tests.rule_proof import OPSET, Sample
from tests.rule_samples import SAMPLES, c, f

MOST, MOST_OF_SAMPLE = 625, 40  # assignments of four symbols; of a sample
STATIC = 8  # assignments that are derived again with sizes as numbers
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


def opset_of(domain: str, op: str) -> int:
    """The operator set of an operator's samples."""
    return max((s.opset for s in SAMPLES if (s.domain, s.op) == (domain, op)), default=OPSET)


SIZED = [key for key in SPECIMENS if key not in REFUSED]


@pytest.mark.parametrize("key", SIZED, ids=lambda k: f"{k[0][:3]}{k[1]}")
def test_a_specimen_holds_for_all_sizes(key: tuple[str, str]) -> None:
    out = prove(SizedNode(specimen_model(*key, opset_of(*key))), MOST, STATIC)
    assert out.wrong == []
    assert out.proven
    assert bool(out.left_out) == (key in CAPPED), out


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.symbolic], ids=lambda s: s.title)
def test_a_sample_holds_for_small_sizes(sample: Sample) -> None:
    out = prove(sized_sample(sample), MOST_OF_SAMPLE, 2)
    assert out.wrong == []
    assert out.proven or sample.op in UNSIZED


# --- wrong twins that only some sizes show ---


def _sliced() -> Outcome:
    return prove(sized_sample(Sample("Slice", (f(4, 5), c(1), c(3)))), MOST, MOST)


def _expanded() -> Outcome:
    node = SizedNode(specimen_model("", "Expand", OPSET))
    return prove(node, MOST, STATIC)


def _added() -> Outcome:
    """Only with sizes as numbers, 1 among them, do the operands' extents differ."""
    return prove(sized_sample(Sample("Add", (f(3, 4), f(5, 4)))), MOST, MOST)


def _joined() -> Outcome:
    return prove(SizedNode(specimen_model("", "Concat", OPSET)), MOST)


TWINS: list[tuple[Callable[[], Outcome], Any, str, Any]] = [
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
    proof: Callable[[], Outcome],
    module: Any,
    name: str,
    twin: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert proof().wrong == []
    monkeypatch.setattr(module, name, twin)
    assert proof().wrong

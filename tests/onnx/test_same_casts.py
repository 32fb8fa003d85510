"""A Cast to the type that its operand has is nothing, and hides nothing."""

from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from pitc.passes.normalise import drop_same_casts, remove_identities
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.branch_texts import answers, model_of, texts

FIXTURE = Path(__file__).parents[2] / "models/export/fixtures/mixtral-batched-eager-traced.onnx"
CASTS = {  # what stays
    "h = Cast <to = 1> (x) y = Neg (h)": (1, ["y = Neg(x)"]),
    "a = Neg (x) h = Cast <to = 1> (a) y = Abs (h)": (1, ["a = Neg(x)", "y = Abs(a)"]),
    "h = Neg (x) y = Cast <to = 1> (h)": (1, ["y = Neg(x)"]),
    "a = Cast <to = 11> (x) b = Cast <to = 11> (a) y = Cast <to = 1> (b)": (
        1,
        ["a = Cast(x)", "y = Cast(a)"],
    ),
    "a = Cast <to = 7> (x) y = Cast <to = 1> (a)": (0, ["a = Cast(x)", "y = Cast(a)"]),
    "a = Cast <to = 10> (x) y = Cast <to = 1> (a)": (0, ["a = Cast(x)", "y = Cast(a)"]),
}


@pytest.mark.parametrize("body", CASTS)
def test_casts_to_the_same_type_go(body: str) -> None:
    count, after = CASTS[body]
    model = model_of(body)
    wanted = answers(model)
    assert drop_same_casts(model) == count
    remove_identities(model)
    assert texts(model) == after
    assert answers(model) == wanted


def test_a_cast_of_what_nobody_knows_stays() -> None:
    model = model_of("h = Neg (x) a = Cast <to = 1> (h) y = Abs (a)")
    model.graph[0].domain = "other"
    model.opset_imports["other"] = 1
    assert drop_same_casts(model) == 0


def test_a_cast_before_the_best_gates_hides_nothing() -> None:
    """Gates are divided by their sum, which is positive: so every layer's facts are there."""
    proto = onnx.load(FIXTURE)
    for k, node in reversed(list(enumerate(proto.graph.node))):
        if node.op_type == "TopK":
            cast = helper.make_node("Cast", [node.input[0]], [f"same{k}"], to=1)
            node.input[0] = f"same{k}"
            proto.graph.node.insert(k, cast)
    lowered = run_passes(ir.from_proto(proto), LowerOptions(padding="attention_mask"))
    products = [r.lowering for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert Counter(products) == {"packed": 10, "grouped": 4, "attention": 2, "folded": 2}

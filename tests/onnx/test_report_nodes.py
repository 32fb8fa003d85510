"""What the report says of nodes that run inside another one, against the graph that came out."""

import numpy as np
import pytest

from models.bert import BertConfig, bert
from models.graph import GraphBuilder
from pitc.artifact.manifest import report_from_dict, report_to_dict
from pitc.passes.pipeline import Lowered
from pitc.report.page import page
from tests.lower_support import lower
from tests.onnx import test_lower_contract as left
from tests.onnx import test_lower_right as right

MODELS = {
    **{f"left, {name}": left.model(build) for name, (build, _) in left.FORMS.items()},
    **{
        f"right, {name}": right.model(lambda g, x, m=make: g.op("MatMul", x, m(g)))
        for name, (make, _, _) in right.RIGHTS.items()
    },
    **{
        f"around, {name}": right.model(build, ("b", "s"))
        for name, (build, _, _) in right.AROUND.items()
        if name not in ("gemm of a transpose", "flattened", "fused")
    },
    **{
        f"read by others, {build.__name__}": right.model(build)
        for build in (right.read_twice, right.transpose_read_twice, right.masked_output)
    },
}


ALONE = {  # nothing but the product itself is in the node
    *("left, squared", "left, gated", "left, read twice", "left, turned"),
    *("right, where", "right, a mask", "right, scaled", "right, scaled by rows", "right, positive"),
    *(name for name in MODELS if name.startswith("read by others")),
}


def elementwise(lowered: Lowered) -> set[str]:
    """The nodes that elementwise ones run inside."""
    nodes = (r for r in lowered.report.nodes if r.kernel is not None)
    return {r.node for r in nodes if r.kernel and r.kernel.operation == "elementwise"}


def folded(lowered: Lowered) -> dict[str, list[str]]:
    """Operators of folded nodes, by the name of the node, none of elementwise ones, that they run
    inside.
    """
    found: dict[str, list[str]] = {}
    for r in (r for r in lowered.report.nodes if r.inside not in elementwise(lowered)):
        assert not (r.inside and r.kernel) and (r.inside or r.lowering != "folded")
        if r.lowering == "folded":
            assert r.refusal is None and r.outcome == f"folded into {r.inside}"
            found.setdefault(r.inside, []).append(r.op_type)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_ordinary_nodes_are_there_and_folded_ones_are_not(name: str) -> None:
    lowered = lower(MODELS[name])
    assert bool(folded(lowered)) == (name not in ALONE)
    there = {n.name for n in lowered.model.graph}
    for r in lowered.report.nodes:
        if r.lowering in ("ordinary", "folded") and r.node not in elementwise(lowered):
            assert (r.node in there) == (r.lowering == "ordinary"), r.node
        if r.lowering == "contract":
            assert r.node not in there


def test_a_mask_and_what_stands_behind_run_inside_the_product() -> None:
    lowered = lower(right.model(right.behind))
    (product,) = [r.node for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert folded(lowered) == {product: ["Mul", "Add", "Relu", "Add"]}
    (cast,) = [r for r in lowered.report.nodes if r.op_type == "Cast"]
    assert cast.outcome == "ordinary" and cast.refusal is not None


def test_the_product_in_front_runs_inside_the_other_one() -> None:
    lowered = lower(left.model(left.plain))
    first, second = (r for r in lowered.report.nodes if r.op_type == "MatMul")
    assert (first.outcome, second.outcome) == (f"folded into {second.node}", "contract")
    assert folded(lowered) == {second.node: ["MatMul", "Add", "Relu", "Add"]}


def test_a_chain_of_nodes_keeps_apart_what_runs_where() -> None:
    def layers(g: GraphBuilder, x: str) -> str:
        for each in range(2):
            flags = right.flags(g, right.K, right.K, name=f"mask{each}")
            masked = g.op("Mul", right.weight(g, f"w{each}", right.K, right.K), flags)
            x = g.op("Tanh", g.op("Add", g.op("MatMul", x, masked), g.weight(f"b{each}", BIAS)))
        return x

    lowered = lower(right.model(layers))
    products = [r.node for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert folded(lowered) == {product: ["Mul", "Add"] for product in products}


BIAS = np.ones(right.K, np.float32)


def test_scores_run_inside_the_second_product_of_attention() -> None:
    model = bert(BertConfig(hidden=32, layers=1, heads=2), np.random.default_rng(0))
    lowered = lower(model, "attention_mask")
    found = folded(lowered)
    names = {r.node for r in lowered.report.nodes if r.lowering == "attention"}
    assert names and set(found) == names
    assert all({"MatMul", "Softmax"} & set(ops) for ops in found.values())


def test_page_and_manifest_say_so_too() -> None:
    report = lower(right.model(right.affine)).report
    (product,) = [r.node for r in report.nodes if r.op_type == "MatMul"]
    assert page([report]).count(f"folded into {product}") == 2
    assert report_from_dict(report_to_dict(report)).nodes == report.nodes


def test_without_prices_nothing_is_folded() -> None:
    assert folded(lower(left.model(left.plain), sparse=False)) == {}

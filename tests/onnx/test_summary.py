"""What a model's nodes compute, and what share of that runs packed, skips zeros or is refused."""

import json
from dataclasses import asdict

import numpy as np
import onnx
import onnx.parser
import pytest

from models.bert import BertConfig, bert
from pitc.artifact.manifest import report_from_dict, report_to_dict
from pitc.ir.refusal import Code, Refusal
from pitc.ir.report import NodeRecord, Report, WholeReader
from pitc.ir.summary import MOST, summary_of, ways_of
from pitc.ir.work import EXAMPLE_SIZE
from tests.lower_support import lower

N = EXAMPLE_SIZE

#: A graph's inputs, outputs and nodes; operations of its last node by hand.
WORK: dict[str, tuple[str, int | None]] = {
    "product of numbers": (
        "(float[3,5] x, float[5,7] w) => (float[3,7] y) {y = MatMul(x, w)}",
        210,
    ),
    "product of symbols": (
        "(float[b,s,8] x, float[8,3] w) => (float[b,s,3] y) {y = MatMul(x, w)}",
        2 * N * N * 8 * 3,
    ),
    "product behind a reshape to b*s rows": (
        "(float[b,s,8] x, int64[2] to, float[8,3] w) => (float[r,3] y)"
        "{i = Constant<value_ints=[-1,8]>() r0 = Reshape(x, i) y = MatMul(r0, w)}",
        2 * N * N * 8 * 3,
    ),
    "gemm with a bias": (
        "(float[3,5] x, float[7,5] w, float[7] c) => (float[3,7] y) {y = Gemm<transB=1>(x, w, c)}",
        210,
    ),
    "integers": (
        "(uint8[3,5] x, int8[5,7] w) => (int32[3,7] y) {y = MatMulInteger(x, w)}",
        210,
    ),
    "convolution": (
        "(float[1,2,6,6] x, float[4,2,3,3] w) => (float[1,4,4,4] y) {y = Conv(x, w)}",
        2 * 4 * 4 * 4 * 2 * 3 * 3,
    ),
    "transposed convolution": (
        "(float[1,2,6,6] x, float[2,4,3,3] w) => (float[1,4,8,8] y) {y = ConvTranspose(x, w)}",
        2 * 4 * 6 * 6 * 2 * 3 * 3,
    ),
    "element by element": ("(float[3,5] x) => (float[3,5] y) {y = Relu(x)}", 15),
    "softmax": ("(float[3,5] x) => (float[3,5] y) {y = Softmax(x)}", 15),
    "normaliser": (
        "(float[3,5] x, float[5] w) => (float[3,5] y) {y = LayerNormalization(x, w)}",
        15,
    ),
    "running sum": (
        "(float[3,5] x) => (float[3,5] y) {i = Constant<value_int=1>() y = CumSum(x, i)}",
        15,
    ),
    "a scale of all elements": (
        "(float[30,50] x) => (uint8[30,50] y) {y, a, z = DynamicQuantizeLinear(x)}",
        1500,
    ),
    "reduction": ("(float[3,5] x) => (float[3,1] y) {y = ReduceMax<axes=[1]>(x)}", 15),
    "data that moves": ("(float[3,5] x) => (float[5,3] y) {y = Transpose(x)}", 0),
    "size arithmetic": (
        "(float[b,5] x) => (int64[2] y) {z = Shape(x) y = Add(z, z)}",
        0,
    ),
    "recurrent cell": (
        "(float[2,3,4] x, float[1,20,4] w, float[1,20,5] r) => (float[2,1,3,5] y)"
        "{y = LSTM<hidden_size=5>(x, w, r)}",
        None,
    ),
    "unknown operator": ("(float[3] x) => (float[3] y) {y = own.Thing(x)}", None),
}


@pytest.mark.parametrize("name", WORK)
def test_work_at_example_sizes(name: str) -> None:
    text, want = WORK[name]
    header = '<ir_version: 8, opset_import: ["": 17, "own": 1]>\nsample '
    lowered = lower(onnx.parser.parse_model(header + text))
    assert lowered.report.nodes[-1].flops == want


def test_a_masked_encoder_runs_packed_with_padding_and_in_part_without() -> None:
    model = bert(BertConfig(layers=2, hidden=64, heads=2, ffn=256, vocab=50), rng())
    report = lower(model, "attention_mask").report
    found = summary_of(report)
    assert found.packed.share > 0.999 and found.packed.nodes > 60
    assert found.refused.share < 1e-4 and found.unknown == found.sparse.nodes == 0
    assert found.all.nodes == len(report.nodes)
    assert found.all.flops == sum(n.flops or 0 for n in report.nodes)
    total = (found.packed, found.sparse, found.dense, found.refused)
    assert sum(x.nodes for x in total) == found.all.nodes
    assert sum(x.flops for x in total) == found.all.flops
    assert sum(x.share for x in total) == pytest.approx(1)
    alone = summary_of(lower(model).report)
    assert alone.all.flops == found.all.flops
    assert 0.2 < alone.packed.share < 0.6 < alone.dense.share + alone.refused.share


def test_scores_count_as_the_attention_that_they_run_inside() -> None:
    report = lower(bert(BertConfig(layers=1, hidden=32, heads=2), rng()), "attention_mask").report
    ways = dict(zip((n.node for n in report.nodes), ways_of(report.nodes), strict=True))
    inside = [n for n in report.nodes if n.lowering == "folded"]
    assert inside and {ways[n.node] for n in inside} == {"packed"}


def test_the_dense_product_in_front_of_zeros_counts_as_dense() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        pair (float[b,256] x) => (float[b,128] y)
        <float[256,512] a = {A}, float[512,128] c = {C}> {{
            h = MatMul(x, a) r = Relu(h) y = MatMul(r, c) }}"""
    rows = {"A": np.ones(256 * 512), "C": np.ones(512 * 128)}
    filled = text.format(**{k: "{" + ",".join(map(str, v)) + "}" for k, v in rows.items()})
    report = lower(onnx.parser.parse_model(filled)).report
    assert [n.lowering for n in report.nodes] == ["folded", "folded", "contract"]
    found = summary_of(report)
    assert ways_of(report.nodes) == ["dense", "dense", "sparse"]
    assert found.sparse.flops == 2 * N * 512 * 128
    assert found.dense.flops == 2 * N * 256 * 512 + N * 512


def refused(node: str, code: Code, reason: str, flops: int | None, value: str = "") -> NodeRecord:
    dead = ("mask == 0",)
    return NodeRecord(
        node, "MatMul", dead=dead, refusal=Refusal(code, node, reason, value), flops=flops
    )


def test_refusals_that_are_alike_count_together_and_the_dearest_come_first() -> None:
    report = Report(
        nodes=[
            refused("a", Code.LAYOUT, "heads", 10),
            refused("b", Code.NO_GAIN, "small", 25, "x"),
            refused("c", Code.LAYOUT, "heads", 20),
            refused("d", Code.LAYOUT, "heads", 5, "x"),
            refused("e", Code.NO_RULE, "opaque", None),
            refused("f", Code.NO_FACT, "the left operand is not zero at dead keys", 20),
            refused("g", Code.JOINT, "'p' is dead only because of 'v'", 2, "v"),
            refused("k", Code.JOINT, "'q' is dead only because of 'v'", 1, "v"),
            NodeRecord("h", "Relu", refusal=Refusal(Code.NO_FACT, "h", "read"), flops=17),
            NodeRecord("i", "Shape", refusal=Refusal(Code.NO_GAIN, "i", "alone"), flops=0),
        ]
    )
    found = summary_of(report)
    assert (found.refused.nodes, found.dense.nodes, found.unknown) == (8, 2, 1)
    assert found.refused.share == pytest.approx(0.83)
    costs = [(c.code, c.reason, c.value, c.work.nodes, c.work.flops, c.first) for c in found.costs]
    assert costs == [
        ("PIT012", "heads", "x", 3, 35, "a"),
        ("PIT016", "small", "x", 1, 25, "b"),
        ("PIT002", "the left operand is not zero at dead keys", "", 1, 20, "f"),
        ("PIT014", "'..' is dead only because of '..'", "v", 2, 3, "g"),
        ("PIT001", "opaque", "", 1, 0, "e"),
    ]
    assert len(costs) == MOST and found.costs[0].hint == Code.LAYOUT.hint


def test_nothing_has_no_shares() -> None:
    found = summary_of(Report())
    assert found.all.nodes == found.all.share == 0 and found.costs == ()


def test_json_has_the_summary_and_the_manifest_leaves_out_what_follows() -> None:
    report = lower(bert(BertConfig(layers=1, hidden=32, heads=2), rng())).report
    body = json.loads(json.dumps(report.to_dict()))
    assert body["summary"] == json.loads(json.dumps(asdict(summary_of(report))))
    assert body["suggestions"] == []
    assert {"value", "code", "reason", "hint"} == body["nodes"][0]["refusal"].keys()
    kept = report_to_dict(report)
    assert "summary" not in kept
    assert summary_of(report_from_dict(kept)) == summary_of(report)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.35, "every row is read by output 'y'"),
        (0.34, f"heads: {Code.LAYOUT.hint} (PIT012 at 'x')"),
        (None, f"heads: {Code.LAYOUT.hint} (PIT012 at 'x')"),
    ],
)
def test_the_reason_is_that_of_most_work(share: float | None, text: str) -> None:
    reader = None if share is None else WholeReader(("y",), share=share)
    nodes = [
        refused("a", Code.LAYOUT, "heads", 35, "x"),
        refused("b", Code.NO_GAIN, "small", 25),
        NodeRecord("c", "Relu", refusal=Refusal(Code.NO_FACT, "c", "read"), flops=40),
    ]
    reason = summary_of(Report(nodes=nodes, whole_reader=reader)).reason
    assert reason is not None and reason.text == text
    assert reason.line.startswith(f"not packed, {100 * reason.share:.1f} % of the work: ")


def test_refusals_of_next_to_nothing_are_no_reason() -> None:
    nodes = [refused("a", Code.NO_RULE, "odd", None), NodeRecord("b", "Relu", flops=40)]
    assert summary_of(Report(nodes=nodes)).reason is None

"""Who reads what runs whole: against an analysis of each output alone, and as a sentence."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.bert import BertConfig, bert
from pitc import api
from pitc.artifact.manifest import report_from_dict, report_to_dict
from pitc.ir.emptiness import where_left_out
from pitc.ir.region import EVERYWHERE
from pitc.ir.report import Report, WholeReader
from pitc.ir.summary import summary_of, summary_text
from pitc.passes.analysis import Analysis, analysis
from pitc.passes.facts.dead import dead_facts
from pitc.passes.normalise import normalise
from pitc.passes.readers import readers_of
from pitc.report.page import page
from tests.report_pages import Parsed

Run = Callable[..., tuple[int, str, str]]

FIXTURES = Path(__file__).parents[2] / "models/export/fixtures"
EOS = 49


def clip(layers: int = 2) -> onnx.ModelProto:
    """Token states, and the state of the token that is EOS: CLIP's text encoder pools so."""
    config = BertConfig(
        layers=layers, hidden=64, heads=2, ffn=256, vocab=EOS + 1, token_types="none"
    )
    model = bert(config, np.random.default_rng(0))
    node, graph = helper.make_node, model.graph
    graph.initializer.append(numpy_helper.from_array(np.array(EOS, np.int64), "eos"))
    graph.node.extend(
        [
            node("Equal", ["input_ids", "eos"], ["is_eos"]),
            node("Cast", ["is_eos"], ["counts"], to=TensorProto.INT64),
            node("ArgMax", ["counts"], ["place"], axis=1, keepdims=1),
            node("GatherND", [graph.output[0].name, "place"], ["pooled"], "pick", batch_dims=1),
        ]
    )
    graph.output.append(helper.make_tensor_value_info("pooled", 1, ["batch", 64]))
    return model


def parsed(text: str) -> onnx.ModelProto:
    header = '<ir_version: 8, opset_import: ["": 18]>'
    model = onnx.parser.parse_model(f"{header} m {text}")
    weight = np.ones((64, 64), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


# ---- against each output alone

HEADS = """
    h = MatMul (x, w)  n = Cast <to = 1> (mask)  last = Constant <value_ints = [-1]> ()
    rows = Constant <value_ints = [1]> ()  m = Unsqueeze (n, last)  z = Mul (h, m)"""
MODELS = {
    "pooled": f"""(float[b, s, 64] x, int64[b, s] mask)
        => (float[b, s, 64] h, float[b, 64] mean, float[b, 64] whole) {{ {HEADS}
        mean = ReduceSum <keepdims = 0> (z, rows)
        whole = ReduceMean <keepdims = 0> (h, rows) }}""",
    "one of them": f"""(float[b, s, 64] x, int64[b, s] mask)
        => (float[b, 64] first, float[b, s, 64] y) {{ {HEADS}
        zero = Constant <value_int = 0> ()  first = Gather <axis = 1> (h, zero)  y = Relu (h) }}""",
}


def known(model: onnx.ModelProto, padding: str | None) -> Analysis:
    imported = ir.serde.deserialize_model(model)
    normalise(imported)
    return analysis(imported, padding)


def alone(found: Analysis, name: str) -> set[str]:
    """The values that are read whole where nothing but one output is read."""
    graph = found.graph.with_outputs([])
    unread = {x: [EVERYWHERE] for x in graph.outputs if x != name}
    dead_facts(graph, found.given_up | unread)
    return {x for x, value in graph.values.items() if not where_left_out(value.dead)}


IN_PART = f"""(float[2, 16, 64] x, int64[2, 16] mask) => (float[2, 16, 64] y) {{ {HEADS}
    u = Bernoulli (h)  live = Cast <to = 9> (m)
    zero = Constant <value_float = 0.0> ()  y = Where (live, u, zero) }}"""


SAME = {
    "clip": (clip, "attention_mask"),
    "clip, no padding": (clip, None),
    **{f"{n}, {p}": ((lambda n=n: parsed(MODELS[n])), p) for n in MODELS for p in (None, "mask")},
    "gpt2 with cache": (
        lambda: onnx.load(FIXTURES / "gpt2-cache-sdpa-traced.onnx"),
        "attention_mask",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_an_output_alone_needs_all_of_what_it_is_said_to_read(name: str) -> None:
    build, padding = SAME[name]
    found = known(build(), padding)
    readers = readers_of(found.graph)
    computed = [x for x, value in found.graph.values.items() if value.producer is not None]
    told = {x: readers.of(x) for x in computed}
    assert any(told.values())
    for output in found.graph.outputs:
        whole = alone(found, output)
        for x in computed:
            ends = told[x]
            if output in ends:
                assert x in whole, (x, output)
            elif ends and all(map(readers.is_output, ends)) and is_computed(found, x):
                assert x not in whole, (x, output)


def is_computed(found: Analysis, name: str) -> bool:
    """Whether a value is of data: shapes and indices are read whole by what leaves data out."""
    dtype = found.graph[name].dtype
    return dtype is not None and dtype.kind == "f"


def test_a_value_that_only_ends_in_part_names_the_node() -> None:
    """It reads all rows, but its result is read where tokens are."""
    report = explained(parsed(IN_PART), None)
    reader = report.whole_reader
    assert reader is not None and (reader.outputs, reader.value) == ((), "h")
    assert reader.text == "every row of 'h' is read by 'u' (Bernoulli)"


def test_what_a_body_captures_is_read_whole() -> None:
    """A loop's body may look at any of it; its result is an output."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["sum", "h"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["b", "s", 64]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, ["b", "s", 64]),
        ],
    )
    model = parsed("(float[b, s, 64] x, int64 n) => (float[b, s, 64] y) { h = MatMul (x, w) }")
    model.graph.node.append(helper.make_node("Loop", ["n", "", "x"], ["y"], body=body))
    found = known(model, None).graph
    assert [node.op_type for node in found["h"].whole_readers] == ["Loop"]
    assert readers_of(found).of("h") == ["y"]


def test_who_reads_in_part_is_told_beside_outputs() -> None:
    model = parsed(IN_PART)
    rows = helper.make_node("ReduceMean", ["h", "rows"], ["whole"], keepdims=0)
    model.graph.node.append(rows)
    model.graph.output.append(helper.make_tensor_value_info("whole", 1, [2, 64]))
    assert readers_of(known(model, None).graph).of("h") == ["whole", "h"]


# ---- as a sentence


def explained(model: onnx.ModelProto, padding: str | None) -> Report:
    (report,) = api.explain(model, "cpu:v3", padding).values()
    return report


BY_POOLED = "every row is read by output 'pooled', through 'pick' (GatherND)"


def test_clip_names_the_output_that_stops_it() -> None:
    """Its token states are given up with padding; what is pooled may be any row of them."""
    report = explained(clip(), "attention_mask")
    reader = report.whole_reader
    assert reader is not None and reader.text == BY_POOLED
    assert (reader.outputs, reader.node, reader.op_type) == (("pooled",), "pick", "GatherND")
    dense = summary_of(report).dense
    assert 0.8 * dense.share < reader.share <= dense.share and reader.nodes < dense.nodes
    blamed = {r.refusal.value for r in report.nodes if r.refusal and "MatMul" in r.op_type}
    assert "last_hidden_state" not in blamed and "pooled" in blamed
    (note,) = report.notes
    assert f"{BY_POOLED}: without it 100% would" in note
    without = clip()
    del without.graph.output[1]
    assert explained(without, "attention_mask").whole_reader is None


def test_clip_without_padding_names_both() -> None:
    reader = explained(clip(), None).whole_reader
    assert reader is not None
    assert reader.text == f"{BY_POOLED}, and by output 'last_hidden_state'"


def test_the_sentence_is_the_same_everywhere(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(clip(), path)
    words = (path, "--padding", "attention_mask")
    report = api.explain(path, padding="attention_mask")["cpu"]
    line = f"not packed, 64.6 % of the work: {BY_POOLED}"
    assert line in summary_text(report).splitlines()
    assert line in " ".join(run("explain", *words)[1].split())
    compiled = run("compile", *words, "-o", tmp_path / "a", "--dry-run")[1]
    assert line in " ".join(compiled.split())
    assert f'"text": "{BY_POOLED}"' in run("explain", *words, "--json")[1]
    sentence = f"{BY_POOLED[0].upper()}{BY_POOLED[1:]}."
    assert sentence in Parsed(page([report])).text
    back = report_from_dict(report_to_dict(report))
    assert back.whole_reader == report.whole_reader
    assert summary_text(back) == summary_text(report)


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (WholeReader(("y",)), "every row is read by output 'y'"),
        (WholeReader(("y", "z")), "every row is read by output 'y' and by output 'z'"),
        (
            WholeReader(("y", "z", "u"), node="ReduceL2_3", op_type="ReduceL2"),
            "every row is read by output 'y', through 'ReduceL2_3', and by 2 other outputs",
        ),
        (
            WholeReader(value="h", node="n", op_type="CumSum"),
            "every row of 'h' is read by 'n' (CumSum)",
        ),
        (WholeReader(value="h"), "every row of 'h' is read by one of its readers or another"),
    ],
)
def test_sentences(reader: WholeReader, text: str) -> None:
    assert reader.text == text


def test_rows_of_the_output_go_through_no_node() -> None:
    reader = explained(parsed(MODELS["one of them"]), None).whole_reader
    assert reader is not None
    assert reader.text == "every row is read by output 'y'"


def test_little_work_is_not_told() -> None:
    report = explained(clip(1), "attention_mask")
    assert report.whole_reader is not None and report.whole_reader.share > 0.01
    packed = bert(BertConfig(layers=1, hidden=64, heads=2), np.random.default_rng(0))
    report = explained(packed, "attention_mask")
    assert summary_of(report).dense.nodes and report.whole_reader is None
    assert summary_of(report).reason is None


# ---- facts of empty dimensions


def dynamic_pool(pool: str) -> onnx.ModelProto:
    text = f"""(float[n, 3, h, w1] x) => (float[n, 8, p, q] y)
        {{ c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k)  a = HardSwish (c)
           y = {pool} <kernel_shape = [2, 2], strides = [2, 2]> (a) }}"""
    model = parsed(text)
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(kernel, "k"))
    return model


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_fact_of_no_places_leaves_nothing_out(pool: str) -> None:
    """An image is unread where the pool behind has no place: that is no work to skip."""
    found = known(dynamic_pool(pool), None).graph
    assert readers_of(found).of("a") == ["y"]
    assert any(r for r in found["a"].dead) and not where_left_out(found["a"].dead)
    report = explained(dynamic_pool(pool), None)
    summary = summary_of(report)
    assert (summary.refused.nodes, summary.dense.share) == (0, pytest.approx(1))
    assert all(not r.dead for r in report.nodes)
    assert report.whole_reader is not None and report.whole_reader.outputs == ("y",)

"""Facts on BERT-like encoders: every mask dialect, every head, audited under random masks."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from models.bert import BertConfig, bert
from models.masks import MASKS
from pitc.ir.graph import Graph
from pitc.ir.region import describe
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.fill import fill_facts
from tests.fact_check import analysed, proven
from tests.fact_feeds import PATTERNS, Pattern

SMALL = BertConfig(layers=2, hidden=8, heads=2, ffn=12, vocab=13, types=2, positions=16)
MASK = "attention_mask"
OPS = ("MatMul", "Gemm", "LayerNormalization", "Softmax", "Erf", "Gelu")
FORMS = (
    {},
    {"norm": "decomposed", "linear": "transpose", "scores": "split"},
    {"linear": "gemm", "reshape": "zeros", "scores": "query", "token_types": "buffer"},
    {"activation": "gelu_op", "opset": 20, "position_form": "range", "reshape": "infer"},
    {"constant_nodes": True, "position_form": "slice_table", "scores": "mul"},
)
MASK_DTYPES = ("int64", "bool", "float32", "int32")
AUDITED: tuple[Pattern, ...] = ("holes",)  # with an empty row; others in one test


def _config(dialect: str, head: str) -> BertConfig:
    """The dialect with other differences of exports dealt out over the cases."""
    number = sorted(MASKS).index(dialect) + len(head)
    config = replace(SMALL, mask=dialect, head=head, mask_dtype=MASK_DTYPES[number % 4])
    return replace(config, **FORMS[number % len(FORMS)])


def _rows_dead(graph: Graph, text: str) -> list[bool]:
    """Per node of interest: is some row dead by a test of the mask, without "for all"?"""
    out = []
    for node in graph.nodes:
        if node.op_type in OPS:
            regions = graph[node.outputs[0].name or ""].dead
            plain = [r for r in regions if not any(t.alls for t in r)]
            out.append(any(text in describe(r) for r in plain))
    return out


def _audited(
    config: BertConfig,
    opt_in: tuple[str, ...] = (),
    patterns: tuple[Pattern, ...] = AUDITED,
) -> Graph:
    proto = bert(config, np.random.default_rng(1))
    return proven(proto, MASK, opt_in, patterns, top_index=2)


@pytest.mark.parametrize("dialect", MASKS)
def test_with_the_promise_every_padded_row_is_dead(dialect: str) -> None:
    graph = _audited(_config(dialect, "none"), ("last_hidden_state",))
    assert all(_rows_dead(graph, f"{MASK}[")), "a row that nobody reads is still computed"
    for node in graph.nodes:
        if node.op_type == "LayerNormalization":
            name = node.outputs[0].name or ""
            assert f"{MASK}[d0, d1] == 0" in {describe(r) for r in graph[name].dead}


@pytest.mark.parametrize("dialect", MASKS)
def test_masked_mean_pooling_needs_no_promise(dialect: str) -> None:
    graph = _audited(_config(dialect, "mean_normalised"))
    assert all(_rows_dead(graph, f"{MASK}["))


@pytest.mark.parametrize("dialect", ["one_minus_min", "sdpa", "dynamo", "mul_sub"])
def test_without_a_promise_only_keys_and_values_are_dead(dialect: str) -> None:
    config = _config(dialect, "none")
    graph = _audited(config)
    found = _rows_dead(graph, f"{MASK}[")
    assert 0 < sum(found) < len(found) / 2
    # a fact about the last hidden state would change what the model returns
    assert graph["last_hidden_state"].dead == []


@pytest.mark.parametrize("dialect", ["one_minus_1e4", "fill_inf", "torchscript_sdpa", "keep_1e9"])
@pytest.mark.parametrize("head", ["cls", "pooler"])
def test_a_class_token_head_needs_few_rows(dialect: str, head: str) -> None:
    graph = _audited(_config(dialect, head))
    assert _rows_dead(graph, "").count(False) == (head == "pooler")  # its own dense layer
    last = [n for n in graph.nodes if n.op_type in ("LayerNormalization", "Erf", "Gelu")][-1]
    assert "d1-1 >= 0" in {describe(r) for r in graph[last.outputs[0].name or ""].dead}


@pytest.mark.parametrize("head", ["tokens", "sequence", "both", "mean"])
def test_other_heads_are_sound(head: str) -> None:
    outputs = {"tokens": ("logits",), "both": ("last_hidden_state",)}.get(head, ())
    _audited(_config("dynamo_sdpa", head), outputs, PATTERNS)


def test_a_model_that_ignores_its_mask_proves_nothing_of_it() -> None:
    graph = _audited(replace(SMALL, mask="none"))
    assert not any(_rows_dead(graph, MASK))


@pytest.mark.parametrize(("batch", "sequence"), [(1, 5), (3, 1), (4, 4)])
def test_degenerate_sizes_hold(batch: int, sequence: int) -> None:
    """Length 1, one token, and length = batch, where different dimensions look the same."""
    config = _config("torchscript_sdpa", "none")
    proto = bert(config, np.random.default_rng(2))
    sizes = {"batch": batch, "sequence": sequence}
    proven(proto, MASK, ("last_hidden_state",), AUDITED, sizes, top_index=2)


def test_static_sizes_prove_the_same() -> None:
    for dialect in ("dynamo", "torchscript", "inverted_fill"):
        config = replace(SMALL, mask=dialect, batch=3, sequence=6)
        graph = _audited(config, ("last_hidden_state",))
        assert all(_rows_dead(graph, f"{MASK}["))


def test_facts_rest_on_named_assumptions() -> None:
    graph, _ = analysed(bert(_config("keep_1e9", "mean"), np.random.default_rng(0)), MASK)
    assert any("softmax" in text for text in graph.assumptions)
    graph, _ = analysed(bert(_config("fill_inf", "mean"), np.random.default_rng(0)), MASK)
    assert not any("softmax" in text for text in graph.assumptions)


def test_a_fact_names_the_values_that_prove_it() -> None:
    graph, _ = analysed(bert(SMALL, np.random.default_rng(0)), MASK, ("last_hidden_state",))
    name = next(n.outputs[0].name or "" for n in graph.nodes if n.op_type == "Softmax")
    (fact,) = graph[name].fills
    path = graph.names_of(fact.region.via)
    assert path[0] == MASK and path[-1] == name and len(path) > 3


def test_facts_follow_the_graph_as_it_is() -> None:
    """A renamed mask, and outputs in another order, prove the same."""
    proto = bert(replace(SMALL, head="both"), np.random.default_rng(0))
    model = ir.from_proto(proto)
    next(v for v in model.graph.inputs if v.name == MASK).name = "m"
    model.graph.outputs[:] = list(reversed(model.graph.outputs))
    graph = Graph(model)
    fill_facts(graph, ["m"])
    dead_facts(graph)
    assert any("m[" in describe(r) for x in graph.values.values() for r in x.dead)

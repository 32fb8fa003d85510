"""The encoder builder in every export form, in ONNX Runtime, against a float64 forward."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from models.bert import BERT_BASE, MASK_DTYPES, TINY, BertConfig, bert, bert_graph, random_weights
from models.graph import GraphBuilder
from models.heads import HEADS
from models.masks import MASKS
from models.reference import forward

BATCH, LENGTH = 5, 9
# f32 arithmetic of two tiny layers with values of order one
TOLERANCE = 1e-5
# -1e4 is added to a score of order one: 13 bits are lost where every key of a row is masked
SHIFTED_TOLERANCE = 2e-3

Feeds = dict[str, npt.NDArray[Any]]


def feeds_for(config: BertConfig, seed: int = 1) -> Feeds:
    """Right padding, left padding, holes, no padding, and one sequence without any token."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, config.vocab, (BATCH, LENGTH))
    live = np.ones((BATCH, LENGTH), bool)
    live[0, 4:], live[1, :3], live[2], live[4] = False, False, rng.random(LENGTH) < 0.6, False
    live[2, 5] = True
    feeds: Feeds = {"input_ids": ids, "attention_mask": live.astype(config.mask_dtype)}
    if config.token_types == "input":
        feeds["token_type_ids"] = rng.integers(0, config.types, ids.shape)
    return feeds


def run(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    outputs = [np.asarray(output) for output in session.run(None, feeds)]
    return dict(zip(names, outputs, strict=True))


def assert_matches_reference(config: BertConfig) -> onnx.ModelProto:
    weights = random_weights(config, np.random.default_rng(0))
    model, feeds = bert_graph(config, weights), feeds_for(config)
    got, want = run(model, feeds), forward(config, weights, feeds)
    assert got.keys() == want.keys()
    shifted = config.mask == "one_minus_1e4"
    for name, expected in want.items():
        assert got[name].dtype == np.float32
        live = slice(None, -1) if shifted else slice(None)
        np.testing.assert_allclose(got[name][live], expected[live], rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=SHIFTED_TOLERANCE)
    return model


@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("mask", [*MASKS, "none"])
def test_every_mask_dialect_means_what_it_says(mask: str, dtype: str) -> None:
    assert_matches_reference(replace(TINY, mask=mask, mask_dtype=dtype))


@pytest.mark.parametrize("dtype", MASK_DTYPES)
@pytest.mark.parametrize("head", HEADS)
def test_every_head(head: str, dtype: str) -> None:
    assert_matches_reference(replace(TINY, head=head, mask_dtype=dtype))


@pytest.mark.parametrize(
    "form",
    [
        {"scores": "mul"},
        {"scores": "query"},
        {"scores": "split"},
        {"activation": "relu"},
        {"activation": "gelu_tanh"},
        {"activation": "gelu_op", "opset": 20},
        {"activation": "gelu_op_tanh", "opset": 21},
        {"norm": "decomposed", "opset": 13},
        {"norm": "decomposed", "opset": 18},
        {"linear": "gemm"},
        {"linear": "transpose"},
        {"reshape": "infer"},
        {"reshape": "zeros"},
        {"position_form": "slice_table"},
        {"position_form": "range"},
        {"token_types": "none"},
        {"token_types": "buffer"},
        {"constant_nodes": True, "mask": "torchscript"},
        {"layers": 1, "heads": 1},
        {"hidden": 12, "heads": 3, "ffn": 5},
        {"head": "mean_normalised", "opset": 18},
        {"mask": "torchscript_sdpa", "scores": "split", "norm": "decomposed", "opset": 14},
        {"mask": "dynamo_sdpa", "scores": "split", "activation": "gelu_op", "opset": 20},
        {"token_types": "none", "mask": "fill_min", "scores": "query", "head": "sequence"},
    ],
    ids=str,
)
def test_every_form(form: dict[str, Any]) -> None:
    assert_matches_reference(replace(TINY, **form))


def test_masks_differ_where_every_key_is_masked() -> None:
    """The dialects agree on live sequences and not on an empty one, so the reference has teeth."""
    weights, feeds = random_weights(TINY, np.random.default_rng(0)), feeds_for(TINY)
    outputs = {
        mask: forward(replace(TINY, mask=mask), weights, feeds)["last_hidden_state"]
        for mask in ("one_minus_1e4", "one_minus_min", "fill_inf", "sdpa", "none")
    }
    base = outputs["one_minus_min"]
    np.testing.assert_allclose(outputs["sdpa"][:4], base[:4], rtol=0, atol=1e-12)
    assert np.isnan(outputs["fill_inf"][4]).all()
    assert np.abs(outputs["sdpa"][4] - base[4]).max() > 0.1
    assert np.abs(outputs["one_minus_1e4"][4] - base[4]).max() > 0.1
    assert np.abs(outputs["none"][0] - base[0]).max() > 0.1


@pytest.mark.parametrize("shape", [(1, 1), (1, LENGTH), (4, 4), (0, 3)])
def test_sizes_are_symbolic(shape: tuple[int, int]) -> None:
    weights = random_weights(TINY, np.random.default_rng(0))
    model = bert_graph(replace(TINY, mask="torchscript"), weights)
    ids = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    got, want = run(model, feeds), forward(TINY, weights, feeds)
    assert got["last_hidden_state"].shape == (*shape, TINY.hidden)
    np.testing.assert_allclose(
        got["last_hidden_state"], want["last_hidden_state"], rtol=0, atol=TOLERANCE
    )


def test_operators_are_those_of_the_form() -> None:
    def operators(**form: Any) -> set[str]:
        model = bert(replace(TINY, **form), np.random.default_rng(0))
        return {node.op_type for node in model.graph.node}

    assert "LayerNormalization" in operators()
    assert not operators(norm="decomposed") & {"LayerNormalization"}
    assert {"GatherND", "And", "Range"} <= operators(mask="dynamo")
    assert {"Flatten", "Equal", "ConstantOfShape"} <= operators(mask="torchscript")
    assert {"IsNaN"} <= operators(mask="sdpa")
    assert "Gemm" in operators(linear="gemm")
    assert "Constant" in operators(constant_nodes=True)
    assert not operators() & {"Constant", "IsNaN", "GatherND", "Gemm"}


def test_same_seed_same_bytes() -> None:
    first, second = (bert(TINY, np.random.default_rng(3)) for _ in range(2))
    other = bert(TINY, np.random.default_rng(4))
    assert first.SerializeToString() == second.SerializeToString()
    assert first.SerializeToString() != other.SerializeToString()


def test_bert_base_has_its_known_size() -> None:
    """110 M parameters; checked on one layer: tables + 12 x layer + pooler."""
    config = replace(BERT_BASE, layers=1)
    weights = random_weights(config, np.random.default_rng(0))
    layer = sum(w.size for name, w in weights.items() if name.startswith("encoder"))
    fixed = sum(w.size for name, w in weights.items() if name.startswith(("embed", "pooler")))
    assert layer == 7_087_872
    assert fixed + 12 * layer == 109_482_240


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"mask": "unknown"}, "mask is 'unknown'"),
        ({"head": "tail"}, "expected one of none, mean"),
        ({"heads": 5}, "not a multiple of heads 5"),
        ({"opset": 16}, "opset 16 is older than 17"),
        ({"activation": "gelu_op"}, "opset 17 is older than 20"),
        ({"norm": "decomposed", "opset": 12}, "opset 12 is older than 13"),
    ],
    ids=str,
)
def test_wrong_configurations_are_refused(form: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **form)


def test_builder_keeps_scalars_and_shares_constants() -> None:
    g = GraphBuilder("g")
    x = g.input("x", np.float32, ("n", 4))
    assert g.const(2.0) == g.const(2.0)
    assert g.const(2.0) != g.const([2.0])
    first = g.op("Mul", x, g.const(2.0))
    g.output(g.op("Add", first, first), "y", np.float32, ("n", 4))
    g.output(first, "z", np.float32, ("n", 4))
    model = g.model()
    assert [len(t.dims) for t in model.graph.initializer] == [0, 1]
    got = run(model, {"x": np.ones((2, 4), np.float32)})
    np.testing.assert_array_equal(got["y"], np.full((2, 4), 4, np.float32))
    np.testing.assert_array_equal(got["z"], np.full((2, 4), 2, np.float32))

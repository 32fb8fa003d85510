"""Lowered graphs against ONNX Runtime on the source graph, with PIT nodes interpreted by numpy.

Kernels and the plugin have tests of their own; here only facts, regions and rewriting are on trial.
"""

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from models.bert import BertConfig, bert
from models.heads import HEADS
from models.masks import MASKS
from pitc.ir import target as targets
from pitc.ir.refusal import Code
from pitc.passes.facts import dead, finite
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from pitc.passes.regions import legal
from tests.plan_reference import evaluator, run_lowered

RTOL = 1e-5  # norm-wise, float32
PADDING = "attention_mask"


def lower(model: onnx.ModelProto, padding: str | None = None) -> Lowered:
    return run_passes(ir.serde.deserialize_model(model), LowerOptions(padding=padding))


def mask_of(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    b, s = shape
    lengths = rng.integers(1, s + 1, b) if s else np.zeros(b, int)
    at = np.arange(s)
    match kind:
        case "right":
            return at < lengths[:, None]
        case "left":
            return at >= s - lengths[:, None]
        case "holes":
            m = rng.random((b, s)) < 0.5
            m[:1, :1], m[1:2] = True, False
            return m
        case "full":
            return np.ones((b, s), bool)
        case "empty":
            return np.zeros((b, s), bool)
    raise AssertionError(kind)


KINDS = ("right", "left", "holes", "full", "empty")


def feeds_of(model: onnx.ModelProto, mask: np.ndarray, rng: np.random.Generator) -> dict:
    feeds = {}
    for i in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        high = 2 if "type" in i.name else 90
        random = rng.integers(0, high, mask.shape)
        feeds[i.name] = (mask if "mask" in i.name else random).astype(dtype)
    return feeds


def reference(model: onnx.ModelProto):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def evaluated(lowered: Lowered) -> ReferenceEvaluator:
    return evaluator(ir.serde.serialize_model(lowered.model))


def assert_same(model, ours: ReferenceEvaluator, mask, padding, rng, session) -> None:
    feeds = feeds_of(model, mask, rng)
    want, got = session.run(None, feeds), run_lowered(ours, feeds)
    for x, y in zip(want, got, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        if padding and x.shape[:2] == mask.shape and x.ndim > 1:
            np.testing.assert_array_equal(y[~mask], 0)
            x, y = x[mask], y[mask]
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        x, y = np.nan_to_num(x), np.nan_to_num(y)
        assert np.linalg.norm(x - y) <= RTOL * max(np.linalg.norm(x), 1e-6)


def contractions(lowered: Lowered) -> list[str]:
    return [r.lowering for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm")]


CASES = [
    *((mask, "none", PADDING) for mask in MASKS),
    *((mask, "mean", None) for mask in MASKS),
    *((mask, "cls", None) for mask in MASKS),
    *(("sdpa", head, padding) for head in HEADS for padding in (None, PADDING)),
]


# an integer mask may hold 2, which these dialects do not read as "keep": only the padding contract
# says that it holds 0 and 1
NEED_TRUTH_VALUES = ("mul_sub", "inverted_fill")


@pytest.mark.parametrize(("mask", "head", "padding"), CASES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_every_mask_dialect_and_head(mask: str, head: str, padding: str | None):
    rng = np.random.default_rng(7)
    model = bert(BertConfig(mask=mask, head=head), rng)
    lowered, session = lower(model, padding), reference(model)
    ours = evaluated(lowered)
    for kind in KINDS:
        assert_same(model, ours, mask_of(kind, (3, 9), rng), padding, rng, session)
    if padding or head in ("mean", "mean_normalised"):
        packed = [x for x in contractions(lowered) if x != "ordinary"]
        assert len(packed) >= 16 or (padding is None and mask in NEED_TRUTH_VALUES)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("batch", [0, 1, 2, 9])
@pytest.mark.parametrize("sequence", [0, 1, 9])
def test_degenerate_sizes(batch: int, sequence: int):
    rng = np.random.default_rng(3)
    model = bert(BertConfig(layers=1, mask="one_minus_min", head="none"), rng)
    ours, session = evaluated(lower(model, PADDING)), reference(model)
    for kind in ("right", "empty", "full"):
        mask = mask_of(kind, (batch, sequence), rng)
        assert_same(model, ours, mask, PADDING, rng, session)


@settings(max_examples=15, deadline=None)
@given(
    mask=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 8)),
    options=st.fixed_dictionaries(
        {
            "scores": st.sampled_from(["div", "mul", "query", "split"]),
            "activation": st.sampled_from(["gelu_erf", "gelu_tanh", "relu"]),
            "norm": st.sampled_from(["op", "decomposed"]),
            "linear": st.sampled_from(["matmul", "transpose", "gemm"]),
            "reshape": st.sampled_from(["concat", "infer", "zeros"]),
            "position_form": st.sampled_from(["slice_ids", "slice_table", "range"]),
            "token_types": st.sampled_from(["input", "buffer", "none"]),
            "mask_dtype": st.sampled_from(["int64", "int32", "float32", "bool"]),
        }
    ),
)
def test_random_masks_and_dialects_of_layers(mask, sizes, options):
    rng = np.random.default_rng(mask)
    model = bert(BertConfig(layers=1, mask="fill_min", head="mean", **options), rng)
    lowered = lower(model)
    live = rng.random(sizes) < rng.random()
    assert_same(model, evaluated(lowered), live, None, rng, reference(model))
    assert contractions(lowered).count("ordinary") == 0


def one_node(*nodes, inputs, outputs, weights=()) -> onnx.ModelProto:
    def info(name, shape, kind=TensorProto.FLOAT):
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        list(nodes),
        "g",
        [info(*i) for i in inputs],
        [info(*o) for o in outputs],
        [onnx.numpy_helper.from_array(w, n) for n, w in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def masked_rows(reader: list[onnx.NodeProto]) -> onnx.ModelProto:
    """A contraction whose rows are multiplied by a mask, behind the given nodes (h -> z)."""
    rng = np.random.default_rng(0)
    make = helper.make_node
    return one_node(
        make("MatMul", ["x", "w"], ["h"]),
        *reader,
        make("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        make("Unsqueeze", ["f", "last"], ["u"]),
        make("Mul", ["z", "u"], ["y"]),
        inputs=[("x", ["b", "s", 256]), ("m", ["b", "s"], TensorProto.INT64)],
        outputs=[("y", ["b", "s", 256])],
        weights=[
            ("w", rng.normal(size=(256, 256)).astype(np.float32)),
            ("last", np.asarray([-1], np.int64)),
        ],
    )


def agrees(model: onnx.ModelProto, lowered: Lowered, feeds: dict[str, np.ndarray]) -> None:
    want = np.asarray(reference(model).run(None, feeds)[0])
    got = np.asarray(run_lowered(ir.serde.serialize_model(lowered.model), feeds)[0])
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-4)


def rows_and_mask() -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(2, 5, 256)).astype(np.float32)
    return {"x": x, "m": np.asarray([[1, 1, 0, 0, 0], [1, 0, 1, 1, 1]])}


ONES = numpy_helper.from_array(np.ones(256, np.float32), "ones")


def ordinary(x: str, y: str) -> onnx.NodeProto:
    """The same rows, by a node that runs on all of them."""
    return helper.make_node("Einsum", [x, "ones"], [y], equation="bsh,h->bsh")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_reader_that_is_not_total_keeps_the_region_whole(monkeypatch: pytest.MonkeyPatch):
    """Zeros in dead rows would become inf in 1/x, and inf * 0 is not 0."""
    make = helper.make_node
    steps = [ordinary("h", "e"), make("Reciprocal", ["e"], ["z"])]
    model = masked_rows(steps)
    model.graph.initializer.append(ONES)
    lowered = lower(model)
    (record,) = [r for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert record.refusal is not None and record.refusal.code is Code.NO_FACT
    agrees(model, lowered, rows_and_mask())
    monkeypatch.setattr(dead, "signed_zeros", lambda *_: set())  # 1/x tells -0.0 from 0, too
    monkeypatch.setattr(finite, "is_total", lambda *_: True)
    (record,) = [r for r in lower(model).report.nodes if r.op_type == "MatMul"]
    assert record.refusal is not None and record.refusal.code is Code.NOT_TOTAL
    monkeypatch.setattr(legal, "reader_upset_by_zeros", lambda *_: None)
    with pytest.raises(AssertionError):  # the check is needed
        agrees(model, lower(model), rows_and_mask())


def place_of_zeros(rows: str) -> list[onnx.NodeProto]:
    """A place 256 in a table of as many lines for each row of zeros, else 0."""
    make = helper.make_node
    return [
        make("ReduceL1", [rows], ["size"], axes=[-1], keepdims=0),
        make("Cast", ["size"], ["some"], to=TensorProto.BOOL),
        make("Not", ["some"], ["nothing"]),
        make("Cast", ["nothing"], ["flag"], to=TensorProto.INT64),
        make("Mul", ["flag", "end"], ["place"]),
        make("Gather", ["w", "place"], ["z"]),
    ]


def is_left_whole(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(256), "end"))
    lowered = lower(model)
    (record,) = [r for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert record.refusal is not None and record.refusal.code is Code.NOT_TOTAL
    agrees(model, lowered, rows_and_mask())


def test_zeros_are_no_new_index() -> None:
    """A place computed from a row that comes back as 0 may lie outside of the table."""
    model = masked_rows([ordinary("h", "e"), *place_of_zeros("e")])
    model.graph.initializer.append(ONES)
    is_left_whole(model)


def test_zeros_are_no_new_index_where_they_went() -> None:
    """Behind a step that no row of the domain goes through, they are zeros still."""
    turn = ["last", "lowest", "one", "last"]  # tokens from the last to the first
    model = masked_rows([helper.make_node("Slice", ["h", *turn], ["e"]), *place_of_zeros("e")])
    (gate,) = [n for n in model.graph.node if "u" in n.output]
    gate.output[0] = "straight"
    at = list(model.graph.node).index(gate) + 1
    model.graph.node.insert(at, helper.make_node("Slice", ["straight", *turn], ["u"]))
    for name, number in (("lowest", np.iinfo(np.int64).min), ("one", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray([number]), name))
    is_left_whole(model)


def test_a_product_without_a_sum_is_no_attention() -> None:
    model = masked_rows([helper.make_node("Einsum", ["h", "h"], ["z"], equation="bsh,bsh->bsh")])
    agrees(model, lower(model), rows_and_mask())


def test_gemm_over_sequences_takes_a_matrix() -> None:
    """A whole sequence for each packed row has a dimension more than Gemm takes."""
    make = helper.make_node
    model = one_node(
        make("MatMul", ["x", "w"], ["h"]),
        make("Reshape", ["h", "rows"], ["r"]),
        make("Gemm", ["r", "w", "shift"], ["g"], alpha=0.5),
        make("Shape", ["h"], ["size"]),
        make("Reshape", ["g", "size"], ["z"]),
        make("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        make("Unsqueeze", ["f", "last"], ["u"]),
        make("Mul", ["z", "u"], ["y"]),
        inputs=[("x", ["b", "s", 256]), ("m", ["b"], TensorProto.INT64)],
        outputs=[("y", ["b", "s", 256])],
        weights=[
            ("w", np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)),
            ("rows", np.asarray([-1, 256])),
            ("shift", np.ones(256, np.float32)),
            ("last", np.asarray([1, 2])),
        ],
    )
    feeds = {**rows_and_mask(), "m": np.asarray([0, 1])}
    agrees(model, lower(model), feeds)


def test_masked_values_do_not_mask_the_softmax():
    """Dead rows of v may be left out of a sum, not out of the softmax's denominator."""
    rng, make = np.random.default_rng(0), helper.make_node
    model = one_node(
        make("MatMul", ["x", "wq"], ["q"]),
        make("MatMul", ["x", "wk"], ["k"]),
        make("MatMul", ["x", "wv"], ["v"]),
        make("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        make("Unsqueeze", ["f", "last"], ["u"]),
        make("Mul", ["v", "u"], ["vm"]),
        make("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        make("MatMul", ["q", "kt"], ["s"]),
        make("Softmax", ["s"], ["p"], axis=-1),
        make("MatMul", ["p", "vm"], ["a"]),
        make("Mul", ["a", "u"], ["y"]),
        inputs=[("x", ["b", "s", 256]), ("m", ["b", "s"], TensorProto.INT64)],
        outputs=[("y", ["b", "s", 256])],
        weights=[
            *((n, rng.normal(0, 0.05, (256, 256)).astype(np.float32)) for n in ("wq", "wk", "wv")),
            ("last", np.asarray([-1], np.int64)),
        ],
    )
    lowered = lower(model)
    assert contractions(lowered) == ["packed", "ordinary", "packed", "folded", "attention"]
    agrees(model, lowered, rows_and_mask())


def test_an_isolated_contraction_runs_packed():
    model = masked_rows([helper.make_node("Identity", ["h"], ["z"])])
    lowered = lower(model)
    assert contractions(lowered) == ["packed"]
    rng = np.random.default_rng(1)
    for m in (rng.integers(0, 2, (2, 5)), np.zeros((2, 5), int), np.ones((1, 1), int)):
        x = rng.normal(size=(*m.shape, 256)).astype(np.float32)
        feeds = {"x": x, "m": m.astype(np.int64)}
        want = np.asarray(reference(model).run(None, feeds)[0])
        got = run_lowered(ir.serde.serialize_model(lowered.model), feeds)[0]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_rows_without_the_dimensions_of_the_mask_are_packed_before_a_contraction():
    """gather_gemm reads `[b, s, k]` itself, but `[b * s, k]` only behind a pack node."""
    rng, make = np.random.default_rng(0), helper.make_node
    model = one_node(
        make("Reshape", ["x", "flat"], ["x2"]),
        make("CumSum", ["x2", "first"], ["x3"]),  # along the rows: runs whole
        make("MatMul", ["x3", "w"], ["h"]),
        make("Shape", ["x"], ["shape"]),
        make("Reshape", ["h", "shape"], ["z"]),
        make("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        make("Unsqueeze", ["f", "last"], ["u"]),
        make("Mul", ["z", "u"], ["y"]),
        inputs=[("x", ["b", "s", 256]), ("m", ["b", "s"], TensorProto.INT64)],
        outputs=[("y", ["b", "s", 256])],
        weights=[
            ("w", rng.normal(size=(256, 256)).astype(np.float32)),
            *(
                (n, np.asarray(v, np.int64))
                for n, v in {"flat": [-1, 256], "first": 0, "last": [-1]}.items()
            ),
        ],
    )
    lowered = lower(model)
    text = "".join(
        n.attributes["ep_cache_context"].as_string()
        for n in lowered.model.graph
        if n.op_type == "EPContext"
    )
    assert "dims=l,r\n" in text and "gather=0\n" in text
    for size in ((2, 5), (1, 1), (0, 3)):
        x = rng.normal(size=(*size, 256)).astype(np.float32)
        feeds = {"x": x, "m": rng.integers(0, 2, size)}
        want = np.asarray(reference(model).run(None, feeds)[0])
        got = run_lowered(ir.serde.serialize_model(lowered.model), feeds)[0]
        assert np.linalg.norm(got - want) <= RTOL * np.linalg.norm(want)


def test_without_sparsity_the_model_compiles_to_itself():
    rng = np.random.default_rng(0)
    model = bert(BertConfig(mask="none", head="none"), rng)
    with patch.object(targets, "CPU", replace(targets.CPU, hides_pairs="")):
        lowered = lower(model)
    assert not lowered.kernels and not lowered.report.regions
    assert [n.op_type for n in lowered.model.graph] == [
        n.op_type for n in model.graph.node if n.op_type != "Constant"
    ]
    kinds = Counter(contractions(lower(model)))
    assert kinds == {"ordinary": 12, "attention": 2, "folded": 2}


def test_nothing_depends_on_names():
    """The same graph under other names lowers to the same operators."""
    rng = np.random.default_rng(0)
    model = bert(BertConfig(mask="dynamo", head="none"), rng)
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    kept = {i.name for i in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {}

    def new(name: str) -> str:
        return name if name in kept or not name else names.setdefault(name, f"v{len(names)}")

    for node in renamed.graph.node:
        node.name = ""
        node.input[:] = [new(x) for x in node.input]
        node.output[:] = [new(x) for x in node.output]
    for w in renamed.graph.initializer:
        w.name = new(w.name)
    del renamed.graph.value_info[:]
    want, got = lower(model, PADDING), lower(renamed, PADDING)
    assert [n.op_type for n in want.model.graph] == [n.op_type for n in got.model.graph]
    assert contractions(want) == contractions(got)

"""What pitc says would help: each suggestion where it holds, and not where it does not."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import pitc
from models.bert import BertConfig, bert
from models.graph import GraphBuilder
from pitc import api
from pitc.errors import SuggestionWarning
from pitc.ir.refusal import Code, Refusal
from pitc.ir.report import Suggestion
from pitc.ir.summary import summary_of
from pitc.passes import suggest
from pitc.passes.analysis import analyse
from pitc.passes.pipeline import LowerOptions, run_passes
from pitc.passes.records import node_record
from tests.lower_support import lower

Run = Callable[..., tuple[int, str, str]]

FIXTURES = Path(__file__).parents[2] / "models/export/fixtures"
ENCODER = BertConfig(layers=2, hidden=64, heads=2, ffn=256, vocab=50)


def encoder(**changes: object) -> onnx.ModelProto:
    return bert(replace(ENCODER, **changes), np.random.default_rng(0))  # type: ignore[arg-type]


def found(model: onnx.ModelProto, padding: str | None = None) -> list[Suggestion]:
    options = LowerOptions(padding=padding, suggest=True)
    return run_passes(ir.serde.deserialize_model(model), options).report.suggestions


def kinds(model: onnx.ModelProto, padding: str | None = None) -> list[str]:
    return [suggestion.kind for suggestion in found(model, padding)]


@pytest.mark.parametrize("mask_dtype", ["int64", "bool", "float32"])
def test_the_mask_that_hides_keys_is_named_with_what_it_would_gain(mask_dtype: str) -> None:
    model = encoder(mask_dtype=mask_dtype)
    (said,) = found(model)
    padded, plain = (lower(model, mask).report for mask in ("attention_mask", None))
    now, then = summary_of(plain), summary_of(padded)
    assert (said.kind, said.option) == ("padding", "--padding attention_mask")
    shares = [f"{100 * x.packed.share:.1f}".removesuffix(".0") for x in (now, then)]
    assert f"{shares[0]} % -> {shares[1]} % of the work would run packed" in said.text
    assert said.gain == pytest.approx(then.packed.share - now.packed.share, abs=1e-3)


NO_PADDING: dict[str, Callable[[], tuple[onnx.ModelProto, str | None]]] = {
    "it is given": lambda: (encoder(), "attention_mask"),
    "the model ignores it": lambda: (encoder(mask="none"), None),
    "the head drops padded rows itself": lambda: (encoder(head="mean"), None),
    "no attention": lambda: (
        parsed("(float[b, s, 8] x, int64[b, s] mask) => (float[b, s, 8] y) { y = Relu (x) }"),
        None,
    ),
}


@pytest.mark.parametrize("name", NO_PADDING)
def test_no_mask_is_named_where_nothing_is_gained(name: str) -> None:
    model, padding = NO_PADDING[name]()
    assert kinds(model, padding) == []


def test_indices_and_positions_are_no_masks() -> None:
    """Tokens are looked up, and an index of 0 makes no row unread by hiding a key."""
    model = encoder()
    graph, _ = analyse(ir.serde.deserialize_model(model), None)
    assert suggest.hiding_inputs(graph) == ["attention_mask"]
    rotated = parsed(
        "(float[b, s, 8] x, int64[b, s] place) => (float[b, s, 8] y) {"
        "f = Cast <to = 1> (place) a = Constant <value_ints = [2]> () u = Unsqueeze (f, a)"
        "t = Mul (x, u) q = Softmax (x) y = MatMul (q, w) z = Mul (t, y) }",
        w=np.ones((8, 8), np.float32),
    )
    rotated.graph.output[0].name = "z"
    graph, _ = analyse(ir.serde.deserialize_model(rotated), None)
    assert suggest.hiding_inputs(graph) == []


def test_a_float_that_hides_nothing_is_no_mask() -> None:
    """It is added to scores, and no number of it makes a weight 0."""

    def biased(scale: float) -> onnx.ModelProto:
        g = GraphBuilder("biased")
        x, bias = g.input("x", np.float32, ("b", "s", 64)), g.input("bias", np.float32, ("b", "s"))
        keys = g.op("Transpose", x, perm=[0, 2, 1])
        low = g.op("Mul", g.op("Sub", g.const(1.0), bias), g.const(scale))
        scores = g.op("Add", g.op("MatMul", x, keys), g.op("Unsqueeze", low, g.ints(1)))
        rows = g.op("MatMul", g.op("Softmax", scores, axis=-1), x)
        g.output(dense(g, rows), "y", np.float32, ("b", "s", 64))
        return g.model()

    assert kinds(biased(-1e4)) == ["padding"]
    assert kinds(biased(-1.0)) == []


def dense(g: GraphBuilder, x: str) -> str:
    """Two layers that are worth to be packed."""
    rng = np.random.default_rng(0)
    w = g.weight("w", rng.standard_normal((64, 1024)).astype(np.float32))
    v = g.weight("v", rng.standard_normal((1024, 64)).astype(np.float32))
    return g.op("MatMul", g.op("Tanh", g.op("MatMul", x, w)), v)


def beside_a_mask(*shape: int | str) -> onnx.ModelProto:
    """Rows, and a mask that never meets them."""
    g = GraphBuilder("beside")
    x = g.input("x", np.float32, (*shape, 64))
    mask = g.input("mask", np.int64, shape)
    g.output(dense(g, x), "y", np.float32, (*shape, 64))
    g.output(g.op("ReduceSum", mask, keepdims=0), "count", np.int64, ())
    return g.model()


def test_dynamic_axes_are_asked_for_where_sizes_alone_say_what_a_token_is() -> None:
    (said,) = found(beside_a_mask(8, 128), "mask")
    assert (said.kind, said.option) == ("dynamic axes", "") and said.gain == 1.0
    assert "0 % -> 100 % of the work would run packed" in said.text
    assert kinds(beside_a_mask("b", "s"), "mask") == []  # it runs packed
    assert kinds(beside_a_mask(8, 128)) == []  # who knows that it is a mask?


def parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> m {text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return model


def test_quantised_products_without_a_form_are_named() -> None:
    model = onnx.load(FIXTURES / "bert-eager-dynamo-dynamic.onnx")
    graph, _ = analyse(ir.serde.deserialize_model(model), "attention_mask")
    records = {node: node_record(graph, node) for node in graph.nodes}
    refusal = Refusal(Code.NO_LOWERING, "", "no form")
    bare = {n: replace(r, refusal=refusal) for n, r in records.items()}
    (said,) = suggest._eight_bits(graph, bare)
    count = sum(n.op_type == "MatMulInteger" for n in graph.nodes)
    assert said.kind == "quantisation" and f"{count} products of 8-bit integers" in said.text
    dear = replace(refusal, code=Code.NO_GAIN, reason="under 32 operations per byte moved")
    priced = {n: replace(r, refusal=dear) for n, r in records.items()}
    assert not list(suggest._eight_bits(graph, priced))  # they have a form, and it does not pay
    whole, _ = analyse(ir.serde.deserialize_model(model), None)
    unread = {n: replace(node_record(whole, n), refusal=refusal, dead=()) for n in whole.nodes}
    assert not list(suggest._eight_bits(whole, unread))
    assert kinds(onnx.load(FIXTURES / "bert-eager-dynamo.onnx"), "attention_mask") == []


def masked_by_constant(mask: np.ndarray) -> onnx.ModelProto:
    return parsed(
        "(float[b, 4, 8] x) => (float[b, 4, 8] y) {"
        "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) a = Add (s, m)"
        "p = Softmax (a) y = MatMul (p, x) }",
        m=mask.astype(np.float32),
    )


LOW = -1e4
CAUSAL = np.where(np.tri(4) > 0, 0, LOW)


def test_a_mask_that_was_exported_as_a_constant_is_named() -> None:
    (said,) = found(masked_by_constant(np.array([[0, 0, 0, LOW]])))
    assert (said.kind, said.gain) == ("constant mask", None)
    assert "'m' is a constant and hides 1 of 4 keys" in said.text
    assert kinds(masked_by_constant(np.array([0, LOW, 0, LOW]))) == ["constant mask"]
    assert kinds(masked_by_constant(np.broadcast_to([0, 0, LOW, LOW], (1, 4, 4)))) == [
        "constant mask"
    ]


@pytest.mark.parametrize("mask", [CAUSAL, np.zeros((1, 4)), np.full((1, 4), -3.0)])
def test_other_constants_are_not(mask: np.ndarray) -> None:
    """A causal mask hides other keys from each query; others hide none."""
    assert kinds(masked_by_constant(mask)) == []


def test_operators_of_a_library_are_named() -> None:
    text = "(float[3] x) => (float[3] y) { h = own.Thing (x) k = own.Thing (h) y = own.Other (k) }"
    model = parsed(text)
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    (said,) = found(model)
    assert said.kind == "operator library"
    assert "'own' (Thing, Other; 3 nodes)" in said.text
    model.functions.extend(
        onnx.helper.make_function(
            "own",
            name,
            ["x"],
            ["y"],
            [onnx.helper.make_node("Relu", ["x"], ["y"])],
            [onnx.helper.make_opsetid("", 17)],
        )
        for name in ("Thing", "Other")
    )
    assert kinds(model) == []  # they come with the model


def test_trials_leave_the_compiled_model_alone() -> None:
    def compiled(*, wanted: bool) -> bytes:
        options = LowerOptions(suggest=wanted)
        lowered = run_passes(ir.serde.deserialize_model(encoder()), options)
        return ir.serde.serialize_model(lowered.model).SerializeToString(deterministic=True)

    assert compiled(wanted=True) == compiled(wanted=False)


def test_large_graphs_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggest, "MOST_NODES", 100)
    assert kinds(encoder()) == []


def test_compile_warns_once_and_can_be_told_not_to() -> None:
    model = encoder(layers=1)
    with pytest.warns(SuggestionWarning, match="--padding attention_mask") as caught:
        made = pitc.compile(model, "cpu:v3")
    assert len(caught) == 1 and caught[0].filename == __file__
    assert issubclass(SuggestionWarning, pitc.PitcWarning)
    (said,) = made.report.suggestions
    assert f"suggestion: {said.text}" in made.summary().splitlines()
    assert made.summary().startswith("bert.onnx on cpu, padding none: ")
    assert pitc.load(made.path).summary() == made.summary()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = pitc.compile(model, "cpu:v3", suggest=False)
    assert quiet.report.suggestions == [] and "suggestion" not in quiet.summary()
    assert api.explain(model, "cpu:v3", suggest=False)["cpu"].suggestions == []
    assert api.explain(model, "cpu:v3")["cpu"].suggestions == [said]


def test_a_second_mask_is_named_beside_the_one_that_is_given() -> None:
    """An encoder and its decoder have a mask each."""
    model = onnx.load(FIXTURES / "bart-eager-traced.onnx")
    (said,) = found(model, "attention_mask")
    assert said.option == "--padding attention_mask,decoder_attention_mask"
    assert (said.gain or 0) > 0.2 and said.text.count("'decoder_attention_mask' is 0") == 1
    assert kinds(model, "decoder_attention_mask") == []


def test_the_command_line_says_it(run: Run, tmp_path: Path) -> None:
    onnx.save(encoder(layers=1), f"{tmp_path}/m.onnx")
    code, out, err = run(
        "compile", f"{tmp_path}/m.onnx", "-o", f"{tmp_path}/a", "--target", "cpu:v3"
    )
    assert code == 0 and "suggestion: with --padding attention_mask" in " ".join(out.split())
    assert "SuggestionWarning" not in err
    code, out, _ = run("explain", f"{tmp_path}/m.onnx", "--json")
    (said,) = json.loads(out)["suggestions"]
    assert said["kind"] == "padding" and said["gain"] > 0.1
    code, out, _ = run("explain", f"{tmp_path}/m.onnx", "--no-suggest")
    assert code == 0 and "suggestion" not in out

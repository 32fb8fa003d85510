"""How the padding contract is said: masks of either side, token numbers, values of the model."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.artifact.manifest import FALLBACK
from pitc.check.tokens import LiveTokens
from pitc.cli import main
from pitc.errors import UsageError
from pitc.ir.mask import PaddingMask
from pitc.ir.report import Report, TokenPlace
from pitc.passes.live_scales import scale_by_live_tokens
from tests.runtime_support import Array

Model = onnx.ModelProto
D = 256
LIVE = np.array([[1] * 7, [1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1]], bool)

MASKED = {
    "pad": [],
    "one": [("Equal", ["ids", "one"], "p")],
    "zero": [("Equal", ["ids", "zero"], "p")],
    "above": [("Greater", ["ids", "one"], "real"), ("Not", ["real"], "p")],
}
"""How the model finds out which keys are hidden: where `p` is true."""


def attention(kind: str, pad: int = TensorProto.BOOL, outputs: tuple[str, ...] = ("y",)) -> Model:
    """Attention over tokens whose `p` is not true."""
    rng = np.random.default_rng(0)
    two = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, two)]
    if kind == "pad":
        inputs.append(helper.make_tensor_value_info("pad", pad, two))
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"])]
    nodes += [helper.make_node(op, names, [out]) for op, names, out in MASKED[kind]]
    if kind == "pad":
        nodes.append(helper.make_node("Cast", ["pad"], ["p"], to=TensorProto.BOOL))
    nodes += [helper.make_node("MatMul", ["x", f"w{k}"], [k]) for k in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Unsqueeze", ["p", "axis"], ["p3"]),
        helper.make_node("Where", ["p3", "low", "scores"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["probabilities"], axis=-1),
        helper.make_node("MatMul", ["probabilities", "v"], ["c"]),
        helper.make_node("MatMul", ["c", "wo"], ["y"]),
        helper.make_node("ReduceMean", ["y", "axis"], ["mean"], keepdims=0),
    ]
    weights = {f"w{k}": 0.05 * rng.standard_normal((D, D), np.float32) for k in "qkvo"}
    weights |= {"table": rng.standard_normal((50, D), np.float32), "low": np.float32(-1e9)}
    weights |= {"axis": np.array([1]), "one": np.int64(1), "zero": np.int64(0)}
    shapes = {"y": [*two, D], "mean": ["batch", D]}
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in outputs]
    tensors = [numpy_helper.from_array(np.asarray(x), n) for n, x in weights.items()]
    graph = helper.make_graph(nodes, "attention", inputs, made, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def numbers(padding: int) -> Array:
    """Token numbers of which one is padding."""
    drawn = np.random.default_rng(1).integers(2, 50, LIVE.shape)
    return np.where(LIVE, drawn, padding)


def run(model: Model, names: list[str], feeds: dict[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime answers."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(names, feeds)
    return {name: np.asarray(x) for name, x in zip(names, found, strict=True)}


def packed(report: Report) -> int:
    return sum(record.lowering != "ordinary" for record in report.nodes)


CASES = [
    ("pad", "!pad", {"ids": numbers(0), "pad": ~LIVE}),
    ("one", "ids:1", {"ids": numbers(1)}),
    ("one", "!p", {"ids": numbers(1)}),
    ("zero", "ids:0", {"ids": numbers(0)}),
    ("zero", " ids:0 ", {"ids": numbers(0)}),
    ("above", "real", {"ids": numbers(1)}),
    ("above", "!p", {"ids": numbers(-3)}),
]


@pytest.mark.parametrize(("kind", "padding", "feeds"), CASES, ids=lambda x: str(x)[:8])
def test_each_form_packs_all_and_real_tokens_stay(
    kind: str, padding: str, feeds: dict[str, Array]
) -> None:
    model = attention(kind)
    compiled = pitc.compile(model, padding=padding, check=True)
    assert compiled.report.tokens == {"y": TokenPlace(padding.strip(), 0, 1)}
    assert packed(compiled.report) >= 10, compiled.report.nodes
    got = compiled.run(feeds)["y"]
    want = run(model, ["y"], feeds)["y"]
    np.testing.assert_allclose(got[LIVE], want[LIVE], rtol=1e-4, atol=1e-5)
    assert not got[~LIVE].any() and want[~LIVE].any()


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.FLOAT])
def test_a_mask_of_numbers_whose_ones_are_padding(dtype: int) -> None:
    """It holds 0 and 1 only, which is looked at."""
    compiled = pitc.compile(attention("pad", dtype), padding="!pad")
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    feeds = {"ids": numbers(0), "pad": (~LIVE).astype(kind)}
    got = compiled.run(feeds)["y"]
    assert not got[~LIVE].any() and got[LIVE].any(axis=-1).all()
    feeds["pad"][0, 0] = 2
    with pytest.raises(UsageError, match="padding mask 'pad' to hold 0 and 1 only"):
        compiled.run(feeds)


def test_token_numbers_hold_any() -> None:
    compiled = pitc.compile(attention("zero"), padding="ids:0")
    assert compiled.run({"ids": np.array([[7, 49, -1, 0]])})["y"].shape == (1, 4, D)


@pytest.mark.parametrize(
    ("kind", "padding", "text", "hint"),
    [
        ("pad", "pad", "hides keys of attention where it is not 0", "--padding '!pad'"),
        ("zero", "!ids:0", "is not an input", "none"),
        ("one", "ids", "'ids' is looked up in a table", "'ids:0' says"),
        ("one", "nothing", "'nothing' is not an input of the model", "none"),
        ("one", "scores", "must be bools of shape", None),
        ("pad", "!pad, !pad", "names one mask twice", None),
        ("one", "ids:99999999999999999999", "99999999999999999999 is no int64", None),
        ("pad", "pad:1", "'pad' is bool, no tensor of integers", None),
        ("pad", "p3", "must be bools of shape", None),
        ("pad", "table:3", "is not an input", None),
    ],
)
def test_what_is_refused(kind: str, padding: str, text: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=text.replace("(", r"\(")) as error:
        pitc.compile(attention(kind), padding=padding)
    assert hint is None or hint in (error.value.hint or "")


def test_a_mask_that_is_read_the_other_way_round_is_refused() -> None:
    """Its zeros hide keys, so with `!` the real tokens would be 0."""
    model = attention("pad")
    model.graph.node.insert(1, helper.make_node("Not", ["pad"], ["flipped"]))
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.input[0] = "flipped"
    assert pitc.compile(model, padding="pad").report.tokens
    with pytest.raises(UsageError, match="where it is 0, in 1 places") as error:
        pitc.compile(model, padding="!pad")
    assert error.value.hint == "--padding 'pad'"


@pytest.mark.parametrize("name", ["mask:0", "a,b", "!not", "ids:1"])
def test_a_name_is_a_name_whatever_it_looks_like(name: str) -> None:
    model = attention("pad", TensorProto.INT64)
    model.graph.input[1].name = name
    model.graph.node.insert(1, helper.make_node("Sub", ["one", name], ["flipped"]))
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.input[0] = "flipped"
    compiled = pitc.compile(model, padding=name)
    assert compiled.report.tokens == {"y": TokenPlace(name, 0, 1)}
    got = compiled.run({"ids": numbers(0), name: LIVE.astype(np.int64)})["y"]
    assert not got[~LIVE].any() and got[LIVE].any()


# ---- several


def both() -> Model:
    """Two sequences, of other lengths, each of which a mask of its own hides keys of."""
    first, second = attention("pad", TensorProto.INT64), attention("pad", TensorProto.INT64)
    for name, model in (("a", first), ("b", second)):
        names = {x for n in model.graph.node for x in (*n.input, *n.output)}
        names |= {x.name for x in model.graph.initializer}
        table = {x: f"{name}.{x}" for x in names}
        for node in model.graph.node:
            node.input[:] = [table[x] for x in node.input]
            node.output[:] = [table[x] for x in node.output]
        for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
            value.name = table[value.name]
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[1].dim_param = f"{name}.sequence"
    first.graph.node.extend(second.graph.node)
    first.graph.input.extend(second.graph.input)
    first.graph.output.extend(second.graph.output)
    first.graph.initializer.extend(second.graph.initializer)
    return first


def both_feeds() -> dict[str, Array]:
    return {
        "a.ids": numbers(0),
        "a.pad": (~LIVE).astype(np.int64),
        "b.ids": numbers(0)[:, :5],
        "b.pad": (~LIVE[:, 2:]).astype(np.int64),
    }


@pytest.mark.parametrize("spelled", ["!a.pad,!b.pad", ["!a.pad", "!b.pad"], ("!b.pad", "!a.pad")])
def test_several_masks_each_of_its_sequence(spelled: str | list[str]) -> None:
    compiled = pitc.compile(both(), padding=spelled, check=True)
    places = {"a.y": TokenPlace("!a.pad", 0, 1), "b.y": TokenPlace("!b.pad", 0, 1)}
    assert compiled.report.tokens == places
    alone = pitc.explain(both(), padding="!a.pad")["cpu"]
    assert packed(compiled.report) > packed(alone)
    # of a mask that is not given, only keys are left out, where some key lives
    texts = [[r.domain for r in report.regions] for report in (compiled.report, alone)]
    assert [sum("some" not in text for text in found) for found in texts] == [2, 1]
    found = compiled.run(both_feeds())
    assert not found["a.y"][~LIVE].any() and not found["b.y"][~LIVE[:, 2:]].any()
    assert found["a.y"][LIVE].any(axis=-1).all() and found["b.y"][LIVE[:, 2:]].any(axis=-1).all()


@pytest.mark.parametrize("wrong", ["a.pad", "b.pad"])
def test_each_of_several_masks_is_looked_at(wrong: str) -> None:
    compiled = pitc.compile(both(), padding="!a.pad,!b.pad")
    feeds = both_feeds()
    feeds[wrong][0, 0] = 3
    with pytest.raises(UsageError, match=f"'{wrong}' to hold 0 and 1 only"):
        compiled.run(feeds)


def test_two_masks_of_one_sequence_are_both_looked_at() -> None:
    """What is dead where both are 0 is found by one detector."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[b, s, 256] x, int64[b, s] m, float[b, s] n, float[256, 256] w)
        => (float[b, 256] y, float[b, 256] z)
    <int64[1] axis = {2}, int64[1] tokens = {1}>
    {
        h = MatMul (x, w)
        mf = Cast <to = 1> (m)
        m3 = Unsqueeze (mf, axis)
        n3 = Unsqueeze (n, axis)
        hm = Mul (h, m3)
        hn = Mul (h, n3)
        y = ReduceSum <keepdims = 0> (hm, tokens)
        z = ReduceSum <keepdims = 0> (hn, tokens)
    }
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    w = 0.05 * rng.standard_normal((256, 256), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    del model.graph.input[3]
    compiled = pitc.compile(model, padding="m,n")
    x = rng.standard_normal((*LIVE.shape, 256), np.float32)
    feeds = {"x": x, "m": LIVE.astype(np.int64), "n": LIVE[::-1].astype(np.float32)}
    want = run(model, ["y", "z"], feeds)
    for name, got in compiled.run(feeds).items():
        np.testing.assert_allclose(got, want[name], rtol=1e-4, atol=1e-5)
    for name, bad in (("m", 2), ("n", 0.5), ("n", np.nan)):
        broken = {**feeds, name: feeds[name].copy()}
        broken[name][1, 1] = bad
        with pytest.raises(UsageError, match="to hold 0 and 1 only"):
            compiled.run(broken)


# ---- what is said


def test_little_effect_is_said_with_the_output_that_stops_it() -> None:
    model = attention("pad", outputs=("y", "mean"))
    (note,) = pitc.compile(model, padding="!pad", suggest=True).report.notes
    assert note.startswith("--padding !pad changes little: ")
    read = "every row is read by output 'mean', through 'mean' (ReduceMean): without it 100% would"
    assert read in note
    assert pitc.compile(attention("pad"), padding="!pad").report.notes == []


def test_no_effect_is_said_and_what_it_means_for_scales() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[b, s, 8] x, int64[b, s] m) => (float[b, s, 4] y)
    <uint8[8, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8,
                      1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}>
    {
        q, scale, zero = DynamicQuantizeLinear (x)
        i = MatMulInteger (q, w, zero)
        f = Cast <to = 1> (i)
        y = Mul (f, scale)
    }
    """
    report = pitc.compile(onnx.parser.parse_model(text), padding="m").report
    (note,) = report.notes
    assert note == (
        "--padding m changes nothing: the model runs unchanged, on padded tokens, too; dynamic "
        "scales include padding"
    )


def test_a_mask_that_is_computed_from_scales_leaves_these_as_they_are() -> None:
    """A scale in front of the mask cannot be of the tokens that the mask calls real."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[b, s, 8] x) => (float[b, s, 8] y)
    <float half = {0.5}, int64[1] last = {2}>
    {
        q, scale, zero = DynamicQuantizeLinear (x)
        f = DequantizeLinear (q, scale, zero)
        sums = ReduceSum <keepdims = 0> (f, last)
        real = Greater (sums, half)
        p, scale2, zero2 = DynamicQuantizeLinear (f)
        y = DequantizeLinear (p, scale2, zero2)
    }
    """
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    assert len(scale_by_live_tokens(model, "real")) == 1  # the second
    onnx.checker.check_model(ir.serde.serialize_model(model))


def test_numbers_that_are_compared_in_another_shape_are_no_mask() -> None:
    """[1, 1, 1] makes three dimensions of a matrix: a comparison of our own is added."""
    model = attention("zero")
    model.graph.node.insert(0, helper.make_node("Equal", ["ids", "wide"], ["other"]))
    model.graph.initializer.append(numpy_helper.from_array(np.full((1, 1, 1), 1), "wide"))
    compiled = pitc.compile(model, padding="ids:1", suggest=False)
    got = compiled.run({"ids": numbers(1)})["y"]
    assert compiled.report.tokens == {"y": TokenPlace("ids:1", 0, 1)}
    assert not got[~LIVE].any() and got[LIVE].any(axis=-1).all()


def test_suggestions_name_the_form_that_helps() -> None:
    found = {
        kind: [s.option for s in pitc.explain(attention(kind))["cpu"].suggestions]
        for kind in ("pad", "zero")
    }
    assert found == {"pad": ["--padding '!pad'"], "zero": ["--padding ids:0"]}


# ---- who else must know


@pytest.mark.parametrize(("kind", "padding"), [(kind, padding) for kind, padding, _ in CASES])
def test_verify_and_bench_know_each_form(
    kind: str, padding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(attention(kind), path)
    assert main(["verify", str(path), "--padding", padding, "--facts", "--json", "-q"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {o["rows"] for o in told["outputs"]} == {"live"} and told["facts"]["failures"] == []


def test_bench_pads_as_the_mask_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, padding in (("pad", "!pad"), ("one", "ids:1")):
        path = tmp_path / f"{kind}.onnx"
        onnx.save(attention(kind), path)
        words = ["bench", str(path), "--padding", padding, "--lengths", "2,5,7", "--json", "-q"]
        assert main([*words, "--rounds", "1"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["tokens"] == {"live": 14, "places": 21}


def test_live_tokens_are_those_of_each_form(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(attention("above"), path)
    for padding in ("real", "!p"):
        live = LiveTokens(path, padding)({"ids": numbers(1)})
        assert list(live) == [padding] and np.array_equal(live[padding], LIVE)
    compiled = pitc.compile(path, padding="ids:1")
    (mask,) = LiveTokens(compiled.path / FALLBACK, compiled.manifest.options.padding).masks
    assert (mask.number, mask.source) == (1, "ids")
    for mask in (
        PaddingMask("m", "m", source="m"),
        PaddingMask("!m", "m", live=False, source="m"),
        PaddingMask("m:7", "x", live=False, number=7, source="m"),
    ):
        for dtype in (np.int64, np.float32):
            drawn = np.full(LIVE.shape, 7, dtype)
            assert np.array_equal(mask.read(mask.written(LIVE, drawn)), LIVE)

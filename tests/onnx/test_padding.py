"""The padding contract: which outputs are token-shaped, and what they hold, for every way in which
sizes are declared: symbols, 1, other numbers.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from markupsafe import escape
from onnx import helper, numpy_helper

from pitc.artifact.manifest import report_from_dict, report_to_dict
from pitc.cli.show_nodes import Shown, explained
from pitc.ir import target as targets
from pitc.ir.report import Report
from pitc.passes.normalise import normalise
from pitc.passes.padding import token_outputs
from pitc.passes.pipeline import Lowered, LowerOptions, analyse, run_passes
from pitc.report.page import page
from tests.plan_reference import run_lowered

Array = np.ndarray
HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
LIVE = """
    m = Cast <to = 1> (mask)
    m3 = Unsqueeze (m, last)
"""
MLP = """
    h = MatMul (x, w)
    r = Relu (h)
    y = MatMul (r, v)
"""
# computes tokens, and a mean of those that live
POOLED = (
    LIVE
    + MLP
    + """
    kept = Mul (y, m3)
    sums = ReduceSum <keepdims = 0> (kept, one)
    n = ReduceSum <keepdims = 1> (m, one)
    more = Add (n, tiny)
    pooled = Div (sums, more)
"""
)
INTEGERS = {"last": [2], "one": [1], "zero": [0]}


def parsed(text: str) -> onnx.ModelProto:
    """A model with the constants that it reads."""
    model, rng = onnx.parser.parse_model(HEAD + text), np.random.default_rng(0)
    arrays: dict[str, Array] = {k: np.asarray(v, np.int64) for k, v in INTEGERS.items()}
    arrays["w"] = rng.normal(size=(4, 6)).astype(np.float32)
    arrays["v"] = rng.normal(size=(6, 4)).astype(np.float32)
    arrays["tiny"] = np.asarray(1e-6, np.float32)
    read = {name for node in model.graph.node for name in node.input}
    for name in sorted(read & set(arrays)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(arrays[name]), name))
    return model


def lower(model: onnx.ModelProto) -> tuple[Lowered, set[str]]:
    """The lowered model, and the outputs that were given up."""
    lowered = run_passes(ir.serde.deserialize_model(model), LowerOptions(padding="mask"))
    again = ir.serde.deserialize_model(model)
    normalise(again)
    return lowered, set(analyse(again, "mask")[1])


def outputs_noted(report: Report) -> list[str]:
    """Notes of outputs, without the one that says what the mask has changed in all."""
    return [note for note in report.notes if not note.startswith("--padding")]


def masks(b: int, s: int) -> Iterator[Array]:
    """All tokens dead, all live, one live, some."""
    one = np.zeros((b, s), bool)
    one[-1:, -1:] = True
    yield from (one & False, one | True, one, np.arange(b * s).reshape(b, s) % 3 != 1)


def feeds(model: onnx.ModelProto, sizes: dict[str, int]) -> Iterator[dict[str, Array]]:
    rng = np.random.default_rng(1)
    shapes = {
        i.name: [sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim]
        for i in model.graph.input
    }
    types = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    for mask in masks(*shapes["mask"]):
        feed = {
            name: rng.normal(size=shape).astype(helper.tensor_dtype_to_np_dtype(types[name]))
            for name, shape in shapes.items()
        }
        yield feed | {"mask": mask.astype(feed["mask"].dtype)}


def check(model: onnx.ModelProto, sizes: dict[str, int]) -> tuple[Lowered, set[str]]:
    """Lower, and compare with ONNX Runtime: outputs that were given up are 0 at dead tokens."""
    lowered, given = lower(model)
    found = ir.serde.serialize_model(lowered.model)
    onnx.checker.check_model(found)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds(model, sizes):
        mask = feed["mask"] != 0
        got = run_lowered(found, feed)
        for output, x, want in zip(model.graph.output, got, session.run(None, feed), strict=True):
            expected = np.array(want)
            if output.name in given:
                expected[~mask] = 0
            assert np.asarray(x).shape == expected.shape
            assert np.asarray(x).dtype == expected.dtype
            np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-5)
    return lowered, given


DECLARED = [
    *(("b", "s"), (1, "s"), ("b", 5), (1, 5), (2, 5)),
    *(("b", 1), (1, 1), (2, 1), (0, "s"), ("b", 0)),
]


@pytest.mark.parametrize("shape", DECLARED, ids=str)
@pytest.mark.parametrize("b", [0, 1, 3])
@pytest.mark.parametrize("s", [0, 1, 4])
def test_every_declaration_and_size(
    shape: tuple[str | int, str | int], b: int, s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are multiplied by the mask, so its axes reach them where sizes are numbers too."""
    if (isinstance(shape[0], int) and b) or (isinstance(shape[1], int) and s):
        return  # the same model and sizes again
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))
    first, second = shape
    text = f"(float[{first}, {second}, 4] x, int64[{first}, {second}] mask)"
    text += f" => (float[{first}, {second}, 4] y, float[{first}, 4] pooled) {{ {POOLED} }}"
    lowered, given = check(parsed(text), {"b": b, "s": s})
    packed = {r.node for r in lowered.report.nodes if r.lowering != "ordinary"}
    assert {"h", "r"} <= packed or not packed
    if second != 1 and 0 not in shape:
        assert given == {"y"}
        assert outputs_noted(lowered.report) == []


SIMPLE = {
    "batch of one": ("float[1, s, 3] x, int64[1, s] mask", "float[1, s, 3] y", "y = Relu (x)"),
    "symbols": ("float[b, s, 3] x, bool[b, s] mask", "float[b, s, 3] y", "y = Relu (x)"),
    "rank 2": ("float[1, s] x, int64[1, s] mask", "float[1, s] y", "y = Relu (x)"),
    "numbers, joined by the mask": (
        "float[2, 5, 3] x, float[2, 5] mask",
        "float[2, 5, 3] y",
        "m = Unsqueeze (mask, last) k = Mul (x, m) y = Exp (k)",
    ),
    "numbers, through products": (
        "float[5, 5, 4] x, float[5, 5] mask",
        "float[5, 5, 6] y",
        "m = Unsqueeze (mask, last) z = Mul (x, m) q = MatMul (z, w) y = Exp (q)",
    ),
    "batch of one, number": (
        "float[1, 5, 3] x, float[1, 5] mask",
        "float[1, 5, 3] y",
        "m = Unsqueeze (mask, last) k = Mul (x, m) y = Exp (k)",
    ),
    "number behind a symbol": (
        "float[b, 5, 3] x, float[b, 5] mask",
        "float[b, 5, 3] y",
        "m = Unsqueeze (mask, last) k = Mul (x, m) y = Exp (k)",
    ),
}


@pytest.mark.parametrize("case", SIMPLE)
def test_token_shaped(case: str) -> None:
    inputs, outputs, body = SIMPLE[case]
    lowered, given = check(parsed(f"({inputs}) => ({outputs}) {{ {body} }}"), {"b": 3, "s": 4})
    assert given == {"y"}
    assert outputs_noted(lowered.report) == []


BY_NUMBERS = {
    "pooled": (
        "float[2, 7, 7] x, float[2, 7] mask",
        "float[2, 7] y",
        "m = Unsqueeze (mask, last) k = Mul (x, m) y = ReduceMax <axes = [1], keepdims = 0> (k)",
    ),
    "time first": (
        "float[4, 4, 3] x, float[4, 4] mask",
        "float[4, 4, 3] y",
        """m = Unsqueeze (mask, last) k = Mul (x, m) e = Exp (k)
        y = Transpose <perm = [1, 0, 2]> (e)""",
    ),
    "time first, one symbol": (
        "float[n, n, 3] x, float[n, n] mask",
        "float[n, n, 3] y",
        """m = Unsqueeze (mask, last) k = Mul (x, m) e = Exp (k)
        y = Transpose <perm = [1, 0, 2]> (e)""",
    ),
    "not joined": ("float[2, 5, 3] x, float[2, 5] mask", "float[2, 5, 3] y", "y = Exp (x)"),
    "pooled, batch of one": (
        "float[1, 7, 7] x, float[1, 7] mask",
        "float[1, 7] y",
        "m = Unsqueeze (mask, last) k = Mul (x, m) y = ReduceMax <axes = [1], keepdims = 0> (k)",
    ),
    "pooled, symbol": (
        "float[b, 7, 7] x, float[b, 7] mask",
        "float[b, 7] y",
        "m = Unsqueeze (mask, last) k = Mul (x, m) y = ReduceMax <axes = [1], keepdims = 0> (k)",
    ),
    "a score for each sequence of one": (
        "float[b, 1, 3] x, float[b, 1] mask",
        "float[b, 1] y",
        "e = Exp (x) y = ReduceMax <axes = [2], keepdims = 0> (e)",
    ),
}


@pytest.mark.parametrize("case", BY_NUMBERS)
def test_equal_numbers_prove_nothing(case: str) -> None:
    """Such an output equals ONNX Runtime's everywhere, and the report says so."""
    inputs, outputs, body = BY_NUMBERS[case]
    lowered, given = check(parsed(f"({inputs}) => ({outputs}) {{ {body} }}"), {"b": 3, "n": 4})
    assert given == set()
    (note,) = outputs_noted(lowered.report)
    assert "'y'" in note and "dynamic axes" in note


def test_notes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    inputs, outputs, body = BY_NUMBERS["pooled"]
    report = lower(parsed(f"({inputs}) => ({outputs}) {{ {body} }}"))[0].report
    (note,) = outputs_noted(report)
    explained(report, [], Shown())
    assert f"note: {note}" in " ".join(capsys.readouterr().out.split())
    assert str(escape(note)) in page([report])
    assert note in report_from_dict(report_to_dict(report)).notes


OTHER_TYPES = {
    "strings": ("string[b, s] y", "i = Cast <to = 6> (mask) y = Gather (names, i)", "string"),
    "a sequence": ("seq(float[b, s, 3]) y", "y = SequenceConstruct (x)", "sequence"),
    "an optional": ("optional(float[b, s, 3]) y", "y = Optional (x)", "optional"),
}


@pytest.mark.parametrize("case", OTHER_TYPES)
def test_outputs_that_cannot_be_zero_stay(case: str) -> None:
    output, body, word = OTHER_TYPES[case]
    model = parsed(f"(float[b, s, 3] x, int64[b, s] mask) => ({output}) {{ {body} }}")
    names = numpy_helper.from_array(np.array(["dead", "live"], object), "names")
    model.graph.initializer.extend([names] if case == "strings" else [])
    lowered, given = lower(model)
    assert given == set()
    (note,) = outputs_noted(lowered.report)
    assert "'y'" in note and word in note
    found = ir.serde.serialize_model(lowered.model)
    sessions = [
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for m in (model, found)
    ]
    for feed in feeds(model, {"b": 2, "s": 3}):
        want, got = (session.run(None, feed)[0] for session in sessions)
        np.testing.assert_array_equal(got, want)


MADE_ZERO = {
    "bool": "And",
    **dict.fromkeys(("float", "double", "int32", "int64", "uint8"), "Where"),
    **dict.fromkeys(("float16", "int8", "int16", "uint16"), "Cast Where Cast"),
    **dict.fromkeys(("uint32", "uint64"), "Cast Where Cast"),
}


@pytest.mark.parametrize("kind", MADE_ZERO)
def test_outputs_of_every_type_are_made_zero(kind: str) -> None:
    """By the fewest nodes that every version of ONNX Runtime has for the type."""
    text = f"({kind}[b, s, 3] x, bool[b, s] mask) => ({kind}[b, s, 3] y)"
    lowered, given = check(parsed(f"{text} {{ y = Identity (x) }}"), {"b": 3, "s": 4})
    assert given == {"y"}
    nodes = [n.op_type for n in lowered.model.graph]
    assert nodes == ["Unsqueeze", "Identity", *MADE_ZERO[kind].split()]


def test_what_is_scattered_is_zero_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0, least_extent=1))
    text = "(float[b, s, 4] x, bool[b, s] mask) => (float[b, s, 4] y)"
    lowered, given = check(parsed(f"{text} {{ {MLP} }}"), {"b": 3, "s": 4})
    assert given == {"y"}
    assert {n.op_type for n in lowered.model.graph} == {"EPContext"}


def test_float8_outputs_stay() -> None:
    text = "(float[b, s, 3] x, int64[b, s] mask) => (float8e4m3fn[b, s, 3] y)"
    model = parsed(f"{text} {{ y = Cast <to = 17> (x) }}")
    model.opset_import[0].version, model.ir_version = 19, 9
    lowered, given = lower(model)
    assert given == set()
    (note,) = outputs_noted(lowered.report)
    assert "'y'" in note and "float8" in note
    assert [n.op_type for n in lowered.model.graph] == ["Cast"]


def test_without_a_mask_nothing_is_given_up() -> None:
    model = ir.serde.deserialize_model(
        parsed("(float[b, s] x) => (float[b, s] y) { y = Relu (x) }")
    )
    graph, given = analyse(model, None)
    assert given == token_outputs(graph, ()) == {}

"""Quantisations stand behind PIT nodes before ONNX Runtime puts them there, and change nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.ir.graph import Graph
from pitc.ir.index import poly
from pitc.ir.nodes import is_pit_node
from pitc.passes.quirks.early_quantise import PASSED, quantise_early
from pitc.runtime.library import make_session
from pitc.session import quiet_options

Run = Callable[..., tuple[int, str, str]]
STATIC = Path(__file__).parents[2] / "models/export/fixtures/bert-eager-dynamo-static.onnx"

#: What stands between a PIT node's result, f32[3, 4, 8], and a quantisation: operator, the numbers
#: that it reads besides, attributes.
Step = tuple[str, list[list[int]], dict[str, Any]]
STEPS: dict[str, Step] = {
    "Reshape": ("Reshape", [[3, 32]], {}),
    "Transpose": ("Transpose", [], {"perm": [1, 0, 2]}),
    "Unsqueeze": ("Unsqueeze", [[0]], {}),
    "Flatten": ("Flatten", [], {"axis": 1}),
    "Slice": ("Slice", [[0], [2], [1]], {}),
    "whole slice": ("Slice", [[0], [1 << 60], [1]], {}),
    "Expand": ("Expand", [[2, 3, 4, 8]], {}),
    "no expansion": ("Expand", [[1]], {}),
    "MaxPool": ("MaxPool", [], {"kernel_shape": [2], "pads": [1, 0]}),
    "Identity": ("Identity", [], {}),
    "Dropout": ("Dropout", [], {}),
    "Cast": ("Cast", [], {"to": TensorProto.FLOAT}),
    "Relu": ("Relu", [], {}),
}


def between(steps: list[Step], value: str = "p") -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    """Nodes from a value to `r`, and their constants."""
    nodes, constants = [], []
    for i, (op_type, numbers, attributes) in enumerate(steps):
        names = [f"{value}.{i}.{k}" for k in range(len(numbers))]
        constants += [
            numpy_helper.from_array(np.array(n, np.int64), name)
            for n, name in zip(numbers, names, strict=True)
        ]
        into = "r" if i == len(steps) - 1 else f"{value}.{i}"
        before = value if i == 0 else f"{value}.{i - 1}"
        nodes.append(helper.make_node(op_type, [before, *names], [into], **attributes))
    return nodes, constants


def model(
    steps: list[Step],
    *,
    zero: int | None = 3,
    dtype: Any = np.uint8,
    scale: float | list[float] = 0.1,
    given_scale: bool = False,
    more: list[onnx.NodeProto] | None = None,
    outputs: tuple[str, ...] = ("q",),
    x_dtype: Any = np.float32,
    **attributes: Any,
) -> ir.Model:
    """q = QuantizeLinear(steps(p)), p = a PIT node of x."""
    nodes, constants = between(steps)
    grid = ["scale"]
    if not given_scale:
        constants.append(numpy_helper.from_array(np.array(scale, x_dtype), "scale"))
    if zero is not None:
        zeros = np.full(np.shape(scale), zero, dtype)
        constants.append(numpy_helper.from_array(zeros, "zero"))
        grid.append("zero")
    element = helper.np_dtype_to_tensor_dtype(np.dtype(x_dtype))
    pit = helper.make_node(
        "EPContext", ["x"], ["p"], "pit", domain="com.microsoft", source="PitExecutionProvider"
    )
    quantise = helper.make_node(
        "QuantizeLinear", ["r" if steps else "p", *grid], ["q"], "quantise", **attributes
    )
    inputs = [helper.make_tensor_value_info("x", element, [3, 4, 8])]
    if given_scale:
        inputs.append(helper.make_tensor_value_info("scale", element, []))
    graph = helper.make_graph(
        [pit, *nodes, *(more or ()), quantise],
        "g",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        constants,
        value_info=[helper.make_tensor_value_info("p", element, [3, 4, 8])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ir.from_proto(proto)


def answers(model: ir.Model, feeds: dict[str, Any]) -> list[Any]:
    """What ONNX Runtime makes of it, the PIT node being none."""
    proto = ir.to_proto(model)
    for node in proto.graph.node:
        if node.op_type == "EPContext":
            node.op_type, node.domain = "Identity", ""
            del node.attribute[:]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, feeds))


def numbers(dtype: Any = np.float32) -> Any:
    """Numbers on the grid, halfway between its points, beside them, and far outside."""
    rng = np.random.default_rng(0)
    found = rng.standard_normal((3, 4, 8)).astype(np.float32)
    found[0] = rng.integers(-300, 300, (4, 8)) * np.float32(0.05)
    found[1, 0] = [np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1e-40, 25.2]
    with np.errstate(over="ignore"):
        return found.astype(dtype)


KINDS = [(3, np.uint8), (-128, np.int8), (0, np.int8), (None, np.uint8), (7, np.uint16)]


@pytest.mark.parametrize(("zero", "dtype"), KINDS)
@pytest.mark.parametrize("name", [*STEPS, "Clip", "two"])
def test_nothing_changes(name: str, zero: int | None, dtype: Any) -> None:
    steps = [STEPS["Reshape"], ("Transpose", [], {})] if name == "two" else [STEPS.get(name)]
    if name == "Clip":  # its bounds are no points of the grid
        steps = [("Clip", [], {})]
    made = model([s for s in steps if s is not None], zero=zero, dtype=dtype)
    if name == "Clip":
        clip = next(n for n in made.graph if n.op_type == "Clip")
        for k, bound in enumerate((-0.33, 1.27), 1):
            value = ir.Value(name=f"bound{k}", const_value=ir.tensor(np.float32(bound)))
            made.graph.register_initializer(value)
            clip.resize_inputs(k + 1)
            clip.replace_input_with(k, value)
    before = answers(made, {"x": numbers()})
    assert quantise_early(made) == 1
    pit = next(n for n in made.graph if is_pit_node(n))
    assert [n.op_type for n in pit.outputs[0].consumers()] == ["QuantizeLinear"]
    assert not quantise_early(made)  # it is behind the PIT node now
    for got, want in zip(answers(made, {"x": numbers()}), before, strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


def test_every_operator_is_tried() -> None:
    assert {op_type for op_type, _, _ in STEPS.values()} | {"Clip", "Squeeze"} == PASSED


def test_float16() -> None:
    made = model([STEPS["Reshape"]], x_dtype=np.float16, scale=0.125, dtype=np.int8, zero=-7)
    feeds = {"x": numbers(np.float16)}
    before = answers(made, feeds)
    assert quantise_early(made) == 1
    np.testing.assert_array_equal(answers(made, feeds)[0], before[0])


RESHAPE = STEPS["Reshape"]


@pytest.mark.parametrize(
    "options",
    [
        {"steps": []},
        {"steps": [("Softmax", [], {})]},
        {"steps": [("Cast", [], {"to": TensorProto.FLOAT16}), ("Cast", [], {"to": 1})]},
        {"steps": [RESHAPE], "scale": [0.1] * 32, "axis": 1},
        {"steps": [RESHAPE], "outputs": ("q", "r")},
        {"steps": [RESHAPE], "more": [helper.make_node("Neg", ["r"], ["n"])]},
    ],
)
def test_others_stay_as_they_are(options: dict[str, Any]) -> None:
    made = model(**options)
    before = ir.to_proto(made)
    assert quantise_early(made) == 0 and ir.to_proto(made) == before


def test_a_scale_may_be_given_or_computed() -> None:
    """ONNX Runtime computes what depends on constants alone, and moves the quantisation then."""
    made = model([RESHAPE], given_scale=True)
    feeds = {"x": numbers(), "scale": np.array(0.1, np.float32)}
    before = answers(made, feeds)
    assert quantise_early(made) == 1
    np.testing.assert_array_equal(answers(made, feeds)[0], before[0])

    made = model([RESHAPE])
    (quantise,) = (n for n in made.graph if n.op_type == "QuantizeLinear")
    scale = ir.node("Abs", [quantise.inputs[1]], name="computed")
    scale.outputs[0].name = "computed"
    made.graph.insert_before(quantise, scale)
    quantise.replace_input_with(1, scale.outputs[0])
    assert quantise_early(made) == 0  # it may be of several numbers
    assert quantise_early(made, Graph(made)) == 0
    graph = Graph(made)
    graph.values["computed"].shape = (poly(32),)
    assert quantise_early(made, graph) == 0
    scale.outputs[0].shape = ir.Shape([])
    before = answers(made, {"x": numbers()})
    assert quantise_early(made) == 1
    np.testing.assert_array_equal(answers(made, {"x": numbers()})[0], before[0])


def test_a_result_that_others_read_is_theirs() -> None:
    made = model([RESHAPE], more=[helper.make_node("Neg", ["p"], ["n"])], outputs=("q", "n"))
    before = answers(made, {"x": numbers()})
    assert quantise_early(made) == 1
    for got, want in zip(answers(made, {"x": numbers()}), before, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.fixture(scope="module", name="artifact")
def _artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "model.pitc"
    return pitc.compile(STATIC, output=folder, suggest=False).path


@pytest.mark.parametrize("name", ["nothing", *STEPS])
def test_onnx_runtime_loads_what_is_between(artifact: Path, name: str) -> None:
    """Real PIT nodes, with a step more behind each that an early quantisation follows."""
    made = ir.load(artifact / "model.onnx")
    early = [
        n for n in made.graph if n.op_type == "QuantizeLinear" and ".rounded" in (n.name or "")
    ]
    assert early
    for node in early:
        x = node.inputs[0]
        assert x is not None
        (back,) = node.outputs[0].consumers()
        (first,) = back.outputs[0].consumers()
        first.replace_input_with(0, x)
        made.graph.remove([back, node], safe=True)
        if name == "nothing":
            continue
        op_type, constants, attributes = STEPS[name]
        inputs = [x]
        for k, value in enumerate(constants):
            constant = ir.Value(
                name=f"{node.name}.{k}", const_value=ir.tensor(np.array(value, np.int64))
            )
            made.graph.register_initializer(constant)
            inputs.append(constant)
        step = ir.node(op_type, inputs, attributes)
        step.outputs[0].name = f"{node.name}.step"
        step.outputs[0].type = x.type
        made.graph.insert_before(first, step)
        first.replace_input_with(0, step.outputs[0])
    assert quantise_early(made) == len(early)
    path = artifact / "tried.onnx"
    try:
        path.write_bytes(ir.to_proto(made).SerializeToString())
        make_session(path, quiet_options())
    finally:
        path.unlink()


def test_it_answers(run: Run, artifact: Path) -> None:
    code, out, err = run("verify", artifact, "--against", STATIC)
    assert code == 0, out + err

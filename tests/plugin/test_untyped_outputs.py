"""Outputs that are declared by their names only, or are maps: models run as in ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import pitc
from models.graph import GraphBuilder
from pitc.importer.load import load_model
from tests.lower_support import weight

WIDTH = 64
BATCH = "batch-size, any"  # no name of formulas


def encoder(*, large: bool = False) -> onnx.ModelProto:
    """Rows that are 0 where a mask is; the product in front of it is a kernel's."""
    g = GraphBuilder("rows", 17)
    x, mask = (
        g.input("x", np.float32, (BATCH, "s", WIDTH)),
        g.input("mask", np.float32, (BATCH, "s")),
    )
    inner = 4096 if large else 256
    h = g.op("Relu", g.op("MatMul", x, weight(g, "in", WIDTH, inner)))
    h = g.op("MatMul", h, weight(g, "out", inner, WIDTH))
    g.output(
        g.op("Mul", h, g.op("Unsqueeze", mask, g.ints(2))), "y", np.float32, (BATCH, "s", WIDTH)
    )
    g.output(g.op("MatMul", h, weight(g, "last", WIDTH, 3)), "z", np.float32, (BATCH, "s", 3))
    return g.model()


def classifier(kind: str) -> onnx.ModelProto:
    """Names and probabilities of classes, as exporters of classical models write them."""
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    key = TensorProto.STRING if kind == "strings" else TensorProto.INT64
    kinds = helper.make_sequence_type_proto(helper.make_map_type_proto(key, element))
    labels: dict[str, Any] = {f"classlabels_{kind}": [b"a", b"b", b"c"]}
    if kind == "int64s":
        labels = {"classlabels_int64s": [3, 5, 7]}
    weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["p"]),
            helper.make_node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", **labels),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4])],
        [
            helper.make_tensor_value_info("p", TensorProto.FLOAT, ["b", 3]),
            helper.make_value_info("z", kinds),
        ],
        [onnx.numpy_helper.from_array(weights, "w")],
        value_info=[helper.make_value_info("z", kinds)] if kind == "strings" else [],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def rows() -> dict[str, Any]:
    x = np.random.default_rng(1).standard_normal((3, 7, WIDTH)).astype(np.float32)
    return {"x": x, "mask": (np.arange(7) < np.array([[7], [2], [0]])).astype(np.float32)}


def of_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


@pytest.mark.parametrize("large", [False, True])
def test_outputs_by_name_only(large: bool) -> None:
    """Weights that the checker does not see say sizes, too."""
    typed, model = encoder(large=large), encoder(large=large)
    for value in model.graph.output:
        value.ClearField("type")
    given = rows()
    made, before = pitc.compile(model), pitc.compile(typed)
    assert made.manifest.pit_nodes == before.manifest.pit_nodes > 0
    got, want = made.run(given), of_onnxruntime(model, given)
    assert list(got) == list(want) == ["y", "z"]
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
    found = load_model(model).graph.outputs
    assert [str(o.shape) for o in found] == [str(o.shape) for o in load_model(typed).graph.outputs]
    assert [o.dtype for o in found] == [o.dtype for o in load_model(typed).graph.outputs]


def test_a_contract_on_an_output_by_name_only() -> None:
    """It is token-shaped, as its shape is known."""
    model = encoder()
    for value in model.graph.output:
        value.ClearField("type")
    given = rows()
    made = pitc.compile(model, padding="mask").run(given)
    want = of_onnxruntime(model, given)["z"] * given["mask"][:, :, None]
    np.testing.assert_allclose(made["z"], want, rtol=1e-4, atol=1e-5)


def test_an_output_of_an_operator_of_a_library_has_no_type() -> None:
    """ONNX does not know it; ONNX Runtime would, with the library."""
    model = encoder()
    model.graph.node.add(op_type="Foo", domain="acme", input=["y"], output=["v"])
    model.opset_import.add(domain="acme", version=1)
    model.graph.output.add(name="v")
    assert [o.type is None for o in load_model(model).graph.outputs] == [False, False, True]
    assert pitc.compile(model).manifest.pit_nodes > 0


@pytest.mark.parametrize("kind", ["int64s", "strings"])
def test_maps(kind: str, tmp_path: Path) -> None:
    model, x = classifier(kind), np.random.default_rng(2).standard_normal((5, 4)).astype("f4")
    made = pitc.compile(model, output=tmp_path / "m.pitc")
    got, want = made.run({"x": x}), of_onnxruntime(model, {"x": x})
    assert got["z"] == want["z"] and set(got["z"][0]) == set(want["z"][0])
    assert pitc.load(made.path).run([x], ["z"])["z"] == want["z"]
    np.testing.assert_array_equal(got["p"], want["p"])


def test_an_input_without_a_type_is_no_model() -> None:
    model = encoder()
    model.graph.input[0].ClearField("type")
    with pytest.raises(pitc.ModelError, match="input 'x' has no type"):
        pitc.compile(model)

"""`pitc inspect MODEL.onnx`: what a file declares, without a compiler."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pitc.errors import ModelError
from pitc.importer.outline import Declared, outline

Run = Callable[..., tuple[int, str, str]]
FLOAT = TensorProto.FLOAT


def model_of(*, external: bool = False) -> onnx.ModelProto:
    """Weights of 1,024, 3 and 5 elements, a branch, a function's domain, and a sequence."""
    weight = numpy_helper.from_array(np.ones((32, 32), np.float32), "w")
    short = numpy_helper.from_array(np.ones(3, np.float16), "h")
    nibbles = helper.make_tensor("n", TensorProto.INT4, [5], [1, 2, 3, 4, 5])
    if external:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="weights.bin")
    inner = numpy_helper.from_array(np.arange(5), "five")
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=inner)],
        "branch",
        [],
        [helper.make_tensor_value_info("c", TensorProto.INT64, [5])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Relu", ["z"], ["r"]),
        helper.make_node("If", ["flag"], ["picked"], then_branch=branch, else_branch=branch),
        helper.make_node("Own[red]", ["r"], ["o"], domain="mine"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [
            helper.make_tensor_value_info("x", FLOAT, ["batch", 32]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", FLOAT, [32, 32]),
            helper.make_tensor_value_info("any", TensorProto.INT4, None),
            helper.make_tensor_sequence_value_info("parts", FLOAT, ["batch", None]),
        ],
        [helper.make_tensor_value_info("r", FLOAT, ["batch", 32])],
        [weight, short, nibbles],
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
        producer_name="me",
        producer_version="2",
    )
    helper.set_model_props(made, {"author": "a\nb"})
    return made


def test_what_it_declares(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_of(), path)
    found = outline(path)
    assert found.inputs == (
        Declared("x", "float32", ("batch", 32)),
        Declared("flag", "bool", ()),
        Declared("any", "int4", None),
        Declared("parts", "sequence(float32)", ("batch", "?")),
    )  # "w" is a weight that a caller may replace
    assert found.outputs == (Declared("r", "float32", ("batch", 32)),)
    assert found.sizes == {"batch": ("x", "parts", "r")}
    assert list(found.operators.items()) == [
        ("Constant", 2),
        ("Relu", 2),
        ("If", 1),
        ("MatMul", 1),
        ("mine::Own[red]", 1),
    ]
    assert (found.nodes, found.opsets) == (7, {"ai.onnx": 17, "mine": 1})
    assert (found.producer, found.metadata) == ("me 2", {"author": "a\nb"})
    weights = found.weights
    assert (weights.tensors, weights.elements) == (5, 1024 + 3 + 5 + 5 + 5)
    assert weights.by_type == {"float32": 4096, "int64": 80, "float16": 6, "int4": 3}
    assert weights.bytes == 4185 and weights.files == {}
    assert found.bytes == path.stat().st_size

    code, out, err = run("inspect", path)
    assert (code, err) == (0, "")
    for line in (
        "inputs x float32[batch, 32]",
        "flag bool[]",
        "any int4 of unknown rank",
        "2 Relu",
        "1 mine::Own[red]",
        "5 tensors, 1,042 elements, 4.2 kB: float32 4.1 kB, int64 80 B, float16 6 B, int4 3 B",
        "metadata author: a b",
    ):
        assert any(" ".join(shown.split()).endswith(line) for shown in out.splitlines()), line
    body = json.loads(run("inspect", path, "--json")[1])
    assert body["model"] == str(path) and body["weights"]["bytes"] == 4185
    assert body["inputs"][0] == {"name": "x", "type": "float32", "shape": ["batch", 32]}


def test_weights_beside_the_model(run: Run, tmp_path: Path) -> None:
    onnx.save(model_of(external=True), tmp_path / "m.onnx")
    assert outline(tmp_path / "m.onnx").weights.files == {"weights.bin": None}
    assert "weights.bin  missing" in run("inspect", tmp_path / "m.onnx")[1]
    (tmp_path / "weights.bin").write_bytes(bytes(4096))
    found = outline(tmp_path / "m.onnx").weights
    assert found.files == {"weights.bin": 4096} and found.by_type["float32"] == 4096


def test_what_is_no_model(run: Run, bert_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.onnx")
    for name, text in (
        ("text.onnx", "is not an ONNX model, or is cut off"),
        ("empty.onnx", "it has no graph or IR version"),
        ("none.onnx", "no such file"),
        ("pipe.onnx", "is a device or pipe"),
    ):
        with pytest.raises(ModelError, match=text):
            outline(tmp_path / name)
        code, out, err = run("inspect", tmp_path / name)
        assert (code, out) == (3, "") and text in err
    onnx.save(model_of(), tmp_path / "m.onnx")
    code, _, err = run("inspect", tmp_path / "m.onnx", "--ep")
    assert code == 2 and "--ep shows how an artifact runs, and it is a model" in err
    assert "supported" in run("inspect", bert_artifact)[1]


def test_no_compiler_and_no_runtime_is_loaded(bert_path: Path) -> None:
    code = (
        "import sys; from pitc.cli import main; main(['inspect', sys.argv[1]]); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bert_path)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert "pitc.importer.outline" in loaded
    assert not loaded & {"tvm", "onnxruntime", "pitc.api", "pitc.passes", "pitc.codegen"}

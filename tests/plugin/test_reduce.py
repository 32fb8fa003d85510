"""`pitc verify --reduce`: a pass is made wrong, and the part that shows it is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pitc import api
from pitc.check.reduce import DIFFERS, OK, failure, reduce_model
from tests.wrong_pass import replace_operator

Run = Callable[..., tuple[int, str, str]]
CHAIN = ("Relu", "Sigmoid", "Abs", "Neg", "Tanh", "Exp", "Neg", "Sigmoid", "Abs", "Cos")


@pytest.fixture
def chain_path(tmp_path: Path) -> Path:
    """y = chain(x) @ w + x, with one Tanh in it; z = a second branch that is always right."""
    names = ["x", *(f"v{i}" for i in range(len(CHAIN)))]
    nodes = [
        helper.make_node(op, [a], [b], f"n_{b}")
        for op, a, b in zip(CHAIN, names, names[1:], strict=False)
    ]
    nodes += [
        helper.make_node("MatMul", [names[-1], "w"], ["m"], "product"),
        helper.make_node("Add", ["m", "x"], ["y"], "sum"),
        helper.make_node("Softplus", ["x"], ["z"], "branch"),
    ]
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 8]) for n in "xyz"]
    graph = helper.make_graph(
        nodes, "chain", info[:1], info[1:], [numpy_helper.from_array(weights, "w")]
    )
    path = tmp_path / "chain.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def test_the_reduced_model_is_smaller_and_still_fails(
    run: Run, chain_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, inputs = chain_path.with_name("small.onnx"), chain_path.with_name("small.npz")
    before = chain_path.read_bytes()
    with monkeypatch.context() as patch:
        replace_operator(patch, "Tanh", "Atan")
        code, out, err = run("verify", chain_path, "-q", "--reduce", small)
        assert code == 4
        assert "reduced from 13 to 1 nodes" in out and "Tanh" in out
        assert err.endswith(
            "error: "
            + str(chain_path)
            + ": the compiled model differs from ONNX Runtime in 3 of 3 cases\n"
        )
        assert [n.op_type for n in onnx.load(small).graph.node] == ["Tanh"]
        code, out, _ = run("verify", small, "--input", inputs, "-q")
        assert code == 4 and "FAILED" in out
    assert run("verify", small, "--input", inputs, "-q")[0] == 0
    assert chain_path.read_bytes() == before


def test_a_crash_is_reduced(run: Run, chain_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = api.lower

    def crash(model: Any, *rest: Any) -> Any:
        if any(node.op_type == "Cos" for node in model.graph):
            raise ZeroDivisionError("deep inside")
        return real(model, *rest)

    monkeypatch.setattr(api, "lower", crash)
    small = chain_path.with_name("small.onnx")
    code, out, err = run("verify", chain_path, "-q", "--reduce", small)
    assert code == 1
    assert "ZeroDivisionError: deep inside" in err
    assert "to 1 nodes" in out
    assert [n.op_type for n in onnx.load(small).graph.node] == ["Cos"]


def test_padding_is_kept_while_it_matters(bert_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure needs the mask, so the part still has it."""
    ids = np.array([[3, 4, 5, 0], [6, 7, 0, 0]], np.int64)
    mask = (ids != 0).astype(np.int64)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    assert reduce_model(bert_path, feeds, padding="attention_mask") is None
    nodes = len(onnx.load(bert_path).graph.node)
    with monkeypatch.context() as patch:
        patch.setattr("pitc.check.reduce.failure", _wrong_where_masked)
        found = reduce_model(bert_path, feeds, padding="attention_mask")
    assert found is not None and found.padding == "attention_mask"
    assert found.nodes_before == nodes and found.nodes < nodes / 2
    onnx.checker.check_model(found.model)


def _wrong_where_masked(model: Path, feeds: Any, **options: Any) -> str:
    """Fails as long as the mask reaches a Softmax."""
    operators = {n.op_type for n in onnx.load(model).graph.node}
    return DIFFERS if "Softmax" in operators and options["padding"] else OK


def test_refused_models_and_inputs_do_not_count(chain_path: Path) -> None:
    x = np.ones((2, 8), np.float32)
    assert failure(chain_path, {"x": x}, padding=None) == OK
    assert failure(chain_path, {"x": x[:, :3]}, padding=None) == OK
    assert failure(chain_path, {"x": x}, padding="no such input") == OK


def test_a_model_that_passes_writes_nothing(run: Run, chain_path: Path) -> None:
    small = chain_path.with_name("small.onnx")
    code, out, _ = run("verify", chain_path, "-q", "--reduce", small)
    assert code == 0 and "PASSED" in out
    assert not small.exists()


def test_bad_outputs(run: Run, chain_path: Path, bert_artifact: Path) -> None:
    for model, out, message in (
        (chain_path, chain_path, "exists already"),
        (chain_path, chain_path.with_name("a.txt"), "does not end in .onnx"),
        (chain_path, chain_path.parent / "no" / "a.onnx", "does not exist"),
        (bert_artifact, chain_path.with_name("a.onnx"), "needs the model, not an artifact"),
    ):
        code, _, err = run("verify", model, "--reduce", out, "-q")
        assert code == 2
        assert message in err and err.count("\n") == 1


def test_bodies_take_their_captured_values_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An If whose branches read a value of the outer graph."""
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, [3])
    bodies: dict[str, Any] = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["h"], ["b"], f"{name}_node")], name, [], [out]
        )
        for name, op in (("then", "Tanh"), ("else", "Abs"))
    }
    nodes = [
        helper.make_node("Exp", ["x"], ["h"], "outer"),
        helper.make_node("If", ["c"], ["i"], "branch", **bodies),
        helper.make_node("Neg", ["i"], ["y"], "after"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x, c], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.save(model, tmp_path / "if.onnx")
    monkeypatch.setattr("pitc.check.reduce.failure", _has_if)
    feeds = {"x": np.ones(3, np.float32), "c": np.array(True)}
    found = reduce_model(tmp_path / "if.onnx", feeds)
    assert found is not None
    assert [n.op_type for n in found.model.graph.node] == ["If"]
    assert {i.name for i in found.model.graph.input} == found.feeds.keys() == {"h", "c"}
    onnx.checker.check_model(found.model)


def _has_if(model: Path, feeds: Any, **options: Any) -> str:
    return DIFFERS if any(n.op_type == "If" for n in onnx.load(model).graph.node) else OK

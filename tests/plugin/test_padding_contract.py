"""What a run says of inputs that break the padding contract, and what it takes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.cli import main
from pitc.errors import UsageError
from pitc.session import quiet_options

D = 64
#: Values that are not 0 or 1, for each type, and how they are told.
OTHERS: list[tuple[str, list[tuple[Any, str]]]] = [
    ("int64", [(2, "got 2 at [1, 2]"), (-1, "got -1 at [1, 2]")]),
    ("uint8", [(255, "got 255 at [1, 2]")]),
    (
        "float32",
        [
            (0.5, "got 0.5 at [1, 2]"),
            (np.nan, "got NaN at [1, 2]"),
            (-1.0, "got -1 at [1, 2]"),
            (np.inf, "got inf at [1, 2]"),
        ],
    ),
    ("float16", [(2.0, "got another number")]),
]


def masked_mlp(dtype: str) -> onnx.ModelProto:
    """y = Relu(x @ w) @ v of every token; z = the sum of the rows that the mask keeps."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((D, 4 * D)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((4 * D, D)).astype(np.float32), "v"),
        numpy_helper.from_array(np.array([2], np.int64), "last"),
        numpy_helper.from_array(np.array([1], np.int64), "tokens"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "up"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "v"], ["y"], "down"),
        helper.make_node("Cast", ["mask"], ["m"], "as_number", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m", "last"], ["column"], "column"),
        helper.make_node("Mul", ["y", "column"], ["kept"], "keep"),
        helper.make_node("ReduceSum", ["kept", "tokens"], ["z"], "pool", keepdims=0),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", D]),
        helper.make_tensor_value_info("mask", kind, ["batch", "sequence"]),
    ]
    outputs = [("z", ["batch", D]), ("y", ["batch", "sequence", D])]
    graph = helper.make_graph(
        nodes,
        "masked_mlp",
        inputs,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def feeds_of(dtype: str, other: Any = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    mask = np.ones((3, 8), dtype)
    mask[0, 5:], mask[2, 1:] = 0, 0
    if other is not None:
        mask[1, 2] = other
    return {"x": rng.standard_normal((3, 8, D)).astype(np.float32), "mask": mask}


@pytest.mark.parametrize(("dtype", "others"), OTHERS)
def test_a_mask_of_other_numbers_is_an_error(
    tmp_path: Path, dtype: str, others: list[tuple[Any, str]]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(masked_mlp(dtype), path)
    compiled = pitc.compile(path, padding="mask")
    session = compiled.session(quiet_options())
    for other, said in others:
        with pytest.raises(UsageError) as caught:
            compiled.run(feeds_of(dtype, other))
        text = str(caught.value)
        assert said in text and "the padding mask 'mask' to hold 0 and 1 only" in text
        assert caught.value.node is not None
        with pytest.raises(Exception, match=r"pitc: node '.+' \(detect\): expected the padding"):
            session.run(None, feeds_of(dtype, other))
    want: Any = ort.InferenceSession(str(path), quiet_options(), ["CPUExecutionProvider"])
    for zero in (0, -0.0):
        good = feeds_of(dtype)
        good["mask"][good["mask"] == 0] = zero
        expected = want.run(["z"], good)[0]
        for found in (compiled.run(good)["z"], session.run(["z"], good)[0]):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_without_padding_such_a_mask_is_a_mask(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(masked_mlp("float32"), path)
    compiled = pitc.compile(path)
    want: Any = ort.InferenceSession(str(path), quiet_options(), ["CPUExecutionProvider"])
    for other in (2.0, -1.0, 0.5, np.nan):
        feeds = feeds_of("float32", other)
        found = compiled.run(feeds)
        for name, expected in zip("zy", want.run(["z", "y"], feeds), strict=True):
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-3, equal_nan=True)


def test_bools_need_no_look(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(masked_mlp("bool"), path)
    compiled = pitc.compile(path, padding="mask")
    assert "padding" not in detector_of(compiled)
    assert np.isfinite(compiled.run(feeds_of("bool"))["z"]).all()


def detector_of(compiled: pitc.CompiledModel) -> str:
    """The plan of the first detector."""
    for node in onnx.load(compiled.graph, load_external_data=False).graph.node:
        if node.op_type == "EPContext":
            plan = helper.get_node_attr_value(node, "ep_cache_context").decode()
            if "\nop=detect\n" in plan:
                return str(plan)
    raise AssertionError("no detector")


def test_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bert_artifact: Path
) -> None:
    mask = np.ones((2, 7), np.int64)
    mask[1, 3] = 2
    ids = np.ones((2, 7), np.int64)
    np.savez(tmp_path / "in.npz", input_ids=ids, token_type_ids=0 * ids, attention_mask=mask)
    for command in ("run", "verify", "bench"):
        words = [command, str(bert_artifact), "--input", str(tmp_path / "in.npz")]
        assert main([*words, "-q"] if command != "run" else words) == 2
        err = capsys.readouterr().err
        assert "the padding mask 'attention_mask' to hold 0 and 1 only" in err
        assert "got 2 at [1, 3]" in err and "Traceback" not in err


def test_a_sequence_longer_than_a_table_is_told_so(bert_artifact: Path) -> None:
    """The position table of the model has 64 rows."""
    ids = np.ones((2, 400), np.int64)
    feeds = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": ids}
    with pytest.raises(UsageError, match="a sequence is longer than a table of the model"):
        pitc.load(bert_artifact).run(feeds)
    short = {
        "input_ids": ids[:, :7],
        "token_type_ids": 0 * ids[:, :7],
        "attention_mask": ids[:, :8],
    }
    with pytest.raises(
        UsageError, match="'sequence' is 7 in 'input_ids' and 8 in 'attention_mask'"
    ):
        pitc.load(bert_artifact).run(short)

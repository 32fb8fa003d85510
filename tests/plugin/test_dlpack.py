"""Inputs of other libraries and outputs that stay where they are, on the host."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import pitc
from pitc.runtime.dlpack import LACKING, TYPES
from pitc.runtime.library import device_of
from pitc.session import plain_session, run_session
from tests.lent import METAL, PINNED, lent, not_given_back

VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name) if name in LACKING else name)


def session(
    nodes: list[Any], inputs: dict[str, tuple[int | None, Any]], outputs: dict[str, int | None]
) -> Any:
    """A session of a model; what has no type is a sequence of float32."""

    def info(name: str, kind: int | None, shape: Any = None) -> Any:
        if kind is None:
            return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, *declared) for name, declared in inputs.items()],
        [info(name, kind) for name, kind in outputs.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return plain_session(made.SerializeToString())


def same(kind: int, shape: Any = None) -> Any:
    """x -> y, which is equal."""
    return session([helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, shape)}, {"y": kind})


ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "whole": lambda a: a,
    "scalar": lambda a: a[1, 2, 3],
    "empty": lambda a: a[:, :0],
    "one": lambda a: a[:1, :1, :1],
    "turned": lambda a: a.transpose(2, 0, 1),
    "gaps": lambda a: a[:, ::2, 1:],
    "backwards": lambda a: a[::-1],
    "repeated": lambda a: np.broadcast_to(a[0, 0], (2, 5)),
}


@pytest.mark.parametrize("part", ARRAYS)
@pytest.mark.parametrize("dtype", [name for name in TYPES if name not in LACKING])
def test_every_type_and_layout_of_numpy(dtype: str, part: str) -> None:
    a = (np.arange(60).reshape(3, 4, 5) % 7 - 2 * (dtype[0] in "if")).astype(dtype)
    x = np.asarray(ARRAYS[part](a))
    kind = TYPES[dtype][0]
    if kind in (4, 12) and VERSION < (1, 24):
        pytest.skip("this release has no Identity of it")
    run = same(kind)
    for given in (x, lent(x), lent(x, place=(PINNED, 0))):
        for on_device in (False, True):
            y = run_session(run, {"x": given}, on_device=on_device)["y"]
            got = y.numpy() if on_device else y
            assert got.dtype == x.dtype and got.shape == x.shape and np.array_equal(got, x)
    assert not_given_back() == 0


@pytest.mark.parametrize("part", ["whole", "scalar", "empty", "one"])
@pytest.mark.parametrize("dtype", sorted(LACKING))
def test_types_that_numpy_lacks(dtype: str, part: str) -> None:
    number = TYPES[dtype][0]
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["f"], ["n"]),
        helper.make_node("Cast", ["n"], ["y"], to=number),
    ]
    run = session(nodes, {"x": (number, None)}, {"y": number, "f": TensorProto.FLOAT})
    wide = (np.arange(60, dtype=np.float32).reshape(3, 4, 5) - 30) / 4
    x = np.asarray(ARRAYS[part](wide.astype(dtype_of(dtype))))
    y = None
    for given in (x, lent(x)):
        assert np.array_equal(run_session(run, {"x": given}, ["f"])["f"], x.astype(np.float32))
        (y,) = run_session(run, {"x": given}, ["y"], on_device=True).values()
        if dtype == "bfloat16":
            got = run_session(run, {"x": given})["y"]
            assert got.dtype == x.dtype and got.shape == x.shape
            assert np.array_equal(got.astype(np.float32), -x.astype(np.float32))
    assert np.array_equal(run_session(run, {"x": y}, ["f"])["f"], -x.astype(np.float32))
    assert not_given_back() == 0


def test_arrays_of_bfloat16_keep_their_memory() -> None:
    run = same(TensorProto.BFLOAT16)
    x = [np.full(1000, i, BFLOAT16) for i in range(4)]
    y = [run_session(run, {"x": one})["y"] for one in x]
    del run
    gc.collect()
    assert all(map(np.array_equal, y, x))


def test_gaps_of_what_numpy_lacks() -> None:
    a = np.arange(12, dtype=np.float32).astype(BFLOAT16).reshape(3, 4)
    run = same(TensorProto.BFLOAT16)
    assert np.array_equal(run_session(run, {"x": a.T})["y"], a.T)  # an array may be copied
    text = "input 'x': it is not contiguous (make it contiguous)"
    assert _message(run, lent(a.T)) == text
    odd = lent(a[:1], strides=(77, 1), offset=8)  # a stride of one element counts for nothing
    assert np.array_equal(run_session(run, {"x": odd})["y"], a[:1])
    (y,) = run_session(run, {"x": lent(a, strides=None)}).values()
    assert np.array_equal(y, a)


def test_nothing_is_copied() -> None:
    """A kernel that reads another place than the lender's is told by what the lender has there."""
    x = np.zeros(1 << 20, np.float32)
    run = session(
        [helper.make_node("ReduceMax", ["x"], ["y"], keepdims=0)],
        {"x": (TensorProto.FLOAT, None)},
        {"y": TensorProto.FLOAT},
    )
    from pitc.runtime.binding import take

    for given in (lent(x), onnxruntime.OrtValue.ortvalue_from_numpy(x), x):
        taken = take(given, run)
        address = taken.ctypes.data if isinstance(taken, np.ndarray) else taken.address
        assert address == x.ctypes.data
        assert run_session(run, {"x": given})["y"] == x[-1]
        x[-1] += 1
        assert run_session(run, {"x": given})["y"] == x[-1]


def test_outputs_are_no_views_of_inputs() -> None:
    """Else they would be gone with what was lent."""
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Flatten", ["x"], ["z"]),
    ]
    kind = TensorProto.BFLOAT16
    run = session(nodes, {"x": (kind, ["a", "b"])}, {"y": kind, "z": kind, "x": kind})
    x = np.arange(6).astype(BFLOAT16).reshape(2, 3)
    for on_device in (False, True):
        values = run_session(run, {"x": lent(x)}, ["y", "z"], on_device=on_device)
        for value in values.values():
            address = value.data_ptr() if on_device else value.ctypes.data
            assert address not in range(x.ctypes.data, x.ctypes.data + x.nbytes)
        text = "output 'x' is an input (leave it out of the outputs)"
        assert _message(run, x, on_device=on_device) == text


@pytest.mark.skipif(VERSION < (1, 27), reason="values have no __dlpack__")
def test_outputs_outlive_all(tmp_path: Path) -> None:
    run = same(TensorProto.FLOAT)
    x = np.arange(6, dtype=np.float32)
    y = run_session(run, {"x": x}, on_device=True)["y"]
    address, z = y.data_ptr(), np.from_dlpack(y)
    del run, y
    gc.collect()
    assert z.ctypes.data == address and np.array_equal(z, x)


def test_values_of_onnx_runtime() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    run = same(TensorProto.FLOAT, ["a", 3])
    assert device_of(run) is None
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    assert np.array_equal(run_session(run, {"x": value})["y"], x)
    back = run_session(run, run_session(run, {"x": value}, on_device=True) and {"x": value})["y"]
    assert np.array_equal(back, x)
    wrong = onnxruntime.OrtValue.ortvalue_from_numpy(x.T.copy())
    with pytest.raises(pitc.UsageError, match=r"expected shape \['a', 3\], got \[3, 2\]"):
        run_session(run, {"x": wrong})
    half = onnxruntime.OrtValue.ortvalue_from_numpy(x.astype(np.float16))
    with pytest.raises(pitc.UsageError, match="'x': expected float32, got float16"):
        run_session(run, {"x": half})


class Refuses:
    """A tensor whose library does not lend it."""

    shape = (2,)

    def __init__(self, place: Any = (1, 0)) -> None:
        self.place = place

    def __dlpack_device__(self) -> Any:
        if isinstance(self.place, Exception):
            raise self.place
        return self.place

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        raise BufferError("use tensor.detach()")


def _message(run: Any, *inputs: Any, on_device: bool = False) -> str:
    try:
        run_session(run, dict(zip("xz", inputs, strict=False)), on_device=on_device)
    except pitc.UsageError as error:
        text = str(error)
    else:
        raise AssertionError("it ran")
    assert not_given_back() == 0
    return text


def test_what_cannot_be_taken() -> None:
    run = same(TensorProto.FLOAT, ["a"])
    x = np.zeros(2, np.float32)
    for given, text in (
        (Refuses(), "use tensor.detach()"),
        (Refuses(ValueError("no device")), "no device"),
        (Refuses(RuntimeError()), "RuntimeError"),
        (Refuses((2, 0)), "it is on cuda:0, and the session runs on the CPU"),
        (lent(x, place=(2, 1)), "it is on cuda:1, and the session runs on the CPU"),
        (
            lent(x, place=(METAL, 0)),
            "it is on a device of DLPack's kind 8 (tensors are read on the host and on CUDA "
            "devices)",
        ),
        (lent(x.astype(BFLOAT16)), "expected float32, got bfloat16"),
        (x.astype(BFLOAT16), "expected float32, got bfloat16"),
        (lent(x.astype(np.float64)), "expected float32, got float64"),
        (lent(x.astype(bool)), "expected float32, got bool"),
        (lent(x.astype(np.complex64)), "expected float32, got complex64"),
        (lent(x[None]), "expected shape ['a'], got [1, 2]"),
    ):
        assert _message(run, given) == f"input 'x': {text}"
    half = same(TensorProto.BFLOAT16)
    assert _message(half, x) == "input 'x': expected bfloat16, got float32"
    assert _message(half, lent(x)) == "input 'x': expected bfloat16, got float32"
    x = x.astype(np.complex64)
    text = "input 'x': expected bfloat16, got complex64"
    assert _message(half, lent(x)) == text


def test_strings_and_sequences_beside_them() -> None:
    x = np.arange(3, dtype=np.float32)
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"]),
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16),
    ]
    run = session(nodes, {"x": (TensorProto.FLOAT, ["a"])}, {"s": None, "h": TensorProto.BFLOAT16})
    got = run_session(run, {"x": lent(x)}, ["s"])["s"]
    assert isinstance(got, list) and np.array_equal(np.concatenate(got), x)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    got = run_session(run, {"x": value}, ["s", "s"])["s"]
    assert isinstance(got, list) and np.array_equal(np.concatenate(got), x)
    text = "output 's' is seq(tensor(float)), which cannot be returned "
    assert _message(run, x) == text + "beside 'h'"
    assert _message(run, x, on_device=True) == text + "on a device"
    words = session(
        [helper.make_node("Identity", ["z"], ["t"]), helper.make_node("Identity", ["x"], ["y"])],
        {"x": (TensorProto.FLOAT, ["a"]), "z": (TensorProto.STRING, ["a"])},
        {"y": TensorProto.FLOAT},
    )
    z = np.array(["a", "b"], object)
    assert np.array_equal(run_session(words, {"x": lent(x), "z": z})["y"], x)
    assert _message(words, value, z) == "input 'z': object cannot be lent to ONNX Runtime"
    run = session(
        [helper.make_node("ConcatFromSequence", ["z"], ["y"], axis=0)],
        {"z": (None, None), "x": (TensorProto.FLOAT, ["a"])},
        {"y": TensorProto.FLOAT},
    )
    assert np.array_equal(run_session(run, {"x": lent(x), "z": [x, x]})["y"], [*x, *x])
    text = "input 'z': list cannot be given to a run that copies nothing"
    assert _message(run, value, [x, x]).startswith(text)


def test_failing_runs_are_usage_errors() -> None:
    run = session(
        [helper.make_node("Add", ["x", "z"], ["y"], name="sum")],
        {"x": (1, ["a"]), "z": (1, ["a"])},
        {"y": 1},
    )
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
    text = _message(run, value, np.zeros(3, np.float32))
    said = (
        "inputs disagree: 'a' is 2 in 'x' and 3 in 'z': one name, one size (node 'sum': the model "
    )
    assert text.startswith(f"{said}fails on these inputs: ")


def test_many_threads() -> None:
    run = same(TensorProto.BFLOAT16)

    def work(first: int) -> int:
        wrong = 0
        for i in range(first, first + 50):
            x = np.full(i, i, BFLOAT16)
            wrong += not np.array_equal(run_session(run, {"x": lent(x)})["y"], x)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(1, 5))) == 0
    assert not_given_back() == 0


def test_a_compiled_model(bert_path: Path, bert_artifact: Path) -> None:
    model = pitc.load(bert_artifact)
    ids = np.array([[11, 12, 13, 14], [21, 22, 0, 0]], np.int64)
    feeds = {"input_ids": ids, "attention_mask": (ids != 0) + 0, "token_type_ids": 0 * ids}
    (want,) = model.run(feeds).values()
    (got,) = model.run({name: lent(a) for name, a in feeds.items()}).values()
    (value,) = model.run(feeds, on_device=True).values()
    assert np.array_equal(got, want) and np.array_equal(value.numpy(), want)
    assert not_given_back() == 0


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    for given in (x, x.t(), x[:, ::2], x[1, 2], x[:0], x > 3, x.half(), x.bfloat16(), x.long()):
        name = str(given.dtype).removeprefix("torch.")
        run = same(TYPES[name][0])
        got = run_session(run, {"x": given})["y"]
        assert np.array_equal(got.astype(np.float64), given.double().numpy())
        if VERSION < (1, 27):  # values have no __dlpack__
            continue
        back = torch.from_dlpack(run_session(run, {"x": given}, on_device=True)["y"])
        assert torch.equal(back.to(given.dtype), given)
        assert back.dtype == given.dtype or VERSION < (1, 32)
    run = same(TensorProto.FLOAT)
    assert "use tensor.detach()" in _message(run, x.requires_grad_())
    assert "layout" in _message(run, torch.eye(3).to_sparse())
    assert "meta" in _message(run, torch.zeros(3, device="meta"))


def test_onnx_is_what_types_say() -> None:
    for name, (number, onnx_name, _) in TYPES.items():
        assert TensorProto.DataType.Name(number).lower() == onnx_name
        assert np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)) == dtype_of(name)

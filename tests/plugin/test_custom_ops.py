"""Models with operators of their own: a library for them, in every command and in the API."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.codegen.build.link import find_compiler
from pitc.errors import ModelError, UsageError
from pitc.ir import custom_ops
from pitc.session import quiet_options

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`acme:Double`, built from `custom_op.c`."""
    path = tmp_path_factory.mktemp("acme") / "libacme.so"
    source = Path(__file__).parents[1].joinpath("custom_op.c")
    words = [*find_compiler(), "-O1", "-shared", "-fPIC", str(source), "-o", str(path)]
    subprocess.run(words, check=True)
    return path


@pytest.fixture(autouse=True)
def none_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(custom_ops, "_libraries", [])
    yield


@pytest.fixture
def doubling(tmp_path: Path) -> Path:
    """y = 2 (x @ w)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Double", ["h"], ["y"], "double", domain="acme"),
    ]
    graph = helper.make_graph(
        nodes,
        "doubling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    path = tmp_path / "doubling.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_every_command_takes_the_library(
    run: Run, doubling: Path, library: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", x=X)
    artifact, out = tmp_path / "d.pitc", tmp_path / "out.npz"
    assert run("compile", doubling, "-q", "-o", artifact, "--custom-ops", library)[0] == 0
    words = ("--input", tmp_path / "in.npz", "--custom-ops", library)
    assert run("run", artifact, *words, "--save", out)[0] == 0
    np.testing.assert_array_equal(np.load(out)["y"], 2 * X)
    code, text, _ = run("verify", artifact, "--custom-ops", library, "--facts")
    assert (code, "PASSED: 3 cases" in text) == (0, True), text
    code, text, _ = run("bench", artifact, *words, "-q", "--rounds", 1, "--against", "onnxruntime")
    assert (code, "too few rounds to say" in text) == (0, True), text


def test_without_the_library_it_is_asked_for(run: Run, doubling: Path) -> None:
    code, _, err = run("run", doubling, "-q")
    assert code == 3 and "--custom-ops" in err and err.count("\n") == 1


def test_the_api(doubling: Path, library: Path) -> None:
    compiled = pitc.compile(doubling)
    with pytest.raises(ModelError, match=r"pitc\.register_custom_ops"):
        compiled.run({"x": X})
    options = quiet_options()
    options.register_custom_ops_library(str(library))
    np.testing.assert_array_equal(compiled.session(options).run(None, {"x": X})[0], 2 * X)
    pitc.register_custom_ops(library)
    pitc.register_custom_ops(str(library))  # once
    np.testing.assert_array_equal(compiled.run({"x": X})["y"], 2 * X)


@pytest.mark.parametrize(
    ("make", "said"),
    [(lambda path: None, "no such library"), (lambda path: path.write_text("x"), "cannot load it")],
)
def test_what_is_no_library(
    run: Run, doubling: Path, tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "lib.so"
    make(path)
    with pytest.raises(UsageError, match=said):
        pitc.register_custom_ops(path)
    code, _, err = run("run", doubling, "--custom-ops", path)
    assert code == 2 and said in err and err.count("\n") == 1


def test_a_library_is_offered_for_unknown_operators_only(
    doubling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = pitc.compile(doubling)

    def fails(*_: object) -> None:
        raise ModelError("the file is cut off")

    monkeypatch.setattr("pitc.compiled.plain_session", fails)
    with pytest.raises(ModelError, match=r"^doubling\.onnx: the file is cut off$"):
        compiled.session()

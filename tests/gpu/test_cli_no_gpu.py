"""What the commands say of artifacts for GPUs where there is no GPU: one line, and what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

import pitc
from pitc import api
from pitc.errors import MachineError
from pitc.ir.plan import CUDA_EP_NAME
from pitc.runtime import library
from tests.plugin.test_explain import relu_pair

Run = Callable[..., tuple[int, str, str]]

TOLD = "no CUDA device: "
HINT = "(pitc doctor tells more; compiled for cuda,cpu a model also runs without a GPU)"


@pytest.fixture(name="artifact", scope="module")
def _artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for GPUs alone, with nothing to compile: no node of it is lowered."""
    from onnx import TensorProto

    path = tmp_path_factory.mktemp("gpu") / "a.pitc"
    api.compile(relu_pair(4, TensorProto.DOUBLE), "cuda:sm_80", output=path)
    return path


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests run on a machine with one."""

    def none() -> list[object]:
        raise MachineError(f"{TOLD}none", hint=HINT.strip("()"))

    monkeypatch.setattr(library, "cuda_devices", none)


@pytest.mark.parametrize("words", [("run",), ("verify",), ("bench",), ("inspect", "--ep")])
def test_one_line_and_no_run_on_the_cpu(run: Run, artifact: Path, words: tuple[str, ...]) -> None:
    name, *options = words
    code, out, err = run(name, artifact, *options, *(["-q"] if name in ("verify", "bench") else []))
    assert (code, err) == (6, f"error: {TOLD}none {HINT}\n")
    assert ("model.cuda.onnx" in out) == (name == "inspect")


def test_what_needs_no_gpu_works(run: Run, artifact: Path) -> None:
    for words in (("inspect", artifact), ("explain", artifact)):
        code, _, err = run(*words)
        assert (code, err) == (0, ""), words
    code, _, err = run("explain", artifact, "--target", "cuda")
    assert (code, err.count("\n")) == (2, 1)


def test_sessions(artifact: Path) -> None:
    model = pitc.load(artifact)
    with pytest.raises(MachineError, match=TOLD):
        model.session()
    with pytest.raises(MachineError, match=TOLD):
        model.session(providers=["cuda"])


class _Old:
    """A library of the plug-in as it was before there were GPUs."""


def test_a_library_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(library, "register_ep", lambda: CUDA_EP_NAME)
    monkeypatch.setattr(library, "_devices", lambda name="": [])
    monkeypatch.setattr(library, "library_path", lambda: tmp_path / "old.so")
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: _Old())
    with pytest.raises(MachineError, match=r"old\.so: it is of a version without GPUs \(install"):
        library.cuda_devices()

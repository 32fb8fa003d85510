"""The programs of `examples/host` run an artifact as Python does: C++, and C# and Java."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import pitc
from pitc.runtime.library import library_path
from tests import hosts
from tests.runtime_support import ROOT, cmake, tool

SOURCE = ROOT / "examples" / "host"
CXX = os.environ.get("CXX") or shutil.which("c++")
TEXTS = ((5, 8, 13, 21, 34), (55, 89), (3,))


def libonnxruntime() -> Path:
    """The library of the installed package."""
    found = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not found:
        pytest.skip("this onnxruntime package holds no libonnxruntime.so")
    return found[0]


def cpp_program(folder: Path) -> list[str | Path]:
    """The program in C++, built without warnings."""
    if CXX is None:
        pytest.skip("no C++ compiler")
    options = ["-DCMAKE_CXX_FLAGS=-Werror", f"-DPython3_EXECUTABLE={sys.executable}"]
    cmake("-S", SOURCE, "-B", folder, "-G", "Ninja", *options)
    cmake("--build", folder)
    return [folder / "host", libonnxruntime()]


def csharp_program(folder: Path) -> list[str | Path]:
    """The program in C#, compiled."""
    return hosts.csharp(folder, (SOURCE / "Host.cs").read_text("utf-8"))


def java_program(folder: Path) -> list[str | Path]:
    """The program in Java, compiled."""
    return hosts.java(folder, "Host", (SOURCE / "Host.java").read_text("utf-8"))


@pytest.fixture(scope="module", params=[cpp_program, csharp_program, java_program])
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[str | Path]:
    """The start of a command that runs the program, in each language."""
    return request.param(tmp_path_factory.mktemp("host"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    # nothing of the Python environment: the program must not need it
    environment = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, timeout=120
    )


def batch() -> dict[str, np.ndarray]:
    """What the program makes of `TEXTS`."""
    longest = max(map(len, TEXTS))
    ids = np.array([[*text, *[0] * (longest - len(text))] for text in TEXTS], np.int64)
    mask = np.array([np.arange(longest) < len(text) for text in TEXTS]).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def test_results_are_those_of_python(host: list[str | Path], bert_artifact: Path) -> None:
    texts = [" ".join(map(str, text)) for text in TEXTS]
    done = run(*host, library_path(), bert_artifact / "model.onnx", *texts)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = pitc.load(bert_artifact).run(batch())
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected)
    for line, (name, x) in zip(lines, expected.items(), strict=True):
        head, checksum = line.split(" checksum ")
        assert head == " ".join([name, *map(str, x.shape)])
        flat = x.astype(np.float64).reshape(-1)
        weights = 1 + np.arange(flat.size) % 101
        assert abs(float(checksum) - flat @ weights) <= 1e-5 * (np.abs(flat) @ weights)
        assert abs(flat @ weights) > 1e-2 * (np.abs(flat) @ weights)  # it could be another number


def test_what_fails_is_said(host: list[str | Path], bert_artifact: Path, tmp_path: Path) -> None:
    plugin, model = library_path(), bert_artifact / "model.onnx"
    (tmp_path / "model.onnx").write_bytes(model.read_bytes())  # without its kernels and weights
    for arguments, part in (
        ((plugin, tmp_path / "model.onnx", "1"), "error: "),
        ((tmp_path / "absent.so", model, "1"), "absent.so"),
        ((plugin, model, "1 two"), "error: not token numbers: 1 two"),
    ):
        done = run(*host, *arguments)
        assert done.returncode == 1 and done.stdout == "", arguments
        assert done.stderr.startswith("error: ") and part in done.stderr
    assert run(*host).returncode == 2  # usage


def test_another_library_is_refused(tmp_path: Path) -> None:
    program, _ = cpp_program(tmp_path / "host")
    done = run(program, tmp_path / "absent.so", library_path(), "model.onnx", "1")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "absent.so" in done.stderr


def test_the_plug_in_is_needed(bert_artifact: Path) -> None:
    """Why the program registers it: ONNX Runtime alone refuses the graph."""
    with pytest.raises(Exception, match="EPContext"):
        onnxruntime.InferenceSession(
            str(bert_artifact / "model.onnx"), providers=["CPUExecutionProvider"]
        )


def test_the_program_is_formatted() -> None:
    command = [tool("clang-format"), "--dry-run", "--Werror", str(SOURCE / "host.cc")]
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_the_program_includes_no_foreign_header() -> None:
    included = [
        line.split()[1]
        for line in (SOURCE / "host.cc").read_text("utf-8").splitlines()
        if line.startswith("#include")
    ]
    assert [name for name in included if name.startswith('"')] == ['"ort_abi.h"']
    assert not [name for name in included if "onnxruntime" in name]

"""LitServe over HTTP, BentoML's service, and Triton's model.py with a stand-in for its module."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.integrations.conftest import EXAMPLES, TEXTS


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_litserve(folder: Path, want: np.ndarray, tmp_path: Path) -> None:
    port = free_port()
    words = [sys.executable, EXAMPLES / "litserve_app.py", folder, port]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            list(map(str, words)),
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its workers end with it
        )
        try:
            body = json.dumps({"texts": TEXTS}).encode()
            url = f"http://127.0.0.1:{port}/predict"
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            for _ in range(240):
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        got = np.array(json.load(answer)["embeddings"])
                    break
                except urllib.error.URLError:
                    assert server.poll() is None, (tmp_path / "log").read_text()
                    time.sleep(0.5)
            else:
                pytest.fail((tmp_path / "log").read_text())
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(timeout=60)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


def test_bentoml(folder: Path, want: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bentoml")
    monkeypatch.setenv("PITC_MODEL", str(folder))
    from bentoml_service import Embed

    np.testing.assert_allclose(Embed().embed(TEXTS), want, rtol=0, atol=1e-6)


class Tensor:
    """Of Triton's Python backend, as far as model.py uses it."""

    def __init__(self, name: str, values: np.ndarray) -> None:
        self.name, self.values = name, values

    def as_numpy(self) -> np.ndarray:
        return self.values


def stand_in() -> types.ModuleType:
    """`triton_python_backend_utils`: a request is a list of tensors, and so is a response."""
    module = types.ModuleType("triton_python_backend_utils")
    found = {
        "Tensor": Tensor,
        "InferenceResponse": list,
        "get_input_tensor_by_name": lambda r, name: next(t for t in r if t.name == name),
    }
    for name, value in found.items():
        setattr(module, name, value)
    return module


def test_triton(folder: Path, want: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in())
    model: dict[str, object] = {}
    file = EXAMPLES / "model_repository" / "encoder" / "1" / "model.py"
    exec(compile(file.read_text(), file, "exec"), model)
    python_model = model["TritonPythonModel"]()  # type: ignore[operator]
    parameters = {"folder": {"string_value": os.fspath(folder)}}
    python_model.initialize({"model_config": json.dumps({"parameters": parameters})})
    texts = np.array([text.encode() for text in TEXTS], object)
    parts = [texts[:2], texts[2:2], texts[2:]]  # one of three requests has no text
    responses = python_model.execute([[Tensor("text", part)] for part in parts])
    assert [len(t.values) for (t,) in responses] == [2, 0, 3]
    got = np.concatenate([t.values for (t,) in responses])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)

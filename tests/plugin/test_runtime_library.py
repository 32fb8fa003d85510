"""Finding the execution provider's library and registering it."""

from pathlib import Path

import pytest

from pitc.errors import MachineError
from tests.runtime_support import detect_model, run_python, save


def test_library_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pitc.runtime
    from pitc.runtime.library import LIBRARY_NAME, library_path

    monkeypatch.setenv("PITC_EP_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(MachineError, match="PITC_EP_LIBRARY names no file"):
        library_path()
    (tmp_path / LIBRARY_NAME).touch()
    monkeypatch.setenv("PITC_EP_LIBRARY", str(tmp_path / LIBRARY_NAME))
    assert library_path() == tmp_path / LIBRARY_NAME
    monkeypatch.delenv("PITC_EP_LIBRARY")
    monkeypatch.setattr(pitc.runtime, "__path__", [str(tmp_path / "none"), str(tmp_path)])
    assert library_path() == tmp_path / LIBRARY_NAME
    monkeypatch.setattr(pitc.runtime, "__path__", [str(tmp_path / "none")])
    with pytest.raises(MachineError, match="is not built"):
        library_path()


def test_registering_is_idempotent_and_thread_safe() -> None:
    code = """
import threading
import onnxruntime
from pitc.runtime.library import EP_NAME, register_ep
names = []
threads = [threading.Thread(target=lambda: names.append(register_ep())) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert names == [EP_NAME] * 8, names
assert sum(d.ep_name == EP_NAME for d in onnxruntime.get_ep_devices()) == 1
"""
    run_python(code)


def test_unregistering_and_registering_again(tmp_path: Path) -> None:
    """Sessions first, then the library; afterwards everything works again."""
    path = save(tmp_path, detect_model())
    code = """
import gc, sys, threading
import numpy, onnxruntime
from pitc.runtime.library import EP_NAME, make_session, register_ep
for _ in range(3):
    sessions = [make_session(sys.argv[1]) for _ in range(2)]
    feeds = {"live": numpy.ones((2, 3), bool)}
    thread = threading.Thread(target=lambda: sessions[0].run(None, feeds))
    thread.start(), thread.join()
    assert sessions[1].run(None, feeds)[2].tolist() == [0, 3, 6]
    del sessions, thread
    gc.collect()
    onnxruntime.unregister_execution_provider_library("pitc")
    assert EP_NAME not in [d.ep_name for d in onnxruntime.get_ep_devices()]
"""
    run_python(code, str(path))


def test_registering_reports_a_library_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "bad.so").write_text("no library")
    code = """
from pitc.errors import MachineError
from pitc.runtime.library import register_ep
try:
    register_ep()
except MachineError as error:
    print(error)
"""
    assert "ONNX Runtime cannot load it" in run_python(code, library=tmp_path / "bad.so")


def test_importing_the_room_loads_nothing_heavy() -> None:
    code = """
import sys
import pitc.runtime.library
print(sorted({'onnxruntime', 'numpy'} & set(sys.modules)))
"""
    assert run_python(code).strip() == "[]"

"""docs/deploy.md: what it shows runs, and what it warns of is so."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from pitc.runtime.library import LIBRARY_NAME, library_path
from tests import hosts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploy.md"
HEADERS = [
    Path(os.environ.get("PITC_ORT_HEADERS", "/usr/include/onnxruntime")),
    hosts.HEADERS,  # where `make hosts` has run
]
CXX = os.environ.get("CXX") or shutil.which("c++") or ""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, bert_artifact: Path) -> Path:
    """What the page calls /opt/app."""
    folder = tmp_path_factory.mktemp("app")
    shutil.copy(library_path(), folder / LIBRARY_NAME)
    shutil.copytree(bert_artifact, folder / "model.pitc")
    return folder


def block(language: str, app: Path) -> str:
    text = PAGE.read_text("utf-8")
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert "/opt/app/" in code
    return str(code.replace("/opt/app", str(app)))


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a text in a process of its own: a library is registered once in each."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )


AFTER = """
import sys
assert session.get_providers()[0] == "PitExecutionProvider"
assert "pitc" not in sys.modules
path = "model.pitc/model.onnx"

def refusal(model, **entries):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = entries.pop("save", "")
    for key, value in entries.items():
        options.add_session_config_entry("session." + key, value)
    options.add_provider_for_devices(devices, {"cpu_level": "v3"})
    try:
        ort.InferenceSession(model, options, enable_fallback=0)
    except Exception as error:
        return str(error)
    return "none"

print("plain:", refusal(path))
print("bytes:", refusal(open(path, "rb").read()))
print("alone:", refusal(path, disable_cpu_ep_fallback="1"))
print("saved:", refusal(path, save="saved.onnx"))
fallback = ort.InferenceSession("model.pitc/fallback.onnx", providers=["CPUExecutionProvider"])
names = [[x.name for x in s.get_inputs()] for s in (session, fallback)]
print("fallback:", names[0] == names[1])
"""


def test_the_python_program_and_the_warnings(app: Path) -> None:
    done = python(block("python", app) + AFTER, app)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert said["plain"] == "none" and said["fallback"] == "True"
    assert "data path" in said["bytes"]
    assert "fallback to CPU EP" in said["alone"]
    assert "compiled nodes" in said["saved"]


def test_a_relative_library_is_not_looked_up_here(app: Path) -> None:
    code = block("python", app).replace(f"{app}/{LIBRARY_NAME}", LIBRARY_NAME)
    done = python(code, app)
    assert done.returncode == 1 and f"onnxruntime/capi/{LIBRARY_NAME}" in done.stderr


MAIN = """
#include <cstdio>
int main() {
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "docs");
  Ort::Session session = Load(env);
  std::printf("%zu inputs", session.GetInputCount());
}
"""


def test_the_cpp_program(app: Path, tmp_path: Path) -> None:
    found = [folder for folder in HEADERS if (folder / "onnxruntime_cxx_api.h").is_file()]
    if not found:
        pytest.skip("no onnxruntime_cxx_api.h: make hosts, or PITC_ORT_HEADERS")
    capi = Path(onnxruntime.__file__).parent / "capi"
    libraries = sorted(capi.glob("libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("this onnxruntime package holds no libonnxruntime.so")
    (tmp_path / "docs.cc").write_text(block("cpp", app) + MAIN)
    (tmp_path / "libonnxruntime.so.1").symlink_to(libraries[0])
    options = ["-std=c++17", "-w", "-isystem", found[0], f"-Wl,-rpath,{tmp_path}", "-o", "docs"]
    subprocess.run([CXX, "docs.cc", libraries[0], *options], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "docs"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 inputs"


def run(command: list[str | Path]) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_csharp_program(app: Path, tmp_path: Path) -> None:
    end = 'System.Console.Write($"{session.InputMetadata.Count} inputs");'
    assert run(hosts.csharp(tmp_path, block("csharp", app) + end)) == "3 inputs"


def test_the_java_program(app: Path, tmp_path: Path) -> None:
    imports, body = block("java", app).split("\n\n", 1)
    end = 'System.out.print(session.getNumInputs() + " inputs"); session.close(); options.close();'
    main = f"public static void main(String[] words) throws OrtException {{\n{body}{end}\n}}"
    assert run(hosts.java(tmp_path, "Docs", f"{imports}\nclass Docs {{ {main} }}")) == "3 inputs"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert page.name == "index.md" or f"]({page.name})" in index, page.name

"""The plug-in in other versions of ONNX Runtime: `python -m tests.matrix [VERSION ...]`.

Each is installed into a folder of its own below build/, which goes in front of the installed
one. The library is not built again: one binary must fit them all.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("1.23.2", "1.24.4", "1.27.0", "1.31.1")
TESTS = ("ep", "errors", "library", "session")


def install(version: str) -> Path:
    """Put one version into its folder, unless it is there."""
    folder = ROOT / "build" / "matrix" / version
    if not (folder / "onnxruntime").is_dir():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        what = ["--no-deps", "--target", str(folder), f"onnxruntime=={version}"]
        subprocess.run([*pip, *what], check=True)
    return folder


def passes(version: str) -> bool:
    """Whether the runtime's tests pass with a version; their summary is shown."""
    path = os.pathsep.join([str(install(version)), str(ROOT)])
    code = "import onnxruntime, sys; sys.exit(onnxruntime.__version__ != sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code, version], env=environment, check=True)
    print(f"onnxruntime {version}", flush=True)
    files = [str(ROOT / "tests" / f"test_runtime_{name}.py") for name in TESTS]
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    return subprocess.run(run, env=environment, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    wrong = [version for version in sys.argv[1:] or VERSIONS if not passes(version)]
    sys.exit(f"fails with onnxruntime {', '.join(wrong)}" if wrong else 0)

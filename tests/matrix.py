"""The plug-in in other versions of ONNX Runtime: `python -m tests.matrix [VERSION ...]`.

Each is installed into a folder of its own below build/, which goes in front of the installed
one. The library is not built again: one binary must fit them all.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("1.23.2", "1.24.4", "1.27.0", "1.31.1")
TESTS = (
    *("runtime_ep", "runtime_errors", "runtime_library", "runtime_session"),
    "quirks",
    *("device_session", "device_errors", "device_dlpack"),
)


def install(version: str) -> Path:
    """Put one version into its folder, unless it is there.

    Raises:
        CalledProcessError: It cannot be had.
    """
    folder = ROOT / "build" / "matrix" / version
    if not (folder / "onnxruntime").is_dir():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        what = ["--no-deps", "--target", str(folder), f"onnxruntime=={version}"]
        subprocess.run([*pip, *what], check=True, stderr=subprocess.PIPE)
    return folder


def summary(version: str) -> tuple[bool, str]:
    """Whether the runtime's tests pass with a version, and what they say."""
    path = os.pathsep.join([str(install(version)), str(ROOT)])
    code = "import onnxruntime, sys; sys.exit(onnxruntime.__version__ != sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""}
    subprocess.run([sys.executable, "-c", code, version], env=environment, check=True)
    files = [str(path) for name in TESTS for path in (ROOT / "tests").glob(f"*/test_{name}.py")]
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    done = subprocess.run(run, env=environment, cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0, done.stdout


def main(versions: Sequence[str]) -> int:
    """Show the summary of each version; 1 where one fails."""
    failed = 0
    for version in versions:
        right, said = summary(version)
        failed |= not right
        print(f"onnxruntime {version}: {said.splitlines()[-1] if right else said}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or VERSIONS))

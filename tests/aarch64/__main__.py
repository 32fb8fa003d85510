"""pitc on emulated 64-bit Arm: kernels, the plug-in's parts, and whole models in ONNX Runtime.

python -m tests.aarch64                    all; some minutes each
python -m tests.aarch64 kernels            tests of kernels alone
python -m tests.aarch64 plugin             C++ tests of the plug-in without a host
python -m tests.aarch64 session            a sample of the models, in ONNX Runtime's own wheel
python -m tests.aarch64 session:exports    all models of one source; session:all: of every source
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from tests.aarch64.machine import LEVELS_VARIABLE, lacking
from tests.aarch64.plugin import plugin
from tests.aarch64.python import Unavailable
from tests.aarch64.session import session
from tests.runtime_support import ROOT

TESTS = ("attention", "contract", "gemm", "math", "pack", "panels", "rows", "stored")


def kernels() -> bool:
    """Run the tests of kernels for CPUs with those of the machine; whether all pass."""
    files = [str(ROOT / "tests" / "kernels" / f"test_codegen_{name}.py") for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *files]
    return subprocess.run(command, env=os.environ | {LEVELS_VARIABLE: "neon"}).returncode == 0


def main(wanted: Sequence[str]) -> int:
    """Run what is wanted; 1 where something fails, 2 where nothing can run."""
    parts = {"kernels": kernels, "plugin": plugin, "session": session}
    words = [word.split(":") for word in wanted or parts]
    try:
        if missing := lacking():
            raise Unavailable(missing)
        return 0 if all([parts[name](*which) for name, *which in words]) else 1
    except Unavailable as error:
        print(f"cannot run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""C++ tests of the plug-in without a host, and tests of kernels, on emulated 64-bit Arm.

python -m tests.aarch64              both; some minutes
python -m tests.aarch64 kernels      kernels alone
python -m tests.aarch64 plugin       the plug-in alone
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.aarch64.machine import EMULATOR, LEVELS_VARIABLE, lacking
from tests.runtime_support import ROOT, cmake, tool
from tools.wheel import PLATFORMS, cmake_settings, compiler

TESTS = ("attention", "contract", "gemm", "math", "pack", "panels", "rows", "stored")
PARTS = (
    *("plan", "region_plan", "dense_tiles", "listed_tiles", "mask", "index", "kernel"),
    *("micro_tiles", "selector", "trace", "constants"),
)
BUILD = ROOT / "build" / "runtime-aarch64"


def plugin() -> bool:
    """Build the plug-in and its tests for the machine, and run them; whether all pass."""
    platform = PLATFORMS["aarch64"]
    os.environ |= {"CXX": compiler(platform), "CXXFLAGS": "-O1"}
    emulator = ";".join([shutil.which(EMULATOR[0]) or "", *EMULATOR[1:]])
    settings = cmake_settings(platform) | {"CMAKE_CXX_FLAGS": "-O1", "PITC_TESTS": "ON"}
    settings |= {"CMAKE_CROSSCOMPILING_EMULATOR": emulator, "CMAKE_BUILD_TYPE": "None"}
    settings |= {"Python3_EXECUTABLE": sys.executable}
    options = [f"-D{key}={value}" for key, value in settings.items()]
    cmake("-S", ROOT / "runtime", "-B", BUILD, "-G", "Ninja", *options)
    cmake("--build", BUILD, "--target", "pitc_ort_ep", *(f"{name}_test" for name in PARTS))
    pattern = f"^({'|'.join(PARTS)})$"
    words = [tool("ctest"), "--test-dir", str(BUILD), "--output-on-failure", "-R", pattern]
    done = subprocess.run(words)
    return done.returncode == 0


def kernels() -> bool:
    """Run the tests of kernels for CPUs with those of the machine; whether all pass."""
    files = [str(ROOT / "tests" / f"test_codegen_{name}.py") for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *files]
    return subprocess.run(command, env=os.environ | {LEVELS_VARIABLE: "neon"}).returncode == 0


def main(wanted: Sequence[str]) -> int:
    """Run what is wanted; 1 where something fails, 2 where nothing can run."""
    if missing := lacking():
        print(f"cannot run: {missing}", file=sys.stderr)
        return 2
    parts = {"kernels": kernels, "plugin": plugin}
    return 0 if all([parts[name]() for name in wanted or parts]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

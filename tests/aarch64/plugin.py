"""The plug-in library for the emulated machine, and its C++ tests without a host."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.aarch64.machine import EMULATOR
from tests.runtime_support import ROOT, cmake, tool
from tools.wheel import PLATFORMS, cmake_settings, compiler

BUILD = ROOT / "build" / "runtime-aarch64"
PARTS = (
    *("plan", "region_plan", "dense_tiles", "listed_tiles", "mask", "index", "kernel"),
    *("micro_tiles", "selector", "trace", "constants"),
)


def library(*others: str) -> Path:
    """Build the library; what is up to date stays.

    Args:
        others: Further targets.
    """
    platform = PLATFORMS["aarch64"]
    os.environ |= {"CXX": compiler(platform), "CXXFLAGS": "-O1"}
    emulator = ";".join([shutil.which(EMULATOR[0]) or "", *EMULATOR[1:]])
    settings = cmake_settings(platform) | {"CMAKE_CXX_FLAGS": "-O1", "PITC_TESTS": "ON"}
    settings |= {"CMAKE_CROSSCOMPILING_EMULATOR": emulator, "CMAKE_BUILD_TYPE": "None"}
    settings |= {"Python3_EXECUTABLE": sys.executable}
    options = [f"-D{key}={value}" for key, value in settings.items()]
    cmake("-S", ROOT / "runtime", "-B", BUILD, "-G", "Ninja", *options)
    cmake("--build", BUILD, "--target", "pitc_ort_ep", *others)
    return BUILD / "libpitc_ort_ep.so"


def plugin() -> bool:
    """Build the plug-in and its tests for the machine, and run them; whether all pass."""
    library(*(f"{name}_test" for name in PARTS))
    pattern = f"^({'|'.join(PARTS)})$"
    words = [tool("ctest"), "--test-dir", str(BUILD), "--output-on-failure", "-R", pattern]
    done = subprocess.run(words)
    return done.returncode == 0

"""What a result was measured on: processor, limits of one core, versions."""

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

FEATURES = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_tile")
PACKAGES = (
    "onnxruntime",
    "onnx",
    "numpy",
    "apache-tvm",
    "openvino",
    "scipy",
    "torch",
    "transformers",
    "ctranslate2",
    "sparse-dot-mkl",
    "pitc",
)


def _cpuinfo(field: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "")


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            (index / part).read_text().strip() for part in ("level", "type", "size")
        )
        found[f"L{level} {kind.lower()}"] = size
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def measure_limits() -> dict[str, float]:
    """Measure the limits of one core; takes about a second.

    Returns:
        `fma_gflops` and, of memory, `read_gbytes_per_s`; empty without a C compiler.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return {}
    source = Path(__file__).with_name("peak.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "peak.so")
        options = ["-O3", "-march=native", "-shared", "-fPIC", "-o"]
        command = [compiler, *options, str(library), str(source)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return {}
        peak = ctypes.CDLL(str(library))
    peak.multiply_add.restype, peak.read_all.restype = ctypes.c_double, ctypes.c_float
    out, best = ctypes.c_float(), {"fma_gflops": 0.0, "read_gbytes_per_s": 0.0}
    data = np.ones(64 << 20, np.float32)
    address, count = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.size)
    for _ in range(5):
        start = time.process_time()
        done = peak.multiply_add(
            ctypes.c_long(5_000_000), ctypes.c_float(0.999), ctypes.c_float(1e-4), ctypes.byref(out)
        )
        middle = time.process_time()
        peak.read_all(address, count)
        end = time.process_time()
        best["fma_gflops"] = max(best["fma_gflops"], done / (middle - start) / 1e9)
        rate = data.nbytes / (end - middle) / 1e9
        best["read_gbytes_per_s"] = max(best["read_gbytes_per_s"], rate)
    return {name: round(value, 1) for name, value in best.items()}


def machine_facts() -> dict[str, Any]:
    """Processor, system and versions; nothing that names the machine or its owner."""
    flags = set(_cpuinfo("flags").split())
    return {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "features": [name for name in FEATURES if name in flags],
        "cores": os.cpu_count(),
        "caches": _caches(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: v for name in PACKAGES if (v := _version(name)) is not None},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }

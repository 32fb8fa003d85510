"""What a machine with a GPU needs, in one folder: it has no compiler of ours and no network.

tests/          kernel libraries of the tests (`tests/on_gpu/`)
kernels.so      all kernels of the benchmarks and of the models, which are compiled there
tiles.so        dense tiles that are tried (`tiles.py`)
wgmma.so        the trial of Hopper's tensor cores (`wgmma.py`)
runtime.so      the plug-in library
wheels/         Python packages that may be missing there
pack.json       what it was made of
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu import there
from pitc.ir.digest import named_sha256

ROOT = Path(__file__).resolve().parent.parent.parent
FACTS, SITE, PLUG_IN = "pack.json", "site", "runtime.so"
_ROOTS = ("pitc", "pytest", "hypothesis", "filelock")
_LARGE = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime")
"""What the run needs, and what of that travels only when it is asked for; TVM is not needed."""
TRAVELS_BYTES = 64 << 20
"""What a machine that is lent may be sent, the checkout included."""
TOOLKIT = "13.0"
"""Of the compiler: that of the oldest driver of CUDA 13, so that none is too old for the pack."""
_PLATFORMS = ("2_28", "2_27", "2_17", "2_24", "2_34", "1")


def make(
    folder: Path,
    archs: Sequence[str],
    wheels: Sequence[str],
    python: str,
    *,
    bare: bool = False,
    small: bool = False,
) -> None:
    """Fill the folder; what was compiled once comes from the user's cache.

    Args:
        folder: A pack that it holds is replaced.
        archs: Architectures of the GPUs, `sm_90`.
        wheels: Packages to take along, as they are installed here, beside those of `needed`.
        python: Version of Python there.
        bare: That machine has none of the packages that one with PyTorch has (`there.py`).
        small: Only what an emulated device needs, and no wheels.
    """
    from benchmarks.gpu import kernel_tests, tiles, wgmma
    from pitc.codegen.build.find_cuda import find_cuda_compiler
    from pitc.runtime.library import library_path

    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS).unlink(missing_ok=True)  # it is no pack until the end
    for name in ("tests", "wheels", SITE):
        shutil.rmtree(folder / name, ignore_errors=True)
    start = time.monotonic()
    if not small:
        _use_toolkit(folder.parent / f"cuda-{TOOLKIT}")
    _record_tests(folder, archs, kernel_tests, small=small)
    _build_kernels(folder / "kernels.so", archs, small=small)
    tiles.build(folder / tiles.FILE, list(archs), small=small)
    if not small:
        wgmma.build(folder / wgmma.FILE, archs[-1])
        _download(folder / "wheels", wheels, python, bare=bare)
    shutil.copy(library_path(), folder / PLUG_IN)
    size = _size(folder)
    facts = {"archs": list(archs), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    facts |= {"pitc": metadata.version("pitc"), "bytes": size, "sources": sources()}
    facts["compiler"] = find_cuda_compiler().version
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{folder}: {size / 1e6:.1f} MB in {time.monotonic() - start:.0f} s")
    if not small:
        left = TRAVELS_BYTES - size - _checkout_size()
        print(f"beside the checkout {left / 1e6:.1f} MB are left of {TRAVELS_BYTES / 1e6:.1f}")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _checkout_size() -> int:
    """Bytes of all files that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout
    paths = (ROOT / name.decode() for name in listed.split(b"\0") if name)
    return sum(path.lstat().st_size for path in paths if path.is_symlink() or path.is_file())


def _use_toolkit(folder: Path) -> None:
    """Compile with NVRTC of `TOOLKIT`, in this process and in those that it starts."""
    if not folder.is_dir():
        print(f"installing NVRTC {TOOLKIT} ...", flush=True)
        packages = [f"nvidia-cuda-{name}=={TOOLKIT}.*" for name in ("nvrtc", "runtime")]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        part = folder.with_suffix(".part")
        options = ["--quiet", "--no-deps", "--no-compile", "--target", str(part)]
        subprocess.run([*command, *options, *packages], check=True)
        part.rename(folder)
    sys.path.insert(0, str(folder))
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])


def sources() -> str:
    """A digest of what kernels and the plug-in are made from, and of what asks for kernels."""
    found = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for room in ("benchmarks/gpu", "codegen", "pitc/ir", "runtime/ep", "tests/on_gpu")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".c", ".cc", ".h")
    }
    return named_sha256(found.items())[:32]


def _record_tests(folder: Path, archs: Sequence[str], tests: Any, *, small: bool) -> None:
    """Build the kernels of the tests."""
    from pitc.host.folders import cache_folder

    files, chosen = (tests.FEW, tests.FEW_TESTS) if small else (tests.FILES, "")
    environment = {
        **os.environ,
        "PITC_GPU_KERNELS": str(folder / "tests"),
        "PITC_GPU_ARCHS": ",".join(archs),
        "PITC_CACHE_DIR": str(cache_folder()),
    }
    options = ["-q", "-p", "tests.on_gpu.record", "-p", "no:cacheprovider"]
    options += ["-k", chosen] if chosen else []
    paths = [str(ROOT / "tests" / "gpu" / file) for file in files]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)


def _build_kernels(out: Path, archs: Sequence[str], *, small: bool) -> None:
    from benchmarks.gpu import (
        elementwise_cases,
        expert_cases,
        gradient_cases,
        mask_cases,
        models,
        products,
    )
    from pitc.codegen.build.cache import kernel_cache
    from pitc.codegen.build.library import build_kernels

    of_models = models.MODELS[:1] if small else (*models.MODELS, models.LARGE)
    asked = [r for model in of_models for r in models.requests_of(model, archs)]
    asked += [*products.requests("float16"), *mask_cases.mask_requests()]
    asked += elementwise_cases.elementwise_requests()
    asked += expert_cases.expert_requests()
    asked += gradient_cases.gradient_requests()
    build_kernels(list(dict.fromkeys(asked)), ("v4", "v3"), out, _tell, archs, kernel_cache())
    print()


def _tell(done: int, total: int, what: str) -> None:
    if sys.stdout.isatty():
        print(f"\r{done} of {total} kernels: {what:60.60}", end="", flush=True)


def needed() -> list[str]:
    """Packages that the run needs, all but large ones."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: list[str] = []
    waiting = list(_ROOTS)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in _LARGE:
            continue
        found.append(name)
        requirements = map(Requirement, metadata.requires(name) or ())
        waiting += [
            r.name for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})
        ]
    return sorted(set(found) - {"pitc"})


def _download(folder: Path, wheels: Sequence[str], python: str, *, bare: bool) -> None:
    """Wheels of the versions that are installed here."""
    folder.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--implementation=cp", "--quiet"]
    options += [f"--python-version={python}", f"--dest={folder}"]
    options += [f"--platform=manylinux_{version}_x86_64" for version in _PLATFORMS]
    options += ["--platform=manylinux2014_x86_64"]
    names = needed() if bare else there.missing(needed())
    wanted = [f"{name}=={metadata.version(name)}" for name in sorted({*names, *wheels})]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    subprocess.run([*command, *options, *wanted], check=True)


def install_wheels(folder: Path) -> None:
    """Install those of the wheels whose packages this machine lacks, into the folder itself."""
    missing = []
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        try:
            metadata.distribution(wheel.name.split("-")[0])
        except metadata.PackageNotFoundError:
            missing.append(str(wheel))
    if missing:
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        target = ["--target", str(folder / SITE)]
        subprocess.run([*command, *options, *target, *missing], check=True)


def environment(folder: Path) -> dict[str, str]:
    """Variables for processes that use the pack."""
    path = [str(ROOT), str(folder / SITE)]
    before = os.environ.get("PYTHONPATH", "")
    given = os.environ.get("PITC_EP_LIBRARY", str(folder / PLUG_IN))
    return {
        "PYTHONPATH": os.pathsep.join([*path, *([before] if before else [])]),
        "PITC_EP_LIBRARY": given,
        "PYTHONUNBUFFERED": "1",
    }

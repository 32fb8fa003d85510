"""What this machine and installation can do, and what mends it where they cannot."""

import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pitc.artifact.check import ONNXRUNTIME_MIN
from pitc.errors import PitcError, PitcWarning
from pitc.host.cuda import cuda_driver, has_nvidia_gpu
from pitc.host.machine import (
    LEVEL_NAMES,
    LEVEL_VARIABLE,
    bfloat16_unit,
    cpu_level,
    cpu_name,
    installed,
    kernel_level,
    lacking,
    machine_level,
    python_version,
)
from pitc.options import TABLE_LEVELS
from pitc.version import __version__

Status = Literal["ok", "warn", "fail"]

PACKAGES = ("onnx", "onnx-ir", "onnxruntime", "apache-tvm", "apache-tvm-ffi", "numpy")
FREE_BYTES = 1_000_000_000
OLDER_DRIVER = (
    "update the driver, or take a compiler of CUDA {0}: pip uninstall nvidia-cuda-nvrtc &&"
    " pip install nvidia-cuda-nvrtc-cu{0} nvidia-cuda-runtime-cu{0}"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: What.
        status: `ok`, `warn` (works, but less well) or `fail`.
        detail: What was found.
        fix: The command or step that mends it; empty when there is nothing to mend.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""


def examine() -> list[Finding]:
    """Look at everything. A check that fails never stops the others."""
    return [finding for check in CHECKS for finding in check()]


def _python() -> Iterator[Finding]:
    where = f"Python {python_version()}, pitc {__version__} at {Path(__file__).parent}"
    yield Finding("pitc", "ok", where)


def _packages() -> Iterator[Finding]:
    for name in PACKAGES:
        found = installed(name)
        if found is None:
            yield Finding(name, "fail", "not installed", f"pip install {name}")
        else:
            yield Finding(name, "ok", found)


def _cpu() -> Iterator[Finding]:
    try:
        level, kernels = cpu_level(), kernel_level()
    except PitcError as error:
        yield Finding("cpu", "fail", f"{cpu_name()}: {error.message}", error.hint or "")
        return
    if level:
        units = f", {bfloat16_unit()} for --precision bf16" if bfloat16_unit() else ""
        yield Finding("cpu", "ok", f"{cpu_name()}: level {level} ({LEVEL_NAMES[level]}{units})")
        if kernels in ("v4_bf16", "v4_amx") and (why := lacking()):
            yield Finding("bfloat16", "ok", why)
    else:
        detail = f"{cpu_name()}: neither AVX-512 nor AVX2; models run their source graph"
        yield Finding("cpu", "warn", detail)
    if kernels != (best := machine_level()):
        detail = f"the CPU has {best}, but kernels of {kernels} at best are used"
        yield Finding(LEVEL_VARIABLE, "warn", detail, f"unset {LEVEL_VARIABLE}")


def _compiler() -> Iterator[Finding]:
    from pitc.codegen.build.link import find_compiler

    try:
        command = find_compiler()
    except PitcError:
        fix = "install a C compiler, e.g. apt-get install gcc, or: pip install ziglang"
        yield Finding("C compiler", "fail", "none found; pitc needs one to link kernels", fix)
    else:
        path = shutil.which(command[0]) or command[0]
        yield Finding("C compiler", "ok", " ".join([path, *command[1:]]))


def _cuda() -> Iterator[Finding]:
    """What compiles for NVIDIA GPUs, and what runs there; a machine without either is fine."""
    from pitc.codegen.build.cuda_compiler import EXTRA, cuda_version
    from pitc.codegen.build.find_cuda import installed_cuda_compiler

    compiles: tuple[int, int] | None = None
    name = "CUDA compiler"
    try:
        compiler = installed_cuda_compiler()
    except PitcError as error:
        yield Finding(name, "warn", error.message, error.hint or EXTRA)
    else:
        if compiler is None:
            yield Finding(name, "ok", f"none; to compile for NVIDIA GPUs: {EXTRA}")
        else:
            compiles = cuda_version(compiler)
            yield Finding(name, "ok", f"{compiler.version}: {compiler.path}")
    yield from _cuda_driver(compiles)


def _cuda_driver(compiles: tuple[int, int] | None) -> Iterator[Finding]:
    """The driver, and whether it loads what a compiler of this version makes."""
    name = "CUDA driver"
    try:
        driver = cuda_driver()
    except PitcError as error:
        fix = "nvidia-smi says more; after an update of the driver, restart the machine"
        yield Finding(name, "warn", f"does not work: {error.message}", fix)
        return
    if driver is None and has_nvidia_gpu():
        yield Finding(name, "warn", "none, but an NVIDIA GPU", "install NVIDIA's driver")
    elif driver is None:
        yield Finding(name, "ok", "none, and no NVIDIA GPU")
    else:
        version = "CUDA {}.{}".format(*driver.version)
        if compiles and compiles[0] > driver.version[0]:
            detail = f"{version}, which cannot load kernels compiled by CUDA {compiles[0]}"
            yield Finding(name, "warn", detail, OLDER_DRIVER.format(driver.version[0]))
        else:
            yield Finding(name, "ok", version if driver.devices else f"{version}, no device")
        for number, device in enumerate(driver.devices):
            detail = f"{device.name}: {device.arch}, {device.memory_bytes / 1e9:.0f} GB"
            yield Finding(f"CUDA device {number}", "ok", detail)


def _provider() -> Iterator[Finding]:
    """Register the execution provider and ask ONNX Runtime for its device."""
    name = "execution provider"
    fix = f"pip install 'onnxruntime>={ONNXRUNTIME_MIN}' and reinstall pitc"
    try:
        import onnxruntime

        from pitc.runtime.library import library_path, register_ep

        path, ep = library_path(), register_ep()
        devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == ep]
    except PitcError as error:
        yield Finding(name, "fail", error.message, error.hint or fix)
    except Exception as error:
        yield Finding(name, "fail", " ".join(str(error).split()) or repr(error), fix)
    else:
        detail = f"{ep} from {path}, {len(devices)} device"
        yield Finding(name, "ok", detail) if devices else Finding(name, "fail", detail, fix)


def _tiles() -> Iterator[Finding]:
    """The tile table of the CPU's level, and why the user's own is not in force."""
    from pitc.config import resolve
    from pitc.tiles.find import outdated, tables_in_force

    name, fix = "tile table", "pitc tune"
    try:
        found = tables_in_force(resolve({}).path("tiles"))
        level = TABLE_LEVELS.get(cpu_level() or "", "v3")
    except PitcError as error:
        yield Finding(name, "fail", error.message, error.hint or fix)
        return
    for note in found.notes:
        yield Finding(name, "warn", note, fix)
    measured = found.levels[level]
    where = f"{found.origins[level]}: {level}, {measured.machine.device}, {measured.date}"
    if changed := outdated(measured):
        yield Finding(name, "warn", f"{where}; measured with {changed}", fix)
    else:
        yield Finding(name, "ok", where)


def _scratch() -> Iterator[Finding]:
    name = "temporary folder"
    folder = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(prefix="pitc-"):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        fix = "set TMPDIR to a writable folder"
        yield Finding(name, "fail", f"{folder}: {error.strerror}", fix)
        return
    if free < FREE_BYTES:
        yield Finding(name, "warn", f"{folder}: {free / 1e9:.1f} GB free", "set TMPDIR")
    else:
        yield Finding(name, "ok", f"{folder}: writable, {free / 1e9:.0f} GB free")


def _cache() -> Iterator[Finding]:
    """Where compiled kernels are kept."""
    from pitc.codegen.build.cache import kernel_cache

    name, cache = "kernel cache", kernel_cache()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PitcWarning)  # the finding says the same
            cache.try_to_write()
            held = cache.held()
    except OSError as error:
        detail = f"{cache.folder}: not used: {error.strerror or error}"
        yield Finding(name, "warn", detail, cache.MEND)
    else:
        taken = f"{held.bytes / 1e6:.1f} MB of at most {cache.limit_bytes / 1e6:.0f} MB"
        yield Finding(name, "ok", f"{cache.folder}: writable, {taken}")


def _system() -> Iterator[Finding]:
    system = platform.system()
    if system != "Linux":
        yield Finding("system", "warn", f"{system}: only Linux was tested")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python,
    _system,
    _packages,
    _cpu,
    _compiler,
    _cuda,
    _provider,
    _tiles,
    _cache,
    _scratch,
)

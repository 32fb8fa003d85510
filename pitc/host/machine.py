"""What this machine is: CPU level and installed versions."""

import ctypes
import os
import platform
import sys
from functools import cache
from pathlib import Path

from pitc.errors import UsageError
from pitc.version import __version__

LEVEL_VARIABLE = "PITC_CPU"
"""The level of kernels that a process uses, where its sessions name none."""

_V3 = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"))
_V4 = _V3 | frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))

_PAIRS = _V4 | {"avx512_bf16"}
_TILES = _PAIRS | {"amx_tile", "amx_bf16"}

#: Level of kernels -> flags that Linux must report for it, best first; v4 is x86-64-v4.
LEVEL_FLAGS = {"v4_amx": _TILES, "v4_bf16": _PAIRS, "v4": _V4, "v3": _V3}
LEVEL_NAMES = {"v4": "AVX-512", "v3": "AVX2 and FMA", "neon": "64-bit Arm"}

#: Packages whose version can change a compiled artifact.
BUILDERS = ("apache-tvm", "numpy", "onnx", "onnx-ir")


@cache
def machine_level() -> str | None:
    """The best level of kernels that the CPU has: a key of `LEVEL_FLAGS`, `neon` or None."""
    if platform.machine() == "aarch64":
        return "neon"
    flags = frozenset(_cpu_field("flags").split())
    return next((level for level, need in LEVEL_FLAGS.items() if need <= flags), None)


def runs_level(level: str) -> bool:
    """True where the machine runs kernels of a level of `LEVEL_FLAGS`."""
    levels = list(LEVEL_FLAGS)
    found = machine_level() in levels[: levels.index(level) + 1]
    return found and (level != "v4_amx" or _has_tiles())


def kernel_level() -> str | None:
    """The best level of kernels that this process runs: `PITC_CPU`'s, else the machine's.

    Raises:
        UsageError: The variable names no level, or one that the CPU has not.
    """
    best, wanted = machine_level(), os.environ.get(LEVEL_VARIABLE)
    if not wanted:
        return best
    known = ["neon"] if best == "neon" else [*reversed(LEVEL_FLAGS)]
    usable = known[: known.index(best) + 1] if best else []
    if wanted in usable:
        return wanted
    expected = f"up to {best or 'baseline'} on this CPU" if wanted in known else ", ".join(known)
    hint = f"unset {LEVEL_VARIABLE} for the best that there is"
    raise UsageError(f"expected {LEVEL_VARIABLE} {expected}, got {wanted!r}", hint=hint)


def cpu_level() -> str | None:
    """What kernels of every type are compiled for there: `v4`, `v3`, `neon` or None."""
    level = kernel_level()
    return level and level.partition("_")[0]


def bfloat16_unit() -> str | None:
    """The unit for products of bfloat16 that this process uses: `AMX`, `AVX512-BF16` or None.

    AVX512-BF16 of Intel's CPUs is slower than float32: it is used where `PITC_CPU` asks for it.
    """
    level, wanted = kernel_level(), os.environ.get(LEVEL_VARIABLE)
    if level == "v4_amx":
        return "AMX" if _has_tiles() else None
    used = level == "v4_bf16" and (wanted or _has_fast_pairs())
    return "AVX512-BF16" if used else None


def lacking() -> str | None:
    """Why products of bfloat16 run in slower kernels than there are, in the plug-in's words; None
    where they do not, or `PITC_CPU` is set.
    """
    if os.environ.get(LEVEL_VARIABLE) or bfloat16_unit():
        return None
    why = {
        "v4_amx": "has AMX, but the operating system gives no tile registers to this process",
        "v4_bf16": "shows no AMX, and its AVX512-BF16 is slower than float32",
    }.get(kernel_level() or "", "shows no AVX512-BF16")
    return f"this CPU {why}: products of bfloat16 are computed in float32"


@cache
def _has_tiles() -> bool:
    """Ask the operating system for the registers of tiles."""
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0)


@cache
def _has_fast_pairs() -> bool:
    return _cpu_field("vendor_id") != "GenuineIntel"


@cache
def cpu_name() -> str:
    """The CPU's own name, or the architecture where it has none."""
    return _cpu_field("model name") or platform.machine() or "unknown"


@cache
def cpu_features() -> tuple[str, ...]:
    """What this CPU has of the flags that CPU levels need."""
    return tuple(sorted(_V4 & frozenset(_cpu_field("flags").split())))


@cache
def cpu_caches() -> tuple[tuple[str, str], ...]:
    """Name and size of every cache of a core, e.g. `("L2", "1024K")`; empty where not told."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (folder / name).read_text("utf-8").strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
        found.append((f"L{level}{suffix}", size))
    return tuple(found)


def _cpu_field(field: str) -> str:
    """First value of a field of Linux's CPU description; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == field:
            return value.strip()
    return ""


@cache
def installed(package: str) -> str | None:
    """Version of an installed package, or None. The package is not imported; its metadata is read
    once.
    """
    from importlib.metadata import PackageNotFoundError, version  # 2 MB that a run can do without

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def runtime_version() -> str | None:
    """Version of ONNX Runtime, or None. It is not imported; where it is already, its package may
    have another name, as onnxruntime-gpu has.
    """
    imported = sys.modules.get("onnxruntime")
    return installed("onnxruntime") if imported is None else str(imported.__version__)


def builder_versions() -> dict[str, str]:
    """Versions that stand in a manifest: pitc and the packages that shape its output."""
    found = {name: installed(name) for name in BUILDERS}
    return {"pitc": __version__} | {name: v for name, v in found.items() if v is not None}


def python_version() -> str:
    """Version of the running interpreter, e.g. `3.11.7`."""
    return ".".join(map(str, sys.version_info[:3]))

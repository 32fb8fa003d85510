"""Kernel libraries and guarded memory for the codegen tests."""

import atexit
import ctypes
import functools
import math
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import KernelRequest
from tests.aarch64.machine import LEVELS_VARIABLE, EmulatedLibrary

Array = NDArray[Any]

_NEEDED = {"v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "v3": {"avx2", "fma", "bmi2"}}
_PAGE = mmap.PAGESIZE
_PROT_NONE = 0


def _levels() -> tuple[str, ...]:
    if wanted := os.environ.get(LEVELS_VARIABLE):
        return tuple(wanted.split(","))
    text = Path("/proc/cpuinfo").read_text()
    flags = set(next(x for x in text.splitlines() if x.startswith("flags")).split())
    return tuple(level for level, needed in _NEEDED.items() if needed <= flags)


LEVELS = _levels()
"""CPU levels that this machine can run, or an emulated one."""
IS_EMULATED = "neon" in LEVELS
NEWEST = LEVELS if "PITC_THOROUGH" in os.environ else LEVELS[:1]
"""Of those: all in `make test-all`, else the newest; main families are tested at all anyhow."""


def library(*requests: KernelRequest) -> KernelLibrary:
    """Build (once per process) and load the kernels for every level of this machine."""
    return _built(LEVELS, requests)


def newest_library(*requests: KernelRequest) -> KernelLibrary:
    """The same, for levels `NEWEST`."""
    return _built(NEWEST, requests)


@functools.cache
def _built(levels: tuple[str, ...], requests: tuple[KernelRequest, ...]) -> KernelLibrary:
    folder = tempfile.TemporaryDirectory(prefix="pitc-test-kernels-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "kernels.so"
    build_kernels(requests, levels, path, cache=kernel_cache())
    return load(path)


def load(path: Path) -> KernelLibrary:
    """A kernel library for `LEVELS`, which may be emulated."""
    if not IS_EMULATED:
        return KernelLibrary(path)
    emulated = EmulatedLibrary(path)
    atexit.register(emulated.close)
    return cast(KernelLibrary, emulated)


def guarded(content: Array, *, at_end: bool = True) -> Array:
    """A copy of an array between two inaccessible pages: reading or writing past it is a crash.

    With `at_end` the last byte touches the guard, and the address is only as aligned as the size.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    size = content.nbytes
    body = -(-max(size, 1) // _PAGE) * _PAGE
    memory = mmap.mmap(-1, body + 2 * _PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (base, base + _PAGE + body):
        if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(_PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = _PAGE + (body - size if at_end else 0)
    flat = np.frombuffer(memory, np.uint8, count=size, offset=start)
    out = flat.view(content.dtype).reshape(content.shape)
    out[...] = content
    return out


def untouched(*shape: int, dtype: Any = np.float32) -> Array:
    """Zeros that take memory only where they are written, however many they are."""
    no_reserve = 0x4000  # of Linux; the module does not name it everywhere
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        pytest.skip(f"the system lends no addresses: {os.strerror(error.errno or 0)}")
    return np.frombuffer(memory, dtype).reshape(shape)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal float32."""
    return rng.standard_normal(shape, dtype=np.float32)


def bits(x: Array) -> Array:
    """The bit patterns of float32 values, for exact comparison."""
    return np.ascontiguousarray(x).view(np.int32)

"""The emulated machine: what it needs, and kernels that run on it."""

import shutil
import struct
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitc.codegen.build.link import find_compiler
from pitc.codegen.call import KernelError
from pitc.ir.target import NEON

LIBRARIES = Path("/usr/aarch64-linux-gnu")
"""Where Debian's libc6-arm64-cross puts the C library."""
EMULATOR = ("qemu-aarch64", "-L", str(LIBRARIES))
LEVELS_VARIABLE = "PITC_TEST_LEVELS"
"""`neon`: the tests of kernels for CPUs test those of this machine."""
MOST_BYTES = 256 << 20
"""Of a tensor: some tests have much larger ones, which take memory only where they are written."""
_CODES = {"i": 0, "u": 1, "f": 2}


def lacking() -> str:
    """What is not installed here; empty: nothing."""
    if not shutil.which(EMULATOR[0]):
        return "no qemu-aarch64 (Debian: qemu-user)"
    if not (LIBRARIES / "lib" / "ld-linux-aarch64.so.1").exists():
        return "no C library for aarch64 (Debian: libc6-arm64-cross)"
    return "" if find_spec("ziglang") else "no ziglang (pip install ziglang)"


class EmulatedLibrary:
    """A kernel library on the emulated machine; called as `pitc.codegen.call.KernelLibrary` is.

    Args:
        path: The shared object.
    """

    def __init__(self, path: Path) -> None:
        program = path.with_name("serve_kernels")
        source = Path(__file__).with_name("serve_kernels.c")
        options = ["-O1", "-std=c11", "-D_GNU_SOURCE", source, "-o", program, "-ldl"]
        command = [*find_compiler(NEON.triple), *map(str, options)]
        subprocess.run(command, check=True, capture_output=True)
        words = [*EMULATOR, str(program), str(path)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, symbol: str, *arguments: Any) -> None:
        """Run a kernel once.

        Raises:
            KernelError: It refused its arguments.
            EOFError: It ended the process.
        """
        name = f"__tvm_ffi_{symbol}".encode()
        message = [struct.pack("=I", len(name)), name, struct.pack("=I", len(arguments))]
        tensors: list[np.ndarray[Any, Any]] = []
        for value in arguments:
            message += _packed(value, tensors)
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(message))
        self._process.stdin.flush()
        if struct.unpack("=i", self._take(4))[0]:
            said = self._take(struct.unpack("=I", self._take(4))[0])
            raise KernelError(said.decode(errors="replace"))
        for tensor in tensors:
            body = np.frombuffer(self._take(tensor.nbytes), tensor.dtype).reshape(tensor.shape)
            if tensor.flags.writeable:
                tensor[...] = body
            else:
                np.testing.assert_array_equal(tensor.view(np.uint8), body.view(np.uint8))

    def _take(self, count: int) -> bytes:
        assert self._process.stdout is not None
        body = self._process.stdout.read(count)
        if len(body) < count:
            raise EOFError(f"the kernel ended its process: {self._process.wait()}")
        return body

    def close(self) -> None:
        """End the emulator."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _packed(value: Any, tensors: list[np.ndarray[Any, Any]]) -> list[bytes]:
    """An argument as the server reads it; a new tensor is added to those before it."""
    if isinstance(value, int | np.integer):
        return [struct.pack("=cq", b"i", int(value))]
    if isinstance(value, float | np.floating):
        return [struct.pack("=cd", b"f", float(value))]
    if not value.flags.c_contiguous:
        raise ValueError("kernels take C-contiguous arrays")
    if value.nbytes > MOST_BYTES:
        pytest.skip("an emulated machine gets a copy of every tensor")
    for i, other in enumerate(tensors):
        if value.size and value.ctypes.data == other.ctypes.data and value.shape == other.shape:
            return [struct.pack("=cI", b"=", i)]
    tensors.append(value)
    code, bits = _CODES[value.dtype.kind], 8 * value.dtype.itemsize
    head = struct.pack("=cBBI", b"t", code, bits, value.ndim)
    shape = struct.pack(f"={value.ndim}qQ", *value.shape, value.nbytes)
    return [head, shape, value.tobytes()]

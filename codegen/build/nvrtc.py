"""NVRTC from pip: CUDA source to cubin or PTX in this process, without a driver or an nvcc.

Two packages hold it, `nvidia-cuda-nvrtc` (the library) and `nvidia-cuda-runtime` (`cuda_fp16.h` and
its like), or those of CUDA 12, whose names end in `-cu12`. The source that TVM writes also includes
two headers of the CUDA C++ library; their few names that it may use are defined here instead, which
needs one package less and compiles five times as fast.

Numbers of results are those of NVRTC's documentation (`nvrtcResult`).
"""

import ctypes
import functools
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pitc.codegen.build.cuda_compiler import (
    EXTRA,
    LONGEST_LOG,
    OPTIONS,
    Compiled,
    CudaSourceError,
    check_target,
)
from pitc.errors import MachineError

PACKAGES = (
    ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime"),
    ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"),
)
"""The packages of the library and of the headers, the newest toolkit first."""

_COMPILATION_FAILED = 6
_FILE_NAME = b"kernels.cu"

_CSTDINT = """
#pragma once
namespace cuda { namespace std {
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
} }
"""

_INTEGERS = (
    *("bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int"),
    *("unsigned int", "long", "unsigned long", "long long", "unsigned long long"),
)


def _holds(trait: str, types: tuple[str, ...]) -> str:
    """A trait that holds of these types."""
    lines = [f"template <class T> struct {trait} : known<false> {{}};"]
    lines += [f"template <> struct {trait}<{name}> : known<true> {{}};" for name in types]
    return "\n".join(lines)


_TYPE_TRAITS = f"""
#pragma once
namespace cuda {{ namespace std {{
template <bool B> struct known {{ static constexpr bool value = B; }};
template <class A, class B> struct is_same : known<false> {{}};
template <class A> struct is_same<A, A> : known<true> {{}};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
{_holds("is_integral", _INTEGERS)}
{_holds("is_floating_point", ("float", "double"))}
template <class T, bool = is_integral<T>::value || is_floating_point<T>::value>
struct below_zero : known<false> {{}};
template <class T> struct below_zero<T, true> : known<(T(-1) < T(0))> {{}};
template <class T> struct is_signed : below_zero<T> {{}};
template <class T>
struct is_unsigned : known<is_integral<T>::value && !below_zero<T>::value> {{}};
template <bool B, class T = void> struct enable_if {{}};
template <class T> struct enable_if<true, T> {{ using type = T; }};
template <bool B, class T, class F> struct conditional {{ using type = T; }};
template <class T, class F> struct conditional<false, T, F> {{ using type = F; }};
}} }}
"""

HEADERS = {"cuda/std/cstdint": _CSTDINT, "cuda/std/type_traits": _TYPE_TRAITS}
"""What a source may include besides the headers of the package, by name."""


class Nvrtc:
    """NVRTC, loaded into this process. It compiles on as many threads as call it.

    Args:
        library: The shared library.
        headers: The folder of `cuda_fp16.h`.
        version: Its version, e.g. `13.5.37`.
        headers_version: That of the headers.

    Raises:
        MachineError: The library cannot be loaded.
    """

    def __init__(self, library: Path, headers: Path, version: str, headers_version: str) -> None:
        self.path, self.version = library, f"nvrtc-{version}"
        self._options = (*OPTIONS, f"-I{headers}")
        own = "".join(HEADERS.values())
        self.fingerprint = "\n".join([self.version, headers_version, *OPTIONS, own])
        try:
            for builtins in library.parent.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(builtins))  # some versions look for it on the system's path alone
            self._nvrtc: Any = ctypes.CDLL(str(library))
        except OSError as error:
            raise MachineError(f"NVRTC cannot be loaded: {error}", path=library) from error
        self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        self.archs = self._supported()

    def _supported(self) -> tuple[int, ...]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return tuple(sorted(numbers))

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._nvrtc, name)(*arguments):
            reason = (self._nvrtc.nvrtcGetErrorString(code) or b"").decode()
            raise MachineError(f"{self.version}: {name} failed: {reason or code}")

    def _bytes(self, name: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{name}Size", program, ctypes.byref(size))
        found = ctypes.create_string_buffer(size.value)
        self._call(name, program, found)
        return found.raw

    def compile(self, source: str, target: str) -> Compiled:
        """As `CudaCompiler.compile`; other threads run meanwhile."""
        check_target(target, self)
        names = _strings(*(name.encode() for name in HEADERS))
        texts = _strings(*(text.encode() for text in HEADERS.values()))
        options = _strings(
            f"-arch={target}".encode(), *(option.encode() for option in self._options)
        )
        program = ctypes.c_void_p()
        own = (len(names), texts, names)
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), _FILE_NAME, *own)
        try:
            code = self._nvrtc.nvrtcCompileProgram(program, len(options), options)
            log = self._bytes("nvrtcGetProgramLog", program).decode(errors="replace").rstrip("\0\n")
            if code == _COMPILATION_FAILED:
                raise CudaSourceError(
                    f"{self.version} refused a source for {target}:\n{log[:LONGEST_LOG]}"
                )
            if code:
                reason = self._nvrtc.nvrtcGetErrorString(code).decode()
                raise MachineError(
                    f"{self.version} failed for {target}: {reason}: {log[:LONGEST_LOG]}"
                )
            if target.startswith("sm_"):
                return Compiled(self._bytes("nvrtcGetCUBIN", program), log)
            # The end of a text is counted.
            return Compiled(self._bytes("nvrtcGetPTX", program).rstrip(b"\0"), log)
        finally:
            self._nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(*texts: bytes) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * len(texts))(*texts)


def find_nvrtc() -> Nvrtc | None:
    """The newest NVRTC that pip installed together with its headers, or None.

    Raises:
        MachineError: It cannot be loaded.
    """
    for library_package, headers_package in PACKAGES:
        try:
            library, headers = distribution(library_package), distribution(headers_package)
        except PackageNotFoundError:
            continue
        return _loaded(
            _file(library, "libnvrtc.so."),
            _file(headers, "cuda_fp16.h").parent,
            library.version,
            headers.version,
        )
    return None


_loaded = functools.cache(Nvrtc)


def _file(package: Distribution, start: str) -> Path:
    """The file of a package whose name starts so."""
    for file in package.files or ():
        if file.name.startswith(start):
            return Path(str(package.locate_file(file)))
    name = package.metadata["Name"]
    raise MachineError(
        f"{name} {package.version} holds no {start}*", hint=f"{EXTRA} --force-reinstall"
    )

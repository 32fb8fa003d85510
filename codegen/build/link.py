"""Linking a kernel library: object code, a small shim and, for GPUs, tables of images.

The library needs the C library only. It exports the kernels, the pointers that whoever loads it
fills, `pitc_kernel_last_error` and `pitc_kernel_identity`. The same parts and tool versions give
the same bytes.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from pitc.errors import MachineError
from pitc.ir.digest import joint_sha256, named_sha256
from pitc.ir.kernel import KERNEL_ABI
from pitc.ir.target import NEON
from pitc.version import __version__

SHIM = Path(__file__).with_name("kernel_shim.c")
_EXPORTS = ("pitc_kernel_identity", "pitc_kernel_last_error")
_COMPILERS = ("cc", "gcc", "clang")
_PACKAGED = "ziglang"
"""A C compiler that pip installs."""
_ZIG_NAMES = {NEON.triple: "aarch64-linux-gnu.2.17"}
"""The same machines as zig calls them, with the oldest C library."""


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel library that was built.

    Args:
        identity: `ABI/pitc-VERSION/TOOL-VERSION/../DIGEST`, the digest that of the machine code and
            the symbols: another build of the same symbols has another one, the same one has this.
        symbols: The kernels' symbols with level or `cuda`, sorted.
    """

    identity: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of machine adds to a library.

    Args:
        objects: Object code, by the symbol of the kernel that it holds.
        exports: What it exports besides the kernels; `*` stands for any letters. Linkers want a
            name without it to be there.
        tools: What made it beside TVM, with versions.
        source: A C file that is compiled into the library.
        files: Files that `source` includes, by name.
        triple: LLVM's name of the machine that the code is for; empty: this one.
    """

    objects: Mapping[str, bytes]
    exports: tuple[str, ...]
    tools: tuple[str, ...] = ()
    source: Path | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    triple: str = ""


def find_compiler(triple: str = "") -> list[str]:
    """The command of the C compiler, which also links: `$CC`, else cc, gcc, clang or pip's zig.

    Args:
        triple: Machine to compile for, where it is another one than this: pip's zig knows all.

    Raises:
        MachineError: None is installed.
    """
    if triple:
        if not importlib.util.find_spec(_PACKAGED):
            hint = f"pip install {_PACKAGED}"
            raise MachineError(f"no C compiler found that links for {triple}", hint=hint)
        return [sys.executable, "-m", _PACKAGED, "cc", "-target", _ZIG_NAMES[triple]]
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    if not named and importlib.util.find_spec(_PACKAGED):
        # For any machine, not for the one that links.
        return [sys.executable, "-m", _PACKAGED, "cc", "-mcpu=baseline"]
    looked = " ".join(named) if named else ", ".join((*_COMPILERS, f"Python's {_PACKAGED}"))
    raise MachineError(
        f"no C compiler found to link the kernel library (looked for {looked})",
        hint="install gcc or clang, or name one in the environment variable CC,"
        f" or run: pip install {_PACKAGED}",
    )


def _run(compiler: Sequence[str], arguments: Sequence[str], folder: Path) -> None:
    command = [*compiler, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        told = lines[0] if lines else f"exit code {result.returncode}"
        raise MachineError(f"the C compiler failed: {shlex.join(compiler)}: {told}")


def _identity(parts: Sequence[Part]) -> str:
    digest = joint_sha256(
        [
            SHIM.read_bytes(),
            named_sha256(pair for part in parts for pair in part.objects.items()),
            named_sha256((p.source.name, p.source.read_bytes()) for p in parts if p.source),
            named_sha256(pair for part in parts for pair in part.files.items()),
        ]
    )
    tools = [
        f"pitc-{__version__}",
        f"tvm-{version('apache-tvm')}",
        *(t for p in parts for t in p.tools),
    ]
    return "/".join([str(KERNEL_ABI), *tools, digest[:32]])


def link_library(parts: Sequence[Part], out: Path) -> Built:
    """Write one shared object with all parts.

    Args:
        parts: At most one of each kind of machine.
        out: The file to write; it appears complete or not at all.

    Returns:
        What was built: the plans of nodes that run these kernels name its identity.

    Raises:
        MachineError: There is no C compiler, or it fails.
    """
    triple = next((part.triple for part in parts), "")
    compiler = find_compiler(triple)
    identity = _identity(parts)
    objects = {symbol: code for part in parts for symbol, code in part.objects.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".kernels-", dir=out.parent) as scratch:
        folder = Path(scratch)
        # Names are short and relative, so that no path gets into the library.
        inputs = [f"{i}.o" for i in range(len(objects))]
        for name, code in zip(inputs, objects.values(), strict=True):
            (folder / name).write_bytes(code)
        for part in parts:
            for name, content in part.files.items():
                (folder / name).write_bytes(content)
        options = ["-O2", "-fPIC", "-I.", f'-DPITC_KERNEL_IDENTITY="{identity}"']
        for source in (SHIM, *(part.source for part in parts if part.source)):
            (folder / source.name).write_bytes(source.read_bytes())
            inputs.append(f"{source.stem}.o")
            _run(compiler, [*options, "-c", source.name, "-o", inputs[-1]], folder)
        symbols = [f"__tvm_ffi_{symbol}" for symbol in objects]
        exports = [*symbols, *_EXPORTS, *(name for part in parts for name in part.exports)]
        (folder / "exports.lds").write_text(f"{{ global: {'; '.join(exports)}; local: *; }};\n")
        options = ["-shared", "-s", "-Wl,--build-id=none", "-Wl,--version-script=exports.lds"]
        options += ["-Wl,-z,noexecstack", "-Wl,-z,defs"]
        _run(compiler, [*options, *inputs, "-o", "kernels.so"], folder)
        (folder / "kernels.so").replace(out)
    return Built(identity, tuple(sorted(objects)))

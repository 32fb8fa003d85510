"""Building a kernel library: every requested kernel for every CPU level in one shared object.

The library needs the C library only. It exports the kernels, TVM's workspace pointers (filled by
whoever loads it), `pitc_kernel_last_error` and `pitc_kernel_identity`. The same requests, levels
and tool versions give the same bytes.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitc.errors import MachineError
from pitc.ir.kernel import KERNEL_ABI, KernelRequest
from pitc.ir.target import CpuLevel, cpu_level_of
from pitc.version import __version__

Progress = Callable[[int, int, str], None]

SHIM = Path(__file__).with_name("kernel_shim.c")
_POINTERS = (
    "__TVMBackendAllocWorkspace",
    "__TVMBackendFreeWorkspace",
    "__TVMBackendParallelLaunch",
)
_EXPORTS = (*_POINTERS, "pitc_kernel_identity", "pitc_kernel_last_error")
_COMPILERS = ("cc", "gcc", "clang")


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel library that was built.

    Args:
        identity: `ABI/pitc-VERSION/tvm-VERSION/DIGEST`, the digest that of the machine code and the
            symbols: another build of the same symbols has another one, the same one has this.
        symbols: The kernels' symbols with level, sorted.
    """

    identity: str
    symbols: tuple[str, ...]


def kernel_function(request: KernelRequest, target: CpuLevel) -> Any:
    """The TIR function that answers a request; its symbol is `request.symbol` and the level."""
    from pitc.codegen.families import (
        attention,
        contract_block,
        contract_row,
        contract_tile,
        gather_gemm,
        pack,
        panels,
        stored_rows,
        swrite_columns,
    )

    emitters = {
        "pack": pack.pack_func,
        "unpack": pack.unpack_func,
        "gather_gemm": gather_gemm.prim_func,
        "contract_row": contract_row.prim_func,
        "contract_tile": contract_tile.prim_func,
        "contract_block": contract_block.prim_func,
        "panels": panels.prim_func,
        "stored_rows": stored_rows.prim_func,
        "swrite_columns": swrite_columns.prim_func,
        "attention": attention.prim_func,
    }
    params = dict(request.params) | {"dtype": request.dtype}
    return emitters[request.family](f"{request.symbol}_{target.level}", params, target)


def find_compiler() -> list[str]:
    """The command of the C compiler, which also links: `$CC`, else cc, gcc or clang.

    Raises:
        MachineError: None is installed.
    """
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    looked = " ".join(named) if named else ", ".join(_COMPILERS)
    raise MachineError(
        f"no C compiler found to link the kernel library (looked for {looked})",
        hint="install gcc or clang, or name one in the environment variable CC",
    )


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        told = lines[0] if lines else f"exit code {result.returncode}"
        raise MachineError(f"the C compiler failed: {' '.join(command[:2])}: {told}")


def _identity(symbols: Sequence[str], objects: Sequence[Path]) -> str:
    import tvm

    digest = hashlib.sha256(SHIM.read_bytes())
    for symbol, path in sorted(zip(symbols, objects, strict=True)):
        code = path.read_bytes()
        digest.update(f"{symbol} {len(code)}\n".encode() + code)
    versions = f"pitc-{__version__}/tvm-{tvm.__version__}"
    return f"{KERNEL_ABI}/{versions}/{digest.hexdigest()[:32]}"


def _link(
    compiler: Sequence[str],
    objects: Sequence[Path],
    symbols: Sequence[str],
    identity: str,
    so: Path,
) -> None:
    folder = so.parent
    exports = folder / "exports.lds"
    names = " ".join(f"{name};" for name in (*symbols, *_EXPORTS))
    exports.write_text(f"{{ global: {names} local: *; }};\n")
    shim = folder / "shim.o"
    define = f'-DPITC_KERNEL_IDENTITY="{identity}"'
    _run([*compiler, "-O2", "-fPIC", define, "-c", str(SHIM), "-o", str(shim)])
    options = ["-shared", "-s", "-Wl,--build-id=none", f"-Wl,--version-script={exports}"]
    options += ["-Wl,-z,noexecstack", "-Wl,-z,defs"]
    _run([*compiler, *options, *map(str, objects), str(shim), "-o", str(so)])


def build_kernels(
    requests: Sequence[KernelRequest],
    levels: Sequence[str],
    out: Path,
    progress: Progress | None = None,
) -> Built:
    """Write one shared object with every requested kernel for every level.

    Args:
        requests: What the lowered graph needs, at least one; order and repetitions do not matter.
        levels: CPU levels, e.g. `("v4", "v3")`.
        out: The file to write; it appears complete or not at all.
        progress: Called with (kernels done, kernels in all, symbol) before each kernel is compiled.

    Returns:
        What was built: the plans of nodes that run these kernels name its identity.

    Raises:
        MachineError: There is no C compiler, or it fails.
        UsageError: An unknown level.
        ValueError: No request, or a request that no family can answer.
    """
    if not requests or not levels:
        raise ValueError("a kernel library needs at least one request and one level")
    compiler = find_compiler()
    targets = [cpu_level_of(level) for level in sorted(set(levels))]
    work = [(r, t) for r in sorted(set(requests), key=lambda r: r.symbol) for t in targets]

    from pitc.codegen.lower import compile_function

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".kernels-", dir=out.parent) as folder:
        objects = []
        symbols = []
        for done, (request, target) in enumerate(work):
            symbol = f"{request.symbol}_{target.level}"
            if progress:
                progress(done, len(work), symbol)
            objects.append(Path(folder) / f"{done}.o")
            compile_function(kernel_function(request, target), target, objects[-1])
            symbols.append(symbol)
        so = Path(folder) / "kernels.so"
        identity = _identity(symbols, objects)
        _link(compiler, objects, [f"__tvm_ffi_{s}" for s in symbols], identity, so)
        so.replace(out)
    return Built(identity, tuple(sorted(symbols)))

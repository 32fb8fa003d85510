"""The kernel library as a file: symbols, reproducibility, dependencies, errors."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from pitc.codegen import vector_math
from pitc.codegen.build import link
from pitc.codegen.build.library import build_kernels
from pitc.codegen.build.link import find_compiler
from pitc.codegen.call import KernelError, KernelLibrary
from pitc.errors import MachineError, UsageError
from pitc.ir import machine_header
from pitc.ir.kernel import KERNEL_ABI, KernelRequest
from pitc.ir.plan import PLAN_VERSION
from pitc.ir.plans.header import header
from pitc.version import __version__
from tests.codegen_kernels import LEVELS, Array
from tests.runtime_support import kernel_identity

REQUESTS = (
    KernelRequest.of("pack", "int32"),
    KernelRequest.of("gather_gemm", k=8, n=70, activation="gelu", residual=1),
    KernelRequest.of("attention", d=4, dv=4, bias=0),
)
SYMBOLS = [
    "attention_d4_v4_v3",
    "attention_d4_v4_v4",
    "gather_gemm_k8_n70_gelu_res_v3",
    "gather_gemm_k8_n70_gelu_res_v4",
    "pack_b4_v3",
    "pack_b4_v4",
]


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "new" / "kernels.so"
    seen: list[tuple[int, int, str]] = []
    built = build_kernels(REQUESTS, ("v4", "v3"), path, lambda *step: seen.append(step))
    assert list(built.symbols) == SYMBOLS and built.identity == kernel_identity(path)
    assert [s[:2] for s in seen] == [(i, 6) for i in range(6)]
    assert sorted(s[2] for s in seen) == SYMBOLS
    assert os.listdir(path.parent) == ["kernels.so"]
    return path


def test_same_bytes_for_same_requests(built: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.so"
    code = f"""
from pathlib import Path
from pitc.codegen.build.library import build_kernels
from pitc.ir.kernel import KernelRequest
requests = {REQUESTS!r}
build_kernels([*reversed(requests), requests[0]], ("v3", "v4", "v3"), Path({str(other)!r}))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=Path.cwd())
    assert other.read_bytes() == built.read_bytes()


def test_library_resolves_without_tvm(built: Path) -> None:
    code = f"import ctypes, os; ctypes.CDLL({str(built)!r}, mode=os.RTLD_NOW | os.RTLD_LOCAL)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_dynamic_symbols(built: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", str(built)], check=True, capture_output=True, text=True
    ).stdout
    lines = [line.split() for line in listing.splitlines()]
    undefined = {x[-1].split("@")[0] for x in lines if x[-2] == "U"}
    assert undefined <= {"memcpy", "memset", "strlen", "__tls_get_addr"}
    defined = {x[-1] for x in lines if x[-2] in "TVDBR"}
    pointers = {"__TVMBackendAllocWorkspace", "__TVMBackendFreeWorkspace"}
    own = {"pitc_kernel_identity", "pitc_kernel_last_error"}
    assert defined == {f"__tvm_ffi_{s}" for s in SYMBOLS} | pointers | own
    assert b"/tmp" not in built.read_bytes()


def test_the_identity_is_that_of_the_code(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same symbols with other code, or fewer of them, are other kernels."""
    abi, pitc, tvm, digest = kernel_identity(built).split("/")
    assert abi == f"{KERNEL_ABI}" and pitc == f"pitc-{__version__}" and tvm.startswith("tvm-")
    assert re.fullmatch("[0-9a-f]{32}", digest)
    again = build_kernels(REQUESTS, ("v3", "v4"), tmp_path / "same.so")
    fewer = build_kernels(REQUESTS, ("v3",), tmp_path / "fewer.so")
    monkeypatch.setattr(vector_math, "EXP_MIN", -80.0)
    other = build_kernels(REQUESTS, ("v3", "v4"), tmp_path / "other.so")
    assert again.identity == kernel_identity(built) and other.symbols == again.symbols
    assert len({again.identity, fewer.identity, other.identity}) == 3


def test_the_plug_in_checks_the_same_abi() -> None:
    assert f"kKernelAbi = {KERNEL_ABI};" in machine_header.header()
    assert f'kPlanFormat = "pitc-plan {PLAN_VERSION}";' in header()


def test_wrong_arguments_are_told(built: Path) -> None:
    library = KernelLibrary(built)
    x, index, out = np.zeros((3, 4), np.int32), np.zeros(2, np.int32), np.zeros((2, 4), np.int32)
    library.call("pack_b4_v3", x, index, out)
    wrong: dict[str, tuple] = {
        "index": (x, index.astype(np.int64), out),
        "out": (x, index, out[:, :3].copy()),
        "x": (x.astype(np.float32), index, out),
        "argument": (x, index),
    }
    for word, args in wrong.items():
        with pytest.raises(KernelError, match=word):
            library.call("pack_b4_v3", *args)
    library.call("pack_b4_v3", x, index, out)
    with pytest.raises(ValueError, match="contiguous"):
        library.call("pack_b4_v3", x.T, index, out)


def test_last_error_is_per_thread_and_bounded(built: Path) -> None:
    library = ctypes.CDLL(str(built))
    library.pitc_kernel_last_error.restype = ctypes.c_char_p
    with pytest.raises(KernelError):
        KernelLibrary(built).call("pack_b4_v3", 1, 2, 3)
    assert 0 < len(library.pitc_kernel_last_error()) < 1024


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(link, "_PACKAGED", "pitc_absent")
    with pytest.raises(MachineError, match=r"no C compiler found .* pip install pitc_absent"):
        build_kernels(REQUESTS[:1], ("v3",), tmp_path / "k.so")
    monkeypatch.setenv("CC", "nosuchcc -m64")
    with pytest.raises(MachineError, match="looked for nosuchcc"):
        build_kernels(REQUESTS[:1], ("v3",), tmp_path / "k.so")


def test_a_compiler_from_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package that takes the same words stands for `ziglang`, which has 100 MB."""
    compiler = shutil.which(find_compiler()[0])
    package = tmp_path / "packages" / "pitc_compiler"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(f"""
import os, sys
assert sys.argv[1:3] == ["cc", "-mcpu=baseline"]
os.environ["PATH"] = {os.environ["PATH"]!r}
os.execv({compiler!r}, [{compiler!r}, *sys.argv[3:]])
""")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(link, "_PACKAGED", package.name)
    path = tmp_path / "k.so"
    build_kernels(REQUESTS[:1], ("v3",), path)
    x, index, out = np.ones((3, 4), np.int32), np.zeros(2, np.int32), np.zeros((2, 4), np.int32)
    KernelLibrary(path).call("pack_b4_v3", x, index, out)
    assert (out == 1).all()


@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed")
def test_zig_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_compiler() == [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
    one, two = tmp_path / "one.so", tmp_path / "two.so"
    for path in (one, two):
        build_kernels(REQUESTS, ("v3",), path)
    assert one.read_bytes() == two.read_bytes()
    x, index, out = np.ones((3, 4), np.int32), np.zeros(2, np.int32), np.zeros((2, 4), np.int32)
    KernelLibrary(one).call("pack_b4_v3", x, index, out)
    assert (out == 1).all()


def test_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "badcc"
    script.write_text("#!/bin/sh\necho 'cannot link today' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    out = tmp_path / "k.so"
    with pytest.raises(MachineError, match="cannot link today"):
        build_kernels(REQUESTS[:1], ("v3",), out)
    assert not out.exists()


def test_requests_that_cannot_be_answered(tmp_path: Path) -> None:
    out = tmp_path / "k.so"
    with pytest.raises(UsageError, match="v5"):
        build_kernels(REQUESTS[:1], ("v5",), out)
    with pytest.raises(ValueError, match="at least one"):
        build_kernels((), ("v3",), out)
    for bad in (
        KernelRequest.of("gather_gemm", k=0, n=1, activation="none", residual=0),
        KernelRequest.of("gather_gemm", k=1, n=1, activation="swish", residual=0),
        KernelRequest.of("attention", d=257, dv=1, bias=0),
    ):
        with pytest.raises(ValueError, match=r"no .* kernel"):
            build_kernels((bad,), ("v3",), out)
    assert not out.exists()


@pytest.mark.parametrize("level", ["v4", "v3"])
def test_empty_tensors_are_no_special_case(built: Path, level: str) -> None:
    if level not in LEVELS:
        pytest.skip(f"this machine cannot run {level}")
    library = KernelLibrary(built)
    index = np.zeros(0, np.int32)

    def floats(*shape: int) -> Array:
        return np.zeros(shape, np.float32)

    library.call(f"pack_b4_{level}", np.zeros((5, 0), np.int32), index, np.zeros((0, 0), np.int32))
    library.call(f"pack_b4_{level}", np.zeros((0, 5), np.int32), index, np.zeros((0, 5), np.int32))
    gemm = f"gather_gemm_k8_n70_gelu_res_{level}"
    panels, bias, row = floats(2, 8, 64), floats(128), floats(0, 70)
    library.call(gemm, floats(0, 8), index, panels, bias, row, index, row, 0, 0, 0, 2)
    library.call(gemm, floats(0, 8), index, panels, bias, row, index, row, 0, 0, 1, 1)
    x = floats(0, 2, 4)
    library.call(f"attention_d4_v4_{level}", x, x, x, x, 1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

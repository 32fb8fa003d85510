"""Libraries of CUDA kernels: tables, images and host code as whoever loads them finds them."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import own_kernels
from benchmarks.gpu.own_kernels import build_cuda_kernels, compile_functions
from pitc.codegen import call
from pitc.codegen.build import link
from pitc.codegen.build.cache import Cache, kernel_cache
from pitc.codegen.build.cubin import kernel_resources
from pitc.codegen.build.cuda_compiler import Compiled, CudaSourceError
from pitc.codegen.build.cuda_dump import dump_cuda_kernels
from pitc.codegen.build.cuda_library import compile_requests, part_of
from pitc.codegen.build.cuda_module import cuda_module
from pitc.codegen.build.library import cpu_part
from pitc.codegen.build.nvrtc import Nvrtc, find_nvrtc
from pitc.errors import MachineError, UsageError
from pitc.ir.kernel import KERNEL_ABI, KernelRequest
from pitc.version import __version__
from tests.codegen_kernels import LEVELS
from tests.cuda_sources import ARCHS as ALL_ARCHS
from tests.cuda_sources import calls_nothing, detectors, halves, reverse_rows, three_launches
from tests.runtime_support import kernel_identity

ARCHS = ("sm_80", "sm_90")
TARGETS = ("sm_80", "sm_90", "compute_90")
PACK = KernelRequest.of_cuda("pack", "int32")
PACKS = ("pack_b16_cuda", "pack_b4_cuda")
CUDA_DEVICE = 2


def functions() -> list[Any]:
    return [*detectors(), three_launches(), reverse_rows(), halves()]


SYMBOLS = tuple(sorted(str(f.attrs["global_symbol"]) for f in functions()))


class KernelEntry(ctypes.Structure):
    """`pitc_cuda_kernel`, as the contract says."""

    _fields_ = tuple((name, ctypes.c_char_p) for name in ("name", "module", "launch"))


class ImageEntry(ctypes.Structure):
    """`pitc_cuda_image`, as the contract says."""

    _fields_ = (
        ("module", ctypes.c_char_p),
        ("arch", ctypes.c_int32),
        ("is_ptx", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
    )


def table(library: ctypes.CDLL, entry: Any, name: str) -> Iterator[Any]:
    """The entries of a table."""
    count = ctypes.c_int32.in_dll(library, f"{name}_count").value
    return iter((entry * count).in_dll(library, f"{name}s"))


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "new" / "kernels.so"
    seen: list[tuple[int, int, str]] = []
    built = build_cuda_kernels(functions(), ARCHS, path, lambda *step: seen.append(step))
    assert built.symbols == SYMBOLS and built.identity == kernel_identity(path)
    labels = [f"{symbol} {target}" for symbol in SYMBOLS for target in TARGETS]
    assert [label for _, _, label in seen] == [*SYMBOLS, *labels]
    dones = [done for done, _, _ in seen]
    assert dones == sorted(dones) and dones[0] == 0 and dones[-1] >= len(labels) - 1
    assert {total for _, total, _ in seen} == {len(labels)}
    assert os.listdir(path.parent) == ["kernels.so"]
    return path


def test_kernels_are_listed(built: Path) -> None:
    module = cuda_module(functions(), ARCHS[0])
    found = {
        entry.name.decode(): (entry.module.decode(), entry.launch.decode())
        for entry in table(ctypes.CDLL(str(built)), KernelEntry, "pitc_cuda_kernel")
    }
    assert {name: launch for name, (_, launch) in found.items()} == {
        name: ",".join(tags) for name, tags in module.launch.items()
    }
    assert found["reverse_rows_kernel"] == (
        "reverse_rows",
        "blockIdx.y,threadIdx.x,tirx.use_dyn_shared_memory",
    )
    third = found["three_launches_kernel_2"]
    assert third == ("three_launches", "blockIdx.x,threadIdx.y,threadIdx.x")


def test_images_are_those_that_were_compiled(built: Path) -> None:
    compiler = find_nvrtc()
    assert compiler is not None
    _, compiled = compile_functions(functions(), ARCHS, compiler, cache=kernel_cache())
    found = list(table(ctypes.CDLL(str(built)), ImageEntry, "pitc_cuda_image"))
    assert len(found) == len(compiled) == len(SYMBOLS) * len(TARGETS)
    for entry, image in zip(found, compiled, strict=True):
        arch, kind = int(image.target.rpartition("_")[2]), image.target.startswith("compute")
        assert (entry.module.decode(), entry.arch, entry.is_ptx) == (image.module, arch, kind)
        assert entry.data % 8 == 0
        # a driver takes PTX as a text that ends
        assert ctypes.string_at(entry.data, entry.size + 1) == image.content + b"\0"


def test_an_image_holds_the_kernels_of_its_module(built: Path) -> None:
    library = ctypes.CDLL(str(built))
    kernels: dict[bytes, set[str]] = {}
    for entry in table(library, KernelEntry, "pitc_cuda_kernel"):
        kernels.setdefault(entry.module, set()).add(entry.name.decode())
    for entry in table(library, ImageEntry, "pitc_cuda_image"):
        content = ctypes.string_at(entry.data, entry.size)
        if entry.is_ptx:
            held = set(re.findall(r"\.entry (\w+)\(", content.decode("ascii")))
        else:
            held = {r.kernel for r in kernel_resources(content)}
        assert held == kernels[entry.module]


@dataclass
class FakeHost:
    """Fills the pointers of a library; a launch is noted, and nothing runs."""

    launches: list[tuple[str, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        p, i = ctypes.c_void_p, ctypes.c_int
        lookup = ctypes.CFUNCTYPE(i, p, ctypes.c_char_p, ctypes.POINTER(p))
        launch = ctypes.CFUNCTYPE(i, p, ctypes.POINTER(call._Any), ctypes.c_int32, p)
        once = ctypes.CFUNCTYPE(i, ctypes.POINTER(p), ctypes.CFUNCTYPE(i, ctypes.POINTER(p)))
        self.names = ["none"]
        self.pointers = {
            "__TVMFFIEnvModLookupFromImports": lookup(self.find),
            "__TVMFFIFunctionCall": launch(self.launch),
            "__TVMFFIHandleInitOnce": once(lambda at, make: 0 if at[0] else make(at)),
        }

    def find(self, _library: int, name: bytes, found: Any) -> int:
        self.names.append(name.decode())
        found[0] = len(self.names) - 1
        return 0

    def launch(self, function: int, arguments: Any, count: int, _result: int) -> int:
        numbers = [arguments[i].value.integer for i in range(count)]
        self.launches.append((self.names[function], numbers))
        return 0

    def fill(self, library: ctypes.CDLL) -> None:
        for name, function in self.pointers.items():
            slot = ctypes.c_void_p.in_dll(library, name)
            assert slot.value is None
            slot.value = ctypes.cast(function, ctypes.c_void_p).value


def test_host_code_launches_through_the_pointers(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "_CPU", CUDA_DEVICE)
    library = ctypes.CDLL(str(built))
    host = FakeHost()
    host.fill(library)
    assert ctypes.c_void_p.in_dll(library, "__tvm_ffi__library_ctx").value is None
    kernels = call.KernelLibrary(built)

    x, out = np.zeros((5, 64), np.float32), np.zeros((5, 64), np.float32)
    kernels.call("reverse_rows", x, out)
    (device, _), (name, numbers) = host.launches
    assert (device, name) == ("__tvm_set_device", "reverse_rows_kernel")
    # out, x, rows; then blockIdx.y, threadIdx.x and bytes of shared memory
    assert numbers == [out.ctypes.data, x.ctypes.data, 5, 5, 64, 256]

    host.launches.clear()
    kernels.call("three_launches", np.zeros(32, np.int32), np.zeros(3, np.int32))
    names = [name for name, _ in host.launches if name != "__tvm_set_device"]
    assert names == [f"three_launches_kernel{end}" for end in ("", "_1", "_2")]
    grids = [n[-3:] for name, n in host.launches if name != "__tvm_set_device"]
    assert grids == [[1, 8, 32]] * 3
    with pytest.raises(call.KernelError, match="out"):
        kernels.call("reverse_rows", x, out[:3].copy())
    with pytest.raises(call.KernelError, match=r"y.*bfloat16"):
        kernels.call("halves", x.astype(np.float16), x.astype(np.float16))


def test_types_of_16_bits_are_compiled_without_a_warning() -> None:
    compiler = find_nvrtc()
    assert compiler is not None
    source = cuda_module([halves()], ARCHS[0]).source
    assert "nv_bfloat16" in source and "half2" in source
    assert [compiler.compile(source, f"sm_{arch}").log for arch in ALL_ARCHS] == [""] * 6


def test_dynamic_symbols(built: Path) -> None:
    done = subprocess.run(["nm", "-D", built], check=True, capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {x[-1].split("@")[0] for x in lines if x[-2] == "U"} <= {
        *("memcpy", "memset", "strlen", "__tls_get_addr")
    }
    tables = [f"pitc_cuda_{name}" for name in ("kernels", "kernel_count", "images", "image_count")]
    pointers = [
        f"__TVMFFI{n}" for n in ("EnvModLookupFromImports", "FunctionCall", "HandleInitOnce")
    ]
    own = ["pitc_kernel_identity", "pitc_kernel_last_error", "__tvm_ffi__library_ctx"]
    kernels = [f"__tvm_ffi_{symbol}" for symbol in SYMBOLS]
    assert {x[-1] for x in lines if x[-2] in "TVWDBR"} == {*tables, *pointers, *own, *kernels}
    code = f"import ctypes, os; ctypes.CDLL({str(built)!r}, mode=os.RTLD_NOW | os.RTLD_LOCAL)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def test_same_bytes_for_the_same_functions(built: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.so"
    code = f"""
from pathlib import Path
from benchmarks.gpu.own_kernels import build_cuda_kernels
from tests.gpu.test_build_cuda_library import functions
build_cuda_kernels(functions()[::-1], ("sm_90", "sm_80", "sm_90"), Path({str(other)!r}))
"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"PYTHONHASHSEED": "7", "TMPDIR": str(scratch)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=Path.cwd())
    assert other.read_bytes() == built.read_bytes()
    assert b"/tmp" not in built.read_bytes()


def test_the_identity_names_the_compiler_and_the_images(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abi, pitc, tvm, nvrtc, digest = kernel_identity(built).split("/")
    assert abi == f"{KERNEL_ABI}" and pitc == f"pitc-{__version__}" and tvm.startswith("tvm-")
    assert re.fullmatch(r"nvrtc-13[.\d]+", nvrtc) and re.fullmatch("[0-9a-f]{32}", digest)
    fewer = build_cuda_kernels(functions(), ("sm_80",), tmp_path / "fewer.so")
    other = build_cuda_kernels(functions(), ("sm_80", "sm_86"), tmp_path / "other.so")
    assert len({digest, *(b.identity.rpartition("/")[2] for b in (fewer, other))}) == 3


def test_cpu_and_gpu_kernels_share_a_library(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    parts = [
        cpu_part([KernelRequest.of("pack", "int32")], LEVELS),
        part_of(*compile_requests([PACK], ("sm_80",))),
    ]
    built = link.link_library(parts, path)
    assert built.symbols == tuple(sorted([*PACKS, *(f"pack_b4_{level}" for level in LEVELS)]))
    assert "/nvrtc-" in built.identity and built.identity == kernel_identity(path)
    x, index = np.arange(12, dtype=np.int32).reshape(3, 4), np.array([2, 0], np.int32)
    out = np.zeros((2, 4), np.int32)
    call.KernelLibrary(path).call(f"pack_b4_{LEVELS[0]}", x, index, out)
    assert (out == x[index]).all()
    images = table(ctypes.CDLL(str(path)), ImageEntry, "pitc_cuda_image")
    assert [(x.arch, x.is_ptx) for x in images] == [(80, 0), (80, 1)] * len(PACKS)
    link.link_library(parts[:1], tmp_path / "cpu.so")
    assert not hasattr(ctypes.CDLL(str(tmp_path / "cpu.so")), "pitc_cuda_images")


def test_nothing_is_compiled_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    compiler, real = find_nvrtc(), Nvrtc.compile
    assert compiler is not None
    asked: list[str] = []
    known: dict[str, bytes] = {}

    def noted(self: Nvrtc, source: str, target: str) -> Compiled:
        asked.append(target)
        return real(self, source, target)

    def compiled(*archs: str) -> list[str]:
        """What was asked for; what is known has the same bytes again."""
        asked.clear()
        for image in compile_functions([reverse_rows()], archs, compiler, cache=cache)[1]:
            assert known.setdefault(image.target, image.content) == image.content
        return sorted(asked)

    monkeypatch.setattr(Nvrtc, "compile", noted)
    assert compiled(*ARCHS) == ["compute_90", "sm_80", "sm_90"]
    assert compiled(*ARCHS) == []
    entries = sorted((tmp_path / "cache").iterdir())
    assert len(entries) == 3
    entries[1].write_bytes(entries[1].read_bytes()[:-1])  # damaged: it is made again
    assert len(compiled(*ARCHS)) == 1 and compiled(*ARCHS) == []
    assert compiled("sm_80", "sm_100") == ["compute_100", "sm_100"]
    fingerprint = f"{compiler.fingerprint} of another build"
    monkeypatch.setattr(compiler, "fingerprint", fingerprint)
    assert compiled("sm_80") == ["compute_80", "sm_80"]


def test_a_source_that_is_refused_is_named(tmp_path: Path) -> None:
    out = tmp_path / "kernels.so"
    with pytest.raises(CudaSourceError) as caught:
        build_cuda_kernels([reverse_rows(), calls_nothing()], ARCHS, out)
    assert str(caught.value).startswith("calls_nothing: nvrtc-")
    assert 'identifier "absent_function" is undefined' in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "kernels.so"
    for wrong, archs, text in (
        ([], ARCHS, "at least one function and one architecture"),
        ([reverse_rows()], (), "at least one function and one architecture"),
        ([reverse_rows(), halves(), reverse_rows()], ARCHS, "are called reverse_rows$"),
    ):
        with pytest.raises(ValueError, match=text):
            build_cuda_kernels(wrong, archs, out)
    with pytest.raises(UsageError, match="unknown CUDA architecture 'sm_x'"):
        build_cuda_kernels([reverse_rows()], ("sm_x",), out)
    with pytest.raises(UsageError, match="cannot compile for sm_70"):
        build_cuda_kernels([reverse_rows()], ("sm_70",), out)
    monkeypatch.setenv("CC", "nosuchcc")
    monkeypatch.setattr(own_kernels, "compile_functions", None)  # told before anything is compiled
    with pytest.raises(MachineError, match="looked for nosuchcc"):
        build_cuda_kernels([reverse_rows()], ARCHS, out)
    assert not list(tmp_path.iterdir())


def test_dump(tmp_path: Path) -> None:
    folder = tmp_path / "stages" / "cuda"
    compiler = find_nvrtc()
    assert compiler is not None
    wanted = [reverse_rows(), detectors()[0]]
    dump_cuda_kernels(*compile_functions(wanted, ARCHS, compiler, all_ptx=True), folder)
    kinds = ("cu", "sm_80.cubin", "sm_90.cubin", "compute_80.ptx", "compute_90.ptx")
    named = {f"{symbol}.{kind}" for symbol in ("reverse_rows", "detect") for kind in kinds}
    assert set(os.listdir(folder)) == {*named, "resources.txt"}
    assert "__global__" in (folder / "detect.cu").read_text()
    assert "\n.target sm_80\n" in (folder / "reverse_rows.compute_80.ptx").read_text()
    head, *rows = (line.split() for line in (folder / "resources.txt").read_text().splitlines())
    assert head[:5] == ["module", "target", "kernel", "registers", "shared"]
    assert [row[:3] for row in rows] == [
        [symbol, arch, f"{symbol}_kernel"]
        for symbol in ("detect", "reverse_rows")
        for arch in ARCHS
    ]
    for row in rows:
        (found,) = kernel_resources((folder / f"{row[0]}.{row[1]}.cubin").read_bytes())
        assert row[3:] == [
            str(n)
            for n in (
                *(found.registers, found.shared_bytes, found.stack_bytes, found.stored_bytes),
                *(found.loaded_bytes, found.max_threads, found.code_bytes),
            )
        ]

"""The C++ side of the runtime: unit tests, sanitizers, the two ABIs, the library's exports."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime_support import BUILD_VARIABLE, ROOT, SANITIZERS, build, tool

CXX = os.environ.get("CXX") or shutil.which("c++") or ""
RUNTIME = ROOT / "runtime"
#: Where Debian's package puts the header; `runtime/abi/fetch_headers.sh` needs no installation.
ORT_HEADERS = Path(os.environ.get("PITC_ORT_HEADERS", "/usr/include/onnxruntime"))


#: Where NVIDIA's toolkit puts its header.
CUDA_HEADERS = Path(os.environ.get("PITC_CUDA_HEADERS", "/usr/local/cuda/include"))


def output(*command: str | Path, **environment: str) -> str:
    """What a command prints; it must succeed."""
    run = subprocess.run(
        [*map(str, command)], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    return run.stdout


# flavour -> tests; the fuzzers use one thread, in which there is no race to be found
TESTS = (
    *("plan", "dense_tiles", "listed_tiles", "mask", "index", "kernel", "micro_tiles"),
    *("selector", "trace", "cpu_level"),
    *("contraction", "right_contraction", "provider", "constants"),  # in a fake ONNX Runtime
    "device",  # on a fake driver
)
FUZZERS = ("plan_fuzz", "node_fuzz", "micro_tiles_fuzz")
UNIT_TESTS = {"plain": (*TESTS, "allocation"), "asan": (*TESTS, *FUZZERS), "tsan": TESTS}


@pytest.mark.parametrize(
    "flavour",
    ["plain", *(pytest.param(f, marks=pytest.mark.thorough) for f in SANITIZERS if f != "plain")],
)
def test_unit_tests(flavour: str) -> None:
    names = UNIT_TESTS[flavour]
    programs = [name if name in FUZZERS else f"{name}_test" for name in names]
    folder = build(flavour, *([] if flavour == "plain" else programs))
    ctest = Path(tool("cmake")).with_name("ctest")
    pattern = f"^({'|'.join(names)})$"
    shown = output(ctest, "--test-dir", folder, "--output-on-failure", "-R", pattern)
    assert "100% tests passed" in shown and f" out of {len(names)}\n" in shown


def preloads() -> list[str]:
    """What a process must load first: the sanitizer, and the library whose throws it watches."""
    names = ("libasan.so", "libstdc++.so")
    paths = [Path(output(CXX, f"-print-file-name={name}").strip()) for name in names]
    return [str(path.resolve()) for path in paths if path.is_absolute()]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "tests",
    [
        *(
            "plugin/test_runtime_ep.py",
            "plugin/test_runtime_attention.py",
            "plugin/test_runtime_errors.py",
        ),
        *(
            "plugin/test_runtime_session.py",
            "gpu/test_device_session.py",
            "gpu/test_device_errors.py",
        ),
    ],
)
def test_provider_under_address_sanitizer(tests: str) -> None:
    """The Python tests once more, in a process where the provider and its kernels are checked."""
    libraries = preloads()
    if len(libraries) != 2:
        pytest.skip("the compiler has no libasan.so")
    folder = build("asan")
    # Leaks are not looked for: the interpreter never frees everything. The interpreter and ONNX
    # Runtime are not instrumented, so their allocations may end in another allocator's hands.
    shown = output(
        *[sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        *["-k", "not mutated", ROOT / "tests" / tests],
        ASAN_OPTIONS="detect_leaks=0:alloc_dealloc_mismatch=0",
        UBSAN_OPTIONS="print_stacktrace=1",
        LD_PRELOAD=" ".join(libraries),
        PYTHONPATH=str(ROOT),
        PYTEST_ADDOPTS="",
        **{BUILD_VARIABLE: str(folder)},
    )
    assert " passed" in shown and "failed" not in shown


def compiles(source: Path, *options: str | Path) -> bool:
    return compiles_text(source.read_text(), "-iquote", source.parent, *options)


def compiles_text(text: str, *options: str | Path) -> bool:
    command = [CXX, "-std=c++17", "-fsyntax-only", "-w", *map(str, options), "-x", "c++", "-"]
    return subprocess.run(command, input=text.encode(), capture_output=True).returncode == 0


def test_abi_table_against_the_official_header(tmp_path: Path) -> None:
    if not (ORT_HEADERS / "onnxruntime_ep_c_api.h").is_file():
        pytest.skip("no onnxruntime_c_api.h: see runtime/abi/fetch_headers.sh, PITC_ORT_HEADERS")
    output(sys.executable, RUNTIME / "abi" / "generate.py", "check", tmp_path / "check.cc")
    assert compiles(tmp_path / "check.cc", "-isystem", ORT_HEADERS)
    text = (tmp_path / "check.cc").read_text()
    for right, wrong in (
        ("KernelContext_GetInput) == 90 ", "KernelContext_GetInput) == 91 "),
        ("OrtStatus*(const OrtValue*,const void**)", "OrtStatus*(const OrtValue*,void**)"),
        ("== 13 * sizeof", "== 12 * sizeof"),
        ("ORT_OP_ATTR_STRING == 5", "ORT_OP_ATTR_STRING == 4"),
    ):
        assert right in text
        (tmp_path / "wrong.cc").write_text(text.replace(right, wrong))
        assert not compiles(tmp_path / "wrong.cc", "-isystem", ORT_HEADERS), right


def test_abi_generator(tmp_path: Path) -> None:
    """The declaration compiles by itself and puts slots where the table says."""
    output(sys.executable, RUNTIME / "abi" / "generate.py", "header", tmp_path / "ort_abi.h")
    (tmp_path / "use.cc").write_text(
        '#include "ort_abi.h"\n'
        "static_assert(offsetof(OrtApi, KernelContext_ParallelFor) == 274 * sizeof(void*));\n"
        "static_assert(sizeof(OrtEp) == 13 * sizeof(void*) && ORT_INVALID_GRAPH == 10);\n"
    )
    assert compiles(tmp_path / "use.cc")


def test_tvm_abi_against_its_headers() -> None:
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        pytest.skip("apache-tvm-ffi is not installed")
    assert compiles(RUNTIME / "abi" / "tvm_check.cc", "-I", Path(spec.origin).parent / "include")


def test_cuda_abi_against_its_header() -> None:
    header = CUDA_HEADERS / "cuda.h"
    if not header.is_file():
        pytest.skip("no cuda.h: see PITC_CUDA_HEADERS")
    source, isystem = RUNTIME / "abi" / "cuda_check.cc", ("-isystem", CUDA_HEADERS)
    assert compiles(source, *isystem)
    own = (RUNTIME / "ep" / "device" / "cuda_abi.h").read_text()
    text = source.read_text().replace('#include "../ep/device/cuda_abi.h"', "")
    assert compiles_text(own + text, *isystem)
    for right, wrong in (
        ('"cuMemFree_v2", Address', '"cuMemFree", Address'),
        ('"cuCtxSetCurrent", Context', '"cuCtxSetCurrent", Context*, int'),
        ("kMostSharedBytes = 97", "kMostSharedBytes = 81"),
        ("unsigned short usage;", "unsigned usage;"),
    ):
        assert right in own
        assert not compiles_text(own.replace(right, wrong) + text, *isystem), right


def test_the_library_exports_three_functions_and_needs_little() -> None:
    library = build("plain") / "libpitc_ort_ep.so"
    if not shutil.which("nm") or not shutil.which("readelf"):
        pytest.skip("no binutils")
    exported = [
        line.split()[-1] for line in output("nm", "-D", "--defined-only", library).splitlines()
    ]
    assert sorted(exported) == [
        "CreateEpFactories",
        "PitcCudaTrouble",
        "PitcFeatures",
        "ReleaseEpFactory",
    ]
    needed = [line for line in output("readelf", "-d", library).splitlines() if "NEEDED" in line]
    assert all(any(f"[{name}" in line for name in ("libc.", "libm.", "ld-")) for line in needed)


def test_the_library_runs_on_any_x86_64() -> None:
    """AVX stands in the objects of its level alone, which share no function with any other."""
    sources = [path for path in (RUNTIME / "ep").rglob("*") if path.is_file()]
    assert len(sources) > 60 and not [p for p in sources if 'target("' in p.read_text()]
    assert "-march" not in (RUNTIME / "CMakeLists.txt").read_text()
    if not shutil.which("nm") or not shutil.which("objdump"):
        pytest.skip("no binutils")
    commands = json.loads((build("plain") / "compile_commands.json").read_text())
    objects = [Path(command["directory"]) / command["output"] for command in commands]
    levels = {"v3": "ymm", "v4": "zmm"}
    for level, registers in levels.items():
        own = [path for path in objects if f"pitc_simd_{level}.dir" in path.parts]
        assert len(own) == 5
        symbols = output("nm", "-C", "--defined-only", *own).splitlines()
        seen_elsewhere = [line for line in symbols if re.search(r" [A-ZVWuvw] ", line)]
        assert len(seen_elsewhere) == 9
        assert all(f" pitc::{level}::" in line for line in seen_elsewhere), seen_elsewhere
        assert f"%{registers}" in output("objdump", "-d", *own)
    others = [p for p in objects if not {f"pitc_simd_{level}.dir" for level in levels} & {*p.parts}]
    library = [path for path in others if "tests" not in path.parts]
    assert len(library) > 30
    assert not re.search(r"%[yz]mm", output("objdump", "-d", *library))


def test_cpp_is_formatted() -> None:
    sources = [path for end in ("cc", "h") for path in sorted(RUNTIME.rglob(f"*.{end}"))]
    assert len(sources) > 30
    output(tool("clang-format"), "--dry-run", "--Werror", *sources)

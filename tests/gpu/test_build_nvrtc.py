"""The CUDA compilers: what they accept, refuse and say, and which one is used."""

import os
import re
import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pitc.codegen.build import nvcc, nvrtc
from pitc.codegen.build.cuda_compiler import CudaCompiler, CudaSourceError, arch_number
from pitc.codegen.build.find_cuda import VARIABLE, find_cuda_compiler
from pitc.errors import MachineError, UsageError
from tests.cuda_sources import ADD_ONE, ARCHS, NVCC, detector, needs_nvcc

ELF_MACHINE_OF_CUDA = 190


def compilers() -> list[str]:
    return ["nvrtc", *(["nvcc"] if NVCC else [])]


@pytest.fixture(name="compiler", params=compilers())
def _compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CudaCompiler:
    monkeypatch.setenv(VARIABLE, request.param)
    found = find_cuda_compiler()
    assert found.version.startswith(f"{request.param}-")
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_accepts_the_detector_without_a_warning(compiler: CudaCompiler, arch: int) -> None:
    cubin = compiler.compile(detector(), f"sm_{arch}")
    assert cubin.log == ""
    assert cubin.image[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", cubin.image, 18) == (ELF_MACHINE_OF_CUDA,)
    assert b"detect_kernel" in cubin.image


def test_ptx_is_text_for_its_architecture(compiler: CudaCompiler) -> None:
    ptx = compiler.compile(detector(), "compute_90")
    assert ptx.log == ""
    text = ptx.image.decode("ascii")
    assert "\n.target sm_90\n" in text and ".visible .entry detect_kernel(" in text


def test_says_what_is_wrong_with_a_source(compiler: CudaCompiler) -> None:
    source = ADD_ONE + "__global__ void wrong() { absent(1); }\n"
    with pytest.raises(CudaSourceError) as caught:
        compiler.compile(source, "sm_80")
    text = str(caught.value)
    assert text.startswith(f"{compiler.version} refused a source for sm_80:\n")
    assert 'kernels.cu(2): error: identifier "absent" is undefined' in text


def test_warnings_are_told(compiler: CudaCompiler) -> None:
    source = 'extern "C" __global__ void odd(unsigned* x) { if (x[0] < 0) x[0] = 1; }\n'
    assert "pointless comparison" in compiler.compile(source, "sm_80").log


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("sm_20", "cannot compile for sm_20 (it can: sm_75, sm_80, "),
        ("compute_20", "cannot compile for sm_20"),
        ("80", "unknown CUDA architecture '80' (e.g. sm_80 or sm_90)"),
        ("sm_90; rm", "unknown CUDA architecture"),
    ],
)
def test_unknown_targets(compiler: CudaCompiler, target: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        compiler.compile(ADD_ONE, target)
    assert part in str(caught.value)


def test_no_sum_is_contracted(compiler: CudaCompiler) -> None:
    """A product and a sum round twice, as the source says; a written fma rounds once."""
    body = "x[0] = x[1] * x[2] + x[3]; x[4] = fmaf(x[5], x[6], x[7]);"
    source = f'extern "C" __global__ void sums(float* x) {{ {body} }}'
    ptx = compiler.compile(source, "compute_80").image.decode()
    assert ptx.count("fma.rn.f32") == 1 and "mul.rn.f32" in ptx and "add.rn.f32" in ptx


def test_constants_are_rounded_to_the_nearest(compiler: CudaCompiler) -> None:
    """TVM writes a float with all digits of a double; LLVM on the CPU has the nearest one."""
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(200) * 10.0 ** rng.integers(-30, 30, 200)
    halfway = [1 + 2**-24, 1 + 2**-24 + 2**-52, 1 + 3 * 2**-24, 1 + 3 * 2**-24 - 2**-52]
    values = [*map(float, drawn), *halfway, 2.0**-130]
    body = "".join(f"x[{i}] = {value.hex()}f;\n" for i, value in enumerate(values))
    source = f'extern "C" __global__ void constants(float* x) {{\n{body}}}\n'
    compiled = compiler.compile(source, "compute_80")
    ptx = compiled.image.decode()
    held = dict(re.findall(r"mov\.u32\s+(%r\d+), (-?\d+);", ptx))
    stored = re.findall(r"st\.global\.u32\s+\[%rd\d+\+?(\d*)\], (%r\d+);", ptx)
    found = {int(offset or 0) // 4: int(held[word]) & 0xFFFFFFFF for offset, word in stored}
    assert compiled.log == ""
    expected = np.array(values).astype(np.float32).view(np.uint32)
    assert found == dict(enumerate(expected.tolist()))


def test_long_logs_are_cut(compiler: CudaCompiler) -> None:
    lines = "".join(f"absent_{i}();\n" for i in range(90))
    with pytest.raises(CudaSourceError) as caught:
        compiler.compile(f"__global__ void wrong() {{\n{lines}}}\n", "sm_80")
    assert "absent_0" in str(caught.value) and len(str(caught.value)) < 4200


def test_the_same_source_gives_the_same_bytes_on_all_threads(compiler: CudaCompiler) -> None:
    targets = ["sm_80", "sm_90", "sm_120", "compute_120"]  # one for each thread
    alone = [compiler.compile(detector(), target) for target in targets]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda t: compiler.compile(detector(), t), targets))
    assert alone == together
    assert len({c.image for c in alone}) == len(targets)


def test_half_types_need_no_further_package() -> None:
    source = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
extern "C" __global__ void halves(__half* x, __nv_bfloat16* y, __nv_fp8_e4m3* z) {
  x[0] = __hadd(x[1], x[2]);
  y[0] = __float2bfloat16(__half2float(x[0]));
  z[0] = __nv_fp8_e4m3(1.0f);
}
"""
    found = nvrtc.find_nvrtc()
    assert found is not None
    assert found.compile(source, "sm_90").log == ""


TRAITS = (
    *("is_same_v<int64_t, long> && sizeof(int64_t) == 8", "sizeof(uint16_t) == 2"),
    *("is_integral<unsigned char>::value", "!is_integral<float>::value"),
    *("is_floating_point<double>::value", "!is_floating_point<int>::value"),
    *("is_signed<int8_t>::value", "is_signed<float>::value", "!is_signed<uint32_t>::value"),
    *("is_unsigned<uint8_t>::value", "is_unsigned<bool>::value", "!is_unsigned<int>::value"),
    *("!is_signed<int*>::value", "!is_unsigned<int*>::value", "!is_same<int, long>::value"),
    "is_same_v<enable_if<true, int>::type, int>",
    "is_same_v<conditional<false, int, long>::type, long>",
)


def test_our_headers_hold_what_tvm_may_use() -> None:
    found = nvrtc.find_nvrtc()
    assert found is not None
    includes = "".join(f"#include <{name}>\n" for name in nvrtc.HEADERS)
    claims = "".join(f"static_assert({text});\n" for text in TRAITS)
    source = f"{includes}using namespace cuda::std;\n{claims}{ADD_ONE}"
    assert found.compile(source, "sm_80").log == ""
    with pytest.raises(CudaSourceError, match="static assert"):
        found.compile(source.replace("!is_same<", "is_same<"), "sm_80")


def test_nvrtc_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_cuda_compiler().version.startswith("nvrtc-13.")


@needs_nvcc
def test_nvcc_stands_in_for_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(nvrtc, "PACKAGES", (("pitc-absent", "pitc-absent"),))
    assert find_cuda_compiler().version.startswith("nvcc-")


def test_without_any_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "PACKAGES", (("nvidia-cuda-nvrtc", "pitc-absent"),))
    monkeypatch.setenv("PATH", "/nowhere")
    hint = "pip install 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-runtime>=13,<14'"
    asked = f"{VARIABLE} asks for"
    for named, error, text in (
        ("", MachineError, f"no CUDA compiler is installed ({hint})"),
        ("nvrtc", MachineError, f"{asked} nvrtc, which is not installed ({hint})"),
        ("nvcc", MachineError, f"{asked} nvcc, which is not installed (add its folder to PATH)"),
        ("clang", UsageError, "PITC_CUDA_COMPILER: 'clang' is no CUDA compiler (nvrtc or nvcc)"),
    ):
        monkeypatch.setenv(VARIABLE, named)
        with pytest.raises(error) as caught:
            find_cuda_compiler()
        assert str(caught.value) == text


def install(folder: Path, package: str, version: str, *files: str) -> None:
    """What pip leaves of a package; without files, what another installer may leave."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    if files:
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))


CUDA12 = ("nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cuda_runtime/include/cuda_fp16.h")


def test_packages_of_cuda_12_serve_where_those_of_13_are_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[Path, Path, str, str]] = []
    monkeypatch.setattr(nvrtc, "_loaded", lambda *given: loaded.append(given))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    library, header = CUDA12
    install(tmp_path, "nvidia-cuda-nvrtc", "13.0.1", "nvidia/cu13/lib/libnvrtc.so.13")
    other = library.replace(".so", ".alt.so")
    install(tmp_path, "nvidia-cuda-nvrtc-cu12", "12.9.86", other, library)
    assert nvrtc.find_nvrtc() is None and not loaded  # no headers of either
    install(tmp_path, "nvidia-cuda-runtime-cu12", "12.9.79", header)
    nvrtc.find_nvrtc()
    assert loaded == [(tmp_path / library, (tmp_path / header).parent, "12.9.86", "12.9.79")]


def test_a_package_without_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for package in nvrtc.PACKAGES[0]:
        install(tmp_path, package, "13.1")
    with pytest.raises(MachineError, match=r"nvidia-cuda-nvrtc 13\.1 holds no libnvrtc\.so"):
        nvrtc.find_nvrtc()


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(b"no library")
    with pytest.raises(MachineError, match="NVRTC cannot be loaded"):
        nvrtc.Nvrtc(library, tmp_path, "13.0", "13.0")


def test_headers_that_are_not_there_are_told(tmp_path: Path) -> None:
    found = nvrtc.find_nvrtc()
    assert found is not None
    other = nvrtc.Nvrtc(found.path, tmp_path, "13.0", "13.0")
    with pytest.raises(CudaSourceError, match='open source file "cuda_fp16'):
        other.compile("#include <cuda_fp16.h>\n", "sm_80")


@pytest.fixture(name="fake_nvcc")
def _fake_nvcc(tmp_path: Path) -> Callable[[str], nvcc.Nvcc]:
    def make(compiles: str) -> nvcc.Nvcc:
        script = tmp_path / "nvcc"
        text = f"""#!/bin/sh
case "$1" in
--version) echo "release 99.1, V99.1.2" ;;
--list-gpu-code) printf 'sm_80\\nsm_90\\n' ;;
*) {compiles} ;;
esac
"""
        script.write_text(text)
        script.chmod(0o755)
        return nvcc.Nvcc(script)

    return make


def test_nvcc_that_fails(fake_nvcc: Callable[[str], nvcc.Nvcc], tmp_path: Path) -> None:
    found = fake_nvcc("echo 'fatal: cannot find compiler cc1plus' >&2; exit 1")
    assert (found.version, found.archs) == ("nvcc-99.1.2", (80, 90))
    with pytest.raises(MachineError, match="cannot find compiler cc1plus"):
        found.compile(ADD_ONE, "sm_80")
    (tmp_path / "nvcc").unlink()
    with pytest.raises(MachineError, match="nvcc does not start"):
        found.compile(ADD_ONE, "sm_80")


def test_nvcc_gets_no_options_from_elsewhere(
    fake_nvcc: Callable[[str], nvcc.Nvcc], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-use_fast_math")
    found = fake_nvcc('[ -z "$NVCC_APPEND_FLAGS" ] && printf made > image')
    assert found.compile(ADD_ONE, "sm_80").image == b"made"
    assert os.environ["NVCC_APPEND_FLAGS"]


def test_numbers_of_architectures() -> None:
    assert [arch_number(name) for name in ("sm_80", "compute_120")] == [80, 120]

"""Resources read from cubins: those that nvcc reports, and those that the source decides."""

from pathlib import Path

import pytest

from pitc.codegen.build.cubin import KernelResources, kernel_resources
from pitc.codegen.build.nvrtc import find_nvrtc
from tests.cuda_sources import ARCHS, USES, Report, detector, needs_nvcc, nvcc_report

SPILLS, ARRAYS = {"spilling", "spilling_twins"}, {"calling": 96, "indexing": 64}
"""Kernels that spill, and bytes of the arrays of those that have one."""


def by_nvrtc(source: str, arch: int) -> dict[str, KernelResources]:
    compiler = find_nvrtc()
    assert compiler is not None
    found = kernel_resources(compiler.compile(source, f"sm_{arch}").image)
    assert [r.kernel for r in found] == sorted(r.kernel for r in found)
    return {resources.kernel: resources for resources in found}


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("text", ["uses", "detector"])
def test_as_nvcc_reports(text: str, arch: int, tmp_path: Path) -> None:
    cubin, reports = nvcc_report(USES if text == "uses" else detector(), arch, tmp_path)
    found = {}
    for r in kernel_resources(cubin):
        # What goes to arrays is no spill.
        moved = (0, 0) if r.kernel in ARRAYS else (r.stored_bytes, r.loaded_bytes)
        found[r.kernel] = Report(r.registers, r.shared_bytes, r.stack_bytes, *moved)
    assert found == reports
    if text == "uses":
        assert found["spilling"].spill_stores > 100 and found["spilling_twins"].spill_loads > 100


@pytest.mark.parametrize("arch", ARCHS)
def test_as_the_source_decides(arch: int) -> None:
    found = by_nvrtc(USES, arch)
    shared = {"sharing": 4000}
    threads = {"spilling": 1024, "spilling_twins": 512, "sharing": 64}
    assert set(found) == {*SPILLS, *ARRAYS, "sharing", "sharing_as_asked", "plain"}
    for name, resources in found.items():
        assert resources.shared_bytes == shared.get(name, 0)
        assert resources.max_threads == threads.get(name, 0)
        with_stack = name in SPILLS or name in ARRAYS
        assert (resources.stack_bytes > 0) == with_stack
        assert (resources.stored_bytes > 0) == (resources.loaded_bytes > 0) == with_stack
        assert 4 <= resources.registers <= 255 and resources.code_bytes % 128 == 0
    # 64 Ki registers are shared by the threads of the largest block.
    assert found["spilling"].registers == 64 and found["spilling_twins"].registers <= 128
    for name, size in ARRAYS.items():
        assert found[name].stack_bytes >= size
    assert (found["indexing"].stored_bytes, found["indexing"].loaded_bytes) == (4, 12)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_detector_spills_nothing(arch: int) -> None:
    for resources in by_nvrtc(detector(), arch).values():
        assert resources.stack_bytes == resources.stored_bytes == resources.loaded_bytes == 0
        together = 4 if resources.max_threads == 256 else 1  # blocks of a multiprocessor
        assert resources.registers * resources.max_threads * together <= 65536


def test_what_is_no_cubin() -> None:
    compiler = find_nvrtc()
    assert compiler is not None
    cubin = compiler.compile(USES, "sm_90").image
    own = Path("/proc/self/exe").read_bytes()
    for content in (b"", b"\x7fELF", cubin[:100], cubin[: len(cubin) // 2], own[:4000], own):
        with pytest.raises(ValueError, match="not a cubin"):
            kernel_resources(content)

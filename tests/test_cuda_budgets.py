"""What kernels of GPUs may use: registers, shared memory and no spill, on every architecture."""

import functools
from collections.abc import Sequence

import pytest

from pitc.codegen.build.cubin import KernelResources, kernel_resources
from pitc.codegen.build.cuda_functions import functions_of
from pitc.codegen.build.cuda_library import compile_functions
from pitc.codegen.build.find_cuda import find_cuda_compiler
from pitc.errors import MachineError
from pitc.ir.cuda_target import CUDA_ARCHS, CUDA_TILES, CudaTile
from pitc.ir.gpu_speed import step_wavefronts
from pitc.ir.kernel import KernelRequest

REGISTERS = 65536
"""Of a multiprocessor, on every architecture that there is."""

PLAIN = [
    KernelRequest.of_cuda("gather_gemm", dtype, activation="none", residual=0)
    for dtype in ("float16", "float32")
]
FULL = [
    KernelRequest.of_cuda("gather_gemm", dtype, activation="gelu", residual=1)
    for dtype in ("float16", "bfloat16")
]


@functools.cache
def resources(
    requests: tuple[KernelRequest, ...], archs: Sequence[str]
) -> list[tuple[str, KernelResources]]:
    """(arch, what a kernel uses), of all kernels of some requests."""
    try:
        compiler = find_cuda_compiler()
    except MachineError as error:
        pytest.skip(error.message)
    _, images = compile_functions(functions_of(requests), archs, compiler)
    return [(x.target, r) for x in images if not x.is_ptx for r in kernel_resources(x.content)]


@pytest.mark.parametrize(
    ("requests", "archs"),
    [(tuple(PLAIN), ("sm_80", "sm_86", "sm_120")), (tuple(FULL), ("sm_90",))],
    ids=["plain", "full"],
)
def test_registers_suffice(requests: tuple[KernelRequest, ...], archs: tuple[str, ...]) -> None:
    found = resources(requests, archs)
    assert {arch for arch, _ in found} == set(archs)
    for arch, used in found:
        assert used.stack_bytes == 0, (arch, used)
        assert used.stored_bytes == used.loaded_bytes == 0, (arch, used)
        tile = next(t for t in CUDA_TILES if f"_{t.name}_" in used.kernel)
        assert used.registers * tile.threads * tile.together <= REGISTERS, (arch, used)


@pytest.mark.parametrize("arch", CUDA_ARCHS)
@pytest.mark.parametrize("tile", CUDA_TILES, ids=lambda tile: tile.name)
def test_shared_memory_suffices(tile: CudaTile, arch: str) -> None:
    """For as many blocks as a multiprocessor should run side by side; each takes 1 KiB more."""
    size = tile.slot_bytes * tile.stages
    assert size <= CUDA_ARCHS[arch].shared_bytes
    assert tile.together * (size + 1024) <= CUDA_ARCHS[arch].processor_shared_bytes


def test_the_model_counts_wavefronts_as_the_emulator_does() -> None:
    from tests.cuda_kernels import Product
    from tests.test_cuda_contract import kernels, multiply

    for tile in (CUDA_TILES[1], CUDA_TILES[2]):
        steps = 4
        k = steps * tile.k_bytes // 2
        product = Product(tile.m, k, tile.n, "float16")
        multiply(product, tile, "plain", blocks=1)
        (launch,) = kernels(tile, "float16").launches
        assert launch.counts.shared_wavefronts == steps * step_wavefronts(tile)
